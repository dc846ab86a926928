//! HTTP load over connections that stay open: as fast as answers come, or at a rate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::super::tally::Lateness;

/// One request.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Names a task in an answer.
const TASK_ID: &str = "\"task_id\"";
/// Characters of an answer that an error shows.
const SHOWN: usize = 300;

/// Why a request had no answer of use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    #[error("no HTTP request can be made of this")]
    Request(#[from] hyper::http::Error),
    #[error("the connection broke")]
    Broken(#[from] hyper::Error),
    #[error("no answer within {} s", ANSWER_MAX.as_secs())]
    Silent,
    #[error("{status}: {text}")]
    Answer { status: StatusCode, text: String },
    #[error("a connection of the load ended by a fault of the bench")]
    Died,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
    /// How often the answer has to name a task.
    pub(super) tasks: u64,
}

impl Question {
    pub(super) fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: Bytes::new(), tasks: 0 }
    }

    pub(super) fn post(path: &str, body: String) -> Self {
        Self { method: Method::POST, path: path.to_owned(), body: body.into(), tasks: 0 }
    }

    /// The same, whose answer names so many tasks.
    pub(super) fn naming(self, tasks: u64) -> Self {
        Self { tasks, ..self }
    }
}

/// Makes the question of a number.
pub(super) type Make = Arc<dyn Fn(u64) -> Question + Send + Sync>;

/// One connection.
pub(super) struct Line {
    sender: SendRequest<Full<Bytes>>,
    to: SocketAddr,
}

impl Line {
    pub(super) async fn open(to: SocketAddr) -> Result<Self, AskError> {
        let stream = TcpStream::connect(to).await.map_err(AskError::Connect)?;
        stream.set_nodelay(true).map_err(AskError::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Its requests say what is wrong.
            let _ = connection.await;
        });
        Ok(Self { sender, to })
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    /// There is none, its status is no 2xx, or it does not name every task.
    pub(super) async fn ask(&mut self, question: Question) -> Result<Bytes, AskError> {
        let Question { method, path, body, tasks } = question;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.to.to_string())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let asked = async {
            self.sender.ready().await?;
            let answer = self.sender.send_request(request).await?;
            let status = answer.status();
            Ok::<_, hyper::Error>((status, answer.into_body().collect().await?.to_bytes()))
        };
        let (status, body) =
            tokio::time::timeout(ANSWER_MAX, asked).await.map_err(|_| AskError::Silent)??;
        let text = String::from_utf8_lossy(&body);
        if status.is_success() && text.matches(TASK_ID).count() as u64 == tasks {
            return Ok(body);
        }
        let text = text.chars().take(SHOWN).collect();
        Err(AskError::Answer { status, text })
    }
}

/// When a load is over.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// After that time.
    Over(Duration),
    /// After so many requests.
    Count(u64),
}

/// What a load was answered.
pub(super) struct Answers {
    pub(super) count: u64,
    pub(super) took: Duration,
    /// From a request to its whole answer.
    pub(super) latency: Lateness,
    /// The last answer of each connection.
    pub(super) last: Vec<Bytes>,
}

impl Answers {
    pub(super) fn per_second(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }
}

/// What one connection was answered.
struct Part {
    count: u64,
    latency: Lateness,
    last: Option<Bytes>,
}

impl Part {
    fn new() -> Self {
        Self { count: 0, latency: Lateness::new(), last: None }
    }

    async fn ask(&mut self, line: &mut Line, question: Question) -> Result<(), AskError> {
        let began = Instant::now();
        self.last = Some(line.ask(question).await?);
        self.latency.record(began.elapsed().as_micros() as u64);
        self.count += 1;
        Ok(())
    }
}

/// Each connection asks again as soon as it is answered. `make` gets numbers from `first` on.
///
/// # Errors
/// The first that a connection met.
pub(super) async fn closed(
    to: SocketAddr,
    lines: usize,
    (first, until): (u64, Until),
    make: Make,
) -> Result<Answers, AskError> {
    // Each line has a first question of its own: a fast one could take them all.
    let next = Arc::new(AtomicU64::new(lines as u64));
    let mut parts = JoinSet::new();
    let open = open(to, lines).await?;
    let began = Instant::now();
    for (mut at, mut line) in (0..).zip(open) {
        let (next, make) = (Arc::clone(&next), Arc::clone(&make));
        parts.spawn(async move {
            let mut part = Part::new();
            loop {
                let is_over = match until {
                    Until::Over(span) => began.elapsed() >= span,
                    Until::Count(count) => at >= count,
                };
                if is_over {
                    return Ok(part);
                }
                part.ask(&mut line, make(first + at)).await?;
                at = next.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    join(parts, began).await
}

/// Asks `count` times, the nth one `n * every` after the start, whatever became of the others.
///
/// # Errors
/// The first that a connection met.
pub(super) async fn paced(
    to: SocketAddr,
    lines: usize,
    (count, every): (u64, Duration),
    make: Make,
) -> Result<Answers, AskError> {
    let mut parts = JoinSet::new();
    let open = open(to, lines).await?;
    let began = Instant::now();
    for (first, mut line) in open.into_iter().enumerate() {
        let make = Arc::clone(&make);
        parts.spawn(async move {
            let mut part = Part::new();
            for n in (first as u64..count).step_by(lines) {
                let turn = every.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
                tokio::time::sleep_until((began + turn).into()).await;
                part.ask(&mut line, make(n)).await?;
            }
            Ok(part)
        });
    }
    join(parts, began).await
}

async fn open(to: SocketAddr, lines: usize) -> Result<Vec<Line>, AskError> {
    let mut open = Vec::with_capacity(lines);
    for _ in 0..lines {
        open.push(Line::open(to).await?);
    }
    Ok(open)
}

async fn join(
    mut parts: JoinSet<Result<Part, AskError>>,
    began: Instant,
) -> Result<Answers, AskError> {
    let mut all =
        Answers { count: 0, took: Duration::ZERO, latency: Lateness::new(), last: Vec::new() };
    while let Some(part) = parts.join_next().await {
        let part = part.map_err(|_| AskError::Died)??;
        all.count += part.count;
        all.latency.add(&part.latency);
        all.last.extend(part.last);
    }
    all.took = began.elapsed();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::stub::{CALL, Stub};
    use super::*;

    fn calls() -> Make {
        Arc::new(|n| Question::get(&format!("{CALL}{n}")))
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_load_by_count_asks_each_number_once() {
        run(async {
            let stub = Stub::start().await.unwrap();
            let until = (7, Until::Count(50));
            let answers = closed(stub.address, 4, until, calls()).await.unwrap();
            assert_eq!((answers.count, answers.last.len()), (50, 4));
            let mut numbers: Vec<u64> = stub.take().iter().map(|call| call.n).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (7..57).collect::<Vec<_>>());
            assert_eq!(stub.count(), 0);
        });
    }

    #[test]
    fn a_load_at_a_rate_asks_no_earlier() {
        run(async {
            let stub = Stub::start().await.unwrap();
            let (began, every) = (Instant::now(), Duration::from_millis(3));
            let answers = paced(stub.address, 4, (40, every), calls()).await.unwrap();
            assert_eq!(answers.count, 40);
            for call in stub.take() {
                let turn = every * u32::try_from(call.n).unwrap();
                assert!(call.at >= began + turn, "{call:?}");
            }
        });
    }

    #[test]
    fn an_answer_that_is_no_success_is_an_error_with_its_text() {
        run(async {
            let stub = Stub::start().await.unwrap();
            let nothing: Make = Arc::new(|_| Question::get("/call/x"));
            let answer = closed(stub.address, 1, (0, Until::Count(1)), nothing).await;
            let Err(AskError::Answer { status, text }) = answer else { panic!("an answer") };
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(text.contains("Invalid URL"), "{text}");
        });
    }

    #[test]
    fn an_answer_that_names_too_few_tasks_is_an_error() {
        run(async {
            let stub = Stub::start().await.unwrap();
            let create: Make = Arc::new(|n| Question::get(&format!("{CALL}{n}")).naming(1));
            let answer = closed(stub.address, 1, (0, Until::Count(1)), create).await;
            assert!(matches!(answer, Err(AskError::Answer { status: StatusCode::OK, .. })));
        });
    }

    #[test]
    fn a_held_call_is_noted_when_its_caller_goes() {
        run(async {
            let stub = Stub::start().await.unwrap();
            let mut line = Line::open(stub.address).await.unwrap();
            let asked = tokio::spawn(async move {
                line.ask(Question::post("/hold/5", "body".to_owned())).await
            });
            while stub.count() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(stub.broken().is_empty());
            asked.abort();
            while stub.broken().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(stub.broken()[0].0, 5);
        });
    }
}
