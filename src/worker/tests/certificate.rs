//! Client certificates of services: who sees them, and who does not.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::LazyLock;

use openssl::pkey::PKey;
use openssl::ssl::{HandshakeError, SslAcceptor, SslMethod, SslVerifyMode, SslVersion};
use openssl::x509::X509;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::*;

/// OpenSSL reads from this file whom a worker trusts.
const TRUSTED: &str = "SSL_CERT_FILE";

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["loopback.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn authority(name: &str, of: Option<&Issuer>) -> Issuer {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    match of {
        Some(of) => CertifiedIssuer::signed_by(params, key, of).unwrap(),
        None => CertifiedIssuer::self_signed(params, key).unwrap(),
    }
}

/// The key and the certificate of a name.
fn signed(name: &str, by: &Issuer) -> [String; 2] {
    signed_as(&params(name), by)
}

fn signed_as(params: &CertificateParams, by: &Issuer) -> [String; 2] {
    let key = KeyPair::generate().unwrap();
    [key.serialize_pem(), params.signed_by(&key, by).unwrap().pem()]
}

/// A client certificate as a secret holds it.
pub(in crate::worker) static PEM: LazyLock<String> =
    LazyLock::new(|| signed("anybody", &authority("nobody's", None)).concat());

/// A server that takes only clients with a certificate of an authority.
struct Server {
    port: u16,
    /// The names on the certificates of its requests, each with the connection that it came by.
    seen: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Server {
    fn start(authority: &Issuer, version: SslVersion) -> Self {
        let [key, certificate] = signed("server", authority);
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_private_key(&PKey::private_key_from_pem(key.as_bytes()).unwrap()).unwrap();
        acceptor.set_certificate(&X509::from_pem(certificate.as_bytes()).unwrap()).unwrap();
        let trusted = X509::from_pem(authority.pem().as_bytes()).unwrap();
        acceptor.cert_store_mut().add_cert(trusted).unwrap();
        acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
        acceptor.set_min_proto_version(Some(version)).unwrap();
        acceptor.set_max_proto_version(Some(version)).unwrap();
        let acceptor = acceptor.build();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let log = Arc::clone(&seen);
        std::thread::spawn(move || {
            for (nth, stream) in listener.incoming().enumerate() {
                let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
                std::thread::spawn(move || {
                    let stream = match acceptor.accept(stream.unwrap()) {
                        Ok(stream) => stream,
                        Err(refused) => return linger(refused),
                    };
                    let shown = stream.ssl().peer_certificate().expect("it was asked for");
                    let name = shown.subject_name().entries().last().unwrap();
                    let name = String::from_utf8_lossy(name.data().as_slice()).into_owned();
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    while stream.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                        if line == "\r\n" {
                            log.lock().push((name.clone(), nth));
                            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                            stream.get_mut().write_all(answer).unwrap();
                        }
                        line.clear();
                    }
                });
            }
        });
        Self { port, seen }
    }
}

/// Waits until a client that was refused has gone. A socket that is closed with unread bytes is reset, and the client then may not see the alert.
fn linger(refused: HandshakeError<TcpStream>) {
    if let HandshakeError::Failure(mut handshake) = refused {
        let _ = io::copy(handshake.get_mut(), &mut io::sink());
    }
}

/// Answers one call over HTTP/2, as far as it has to.
fn speak_grpc(stream: &mut (impl Read + Write)) -> io::Result<()> {
    stream.write_all(&grpc::SETTINGS)?;
    stream.read_exact(&mut [0; 24])?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [_, high, low, of_type, flags, rest @ ..] = head;
        stream.read_exact(&mut vec![0; usize::from(high) << 8 | usize::from(low)])?;
        // DATA or HEADERS, and the last of them.
        if of_type > 1 || flags & 1 == 0 {
            continue;
        }
        let mut send = |of_type: u8, flags: u8, payload: &[u8]| {
            let mut frame = vec![0, 0, payload.len() as u8, of_type, flags];
            frame.extend(rest);
            frame.extend(payload);
            stream.write_all(&frame)
        };
        // The status is 200, and then the content-type.
        send(1, 4, b"\x88\x0f\x10\x10application/grpc")?;
        send(0, 0, &[0, 0, 0, 0, 2, 8, 1])?;
        send(1, 5, b"\x00\x0bgrpc-status\x010")?;
    }
}

/// A server of gRPC with TLS, which takes only clients with a certificate of an authority. `alpn`: whether it agrees on HTTP/2.
fn grpc_server(authority: &Issuer, alpn: bool) -> (u16, Arc<Mutex<Vec<String>>>) {
    let [key, certificate] = signed("server", authority);
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_private_key(&PKey::private_key_from_pem(key.as_bytes()).unwrap()).unwrap();
    acceptor.set_certificate(&X509::from_pem(certificate.as_bytes()).unwrap()).unwrap();
    let trusted = X509::from_pem(authority.pem().as_bytes()).unwrap();
    acceptor.cert_store_mut().add_cert(trusted).unwrap();
    acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    if alpn {
        acceptor.set_alpn_select_callback(|_, offered| {
            let chosen = openssl::ssl::select_next_proto(b"\x02h2", offered);
            chosen.ok_or(openssl::ssl::AlpnError::NOACK)
        });
    }
    let acceptor = acceptor.build();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let log = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
            std::thread::spawn(move || {
                let Ok(mut stream) = acceptor.accept(stream.unwrap()) else { return };
                let shown = stream.ssl().peer_certificate().expect("it was asked for");
                let name = shown.subject_name().entries().last().unwrap();
                log.lock().push(String::from_utf8_lossy(name.data().as_slice()).into_owned());
                // The other side goes when it likes.
                let _ = speak_grpc(&mut stream);
            });
        }
    });
    (port, seen)
}

#[test]
fn a_client_certificate_is_shown_by_the_calls_of_its_service_only() {
    of_its_own_process("child_shows_certificates");
}

#[test]
fn calls_over_grpc_with_tls_show_a_certificate_and_want_http2() {
    of_its_own_process("child_calls_over_grpc");
}

#[test]
#[ignore = "a child of the test above"]
fn child_calls_over_grpc() {
    let root = authority("root", None);
    std::fs::write(std::env::var_os(TRUSTED).expect("run by another test"), root.pem()).unwrap();
    let secrets = [("first", signed("first", &root).concat()), ("stranger", PEM.clone())];
    let secrets = secrets.map(|(name, pem)| {
        (name.to_owned(), Secret::new(&pem, None, ["shop".to_owned()]).unwrap())
    });
    let worker =
        Worker::start(Settings { secrets: secrets.into_iter().collect(), ..settings(&LOCAL) });
    let of = json!({"type": "grpc", "service": "s.S", "method": "M"});
    let call = |port: u16, certificate: Option<&str>| {
        let mut service =
            json!({"protocol": "grpc", "address": format!("https://loopback.example:{port}")});
        if let Some(secret) = certificate {
            service["client_certificate"] = json!(secret);
        }
        worker.put_service(&service);
        let mut spec = of.clone();
        spec["named_service"] = json!("billing");
        worker.call(&Arc::new(task(spec, b"")))
    };
    let (port, names) = grpc_server(&root, true);
    for _ in 0..2 {
        let end = call(port, Some("first"));
        assert_eq!(end.result.response.as_deref(), Some(&[8, 1][..]), "{end:?}");
    }
    assert_eq!(*names.lock(), ["first"], "one connection");
    for certificate in [None, Some("stranger")] {
        let end = call(port, certificate);
        assert_eq!(end.result.outcome, Outcome::Failed, "{end:?}");
        assert!(["connection_failed", "call_broken"].contains(&seen(&end).2.as_str()), "{end:?}");
    }
    let (port_without, _) = grpc_server(&root, false);
    let end = call(port_without, Some("first"));
    assert!(end.result.error.as_deref().unwrap_or_default().contains("ALPN h2"), "{end:?}");
    // A certificate that nobody trusts, and one of another name.
    let (port_of_stranger, names) = grpc_server(&authority("nobody", None), true);
    let end = call(port_of_stranger, Some("first"));
    assert_eq!(seen(&end).2, "connection_failed", "{end:?}");
    let names_file =
        |end: &CallEnd| end.result.error.as_deref().unwrap_or_default().contains(TRUSTED);
    assert!(names_file(&end), "{end:?}");
    let mut spec = of.clone();
    spec["host"] = json!(format!("127.0.0.1:{port}"));
    spec["tls"] = json!(true);
    let end = worker.call(&Arc::new(task(spec, b"")));
    assert_eq!(seen(&end).2, "connection_failed", "its name is another one: {end:?}");
    assert!(!names_file(&end), "{end:?}");
    assert!(names.lock().is_empty());
}

/// The port of a server with this key and certificate, which asks clients for none; and how many have sent it something.
fn server_with([key, certificate]: [String; 2]) -> (u16, Arc<Mutex<usize>>) {
    let identity = native_tls::Identity::from_pkcs8(certificate.as_bytes(), key.as_bytes());
    let acceptor = native_tls::TlsAcceptor::new(identity.unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::<Mutex<usize>>::default();
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Those who do not trust it have gone.
            let Ok(mut stream) = acceptor.accept(stream.unwrap()) else { continue };
            if stream.read(&mut [0; 1_024]).is_ok_and(|bytes| bytes > 0) {
                *log.lock() += 1;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer);
            }
        }
    });
    (port, asked)
}

/// The port of a server that does not speak TLS.
fn plain_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // It takes what comes for a request that it does not understand.
            if stream.read(&mut [0; 16_384]).is_ok_and(|bytes| bytes > 0) {
                let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
                // The other side goes when it likes.
                let _ = stream.write_all(answer);
            }
        }
    });
    port
}

#[test]
fn a_call_over_bad_tls_is_a_failed_attempt_that_says_why() {
    of_its_own_process("child_calls_over_bad_tls");
}

#[test]
#[ignore = "a child of the test above"]
fn child_calls_over_bad_tls() {
    let root = authority("root", None);
    std::fs::write(std::env::var_os(TRUSTED).expect("run by another test"), root.pem()).unwrap();
    let worker = Worker::start(settings(&LOCAL));
    let mut expired = params("server");
    expired.not_before = rcgen::date_time_ymd(2020, 1, 1);
    expired.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let of_another = CertificateParams::new(["other.example".to_owned()]).unwrap();
    let call = |port: u16| {
        let url = format!("https://loopback.example:{port}/");
        worker.call(&Arc::new(task(json!({"url": url}), b"")))
    };
    let (trusted, asked) = server_with(signed("server", &root));
    let end = call(trusted);
    assert_eq!((end.result.outcome, *asked.lock()), (Outcome::Finished, 1), "{end:?}");
    let (expired, asked_expired) = server_with(signed_as(&expired, &root));
    let (of_another, asked_another) = server_with(signed_as(&of_another, &root));
    let (unknown, _) = server_with(signed("server", &authority("nobody", None)));
    for (why, port, said) in [
        ("expired", expired, "certificate has expired"),
        ("an unknown authority", unknown, "ssl_cert_file"),
        ("a wrong name", of_another, "hostname mismatch"),
        ("plain text", plain_server(), "no tls is spoken there"),
    ] {
        let end = call(port);
        let want = (None, Outcome::Failed, "connection_failed".to_owned(), false);
        assert_eq!(seen(&end), want, "{why}: {end:?}");
        let error = end.result.error.unwrap_or_default().to_lowercase();
        assert!(error.contains(said), "{why}: {error}");
    }
    assert_eq!((*asked_expired.lock(), *asked_another.lock()), (0, 0), "nothing was sent");
}

#[track_caller]
fn of_its_own_process(name: &str) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root.pem");
    super::of_its_own_process(&format!("certificate::{name}"), &[(TRUSTED, root.as_os_str())]);
}

#[test]
#[ignore = "a child of the test above"]
fn child_shows_certificates() {
    let root = authority("root", None);
    std::fs::write(std::env::var_os(TRUSTED).expect("run by another test"), root.pem()).unwrap();
    let between = authority("between", Some(&root));
    let [key, first] = signed("first", &between);
    let secrets = [
        // The server knows the root only, so the chain must be sent.
        ("first", format!("{key}{first}{}", between.pem())),
        ("second", signed("second", &root).concat()),
        ("stranger", PEM.clone()),
    ];
    let secrets = secrets.map(|(name, pem)| {
        (name.to_owned(), Secret::new(&pem, None, ["shop".to_owned()]).unwrap())
    });
    let worker =
        Worker::start(Settings { secrets: secrets.into_iter().collect(), ..settings(&LOCAL) });
    for (version, no_certificate, unknown_authority) in [
        (SslVersion::TLS1_2, "connection_failed", "connection_failed"),
        (SslVersion::TLS1_3, "call_broken", "call_broken"),
    ] {
        let server = Server::start(&root, version);
        let address = format!("https://loopback.example:{}", server.port);
        let call = |certificate: Option<&str>| {
            let mut service = json!({"address": address});
            if let Some(secret) = certificate {
                service["client_certificate"] = json!(secret);
            }
            worker.put_service(&service);
            worker.call(&Arc::new(task(json!({"service": "billing"}), b"")))
        };
        for certificate in ["first", "first", "second", "first"] {
            let end = call(Some(certificate));
            assert_eq!(end.result.outcome, Outcome::Finished, "{version:?} {certificate}: {end:?}");
        }
        let wanted = [("first", 0), ("first", 0), ("second", 1), ("first", 0)];
        let wanted = wanted.map(|(name, connection)| (name.to_owned(), connection));
        assert_eq!(*server.seen.lock(), wanted, "{version:?}");
        // Connections with certificates are open meanwhile.
        let bare = worker.call(&Arc::new(task(json!({"url": address}), b"")));
        for (end, want) in [
            (bare, no_certificate),
            (call(None), no_certificate),
            (call(Some("stranger")), unknown_authority),
        ] {
            let want = (None, Outcome::Failed, want.to_owned(), false);
            assert_eq!(seen(&end), want, "{version:?}: {end:?}");
            let error = end.result.error.unwrap_or_default();
            assert!(error.contains("alert"), "{version:?}: {error}");
        }
        assert_eq!(server.seen.lock().len(), wanted.len(), "{version:?}");
    }
}
