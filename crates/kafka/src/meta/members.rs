//! Announces to the other members which lanes run here and where this process answers, and reads their announcements.
//!
//! It has turns on the process's thread for events. It puts `member/<instance>` into `<ns>.meta` when its lanes change and every half minute, and takes it
//! away when it leaves. It keeps the announcements of the others as a [`Roster`], and what is known of projects and services in a
//! [`RegistryFeed`].
//!
//! # Invariants
//! 1. An announcement of this process has arrived when it has been read back; until then it is repeated.
//! 2. The announcement of a later start under the same name is not taken away.
//!
//! What it does not do: it decides nothing about lanes, which is the group's matter.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::live::{LiveMeta, MetaState, Progress};
use super::registry::RegistryReader;
use super::{
    Load, MEMBER, Member, MetaWriter, PARTITION, Registrar, RegistryFeed, Roster, Secret,
    SharedRoster,
};
use crate::client::Connection;
use crate::client::connect::{Isolation, aside};
use crate::client::events::{Events, Task, Turns};
use crate::client::raw::bell::Bell;
use crate::client::topic_reader::{Consumed, StartAt, TopicReader};
use waterclock_engine::Lane;

/// How often a member says it again.
const EVERY: Duration = Duration::from_secs(30);
/// An announcement that was not read back for this long is repeated.
const AGAIN: Duration = Duration::from_secs(2);
/// Lanes that came or went are noticed within this.
const POLL: Duration = Duration::from_millis(200);
/// How long another member may differ: when all are given something new, some have it before others.
const DIFFERS_MAX: Duration = Duration::from_secs(10);
/// How long a broker holds a fetch for which there is nothing; probes of the clocks end most of them.
const WAIT: Duration = Duration::from_secs(1);
/// Records taken in one turn: others wait for theirs.
const TURN_MAX: usize = 256;
/// Longest wait for the farewell to be written.
const LEAVE_MAX: Duration = Duration::from_millis(800);

/// The members of the namespace; this one says farewell when it is dropped or [left](Self::leave).
#[derive(Debug)]
pub struct Members {
    roster: SharedRoster,
    /// Those of its [`MembersTask`]; none once it has left.
    turns: Mutex<Option<Turns>>,
    announcer: Arc<Announcer>,
    registry: RegistryFeed,
    registrar: Registrar,
}

impl Members {
    /// Begins to speak for this process, on the thread of `events`: `describe` says what it is now, with its lanes, and `load` what it has
    /// to do, once that is known. A load that is another one is no reason to speak; one that was not known before is. What is read goes
    /// into `roster` and `registry`. `recreated` says how often topics of ours were seen to have been created again.
    ///
    /// # Errors
    /// The reader could not be made: the configuration is wrong.
    pub(crate) fn start(
        connection: &Connection,
        writer: Arc<MetaWriter>,
        (describe, load): (
            impl Fn() -> Member + Send + 'static,
            impl FnMut() -> Option<Load> + Send + 'static,
        ),
        recreated: impl Fn() -> u64 + Send + 'static,
        roster: SharedRoster,
        registry: RegistryFeed,
        events: &Events,
    ) -> Result<Self, KafkaError> {
        let reader =
            TopicReader::to_ends(connection, "waterclock-members", Isolation::Committed, WAIT)?;
        let state = Arc::new(Mutex::new(MembersMeta {
            roster: Arc::clone(&roster),
            registry: RegistryReader::default(),
        }));
        let mut meta = LiveMeta::new(
            connection,
            reader,
            writer.topic(),
            Arc::clone(&state),
            StartAt::Beginning,
        );
        let registrar =
            Registrar::new(connection.clone(), writer.topic().to_owned(), registry.clone());
        meta.begin()?;
        let bell = meta.bell(events.thread()?);
        let Member { instance, incarnation, .. } = describe();
        let announcer = Arc::new(Announcer {
            writer,
            instance,
            incarnation,
            roster: Arc::clone(&roster),
            has_left: Mutex::new(false),
        });
        let task = MembersTask {
            bell,
            meta,
            state,
            registry: registry.clone(),
            looked: None,
            announcer: Arc::clone(&announcer),
            describe,
            load,
            seen: recreated(),
            recreated,
            roster: Arc::clone(&roster),
            sent: None,
            owes_load: false,
            other_lists: Complaint::default(),
            without_tasks: Complaint::default(),
        };
        let turns = Mutex::new(Some(events.add(POLL, task)?));
        Ok(Self { roster, turns, announcer, registry, registrar })
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Roster> {
        self.roster.lock()
    }

    /// The member that last claimed a lane; it may have lost it since.
    #[must_use]
    pub fn owner(&self, lane: Lane) -> Option<Member> {
        self.lock().owner(lane).cloned()
    }

    /// All members that are not silent, this one among them, in the order of their names.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.lock().members().cloned().collect()
    }

    /// The same, each with the lanes that no other has claimed since.
    #[must_use]
    pub fn listed(&self) -> Vec<Member> {
        self.lock().listed()
    }

    /// The secret that the namespace has now; none before it was read. It is another one only once its meta topic was made
    /// again: then nobody who starts can read what was sealed with the one before.
    #[must_use]
    pub fn secret(&self) -> Option<Secret> {
        self.lock().secret()
    }

    /// What is known of projects and services.
    #[must_use]
    pub fn registry(&self) -> &RegistryFeed {
        &self.registry
    }

    /// Changes that.
    #[must_use]
    pub fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    /// Takes away what was said, unless a later start of ours has said something already, and waits for less than a second
    /// until that is written.
    pub fn leave(&self) {
        let turns = self.turns.lock().take();
        self.announcer.farewell();
        // To close the reader takes a while.
        if let Some(turns) = turns {
            aside(turns);
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        // It says farewell as it goes.
        if let Some(turns) = self.turns.get_mut().take() {
            aside(turns);
        }
    }
}

/// Speaks for this process, until it has left.
struct Announcer {
    writer: Arc<MetaWriter>,
    instance: String,
    incarnation: String,
    roster: SharedRoster,
    has_left: Mutex<bool>,
}

impl std::fmt::Debug for Announcer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcer").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Announcer {
    fn say(&self, member: &Member) {
        // The farewell holds the lock while it is written.
        if self.has_left.try_lock().is_some_and(|has_left| !*has_left) {
            let tell = |report| log_failure(report);
            log_failure(self.writer.write(PARTITION, &self.key(), Some(&member.encode()), tell));
        }
    }

    /// After it nothing is said any more.
    fn farewell(&self) {
        let mut has_left = self.has_left.lock();
        let roster = self.roster.lock();
        let is_another =
            roster.announced(&self.instance).is_some_and(|of| of.incarnation > self.incarnation);
        drop(roster);
        if !std::mem::replace(&mut *has_left, true) && !is_another {
            self.writer.write_and_wait(PARTITION, &self.key(), None, LEAVE_MAX);
        }
    }

    fn key(&self) -> String {
        format!("{MEMBER}{}", self.instance)
    }
}

fn log_failure<T>(report: Result<T, KafkaError>) {
    if let Err(error) = report {
        tracing::debug!(%error, "could not say which lanes are run here");
    }
}

/// Has the turns. The bell is dropped before its reader is: fields drop in order.
struct MembersTask<D: Fn() -> Member, L: FnMut() -> Option<Load>, R: Fn() -> u64> {
    bell: Bell,
    meta: LiveMeta<MembersMeta>,
    state: Arc<Mutex<MembersMeta>>,
    /// Is told of projects and services.
    registry: RegistryFeed,
    /// When it was last looked what there is to say.
    looked: Option<Instant>,
    announcer: Arc<Announcer>,
    /// Says what this process is now.
    describe: D,
    /// Says what it has to do.
    load: L,
    /// Says how often topics were seen to have been created again: librdkafka may never say it of this one.
    recreated: R,
    /// How often they had been when this topic was last read from its beginning.
    seen: u64,
    roster: SharedRoster,
    /// The last announcement without its load, and when it was sent.
    sent: Option<(Member, Instant)>,
    /// The load was not known then.
    owes_load: bool,
    /// Another member allows other targets.
    other_lists: Complaint,
    /// Another member knows no tasks, which are in force.
    without_tasks: Complaint,
}

/// What this process keeps of the topic.
#[derive(Default)]
struct MembersMeta {
    roster: SharedRoster,
    registry: RegistryReader,
}

impl MetaState for MembersMeta {
    fn take(&mut self, record: &Consumed<'_>) {
        self.roster.lock().take_record(record);
        self.registry.take(record.offset(), record.key(), record.value());
    }

    fn reached_end(&mut self) {
        self.registry.reached_end();
    }

    fn replace_by(&mut self, rebuilt: Self) {
        // Others have this roster, and not its place.
        *self.roster.lock() = std::mem::take(&mut *rebuilt.roster.lock());
        self.registry = rebuilt.registry;
    }
}

/// Something that is wrong with another member, which is said once, unless it is about to end.
#[derive(Debug, Default)]
struct Complaint {
    since: Option<Instant>,
    is_said: bool,
}

impl Complaint {
    /// Takes in whether it is wrong now; true: it is to be said.
    fn look(&mut self, is_wrong: bool, now: Instant) -> bool {
        if !is_wrong {
            *self = Self::default();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_due = !self.is_said && now.saturating_duration_since(since) >= DIFFERS_MAX;
        self.is_said |= is_due;
        is_due
    }
}

impl<D, L, R> Task for MembersTask<D, L, R>
where
    D: Fn() -> Member + Send,
    L: FnMut() -> Option<Load> + Send,
    R: Fn() -> u64 + Send,
{
    fn turn(&mut self) -> bool {
        let recreated = (self.recreated)();
        if std::mem::replace(&mut self.seen, recreated) != recreated {
            self.meta.begin_again();
        }
        // The thread has other reasons to wake.
        let is_more = (self.bell.has_events() || self.meta.has_to_begin()) && self.hear();
        let now = Instant::now();
        if self.looked.is_none_or(|at| now.saturating_duration_since(at) >= POLL) {
            self.looked = Some(now);
            self.meta.look_at_brokers();
            self.speak();
            self.compare(now);
        }
        is_more
    }
}

impl<D: Fn() -> Member, L: FnMut() -> Option<Load>, R: Fn() -> u64> Drop for MembersTask<D, L, R> {
    fn drop(&mut self) {
        self.announcer.farewell();
    }
}

impl<D: Fn() -> Member, L: FnMut() -> Option<Load>, R: Fn() -> u64> MembersTask<D, L, R> {
    /// Whether there may be more to hear at once.
    fn hear(&mut self) -> bool {
        let is_more = (0..TURN_MAX).all(|_| self.meta.poll(Duration::ZERO) == Progress::More);
        self.registry.publish(&self.state.lock().registry);
        is_more
    }

    /// What the topic says of us, without our load; nothing if that was an earlier start.
    fn announced(&self) -> Option<Member> {
        let roster = self.roster.lock();
        let member = roster.announced(&self.announcer.instance)?;
        let is_ours = member.incarnation == self.announcer.incarnation;
        is_ours.then(|| Member { load: None, ..member.clone() })
    }

    /// Says that another member delivers to other targets than this one, or that it knows no tasks.
    fn compare(&mut self, now: Instant) {
        let Some((me, _)) = &self.sent else { return };
        let has_tasks = self.registry.has_tasks();
        let (other_list, without_tasks) = {
            let roster = self.roster.lock();
            let find = |is_it: &dyn Fn(&Member) -> bool| -> Option<String> {
                let mut others = roster.active().filter(|other| other.instance != me.instance);
                others.find(|other| is_it(other)).map(|other| other.address.clone())
            };
            let other_list = find(&|other| other.allow.is_some() && other.allow != me.allow);
            (other_list, find(&|other| has_tasks && !other.tasks))
        };
        if self.other_lists.look(other_list.is_some(), now) {
            tracing::warn!(
                other = other_list,
                remedy = "give all instances the same allow-list",
                "another instance has another allow-list, and makes dead letters of what only this one allows"
            );
        }
        if self.without_tasks.look(without_tasks.is_some(), now) {
            tracing::error!(
                other = without_tasks,
                remedy = "stop that instance, and start this version there",
                "another instance is of a version that knows no tasks, and makes dead letters of them"
            );
        }
    }

    fn speak(&mut self) {
        let now = (self.describe)();
        let is_due = match &self.sent {
            None => true,
            Some((sent, _)) if *sent != now => true,
            Some((_, at)) if at.elapsed() >= EVERY => true,
            Some((sent, at)) => at.elapsed() >= AGAIN && self.announced().as_ref() != Some(sent),
        };
        let load = if is_due || self.owes_load { (self.load)() } else { None };
        if is_due || load.is_some() {
            self.owes_load = load.is_none();
            self.announcer.say(&Member { load, ..now.clone() });
            self.sent = Some((now, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_said_once_and_again_after_it_was_gone() {
        let start = Instant::now();
        let mut complaint = Complaint::default();
        let mut look =
            |at: u64, is_wrong| complaint.look(is_wrong, start + Duration::from_secs(at));
        assert!(!look(0, true) && !look(9, true), "it may be about to end");
        assert!(look(10, true));
        assert!(!look(11, true) && !look(60, true), "once");
        assert!(!look(61, false) && !look(62, true));
        assert!(look(72, true));
    }
}
