//! The questions to other threads, and their answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Lanes, Member};
use crate::cluster::end_offsets;
use crate::cluster::targets::Answer;
use crate::member::commit::Report;
use crate::member::timers::AssignmentEvent;
use waterclock_engine::{Event, Source, UnixMillis};
use waterclock_telemetry as telemetry;

/// A thread that got no end offset of a partition asks again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Pieces of what is known that are taken in one turn.
const PIECES: usize = 2;

impl Lanes<'_> {
    /// Waits for another thread's answer, and takes it; a report of the committer is returned.
    pub(super) fn await_answers(
        &mut self,
        member: &mut Member<'_>,
        most: Duration,
    ) -> Option<Report> {
        let reports = member.reports();
        crossbeam_channel::select! {
            recv(reports) -> report => return report.ok(),
            recv(self.answers.1) -> answer => if let Ok(answer) = answer {
                self.answer(member, answer);
            },
            recv(self.end_offsets.1) -> answer => if let Ok(ends) = answer {
                self.take_ends(member, ends);
            },
            recv(self.timer_events.1) -> event => if let Ok(event) = event {
                self.take_timer_event(member, event);
            },
            default(most) => {}
        }
        None
    }

    /// Takes what has been answered meanwhile.
    pub(super) fn take_answers(&mut self, member: &mut Member<'_>) {
        while let Ok(answer) = self.answers.1.try_recv() {
            self.answer(member, answer);
        }
        while let Ok(answer) = self.end_offsets.1.try_recv() {
            self.take_ends(member, answer);
        }
        for _ in 0..PIECES {
            let Ok(event) = self.timer_events.1.try_recv() else { break };
            self.take_timer_event(member, event);
        }
    }

    fn answer(&mut self, member: &mut Member<'_>, Answer { name, target, away }: Answer) {
        self.lookups_open = self.lookups_open.saturating_sub(1);
        // Before what waits for the answer is let go.
        self.step(member, Event::TargetOutage(Arc::clone(&name), away));
        self.step(member, Event::Target(name, target));
    }

    /// What holds of a lane's timers, which may be forgotten, or how some ended; of an assignment that is over it is dropped.
    fn take_timer_event(&mut self, member: &mut Member<'_>, event: AssignmentEvent) {
        let AssignmentEvent { assignment, event } = event;
        if member.assignment() != Some(assignment) {
            return;
        }
        let loaded = match event {
            Event::TimersLoaded { lane, last: true, .. } => Some(lane),
            Event::Recalled { .. } => {
                self.recalls = self.recalls.saturating_sub(1);
                None
            }
            _ => None,
        };
        self.step(member, event);
        if let Some(lane) = loaded {
            self.unknown = self.unknown.saturating_sub(1);
            self.parts.timers.loaded(assignment, lane);
        }
    }

    /// Asks where partitions end; `stable`: also where open transactions in them begin.
    pub(super) fn ask_for_ends(&mut self, member: &Member<'_>, sources: &[Source], stable: bool) {
        let Some(assignment) = member.assignment() else { return };
        let place = |s: &Source| (Arc::clone(member.topics().name(*s)), i32::from(s.lane.0));
        let partitions = sources.iter().map(place).collect();
        self.ends_asked += sources.len();
        telemetry::end_offsets_asked();
        member.shared.ends.ask(assignment, partitions, stable, &self.end_offsets.0);
    }

    fn take_ends(&mut self, member: &mut Member<'_>, answer: end_offsets::Answer) {
        self.ends_asked = self.ends_asked.saturating_sub(answer.ends.len());
        if member.assignment() != Some(answer.of) {
            return;
        }
        let (now, at) = (Instant::now(), member.at());
        for end in answer.ends {
            let Some(source) = member.topics().source(&end.topic, end.partition) else { continue };
            match (end.last, end.stable) {
                (_, Some(stable)) => {
                    let next = member.positions(&[source]).pop().map(|(_, next)| next);
                    let given_up = next.map(|next| self.read_goals.open(source, next, stable, at));
                    self.pass_foreign(member, source, given_up.unwrap_or_default());
                }
                (Some(last), None) => self.read_goals.add(source, last, end.at, at),
                (None, None) if answer.stable => {}
                (None, None) => self.retry_ends.push((now + ASK_AGAIN, source)),
            }
        }
        self.look_at_positions(member);
    }

    fn pass_foreign(&mut self, member: &mut Member<'_>, source: Source, given_up: Vec<UnixMillis>) {
        if given_up.is_empty() {
            return;
        }
        telemetry::foreign_wait();
        let (topic, partition) = member.topics().place(source);
        tracing::warn!(
            topic,
            partition,
            "a producer's transaction is open for longer than foreign-wait. Due records no longer wait for it. A cancel \
             behind it may be too late; strict order may miss records behind it"
        );
        for at in given_up {
            self.step(member, Event::ReadUpTo { source, at });
        }
    }

    /// Tells the engine which partitions are read to where they ended when that was asked.
    pub(super) fn look_at_positions(&mut self, member: &mut Member<'_>) {
        let (now, time) = (Instant::now(), member.at());
        let awaited = |source| self.engine.is_awaited(source);
        let due = self.read_goals.due(time, awaited);
        for (source, next) in member.positions(&due) {
            for at in self.read_goals.read(source, next) {
                self.step(member, Event::ReadUpTo { source, at });
            }
        }
        let awaited = |source| self.engine.is_awaited(source);
        let suspects = self.read_goals.suspects(time, awaited);
        if !suspects.is_empty() {
            self.ask_for_ends(member, &suspects, true);
        }
        let (again, later) =
            std::mem::take(&mut self.retry_ends).into_iter().partition(|(at, _)| *at <= now);
        self.retry_ends = later;
        let again: Vec<Source> = Vec::into_iter(again).map(|(_, source)| source).collect();
        if !again.is_empty() {
            self.ask_for_ends(member, &again, false);
        }
        let awaited = |source| self.engine.is_awaited(source);
        if let Some(source) = self.read_goals.is_to_be_told(time, awaited) {
            let figures = self.engine.figures();
            let (topic, partition) = member.topics().place(source);
            tracing::warn!(
                thread = member.plan.thread,
                topic,
                partition,
                for_cancels = figures.gated,
                for_order = figures.ordered,
                "a partition is not read yet to where it ended; due records wait for that. A producer's transaction may be \
                 open, or a broker away"
            );
        }
    }

    /// Tells who waits for it that all is decided and committed that stood in the intakes of a lane when that was asked.
    pub(super) fn look_at_goals(&mut self, member: &Member<'_>) {
        // Until it is known what is pending, nothing is decided.
        let Some(assignment) = member.assignment().filter(|_| self.unknown == 0) else { return };
        if !self.parts.timers.has_goals() || !self.queries.is_due(member.at()) {
            return;
        }
        let open = self.parts.timers.goals(assignment);
        let positions = member.positions(&self.queries.unread(&open));
        let has_decided = |ends: &[_], so_far: &mut _| self.engine.has_decided(ends, so_far);
        let reached = self.queries.look(&open, &positions, has_decided);
        if !reached.is_empty() {
            self.parts.timers.reached(&reached);
        }
    }
}
