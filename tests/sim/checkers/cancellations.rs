//! What holds where only cancels and replaces are remembered: a record from before one is kept from its target.

use waterclock::engine::timers::{CancelMark, Change, Version, VersionBound};
use waterclock::engine::{Offset, UnixMillis};

use super::{Accepted, Found, Said, View, forgotten_in_time, said};
use crate::workload::Act;
use crate::world::World;

/// Promise 6: what was cancelled is never seen in its target after that was recorded; every cancel is recorded; nothing is
/// forgotten before its time.
pub(super) fn check(world: &World, view: &View<'_>, found: &mut Found) {
    let (said, unborn) = said(world, found);
    if !unborn.is_empty() {
        found.push((
            "timers",
            "a refused record is told of where timers are not tracked".to_owned(),
        ));
    }
    for accepted in &view.accepted {
        let Some(timer) = accepted.submission.timer else { continue };
        let of_timer: &[Said] = said.get(&timer).map_or(&[], Vec::as_slice);
        if accepted.submission.act.cancels() {
            is_recorded(view, accepted, of_timer, found);
        } else {
            was_kept_back(world, view, accepted, of_timer, found);
        }
    }
    forgotten_in_time(world, &said, found);
}

fn is_recorded(view: &View<'_>, cancel: &Accepted<'_>, of_timer: &[Said], found: &mut Found) {
    let recorded = of_timer.iter().any(
        |said| matches!(said.change, Change::CancelMark(mark) if latest_ms(mark) >= cancel.appended),
    );
    let names_one = cancel.submission.act.names_a_version();
    if !recorded && !names_one && view.of(cancel).is_empty() {
        found.push(("cancelled", format!("cancel n={} is not recorded", cancel.number)));
    }
}

fn latest_ms(mark: CancelMark) -> u64 {
    let VersionBound { log, not_in_log_order: elsewhere } = mark.before;
    log.first_appended.max(elsewhere.first_appended).0
}

fn was_kept_back(
    world: &World,
    view: &View<'_>,
    accepted: &Accepted<'_>,
    of_timer: &[Said],
    found: &mut Found,
) {
    let number = accepted.number;
    if view.of(accepted).is_empty() {
        let seen =
            of_timer.iter().any(|said| matches!(said.change, Change::CancelMark(c) if c.seen));
        let amends = accepted.submission.act.names_a_version();
        if !(amends || seen && may_be_cancelled(view, accepted)) {
            found.push(("never lost", format!("n={number} is nowhere and was not met")));
        }
        return;
    }
    // Where it came to stand in its lane's intake if it did not come straight there is not known.
    let submission = accepted.submission;
    let straight = submission.own_lane && submission.topic == 0;
    let offset = if straight { accepted.offset } else { Offset(i64::MAX) };
    let version = Version { first_appended: UnixMillis(accepted.appended), offset };
    let first = of_timer
        .iter()
        .find(|said| matches!(said.change, Change::CancelMark(mark) if mark.covers(version)));
    let Some(first) = first else { return };
    for arrival in view.of(accepted).iter().filter(|arrival| arrival.target.is_some()) {
        let excused = !world.plan.exactly_once() && world.exposed.contains(&(number as u32));
        let forgotten = of_timer.iter().any(|said| {
            matches!(said.change, Change::ForgottenCancelMark(_)) && said.moment < arrival.moment
        });
        // A zombie's mark, of what it knew before: nothing fences it there.
        let went_back = !world.plan.exactly_once()
            && of_timer.iter().any(|said| {
                let between = first.moment < said.moment && said.moment < arrival.moment;
                matches!(said.change, Change::CancelMark(void) if !void.covers(version)) && between
            });
        if arrival.moment > first.moment && !forgotten && !excused && !went_back {
            let what = format!("n={number} was delivered after its cancel was recorded");
            found.push(("cancelled", what));
        }
    }
}

/// Whether a command may count for this version: its place within one millisecond cannot be told from outside.
fn may_be_cancelled(view: &View<'_>, accepted: &Accepted<'_>) -> bool {
    let Some(timer) = accepted.submission.timer else { return false };
    view.accepted.iter().any(|other| {
        let of = other.submission;
        (of.act.cancels() || of.act.replaces())
            && of.timer == Some(timer)
            && (of.act == Act::CancelVersion(accepted.number)
                || of.act == Act::ReplaceVersion(accepted.number)
                || other.appended > accepted.appended
                || (other.place == accepted.place && other.offset > accepted.offset)
                || (other.place != accepted.place && other.appended == accepted.appended))
    })
}
