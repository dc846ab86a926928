//! Taking lanes over and letting them go.

use waterclock::engine::member::{
    Announced, Ask, Checkpoint, Failure, LaneRules, LogBounds, Loss, Named, Plan, PositionGone,
    Positions, TakeOver, TakeOverError,
};
use waterclock::engine::messages::{Event, Start};
use waterclock::engine::{Lane, Millis, Offset, Source, TopicId};

use super::{Member, Phase, Reading, Tally};
use crate::broker::{Place, Position};
use crate::mutation::Mutation;
use crate::network::{Request, Wake, Why};
use crate::plan::Kind;
use crate::world::{COORDINATOR, World};

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
            Phase::Resting | Phase::Renewing | Phase::Fetching => {
                self.member(slot).rest.revoked();
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
        self.member(slot).rest.revoked();
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
        self.find_committed(slot);
    }

    /// Takes lanes over, once there is a producer whose transactions are decided.
    fn find_committed(&mut self, slot: usize) {
        self.end_what_dead_left_open(slot);
        if self.plan.exactly_once() && self.members[slot].writer.is_none() {
            self.renew(slot);
        } else {
            self.fetch_committed(slot);
        }
    }

    /// Lanes are taken over again.
    pub(super) fn resume_lanes(&mut self, slot: usize) {
        let member = &self.members[slot];
        if member.phase == Phase::Resting
            && member.rest.resumes_in(Millis(self.at)) == Some(Millis(0))
        {
            self.find_committed(slot);
        }
    }

    /// Ends the transactions of members that had lanes and are not in the group.
    fn end_what_dead_left_open(&mut self, slot: usize) {
        if !self.plan.exactly_once() || self.standstill(COORDINATOR).is_some() {
            return;
        }
        let of = |member: &Member| Announced {
            instance: member.slot.to_string(),
            incarnation: member.life.to_string(),
            members: Named::Threads(1),
            has_partitions: !member.lanes.is_empty(),
        };
        let others = self.members.iter().filter(|member| member.slot != slot);
        let announced: Vec<Announced> = others.map(of).collect();
        let (group, members) = (&self.broker.group, &self.members);
        let here = members.iter().filter(|member| group.knows(&member.name));
        let here: Vec<String> = here.map(|member| member.slot.to_string()).collect();
        let is_here = |instance: &str| here.iter().any(|of| of == instance);
        for dead in self.member(slot).fenced.dead(announced, is_here) {
            self.note(|| format!("slot {slot} fences slot {}", dead.instance));
            self.count("members fenced");
            // Whether it is told to come back or not: what was open is decided.
            let id = format!("waterclock-{}", dead.instance).into();
            let _ = self.broker.init(&id);
            self.want_marker();
        }
    }

    /// Begins to take lanes over: what counts is what is committed.
    pub(super) fn fetch_committed(&mut self, slot: usize) {
        let topics = 0..self.lane_topics.len();
        let lanes = &self.members[slot].lanes;
        let sources = topics.flat_map(|topic| {
            lanes.iter().map(move |lane| Source { topic: TopicId(topic as u16), lane: Lane(*lane) })
        });
        let take_over = TakeOver::new(sources.collect(), self.plan.setup.topics.intakes.len());
        self.member(slot).phase = Phase::Fetching;
        self.member(slot).taking = Some(take_over);
        self.member(slot).told_first = None;
        self.ask_next(slot, Ok(Ask::Committed));
    }

    /// Asks what the core wants to know, or does what it says.
    fn ask_next(&mut self, slot: usize, ask: Result<Ask, TakeOverError>) {
        let taking = self.members[slot].taking.as_ref();
        let sources = taking.map(TakeOver::partitions).unwrap_or_default();
        let places = sources.iter().map(|source| self.place(*source)).collect();
        match ask {
            Ok(Ask::Committed) => self.ask(slot, Request::FetchCommitted(places)),
            Ok(Ask::Logs) => {
                let now = self.now(slot);
                self.member(slot).logs_asked = now;
                // It may stand still before it asks, and others do and delete what it takes for its own.
                self.fault_between_steps(slot);
                let (process, round) = (self.members[slot].process(), self.members[slot].round);
                self.wake(process, 0, Wake::Again(round, Request::Logs(places)));
            }
            Ok(Ask::Checkpoints) => self.ask(slot, Request::Checkpoints(places)),
            Ok(Ask::Begin(plan)) => self.take_over(slot, plan),
            Err(TakeOverError::Unsettled) => self.discard(slot, "unsettled"),
            Err(TakeOverError::Gone(gone)) => self.position_gone(slot, gone),
        }
    }

    /// Gives the core an answer.
    fn answered(
        &mut self,
        slot: usize,
        answer: impl FnOnce(&mut TakeOver, &Positions) -> Result<Ask, TakeOverError>,
    ) {
        let member = self.member(slot);
        let Some(taking) = member.taking.as_mut() else { return };
        let ask = answer(taking, &member.known);
        self.ask_next(slot, ask);
    }

    pub(super) fn told_committed(&mut self, slot: usize, committed: Vec<Option<Position>>) {
        let believes_old = self.mutation == Some(Mutation::BelievesOldPositions);
        let first = self.member(slot).told_first.get_or_insert_with(|| committed.clone()).clone();
        let committed = if believes_old { first } else { committed };
        let of = |position: Position| (Offset(position.next), position.metadata);
        let committed = committed.into_iter().map(|position| position.map(of)).collect();
        self.answered(slot, |taking, known| taking.committed::<LaneRules>(committed, known));
    }

    pub(super) fn told_logs(&mut self, slot: usize, logs: Vec<LogBounds>) {
        let ids = vec![String::new(); self.lane_topics.len()];
        self.answered(slot, |taking, known| taking.logs::<LaneRules>(logs, ids, known));
    }

    pub(super) fn told_checkpoints(&mut self, slot: usize, found: Vec<(Place, Position)>) {
        let of = |(place, position): (Place, Position)| {
            let Position { next, metadata } = position;
            let checkpoint = Checkpoint { id: String::new(), next: Offset(next), metadata };
            Some((self.source(place)?, checkpoint))
        };
        let found = found.into_iter().filter_map(of).collect();
        self.answered(slot, |taking, known| taking.checkpoints::<LaneRules>(found, known));
    }

    /// Lanes are taken over as planned.
    fn take_over(&mut self, slot: usize, plan: Plan) {
        self.member(slot).taking = None;
        let fresh = plan.fresh().map(|commit| {
            let place = self.place(commit.source);
            (place, Position { next: commit.next.0, metadata: commit.metadata })
        });
        let fresh: Vec<(Place, Position)> = fresh.collect();
        if !fresh.is_empty() {
            let who = self.members[slot].identity();
            if self.broker.commit(&who.member, who.generation, &fresh).is_err() {
                return self.discard(slot, "first positions refused");
            }
            // A lane that was started is known by that from now on.
            self.write_checkpoints(&fresh);
        }
        self.say_what_is_lost(&plan);
        self.member(slot).known.taken(&plan);
        // With doubles about, which of them was given back cannot be told.
        let mut exact = self.plan.exactly_once() && self.plan.kind != Kind::Strict;
        let ends = plan.starts.iter().map(|start| (self.place(start.source), start.log.end));
        self.member(slot).ends = ends.collect();
        let (now, asked) = (Millis(self.at), self.members[slot].logs_asked);
        let (mut starts, mut read) = (Vec::new(), Vec::new());
        for start in plan.starts() {
            let Start { source, next, end, .. } = start;
            let metadata = match self.mutation {
                Some(Mutation::ForgetsWindow) => String::new(),
                _ => start.metadata,
            };
            exact &= metadata.is_empty();
            let reading = Reading { next, upto: next, paused: false, from: self.at };
            self.member(slot).reading.insert(source, reading);
            let end = if self.mutation == Some(Mutation::SkipsGate) { next } else { end };
            if next < end {
                self.member(slot).goals.begin(source, end, asked, now);
            } else {
                read.push(source);
            }
            // Mostly nothing is gone. The rest is counted all the same, and no timer may be lost by that.
            let gone = start.gone || (self.at + u64::from(source.topic.0)).is_multiple_of(7);
            starts.push(Start { source, next, metadata, end, gone });
        }
        self.member(slot).tally = Tally { exact, ..Tally::default() };
        self.member(slot).phase = Phase::Running;
        self.member(slot).rest.began();
        self.count("assignments");
        self.taken_over();
        self.step(slot, Event::Assigned { starts });
        let round = self.members[slot].round;
        for source in read {
            self.read_up_to(slot, round, source, asked);
        }
        for lane in self.members[slot].lanes.clone() {
            self.look_at_index(slot, i32::from(lane));
            self.order_changelog_end(slot, Lane(lane), Why::Known);
        }
        self.step(slot, Event::Tick);
        self.stirred = true;
    }

    fn say_what_is_lost(&mut self, plan: &Plan) {
        for start in &plan.starts {
            let Some(Loss { count, from, until, .. }) = start.loss else { continue };
            let place = self.place(start.source);
            self.note(|| format!("{place:?} lost {count} from {from:?} to {until:?}"));
            if self.mutation != Some(Mutation::LosesInSilence) {
                self.count("losses told");
                self.told_lost.push((place, from, until));
            }
        }
    }

    /// A person says where to go on: at the log's start, where retention has deleted what was never read. Elsewhere nobody
    /// should ever have to.
    fn position_gone(&mut self, slot: usize, PositionGone { source, first }: PositionGone) {
        let place = self.place(source);
        if self.plan.kind != Kind::Retention {
            let what = format!("{place:?} begins at {first:?}, and where it stands is not known");
            return self.breach("liveness", what);
        }
        self.count("positions reset");
        self.told_lost.push((place, Offset(0), first));
        let position = Position { next: first.0, metadata: String::new() };
        let who = self.members[slot].identity();
        match self.broker.commit(&who.member, who.generation, &[(place, position)]) {
            Ok(()) => self.fetch_committed(slot),
            Err(_) => self.discard(slot, "first positions refused"),
        }
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
        self.member(slot).phase = Phase::Resting;
        self.step(slot, Event::Revoked);
        // Consumers join again when the group refuses their offsets. To a producer that says only that the batch failed.
        let is_told = why == "old generation" && !self.plan.exactly_once();
        if finishing || is_told || why == "first positions refused" {
            return self.join(slot);
        }
        let failure = match why {
            "deleted before the reader" => Failure::Outside,
            "unsettled" => Failure::TakeOver,
            _ => Failure::Work,
        };
        let now = Millis(self.at);
        self.member(slot).rest.failed(now, failure);
        let wait = self.members[slot].rest.resumes_in(now).unwrap_or_default();
        let (process, round) = (self.members[slot].process(), self.members[slot].round);
        self.wake(process, wait.0, Wake::Resume(round));
    }
}
