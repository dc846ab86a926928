use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::get_current_timestamp;
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Private};
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Signer};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::super::tasks::tests::Api;
use super::*;
use crate::patient::{eventually, patient};

/// The claims `iss` and `aud` that are taken.
const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "waterclock";

fn part(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A private key with its id.
struct Signing {
    id: String,
    key: PKey<Private>,
}

impl Signing {
    fn rsa(id: &str, bits: u32) -> Self {
        let key = Rsa::generate(bits).and_then(PKey::from_rsa).expect("a key");
        Self { id: id.to_owned(), key }
    }

    fn ec(id: &str, curve: Nid) -> Self {
        let group = EcGroup::from_curve_name(curve).expect("a curve");
        let key = EcKey::generate(&group).and_then(PKey::from_ec_key).expect("a key");
        Self { id: id.to_owned(), key }
    }

    fn ed(id: &str) -> Self {
        Self { id: id.to_owned(), key: PKey::generate_ed25519().expect("a key") }
    }

    /// Its public half, as a set of keys has it.
    fn public(&self) -> Value {
        let mut of = if let Ok(rsa) = self.key.rsa() {
            json!({ "kty": "RSA", "n": part(rsa.n().to_vec()), "e": part(rsa.e().to_vec()) })
        } else if let Ok(ec) = self.key.ec_key() {
            let (group, mut context) = (ec.group(), BigNumContext::new().expect("memory"));
            let (mut x, mut y) = (BigNum::new().expect("memory"), BigNum::new().expect("memory"));
            let point = ec.public_key();
            point.affine_coordinates(group, &mut x, &mut y, &mut context).expect("a point");
            let length = i32::try_from(group.degree() / 8).expect("small");
            let padded = |n: &BigNum| part(n.to_vec_padded(length).expect("it fits"));
            json!({ "kty": "EC", "crv": format!("P-{}", group.degree()), "x": padded(&x), "y": padded(&y) })
        } else {
            let x = self.key.raw_public_key().expect("a point");
            json!({ "kty": "OKP", "crv": "Ed25519", "x": part(x) })
        };
        of["kid"] = json!(self.id);
        of["use"] = json!("sig");
        of
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        if self.key.id() == Id::ED25519 {
            let mut signer = Signer::new_without_digest(&self.key).expect("a signer");
            return signer.sign_oneshot_to_vec(message).expect("signed");
        }
        let digest = match &algorithm[2..] {
            "384" => MessageDigest::sha384(),
            "512" => MessageDigest::sha512(),
            _ => MessageDigest::sha256(),
        };
        let mut signer = Signer::new(digest, &self.key).expect("a signer");
        if algorithm.starts_with("PS") {
            signer.set_rsa_padding(Padding::PKCS1_PSS).expect("set");
            signer.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH).expect("set");
            signer.set_rsa_mgf1_md(digest).expect("set");
        }
        let signed = signer.sign_oneshot_to_vec(message).expect("signed");
        let Ok(ec) = self.key.ec_key() else { return signed };
        let both = EcdsaSig::from_der(&signed).expect("two numbers");
        let length = i32::try_from(ec.group().degree() / 8).expect("small");
        let [r, s] = [both.r(), both.s()].map(|n| n.to_vec_padded(length).expect("it fits"));
        [r, s].concat()
    }

    /// A token with this algorithm and these claims.
    fn token(&self, algorithm: &str, claims: &Value) -> String {
        self.with_header(&json!({ "alg": algorithm, "kid": self.id, "typ": "JWT" }), claims)
    }

    fn with_header(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", part(header.to_string()), part(claims.to_string()));
        let algorithm = header["alg"].as_str().unwrap_or_default();
        let signature = self.sign(algorithm, message.as_bytes());
        format!("{message}.{}", part(signature))
    }
}

/// Keys that tests share, since RSA keys take a while: for RS and PS, ES256, ES384 and EdDSA.
static KEYS: LazyLock<[Signing; 4]> = LazyLock::new(|| {
    let p256 = Signing::ec("p256", Nid::X9_62_PRIME256V1);
    [Signing::rsa("rsa", 2_048), p256, Signing::ec("p384", Nid::SECP384R1), Signing::ed("ed")]
});

fn set(keys: &[&Signing]) -> Value {
    json!({ "keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>() })
}

fn claims(more: &Value) -> Value {
    let now = get_current_timestamp();
    let mut claims = json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "exp": now + 300, "role": "write", "projects": ["shop"],
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        claims[name] = value.clone();
    }
    claims
}

/// Answers with a set of keys; `None`: with 500.
struct Server {
    url: Url,
    set: Arc<Mutex<Option<Value>>>,
    asked: Arc<Mutex<usize>>,
}

impl Server {
    fn start(keys: Option<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
        let (set, asked) = (Arc::new(Mutex::new(keys)), Arc::new(Mutex::new(0)));
        let (answer, count) = (Arc::clone(&set), Arc::clone(&asked));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                while lines.next().is_some_and(|line| !line.is_empty()) {}
                *count.lock() += 1;
                let (status, body) = match &*answer.lock() {
                    Some(set) => ("200 OK", set.to_string()),
                    None => ("500 No", String::new()),
                };
                let length = body.len();
                let _ = stream.write_all(
                    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                        .as_bytes(),
                );
            }
        });
        Self { url: url.parse().expect("a URL"), set, asked }
    }

    fn put(&self, keys: Option<Value>) {
        *self.set.lock() = keys;
    }

    fn asked(&self) -> usize {
        *self.asked.lock()
    }
}

/// So seldom that a test sees one fetch.
const SELDOM: Pace = Pace::OF_ISSUERS;
/// So often that a test sees the next one.
const OFTEN: Pace = Pace {
    least: Duration::from_millis(300),
    unsaid: Duration::from_secs(3_600),
    most: Duration::from_secs(3_600),
};

fn issuer(jwks: &Url, pace: Pace) -> Arc<Issuer> {
    let settings = IssuerSettings {
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        jwks: jwks.clone(),
        projects_claim: "projects".to_owned(),
        role_claim: "role".to_owned(),
    };
    Issuer::paced(settings, pace)
}

/// The code with which a token is refused; empty: it is not.
async fn code(issuer: &Issuer, token: &str) -> String {
    issuer.prepare(token).await;
    let problem = match issuer.caller(token) {
        Ok(_) => return String::new(),
        Err(problem) => problem.as_json(),
    };
    let code = problem["code"].as_str().unwrap_or_default().to_owned();
    let want = match code.as_str() {
        "no_keys" => 503,
        "role_denied" => 403,
        _ => 401,
    };
    assert_eq!(problem["status"], want, "{problem}");
    code
}

/// Waits until keys are here, on a machine that does much else.
async fn fetched(issuer: &Issuer) {
    let here = async || issuer.keys.are_here().then_some(()).ok_or_else(String::new);
    eventually("keys are fetched", here).await;
}

/// Waits until a token is taken.
async fn taken(issuer: &Issuer, token: &str) {
    let taken = async || match code(issuer, token).await {
        code if code.is_empty() => Ok(()),
        code => Err(code),
    };
    eventually("the token is taken", taken).await;
}

#[tokio::test]
async fn every_algorithm_is_checked_with_the_key_that_the_token_names() {
    let server = Server::start(Some(set(&KEYS.each_ref())));
    let issuer = issuer(&server.url, SELDOM);
    fetched(&issuer).await;
    let [rsa, p256, p384, ed] = &*KEYS;
    #[rustfmt::skip]
    let cases = [
        ("RS256", rsa), ("RS384", rsa), ("RS512", rsa), ("PS256", rsa), ("PS384", rsa), ("PS512", rsa),
        ("ES256", p256), ("ES384", p384), ("EdDSA", ed),
    ];
    for (algorithm, key) in cases {
        let token = key.token(algorithm, &claims(&Value::Null));
        assert_eq!(code(&issuer, &token).await, "", "{algorithm}");
        // Another end, and another signature.
        let (message, signature) = token.rsplit_once('.').expect("three parts");
        let (header, _) = message.split_once('.').expect("two parts");
        let later = part(claims(&json!({ "exp": 9_999_999_999_u64 })).to_string());
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).expect("base64");
        bytes[5] ^= 1;
        let short = part(&bytes[1..]);
        for forged in [
            format!("{header}.{later}.{signature}"),
            format!("{message}.{}", part(&bytes)),
            format!("{message}.{short}"),
            format!("{message}."),
        ] {
            assert_eq!(code(&issuer, &forged).await, "bad_credentials", "{algorithm}: {forged}");
        }
    }
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn a_bad_token_is_refused_and_only_a_genuine_one_is_told_why() {
    let [rsa, p256, _, ed] = &*KEYS;
    let only_rs = Signing { id: "only-rs256".to_owned(), key: rsa.key.clone() };
    let mut keys = set(&[rsa, p256, ed, &only_rs]);
    keys["keys"][3]["alg"] = json!("RS256");
    let server = Server::start(Some(keys));
    let issuer = issuer(&server.url, SELDOM);
    fetched(&issuer).await;
    let now = get_current_timestamp();
    let good = |more: Value| rsa.token("RS256", &claims(&more));
    let without = |name: &str| {
        let mut claims = claims(&Value::Null);
        claims.as_object_mut().expect("an object").remove(name);
        rsa.token("RS256", &claims)
    };
    // Signed with what everybody has: the public key as a secret.
    let mac = |secret: &[u8]| {
        let header = json!({ "alg": "HS256", "kid": "rsa" });
        let message =
            format!("{}.{}", part(header.to_string()), part(claims(&Value::Null).to_string()));
        let key = PKey::hmac(secret).expect("a key");
        let mut signer = Signer::new(MessageDigest::sha256(), &key).expect("a signer");
        let signature = signer.sign_oneshot_to_vec(message.as_bytes()).expect("signed");
        format!("{message}.{}", part(signature))
    };
    let none = |alg: &str| {
        let header = json!({ "alg": alg, "kid": "rsa" });
        format!("{}.{}.", part(header.to_string()), part(claims(&Value::Null).to_string()))
    };
    let with = |header: Value| rsa.with_header(&header, &claims(&Value::Null));
    let stranger = Signing::rsa("rsa", 2_048);
    let pem = rsa.key.public_key_to_pem().expect("PEM");
    let modulus = rsa.key.rsa().expect("RSA").n().to_vec();
    #[rustfmt::skip]
    let cases = [
        ("a good one",              good(json!({})),                                                "",                ),
        ("ended within the leeway", good(json!({ "exp": now - 30 })),                               "",                ),
        ("of some audiences",       good(json!({ "aud": ["x", AUDIENCE] })),                        "",                ),
        ("ended",                   good(json!({ "exp": now - 90 })),                               "expired_token",   ),
        ("not yet valid",           good(json!({ "nbf": now + 90 })),                               "expired_token",   ),
        ("for another audience",    good(json!({ "aud": "waterclock2" })),                          "wrong_audience",  ),
        ("for no audience",         good(json!({ "aud": [] })),                                     "wrong_audience",  ),
        ("of another issuer",       good(json!({ "iss": "https://id.example/" })),                  "wrong_audience",  ),
        ("without an end",          without("exp"),                                                 "bad_claims",      ),
        ("without an audience",     without("aud"),                                                 "bad_claims",      ),
        ("without an issuer",       without("iss"),                                                 "bad_claims",      ),
        ("without a subject",       without("sub"),                                                 "bad_claims",      ),
        ("an end that is text",     good(json!({ "exp": "never" })),                                "bad_claims",      ),
        ("an empty subject",        good(json!({ "sub": "" })),                                     "bad_claims",      ),
        ("a subject of two lines",  good(json!({ "sub": "anna\nadmin" })),                          "bad_claims",      ),
        ("without a role",          without("role"),                                                "role_denied",     ),
        ("a role of its own",       good(json!({ "role": "root" })),                                "role_denied",     ),
        ("signed by nobody",        none("none"),                                                   "bad_credentials", ),
        ("no signature",            none("RS256"),                                                  "bad_credentials", ),
        ("the key as a secret",     mac(&pem),                                                      "bad_credentials", ),
        ("the modulus as a secret", mac(&modulus),                                                  "bad_credentials", ),
        ("the key of another kind", p256.with_header(&json!({ "alg": "ES256", "kid": "rsa" }), &claims(&json!({}))), "bad_credentials"),
        ("an algorithm not its own", only_rs.token("PS256", &claims(&json!({}))),                   "bad_credentials", ),
        ("no key named",            with(json!({ "alg": "RS256" })),                                "bad_credentials", ),
        ("a key with a number",     with(json!({ "alg": "RS256", "kid": 1 })),                      "bad_credentials", ),
        ("a key that brings itself", with(json!({ "alg": "RS256", "kid": "own", "jwk": stranger.public() })), "unknown_key", ),
        ("an extension",            with(json!({ "alg": "RS256", "kid": "rsa", "crit": ["x"], "x": 1 })), "bad_credentials", ),
        ("an unknown key",          with(json!({ "alg": "RS256", "kid": "new" })),                  "unknown_key",     ),
        ("a stranger's key",        stranger.token("RS256", &claims(&json!({}))),                   "bad_credentials", ),
        ("claims that are no object", rsa.token("RS256", &json!([1])),                              "bad_credentials", ),
        ("three parts of nothing",  "a.b.c".to_owned(),                                             "bad_credentials", ),
    ];
    for (why, token, want) in cases {
        assert_eq!(code(&issuer, &token).await, want, "{why}");
    }
    assert_eq!(server.asked(), 1, "unknown keys right after a fetch have nobody asked");
}

#[tokio::test]
async fn a_key_that_is_new_is_fetched_and_one_that_is_gone_is_refused() {
    let [rsa, p256, ..] = &*KEYS;
    let server = Server::start(Some(set(&[rsa])));
    let issuer = issuer(&server.url, OFTEN);
    let (old, new) =
        (rsa.token("RS256", &claims(&json!({}))), p256.token("ES256", &claims(&json!({}))));
    taken(&issuer, &old).await;
    server.put(Some(set(&[p256])));
    // Nobody asks for a new key yet, so the old one holds.
    tokio::time::sleep(OFTEN.least * 2).await;
    assert_eq!((code(&issuer, &old).await, server.asked()), (String::new(), 1));
    taken(&issuer, &new).await;
    assert_eq!(code(&issuer, &old).await, "unknown_key");

    // What cannot be fetched changes nothing.
    server.put(None);
    let began = Instant::now();
    let asked = server.asked();
    while server.asked() < asked + 2 {
        assert!(began.elapsed() < patient(Duration::from_secs(10)), "it asks no more");
        assert_eq!(code(&issuer, &old).await, "unknown_key");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(code(&issuer, &new).await, "");
}

#[tokio::test]
async fn keys_are_fetched_no_more_often_than_they_may_whatever_is_asked() {
    let [rsa, p256, ..] = &*KEYS;
    let server = Server::start(Some(set(&[rsa])));
    let issuer = issuer(&server.url, OFTEN);
    fetched(&issuer).await;
    let unknown = p256.token("ES256", &claims(&json!({})));
    let (began, mut tries) = (Instant::now(), 0);
    while began.elapsed() < OFTEN.least * 5 {
        assert_eq!(code(&issuer, &unknown).await, "unknown_key");
        tries += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let most = began.elapsed().as_millis() / OFTEN.least.as_millis() + 1;
    assert!((2..=most).contains(&(server.asked() as u128)), "{} of {most}", server.asked());
    assert!(tries > 20, "{tries}: who asks must not wait where nothing is fetched");
}

#[tokio::test]
async fn without_keys_a_caller_is_asked_to_come_again_and_then_let_in() {
    let [rsa, ..] = &*KEYS;
    let server = Server::start(None);
    let away = issuer(&server.url, OFTEN);
    let token = rsa.token("RS256", &claims(&json!({})));
    assert_eq!(code(&away, &token).await, "no_keys");
    server.put(Some(json!({ "no": "keys" })));
    let asked = server.asked();
    let began = Instant::now();
    while server.asked() < asked + 2 {
        assert!(began.elapsed() < patient(Duration::from_secs(10)), "it asks no more");
        assert_eq!(code(&away, &token).await, "no_keys");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.put(Some(set(&[rsa])));
    taken(&away, &token).await;
    // Nobody listens there.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port");
    let nobody = format!("http://{free}/keys").parse().expect("a URL");
    assert_eq!(code(&issuer(&nobody, OFTEN), &token).await, "no_keys");
}

#[tokio::test]
async fn a_set_gives_only_public_keys_for_signatures_that_are_strong_enough() {
    let [rsa, p256, _, ed] = &*KEYS;
    let named = |id: &str, key: &Signing| Signing { id: id.to_owned(), key: key.key.clone() };
    let weak = Signing::rsa("weak", 1_024);
    let (hidden, other) = (named("to-encrypt", rsa), named("other-operations", rsa));
    let (moved, curved) = (named("moved", p256), named("k1", ed));
    let mut keys = set(&[&weak, &hidden, &other, &moved, &curved, p256]);
    keys["keys"][1]["use"] = json!("enc");
    keys["keys"][2]["key_ops"] = json!(["sign"]);
    keys["keys"][3]["y"] = keys["keys"][3]["x"].clone();
    keys["keys"][4]["alg"] = json!("ES256");
    let more = keys["keys"].as_array_mut().expect("a list");
    more.insert(0, json!({ "kty": "oct", "k": part("secret"), "kid": "secret" }));
    more.insert(1, json!({ "kty": "XYZ", "kid": 7 }));
    more.insert(2, json!(7));
    let server = Server::start(Some(keys));
    let issuer = issuer(&server.url, SELDOM);
    fetched(&issuer).await;
    for (key, algorithm) in [
        (&weak, "RS256"),
        (&hidden, "RS256"),
        (&other, "RS256"),
        (&moved, "ES256"),
        (&curved, "EdDSA"),
    ] {
        let token = key.token(algorithm, &claims(&json!({})));
        assert_eq!(code(&issuer, &token).await, "unknown_key", "{}", key.id);
    }
    assert_eq!(code(&issuer, &p256.token("ES256", &claims(&json!({})))).await, "");
}

#[tokio::test]
async fn claims_say_who_asks_what_he_may_do_and_which_projects_he_sees() {
    let [_, p256, ..] = &*KEYS;
    let server = Server::start(Some(set(&[p256])));
    let mut settings = issuer(&server.url, SELDOM).settings().clone();
    let plain = Issuer::start(settings.clone());
    settings.projects_claim = "/access/waterclock/projects".to_owned();
    settings.role_claim = "https://waterclock.example/roles".to_owned();
    let nested = Issuer::start(settings);
    for issuer in [&plain, &nested] {
        fetched(issuer).await;
    }
    let of = async |issuer: &Issuer, more: Value| {
        let token = p256.token("ES256", &claims(&more));
        issuer.prepare(&token).await;
        let caller = issuer.caller(&token).expect("let in");
        let projects = caller.projects.map(|all| all.into_iter().collect::<Vec<_>>().join(","));
        (caller.name, caller.role, projects)
    };
    let anna =
        |role, projects: Option<&str>| ("anna".to_owned(), role, projects.map(str::to_owned));
    #[rustfmt::skip]
    let cases = [
        (json!({}),                                                   anna(Role::Write, Some("shop"))),
        (json!({ "role": ["x", "read", "admin", "write"] }),          anna(Role::Admin, Some("shop"))),
        (json!({ "role": "openid read" }),                            anna(Role::Read,  Some("shop"))),
        (json!({ "projects": "shop bank" }),                          anna(Role::Write, Some("bank,shop"))),
        (json!({ "projects": ["shop", 7, "*"] }),                     anna(Role::Write, None)),
        (json!({ "role": "admin", "projects": null }),                anna(Role::Admin, Some(""))),
        (json!({ "role": "admin", "projects": { "*": true } }),       anna(Role::Admin, Some(""))),
    ];
    for (more, want) in cases {
        assert_eq!(of(&plain, more.clone()).await, want, "{more}");
    }
    let more = json!({
        "access": { "waterclock": { "projects": ["bank"] } }, "https://waterclock.example/roles": ["read"],
    });
    assert_eq!(of(&nested, more).await, anna(Role::Read, Some("bank")));
}

#[tokio::test]
async fn a_signed_token_opens_the_api_beside_those_that_are_configured() {
    let [rsa, p256, ..] = &*KEYS;
    let server = Server::start(Some(set(&[rsa])));
    let api = Api::with_tokens();
    let configured = rsa.token("RS256", &claims(&json!({ "aud": "another" })));
    let own = super::super::Token {
        name: "own".to_owned(),
        sha256: super::super::sha256(&configured),
        projects: None,
        role: Role::Read,
    };
    api.access.set(vec![own], Some(issuer(&server.url, OFTEN)), Vec::new());
    let (none, path) = (Value::Null, "/v1/projects");
    let signed = rsa.token("RS256", &claims(&json!({})));
    let of = async |token: &str| {
        let told = api.ask(token, "GET", path, &none).await;
        (told.status, told.code().to_owned())
    };
    // A request has keys fetched, and waits for them.
    let open = async || match of(&signed).await {
        (200, _) => Ok(()),
        told => Err(format!("{told:?}")),
    };
    eventually("the API is open", open).await;
    assert_eq!(api.ask(&signed, "GET", "/v1/timers", &none).await.code(), "project_denied");
    // One that is configured is taken by its hash, whatever it says.
    assert_eq!(api.ask(&configured, "GET", "/v1/timers?limit=0", &none).await.code(), "bad_limit");
    for (token, want) in
        [("x", "bad_credentials"), ("", "no_credentials"), ("a.b.c", "bad_credentials")]
    {
        let told = api.ask(token, "GET", path, &none).await;
        assert_eq!((told.status, told.code()), (401, want), "{token}");
    }
    let late = p256.token("ES256", &claims(&json!({ "exp": 1 })));
    server.put(Some(set(&[rsa, p256])));
    tokio::time::sleep(OFTEN.least * 2).await;
    let known = async || match of(&late).await {
        (401, code) if code == "expired_token" => Ok(()),
        told => Err(format!("{told:?}")),
    };
    eventually("the new key is known", known).await;
    // Signed tokens alone are tokens, too: nobody gets in without one.
    api.access.set(Vec::new(), api.access.issuer(), Vec::new());
    assert_eq!(api.ask("", "GET", path, &none).await.code(), "no_credentials");
    assert_eq!(api.ask("", "GET", "/v1/timers", &none).await.code(), "no_credentials");
    assert_eq!(api.ask(&signed, "GET", path, &none).await.status, 200);
}

#[test]
fn keys_come_from_this_machine_or_over_https() {
    #[rustfmt::skip]
    let cases = [
        ("https://id.example/keys",         true),
        ("http://127.0.0.1:8081/keys",      true),
        ("http://[::1]/keys",               true),
        ("http://localhost/keys",           true),
        ("http://id.example/keys",          false),
        ("http://localhost.example/keys",   false),
        ("http://10.0.0.1/keys",            false),
        ("https://a:b@id.example/keys",     false),
        ("file:///keys",                    false),
    ];
    for (url, want) in cases {
        assert_eq!(is_safe(&url.parse().expect("a URL")), want, "{url}");
    }
}

#[test]
fn keys_are_fetched_again_before_they_are_old() {
    let seconds = Duration::from_secs;
    let again = |life: Option<u64>| Pace::OF_ISSUERS.again(life.map(seconds)).as_secs();
    #[rustfmt::skip]
    let cases = [
        (None,              45 * 60),
        (Some(0),           60),
        (Some(600),         450),
        (Some(10_000_000),  18 * 3_600),
    ];
    for (life, want) in cases {
        assert_eq!(again(life), want, "{life:?}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_a_panic(header in "\\PC{0,60}", claims in any::<Vec<u8>>(), signature in any::<Vec<u8>>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _inside = runtime.enter();
        let issuer = issuer(&"http://127.0.0.1:1/keys".parse().expect("a URL"), SELDOM);
        for header in [header.clone(), format!("{{\"alg\":\"RS256\",\"kid\":{header:?}}}")] {
            let token = format!("{}.{}.{}", part(header), part(&claims), part(&signature));
            prop_assert!(issuer.caller(&token).is_err());
        }
        prop_assert!(issuer.caller(&header).is_err());
    }
}
