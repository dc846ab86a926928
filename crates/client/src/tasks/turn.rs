//! A turn of a task with feedback, in the hands of its executor.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use waterclock_engine::header;
use waterclock_engine::task::result::{CURSOR_MAX, ERROR_MAX};

use super::length::length;
use super::{ATTEMPT_MIN, Error, LIST, Reported, Tasks};

/// The shortest pause between two heartbeats.
const BEAT_MIN: Duration = Duration::from_millis(100);

/// What the headers of a call say that hands a turn over. `docs/tasks.md` has them.
const CALL_ID: &str = "webhook-id";
const CALL_TICKET: &str = "waterclock-ticket";
const CALL_ATTEMPT: &str = "waterclock-attempt";
const CALL_CURSOR: &str = "waterclock-cursor";
/// The same over gRPC, in base64.
const CALL_CURSOR_BIN: &str = "waterclock-cursor-bin";

/// What the headers of a record or of a call say by which a turn was handed to an executor.
#[derive(Clone, PartialEq, Eq)]
pub struct Handed {
    task_id: String,
    ticket: String,
    attempt: u32,
    cursor: Option<String>,
}

/// Without the ticket, which lets anybody report.
impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task_id, attempt, cursor, .. } = self;
        f.debug_struct("Handed")
            .field("task_id", task_id)
            .field("attempt", attempt)
            .field("cursor", cursor)
            .finish_non_exhaustive()
    }
}

impl Handed {
    /// Reads the headers of a consumed record: [`Message::headers`](crate::Message::headers), or those of any other consumer.
    ///
    /// # Errors
    /// [`Error::NotHanded`]: nobody waits for a report about this record.
    pub fn of<'a>(
        headers: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<Self, Error> {
        let texts = headers
            .into_iter()
            .filter_map(|(name, value)| Some((name, std::str::from_utf8(value?).ok()?)));
        Self::read([header::ID, header::TICKET, header::ATTEMPT, header::CURSOR], texts)
    }

    /// Reads the headers of a call, or its metadata over gRPC: those of a `http::HeaderMap`, say, each with `as_str` and `as_bytes`.
    /// Answer the call with 202, or `OK` over gRPC, once you have the turn, and work on it after that.
    ///
    /// # Errors
    /// [`Error::NotHanded`]: nobody waits for a report about this call. Its answer says how it went.
    pub fn of_call<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Self, Error> {
        let texts = headers.into_iter().filter_map(|(name, value)| {
            let (name, text) = (name.to_ascii_lowercase(), std::str::from_utf8(value).ok()?);
            if name != CALL_CURSOR_BIN {
                return Some((name, text.to_owned()));
            }
            let bytes = STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
            Some((CALL_CURSOR.to_owned(), String::from_utf8(bytes).ok()?))
        });
        Self::read([CALL_ID, CALL_TICKET, CALL_ATTEMPT, CALL_CURSOR], texts)
    }

    /// `names`: of id, ticket, attempt and cursor.
    fn read(
        names: [&'static str; 4],
        headers: impl Iterator<Item = (impl AsRef<[u8]>, impl Into<String>)>,
    ) -> Result<Self, Error> {
        let mut found = [const { None::<String> }; 4];
        for (name, text) in headers {
            let at = names.iter().position(|of| of.as_bytes() == name.as_ref());
            if let Some(at) = at {
                found[at] = Some(text.into());
            }
        }
        let [task_id, ticket, attempt, cursor] = found;
        let missing = |header| move || Error::NotHanded { header };
        Ok(Self {
            task_id: task_id.ok_or_else(missing(names[0]))?,
            ticket: ticket.ok_or_else(missing(names[1]))?,
            attempt: attempt.and_then(|text| text.parse().ok()).unwrap_or(1),
            cursor,
        })
    }

    /// The id of the task.
    #[must_use]
    pub fn task_id(&self) -> &str {
        &self.task_id
    }

    /// Which turn it is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How far an earlier turn said that it came. Missing also if another instance has taken the lanes over since; the attempts of the
    /// [task](Tasks::get) have it.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }
}

/// What an executor says of its turn.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "nothing is said before it is handed to a client"]
pub struct Report {
    outcome: Option<&'static str>,
    error: Option<String>,
    retry_after: Option<Duration>,
    cursor: Option<String>,
    percent: Option<u8>,
}

impl Report {
    /// A sign that it is at work; for [`Tasks::heartbeat`].
    pub fn at_work() -> Self {
        Self::default()
    }

    /// The work is done. This counts for any turn, however late.
    pub fn finished() -> Self {
        Self { outcome: Some("finished"), ..Self::default() }
    }

    /// It failed, and is to be tried again, if retries are left. The error is one line; what is longer than 200 bytes is cut.
    pub fn failed(error: &str) -> Self {
        Self { outcome: Some("failed"), error: Some(line(error)), ..Self::default() }
    }

    /// It will never be possible: no retry. The error is as in [`failed`](Self::failed).
    pub fn gone(error: &str) -> Self {
        Self { outcome: Some("gone"), error: Some(line(error)), ..Self::default() }
    }

    /// With a failure: how long to wait before the next turn, if that is longer than the backoff.
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// How far it is: the next turn is told, if this one is lost.
    ///
    /// # Errors
    /// [`Error::BadProgress`]: the cursor has more than 256 bytes, or a control character; or the percentage is over 100.
    pub fn progress(self, cursor: &str, percent: Option<u8>) -> Result<Self, Error> {
        let is_sound = cursor.len() <= CURSOR_MAX && !cursor.contains(char::is_control);
        if !is_sound || percent.is_some_and(|percent| percent > 100) {
            return Err(Error::BadProgress { max: CURSOR_MAX });
        }
        Ok(Self { cursor: Some(cursor.to_owned()), percent, ..self })
    }

    pub(super) fn result(&self, handed: &Handed, worker: Option<&str>) -> Value {
        let mut body = self.heartbeat(handed, worker);
        // What is no result is refused by the instance, in its words.
        body["outcome"] = json!(self.outcome);
        if let Some(error) = &self.error {
            body["error"] = json!(error);
        }
        if let Some(wait) = self.retry_after.filter(|_| self.outcome == Some("failed")) {
            body["retry_after"] = length(wait);
        }
        body
    }

    pub(super) fn heartbeat(&self, handed: &Handed, worker: Option<&str>) -> Value {
        let mut body = json!({ "ticket": handed.ticket });
        if let Some(worker) = worker {
            body["worker"] = json!(worker);
        }
        if let Some(cursor) = &self.cursor {
            body["cursor"] = json!(cursor);
        }
        if let Some(percent) = self.percent {
            body["percent"] = json!(percent);
        }
        body
    }
}

/// An error as an instance takes it: one line, not too long.
fn line(error: &str) -> String {
    let text: String =
        error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_MAX).collect();
    let mut end = text.len().min(ERROR_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Why a turn is over, before it was reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Over {
    /// An instance says so: another turn has begun, the task was cancelled, or it has ended.
    #[error("the turn is over: {detail}")]
    Stale {
        /// The words of the instance.
        detail: String,
    },
    /// No heartbeat was answered for a whole period. Another executor may have been handed the task by now. A success still counts.
    #[error("no heartbeat was answered for {} ms, so another turn may have begun: {detail}", period.as_millis())]
    Unheard {
        /// The heartbeat period.
        period: Duration,
        /// Why the last one had no answer.
        detail: String,
    },
}

/// A turn that was begun. Heartbeats go out in the background, at a third of the heartbeat period, until it is reported or dropped.
///
/// One that is dropped without a report ends as a failure, a heartbeat period after the last heartbeat.
#[derive(Debug)]
pub struct Turn {
    tasks: Tasks,
    handed: Arc<Handed>,
    shared: Arc<Shared>,
    beating: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// What the next heartbeat says.
    progress: watch::Sender<Report>,
    over: watch::Sender<Option<Over>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

impl Tasks {
    /// Begins to work on a task that was handed over: looks its heartbeat period up, and sends the first heartbeat. Commit the offset
    /// of the record, or answer the call, once this has returned: then a crash before it costs nothing but time.
    ///
    /// Call it inside a tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// [`Error::Stale`]: there is nothing to do, commit the offset. Others as of [`report`](Self::report).
    pub async fn begin(&self, handed: Handed) -> Result<Turn, Error> {
        let ended = || Error::Stale { detail: "there is no such task any more".to_owned() };
        let task = self.get(&handed.task_id).await?.ok_or_else(ended)?;
        let feedback = task.feedback.ok_or(Error::NotHanded { header: header::TICKET })?;
        self.begin_with(handed, feedback.period()).await
    }

    /// The same, without the look-up: the heartbeat period is known.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn begin_with(&self, handed: Handed, period: Duration) -> Result<Turn, Error> {
        let (answered, said) = self.first_heartbeat(&handed).await?;
        let handed = Arc::new(handed);
        let shared =
            Arc::new(Shared { progress: watch::Sender::new(said), over: watch::Sender::new(None) });
        let beats = Beats {
            tasks: self.clone(),
            handed: Arc::clone(&handed),
            shared: Arc::clone(&shared),
            period,
        };
        let beating = tokio::spawn(beats.go_on(answered));
        Ok(Turn { tasks: self.clone(), handed, shared, beating })
    }

    /// When the heartbeat was sent that was answered first, and what it said.
    async fn first_heartbeat(&self, handed: &Handed) -> Result<(Instant, Report), Error> {
        let until = Instant::now() + self.0.within;
        let report = Report { cursor: handed.cursor.clone(), ..Report::at_work() };
        let mut attempt = 0;
        loop {
            // Each by itself: the period is counted from when the one was sent that was answered.
            let sent = Instant::now();
            let most = until.saturating_duration_since(sent).clamp(ATTEMPT_MIN, LIST);
            match self.heartbeat_once(handed, &report, attempt, most).await {
                Ok(_) => return Ok((sent, report)),
                Err(Error::Busy { retry_after, .. }) if Instant::now() + retry_after < until => {
                    tokio::time::sleep(retry_after).await;
                }
                Err(error) => return Err(error),
            }
            attempt += 1;
        }
    }
}

impl Turn {
    /// The id of the task.
    #[must_use]
    pub fn task_id(&self) -> &str {
        self.handed.task_id()
    }

    /// Which turn it is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.handed.attempt()
    }

    /// How far an earlier turn came, as [`Handed::cursor`].
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.handed.cursor()
    }

    /// Says how far it is. The next heartbeat brings it, and so does a report.
    ///
    /// # Errors
    /// [`Error::BadProgress`], and the last progress stays.
    pub fn progress(&self, cursor: &str, percent: Option<u8>) -> Result<(), Error> {
        let report = Report::at_work().progress(cursor, percent)?;
        drop(self.shared.progress.send_replace(report));
        Ok(())
    }

    /// Waits until the turn is over without a report: stop working on it then. After a report this waits for ever.
    pub async fn over(&self) -> Over {
        let mut heard = self.shared.over.subscribe();
        loop {
            if let Some(over) = heard.borrow_and_update().clone() {
                return over;
            }
            // Its sender is ours, so there will be another value, or none for ever.
            if heard.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether it is over without a report; `None`: it is not, as far as is known.
    #[must_use]
    pub fn is_over(&self) -> Option<Over> {
        self.shared.over.borrow().clone()
    }

    /// Does the work as long as the turn is ours.
    ///
    /// # Errors
    /// The turn is over: the work was dropped where it last waited.
    pub async fn unless_over<F: Future>(&self, work: F) -> Result<F::Output, Over> {
        let (mut over, mut work) = (pin!(self.over()), pin!(work));
        poll_fn(|context| match over.as_mut().poll(context) {
            Poll::Ready(over) => Poll::Ready(Err(over)),
            Poll::Pending => work.as_mut().poll(context).map(Ok),
        })
        .await
    }

    /// Reports that the work is done. This counts for any turn, however late.
    ///
    /// # Errors
    /// [`Error::Busy`]: report again. No heartbeat follows, whatever the answer is.
    pub async fn finished(&self) -> Result<Reported, Error> {
        self.report(Report::finished()).await
    }

    /// Reports that it failed, and is to be tried again, if retries are left; not before `retry_after`. The next turn is told how far
    /// this one came. The error is one line; what is longer than 200 bytes is cut.
    ///
    /// # Errors
    /// As [`finished`](Self::finished). [`Error::Stale`]: the turn is over already; if the report was sent twice, by that.
    pub async fn failed(
        &self,
        error: &str,
        retry_after: Option<Duration>,
    ) -> Result<Reported, Error> {
        self.report(Report { retry_after, ..Report::failed(error) }).await
    }

    /// Reports that it will never be possible: no retry.
    ///
    /// # Errors
    /// As [`failed`](Self::failed).
    pub async fn gone(&self, error: &str) -> Result<Reported, Error> {
        self.report(Report::gone(error)).await
    }

    /// A heartbeat behind the result would be stale, and the turn over for a wrong reason.
    async fn report(&self, report: Report) -> Result<Reported, Error> {
        self.beating.abort();
        let Report { cursor, percent, .. } = self.shared.progress.borrow().clone();
        self.tasks.report(&self.handed, &Report { cursor, percent, ..report }).await
    }
}

/// What sends heartbeats.
struct Beats {
    tasks: Tasks,
    handed: Arc<Handed>,
    shared: Arc<Shared>,
    period: Duration,
}

impl Beats {
    /// Sends them until the turn is over; the last one that was answered was sent then.
    async fn go_on(self, mut answered: Instant) {
        let third = (self.period / 3).max(BEAT_MIN);
        let (mut pause, mut attempt) = (third, 0);
        let over = loop {
            let until = answered + self.period;
            let left = || until.saturating_duration_since(Instant::now());
            tokio::time::sleep(pause.min(left())).await;
            let report = self.shared.progress.borrow().clone();
            let (sent, most) = (Instant::now(), third.min(left()).max(ATTEMPT_MIN));
            let told = self.tasks.heartbeat_once(&self.handed, &report, attempt, most).await;
            match told {
                Ok(_) => (answered, pause) = (sent, third),
                Err(Error::Stale { detail }) => break Over::Stale { detail },
                Err(Error::Refused { code, detail, .. }) if code == "unknown_task" => {
                    break Over::Stale { detail };
                }
                Err(error) if Instant::now() >= until => {
                    break Over::Unheard { period: self.period, detail: error.to_string() };
                }
                // Another server is asked, and before long.
                Err(_) => (attempt, pause) = (attempt + 1, (third / 4).max(BEAT_MIN)),
            }
        };
        self.shared.over.send_replace(Some(over));
    }
}
