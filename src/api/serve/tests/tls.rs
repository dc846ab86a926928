//! TLS on the listener: who is let in, what is spoken, and who holds up whom.

use openssl::ssl::{SslConnector, SslFiletype, SslMethod, SslVersion};
use serde_json::{Value, json};
use tokio_openssl::SslStream;

use super::*;
use crate::api::auth::{Principal, Role};
use crate::api::tasks::tests::Api;
use crate::api::tls::Certificates;
use crate::api::tls::tests::{For, Pki, authority, signed};

/// Looks until what stands there now was tried: not at the first look, which sees it change.
fn look_twice(certificates: &mut Certificates) {
    certificates.look();
    certificates.look();
}

/// A listener with TLS, and a page for everybody.
struct Server {
    pki: Pki,
    certificates: Certificates,
    address: SocketAddr,
}

impl Server {
    async fn start(limits: Limits, is_required: bool, app: Router) -> Self {
        let pki = Pki::new();
        let certificates = Certificates::open(pki.settings(is_required)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = (listener, certificates.listener());
        tokio::spawn(serve_within(limits, listener, app, std::future::pending()));
        Self { pki, certificates, address }
    }

    /// A client that shows this pair of the directory, and speaks one of these.
    fn client(&self, shows: Option<&str>, protocols: &[u8]) -> Client {
        let mut of = SslConnector::builder(SslMethod::tls_client()).unwrap();
        of.set_ca_file(self.pki.path("ca.pem")).unwrap();
        if let Some(name) = shows {
            of.set_certificate_chain_file(self.pki.path(&format!("{name}.pem"))).unwrap();
            of.set_private_key_file(self.pki.path(&format!("{name}.key")), SslFiletype::PEM)
                .unwrap();
        }
        if !protocols.is_empty() {
            of.set_alpn_protos(protocols).unwrap();
        }
        Client { of, address: self.address }
    }
}

struct Client {
    of: openssl::ssl::SslConnectorBuilder,
    address: SocketAddr,
}

type Encrypted = SslStream<TcpStream>;

impl Client {
    async fn connect(self) -> io::Result<Encrypted> {
        let ssl = self.of.build().configure().unwrap().into_ssl("127.0.0.1").unwrap();
        let mut stream = SslStream::new(ssl, TcpStream::connect(self.address).await?).unwrap();
        Pin::new(&mut stream).connect().await.map_err(io::Error::other)?;
        Ok(stream)
    }

    /// The answer to a request over HTTP/1.1, or why there is none: a server may refuse a certificate only with the first read.
    async fn ask(self, request: &str) -> io::Result<String> {
        let mut stream = self.connect().await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

fn live() -> String {
    request("GET", "/health/live")
}

fn is_live(answer: &io::Result<String>) -> bool {
    answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

fn health() -> Router {
    router(Arc::new(Half))
}

#[tokio::test]
async fn one_listener_speaks_http1_and_http2_by_alpn_and_by_how_a_client_begins() {
    let server = Server::start(Limits::new(1_024), false, health()).await;
    let of = |protocols: &[u8]| server.client(None, protocols).connect();
    for (offered, chosen) in [
        (&b"\x02h2\x08http/1.1"[..], Some(&b"h2"[..])),
        (b"\x08http/1.1\x02h2", Some(b"h2")),
        (b"\x08http/1.1", Some(b"http/1.1")),
        (b"", None),
    ] {
        let stream = of(offered).await.unwrap();
        assert_eq!(stream.ssl().selected_alpn_protocol(), chosen);
    }
    assert!(of(b"\x03foo").await.is_err(), "there is nothing that both speak");
    for offered in [&b"\x08http/1.1"[..], b""] {
        assert!(is_live(&server.client(None, offered).ask(&live()).await), "{offered:?}");
    }
    for offered in [&b"\x02h2"[..], b""] {
        let stream = TokioIo::new(of(offered).await.unwrap());
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
        let (sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let answer = asked(&sender, "/health/live").await.unwrap();
        assert_eq!(text(answer).await, "{\"ok\":true,\"reasons\":[\"yes\"]}", "{offered:?}");
    }
}

#[tokio::test]
async fn old_versions_of_tls_are_refused() {
    let server = Server::start(Limits::new(1_024), false, health()).await;
    for (version, is_taken) in [
        (SslVersion::TLS1_3, true),
        (SslVersion::TLS1_2, true),
        (SslVersion::TLS1_1, false),
        (SslVersion::TLS1, false),
    ] {
        let mut client = server.client(None, b"");
        // So that the client offers them at all.
        client.of.set_security_level(0);
        client.of.set_cipher_list("ALL:@SECLEVEL=0").unwrap();
        client.of.set_min_proto_version(Some(version)).unwrap();
        client.of.set_max_proto_version(Some(version)).unwrap();
        let answer = client.ask(&live()).await;
        assert_eq!(is_live(&answer), is_taken, "{version:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_certificate_of_a_client_is_verified_with_each_connection_and_missed_where_it_must_be_there()
 {
    for is_required in [false, true] {
        let server = Server::start(Limits::new(1_024), is_required, health()).await;
        let pki = &server.pki;
        pki.put_pair("stranger", &signed(&authority("nobody's"), "client", For::Client));
        pki.put_pair("former", &signed(&pki.clients, "client", For::FormerClient));
        pki.put_pair("misused", &signed(&pki.clients, "client", For::Server));
        for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
            for (shows, is_taken) in [
                (None, !is_required),
                (Some("client"), true),
                (Some("stranger"), false),
                (Some("former"), false),
                (Some("misused"), false),
            ] {
                let mut client = server.client(shows, b"");
                client.of.set_max_proto_version(Some(version)).unwrap();
                let answer = client.ask(&live()).await;
                let why = format!("{shows:?} {version:?} {is_required}: {answer:?}");
                assert_eq!(is_live(&answer), is_taken, "{why}");
            }
        }
        // No session is offered that could be resumed without a certificate.
        let stream = server.client(Some("client"), b"").connect().await.unwrap();
        let session = stream.ssl().session();
        assert!(session.is_none_or(|session| session.id().is_empty()));
    }
}

#[tokio::test]
async fn who_speaks_without_tls_is_told_so_and_garbage_is_closed() {
    let server = Server::start(Limits::new(1_024), false, health()).await;
    let told = exchange(server.address, &live()).await;
    assert!(told.starts_with("HTTP/1.1 400 ") && told.contains("by https\""), "{told}");
    let length: usize =
        told.split("Content-Length: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
    assert_eq!(told.split("\r\n\r\n").nth(1).map(str::len), Some(length), "{told}");
    assert!(http2_ends(server.address).await, "a client of HTTP/2 is answered");
    let hello = [&[22, 3, 1, 0, 200, 1][..], &[0xff; 199]].concat();
    for garbage in [&b"\0"[..], &[22; 600], &[22, 3, 1, 0xff, 0xff, 1, 2], &hello] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let closed = stream.read_to_end(&mut rest);
        let closed = tokio::time::timeout(patient(Duration::from_secs(5)), closed).await;
        assert!(closed.is_ok(), "{garbage:?}: it is open still");
    }
    assert!(is_live(&server.client(None, b"").ask(&live()).await));
}

/// Whether a connection of HTTP/2 without TLS comes to its end without an answer.
async fn http2_ends(address: SocketAddr) -> bool {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let handshake =
        hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), stream);
    let Ok((sender, connection)) = handshake.await else { return true };
    tokio::spawn(async { drop(connection.await) });
    let answer =
        tokio::time::timeout(patient(Duration::from_secs(5)), asked(&sender, "/health/live"));
    answer.await.is_ok_and(|answer| answer.is_err())
}

/// Connections that have sent half of what begins TLS.
async fn half_handshakes(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for n in 0..count {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Some have sent nothing at all.
        let _ = stream.write_all(&[22, 3, 1, 2, 0, 1][..n % 7]).await;
        all.push(stream);
    }
    all
}

#[tokio::test]
async fn half_handshakes_hold_nobody_up_and_end() {
    // A client that waited for one of them would wait for longer than this test does.
    let limits = Limits { head: Duration::from_secs(600), ..Limits::new(1_024) };
    let server = Server::start(limits, true, health()).await;
    let halves = half_handshakes(server.address, 300).await;
    let healthy = async {
        for _ in 0..20 {
            assert!(is_live(&server.client(Some("client"), b"").ask(&live()).await));
        }
    };
    let answered = tokio::time::timeout(patient(Duration::from_secs(60)), healthy).await;
    assert!(answered.is_ok(), "it was held up");
    drop(halves);
    let limits = Limits { head: Duration::from_millis(300), ..Limits::new(1_024) };
    let server = Server::start(limits, true, health()).await;
    for mut half in half_handshakes(server.address, 14).await {
        let mut rest = [0; 64];
        let closed = half.read(&mut rest);
        let closed = tokio::time::timeout(patient(Duration::from_secs(10)), closed).await;
        assert!(closed.is_ok_and(|read| !read.is_ok_and(|read| read > 0)), "it is open still");
    }
}

#[tokio::test]
async fn a_half_handshake_gives_way_where_all_connections_are_taken() {
    let server =
        Server::start(Limits { connections: 8, ..Limits::new(1_024) }, true, health()).await;
    let halves = half_handshakes(server.address, 8).await;
    for _ in 0..16 {
        assert!(is_live(&server.client(Some("client"), b"").ask(&live()).await));
    }
    drop(halves);
}

#[tokio::test]
async fn new_files_are_taken_without_a_restart_and_bad_ones_change_nothing() {
    let mut server = Server::start(Limits::new(1_024), true, health()).await;
    let mut open = server.client(Some("client"), b"").connect().await.unwrap();
    let shown = async |server: &Server| {
        let stream = server.client(Some("client"), b"").connect().await.unwrap();
        stream.ssl().peer_certificate().unwrap().to_pem().unwrap()
    };
    let is_of = |pem: &[u8], pair: &[String; 2]| {
        let of = openssl::x509::X509::from_pem(pair[0].as_bytes()).unwrap();
        of.to_pem().unwrap() == pem
    };
    let first = shown(&server).await;
    let second = signed(&server.pki.servers, "second", For::Server);
    // The certificate alone does not fit the key.
    server.pki.put("server.pem", &second[0]);
    look_twice(&mut server.certificates);
    assert_eq!(shown(&server).await, first);
    server.pki.put("server.key", &second[1]);
    server.certificates.look();
    assert_eq!(shown(&server).await, first, "it may be half written");
    server.certificates.look();
    assert!(is_of(&shown(&server).await, &second));
    server.pki.put("server.key", "nothing");
    look_twice(&mut server.certificates);
    assert!(is_of(&shown(&server).await, &second));
    server.pki.put_pair("server", &second);
    // Other authorities of clients: who was taken is not any more, and the other way round.
    let others = authority("others");
    server.pki.put_pair("new", &signed(&others, "client", For::Client));
    assert!(!is_live(&server.client(Some("new"), b"").ask(&live()).await));
    server.pki.put("client-ca.pem", &others.pem());
    look_twice(&mut server.certificates);
    assert!(
        is_live(&server.client(Some("client"), b"").ask(&live()).await),
        "instances would not be taken"
    );
    server.pki.put_pair("client", &signed(&others, "client", For::Client));
    look_twice(&mut server.certificates);
    assert!(is_live(&server.client(Some("new"), b"").ask(&live()).await));
    // A connection that is open goes on.
    open.write_all(live().as_bytes()).await.unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// What a caller is answered: the status, and the code of a problem.
async fn told(client: Client, method: &str, path: &str, token: Option<&str>) -> (u16, Value) {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let body = if method == "PUT" {
        "Content-Type: application/json\r\nContent-Length: 2\r\n"
    } else {
        ""
    };
    let end = if method == "PUT" { "{}" } else { "" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{token}{body}\r\n{end}"
    );
    let answer = client.ask(&request).await.expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    (status, body["code"].clone())
}

#[tokio::test]
async fn a_caller_is_known_by_the_name_of_his_certificate_unless_he_brings_a_token() {
    let api = Api::with_tokens();
    let server = Server::start(Limits::new(1_024), false, api.router()).await;
    let pki = &server.pki;
    for name in ["reader", "writer", "chief", "admin", "nobody"] {
        pki.put_pair(name, &signed(&pki.clients, name, For::Client));
    }
    let principal = |name: &str, subject: &str, projects: Option<&str>, role| Principal {
        name: name.to_owned(),
        subject: subject.parse().unwrap(),
        projects: projects.map(|one| [one.to_owned()].into()),
        role,
    };
    api.let_in(vec![
        principal("reader", "uri:spiffe://example/reader", Some("shop"), Role::Read),
        principal("chief", "cn:chief", Some("shop"), Role::Admin),
        principal("admin", "dns:ADMIN.example", None, Role::Admin),
    ]);
    let (list, shop, bank) = ("/v1/tasks", "/v1/projects/shop", "/v1/projects/bank");
    let none = Value::Null;
    #[rustfmt::skip]
    let cases = [
        // shows,          token,           asks for,                 is answered
        (Some("reader"),   None,            ("GET", list),            (200, none.clone())),
        (Some("reader"),   None,            ("PUT", shop),            (403, json!("role_denied"))),
        (Some("reader"),   None,            ("GET", bank),            (404, json!("unknown_project"))),
        (Some("chief"),    None,            ("PUT", shop),            (200, none.clone())),
        (Some("chief"),    None,            ("PUT", bank),            (404, json!("unknown_project"))),
        (Some("admin"),    None,            ("PUT", bank),            (200, none.clone())),
        (Some("nobody"),   None,            ("GET", list),            (403, json!("role_denied"))),
        (None,             None,            ("GET", list),            (401, json!("no_credentials"))),
        (None,             Some("reader"),  ("GET", list),            (200, none.clone())),
        // The token counts, for less and for more.
        (Some("admin"),    Some("reader"),  ("PUT", shop),            (403, json!("role_denied"))),
        (Some("nobody"),   Some("reader"),  ("GET", list),            (200, none)),
        (Some("admin"),    Some("else"),    ("GET", list),            (401, json!("bad_credentials"))),
    ];
    for (shows, token, (method, path), want) in cases {
        let answer = told(server.client(shows, b""), method, path, token).await;
        assert_eq!(answer, want, "{shows:?} {token:?} {method} {path}");
    }
    // A principal that is taken out is not known with the next request.
    api.let_in(Vec::new());
    let answer = told(server.client(Some("admin"), b""), "GET", list, None).await;
    assert_eq!(answer, (401, json!("no_credentials")));
}
