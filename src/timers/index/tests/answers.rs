//! The answers that readers get.

use super::*;
use crate::engine::timers::{
    Forgettable, LaneTimer, PAGE_BYTES_MAX, TaskFilter, TaskRecord, TaskStatus, Written,
};

fn filters() -> impl Strategy<Value = Filter> {
    let target = prop::option::of((0..4_u8).prop_map(|n| format!("target-{n}")));
    let label = prop::option::of((0..40_u8).prop_map(|n| format!("label-{}", n * 2)));
    let state = prop::option::of(prop::sample::select(&TimerState::ALL[..]));
    let due = || prop::option::of((0..100_u64).prop_map(|n| UnixMillis(n * 1_000_000)));
    (target, label, state, due(), due()).prop_map(
        |(target, label, state, due_after, due_before)| Filter {
            target,
            label,
            state,
            due_after,
            due_before,
        },
    )
}

fn task_filters() -> impl Strategy<Value = TaskFilter> {
    let projects = prop::option::of(prop::collection::btree_set(
        (0..4_u8).prop_map(|n| format!("project-{n}")),
        0..3,
    ));
    let group = prop::option::of((0..10_u8).prop_map(|n| format!("group-{n}")));
    let status = prop::option::of(prop::sample::select(&TaskStatus::ALL[..]));
    let of_type = prop::option::of(prop::sample::select(vec!["http".to_owned(), "kafka".into()]));
    let time = || (0..100_u64).prop_map(|n| UnixMillis(n * 1_000_000));
    (projects, group, status, of_type, prop::option::of(time()), time()).prop_map(
        |(projects, group, status, of_type, due_before, now)| TaskFilter {
            projects,
            group,
            status,
            of_type,
            due_before,
            now,
        },
    )
}

/// A task as a model has it.
fn task_in(model: &Model, timer: &Timer, with_attempts: bool) -> Option<TaskRecord> {
    timer.task?;
    let timer_id = timer.timer_id;
    let attempts = if with_attempts { model.attempts_of(timer_id) } else { Vec::new() };
    let spec = model.definitions.get(&timer_id).cloned();
    let of = LaneTimer { lane: Lane(0), timer: timer.clone() };
    let task = TaskRecord::new(of, spec, attempts).expect("the id of a task");
    let run = model.shards.get(&timer_id).filter(|_| timer.target.starts_with("run:")).cloned();
    Some(TaskRecord { run, ..task })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A listing is what a filter of the whole gives, and its count is its length.
    #[test]
    fn a_listing_gives_what_is_meant(filter in filters(), next in 0..4_000_u64) {
        let room = room();
        let mut index = open(&room);
        fill(&mut index, Lane(0), 0, next);
        index.load(Lane(0), |_| ()).expect("whole");
        let reader = index.reader();
        let mut wanted = model_at(next).timers;
        wanted.retain(|_, timer| filter.matches(timer) && timer.task.is_none());
        let counted = reader.count(Lane(0), &filter, None).expect("told");
        prop_assert_eq!((counted.count, counted.more), (wanted.len() as u64, None));
        prop_assert_eq!(listed(&reader, Lane(0), &filter, false).expect("told"), wanted);
    }

    /// A listing of tasks is what a filter of the whole gives.
    #[test]
    fn a_listing_of_tasks_gives_what_is_meant(filter in task_filters(), next in 0..4_000_u64) {
        let room = room();
        let mut index = open(&room);
        fill(&mut index, Lane(0), 0, next);
        index.load(Lane(0), |_| ()).expect("whole");
        let model = model_at(next);
        let all = model.timers.values().map(|timer| task_in(&model, timer, false));
        let mut wanted: Vec<TaskRecord> =
            all.flatten().filter(|task| filter.matches(task)).collect();
        wanted.sort_by_key(TaskRecord::after);
        let (reader, mut found, mut after) = (index.reader(), Vec::new(), None);
        loop {
            let page = reader.tasks(Lane(0), &filter, after, 100).expect("told");
            prop_assert!(page.tasks.len() <= 100);
            found.extend(page.tasks);
            after = page.more;
            if after.is_none() {
                break;
            }
        }
        prop_assert_eq!(found, wanted);
    }
}

#[test]
fn a_page_of_tasks_ends_with_the_one_that_fills_it() {
    const TASKS: u64 = 100;
    const BYTES: usize = 60 << 10;
    let room = room();
    let mut index = open(&room);
    let Change::Timer(timer) = change(0) else { panic!("a timer") };
    let spec =
        format!(r#"{{"type":"run","project":"shop","group":"g","large":"{}"}}"#, "x".repeat(BYTES));
    let id = |n: u64| format!("task-{n}").into_bytes();
    let name = |n: u64| TimerId::new(None, &id(n));
    let task = |n: u64| Timer {
        timer_id: name(n),
        id: id(n).into(),
        due: UnixMillis(1_000 + n),
        label: Some("shop/g".into()),
        task: Some(Progress::default()),
        ..timer.clone()
    };
    for n in 0..TASKS {
        let changes = [Change::Timer(task(n)), Change::Definition(name(n), spec.as_str().into())];
        index.apply(Lane(0), &changes, Offset(n as i64 + 1), UnixMillis(1)).expect("applied");
    }
    index.load(Lane(0), |_| ()).expect("whole");
    let filter = TaskFilter { of_type: Some("run".to_owned()), ..TaskFilter::default() };
    let reader = index.reader();
    let (mut found, mut after, mut pages) = (Vec::new(), None, Vec::new());
    loop {
        let page = reader.tasks(Lane(0), &filter, after, 1_000).expect("told");
        let before_last = page.tasks.iter().rev().skip(1).map(TaskRecord::bytes).sum::<usize>();
        assert!(before_last < PAGE_BYTES_MAX, "{before_last}");
        pages.push(page.tasks.len());
        found.extend(page.tasks.into_iter().map(|task| task.timer.timer_id));
        after = page.more;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, (0..TASKS).map(name).collect::<Vec<_>>(), "each once, in their order");
    // 61 KiB of each are counted.
    assert_eq!(pages, [34, 34, 32]);
}

#[test]
fn timers_are_found_by_name_and_by_id_while_they_change() {
    let room = room();
    let mut index = open(&room);
    for next in (0..3_000).step_by(250) {
        fill(&mut index, Lane(0), next, next + 250);
        let (reader, model) = (index.reader(), model_at(next + 250));
        assert_eq!(
            reader.position(Lane(0)).expect("told").map(|p| p.next.0),
            Some(next as i64 + 250)
        );
        for n in 0..301 {
            let id = format!("order-{n}").into_bytes();
            let key = format!("customer-{n}").into_bytes();
            let mut found = Vec::new();
            for key in [None, Some(&key[..])] {
                let timer_id = TimerId::new(key, &id);
                let timer = reader.find(Lane(0), timer_id).expect("told");
                assert_eq!(timer.as_ref(), model.timers.get(&timer_id), "order {n} at {next}");
                let task = reader.task(Lane(0), timer_id).expect("told");
                let wanted = timer.as_ref().and_then(|timer| task_in(&model, timer, true));
                assert_eq!(task, wanted, "order {n} at {next}");
                found.extend(timer);
            }
            found.sort_by_key(|timer| timer.timer_id);
            assert_eq!(reader.by_id(Lane(0), &id, 10).expect("told"), found);
        }
    }
}

#[test]
fn what_ended_is_told_oldest_first_until_it_is_forgotten() {
    let room = room();
    let mut index = open(&room);
    fill(&mut index, Lane(0), 0, 2_000);
    let model = model_at(2_000);
    let ended = model.timers.values().filter(|timer| timer.state.is_final());
    let (mut tasks, mut plain): (Vec<&Timer>, Vec<&Timer>) =
        ended.partition(|timer| timer.task.is_some());
    let kept = |of: &Timer| {
        let until = of.task.map_or(0, |task| task.next_at.0);
        UnixMillis(until.max(of.since.0 + 3_600_000))
    };
    plain.sort_by_key(|timer| (timer.since, timer.timer_id));
    tasks.sort_by_key(|timer| (kept(timer), timer.timer_id));
    let what = Forgettable { ended_before: plain[30].since, kept_before: kept(tasks[30]) };
    plain.retain(|timer| timer.since < what.ended_before);
    tasks.retain(|timer| kept(timer) < what.kept_before);
    assert!(plain.len() > 20 && tasks.len() > 20, "{} and {}", plain.len(), tasks.len());
    let gone = |of: &&Timer| Gone { timer_id: of.timer_id, task: Written::of(of) };
    let want: Vec<Gone> = plain.iter().chain(&tasks).map(gone).collect();
    let most = plain.len() + 10;
    let told = index.forgettable(Lane(0), what, most).expect("told");
    assert_eq!(told, want[..most]);
    let forget: Vec<_> = told.into_iter().map(|of| Change::ForgottenTimer(of.timer_id)).collect();
    index.apply(Lane(0), &forget, Offset(2_001), UnixMillis(1)).expect("applied");
    let told = index.forgettable(Lane(0), what, most).expect("told");
    assert_eq!(told, want[most..]);
}

#[test]
fn a_forecast_counts_by_target_from_the_minute_that_is_running() {
    let room = room();
    let mut index = open(&room);
    let Change::Timer(timer) = change(0) else { panic!("a timer") };
    let (minute, hour, day) = (60_000, 3_600_000, 86_400_000);
    let now = 1_000 * day;
    #[rustfmt::skip]
    let dues = [
        // target, due,                 state
        ("a", now - minute,             TimerState::Delay),
        ("a", now,                      TimerState::Delay),
        ("a", now + minute - 1,         TimerState::Delay),
        ("a", now + minute,             TimerState::Delay),
        ("a", now + hour,               TimerState::Delay),
        ("a", now + day,                TimerState::Delay),
        ("a", now + 30 * day - 1,       TimerState::Delay),
        ("a", now + 30 * day,           TimerState::Delay),
        ("a", now + hour,               TimerState::Delivered),
        ("b", now + 2 * hour,           TimerState::Delay),
        ("c", now + hour,               TimerState::Cancelled),
    ];
    let changes: Vec<_> = dues
        .iter()
        .enumerate()
        .map(|(n, (target, due, state))| {
            let (id, due) = (n.to_be_bytes(), UnixMillis(*due));
            let (timer_id, id) = (TimerId::new(None, &id), id.into());
            Change::Timer(Timer {
                timer_id,
                id,
                target: (*target).into(),
                due,
                state: *state,
                task: None,
                ..timer.clone()
            })
        })
        .collect();
    index.apply(Lane(0), &changes, Offset(1), UnixMillis(1)).expect("applied");
    for reopened in [false, true] {
        if reopened {
            index.load(Lane(0), |_| ()).expect("whole");
        }
        let told = index.reader().forecast(Lane(0), UnixMillis(now + 59_999), None).expect("told");
        let [a, b] = &told[..] else { panic!("two targets: {told:?}") };
        assert_eq!((&*a.target, a.total, a.overdue, a.later), ("a", 8, 1, 1));
        assert_eq!((a.minutes[0], a.minutes[1], a.minutes[2..].iter().sum::<u64>()), (2, 1, 0));
        assert_eq!((a.hours[0], a.hours[1], a.hours[2..].iter().sum::<u64>()), (3, 1, 0));
        assert_eq!((a.days[0], a.days[1], a.days[29], a.days.iter().sum::<u64>()), (4, 1, 1, 6));
        assert_eq!((&*b.target, b.total, b.hours[2]), ("b", 1, 1));
        let only = index.reader().forecast(Lane(0), UnixMillis(now), Some("b")).expect("told");
        assert_eq!(only, std::slice::from_ref(b));
        let none = index.reader().forecast(Lane(0), UnixMillis(now), Some("z")).expect("told");
        assert_eq!(none, []);
    }
    let counts = index.reader().counts().expect("told");
    assert_eq!((counts.lanes, counts.live, counts.ended, counts.cancel_marks), (1, 9, 2, 0));
}

#[test]
fn a_task_that_runs_does_not_fall_due() {
    let room = room();
    let mut index = open(&room);
    let Change::Timer(timer) = change(0) else { panic!("a timer") };
    let due = UnixMillis(86_400_000);
    let step = |index: &mut Index, offset, task| {
        let timer =
            Timer { target: "a".into(), due, state: TimerState::Delay, task, ..timer.clone() };
        index.apply(Lane(0), &[Change::Timer(timer)], Offset(offset), due).expect("applied");
    };
    let waits = Progress { next_at: due, ..Progress::default() };
    let runs = Progress { with_executor: true, begun: true, open: true, ..waits };
    let overdue = |index: &Index| -> Vec<u64> {
        let now = UnixMillis(due.0 + 60_000);
        let told = index.reader().forecast(Lane(0), now, None).expect("told");
        told.iter().map(|forecast| forecast.overdue).collect()
    };
    step(&mut index, 1, Some(waits));
    assert_eq!(overdue(&index), [1]);
    step(&mut index, 2, Some(runs));
    assert_eq!(overdue(&index), [0_u64; 0]);
    index.load(Lane(0), |_| ()).expect("whole");
    assert_eq!(overdue(&index), [0_u64; 0]);
    // What looks for records that are lost finds it.
    assert_eq!(index.reader().first_due(Lane(0)).expect("told"), Some(due));
    // It is to be called again.
    step(&mut index, 3, Some(waits));
    assert_eq!(overdue(&index), [1]);
}

#[test]
fn a_reader_says_when_there_is_nothing_to_ask_and_goes_on_with_what_is_new() {
    let room = room();
    let mut index = open(&room);
    let reader = index.reader();
    assert!(matches!(reader.position(Lane(0)), Err(Error::Closed(Lane(0)))));
    fill(&mut index, Lane(0), 0, 100);
    assert_eq!(reader.position(Lane(0)).expect("told").map(|p| p.next), Some(Offset(100)));
    index.release(Lane(0));
    assert!(matches!(reader.position(Lane(0)), Err(Error::Closed(Lane(0)))));
    let mut index = index.renew(&broken()).expect("renewed");
    assert!(matches!(reader.position(Lane(0)), Err(Error::Closed(Lane(0)))));
    fill(&mut index, Lane(0), 0, 50);
    assert_eq!(reader.position(Lane(0)).expect("told").map(|p| p.next), Some(Offset(50)));
    index.close();
    assert!(matches!(reader.position(Lane(0)), Err(Error::Aside)));
    assert!(matches!(reader.counts(), Err(Error::Aside)));
}
