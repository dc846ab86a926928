//! Describes targets, on a thread of its own: does the topic exist, how many partitions, how large a record, must it
//! have a key, may we write there.
//!
//! It asks before anything is produced. An unknown topic would stall a whole transaction for 30 s, and a
//! topic that we may not write to would fail it. An admin client asks, whose question creates no topic; a producer's
//! question may.
//!
//! # Invariants
//! 1. One request asks about many names, and names that were never asked about go first. However many are unknown, a
//!    new one waits for some requests, and never until all others have been found.
//! 2. An answer is given once [`Used`] knows of it: nobody produces to a target whose limit does not count yet.
//! 3. The thread ends when nothing was asked for some time, and the next question starts it again. No question is lost: both are
//!    decided under one lock.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataPartition;

use crate::client::connect::Asker;
use crate::client::errors::{self, ErrorKind, On};
use crate::client::log_limiter::LogLimiter;
use crate::client::raw::ask::{self, Layout, Right, Settings};
use crate::client::resilient_admin::ResilientAdmin;
use waterclock_engine::Target;
use waterclock_engine::allow::{SIGNS, is_owned, namespaces_of};

/// How long one question may take.
const ASK: Duration = Duration::from_secs(5);
/// How long the first one may take after one that was answered: most are within milliseconds, and a client may go on asking
/// a broker that stands still.
const ASK_FIRST: Duration = Duration::from_millis(500);
/// The same about the limits of a topic that were told before, and that are taken for what they were if nobody answers.
const ASK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// A question without an answer is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// A topic is missing when no broker has known it for this long.
const MISSING_AFTER: Duration = Duration::from_millis(1_500);
/// Names in one request: some ten milliseconds of a broker's work.
const NAMES_MAX: usize = 1_000;
/// Topics whose settings one request asks for: a broker tells all of them, some thirty each.
const LIMITS_MAX: usize = 100;
/// Times so near to its own clock a topic must take: clocks of brokers differ, and a record or a mark is on its way for a while.
const TIMES_MIN_MS: u64 = 1_000;
/// Kafka's own default of `max.message.bytes`, for brokers that do not tell (the embedded one).
const RECORD_BYTES_MAX: u64 = 1_048_588;

/// A thread that nobody asks for so long ends.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A target that nobody asked about for longer is not in use. The engine produces to none of which it was told longer ago than
/// that: it asks first (`TARGET_STALE`).
const IN_USE: Duration = Duration::from_secs(300);
/// Partitions of targets in use that are told, at most.
const IN_USE_MAX: usize = 1_000;

/// What is known of a topic.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) name: Arc<str>,
    pub(crate) target: Target,
    /// Partitions that take nothing now: without a leader, or with fewer replicas in sync than the topic must have.
    pub(crate) away: Arc<[i32]>,
}

/// A question: which topic, and who wants to know.
type Question = (Arc<str>, Sender<Answer>);

/// Targets that were found and are in use.
#[derive(Debug, Default)]
struct Used(BTreeMap<Arc<str>, Use>);

/// A target in use.
#[derive(Clone, Copy, Debug)]
struct Use {
    partitions: i32,
    record_bytes_max: u64,
    /// When it was asked about last.
    asked_at: Instant,
}

impl Used {
    /// Forgets what is not in use any more.
    fn tidy(&mut self, now: Instant) {
        self.0.retain(|_, of| now.saturating_duration_since(of.asked_at) < IN_USE);
    }

    /// The partitions of those in use; of those that came up last, if there are very many.
    fn partitions(&mut self, now: Instant) -> Vec<(String, i32)> {
        self.tidy(now);
        let mut newest: Vec<_> = self.0.iter().collect();
        newest.sort_by_key(|(_, of)| std::cmp::Reverse(of.asked_at));
        let partitions = newest.into_iter().flat_map(|(topic, of)| {
            (0..of.partitions).map(|partition| (topic.to_string(), partition))
        });
        partitions.take(IN_USE_MAX).collect()
    }

    /// The least batch that one of them takes.
    fn bytes_least(&mut self, now: Instant) -> usize {
        self.tidy(now);
        let least = self.0.values().map(|of| of.record_bytes_max).min();
        least.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
    }
}

/// What lane threads and this one share.
#[derive(Debug)]
struct Shared {
    used: Mutex<Used>,
    record_bytes_least: Arc<AtomicUsize>,
}

impl Shared {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock()
    }

    /// Keeps in mind what was found, or that a target is not there any more.
    fn note(&self, found: &[Answer]) {
        let (mut used, now) = (self.used(), Instant::now());
        for Answer { name, target, .. } in found {
            match *target {
                Target::Found { partitions, record_bytes_max, .. } => {
                    let of = Use { partitions, record_bytes_max, asked_at: now };
                    used.0.insert(Arc::clone(name), of);
                }
                _ => {
                    used.0.remove(name);
                }
            }
        }
        self.record_bytes_least.store(used.bytes_least(now), Ordering::SeqCst);
    }
}

/// Handle on the asking thread; it ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Lookup {
    questions: Sender<Question>,
    thread: Arc<Mutex<Thread>>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// The asking thread, which may have ended.
struct Thread {
    is_running: bool,
    /// Locked by the thread for as long as it runs.
    answerer: Arc<Mutex<Answerer>>,
}

impl Thread {
    fn run(&mut self, weak: Weak<Mutex<Self>>) {
        if self.is_running {
            return;
        }
        let answerer = Arc::clone(&self.answerer);
        let thread = std::thread::Builder::new().name("wc-targets".into());
        match thread.spawn(move || answerer.lock().run(&weak)) {
            Ok(_) => self.is_running = true,
            // Tried again with the next question, and when the backlog is counted.
            Err(error) => tracing::warn!(%error, "no thread to ask about targets"),
        }
    }
}

impl Lookup {
    /// Begins with nothing known; the first question starts the thread.
    pub(crate) fn new(admin: ResilientAdmin, embedded: bool) -> Self {
        let (questions, inbox) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared {
            used: Mutex::default(),
            record_bytes_least: Arc::new(AtomicUsize::new(usize::MAX)),
        });
        let describer = Describer { admin, patience: ASK_FIRST, embedded, limits: HashMap::new() };
        let log_limiter = LogLimiter::default();
        let answerer = Answerer {
            inbox,
            open: BTreeMap::new(),
            shared: Arc::clone(&shared),
            describer,
            log_limiter,
        };
        let answerer = Arc::new(Mutex::new(answerer));
        let thread = Arc::new(Mutex::new(Thread { is_running: false, answerer }));
        Self { questions, thread, shared }
    }

    /// The least `max.message.bytes` of the targets in use.
    #[must_use]
    pub(crate) fn record_bytes_least(&self) -> &Arc<AtomicUsize> {
        &self.shared.record_bytes_least
    }

    /// The partitions of the targets that records go to now; of those that came up last, if there are very many.
    pub(crate) fn in_use(&self) -> Vec<(String, i32)> {
        if !self.questions.is_empty() {
            self.thread.lock().run(Arc::downgrade(&self.thread));
        }
        self.shared.used().partitions(Instant::now())
    }

    /// Asks about a topic; the answer comes by `reply`, however long it takes.
    pub(crate) fn ask(&self, topic: Arc<str>, reply: Sender<Answer>) {
        let mut thread = self.thread.lock();
        let _ = self.questions.send((topic, reply));
        thread.run(Arc::downgrade(&self.thread));
    }
}

/// What a topic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// `max.message.bytes`.
    record_bytes_max: u64,
    /// It is compacted, so that every record must have a key.
    keyed: bool,
    /// `min.insync.replicas`.
    in_sync_min: usize,
    /// It takes hardly any times but that of its own clock.
    narrow: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { record_bytes_max: RECORD_BYTES_MAX, keyed: false, in_sync_min: 1, narrow: false }
    }
}

/// Asks the brokers, and keeps what they said of limits.
struct Describer {
    admin: ResilientAdmin,
    /// How long a question is given for an answer: more each time that there is none.
    patience: Duration,
    /// The embedded broker describes no topics, has no settings to tell, and has one namespace.
    embedded: bool,
    /// The last description of each topic.
    limits: HashMap<String, Limits>,
}

impl Describer {
    /// What each of these topics is made of.
    fn layouts(&mut self, names: &[String]) -> Result<ask::Each<Layout>, KafkaError> {
        let within = self.patience;
        let embedded = self.embedded;
        let layouts = self.admin.ask(|admin| match embedded {
            true => plain_layouts(admin, names, within),
            false => ask::layouts(admin, names, within),
        });
        self.patience = if layouts.is_ok() { ASK_FIRST } else { ASK.min(self.patience * 2) };
        layouts
    }

    /// Those of these topics that belong to a waterclock namespace: the signs of one are all there.
    fn owned(&mut self, names: &[&str]) -> Result<HashSet<String>, KafkaError> {
        if self.embedded {
            return Ok(HashSet::new());
        }
        let signs = |namespace: &str| SIGNS.map(|sign| format!("{namespace}.{sign}"));
        let all = names.iter().flat_map(|name| namespaces_of(name)).flat_map(&signs);
        let all: BTreeSet<String> = all.collect();
        let all: Vec<String> = all.into_iter().collect();
        let mut there = HashSet::new();
        for names in all.chunks(NAMES_MAX) {
            let layouts = self.layouts(names)?.into_iter();
            let is_there = |of: &Result<Layout, _>| {
                of.as_ref().is_ok_and(|layout| !layout.partitions.is_empty())
            };
            there.extend(layouts.filter(|(_, of)| is_there(of)).map(|(name, _)| name));
        }
        let owned = names.iter().filter(|name| is_owned(name, |sign| there.contains(sign)));
        Ok(owned.map(|name| (*name).to_owned()).collect())
    }

    /// The limits of these topics, as they are told now or were before.
    ///
    /// # Errors
    /// Nobody answers.
    fn ask_limits(&mut self, names: &[String]) -> Result<(), KafkaError> {
        if self.embedded {
            return Ok(());
        }
        let known = names.iter().all(|name| self.limits.contains_key(name));
        let most = if known { ASK_AGAIN_MAX } else { ASK };
        match self.admin.ask(|admin| limits(admin, names, most)) {
            Ok(found) => {
                // Without the right to ask, Kafka's defaults.
                for name in names {
                    self.limits.insert(name.clone(), Limits::default());
                }
                self.limits.extend(found);
                Ok(())
            }
            Err(_) if known => {
                let topics = names.len();
                tracing::info!(
                    topics,
                    "no broker returned the limits of targets; the last ones stay"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn found(&self, name: &Arc<str>, layout: &Layout) -> Answer {
        let Limits { record_bytes_max, keyed, in_sync_min, narrow } =
            self.limits.get(&**name).copied().unwrap_or_default();
        if narrow {
            let name = Arc::clone(name);
            return Answer { name, target: Target::Narrow, away: Arc::default() };
        }
        // A leader that has too few replicas beside it takes nothing either.
        let is_away = |part: &&ask::Part| !part.has_leader || part.in_sync < in_sync_min;
        let mut away: Vec<i32> =
            layout.partitions.iter().filter(is_away).map(|part| part.id).collect();
        away.sort_unstable();
        if !away.is_empty() {
            tracing::warn!(topic = &**name, partitions = ?away, "partitions of a target have no leader, or too few replicas in sync");
        }
        let partitions = layout.partitions.len() as i32;
        let keyed = keyed && !forgets_compaction();
        let target = Target::Found { partitions, record_bytes_max, keyed };
        Answer { name: Arc::clone(name), target, away: away.into() }
    }
}

/// A question without an answer yet.
struct Open {
    since: Instant,
    /// When to ask next; `None`: it was never asked.
    next: Option<Instant>,
    replies: Vec<Sender<Answer>>,
}

/// The asking thread's own state.
struct Answerer {
    inbox: Receiver<Question>,
    open: BTreeMap<Arc<str>, Open>,
    shared: Arc<Shared>,
    describer: Describer,
    /// Errors that were logged.
    log_limiter: LogLimiter,
}

impl Answerer {
    /// Nobody answered about so many targets; they are asked about again.
    fn unanswered(&self, error: &KafkaError, topics: usize) {
        if self.log_limiter.admits(errors::code(error), Instant::now()) {
            tracing::warn!(%error, topics, "could not find out about targets, asking again");
        }
    }

    fn run(&mut self, thread: &Weak<Mutex<Thread>>) {
        loop {
            let first = match self.wait() {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if first.is_none() && self.open.is_empty() {
                let Some(thread) = thread.upgrade() else { return };
                let mut thread = thread.lock();
                if self.inbox.is_empty() {
                    thread.is_running = false;
                    return;
                }
            }
            let now = Instant::now();
            for (name, reply) in first.into_iter().chain(self.inbox.try_iter()) {
                let new = || Open { since: now, next: None, replies: Vec::new() };
                self.open.entry(name).or_insert_with(new).replies.push(reply);
            }
            let names = due(&self.open, now);
            if !names.is_empty() {
                self.ask(&names);
            }
        }
    }

    /// Waits for a question, or until it is time to ask again, or to end.
    fn wait(&self) -> Result<Question, RecvTimeoutError> {
        let now = Instant::now();
        match self.open.values().map(|open| open.next.unwrap_or(now)).min() {
            None => self.inbox.recv_timeout(IDLE_MAX),
            Some(at) => self.inbox.recv_timeout(at.saturating_duration_since(now)),
        }
    }

    fn ask(&mut self, names: &[Arc<str>]) {
        let texts: Vec<String> = names.iter().map(ToString::to_string).collect();
        let layouts = match self.describer.layouts(&texts) {
            Ok(layouts) => layouts,
            Err(error) => {
                self.unanswered(&error, names.len());
                return self.later(names);
            }
        };
        let mut layouts: HashMap<String, _> = layouts.into_iter().collect();
        let (mut found, mut answers, mut later) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            let target = match layouts.remove(&**name) {
                Some(Ok(layout)) if is_writable(&layout) => {
                    found.push((Arc::clone(name), layout));
                    continue;
                }
                Some(Ok(layout)) if layout.partitions.is_empty() => Target::Missing,
                Some(Ok(_)) => Target::Closed,
                None => Target::Missing,
                Some(Err(error)) => match ErrorKind::of(error) {
                    ErrorKind::TopicMissing | ErrorKind::TopicName => Target::Missing,
                    ErrorKind::NoRight(On::Topic) => Target::Hidden,
                    _ => {
                        let topic = &**name;
                        tracing::warn!(%error, topic, "could not find out about a target, asking again");
                        later.push(Arc::clone(name));
                        continue;
                    }
                },
            };
            // A broker may not have heard yet of a topic that was made, or of a right that was given, a moment ago.
            if self.open.get(name).is_some_and(|open| open.since.elapsed() < MISSING_AFTER) {
                later.push(Arc::clone(name));
            } else {
                answers.push(Answer { name: Arc::clone(name), target, away: Arc::default() });
            }
        }
        let texts: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
        match self.describer.owned(&texts) {
            Ok(owned) => {
                let taken = found.extract_if(.., |(name, _)| owned.contains(&**name));
                let target = Target::Owned;
                answers.extend(taken.map(|(name, _)| Answer {
                    name,
                    target,
                    away: Arc::default(),
                }));
            }
            Err(error) => {
                self.unanswered(&error, found.len());
                later.extend(found.drain(..).map(|(name, _)| name));
            }
        }
        self.later(&later);
        self.answer(answers);
        for found in found.chunks(LIMITS_MAX) {
            let names: Vec<String> = found.iter().map(|(name, _)| name.to_string()).collect();
            if let Err(error) = self.describer.ask_limits(&names) {
                self.unanswered(&error, names.len());
                let names: Vec<_> = found.iter().map(|(name, _)| Arc::clone(name)).collect();
                self.later(&names);
                continue;
            }
            let answers = found.iter().map(|(name, layout)| self.describer.found(name, layout));
            let answers = answers.collect();
            self.answer(answers);
        }
    }

    /// These are to be asked about again.
    fn later(&mut self, names: &[Arc<str>]) {
        let next = Some(Instant::now() + ASK_AGAIN);
        for name in names {
            if let Some(open) = self.open.get_mut(name) {
                open.next = next;
            }
        }
    }

    fn answer(&mut self, answers: Vec<Answer>) {
        self.shared.note(&answers);
        for Answer { name, target, away } in answers {
            for reply in self.open.remove(&name).into_iter().flat_map(|open| open.replies) {
                let (name, away) = (Arc::clone(&name), Arc::clone(&away));
                let _ = reply.send(Answer { name, target, away });
            }
        }
    }
}

/// Which names the next request asks about: those that were never asked about in the order in which they came, then those whose
/// time it is.
fn due(open: &BTreeMap<Arc<str>, Open>, now: Instant) -> Vec<Arc<str>> {
    let is_due = |open: &Open| open.next.is_none_or(|at| at <= now);
    let mut due: Vec<_> = open.iter().filter(|(_, open)| is_due(open)).collect();
    due.sort_by_key(|(_, open)| (open.next, open.since));
    due.into_iter().take(NAMES_MAX).map(|(name, _)| Arc::clone(name)).collect()
}

/// Whether records can be written to it, as far as the broker tells.
fn is_writable(layout: &Layout) -> bool {
    let is_ours = layout.rights.is_empty() || layout.rights.contains(&Right::Write);
    is_ours && !layout.partitions.is_empty()
}

/// The same as [`ask::layouts`] by questions for metadata, one a topic, from which a topic may come to be.
fn plain_layouts<C: ClientContext>(
    client: &Client<C>,
    names: &[String],
    within: Duration,
) -> Result<ask::Each<Layout>, KafkaError> {
    let part = |of: &MetadataPartition| ask::Part {
        id: of.id(),
        has_leader: of.leader() >= 0,
        in_sync: of.isr().len(),
    };
    let layout = |name: &String| {
        let metadata = client.fetch_metadata(Some(name), within)?;
        let found = metadata.topics().iter().find(|found| found.name() == name);
        let layout = match found.and_then(|found| found.error()).map(Into::into) {
            Some(error) => Err(error),
            None => {
                let partitions = found.map(|found| found.partitions().iter().map(part).collect());
                Ok(Layout { partitions: partitions.unwrap_or_default(), ..Layout::default() })
            }
        };
        Ok((name.clone(), layout))
    };
    names.iter().map(layout).collect()
}

/// For the test of what happens when a broker refuses what we had not foreseen.
fn forgets_compaction() -> bool {
    fail::fail_point!("forget_compaction", |_| true);
    false
}

/// The limits of those topics whose settings we may see.
fn limits(
    admin: &Asker,
    names: &[String],
    most: Duration,
) -> Result<Vec<(String, Limits)>, KafkaError> {
    let answers = ask::settings(admin, names, most)?;
    let limits = answers.into_iter().filter_map(|(name, of)| Some((name, limits_of(&of.ok()?))));
    Ok(limits.collect())
}

fn limits_of(settings: &Settings) -> Limits {
    let usual = Limits::default();
    let value = |name| settings.get(name).map(String::as_str);
    let bytes = value("max.message.bytes").and_then(|bytes| bytes.parse().ok());
    let in_sync = value("min.insync.replicas").and_then(|count| count.parse().ok());
    // A broker wants keys as soon as a topic is compacted, even if records are deleted by age, too.
    let keyed = value("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
    // Where it puts the time itself it refuses none.
    let is_free = value("message.timestamp.type") == Some("LogAppendTime");
    let narrow =
        ["message.timestamp.before.max.ms", "message.timestamp.after.max.ms"].iter().any(|most| {
            value(most).and_then(|ms| ms.parse().ok()).is_some_and(|ms: u64| ms < TIMES_MIN_MS)
        });
    Limits {
        record_bytes_max: bytes.unwrap_or(usual.record_bytes_max),
        keyed,
        in_sync_min: in_sync.unwrap_or(usual.in_sync_min),
        narrow: narrow && !is_free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ago(seconds: u64) -> Instant {
        Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap()
    }

    fn using(partitions: i32, record_bytes_max: u64, asked_at: Instant) -> Use {
        Use { partitions, record_bytes_max, asked_at }
    }

    #[test]
    fn targets_are_in_use_for_minutes_and_very_many_are_not_all_told() {
        let now = Instant::now();
        let mut used = Used(BTreeMap::from([
            ("newest".into(), using(1, 9, now)),
            ("old".into(), using(5, 9, ago(301))),
            ("second".into(), using(2, 9, ago(290))),
        ]));
        let at = |topic: &str, partition| (topic.to_owned(), partition);
        assert_eq!(used.partitions(now), [at("newest", 0), at("second", 0), at("second", 1)]);
        assert_eq!(used.0.len(), 2, "what is not in use takes no memory");
        used.0.insert("wide".into(), using(5_000, 9, ago(1)));
        let many = used.partitions(now);
        assert_eq!((many.len(), &many[0]), (IN_USE_MAX, &at("newest", 0)));
        assert!(many.iter().all(|(topic, _)| topic != "second"), "the one of long ago is left out");
    }

    #[test]
    fn a_small_target_limits_all_batches_for_as_long_as_it_is_in_use() {
        let now = Instant::now();
        let mut used = Used::default();
        assert_eq!(used.bytes_least(now), usize::MAX, "there is none");
        used.0.insert("usual".into(), using(1, 1_048_588, now));
        used.0.insert("small".into(), using(1, 2_000, ago(290)));
        assert_eq!(used.bytes_least(now), 2_000);
        assert_eq!(used.bytes_least(now + Duration::from_secs(11)), 1_048_588, "it went");
    }

    #[test]
    fn new_names_are_asked_about_first_and_so_many_at_a_time() {
        let now = Instant::now();
        let open = |since, next| Open { since, next, replies: Vec::new() };
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut all = BTreeMap::from([
            ("again".into(), open(ago(9), Some(now))),
            ("later".into(), open(ago(9), Some(at(1)))),
            ("new".into(), open(ago(1), None)),
            ("newer".into(), open(now, None)),
        ]);
        let names =
            |all: &_| -> Vec<String> { due(all, now).iter().map(ToString::to_string).collect() };
        assert_eq!(names(&all), ["new", "newer", "again"]);
        let many = (0..NAMES_MAX).map(|n| (Arc::from(format!("n{n}")), open(ago(5), Some(now))));
        all.extend(many);
        let due = names(&all);
        assert_eq!(
            (due.len(), &due[..2]),
            (NAMES_MAX, &["new".to_owned(), "newer".to_owned()][..])
        );
    }

    #[test]
    fn what_may_not_be_written_to_is_known_before_and_who_tells_no_rights_is_believed() {
        let part = ask::Part { id: 0, has_leader: true, in_sync: 1 };
        let layout = |parts: &[ask::Part], rights: &[Right]| Layout {
            partitions: parts.to_vec(),
            rights: rights.iter().copied().collect(),
        };
        #[rustfmt::skip]
        let table = [
            (true,  layout(&[part], &[Right::Describe, Right::Write])),
            (true,  layout(&[part], &[])),
            (false, layout(&[part], &[Right::Describe, Right::Read])),
            (false, layout(&[], &[Right::Write])),
        ];
        for (want, layout) in table {
            assert_eq!(is_writable(&layout), want, "{layout:?}");
        }
    }
}
