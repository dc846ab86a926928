//! A worker and its group: it joins, says that it is there, takes partitions over, and lets them go.

use std::collections::BTreeMap;
use std::sync::Arc;

use waterclock::engine::member::{Ask, LogBounds, Plan, TakeOver, TakeOverError, WorkRules};
use waterclock::engine::work::{Position as WorkPosition, Taken, WorkEvent};
use waterclock::engine::{Lane, Millis, Offset, Source, TopicId};

use super::{HAND_OVER, HEARTBEAT, Phase, WorkerEvent};
use crate::broker::{Place, Position, Refusal, Time, Writer};
use crate::member::Up;
use crate::mutation::Mutation;
use crate::network::{NOBODY, Outgoing, Scheduled};
use crate::plan::WORKER_SESSION;
use crate::world::{COORDINATOR, World};

/// What a worker asks of the cluster.
#[derive(Clone, Debug)]
pub enum WorkerRequest {
    Init(Arc<str>),
    Join(String),
    Leave(String),
    /// It is there: its name, its generation, and when it says so.
    Beat(String, u32, Time),
    Committed(Vec<Place>),
    Logs(Vec<Place>),
    Produce(Writer, Vec<Outgoing>),
    Offsets(Writer, String, u32, Vec<(Place, Position)>),
    End(Writer, bool),
}

/// What comes back.
#[derive(Clone, Debug)]
pub enum WorkerReply {
    Init(Result<Writer, Refusal>),
    /// It has its partitions; when it had asked.
    Fresh(Time),
    /// The group forms again.
    Rebalance,
    /// The group does not know it.
    Unknown,
    Committed(Result<Vec<Option<Position>>, Refusal>),
    Logs(Vec<LogBounds>),
    /// A step of a commit is done, or is not.
    Step(Result<(), Refusal>),
    /// Nothing came for too long.
    TimedOut,
}

fn source(partition: u16) -> Source {
    Source { topic: TopicId(0), lane: Lane(partition) }
}

impl World {
    pub(super) fn worker_asks_for(&mut self, worker: usize, request: WorkerRequest) {
        let (life, round) = (self.workers[worker].life, self.workers[worker].round);
        let wait = self.latency();
        self.after(wait, Scheduled::WorkerAsks(worker, life, round, request));
    }

    pub(super) fn worker_inits(&mut self, worker: usize) {
        self.worker(worker).writer = None;
        self.worker_asks_for(worker, WorkerRequest::Init(format!("waterclock-w-{worker}").into()));
    }

    fn worker_joins(&mut self, worker: usize) {
        self.worker(worker).round += 1;
        self.worker(worker).phase = Phase::Joining;
        if !self.broker.workers.knows(&self.workers[worker].name) {
            self.name_worker(worker);
        }
        let name = self.workers[worker].name.clone();
        self.note(|| format!("worker {worker} joins as {name}"));
        self.worker_asks_for(worker, WorkerRequest::Join(name));
    }

    pub(super) fn worker_leaves(&mut self, worker: usize) {
        let (name, back_after) =
            (self.workers[worker].name.clone(), self.workers[worker].back_after);
        self.worker_asks_for(worker, WorkerRequest::Leave(name));
        self.end_worker(worker, back_after);
    }

    // What arrives at brokers.

    pub fn worker_asks(&mut self, worker: usize, life: u32, round: u64, request: WorkerRequest) {
        if let Some(until) = self.standstill(COORDINATOR) {
            return self.push(until, Scheduled::WorkerAsks(worker, life, round, request));
        }
        let again = request.clone();
        let reply = match request {
            WorkerRequest::Init(id) => WorkerReply::Init(self.broker.init(&id)),
            WorkerRequest::Join(name) => {
                let of = &self.workers[worker];
                if of.life != life || of.up == Up::Dead || of.name != name {
                    return;
                }
                if self.broker.workers.has_joined(&name) {
                    return self.worker_wakes(worker, 1, WorkerEvent::Assigned);
                }
                self.broker.workers.join(&name);
                self.hear_worker(worker);
                return self.regroup_workers();
            }
            WorkerRequest::Leave(name) => {
                self.broker.workers.remove(&name);
                return self.regroup_workers();
            }
            WorkerRequest::Beat(name, generation, since) => {
                self.beaten(worker, &name, generation, since)
            }
            WorkerRequest::Committed(places) => {
                WorkerReply::Committed(self.broker.committed(&places))
            }
            WorkerRequest::Logs(places) => {
                let bounds = |place: &Place| {
                    let log = self.broker.partition(*place);
                    log.map_or(LogBounds::UNKNOWN, |log| LogBounds {
                        first: log.start(),
                        end: log.end(),
                    })
                };
                WorkerReply::Logs(places.iter().map(bounds).collect())
            }
            WorkerRequest::Produce(writer, records) => {
                WorkerReply::Step(self.produce(Some(&writer), records).map(drop))
            }
            WorkerRequest::Offsets(writer, name, generation, positions) => {
                let sent =
                    self.broker.send_offsets(self.at, &writer, &name, generation, &positions);
                WorkerReply::Step(sent)
            }
            WorkerRequest::End(writer, commit) => {
                WorkerReply::Step(self.broker.end(&writer, commit))
            }
        };
        self.want_marker();
        self.stirred = true;
        if round == NOBODY || self.workers[worker].life != life {
            return;
        }
        let wait = self.latency();
        let waits = matches!(
            reply,
            WorkerReply::Init(Err(Refusal::Concurrent))
                | WorkerReply::Step(Err(Refusal::Concurrent))
                | WorkerReply::Committed(Err(Refusal::Unstable))
        );
        let event = match waits {
            true => WorkerEvent::Again(round, again),
            false => WorkerEvent::Reply(round, reply),
        };
        let backoff = if waits { self.chance.between(1, 50) } else { 0 };
        self.worker_wakes(worker, wait + backoff, event);
    }

    fn beaten(&mut self, worker: usize, name: &str, generation: u32, since: Time) -> WorkerReply {
        if !self.broker.workers.knows(name) {
            return WorkerReply::Unknown;
        }
        self.hear_worker(worker);
        match self.broker.workers.assignment(name) {
            Some((current, _)) if current == generation => WorkerReply::Fresh(since),
            _ => WorkerReply::Rebalance,
        }
    }

    fn hear_worker(&mut self, worker: usize) {
        let (at, name) = (self.at, self.workers[worker].name.clone());
        self.worker(worker).seen = at;
        self.after(WORKER_SESSION, Scheduled::WorkerSilent(worker, name, at));
    }

    /// The group has heard nothing of a worker for a session: unless it waits for the others, it is one no more.
    pub fn worker_silent(&mut self, worker: usize, name: &str, heard: Time) {
        let of = &self.workers[worker];
        let is_there = of.name == name && of.up != Up::Dead;
        let group = &self.broker.workers;
        if !group.knows(name) || is_there && of.seen > heard {
            return;
        }
        if is_there && group.has_joined(name) && group.assignment(name).is_none() {
            return self.hear_worker(worker);
        }
        self.note(|| format!("{name} is silent"));
        self.count("workers lost");
        self.broker.workers.remove(name);
        self.regroup_workers();
    }

    fn regroup_workers(&mut self) {
        if !self.broker.workers.complete(self.plan.setup.lanes) {
            return;
        }
        self.count("generations of workers");
        for worker in 0..self.workers.len() {
            if self.broker.workers.knows(&self.workers[worker].name) {
                self.hear_worker(worker);
                let wait = self.latency();
                self.worker_wakes(worker, wait, WorkerEvent::Assigned);
            }
        }
    }

    // What a worker makes of it.

    pub(super) fn worker_beats(&mut self, worker: usize) {
        let jitter = self.chance.between(0, HEARTBEAT / 4);
        self.worker_wakes(worker, HEARTBEAT + jitter, WorkerEvent::Heartbeat);
        let of = &self.workers[worker];
        if matches!(of.phase, Phase::Taking | Phase::Running) {
            let beat = WorkerRequest::Beat(of.name.clone(), of.generation, self.at);
            return self.worker_asks_for(worker, beat);
        }
        // It stood still while it waited for its share, and the group went on without it.
        let was_put_out = self.at > of.seen + WORKER_SESSION;
        if of.phase == Phase::Joining && was_put_out && !self.broker.workers.knows(&of.name) {
            self.worker_joins(worker);
        }
    }

    pub(super) fn worker_assigned(&mut self, worker: usize) {
        let of = &self.workers[worker];
        if of.phase != Phase::Joining {
            return;
        }
        let Some((generation, partitions)) = self.broker.workers.assignment(&of.name) else {
            return;
        };
        let partitions = partitions.to_vec();
        self.note(|| format!("worker {worker} has {partitions:?} in generation {generation}"));
        let sources = partitions.iter().map(|partition| source(*partition)).collect();
        let of = self.worker(worker);
        (of.generation, of.partitions, of.phase) = (generation, partitions, Phase::Taking);
        of.round += 1;
        of.taking = Some(TakeOver::new(sources, 0));
        if of.writer.is_none() {
            return self.worker_inits(worker);
        }
        self.end_what_dead_workers_left(worker);
        self.worker_asks_next(worker, Ok(Ask::Committed));
    }

    /// Ends the transactions of workers that are not in the group.
    fn end_what_dead_workers_left(&mut self, worker: usize) {
        for other in 0..self.workers.len() {
            let is_here = self.broker.workers.knows(&self.workers[other].name);
            if other != worker && !is_here && self.workers[other].life > 0 {
                // Whether it is told to come back or not: what was open is decided.
                let id = format!("waterclock-w-{other}").into();
                let _ = self.broker.init(&id);
                self.want_marker();
            }
        }
    }

    fn worker_asks_next(&mut self, worker: usize, ask: Result<Ask, TakeOverError>) {
        let partitions = self.workers[worker].partitions.iter();
        let places: Vec<Place> = partitions.map(|of| self.tasks_place(*of)).collect();
        match ask {
            Ok(Ask::Committed) => self.worker_asks_for(worker, WorkerRequest::Committed(places)),
            Ok(Ask::Logs) => self.worker_asks_for(worker, WorkerRequest::Logs(places)),
            Ok(Ask::Checkpoints) => {
                // Workers have none.
                self.worker_answered(worker, |taking, known| {
                    taking.checkpoints::<WorkRules>(BTreeMap::new(), known)
                });
            }
            Ok(Ask::Begin(plan)) => self.worker_takes_over(worker, &plan),
            Err(error) => self.breach("liveness", format!("worker {worker}: {error:?}")),
        }
    }

    fn worker_answered(
        &mut self,
        worker: usize,
        answer: impl FnOnce(
            &mut TakeOver,
            &waterclock::engine::member::Positions,
        ) -> Result<Ask, TakeOverError>,
    ) {
        let of = self.worker(worker);
        let Some(taking) = of.taking.as_mut() else { return };
        let ask = answer(taking, &of.known);
        self.worker_asks_next(worker, ask);
    }

    fn worker_takes_over(&mut self, worker: usize, plan: &Plan) {
        let fresh: Vec<(Place, Position)> = plan
            .fresh()
            .map(|commit| {
                let position = Position { next: commit.next.0, metadata: commit.metadata };
                (self.tasks_place(commit.source.lane.0), position)
            })
            .collect();
        let (name, generation) =
            (self.workers[worker].name.clone(), self.workers[worker].generation);
        if !fresh.is_empty() && self.broker.commit(&name, generation, &fresh).is_err() {
            // It is told by its next heartbeat that its partitions are another's.
            return;
        }
        let trusts_all = self.mutation == Some(Mutation::CallsDoubtful);
        let taken = |start: waterclock::engine::Start| Taken {
            partition: start.source.lane,
            position: Some(WorkPosition { next: start.next, metadata: start.metadata }),
            start: start.next,
            end: if trusts_all { Offset(0) } else { start.end },
        };
        let taken: Vec<Taken> = plan.starts().map(taken).collect();
        let of = self.worker(worker);
        of.taking = None;
        of.known.taken(plan);
        of.phase = Phase::Running;
        of.reading = taken.iter().map(|of| (of.partition.0, of.start)).collect();
        of.paused.clear();
        (of.has_let_go, of.has_sent) = (false, false);
        self.count("workers assigned");
        let at = self.at;
        self.tasks.assigned.push(at);
        self.work(worker, WorkEvent::Assigned(taken));
        self.stirred = true;
    }

    pub(super) fn worker_reply(&mut self, worker: usize, reply: WorkerReply) {
        match reply {
            WorkerReply::Init(Ok(writer)) => {
                self.worker(worker).writer = Some(writer);
                match self.workers[worker].phase {
                    Phase::Starting => self.worker_joins(worker),
                    Phase::Taking => {
                        self.end_what_dead_workers_left(worker);
                        self.worker_asks_next(worker, Ok(Ask::Committed));
                    }
                    Phase::Running => self.worker_failed(worker),
                    Phase::Joining => {}
                }
            }
            WorkerReply::Fresh(since) => {
                if self.workers[worker].phase == Phase::Running {
                    self.work(worker, WorkEvent::Fresh { since: Millis(since) });
                }
            }
            WorkerReply::Rebalance => match self.workers[worker].phase {
                Phase::Running => {
                    let within = Millis(HAND_OVER);
                    if !self.workers[worker].is_ending {
                        self.worker(worker).is_ending = true;
                        self.work(worker, WorkEvent::Ending(within));
                    }
                }
                Phase::Taking => self.worker_joins(worker),
                Phase::Starting | Phase::Joining => {}
            },
            WorkerReply::Unknown => self.worker_is_out(worker),
            WorkerReply::Committed(Ok(committed)) => {
                let of = |position: Position| (Offset(position.next), position.metadata);
                let committed = committed.into_iter().map(|position| position.map(of)).collect();
                self.worker_answered(worker, |taking, known| {
                    taking.committed::<WorkRules>(committed, known)
                });
            }
            WorkerReply::Logs(logs) => self.worker_answered(worker, |taking, known| {
                taking.logs::<WorkRules>(logs, vec![String::new()], known)
            }),
            WorkerReply::Step(done) => self.worker_stepped(worker, done),
            WorkerReply::TimedOut => self.worker_stepped(worker, Err(Refusal::InvalidState)),
            WorkerReply::Init(Err(refusal)) | WorkerReply::Committed(Err(refusal)) => {
                self.breach("model", format!("{refusal:?} has no answer"));
            }
        }
    }

    /// Everything is committed: the partitions go.
    pub(super) fn worker_lets_go(&mut self, worker: usize) {
        let of = &self.workers[worker];
        if !of.has_let_go || of.phase != Phase::Running {
            return;
        }
        self.worker_is_out(worker);
    }

    /// Its partitions are gone: those it has let go, or those that were taken from it.
    pub(super) fn worker_is_out(&mut self, worker: usize) {
        let of = self.worker(worker);
        of.round += 1;
        // Nothing is carried out of an assignment that has gone.
        of.phase = Phase::Joining;
        (of.has_let_go, of.is_ending) = (false, false);
        of.reading.clear();
        of.partitions.clear();
        of.taking = None;
        let flight = of.flight.take();
        self.work(worker, WorkEvent::Gone);
        if let Some(flight) = flight {
            self.worker(worker).writer = None;
            self.work(worker, WorkEvent::Failed(flight.id));
        }
        if self.workers[worker].is_stopping {
            return self.worker_leaves(worker);
        }
        self.worker_joins(worker);
    }
}
