//! Taking lanes over and letting them go.

use waterclock::engine::messages::{Event, Start};
use waterclock::engine::window::Window;
use waterclock::engine::{Lane, Offset};

use super::{Phase, Reading, Tally};
use crate::broker::{Place, Position};
use crate::mutation::Mutation;
use crate::network::{Taken, Why};
use crate::plan::Kind;
use crate::world::World;

impl World {
    pub(super) fn rebalance(&mut self, slot: usize) {
        let member = &self.members[slot];
        let known = self.broker.group.knows(&member.name);
        if known && !self.broker.group.awaited().contains(&member.name) {
            return;
        }
        match member.phase {
            Phase::Starting | Phase::Finishing => {}
            Phase::Joining => self.join(slot),
            Phase::Renewing | Phase::Fetching => {
                self.member(slot).forget();
                self.join(slot);
            }
            Phase::Running if !member.idle() && self.chance.percent(50) => {
                self.count("revoked after finishing");
                self.member(slot).phase = Phase::Finishing;
            }
            Phase::Running => {
                self.revoke(slot);
                self.join(slot);
            }
        }
    }

    /// Drops everything. The next producer of the same id aborts a transaction in flight.
    pub(super) fn revoke(&mut self, slot: usize) {
        if !self.members[slot].flights.is_empty() {
            self.count("revoked in flight");
            self.member(slot).writer = None;
        }
        self.members[slot].expose(&mut self.exposed);
        self.member(slot).forget();
        self.step(slot, Event::Revoked);
    }

    pub(super) fn round_over(&mut self, slot: usize) {
        let member = &self.members[slot];
        if member.phase != Phase::Joining {
            return;
        }
        let Some((generation, lanes)) = self.broker.group.assignment(&member.name) else { return };
        let lanes = lanes.to_vec();
        self.note(|| format!("slot {slot} has lanes {lanes:?} in generation {generation}"));
        let member = self.member(slot);
        (member.generation, member.lanes) = (generation, lanes);
        member.round += 1;
        if self.plan.exactly_once() && self.members[slot].writer.is_none() {
            self.renew(slot);
        } else {
            self.fetch_committed(slot);
        }
    }

    /// Lanes are taken over from what is committed.
    pub(super) fn take_over(&mut self, slot: usize, taken: Taken) {
        let Taken { places, committed, ends } = taken;
        let (mut starts, mut fresh) = (Vec::new(), Vec::new());
        if committed.iter().any(Option::is_none) && !self.owns(slot) {
            // It slept since it was told that nothing is known: by now somebody may have started, and deleted what is done.
            return self.discard(slot, "old position");
        }
        // With doubles about, which of them was given back cannot be told.
        let mut exact = self.plan.exactly_once() && self.plan.kind != Kind::Strict;
        let all_ends = places.iter().copied().zip(ends.iter().copied()).collect();
        self.member(slot).ends = all_ends;
        self.member(slot).behind.clear();
        let looks_at_ends = std::mem::take(&mut self.member(slot).looks_at_ends);
        for ((place, position), end) in places.iter().zip(committed).zip(ends) {
            let Some(source) = self.source(*place) else { continue };
            let started = position.is_some();
            let Some(position) = position.or_else(|| self.never_started(*place)) else { return };
            if !started {
                fresh.push((*place, position.clone()));
            }
            let position = if looks_at_ends { self.within_log(*place, position) } else { position };
            let next = Offset(position.next);
            let metadata = match self.mutation {
                Some(Mutation::ForgetsWindow) => String::new(),
                _ => position.metadata,
            };
            exact &= metadata.is_empty();
            let reading = Reading { next, upto: next, paused: false, from: self.at };
            self.member(slot).reading.insert(source, reading);
            let end = if self.mutation == Some(Mutation::SkipsGate) { next } else { end };
            if next < end {
                self.member(slot).behind.insert(source);
            }
            // Mostly nothing is gone. The rest is counted all the same, and no timer may be lost by that.
            let gone = (self.at + u64::from(source.topic.0)).is_multiple_of(7);
            starts.push(Start { source, next, metadata, end, gone });
        }
        if !fresh.is_empty() {
            // A lane that was started is known by that from now on.
            self.write_checkpoints(&fresh);
            let who = self.members[slot].identity();
            if self.broker.commit(&who.member, who.generation, &fresh).is_err() {
                return self.discard(slot, "old generation");
            }
        }
        self.member(slot).tally = Tally { exact, ..Tally::default() };
        self.member(slot).phase = Phase::Running;
        self.count("assignments");
        self.step(slot, Event::Assigned { starts });
        for lane in self.members[slot].lanes.clone() {
            self.look_at_index(slot, i32::from(lane));
            self.order_changelog_end(slot, Lane(lane), Why::Known);
        }
        self.step(slot, Event::Tick);
        self.stirred = true;
    }

    /// The position of a partition of which none is known: its log's start, if nothing of it was ever done.
    fn never_started(&mut self, place: Place) -> Option<Position> {
        let log = self.broker.partition(place)?;
        let (start, end) = (log.start(), log.end());
        let at = |offset: Offset| Some(Position { next: offset.0, metadata: String::new() });
        if self.mutation == Some(Mutation::StartsFromEnd) {
            return at(end);
        }
        let anyway = self.mutation == Some(Mutation::StartsFromBeginning);
        if start > Offset(0) && self.plan.kind == Kind::Retention {
            self.told_lost.push((place, Offset(0), start));
            return at(start);
        }
        if start > Offset(0) && start < end && !anyway {
            self.breach(
                "liveness",
                format!("{place:?} begins at {start:?}, and where it stands is not known"),
            );
            return None;
        }
        at(start)
    }

    /// A position that may be outside of its log: what stood between is lost, and that is said.
    fn within_log(&mut self, place: Place, position: Position) -> Position {
        let Some(log) = self.broker.partition(place) else { return position };
        let (next, start) = (Offset(position.next), log.start());
        if start <= next {
            return position;
        }
        let Ok((next_left, metadata, lost)) = Window::cut(next, &position.metadata, start) else {
            self.breach("model", format!("{place:?} stands at {position:?}"));
            return position;
        };
        if lost > 0 && self.mutation != Some(Mutation::LosesInSilence) {
            self.count("losses told");
            self.note(|| format!("{place:?} lost {lost} from {next:?} to {start:?}"));
            self.told_lost.push((place, next, start));
        }
        Position { next: next_left.0, metadata }
    }

    /// After anything doubtful: nothing that is held is believed, and the producer is another one.
    pub(super) fn discard(&mut self, slot: usize, why: &'static str) {
        self.note(|| format!("slot {slot} discards its lanes: {why}"));
        self.count(why);
        let finishing = self.members[slot].phase == Phase::Finishing;
        self.members[slot].expose(&mut self.exposed);
        self.member(slot).forget();
        self.member(slot).writer = None;
        // Not running: a step's orders are not carried out any more.
        self.member(slot).phase = Phase::Renewing;
        self.step(slot, Event::Revoked);
        if finishing || why == "old generation" || why == "old position" {
            self.join(slot);
        } else if self.plan.exactly_once() {
            self.renew(slot);
        } else {
            self.fetch_committed(slot);
        }
    }
}
