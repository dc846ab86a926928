//! A server that misbehaves by the path that it is asked for.

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// The value of a header that is there once.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(of, _)| of.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice: {:?}", self.headers);
        value
    }
}

/// What the stub has seen.
#[derive(Default)]
pub(super) struct Log {
    pub(super) requests: Mutex<Vec<Request>>,
    pub(super) connections: AtomicUsize,
    /// Connections that the other side closed while it was owed an answer.
    pub(super) given_up: AtomicUsize,
    /// Bytes of bodies that were taken.
    pub(super) sent: AtomicU64,
}

pub(super) struct Stub {
    pub(super) address: SocketAddr,
    pub(super) log: Arc<Log>,
    is_over: Arc<AtomicBool>,
}

impl Stub {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (log, is_over) = (Arc::<Log>::default(), Arc::<AtomicBool>::default());
        let (of_thread, over) = (Arc::clone(&log), Arc::clone(&is_over));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(SeqCst) {
                    return;
                }
                let log = Arc::clone(&of_thread);
                log.connections.fetch_add(1, SeqCst);
                // The other side goes when it likes.
                thread::spawn(move || serve(&stream?, &log));
            }
        });
        Self { address, log, is_over }
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.log.requests.lock().clone()
    }

    pub(super) fn connections(&self) -> usize {
        self.log.connections.load(SeqCst)
    }

    /// Waits until what is counted is there.
    pub(super) fn wait_for(&self, what: &str, is_there: impl Fn(&Log) -> bool) {
        let most = crate::patient::patient(Duration::from_secs(20));
        let until = std::time::Instant::now() + most;
        while !is_there(&self.log) {
            assert!(std::time::Instant::now() < until, "not within {most:?}: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        // Wakes the thread that listens.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, log: &Log) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader, log)? {
        if !answer(&request, stream, log)? {
            break;
        }
    }
    Ok(())
}

fn read(reader: &mut BufReader<&TcpStream>, log: &Log) -> std::io::Result<Option<Request>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        lines.push(line.to_owned());
    }
    let mut words = lines[0].split(' ').map(str::to_owned);
    let mut request = Request {
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        ..Request::default()
    };
    let pairs = lines[1..].iter().filter_map(|line| line.split_once(": "));
    request.headers = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    // What is not read when a connection is closed makes it a reset.
    if request.target != "/reset" {
        let length = request.header("content-length").map_or(0, |text| text.parse().unwrap());
        request.body = vec![0; length];
        reader.read_exact(&mut request.body)?;
    }
    log.requests.lock().push(request.clone());
    Ok(Some(request))
}

/// `false`: the connection is to be closed.
fn answer(request: &Request, mut to: &TcpStream, log: &Log) -> std::io::Result<bool> {
    let mut simple = |head: &str, body: &str| {
        write!(to, "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).map(|()| true)
    };
    match request.target.split('?').next().unwrap_or_default() {
        "/204" => write!(to, "HTTP/1.1 204 No Content\r\n\r\n").map(|()| true),
        "/redirect" => simple("302 Found\r\nlocation: /ok", ""),
        "/seconds" => simple("429 Too Many Requests\r\nretry-after: 7", "later"),
        "/date" => simple("503 Unavailable\r\nretry-after: Sun, 06 Nov 1994 08:49:37 GMT", ""),
        "/headers" => simple(&format!("200 OK\r\nx-large: {}", "x".repeat(17 << 10)), "ok"),
        "/long" => simple("200 OK", &"y".repeat(3_000)),
        "/whole" => simple("200 OK", &"z".repeat(64 << 10)),
        "/zipped" => simple("200 OK\r\ncontent-encoding: gzip", "not unpacked"),
        "/slow" => {
            thread::sleep(Duration::from_millis(200));
            simple("200 OK", "slow")
        }
        "/garbage" => write!(to, "what do you want?\r\n\r\n").map(|()| false),
        "/half" => write!(to, "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").map(|()| false),
        "/gone" => {
            write!(to, "HTTP/1.1 410 Gone\r\ncontent-length: 10\r\n\r\nhalf").map(|()| false)
        }
        "/close" | "/reset" => Ok(false),
        "/hang" => {
            let _ = to.read(&mut [0]);
            log.given_up.fetch_add(1, SeqCst);
            Ok(false)
        }
        "/drip" => {
            write!(to, "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")?;
            flood(&mut to, log, b".", Duration::from_millis(20))
        }
        "/big" => {
            write!(to, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 1_u64 << 30)?;
            flood(&mut to, log, &[b'x'; 16 << 10], Duration::ZERO)
        }
        path => match path.strip_prefix("/status/") {
            Some(status) => simple(&format!("{status} Status"), "said"),
            None => simple("200 OK", "done"),
        },
    }
}

/// Sends until the other side has had enough.
fn flood(to: &mut impl Write, log: &Log, bytes: &[u8], pause: Duration) -> std::io::Result<bool> {
    while to.write_all(bytes).is_ok() {
        log.sent.fetch_add(bytes.len() as u64, SeqCst);
        thread::sleep(pause);
    }
    log.given_up.fetch_add(1, SeqCst);
    Ok(false)
}
