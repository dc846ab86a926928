//! Client certificates, as secrets hold them.
//!
//! # Invariants
//! 1. One that is parsed can be shown: its key belongs to it.
//! 2. No error shows what was parsed.

use std::fmt;

use reqwest::Client;

pub(super) const WANTED: &str = "PEM with one private key in PKCS #8 without a password (BEGIN PRIVATE KEY), the certificate of this key, and then its chain";
const BLOCK: &str = "-----BEGIN ";
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

/// What a service shows to servers that ask for a client certificate.
#[derive(Debug)]
pub(super) struct Certificate {
    /// The name of the secret that holds it.
    pub(super) secret: String,
    pub(super) identity: Identity,
}

/// One certificate with its key, for each of the two that show it. Printing it shows nothing of it.
#[derive(Clone)]
pub(super) struct Identity {
    /// For calls over HTTP.
    pub(super) http: reqwest::Identity,
    /// For calls over gRPC.
    pub(super) grpc: native_tls::Identity,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(not shown)")
    }
}

/// Whether a text is meant as PEM. No key to sign with and no token looks like that.
pub(super) fn is_pem(text: &str) -> bool {
    text.contains(BLOCK)
}

/// Reads a private key and the certificates that belong to it.
///
/// # Errors
/// What is wanted.
pub(super) fn parse(pem: &str) -> Result<Identity, &'static str> {
    let mut keys = pem.match_indices(KEY);
    let key = match (keys.next(), keys.next()) {
        (Some((at, _)), None) => &pem[at..],
        _ => return Err(WANTED),
    };
    // OpenSSL passes blocks by that are no certificates.
    let (pem, key) = (pem.as_bytes(), key.as_bytes());
    let identity = Identity {
        http: reqwest::Identity::from_pkcs8_pem(pem, key).map_err(|_| WANTED)?,
        grpc: native_tls::Identity::from_pkcs8(pem, key).map_err(|_| WANTED)?,
    };
    // Only a client looks whether the key belongs to the certificate.
    let client =
        Client::builder().no_proxy().tls_built_in_root_certs(false).identity(identity.http.clone());
    client.build().map(|_| identity).map_err(|_| WANTED)
}

#[cfg(test)]
mod tests {
    use super::super::tests::certificate::PEM;
    use super::*;

    const END: &str = "-----END PRIVATE KEY-----\n";

    #[test]
    fn a_key_and_its_certificate_are_read_in_any_order_and_with_text_between_them() {
        let pem = PEM.as_str();
        let (key, certificate) = pem.split_at(pem.find(END).unwrap() + END.len());
        for text in [
            pem.to_owned(),
            pem.replace('\n', "\r\n"),
            format!("{certificate}{key}"),
            format!("Bag Attributes\n    friendlyName: a\n{key}subject=a\n{certificate}"),
            format!("{pem}{certificate}"),
        ] {
            assert!(is_pem(&text) && parse(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_no_key_with_its_certificate_is_refused_without_being_shown() {
        let pem = PEM.as_str();
        let (key, certificate) = pem.split_at(pem.find(END).unwrap() + END.len());
        let other = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let broken = |text: &str| text.replacen("\nM", "\n-", 1);
        for (why, text) in [
            ("no certificate", key.to_owned()),
            ("no key", certificate.to_owned()),
            ("two keys", format!("{pem}{key}")),
            ("the certificate of another key", format!("{key}{}", other.cert.pem())),
            ("a broken key", broken(key) + certificate),
            ("a broken certificate", key.to_owned() + &broken(certificate)),
            ("a broken chain", pem.to_owned() + &broken(certificate)),
            ("cut in the middle", pem[..pem.len() - 99].to_owned()),
            ("another kind of key", pem.replace("PRIVATE", "EC PRIVATE")),
            ("with a password", pem.replace("PRIVATE", "ENCRYPTED PRIVATE")),
        ] {
            assert!(is_pem(&text), "{why}");
            assert_eq!(parse(&text).err(), Some(WANTED), "{why}");
        }
    }
}
