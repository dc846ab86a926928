use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::engine::header::Code;
use crate::engine::task::result::{Outcome, TaskResult};
use crate::engine::task::scope::TasksPartition;
use crate::engine::timers::{
    Attempt, CancelMark, Cursor, Filter, HeldBy, Live, Progress, Replaced, RunProgress, TaskCounts,
    TaskStatus, Timer, TimerState, Version, VersionBound,
};

mod answers;
mod damage;

/// What holds in a lane.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    timers: BTreeMap<TimerId, Timer>,
    cancel_marks: BTreeMap<TimerId, CancelMark>,
    attempts: BTreeMap<(TimerId, u8), Attempt>,
    definitions: BTreeMap<TimerId, Box<str>>,
    shards: BTreeMap<TimerId, Box<RunProgress>>,
}

impl Model {
    fn change(&mut self, change: &Change) {
        match change {
            Change::Timer(timer) => drop(self.timers.insert(timer.timer_id, timer.clone())),
            Change::CancelMark(mark) => drop(self.cancel_marks.insert(mark.timer_id, *mark)),
            Change::ForgottenTimer(timer_id) => drop(self.timers.remove(timer_id)),
            Change::ForgottenCancelMark(timer_id) => drop(self.cancel_marks.remove(timer_id)),
            Change::Attempt(attempt) => {
                let at = (attempt.timer_id, attempt.slot());
                self.attempts.insert(at, attempt.clone());
            }
            Change::ForgottenAttempt(timer_id, slot) => {
                self.attempts.remove(&(*timer_id, *slot));
            }
            Change::Definition(timer_id, spec) => {
                self.definitions.insert(*timer_id, spec.clone());
            }
            Change::ForgottenDefinition(timer_id) => drop(self.definitions.remove(timer_id)),
            Change::Shards(timer_id, run) => drop(self.shards.insert(*timer_id, run.clone())),
            Change::ForgottenShards(timer_id) => drop(self.shards.remove(timer_id)),
        }
    }

    /// The attempts of a task, the oldest first.
    fn attempts_of(&self, timer_id: TimerId) -> Vec<Attempt> {
        let all = self.attempts.range((timer_id, 0)..=(timer_id, u8::MAX));
        let mut attempts: Vec<Attempt> = all.map(|(_, attempt)| attempt.clone()).collect();
        attempts.sort_by_key(|attempt| attempt.number);
        attempts
    }

    fn live(&self) -> BTreeMap<TimerId, Live> {
        self.timers.values().filter_map(|timer| Some((timer.timer_id, timer.live()?))).collect()
    }
}

fn me() -> Identity {
    Identity { cluster_id: "lkc-1".to_owned(), namespace: "waterclock".to_owned(), version: 1 }
}

fn room() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(room: &TempDir) -> Index {
    open_as(room, &me())
}

fn open_as(room: &TempDir, identity: &Identity) -> Index {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match Index::open(&room.path().join("index"), identity) {
            // A child that another test is just starting holds a copy of the lock until it runs.
            Err(Error::InUse(_)) if Instant::now() < until => std::thread::yield_now(),
            opened => return opened.expect("opens"),
        }
    }
}

/// All of a lane as a take-over reads it, and as readers then list it.
fn loaded(index: &mut Index, lane: Lane) -> Result<(Option<Position>, Model), Error> {
    let (mut live, mut model) = (BTreeMap::new(), Model::default());
    let position = index.load(lane, |held| match held {
        Held::Live(timer) => drop(live.insert(timer.timer_id, timer)),
        Held::CancelMark(mark) => drop(model.cancel_marks.insert(mark.timer_id, mark)),
        Held::Shards(timer_id, run) => drop(model.shards.insert(timer_id, run)),
        Held::FollowUp(..) | Held::Cursor(..) => {}
    })?;
    model.timers = listed(&index.reader(), lane, &Filter::default(), true)?;
    assert_eq!(model.live(), live, "what the engine is told is what is listed");
    check_counts(index, lane, &model)?;
    let mut entries = Model::default();
    index.entries(lane, |change| entries.change(&change))?;
    assert_eq!(
        (&entries.timers, &entries.cancel_marks, &entries.shards),
        (&model.timers, &model.cancel_marks, &model.shards),
        "what is verified is what is listed"
    );
    Ok((position, entries))
}

/// Tasks are counted as they are listed.
fn check_counts(index: &Index, lane: Lane, model: &Model) -> Result<(), Error> {
    let projects: BTreeSet<String> = (0..4).map(|n| format!("project-{n}")).collect();
    for now in [0, 40_000_000, u64::MAX].map(UnixMillis) {
        let found = index.reader().task_counts(lane, &projects, now)?;
        assert_eq!(found, counted(model, now), "at {now:?}");
    }
    Ok(())
}

/// The tasks of a model by project and status, one after the other.
fn counted(model: &Model, now: UnixMillis) -> BTreeMap<String, TaskCounts> {
    let mut all: BTreeMap<String, TaskCounts> = BTreeMap::new();
    // What falls due in this minute is not overdue before it is over.
    let minute = UnixMillis((now.0 / 60_000 * 60_000).saturating_sub(1));
    for timer in model.timers.values() {
        let (Some(task), Some(label)) = (&timer.task, &timer.label) else { continue };
        let status = TaskStatus::of(timer, minute);
        let is_held = task.held.is_some() || task.breaker;
        let of = all.entry(label[.."project-0".len()].to_owned()).or_default();
        *of.of(status) += 1;
        of.overdue += u64::from(status == TaskStatus::Ready && !is_held);
    }
    all
}

/// All timers that a filter means, page by page.
fn listed(
    reader: &Reader,
    lane: Lane,
    filter: &Filter,
    with_tasks: bool,
) -> Result<BTreeMap<TimerId, Timer>, Error> {
    let (mut timers, mut after) = (BTreeMap::new(), None);
    loop {
        let page = match with_tasks {
            true => reader.page_with_tasks(lane, filter, after, 100)?,
            false => reader.page(lane, filter, after, 100)?,
        };
        for timer in page.timers {
            assert!(after.is_none_or(|after| after < (timer.due, timer.timer_id)), "in order");
            after = Some((timer.due, timer.timer_id));
            timers.insert(timer.timer_id, timer);
        }
        match page.more {
            Some(more) => after = Some(more),
            None => return Ok(timers),
        }
    }
}

/// What stands at offset `n` of a changelog that these tests know by heart: some timers come again, some go.
fn change(n: u64) -> Change {
    let id = format!("order-{}", n % 301);
    let key = (!n.is_multiple_of(3)).then(|| format!("customer-{}", n % 301));
    let timer_id = TimerId::new(key.as_ref().map(String::as_bytes), id.as_bytes());
    let place = |n| Version { first_appended: UnixMillis(1_000_000 + n), offset: Offset(n as i64) };
    match n % 15 {
        3 => Change::ForgottenTimer(timer_id),
        5 => Change::ForgottenCancelMark(timer_id),
        7 | 8 => {
            let (seen, may_repeat) = (n.is_multiple_of(2), n.is_multiple_of(3));
            Change::CancelMark(CancelMark {
                timer_id,
                before: VersionBound::of(place(n)),
                until: UnixMillis(n),
                seen,
                may_repeat,
                cancels: n.is_multiple_of(5),
            })
        }
        9 | 11 => Change::Attempt(attempt(timer_id, n)),
        12 => {
            let (project, group) = (n % 3, n % 7);
            let of_type = if n.is_multiple_of(2) { "http" } else { "kafka" };
            let spec = format!(
                r#"{{"type":"{of_type}","project":"project-{project}","group":"group-{group}"}}"#
            );
            Change::Definition(timer_id, spec.into())
        }
        13 if n.is_multiple_of(4) => Change::ForgottenShards(timer_id),
        13 => Change::ForgottenAttempt(timer_id, (n % 32) as u8),
        14 if n.is_multiple_of(2) => {
            let run = RunProgress::new((n % 19) as u32 + 1, UnixMillis(n), n.is_multiple_of(4));
            Change::Shards(timer_id, Box::new(run))
        }
        14 => Change::ForgottenDefinition(timer_id),
        kind => {
            let state = TimerState::ALL[(n % 6) as usize];
            let task = (n / 15).is_multiple_of(2).then(|| progress(n));
            let label = match task {
                Some(_) => format!("project-{}/group-{}", n % 3, n % 6_000),
                None => format!("label-{}", n % 6_000),
            };
            Change::Timer(Timer {
                timer_id,
                state,
                version: place(n),
                supersedes: n
                    .is_multiple_of(4)
                    .then(|| Replaced { first: place(n / 3), last: place(n / 2) }),
                due: UnixMillis(1_000_000 + n * 7_919 % 100_000_000),
                since: UnixMillis(1_000_000 + n),
                target: match task {
                    Some(_) if n.is_multiple_of(8) => "run:http".into(),
                    _ => format!("target-{}", n % 3).into(),
                },
                label: n.is_multiple_of(2).then(|| label.into()),
                id: id.into_bytes().into(),
                key: key.map(|key| key.into_bytes().into()),
                key_cut: kind == 4 && !n.is_multiple_of(3),
                code: (state == TimerState::Dead).then_some(Code::TooLarge),
                task,
            })
        }
    }
}

fn progress(n: u64) -> Progress {
    let small = n as u32;
    let held = HeldBy { partition: TasksPartition((n % 7) as u16), credits: (n % 512) as u16 };
    Progress {
        turn: small % 40,
        attempts: small % 33,
        failures: small % 5,
        rounds: small,
        interruptions: (n % 6) as u16,
        // Every second one has a label, and some of those wait in their lane.
        held: (!(n / 2).is_multiple_of(3)).then_some(held),
        begun: n.is_multiple_of(3),
        open: n.is_multiple_of(4),
        cancelling: n.is_multiple_of(7),
        breaker: n.is_multiple_of(5),
        with_executor: n.is_multiple_of(7),
        next_at: UnixMillis(1_000_000 + n * 104_729 % 100_000_000),
    }
}

fn attempt(timer_id: TimerId, n: u64) -> Attempt {
    let result = TaskResult {
        status: Some(500 + (n % 9) as u16),
        error: n.is_multiple_of(2).then(|| format!("error {n}")),
        ..TaskResult::new(Outcome::Failed)
    };
    let number = (n / 301 % 70) as u32;
    Attempt { timer_id, turn: number + 1, number, result }
}

fn model_at(next: u64) -> Model {
    let mut model = Model::default();
    (0..next).for_each(|n| model.change(&change(n)));
    model
}

fn fill(index: &mut Index, lane: Lane, from: u64, to: u64) {
    filled(index, lane, from, to).expect("applied");
}

fn filled(index: &mut Index, lane: Lane, from: u64, to: u64) -> Result<(), Error> {
    for begin in (from..to).step_by(BATCH_MAX) {
        let end = to.min(begin + BATCH_MAX as u64);
        let changes: Vec<Change> = (begin..end).map(change).collect();
        index.apply(lane, &changes, Offset(end as i64), UnixMillis(end))?;
    }
    Ok(())
}

/// The stores in a room's index, by name.
fn stores(room: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(room.path().join("index")).expect("there");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "lock");
    names.sort();
    names
}

#[derive(Clone, Debug)]
enum Step {
    Apply(u16, Vec<u16>),
    Clear(u16),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let changes = prop::collection::vec(any::<u16>(), 0..80);
    let step = prop_oneof![
        8 => (0..3_u16, changes).prop_map(|(lane, changes)| Step::Apply(lane, changes)),
        1 => (0..3_u16).prop_map(Step::Clear),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// After any sequence of applying, clearing and reopening, the index loads what a map would hold, with the last
    /// position.
    #[test]
    fn an_index_holds_what_was_applied(steps in steps()) {
        let room = room();
        let mut index = open(&room);
        let mut models: BTreeMap<u16, (i64, Model)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Apply(lane, changes) => {
                    let (next, model) = models.entry(lane).or_default();
                    *next += changes.len() as i64 + 1;
                    let changes: Vec<Change> = changes.into_iter().map(|n| change(n.into())).collect();
                    index.apply(Lane(lane), &changes, Offset(*next), UnixMillis(7)).expect("applied");
                    changes.iter().for_each(|change| model.change(change));
                    check_counts(&index, Lane(lane), model).expect("told");
                }
                Step::Clear(lane) => {
                    index.clear(Lane(lane)).expect("cleared");
                    models.remove(&lane);
                }
                Step::Reopen => {
                    index.close();
                    index = open(&room);
                }
            }
            for lane in 0..3 {
                let (position, found) = loaded(&mut index, Lane(lane)).expect("whole");
                let (next, model) = models.get(&lane).cloned().unwrap_or_default();
                prop_assert_eq!(position.map_or(0, |p| p.next.0), next);
                prop_assert_eq!(found, model);
            }
        }
        prop_assert_eq!(stores(&room), ["1"]);
    }

    #[test]
    fn a_position_is_read_as_it_was_written_or_not_at_all(
        next in any::<i64>(), at in any::<u64>(), entries in any::<u64>(), digest in any::<u64>(), bit in 0..320_usize,
    ) {
        let position = Position { next: Offset(next), at: UnixMillis(at), entries, digest };
        let mut bytes = position.bytes();
        prop_assert_eq!(Position::read(&bytes), Some(position));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Position::read(&bytes), None);
        prop_assert_eq!(Position::read(&bytes[1..]), None);
    }
}

#[test]
fn a_directory_is_for_its_owner_only() {
    let room = room();
    let directory = room.path().join("index");
    fs::create_dir(&directory).expect("made");
    drop(open(&room));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(&directory).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn an_index_has_one_owner() {
    let room = room();
    let first = open(&room);
    let second = Index::open(&room.path().join("index"), &me());
    assert!(matches!(second, Err(Error::InUse(_))), "{second:?}");
    first.close();
    open(&room).close();
    assert_eq!(stores(&room), ["1"], "nothing was thrown away over it");
}

#[test]
fn another_identity_is_never_read() {
    let others = [
        ("another cluster", Identity { cluster_id: "lkc-2".to_owned(), ..me() }),
        ("another namespace", Identity { namespace: "waterclock2".to_owned(), ..me() }),
        ("another form of entries", Identity { version: 2, ..me() }),
    ];
    for (why, other) in others {
        let room = room();
        let mut index = open(&room);
        fill(&mut index, Lane(0), 0, 100);
        index.close();
        let mut index = open_as(&room, &other);
        assert_eq!(index.position(Lane(0)).expect("readable"), None, "{why}");
        assert_eq!(stores(&room), ["1", "2"], "{why}");
    }
}

#[test]
fn what_is_not_an_index_is_for_a_person_to_mend() {
    let room = room();
    fs::write(room.path().join("index"), "a file").expect("written");
    let refused = Index::open(&room.path().join("index"), &me());
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}

#[test]
fn what_the_system_says_decides_who_is_to_act() {
    use std::io::ErrorKind::{
        FileTooLarge, Other, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
        UnexpectedEof,
    };
    #[rustfmt::skip]
    let cases = [
        // why                              kind                want
        ("a person gives the right",        PermissionDenied,   "refused"),
        ("a person mounts it again",        ReadOnlyFilesystem, "refused"),
        ("the changelog is enough",         StorageFull,        "disk"),
        ("as full as full",                 QuotaExceeded,      "disk"),
        ("as full as full",                 FileTooLarge,       "disk"),
        ("a file was cut",                  UnexpectedEof,      "broken"),
        ("sled's word for its own mistakes", Other,             "broken"),
    ];
    for (why, kind, want) in cases {
        let trouble = StoreError::Sled(sled::Error::Io(kind.into()));
        let found = match trouble.into_error("read", Path::new("index")) {
            Error::Refused { .. } => "refused",
            Error::Disk { .. } => "disk",
            Error::Broken { .. } => "broken",
            Error::InUse(_) => "in use",
            Error::Aside | Error::Closed(_) => "not now",
        };
        assert_eq!(found, want, "{why}: {kind:?}");
    }
}

#[test]
fn only_the_newest_stores_that_were_set_aside_are_kept() {
    let room = room();
    let mut index = open(&room);
    for _ in 0..4 {
        let why = broken();
        index = index.renew(&why).expect("renewed");
    }
    assert_eq!(stores(&room), ["3", "4", "5"]);
    fill(&mut index, Lane(0), 0, 10);
    index.close();
    let (position, model) = loaded(&mut open(&room), Lane(0)).expect("whole");
    assert_eq!((position.map(|p| p.next), model), (Some(Offset(10)), model_at(10)));
}

#[test]
fn whom_an_awaited_task_tells_of_its_end_is_loaded_with_the_lane() {
    let room = room();
    let mut index = open(&room);
    index.load(Lane(0), |_| ()).expect("whole");
    let told = r#"{"type":"kafka","project":"p","group":"g","topic":"t","feedback":{"deadline":"1h"},"on_result":{"topic":"done"}}"#;
    let silent = told.replace(r#","on_result":{"topic":"done"}"#, "");
    let definition = |n: u8, spec: &str| Change::Definition(TimerId([n; 16]), spec.into());
    let changes = [definition(1, told), definition(2, &silent)];
    index.apply(Lane(0), &changes, Offset(2), UnixMillis(7)).expect("applied");
    index.close();
    let mut found = Vec::new();
    let collect = |held| {
        if let Held::FollowUp(timer_id, _) = held {
            found.push(timer_id);
        }
    };
    open(&room).load(Lane(0), collect).expect("whole");
    assert_eq!(found, [TimerId([1; 16])]);
}

#[test]
fn how_far_executors_came_is_loaded_with_the_lane() {
    let room = room();
    let mut index = open(&room);
    index.load(Lane(0), |_| ()).expect("whole");
    let attempt = |number: u32, cursor: Option<&str>| {
        let result =
            TaskResult { cursor: cursor.map(str::to_owned), ..TaskResult::new(Outcome::Failed) };
        Change::Attempt(Attempt { timer_id: TimerId([1; 16]), turn: number, number, result })
    };
    let changes = [attempt(1, Some("row:1")), attempt(2, Some("row:2")), attempt(3, None)];
    index.apply(Lane(0), &changes, Offset(3), UnixMillis(7)).expect("applied");
    index.close();
    let mut found = Vec::new();
    let collect = |held| {
        if let Held::Cursor(_, Cursor { number, text: Some(text), open: None }) = held {
            found.push((number, text.to_string()));
        }
    };
    open(&room).load(Lane(0), collect).expect("whole");
    assert_eq!(found, [(1, "row:1".to_owned()), (2, "row:2".to_owned())]);
}

/// What breaks an index, as far as these tests are concerned.
fn broken() -> Error {
    let trouble = StoreError::Damaged("a test".to_owned());
    trouble.into_error("read", Path::new("index"))
}

/// A timer that takes some room, with a name of its own.
fn long(n: u64) -> Change {
    match change(0) {
        Change::Timer(timer) => {
            let id = format!("{n:0200}").into_bytes();
            let timer_id = TimerId::new(None, &id);
            Change::Timer(Timer { timer_id, id: id.into(), key: None, ..timer })
        }
        other => other,
    }
}
