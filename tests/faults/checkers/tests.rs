//! Each checker bites: a history that keeps every promise is doctored, and exactly the promise that it breaks is named.

use super::*;
use crate::support::{Ack, out};

const WISH: Wish = Wish { recovery: Duration::from_secs(5) };

/// Ten records, of which number 9 is malformed and number 8 was cancelled in time; all of one key, a second each.
fn good() -> History {
    let sent = |n: usize| {
        let mut record = out(format!("{n} v")).key("k").header("own", "h").to("t");
        record = record.header("x-delay-id", format!("id-{n}"));
        let cancelled = Cancel::Record(Some(Ack { partition: 0, offset: 20, at: 1_000 }));
        Sent {
            record,
            delay_ms: 1_000 * (n as u64 + 1),
            ack: Some(Ack { partition: 0, offset: n as i64, at: 1_000 }),
            copies: 1,
            fate: if n == 9 { Fate::Dead("bad_delay") } else { Fate::Delivered },
            cancel: (n == 8).then_some(cancelled),
        }
    };
    let sent: Vec<Sent> = (0..10).map(sent).collect();
    let arrived = |n: usize| Rec {
        partition: 0,
        offset: 2 * n as i64,
        at: 1_000 + sent[n].delay_ms + 5,
        key: Some(b"k".to_vec()),
        value: sent[n].record.value.clone(),
        headers: vec![(b"own".to_vec(), Some(b"h".to_vec()))],
    };
    let late: Vec<Rec> = (0..8).map(arrived).collect();
    let mut letter = arrived(9);
    letter.headers.push((b"x-delay-error-code".to_vec(), Some(b"bad_delay".to_vec())));
    History {
        name: "good".to_owned(),
        mode: Mode::ExactlyOnce,
        concurrent: late.clone(),
        late,
        dead: vec![letter],
        healed_at: Some(3_000),
        sent,
    }
}

/// What is said of a history that was changed where both readers saw it.
fn said(doctor: impl FnOnce(&mut History)) -> BTreeSet<&'static str> {
    let mut history = good();
    doctor(&mut history);
    // Whatever the patience of this run is.
    breaches_within(&history, WISH, 1).into_iter().map(|(promise, _)| promise).collect()
}

/// The same change to what both readers saw.
fn both(doctor: impl Fn(&mut Vec<Rec>)) -> impl FnOnce(&mut History) {
    move |history| {
        doctor(&mut history.late);
        doctor(&mut history.concurrent);
    }
}

/// A copy of record `n` at the end of its partition.
fn again(n: usize) -> impl Fn(&mut Vec<Rec>) {
    move |seen| {
        let (mut rec, last) = (seen[n].clone(), seen[seen.len() - 1].clone());
        (rec.offset, rec.at) = (last.offset + 1, last.at);
        seen.push(rec);
    }
}

#[test]
fn a_good_history_is_not_complained_of() {
    assert_eq!(said(|_| {}), BTreeSet::new());
    assert!(
        summary(&good()).contains(
            "10 of 10 acknowledged, 10 with ids, 1 cancels, 8 delivered, order asked of 8"
        )
    );
}

#[test]
fn each_checker_bites() {
    let only = |promise| BTreeSet::from([promise]);
    assert_eq!(said(both(|seen| seen[3].at -= 6)), only("never early"));
    assert_eq!(said(both(|seen| drop(seen.remove(3)))), only("never lost"));
    assert_eq!(said(both(|seen| seen[3].headers.clear())), only("your bytes"));
    assert_eq!(said(both(|seen| seen[3].key = None)), only("your bytes"));
    assert_eq!(said(both(|seen| seen[7].at += 6_000)), only("on time after the fault"));
    assert!(said(both(again(3))).contains("exactly once"));
    let twice_written = |history: &mut History| {
        history.sent[3].copies = 2;
        both(again(3))(history);
    };
    assert!(!said(twice_written).contains("exactly once"), "its producer wrote it twice");
    assert_eq!(said(both(|seen| seen[3].value = Some(b"x".to_vec()))).len(), 2, "phantom, lost");
    assert_eq!(said(|history| drop(history.concurrent.remove(3))), only("readers agree"));
    assert_eq!(said(|history| history.concurrent.swap(3, 4)), only("offsets only grow"));
    assert_eq!(said(|history| again(3)(&mut history.concurrent)), only("no aborted read"));
    assert_eq!(said(|history| history.dead.clear()), only("dead letters"));
    let twice = |history: &mut History| history.dead.push(history.dead[0].clone());
    assert_eq!(said(twice), only("dead letters"));
    let neither = |history: &mut History| {
        history.dead.clear();
        history.sent[9].fate = Fate::Either("bad_delay");
    };
    assert_eq!(said(neither), only("never lost"));
    let delivered = |history: &mut History| {
        history.sent[9].fate = Fate::Either("bad_delay");
        let (mut rec, last) = (history.dead[0].clone(), history.late[7].offset);
        (rec.offset, rec.headers) = (last + 1, history.late[7].headers.clone());
        history.late.push(rec.clone());
        history.concurrent.push(rec);
    };
    assert_eq!(said(delivered), only("no phantoms"), "both delivered and dead");
    let other = |history: &mut History| history.sent[9].fate = Fate::Dead("too_large");
    assert_eq!(said(other), only("dead letters"));
}

#[test]
fn what_is_due_long_after_the_fault_is_on_time_again() {
    let of = |healed_at, by, mode| {
        said(move |history| {
            (history.healed_at, history.mode) = (Some(healed_at), mode);
            // The last of them: due at 9,000.
            both(move |seen| seen[7].at += by)(history);
        })
    };
    let (exactly, at_least) = (Mode::ExactlyOnce, Mode::AtLeastOnce);
    assert_eq!(of(3_999, 2_000, exactly), BTreeSet::from(["on time after the fault"]));
    assert_eq!(of(3_999, 900, exactly), BTreeSet::new());
    assert_eq!(of(4_001, 2_000, exactly), BTreeSet::new(), "within the time to recover");
    assert_eq!(of(3_999, 2_000, at_least), BTreeSet::new(), "no hop was taken back");
}

#[test]
fn what_a_crash_may_repeat_is_no_breach_in_at_least_once() {
    let alo = |doctor: &dyn Fn(&mut History)| {
        said(|history| {
            history.mode = Mode::AtLeastOnce;
            doctor(history);
        })
    };
    assert_eq!(alo(&|history| both(again(3))(history)), BTreeSet::new());
    assert_eq!(alo(&|history| history.dead.push(history.dead[0].clone())), BTreeSet::new());
    let lost = |history: &mut History| both(|seen| drop(seen.remove(3)))(history);
    assert_eq!(alo(&lost), BTreeSet::from(["never lost"]));
}

#[test]
fn order_counts_for_what_was_not_late() {
    let swap = |seen: &mut Vec<Rec>, late: u64| {
        let (third, fourth) = (seen[3].offset, seen[4].offset);
        (seen[3].offset, seen[4].offset) = (fourth, third);
        seen[3].at += late;
        seen.swap(3, 4);
    };
    assert_eq!(said(both(|seen| swap(seen, 0))), BTreeSet::from(["in order"]));
    assert_eq!(said(both(|seen| swap(seen, 1_500))), BTreeSet::new());
    // The one before is late: the third is due a second after it.
    let before_is_late = |by: u64| {
        said(both(move |seen| {
            swap(seen, 0);
            seen[2].at += by;
        }))
    };
    assert_eq!(
        before_is_late(495),
        BTreeSet::from(["in order"]),
        "waterclock was not late any more"
    );
    assert_eq!(before_is_late(496), BTreeSet::new(), "it was, until a moment before");
    let written_later = said(|history| {
        both(|seen| {
            swap(seen, 0);
            seen[2].at += 496;
        })(history);
        // The second arrived at 4,501; this one is due at 5,000 as before.
        (history.sent[3].ack, history.sent[3].delay_ms) =
            (Some(Ack { partition: 0, offset: 3, at: 4_502 }), 498);
    });
    assert_eq!(written_later, BTreeSet::from(["in order"]), "it was written after that");
    // The fourth comes before the third.
    let without_an_id = |n: usize| {
        said(move |history| {
            history.sent[n].record.headers.retain(|(name, _)| name != "x-delay-id");
            both(|seen| swap(seen, 0))(history);
        })
    };
    assert_eq!(without_an_id(4), BTreeSet::new(), "it may pass one with an id");
    assert_eq!(without_an_id(3), BTreeSet::from(["in order"]), "and is not passed by one");
}

#[test]
fn what_a_cancel_was_answered_counts() {
    let answer = |n: usize, answer: Option<&str>| {
        let answer = answer.map(str::to_owned);
        move |history: &mut History| history.sent[n].cancel = Some(Cancel::Answer(answer))
    };
    let decided = BTreeSet::from(["a cancel is decided"]);
    assert_eq!(said(answer(3, Some("cancelled"))), decided);
    assert_eq!(said(answer(3, Some("unknown"))), decided);
    assert_eq!(said(answer(3, Some("delivered"))), BTreeSet::new());
    assert_eq!(said(answer(8, Some("delivered"))), decided);
    assert_eq!(said(answer(8, Some("cancelled"))), BTreeSet::new());
    assert_eq!(said(answer(8, None)), BTreeSet::new(), "nobody knows");
    let by_record = |at| {
        let ack = Some(Ack { partition: 0, offset: 20, at });
        move |history: &mut History| history.sent[3].cancel = Some(Cancel::Record(ack))
    };
    assert_eq!(said(by_record(4_950)), decided, "in time: it is due at 5,000");
    assert_eq!(said(by_record(4_951)), BTreeSet::new(), "a race");
}

#[test]
fn what_was_not_acknowledged_is_unknown() {
    let unknown = |history: &mut History| history.sent[3].ack = None;
    assert_eq!(said(unknown), BTreeSet::new(), "it may be there");
    let gone = |history: &mut History| {
        both(|seen| drop(seen.remove(3)))(history);
        history.sent[3].ack = None;
    };
    assert_eq!(said(gone), BTreeSet::new(), "and need not");
    let twice = |history: &mut History| {
        both(again(3))(history);
        history.sent[3].ack = None;
    };
    assert!(said(twice).contains("exactly once"), "but once");
}
