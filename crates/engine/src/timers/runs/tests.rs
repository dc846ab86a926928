use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Change, Progress, TimerId, Version, value};
use super::*;

const EVERY: [ShardNews; 4] =
    [ShardNews::Begun, ShardNews::Again, ShardNews::Finished, ShardNews::Failed];
const UNTIL: UnixMillis = UnixMillis(1_800_000_000_000);

fn with_shards(created: u32, shards: u32) -> RunProgress {
    let mut run = RunProgress::new(shards, UNTIL, false);
    run.create_to(created);
    run
}

fn hear(run: &mut RunProgress, index: u32, (turn, news): (u32, ShardNews)) -> bool {
    run.hear(ShardReport { index, turn, news })
}

#[test]
fn a_run_goes_from_its_first_shard_to_its_last_end() {
    let mut run = RunProgress::new(5, UNTIL, true);
    assert_eq!((run.shards(), run.created(), run.until(), run.stops()), (5, 0, UNTIL, true));
    assert_eq!((run.grid().as_str(), run.counts()), (".....", ShardCounts::default()));
    assert!(!run.is_over(), "there is none yet");
    run.create_to(3);
    assert_eq!(run.grid(), "ooo..");
    for (index, news, grid) in [
        (0, ShardNews::Begun, ">oo.."),
        (1, ShardNews::Finished, ">#o.."),
        (0, ShardNews::Again, "r#o.."),
        (0, ShardNews::Begun, "r#o.."),
        (2, ShardNews::Failed, "r#x.."),
        (0, ShardNews::Finished, "##x.."),
    ] {
        hear(&mut run, index, (1, news));
        assert_eq!(run.grid(), grid, "{news:?} of {index}");
    }
    assert!(!run.is_over() && run.unfinished().eq([2]), "two are to be created");
    run.create_to(9);
    assert_eq!((run.created(), run.grid().as_str()), (5, "##xoo"), "there are no more than five");
    assert_eq!(run.unfinished().collect::<Vec<_>>(), [2, 3, 4]);
    assert!(hear(&mut run, 3, (1, ShardNews::Finished)) && !run.is_over());
    assert!(hear(&mut run, 4, (1, ShardNews::Finished)) && run.is_over());
    let want = ShardCounts { created: 5, begun: 4, again: 0, finished: 4, failed: 1 };
    assert_eq!(run.counts(), want);
}

#[test]
fn the_end_of_a_run_is_read_from_what_says_so_and_from_nothing_else() {
    let of = |target, state, task: Option<Progress>, more: &[u8]| {
        let fields = TimerFields {
            state,
            version: Version::default(),
            supersedes: None,
            due: UNTIL,
            since: UNTIL,
            target,
            label: Some(b"shop/g"),
            id: b"9f2c",
            key: None,
            code: None,
            task,
        };
        let key = [&[1; 16][..], more].concat();
        let change = Record::new(Some(&key), Some(&value(&fields)), std::iter::empty());
        RunStatus::end_in(&change)
    };
    let some = Some(Progress::default());
    #[rustfmt::skip]
    let cases = [
        (TimerState::Delivered, Some(RunStatus::Finished)),
        (TimerState::Dead,      Some(RunStatus::Failed)),
        (TimerState::Lost,      Some(RunStatus::Failed)),
        (TimerState::Expired,   Some(RunStatus::Expired)),
        (TimerState::Cancelled, Some(RunStatus::Cancelled)),
        (TimerState::Delay,     None),
    ];
    for (state, want) in cases {
        assert_eq!(of("run:kafka", state, some, &[]), want, "{state:?}");
        assert_eq!(of("schedule:run", state, some, &[]), None, "{state:?}");
        assert_eq!(of("settlement", state, some, &[]), None, "{state:?}");
        assert_eq!(of("run:kafka", state, None, &[]), None, "a timer: {state:?}");
        assert_eq!(of("run:kafka", state, some, &[2]), None, "an attempt: {state:?}");
    }
    assert_eq!(RunStatus::end_in(&Record::new(Some(&[1; 16]), None, std::iter::empty())), None);
}

#[test]
fn a_shard_that_had_not_ended_counts_as_failed_once_its_run_has() {
    let mut run = with_shards(4, 5);
    run.hear(ShardReport { index: 0, turn: 1, news: ShardNews::Finished });
    run.hear(ShardReport { index: 1, turn: 1, news: ShardNews::Failed });
    run.hear(ShardReport { index: 2, turn: 1, news: ShardNews::Again });
    let counts = ShardCounts { created: 4, begun: 1, again: 1, finished: 1, failed: 1 };
    assert_eq!(run.counts(), counts);
    assert_eq!(run.counts_at_end(), ShardCounts { again: 0, failed: 3, ..counts });
}

#[test]
fn what_is_heard_twice_changes_nothing_and_the_first_end_counts() {
    for news in EVERY {
        let mut run = with_shards(2, 2);
        assert!(hear(&mut run, 1, (1, news)), "{news:?}");
        let once = run.clone();
        assert!(!hear(&mut run, 1, (1, news)), "{news:?}");
        assert_eq!(run, once);
    }
    let mut run = with_shards(2, 2);
    hear(&mut run, 0, (1, ShardNews::Finished));
    assert!(!hear(&mut run, 0, (1, ShardNews::Failed)), "it has ended");
    assert_eq!(run.state(0), ShardState::Finished);
    // By hand it may be made good.
    hear(&mut run, 1, (1, ShardNews::Failed));
    assert_eq!((run.counts().failed, run.is_over()), (1, true));
    assert!(hear(&mut run, 1, (1, ShardNews::Finished)));
    assert_eq!((run.counts().finished, run.counts().failed, run.is_over()), (2, 0, true));
}

#[test]
fn a_shard_that_has_failed_goes_on_with_a_later_turn_only_and_news_of_before_change_nothing() {
    use ShardNews::{Again, Begun, Failed, Finished};
    let mut run = with_shards(1, 1);
    let before = [(1, Begun), (2, Again), (2, Failed)];
    for news in before {
        assert!(hear(&mut run, 0, news), "{news:?}");
    }
    let hear_all = |run: &mut RunProgress, all: &[(u32, ShardNews)]| {
        let (grid, was) = (run.grid(), run.clone());
        for news in all {
            assert!(!hear(run, 0, *news), "{news:?} of {grid}");
        }
        let read = RunProgress::read(&run.value()).expect("as it was written");
        assert_eq!((&*run, &read), (&was, &was));
        *run = read;
        grid
    };
    assert_eq!(hear_all(&mut run, &before), "x");
    assert!(hear(&mut run, 0, (3, Again)), "it was retried by hand");
    assert_eq!(hear_all(&mut run, &before), "r");
    assert!(hear(&mut run, 0, (3, Failed)));
    assert_eq!(hear_all(&mut run, &[(3, Again), (3, Failed), (1, Failed), (3, Begun)]), "x");
    // It was retried and refused before it was handed out.
    assert!(hear(&mut run, 0, (4, Failed)));
    assert_eq!(hear_all(&mut run, &[(4, Again), (4, Begun), (3, Again)]), "x");
    // What was late counts, and is the end.
    assert!(hear(&mut run, 0, (2, Finished)));
    assert_eq!(hear_all(&mut run, &[(2, Finished), (1, Begun), (4, Failed), (9, Failed)]), "#");
}

#[test]
fn what_was_written_before_turns_were_is_read() {
    let mut run = with_shards(3, 5);
    hear(&mut run, 0, (1, ShardNews::Begun));
    let mut value = run.value();
    value[0] = 1;
    assert_eq!(RunProgress::read(&value), Ok(run));
}

#[test]
fn news_of_a_shard_that_is_not_there_change_nothing() {
    let mut run = with_shards(3, 5);
    let before = run.clone();
    for index in [3, 4, 5, 6, u32::MAX] {
        assert!(!hear(&mut run, index, (1, ShardNews::Failed)), "{index}");
        assert_eq!(run.state(index), ShardState::ToCreate, "{index}");
    }
    assert_eq!(run, before);
}

#[test]
fn the_status_of_a_run_is_that_of_its_timer_once_that_has_ended_and_before_that_of_its_shards() {
    use ShardNews::{Again, Begun, Failed, Finished};
    let of = |created, news: &[(u32, ShardNews)]| {
        let mut run = with_shards(created, 3);
        news.iter().for_each(|(index, news)| assert!(hear(&mut run, *index, (1, *news))));
        RunStatus::of(TimerState::Delay, Some(&run))
    };
    assert_eq!(RunStatus::of(TimerState::Delay, None), RunStatus::Waiting);
    type Case = (u32, &'static [(u32, ShardNews)], RunStatus);
    const ALL_BEGUN: [(u32, ShardNews); 3] = [(0, Begun), (1, Begun), (2, Finished)];
    let cases: &[Case] = &[
        (0, &[], RunStatus::Waiting),
        (1, &[], RunStatus::Triggered),
        (3, &[], RunStatus::Triggered),
        (1, &[(0, Begun)], RunStatus::Executing),
        (3, &[(0, Finished)], RunStatus::Executing),
        (3, &ALL_BEGUN, RunStatus::Locked),
        (3, &[(0, Begun), (0, Again)], RunStatus::ReExecuting),
        (3, &[(0, Again)], RunStatus::ReExecuting),
        (3, &[(0, Begun), (0, Again), (0, Finished)], RunStatus::Executing),
        (3, &[(0, Again), (0, Failed)], RunStatus::Triggered),
    ];
    for (created, news, want) in cases {
        assert_eq!(of(*created, news), *want, "{created} {news:?}");
    }
    let run = with_shards(3, 3);
    for (state, want) in [
        (TimerState::Delivered, RunStatus::Finished),
        (TimerState::Dead, RunStatus::Failed),
        (TimerState::Lost, RunStatus::Failed),
        (TimerState::Expired, RunStatus::Expired),
        (TimerState::Cancelled, RunStatus::Cancelled),
    ] {
        assert_eq!(RunStatus::of(state, Some(&run)), want);
        assert_eq!(RunStatus::of(state, None), want);
    }
    for status in RunStatus::ALL {
        let json = serde_json::to_value(status).expect("a word");
        assert_eq!(json, status.as_str());
    }
}

#[test]
fn what_nobody_wrote_is_refused() {
    let bytes = with_shards(3, 5).value();
    assert_eq!(bytes.len(), 18 + 3);
    assert_eq!(RunProgress::read(&bytes), Ok(with_shards(3, 5)));
    for len in 0..bytes.len() {
        let read = RunProgress::read(&bytes[..len]);
        assert!(matches!(read, Err(DecodeError::Size { bytes }) if bytes == len), "{len}");
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        RunProgress::read(&bytes)
    };
    assert!(matches!(with(0, 3), Err(DecodeError::Version { version: 3 })));
    assert!(matches!(with(0, 0), Err(DecodeError::Version { version: 0 })));
    assert!(with(17, 2).is_err(), "it stops, or not");
    assert!(with(8, 6).is_err(), "more are created than there are");
    assert!(with(3, 1).is_err(), "too many shards");
    assert!(with(18 + 1, 1).is_ok(), "the third shard was begun");
    assert!(with(18 + 1, 0x10).is_err(), "the fourth one is not there yet");
    assert!(with(18 + 2, 0x10).is_err(), "there is no sixth one");
    let mut longer = bytes;
    longer.push(0);
    assert!(RunProgress::read(&longer).is_err());
}

#[test]
fn how_far_a_run_is_stands_beside_its_timer() {
    let timer_id = TimerId([7; 16]);
    let change = Change::Shards(timer_id, Box::new(with_shards(3, 5)));
    let (key, value) = change.encode();
    assert_eq!((key.len(), key[16], change.timer_id()), (17, 4, timer_id));
    assert_eq!(Change::decode(Some(&key), value.as_deref()), Ok(change));
    let forgotten = Change::ForgottenShards(timer_id);
    assert_eq!(forgotten.encode(), (key.clone(), None));
    assert_eq!(Change::decode(Some(&key), None), Ok(forgotten));
    assert!(Change::decode(Some(&key), Some(b"")).is_err());
}

fn any_news() -> impl Strategy<Value = ShardNews> {
    proptest::sample::select(&EVERY[..])
}

proptest! {
    /// Whatever is heard, in whichever order: what is counted is what a list of all that was heard says.
    #[test]
    fn counts_and_grid_are_those_of_the_shards(
        shards in 1u32..60,
        stops in any::<bool>(),
        steps in proptest::collection::vec((0u32..64, (0u32..4, any_news()), 0u32..10), 0..200),
    ) {
        let mut run = RunProgress::new(shards, UNTIL, stops);
        let (mut created, mut heard) = (0, BTreeMap::<u32, (bool, bool, Option<bool>)>::new());
        let mut failed = BTreeMap::<u32, u32>::new();
        for (index, (turn, news), more) in steps {
            if more == 0 {
                created = (created + 7).min(shards);
                run.create_to(created);
            }
            let is_new = hear(&mut run, index, (turn, news));
            prop_assert!(index < created || !is_new);
            let is_over = failed.get(&index).is_some_and(|failed| turn <= *failed);
            if index < created && (!is_over || news == ShardNews::Finished) {
                let (begun, again, end) = heard.entry(index).or_default();
                // One that has failed and was retried by hand is open again.
                if matches!(news, ShardNews::Begun | ShardNews::Again) {
                    *end = end.filter(|is_finished| *is_finished);
                }
                match news {
                    ShardNews::Begun => *begun = true,
                    ShardNews::Again => *again = true,
                    ShardNews::Finished => (*begun, *end) = (true, Some(true)),
                    ShardNews::Failed => *end = end.or(Some(false)),
                }
                match (news, *end) {
                    (ShardNews::Failed, Some(false)) => drop(failed.insert(index, turn)),
                    (_, Some(true)) => drop(failed.remove(&index)),
                    _ => {}
                }
            }
            let count = |of: fn(&(bool, bool, Option<bool>)) -> bool| {
                heard.values().filter(|shard| of(shard)).count() as u32
            };
            let want = ShardCounts {
                created,
                begun: count(|(begun, ..)| *begun),
                again: count(|(_, again, end)| *again && end.is_none()),
                finished: count(|(.., end)| *end == Some(true)),
                failed: count(|(.., end)| *end == Some(false)),
            };
            prop_assert_eq!(run.counts(), want);
            prop_assert_eq!(run.is_over(), want.finished + want.failed == shards);
            prop_assert_eq!(run.unfinished().count() as u32, created - want.finished);
            let grid = run.grid();
            let of = |sign: char| grid.chars().filter(|of| *of == sign).count() as u32;
            prop_assert_eq!(grid.chars().count() as u32, shards);
            prop_assert_eq!((of('.'), of('#')), (shards - created, want.finished));
            prop_assert_eq!((of('x'), of('r')), (want.failed, want.again));
            prop_assert_eq!(RunProgress::read(&run.value()), Ok(run.clone()));
        }
    }

    #[test]
    fn made_up_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(run) = RunProgress::read(&bytes) {
            prop_assert!(bytes[0] == 1 || run.value() == bytes);
            let _ = (run.counts(), run.grid(), run.is_over());
            let (mut run, shards) = (run.clone(), run.shards());
            run.create_to(shards);
            for (index, news) in (0..shards.min(64)).flat_map(|index| EVERY.map(|news| (index, news))) {
                hear(&mut run, index, (1, news));
            }
        }
    }
}
