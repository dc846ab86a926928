//! Closes batches: what goes to Kafka together, and what is committed by it.

use std::sync::Arc;

use super::super::header::{Code, Refusal};
use super::super::orders::{Carried, Refused};
use super::super::setup::Limits;
use super::super::state::Kind;
use super::super::timers::{Place, TimerKey};
use super::super::verdict::{self, Entry};
use super::{
    Batch, BatchId, Commit, Edit, Engine, Flight, Lane, Millis, Offset, Output, Send, Source,
    Suspected, To, TopicId, UnixMillis,
};

/// Progress without a record to produce (what was done before a restart, gaps) is committed this often.
const IDLE_COMMIT: Millis = Millis(1_000);

/// With something due within this long, hops leave in smaller batches: what is due waits for the batch before it.
const DUE_SOON: Millis = Millis(20);
/// How many then, at least; a quarter of those that there are, if that is more.
const HOPS_BESIDE_DUE: usize = 256;

impl Engine {
    pub(super) fn committed(&mut self, now: UnixMillis, id: BatchId) {
        // Batches come back in order; one of an assignment that is gone is not among them.
        if self.flying.front().is_some_and(|first| first.id == id)
            && let Some(flight) = self.flying.pop_front()
        {
            self.figures.memory_bytes -= flight.bytes;
            self.last_batch = now;
            self.suspects.acknowledged(&flight.carried);
        }
    }

    /// Kafka refused something of a batch: whom to suspect is remembered, the batch itself goes with `Revoked`.
    pub(super) fn refused(&mut self, now: UnixMillis, refused: &Refused) {
        if let Some(flight) = self.flying.iter().find(|flight| flight.id == refused.batch) {
            self.suspects.refused(now, &flight.carried, self.flying.len() == 1, refused);
        }
    }

    /// Closes batches, as long as one may be closed and there is something for it.
    pub(super) fn close(&mut self, now: UnixMillis, out: &mut Vec<Output>) {
        while self.flying.len() < self.setup.limits.batches_max {
            let open_at = self.last_batch + self.setup.limits.batch_gap;
            let gap =
                self.flying.is_empty() && self.last_batch <= now && now < open_at && !self.draining;
            if gap {
                self.wake(open_at);
                return;
            }
            let batch = match self.turn_to_test(now) {
                Test::Wait => return,
                Test::Now(group) => self.fill_test(now, group),
                Test::No => self.fill(now, out),
            };
            // Nothing else is to be done: what is held for a test need not wait for its turn.
            let Some(batch) = batch.or_else(|| self.idle_test(now)) else { break };
            out.push(Output::Batch(batch));
        }
        // With no room for another batch the answer to one is what wakes us.
        if self.flying.len() < self.setup.limits.batches_max {
            if let Some(due) = self.wheel.next_due() {
                self.wake(due);
            }
            if let Some(ripe) = self.outbox.ripe_at(self.linger()) {
                self.wake(ripe);
            }
            if self.dirty {
                self.wake(self.last_commit + IDLE_COMMIT);
            }
            if self.suspects.next().is_some() {
                self.wake(self.test_at);
            }
            if let Some(at) = self.remembered.forget_at() {
                self.wake(at);
            }
        }
    }

    // Suspects leave in batches of their own, one at a time; in turns with the others, which so are held up by one
    // failure and never by all of them.

    fn turn_to_test(&self, now: UnixMillis) -> Test {
        if self.flying.iter().any(|flight| flight.test) {
            return Test::Wait;
        }
        match self.suspects.next() {
            Some(group) if !self.tested && (self.test_at <= now || self.draining) => {
                if self.flying.is_empty() { Test::Now(group) } else { Test::Wait }
            }
            _ => Test::No,
        }
    }

    fn idle_test(&mut self, now: UnixMillis) -> Option<Batch> {
        self.tested = false;
        match self.turn_to_test(now) {
            Test::Now(group) => self.fill_test(now, group),
            Test::Wait | Test::No => None,
        }
    }

    fn fill_test(&mut self, now: UnixMillis, group: u64) -> Option<Batch> {
        self.tested = true;
        let mut load = Load::new(&self.setup.limits);
        while load.room()
            && let Some(Suspected { source, offset, send, named }) = self.suspects.take(group)
        {
            // A cancel may have come while it was held.
            match named.filter(|named| self.is_named_cancelled(source.lane, *named)) {
                Some((timer, _)) => {
                    self.meet_record(now, (source, offset), timer, send.record, send.due);
                    self.wake(now);
                }
                None => load.push(Some((source, offset)), send),
            }
        }
        if load.sends.is_empty() {
            return None;
        }
        load.test = true;
        self.seal_batch(now, load)
    }

    /// Puts a send into a batch, or aside if it is under suspicion. `named`: what could cancel it meanwhile.
    fn load(
        &mut self,
        load: &mut Load,
        done: Option<(Source, Offset)>,
        send: Send,
        named: Option<(TimerKey, Place)>,
    ) {
        let group = done.and_then(|(source, offset)| {
            let group = self.suspects.group(source, offset, &send.to)?;
            Some((group, source, offset))
        });
        match group {
            Some((group, source, offset)) => {
                self.suspects.hold(group, Suspected { source, offset, send, named });
            }
            None => load.push(done, send),
        }
    }

    /// One batch: moves and dead letters, then what is due in order, then ripe hops of few partitions.
    fn fill(&mut self, now: UnixMillis, out: &mut Vec<Output>) -> Option<Batch> {
        let mut load = Load::new(&self.setup.limits);
        self.forget(now);
        while load.room()
            && let Some((done, send)) = self.ready.pop_front()
        {
            self.load(&mut load, done, send, None);
        }
        while load.room()
            && let Some(entry) = self.late.pop_front()
        {
            self.fire(now, entry, &mut load, out);
        }
        let mut due = Vec::new();
        while load.room() {
            // In small bites: a batch is over its bytes by one bite at most.
            let bite = load.records_left.min(32);
            self.wheel.pop_due(now, bite, |_, _, entry| due.push(entry));
            if due.is_empty() {
                break;
            }
            for entry in due.drain(..) {
                self.fire(now, entry, &mut load, out);
            }
        }
        self.take_hops(now, &mut load);
        // What firing has refused or met goes along.
        while let Some((done, send)) = self.ready.pop_front() {
            self.load(&mut load, done, send, None);
        }
        let idle = self.dirty && self.last_commit + IDLE_COMMIT <= now;
        if load.sends.is_empty() && !idle {
            return None;
        }
        self.tested = false;
        self.seal_batch(now, load)
    }

    fn fire(&mut self, now: UnixMillis, entry: Box<Entry>, load: &mut Load, out: &mut Vec<Output>) {
        if self.is_cancelled(&entry) {
            return self.meet(now, *entry);
        }
        let Some(entry) = self.let_through(entry) else { return };
        let setup = Arc::clone(&self.setup);
        let checked = match self.look(now, &entry.target, out) {
            None => return self.park(entry),
            Some(target) => {
                verdict::allowed(&setup, &self.targets, usize::from(entry.intake), &entry.target)
                    .and_then(|()| verdict::deliver(&entry, now, target))
                    .and_then(|edit| self.permitted(now, &entry).map(|()| edit))
            }
        };
        match checked {
            Ok((partition, trace)) => {
                let named = entry.timer.map(|timer| (timer, entry.place()));
                let Entry { source, offset, record, target, due, .. } = *entry;
                let edit = Edit::Deliver(trace);
                let send = Send { to: To::Target(target), partition, record, edit, due };
                self.load(load, Some((source, offset)), send, named);
            }
            Err(refusal) => self.refuse(*entry, refusal),
        }
    }

    /// Whether Kafka has not refused this target a moment ago.
    fn permitted(&mut self, now: UnixMillis, entry: &Entry) -> Result<(), Refusal> {
        match self.suspects.denied(now, self.setup.limits.target_fresh, &entry.target) {
            None => Ok(()),
            Some(why) => {
                let detail = format!("target {} is refused by Kafka: {why}", entry.target);
                Err(verdict::refusal(Code::TargetRefused, detail))
            }
        }
    }

    fn take_hops(&mut self, now: UnixMillis, load: &mut Load) {
        let setup = Arc::clone(&self.setup);
        let (linger, partitions) = (self.linger(), self.setup.limits.hop_partitions_max);
        let mut refused = Vec::new();
        if !load.room() {
            return;
        }
        let soon = self.wheel.next_due().is_some_and(|due| due <= now + DUE_SOON);
        let mut left = if soon { HOPS_BESIDE_DUE.max(self.outbox.len() / 4) } else { usize::MAX };
        let suspects = &mut self.suspects;
        self.outbox.take(now, linger, partitions, |tier, lane, entry| {
            match verdict::seal(&setup, &entry, Kind::Hop) {
                Ok(sealed) => {
                    let Entry { source, offset, record, due, .. } = *entry;
                    let to = To::Lane(setup.topics.of_tier(tier));
                    let partition = Some(i32::from(lane.0));
                    let send = Send { to, partition, record, edit: Edit::State(sealed), due };
                    match suspects.group(source, offset, &send.to) {
                        Some(group) => {
                            suspects.hold(group, Suspected { source, offset, send, named: None });
                        }
                        None => load.push(Some((source, offset)), send),
                    }
                }
                Err(refusal) => refused.push((entry, refusal)),
            }
            left -= 1;
            left > 0 && load.room()
        });
        for (entry, refusal) in refused {
            self.refuse(*entry, refusal);
        }
    }

    /// Finishes the offsets of a batch and adds where reading stands because of it.
    fn seal_batch(&mut self, now: UnixMillis, load: Load) -> Option<Batch> {
        for (source, offset) in &load.done {
            if let Some(hold) = self.hold(*source) {
                hold.window.finish(*offset);
            }
        }
        let mut commits = Vec::new();
        for (topic, lanes) in self.holds.iter_mut().enumerate() {
            for (lane, hold) in lanes.iter_mut().enumerate() {
                if let Some((next, metadata)) = hold.as_mut().and_then(|hold| hold.window.commit())
                {
                    let source = Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) };
                    commits.push(Commit { source, next, metadata });
                }
            }
        }
        self.dirty = false;
        self.last_commit = now;
        if load.sends.is_empty() && commits.is_empty() {
            return None;
        }
        let id = self.next_batch;
        self.next_batch = BatchId(id.0 + 1);
        let Load { sends, bytes, carried, test, .. } = load;
        self.flying.push_back(Flight { id, bytes, carried, test });
        Some(Batch { id, sends, commits, answers: Vec::new() })
    }
}

/// Whether the next batch is one of suspects.
enum Test {
    No,
    /// Once what is on its way is back.
    Wait,
    /// Of this group.
    Now(u64),
}

/// A batch being filled.
struct Load {
    sends: Vec<Send>,
    done: Vec<(Source, Offset)>,
    /// What becomes of each send, in their order.
    carried: Vec<Carried>,
    /// It is all of one group of suspects.
    test: bool,
    bytes: usize,
    records_left: usize,
    bytes_max: usize,
}

impl Load {
    fn new(limits: &Limits) -> Self {
        Self {
            sends: Vec::new(),
            done: Vec::new(),
            carried: Vec::new(),
            test: false,
            bytes: 0,
            records_left: limits.batch_records_max,
            bytes_max: limits.batch_bytes_max,
        }
    }

    fn room(&self) -> bool {
        self.records_left > 0 && self.bytes < self.bytes_max
    }

    /// Adds a record, and the offset that is done with it.
    fn push(&mut self, done: Option<(Source, Offset)>, send: Send) {
        self.bytes += send.record.size();
        self.records_left = self.records_left.saturating_sub(1);
        // A tombstone is about no record: nobody is to blame for it.
        let (source, offset) = done.unwrap_or_default();
        self.done.extend(done);
        self.carried.push(Carried { source, offset, to: send.to.clone() });
        self.sends.push(send);
    }
}
