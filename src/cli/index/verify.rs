//! `waterclock index verify`: every entry of the index beside what the changelog says of it.
//!
//! The index reaches the changelog up to an offset. What the changelog said up to there is compared; what it has said
//! since is counted, and what it says no more because of what it has said since is left out.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use serde_json::{Value, json};

use super::{Error, failed};
use crate::cli::{Exit, Outcome, output, table};
use crate::config::Config;
use crate::engine::timers::{Change, TimerId};
use crate::engine::{Lane, Offset};
use crate::kafka::{Changelog, Connection, Logged};
use crate::terminal::Progress;
use crate::timers::index::{self, Identity, Index};

/// Characters of an id in the table.
const ID_SHOWN: usize = 40;

/// How an entry differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The changelog has it, the index has not.
    Missing,
    /// The index has it, the changelog has not.
    Extra,
    /// Both have it, and say something else.
    Other,
    /// The lane cannot be read.
    Broken,
}

impl What {
    fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Other => "other",
            Self::Broken => "broken",
        }
    }
}

/// What a key of the changelog is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A timer.
    Timer,
    /// Its void versions.
    CancelMark,
    /// An attempt of a task.
    Attempt,
    /// The definition of a task.
    Definition,
    /// The shards of a run.
    Shards,
}

impl Of {
    fn change(change: &Change) -> Self {
        match change {
            Change::Timer(_) | Change::ForgottenTimer(_) => Self::Timer,
            Change::CancelMark(_) | Change::ForgottenCancelMark(_) => Self::CancelMark,
            Change::Attempt(_) | Change::ForgottenAttempt(..) => Self::Attempt,
            Change::Definition(..) | Change::ForgottenDefinition(_) => Self::Definition,
            Change::Shards(..) | Change::ForgottenShards(_) => Self::Shards,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::CancelMark => "void",
            Self::Attempt => "attempt",
            Self::Definition => "definition",
            Self::Shards => "shards",
        }
    }

    /// What stands before the timer in the table.
    fn text(self) -> &'static str {
        match self {
            Self::Timer => "",
            Self::CancelMark => "void versions of ",
            Self::Attempt => "an attempt of ",
            Self::Definition => "the definition of ",
            Self::Shards => "the shards of ",
        }
    }
}

/// One difference.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    lane: Lane,
    what: What,
    /// Where the changelog says what it says.
    offset: Option<Offset>,
    /// What of a timer it is about.
    of: Of,
    timer_id: Option<TimerId>,
    id: Option<Box<[u8]>>,
    detail: Option<String>,
}

impl Difference {
    fn cells(&self) -> [String; 5] {
        let offset = self.offset.map_or_else(|| "-".to_owned(), |offset| offset.0.to_string());
        let about = self.detail.clone().unwrap_or_else(|| {
            format!("{}{:?}", self.of.text(), self.timer_id.unwrap_or_default())
        });
        let id = match &self.id {
            Some(id) => output::shortened(Some(id), ID_SHOWN),
            None => "-".to_owned(),
        };
        [self.lane.0.to_string(), offset, self.what.as_str().to_owned(), id, about]
    }

    fn as_json(&self) -> Value {
        let mut row = json!({
            "lane": self.lane.0,
            "offset": self.offset.map(|offset| offset.0),
            "what": self.what.as_str(),
            "void": self.of == Of::CancelMark,
            "of": self.of.as_str(),
            "name": self.timer_id.map(|timer_id| format!("{timer_id:?}")),
            "detail": self.detail,
        });
        output::put_bytes(&mut row, "id", self.id.as_deref());
        row
    }
}

/// What the changelog says of one of its keys.
#[derive(Debug)]
struct LastChange {
    /// Where, at last, as far as the index reaches.
    offset: Offset,
    /// What, by a hash; `None`: that it is forgotten, or nothing as far as the index reaches.
    hash: Option<u64>,
    /// It says something else after that; what it said before may have been compacted away.
    is_later: bool,
    is_unreadable: bool,
    id: Option<Box<[u8]>>,
}

/// One lane of the changelog, as far as the index reaches, and what came since.
#[derive(Debug, Default)]
struct Log {
    changes: HashMap<Box<[u8]>, LastChange>,
    since: u64,
    unreadable: u64,
}

fn hash(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn id_of(change: &Change) -> Option<Box<[u8]>> {
    match change {
        Change::Timer(timer) => Some(timer.id.clone()),
        _ => None,
    }
}

impl Log {
    /// Takes a record in; the index reaches the changelog up to `next`.
    fn take(&mut self, logged: Logged<'_>, next: Offset) {
        let Logged { offset, key, change, .. } = logged;
        let last = self.changes.entry(key.into()).or_insert(LastChange {
            offset,
            hash: None,
            is_later: false,
            is_unreadable: false,
            id: None,
        });
        if offset >= next {
            self.since += 1;
            last.is_later = true;
            return;
        }
        last.offset = offset;
        match change {
            Ok(change) => {
                last.hash = change.encode().1.as_deref().map(hash);
                last.id = id_of(&change);
                last.is_unreadable = false;
            }
            Err(_) => {
                self.unreadable += 1;
                last.is_unreadable = true;
            }
        }
    }

    /// Takes an entry of the index out; says how it differs.
    fn compare(&mut self, lane: Lane, change: &Change) -> Option<Difference> {
        let (key, value) = change.encode();
        let hash = value.as_deref().map(hash);
        let last = self.changes.remove(&key[..]);
        let (what, offset) = match last {
            None => (What::Extra, None),
            Some(last) if last.is_unreadable || last.hash == hash => return None,
            Some(LastChange { hash: None, is_later: true, .. }) => return None,
            Some(LastChange { hash: None, offset, .. }) => (What::Extra, Some(offset)),
            Some(LastChange { offset, .. }) => (What::Other, Some(offset)),
        };
        let (timer_id, id) = (Some(change.timer_id()), id_of(change));
        Some(Difference { lane, what, offset, of: Of::change(change), timer_id, id, detail: None })
    }

    /// What is left once all entries were taken out.
    fn missing(self, lane: Lane) -> Vec<Difference> {
        let left = self.changes.into_iter().filter(|(_, last)| !last.is_unreadable);
        let mut missing: Vec<_> = left
            .filter_map(|(key, last)| {
                last.hash?;
                let timer_id = key.first_chunk().map(|name| TimerId(*name));
                // A tombstone of the key can be read if what stood there can.
                let of = Change::decode(Some(&key), None).map_or(Of::Timer, |of| Of::change(&of));
                let (what, offset, id) = (What::Missing, Some(last.offset), last.id);
                Some(Difference { lane, what, offset, of, timer_id, id, detail: None })
            })
            .collect();
        missing.sort_by_key(|difference| difference.offset);
        missing
    }
}

/// What a run came to.
#[derive(Debug, Default)]
struct Report {
    lanes: u64,
    entries: u64,
    /// Records of the changelog behind what the index reaches.
    since: u64,
    unreadable: u64,
    found: u64,
    listed: Vec<Difference>,
}

impl Report {
    fn add(&mut self, difference: Difference, limit: usize) {
        self.found += 1;
        if self.listed.len() < limit {
            self.listed.push(difference);
        }
    }
}

pub(super) fn run(
    connection: &Connection,
    config: &Config,
    identity: &Identity,
    place: &Path,
    limit: usize,
    json: bool,
) -> Outcome {
    let report = verify(connection, config, identity, place, limit).map_err(failed)?;
    let Report { lanes, entries, since, unreadable, found, listed } = &report;
    let text = if json {
        json!({
            "lanes": lanes,
            "entries": entries,
            "behind": since,
            "unreadable": unreadable,
            "differences": found,
            "listed": listed.iter().map(Difference::as_json).collect::<Vec<_>>(),
        })
        .to_string()
    } else {
        let summary = format!(
            "{entries} entries of {lanes} lanes, {found} differences; {since} records behind the changelog's end, \
             {unreadable} that this version cannot read"
        );
        let mut table = table::plain();
        table.set_header(["lane", "offset", "what", "id", "about"]);
        table.add_rows(listed.iter().map(Difference::cells));
        if listed.is_empty() { summary } else { format!("{}\n{summary}", table.trim_fmt()) }
    };
    output::line(&text)?;
    Ok(if *found == 0 { Exit::Ok } else { Exit::Negative })
}

fn verify(
    connection: &Connection,
    config: &Config,
    identity: &Identity,
    place: &Path,
    limit: usize,
) -> Result<Report, Error> {
    let mut index = Index::look(place)?.ok_or_else(|| Error::None(place.to_owned()))?;
    if index.identity() != identity {
        return Err(Error::Foreign(place.to_owned()));
    }
    let mut changelog = Changelog::open(connection, &config.namespace)?;
    let lanes = index.lanes()?;
    let progress = Progress::new(lanes.iter().map(|lane| changelog.span(*lane)).sum());
    let mut report = Report::default();
    for lane in lanes {
        progress.set_phase(format!("lane {}", lane.0));
        let position = match index.load(lane, |_| ()) {
            Ok(None) => continue,
            Ok(Some(position)) => position,
            Err(index::Error::Broken { detail, .. }) => {
                let (what, detail) = (What::Broken, Some(detail));
                #[rustfmt::skip]
                let broken = Difference { lane, what, offset: None, of: Of::Timer, timer_id: None, id: None, detail };
                report.add(broken, limit);
                continue;
            }
            Err(other) => return Err(other.into()),
        };
        report.lanes += 1;
        let before = progress.done();
        let (mut log, mut records) = (Log::default(), 0_u64);
        changelog.read::<Error>(lane, |logged| {
            log.take(logged, position.next);
            records += 1;
            if records.is_multiple_of(1_000) {
                progress.set(before + records);
            }
            Ok(())
        })?;
        progress.set(before + changelog.span(lane));
        report.since += log.since;
        report.unreadable += log.unreadable;
        index.entries(lane, |change| {
            report.entries += 1;
            if let Some(difference) = log.compare(lane, &change) {
                report.add(difference, limit);
            }
        })?;
        for difference in log.missing(lane) {
            report.add(difference, limit);
        }
        index.release(lane);
    }
    index.close();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::UnixMillis;
    use crate::engine::timers::{CancelMark, DecodeError, Version, VersionBound};

    fn mark(n: u8, until: u64) -> Change {
        let before = VersionBound::of(Version { first_appended: UnixMillis(1), offset: Offset(1) });
        let timer_id = TimerId([n; 16]);
        Change::CancelMark(CancelMark {
            timer_id,
            before,
            until: UnixMillis(until),
            seen: false,
            may_repeat: false,
            cancels: false,
        })
    }

    fn forgotten(n: u8) -> Change {
        Change::ForgottenCancelMark(TimerId([n; 16]))
    }

    #[test]
    fn what_the_changelog_says_as_far_as_the_index_reaches_is_compared() {
        type Case<'a> = (&'a str, Vec<(i64, Option<Change>)>, Option<Change>, Option<What>);
        #[rustfmt::skip]
        let cases: [Case<'_>; 12] = [
            // why                                  changelog; the index reaches 10                     index           what
            ("the same",                            vec![(1, Some(mark(1, 5)))],                        Some(mark(1, 5)), None),
            ("what came last holds",                vec![(1, Some(mark(1, 4))), (2, Some(mark(1, 5)))], Some(mark(1, 5)), None),
            ("another value",                       vec![(1, Some(mark(1, 5)))],                        Some(mark(1, 6)), Some(What::Other)),
            ("one is lost",                         vec![(1, Some(mark(1, 5)))],                        None,           Some(What::Missing)),
            ("one that nobody wrote",               vec![],                                             Some(mark(1, 5)), Some(What::Extra)),
            ("it was forgotten",                    vec![(1, Some(mark(1, 5))), (2, Some(forgotten(1)))], None,         None),
            ("it was forgotten, and is there",      vec![(2, Some(forgotten(1)))],                      Some(mark(1, 5)), Some(What::Extra)),
            ("it changed since",                    vec![(1, Some(mark(1, 5))), (12, Some(mark(1, 7)))], Some(mark(1, 5)), None),
            ("what it was is compacted away",       vec![(12, Some(mark(1, 7)))],                       Some(mark(1, 5)), None),
            ("it came since",                       vec![(12, Some(mark(1, 7)))],                       None,           None),
            ("it cannot be read, and is passed over", vec![(1, None)],                                  None,           None),
            ("an older one that can be read stays", vec![(1, Some(mark(1, 5))), (2, None)],             Some(mark(1, 5)), None),
        ];
        for (why, logged, entry, want) in cases {
            let mut log = Log::default();
            for (offset, change) in logged {
                let key = mark(1, 0).encode().0;
                let change = change.ok_or(DecodeError::Version { version: 9 });
                let (offset, at) = (Offset(offset), UnixMillis(1));
                log.take(Logged { offset, at, key: &key, change }, Offset(10));
            }
            let found = entry.and_then(|entry| log.compare(Lane(0), &entry));
            let found = found.or_else(|| log.missing(Lane(0)).pop());
            assert_eq!(found.map(|found| found.what), want, "{why}");
        }
    }
}
