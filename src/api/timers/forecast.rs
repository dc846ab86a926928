//! `GET /v1/forecast`: how many timers fall due per target in each coming minute, hour and day; and what stands in each
//! tier, tracked or not.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::Uri;
use axum::response::IntoResponse as _;
use axum::{Extension, Json};
use serde_json::json;

use super::super::guard::Came;
use super::deadline::{self, Deadline};
use super::model::Forecast;
use super::params::Query;
use super::peer::{Owners, PeerReply, PeerRequest, fault};
use super::{Answered, single};

pub(super) async fn forecast(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let deadline = Deadline::new(came.at, deadline::ALL_LANES);
    let mut query = Query::read(uri.query(), &["target"])?;
    let target = query.text("target")?;
    let now = owners.timers().now().ok_or_else(single::no_time)?;
    let (mut targets, mut tiers) = (BTreeMap::new(), Vec::<(String, u64)>::new());
    for reply in owners.all(PeerRequest::Forecast { now, target }, deadline).await? {
        let PeerReply::Forecast(of_targets, of_tiers) = reply else { return Err(fault().into()) };
        for forecast in of_targets {
            add(&mut targets, forecast);
        }
        for (tier, count) in of_tiers {
            match tiers.iter_mut().find(|(known, _)| *known == tier) {
                Some((_, counted)) => *counted += count,
                None => tiers.push((tier, count)),
            }
        }
    }
    let tiers: Vec<_> =
        tiers.into_iter().map(|(tier, count)| json!({ "tier": tier, "pending": count })).collect();
    let targets: Vec<Forecast> = targets.into_values().collect();
    let tracking = if owners.timers().tracks() { "full" } else { "cancellations" };
    let all = json!({ "from": now - now % 60_000, "tracking": tracking, "targets": targets, "tiers": tiers });
    Ok(Json(all).into_response())
}

fn add(targets: &mut BTreeMap<String, Forecast>, more: Forecast) {
    let sum = targets
        .entry(more.target.clone())
        .or_insert_with(|| Forecast { target: more.target.clone(), ..Forecast::default() });
    let add = |sum: &mut Vec<u64>, more: Vec<u64>| {
        sum.resize(sum.len().max(more.len()), 0);
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    };
    add(&mut sum.minutes, more.minutes);
    add(&mut sum.hours, more.hours);
    add(&mut sum.days, more.days);
    sum.total += more.total;
    sum.overdue += more.overdue;
    sum.later += more.later;
}
