//! Executors: they take what is handed to them, and report in time, late, twice or never.

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::header;
use waterclock::engine::messages::{Answer, Outcome, Reported};
use waterclock::engine::sealed::Ticket;
use waterclock::engine::sealed::{self, CopyTerms, WantedCopy};
use waterclock::engine::task::result::{Outcome as Said, TaskResult};
use waterclock::engine::task::spec::{Feedback, Kind};
use waterclock::engine::{Offset, Record, UnixMillis};

use crate::broker::{Place, Time};
use crate::network::{Act, Scheduled};
use crate::plan::SECOND;
use crate::world::World;

/// Percent of reports that somebody writes twice.
const TWICE: u32 = 15;

/// Something that an executor says.
#[derive(Clone, Debug)]
pub struct Report {
    pub task: usize,
    pub ticket: Ticket,
    pub said: Said,
    /// When it was sent, if it was.
    pub sent: Option<Time>,
    /// When Kafka acknowledged it, by the clock of the leader that appended it.
    pub appended: Option<UnixMillis>,
    /// Where it stands.
    pub places: Vec<(Place, Offset)>,
    /// What the executor is told, each time.
    pub told: Vec<Outcome>,
}

impl Report {
    /// Whether it says how far its executor came.
    fn has_cursor(&self) -> bool {
        matches!(self.said, Said::Started | Said::Failed)
    }
}

/// What executors have, and say.
#[derive(Debug, Default)]
pub struct Executors {
    pub reports: Vec<Report>,
    /// Turns of tasks as they came to stand in topics, and when.
    pub handed: Vec<(usize, Ticket, Time)>,
    /// How far topics are read.
    read: BTreeMap<Place, Offset>,
    /// Turns that were taken.
    taken: BTreeSet<(usize, u32, UnixMillis)>,
}

impl World {
    /// Executors read on in their topics.
    pub(super) fn follow_topics(&mut self) {
        let topics: Vec<usize> =
            ["t0", "t1", "later"].iter().filter_map(|name| self.broker.topic(name)).collect();
        for topic in topics {
            for partition in 0..self.broker.topics[topic].partitions.len() as i32 {
                let place = Place { topic, partition };
                let mut next = self.tasks.executors.read.get(&place).copied().unwrap_or_default();
                let mut records = Vec::new();
                while let Ok(Some((offset, entry))) = self.broker.fetch(place, next) {
                    next = offset.next();
                    records.extend(entry.record.clone().map(|record| (entry.at, record)));
                }
                self.tasks.executors.read.insert(place, next);
                records.iter().for_each(|(at, record)| self.take_record(*at, record));
            }
        }
    }

    fn take_record(&mut self, at: Time, record: &Record) {
        let of = |wanted: &str| {
            let mut headers = record.headers();
            let (_, value) = headers.find(|(name, _)| *name == wanted.as_bytes())?;
            std::str::from_utf8(value?).ok().map(str::to_owned)
        };
        let (Some(ticket), Some(id)) = (of(header::TICKET), of(header::ID)) else { return };
        let mut drafts = self.tasks.drafts.iter();
        let Some(task) = drafts.position(|draft| draft.id.as_str() == id) else { return };
        self.check_cursor(task, &ticket, of(header::CURSOR).as_deref());
        if let Some(ticket) = self.read_ticket(task, &ticket) {
            self.tasks.executors.handed.push((task, ticket, at));
            self.take_turn(task, ticket);
        }
    }

    /// An executor is handed a turn with this ticket.
    pub(super) fn take_ticket(&mut self, task: usize, ticket: &str) {
        if let Some(ticket) = self.read_ticket(task, ticket) {
            self.take_turn(task, ticket);
        }
    }

    fn read_ticket(&mut self, task: usize, ticket: &str) -> Option<Ticket> {
        let read = Ticket::read(ticket, &self.plan.setup.key, &self.tasks.drafts[task].id);
        if let Err(error) = &read {
            self.breach("as agreed", format!("the ticket of task {task}: {error}"));
        }
        read.ok()
    }

    /// A turn is handed how far the executors of earlier ones said that they came, as far as they were told that it counts.
    pub(super) fn check_cursor(&mut self, task: usize, ticket: &str, cursor: Option<&str>) {
        let Some(Ticket { version, turn, .. }) = self.read_ticket(task, ticket) else { return };
        let all = &self.tasks.executors.reports;
        let is_of = |report: &&Report| {
            report.task == task && report.ticket.turn < turn && report.has_cursor()
        };
        let counts = |told: &Outcome| {
            matches!(told, Outcome::Reported(Reported::Running(_) | Reported::Retrying))
        };
        let first = |report: &Report| report.places.iter().map(|(_, offset)| *offset).min();
        let last = |report: &Report| report.places.iter().map(|(_, offset)| *offset).max();
        // One that was written twice was decided at the second place, too.
        let counted = all
            .iter()
            .filter(is_of)
            .filter(|report| report.ticket.version == version && report.told.iter().any(counts));
        // What is said while a worker holds the turn may be forgotten with the lane's owner.
        let is_kafka = matches!(self.tasks.drafts[task].spec.kind(), Kind::Kafka(_));
        let at_least = counted.filter_map(first).max().filter(|_| is_kafka);
        let said = cursor.map(|cursor| {
            let report = cursor.parse().ok().and_then(|nth: usize| all.get(nth)).filter(is_of);
            report.and_then(last)
        });
        let holds = match said {
            Some(Some(said)) => at_least.is_none_or(|least| said >= least),
            Some(None) => false,
            None => at_least.is_none(),
        };
        if !holds {
            let what = format!("turn {turn} of task {task} has the cursor {cursor:?}");
            self.breach("cursors", what);
        }
        if cursor.is_some() {
            self.count("turns with a cursor");
        }
    }

    /// An executor takes a turn, and knows what it will do.
    fn take_turn(&mut self, task: usize, ticket: Ticket) {
        let of = (task, ticket.turn, ticket.version.first_appended);
        let Some(Feedback { deadline, .. }) = self.tasks.drafts[task].spec.feedback() else {
            return self.breach("as agreed", format!("task {task} has a ticket"));
        };
        if !self.tasks.executors.taken.insert(of) {
            return;
        }
        self.count("turns taken by executors");
        let (deadline, beat) = (deadline.0, ticket.heartbeat.0);
        let settle = self.plan.settle;
        let soon = self.chance.spread(10, deadline - deadline / 10);
        let close = deadline - settle.min(deadline) - self.chance.between(0, SECOND).min(deadline);
        let late = deadline + self.chance.between(0, 15 * SECOND);
        let beats = self.chance.between(1, 6);
        let pace = beat * self.chance.between(50, 85) / 100;
        match self.chance.between(0, 13) {
            0..=2 => self.will_say(task, ticket, soon, Said::Finished),
            3 | 4 => self.will_say(task, ticket, close, Said::Finished),
            5 => self.will_say(task, ticket, late, Said::Finished),
            6 => {}
            7 | 8 => self.will_say(task, ticket, soon, Said::Failed),
            9 => self.will_say(task, ticket, soon, Said::Gone),
            how @ 10..=12 => {
                for nth in 1..=beats {
                    self.will_say(task, ticket, nth * pace, Said::Started);
                }
                if how < 12 {
                    self.will_say(task, ticket, beats * pace + pace / 2, Said::Finished);
                }
            }
            _ => {
                self.will_say(task, ticket, soon, Said::Failed);
                self.will_say(task, ticket, late, Said::Started);
                self.will_say(task, ticket, late + SECOND, Said::Finished);
            }
        }
    }

    fn will_say(&mut self, task: usize, ticket: Ticket, wait: Time, said: Said) {
        let (sent, appended, places, told) = (None, None, Vec::new(), Vec::new());
        let report = Report { task, ticket, said, sent, appended, places, told };
        self.tasks.executors.reports.push(report);
        let report = self.tasks.executors.reports.len() - 1;
        self.after(wait, Scheduled::Task(Act::Report(report)));
    }

    /// Does what the API does.
    pub(super) fn report(&mut self, report: usize) {
        let Report { task, ticket, said, .. } = self.tasks.executors.reports[report].clone();
        self.follow_tasks();
        let copy = if said.carries_payload() { self.copy_for(task) } else { None };
        if said.carries_payload() && copy.is_none() {
            return self.count("payloads of reports not found");
        }
        let id = self.tasks.drafts[task].id.clone();
        let has_cursor = self.tasks.executors.reports[report].has_cursor();
        let cursor = has_cursor.then(|| report.to_string());
        let result = TaskResult { cursor, ..TaskResult::new(said) };
        let copy = copy.as_ref().map(|(record, terms, trigger)| (record, *terms, *trigger));
        let (key, now) = (&self.plan.setup.key, self.api_now());
        let record = sealed::feedback(key, now, (&id, ticket), &result, copy);
        let lane = id.lane_of(self.plan.setup.lanes);
        let place = Place { topic: self.lane_topics[0], partition: i32::from(lane.0) };
        let times = if self.chance.percent(TWICE) { 2 } else { 1 };
        self.stirred = true;
        for _ in 0..times {
            match self.broker.produce(self.at, None, place, record.clone()) {
                Ok(offset) => {
                    self.count(match said {
                        Said::Started => "heartbeats",
                        Said::Finished => "successes reported",
                        _ => "failures reported",
                    });
                    let appended = self.broker.clock(self.broker.leader(place), self.at);
                    let of = &mut self.tasks.executors.reports[report];
                    of.sent.get_or_insert(self.at);
                    of.appended.get_or_insert(appended);
                    of.places.push((place, offset));
                }
                Err(refusal) => self.breach("model", format!("a report of {task}: {refusal:?}")),
            }
        }
    }

    fn copy_for(&self, task: usize) -> Option<(Record, CopyTerms, UnixMillis)> {
        let timer = self.task_now(task)?;
        let id = &self.tasks.drafts[task].id;
        let (version, turn, trigger) = (timer.version, timer.task?.turn, timer.due);
        let wanted = WantedCopy { id, version, turn, trigger };
        let (record, terms) =
            self.payload_of(timer, &wanted).filter(|_| !timer.state.is_final())?;
        Some((record, terms, trigger))
    }

    /// What became of a report may be told; `false`: the answer is that of another command.
    pub(super) fn report_answered(&mut self, answer: &Answer) -> bool {
        let place = self.place(answer.source);
        let at = (place, answer.offset);
        let mut reports = self.tasks.executors.reports.iter_mut();
        let Some(report) = reports.find(|of| of.places.contains(&at)) else { return false };
        report.told.push(answer.outcome);
        self.count(match answer.outcome {
            Outcome::Reported(Reported::Finished) => "reports that finish",
            Outcome::Reported(Reported::Retrying) => "reports that have it called again",
            Outcome::Reported(Reported::Failed) => "reports that fail",
            Outcome::Reported(Reported::Running(_)) => "heartbeats that count",
            Outcome::Reported(Reported::Stale) => "reports that are stale",
            Outcome::Underway => "reports that come before the call has ended",
            _ => "reports with another answer",
        });
        true
    }
}
