//! Who may write to topics of waterclock's: records that were never sealed, that belong elsewhere, that were changed, and copies.

use std::collections::BTreeSet;

use waterclock::engine::sealed::{self, Submission};
use waterclock::engine::state::{State, StateKey};
use waterclock::engine::work::{Dispatch, Task};
use waterclock::engine::{Lane, Millis, Offset, Record, UnixMillis, header};

use crate::broker::{EPOCH_MS, Place};
use crate::chance::Chance;
use crate::plan::SECOND;
use crate::world::World;

/// A copy of a dispatch that is written later than that after it is known for one.
const COPIED_WITHIN: Millis = Millis(2 * SECOND);
/// Headers that hold what a seal covers, and may be changed.
const SEALED: [&[u8]; 3] = [b"x-delay-state", b"x-delay-task", b"x-delay-result"];

impl World {
    /// Topics of waterclock's in which records of tasks stand, by their places among all topics: the main intake first.
    fn topics_of_tasks(&self) -> Vec<usize> {
        let tiers = self.plan.setup.topics.intakes.len();
        let others = self.lane_topics[tiers..].iter().copied();
        [self.lane_topics[0]].into_iter().chain(others).chain([self.tasks.tasks_topic]).collect()
    }

    fn place_in(&self, chance: &mut Chance, topics: &[usize]) -> Place {
        let topic = *chance.pick(topics);
        Place { topic, partition: chance.below(usize::from(self.plan.setup.lanes)) as i32 }
    }

    /// Writes a record that waterclock has not written there.
    pub(super) fn write_foreign(&mut self, luck: u64) {
        let mut chance = Chance::new(luck);
        if chance.percent(20) {
            self.tasks.alters += 1;
            return;
        }
        let topics = self.topics_of_tasks();
        let written = match chance.between(0, 7) {
            6 | 7 => self.dispatched_again(&mut chance),
            0 => Some((self.place_in(&mut chance, &topics), unsealed(&mut chance))),
            1 => Some((self.place_in(&mut chance, &topics), self.sealed_by_another(&mut chance))),
            2 | 3 => self.misplaced(&mut chance, &topics),
            _ => self.changed(&mut chance, &topics),
        };
        let Some((place, record)) = written else { return };
        self.count("foreign records");
        match self.broker.produce(self.at, None, place, record) {
            Ok(offset) => drop(self.tasks.foreign.insert((place, offset))),
            Err(refusal) => self.breach("model", format!("a foreign record: {refusal:?}")),
        }
        self.stirred = true;
    }

    /// A create that looks as one of ours, of somebody who has another key.
    fn sealed_by_another(&self, chance: &mut Chance) -> Record {
        let draft = &self.tasks.drafts[chance.below(self.tasks.drafts.len())];
        let submission = Submission {
            id: &draft.id,
            spec: &draft.spec,
            due: UnixMillis(EPOCH_MS + self.at),
            expires: None,
            key: None,
            value: Some(b"foreign"),
            headers: &[],
        };
        sealed::submit(&StateKey::new([9; 32]), self.broker.slowest_clock(self.at), &submission)
    }

    fn any_record(&self, chance: &mut Chance, topics: &[usize]) -> Option<(Place, Record)> {
        let place = self.place_in(chance, topics);
        let records = self.broker.partition(place)?.ledger();
        let records = records.filter(|(offset, _)| !self.tasks.foreign.contains(&(place, *offset)));
        let records: Vec<&Record> = records
            .filter_map(|(_, entry)| entry.record.as_ref())
            .filter(|record| sealed::is_of_task(record))
            .collect();
        let record = records.get(chance.below(records.len().max(1)))?;
        Some((place, (*record).clone()))
    }

    /// A dispatch, or the note of a cancel, beside itself once more.
    fn dispatched_again(&mut self, chance: &mut Chance) -> Option<(Place, Record)> {
        let (place, record) = self.any_record(chance, &[self.tasks.tasks_topic])?;
        let appended = self.broker.clock(self.broker.leader(place), self.at);
        let (key, lanes) = (&self.plan.setup.key, self.plan.setup.lanes);
        let at = (Lane(place.partition as u16), appended);
        if let Ok(sealed::Work::Task(task)) = sealed::read_work(key, lanes, at, record.clone()) {
            self.count("dispatches copied");
            self.tasks.copies.push((appended, task.turn));
        }
        Some((place, record))
    }

    /// Whether a dispatch is a copy that somebody else has written.
    pub fn is_copy(&self, task: &Task) -> bool {
        self.tasks.copies.contains(&(task.sealed.appended, task.turn))
    }

    /// Whether a copy may be called: it was written soon after its dispatch, and partitions were given anew since.
    pub fn may_be_called_again(&self, task: &Task) -> bool {
        let Dispatch { dispatched, appended, .. } = task.sealed;
        let mut assigned = self.tasks.assigned.iter().map(|at| UnixMillis(EPOCH_MS + at));
        let is_soon = appended <= dispatched + COPIED_WITHIN + self.clocks_apart_most();
        is_soon
            && assigned.next_back().is_some_and(|at| at + self.clocks_apart_most() >= dispatched)
    }

    fn clocks_apart_most(&self) -> Millis {
        Millis(self.plan.clocks_apart() + SECOND)
    }

    /// A record of ours, in a topic or in a lane where it does not belong.
    fn misplaced(&self, chance: &mut Chance, topics: &[usize]) -> Option<(Place, Record)> {
        let (from, record) = self.any_record(chance, topics)?;
        let results = self.plan.setup.topics.results()?;
        let is_tier = |topic: usize| {
            let at = self.lane_topics.iter().position(|of| *of == topic);
            at.is_some_and(|at| at > 0 && at != usize::from(results.0))
        };
        let others = topics.iter().copied();
        // Tiers differ in nothing but how long they hold.
        let others =
            others.filter(|of| *of != from.topic && !(is_tier(*of) && is_tier(from.topic)));
        let others: Vec<usize> = others.collect();
        let is_of_tasks = from.topic == self.tasks.tasks_topic;
        let place = match self.plan.setup.lanes > 1 && !is_of_tasks && chance.percent(30) {
            true => {
                let lanes = i32::from(self.plan.setup.lanes);
                Place { partition: (from.partition + 1) % lanes, ..from }
            }
            false => self.place_in(chance, &others),
        };
        Some((place, record))
    }

    /// A record of ours beside itself, and something of it is another: what the seal covers, or the body that its digest is of.
    fn changed(&self, chance: &mut Chance, topics: &[usize]) -> Option<(Place, Record)> {
        let (place, record) = self.any_record(chance, topics)?;
        let mut value = record.value().map(<[u8]>::to_vec);
        let mut headers = headers_of(&record);
        let covered = headers.iter_mut().filter(|(name, _)| SEALED.contains(&name.as_slice()));
        let mut covered: Vec<&mut Vec<u8>> =
            covered.filter_map(|(_, value)| value.as_mut()).collect();
        match &mut value {
            Some(value) if chance.percent(50) => value.push(b'!'),
            _ => {
                let at = chance.below(covered.len().max(1));
                let bytes = covered.get_mut(at)?;
                let at = chance.below(bytes.len().max(1));
                *bytes.get_mut(at)? ^= 1;
            }
        }
        Some((place, crate::workload::record(record.key(), value.as_deref(), &headers)))
    }

    /// A record of the workers' topic as one of them reads it. Where somebody is to change a dispatch, it has another body.
    pub fn as_it_stands(
        &mut self,
        place: Place,
        (offset, appended): (Offset, UnixMillis),
        record: Record,
    ) -> Record {
        if self.tasks.alters == 0 || self.tasks.foreign.contains(&(place, offset)) {
            return record;
        }
        let (key, lanes) = (&self.plan.setup.key, self.plan.setup.lanes);
        let at = (Lane(place.partition as u16), appended);
        let work = sealed::read_work(key, lanes, at, record.clone());
        let Some(task) = work.ok().and_then(|work| match work {
            sealed::Work::Task(task) => self.tasks.of.get(&task.turn.name).copied(),
            sealed::Work::Cancel(..) => None,
        }) else {
            return record;
        };
        self.tasks.alters -= 1;
        let mut value = record.value().unwrap_or_default().to_vec();
        value.push(b'!');
        let headers = headers_of(&record);
        let altered = crate::workload::record(record.key(), Some(&value), &headers);
        self.broker.alter(place, offset, altered.clone());
        self.tasks.foreign.insert((place, offset));
        self.tasks.altered.insert(task);
        self.count("dispatches altered");
        altered
    }

    /// Writes what stands in a tier or among the results there once more.
    pub(super) fn copy_some(&mut self, luck: u64) {
        let first = self.plan.setup.topics.intakes.len();
        let mut all = Vec::new();
        for topic in &self.lane_topics[first..] {
            for (partition, log) in self.broker.topics[*topic].partitions.iter().enumerate() {
                let place = Place { topic: *topic, partition: partition as i32 };
                let own = log.ledger();
                let own = own.filter(|(offset, _)| !self.tasks.foreign.contains(&(place, *offset)));
                let of_tasks = own.filter(|(_, entry)| {
                    entry.record.as_ref().is_some_and(|record| self.turn_of(record).is_some())
                });
                all.extend(of_tasks.map(|(offset, _)| (place, offset)));
            }
        }
        if all.is_empty() {
            return;
        }
        let (place, offset) = all[(luck % all.len() as u64) as usize];
        let log = self.broker.partition(place);
        let record = log.and_then(|log| log.read(offset)).and_then(|entry| entry.record.clone());
        let Some(record) = record else { return };
        self.count("sealed records copied");
        if let Err(refusal) = self.broker.produce(self.at, None, place, record) {
            self.breach("model", format!("a copy is refused: {refusal:?}"));
        }
        self.stirred = true;
    }

    /// The turn of a task that a sealed record is of.
    fn turn_of(&self, record: &Record) -> Option<u32> {
        let directive = header::read(record.headers()).ok()?;
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, &self.plan.setup.key, &bound).ok()?;
        Some(state.task?.turn)
    }
}

fn headers_of(record: &Record) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let headers = record.headers();
    headers.map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect()
}

/// A record that has nothing of ours but names of headers, and the id of nobody's task.
fn unsealed(chance: &mut Chance) -> Record {
    let spec: &[u8] = br#"{"type":"http","project":"p","group":"g","url":"http://a.example/x"}"#;
    let all: [(&[u8], &[u8]); 4] = [
        (b"x-delay-id", b"foreign"),
        (b"x-delay-task", spec),
        (b"x-delay-result", br#"{"outcome":"finished"}"#),
        (b"x-delay-state", &[7; 88]),
    ];
    let some: BTreeSet<usize> = (0..chance.between(0, 4)).map(|_| chance.below(4)).collect();
    let headers = some.iter().map(|at| (all[*at].0, Some(all[*at].1)));
    let value: Option<&[u8]> = chance.percent(70).then_some(b"foreign");
    Record::new(Some(b"foreign"), value, headers)
}
