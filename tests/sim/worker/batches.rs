//! A worker's commits: results, offsets, the end of the transaction; and what goes wrong between two of these steps.

use std::collections::VecDeque;
use std::sync::Arc;

use waterclock::engine::header::Refusal as Refused;
use waterclock::engine::member::Timing;
use waterclock::engine::messages::{DeadLetter, Destination, HeaderRewrite, Produce};
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::work::{Entry, Said, WorkBatch, WorkEvent};
use waterclock::engine::{BatchId, Lane, Offset, Record, UnixMillis, sealed};

use super::{Phase, WorkerEvent, WorkerReply, WorkerRequest};
use crate::broker::{Place, Position, Refusal};
use crate::mutation::Mutation;
use crate::network::{NOBODY, Outgoing, Scheduled};
use crate::plan::{SECOND, WORKER_SESSION};
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Produce,
    Offsets,
    Commit,
}

/// A batch on its way.
#[derive(Debug)]
pub struct Flight {
    pub(super) id: BatchId,
    records: Vec<Outgoing>,
    positions: Vec<(Place, Position)>,
    /// What is to be done yet.
    steps: VecDeque<Step>,
    is_busy: bool,
}

impl World {
    pub(super) fn worker_commits(&mut self, worker: usize, batch: WorkBatch) {
        let WorkBatch { id, entries, positions } = batch;
        let is_first = !std::mem::replace(&mut self.worker(worker).has_sent, true);
        if is_first && self.mutation == Some(Mutation::CallsBeforeMark) {
            return self.work(worker, WorkEvent::Committed(id));
        }
        let name = format!("worker {worker}");
        let mut records = Vec::new();
        for entry in entries {
            let (task, said, form) = match entry {
                Entry::Result(task, said, form) => (task, said, form),
                Entry::Absent { partition, lane, turn, id } => {
                    let key = &self.plan.setup.key;
                    let record = sealed::absent_record(key, (turn, &id), partition, &name);
                    let results = self.plan.setup.topics.results();
                    let Some(of) = results else { continue };
                    let topic = Arc::clone(self.plan.setup.topics.name(of));
                    let (partition, timing) = (i32::from(lane.0), Timing::Any);
                    records.push(Outgoing { topic, partition, record, timing });
                    self.count("results: absent");
                    continue;
                }
                Entry::Dead { partition, offset, appended, record, refusal } => {
                    let letter = self.letter_of(partition, (offset, appended), *record, refusal);
                    records.push(letter);
                    continue;
                }
            };
            if self.mutation == Some(Mutation::OffsetsWithoutResults) && self.chance.percent(20) {
                continue;
            }
            let is_cancelled = self.workers[worker].cancelled.contains(&task.turn);
            let said = match (self.mutation, said) {
                (Some(Mutation::CountsHandOvers), Said::Interrupted { .. }) => {
                    Said::Interrupted { in_doubt: true }
                }
                (Some(Mutation::SaysCancelled), Said::Interrupted { .. }) if is_cancelled => {
                    Said::Cancelled
                }
                (Some(Mutation::SaysCancelled), Said::Ended(of))
                    if is_cancelled && of.outcome != Outcome::Finished =>
                {
                    Said::Cancelled
                }
                (Some(Mutation::BurnsPutOffs), Said::Deferred { .. }) => {
                    Said::Ended(Box::new(TaskResult::new(Outcome::Failed)))
                }
                (_, said) => said,
            };
            self.count(match &said {
                Said::Started(_) => "results: started",
                Said::Deferred { .. } => "results: deferred",
                Said::Interrupted { in_doubt: true } => "results: in doubt",
                Said::Interrupted { in_doubt: false } => "results: cut",
                Said::Cancelled => "results: cancelled",
                Said::Ended(_) => "results: ended",
            });
            let record = sealed::result_record(&self.plan.setup.key, &task, &said, &name, form);
            let results = self.plan.setup.topics.results();
            let Some(topic) = results.map(|of| Arc::clone(self.plan.setup.topics.name(of))) else {
                return self.breach("model", "there is no topic for results".to_owned());
            };
            let partition = i32::from(task.lane.0);
            records.push(Outgoing { topic, partition, record, timing: Timing::Any });
        }
        let place = |(of, position): (Lane, _)| {
            let waterclock::engine::work::Position { next, metadata } = position;
            (self.tasks_place(of.0), Position { next: next.0, metadata })
        };
        let positions: Vec<(Place, Position)> = positions.into_iter().map(place).collect();
        let produce = (!records.is_empty()).then_some(Step::Produce);
        let steps = produce.into_iter().chain([Step::Offsets, Step::Commit]).collect();
        let flight = Flight { id, records, positions, steps, is_busy: false };
        if self.worker(worker).flight.replace(flight).is_some() {
            self.breach("contract", "a worker has two batches at once".to_owned());
        }
    }

    /// The dead letter of a record that waterclock has not written.
    fn letter_of(
        &mut self,
        partition: Lane,
        (offset, appended): (Offset, UnixMillis),
        record: Record,
        refusal: Refused,
    ) -> Outgoing {
        let letter = DeadLetter {
            code: refusal.code,
            detail: refusal.detail,
            topic: self.plan.setup.topics.tasks(),
            partition: i32::from(partition.0),
            offset,
            timestamp: appended,
            intake: "".into(),
        };
        let send = Produce {
            to: Destination::Dead,
            partition: Some(i32::from(partition.0)),
            record,
            rewrite: HeaderRewrite::Dead(Box::new(letter)),
            due: UnixMillis(0),
            expires: None,
        };
        self.outgoing(&send)
    }

    /// Takes the next step of the batch that is on its way, if there is one and none is being taken.
    pub(super) fn worker_steps(&mut self, worker: usize) {
        let of = &self.workers[worker];
        if of.phase != Phase::Running || of.flight.as_ref().is_none_or(|flight| flight.is_busy) {
            return;
        }
        let Some(writer) = of.writer.clone() else { return };
        let (name, generation) = (of.name.clone(), of.generation);
        if self.worker_faults(worker) {
            return;
        }
        let Some(flight) = self.worker(worker).flight.as_mut() else { return };
        flight.is_busy = true;
        let request = match flight.steps.front() {
            Some(Step::Produce) => {
                WorkerRequest::Produce(writer, std::mem::take(&mut flight.records))
            }
            Some(Step::Offsets) => {
                WorkerRequest::Offsets(writer, name, generation, flight.positions.clone())
            }
            Some(Step::Commit) => return self.worker_ends(worker, writer),
            None => return,
        };
        self.worker_asks_for(worker, request);
    }

    /// Kills or freezes the process here, perhaps; `true`: it is dead.
    fn worker_faults(&mut self, worker: usize) -> bool {
        let percent = self.plan.tasks.map_or(0, |of| of.step_faults);
        let spent = self.seen.get("workers struck between steps").copied().unwrap_or_default();
        if self.at >= self.plan.heal_at || spent >= 8 || !self.chance.percent(percent) {
            return false;
        }
        self.count("workers struck between steps");
        if self.chance.percent(50) {
            let back_after = self.chance.spread(50, 20 * SECOND);
            self.kill_worker(worker, back_after);
            return true;
        }
        let lasts = self.chance.spread(SECOND, 4 * WORKER_SESSION);
        self.freeze_worker(worker, lasts);
        false
    }

    fn worker_ends(&mut self, worker: usize, writer: crate::broker::Writer) {
        let unknown = self.plan.tasks.map_or(0, |of| of.commit_unknown);
        let is_unknown = self.at < self.plan.heal_at && self.chance.percent(unknown);
        let request = WorkerRequest::End(writer, true);
        if !is_unknown {
            return self.worker_asks_for(worker, request);
        }
        self.count("workers' commits unknown");
        // It is carried out, or will be, or never is: nobody hears of it.
        let life = self.workers[worker].life;
        match self.chance.between(0, 2) {
            0 => self.after(1, Scheduled::WorkerAsks(worker, life, NOBODY, request)),
            1 => {
                let late = self.chance.spread(100, 10 * SECOND);
                self.after(late, Scheduled::WorkerAsks(worker, life, NOBODY, request));
            }
            _ => {}
        }
        let round = self.workers[worker].round;
        let wait = self.chance.between(SECOND, 4 * SECOND);
        self.worker_wakes(worker, wait, WorkerEvent::Reply(round, WorkerReply::TimedOut));
    }

    pub(super) fn worker_stepped(&mut self, worker: usize, done: Result<(), Refusal>) {
        let Some(flight) = self.worker(worker).flight.as_mut() else { return };
        if let Err(refusal) = done {
            self.note(|| format!("worker {worker}: a commit failed, {refusal:?}"));
            self.count("workers' commits failed");
            // The same results go again once there is another producer, which ends what is open.
            return self.worker_inits(worker);
        }
        flight.steps.pop_front();
        flight.is_busy = false;
        if !flight.steps.is_empty() {
            return self.worker_steps(worker);
        }
        let Some(flight) = self.worker(worker).flight.take() else { return };
        if self.chance.percent(30) {
            for (place, position) in flight.positions {
                // As the shell does: not before it has read that.
                let of = self.workers[worker].reading.get(&(place.partition as u16));
                if of.is_some_and(|read| *read >= Offset(position.next)) {
                    self.broker.delete_records(place, Offset(position.next));
                }
            }
        }
        self.work(worker, WorkEvent::Committed(flight.id));
        self.stirred = true;
    }

    /// There is another producer, after a commit that failed.
    pub(super) fn worker_failed(&mut self, worker: usize) {
        if let Some(flight) = self.worker(worker).flight.take() {
            self.work(worker, WorkEvent::Failed(flight.id));
        }
    }
}
