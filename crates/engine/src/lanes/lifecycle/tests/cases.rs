//! What each transition comes to, by hand.

use super::kafka::{BEGAN, Kafka, LANES, MISSING, Out, TARGET, lane_of, record, source};
use crate::header::Code;
use crate::messages::{ChangeReason, Outcome};
use crate::setup::{Limits, Tracking};
use crate::state::{Kind, State, SubmissionOrder};
use crate::timers::{Change, Found, Replaced, TimerState, Version};
use crate::{Lane, Millis, Offset, Record, UnixMillis, header};

type Headers<'a> = Vec<(&'a str, &'a str)>;

fn create<'a>(n: &'a str, delay: &'a str) -> Headers<'a> {
    vec![("x-delay", delay), ("x-delay-target", TARGET), ("x-delay-id", "i"), ("n", n)]
}

fn replace<'a>(n: &'a str, delay: &'a str) -> Headers<'a> {
    [create(n, delay), vec![("x-delay-action", "replace")]].concat()
}

fn cancel<'a>() -> Headers<'a> {
    vec![("x-delay-action", "cancel"), ("x-delay-id", "i")]
}

fn kafka() -> Kafka {
    Kafka::new(Kafka::limits())
}

fn delivered(kafka: &Kafka) -> Vec<&str> {
    kafka.out.iter().filter(|out| out.code.is_none()).map(|out| out.n.as_str()).collect()
}

/// What commands came to. One that is read again is answered again, and nobody listens.
fn outcomes(kafka: &Kafka) -> Vec<Outcome> {
    let mut first = std::collections::BTreeMap::new();
    for answer in &kafka.answers {
        first.entry((answer.source, answer.offset)).or_insert(answer.outcome);
    }
    first.into_values().collect()
}

#[test]
fn what_becomes_of_a_timer_follows_from_the_order_of_its_commands() {
    use Outcome::{Absent, Cancelled, Created, Replaced};
    const HOUR: &str = "1h";
    type Case<'a> = (&'a str, Vec<(u64, Headers<'a>)>, &'a [&'a str], &'a [Outcome], TimerState);
    #[rustfmt::skip]
    let cases: Vec<Case<'_>> = vec![
        ("one is delivered",
            vec![(0, create("a", "3s"))], &["a"], &[], TimerState::Delivered),
        ("a second create of a pending one is a retry of the submit, with whatever it says",
            vec![(0, create("a", "3s")), (9, create("b", "1s"))], &["a"], &[], TimerState::Delivered),
        ("after its end the id is free",
            vec![(0, create("a", "1s")), (2_000, create("b", "1s"))], &["a", "b"], &[], TimerState::Delivered),
        ("cancelled in a tier",
            vec![(0, create("a", HOUR)), (9_000, cancel())], &[], &[Cancelled], TimerState::Cancelled),
        ("cancelled in the wheel",
            vec![(0, create("a", "1s")), (999, cancel())], &[], &[Cancelled], TimerState::Cancelled),
        ("created and cancelled in one batch",
            vec![(0, create("a", "1s")), (0, cancel())], &[], &[Cancelled], TimerState::Cancelled),
        ("too late",
            vec![(0, create("a", "1s")), (1_001, cancel())], &["a"], &[Absent], TimerState::Delivered),
        ("cancelled again: what the index has says so",
            vec![(0, create("a", HOUR)), (9, cancel()), (9, cancel())], &[], &[Cancelled, Absent], TimerState::Cancelled),
        ("cancelled, and created again at once: the new one lives",
            vec![(0, create("a", HOUR)), (9, cancel()), (0, create("b", "2s"))], &["b"], &[Cancelled], TimerState::Delivered),
        ("the new one is cancelled, too",
            vec![(0, create("a", "4s")), (9, cancel()), (0, create("b", "4s")), (9, cancel())], &[], &[Cancelled, Cancelled], TimerState::Cancelled),
        ("replaced by a later one",
            vec![(0, create("a", "4s")), (9, replace("b", "9s"))], &["b"], &[Replaced], TimerState::Delivered),
        ("replaced by an earlier one, and the old one still comes up",
            vec![(0, create("a", "90s")), (9, replace("b", "3s"))], &["b"], &[Replaced], TimerState::Delivered),
        ("replaced twice in one batch",
            vec![(0, create("a", "4s")), (0, replace("b", "5s")), (0, replace("c", "3s"))], &["c"], &[Replaced, Replaced], TimerState::Delivered),
        ("nothing to replace: a create",
            vec![(0, replace("a", "3s"))], &["a"], &[Created], TimerState::Delivered),
        ("replaced and cancelled",
            vec![(0, create("a", "90s")), (9, replace("b", "3s")), (9, cancel())], &[], &[Replaced, Cancelled], TimerState::Cancelled),
        ("a create after a replace is a retry, too",
            vec![(0, replace("a", "3s")), (9, create("b", "1s"))], &["a"], &[Created], TimerState::Delivered),
        ("expired before it was due",
            vec![(0, [create("a", "3s"), vec![("x-delay-expires", "2s")]].concat())], &[], &[], TimerState::Expired),
    ];
    for (why, commands, want, answers, state) in cases {
        for restart in [false, true] {
            let mut kafka = kafka();
            for (wait, headers) in &commands {
                kafka.after(Millis(*wait));
                kafka.submit("k", headers);
                if restart {
                    kafka.quiesce();
                    kafka.take_over(&[]);
                }
            }
            kafka.after(Millis(7_300_000));
            assert_eq!(delivered(&kafka), want, "{why}, restart: {restart}");
            assert_eq!(outcomes(&kafka), answers, "{why}, restart: {restart}");
            // What became of it is kept for a minute here, and then forgotten with all else.
            assert_eq!(kafka.timers.len(), 0, "{why}: {:?}", kafka.timers);
            let last = kafka.said.iter().rev().find_map(|(_, change)| match change {
                Change::Timer(timer) => Some(timer.state),
                _ => None,
            });
            assert_eq!(last, Some(state), "{why}, restart: {restart}");
            let figures = kafka.figures();
            assert_eq!((figures.live, figures.remembered, figures.gated), (0, 0, 0), "{why}");
            assert_eq!((figures.memory_bytes, kafka.pending()), (0, 0), "{why}");
        }
    }
}

#[test]
fn everything_that_an_answer_shows_is_in_the_changelog() {
    let mut kafka = kafka();
    let headers = [create("a", "1h"), vec![("x-delay-label", "blue")]].concat();
    kafka.submit("k", &headers);
    kafka.after(Millis(5));
    let version = Version { first_appended: BEGAN, offset: Offset(0) };
    let pending = kafka.timer("k", "i").expect("it is known");
    assert_eq!(
        (pending.state, pending.version, pending.since),
        (TimerState::Delay, version, BEGAN)
    );
    assert_eq!((&*pending.target, pending.label.as_deref()), (TARGET, Some("blue")));
    assert_eq!((&*pending.id, pending.key.as_deref()), (&b"i"[..], Some(&b"k"[..])));
    assert_eq!(pending.due, BEGAN + Millis::HOUR);

    // The other owner has it from what it was told.
    kafka.take_over(&[]);
    kafka.submit("k", &cancel());
    kafka.after(Millis(5));
    let cancelled = kafka.timer("k", "i").expect("it is known");
    let want = crate::timers::Timer {
        state: TimerState::Cancelled,
        since: BEGAN + Millis(5),
        ..pending.clone()
    };
    assert_eq!(cancelled, want);
    kafka.submit("k", &replace("b", "2h"));
    kafka.submit("k", &replace("c", "3h"));
    kafka.after(Millis(5));
    let newer = kafka.timer("k", "i").expect("it is known");
    let version = |offset| Version { first_appended: BEGAN + Millis(10), offset: Offset(offset) };
    let replaced = Replaced { first: version(2), last: version(2) };
    assert_eq!((newer.version, newer.supersedes), (version(3), Some(replaced)));
    let reason: Vec<ChangeReason> = kafka.said.iter().map(|(reason, _)| *reason).collect();
    use ChangeReason::{Cancelled, Created, Recorded, Superseded};
    assert_eq!(reason, [Created, Cancelled, Recorded, Created, Created, Superseded]);
}

#[test]
fn in_one_log_its_order_counts_whatever_its_leaders_clocks_say() {
    for restart in [false, true] {
        let mut kafka = kafka();
        let lane = source(0, lane_of("k"));
        kafka.after(Millis(1_000));
        for (time, headers) in [
            (900, create("a", "1h")),
            // A leader whose clock is behind takes over.
            (800, cancel()),
            (700, create("b", "2s")),
        ] {
            kafka.append_at(lane, BEGAN + Millis(time), record("k", &headers));
            kafka.quiesce();
            if restart {
                kafka.take_over(&[]);
            }
        }
        kafka.after(Millis(7_300_000));
        assert_eq!(outcomes(&kafka), [Outcome::Cancelled], "restart: {restart}");
        assert_eq!(delivered(&kafka), ["b"], "restart: {restart}");
        assert_eq!(kafka.pending(), 0);
    }
}

#[test]
fn a_timer_written_to_a_tier_is_not_known_before_its_head_comes_up() {
    let tier = |kafka: &Kafka| source(kafka.setup.topics.of_tier(1).0, lane_of("k"));
    let bare: Headers<'_> = vec![("x-delay-target", TARGET), ("x-delay-id", "i"), ("n", "t")];
    let at = |kafka: &mut Kafka| kafka.append(tier(kafka), record("k", &bare));

    let mut seen = kafka();
    at(&mut seen);
    seen.after(Millis(2_999));
    assert_eq!(seen.timer("k", "i"), None);
    seen.after(Millis(1));
    assert_eq!(seen.timer("k", "i").map(|timer| timer.state), Some(TimerState::Delay));
    seen.after(Millis(2_000));
    assert_eq!(delivered(&seen), ["t"]);

    let mut cancelled = kafka();
    at(&mut cancelled);
    cancelled.after(Millis(1_000));
    cancelled.submit("k", &cancel());
    cancelled.after(Millis(10_000));
    assert_eq!((delivered(&cancelled), outcomes(&cancelled)), (vec![], vec![Outcome::Absent]));
    assert!(cancelled.said.iter().any(|(reason, _)| *reason == ChangeReason::Suppressed));

    let mut second = kafka();
    at(&mut second);
    second.submit("k", &create("a", "1h"));
    second.after(Millis(10_000));
    assert_eq!(delivered(&second), Vec::<&str>::new(), "one was pending when it came up");
    assert_eq!(second.figures().duplicates, 1);

    let mut refused = kafka();
    refused
        .append(tier(&refused), record("k", &[bare, vec![("x-delay-action", "replace")]].concat()));
    refused.after(Millis(3_000));
    assert_eq!(refused.out[0].code, Some(Code::UnsupportedAction));
}

/// What the last command comes to for who asked, by what the index has then.
fn told(kafka: &Kafka) -> Result<Outcome, Found> {
    let answer = kafka.answers.last().expect("it was answered");
    match answer.outcome {
        Outcome::Absent => Err(answer.about.found(kafka.timer("k", "i").as_ref())),
        decided => Ok(decided),
    }
}

#[test]
fn an_answer_about_a_version_is_about_that_one_whatever_came_of_others() {
    let lane = source(0, lane_of("k"));
    for restart in [false, true] {
        let mut kafka = kafka();
        let submit = |kafka: &mut Kafka, headers: &Headers<'_>| {
            kafka.after(Millis(10));
            kafka.submit("k", headers);
            kafka.after(Millis(10));
            if restart {
                kafka.quiesce();
                kafka.take_over(&[]);
            }
            kafka.timer("k", "i").expect("it is known").version
        };
        let cancel_of = |kafka: &mut Kafka, version: Version| {
            let amending = amend(kafka, &cancel(), version, UnixMillis(0));
            kafka.append(lane, amending);
            kafka.after(Millis(10));
            told(kafka)
        };
        let first = submit(&mut kafka, &create("a", "1h"));
        let second = submit(&mut kafka, &replace("b", "1h"));
        let third = submit(&mut kafka, &replace("c", "3s"));
        for old in [first, second] {
            assert_eq!(cancel_of(&mut kafka, old), Ok(Outcome::Superseded), "it is pending");
        }
        kafka.after(Millis(4_000));
        for old in [first, second] {
            assert_eq!(cancel_of(&mut kafka, old), Err(Found::Replaced), "it was delivered");
        }
        assert_eq!(cancel_of(&mut kafka, third), Err(Found::Ended(TimerState::Delivered)));
        // After an end another row begins.
        let fourth = submit(&mut kafka, &create("d", "1h"));
        let fifth = submit(&mut kafka, &replace("e", "1h"));
        for old in [first, second, third] {
            assert_eq!(cancel_of(&mut kafka, old), Err(Found::Nothing), "it is not kept");
        }
        assert_eq!(cancel_of(&mut kafka, fifth), Ok(Outcome::Cancelled));
        assert_eq!(cancel_of(&mut kafka, fifth), Err(Found::Ended(TimerState::Cancelled)), "again");
        assert_eq!(cancel_of(&mut kafka, fourth), Err(Found::Replaced));
        assert_eq!(cancel_of(&mut kafka, third), Err(Found::Nothing));
        // A dead letter was put in the place of others, too.
        submit(&mut kafka, &create("f", "1h"));
        let seventh = submit(&mut kafka, &replace("g", "1h"));
        let expires = [replace("h", "3s"), vec![("x-delay-expires", "2s")]].concat();
        let last = submit(&mut kafka, &expires);
        kafka.after(Millis(4_000));
        assert_eq!(cancel_of(&mut kafka, seventh), Err(Found::Replaced));
        assert_eq!(cancel_of(&mut kafka, last), Err(Found::Ended(TimerState::Expired)));
        assert_eq!(delivered(&kafka), ["c"]);
    }
}

#[test]
fn a_cancel_that_found_nothing_is_told_nothing_of_what_came_after_it() {
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "1s"));
    kafka.after(Millis(2_000));
    kafka.submit("k", &cancel());
    kafka.after(Millis(10));
    assert_eq!(told(&kafka), Err(Found::Ended(TimerState::Delivered)));
    kafka.submit("k", &create("b", "1s"));
    kafka.after(Millis(2_000));
    assert_eq!(kafka.timer("k", "i").map(|timer| timer.state), Some(TimerState::Delivered));
    assert_eq!(told(&kafka), Err(Found::Nothing), "of the first it is not known any more");
}

/// A command about one version, sealed as waterclock does it.
pub(super) fn amend(
    kafka: &Kafka,
    headers: &Headers<'_>,
    version: Version,
    due: UnixMillis,
) -> Record {
    let bare = record("k", headers);
    let directive = header::read(bare.headers()).expect("it follows the contract");
    let state = State {
        kind: Kind::Amend,
        due,
        first_appended: version.first_appended,
        order: SubmissionOrder { appended: UnixMillis(0), offset: version.offset },
        expires: None,
        intake: kafka.setup.topics.intakes[0].tag,
        name: None,
        target: None,
        hops: 0,
        task: None,
    };
    let sealed = state.seal(&kafka.setup.key, &directive.bound(Some(b"k")));
    let mut all: Vec<(&[u8], Option<&[u8]>)> = bare.headers().collect();
    all.push((header::STATE.as_bytes(), Some(sealed.as_ref())));
    Record::new(Some(b"k"), Some(b"value"), all.into_iter())
}

#[test]
fn what_is_about_one_version_leaves_every_other_alone() {
    let place =
        |at: u64, offset| Version { first_appended: BEGAN + Millis(at), offset: Offset(offset) };
    #[rustfmt::skip]
    let cases = [
        // why, what it is, the version that it means, who is delivered, what it came to
        ("the pending one is cancelled",                "cancel",  place(10, 1), vec!["x"],      Outcome::Cancelled),
        ("one that was replaced is not the pending one", "cancel",  place(0, 0),  vec!["x", "b"], Outcome::Superseded),
        ("one that never was",                          "cancel",  place(5, 9),  vec!["x", "b"], Outcome::Absent),
        ("one that is yet to come",                     "cancel",  place(99, 9), vec!["x", "b"], Outcome::Absent),
        ("the pending one is put off",                  "replace", place(10, 1), vec!["x", "c"], Outcome::Replaced),
        ("one that was replaced is not put off",        "replace", place(0, 0),  vec!["x", "b"], Outcome::Superseded),
        ("one that never was is not put off",           "replace", place(5, 9),  vec!["x", "b"], Outcome::Absent),
    ];
    for (why, what, version, want, outcome) in cases {
        let mut kafka = kafka();
        kafka.submit("k", &create("a", "90s"));
        kafka.after(Millis(10));
        kafka.submit("k", &replace("b", "80s"));
        let other =
            [("x-delay", "1s"), ("x-delay-target", TARGET), ("x-delay-id", "j"), ("n", "x")];
        kafka.submit("k", &other);
        kafka.after(Millis(10));
        // A relative time in it does not count again: the state says when it is due.
        let headers = if what == "cancel" { cancel() } else { replace("c", "80s") };
        let due = BEGAN + Millis(200_000);
        let amending = amend(&kafka, &headers, version, due);
        kafka.append(source(0, lane_of("k")), amending);
        kafka.after(Millis(300_000));
        assert_eq!(delivered(&kafka), want, "{why}");
        assert_eq!(outcomes(&kafka)[1..], [outcome], "{why}");
        if want.contains(&"c") {
            let late = kafka.out.iter().find(|out| out.n == "c").map(|out| out.at);
            assert_eq!(late, Some(due), "{why}");
        }
    }
}

#[test]
fn what_is_submitted_after_a_version_was_cancelled_stands_though_that_one_came_by_a_clock_ahead() {
    for restart in [false, true] {
        let mut kafka = kafka();
        let lane = lane_of("k");
        let stray = source(0, (lane + 1) % LANES);
        // Its leader's clock is 150 ms ahead of the one of the lane's own partition.
        kafka.append_at(stray, BEGAN + Millis(150), record("k", &create("a", "1h")));
        kafka.after(Millis(10));
        let version = kafka.timer("k", "i").expect("it is pending").version;
        assert!(version.is_not_in_log_order());
        let cancelling = amend(&kafka, &cancel(), version, BEGAN);
        kafka.append(source(0, lane), cancelling);
        kafka.after(Millis(10));
        if restart {
            kafka.take_over(&[]);
        }
        kafka.submit("k", &create("b", "2s"));
        kafka.after(Millis(7_300_000));
        assert_eq!(outcomes(&kafka), [Outcome::Cancelled], "restart: {restart}");
        assert_eq!(delivered(&kafka), ["b"], "restart: {restart}");
        assert_eq!(kafka.pending(), 0);
    }
}

#[test]
fn a_version_cannot_be_amended_but_by_waterclock_itself() {
    let version = Version { first_appended: BEGAN, offset: Offset(0) };
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "3s"));
    kafka.after(Millis(5));
    let made_up = |kafka: &Kafka, headers: &Headers<'_>| amend(kafka, headers, version, BEGAN);
    #[rustfmt::skip]
    let cases = [
        ("a create is about no version",      made_up(&kafka, &create("b", "1s")), source(0, lane_of("k"))),
        ("an intake takes it, not a tier",    made_up(&kafka, &replace("b", "1s")), source(1, lane_of("k"))),
        ("it is written to its lane, or not", made_up(&kafka, &cancel()), source(0, (lane_of("k") + 1) % LANES)),
    ];
    for (at, (why, record, source)) in cases.into_iter().enumerate() {
        kafka.append(source, record);
        kafka.after(Millis(600));
        let codes: Vec<_> = kafka.out.iter().filter_map(|out| out.code).collect();
        assert_eq!(codes, vec![Code::BadState; at + 1], "{why}");
    }
    kafka.after(Millis(5_000));
    assert_eq!(delivered(&kafka), ["a"]);
}

#[test]
fn a_command_that_breaks_the_contract_is_answered_and_changes_nothing() {
    let kafka = || {
        let mut kafka = kafka();
        kafka.submit("k", &create("a", "3s"));
        let missing = vec![("x-delay", "1s"), ("x-delay-target", MISSING)];
        kafka.submit("k", &missing);
        kafka.after(Millis(5));
        kafka
    };
    let with = |extra: &[(&'static str, &'static str)]| [cancel(), extra.to_vec()].concat();
    #[rustfmt::skip]
    let cases: Vec<(&str, Headers<'_>, Code)> = vec![
        ("a header that nobody knows",   with(&[("x-delay-reason", "none")]), Code::UnknownHeader),
        ("no time",                      vec![("x-delay-action", "replace"), ("x-delay-id", "i"), ("x-delay-target", TARGET)], Code::MissingDelay),
        ("a target that is not allowed", vec![("x-delay-action", "replace"), ("x-delay-id", "i"), ("x-delay", "1"), ("x-delay-target", "bills")], Code::TargetDenied),
        ("a target that is not there",   vec![("x-delay-action", "replace"), ("x-delay-id", "i"), ("x-delay", "1"), ("x-delay-target", MISSING)], Code::TargetMissing),
        ("no id",                        vec![("x-delay-action", "cancel")], Code::MissingId),
        ("an action that nobody knows",  vec![("x-delay-action", "pause"), ("x-delay-id", "i")], Code::BadAction),
    ];
    for (why, headers, code) in cases {
        let mut kafka = kafka();
        let offset = kafka.submit("k", &headers);
        kafka.after(Millis(10_000));
        let answers: Vec<_> = kafka.answers.iter().map(|a| (a.offset, a.outcome)).collect();
        assert_eq!(answers, [(offset, Outcome::Refused(code))], "{why}");
        assert_eq!(delivered(&kafka), ["a"], "{why}");
    }
}

#[test]
fn a_version_that_becomes_a_dead_letter_says_so_and_frees_its_id() {
    let mut kafka = kafka();
    let missing =
        |n| vec![("x-delay", "0"), ("x-delay-target", MISSING), ("x-delay-id", "i"), ("n", n)];
    // The first is accepted before the answer about its target is there.
    kafka.submit("k", &missing("a"));
    kafka.after(Millis(5));
    let timer = kafka.timer("k", "i").expect("it is known");
    assert_eq!((timer.state, timer.code), (TimerState::Dead, Some(Code::TargetMissing)));
    kafka.submit("k", &create("b", "1s"));
    kafka.after(Millis(1_000));
    assert_eq!(delivered(&kafka), ["b"]);
    // A record that is never accepted is a dead letter, and nothing is said of a timer.
    kafka.submit("k", &missing("c"));
    kafka.after(Millis(5));
    assert_eq!(kafka.timer("k", "i").map(|timer| timer.state), Some(TimerState::Delivered));
}

#[test]
fn beyond_max_tracked_nothing_new_is_taken_and_what_is_there_can_be_cancelled() {
    let limits = Limits { tracked_max: 4, ..Kafka::limits() };
    let mut kafka = Kafka::new(limits);
    let id = |id: &'static str, action: &'static str| {
        let time = if action == "cancel" {
            vec![]
        } else {
            vec![("x-delay", "1h"), ("x-delay-target", TARGET)]
        };
        [time, vec![("x-delay-id", id), ("x-delay-action", action), ("n", id)]].concat()
    };
    for n in ["a", "b", "c"] {
        kafka.submit("k", &id(n, "create"));
    }
    kafka.submit("k", &id("nobody", "cancel"));
    kafka.after(Millis(5));
    assert_eq!(
        outcomes(&kafka),
        [Outcome::Refused(Code::TooManyTimers)],
        "three of four: it may have been for nothing"
    );
    kafka.submit("k", &id("d", "create"));
    kafka.submit("k", &id("e", "create"));
    kafka.submit("k", &id("d", "replace"));
    kafka.submit("k", &id("d", "create"));
    kafka.after(Millis(5));
    let refused = Out { n: "e".into(), at: kafka.now - Millis(5), code: Some(Code::TooManyTimers) };
    assert!(kafka.out.contains(&refused), "{:?}", kafka.out);
    assert_eq!(outcomes(&kafka)[1..], [Outcome::Refused(Code::TooManyTimers)], "it would be two");
    kafka.submit("k", &id("d", "cancel"));
    kafka.after(Millis(5));
    assert_eq!(outcomes(&kafka)[2..], [Outcome::Cancelled]);
    assert_eq!((kafka.figures().live, kafka.figures().remembered), (3, 1));
}

#[test]
fn a_due_timer_waits_until_its_intake_is_known_up_to_settle_before() {
    let mut kafka = kafka();
    kafka.silent = true;
    kafka.submit("k", &create("a", "1s"));
    let untracked = [("x-delay", "1s"), ("x-delay-target", TARGET), ("n", "u")];
    kafka.submit("k", &untracked);
    kafka.after(Millis(949));
    assert_eq!(kafka.asked.len(), 0);
    // Asked for well before: between settle and half of it.
    kafka.after(Millis(26));
    let intake = source(0, lane_of("k"));
    assert_eq!(kafka.asked, [vec![intake]]);
    kafka.after(Millis(60_000));
    assert_eq!(
        delivered(&kafka),
        ["u"],
        "late is allowed, wrong is not; who has no id does not wait"
    );
    assert_eq!((kafka.figures().gated, kafka.asked.len()), (1, 1), "asked once");

    // A cancel that was there in time is read at last.
    kafka.silent = false;
    kafka.submit("k", &cancel());
    kafka.after(Millis(5));
    assert_eq!(delivered(&kafka), ["u"]);
    assert_eq!(outcomes(&kafka), [Outcome::Cancelled]);
}

#[test]
fn what_reading_tells_is_not_asked_for() {
    let mut kafka = kafka();
    kafka.silent = true;
    kafka.submit("k", &create("a", "1s"));
    kafka.after(Millis(951));
    // Something else in the same intake, appended after due - settle.
    kafka.submit("k", &[("x-delay", "1h"), ("x-delay-target", TARGET)]);
    kafka.after(Millis(49));
    assert_eq!(delivered(&kafka), ["a"]);
}

#[test]
fn without_settle_nothing_is_asked_for() {
    let mut kafka = Kafka::new(Limits { settle: None, ..Kafka::limits() });
    kafka.submit("k", &create("a", "1s"));
    kafka.after(Millis(1_000));
    assert_eq!((delivered(&kafka), kafka.asked.len()), (vec!["a"], 0));
    let mut strict = Kafka::new(Limits { settle: Some(Millis(0)), ..Kafka::limits() });
    strict.submit("k", &create("a", "0"));
    strict.after(Millis(1));
    assert_eq!((delivered(&strict), strict.asked.len()), (vec!["a"], 1));
}

#[test]
fn a_lane_that_is_not_known_decides_nothing_and_the_others_go_on() {
    let other = (0..100).map(|n| n.to_string()).find(|key| lane_of(key) != lane_of("k"));
    let other = other.expect("a key of the other lane");
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "7s"));
    let untracked = |n, delay| vec![("x-delay", delay), ("x-delay-target", TARGET), ("n", n)];
    kafka.submit("k", &untracked("u", "7s"));
    kafka.after(Millis(1_000));
    kafka.stop();
    kafka.submit("k", &cancel());
    kafka.submit("k", &untracked("v", "1s"));
    kafka.submit(&other, &create("o", "1s"));
    kafka.take_over(&[Lane(lane_of("k"))]);
    kafka.after(Millis(20_000));
    assert_eq!(delivered(&kafka), ["o", "u"], "from a tier; the intake is held");
    assert_eq!(kafka.answers, []);
    kafka.tell_unknown();
    kafka.after(Millis(5));
    assert_eq!(delivered(&kafka), ["o", "u", "v"]);
    assert_eq!(outcomes(&kafka), [Outcome::Cancelled]);
    kafka.after(Millis(10_000));
    assert_eq!((delivered(&kafka).len(), kafka.pending()), (3, 0));
}

#[test]
fn what_nobody_remembers_is_delivered_nevertheless() {
    // <ns>.timers was created again, or in at_least_once what was said of it is ahead of its offset.
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "9s"));
    kafka.after(Millis(2_000));
    kafka.timers.clear();
    kafka.take_over(&[]);
    kafka.after(Millis(3_000));
    kafka.submit("k", &create("b", "9s"));
    kafka.after(Millis(20_000));
    assert_eq!(delivered(&kafka).iter().filter(|n| **n == "a" || **n == "b").count(), 1);
    assert_eq!(kafka.pending(), 0);
}

#[test]
fn a_batch_that_fails_takes_what_was_decided_with_it() {
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "1h"));
    kafka.fails = true;
    kafka.after(Millis(5));
    assert!(!kafka.fails);
    assert_eq!(kafka.figures().live, 1, "decided again");
    kafka.submit("k", &cancel());
    kafka.fails = true;
    kafka.after(Millis(5));
    assert_eq!(outcomes(&kafka), [Outcome::Cancelled]);
    assert_eq!(kafka.said.iter().filter(|(b, _)| *b == ChangeReason::Cancelled).count(), 1);
}

#[test]
fn what_is_said_of_one_timer_is_never_torn_from_what_did_it() {
    // A batch has room for one record only, and takes what belongs together all the same.
    let limits = Limits { batch_records_max: 1, ..Kafka::limits() };
    let mut kafka = Kafka::new(limits);
    kafka.submit("k", &create("a", "1h"));
    kafka.submit("k", &replace("b", "1s"));
    kafka.submit("k", &cancel());
    kafka.after(Millis(100));
    assert_eq!(kafka.batches, [1, 2, 2]);
    assert_eq!(outcomes(&kafka), [Outcome::Replaced, Outcome::Cancelled]);
}

#[test]
fn with_tracking_of_cancellations_a_cancel_is_only_written_down() {
    let limits = Limits { tracking: Tracking::Cancellations, ..Kafka::limits() };
    let mut kafka = Kafka::new(limits);
    kafka.submit("k", &create("a", "9s"));
    kafka.submit("k", &create("b", "9s"));
    kafka.after(Millis(5));
    assert_eq!(
        (kafka.timers.len(), kafka.figures().live),
        (0, 0),
        "nothing is said of what is pending"
    );
    kafka.submit("k", &replace("c", "8s"));
    kafka.after(Millis(5));
    kafka.after(Millis(10_000));
    assert_eq!(delivered(&kafka), ["c"]);
    assert_eq!(outcomes(&kafka), [Outcome::Recorded]);
    kafka.submit("k", &create("d", "9s"));
    kafka.after(Millis(5));
    kafka.submit("k", &cancel());
    kafka.take_over(&[]);
    kafka.after(Millis(10_000));
    assert_eq!(outcomes(&kafka)[1..], [Outcome::Recorded]);
    assert_eq!(delivered(&kafka), ["c"]);
}

#[test]
fn an_old_cancel_is_not_forgotten_because_a_newer_one_was_met() {
    // In a year one is due that was cancelled together with one due in seconds.
    let limits = Limits { tracking: Tracking::Cancellations, ..Kafka::limits() };
    for mut kafka in [Kafka::new(limits), kafka()] {
        kafka.submit("k", &create("a", "300d"));
        kafka.after(Millis(5));
        kafka.submit("k", &cancel());
        kafka.after(Millis(5));
        kafka.submit("k", &create("b", "5s"));
        kafka.after(Millis(5));
        kafka.submit("k", &cancel());
        kafka.after(Millis(10 * 86_400_000));
        let mark = kafka.timers.values().find_map(|change| match change {
            Change::CancelMark(mark) => Some(*mark),
            _ => None,
        });
        let due = BEGAN + Millis(300 * 86_400_000);
        assert!(mark.is_some_and(|mark| mark.until > due), "{mark:?}");
        kafka.take_over(&[]);
        kafka.after(Millis(300 * 86_400_000));
        assert_eq!(delivered(&kafka), Vec::<&str>::new());
    }
}

#[test]
fn what_was_cancelled_is_remembered_until_what_waited_while_all_was_down_has_come() {
    let mut kafka = kafka();
    kafka.submit("k", &create("a", "5s"));
    kafka.after(Millis(5));
    kafka.submit("k", &cancel());
    kafka.after(Millis(5));
    kafka.stop();
    // Appended before the cancel, to the intake of another lane that nobody read.
    let another = source(0, (lane_of("k") + 1) % LANES);
    kafka.append_at(another, BEGAN, record("k", &create("b", "1s")));
    kafka.after(Millis(400 * 86_400_000));
    kafka.take_over(&[]);
    kafka.after(Millis(5_000));
    assert_eq!(delivered(&kafka), Vec::<&str>::new());
    kafka.after(Millis(1_200_000));
    assert_eq!(kafka.pending(), 0);
    let is_void = |change: &Change| matches!(change, Change::CancelMark(_));
    assert!(!kafka.timers.values().any(is_void), "and not for ever: {:?}", kafka.timers);
}
