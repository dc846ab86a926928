//! What mutations make of what lanes read of tasks, and of what they are told.

use waterclock::engine::header::{self, TimerAction};
use waterclock::engine::state::{Kind, State, TaskState};
use waterclock::engine::task::id::TaskId;
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::task::scope::TasksPartition;
use waterclock::engine::task::spec::Spec;
use waterclock::engine::timers::{HeldBy, Live, Progress, TimerId};
use waterclock::engine::{Lane, Record, Source};

use crate::mutation::Mutation;
use crate::world::World;

const STATE: &[u8] = b"x-delay-state";
/// What the target of a schedule begins with, as the changelog has it.
const SCHEDULE: &str = "schedule:";

/// The same record with this state.
fn with_state(record: &Record, sealed: &[u8]) -> Record {
    let headers = record.headers().map(|(name, value)| match name {
        STATE => (name, Some(sealed)),
        _ => (name, value),
    });
    let headers: Vec<_> = headers.collect();
    Record::new(record.key(), record.value(), headers.into_iter())
}

impl World {
    /// The record of a task as a mutation has it read.
    pub fn misread(&mut self, source: Source, record: Record) -> Record {
        let is_for_this = matches!(
            self.mutation,
            Some(
                Mutation::IgnoresTurns
                    | Mutation::RevivesCopies
                    | Mutation::DropsReread
                    | Mutation::ForgetsExpiry
                    | Mutation::ForgetsHeartbeats
                    | Mutation::ForgetsSuccesses
            )
        );
        if !is_for_this || self.plan.tasks.is_none() {
            return record;
        }
        self.follow_tasks();
        let topics = &self.plan.setup.topics;
        let kind = match topics.tier_of(source.topic) {
            Some(_) => Kind::Hop,
            None if topics.results() == Some(source.topic) => Kind::Result,
            None => Kind::Submit,
        };
        self.misread_as(kind, &record).unwrap_or(record)
    }

    fn misread_as(&self, kind: Kind, record: &Record) -> Option<Record> {
        match self.mutation {
            Some(Mutation::ForgetsExpiry) => return self.without_expiry(kind, record),
            Some(Mutation::ForgetsHeartbeats | Mutation::ForgetsSuccesses) => {
                return self.without_feedback(kind, record);
            }
            _ if kind == Kind::Submit => return None,
            _ => {}
        }
        let key = &self.plan.setup.key;
        let directive = header::read(record.headers()).ok()?;
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, key, &bound).ok()?;
        let task = state.task.filter(|task| state.kind == kind && task.turn > 0)?;
        let id = TaskId::parse(std::str::from_utf8(directive.id?).ok()?).ok()?;
        let seen = self.task_now(*self.tasks.of.get(&TimerId::task(&id))?)?;
        let progress = seen.task.unwrap_or_default();
        let is_pending = !seen.state.is_final();
        let turn = match self.mutation? {
            Mutation::IgnoresTurns if is_pending && task.turn < progress.turn => progress.turn,
            Mutation::RevivesCopies if kind == Kind::Hop && !is_pending => 0,
            Mutation::DropsReread
                if kind == Kind::Result
                    && is_pending
                    && progress.held.is_none()
                    && progress.turn == task.turn =>
            {
                task.turn + 1_000
            }
            _ => return None,
        };
        let sealed = State { task: Some(TaskState { turn, ..task }), ..state }.seal(key, &bound);
        Some(with_state(record, sealed.as_ref()))
    }

    fn without_expiry(&self, kind: Kind, record: &Record) -> Option<Record> {
        let key = &self.plan.setup.key;
        let directive = header::read(record.headers()).ok()?;
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, key, &bound).ok()?;
        let is_it = state.kind == kind && kind == Kind::Submit;
        let sealed = is_it.then(|| State { expires: None, ..state }.seal(key, &bound))?;
        Some(with_state(record, sealed.as_ref()))
    }

    /// A heartbeat that counts for no time, or a success of a turn that there is not.
    fn without_feedback(&self, kind: Kind, record: &Record) -> Option<Record> {
        let key = &self.plan.setup.key;
        let directive = header::read(record.headers()).ok()?;
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, key, &bound).ok()?;
        let said = TaskResult::parse(directive.result.filter(|_| kind == Kind::Submit)?).ok()?;
        let changed = match (self.mutation?, said.outcome) {
            (Mutation::ForgetsHeartbeats, Outcome::Started) => {
                State { due: state.first_appended, ..state }
            }
            (Mutation::ForgetsSuccesses, Outcome::Finished) => {
                let task = state.task.map(|task| TaskState { turn: 0, ..task });
                State { task, ..state }
            }
            _ => return None,
        };
        Some(with_state(record, changed.seal(key, &bound).as_ref()))
    }

    /// Whether a mutation has a record of the intake pass unread: a change of a schedule.
    pub fn is_missed(&self, record: &Record) -> bool {
        if self.mutation != Some(Mutation::MissesChanges) {
            return false;
        }
        let Ok(directive) = header::read(record.headers()) else { return false };
        let spec = directive.task.and_then(|json| Spec::parse(json).ok());
        directive.action == TimerAction::Replace
            && spec.is_some_and(|spec| spec.schedule().is_some())
    }

    /// What is pending, as a mutation has it told.
    pub fn misremember(&self, live: &mut [Live]) {
        for live in live {
            let is_schedule = live.target.starts_with(SCHEDULE);
            let Some(task) = live.task.as_mut() else { continue };
            match self.mutation {
                Some(Mutation::ForgetsCredits) => {
                    task.held = task.held.map(|held| HeldBy { credits: 0, ..held });
                }
                Some(Mutation::DecidesTwice) if task.turn > 0 && task.held.is_none() => {
                    let held = Some(HeldBy { partition: TasksPartition(0), credits: 1 });
                    *task = Progress { held, ..*task };
                }
                Some(Mutation::ForgetsTimes) if is_schedule => {
                    // Its last times stand where a task has these.
                    *task = Progress { failures: 0, rounds: 0, interruptions: 0, ..*task };
                }
                _ => {}
            }
        }
    }

    /// Something stands among the results of a lane that is not read, as its transaction is open.
    pub fn has_unread_results(&self, lane: Lane) -> bool {
        let results = self.plan.setup.topics.results();
        let of = |topic| self.broker.partition(self.place(Source { topic, lane }));
        results.and_then(of).is_some_and(|log| log.last_stable() < log.end())
    }
}
