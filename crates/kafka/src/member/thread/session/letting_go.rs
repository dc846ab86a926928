//! Partitions that are let go after the rebalance callback has returned, and signs that the group still has the member
//! (ADR 0027).
//!
//! # Invariants
//! 1. Partitions that the group wants back are let go within [`LET_GO_MAX`]. The group waits for that.
//! 2. Until then the session polls and commits, by the right of the assignment that ends.
//! 3. An assignment that is lost ends at once.

use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;

use super::Session;
use crate::member::thread::role::Role;
use crate::member::thread::{Error, millis};

/// How long the group waits for partitions that it wants back: less than a session.
const LET_GO_MAX: Duration = Duration::from_secs(5);
/// Between two signs that the group has the member. A session is longer, by more than one that gets lost.
const SIGN_EVERY: Duration = Duration::from_secs(1);

impl<R: Role> Session<'_, R> {
    /// The group wants the partitions back. Its callback has returned, and librdkafka waits for the unassign.
    pub(super) fn begin_letting_go(&mut self) {
        self.let_go_by = Some(Instant::now() + LET_GO_MAX);
        if self.member.assignment.is_some() {
            self.role.ending(&mut self.member, millis(LET_GO_MAX));
        }
    }

    /// Lets the partitions go that the group wants back, once nothing of them is held.
    pub(super) fn let_go_when_due(&mut self) -> Result<(), Error> {
        let Some(by) = self.let_go_by else { return Ok(()) };
        let holds = self.member.assignment.is_some() && !self.role.has_let_go();
        let is_lost = self.member.consumer.assignment_lost();
        let late = Instant::now() >= by;
        if holds && !is_lost && !late {
            return Ok(());
        }
        let plan = self.member.plan;
        if holds && late {
            tracing::warn!(
                thread = plan.thread,
                within = ?LET_GO_MAX,
                step = self.member.committer.step(),
                "not all is committed of the partitions that the group wants back; their next owner finds it in doubt"
            );
        }
        let consumer = &self.member.consumer;
        consumer.context().let_go(consumer, Duration::ZERO);
        self.events()
    }

    /// Asks the group now and then whether it has this member.
    pub(super) fn ask_for_sign(&mut self, at: Instant) {
        let member = &mut self.member;
        let (Some(assignment), Some(topic)) =
            (member.assignment, &member.consumer.context().who.topics.sign)
        else {
            return;
        };
        if member.signed.is_some_and(|signed| at - signed < SIGN_EVERY) {
            return;
        }
        member.signed = Some(at);
        fail::fail_point!("no_signs", |_| ());
        let since = member.at();
        let signs = &member.consumer.context().signs;
        signs.ask(member.consumer.client(), topic, (assignment, since));
    }

    /// Tells the role that the group has heard this member, if it has.
    pub(super) fn take_sign(&mut self) {
        let heard =
            self.member.assignment.and_then(|of| self.member.consumer.context().signs.take(of));
        if let Some(since) = heard {
            self.role.heard(&mut self.member, since);
        }
    }
}
