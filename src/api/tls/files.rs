//! Certificates and keys in files: read, checked, and made into what connections need.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{
    AlpnError, SslAcceptor, SslContext, SslMethod, SslOptions, SslSessionCacheMode, SslVerifyMode,
    SslVersion, select_next_proto,
};
use openssl::stack::Stack;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::{X509VerifyFlags, X509VerifyParam};
use openssl::x509::{X509, X509PurposeId, X509StoreContext};

use super::TlsSettings;
use crate::client::http;

const CERTIFICATE: &str = "api.tls.certificate";
const KEY: &str = "api.tls.key";
const CLIENT_CA: &str = "api.tls.client-ca";
const CA: &str = "api.ca";
const CLIENT_CERTIFICATE: &str = "api.client-certificate";
const CLIENT_KEY: &str = "api.client-key";

const CERTIFICATE_WANTED: &str = "a file in PEM: first the certificate, then its chain";
const KEY_WANTED: &str = "a file with the private key of the certificate, in PEM and without a password, that not everybody may read";
const AUTHORITIES_WANTED: &str = "a file with certificates of authorities in PEM";
const PAIR_WANTED: &str = "the key of that certificate";
const FOR_INSTANCES_WANTED: &str = "a certificate that api.tls.client-ca takes of a client (extended key usage clientAuth), in api.client-certificate and api.client-key: \
     with client-auth = \"required\" instances ask each other by it";

/// What the listener speaks, the best first.
const PROTOCOLS: &[u8] = b"\x02h2\x08http/1.1";
/// Bytes of a file: authorities of a whole system have less.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Everybody may read it.
const READABLE_BY_ALL: u32 = 0o004;

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {path:?}, {what}; want {want}")]
pub struct TlsError {
    /// The key of the configuration.
    pub key: &'static str,
    /// The file that it names.
    pub path: PathBuf,
    /// What is wrong with the file.
    pub what: String,
    /// What is wanted in its place.
    pub want: &'static str,
}

/// A file as it was read, or why it was not.
#[derive(Clone, PartialEq, Eq)]
struct File {
    key: &'static str,
    path: PathBuf,
    want: &'static str,
    read: Result<Vec<u8>, String>,
}

/// All files, as they were at one moment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Files {
    listener: Option<Pair>,
    client_ca: Option<File>,
    is_required: bool,
    ca: Option<File>,
    client: Option<Pair>,
}

/// A certificate with its chain, and its key.
#[derive(Clone, PartialEq, Eq)]
struct Pair {
    certificate: File,
    key: File,
}

/// What the files make.
pub(super) struct InForce {
    /// For connections that come in; `None`: they are plain.
    pub(super) context: Option<SslContext>,
    /// For connections to other instances.
    pub(super) client: http::Tls,
    /// When the certificate of the listener ends, in seconds since the epoch.
    pub(super) expires: Option<i64>,
}

/// A pair that fits.
struct Identity {
    certificate: X509,
    chain: Vec<X509>,
    key: PKey<Private>,
}

impl File {
    fn read(key: &'static str, path: &Path, want: &'static str) -> Self {
        let read = Self::bytes(path, want == KEY_WANTED);
        Self { key, path: path.to_owned(), want, read }
    }

    fn bytes(path: &Path, is_secret: bool) -> Result<Vec<u8>, String> {
        let failed = |error: std::io::Error| format!("which cannot be read ({error})");
        let about = fs::metadata(path).map_err(failed)?;
        if !about.is_file() {
            return Err("which is no file".to_owned());
        }
        if about.len() > FILE_BYTES_MAX {
            return Err(format!("which has more than {FILE_BYTES_MAX} bytes"));
        }
        let mode = about.permissions().mode() & 0o777;
        if is_secret && mode & READABLE_BY_ALL != 0 {
            return Err(format!("which everybody may read (mode {mode:o}; chmod o-r)"));
        }
        fs::read(path).map_err(failed)
    }

    fn wrong(&self, what: impl fmt::Display) -> TlsError {
        let (key, path, want) = (self.key, self.path.clone(), self.want);
        TlsError { key, path, what: what.to_string(), want }
    }

    fn pem(&self) -> Result<&[u8], TlsError> {
        self.read.as_deref().map_err(|what| self.wrong(what))
    }

    fn certificates(&self) -> Result<Vec<X509>, TlsError> {
        let read = X509::stack_from_pem(self.pem()?);
        match read {
            Ok(all) if !all.is_empty() => Ok(all),
            _ => Err(self.wrong("which has no certificate that can be read")),
        }
    }

    fn private_key(&self) -> Result<PKey<Private>, TlsError> {
        // Without a function to ask, OpenSSL would ask the terminal for a password.
        PKey::private_key_from_pem_callback(self.pem()?, |_| Ok(0))
            .map_err(|_| self.wrong("which has no private key that can be read"))
    }
}

impl Pair {
    fn read(keys: [&'static str; 2], certificate: &Path, key: &Path) -> Self {
        Self {
            certificate: File::read(keys[0], certificate, CERTIFICATE_WANTED),
            key: File::read(keys[1], key, KEY_WANTED),
        }
    }

    fn check(&self) -> Result<Identity, TlsError> {
        let mut chain = self.certificate.certificates()?;
        let (certificate, key) = (chain.remove(0), self.key.private_key()?);
        let fits = certificate.public_key().is_ok_and(|public| public.public_eq(&key));
        if !fits {
            let at = self.certificate.path.display();
            let what = format!("which has the key of another certificate than {at}");
            return Err(TlsError { want: PAIR_WANTED, ..self.key.wrong(what) });
        }
        Ok(Identity { certificate, chain, key })
    }
}

impl Identity {
    /// Why these authorities do not sign it for that purpose; of a host, if one is named.
    fn verify(
        &self,
        mut trusted: X509StoreBuilder,
        purpose: X509PurposeId,
        host: Option<&str>,
    ) -> Result<(), String> {
        let verified = || -> Result<Result<(), String>, ErrorStack> {
            let mut param = X509VerifyParam::new()?;
            param.set_purpose(purpose)?;
            match host.map(|host| (host, host.parse())) {
                Some((_, Ok(ip))) => param.set_ip(ip)?,
                Some((host, Err(_))) => param.set_host(host)?,
                None => {}
            }
            trusted.set_param(&param)?;
            let trusted = trusted.build();
            let mut chain = Stack::new()?;
            for between in &self.chain {
                chain.push(between.clone())?;
            }
            X509StoreContext::new()?.init(&trusted, &self.certificate, &chain, |context| {
                let fits = context.verify_cert()?;
                Ok(if fits { Ok(()) } else { Err(context.error().error_string().to_owned()) })
            })
        };
        verified().unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The key and all certificates in PEM.
    fn pem(&self) -> Result<Vec<u8>, ErrorStack> {
        let mut pem = self.key.private_key_to_pem_pkcs8()?;
        for of in [&self.certificate].into_iter().chain(&self.chain) {
            pem.extend(of.to_pem()?);
        }
        Ok(pem)
    }
}

impl Files {
    pub(super) fn read(settings: &TlsSettings) -> Self {
        let listener = settings.listener.as_ref();
        let of_authorities =
            |key, path: &Option<PathBuf>| Some(File::read(key, path.as_ref()?, AUTHORITIES_WANTED));
        Self {
            listener: listener.map(|of| Pair::read([CERTIFICATE, KEY], &of.certificate, &of.key)),
            client_ca: listener.and_then(|of| of_authorities(CLIENT_CA, &of.client_ca)),
            is_required: listener.is_some_and(|of| of.is_required),
            ca: of_authorities(CA, &settings.ca),
            client: settings.client.as_ref().map(|(certificate, key)| {
                Pair::read([CLIENT_CERTIFICATE, CLIENT_KEY], certificate, key)
            }),
        }
    }

    /// Makes of the files what connections need.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub(super) fn check(&self) -> Result<InForce, TlsError> {
        let client = self.client.as_ref().map(|pair| Ok((pair, pair.check()?))).transpose()?;
        let mut outgoing = http::Tls::default();
        if let Some(ca) = &self.ca {
            ca.certificates()?;
            outgoing = outgoing.trusting(ca.pem()?);
        }
        if let Some((pair, identity)) = &client {
            outgoing =
                outgoing.showing(identity.pem().map_err(|error| pair.certificate.wrong(error))?);
        }
        let (mut context, mut expires) = (None, None);
        if let Some(listener) = &self.listener {
            let identity = listener.check()?;
            expires = seconds(&identity.certificate);
            let client_ca = match &self.client_ca {
                Some(file) => Some((file, file.certificates()?)),
                None => None,
            };
            if let Some((file, all)) = client_ca.as_ref().filter(|_| self.is_required) {
                let trusted = authorities(all).map_err(|error| file.wrong(error))?;
                let (shown, what) = match &client {
                    Some((pair, client)) => (
                        &pair.certificate,
                        client
                            .verify(trusted, X509PurposeId::SSL_CLIENT, None)
                            .map_err(|why| format!("which other instances would not take ({why})")),
                    ),
                    None => (*file, Err("and there is no api.client-certificate".to_owned())),
                };
                what.map_err(|what| TlsError { want: FOR_INSTANCES_WANTED, ..shown.wrong(what) })?;
            }
            let made = acceptor(&identity, client_ca.map(|(_, all)| all), self.is_required);
            context = Some(made.map_err(|error| listener.certificate.wrong(error))?);
        }
        Ok(InForce { context, client: outgoing, expires })
    }

    /// What is said where all files are right, and yet no client can be made of them.
    pub(super) fn unused(&self, why: impl fmt::Display) -> TlsError {
        let shown = self.client.as_ref().map(|pair| &pair.certificate).or(self.ca.as_ref());
        let path = shown.map(|file| file.path.clone()).unwrap_or_default();
        let what = format!("which cannot be used to ask instances ({why})");
        TlsError { key: CLIENT_CERTIFICATE, path, what, want: CERTIFICATE_WANTED }
    }

    /// Whether those who trust what `api.ca` says would trust the certificate of the listener at an address `host:port`.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn is_trusted_at(&self, address: &str) -> Result<(), String> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let identity = listener.check().map_err(|error| error.to_string())?;
        let trusted = match &self.ca {
            Some(ca) => store(&ca.certificates().map_err(|error| error.to_string())?),
            None => X509StoreBuilder::new().and_then(|mut of| {
                of.set_default_paths()?;
                Ok(of)
            }),
        };
        let trusted = trusted.map_err(|error| error.to_string())?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        identity.verify(trusted, X509PurposeId::SSL_SERVER, Some(host))
    }
}

fn store(all: &[X509]) -> Result<X509StoreBuilder, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    for of in all {
        store.add_cert(of.clone())?;
    }
    Ok(store)
}

/// Authorities of clients. Each is trusted by itself, also one that another authority has signed.
fn authorities(all: &[X509]) -> Result<X509StoreBuilder, ErrorStack> {
    let mut store = store(all)?;
    store.set_flags(X509VerifyFlags::PARTIAL_CHAIN)?;
    Ok(store)
}

/// What shakes hands with clients.
fn acceptor(
    identity: &Identity,
    client_ca: Option<Vec<X509>>,
    is_required: bool,
) -> Result<SslContext, ErrorStack> {
    let mut of = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())?;
    of.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    of.set_certificate(&identity.certificate)?;
    for between in &identity.chain {
        of.add_extra_chain_cert(between.clone())?;
    }
    of.set_private_key(&identity.key)?;
    of.check_private_key()?;
    // A session that is resumed would pass over the certificate of its client.
    of.set_session_cache_mode(SslSessionCacheMode::OFF);
    of.set_options(SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION);
    of.set_num_tickets(0)?;
    of.set_alpn_select_callback(|_, offered| {
        select_next_proto(PROTOCOLS, offered).ok_or(AlpnError::ALERT_FATAL)
    });
    if let Some(all) = client_ca {
        let mut names = Stack::new()?;
        for of in &all {
            names.push(of.subject_name().to_owned()?)?;
        }
        of.set_client_ca_list(names);
        of.set_verify_cert_store(authorities(&all)?.build())?;
        let must =
            if is_required { SslVerifyMode::FAIL_IF_NO_PEER_CERT } else { SslVerifyMode::empty() };
        of.set_verify(SslVerifyMode::PEER | must);
    }
    Ok(of.build().into_context())
}

/// When a certificate ends, in seconds since the epoch.
pub(super) fn seconds(certificate: &X509) -> Option<i64> {
    let since = Asn1Time::from_unix(0).ok()?.diff(certificate.not_after()).ok()?;
    Some(i64::from(since.days) * 86_400 + i64::from(since.secs))
}
