//! The cluster at work: markers, the group, and every request that arrives.

use std::sync::Arc;

use waterclock::engine::member::LogBounds;
use waterclock::engine::{Offset, UnixMillis};

use super::World;
use crate::broker::{Place, Refusal, Time, Writer};
use crate::member::{Member, Up};
use crate::network::{NOBODY, Outgoing, Process, Reply, Request, Scheduled, Wake};
use crate::plan::{SECOND, SESSION, TRANSACTION};

/// The node that coordinates the group and all transactions.
pub const COORDINATOR: usize = 0;
/// A client waits this long for an answer: `socket.timeout.ms`.
pub const PATIENCE: Time = 8 * SECOND;

impl World {
    /// Nothing comes from this partition's leader at present.
    pub fn is_silent(&self, place: Place) -> bool {
        self.silent.get(&place).is_some_and(|until| *until > self.at)
            || self.stalled_until(place).is_some()
    }

    /// Transactions end in their own time, partition by partition.
    pub fn want_marker(&mut self) {
        if !self.marker_queued && !self.broker.missing_markers().is_empty() {
            self.marker_queued = true;
            let wait = self.chance.latency(self.plan.network.marker_max);
            self.after(wait, Scheduled::Marker);
        }
    }

    pub(super) fn marker(&mut self) {
        self.marker_queued = false;
        let mut missing = self.broker.missing_markers();
        let node = |place: Option<Place>| place.map_or(COORDINATOR, |of| self.broker.leader(of));
        let until = missing.iter().filter_map(|(_, place)| self.standstill(node(*place))).min();
        missing.retain(|(_, place)| self.standstill(node(*place)).is_none());
        if missing.is_empty() {
            if let Some(until) = until {
                self.marker_queued = true;
                self.push(until, Scheduled::Marker);
            }
            return;
        }
        let marker = *self.chance.pick(&missing);
        self.broker.write_marker(self.at, marker);
        self.stirred = true;
        self.want_marker();
    }

    pub(super) fn silent(&mut self, process: Process, member: &str) {
        let of = &self.members[process.slot];
        let alive = of.life == process.life && of.up == Up::Alive;
        let fresh = matches!(of.up, Up::Frozen { since, .. } if self.at < since + SESSION);
        if (alive || fresh) && of.life == process.life {
            return;
        }
        // What it has on its way may be there, and is another's from now on.
        self.members[process.slot].expose(&mut self.exposed);
        self.note(|| format!("{member} is silent"));
        self.broker.group.remove(member);
        self.count("members lost");
        self.regroup();
    }

    /// Lets the group's round go on after any change to it.
    pub fn regroup(&mut self) {
        let lanes = self.plan.setup.lanes;
        if self.broker.group.complete(lanes) {
            self.count("generations");
            for slot in 0..self.members.len() {
                let wait = self.latency();
                self.wake(self.members[slot].process(), wait, Wake::Assigned);
            }
            return;
        }
        for name in self.broker.group.awaited() {
            let of =
                self.members.iter().find(|member| member.name == name && member.up != Up::Dead);
            if let Some(process) = of.map(Member::process) {
                let heartbeat = self.chance.between(0, 3 * SECOND);
                self.wake(process, heartbeat, Wake::Rebalance);
            }
        }
    }

    /// Sends a request on its way.
    pub fn request(&mut self, process: Process, round: u64, request: Request) {
        let mut at = self.at + self.latency();
        // They have one connection, so that none passes another.
        if matches!(request, Request::CommitBoth(..) | Request::FetchCommitted(..)) {
            let last = &mut self.members[process.slot].coordinated;
            at = at.max(*last);
            *last = at;
        }
        self.push(at, Scheduled::Arrives(process, round, request));
    }

    /// Until when a node stands still, if it does.
    pub fn standstill(&self, node: usize) -> Option<Time> {
        self.stalled.get(&node).copied().filter(|until| *until > self.at)
    }

    /// Until when the leader of a partition stands still, if it does.
    pub fn stalled_until(&self, place: Place) -> Option<Time> {
        self.standstill(self.broker.leader(place))
    }

    /// Until when nobody answers this.
    fn unanswered_until(&self, request: &Request) -> Option<Time> {
        let of = |places: &mut dyn Iterator<Item = Place>| {
            places.filter_map(|place| self.stalled_until(place)).max()
        };
        let topic = |sent: &Outgoing| {
            let topic = self.broker.topic(&sent.topic)?;
            Some(Place { topic, partition: sent.partition })
        };
        match request {
            Request::Produce(_, records) => {
                let stalled = of(&mut records.iter().filter_map(topic));
                let places = records.iter().filter_map(topic);
                stalled.max(places.filter_map(|place| self.leaderless(place)).max())
            }
            Request::End(_, place, _) => of(&mut [*place].into_iter()),
            Request::Logs(places) => of(&mut places.iter().copied()),
            Request::Changelog(lane, _) => {
                of(&mut [Place { topic: self.timers_topic, partition: *lane }].into_iter())
            }
            Request::DeleteRecords(until) => of(&mut until.iter().map(|(place, _)| *place)),
            Request::Describe(_) | Request::DescribeSlowly(_) => None,
            Request::Checkpoints(places) => {
                of(&mut places.iter().map(|place| self.meta_place(place.partition)))
            }
            _ => self.standstill(COORDINATOR),
        }
    }

    /// What a client may not wait for without end: it gives up, and what it sent is on its way all the same.
    fn waits(&mut self, process: Process, round: u64, request: Request, until: Time) {
        let gives_up = matches!(
            request,
            Request::Produce(..)
                | Request::SendOffsets(..)
                | Request::EndTransaction(..)
                | Request::CommitOffsets(..)
                | Request::CommitBoth(..)
        );
        self.count("requests to nodes that stand still");
        if round == NOBODY || !gives_up || until - self.at <= PATIENCE {
            return self.push(until, Scheduled::Arrives(process, round, request));
        }
        self.push(until, Scheduled::Arrives(process, NOBODY, request));
        self.wake(process, PATIENCE, Wake::Reply(round, Reply::TimedOut));
    }

    pub(super) fn arrives(&mut self, process: Process, round: u64, request: Request) {
        if let Some(until) = self.unanswered_until(&request) {
            return self.waits(process, round, request, until);
        }
        let again = request.clone();
        let reply = match request {
            Request::Init(id) => Reply::Init(self.broker.init(&id)),
            Request::Join(name) => {
                // One that has another name by now would have joined a second time.
                let of = &self.members[process.slot];
                if of.up == Up::Dead || of.name != name {
                    return;
                }
                if self.broker.group.has_joined(&name) {
                    let wait = self.latency();
                    return self.wake(process, wait, Wake::Assigned);
                }
                self.broker.group.join(&name);
                return self.regroup();
            }
            Request::Leave(name) => {
                self.broker.group.remove(&name);
                return self.regroup();
            }
            Request::FetchCommitted(places) => Reply::Committed(self.broker.committed(&places)),
            Request::Checkpoints(places) => Reply::Checkpoints(self.checkpoints(&places)),
            Request::Logs(places) => {
                let bounds = |place: &Place| {
                    let log = self.broker.partition(*place);
                    log.map_or(LogBounds::UNKNOWN, |log| LogBounds {
                        first: log.start(),
                        end: log.end(),
                    })
                };
                Reply::Logs(places.iter().map(bounds).collect())
            }
            Request::End(source, place, at) => {
                if let Some(until) = self.silent.get(&place).filter(|until| **until > self.at) {
                    return self.push(*until, Scheduled::Arrives(process, round, again));
                }
                let end = self.broker.partition(place).map(|log| log.end());
                Reply::End(source, at, end.unwrap_or_default())
            }
            Request::Changelog(lane, why) => Reply::Changelog(lane, why, self.changelog_end(lane)),
            Request::Produce(writer, records) => {
                Reply::Produced(self.produce(writer.as_ref(), records))
            }
            Request::SendOffsets(writer, who, positions) => {
                let sent = self.broker.send_offsets(
                    self.at,
                    &writer,
                    &who.member,
                    who.generation,
                    &positions,
                );
                Reply::OffsetsSent(sent)
            }
            Request::EndTransaction(writer, commit) => {
                let ended = self.broker.end(&writer, commit);
                self.note(|| format!("end of {writer:?}, commit {commit}: {ended:?}"));
                Reply::Ended(ended)
            }
            Request::CommitOffsets(who, positions) => {
                let done = self.broker.commit(&who.member, who.generation, &positions);
                Reply::OffsetsCommitted(done)
            }
            Request::CommitBoth(who, positions) => {
                // Not of one who is refused: its word would come after the next owner's.
                let done = self.broker.commit(&who.member, who.generation, &positions);
                if done.is_ok() {
                    self.write_checkpoints(&positions);
                }
                Reply::OffsetsCommitted(done)
            }
            Request::DeleteRecords(until) => {
                until
                    .into_iter()
                    .for_each(|(place, until)| self.broker.delete_records(place, until));
                return;
            }
            Request::DescribeSlowly(name) => {
                let wait = self.describing(&name);
                return self
                    .after(wait, Scheduled::Arrives(process, round, Request::Describe(name)));
            }
            Request::Describe(name) => {
                let (target, away) = self.describe(&name);
                Reply::Described(name, target, away)
            }
        };
        self.want_marker();
        let wait = self.latency();
        let waits = matches!(
            reply,
            Reply::Init(Err(Refusal::Concurrent))
                | Reply::Produced(Err(Refusal::Concurrent))
                | Reply::OffsetsSent(Err(Refusal::Concurrent))
                | Reply::Ended(Err(Refusal::Concurrent))
                | Reply::Committed(Err(Refusal::Unstable))
                | Reply::Checkpoints(Err(Refusal::Unstable))
        );
        if waits {
            let backoff = self.chance.between(1, 50);
            self.wake(process, wait + backoff, Wake::Again(round, again));
        } else {
            self.wake(process, wait, Wake::Reply(round, reply));
        }
    }

    /// All or, from the first refusal on, none of the rest.
    pub fn produce(
        &mut self,
        writer: Option<&Writer>,
        records: Vec<Outgoing>,
    ) -> Result<Vec<(Offset, UnixMillis, usize)>, Refusal> {
        if let Some(writer) = writer {
            self.after(TRANSACTION + SECOND, Scheduled::Expire(Arc::clone(&writer.id)));
        }
        let mut stand = Vec::with_capacity(records.len());
        for sent in records {
            let topic = self.broker.topic(&sent.topic).ok_or(Refusal::UnknownTopic)?;
            let place = Place { topic, partition: sent.partition };
            let offset = self.broker.produce(self.at, writer, place, sent.record)?;
            let node = self.broker.leader(place);
            stand.push((offset, self.broker.clock(node, self.at), node));
        }
        self.stirred = true;
        Ok(stand)
    }
}
