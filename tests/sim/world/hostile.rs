//! What hostile producers and their targets do to the cluster: states that are stolen, partitions without a leader.

use std::sync::Arc;

use waterclock::engine::messages::Target;
use waterclock::engine::state::State;
use waterclock::engine::{Record, header};

use super::World;
use crate::broker::{Place, Time};
use crate::member::number_of;
use crate::plan::{Kind, MINUTE, SECOND};
use crate::workload::hostile::{AWAY, CLOSED, GHOST, KEYED, Theft, due_and_expiry, is_of_task};
use crate::workload::{Fate, When};

/// Brokers take up to this long to say that a target is not there.
const GHOST_MAX: Time = 3 * SECOND;

const STATE: &[u8] = b"x-delay-state";

/// The value of a header.
fn value<'a>(record: &'a Record, name: &str) -> Option<&'a [u8]> {
    record.headers().find(|(known, _)| *known == name.as_bytes()).and_then(|(_, value)| value)
}

impl World {
    // Targets.

    /// How long it takes until somebody says what a target is.
    pub(super) fn describing(&mut self, name: &str) -> Time {
        if name.starts_with(GHOST) { self.chance.spread(1, GHOST_MAX) } else { 0 }
    }

    /// What is said of a target, and which of its partitions have no leader.
    pub(super) fn describe(&self, name: &str) -> (Target, Arc<[i32]>) {
        if self.plan.kind == Kind::Hostile
            && let Some((_, code)) = CLOSED.iter().find(|(known, _)| *known == name)
        {
            let target = match (*code, name) {
                ("target_forbidden", _) => Target::Owned,
                (_, "x-hidden") => Target::Hidden,
                (_, "x-narrow") => Target::Narrow,
                _ => Target::Closed,
            };
            return (target, Arc::default());
        }
        let Some(id) = self.broker.topic(name) else { return (Target::Missing, Arc::default()) };
        let topic = &self.broker.topics[id];
        let partitions = topic.partitions.len() as i32;
        let found = Target::Found {
            partitions,
            record_bytes_max: topic.record_bytes_max,
            keyed: name == KEYED,
        };
        let leaderless = (0..partitions).filter(|partition| {
            self.leaderless(Place { topic: id, partition: *partition }).is_some()
        });
        (found, leaderless.collect())
    }

    /// Until when a partition has no leader, if it has none.
    pub(super) fn leaderless(&self, place: Place) -> Option<Time> {
        self.leaderless.get(&place).copied().filter(|until| *until > self.at)
    }

    pub(super) fn lose_leader(&mut self, lasts: Time) {
        let Some(topic) = self.broker.topic(AWAY) else { return };
        self.count("targets without a leader");
        let until = self.at + lasts;
        self.leaderless.insert(Place { topic, partition: 0 }, until);
        self.push(until, crate::network::Scheduled::Stir);
    }

    // States.

    /// Puts a state that stands in a topic on a record of somebody else's, which is about to be written.
    pub(super) fn steal(&mut self, index: usize, theft: Theft) {
        let Some((at, victim)) = self.victim(theft) else {
            self.count("states made up");
            return self.wear(index, None, &[], vec![1; 68], None);
        };
        let intakes = self.plan.setup.topics.intakes.len();
        let state = value(&victim, "x-delay-state").unwrap_or_default().to_vec();
        let named: Vec<_> = victim
            .headers()
            .filter(|(name, _)| name.starts_with(b"x-delay-") && *name != STATE)
            .collect();
        let target = [(&b"x-delay-target"[..], value(&victim, "x-delay-target"))];
        match theft {
            Theft::Foreign => {
                self.count("states copied to other records");
                // Of a record that is like its own it would be worth as much there.
                let is_t0 = value(&victim, "x-delay-target") == Some(b"t0");
                let other: &[u8] = if is_t0 { b"t1" } else { b"t0" };
                self.wear(index, None, &[(&b"x-delay-target"[..], Some(other))], state, Some(at));
            }
            Theft::Elsewhere => {
                self.count("states copied to other topics");
                let topic = match state.get(1) {
                    // A hop belongs into a tier, a move into its own intake, and what amends into an intake.
                    Some(1 | 4) => self.chance.below(intakes),
                    Some(2) if self.chance.percent(50) => 1 - at,
                    _ => intakes,
                };
                self.wear(index, Some(&victim), &named, state, Some(topic));
            }
            Theft::Changed => {
                self.count("states changed");
                let (mut state, byte) = (state.clone(), self.chance.below(state.len()));
                state[byte] ^= 1 << self.chance.below(8);
                // It looks like a task's now, and there are none.
                if is_of_task(&state) && self.plan.tasks.is_none() {
                    self.workload.submissions[index].fates = vec![Fate::Dead("task_forbidden")];
                }
                self.wear(index, Some(&victim), &named, state, Some(at));
            }
            Theft::Twice => {
                self.count("states used twice");
                let due = due_and_expiry(&state).map_or(0, |(due, _)| due);
                self.wear(index, Some(&victim), &target, state, Some(at));
                let of = &mut self.workload.submissions[index];
                of.when = When::At(due);
                let to = if target[0].1 == Some(b"t0") { "t0" } else { "t1" };
                of.fates = vec![Fate::Deliver { target: to, partition: None }];
            }
        }
    }

    /// Gives a submission these headers, a key and a topic of somebody else's, and this state.
    fn wear(
        &mut self,
        index: usize,
        victim: Option<&Record>,
        headers: &[(&[u8], Option<&[u8]>)],
        state: Vec<u8>,
        topic: Option<usize>,
    ) {
        let number = index.to_string();
        let of = &mut self.workload.submissions[index];
        let key = victim.unwrap_or(&of.record).key();
        let all = [(&b"n"[..], Some(number.as_bytes()))]
            .into_iter()
            .chain(headers.iter().copied())
            .chain([(STATE, Some(state.as_slice()))]);
        let record = Record::new(key, of.record.value(), all.collect::<Vec<_>>().into_iter());
        of.record = record;
        of.topic = topic.unwrap_or(of.topic);
    }

    /// A record with a state that stands in a lane topic, and the topic's index.
    fn victim(&mut self, theft: Theft) -> Option<(usize, Record)> {
        let intakes = self.plan.setup.topics.intakes.len();
        let mut found: Vec<(usize, &Record)> = Vec::new();
        for (at, &topic) in self.lane_topics.iter().enumerate() {
            let logs = self.broker.topics[topic].partitions.iter();
            let records = logs.flat_map(|log| log.unless_aborted());
            let records = records.filter_map(|(_, entry)| entry.record.as_ref());
            found.extend(
                records.filter(|of| self.is_victim(theft, (at, intakes), of)).map(|of| (at, of)),
            );
        }
        if found.is_empty() {
            return None;
        }
        let nth = self.chance.below(found.len());
        found.get(nth).map(|(at, record)| (*at, (*record).clone()))
    }

    fn is_victim(&self, theft: Theft, (at, intakes): (usize, usize), record: &Record) -> bool {
        let Some(state) = value(record, "x-delay-state") else { return false };
        let of = number_of(record).and_then(|n| self.workload.submissions.get(n as usize));
        if of.is_none_or(|of| of.theft.is_some()) {
            return false;
        }
        let short = || {
            let hold = self.plan.hold_of(at);
            hold > 0 && hold <= MINUTE
        };
        match theft {
            Theft::Twice => {
                let target = value(record, "x-delay-target");
                at >= intakes
                    && short()
                    && value(record, "x-delay-id").is_none()
                    && value(record, "x-delay-partition").is_none()
                    && (target == Some(b"t0") || target == Some(b"t1"))
                    && due_and_expiry(state).is_some_and(|(_, expires)| expires == u64::MAX)
            }
            _ => true,
        }
    }

    /// What an engine does that believes whatever state a record has: that of another one is made one of its own.
    pub(crate) fn believed(&self, record: Record) -> Record {
        let Some(stolen) = value(&record, "x-delay-state") else { return record };
        let key = &self.plan.setup.key;
        let open = |of: &Record| {
            let directive = header::read(of.headers()).ok()?;
            State::open(stolen, key, &directive.bound(of.key())).ok().map(|_| ())
        };
        if open(&record).is_some() {
            return record;
        }
        let topics = self.lane_topics.iter().map(|topic| &self.broker.topics[*topic]);
        let entries =
            topics.flat_map(|topic| &topic.partitions).flat_map(|log| log.unless_aborted());
        let mut records = entries.filter_map(|(_, entry)| entry.record.as_ref());
        let is_its =
            |of: &&Record| value(of, "x-delay-state") == Some(stolen) && open(of).is_some();
        let Some(owner) = records.find(is_its) else { return record };
        let (Ok(of), Ok(mine)) = (header::read(owner.headers()), header::read(record.headers()))
        else {
            return record;
        };
        let Ok(state) = State::open(stolen, key, &of.bound(owner.key())) else { return record };
        let sealed = state.seal(key, &mine.bound(record.key()));
        let headers = record.headers().map(|(name, value)| match name {
            STATE => (name, Some(sealed.as_ref())),
            _ => (name, value),
        });
        let headers: Vec<_> = headers.collect();
        Record::new(record.key(), record.value(), headers.into_iter())
    }
}
