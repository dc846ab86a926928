//! Feeds the engine: its time, its records, and the actions that come out.

use std::collections::VecDeque;
use std::sync::Arc;

use waterclock::engine::member::ReadGoals;
use waterclock::engine::messages::{Action, Event, Produce, Start};
use waterclock::engine::{
    self, Arrival, Lane, LaneEngine, Millis, Offset, Source, TopicId, UnixMillis,
};

use super::{Member, Phase, Reading, Up, number_of};
use crate::broker::{Place, Refusal, Time};
use crate::mutation::Mutation;
use crate::network::{Request, Scheduled, Wake, Why};
use crate::plan::{Kind, SECOND};
use crate::world::World;

/// How often to look how far partitions are read, while nothing else happens: as often as for open transactions.
const LOOK_EVERY: Time = 200;

impl World {
    // The engine.

    pub(super) fn step(&mut self, slot: usize, event: Event) {
        let now = self.now(slot);
        self.note(|| format!("slot {slot} now {} {}", now.0, brief(&event)));
        let mut out = Vec::new();
        let Some(engine) = self.member(slot).engine.as_mut() else { return };
        engine.step(now, event, &mut out);
        let wake_at = engine.wake_at();
        let is_within = std::mem::replace(&mut self.member(slot).ordering, true);
        for output in out {
            self.note(|| format!("slot {slot}   -> {}", brief_order(&output)));
            self.carry_out(slot, output);
        }
        self.member(slot).ordering = is_within;
        // A later action of the same step may give memory back, so memory is checked only after all of them.
        if !is_within {
            self.check_memory(slot);
        }
        if let Some(wake_at) = wake_at {
            let oversleeps = self.mutation == Some(Mutation::Oversleeps);
            let wait = (wake_at - now).0.max(1) + if oversleeps { 2 * SECOND } else { 0 };
            let at = self.at + wait;
            if self.members[slot].tick_at.is_none_or(|queued| at < queued) {
                self.member(slot).tick_at = Some(at);
                let process = self.members[slot].process();
                // One that was asked for and is not wanted any more stands there still.
                if self.member(slot).ticks.insert(at) {
                    self.wake(process, wait, Wake::Tick);
                }
            }
        } else {
            self.member(slot).tick_at = None;
        }
        self.drive(slot);
    }

    pub(super) fn check_memory(&mut self, slot: usize) {
        let member = &self.members[slot];
        let Some(figures) = member.engine.as_ref().map(LaneEngine::figures) else { return };
        let limits = &self.plan.setup.limits;
        let (held, tally) = (figures.memory_bytes, &member.tally);
        // What holds others up in strict order is read up to a quarter beyond it, and the first that waits does not count.
        let beyond = match limits.arrival {
            Arrival::Strict => limits.memory_bytes / 4 + tally.largest,
            Arrival::ByDue => 0,
        };
        let budget = limits.memory_bytes + beyond;
        if held > budget + tally.largest {
            let what =
                format!("slot {slot} holds {held}; budget {budget}, largest {}", tally.largest);
            self.breach("memory", what);
        } else if tally.exact && tally.bytes > held {
            let what = format!("slot {slot} says {held} and was given {}", tally.bytes);
            self.breach("memory", what);
        }
        let spilled = figures.spilled - self.members[slot].spilled;
        if spilled > 0 {
            self.member(slot).spilled = figures.spilled;
            *self.seen.entry("spilled").or_default() += spilled;
        }
        let lost = if self.plan.kind == Kind::Retention { 0 } else { figures.lost };
        if lost + figures.unreadable > 0 {
            self.breach("never lost", format!("slot {slot}: {figures:?}"));
        }
    }

    pub(super) fn carry_out(&mut self, slot: usize, output: Action) {
        match output {
            Action::Pause(source) => {
                if self.mutation != Some(Mutation::NeverPauses)
                    && let Some(reading) = self.member(slot).reading.get_mut(&source)
                {
                    reading.paused = true;
                }
            }
            Action::Resume(source) => self.resume(slot, source),
            Action::Seek(source, offset) => self.rewind(slot, source, offset),
            Action::DescribeTarget(name) => {
                let process = self.members[slot].process();
                self.member(slot).asking.insert(Arc::clone(&name));
                self.request(process, 0, Request::DescribeSlowly(name));
            }
            Action::ListEndOffsets(sources) => self.ask_ends(slot, sources),
            Action::ListExpired(lane) => self.order_changelog_end(slot, lane, Why::Ended),
            Action::Recall { lane, timers } => {
                self.order_changelog_end(slot, lane, Why::Recall(timers));
            }
            Action::Overdue { lane, before, after } => {
                self.tell_overdue(slot, lane, before, after);
            }
            Action::Inventory { lane, from } => {
                self.count("lanes counted");
                let from = from.into_iter().map(|(source, low)| (self.place(source), low));
                let from = from.collect();
                self.next_left(slot, lane, from);
            }
            Action::Batch(batch) => self.take_batch(slot, batch),
        }
    }

    fn next_left(&mut self, slot: usize, lane: Lane, from: VecDeque<(Place, Offset)>) {
        // Not drawn: what a seed does stays the same.
        let wait = self.at % 300 + 1;
        let (process, round) = (self.members[slot].process(), self.members[slot].round);
        self.wake(process, wait, Wake::Left(round, lane, from));
    }

    /// Reads the next partition of what is left of a lane, whatever became of transactions.
    pub(super) fn read_left(
        &mut self,
        slot: usize,
        lane: Lane,
        mut from: VecDeque<(Place, Offset)>,
    ) {
        let Some((place, mut low)) = from.pop_front() else {
            // Now and then it could not be read.
            let is_complete = !self.at.is_multiple_of(5);
            self.step(slot, Event::Counted { lane, is_complete });
            return self.step(slot, Event::Tick);
        };
        let mut records = Vec::new();
        if let (Some(log), Some(source)) = (self.broker.partition(place), self.source(place)) {
            low = low.max(log.start());
            while let Some((offset, entry)) = log.next_any(low) {
                let record = entry.record.as_ref();
                let setup = &self.plan.setup;
                records.extend(record.and_then(|record| {
                    engine::left(setup, (source, offset), entry.appended, record)
                }));
                low = offset.next();
            }
        }
        if self.mutation == Some(Mutation::CountsHalf) {
            records.truncate(records.len() / 2);
        }
        self.step(slot, Event::Left { lane, records });
        self.next_left(slot, lane, from);
    }

    pub(super) fn resume(&mut self, slot: usize, source: Source) {
        if self.mutation == Some(Mutation::NeverResumes) {
            return;
        }
        let wait = self.chance.between(0, self.plan.network.resume_max);
        let at = self.at + wait;
        if let Some(reading) = self.member(slot).reading.get_mut(&source) {
            *reading = Reading { paused: false, from: at, ..*reading };
            let process = self.members[slot].process();
            self.wake(process, wait, Wake::Poll);
        }
    }

    pub(super) fn rewind(&mut self, slot: usize, source: Source, offset: Offset) {
        self.count("rewinds");
        let Some(reading) = self.member(slot).reading.get_mut(&source) else { return };
        if !reading.paused || offset > reading.upto {
            let what = format!("rewind of {source:?} to {offset:?} while it is at {reading:?}");
            return self.breach("contract", what);
        }
        reading.next = offset;
        self.member(slot).tally.drop_from(source, offset);
    }

    // Reading.

    /// Polls those who could read something.
    pub fn rouse(&mut self) {
        for slot in 0..self.members.len() {
            self.rouse_index(slot);
            self.queue_look(slot);
            let member = &self.members[slot];
            if member.up == Up::Alive
                && member.phase == Phase::Running
                && !member.poll_queued
                && (self.first_readable(slot).is_some() || self.reaches_goal(slot))
            {
                let wait = self.latency();
                let process = self.members[slot].process();
                self.member(slot).poll_queued = true;
                self.wake(process, wait, Wake::Poll);
            }
        }
    }

    pub(super) fn first_readable(&self, slot: usize) -> Option<Source> {
        self.members[slot].reading.keys().copied().find(|source| self.is_readable(slot, *source))
    }

    pub(super) fn is_readable(&self, slot: usize, source: Source) -> bool {
        self.members[slot].reading.get(&source).is_some_and(|reading| {
            !reading.paused
                && reading.from <= self.at
                && !self.is_silent(self.place(source))
                && !matches!(self.broker.fetch(self.place(source), reading.next), Ok(None))
        })
    }

    pub(super) fn poll(&mut self, slot: usize) {
        let stalls = self.mutation == Some(Mutation::StallsForTargets)
            && !self.members[slot].asking.is_empty();
        if self.members[slot].phase != Phase::Running || stalls {
            return;
        }
        let round = self.members[slot].round;
        let sources: Vec<Source> = self.members[slot].reading.keys().copied().collect();
        let mut ready: Vec<Source> =
            sources.into_iter().filter(|source| self.is_readable(slot, *source)).collect();
        for _ in 0..self.chance.between(1, self.plan.poll_max) {
            let able = self.members[slot].round == round && self.members[slot].up == Up::Alive;
            if ready.is_empty() || !able {
                break;
            }
            let index = self.chance.below(ready.len());
            if !self.read(slot, ready[index]) {
                ready.swap_remove(index);
            }
        }
        if self.members[slot].round == round && self.members[slot].phase == Phase::Running {
            self.tell_reached(slot);
        }
        if self.members[slot].round == round && self.members[slot].phase == Phase::Running {
            self.step(slot, Event::Tick);
        }
        self.stirred = true;
    }

    // How far partitions are read.

    /// How far the consumer is in a partition: it passes markers and what was aborted.
    fn read_to(&self, slot: usize, source: Source) -> Option<Offset> {
        let (reading, place) = (self.members[slot].reading.get(&source)?, self.place(source));
        if reading.from > self.at || self.is_silent(place) {
            return Some(reading.next);
        }
        let log = self.broker.partition(place)?;
        Some(match self.broker.fetch(place, reading.next) {
            Ok(Some((offset, _))) => offset,
            Ok(None) => reading.next.max(log.last_stable()),
            Err(_) => reading.next,
        })
    }

    fn is_awaited(&self, slot: usize, source: Source) -> bool {
        self.members[slot].engine.as_ref().is_some_and(|engine| engine.is_awaited(source))
    }

    /// Whether a partition is read to where it is to be read, and looked at now.
    fn reaches_goal(&self, slot: usize) -> bool {
        let goals = &self.members[slot].goals;
        let is_due = |source: &Source| {
            goals.is_due(*source, Millis(self.at), |source| self.is_awaited(slot, source))
        };
        goals.sources().filter(is_due).any(|source| {
            self.read_to(slot, source).is_some_and(|next| goals.is_reached(source, next))
        })
    }

    /// Sees to it that somebody looks again while partitions are to be read somewhere: soon if something waits for that, and
    /// else once they are.
    fn queue_look(&mut self, slot: usize) {
        let member = &self.members[slot];
        if member.looks_queued || member.up != Up::Alive || member.phase != Phase::Running {
            return;
        }
        let goals = &member.goals;
        let is_read =
            |source| self.read_to(slot, source).is_some_and(|next| goals.is_reached(source, next));
        let wait = if goals.patience(|source| self.is_awaited(slot, source)).is_some() {
            LOOK_EVERY
        } else if goals.sources().any(is_read) {
            SECOND
        } else {
            return;
        };
        let (process, round) = (member.process(), member.round);
        self.member(slot).looks_queued = true;
        self.wake(process, wait, Wake::Look(round));
    }

    /// Tells the engine which partitions are read to where they ended when that was asked, or wait for a foreign transaction
    /// for long enough.
    fn tell_reached(&mut self, slot: usize) {
        let (now, round) = (Millis(self.at), self.members[slot].round);
        let due = self.look(slot, |goals, awaited| goals.due(now, awaited));
        for source in due {
            let Some(next) = self.read_to(slot, source) else { continue };
            for at in self.member(slot).goals.read(source, next) {
                self.read_up_to(slot, round, source, at);
            }
        }
        let suspects = self.look(slot, |goals, awaited| goals.suspects(now, awaited));
        for source in suspects {
            let place = self.place(source);
            let stable = self.broker.partition(place).map(|log| (log.last_stable(), log.end()));
            let (Some((stable, end)), Some(next)) = (stable, self.read_to(slot, source)) else {
                continue;
            };
            if self.is_silent(place) {
                continue;
            }
            if stable <= next && next < end {
                self.count("foreign transactions seen");
            }
            for at in self.member(slot).goals.open(source, next, stable, now) {
                self.read_up_to(slot, round, source, at);
            }
        }
        self.queue_look(slot);
    }

    fn look(
        &mut self,
        slot: usize,
        look: impl FnOnce(&mut ReadGoals, &dyn Fn(Source) -> bool) -> Vec<Source>,
    ) -> Vec<Source> {
        let Member { goals, engine, .. } = self.member(slot);
        let Some(engine) = engine.as_ref() else { return Vec::new() };
        look(goals, &|source| engine.is_awaited(source))
    }

    pub(super) fn read_up_to(&mut self, slot: usize, round: u64, source: Source, at: UnixMillis) {
        if self.mutation == Some(Mutation::WaitsForResults) && self.has_unread_results(source.lane)
        {
            let process = self.members[slot].process();
            return self.wake(process, LOOK_EVERY, Wake::ReadUpTo(round, source, at));
        }
        if self.members[slot].round == round {
            if self.member(slot).asked.remove(&source) {
                self.count("ends passed");
            }
            self.step(slot, Event::ReadUpTo { source, at });
        }
    }

    // Where a partition ends: asked for, and passed.

    fn ask_ends(&mut self, slot: usize, sources: Vec<Source>) {
        let at = self.members[slot].last_now;
        for source in sources {
            if !self.member(slot).asked.insert(source) {
                let what = format!("{source:?} is asked for, and was not answered yet");
                self.breach("contract", what);
            }
            let place = self.place(source);
            if self.mutation == Some(Mutation::PassesUnread) {
                self.told_end(slot, source, at, Offset(0));
            } else {
                let (process, round) = (self.members[slot].process(), self.members[slot].round);
                let wait = self.latency().max(1);
                self.after(
                    wait,
                    Scheduled::Arrives(process, round, Request::End(source, place, at)),
                );
            }
        }
    }

    pub(super) fn told_end(&mut self, slot: usize, source: Source, at: UnixMillis, end: Offset) {
        let now = Millis(self.at);
        self.member(slot).goals.add(source, end, at, now);
        self.stirred = true;
    }

    /// Hands over the next record of a partition, if there is one and it may be read.
    pub(super) fn read(&mut self, slot: usize, source: Source) -> bool {
        if !self.is_readable(slot, source) {
            return false;
        }
        let next = self.members[slot].reading[&source].next;
        let fetched = self.broker.fetch(self.place(source), next);
        let (offset, appended, record) = match fetched {
            Ok(Some((offset, entry))) => (offset, entry.appended, entry.record.clone()),
            Ok(None) => return false,
            // What was done before a takeover is committed as done before it is read again, and may then be deleted; or
            // it was deleted by the owner after this one, or by somebody, and not done. The committed position tells, when the
            // lanes are taken over again.
            Err(Refusal::OutOfRange) => {
                self.member(slot).known.refused();
                self.discard(slot, "deleted before the reader");
                return false;
            }
            Err(refusal) => {
                self.breach(
                    "never lost",
                    format!("{source:?} cannot be read at {next:?}: {refusal:?}"),
                );
                return false;
            }
        };
        let Some(record) = record else { return false };
        if let Some(reading) = self.member(slot).reading.get_mut(&source) {
            reading.next = offset.next();
            reading.upto = reading.upto.max(reading.next);
        }
        if source.topic == TopicId(0) && self.is_missed(&record) {
            return true;
        }
        let budget = self.plan.setup.limits.memory_bytes;
        let member = self.member(slot);
        let held = member.engine.as_ref().map_or(0, |engine| engine.figures().memory_bytes);
        if held > budget {
            member.tally.over.insert(source);
        } else {
            member.tally.over.clear();
        }
        member.tally.take_in(source, offset, &record);
        let record = self.unnamed(source, record);
        let believes = self.mutation == Some(Mutation::BelievesCopies);
        let record = if believes { self.believed(record) } else { record };
        let record = self.misread(source, record);
        self.step(slot, Event::Record { source, offset, appended, record });
        true
    }

    pub fn place(&self, source: Source) -> Place {
        let topic = self.lane_topics[usize::from(source.topic.0)];
        Place { topic, partition: i32::from(source.lane.0) }
    }

    pub(super) fn source(&self, place: Place) -> Option<Source> {
        let topic = self.lane_topics.iter().position(|topic| *topic == place.topic)?;
        Some(Source { topic: TopicId(topic as u16), lane: Lane(place.partition as u16) })
    }
}

fn brief(input: &Event) -> String {
    match input {
        Event::Record { source, offset, appended, record } => {
            format!(
                "record n={:?} {source:?} {offset:?} appended {}",
                number_of(record),
                appended.0
            )
        }
        Event::Assigned { starts } => {
            let some = starts.iter().filter(|start| start.end > Offset(0));
            let each = some.map(|start| {
                let Start { source, next, metadata, end, .. } = start;
                format!("{}/{} {} {metadata:?} to {}", source.topic.0, source.lane.0, next.0, end.0)
            });
            format!("assigned {:?}", each.collect::<Vec<_>>())
        }
        other => format!("{other:?}"),
    }
}

fn brief_order(output: &Action) -> String {
    match output {
        Action::Batch(batch) => {
            let one = |send: &Produce| {
                format!("n={:?} {:?} due {}", number_of(&send.record), send.to, send.due.0)
            };
            let sends: Vec<String> = batch.sends.iter().map(one).collect();
            format!("batch {:?} {sends:?} {:?} {:?}", batch.id, batch.commits, batch.answers)
        }
        other => format!("{other:?}"),
    }
}
