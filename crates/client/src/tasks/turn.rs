//! A turn of a task with feedback, in the hands of its executor.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use waterclock_engine::UnixMillis;
use waterclock_engine::header::{self, EPOCH_MAX};
use waterclock_engine::task::result::{CURSOR_MAX, ERROR_MAX};

use super::super::delayed::system;
use super::lease::Lease;
use super::length::length;
use super::shard::ShardIndex;
use super::{ATTEMPT_MIN, Error, LIST, Reported, Tasks};

/// Longer than any turn.
const FOR_EVER: Duration = Duration::from_secs(30 * 366 * 86_400);
/// The shortest pause between two heartbeats.
const BEAT_MIN: Duration = Duration::from_millis(100);

/// What the headers of a call say that hands a turn over. `docs/tasks.md` has them.
const CALL_ID: &str = "webhook-id";
const CALL_TICKET: &str = "waterclock-ticket";
const CALL_ATTEMPT: &str = "waterclock-attempt";
const CALL_CURSOR: &str = "waterclock-cursor";
const CALL_SHARD: &str = "waterclock-shard";
const CALL_NOMINAL: &str = "waterclock-nominal";
/// The same over gRPC, in base64.
const CALL_CURSOR_BIN: &str = "waterclock-cursor-bin";

/// What the headers of a record or of a call say by which a turn was handed to an executor.
#[derive(Clone, PartialEq, Eq)]
pub struct Handed {
    task_id: String,
    ticket: String,
    attempt: u32,
    cursor: Option<String>,
    shard: Option<ShardIndex>,
    nominal: Option<SystemTime>,
}

/// Without the ticket, which lets anybody report.
impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task_id, attempt, cursor, shard, nominal, .. } = self;
        f.debug_struct("Handed")
            .field("task_id", task_id)
            .field("attempt", attempt)
            .field("cursor", cursor)
            .field("shard", shard)
            .field("nominal", nominal)
            .finish_non_exhaustive()
    }
}

impl Handed {
    /// Reads the headers of a consumed record: [`Message::headers`](crate::Message::headers), or those of any other consumer.
    ///
    /// # Errors
    /// [`Error::NotHanded`]: nobody waits for a report about this record. [`Error::BadShard`], [`Error::BadNominal`]: it is none of
    /// waterclock's.
    pub fn of<'a>(
        headers: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<Self, Error> {
        let texts = headers
            .into_iter()
            .filter_map(|(name, value)| Some((name, std::str::from_utf8(value?).ok()?)));
        Self::read(
            [
                header::ID,
                header::TICKET,
                header::ATTEMPT,
                header::CURSOR,
                header::SHARD,
                header::NOMINAL,
            ],
            texts,
        )
    }

    /// Reads the headers of a call, or its metadata over gRPC: those of a `http::HeaderMap`, say, each with `as_str` and `as_bytes`.
    /// Answer the call with 202, or `OK` over gRPC, once you have the turn, and work on it after that.
    ///
    /// # Errors
    /// [`Error::NotHanded`]: nobody waits for a report about this call. Its answer says how it went. [`Error::BadShard`],
    /// [`Error::BadNominal`]: it is none of waterclock's.
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
        let names = [CALL_ID, CALL_TICKET, CALL_ATTEMPT, CALL_CURSOR, CALL_SHARD, CALL_NOMINAL];
        Self::read(names, texts)
    }

    /// `names`: of id, ticket, attempt, cursor, shard and nominal time.
    fn read(
        names: [&'static str; 6],
        headers: impl Iterator<Item = (impl AsRef<[u8]>, impl Into<String>)>,
    ) -> Result<Self, Error> {
        let mut found = [const { None::<String> }; 6];
        for (name, text) in headers {
            let at = names.iter().position(|of| of.as_bytes() == name.as_ref());
            if let Some(at) = at {
                found[at] = Some(text.into());
            }
        }
        let [task_id, ticket, attempt, cursor, shard, nominal] = found;
        let missing = |header| move || Error::NotHanded { header };
        // A wrong part of the work would be worse than none, and so would that of a wrong day.
        let shard = shard.map(|got| ShardIndex::parse(&got).ok_or(Error::BadShard { got }));
        let nominal = nominal.map(|got| time(&got).ok_or(Error::BadNominal { got }));
        Ok(Self {
            task_id: task_id.ok_or_else(missing(names[0]))?,
            ticket: ticket.ok_or_else(missing(names[1]))?,
            attempt: attempt.and_then(|text| text.parse().ok()).unwrap_or(1),
            cursor,
            shard: shard.transpose()?,
            nominal: nominal.transpose()?,
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

    /// Which shard of a run the task is; `None`: it is no shard.
    #[must_use]
    pub fn shard(&self) -> Option<ShardIndex> {
        self.shard
    }

    /// For which nominal time of a schedule it is, of a task of a schedule and of a shard of its run: the day that is to be settled, say.
    /// It is the same in each turn. `None`: it is of no schedule, or was asked for by hand.
    #[must_use]
    pub fn nominal(&self) -> Option<SystemTime> {
        self.nominal
    }
}

/// A time as a header has it.
fn time(text: &str) -> Option<SystemTime> {
    let ms = text.parse().ok().filter(|ms| *ms <= EPOCH_MAX)?;
    Some(system(UnixMillis(ms)))
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

    /// The same; what is not said stays as it is.
    fn further(&self, percent: Option<u8>, cursor: Option<&str>) -> Result<Self, Error> {
        let known = self.cursor.clone();
        let report = Self::at_work().progress(cursor.unwrap_or_default(), percent)?;
        let cursor = cursor.map_or(known, |_| report.cursor);
        Ok(Self { cursor, percent: percent.or(self.percent), ..Self::at_work() })
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
    /// No heartbeat was answered for so long. Another executor may have been handed the task by now, or may be soon. A success still
    /// counts.
    #[error("no heartbeat was answered for {} ms, so another turn may have begun: {detail}", period.as_millis())]
    Unheard {
        /// How long: the heartbeat period, or the part of it that a [worker](crate::worker) has.
        period: Duration,
        /// Why the last one had no answer.
        detail: String,
    },
    /// The [`Turn`] was dropped, after a report or without one.
    #[error("the turn was reported or given up")]
    Dropped,
}

/// A turn that was begun. Heartbeats go out in the background, at a third of the heartbeat period, until it is reported or dropped.
///
/// One that is dropped without a report ends as a failure, a heartbeat period after the last heartbeat.
#[derive(Debug)]
pub struct Turn {
    beats: Arc<Beats>,
    beating: JoinHandle<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.beating.abort();
        self.beats.end(Over::Dropped);
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
        let period = self.period(&handed).await?;
        self.begin_with(handed, period).await
    }

    /// The heartbeat period of a task that was handed over.
    pub(crate) async fn period(&self, handed: &Handed) -> Result<Duration, Error> {
        let ended = || Error::Stale { detail: "there is no such task any more".to_owned() };
        let task = self.get(&handed.task_id).await?.ok_or_else(ended)?;
        let feedback = task.feedback.ok_or(Error::NotHanded { header: header::TICKET })?;
        Ok(feedback.period())
    }

    /// The same, without the look-up: the heartbeat period is known.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn begin_with(&self, handed: Handed, period: Duration) -> Result<Turn, Error> {
        let (answered, said) = self.first_heartbeat(&handed).await?;
        let beats = Arc::new(Beats {
            tasks: self.clone(),
            handed,
            period,
            progress: watch::Sender::new(said),
            over: watch::Sender::new(None),
            lease: Mutex::new(Lease::new(answered, period)),
            missed: Mutex::new("the executor did not get to it".to_owned()),
            attempt: tokio::sync::Mutex::new(0),
        });
        let beating = tokio::spawn(Arc::clone(&beats).go_on());
        Ok(Turn { beats, beating })
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
        self.beats.handed.task_id()
    }

    /// Which turn it is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.beats.handed.attempt()
    }

    /// How far an earlier turn came, as [`Handed::cursor`].
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.beats.handed.cursor()
    }

    /// Says how far it is. The next heartbeat brings it, and so does a report.
    ///
    /// # Errors
    /// [`Error::BadProgress`], and the last progress stays.
    pub fn progress(&self, cursor: &str, percent: Option<u8>) -> Result<(), Error> {
        let report = Report::at_work().progress(cursor, percent)?;
        drop(self.beats.progress.send_replace(report));
        Ok(())
    }

    /// Waits until the turn is over without a report: stop working on it then. After a report this waits for ever.
    pub async fn over(&self) -> Over {
        self.beats.over().await
    }

    /// Whether it is over without a report; `None`: it is not, as far as is known.
    #[must_use]
    pub fn is_over(&self) -> Option<Over> {
        self.beats.is_over()
    }

    /// Does the work as long as the turn is ours.
    ///
    /// # Errors
    /// The turn is over: the work was dropped where it last waited.
    pub async fn unless_over<F: Future>(&self, work: F) -> Result<F::Output, Over> {
        self.beats.unless_over(work).await
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

    /// What goes on to know of the turn, and does not keep it alive.
    pub(crate) fn beats(&self) -> &Arc<Beats> {
        &self.beats
    }

    /// A heartbeat behind the result would be stale, and the turn over for a wrong reason.
    pub(crate) async fn report(&self, report: Report) -> Result<Reported, Error> {
        self.beating.abort();
        self.beats.lease.lock().release();
        let Report { cursor, percent, .. } = self.beats.progress.borrow().clone();
        self.beats.tasks.report(&self.beats.handed, &Report { cursor, percent, ..report }).await
    }
}

/// What sends the heartbeats of a turn, and knows whether it is over.
#[derive(Debug)]
pub(crate) struct Beats {
    tasks: Tasks,
    handed: Handed,
    /// For how long after a heartbeat the turn is ours.
    period: Duration,
    /// What the next heartbeat says.
    progress: watch::Sender<Report>,
    over: watch::Sender<Option<Over>>,
    lease: Mutex<Lease>,
    /// Why the last heartbeat had no answer.
    missed: Mutex<String>,
    /// Which server is asked. Heartbeats go out one after the other: none brings an older cursor behind a newer one.
    attempt: tokio::sync::Mutex<usize>,
}

impl Beats {
    /// Says how far it is; what is not said stays as it is.
    pub(crate) fn progress(&self, percent: Option<u8>, cursor: Option<&str>) -> Result<(), Error> {
        let report = self.progress.borrow().further(percent, cursor)?;
        drop(self.progress.send_replace(report));
        Ok(())
    }

    /// Whether the turn is over, by the word of an instance or by our clock.
    pub(crate) fn is_over(&self) -> Option<Over> {
        let said = self.over.borrow().clone();
        said.or_else(|| {
            let is_over = self.lease.lock().is_over(Instant::now());
            let unheard =
                || Over::Unheard { period: self.period, detail: self.missed.lock().clone() };
            is_over.then(unheard)
        })
    }

    pub(crate) async fn over(&self) -> Over {
        let mut said = self.over.subscribe();
        loop {
            if let Some(over) = self.is_over() {
                return over;
            }
            let left = self.lease.lock().left(Instant::now());
            // Its sender is ours, so there will be another value, or none for ever.
            drop(tokio::time::timeout(left.unwrap_or(FOR_EVER), said.changed()).await);
        }
    }

    /// The clock is looked at before each step of the work: a process that stood still does not begin one.
    pub(crate) async fn unless_over<F: Future>(&self, work: F) -> Result<F::Output, Over> {
        let (mut over, mut work) = (pin!(self.over()), pin!(work));
        poll_fn(|context| match self.is_over() {
            Some(over) => Poll::Ready(Err(over)),
            None => match over.as_mut().poll(context) {
                Poll::Ready(over) => Poll::Ready(Err(over)),
                Poll::Pending => work.as_mut().poll(context).map(Ok),
            },
        })
        .await
    }

    /// Sends heartbeats until one is answered that was sent now or later.
    pub(crate) async fn heard(&self) -> Result<(), Over> {
        self.unless_over(async {
            while !self.beat().await {
                tokio::time::sleep(self.pause(false)).await;
            }
        })
        .await
    }

    fn end(&self, over: Over) {
        self.over.send_if_modified(|known| {
            let is_new = known.is_none();
            known.get_or_insert(over);
            is_new
        });
    }

    /// Between two heartbeats; after one without an answer another server is asked before long.
    fn pause(&self, was_heard: bool) -> Duration {
        (self.period / if was_heard { 3 } else { 12 }).max(BEAT_MIN)
    }

    /// Sends one heartbeat; whether it was answered well.
    async fn beat(&self) -> bool {
        let mut attempt = self.attempt.lock().await;
        let report = self.progress.borrow().clone();
        let sent = Instant::now();
        let left = self.lease.lock().left(sent).unwrap_or(LIST);
        let most = self.pause(true).min(left).max(ATTEMPT_MIN);
        match self.tasks.heartbeat_once(&self.handed, &report, *attempt, most).await {
            Ok(_) => {
                self.lease.lock().renew(sent, Instant::now());
                return true;
            }
            Err(Error::Stale { detail }) => self.end(Over::Stale { detail }),
            Err(Error::Refused { code, detail, .. }) if code == "unknown_task" => {
                self.end(Over::Stale { detail });
            }
            Err(error) => {
                *attempt = attempt.wrapping_add(1);
                *self.missed.lock() = error.to_string();
            }
        }
        false
    }

    /// Sends them until the turn is over.
    async fn go_on(self: Arc<Self>) {
        let mut was_heard = true;
        let work = async {
            loop {
                tokio::time::sleep(self.pause(was_heard)).await;
                was_heard = self.beat().await;
            }
        };
        // By the clock it is over, and nothing that comes later changes that.
        let Err(over): Result<std::convert::Infallible, Over> = self.unless_over(work).await;
        self.end(over);
    }
}
