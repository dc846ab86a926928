use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use super::*;

fn given(settings: &[(&str, &str)]) -> Given {
    let own =
        |(name, value): &(&str, &str)| ((*name).to_owned(), Secret::from((*value).to_owned()));
    [("sasl.mechanism", "OAUTHBEARER")].iter().chain(settings).map(own).collect()
}

#[test]
fn settings_that_do_not_say_where_tokens_come_from_are_refused() {
    #[rustfmt::skip]
    let cases = [
        ("nothing at all",       &[][..],                                            URL),
        ("no scheme",            &[(URL, "idp/token")],                              URL),
        ("another scheme",       &[(URL, "ftp://idp/token")],                        URL),
        ("part of a path",       &[(URL, "file://token")],                           URL),
        ("no client",            &[(URL, "https://idp/token")],                      CLIENT_ID),
        ("no secret",            &[(URL, "https://idp/token"), (CLIENT_ID, "a")],    CLIENT_SECRET),
        ("two sources",          &[(URL, "file:///token"), (UNSECURED, "true")],     UNSECURED),
        ("no answer",            &[(UNSECURED, "yes")],                              UNSECURED),
        ("unsecured for nobody", &[(UNSECURED, "true")],                             CONFIG),
        ("a method of its own",  &[(METHOD, "azure"), (URL, "file:///token")],       METHOD),
    ];
    for (why, settings, name) in cases {
        let faults = Source::check(&given(settings));
        assert_eq!(faults.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), [name], "{why}");
    }
    let java = [
        (URL, "https://idp/token"),
        ("sasl.oauthbearer.client.credentials.client.id", "a"),
        ("sasl.oauthbearer.client.credentials.client.secret", "b"),
    ];
    assert_eq!(Source::check(&given(&java)), [], "the names of newer Java clients");
}

#[test]
fn a_token_lives_as_long_as_it_says_else_as_the_answer_says() {
    let jwt = make_unsecured("anna", 1_000_000_000_500).token;
    let read = of_text(&jwt, Some(5), "other").unwrap();
    assert_eq!((read.principal.as_str(), read.expires_ms), ("anna", 1_000_003_600_000));
    let opaque = of_text("x", Some(5), "other").unwrap();
    assert_eq!((opaque.principal.as_str(), opaque.expires_ms), ("other", 5));
    assert!(matches!(of_text("x", None, "other"), Err(NoToken::NoLife)));
}

/// Answers one request, and gives back its head and body.
fn endpoint(status: &str, body: &str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(count) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = count.trim().parse().unwrap();
            }
            head += &line;
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
        head + &String::from_utf8(body).unwrap()
    });
    (url, thread)
}

fn fetch(status: &str, body: &str) -> (Result<Token, String>, String) {
    let (url, thread) = endpoint(status, body);
    let settings =
        [(URL, url.as_str()), (CLIENT_ID, "anna"), (CLIENT_SECRET, "xyzzy"), (SCOPE, "a b")];
    let source = Source::read(&given(&settings)).unwrap().unwrap();
    let fetched = source.fetch(1_000).map_err(|why| why.told());
    (fetched, thread.join().unwrap())
}

#[test]
fn the_client_credentials_grant_is_asked_for_by_the_book() {
    let (token, request) = fetch("200 OK", r#"{"access_token": "t", "expires_in": 60}"#);
    let token = token.unwrap();
    assert_eq!((token.token.as_str(), token.expires_ms), ("t", 61_000));
    assert!(request.starts_with("POST /token "), "{request}");
    assert!(request.contains("Basic YW5uYTp4eXp6eQ=="), "{request}");
    assert!(request.ends_with("grant_type=client_credentials&scope=a+b"), "{request}");
}

#[test]
fn an_endpoint_that_gives_no_token_is_told_of_without_the_secret() {
    #[rustfmt::skip]
    let cases = [
        ("refused",         "401 Unauthorized", r#"{"error": "invalid_client"}"#,         "answered 401 (invalid_client)"),
        ("down",            "503 Unavailable",  "xyzzy",                                  "answered 503"),
        ("elsewhere",       "302 Found",        "",                                       "answered 302"),
        ("no JSON",         "200 OK",           "xyzzy",                                  "is no token"),
        ("no token",        "200 OK",           r#"{"expires_in": 60}"#,                  "is no token"),
        ("no life",         "200 OK",           r#"{"access_token": "xyzzy"}"#,           "how long"),
        ("dead on arrival", "200 OK",           r#"{"access_token": "xyzzy", "expires_in": 0}"#, "expired"),
    ];
    for (why, status, body, want) in cases {
        let told = fetch(status, body).0.err().expect(why);
        assert!(told.contains(want) && !told.contains("xyzzy"), "{why}: {told}");
    }
}

fn put(path: &Path, mode: u32, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, format!("{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_token_file_that_everybody_may_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let url = format!("file://{}", path.display());
    for (mode, refused) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o604, 1)] {
        put(&path, mode, "xyzzy");
        let faults = Source::check(&given(&[(URL, &url)]));
        assert_eq!(faults.len(), refused, "{mode:o}: {faults:?}");
        assert!(faults.iter().all(|fault| fault.want.contains("chmod o-r")), "{faults:?}");
    }
}

#[test]
fn an_endpoint_without_tls_is_told_of() {
    let of = |url: &str| {
        let all = [(URL, url), (CLIENT_ID, "a"), (CLIENT_SECRET, "b")];
        let source = Source::read(&given(&all)).unwrap().unwrap();
        source.plain().map(str::to_owned)
    };
    assert_eq!(of("http://idp/token").as_deref(), Some("http://idp/token"));
    assert_eq!(of("HTTPS://idp/token"), None);
    assert_eq!(of("https://idp/token"), None);
    let file = Source::read(&given(&[(URL, "file:///nowhere/token")])).unwrap().unwrap();
    assert_eq!(file.plain(), None);
}

#[test]
fn a_token_file_is_read_again_until_nobody_uses_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let url = format!("file://{}", path.display());
    let tokens = Tokens::start(&given(&[(URL, &url)])).unwrap();
    let missing = tokens.token().err().expect("no file yet");
    assert!(missing.contains("could not read the token file"), "{missing}");
    let first = make_unsecured("anna", now_ms()).token;
    put(&path, 0o644, &first);
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match tokens.token() {
            Err(trouble) if trouble.contains("everybody may read") => break,
            Err(_) if Instant::now() < until => std::thread::yield_now(),
            other => panic!("{:?}", other.err()),
        }
    }
    put(&path, 0o600, &first);
    let until = Instant::now() + Duration::from_secs(10);
    let read = loop {
        match tokens.token() {
            Ok(token) => break token,
            Err(_) if Instant::now() < until => std::thread::yield_now(),
            Err(trouble) => panic!("{trouble}"),
        }
    };
    assert_eq!((read.token.as_str(), read.principal_name.as_str()), (first.as_str(), "anna"));
    let id = tokens.id();
    assert!(token(Some(&id)).is_ok(), "clients find it by the name in their settings");
    drop(tokens);
    let until = Instant::now() + Duration::from_secs(10);
    while token(Some(&id)).is_ok() && Instant::now() < until {
        std::thread::yield_now();
    }
    assert!(token(Some(&id)).is_err(), "nobody uses it");
}
