//! The outside checkers: they are told what was acknowledged, what was answered and what readers saw, and nothing else.
//!
//! Each promise of `docs/reliability.md` that a row can break has a function here, and a test below that shows it bite on
//! a history that was doctored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::load::{Cancel, Fate, History, Sent};
use crate::support::{Mode, Rec, patience};

/// `settle`, the default: a cancel that Kafka acknowledged so long before the due time always wins.
const SETTLE_MS: u64 = 50;
/// A record that is less late than this is on time.
const ON_TIME_MS: u64 = 20;
/// waterclock is late while records arrive later than this. It reads late then, too: what was there already, and is due until so
/// long after, may have been passed by another though it arrives on time.
const BEHIND_MS: u64 = 100;
const BEHIND_FOR_MS: u64 = 500;
/// Late by more than this is told of; and once a row had the time to recover, nothing is, however much later it is due: what a
/// fault did to a hop shows when its tier lets it go.
const LATE_MS: u64 = 1_000;
/// Breaches that are shown of one promise.
const SHOWN: usize = 10;

/// A promise and how it was broken.
type Breach = (&'static str, String);

/// What a row asks of its history.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Nothing arrives later than this after the fault was healed, or after its own due time if that was later.
    pub recovery: Duration,
}

/// Fails unless every promise was kept; prints what the row saw.
#[track_caller]
pub fn check(history: &History, wish: Wish) {
    println!("{}", summary(history));
    let found = breaches(history, wish);
    let mut text = String::new();
    for promise in found.iter().map(|(promise, _)| promise).collect::<BTreeSet<_>>() {
        let all: Vec<_> = found.iter().filter(|(of, _)| of == promise).collect();
        text += &format!("\n{promise}: {} times", all.len());
        for (_, what) in all.iter().take(SHOWN) {
            text += &format!("\n    {what}");
        }
    }
    assert!(found.is_empty(), "{} broke promises:{text}", history.name);
}

/// All that is wrong with a history.
pub fn breaches(history: &History, wish: Wish) -> Vec<Breach> {
    breaches_within(history, wish, patience())
}

/// As [`breaches`], with the bounds of lateness so many times as long.
fn breaches_within(history: &History, wish: Wish, patience: u32) -> Vec<Breach> {
    let seen = Seen::of(history);
    let mut found = seen.foreign.clone();
    never_early(history, &seen, &mut found);
    once(history, &seen, &mut found);
    bytes(history, &mut found);
    in_order(history, &mut found);
    cancels(history, &seen, &mut found);
    readers_agree(history, &mut found);
    forward_only(history, &mut found);
    dead(history, &mut found);
    recovers(history, wish, patience, &mut found);
    found
}

/// How many were sent and arrived, and how late.
pub fn summary(history: &History) -> String {
    let History { name, sent, late, healed_at, .. } = history;
    let acked = sent.iter().filter(|sent| sent.ack.is_some()).count();
    let tracked = sent.iter().filter(|sent| is_tracked(sent)).count();
    let cancels = sent.iter().filter(|sent| sent.cancel.is_some()).count();
    let mut lateness: Vec<(u64, u64)> =
        arrivals(history).map(|(_, rec, due)| (rec.at.saturating_sub(due), rec.at)).collect();
    lateness.sort_unstable();
    let worst = lateness.last().map_or(0, |(late, _)| *late);
    let last_late = lateness.iter().filter(|(late, _)| *late > LATE_MS).map(|(_, at)| *at).max();
    let recovered = match (healed_at, last_late) {
        (Some(healed), Some(last)) if last > *healed => {
            format!(
                "the last that was more than 1 s late arrived {} ms after the fault",
                last - healed
            )
        }
        (Some(_), _) => "nothing was more than 1 s late after the fault".to_owned(),
        (None, _) => "no fault".to_owned(),
    };
    let behind = Behind::of(history);
    let ordered = arrivals(history).filter(|(n, rec, due)| behind.is_ordered(&sent[*n], rec, *due));
    format!(
        "{name}: {acked} of {} acknowledged, {tracked} with ids, {cancels} cancels, {} delivered, order asked of {}; at most {worst} ms late; {recovered}",
        sent.len(),
        late.len(),
        ordered.count(),
    )
}

fn is_tracked(sent: &Sent) -> bool {
    sent.record.headers.iter().any(|(name, _)| name == "x-delay-id")
}

fn due(sent: &Sent) -> Option<u64> {
    Some(sent.ack?.at + sent.delay_ms)
}

/// The number of a record, from the beginning of its value.
pub fn number(rec: &Rec) -> Option<usize> {
    let value = rec.value.as_deref()?;
    let end = value.iter().position(|byte| *byte == b' ')?;
    std::str::from_utf8(&value[..end]).ok()?.parse().ok()
}

/// Each arrival that the late reader saw, with its number and due time.
pub fn arrivals(history: &History) -> impl Iterator<Item = (usize, &Rec, u64)> {
    history.late.iter().filter_map(|rec| {
        let n = number(rec)?;
        Some((n, rec, due(history.sent.get(n)?)?))
    })
}

/// How often each number was seen, by the late reader.
struct Seen {
    times: Vec<usize>,
    foreign: Vec<Breach>,
}

impl Seen {
    fn of(history: &History) -> Self {
        let mut seen = Self { times: vec![0; history.sent.len()], foreign: Vec::new() };
        for rec in &history.late {
            match number(rec).and_then(|n| seen.times.get_mut(n)) {
                Some(times) => *times += 1,
                None => seen.foreign.push(("no phantoms", format!("nobody sent {rec:?}"))),
            }
        }
        seen
    }
}

/// Promise 1, by the append times of the intake and of the target.
fn never_early(history: &History, _: &Seen, found: &mut Vec<Breach>) {
    for (n, rec, due) in arrivals(history).filter(|(_, rec, due)| rec.at < *due) {
        found.push(("never early", format!("n={n} {} ms: {rec:?}", due - rec.at)));
    }
}

/// Promises 2 and 3: what was acknowledged is there once, unless it was cancelled; what is unknown at most once. Once is
/// as often as it stood in the intake.
fn once(history: &History, seen: &Seen, found: &mut Vec<Breach>) {
    let letters: BTreeSet<usize> = history.dead.iter().filter_map(number).collect();
    for (n, (sent, times)) in history.sent.iter().zip(&seen.times).enumerate() {
        let is_dead = letters.contains(&n);
        let is_wanted = match sent.fate {
            Fate::Delivered => sent.ack.is_some() && sent.cancel.is_none(),
            Fate::Either(_) => sent.ack.is_some() && sent.cancel.is_none() && !is_dead,
            Fate::Dead(_) => false,
        };
        if *times == 0 && is_wanted {
            found.push(("never lost", format!("n={n}, {:?}", sent.ack)));
        }
        // What was in flight at a crash may be there again.
        if *times > sent.copies && history.mode == Mode::ExactlyOnce {
            found.push(("exactly once", format!("n={n} arrived {times} times")));
        }
        if *times > 0 && (is_dead || matches!(sent.fate, Fate::Dead(_))) {
            found.push(("no phantoms", format!("n={n} is a dead letter and was delivered")));
        }
    }
}

/// Promise 5: key, value and headers, without the control headers and with nothing more.
fn bytes(history: &History, found: &mut Vec<Breach>) {
    for (n, rec, _) in arrivals(history) {
        let sent = &history.sent[n].record;
        let own = sent.headers.iter().filter(|(name, _)| !name.starts_with("x-delay"));
        let own = own.map(|(name, value)| (name.as_bytes().to_vec(), value.clone()));
        if rec.key != sent.key || rec.value != sent.value || !own.eq(rec.headers.iter().cloned()) {
            found.push(("your bytes", format!("n={n} arrived as {rec:?}")));
        }
    }
}

/// When waterclock was late.
struct Behind {
    /// By due time of those that were late: until when it was late because of them, or of one before.
    until: BTreeMap<u64, u64>,
}

impl Behind {
    fn of(history: &History) -> Self {
        let mut until = BTreeMap::<u64, u64>::new();
        for (n, rec, due) in arrivals(history) {
            if rec.at > due + BEHIND_MS && has_time(&history.sent[n]) {
                let until = until.entry(due).or_default();
                *until = rec.at.max(*until);
            }
        }
        let mut longest = 0;
        for until in until.values_mut() {
            longest = longest.max(*until);
            *until = longest;
        }
        Self { until }
    }

    /// Whether this arrival must be in order: it was on time, and was not read late.
    fn is_ordered(&self, sent: &Sent, rec: &Rec, due: u64) -> bool {
        let was_late = self.until.range(..=due).next_back();
        let was_there = |until| sent.ack.is_some_and(|ack| ack.at <= until);
        let is_behind =
            was_late.is_some_and(|(_, until)| due < until + BEHIND_FOR_MS && was_there(*until));
        rec.at <= due + ON_TIME_MS && has_time(sent) && !is_behind
    }
}

/// Whether it could be read long enough before it was due.
fn has_time(sent: &Sent) -> bool {
    sent.delay_ms > SETTLE_MS
}

/// When it is due, its offset in the intake, and its number.
type Arrival = (u64, i64, usize);

/// Promise 4, while waterclock was not late: of one key by due time, then in the order of submission. One with an id may be
/// passed by one without.
fn in_order(history: &History, found: &mut Vec<Breach>) {
    let behind = Behind::of(history);
    // Of a key: the last without an id, and the last with one.
    let mut last: BTreeMap<(i32, &[u8]), [Option<Arrival>; 2]> = BTreeMap::new();
    let mut all: Vec<_> = arrivals(history).collect();
    all.sort_by_key(|(_, rec, _)| (rec.partition, rec.offset));
    for (n, rec, due) in all.into_iter().filter(|(n, ..)| history.sent[*n].copies == 1) {
        let Some((key, ack)) = rec.key.as_deref().zip(history.sent[n].ack) else { continue };
        let this = (due, ack.offset, n);
        let has_id = is_tracked(&history.sent[n]);
        let [without_id, with_id] = last.entry((rec.partition, key)).or_default();
        let passed_by = if has_id { *with_id } else { (*without_id).max(*with_id) };
        match passed_by.filter(|before| *before > this) {
            Some(before) if behind.is_ordered(&history.sent[n], rec, due) => {
                let what = format!("n={} (due {}) before n={n} (due {due})", before.2, before.0);
                found.push(("in order", what));
            }
            Some(_) => {}
            None => *(if has_id { with_id } else { without_id }) = Some(this),
        }
    }
}

/// Promise 6: what a cancel was answered is what the target shows; one in time always wins.
fn cancels(history: &History, seen: &Seen, found: &mut Vec<Breach>) {
    for (n, (sent, times)) in history.sent.iter().zip(&seen.times).enumerate() {
        // Which of several copies a cancel meets is nobody's promise.
        let Some(cancel) = sent.cancel.as_ref().filter(|_| sent.copies == 1) else { continue };
        let is_there = *times > 0;
        let told = match cancel {
            Cancel::Record(Some(ack)) => {
                // A crash may overtake it.
                let in_time = history.mode == Mode::ExactlyOnce
                    && due(sent).is_some_and(|due| ack.at + SETTLE_MS <= due);
                if in_time && is_there { Some("a cancel in time, and was delivered") } else { None }
            }
            Cancel::Record(None) | Cancel::Answer(None) => None,
            Cancel::Answer(Some(answer)) => match (answer.as_str(), is_there) {
                ("cancelled", true) if history.mode == Mode::AtLeastOnce => None,
                ("cancelled", true) => Some("is answered \"cancelled\", and was delivered"),
                ("delivered", false) => Some("is answered \"delivered\", and was not"),
                ("cancelled" | "delivered", _) => None,
                // What became a dead letter is nothing that a cancel knows of.
                ("unknown", false) if matches!(sent.fate, Fate::Either(_)) => None,
                _ if sent.ack.is_some() => {
                    Some("is answered neither \"cancelled\" nor \"delivered\"")
                }
                _ => None,
            },
        };
        if let Some(told) = told {
            found.push(("a cancel is decided", format!("n={n} {told}: {cancel:?}")));
        }
    }
}

/// Promise 3 as well: what was read once stays, and what is there was read. An aborted read breaks it.
fn readers_agree(history: &History, found: &mut Vec<Breach>) {
    let places = |all: &[Rec]| -> BTreeMap<(i32, i64), Option<usize>> {
        all.iter().map(|rec| ((rec.partition, rec.offset), number(rec))).collect()
    };
    let (concurrent, late) = (places(&history.concurrent), places(&history.late));
    for (place, n) in &concurrent {
        if late.get(place) != Some(n) {
            found.push((
                "no aborted read",
                format!("{n:?} at {place:?} was read, and is not there"),
            ));
        }
    }
    for (place, n) in &late {
        if !concurrent.contains_key(place) {
            found.push(("readers agree", format!("{n:?} at {place:?} came before what was read")));
        }
    }
}

/// The reader that was there all the time never went back.
fn forward_only(history: &History, found: &mut Vec<Breach>) {
    let mut last = BTreeMap::new();
    for rec in &history.concurrent {
        if let Some(before) = last.insert(rec.partition, rec.offset)
            && before >= rec.offset
        {
            let what = format!("{} after {before} of partition {}", rec.offset, rec.partition);
            found.push(("offsets only grow", what));
        }
    }
}

/// Promise 8: a malformed record becomes a dead letter, once, and no other record does.
fn dead(history: &History, found: &mut Vec<Breach>) {
    let mut letters: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for rec in &history.dead {
        match number(rec).filter(|n| *n < history.sent.len()) {
            Some(n) => {
                let code = rec.header("x-delay-error-code").unwrap_or_default();
                letters.entry(n).or_default().push(code);
            }
            None => found.push(("dead letters", format!("nobody sent {rec:?}"))),
        }
    }
    for (n, sent) in history.sent.iter().enumerate() {
        let mut got = letters.remove(&n).unwrap_or_default();
        if history.mode == Mode::AtLeastOnce {
            got.dedup();
        }
        let is_right = match sent.fate {
            Fate::Delivered => got.is_empty(),
            Fate::Either(code) => got.is_empty() || got == [code],
            Fate::Dead(code) => got == [code] || (got.is_empty() && sent.ack.is_none()),
        };
        if !is_right {
            found.push(("dead letters", format!("n={n} is to be {:?}: {got:?}", sent.fate)));
        }
    }
}

/// Promise 10: a record that was due before the fault was over is there soon after its end. Every other record is there
/// soon after it is due. A record that is due later than that is on time, for as long as anything waits; but in
/// `at_least_once` no hop can be taken back.
fn recovers(history: &History, wish: Wish, patience: u32, found: &mut Vec<Breach>) {
    let recovery = wish.recovery.as_millis() as u64 * u64::from(patience);
    let healed = history.healed_at.unwrap_or(0);
    for (n, rec, due) in arrivals(history) {
        let late = rec.at.saturating_sub(due.max(healed));
        let is_over = history.healed_at.is_some_and(|healed| due > healed + recovery);
        let most = if is_over && history.mode == Mode::ExactlyOnce {
            recovery.min(LATE_MS * u64::from(patience))
        } else {
            recovery
        };
        if late > most {
            let what = format!("n={n} arrived {late} ms after it was due, or after the fault");
            found.push(("on time after the fault", what));
        }
    }
}

#[cfg(test)]
mod tests;
