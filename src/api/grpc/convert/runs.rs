//! Runs as their room reads them, and as it shows them.

use serde_json::{Map, Value};
use waterclock_proto::v1;

use super::super::super::runs::model::{
    RunCancelled, RunSettings, RunView, ShardCounts, ShardState, ShardView,
};
use super::super::super::tasks::model::Created;
use super::{
    Fields, base, length, maybe_time, on_result, on_result_fields, outcome, put, put_some,
    put_span, status, template, time, to_span,
};
use crate::engine::run::{OnShardFailure, Run};
use crate::engine::schedule::NEVER;
use crate::engine::task::request::Payload;
use crate::engine::task::spec::Spec;
use crate::engine::timers::RunStatus;

/// What is said of a run, as its reader takes it.
pub(super) fn request(of: v1::CreateRunRequest) -> Fields {
    let names = (of.project, of.group, of.request_id);
    let mut map = base(of.trigger_at, names, None, of.options);
    put(&mut map, "shards", of.shards, of.shards != 0);
    put_span(&mut map, "deadline", of.deadline);
    match v1::OnShardFailure::try_from(of.on_shard_failure) {
        Ok(v1::OnShardFailure::Unspecified) => {}
        Ok(v1::OnShardFailure::Continue) => put(&mut map, "on_shard_failure", "continue", true),
        Ok(v1::OnShardFailure::Stop) => put(&mut map, "on_shard_failure", "stop", true),
        Err(_) => put(&mut map, "on_shard_failure", of.on_shard_failure, true),
    }
    put_some(&mut map, "on_finished", of.on_finished.map(on_result_fields));
    put_some(&mut map, "task", of.task.and_then(|task| task.task).map(template::fields));
    (map, Payload::default())
}

/// A run that its owner keeps, as it is asked for. `said`: as it was written.
pub(super) fn asked_for(said: &Map<String, Value>, of: &Spec, run: &Run) -> v1::CreateRunRequest {
    v1::CreateRunRequest {
        shards: run.shards(),
        deadline: said.contains_key("deadline").then(|| to_span(run.deadline())),
        on_shard_failure: match said.contains_key("on_shard_failure") {
            true => on_shard_failure(run.on_shard_failure()),
            false => v1::OnShardFailure::Unspecified,
        }
        .into(),
        on_finished: of.on_result().map(|to| on_result(to.into())),
        task: shard(of).map(Box::new),
        ..v1::CreateRunRequest::default()
    }
}

const fn on_shard_failure(of: OnShardFailure) -> v1::OnShardFailure {
    match of {
        OnShardFailure::Continue => v1::OnShardFailure::Continue,
        OnShardFailure::Stop => v1::OnShardFailure::Stop,
    }
}

/// The task of each shard, as it is asked for. A run that was read has one.
fn shard(of: &Spec) -> Option<v1::NewTask> {
    let run = of.run()?;
    let request = run.request((of.project(), of.group()), NEVER).ok()?;
    template::message(run.task(), request)
}

pub(in super::super) fn created(of: Created) -> v1::CreateRunResponse {
    v1::CreateRunResponse { run_id: of.task_id, trigger_at: time(of.trigger_at) }
}

/// A run. `spec`: what it is, of which the view has the task in JSON.
pub(in super::super) fn run(of: RunView, spec: Option<&Spec>) -> v1::Run {
    let RunSettings { project, group, request_id, shards, deadline, on_finished, .. } = of.settings;
    let run = spec.and_then(Spec::run);
    v1::Run {
        run_id: of.run_id,
        run_status: run_status(of.run_status).into(),
        project,
        group,
        request_id: request_id.unwrap_or_default(),
        version: of.version,
        trigger_at: time(of.trigger_at),
        created_at: time(of.created_at),
        deadline_at: maybe_time(of.deadline_at),
        ended_at: maybe_time(of.ended_at),
        code: of.code.unwrap_or_default(),
        shards,
        counts: Some(counts(of.counts)),
        grid: of.grid.unwrap_or_default(),
        deadline: deadline.as_ref().and_then(length),
        on_shard_failure: run
            .map_or(v1::OnShardFailure::Unspecified, |run| on_shard_failure(run.on_shard_failure()))
            .into(),
        on_finished: on_finished.map(on_result),
        task: spec.and_then(shard),
        members: of.members,
        nominal_at: maybe_time(of.nominal_at),
    }
}

fn counts(of: ShardCounts) -> v1::ShardCounts {
    let ShardCounts { created, begun, again, finished, failed } = of;
    v1::ShardCounts { created, begun, again, finished, failed }
}

const fn run_status(of: RunStatus) -> v1::RunStatus {
    match of {
        RunStatus::Waiting => v1::RunStatus::Waiting,
        RunStatus::Triggered => v1::RunStatus::Triggered,
        RunStatus::Executing => v1::RunStatus::Executing,
        RunStatus::Locked => v1::RunStatus::Locked,
        RunStatus::ReExecuting => v1::RunStatus::ReExecuting,
        RunStatus::Finished => v1::RunStatus::Finished,
        RunStatus::Failed => v1::RunStatus::Failed,
        RunStatus::Expired => v1::RunStatus::Expired,
        RunStatus::Cancelled => v1::RunStatus::Cancelled,
    }
}

/// A status to look for; `None`: any.
///
/// # Errors
/// What is wrong with it.
pub(in super::super) fn wanted_status(number: i32) -> Result<Option<RunStatus>, String> {
    match v1::RunStatus::try_from(number) {
        Ok(v1::RunStatus::Unspecified) => Ok(None),
        Ok(want) => Ok(RunStatus::ALL.into_iter().find(|of| run_status(*of) == want)),
        Err(_) => Err(format!("is {number}; want one of RunStatus")),
    }
}

const fn shard_state(of: ShardState) -> v1::ShardState {
    match of {
        ShardState::ToCreate => v1::ShardState::ToCreate,
        ShardState::Waiting => v1::ShardState::Waiting,
        ShardState::Executing => v1::ShardState::Executing,
        ShardState::Again => v1::ShardState::Again,
        ShardState::Finished => v1::ShardState::Finished,
        ShardState::Failed => v1::ShardState::Failed,
    }
}

/// A state of shards to look for; `None`: any.
///
/// # Errors
/// What is wrong with it.
pub(in super::super) fn wanted_state(number: i32) -> Result<Option<ShardState>, String> {
    match v1::ShardState::try_from(number) {
        Ok(v1::ShardState::Unspecified) => Ok(None),
        Ok(want) => Ok(ShardState::ALL.into_iter().find(|of| shard_state(*of) == want)),
        Err(_) => Err(format!("is {number}; want one of ShardState")),
    }
}

pub(in super::super) fn shard_of_run(of: ShardView) -> v1::Shard {
    v1::Shard {
        index: of.index,
        task_id: of.task_id,
        task_status: status(of.task_status).into(),
        shard_state: shard_state(of.shard_state).into(),
        worker: of.worker.unwrap_or_default(),
        turn: of.turn,
        attempts_total: of.attempts_total,
        started: maybe_time(of.started),
        ended: maybe_time(of.ended),
        error: of.error.unwrap_or_default(),
        percent: of.percent.map(u32::from),
        cursor: of.cursor.unwrap_or_default(),
    }
}

pub(in super::super) fn cancelled(of: RunCancelled) -> v1::CancelRunResponse {
    v1::CancelRunResponse { run_id: of.run_id, outcome: outcome(of.outcome).into() }
}
