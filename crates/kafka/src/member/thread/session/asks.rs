//! The questions to other threads, and their answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use super::{Session, millis};
use crate::client::raw;
use crate::cluster::end_offsets;
use crate::cluster::targets::Answer;
use crate::member::timers::AssignmentEvent;
use waterclock_engine::{Event, Lane, Offset, Source, UnixMillis};
use waterclock_telemetry as telemetry;

/// A thread that got no end offset of a partition asks again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Pieces of what is known that are taken in one turn.
const PIECES: usize = 2;

impl Session<'_> {
    /// Waits for another thread's answer, and takes it.
    pub(super) fn await_answers(&mut self, most: Duration) {
        let reports = self.committer.reports();
        crossbeam_channel::select! {
            recv(reports) -> report => if let Ok(report) = report { self.report(report) },
            recv(self.answers.1) -> answer => if let Ok(answer) = answer { self.answer(answer) },
            recv(self.end_offsets.1) -> answer => if let Ok(ends) = answer { self.take_ends(ends) },
            recv(self.timer_events.1) -> event => if let Ok(event) = event {
                self.take_timer_event(event);
            },
            default(most) => {}
        }
    }

    /// Takes what has been answered meanwhile.
    pub(super) fn take_answers(&mut self) {
        let reports = self.committer.reports();
        while let Ok(report) = reports.try_recv() {
            self.report(report);
        }
        while let Ok(answer) = self.answers.1.try_recv() {
            self.answer(answer);
        }
        while let Ok(answer) = self.end_offsets.1.try_recv() {
            self.take_ends(answer);
        }
        for _ in 0..PIECES {
            let Ok(event) = self.timer_events.1.try_recv() else { break };
            self.take_timer_event(event);
        }
    }

    fn answer(&mut self, Answer { name, target, away }: Answer) {
        self.lookups_open = self.lookups_open.saturating_sub(1);
        // Before what waits for the answer is let go.
        self.step(Event::TargetOutage(Arc::clone(&name), away));
        self.step(Event::Target(name, target));
    }

    /// What holds of a lane's timers, which may be forgotten, or how some ended; of an assignment that is over it is dropped.
    fn take_timer_event(&mut self, AssignmentEvent { assignment, event }: AssignmentEvent) {
        if self.assignment != Some(assignment) {
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
        self.step(event);
        if let Some(lane) = loaded {
            self.unknown = self.unknown.saturating_sub(1);
            self.shared.timers.loaded(assignment, lane);
        }
    }

    /// Asks where partitions end; `stable`: also where open transactions in them begin.
    pub(super) fn ask_for_ends(&mut self, sources: &[Source], stable: bool) {
        let Some(assignment) = self.assignment else { return };
        let names = &self.plan.setup.topics;
        let partitions = sources
            .iter()
            .map(|s| (Arc::clone(names.name(s.topic)), i32::from(s.lane.0)))
            .collect();
        self.ends_asked += sources.len();
        telemetry::end_offsets_asked();
        self.shared.ends.ask(assignment, partitions, stable, &self.end_offsets.0);
    }

    fn take_ends(&mut self, answer: end_offsets::Answer) {
        self.ends_asked = self.ends_asked.saturating_sub(answer.ends.len());
        if self.assignment != Some(answer.of) {
            return;
        }
        let (now, at) = (Instant::now(), self.at());
        for end in answer.ends {
            let topic = self.plan.setup.topics.find(&end.topic);
            let lane = u16::try_from(end.partition);
            let (Some(topic), Ok(lane)) = (topic, lane) else { continue };
            let source = Source { topic, lane: Lane(lane) };
            match (end.last, end.stable) {
                (_, Some(stable)) => {
                    let next = self.positions(&[source]).pop().map(|(_, next)| next);
                    let given_up = next.map(|next| self.read_goals.open(source, next, stable, at));
                    self.pass_foreign(source, given_up.unwrap_or_default());
                }
                (Some(last), None) => self.read_goals.add(source, last, end.at, at),
                (None, None) if answer.stable => {}
                (None, None) => self.retry_ends.push((now + ASK_AGAIN, source)),
            }
        }
        self.look_at_positions();
    }

    fn pass_foreign(&mut self, source: Source, given_up: Vec<UnixMillis>) {
        if given_up.is_empty() {
            return;
        }
        telemetry::foreign_wait();
        let topic = &**self.plan.setup.topics.name(source.topic);
        tracing::warn!(
            topic,
            partition = source.lane.0,
            "a producer's transaction is open for longer than foreign-wait. Due records no longer wait for it. A cancel \
             behind it may be too late; strict order may miss records behind it"
        );
        for at in given_up {
            self.step(Event::ReadUpTo { source, at });
        }
    }

    /// Tells the engine which partitions are read to where they ended when that was asked.
    pub(super) fn look_at_positions(&mut self) {
        let (now, time) = (Instant::now(), self.at());
        let awaited = |source| self.engine.is_awaited(source);
        let due = self.read_goals.due(time, awaited);
        for (source, next) in self.positions(&due) {
            for at in self.read_goals.read(source, next) {
                self.step(Event::ReadUpTo { source, at });
            }
        }
        let awaited = |source| self.engine.is_awaited(source);
        let suspects = self.read_goals.suspects(time, awaited);
        if !suspects.is_empty() {
            self.ask_for_ends(&suspects, true);
        }
        let (again, later) =
            std::mem::take(&mut self.retry_ends).into_iter().partition(|(at, _)| *at <= now);
        self.retry_ends = later;
        let again: Vec<Source> = Vec::into_iter(again).map(|(_, source)| source).collect();
        if !again.is_empty() {
            self.ask_for_ends(&again, false);
        }
        let awaited = |source| self.engine.is_awaited(source);
        if let Some(source) = self.read_goals.is_to_be_told(time, awaited) {
            let figures = self.engine.figures();
            tracing::warn!(
                thread = self.plan.thread,
                topic = &**self.plan.setup.topics.name(source.topic),
                partition = source.lane.0,
                for_cancels = figures.gated,
                for_order = figures.ordered,
                "a partition is not read yet to where it ended; due records wait for that. A producer's transaction may be \
                 open, or a broker away"
            );
        }
    }

    /// Tells who waits for it that all is decided and committed that stood in the intakes of a lane when that was asked.
    pub(super) fn look_at_goals(&mut self) {
        // Until it is known what is pending, nothing is decided.
        let Some(assignment) = self.assignment.filter(|_| self.unknown == 0) else { return };
        let now = self.at();
        if !self.shared.timers.has_goals() || !self.queries.is_due(now) {
            return;
        }
        let open = self.shared.timers.goals(assignment);
        let positions = self.positions(&self.queries.unread(&open));
        let is_idle = self.lookups_open == 0 && self.recalls == 0 && self.engine.is_drained();
        let first_sent = self.in_flight.front().map(|first| millis(first.since - self.began));
        let reached = self.queries.look(now, &open, &positions, (is_idle, first_sent));
        if !reached.is_empty() {
            self.shared.timers.reached(&reached);
        }
    }

    /// How far the consumer is in these partitions. Where it polled nothing yet it says nothing, and is where it began.
    fn positions(&self, sources: &[Source]) -> Vec<(Source, Offset)> {
        if sources.is_empty() {
            return Vec::new();
        }
        let list: TopicPartitionList = self.list(sources);
        if raw::positions(self.consumer.client(), &list).is_err() {
            return Vec::new();
        }
        let position = |source: &Source| {
            let name = self.plan.setup.topics.name(source.topic);
            let element = list.find_partition(name, i32::from(source.lane.0))?;
            match element.offset() {
                At::Offset(next) => Some((*source, Offset(next))),
                _ => self.starts.get(source).map(|next| (*source, *next)),
            }
        };
        sources.iter().filter_map(position).collect()
    }
}
