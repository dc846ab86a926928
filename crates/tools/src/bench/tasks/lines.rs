//! Load over connections that stay open: as fast as answers come, or at a rate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::lateness::Lateness;
use crate::line::{AskError, Line, Question};

/// Makes the question of a number.
pub(super) type Make = Arc<dyn Fn(u64) -> Question + Send + Sync>;

/// Who asks, and waits for the answer.
pub(super) trait Ask: Send + 'static {
    /// Asks what has this number.
    ///
    /// # Errors
    /// There is no answer, or it is no success.
    fn ask(&mut self, n: u64) -> impl Future<Output = Result<Bytes, AskError>> + Send;
}

/// One connection of HTTP/1.1, and its questions.
struct Http {
    line: Line,
    make: Make,
}

impl Ask for Http {
    async fn ask(&mut self, n: u64) -> Result<Bytes, AskError> {
        self.line.ask((self.make)(n)).await
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
    /// From a request, at a rate from when it was to be made, to its whole answer.
    pub(super) latency: Lateness,
    /// The last answer of each that asks.
    pub(super) last: Vec<Bytes>,
}

impl Answers {
    pub(super) fn per_second(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }
}

/// What one that asks was answered.
struct Part {
    count: u64,
    latency: Lateness,
    last: Option<Bytes>,
}

impl Part {
    fn new() -> Self {
        Self { count: 0, latency: Lateness::new(), last: None }
    }

    /// Asks, and counts the time from `since` on.
    async fn ask(&mut self, asks: &mut impl Ask, n: u64, since: Instant) -> Result<(), AskError> {
        self.last = Some(asks.ask(n).await?);
        self.latency.record(since.elapsed().as_micros() as u64);
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
    numbers: (u64, Until),
    make: Make,
) -> Result<Answers, AskError> {
    drive(open(to, lines, &make).await?, numbers).await
}

/// The same of any that ask.
///
/// # Errors
/// The first that one of them met.
pub(super) async fn drive(
    all: Vec<impl Ask>,
    (first, until): (u64, Until),
) -> Result<Answers, AskError> {
    // Each has a first question of its own: a fast one could take them all.
    let next = Arc::new(AtomicU64::new(all.len() as u64));
    let mut parts = JoinSet::new();
    let began = Instant::now();
    for (mut at, mut asks) in (0..).zip(all) {
        let next = Arc::clone(&next);
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
                part.ask(&mut asks, first + at, Instant::now()).await?;
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
    pace: (u64, Duration),
    make: Make,
) -> Result<Answers, AskError> {
    keep_pace(open(to, lines, &make).await?, pace).await
}

/// The same of any that ask.
///
/// # Errors
/// The first that one of them met.
pub(super) async fn keep_pace(
    all: Vec<impl Ask>,
    (count, every): (u64, Duration),
) -> Result<Answers, AskError> {
    let mut parts = JoinSet::new();
    let lines = all.len();
    let began = Instant::now();
    for (first, mut asks) in all.into_iter().enumerate() {
        parts.spawn(async move {
            let mut part = Part::new();
            for n in (first as u64..count).step_by(lines) {
                let turn = began + every.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
                tokio::time::sleep_until(turn.into()).await;
                part.ask(&mut asks, n, turn).await?;
            }
            Ok(part)
        });
    }
    join(parts, began).await
}

async fn open(to: SocketAddr, lines: usize, make: &Make) -> Result<Vec<Http>, AskError> {
    let mut open = Vec::with_capacity(lines);
    for _ in 0..lines {
        open.push(Http { line: Line::open(to).await?, make: Arc::clone(make) });
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
    use hyper::StatusCode;

    use super::*;
    use crate::stub::{CALL, Stub};

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
    fn at_a_rate_what_waits_for_another_answer_is_late() {
        struct Slow;
        impl Ask for Slow {
            async fn ask(&mut self, _: u64) -> Result<Bytes, AskError> {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(Bytes::new())
            }
        }
        run(async {
            let answers = keep_pace(vec![Slow], (10, Duration::from_millis(1))).await.unwrap();
            let max_ms = answers.latency.spread().unwrap().max;
            assert!(max_ms >= 190.0, "{max_ms}");
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
