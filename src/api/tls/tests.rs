use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use openssl::pkey::PKey;
use openssl::symm::Cipher;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType, date_time_ymd,
};
use tempfile::TempDir;

use super::*;

pub(in crate::api) type Issuer = CertifiedIssuer<'static, KeyPair>;

pub(in crate::api) fn authority(name: &str) -> Issuer {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum For {
    Server,
    Client,
    /// A client of a year that is over.
    FormerClient,
}

/// The certificate of a name, and its key.
pub(in crate::api) fn signed(by: &Issuer, name: &str, what: For) -> [String; 2] {
    let names = [format!("{name}.example"), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).unwrap();
    params
        .subject_alt_names
        .push(SanType::URI(format!("spiffe://example/{name}").try_into().unwrap()));
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![match what {
        For::Server => ExtendedKeyUsagePurpose::ServerAuth,
        For::Client | For::FormerClient => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    if what == For::FormerClient {
        (params.not_before, params.not_after) =
            (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    }
    let key = KeyPair::generate().unwrap();
    [params.signed_by(&key, by).unwrap().pem(), key.serialize_pem()]
}

/// A directory with certificates and keys: of the listener, and those of clients.
pub(in crate::api) struct Pki {
    directory: TempDir,
    pub(in crate::api) servers: Issuer,
    pub(in crate::api) clients: Issuer,
}

impl Pki {
    pub(in crate::api) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let this = Self { directory, servers: authority("servers"), clients: authority("clients") };
        this.put("ca.pem", &this.servers.pem());
        this.put("client-ca.pem", &this.clients.pem());
        this.put_pair("server", &signed(&this.servers, "server", For::Server));
        this.put_pair("client", &signed(&this.clients, "client", For::Client));
        this
    }

    pub(in crate::api) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(in crate::api) fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), Permissions::from_mode(0o600)).unwrap();
    }

    pub(in crate::api) fn put_pair(&self, name: &str, [certificate, key]: &[String; 2]) {
        self.put(&format!("{name}.pem"), certificate);
        self.put(&format!("{name}.key"), key);
    }

    /// With certificates of clients: required, or not.
    pub(in crate::api) fn settings(&self, is_required: bool) -> TlsSettings {
        let path = |name: &str| self.path(name);
        TlsSettings {
            listener: Some(ListenerSettings {
                certificate: path("server.pem"),
                key: path("server.key"),
                client_ca: Some(path("client-ca.pem")),
                is_required,
            }),
            ca: Some(path("ca.pem")),
            client: Some((path("client.pem"), path("client.key"))),
        }
    }
}

/// A key, the file that is named, what is put there, and what is said.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str);

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_key_and_its_path() {
    let pki = Pki::new();
    assert!(Certificates::open(pki.settings(true)).is_ok(), "all of it is right");
    let [stranger, strange_key] = signed(&authority("nobody's"), "stranger", For::Client);
    let [of_server, its_key] = signed(&pki.clients, "a", For::Server);
    let [former, its_former_key] = signed(&pki.clients, "a", For::FormerClient);
    let key = PKey::private_key_from_pem(strange_key.as_bytes()).unwrap();
    let locked = key.private_key_to_pem_pkcs8_passphrase(Cipher::aes_256_cbc(), b"secret").unwrap();
    let locked = String::from_utf8(locked).unwrap();
    let broken = stranger.replacen("\nM", "\n-", 1);
    #[rustfmt::skip]
    let cases: [Case<'_>; 12] = [
        ("api.tls.certificate",    "server.pem",    &[("server.pem", "")],                 "has no certificate"),
        ("api.tls.certificate",    "server.pem",    &[("server.pem", &broken)],            "has no certificate"),
        ("api.tls.certificate",    "server.pem",    &[("server.pem", &strange_key)],       "has no certificate"),
        ("api.tls.key",            "server.key",    &[("server.key", &stranger)],          "has no private key"),
        ("api.tls.key",            "server.key",    &[("server.key", &locked)],            "has no private key"),
        ("api.tls.key",            "server.key",    &[("server.key", &strange_key)],       "the key of another certificate"),
        ("api.tls.key",            "server.key",    &[("server.pem", &stranger)],          "the key of another certificate"),
        ("api.tls.client-ca",      "client-ca.pem", &[("client-ca.pem", "clients")],       "has no certificate"),
        ("api.ca",                 "ca.pem",        &[("ca.pem", "\n")],                   "has no certificate"),
        ("api.client-certificate", "client.pem",    &[("client.pem", &stranger), ("client.key", &strange_key)], "would not take (unable to get local issuer"),
        ("api.client-certificate", "client.pem",    &[("client.pem", &of_server), ("client.key", &its_key)],    "would not take (un"),
        ("api.client-certificate", "client.pem",    &[("client.pem", &former), ("client.key", &its_former_key)], "has expired"),
    ];
    for (key, named, put, want) in cases {
        let pki_now =
            put.iter().map(|(name, _)| (*name, std::fs::read_to_string(pki.path(name)).unwrap()));
        let before: Vec<(&str, String)> = pki_now.collect();
        put.iter().for_each(|(name, text)| pki.put(name, text));
        let error = Certificates::open(pki.settings(true)).err().expect(want);
        assert_eq!((error.key, &error.path), (key, &pki.path(named)), "{error}");
        assert!(error.to_string().contains(want), "{error}");
        let said = error.to_string();
        assert!(!said.contains("PRIVATE KEY") && !said.contains("secret"), "{said}");
        before.iter().for_each(|(name, text)| pki.put(name, text));
    }
    std::fs::set_permissions(pki.path("server.key"), Permissions::from_mode(0o644)).unwrap();
    let open = Certificates::open(pki.settings(true)).err().expect("everybody may read it");
    assert!(open.key == "api.tls.key" && open.to_string().contains("chmod o-r"), "{open}");
    std::fs::remove_file(pki.path("server.key")).unwrap();
    let gone = Certificates::open(pki.settings(true)).err().expect("it is gone");
    assert!(gone.key == "api.tls.key" && gone.to_string().contains("cannot be read"), "{gone}");
}

#[test]
fn with_certificates_of_clients_required_instances_need_one_and_else_they_do_not() {
    let pki = Pki::new();
    let alone = |is_required| TlsSettings { client: None, ..pki.settings(is_required) };
    let error = Certificates::open(alone(true)).err().expect("nobody would answer it");
    assert!(error.to_string().contains("there is no api.client-certificate"), "{error}");
    assert!(Certificates::open(alone(false)).is_ok());
    // A client that was signed by one of theirs in the middle is taken, by that one alone.
    let all = std::fs::read_to_string(pki.path("client-ca.pem")).unwrap();
    pki.put("client-ca.pem", &(authority("another").pem() + &all));
    assert!(Certificates::open(pki.settings(true)).is_ok());
}

#[test]
fn what_is_not_trusted_at_the_address_that_others_are_told_is_seen() {
    let pki = Pki::new();
    let trusted = |address: &str| Files::read(&pki.settings(false)).is_trusted_at(address);
    for address in ["server.example:80", "SERVER.example:80", "127.0.0.1:80"] {
        assert_eq!(trusted(address), Ok(()), "{address}");
    }
    for address in ["other.example:80", "127.0.0.2:80", "[::1]:80"] {
        let why = trusted(address).expect_err(address);
        assert!(why.contains("mismatch"), "{address}: {why}");
    }
    pki.put("ca.pem", &authority("nobody's").pem());
    assert!(trusted("server.example:80").is_err_and(|why| why.contains("issuer")));
}

fn expires(path: &Path) -> Option<i64> {
    let pem = std::fs::read(path).unwrap();
    files::seconds(&openssl::x509::X509::from_pem(&pem).unwrap())
}

#[test]
fn the_end_of_a_certificate_is_in_seconds_since_the_epoch() {
    let pki = Pki::new();
    pki.put_pair("former", &signed(&pki.clients, "a", For::FormerClient));
    assert_eq!(expires(&pki.path("former.pem")), Some(1_609_459_200));
}
