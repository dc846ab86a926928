//! One id, one record: what comes late, by whatever way, is held against what became of its timer meanwhile. The table of
//! `docs/adr/0022-what-comes-late.md`.

use super::kafka::{BEGAN, Kafka, LANES, MISSING, TARGET, lane_of, record, source};
use crate::header::Code;
use crate::messages::Outcome;
use crate::setup::Tracking;
use crate::timers::{Change, NOT_IN_LOG_ORDER, Timer, TimerId, TimerState, Version};
use crate::{Decided, Lane, Limits, Millis, Offset, Source, TopicId};
use std::sync::Arc;

type Headers = Vec<(&'static str, &'static str)>;

/// How a record that comes late comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Another partition, whose owner stands still.
    Stray,
    /// A further intake, of which nothing is heard.
    Further,
    /// A tier of five seconds, which lets it go two seconds before it is due.
    Tier,
}

/// What had become of the other one by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Pending,
    Delivered,
    Cancelled,
    Expired,
    Dead,
    /// It was delivered, and all of that is forgotten.
    Forgotten,
}

/// When the late one was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before the other one.
    Before,
    /// After it, while it was pending.
    Within,
    /// After its end.
    After,
}

const TIERS: u16 = 2;

fn kafka() -> Kafka {
    Kafka::with_intakes(Kafka::limits(), &["", "more"])
}

/// No record waits, and no mark.
fn nothing_is_left(kafka: &Kafka, why: &str) {
    let figures = kafka.figures();
    assert_eq!((figures.memory_bytes, kafka.pending(), figures.recalling), (0, 0, 0), "{why}");
    assert_eq!(kafka.timers.len(), 0, "{why}: {:?}", kafka.timers);
}

fn make(n: &'static str, action: &'static str, delay: &'static str) -> Headers {
    let mut headers = vec![("x-delay-id", "i"), ("n", n)];
    if !action.is_empty() {
        headers.push(("x-delay-action", action));
    }
    if action != "cancel" {
        headers.extend([("x-delay", delay), ("x-delay-target", TARGET)]);
    }
    headers
}

fn place_of(by: By) -> Source {
    let lane = lane_of("k");
    match by {
        By::Stray => source(0, (lane + 1) % LANES),
        By::Further => source(1, lane),
        By::Tier => source(TIERS + 1, lane),
    }
}

fn delivered(kafka: &Kafka) -> String {
    kafka.out.iter().filter(|out| out.code.is_none()).map(|out| out.n.as_str()).collect()
}

/// What the late command came to.
fn outcome(kafka: &Kafka) -> Option<Outcome> {
    let of_late = |answer: &&_| {
        let crate::Answer { source, offset, .. } = **answer;
        kafka.n_at(source, offset) == "r"
    };
    kafka.answers.iter().find(of_late).map(|answer| answer.outcome)
}

/// Makes the other one, as a create or as a replace of nothing, and lets it come to its end.
fn other(kafka: &mut Kafka, action: &'static str, other: Other, late: impl Fn(&mut Kafka, When)) {
    late(kafka, When::Before);
    kafka.after(Millis(50));
    let (delay, extra) = match other {
        Other::Pending => ("1h", None),
        Other::Expired => ("1s", Some(("x-delay-expires", "500ms"))),
        _ => ("1s", None),
    };
    let mut headers = make("v", action, delay);
    headers.extend(extra);
    if other == Other::Dead {
        // Its target turns out to be missing once it is taken.
        headers.retain(|(name, _)| *name != "x-delay-target");
        headers.push(("x-delay-target", MISSING));
    }
    kafka.submit("k", &headers);
    kafka.after(Millis(50));
    late(kafka, When::Within);
    kafka.after(Millis(400));
    if other == Other::Cancelled {
        kafka.submit("k", &make("c", "cancel", ""));
    }
    kafka.after(Millis(1_500));
    late(kafka, When::After);
    kafka.after(Millis(500));
    if other == Other::Forgotten {
        kafka.after(Millis(1_200_000));
    }
}

#[test]
fn of_one_id_the_older_is_superseded_or_a_duplicate_also_when_the_newer_has_ended() {
    use By::{Further, Stray, Tier};
    use Other::{Cancelled, Dead, Delivered, Expired, Forgotten, Pending};
    use Outcome::{Absent, Created, Replaced, Superseded};
    use When::{After, Before, Within};
    type Row = (&'static str, When, &'static [Other], &'static str, Option<Outcome>);
    #[rustfmt::skip]
    let rows: &[Row] = &[
        // what comes late, when it was submitted, what became of the other one; who is delivered, what it came to
        ("",        Before, &[Pending, Delivered],          "v",  None),
        ("",        Before, &[Cancelled, Expired, Dead],    "",   None),
        ("",        Before, &[Forgotten],                   "vr", None),
        ("",        Within, &[Pending, Delivered],          "v",  None),
        ("",        Within, &[Cancelled, Expired],          "",   None),
        ("",        After,  &[Delivered],                   "vr", None),
        ("",        After,  &[Cancelled, Expired, Dead],    "r",  None),
        ("replace", Before, &[Pending, Delivered],          "v",  Some(Superseded)),
        ("replace", Before, &[Cancelled, Expired, Dead],    "",   Some(Superseded)),
        ("replace", Before, &[Forgotten],                   "vr", Some(Created)),
        ("replace", Within, &[Pending],                     "r",  Some(Replaced)),
        ("replace", Within, &[Delivered],                   "vr", Some(Created)),
        ("replace", Within, &[Cancelled],                   "",   Some(Superseded)),
        ("replace", Within, &[Expired],                     "r",  Some(Created)),
        ("replace", After,  &[Delivered],                   "vr", Some(Created)),
        ("replace", After,  &[Cancelled, Expired, Dead],    "r",  Some(Created)),
        ("cancel",  Before, &[Pending, Delivered],          "v",  Some(Absent)),
        ("cancel",  Before, &[Cancelled, Expired, Dead],    "",   Some(Absent)),
        ("cancel",  Within, &[Pending],                     "",   Some(Outcome::Cancelled)),
        ("cancel",  Within, &[Delivered],                   "v",  Some(Absent)),
        ("cancel",  Within, &[Cancelled, Expired],          "",   Some(Absent)),
        ("cancel",  After,  &[Delivered],                   "v",  Some(Absent)),
        ("cancel",  After,  &[Cancelled, Expired, Dead],    "",   Some(Absent)),
    ];
    for &(what, when, others, want, came_to) in rows {
        for (&of, by) in others.iter().flat_map(|of| [Stray, Further, Tier].map(|by| (of, by))) {
            // A tier takes creates only, and lets them go in its own time.
            if by == Tier && (!what.is_empty() || of == Forgotten) {
                continue;
            }
            for action in ["", "replace"] {
                for taken_over in [false, true] {
                    let why = format!(
                        "{what:?} {by:?} {when:?}, {action:?} {of:?}, taken over: {taken_over}"
                    );
                    let mut kafka = kafka();
                    let at = place_of(by);
                    if by != Tier {
                        kafka.stalled.insert(at);
                    }
                    other(&mut kafka, action, of, |kafka, now| {
                        if now == when {
                            let mut headers = make("r", what, "2s");
                            if by == Tier {
                                headers.retain(|(name, _)| *name != "x-delay");
                            }
                            kafka.append(at, record("k", &headers));
                        }
                    });
                    kafka.stalled.clear();
                    if taken_over {
                        kafka.take_over(&[]);
                    }
                    kafka.after(Millis(10_900_000));
                    assert_eq!(delivered(&kafka), want, "{why}");
                    assert_eq!(outcome(&kafka), came_to, "{why}");
                    nothing_is_left(&kafka, &why);
                }
            }
        }
    }
}

#[test]
fn what_was_cancelled_before_it_came_is_told_as_cancelled_unless_a_newer_one_is_known() {
    for (by, taken_over) in
        [By::Stray, By::Further].into_iter().flat_map(|by| [(by, false), (by, true)])
    {
        for (newer, ended) in [(false, false), (true, false), (true, true)] {
            let why = format!("{by:?}, taken over: {taken_over}, newer: {newer}, ended: {ended}");
            let mut kafka = kafka();
            kafka.stalled.insert(place_of(by));
            kafka.append(place_of(by), record("k", &make("r", "", "1s")));
            kafka.after(Millis(5));
            kafka.submit("k", &make("c", "cancel", ""));
            kafka.after(Millis(5));
            if newer {
                kafka.submit("k", &make("v", "", "2s"));
            }
            kafka.after(Millis(if ended { 4_000 } else { 100 }));
            kafka.stalled.clear();
            if taken_over {
                kafka.take_over(&[]);
            }
            kafka.after(Millis(5));
            let timer = kafka.timer("k", "i").expect("it is known");
            let told = (timer.state, timer.version.is_not_in_log_order());
            let want = match (newer, ended) {
                (false, _) => (TimerState::Cancelled, true),
                (true, false) => (TimerState::Delay, false),
                (true, true) => (TimerState::Delivered, false),
            };
            assert_eq!(told, want, "{why}");
            kafka.after(Millis(10_000));
            assert_eq!(delivered(&kafka), if newer { "v" } else { "" }, "{why}");
            assert_eq!(kafka.pending(), 0, "{why}");
        }
    }
}

/// The lane is known for longer than clocks are apart.
fn settled() -> Kafka {
    let mut kafka = kafka();
    kafka.after(Millis(20_000));
    kafka
}

#[test]
fn what_is_moved_at_once_asks_nobody_and_what_is_late_asks_once() {
    let stray = place_of(By::Stray);
    let mut kafka = settled();
    for (n, id) in [("1", "a"), ("2", "b"), ("3", "c")] {
        let headers = [("x-delay", "1s"), ("x-delay-target", TARGET), ("x-delay-id", id), ("n", n)];
        kafka.append(stray, record("k", &headers));
        kafka.after(Millis(1_500));
    }
    assert_eq!((delivered(&kafka).as_str(), kafka.recalled), ("123", 0));
    kafka.stalled.insert(stray);
    kafka.append(stray, record("k", &make("r", "", "0")));
    // In one millisecond it cannot be told which was first.
    kafka.after(Millis(1));
    kafka.submit("k", &make("v", "", "0"));
    kafka.after(Millis(100));
    kafka.stalled.clear();
    kafka.after(Millis(100));
    assert_eq!((delivered(&kafka).as_str(), kafka.recalled), ("123v", 1));
}

#[test]
fn what_comes_for_a_timer_that_is_asked_about_waits_behind_it_and_the_others_go_on() {
    let stray = place_of(By::Stray);
    let mut kafka = settled();
    kafka.stalled.insert(stray);
    // Of nothing that is known: after a take-over nobody here knows what has ended before.
    kafka.append(stray, record("k", &make("r", "", "1h")));
    kafka.take_over(&[]);
    kafka.after(Millis(2_000));
    kafka.recalls_late = true;
    kafka.stalled.clear();
    kafka.after(Millis(100));
    assert_eq!(kafka.figures().recalling, 1);
    kafka.submit("k", &make("c", "cancel", ""));
    kafka.submit("k", &make("v", "", "1s"));
    let other = [("x-delay", "1s"), ("x-delay-target", TARGET), ("x-delay-id", "j"), ("n", "o")];
    kafka.submit("k", &other);
    kafka.after(Millis(5_000));
    assert_eq!((delivered(&kafka).as_str(), kafka.figures().recalling), ("o", 3));
    assert_eq!(kafka.answers.len(), 0);
    // A batch that fails takes the question with it.
    kafka.fails = true;
    kafka.submit("k", &[("x-delay", "0"), ("x-delay-target", TARGET), ("n", "u")]);
    kafka.after(Millis(10));
    kafka.recalls_late = false;
    kafka.recall();
    kafka.after(Millis(100));
    let outcomes: Vec<Outcome> = kafka.answers.iter().map(|answer| answer.outcome).collect();
    assert_eq!(outcomes, [Outcome::Cancelled]);
    assert_eq!(delivered(&kafka), "ouv");
    kafka.after(Millis(10_000));
    assert_eq!((delivered(&kafka).as_str(), kafka.pending()), ("ouv", 0));
}

#[test]
fn all_is_decided_once_the_index_has_told_however_long_that_takes_and_what_came_of_it_is_committed()
{
    let places = [By::Stray, By::Further].map(place_of);
    let mut kafka = settled();
    kafka.stalled.extend(places);
    let other = [("x-delay", "1h"), ("x-delay-target", TARGET), ("x-delay-id", "j")];
    kafka.append(places[0], record("k", &make("r", "", "1h")));
    kafka.append(places[1], record("k", &other));
    kafka.take_over(&[]);
    kafka.after(Millis(2_000));
    kafka.recalls_late = true;
    kafka.stalled.remove(&places[0]);
    kafka.after(Millis(60_000));
    let mut so_far = Decided::default();
    let mut has = |kafka: &Kafka| kafka.engine.has_decided(&[(places[0], Offset(1))], &mut so_far);
    assert!(!has(&kafka), "nobody knows what has ended");
    // Another one begins to wait, and holds up nobody who asked before.
    kafka.stalled.clear();
    kafka.after(Millis(1));
    kafka.recall();
    assert_eq!(kafka.figures().recalling, 1);
    assert!(!has(&kafka), "its timer is in no batch");
    kafka.after(Millis(60_000));
    assert!(has(&kafka));
    let mut later = Decided::default();
    assert!(!kafka.engine.has_decided(&[(places[1], Offset(1))], &mut later));
}

#[test]
fn what_is_refused_once_the_index_has_told_and_asks_again_is_not_decided_before_its_letter_is() {
    let stray = place_of(By::Stray);
    let limits = Limits { tracked_max: 0, ..Kafka::limits() };
    let mut kafka = Kafka::with_intakes(limits, &["", "more"]);
    kafka.after(Millis(20_000));
    kafka.stalled.insert(stray);
    kafka.append(stray, record("k", &make("r", "", "1h")));
    kafka.take_over(&[]);
    kafka.after(Millis(2_000));
    kafka.recalls_late = true;
    kafka.stalled.clear();
    kafka.after(Millis(1_000));
    let mut so_far = Decided::default();
    let mut has = |kafka: &Kafka| kafka.engine.has_decided(&[(stray, Offset(1))], &mut so_far);
    let mut asked = 0;
    while kafka.figures().recalling > 0 {
        assert!(!has(&kafka), "asked {asked} times");
        kafka.recall();
        asked += 1;
        assert!(!has(&kafka), "asked {asked} times, and its letter is in no batch");
        kafka.after(Millis(1_000));
    }
    assert!(asked > 1, "it is asked again once it is refused");
    assert!(has(&kafka));
    let letters = kafka.out.iter().filter(|out| out.code == Some(Code::TooManyTimers));
    assert_eq!(letters.count(), 1);
}

#[test]
fn the_question_leaves_when_all_is_committed_that_was_decided_before() {
    let stray = place_of(By::Stray);
    let mut kafka = Kafka::with_intakes(
        // The timer change is in a later batch.
        Limits { batch_gap: Millis(500), ..Kafka::limits() },
        &["", "more"],
    );
    kafka.after(Millis(20_000));
    kafka.append(stray, record("k", &make("r", "", "1h")));
    kafka.stalled.insert(stray);
    kafka.after(Millis(1));
    kafka.submit("k", &make("v", "", "1h"));
    kafka.submit("k", &make("c", "cancel", ""));
    kafka.stalled.clear();
    kafka.after(Millis(10_000));
    assert_eq!(kafka.timer("k", "i").map(|timer| timer.state), Some(TimerState::Cancelled));
    kafka.after(Millis(7_300_000));
    assert_eq!((delivered(&kafka).as_str(), kafka.pending()), ("", 0));
}

#[test]
fn a_question_is_not_about_what_was_decided_after_it_was_begun() {
    let lane = lane_of("k");
    let limits = Limits { batch_gap: Millis(500), batch_records_max: 2, ..Kafka::limits() };
    let mut kafka = Kafka::with_intakes(limits, &["", "more", "most"]);
    let of = |n, id, delay| {
        vec![("x-delay", delay), ("x-delay-target", TARGET), ("x-delay-id", id), ("n", n)]
    };
    kafka.append(source(2, lane), record("k", &make("r", "", "1900ms")));
    kafka.after(Millis(600));
    kafka.take_over(&[]);
    kafka.stalled.extend([source(1, lane), source(2, lane)]);
    kafka.submit("k", &of("y", "y", "1h"));
    kafka.after(Millis(1));
    // Nobody knows here what has ended before, so this one asks; and this has to be committed first.
    kafka.submit("k", &of("z", "z", "1h"));
    kafka.append(source(1, lane), record("k", &of("j", "j", "1h")));
    kafka.stalled.remove(&source(1, lane));
    kafka.after(Millis(1));
    assert_eq!(kafka.figures().recalling, 1);
    // That R has ended is in no batch yet. It is read again, and asks, too.
    kafka.submit("k", &make("c", "cancel", ""));
    kafka.submit("k", &make("c", "cancel", ""));
    kafka.after(Millis(1));
    kafka.stalled.clear();
    kafka.after(Millis(1));
    assert_eq!(kafka.figures().recalling, 2);
    kafka.after(Millis(10_000));
    assert_eq!((kafka.recalled, kafka.figures().recalling), (3, 0), "R asked when it came first");
    let timer_id = TimerId::new(Some(b"k"), b"i");
    let is_told = |change: &&Change| matches!(change, Change::Timer(timer) if timer.timer_id == timer_id && timer.state == TimerState::Cancelled);
    let told = kafka.said.iter().map(|(_, change)| change).filter(is_told).count();
    assert_eq!((delivered(&kafka).as_str(), told), ("", 1));
}

#[test]
fn what_was_submitted_by_a_clock_that_was_set_back_is_late_after_a_take_over() {
    // V is due at once, R was submitted before it: both by leaders that were ahead.
    for (ahead, taken_over) in
        [5_000, 150_000].into_iter().flat_map(|ahead| [false, true].map(|at| (ahead, at)))
    {
        let mut kafka = kafka();
        let until =
            [("x-delay-until", "1800000000001"), ("x-delay-target", TARGET), ("x-delay-id", "i")];
        kafka.stalled.insert(place_of(By::Stray));
        let late = [&until[..], &[("n", "r")]].concat();
        kafka.append_at(place_of(By::Stray), BEGAN + Millis(ahead), record("k", &late));
        let other = [&until[..], &[("n", "v")]].concat();
        let at = source(0, lane_of("k"));
        kafka.append_at(at, BEGAN + Millis(ahead + 10), record("k", &other));
        kafka.after(Millis(500));
        assert_eq!(delivered(&kafka), "v");
        if taken_over {
            kafka.take_over(&[]);
        }
        kafka.stalled.clear();
        kafka.after(Millis(500_000));
        assert_eq!((delivered(&kafka).as_str(), kafka.pending()), ("v", 0), "{ahead} ms");
    }
}

#[test]
fn what_an_owner_before_has_cancelled_is_not_told_again_by_one_whose_clock_was_set_back() {
    let mut kafka = kafka();
    kafka.after(Millis(150_000));
    kafka.append(place_of(By::Tier), record("k", &make("v", "", "5s")));
    kafka.after(Millis(4_000));
    let state = |kafka: &Kafka| kafka.timer("k", "i").map(|timer| timer.state);
    assert_eq!(state(&kafka), Some(TimerState::Delay));
    // The next owner hears of the cancel before it reads the record again.
    kafka.stalled.insert(place_of(By::Tier));
    kafka.take_over(&[]);
    kafka.submit("k", &make("c", "cancel", ""));
    // The mark is of this one, which found nothing.
    kafka.submit("k", &make("c", "cancel", ""));
    kafka.after(Millis(1_000));
    assert_eq!(state(&kafka), Some(TimerState::Cancelled));
    kafka.now = BEGAN;
    kafka.take_over(&[]);
    kafka.stalled.clear();
    kafka.after(Millis(500_000));
    let is_cancelled = |change: &&Change| matches!(change, Change::Timer(timer) if timer.state == TimerState::Cancelled);
    let told = kafka.said.iter().map(|(_, change)| change).filter(is_cancelled).count();
    assert_eq!((delivered(&kafka).as_str(), kafka.pending(), told), ("", 0, 1));
}

#[test]
fn a_dead_letter_that_waited_is_not_told_in_the_place_of_what_was_cancelled_before_it() {
    let mut kafka = kafka();
    kafka.append(place_of(By::Further), record("k", &make("v", "", "1h")));
    kafka.take_over(&[]);
    // All of them wait for the index's answer about the first.
    kafka.recalls_late = true;
    kafka.after(Millis(10));
    kafka.submit("k", &make("c", "cancel", ""));
    kafka.submit("k", &[make("b", "", "1s"), vec![("x-delay-partition", "-1")]].concat());
    kafka.after(Millis(100));
    kafka.recalls_late = false;
    kafka.recall();
    kafka.after(Millis(5_000));
    let state = kafka.timer("k", "i").map(|timer| timer.state);
    assert_eq!((delivered(&kafka).as_str(), state), ("", Some(TimerState::Cancelled)));
    assert!(kafka.out.iter().any(|out| out.code == Some(Code::BadPartition)), "{:?}", kafka.out);
}

#[test]
fn a_duplicate_that_was_cancelled_before_it_came_is_not_told_in_the_place_of_what_was_delivered() {
    for (by, taken_over) in
        [By::Stray, By::Further].into_iter().flat_map(|by| [false, true].map(|at| (by, at)))
    {
        let mut kafka = kafka();
        kafka.submit("k", &make("v", "", "1s"));
        kafka.after(Millis(100));
        kafka.stalled.insert(place_of(by));
        kafka.append(place_of(by), record("k", &make("r", "", "1s")));
        kafka.after(Millis(1_500));
        kafka.submit("k", &make("c", "cancel", ""));
        kafka.after(Millis(100));
        if taken_over {
            kafka.take_over(&[]);
        }
        kafka.stalled.clear();
        kafka.after(Millis(5_000));
        let state = kafka.timer("k", "i").map(|timer| timer.state);
        let why = format!("{by:?}, taken over: {taken_over}");
        assert_eq!(
            (delivered(&kafka).as_str(), state),
            ("v", Some(TimerState::Delivered)),
            "{why}"
        );
    }
}

/// What the changelog may say of the timer.
fn timer_of(version: Version, state: TimerState) -> Timer {
    Timer {
        timer_id: TimerId::new(Some(b"k"), b"i"),
        state,
        version,
        supersedes: None,
        due: BEGAN + Millis(1_000),
        since: BEGAN + Millis(1_000),
        target: TARGET.into(),
        label: None,
        id: Box::from(&b"i"[..]),
        key: Some(Box::from(&b"k"[..])),
        key_cut: false,
        code: None,
        task: None,
    }
}

#[test]
fn a_version_that_is_said_to_be_delivered_and_is_read_again_is_no_duplicate_of_itself() {
    // In at_least_once what is said of it may be there, and the delivery itself not.
    let mut kafka = kafka();
    kafka.append(place_of(By::Stray), record("k", &make("r", "", "1s")));
    let offset = Version::not_in_log_order(Offset(0), kafka.setup.topics.mark(TopicId(0)));
    let timer = timer_of(Version { first_appended: BEGAN, offset }, TimerState::Delivered);
    kafka.timers.insert((lane_of("k"), timer.timer_id.0.to_vec()), Change::Timer(timer));
    kafka.after(Millis(5_000));
    assert_eq!((delivered(&kafka).as_str(), kafka.recalled), ("r", 1));
}

#[test]
fn nothing_that_has_ended_is_forgotten_soon_after_a_take_over() {
    let stray = place_of(By::Stray);
    let mut kafka = kafka();
    kafka.stalled.insert(stray);
    kafka.append(stray, record("k", &make("r", "", "1s")));
    kafka.after(Millis(5));
    kafka.submit("k", &make("v", "", "1s"));
    kafka.after(Millis(2_000));
    kafka.stop();
    // Far longer than what ended is kept.
    kafka.after(Millis(3 * 86_400_000));
    kafka.take_over(&[Lane(lane_of("k"))]);
    kafka.tell_unknown();
    kafka.after(Millis(120_000));
    kafka.stalled.clear();
    kafka.after(Millis(7_300_000));
    assert_eq!((delivered(&kafka).as_str(), kafka.pending()), ("v", 0));
    assert_eq!(kafka.timers.len(), 0, "and not for ever: {:?}", kafka.timers);
}

#[test]
fn of_two_that_were_written_in_one_millisecond_at_one_offset_of_two_topics_one_is_delivered() {
    // The first record of each log: one that is moved, two further intakes and a tier of five seconds.
    let lane = lane_of("k");
    let places = [source(0, (lane + 1) % LANES), source(1, lane), source(2, lane), source(4, lane)];
    let pairs = places.into_iter().flat_map(|a| places.map(|b| (a, b))).filter(|(a, b)| a != b);
    for ((one, other), (first, second)) in
        pairs.flat_map(|pair| [("1s", "3s"), ("3s", "1s"), ("1m", "20s")].map(|of| (pair, of)))
    {
        for (held, taken_over) in
            [0, 500, 7_000, 70_000].into_iter().flat_map(|held| [0, 1, 2].map(|at| (held, at)))
        {
            let why = format!(
                "{one:?} after {first}, {other:?} after {second}, held up for {held} ms, taken over: {taken_over}"
            );
            let mut kafka = Kafka::with_intakes(Kafka::limits(), &["", "more", "most"]);
            for (at, n, delay) in [(one, "a", first), (other, "b", second)] {
                kafka.append(at, record("k", &make(n, "", delay)));
            }
            kafka.stalled.insert(other);
            kafka.after(Millis(held));
            if taken_over == 1 {
                kafka.take_over(&[]);
            }
            kafka.stalled.clear();
            kafka.after(Millis(5));
            if taken_over == 2 {
                kafka.take_over(&[]);
            }
            kafka.after(Millis(10_900_000));
            assert_eq!(delivered(&kafka).len(), 1, "{why}: {}", delivered(&kafka));
            assert_eq!((kafka.figures().memory_bytes, kafka.pending()), (0, 0), "{why}");
            assert_eq!(kafka.timers.len(), 0, "{why}");
        }
    }
}

#[test]
fn a_version_of_an_older_program_which_did_not_mark_its_topic_is_the_record_that_it_was_made_of() {
    for (by, state) in [By::Stray, By::Further]
        .into_iter()
        .flat_map(|by| [TimerState::Delay, TimerState::Delivered].map(|state| (by, state)))
    {
        let mut kafka = kafka();
        let version = Version { first_appended: BEGAN, offset: Offset(NOT_IN_LOG_ORDER) };
        let timer = timer_of(version, state);
        kafka.stop();
        kafka.timers.insert((lane_of("k"), timer.timer_id.0.to_vec()), Change::Timer(timer));
        kafka.append(place_of(by), record("k", &make("r", "", "10s")));
        kafka.take_over(&[]);
        kafka.after(Millis(5_000));
        let told = kafka.timer("k", "i").map(|timer| (timer.state, timer.version));
        assert_eq!(told, Some((TimerState::Delay, version)), "{by:?}, {state:?}");
        kafka.after(Millis(10_000));
        assert_eq!((delivered(&kafka).as_str(), kafka.pending()), ("r", 0), "{by:?}, {state:?}");
    }
}

#[test]
fn a_create_behind_a_cancel_that_comes_late_is_no_duplicate() {
    // How long the first waits, and the second; how long the cancel is held up.
    let waits = [("1h", "1h", 5), ("1h", "300ms", 5), ("2s", "3s", 400), ("1h", "2s", 30_000)];
    let longer = [("1h", "1h", 400_000), ("30s", "40s", 25_000), ("1h", "20m", 590_000)];
    for (first, second, held) in waits.into_iter().chain(longer) {
        for (by, taken_over) in
            [By::Stray, By::Further].into_iter().flat_map(|by| [0, 1, 2].map(|at| (by, at)))
        {
            for kept in [By::Stray, By::Further] {
                let why = format!(
                    "{first}, {second}, {held} ms; {by:?}, the other stands at {kept:?}; taken over: {taken_over}"
                );
                let mut kafka = kafka();
                kafka.stalled.insert(place_of(by));
                kafka.submit("k", &make("v", "", first));
                kafka.after(Millis(5));
                kafka.append(place_of(by), record("k", &make("c", "cancel", "")));
                kafka.after(Millis(5));
                let at = if kept == by { source(0, lane_of("k")) } else { place_of(kept) };
                kafka.append(at, record("k", &make("d", "", second)));
                kafka.after(Millis(10));
                // One that is submitted still later is a duplicate of that.
                kafka.submit("k", &make("e", "", second));
                kafka.after(Millis(held));
                if taken_over == 1 {
                    kafka.take_over(&[]);
                }
                kafka.stalled.clear();
                kafka.after(Millis(2));
                if taken_over == 2 {
                    kafka.take_over(&[]);
                }
                let due = kafka.timer("k", "i").filter(|timer| timer.state == TimerState::Delay);
                assert!(due.is_some() || taken_over == 1, "{why}: told as pending at once");
                kafka.after(Millis(10_900_000));
                assert_eq!(delivered(&kafka), "d", "{why}");
                assert_eq!(kafka.answers.len(), 1, "{why}");
                assert_eq!(kafka.answers[0].outcome, Outcome::Cancelled, "{why}");
                nothing_is_left(&kafka, &why);
            }
        }
    }
}

#[test]
fn a_duplicate_stays_one_whatever_becomes_of_the_first_but_for_a_late_cancel() {
    use super::cases::amend;
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Then {
        Nothing,
        Cancelled,
        CancelledByVersion,
        Replaced,
        ReplacedAndCancelled,
        LateCancelFromBefore,
        LateCancelFromBehind,
        CancelledByVersionAndLateCancelFromBefore,
        Expired,
        CrashAfterDelivery,
    }
    use Then::*;
    let cases = [
        (Nothing, "v"),
        (Cancelled, ""),
        (CancelledByVersion, ""),
        (Replaced, "r"),
        (ReplacedAndCancelled, ""),
        (LateCancelFromBefore, "v"),
        (LateCancelFromBehind, ""),
        (CancelledByVersionAndLateCancelFromBefore, ""),
        (Expired, ""),
        (CrashAfterDelivery, "v"),
    ];
    for (then, want) in cases {
        for (by, delay) in [("1s", "1s"), ("1s", "5s"), ("1h", "2s"), ("90s", "2h")]
            .into_iter()
            .flat_map(|delay| [None, Some(By::Stray), Some(By::Further)].map(|by| (by, delay)))
        {
            for taken_over in [false, true] {
                let why = format!("{then:?}, {delay:?}, by {by:?}, taken over: {taken_over}");
                let (first, second) = delay;
                let mut kafka = kafka();
                let late = source(0, (lane_of("k") + 1) % LANES);
                let is_from_before = matches!(
                    then,
                    LateCancelFromBefore | CancelledByVersionAndLateCancelFromBefore
                );
                if is_from_before {
                    kafka.stalled.insert(late);
                    kafka.append(late, record("k", &make("c", "cancel", "")));
                    kafka.after(Millis(5));
                }
                let mut headers = make("v", "", first);
                if then == Expired {
                    headers.push(("x-delay-expires", "100ms"));
                }
                kafka.submit("k", &headers);
                kafka.after(Millis(5));
                let version = kafka.timer("k", "i").expect("it is pending").version;
                let at = by.map_or_else(|| source(0, lane_of("k")), place_of);
                if !is_from_before || at != late {
                    kafka.append(at, record("k", &make("d", "", second)));
                }
                kafka.after(Millis(5));
                match then {
                    Cancelled => drop(kafka.submit("k", &make("c", "cancel", ""))),
                    CancelledByVersion | CancelledByVersionAndLateCancelFromBefore => {
                        let headers = vec![("x-delay-id", "i"), ("x-delay-action", "cancel")];
                        let cancel = amend(&kafka, &headers, version, BEGAN);
                        kafka.append(source(0, lane_of("k")), cancel);
                    }
                    Replaced => drop(kafka.submit("k", &make("r", "replace", "3s"))),
                    ReplacedAndCancelled => {
                        kafka.submit("k", &make("r", "replace", "3s"));
                        kafka.after(Millis(5));
                        kafka.submit("k", &make("c", "cancel", ""));
                    }
                    LateCancelFromBehind => {
                        kafka.stalled.insert(late);
                        kafka.append(late, record("k", &make("c", "cancel", "")));
                    }
                    Nothing | LateCancelFromBefore | Expired | CrashAfterDelivery => {}
                }
                kafka.after(Millis(300));
                if taken_over && is_from_before {
                    // Nobody has the note when the cancel comes: the mark alone tells.
                    kafka.take_over(&[]);
                    kafka.after(Millis(5));
                }
                kafka.stalled.clear();
                kafka.after(Millis(5));
                if taken_over {
                    kafka.take_over(&[]);
                }
                if then == CrashAfterDelivery {
                    kafka.after(Millis(1_100));
                    kafka.take_over(&[]);
                    kafka.after(Millis(1_100));
                    kafka.take_over(&[]);
                }
                kafka.after(Millis(10_900_000));
                assert_eq!(delivered(&kafka), want, "{why}");
                nothing_is_left(&kafka, &why);
            }
        }
    }
}

#[test]
fn a_create_behind_a_cancel_that_comes_too_late_is_no_duplicate_either() {
    for (by, taken_over) in
        [By::Stray, By::Further].into_iter().flat_map(|by| [0, 1, 2].map(|at| (by, at)))
    {
        // The second is due after the cancel comes, or long before.
        for (further, delay) in
            [false, true].into_iter().flat_map(|further| ["5s", "1s", "0"].map(|of| (further, of)))
        {
            let why =
                format!("{by:?}, {delay} by a further intake: {further}, taken over: {taken_over}");
            let mut kafka = kafka();
            kafka.stalled.insert(place_of(by));
            kafka.submit("k", &make("v", "", "1s"));
            kafka.after(Millis(5));
            kafka.append(place_of(by), record("k", &make("c", "cancel", "")));
            kafka.after(Millis(5));
            let intake = u16::from(further && by != By::Further);
            kafka.append(source(intake, lane_of("k")), record("k", &make("d", "", delay)));
            kafka.after(Millis(1_500));
            if taken_over == 1 {
                kafka.take_over(&[]);
            }
            assert_eq!(delivered(&kafka), "v", "{why}");
            kafka.stalled.clear();
            kafka.after(Millis(5));
            if taken_over == 2 {
                kafka.take_over(&[]);
            }
            kafka.after(Millis(10_900_000));
            assert_eq!(delivered(&kafka), "vd", "{why}");
            nothing_is_left(&kafka, &why);
        }
    }
}

#[test]
fn a_create_that_is_kept_is_pending_behind_a_late_cancel_also_when_only_cancels_are_tracked_from_then_on()
 {
    // The cancel is decided before that, or after.
    for (before, cancels) in [(true, true), (false, true), (false, false)] {
        let mut kafka = kafka();
        let stray = place_of(By::Stray);
        kafka.stalled.insert(stray);
        kafka.submit("k", &make("v", "", "10s"));
        kafka.after(Millis(5));
        if cancels {
            kafka.append(stray, record("k", &make("c", "cancel", "")));
        }
        kafka.after(Millis(5));
        kafka.submit("k", &make("d", "", "20s"));
        kafka.after(Millis(200));
        if before {
            kafka.stalled.clear();
            kafka.after(Millis(200));
        }
        Arc::make_mut(&mut kafka.setup).limits.tracking = Tracking::Cancellations;
        kafka.take_over(&[]);
        kafka.stalled.clear();
        kafka.after(Millis(1_000_000));
        let why = format!("cancelled: {cancels}, before: {before}");
        assert_eq!(delivered(&kafka), if cancels { "d" } else { "v" }, "{why}");
        assert_eq!(kafka.pending(), 0, "{why}");
    }
}

#[test]
fn a_late_cancel_makes_nothing_pending_of_what_was_a_duplicate_before_another_version() {
    // A is delivered, or replaced; E comes and goes; then the cancel of A comes, which stood before B.
    for (action, delay) in [("", "1s"), ("replace", "1s"), ("", "1h"), ("replace", "1h")] {
        for taken_over in [false, true] {
            for by in [By::Stray, By::Further] {
                let why = format!("{action:?} {delay}, {by:?}, taken over: {taken_over}");
                let mut kafka = kafka();
                kafka.stalled.insert(place_of(by));
                kafka.submit("k", &make("a", "", "1s"));
                kafka.after(Millis(100));
                kafka.append(place_of(by), record("k", &make("c", "cancel", "")));
                kafka.after(Millis(100));
                kafka.submit("k", &make("b", "", "60s"));
                kafka.after(Millis(1_300));
                kafka.submit("k", &make("e", action, delay));
                kafka.after(Millis(2_500));
                if taken_over {
                    kafka.take_over(&[]);
                }
                kafka.stalled.clear();
                kafka.after(Millis(10_900_000));
                assert_eq!(delivered(&kafka), "ae", "{why}");
                nothing_is_left(&kafka, &why);
            }
        }
    }
}

#[test]
fn a_replace_between_two_creates_parts_nothing() {
    for taken_over in [false, true] {
        let mut kafka = kafka();
        let stray = place_of(By::Stray);
        kafka.stalled.insert(stray);
        kafka.append(stray, record("k", &make("c", "cancel", "")));
        kafka.after(Millis(10));
        kafka.submit("k", &make("a", "", "2s"));
        kafka.after(Millis(10));
        // Appended before D by its leader's clock, and read after it.
        let before = kafka.now;
        kafka.after(Millis(10));
        kafka.append(place_of(By::Further), record("k", &make("d", "", "60s")));
        kafka.after(Millis(10));
        let replace = record("k", &make("r", "replace", "1s"));
        kafka.append_at(source(0, lane_of("k")), before, replace);
        kafka.after(Millis(3_000));
        if taken_over {
            kafka.take_over(&[]);
        }
        kafka.stalled.clear();
        kafka.after(Millis(10_900_000));
        assert_eq!(delivered(&kafka), "r", "taken over: {taken_over}");
        assert_eq!(kafka.pending(), 0, "taken over: {taken_over}");
    }
}

#[test]
fn of_many_duplicates_the_last_are_kept_behind_which_no_cancel_stands() {
    for (repeats, taken_over) in
        [1, 4, 5, 20].into_iter().flat_map(|repeats| [false, true].map(|by| (repeats, by)))
    {
        let why = format!("{repeats} repeats, taken over: {taken_over}");
        let mut kafka = kafka();
        let stray = place_of(By::Stray);
        kafka.stalled.insert(stray);
        for _ in 0..=repeats {
            kafka.submit("k", &make("v", "", "1h"));
            kafka.after(Millis(5));
        }
        kafka.append(stray, record("k", &make("c", "cancel", "")));
        kafka.after(Millis(5));
        kafka.submit("k", &make("d", "", "2h"));
        kafka.after(Millis(3_000));
        if taken_over {
            kafka.take_over(&[]);
        }
        kafka.stalled.clear();
        kafka.after(Millis(10_900_000));
        assert_eq!(delivered(&kafka), "d", "{why}");
        nothing_is_left(&kafka, &why);
    }
}

#[test]
fn of_one_timer_and_in_all_no_more_than_some_duplicates_are_kept() {
    let mut kafka = kafka();
    kafka.submit("k", &make("v", "", "1h"));
    kafka.after(Millis(5));
    for _ in 0..1_000 {
        kafka.submit("k", &make("d", "", "0"));
    }
    let hops = |kafka: &Kafka| -> usize {
        (2..5).map(|topic| kafka.end(source(topic, lane_of("k"))).0 as usize).sum()
    };
    kafka.after(Millis(1_000));
    assert_eq!(kafka.figures().duplicates, 1_000, "each is counted at once");
    kafka.after(Millis(600_000));
    assert!(hops(&kafka) < 8 * 700, "{} hops of 1,000 duplicates", hops(&kafka));
    assert_eq!(delivered(&kafka), "");
    kafka.after(Millis(10_900_000));
    assert_eq!((delivered(&kafka).as_str(), kafka.pending()), ("v", 0));
}

#[test]
fn a_timer_of_a_further_intake_waits_for_a_cancel_in_the_main_one() {
    let (main, more) = (source(0, lane_of("k")), source(1, lane_of("k")));
    let mut kafka = kafka();
    kafka.append(more, record("k", &make("v", "", "4s")));
    kafka.after(Millis(500));
    // A transaction is open there, for example.
    kafka.stalled.insert(main);
    kafka.submit("k", &make("c", "cancel", ""));
    kafka.after(Millis(8_000));
    assert_eq!((delivered(&kafka).as_str(), kafka.pending()), ("", 1));
    kafka.stalled.clear();
    kafka.after(Millis(10));
    assert_eq!(kafka.timer("k", "i").map(|timer| timer.state), Some(TimerState::Cancelled));
    assert_eq!(delivered(&kafka), "");
}
