//! Checks the signatures of tokens with the OpenSSL that is linked for TLS already.
//!
//! # Invariants
//! 1. A key is used for the algorithms of its own kind alone. There is no algorithm here that needs a secret.
//! 2. Nothing here signs.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature;
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Public};
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Verifier};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| {
        let (algorithm, key) = (*algorithm, public_key(*algorithm, key)?);
        Ok(Box::new(Signed { algorithm, key }))
    },
    // For keys that somebody makes, which nobody does here.
    key_utils: KeyUtils {
        rsa_pub_components_from_private_key: |_| Err(ErrorKind::UnsupportedAlgorithm.into()),
        rsa_pub_components_from_public_key: |_| Err(ErrorKind::UnsupportedAlgorithm.into()),
        ec_pub_components_from_private_key: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
        ed_pub_components_from_private_key: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
        compute_digest: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    },
};

/// Has tokens checked by OpenSSL. A program that embeds us and has chosen for itself keeps its choice.
pub(super) fn install() {
    if CryptoProvider::try_get_default().is_none() {
        // Another thread may have been faster; then there is one.
        let _ = PROVIDER.install_default();
    }
}

/// What a token's signature is checked with.
struct Signed {
    algorithm: Algorithm,
    key: PKey<Public>,
}

impl JwtVerifier for Signed {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl signature::Verifier<Vec<u8>> for Signed {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> Result<(), signature::Error> {
        match self.fits(message, given) {
            Ok(true) => Ok(()),
            _ => Err(signature::Error::new()),
        }
    }
}

impl Signed {
    fn fits(&self, message: &[u8], given: &[u8]) -> Result<bool, ErrorStack> {
        let Some(digest) = digest(self.algorithm) else {
            return Verifier::new_without_digest(&self.key)?.verify_oneshot(given, message);
        };
        let mut verifier = Verifier::new(digest, &self.key)?;
        match self.algorithm {
            Algorithm::ES256 | Algorithm::ES384 => {
                // r and s, each as long as the order of the curve.
                let Some((r, s)) = halves(self.algorithm, given) else { return Ok(false) };
                let (r, s) = (BigNum::from_slice(r)?, BigNum::from_slice(s)?);
                let both = EcdsaSig::from_private_components(r, s)?;
                verifier.verify_oneshot(&both.to_der()?, message)
            }
            Algorithm::PS256 | Algorithm::PS384 | Algorithm::PS512 => {
                verifier.set_rsa_padding(Padding::PKCS1_PSS)?;
                verifier.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
                verifier.set_rsa_mgf1_md(digest)?;
                verifier.verify_oneshot(given, message)
            }
            _ => {
                verifier.set_rsa_padding(Padding::PKCS1)?;
                verifier.verify_oneshot(given, message)
            }
        }
    }
}

/// The hash that an algorithm names; `None`: it has its own inside.
fn digest(algorithm: Algorithm) -> Option<MessageDigest> {
    match algorithm {
        Algorithm::RS256 | Algorithm::PS256 | Algorithm::ES256 => Some(MessageDigest::sha256()),
        Algorithm::RS384 | Algorithm::PS384 | Algorithm::ES384 => Some(MessageDigest::sha384()),
        Algorithm::RS512 | Algorithm::PS512 => Some(MessageDigest::sha512()),
        _ => None,
    }
}

fn halves(algorithm: Algorithm, given: &[u8]) -> Option<(&[u8], &[u8])> {
    let half = if algorithm == Algorithm::ES256 { 32 } else { 48 };
    (given.len() == 2 * half).then(|| given.split_at(half))
}

/// The key as OpenSSL has it.
///
/// # Errors
/// It is none, or none for this algorithm.
pub(super) fn public_key(algorithm: Algorithm, key: &DecodingKey) -> Result<PKey<Public>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    let made = match (algorithm, key.kind()) {
        (
            Algorithm::RS256
            | Algorithm::RS384
            | Algorithm::RS512
            | Algorithm::PS256
            | Algorithm::PS384
            | Algorithm::PS512,
            DecodingKeyKind::RsaModulusExponent { n, e },
        ) => rsa(n, e),
        (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => {
            on_curve(Nid::X9_62_PRIME256V1, point)
        }
        (Algorithm::ES384, DecodingKeyKind::SecretOrDer(point)) => on_curve(Nid::SECP384R1, point),
        (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(point)) => {
            PKey::public_key_from_raw_bytes(point, Id::ED25519)
        }
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    made.map_err(|_| ErrorKind::InvalidKeyFormat.into())
}

fn rsa(n: &[u8], e: &[u8]) -> Result<PKey<Public>, ErrorStack> {
    let key = Rsa::from_public_components(BigNum::from_slice(n)?, BigNum::from_slice(e)?)?;
    PKey::from_rsa(key)
}

fn on_curve(curve: Nid, point: &[u8]) -> Result<PKey<Public>, ErrorStack> {
    let group = EcGroup::from_curve_name(curve)?;
    let mut context = BigNumContext::new()?;
    let point = EcPoint::from_bytes(&group, point, &mut context)?;
    let key = EcKey::from_public_key(&group, &point)?;
    key.check_key()?;
    PKey::from_ec_key(key)
}
