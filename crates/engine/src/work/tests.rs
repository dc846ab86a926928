//! One engine, step by step. [`world`] has many of them in a group that loses members.

use super::*;
use crate::task::bucket::Rate;
use crate::task::registry::{Change, Project, Service, read_request};
use crate::task::result::Outcome;

mod world;

const MIB: usize = 1 << 20;
const LIMITS: WorkLimits =
    WorkLimits { calls: 8, bytes: 8 * MIB, fresh: Millis(4_000), commit_within: Millis(1_000) };
const P: Lane = Lane(0);

/// So many calls at one time for service `s` of project `p`, and what is said besides.
fn registry(calls: u32, rate: Option<(Rate, u32)>, paused: &str) -> Arc<Registry> {
    let mut registry = Registry::default();
    for project in ["a", "b", "p", "q", "slow", "fast"] {
        let is_paused = paused == project;
        let of = Project { paused: is_paused, concurrency: 100, ..Project::NEVER_PUT };
        registry.apply(Change::of_project(project, of)).expect("room");
        for service in ["f", "s", "t", "x", "y", "z"] {
            let json = r#"{"address":"http://a"}"#;
            let read = read_request(&format!("service/{project}/{service}"), json.as_bytes());
            registry.apply(read.expect("sound")).expect("room");
            let service_now = registry.service(project, service).expect("put").clone();
            let (rate, burst) = rate.map_or((None, 1), |(rate, burst)| (Some(rate), burst));
            let of = Service {
                concurrency: calls,
                rate,
                burst,
                paused: paused == service,
                ..service_now
            };
            registry.apply(Change::of_service(project, service, Some(of))).expect("room");
        }
    }
    Arc::new(registry)
}

fn turn(n: u8) -> Turn {
    Turn { name: TimerId([n; 16]), version: Version::default(), turn: 1 }
}

fn task_of(n: u8, (project, service): (&str, &str), bytes: usize) -> Arc<Task> {
    let value = vec![b'v'; bytes];
    let headers: [(&[u8], Option<&[u8]>); 0] = [];
    Arc::new(Task {
        turn: turn(n),
        lane: Lane(u16::from(n) % 3),
        scope: Scope { project: project.into(), callee: Callee::Service(service.into()) },
        sealed: Dispatch::default(),
        traced: None,
        record: Record::new(None, Some(&value), headers.into_iter()),
    })
}

fn id() -> TaskId {
    TaskId::parse("a1").expect("an id")
}

fn cancel(offset: Offset, turn: Turn) -> WorkEvent {
    WorkEvent::Cancel { partition: P, offset, turn, id: id() }
}

fn task(n: u8) -> Arc<Task> {
    task_of(n, ("p", "s"), 10)
}

fn ended() -> Box<CallEnd> {
    Box::new(CallEnd { result: TaskResult::new(Outcome::Finished), is_away: false })
}

/// What a batch says: of which task, and what.
type Told = Vec<(u8, String)>;

/// An engine, and its shell: what it asked for, and the time.
struct Bench {
    engine: WorkEngine,
    now: u64,
    out: Vec<WorkAction>,
}

impl Bench {
    fn new(registry: Arc<Registry>) -> Self {
        Self { engine: WorkEngine::new(LIMITS, 1, registry), now: 10_000, out: Vec::new() }
    }

    /// With a partition of which the log ended at `end`, and a position.
    fn assigned(position: Option<(i64, &str)>, end: i64) -> Self {
        let mut bench = Self::new(registry(4, None, ""));
        bench.assign(position, end);
        bench
    }

    fn assign(&mut self, position: Option<(i64, &str)>, end: i64) {
        let position = position
            .map(|(next, letter)| Position { next: Offset(next), metadata: letter.to_owned() });
        let (start, end) = (Offset(0), Offset(end));
        self.step(WorkEvent::Assigned(vec![Taken { partition: P, position, start, end }]));
    }

    /// Its partition is marked, and it is fresh.
    fn ready_under(registry: Arc<Registry>) -> Self {
        let mut bench = Self::new(registry);
        bench.assign(None, 0);
        assert_eq!(bench.commit(), (vec![], "d0".to_owned()));
        bench.fresh();
        bench.after(5);
        bench
    }

    fn ready() -> Self {
        Self::ready_under(registry(4, None, ""))
    }

    fn now(&self) -> Now {
        Now { monotonic: Millis(self.now), broker: UnixMillis(1_000_000 + self.now) }
    }

    fn step(&mut self, event: WorkEvent) {
        let more = self.engine.step(self.now(), event);
        self.out.extend(more);
    }

    fn fresh(&mut self) {
        self.step(WorkEvent::Fresh { since: Millis(self.now) });
    }

    fn read(&mut self, offset: i64, task: Arc<Task>) {
        self.step(WorkEvent::Task { partition: P, offset: Offset(offset), task });
        self.step(WorkEvent::Tick);
    }

    fn after(&mut self, ms: u64) {
        self.now += ms;
        self.step(WorkEvent::Tick);
    }

    /// Calls that were begun since it was last asked.
    fn calls(&mut self) -> Vec<u8> {
        let mut calls = Vec::new();
        self.out.retain(|action| match action {
            WorkAction::Call(_, task) => {
                calls.push(task.turn.name.0[0]);
                false
            }
            _ => true,
        });
        calls
    }

    /// The batch that is on its way: what it says, and its position.
    fn batch(&mut self) -> Option<(BatchId, Told, String)> {
        let at = self.out.iter().position(|action| matches!(action, WorkAction::Commit(_)))?;
        let WorkAction::Commit(batch) = self.out.remove(at) else { return None };
        let entries = batch.entries.iter().map(|entry| match entry {
            Entry::Result(task, said, _) => (task.turn.name.0[0], words(said)),
            Entry::Absent { turn, .. } => (turn.name.0[0], "absent".to_owned()),
            Entry::Dead { .. } => (0, "dead".to_owned()),
        });
        let position = batch.positions.first().map_or_else(String::new, |(_, position)| {
            let letter = position.metadata.chars().next().expect("a letter");
            format!("{letter}{}", position.next.0)
        });
        Some((batch.id, entries.collect(), position))
    }

    /// Commits what is on its way; gives what it said.
    fn commit(&mut self) -> (Told, String) {
        let (id, entries, position) = self.batch().expect("a batch is on its way");
        self.step(WorkEvent::Committed(id));
        (entries, position)
    }

    /// Commits as long as there is something; gives all that was said.
    fn commit_all(&mut self) -> Told {
        let mut said = Vec::new();
        while let Some((id, entries, _)) = self.batch() {
            said.extend(entries);
            self.step(WorkEvent::Committed(id));
            self.after(5);
        }
        said
    }

    fn end(&mut self, call: u64) {
        self.step(WorkEvent::Ended { call: CallId(call), end: ended() });
    }

    fn has_cut(&self, call: u64) -> bool {
        self.out.iter().any(|action| matches!(action, WorkAction::Cut(of) if of.0 == call))
    }

    fn is_let_go(&self) -> bool {
        self.out.iter().any(|action| matches!(action, WorkAction::LetGo))
    }
}

fn words(said: &Said) -> String {
    match said {
        Said::Started(_) => "started".to_owned(),
        Said::Deferred { until, breaker: true } => format!("breaker {}", until.0 - 1_000_000),
        Said::Deferred { until, breaker: false } => format!("deferred {}", until.0 - 1_000_000),
        Said::Interrupted { in_doubt: true } => "in doubt".to_owned(),
        Said::Interrupted { in_doubt: false } => "cut".to_owned(),
        Said::Cancelled => "cancelled".to_owned(),
        Said::Ended(_) => "ended".to_owned(),
    }
}

fn said(entries: &[(u8, &str)]) -> Told {
    entries.iter().map(|(n, what)| (*n, (*what).to_owned())).collect()
}

#[test]
fn what_has_expired_does_not_begin_and_goes_back() {
    let mut bench = Bench::ready_under(registry(1, None, ""));
    let expiring = |n, at: u64| {
        let task = task(n);
        let expires = Some(UnixMillis(1_000_000 + at));
        Arc::new(Task { sealed: Dispatch { expires, ..task.sealed }, ..(*task).clone() })
    };
    let now = bench.now;
    bench.read(0, expiring(1, now));
    assert_eq!(bench.calls(), [1], "it expires after this millisecond");
    bench.read(1, expiring(2, now + 500));
    bench.read(2, task(3));
    bench.after(501);
    bench.fresh();
    let told = format!("deferred {}", now + 500);
    assert_eq!(
        bench.commit_all(),
        said(&[(1, "started"), (2, &told)]),
        "though it had no turn yet"
    );
    assert!(bench.calls().is_empty());
}

#[test]
fn no_call_begins_before_a_position_says_so_and_only_while_it_is_fresh() {
    let mut bench = Bench::assigned(None, 0);
    bench.read(0, task(1));
    bench.fresh();
    assert!(bench.calls().is_empty(), "the position is not committed");
    assert_eq!(bench.commit(), (vec![], "d0".to_owned()));
    assert_eq!(bench.calls(), [1]);

    let mut bench = Bench::assigned(None, 0);
    bench.read(0, task(1));
    bench.commit();
    assert!(bench.calls().is_empty(), "nothing says that it has its partitions");
    bench.step(WorkEvent::Fresh { since: Millis(bench.now - 4_000) });
    assert!(bench.calls().is_empty(), "that was too long ago");
    bench.step(WorkEvent::Fresh { since: Millis(bench.now - 3_999) });
    assert_eq!(bench.calls(), [1]);
}

#[test]
fn a_position_that_was_not_committed_lets_no_call_begin() {
    let mut bench = Bench::assigned(None, 0);
    bench.fresh();
    bench.read(0, task(1));
    let (id, ..) = bench.batch().expect("a batch");
    bench.step(WorkEvent::Failed(id));
    bench.after(5);
    assert!(bench.calls().is_empty());
    assert_eq!(bench.commit(), (vec![], "d0".to_owned()));
    assert_eq!(bench.calls(), [1]);
}

#[test]
fn what_an_owner_before_may_have_begun_is_in_doubt_and_not_called() {
    let mut bench = Bench::assigned(Some((3, "d")), 5);
    bench.fresh();
    bench.commit();
    bench.read(3, task(3));
    bench.read(4, task(4));
    bench.read(5, task(5));
    assert_eq!(bench.calls(), [5], "it came after the take-over");
    bench.after(5);
    assert_eq!(bench.commit(), (said(&[(3, "in doubt"), (4, "in doubt")]), "d5".to_owned()));
}

#[test]
fn where_nothing_had_begun_all_is_called() {
    let mut bench = Bench::assigned(Some((3, "c")), 5);
    bench.fresh();
    bench.commit();
    bench.read(3, task(3));
    bench.read(4, task(4));
    assert_eq!(bench.calls(), [3, 4]);
}

#[test]
fn a_damaged_position_puts_all_in_doubt_and_is_told() {
    let mut bench = Bench::assigned(Some((3, "c!!")), 5);
    assert!(matches!(bench.out[0], WorkAction::Damaged(P, _)));
    bench.fresh();
    bench.commit();
    bench.read(3, task(3));
    assert!(bench.calls().is_empty());
}

#[test]
fn a_call_that_ends_is_committed_with_its_offset_and_goes_again_if_that_failed() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    bench.read(1, task(2));
    assert_eq!(bench.calls(), [1, 2]);
    bench.end(1);
    let (id, entries, position) = bench.batch().expect("a batch");
    assert_eq!((entries, &*position), (said(&[(2, "ended")]), "d0"));
    bench.step(WorkEvent::Failed(id));
    bench.end(0);
    bench.after(5);
    let want = said(&[(2, "ended"), (1, "ended")]);
    assert_eq!(bench.commit(), (want, "d2".to_owned()));
    assert_eq!(bench.engine.waiting.bytes(), 0);
}

#[test]
fn a_call_that_is_open_for_long_is_told_as_begun_once() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    bench.read(1, task(2));
    bench.now += 200;
    bench.end(1);
    let (id, entries, _) = bench.batch().expect("a batch");
    assert_eq!(entries, said(&[(1, "started"), (2, "ended")]));
    bench.step(WorkEvent::Failed(id));
    bench.after(5);
    assert_eq!(bench.commit().0, said(&[(1, "started"), (2, "ended")]), "it goes again, too");
    bench.after(300);
    bench.read(2, task(3));
    bench.end(2);
    assert_eq!(bench.commit().0, said(&[(3, "ended")]));
}

#[test]
fn a_long_call_is_told_as_begun_though_no_other_batch_goes() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    bench.after(199);
    assert!(bench.batch().is_none(), "it may end soon");
    bench.after(1);
    let (id, entries, position) = bench.batch().expect("a batch");
    assert_eq!((entries, &*position), (said(&[(1, "started")]), "d0"));
    bench.step(WorkEvent::Failed(id));
    bench.after(5);
    assert_eq!(bench.commit().0, said(&[(1, "started")]), "it goes again");
    bench.after(10_000);
    assert!(bench.batch().is_none(), "once");
}

#[test]
fn a_cancel_takes_what_has_not_begun_and_leaves_what_has() {
    let mut bench = Bench::ready();
    for n in 0..5 {
        bench.read(i64::from(n), task_of(n, (["p", "q", "r"][usize::from(n) % 3], "s"), 10));
    }
    assert_eq!(bench.calls(), [0, 1, 2, 3, 4]);
    bench.read(5, task_of(5, ("p", "s"), 10));
    assert!(bench.calls().is_empty(), "a quarter of the calls are open");
    for (offset, of) in [(6, 5), (7, 0), (8, 9)] {
        let (offset, turn) = (Offset(offset), turn(of));
        bench.step(cancel(offset, turn));
    }
    bench.after(5);
    // Nothing of 9 stands here.
    assert_eq!(bench.commit(), (said(&[(5, "cancelled"), (9, "absent")]), "d0".to_owned()));
    bench.end(0);
    bench.after(5);
    assert_eq!(bench.commit(), (said(&[(0, "ended")]), "d1".to_owned()));
    assert!(bench.calls().is_empty());
}

#[test]
fn a_cancel_that_comes_while_partitions_go_is_left_to_the_next_owner_with_its_task() {
    let mut bench = Bench::ready();
    bench.now += 10_000;
    bench.read(0, task(1));
    assert!(bench.calls().is_empty(), "it is not fresh");
    bench.step(WorkEvent::Ending(Millis(5_000)));
    bench.step(cancel(Offset(1), turn(1)));
    bench.after(5);
    let (entries, position) = bench.commit();
    assert_eq!((entries, &*position), (vec![], "c0"));
    assert!(bench.engine.parts[&P].is_pending(Offset(1)), "it was not done away with");
    assert!(bench.is_let_go());
}

#[test]
fn a_cancel_says_that_its_turn_is_absent_only_if_nothing_else_is_said_of_it() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    assert_eq!(bench.calls(), [1]);
    bench.step(cancel(Offset(1), turn(1)));
    bench.after(5);
    assert_eq!(bench.commit().0, said(&[]), "its call is open");
    bench.end(0);
    bench.step(cancel(Offset(2), turn(1)));
    bench.after(5);
    let (id, entries, _) = bench.batch().expect("a batch");
    assert_eq!(entries, said(&[(1, "ended")]));
    bench.step(cancel(Offset(3), turn(1)));
    bench.step(WorkEvent::Failed(id));
    bench.step(cancel(Offset(4), turn(1)));
    bench.after(5);
    assert_eq!(bench.commit_all(), said(&[(1, "ended")]), "what was not committed goes again");
    bench.step(cancel(Offset(5), turn(1)));
    bench.after(5);
    assert_eq!(bench.commit_all(), said(&[]), "it was read here lately");
    // It was read long ago. Its lane has heard what came of it before it hears this.
    let mut late = task_of(2, ("p", "s"), 10);
    let at = UnixMillis(1_000_000);
    let sealed = Dispatch { dispatched: at, appended: at, ..Dispatch::default() };
    Arc::get_mut(&mut late).expect("ours").sealed = sealed;
    bench.read(6, late);
    bench.end(1);
    bench.after(5);
    assert_eq!(bench.commit_all(), said(&[(2, "ended")]));
    bench.step(cancel(Offset(7), turn(1)));
    bench.after(5);
    assert_eq!(bench.commit_all(), said(&[(1, "absent")]));
}

#[test]
fn a_turn_is_not_absent_before_what_is_said_of_it_is_committed() {
    for stage in ["open", "done", "on its way", "refused"] {
        let mut bench = Bench::ready();
        bench.read(0, task(1));
        if stage == "done" {
            // Another batch is on its way.
            bench.read(1, task_of(2, ("q", "s"), 10));
            bench.end(1);
        }
        if stage != "open" {
            bench.end(0);
        }
        if stage == "refused" {
            let (batch, ..) = bench.batch().expect("a batch");
            let (named, blame, why) = (vec![0], crate::Blame::Record, "no".into());
            bench.step(WorkEvent::Refused(Refused { batch, named, blame, why }));
            bench.step(WorkEvent::Failed(batch));
        }
        // It is forgotten what was read.
        bench.engine.parts.get_mut(&P).expect("its own").recent = recent::Recent::default();
        bench.step(cancel(Offset(2), turn(1)));
        bench.after(5);
        let mut told = bench.commit_all();
        if stage == "open" {
            bench.end(0);
            bench.after(5);
            told.extend(bench.commit_all());
        }
        assert!(told.contains(&(1, "ended".to_owned())), "{stage}: {told:?}");
        assert!(told.iter().all(|(_, what)| what == "ended"), "{stage}: {told:?}");
    }
}

#[test]
fn a_cancel_of_another_turn_takes_nothing() {
    let mut bench = Bench::ready();
    bench.now += 10_000;
    bench.read(0, task(1));
    let later = Turn { turn: 2, ..turn(1) };
    bench.step(cancel(Offset(1), later));
    bench.after(5);
    bench.fresh();
    assert_eq!(bench.calls(), [1]);
}

#[test]
fn partitions_are_let_go_once_all_is_committed_and_say_that_nothing_has_begun() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    bench.read(1, task(2));
    bench.step(WorkEvent::Ending(Millis(5_000)));
    bench.read(2, task(3));
    assert_eq!(bench.calls(), [1, 2], "nothing begins any more");
    bench.end(1);
    assert_eq!(bench.commit(), (said(&[(2, "ended")]), "d0".to_owned()), "one is open");
    bench.after(3_999);
    assert!(!bench.is_let_go() && !bench.has_cut(0));
    bench.after(1);
    assert!(bench.has_cut(0));
    let (id, entries, position) = bench.batch().expect("a batch");
    assert_eq!((entries, &*position), (said(&[(1, "cut")]), "c2"));
    assert!(!bench.is_let_go(), "it is not committed");
    bench.step(WorkEvent::Committed(id));
    assert!(bench.is_let_go());
    assert_eq!(bench.engine.waiting.bytes(), 0);
}

#[test]
fn who_leaves_before_anything_was_read_says_again_that_nothing_has_begun() {
    // Two tasks below the position are not done. The owner before has begun none.
    let mut bench = Bench::assigned(Some((14, "cAQIBhg")), 14);
    assert_eq!(bench.commit().1, "d14");
    bench.fresh();
    bench.step(WorkEvent::Ending(Millis(5_000)));
    bench.after(5);
    assert_eq!(bench.commit().1, "c14");
    assert!(bench.is_let_go());
    // Where that one may have begun some, it cannot be said before they were read.
    let mut bench = Bench::assigned(Some((14, "dAQIBhg")), 14);
    bench.commit();
    bench.step(WorkEvent::Ending(Millis(5_000)));
    bench.after(5);
    assert!(bench.batch().is_none());
    assert!(bench.is_let_go());
}

#[test]
fn a_position_that_says_nothing_has_begun_goes_again_until_it_is_committed() {
    let mut bench = Bench::ready();
    bench.step(WorkEvent::Ending(Millis(5_000)));
    let (id, _, position) = bench.batch().expect("a batch");
    assert_eq!(position, "c0");
    bench.step(WorkEvent::Failed(id));
    bench.after(5);
    assert!(!bench.is_let_go());
    assert_eq!(bench.commit().1, "c0");
    assert!(bench.is_let_go());
}

#[test]
fn a_position_says_that_nothing_has_begun_only_with_the_last_of_several_batches() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    for offset in 1..=1_500 {
        let (offset, turn) = (Offset(offset), turn(9));
        bench.step(cancel(offset, turn));
    }
    bench.end(0);
    bench.step(WorkEvent::Ending(Millis(5_000)));
    let mut positions = Vec::new();
    while let Some((id, _, position)) = bench.batch() {
        positions.push(position);
        bench.step(WorkEvent::Committed(id));
        bench.after(5);
    }
    assert_eq!(positions, ["d0", "c1501"]);
    assert!(bench.is_let_go());
}

#[test]
fn what_is_in_doubt_and_not_read_keeps_the_position_from_saying_that_nothing_has_begun() {
    let mut bench = Bench::assigned(Some((3, "d")), 5);
    bench.commit();
    bench.read(3, task(3));
    bench.step(WorkEvent::Ending(Millis(5_000)));
    bench.after(5);
    assert_eq!(bench.commit(), (said(&[(3, "in doubt")]), "d4".to_owned()));
    assert!(bench.is_let_go());

    let mut bench = Bench::assigned(Some((3, "d")), 5);
    bench.commit();
    bench.read(3, task(3));
    bench.step(WorkEvent::Ending(Millis(5_000)));
    bench.read(4, task(4));
    bench.after(5);
    assert_eq!(bench.commit().1, "c5", "all of it was read and reported");
}

#[test]
fn a_worker_without_partitions_lets_them_go_at_once() {
    let mut bench = Bench::new(registry(4, None, ""));
    bench.step(WorkEvent::Ending(Millis(5_000)));
    assert!(bench.is_let_go());
}

#[test]
fn no_call_outlives_its_assignment() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    bench.step(WorkEvent::Gone);
    assert!(bench.has_cut(0));
    assert_eq!((bench.engine.waiting.bytes(), bench.engine.figures().open), (0, 0));
    bench.calls();
    bench.assign(Some((0, "d")), 1);
    bench.fresh();
    bench.commit();
    bench.read(0, task(1));
    bench.end(0);
    bench.after(5);
    assert_eq!(bench.commit().0, said(&[(1, "in doubt")]), "what the call says comes too late");
    assert!(bench.calls().is_empty());
}

#[test]
fn a_batch_of_an_assignment_before_frees_its_memory_and_marks_nothing() {
    let mut bench = Bench::ready();
    bench.read(0, task(1));
    bench.end(0);
    bench.after(5);
    let (id, ..) = bench.batch().expect("a batch");
    bench.step(WorkEvent::Gone);
    bench.assign(Some((0, "c")), 1);
    bench.fresh();
    bench.calls();
    bench.read(0, task(1));
    assert!(bench.batch().is_none(), "one is on its way");
    bench.step(WorkEvent::Committed(id));
    assert!(bench.calls().is_empty());
    bench.after(5);
    bench.commit();
    assert_eq!(bench.calls(), [1]);
}

#[test]
fn projects_take_turns_and_so_do_the_services_of_one() {
    let mut bench = Bench::new(registry(1, None, ""));
    bench.assign(None, 0);
    bench.commit();
    let scopes = [("a", "x"), ("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), ("b", "x")];
    for (n, scope) in (0..).zip(scopes) {
        bench.read(i64::from(n), task_of(n, scope, 10));
    }
    bench.fresh();
    assert_eq!(bench.calls(), [0, 4, 3], "one of each, by turns");
    bench.end(0);
    bench.end(1);
    assert_eq!(bench.calls(), [1, 5]);
}

#[test]
fn a_scope_takes_a_quarter_of_the_calls_and_a_project_half() {
    let mut bench = Bench::new(registry(100, None, ""));
    bench.assign(None, 0);
    bench.commit();
    let scopes = ["x", "x", "x", "y", "y", "z"].map(|service| ("a", service));
    for (n, scope) in (0..).zip(scopes.into_iter().chain([("b", "x")])) {
        bench.read(i64::from(n), task_of(n, scope, 10));
    }
    bench.fresh();
    let mut calls = bench.calls();
    calls.sort_unstable();
    assert_eq!(calls.len(), 5, "four of project a, one of b: {calls:?}");
    assert!(!calls.contains(&2), "two of a scope");
}

#[test]
fn what_is_paused_or_not_served_here_goes_back_at_once() {
    let deleted = Registry::default();
    let of = Project { is_deleted: true, ..Project::NEVER_PUT };
    let mut deleted = deleted;
    deleted.apply(Change::of_project("p", of)).expect("room");
    let cases = [registry(4, None, "s"), registry(4, None, "p"), Arc::new(deleted)];
    for registry in cases {
        let mut bench = Bench::ready();
        bench.step(WorkEvent::Registry(registry));
        bench.read(0, task(1));
        // Not at once: its lane may not have heard of it yet, and would send it here again.
        let later = bench.now + PUT_OFF.0;
        assert_eq!(bench.commit().0, said(&[(1, &format!("deferred {later}"))]));
    }
    // One call at a time is served by one partition of two.
    let served = [0, 1].map(|partition| {
        let shares = Shares { registry: registry(1, None, ""), lanes: 2 };
        shares.of(Lane(partition), "p", &Callee::Service("s".into())).is_some()
    });
    assert_ne!(served[0], served[1]);
}

#[test]
fn an_open_breaker_sends_tasks_back_until_it_lets_a_probe_through() {
    let mut bench = Bench::ready();
    for n in 0..10 {
        bench.read(i64::from(n), task(n));
        let end = CallEnd { result: TaskResult::new(Outcome::Finished), is_away: true };
        bench.step(WorkEvent::Ended { call: CallId(n.into()), end: Box::new(end) });
        bench.after(5);
        bench.commit_all();
    }
    bench.calls();
    let until = bench.now + 990;
    bench.read(10, task(10));
    bench.after(5);
    assert_eq!(bench.commit_all(), said(&[(10, &format!("breaker {until}"))]));
    assert!(bench.calls().is_empty());
    bench.now = until;
    bench.fresh();
    bench.read(11, task(11));
    bench.read(12, task(12));
    assert_eq!(bench.calls(), [11], "one probe, though all others had gone");
}

#[test]
fn a_rate_gives_its_tokens_one_by_one_and_none_at_once_after_a_rebalance() {
    let rate = Rate::per_1000_s(5_000).expect("more than none");
    let mut bench = Bench::ready_under(registry(4, Some((rate, 1)), ""));
    bench.read(0, task(1));
    bench.read(1, task(2));
    assert!(bench.calls().is_empty());
    let wake = bench.engine.next_tick().expect("it waits for a token");
    assert_eq!(wake.0 - bench.now, 200);
    bench.after(200);
    assert_eq!(bench.calls(), [1]);
    bench.after(200);
    assert_eq!(bench.calls(), [2]);
}

#[test]
fn a_scope_that_fills_its_part_of_the_memory_goes_back_and_the_others_are_called() {
    let mut bench = Bench::ready_under(registry(1, None, ""));
    for n in 0..6 {
        bench.read(i64::from(n), task_of(n, ("slow", "s"), MIB));
    }
    bench.read(6, task_of(6, ("fast", "f"), 10));
    assert_eq!(bench.calls(), [0, 6]);
    bench.after(5);
    let deferred: Vec<u8> = bench.commit_all().into_iter().map(|(n, _)| n).collect();
    assert_eq!(deferred, [3, 4, 5], "the last ones go");
    assert!(bench.engine.waiting.bytes() < 4 * MIB);
}

#[test]
fn reading_stops_where_nothing_can_go_back_and_goes_on_when_there_is_room() {
    let mut bench = Bench::ready();
    for (n, project) in (0..).zip(["a", "b", "c", "d", "e", "f", "g"]) {
        bench.read(i64::from(n), task_of(n, (project, "s"), MIB));
    }
    assert!(bench.out.iter().any(|action| matches!(action, WorkAction::Pause(P))));
    assert_eq!(bench.calls().len(), 7);
    for call in 0..7 {
        bench.end(call);
    }
    bench.after(5);
    assert_eq!(bench.commit_all().len(), 7);
    assert!(bench.out.iter().any(|action| matches!(action, WorkAction::Resume(P))));
}

#[test]
fn what_nobody_of_waterclock_wrote_becomes_a_dead_letter() {
    let mut bench = Bench::ready();
    let refusal = Refusal::new(Code::BadState, "x-delay-state is missing");
    let record = Box::new(Record::empty());
    let appended = UnixMillis(7);
    bench.step(WorkEvent::Foreign { partition: P, offset: Offset(0), appended, record, refusal });
    bench.after(5);
    let letter = bench.out.iter().find_map(|action| match action {
        WorkAction::Commit(batch) => batch.entries.first(),
        _ => None,
    });
    assert!(matches!(letter, Some(Entry::Dead { appended: UnixMillis(7), .. })), "{letter:?}");
    assert_eq!(bench.commit(), (said(&[(0, "dead")]), "d1".to_owned()));
}

#[test]
fn a_window_that_is_full_keeps_what_comes_and_takes_it_in_later() {
    let mut bench = Bench::ready_under(registry(1, None, ""));
    // Two in each block, far apart: no bitmap is shorter than their distances, and none has room for all.
    let offsets: Vec<i64> = (0..6_000).flat_map(|block| [block * 512, block * 512 + 300]).collect();
    let first = bench.engine.parts[&P].fill_permille();
    for offset in &offsets {
        bench.step(cancel(Offset(*offset), turn(9)));
    }
    assert!(first < FULL && !bench.engine.parts[&P].backlog.is_empty());
    bench.after(5);
    assert!(bench.out.iter().any(|action| matches!(action, WorkAction::Pause(P))));
    for _ in 0..100 {
        bench.commit_all();
        bench.after(5);
    }
    let part = &bench.engine.parts[&P];
    assert!(part.backlog.is_empty());
    assert!(bench.out.iter().any(|action| matches!(action, WorkAction::Resume(P))));
}
