//! `GET /v1/timers`: all timers that fit a filter, page by page in the order of due time, over all lanes.
//!
//! Every lane returns its next timers behind the place where the last page ended. A lane may stop before its end. Then what
//! the other lanes found behind that point is not shown yet, so that the order holds over all pages.

use axum::extract::State;
use axum::http::Uri;
use axum::response::IntoResponse as _;
use axum::{Extension, Json};
use serde_json::json;

use super::super::guard::Came;
use super::super::problem::Problem;
use super::deadline::{self, Deadline};
use super::model::{Cursor, Filter, LaneTimer, PAGE_BYTES_MAX, Page, Placed, TimersError};
use super::params::{self, Query};
use super::peer::{Owners, PeerReply, PeerRequest, fault};
use super::token;
use super::{Answered, json, tracked};
use crate::engine::UnixMillis;

/// How many timers a page has, unless the request says so.
const LIMIT: usize = 100;
/// The highest limit.
pub(super) const LIMIT_MAX: usize = 1_000;
/// How often lanes are queried for one page, if few of their timers match.
pub(super) const ROUNDS_MAX: usize = 20;
/// The parameters that are filters.
const FILTERS: [&str; 5] = ["target", "label", "state", "due_after", "due_before"];

pub(super) async fn list(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    uri: Uri,
) -> Answered {
    let deadline = Deadline::new(came.at, deadline::ALL_LANES);
    let known = [&FILTERS[..], &["limit", "page"]].concat();
    let mut query = Query::read(uri.query(), &known)?;
    let filter = filter(&mut query)?;
    let limit = limit(query.text("limit")?)?;
    let after = match query.text("page")? {
        Some(token) => Some(place(&token, &filter)?),
        None => None,
    };
    tracked(owners.timers())?;
    let (timers, next) = page(&owners, &filter, after, limit, deadline).await?;
    let timers: Vec<_> = timers.iter().map(json::timer).collect();
    let next = next.map(|cursor| token::of_page(cursor, &filter));
    Ok(Json(json!({ "timers": timers, "next": next })).into_response())
}

fn filter(query: &mut Query) -> Result<Filter, Problem> {
    let mut time = |name: &str| -> Result<Option<UnixMillis>, Problem> {
        let Some(text) = query.text(name)? else { return Ok(None) };
        params::moment(&text.into(), &format!("query.{name}")).map(Some)
    };
    let (due_after, due_before) = (time("due_after")?, time("due_before")?);
    let filter = Filter {
        target: query.text("target")?,
        label: query.text("label")?,
        state: query.text("state")?.map(|text| params::state(&text, "query.state")).transpose()?,
        due_after,
        due_before,
    };
    params::checked(filter, "query")
}

fn limit(text: Option<String>) -> Result<usize, Problem> {
    let Some(text) = text else { return Ok(LIMIT) };
    let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| {
        let detail = format!("{text:?} is no limit; want 1 to {LIMIT_MAX}");
        Problem::bad("bad_limit", "query.limit", detail)
    })
}

/// The place of a page token.
pub(super) fn place(token: &str, filter: &Filter) -> Result<Cursor, Problem> {
    token::page(token, filter).map_err(|bad| Problem::bad("bad_page", "query.page", bad.of_page()))
}

/// At most `limit` timers behind a place, in order, and where the next page begins; `None`: there is none.
pub(super) async fn page(
    owners: &Owners,
    filter: &Filter,
    mut after: Option<Cursor>,
    limit: usize,
    deadline: Deadline,
) -> Result<(Vec<LaneTimer>, Option<Cursor>), TimersError> {
    let mut all = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let most = limit - all.len();
        let what = PeerRequest::Page { filter: filter.clone(), after, most };
        let mut pages = Vec::new();
        for reply in owners.all(what, deadline).await? {
            let PeerReply::Pages(of_lanes) = reply else { return Err(fault()) };
            pages.extend(of_lanes);
        }
        let (timers, more) = merged(pages, (most, PAGE_BYTES_MAX));
        all.extend(timers);
        if more.is_none() || all.len() >= limit {
            return Ok((all, more));
        }
        after = more;
    }
    Ok((all, after))
}

/// The first `most` of all lanes, up to the one that fills so many bytes, and where to go on. Both are at least 1.
pub(super) fn merged<T: Placed>(
    pages: Vec<Page<T>>,
    (most, bytes): (usize, usize),
) -> (Vec<T>, Option<Cursor>) {
    // Up to here every lane has looked.
    let looked = pages.iter().filter_map(|page| page.more).min();
    let mut timers: Vec<T> = pages.into_iter().flat_map(|page| page.timers).collect();
    timers.retain(|timer| looked.is_none_or(|looked| timer.cursor() <= looked));
    timers.sort_by_key(T::cursor);
    let mut left = bytes;
    let fits = |timer: &&T| {
        let has_room = left > 0;
        left = left.saturating_sub(timer.bytes());
        has_room
    };
    let fitting = timers.iter().take(most).take_while(fits).count();
    if timers.len() > fitting {
        timers.truncate(fitting);
        let last = timers.last().map(T::cursor);
        return (timers, last);
    }
    (timers, looked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::timers::{Timer, TimerId, TimerState, Version};
    use crate::engine::{Lane, Offset};

    fn timer(due: u64) -> LaneTimer {
        let timer = Timer {
            timer_id: TimerId([due as u8; 16]),
            state: TimerState::Delay,
            version: Version { first_appended: UnixMillis(1), offset: Offset(1) },
            supersedes: None,
            due: UnixMillis(due),
            since: UnixMillis(1),
            target: "out".into(),
            label: None,
            id: due.to_string().into_bytes().into(),
            key: None,
            key_cut: false,
            code: None,
            task: None,
        };
        LaneTimer { lane: Lane(0), timer }
    }

    fn cursor(due: u64) -> Cursor {
        Cursor { due, order: [due as u8; 16] }
    }

    #[test]
    fn nothing_is_shown_behind_the_place_up_to_which_every_lane_has_looked() {
        let page = |dues: &[u64], more: Option<u64>| Page {
            timers: dues.iter().copied().map(timer).collect(),
            more: more.map(cursor),
        };
        type Case<'a> = (&'a str, Vec<Page>, &'a [u64], Option<u64>);
        #[rustfmt::skip]
        let cases: [Case<'_>; 6] = [
            ("nothing",                         vec![page(&[], None), page(&[], None)],             &[],           None),
            ("all of it",                       vec![page(&[1, 4], None), page(&[2], None)],        &[1, 2, 4],    None),
            ("one lane has more",               vec![page(&[1, 4], Some(4)), page(&[2, 9], None)],  &[1, 2, 4],    Some(4)),
            ("it found nothing up to there",    vec![page(&[], Some(3)), page(&[2, 9], None)],      &[2],          Some(3)),
            ("more than the page",              vec![page(&[1, 3, 5], None), page(&[2, 4], None)],  &[1, 2, 3],    Some(3)),
            ("more, and not looked to the end", vec![page(&[1, 5, 6], Some(6)), page(&[2, 3, 4], Some(4))], &[1, 2, 3], Some(3)),
        ];
        for (why, pages, want, next) in cases {
            let (timers, more) = merged(pages, (3, PAGE_BYTES_MAX));
            let dues: Vec<u64> = timers.iter().map(|of| of.timer.due.0).collect();
            assert_eq!((&dues[..], more), (want, next.map(cursor)), "{why}");
        }
    }

    /// Something of so many bytes, at that place.
    struct Large(u64, usize);

    impl Placed for Large {
        fn cursor(&self) -> Cursor {
            cursor(self.0)
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn a_page_ends_with_what_fills_it() {
        let of = |bytes: [usize; 3], room: usize| {
            let all = bytes.into_iter().zip(1..).map(|(bytes, at)| Large(at, bytes));
            let pages = vec![Page { timers: all.collect(), more: Some(cursor(7)) }];
            let (found, more) = merged(pages, (3, room));
            (found.len(), more)
        };
        assert_eq!(of([10, 10, 10], 100), (3, Some(cursor(7))));
        assert_eq!(of([10, 10, 10], 21), (3, Some(cursor(7))), "the last one fills it");
        assert_eq!(of([10, 10, 10], 20), (2, Some(cursor(2))));
        assert_eq!(of([99, 10, 10], 1), (1, Some(cursor(1))), "it gets on whatever is there");
    }
}
