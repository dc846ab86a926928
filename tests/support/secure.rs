//! A Kafka of its own with listeners that are not open to everybody, beside the open one of `scripts/kafka`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::hash::MessageDigest;
use openssl::pkcs5::pbkdf2_hmac;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::Value;

use super::wire::{self, Of};
use super::{eventually, free_address, variable};

/// The password of every user; no log line may hold it.
pub const PASSWORD: &str = "plugh-swordfish";
/// What the token endpoint knows us by; no log line may hold it either.
pub const CLIENT_SECRET: &str = "xyzzy-swordfish";

const DESCRIBE_SCRAM_CREDENTIALS: i16 = 50;
const ALTER_SCRAM_CREDENTIALS: i16 = 51;

/// A mechanism of SCRAM, as Kafka numbers it.
#[derive(Clone, Copy)]
enum Scram {
    Sha256 = 1,
    Sha512 = 2,
}

/// How long a token of the endpoint lives, so that a test sees it renewed.
const TOKEN_SECONDS: i64 = 10;

/// A broker, gone when the last test drops it.
pub struct Secured {
    dir: PathBuf,
    /// Certificates and keys.
    pub files: tempfile::TempDir,
    /// The open listener.
    pub open: String,
    pub tls: String,
    /// TLS that wants a certificate of the client's, too.
    pub mutual: String,
    /// TLS with SASL by every mechanism.
    pub sasl: String,
}

static ONE: Mutex<Weak<Secured>> = Mutex::new(Weak::new());

impl Secured {
    /// The broker that the tests share.
    #[track_caller]
    pub fn shared() -> Arc<Self> {
        let mut one = ONE.lock();
        one.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Self::start());
            *one = Arc::downgrade(&started);
            started
        })
    }

    #[track_caller]
    fn start() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        make_certificates(files.path());
        // Beside the cluster of the run, whose end is the end of this one, too.
        let beside = PathBuf::from(variable("WATERCLOCK_KAFKA_DIR"));
        let name = format!("secured-{}", uuid::Uuid::new_v4().simple());
        let dir = beside.parent().expect("a parent").join(name);
        let [tls, mutual, sasl] = [free_address(), free_address(), free_address()];
        let add = files.path().join("server.properties");
        std::fs::write(&add, properties(files.path(), &tls, &mutual, &sasl)).expect("written");
        let started = script(&dir).args(["start", "--add"]).arg(&add).output().expect("it runs");
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let printed = String::from_utf8_lossy(&started.stdout).into_owned();
        let open = printed.lines().find_map(|line| line.strip_prefix("KAFKA_BOOTSTRAP="));
        let open = open.expect("an address").to_owned();
        let secured = Self { dir, files, open, tls, mutual, sasl };
        // One at a time: Kafka takes no two credentials of a user in one request.
        for mechanism in [Scram::Sha256, Scram::Sha512] {
            secured.add_credential("anna", mechanism);
        }
        secured
    }

    /// Another user of SCRAM-SHA-512, with the same password.
    #[track_caller]
    pub fn add_user(&self, name: &str) {
        self.add_credential(name, Scram::Sha512);
    }

    /// As `kafka-configs.sh --add-config SCRAM-...` does, without a Java for each.
    #[track_caller]
    fn add_credential(&self, name: &str, mechanism: Scram) {
        const ITERATIONS: u16 = 4_096;
        let salt = uuid::Uuid::new_v4().into_bytes();
        let (digest, length) = match mechanism {
            Scram::Sha256 => (MessageDigest::sha256(), 32),
            Scram::Sha512 => (MessageDigest::sha512(), 64),
        };
        let mut salted = vec![0; length];
        pbkdf2_hmac(PASSWORD.as_bytes(), &salt, ITERATIONS.into(), digest, &mut salted)
            .expect("a key");
        // No deletion, one change, and no tagged field behind either.
        let mut change = vec![1, 2];
        put(&mut change, name.as_bytes());
        change.push(mechanism as u8);
        change.extend(u32::from(ITERATIONS).to_be_bytes());
        put(&mut change, &salt);
        put(&mut change, &salted);
        change.extend([0, 0]);
        // Behind the number of the request and its tagged fields: throttle, a count, the name, a code.
        let code = |answer: &[u8], before: usize| {
            let at = 5 + before + 1 + 1 + name.len();
            i16::from_be_bytes([answer[at], answer[at + 1]])
        };
        let changed = wire::ask(&self.open, &[head(ALTER_SCRAM_CREDENTIALS), change].concat());
        assert_eq!(code(&changed, 4), 0, "{name}");
        // The controller has answered; the broker hears of it a moment later.
        let mut which = vec![2];
        put(&mut which, name.as_bytes());
        which.extend([0, 0]);
        let request = [head(DESCRIBE_SCRAM_CREDENTIALS), which].concat();
        eventually("the broker knows the user", || {
            // A code and a text of all stand before the count here.
            match code(&wire::ask(&self.open, &request), 4 + 2 + 1) {
                0 => Ok(()),
                code => Err(format!("{name}: {code}")),
            }
        });
    }

    /// From now on the broker's log has the rights that users had and needed, too.
    #[track_caller]
    pub fn log_what_is_allowed(&self) {
        wire::set(&self.open, Of::BrokerLoggers, "1", ("kafka.authorizer.logger", "DEBUG"));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("node-1/log")).expect("a log")
    }

    /// Rights of a user, as `waterclock acl print --json` has them, that nothing has needed since
    /// [`log_what_is_allowed`](Self::log_what_is_allowed).
    pub fn unused(&self, user: &str, printed: &Value) -> Vec<String> {
        let (of_user, log) =
            (format!("Principal = User:{user} is Allowed operation = "), self.log());
        let used: BTreeSet<&str> = log
            .lines()
            .filter_map(|line| line.split_once(&of_user).map(|(_, rest)| rest))
            .collect();
        let text = |of: &Value| of.as_str().expect("text").to_owned();
        let mut unused = Vec::new();
        for grant in printed["grants"].as_array().expect("grants") {
            let [resource, name, pattern] =
                ["resource", "name", "pattern"].map(|of| text(&grant[of]));
            for operation in grant["operations"].as_array().expect("operations").iter().map(text) {
                let as_logged =
                    operation.replace("DescribeConfigs", "Describe_Configs").to_uppercase();
                let rule = format!(
                    "acl=StandardAcl[resourceType={}, resourceName={name}, patternType={}, principal=User:{user}, host=*, operation={as_logged},",
                    resource.replace('-', "_").to_uppercase(),
                    pattern.to_uppercase(),
                );
                // Not for what it implies, such as Describe.
                let asked = format!("{as_logged} from host");
                if !used.iter().any(|line| line.starts_with(&asked) && line.contains(&rule)) {
                    unused.push(format!("{resource} {name}: {operation}"));
                }
            }
        }
        unused
    }

    /// What the broker has denied a user, as its log has it.
    pub fn denied(&self, user: &str) -> Vec<String> {
        let log = self.log();
        let of_user = format!("Principal = User:{user} is Denied");
        log.lines().filter(|line| line.contains(&of_user)).map(str::to_owned).collect()
    }

    /// A file of this broker's, as text.
    pub fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        let _ = script(&self.dir).arg("kill").output();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn script(dir: &Path) -> Command {
    let mut command = Command::new(variable("WATERCLOCK_KAFKA_SCRIPT"));
    command.env_remove("KAFKA_BOOTSTRAP").arg("--dir").arg(dir);
    command
}

/// The head of a request of version 0, in the encoding with tagged fields.
fn head(what: i16) -> Vec<u8> {
    let mut head = [what.to_be_bytes(), 0_i16.to_be_bytes()].concat();
    head.extend(7_i32.to_be_bytes());
    head.extend(4_i16.to_be_bytes());
    head.extend(b"test\0");
    head
}

/// Bytes behind their length, and one more, in that encoding; they are few.
fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() < 127, "{} bytes", bytes.len());
    to.push(bytes.len() as u8 + 1);
    to.extend_from_slice(bytes);
}

/// A certificate authority, the broker's certificate, a client's, and an authority that nobody trusts.
fn make_certificates(to: &Path) {
    let write = |name: &str, text: String| std::fs::write(to.join(name), text).expect("written");
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        CertifiedIssuer::self_signed(params, key).expect("a certificate")
    };
    let ours = authority("ours");
    write("ca.pem", ours.pem());
    write("stranger.pem", authority("stranger").pem());
    for name in ["broker", "anna"] {
        let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &ours).expect("signed");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
        write(&format!("{name}.both"), key.serialize_pem() + &certificate.pem());
    }
}

fn properties(files: &Path, tls: &str, mutual: &str, sasl: &str) -> String {
    let files = files.display();
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    let token = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
    format!(
        "listeners+=TLS://{tls},MUTUAL://{mutual},SASL://{sasl}\n\
         advertised.listeners+=TLS://{tls},MUTUAL://{mutual},SASL://{sasl}\n\
         listener.security.protocol.map+=TLS:SSL,MUTUAL:SSL,SASL:SASL_SSL\n\
         ssl.keystore.type=PEM\n\
         ssl.keystore.location={files}/broker.both\n\
         ssl.truststore.type=PEM\n\
         ssl.truststore.location={files}/ca.pem\n\
         listener.name.mutual.ssl.client.auth=required\n\
         listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER\n\
         listener.name.sasl.plain.sasl.jaas.config={plain} user_anna=\"{PASSWORD}\" user_minimal=\"{PASSWORD}\";\n\
         listener.name.sasl.scram-sha-256.sasl.jaas.config={scram}\n\
         listener.name.sasl.scram-sha-512.sasl.jaas.config={scram}\n\
         listener.name.sasl.oauthbearer.sasl.jaas.config={token}\n\
         listener.name.sasl.oauthbearer.connections.max.reauth.ms=5000\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         allow.everyone.if.no.acl.found=false\n\
         super.users=User:ANONYMOUS;User:anna;User:CN=anna\n"
    )
}

/// A token that the broker believes without a signature, for so many seconds from now; fewer than none: expired.
#[allow(clippy::disallowed_methods, reason = "a token says when it ends")]
pub fn token(seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let claims = format!(r#"{{"sub":"anna","iat":{},"exp":{}}}"#, now - 3_600, now + seconds);
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.", part(r#"{"alg":"none"}"#), part(&claims))
}

/// A token endpoint that answers until the process ends: it gives tokens to any client that knows the secret.
pub fn token_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/token", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let (mut length, mut known) = (0, false);
            let basic = base64::engine::general_purpose::STANDARD;
            let wanted = basic.encode(format!("waterclock:{CLIENT_SECRET}"));
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
                if let Some(count) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = count.trim().parse().unwrap_or(0);
                }
                known |= line.contains(&wanted);
                line.clear();
            }
            let mut body = vec![0; length];
            let _ = reader.read_exact(&mut body);
            let (status, body) = if known {
                (
                    "200 OK",
                    format!(
                        r#"{{"access_token":"{}","expires_in":{TOKEN_SECONDS}}}"#,
                        token(TOKEN_SECONDS)
                    ),
                )
            } else {
                ("401 Unauthorized", r#"{"error":"invalid_client"}"#.to_owned())
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    url
}
