//! Lanes come and go: taken over, taken over again after a failed batch, let go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;

use super::{Consumer, POLL_SHORT, Session};
use crate::client::connect::aside;
use crate::member::rebalance::{GroupEvent, GroupPresence, Taken};
use crate::member::thread::Error;
use crate::member::timers::TakenOver;
use waterclock_engine::member::Failure;
use waterclock_engine::{Event, Lane, Source, Start};

/// How long leaving the group and closing is waited for: together with the drain (8 s), a stop takes less than 10 s.
const CLOSE_MAX: Duration = Duration::from_millis(1_500);

/// Tells assignments apart, those of all threads.
static ASSIGNMENTS: AtomicU64 = AtomicU64::new(1);

impl Session<'_> {
    /// Drops everything that is held of the lanes.
    pub(super) fn give_up(&mut self) {
        self.in_flight.clear();
        self.lows.clear();
        self.epoch = None;
        self.read_goals.clear();
        self.retry_ends.clear();
        self.queries.clear();
        if let Some(assignment) = self.assignment.take() {
            self.shared.timers.release(assignment);
        }
        self.unknown = 0;
        self.recalls = 0;
        self.counting = Arc::default();
        self.status.own(Vec::new());
        self.status.joined.store(false, Ordering::Relaxed);
        self.step(Event::Revoked);
    }

    pub(super) fn events(&mut self) -> Result<(), Error> {
        for event in self.consumer.context().events() {
            match event {
                GroupEvent::Assigned(taken) => self.begin(taken),
                GroupEvent::Revoked => {
                    self.life.revoked();
                    self.give_up();
                }
                GroupEvent::Spare(nobodys) => {
                    self.life.spare();
                    self.give_up();
                    self.status.joined.store(true, Ordering::Relaxed);
                    self.look_at_lanes(nobodys, &[]);
                }
                GroupEvent::Failed(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn begin(&mut self, taken: Taken) {
        let Taken { starts, done, is_recreated, asked_at, changelogs, epoch, nobodys } = taken;
        self.give_up();
        self.life.began();
        self.epoch = Some(epoch);
        // A batch of the assignment before may still be reported.
        let reports = self.committer.reports();
        while reports.try_recv().is_ok() {}
        let partitions = starts.len();
        let now = self.at();
        let (behind, read): (Vec<&Start>, Vec<&Start>) =
            starts.iter().partition(|start| start.next < start.end);
        for start in behind {
            self.read_goals.begin(start.source, start.end, asked_at, now);
        }
        let read: Vec<Source> = read.iter().map(|start| start.source).collect();
        self.starts = starts.iter().map(|start| (start.source, start.next)).collect();
        // The owner before may not have lived to delete it.
        self.lows.extend(done);
        // Taking over has resumed all.
        self.paused.clear();
        self.held = false;
        let intakes = self.plan.setup.topics.intakes.len();
        let of_intakes = starts.iter().filter(|start| usize::from(start.source.topic.0) < intakes);
        let intakes: Vec<Start> = of_intakes.cloned().collect();
        let given: BTreeSet<Lane> = starts.iter().map(|start| start.source.lane).collect();
        self.step(Event::Assigned { starts });
        if is_recreated {
            self.step(Event::Recreated);
        }
        for source in read {
            self.step(Event::ReadUpTo { source, at: asked_at });
        }
        let lanes = self.engine.lanes();
        let assignment = ASSIGNMENTS.fetch_add(1, Ordering::Relaxed);
        self.assignment = Some(assignment);
        self.unknown = lanes.len();
        let changelogs = changelogs.into_iter().filter(|(lane, _)| lanes.contains(lane)).collect();
        let taken = TakenOver { assignment, lanes: lanes.clone(), changelogs, intakes };
        self.shared.timers.begin(taken, &self.timer_events.0);
        let figures = self.engine.figures();
        tracing::info!(
            thread = self.plan.thread,
            assignment,
            lanes = figures.lanes,
            partitions,
            unreadable = figures.unreadable,
            "lanes taken over"
        );
        let rest: Vec<Lane> = given.into_iter().filter(|lane| !lanes.contains(lane)).collect();
        self.status.own(lanes);
        self.status.joined.store(true, Ordering::Relaxed);
        self.look_at_lanes(nobodys, &rest);
    }

    /// Says which lanes do not run, and what will happen: those that the group gave to nobody are joined for again, after a while
    /// if that was tried before.
    fn look_at_lanes(&mut self, nobodys: Vec<Lane>, rest: &[Lane]) {
        let lanes = listed(&nobodys);
        if let Some(wait) = self.life.nobodys(self.at(), nobodys) {
            let wait = Duration::from_millis(wait.0);
            tracing::warn!(
                thread = self.plan.thread,
                lanes,
                ?wait,
                "no member was given these lanes: leaving the group and joining it again"
            );
            let why = Error::Nobodys { lanes };
            self.status.tell(Some(format!("{why}, in {} s", wait.as_secs())));
        } else if rest.is_empty() {
            self.status.tell(None);
        } else {
            self.status.tell(Some(format!(
                "lanes {} rest: what is pending in them cannot be read. They go on by themselves when a version is started \
                 that can read it, or when their positions are mended; the log names them",
                listed(rest)
            )));
        }
    }

    /// Leaves the group when it is time for that.
    pub(super) fn rejoin_when_due(&mut self) -> Result<(), Error> {
        match self.life.leaves(self.at()) {
            Some(lanes) => Err(Error::Nobodys { lanes: listed(&lanes) }),
            None => Ok(()),
        }
    }

    /// After a failed batch: what counts is what is committed.
    pub(super) fn take_over_again(&mut self) -> Result<(), Error> {
        let assignment = match self.consumer.assignment() {
            Ok(assignment) if assignment.count() > 0 => assignment,
            // A rebalance is under way, which takes over itself.
            Ok(_) | Err(_) => {
                self.life.spare();
                return Ok(());
            }
        };
        match self.consumer.context().take_over(&self.consumer, &assignment) {
            Ok(taken) => {
                self.begin(taken);
                Ok(())
            }
            Err(error) => {
                let error = Error::from(error);
                if error.is_final() {
                    return Err(error);
                }
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not take the lanes over again yet"
                );
                self.life.failed(self.at(), Failure::TakeOver);
                Ok(())
            }
        }
    }

    /// Leaves the group: commits what is acknowledged, and the others take over at once. Where there are no others, the
    /// thread keeps its `group.instance.id` in the group. If it comes back under it before the session ends, it has its lanes at
    /// once, and does not wait for a new group to form. Not so if the thread is to join again (`is_for_good` is false):
    /// then it leaves so that the group gives its lanes again.
    ///
    /// With the brokers away this can take long, and closing can hang for ever (rust-rdkafka 509). So closing has a
    /// thread of its own, and the process its own end.
    pub(super) fn leave(mut self, is_for_good: bool) {
        let drained = self.engine.is_drained();
        self.give_up();
        self.waits = None;
        let Self { consumer, committer, plan, .. } = self;
        let (done, closed) = crossbeam_channel::bounded(1);
        let closing = std::thread::Builder::new().name("wc-close".into()).spawn(move || {
            let asker = consumer.context().asker();
            let presence = || asker.as_ref().and_then(|asker| consumer.context().presence(asker));
            if is_for_good && presence().is_some_and(|presence| !presence.others) {
                tracing::info!("no other member is in the group: the group.instance.id is kept");
                consumer.context().release(&consumer);
            } else {
                leave_group(&consumer, presence);
            }
            if let Some(asker) = asker {
                aside(asker);
            }
            drop(consumer);
            drop(committer);
            let _ = done.send(());
        });
        if closing.is_ok() && closed.recv_timeout(CLOSE_MAX).is_err() {
            tracing::warn!(
                thread = plan.thread,
                after = ?CLOSE_MAX,
                "the lane thread's consumer or producers do not close; they are left to the end of the process"
            );
        }
        tracing::info!(thread = plan.thread, drained, "lanes released");
    }
}

/// Lanes, for people.
fn listed(lanes: &[Lane]) -> String {
    lanes.iter().map(|lane| lane.0.to_string()).collect::<Vec<_>>().join(", ")
}

/// Leaves the group, so that the others have the lanes at once. Of a static member the end of its client is no leave, so
/// it must have been heard before that.
fn leave_group(consumer: &Consumer, presence: impl Fn() -> Option<GroupPresence>) {
    consumer.unsubscribe();
    let by = Instant::now() + CLOSE_MAX;
    let mut revoked = false;
    while Instant::now() < by {
        let _ = consumer.poll(POLL_SHORT * 20);
        revoked |=
            consumer.context().events().iter().any(|event| matches!(event, GroupEvent::Revoked));
        if revoked && presence().is_none_or(|presence| !presence.mine) {
            break;
        }
    }
}
