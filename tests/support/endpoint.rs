//! An HTTP server that misbehaves by the path that it is asked for, and logs every call of a task.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::now_ms;

/// How much of `/big` is promised.
const BIG: u64 = 1 << 30;

/// A call as it came.
#[derive(Clone, Debug)]
pub struct Call {
    /// With its query.
    pub target: String,
    /// `webhook-id`.
    pub id: String,
    /// `waterclock-turn`.
    pub turn: u32,
    /// `waterclock-attempt`.
    pub attempt: u32,
    /// `waterclock-ticket` and `waterclock-cursor`.
    pub ticket: Option<String>,
    pub cursor: Option<String>,
    /// `waterclock-shard`, as `3/60`.
    pub shard: Option<String>,
    /// `waterclock-nominal`, epoch milliseconds.
    pub nominal: Option<u64>,
    /// `webhook-timestamp`: when the caller made the request, in seconds.
    pub made: u64,
    /// When it began, by this machine's clock.
    pub began: u64,
    /// When its answer was written; `None` while it is open. A caller that goes away ends it, too.
    pub ended: Option<u64>,
    /// Bytes of its body.
    pub body: usize,
}

impl Call {
    /// Of which task it is, whatever its polling round.
    pub fn task(&self) -> &str {
        let is_round = |round: &str| round.bytes().all(|byte| byte.is_ascii_digit());
        let of_round = self.id.rsplit_once(".r").filter(|(_, round)| is_round(round));
        of_round.map_or(&self.id, |(task, _)| task)
    }

    /// Whether it was open at some moment of this time.
    pub fn was_open(&self, from: u64, to: u64) -> bool {
        self.began <= to && self.ended.is_none_or(|ended| ended >= from)
    }
}

#[derive(Default)]
struct Shared {
    calls: Mutex<Vec<Call>>,
    /// How often each task called each target.
    times: Mutex<HashMap<(String, String), u64>>,
    connections: AtomicUsize,
    sent: AtomicU64,
    /// What is stuck goes on.
    is_free: AtomicBool,
    is_over: AtomicBool,
}

impl Shared {
    /// How often the task has called this target, with this call.
    fn count(&self, call: &Call) -> u64 {
        let mut times = self.times.lock();
        let of = times.entry((call.task().to_owned(), call.target.clone())).or_default();
        *of += 1;
        *of
    }
}

/// The server; it ends with the test.
///
/// | path | answer |
/// |---|---|
/// | `/ok` | 200 |
/// | `/fail?n=` | the first n calls of a task: 500; then 200 |
/// | `/long?n=` | the first n calls: 500 with a body of 1,000 bytes; then 200 |
/// | `/later?n=&after=` | the first n calls: 429 with `Retry-After`; then 200 |
/// | `/notyet?n=&ms=` | the first n calls: 202; then 200; each after so long |
/// | `/slow?ms=&status=&n=` | the status, 200 unless told, after so long; the first n calls: 500 |
/// | `/status?is=` | this status |
/// | `/away/`, and whatever follows | 503 |
/// | `/hang` | none |
/// | `/stuck` | 200, once the test has [freed](Endpoint::free) it |
/// | `/broken` | 500, until then |
/// | `/drip` | a byte every 20 ms |
/// | `/big` | a body of 1 GiB |
/// | `/410`, `/redirect` (to `/ok`), `/reset` | what they are called |
pub struct Endpoint {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Endpoint {
    /// One on 127.0.0.1.
    pub fn start() -> Self {
        Self::on("127.0.0.1")
    }

    /// Calls to `/stuck` are answered from now on, and those to `/broken` with 200.
    pub fn free(&self) {
        self.shared.is_free.store(true, SeqCst);
    }

    /// One on this address of loopback.
    pub fn on(host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if of_thread.is_over.load(SeqCst) {
                    return;
                }
                of_thread.connections.fetch_add(1, SeqCst);
                let shared = Arc::clone(&of_thread);
                // The other side goes when it likes. Many calls are open at once, and none needs much.
                let serving = thread::Builder::new().stack_size(256 << 10);
                let _ = serving.spawn(move || serve(&stream, &shared));
            }
        });
        Self { address, shared }
    }

    /// A port that speaks TLS with a certificate that nobody trusts.
    pub fn distrusted() -> SocketAddr {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = native_tls::Identity::from_pkcs8(cert.as_bytes(), key.as_bytes());
        let acceptor = native_tls::TlsAcceptor::new(identity.expect("an identity"));
        let acceptor = acceptor.expect("an acceptor");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let _ = acceptor.accept(stream);
            }
        });
        address
    }

    /// The URL of a target, such as `/fail?n=2`.
    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    /// Every call so far, in the order in which they began.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().clone()
    }

    /// The calls of one task.
    pub fn calls_of(&self, task: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.task() == task).collect()
    }

    /// How many calls have begun.
    pub fn begun(&self) -> usize {
        self.shared.calls.lock().len()
    }

    /// How many calls have ended.
    pub fn ended(&self) -> usize {
        self.shared.calls.lock().iter().filter(|call| call.ended.is_some()).count()
    }

    /// How many connections were made to it.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// Bytes of `/big` that were taken, by the other side or on the way to it.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(SeqCst)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        // Wakes the thread that listens.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some((number, call)) = read(&mut reader, shared)? {
        let goes_on = answer(&call, stream, shared);
        if let Some(call) = shared.calls.lock().get_mut(number) {
            call.ended = Some(now_ms());
        }
        if !goes_on? {
            break;
        }
    }
    Ok(())
}

fn read(
    reader: &mut BufReader<&TcpStream>,
    shared: &Shared,
) -> std::io::Result<Option<(usize, Call)>> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let began = now_ms();
    let maybe = |name: &str| {
        let mut pairs = head.iter().filter_map(|line| line.split_once(": "));
        let found = pairs.find(|(of, _)| of.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    };
    let header = |name: &str| maybe(name).unwrap_or_default();
    let target = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let mut body = header("content-length").parse().unwrap_or_default();
    // What is not read when a connection is closed makes it a reset.
    if target == "/reset" {
        body = 0;
    }
    std::io::copy(&mut reader.take(body as u64), &mut std::io::sink())?;
    let call = Call {
        target: target.to_owned(),
        id: header("webhook-id"),
        turn: header("waterclock-turn").parse().unwrap_or_default(),
        attempt: header("waterclock-attempt").parse().unwrap_or_default(),
        ticket: maybe("waterclock-ticket"),
        cursor: maybe("waterclock-cursor"),
        shard: maybe("waterclock-shard"),
        nominal: maybe("waterclock-nominal").and_then(|at| at.parse().ok()),
        made: header("webhook-timestamp").parse().unwrap_or_default(),
        began,
        ended: None,
        body,
    };
    let mut calls = shared.calls.lock();
    calls.push(call.clone());
    Ok(Some((calls.len() - 1, call)))
}

/// `false`: the connection is to be closed.
fn answer(call: &Call, mut to: &TcpStream, shared: &Shared) -> std::io::Result<bool> {
    let (path, query) = call.target.split_once('?').unwrap_or((&call.target, ""));
    let told = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(of, _)| *of == name).and_then(|(_, value)| value.parse::<u64>().ok())
    };
    let is_early = shared.count(call) <= told("n").unwrap_or_default();
    let mut simple =
        |head: &str| write!(to, "HTTP/1.1 {head}\r\ncontent-length: 2\r\n\r\nok").map(|()| true);
    match path {
        "/fail" if is_early => simple("500 Broken"),
        "/broken" if !shared.is_free.load(SeqCst) => simple("500 Broken"),
        "/long" if is_early => {
            let body = "x".repeat(1_000);
            write!(to, "HTTP/1.1 500 Broken\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
            Ok(true)
        }
        "/later" if is_early => {
            let after = told("after").unwrap_or_default();
            simple(&format!("429 Too Many Requests\r\nretry-after: {after}"))
        }
        "/notyet" => {
            thread::sleep(Duration::from_millis(told("ms").unwrap_or_default()));
            simple(if is_early { "202 Accepted" } else { "200 OK" })
        }
        "/slow" => {
            thread::sleep(Duration::from_millis(told("ms").unwrap_or_default()));
            let status = if is_early { 500 } else { told("status").unwrap_or(200) };
            simple(&format!("{status} Status"))
        }
        "/status" => simple(&format!("{} Status", told("is").unwrap_or(200))),
        _ if path.starts_with("/away/") => simple("503 Away"),
        "/410" => simple("410 Gone"),
        "/redirect" => simple("302 Found\r\nlocation: /ok"),
        "/reset" => Ok(false),
        "/hang" => {
            let _ = to.read(&mut [0]);
            Ok(false)
        }
        "/stuck" => {
            while !shared.is_free.load(SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            simple("200 OK")
        }
        "/drip" => {
            write!(to, "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")?;
            flood(&mut to, shared, b".", Duration::from_millis(20))
        }
        "/big" => {
            write!(to, "HTTP/1.1 200 OK\r\ncontent-length: {BIG}\r\n\r\n")?;
            flood(&mut to, shared, &[b'x'; 16 << 10], Duration::ZERO)
        }
        _ => simple("200 OK"),
    }
}

/// Sends until the other side has had enough.
fn flood(to: &mut impl Write, of: &Shared, bytes: &[u8], pause: Duration) -> std::io::Result<bool> {
    let mut sent = 0;
    while sent < BIG && to.write_all(bytes).is_ok() {
        sent += bytes.len() as u64;
        of.sent.fetch_add(bytes.len() as u64, SeqCst);
        thread::sleep(pause);
    }
    Ok(false)
}
