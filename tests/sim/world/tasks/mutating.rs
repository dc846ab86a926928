//! What mutations make of what lanes read of tasks, and of what they are told.

use serde_json::Value;
use waterclock::engine::header::{self, Directive, TimerAction};
use waterclock::engine::messages::{Destination, Produce};
use waterclock::engine::state::{Bound, Kind, State, SubmissionOrder, TaskState};
use waterclock::engine::task::id::TaskId;
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::task::scope::TasksPartition;
use waterclock::engine::task::spec::{self, Spec};
use waterclock::engine::timers::{HeldBy, Live, Progress, RunProgress, TimerId};
use waterclock::engine::{Lane, Millis, Record, Source};

use crate::mutation::Mutation;
use crate::network::Outgoing;
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

/// What is known of the shards of a run, but for those that have ended.
fn without_ends(run: &RunProgress) -> RunProgress {
    /// Before four bits of each shard.
    const HEAD: usize = 18;
    let mut bytes = run.value();
    bytes.iter_mut().skip(HEAD).for_each(|two| *two &= 0x33);
    RunProgress::read(&bytes).expect("the same with fewer bits")
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
                    | Mutation::CutsHeartbeats
                    | Mutation::ForgetsSuccesses
                    | Mutation::TakesOldNews
                    | Mutation::TakesCreatedForEnded
                    | Mutation::MissesEndsOfRuns
                    | Mutation::LosesTimesAtChanges
                    | Mutation::IgnoresStops
                    | Mutation::IgnoresDeadlines
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
            Some(Mutation::TakesOldNews) => return self.of_this_version(kind, record),
            Some(Mutation::TakesCreatedForEnded | Mutation::MissesEndsOfRuns) => {
                return self.behind_another(kind, record);
            }
            Some(
                Mutation::ForgetsHeartbeats | Mutation::CutsHeartbeats | Mutation::ForgetsSuccesses,
            ) => return self.without_feedback(kind, record),
            Some(Mutation::LosesTimesAtChanges) => return self.change_from_now_on(kind, record),
            Some(Mutation::IgnoresStops | Mutation::IgnoresDeadlines) => {
                return self.with_other_ends(kind, record);
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

    /// A heartbeat that counts for no time, or for less, or a success of a turn that there is not.
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
            (Mutation::CutsHeartbeats, Outcome::Started) => {
                // A retry waits for a second at least, so a little less would not show.
                let third = (state.due - state.first_appended).0 / 3;
                State { due: state.first_appended + Millis(third), ..state }
            }
            (Mutation::ForgetsSuccesses, Outcome::Finished) => {
                let task = state.task.map(|task| TaskState { turn: 0, ..task });
                State { task, ..state }
            }
            _ => return None,
        };
        Some(with_state(record, changed.seal(key, &bound).as_ref()))
    }

    /// News of a shard of another version of its run, as news of the one that is pending.
    fn of_this_version(&self, kind: Kind, record: &Record) -> Option<Record> {
        let key = &self.plan.setup.key;
        let directive = header::read(record.headers()).ok()?;
        if kind != Kind::Result || directive.task.is_some() {
            return None;
        }
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, key, &bound).ok()?;
        let id = TaskId::parse(std::str::from_utf8(directive.id?).ok()?).ok()?;
        let version = self.tasks.runs.pending(&TimerId::task(&id))?;
        let order = SubmissionOrder { offset: version.offset, ..state.order };
        let sealed = State { first_appended: version.first_appended, order, ..state };
        Some(with_state(record, sealed.seal(key, &bound).as_ref()))
    }

    /// The same record with another specification.
    fn respecified(
        &self,
        record: &Record,
        edit: impl FnOnce(&Directive<'_>, &mut Value) -> Option<()>,
    ) -> Option<Record> {
        const TASK: &[u8] = spec::HEADER.as_bytes();
        let key = &self.plan.setup.key;
        let directive = header::read(record.headers()).ok()?;
        let mut spec = serde_json::from_slice::<Value>(directive.task?).ok()?;
        let bound = directive.bound(record.key());
        let state = State::open(directive.state?, key, &bound).ok()?;
        edit(&directive, &mut spec)?;
        let spec = spec.to_string();
        let sealed = state.seal(key, &Bound { task: Some(spec.as_bytes()), ..bound });
        let headers = record.headers().map(|(name, value)| match name {
            STATE => (name, Some(sealed.as_ref())),
            TASK => (name, Some(spec.as_bytes())),
            _ => (name, value),
        });
        let headers: Vec<_> = headers.collect();
        Some(Record::new(record.key(), record.value(), headers.into_iter()))
    }

    /// A run that waits for another one of its schedule, as one that waits for none any more, or for itself.
    fn behind_another(&self, kind: Kind, record: &Record) -> Option<Record> {
        self.respecified(record, |directive, spec| {
            if kind != Kind::Hop || spec["type"] != "run" {
                return None;
            }
            let id = std::str::from_utf8(directive.id?).ok()?;
            let (schedule, _) = id.rsplit_once('@')?;
            let occurrence = spec.get_mut("occurrence")?.as_object_mut()?;
            let other = TaskId::parse(&format!("{schedule}@{}", occurrence.get("after")?)).ok()?;
            let runs = &self.tasks.runs;
            let other = runs.shown(runs.position(&TimerId::task(&other))?)?;
            if self.mutation == Some(Mutation::MissesEndsOfRuns) {
                let own = occurrence.get("nominal")?.clone();
                occurrence.insert("after".to_owned(), own);
            } else if other.task.is_some_and(|of| of.with_executor) {
                occurrence.remove("after");
            }
            Some(())
        })
    }

    /// A change of a schedule, as one that starts at its next time.
    fn change_from_now_on(&self, kind: Kind, record: &Record) -> Option<Record> {
        let now = self.broker.slowest_clock(self.at);
        self.respecified(record, |directive, spec| {
            let is_change = kind == Kind::Submit && directive.action == TimerAction::Replace;
            let read = Spec::parse(directive.task.filter(|_| is_change)?).ok()?;
            let next = read.schedule()?.timing().next_after(now)?;
            // It has the same times from then on.
            spec["start"] = next.0.into();
            Some(())
        })
    }

    /// A run as one that goes on whatever becomes of its shards, or for long.
    fn with_other_ends(&self, kind: Kind, record: &Record) -> Option<Record> {
        self.respecified(record, |_, spec| {
            if kind != Kind::Submit || spec["type"] != "run" {
                return None;
            }
            match self.mutation? {
                Mutation::IgnoresStops => spec["on_shard_failure"] = "continue".into(),
                _ => spec["deadline"] = "1d".into(),
            }
            Some(())
        })
    }

    /// The end of a shard, as that of the one beside it.
    pub fn end_of_another_shard(&self, send: &Produce, sent: &Outgoing) -> Option<Outgoing> {
        let key = &self.plan.setup.key;
        let directive = header::read(sent.record.headers()).ok()?;
        let said = TaskResult::parse(directive.result?).ok()?;
        let ends = matches!(said.outcome, Outcome::Finished | Outcome::Failed);
        if send.to != Destination::Results || !ends {
            return None;
        }
        let bound = directive.bound(sent.record.key());
        let state = State::open(directive.state?, key, &bound).ok()?;
        let task = state.task.map(|task| TaskState { round: task.round ^ 1, ..task });
        let sealed = State { task, ..state }.seal(key, &bound);
        Some(Outgoing { record: with_state(&sent.record, sealed.as_ref()), ..sent.clone() })
    }

    /// The create of a shard, once more, now and then, with the id that it has in another version of its run.
    pub fn shard_of_another_version(
        &mut self,
        send: &Produce,
        sent: &Outgoing,
    ) -> Option<Outgoing> {
        if send.to != Destination::Submitted || !self.chance.percent(20) {
            return None;
        }
        let key = &self.plan.setup.key;
        let directive = header::read(sent.record.headers()).ok()?;
        directive.task?;
        let bound = directive.bound(sent.record.key());
        let state = State::open(directive.state?, key, &bound).ok()?;
        let id = TaskId::parse(std::str::from_utf8(directive.id?).ok()?).ok()?;
        let (run, (first_appended, offset), index) = id.as_shard()?;
        let id = run.shard((first_appended, offset.next()), index);
        let sealed = state.seal(key, &Bound { id: Some(id.as_str().as_bytes()), ..bound });
        let headers = sent.record.headers().map(|(name, value)| match name {
            STATE => (name, Some(sealed.as_ref())),
            b"x-delay-id" => (name, Some(id.as_str().as_bytes())),
            _ => (name, value),
        });
        let record = Record::new(sent.record.key(), sent.record.value(), headers);
        let partition = i32::from(id.lane_of(self.plan.setup.lanes).0);
        Some(Outgoing { record, partition, ..sent.clone() })
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
            if self.mutation == Some(Mutation::ForgetsEndsOfShards) {
                live.run = live.run.take().map(|run| Box::new(without_ends(&run)));
            }
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
