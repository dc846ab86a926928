use super::super::take_over::{Ask, TakeOver, TakeOverError};
use super::*;
use crate::{Lane, TopicId};
use proptest::prelude::*;

const INTAKE: Source = Source { topic: TopicId(0), lane: Lane(1) };
const TIER: Source = Source { topic: TopicId(1), lane: Lane(1) };

fn bounds(first: i64, end: i64) -> LogBounds {
    LogBounds { first: Offset(first), end: Offset(end) }
}

fn ids(of_tier: &str) -> Vec<String> {
    vec!["a".to_owned(), of_tier.to_owned()]
}

/// A tier's partition, taken over with these facts.
fn plan(
    positions: &Positions,
    committed: Option<(i64, &str)>,
    checkpoint: Option<(&str, i64)>,
    log: LogBounds,
    of_tier: &str,
) -> Result<StartAt, PositionGone> {
    let of = |(id, next): (&str, i64)| {
        let next = Offset(next);
        (TIER, Checkpoint { id: id.to_owned(), next, metadata: String::new() })
    };
    let facts = Facts {
        partitions: &[INTAKE, TIER],
        committed: &[
            Some((Offset(0), String::new())),
            committed.map(|(next, marks)| (Offset(next), marks.to_owned())),
        ],
        logs: &[bounds(0, 0), log],
        checkpoints: &checkpoint.map(of).into_iter().collect(),
        ids: &ids(of_tier),
        intakes: 1,
    };
    Ok(positions.plan::<LaneRules>(&facts)?.starts.remove(1))
}

#[test]
fn a_partition_begins_where_it_stood_and_what_is_gone_is_said() {
    use LossCause::{AllDeleted, Outside, Recreated};
    let fresh = Positions::default();
    let seasoned = Positions { ids: ids("b"), ..Positions::default() };
    let refused = Positions { is_refused: true, ..Positions::default() };
    type Want = Option<(i64, bool, bool, Option<(LossCause, u64)>)>;
    type Case<'a> =
        (&'a str, &'a Positions, Option<i64>, Option<(&'a str, i64)>, (i64, i64), &'a str, Want);
    #[rustfmt::skip]
    let table: [Case<'_>; 15] = [
        // why,                            known,     group,    checkpoint,      log,     id,  next, new, gone, lost
        ("the group's",                    &fresh,    Some(5),  None,            (0, 9),  "b", Some((5, false, false, None))),
        ("the group's before a checkpoint", &fresh,   Some(5),  Some(("b", 3)),  (0, 9),  "b", Some((5, false, false, None))),
        ("a checkpoint",                   &fresh,    None,     Some(("b", 3)),  (0, 9),  "b", Some((3, true, false, None))),
        ("one of another topic",           &fresh,    None,     Some(("x", 3)),  (1, 9),  "b", Some((1, true, true, Some((Recreated, 0))))),
        ("a topic that is another now",    &seasoned, Some(5),  None,            (0, 9),  "c", Some((0, true, true, Some((Recreated, 0))))),
        ("the same topic",                 &seasoned, Some(5),  None,            (0, 9),  "b", Some((5, false, false, None))),
        ("nobody's",                       &fresh,    None,     None,            (0, 9),  "b", Some((0, true, false, None))),
        ("nobody's, cut",                  &fresh,    None,     None,            (4, 9),  "b", None),
        ("nobody's, all gone",             &fresh,    None,     None,            (9, 9),  "b", Some((9, true, true, Some((AllDeleted, 9))))),
        ("behind the log's start",         &fresh,    Some(5),  None,            (7, 9),  "b", Some((7, false, true, Some((Outside, 2))))),
        ("a checkpoint behind it",         &fresh,    None,     Some(("b", 5)),  (7, 9),  "b", Some((7, true, true, Some((Outside, 2))))),
        ("beyond the end is believed",     &fresh,    Some(12), None,            (7, 9),  "b", Some((12, false, false, None))),
        ("until it is refused",            &refused,  Some(12), None,            (7, 9),  "b", Some((9, true, true, Some((Outside, 3))))),
        ("a checkpoint beyond it is not",  &fresh,    None,     Some(("b", 12)), (7, 9),  "b", Some((9, true, true, Some((Outside, 3))))),
        ("a new leader's end is older than its start", &refused, Some(12), None, (10, 9), "b", Some((10, true, true, Some((Outside, 2))))),
    ];
    for (why, positions, committed, checkpoint, (first, end), id, want) in table {
        let committed = committed.map(|next| (next, ""));
        let got = plan(positions, committed, checkpoint, bounds(first, end), id).ok();
        let got = got.map(|start| {
            let loss = start.loss.map(|loss| (loss.cause, loss.count));
            (start.next.0, start.is_new, start.gone, loss)
        });
        assert_eq!(got, want, "{why}");
    }
}

#[test]
fn done_is_what_the_group_said_where_its_position_is_inside_of_the_log() {
    let fresh = Positions::default();
    type Case<'a> = (&'a str, Option<i64>, Option<(&'a str, i64)>, (i64, i64), Option<i64>);
    #[rustfmt::skip]
    let table: [Case<'_>; 7] = [
        ("what the group said",          Some(5),  None,           (0, 9), Some(5)),
        ("it is deleted already",        Some(5),  None,           (5, 9), None),
        ("all of it is done",            Some(9),  None,           (0, 9), Some(9)),
        ("beyond the end, nobody knows", Some(12), None,           (0, 9), None),
        ("records are gone",             Some(5),  None,           (7, 9), None),
        ("a checkpoint, until it is committed", None, Some(("b", 3)), (0, 9), None),
        ("nobody knows a position",      None,     None,           (0, 9), None),
    ];
    for (why, committed, checkpoint, (first, end), want) in table {
        let committed = committed.map(|next| (next, ""));
        let start = plan(&fresh, committed, checkpoint, bounds(first, end), "b").expect("a plan");
        let plan = Plan { starts: vec![start], ids: ids("b") };
        let done = plan.done().map(|(source, low)| (source, low.0)).collect::<Vec<_>>();
        assert_eq!(done, Vec::from_iter(want.map(|low| (TIER, low))), "{why}");
    }
}

#[test]
fn marks_that_cannot_be_read_are_left_as_they_are_and_the_lane_rests() {
    let start = plan(&Positions::default(), Some((5, "?")), None, bounds(0, 9), "b");
    let start = start.expect("no person is asked");
    assert_eq!((start.next, &*start.metadata, start.is_readable), (Offset(5), "?", false));
    let start = plan(&Positions::default(), Some((5, "?")), None, bounds(7, 9), "b");
    let start = start.expect("no person is asked");
    assert_eq!((start.next, &*start.metadata, start.is_readable), (Offset(7), "?", false));
    assert_eq!(start.loss.map(|loss| loss.count), Some(2));
}

#[test]
fn a_loss_is_told_once_and_what_is_deleted_later_behind_the_same_position_is_told_too() {
    let mut positions = Positions::default();
    let mut told = Vec::new();
    // The position stays as it is until the lane is counted. Meanwhile the lanes may be taken over again any time.
    for (succeeds, first) in [(false, 7), (true, 7), (true, 7), (true, 9), (true, 9)] {
        let log = bounds(first, 20);
        let starts = vec![plan(&positions, Some((5, "")), None, log, "b").expect("a plan")];
        assert!(starts[0].gone, "whether it is news or not");
        let plan = Plan { starts, ids: ids("b") };
        told.push((plan.lost(), plan.starts[0].loss.is_some()));
        if succeeds {
            positions.taken(&plan);
        }
    }
    assert_eq!(told, [(2, true), (2, true), (0, false), (2, true), (0, false)]);
}

#[test]
fn what_was_deleted_where_no_position_is_known_is_said_and_nothing_is_guessed() {
    #[rustfmt::skip]
    let table = [
        // why,                                                   first, end, new,   want
        ("a topic that was just made",                            0,     0,   false, Unknown::Fresh),
        ("delays were submitted before the first start",          0,     9,   true,  Unknown::Fresh),
        ("the position went, and nothing was ever deleted",       0,     9,   false, Unknown::Fresh),
        ("what is left may be done",                              4,     9,   false, Unknown::Gone),
        ("so it may, should meta and the group be created again",     4,     9,   true,  Unknown::Gone),
        ("a retention took all of a tier",                        9,     9,   false, Unknown::Lost),
        ("or of an intake, perhaps from before it was one",       9,     9,   true,  Unknown::Before),
    ];
    for (why, first, end, is_first_read, want) in table {
        assert_eq!(LaneRules::unknown(bounds(first, end), is_first_read), want, "{why}");
    }
}

#[test]
fn an_intake_was_read_before_if_its_lane_was_and_the_intake_was_there() {
    let at = |topic, lane| Source { topic: TopicId(topic), lane: Lane(lane) };
    // The main intake is 0, a further one 1, a tier 2.
    let (lane_one, but_intake) = ([at(0, 1), at(2, 1)], [at(0, 2), at(2, 1)]);
    type Case<'a> = (&'a str, &'a [Source], Source, bool);
    #[rustfmt::skip]
    let table: [Case<'_>; 4] = [
        ("the first start of all",             &[],         at(0, 1), true),
        ("another lane's first start",         &lane_one,   at(0, 2), true),
        ("an intake that was added later",     &lane_one,   at(1, 1), true),
        ("a checkpoint of it is gone",         &but_intake, at(0, 1), false),
    ];
    for (why, known, of, want) in table {
        assert_eq!(is_first_read(&known.iter().copied().collect(), of), want, "{why}");
    }
}

/// What somebody does to a partition while a member takes it over.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Another member does the next records, commits, and deletes what is done.
    Does(i64),
    /// Somebody deletes records from the log, done or not.
    Deletes(i64),
    /// The member asks its next question.
    Asks,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1..4_i64).prop_map(Act::Does),
        (1..4_i64).prop_map(Act::Deletes),
        Just(Act::Asks),
        Just(Act::Asks),
    ]
}

proptest! {
    /// Whatever happens between its questions, a member says lost what was deleted undone, and nothing else; and says that in
    /// one take-over or a later one.
    #[test]
    fn a_member_that_stands_still_says_nothing_lost_that_is_done(acts in proptest::collection::vec(act(), 0..40)) {
        const END: i64 = 1_000;
        let mut positions = Positions::default();
        let (mut committed, mut first) = (0, 0);
        let (mut gone, mut told): (BTreeSet<i64>, u64) = (BTreeSet::new(), 0);
        let mut take_over: Option<(TakeOver, Ask)> = None;
        for act in acts.into_iter().chain([Act::Asks; 8]) {
            match act {
                Act::Does(count) => {
                    committed = (committed.max(first) + count).min(END);
                    first = first.max(committed);
                }
                Act::Deletes(count) => {
                    let until = (first + count).min(END);
                    gone.extend(first.max(committed)..until.max(committed));
                    first = until;
                }
                Act::Asks => {
                    let (mut over, ask) = take_over.take().unwrap_or_else(|| {
                        (TakeOver::new(vec![INTAKE], 1), Ask::Committed)
                    });
                    let next = match ask {
                        Ask::Committed => {
                            let position = Some((Offset(committed), String::new()));
                            over.committed::<LaneRules>(vec![position], &positions)
                        }
                        Ask::Logs => over.logs::<LaneRules>(vec![bounds(first, END)], vec!["a".into()], &positions),
                        Ask::Checkpoints => over.checkpoints::<LaneRules>(BTreeMap::new(), &positions),
                        Ask::Begin(plan) => {
                            for start in &plan.starts {
                                if let Some(loss) = start.loss {
                                    prop_assert!((loss.from.0..loss.until.0).all(|at| gone.contains(&at)), "{loss:?} of {gone:?}");
                                }
                            }
                            told += plan.lost();
                            positions.taken(&plan);
                            continue;
                        }
                    };
                    match next {
                        Ok(ask) => take_over = Some((over, ask)),
                        Err(error) => prop_assert_eq!(error, TakeOverError::Unsettled),
                    }
                }
            }
        }
        // Another member that goes on from a gap has told of it.
        prop_assert!(told <= gone.len() as u64);
        if committed < first {
            let open = gone.iter().filter(|at| (committed..first).contains(at)).count() as u64;
            prop_assert!(told >= open, "{told} of {open} were told");
        }
    }
}
