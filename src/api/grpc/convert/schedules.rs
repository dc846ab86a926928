//! Schedules as their room reads them, and as it shows them.
//!
//! # Invariants
//! 1. A message that is read twice is the same schedule.
//! 2. The task that is shown is the one that was asked for: what nobody said is not there. Addresses are as they are kept.

use serde_json::{Map, Value};
use waterclock_proto::v1;

use super::super::super::schedules::model::{
    Backfilled, DeletedSchedule, Preview, ScheduleSettings, ScheduleStatus, ScheduleView, Triggered,
};
use super::super::super::schedules::of_one::DELETED;
use super::{length, maybe_time, put, put_some, put_span, put_text, template, time};
use crate::engine::schedule::NEVER;
use crate::engine::task::spec::Spec;

/// What is said of a schedule, as its reader takes it.
pub(in super::super) fn fields(of: v1::ScheduleSettings) -> Map<String, Value> {
    let mut map = Map::new();
    put_text(&mut map, "project", of.project);
    put_text(&mut map, "group", of.group);
    put_text(&mut map, "name", of.name);
    put_text(&mut map, "cron", of.cron);
    put_text(&mut map, "zone", of.zone);
    put_span(&mut map, "every", of.every);
    put_some(&mut map, "aligned", of.aligned);
    put(&mut map, "start", of.start, of.start != 0);
    put(&mut map, "end", of.end, of.end != 0);
    put(&mut map, "count", of.count, of.count != 0);
    put_span(&mut map, "jitter", of.jitter);
    match v1::Misfire::try_from(of.misfire) {
        Ok(v1::Misfire::Unspecified) => {}
        Ok(v1::Misfire::FireOnce) => put(&mut map, "misfire", "fire_once", true),
        Ok(v1::Misfire::Skip) => put(&mut map, "misfire", "skip", true),
        Ok(v1::Misfire::FireAll) => put(&mut map, "misfire", "fire_all", true),
        Err(_) => put(&mut map, "misfire", of.misfire, true),
    }
    match v1::Overlap::try_from(of.overlap) {
        Ok(v1::Overlap::Unspecified) => {}
        Ok(v1::Overlap::Allow) => put(&mut map, "overlap", "allow", true),
        Ok(v1::Overlap::Skip) => put(&mut map, "overlap", "skip", true),
        Ok(v1::Overlap::QueueOne) => put(&mut map, "overlap", "queue_one", true),
        Err(_) => put(&mut map, "overlap", of.overlap, true),
    }
    put_span(&mut map, "expires", of.expires);
    put(&mut map, "paused", of.paused, of.paused);
    put_some(&mut map, "task", of.task.and_then(|task| task.task).map(template::fields));
    map
}

/// A schedule. `spec`: what it is, of which the view has the task in JSON.
pub(in super::super) fn schedule(of: ScheduleView, spec: &Spec) -> v1::Schedule {
    let task = spec.schedule().and_then(|of| {
        let request = of.request((spec.project(), spec.group()), NEVER).ok()?;
        template::message(of.task(), request)
    });
    v1::Schedule {
        schedule_id: of.schedule_id,
        version: of.version,
        status: status(of.status).into(),
        next_at: maybe_time(of.next_at),
        last_at: maybe_time(of.last_at),
        last_task_id: of.last_task_id.unwrap_or_default(),
        tasks_total: of.tasks_total,
        changed_at: time(of.changed_at),
        ended_at: maybe_time(of.ended_at),
        code: of.code.unwrap_or_default(),
        settings: Some(settings(of.settings, task)),
        members: of.members,
    }
}

fn status(of: ScheduleStatus) -> v1::ScheduleStatus {
    match of {
        ScheduleStatus::Active => v1::ScheduleStatus::Active,
        ScheduleStatus::Paused => v1::ScheduleStatus::Paused,
        ScheduleStatus::Finished => v1::ScheduleStatus::Finished,
        ScheduleStatus::Deleted => v1::ScheduleStatus::Deleted,
        ScheduleStatus::Failed => v1::ScheduleStatus::Failed,
    }
}

fn settings(of: ScheduleSettings, task: Option<v1::NewTask>) -> v1::ScheduleSettings {
    let point = |at: Option<Value>| maybe_time(at.as_ref().and_then(Value::as_u64));
    v1::ScheduleSettings {
        project: of.project,
        group: of.group,
        name: of.name,
        cron: of.cron.unwrap_or_default(),
        zone: of.zone.unwrap_or_default(),
        every: of.every.as_ref().and_then(length),
        aligned: of.aligned,
        start: point(of.start),
        end: point(of.end),
        count: of.count.unwrap_or_default(),
        jitter: of.jitter.as_ref().and_then(length),
        misfire: match of.misfire.as_deref() {
            Some("fire_once") => v1::Misfire::FireOnce,
            Some("skip") => v1::Misfire::Skip,
            Some("fire_all") => v1::Misfire::FireAll,
            _ => v1::Misfire::Unspecified,
        }
        .into(),
        overlap: match of.overlap.as_deref() {
            Some("allow") => v1::Overlap::Allow,
            Some("skip") => v1::Overlap::Skip,
            Some("queue_one") => v1::Overlap::QueueOne,
            _ => v1::Overlap::Unspecified,
        }
        .into(),
        expires: of.expires.as_ref().and_then(length),
        paused: of.paused,
        task,
    }
}

pub(in super::super) fn deleted(of: DeletedSchedule) -> v1::DeleteScheduleResponse {
    let outcome = match of.outcome == DELETED {
        true => v1::DeleteOutcome::Deleted,
        false => v1::DeleteOutcome::Pending,
    };
    v1::DeleteScheduleResponse { schedule_id: of.schedule_id, outcome: outcome.into() }
}

pub(in super::super) fn triggered(of: Triggered) -> v1::ScheduledTask {
    v1::ScheduledTask { task_id: of.task_id, trigger_at: time(of.trigger_at) }
}

pub(in super::super) fn backfilled(of: Backfilled) -> v1::BackfillScheduleResponse {
    v1::BackfillScheduleResponse {
        tasks: of.tasks.into_iter().map(triggered).collect(),
        next_start: maybe_time(of.next_from),
    }
}

pub(in super::super) fn preview(of: Preview) -> v1::PreviewScheduleResponse {
    v1::PreviewScheduleResponse {
        times: of.times.into_iter().map(time).collect(),
        shown: of.shown,
        has_more: of.has_more,
        zones: of.zones,
    }
}
