//! Partitions come and go: taken over, taken over again after a failed batch, let go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::{Membership, POLL_SHORT, Session};
use crate::client::connect::aside;
use crate::member::rebalance::{Context, GroupEvent, GroupPresence, SETTLE, Taken};
use crate::member::thread::Error;
use crate::member::thread::role::Role;
use waterclock_engine::Lane;
use waterclock_engine::member::{Failure, Rules};

/// How long leaving the group and closing is waited for: together with the drain (8 s), a stop takes less than 10 s.
const CLOSE_MAX: Duration = Duration::from_millis(1_500);

/// Tells assignments apart, those of all threads.
static ASSIGNMENTS: AtomicU64 = AtomicU64::new(1);

impl<R: Role> Session<'_, R> {
    /// Drops everything that is held of the partitions.
    pub(super) fn give_up(&mut self) {
        let member = &mut self.member;
        self.renewal = None;
        member.in_flight.clear();
        member.lows.clear();
        member.epoch = None;
        member.signed = None;
        let assignment = member.assignment.take();
        member.status.own(Vec::new());
        member.status.joined.store(false, Ordering::Relaxed);
        self.role.revoked(member, assignment);
    }

    pub(super) fn events(&mut self) -> Result<(), Error> {
        for event in self.member.consumer.context().events() {
            match event {
                GroupEvent::Assigned(taken) => self.begin(taken),
                GroupEvent::Revoking => self.begin_letting_go(),
                GroupEvent::Revoked => {
                    self.let_go_by = None;
                    self.member.life.revoked();
                    self.give_up();
                }
                GroupEvent::Spare(nobodys) => {
                    self.member.life.spare();
                    self.give_up();
                    self.member.status.joined.store(true, Ordering::Relaxed);
                    self.look_at_lanes(nobodys, &[]);
                }
                GroupEvent::Failed(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn begin(&mut self, taken: Taken) {
        self.give_up();
        let member = &mut self.member;
        member.life.began();
        member.epoch = Some(Arc::clone(&taken.epoch));
        // A batch of the assignment before may still be reported.
        let reports = member.reports();
        while reports.try_recv().is_ok() {}
        member.starts = taken.starts.iter().map(|start| (start.source, start.next)).collect();
        // The owner before may not have lived to delete it.
        member.lows.extend(taken.done.iter().copied());
        // Taking over has resumed all.
        member.paused.clear();
        member.held = false;
        let assignment = ASSIGNMENTS.fetch_add(1, Ordering::Relaxed);
        member.assignment = Some(assignment);
        let nobodys = taken.nobodys.clone();
        let given: BTreeSet<Lane> = member.starts.keys().map(|source| source.lane).collect();
        self.role.begin(member, assignment, taken);
        let lanes = self.role.lanes();
        let rest: Vec<Lane> = given.into_iter().filter(|lane| !lanes.contains(lane)).collect();
        member.status.own(lanes);
        member.status.joined.store(true, Ordering::Relaxed);
        self.look_at_lanes(nobodys, &rest);
    }

    /// Says which lanes do not run, and what will happen: those that the group gave to nobody are joined for again, after a while
    /// if that was tried before.
    fn look_at_lanes(&mut self, nobodys: Vec<Lane>, rest: &[Lane]) {
        let lanes = listed(&nobodys);
        let Membership { plan, status, .. } = self.member;
        let now = self.member.at();
        if let Some(wait) = self.member.life.nobodys(now, nobodys) {
            let wait = Duration::from_millis(wait.0);
            tracing::warn!(
                thread = plan.thread,
                lanes,
                ?wait,
                "no member was given these lanes: leaving the group and joining it again"
            );
            let why = Error::Nobodys { lanes };
            status.tell(Some(format!("{why}, in {} s", wait.as_secs())));
        } else if rest.is_empty() {
            status.tell(None);
        } else {
            status.tell(Some(format!(
                "lanes {} rest: what is pending in them cannot be read. They go on by themselves when a version is started \
                 that can read it, or when their positions are mended; the log names them",
                listed(rest)
            )));
        }
    }

    /// Leaves the group when it is time for that.
    pub(super) fn rejoin_when_due(&mut self) -> Result<(), Error> {
        let now = self.member.at();
        match self.member.life.leaves(now) {
            Some(lanes) => Err(Error::Nobodys { lanes: listed(&lanes) }),
            None => Ok(()),
        }
    }

    /// After a failed batch: what counts is what is committed.
    pub(super) fn take_over_again(&mut self) -> Result<(), Error> {
        let assignment = match self.member.consumer.assignment() {
            Ok(assignment) if assignment.count() > 0 => assignment,
            // A rebalance is under way, which takes over itself.
            Ok(_) | Err(_) => {
                self.member.life.spare();
                return Ok(());
            }
        };
        let consumer = &self.member.consumer;
        match consumer.context().take_over(consumer, &assignment) {
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
                let now = self.member.at();
                self.member.life.failed(now, Failure::TakeOver);
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
        let drained = self.role.is_drained();
        let is_revoked = self.let_go_by.is_some();
        self.give_up();
        (self.waits, self.member.bell) = (None, None);
        let context = self.member.consumer.context();
        context.lets_go_at_once();
        if is_revoked {
            // librdkafka waits for this, and would not leave the group before.
            context.let_go(&self.member.consumer, Duration::ZERO);
        }
        let Membership { consumer, committer, plan, .. } = self.member;
        let (done, closed) = crossbeam_channel::bounded(1);
        let closing = std::thread::Builder::new().name("wc-close".into()).spawn(move || {
            let asker = consumer.context().asker();
            let presence = || asker.as_ref().and_then(|asker| consumer.context().presence(asker));
            if is_for_good && presence().is_some_and(|presence| !presence.others) {
                tracing::info!("no other member is in the group: the group.instance.id is kept");
                consumer.context().release(&consumer, SETTLE);
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
        tracing::info!(thread = plan.thread, drained, "partitions released");
    }
}

/// Lanes, for people.
fn listed(lanes: &[Lane]) -> String {
    lanes.iter().map(|lane| lane.0.to_string()).collect::<Vec<_>>().join(", ")
}

/// Leaves the group, so that the others have the lanes at once. Of a static member the end of its client is no leave, so
/// it must have been heard before that.
fn leave_group<R: Rules>(
    consumer: &BaseConsumer<Context<R>>,
    presence: impl Fn() -> Option<GroupPresence>,
) {
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
