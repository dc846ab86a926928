//! `waterclock index rebuild`: the index that is there is set aside, and another one made from the changelog.

use std::path::Path;

use serde_json::json;

use super::{Error, failed};
use crate::cli::{Outcome, output};
use crate::config::Config;
use crate::engine::timers::Change;
use crate::engine::{Lane, Offset, UnixMillis};
use crate::kafka::{Changelog, Connection, Logged, wall_clock};
use crate::terminal::Progress;
use crate::timers::index::{BATCH_MAX, Identity, Index, IndexCounts};

pub(super) fn run(
    connection: &Connection,
    config: &Config,
    identity: &Identity,
    place: &Path,
    lanes: Vec<Lane>,
    json: bool,
) -> Outcome {
    let began = std::time::Instant::now();
    let done = rebuild(connection, config, identity, place, lanes).map_err(failed)?;
    let Done { figures, records, unreadable, disk_bytes } = done;
    let IndexCounts { lanes, live, ended, cancel_marks } = figures;
    let seconds = began.elapsed().as_secs_f64();
    if json {
        let told = json!({
            "lanes": lanes,
            "records": records,
            "unreadable": unreadable,
            "pending": live,
            "ended": ended,
            "void": cancel_marks,
            "disk_bytes": disk_bytes,
            "seconds": seconds,
        });
        return output::line(&told.to_string());
    }
    let unread = match unreadable {
        0 => String::new(),
        n => format!("; skipped {n} records that this version cannot read"),
    };
    output::line(&format!(
        "created again in {seconds:.1} s from {records} records of {lanes} lanes: {live} pending, {ended} ended, {cancel_marks} \
         void{unread}"
    ))
}

struct Done {
    figures: IndexCounts,
    records: u64,
    unreadable: u64,
    disk_bytes: u64,
}

fn rebuild(
    connection: &Connection,
    config: &Config,
    identity: &Identity,
    place: &Path,
    mut lanes: Vec<Lane>,
) -> Result<Done, Error> {
    let mut changelog = Changelog::open(connection, &config.namespace)?;
    let all = changelog.lanes();
    if let Some(lane) = lanes.iter().find(|lane| !all.contains(lane)) {
        return Err(Error::NoLane { lane: lane.0, lanes: all.len() });
    }
    if lanes.is_empty() {
        lanes = had(place);
        lanes.retain(|lane| all.contains(lane));
    }
    if lanes.is_empty() {
        lanes = all;
    }
    let mut index = Index::started_over(place, identity)?;
    let progress = Progress::new(lanes.iter().map(|lane| changelog.span(*lane)).sum());
    let (mut records, mut unreadable) = (0, 0);
    for lane in lanes {
        progress.set_phase(format!("lane {}", lane.0));
        // Nothing from before is missing when the end is reached.
        let now = wall_clock();
        let before = progress.done();
        let mut batch: Vec<Change> = Vec::with_capacity(BATCH_MAX);
        let mut first = None;
        let end = changelog.read::<Error>(lane, |Logged { offset, at, change, .. }| {
            records += 1;
            match change {
                Ok(change) => batch.push(change),
                Err(_) => unreadable += 1,
            }
            if batch.len() >= BATCH_MAX {
                let first = *first.get_or_insert(offset);
                progress.set(before + (offset.0 - first.0).max(0).unsigned_abs());
                apply(&mut index, lane, &mut batch, offset.next(), at)?;
            }
            Ok(())
        })?;
        apply(&mut index, lane, &mut batch, end, now)?;
        progress.set(before + changelog.span(lane));
    }
    let done = Done {
        figures: index.reader().counts()?,
        records,
        unreadable,
        disk_bytes: index.disk_bytes()?,
    };
    index.close();
    Ok(done)
}

fn apply(
    index: &mut Index,
    lane: Lane,
    batch: &mut Vec<Change>,
    next: Offset,
    at: UnixMillis,
) -> Result<(), Error> {
    index.apply(lane, batch, next, at)?;
    batch.clear();
    Ok(())
}

/// The lanes of the index that is there; none if it cannot be read.
fn had(place: &Path) -> Vec<Lane> {
    let Ok(Some(index)) = Index::look(place) else { return Vec::new() };
    let lanes = index.lanes().unwrap_or_default();
    index.close();
    lanes
}
