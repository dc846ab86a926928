//! Two instances in one process, with timers in memory, behind the real listener.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::ready;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::{Front, Hosts, Report, Rooms, Status, serve};
use super::model::*;
use super::*;
use crate::engine::task::id::TaskId;
use crate::engine::timers::{TaskStatus, Timer, TimerId, Version, group_of};
use crate::engine::{Lane, Offset, Record, UnixMillis};
use crate::patient::{eventually, patient};

mod tasks;

/// How soon an answer must be there that waits for nothing.
const SOON: Duration = Duration::from_secs(5);

/// What Kafka is to real instances: all timers, and who has which lane.
#[derive(Default)]
struct World {
    timers: Vec<LaneTimer>,
    /// By lane: which instance has it; `None`: it moves.
    owners: Vec<Option<usize>>,
    addresses: Vec<String>,
    /// Answers that are still to be given, by ticket.
    answers: HashMap<String, CommandStatus>,
    now: u64,
    since: u64,
    /// They have not heard yet how many lanes there are.
    starting: bool,
    pending: bool,
    /// Of this instance: it has no time left when it comes to write.
    late: Option<usize>,
    /// What was delivered may have a later version that is on its way to its lane.
    is_last: bool,
    /// This instance does not settle its lanes.
    unsettled: Option<usize>,
    /// How often each lane was settled.
    settled: [usize; LANES as usize],
    /// What answers become once each lane was settled, and again.
    moved: Option<CommandStatus>,
    tasks: Vec<TaskRecord>,
    /// What is answered to who asks for a cancel, and what after that.
    cancels: HashMap<String, (TaskCancel, TaskCancel)>,
    /// Changes of schedules that were in force: their lanes and tickets.
    taken: Vec<(u16, String)>,
}

impl World {
    fn find(&mut self, name: &TimerName) -> Option<&mut Timer> {
        self.timers.iter_mut().find(|of| of.name() == *name).map(|of| &mut of.timer)
    }
}

struct Instance {
    world: Arc<Mutex<World>>,
    me: usize,
}

impl Instance {
    fn world(&self) -> parking_lot::MutexGuard<'_, World> {
        self.world.lock()
    }
}

impl Instance {
    fn page_of(&self, lane: u16, filter: &Filter, after: Option<Cursor>, most: usize) -> Page {
        let mut behind: Vec<LaneTimer> = self
            .world()
            .timers
            .iter()
            .filter(|of| of.lane.0 == lane && after.is_none_or(|after| of.cursor() > after))
            .cloned()
            .collect();
        behind.sort_by_key(LaneTimer::cursor);
        // An index looks at a bounded number in one call, whatever it finds.
        let more = behind.len() > most.min(3);
        behind.truncate(most.min(3));
        let more = behind.last().filter(|_| more).map(LaneTimer::cursor);
        behind.retain(|of| filter.matches(&of.timer));
        Page { timers: behind, more }
    }

    fn count_of(&self, lane: u16, filter: &Filter) -> u64 {
        let (mut count, mut after) = (0, None);
        loop {
            let page = self.page_of(lane, filter, after, 3);
            count += page.timers.len() as u64;
            after = page.more;
            if after.is_none() {
                return count;
            }
        }
    }
}

const LANES: u16 = 4;

fn lane_of(name: &TimerName) -> u16 {
    let bytes = name.key.as_deref().unwrap_or(name.id.as_bytes());
    bytes.iter().map(|byte| u16::from(*byte)).sum::<u16>() % LANES
}

impl Timers for Instance {
    fn lanes(&self) -> u16 {
        if self.world().starting { 0 } else { LANES }
    }

    fn lane_of(&self, name: &TimerName) -> u16 {
        lane_of(name)
    }

    fn owner_of(&self, lane: u16) -> LaneOwner {
        let world = self.world();
        match world.owners[usize::from(lane)] {
            Some(owner) if owner == self.me => LaneOwner::Here,
            Some(owner) => {
                let address = world.addresses[owner].clone();
                LaneOwner::Elsewhere(PeerAddress { address, tls: false })
            }
            None => LaneOwner::Moving,
        }
    }

    fn address(&self) -> String {
        self.world().addresses[self.me].clone()
    }

    fn tracks(&self) -> bool {
        true
    }

    fn now(&self) -> Option<u64> {
        Some(self.world().now)
    }

    fn since(&self) -> Option<u64> {
        Some(self.world().since)
    }

    fn seal(&self, what: &[u8]) -> [u8; 32] {
        use sha2::Digest as _;
        sha2::Sha256::new().chain_update("secret").chain_update(what).finalize().into()
    }

    fn find<'a>(
        &'a self,
        names: &'a [(u16, TimerName)],
    ) -> Soon<'a, Result<Vec<Option<LaneTimer>>, TimersError>> {
        let world = self.world();
        let of = |name: &TimerName| world.timers.iter().find(|of| of.name() == *name).cloned();
        let found = names.iter().map(|(_, name)| of(name)).collect();
        Box::pin(ready(Ok(found)))
    }

    fn by_ids<'a>(
        &'a self,
        lanes: &'a [u16],
        ids: &'a [String],
    ) -> Soon<'a, Result<Vec<LaneTimer>, TimersError>> {
        let world = self.world();
        let fits = |of: &&LaneTimer| lanes.contains(&of.lane.0) && ids.contains(&of.name().id);
        Box::pin(ready(Ok(world.timers.iter().filter(fits).cloned().collect())))
    }

    fn page<'a>(
        &'a self,
        lane: u16,
        filter: &'a Filter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page, TimersError>> {
        Box::pin(ready(Ok(self.page_of(lane, filter, after, most))))
    }

    fn task<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskRecord>, TimersError>> {
        let found = self.world().tasks.iter().find(|of| of.id == *id).cloned();
        Box::pin(ready(Ok(found)))
    }

    fn tasks<'a>(
        &'a self,
        lane: u16,
        filter: &'a TaskFilter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page<TaskRecord>, TimersError>> {
        let world = self.world();
        let of_lane = world.tasks.iter().filter(|of| of.lane.0 == lane && filter.matches(of));
        let mut behind: Vec<TaskRecord> =
            of_lane.filter(|of| after.is_none_or(|after| of.cursor() > after)).cloned().collect();
        behind.sort_by_key(TaskRecord::cursor);
        let has_more = behind.len() > most;
        behind.truncate(most);
        let more = behind.last().filter(|_| has_more).map(TaskRecord::cursor);
        Box::pin(ready(Ok(Page { timers: behind, more })))
    }

    fn task_counts<'a>(
        &'a self,
        lanes: &'a [u16],
        projects: &'a BTreeSet<String>,
    ) -> Soon<'a, Result<BTreeMap<String, TaskCounts>, TimersError>> {
        let world = self.world();
        let mut all: BTreeMap<String, TaskCounts> = BTreeMap::new();
        for of in world.tasks.iter().filter(|of| lanes.contains(&of.lane.0)) {
            let group = group_of(of.timer.label.as_deref());
            let Some((project, _)) = group.filter(|(name, _)| projects.contains(*name)) else {
                continue;
            };
            let status = TaskStatus::of(&of.timer, UnixMillis(world.now));
            *all.entry(project.to_owned()).or_default().of(status) += 1;
        }
        Box::pin(ready(Ok(all)))
    }

    fn task_cancel<'a>(
        &'a self,
        _: u16,
        ticket: &'a str,
        _: Duration,
    ) -> Soon<'a, Result<TaskCancel, TimersError>> {
        let mut world = self.world();
        // It is decided when it is asked for the second time.
        let end = world.cancels.get_mut(ticket).map(|of| std::mem::replace(&mut of.0, of.1));
        Box::pin(ready(end.ok_or_else(|| TimersError::Refused("bad_ticket".into(), ticket.into()))))
    }

    fn schedule_taken<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
    ) -> Soon<'a, Result<bool, TimersError>> {
        let is_taken = self.world().taken.contains(&(lane, ticket.to_owned()));
        Box::pin(ready(Ok(is_taken)))
    }

    fn task_retry<'a>(
        &'a self,
        id: &'a TaskId,
        _: Instant,
    ) -> Soon<'a, Result<TaskRetry, TimersError>> {
        let is_there = self.world().tasks.iter().any(|of| of.id == *id);
        Box::pin(ready(Ok(if is_there { TaskRetry::Due } else { TaskRetry::Absent })))
    }

    fn task_report<'a>(
        &'a self,
        id: &'a TaskId,
        _: (&'a str, &'a str),
        _: Instant,
    ) -> Soon<'a, Result<TaskReport, TimersError>> {
        let is_there = self.world().tasks.iter().any(|of| of.id == *id);
        Box::pin(ready(Ok(if is_there { TaskReport::Finished } else { TaskReport::Absent })))
    }

    fn task_payload<'a>(
        &'a self,
        id: &'a TaskId,
        _: Instant,
    ) -> Soon<'a, Result<Option<TaskPayload>, TimersError>> {
        let is_there = self.world().tasks.iter().any(|of| of.id == *id);
        let body = Record::new(Some(b"\xff"), Some(b"body"), std::iter::empty());
        Box::pin(ready(Ok(is_there.then(|| TaskPayload::of(&body)))))
    }

    fn count<'a>(
        &'a self,
        lanes: &'a [u16],
        filter: &'a Filter,
    ) -> Soon<'a, Result<u64, TimersError>> {
        Box::pin(ready(Ok(lanes.iter().map(|lane| self.count_of(*lane, filter)).sum())))
    }

    fn forecast<'a>(
        &'a self,
        lanes: &'a [u16],
        now: u64,
        _: Option<&'a str>,
    ) -> Soon<'a, Result<Vec<Forecast>, TimersError>> {
        let world = self.world();
        let of_lanes = world.timers.iter().filter(|of| lanes.contains(&of.lane.0));
        let all = of_lanes.map(|LaneTimer { timer, .. }| {
            let mut minutes = vec![0; 60];
            minutes[((timer.due.0 - now) / 60_000) as usize] = 1;
            let target = timer.target.to_string();
            let (hours, days) = (vec![1], vec![1]);
            Forecast { target, total: 1, minutes, hours, days, ..Forecast::default() }
        });
        Box::pin(ready(Ok(all.collect())))
    }

    fn backlog(&self) -> Vec<(String, u64)> {
        vec![("intake".to_owned(), 1), ("1s".to_owned(), 2)]
    }

    fn submit<'a>(
        &'a self,
        _: u16,
        commands: &'a [TimerCommand],
        _: RequestTimes,
    ) -> Soon<'a, Vec<Result<String, TimersError>>> {
        let mut world = self.world();
        if world.late == Some(self.me) {
            let late = TimersError::Moving("no time left; nothing was written".to_owned());
            return Box::pin(ready(commands.iter().map(|_| Err(late.clone())).collect()));
        }
        let mut tickets = Vec::new();
        for command in commands {
            let now = world.now;
            let outcome = match world.find(&command.name) {
                None if matches!(command.kind, CommandKind::Reschedule(_)) => {
                    tickets.push(Err(TimersError::NotPending(None)));
                    continue;
                }
                None => CommandOutcome::Unknown,
                Some(timer) if command.version.is_some_and(|version| version != timer.version) => {
                    CommandOutcome::Superseded
                }
                Some(timer) if timer.state == TimerState::Delay => match command.kind {
                    CommandKind::Cancel => {
                        timer.state = TimerState::Cancelled;
                        timer.since = UnixMillis(now);
                        CommandOutcome::Cancelled
                    }
                    CommandKind::Reschedule(due) => {
                        timer.due = due;
                        CommandOutcome::Replaced
                    }
                },
                Some(timer) if timer.state == TimerState::Delivered => CommandOutcome::Delivered,
                Some(_) => CommandOutcome::Cancelled,
            };
            let ticket = format!("{}", world.answers.len());
            let is_last = world.is_last && outcome == CommandOutcome::Delivered;
            let status = CommandStatus::Decided { outcome, state: None, code: None, is_last };
            world.answers.insert(ticket.clone(), status);
            tickets.push(Ok(ticket));
        }
        Box::pin(ready(tickets))
    }

    fn status<'a>(
        &'a self,
        _: u16,
        ticket: &'a str,
        wait: Duration,
    ) -> Soon<'a, Result<CommandStatus, TimersError>> {
        Box::pin(async move {
            if self.world().pending {
                tokio::time::sleep(wait).await;
                return Ok(CommandStatus::Pending);
            }
            Ok(self.world().answers.get(ticket).copied().unwrap_or(CommandStatus::Lost))
        })
    }

    fn settle<'a>(&'a self, lanes: &'a [u16], by: Instant) -> Soon<'a, Result<(), TimersError>> {
        Box::pin(async move {
            if self.world().unsettled == Some(self.me) {
                tokio::time::sleep_until(by.into()).await;
                return Err(TimersError::Moving("not settled".to_owned()));
            }
            let mut world = self.world();
            lanes.iter().for_each(|lane| world.settled[usize::from(*lane)] += 1);
            if world.settled.iter().all(|times| *times >= 2)
                && let Some(moved) = world.moved.take()
            {
                world.answers.values_mut().for_each(|answer| *answer = moved);
            }
            Ok(())
        })
    }
}

impl Status for Instance {
    fn live(&self) -> Report {
        Report { ok: true, reasons: Vec::new() }
    }

    fn ready(&self) -> Report {
        self.live()
    }

    fn metrics(&self) -> String {
        String::new()
    }
}

/// An instance without timers, for the tests of other rooms.
pub(in crate::api) fn without_timers() -> Arc<dyn Timers> {
    Arc::new(Instance { world: Arc::default(), me: 0 })
}

/// Two instances that have two lanes each.
struct Pair {
    world: Arc<Mutex<World>>,
    addresses: Vec<SocketAddr>,
    client: reqwest::Client,
    gates: Vec<Arc<Gate>>,
}

const NOW: u64 = 1_700_000_000_000;

impl Pair {
    async fn start() -> Self {
        let world =
            Arc::new(Mutex::new(World { now: NOW, since: NOW - 3_600_000, ..World::default() }));
        let (mut addresses, mut gates) = (Vec::new(), Vec::new());
        for me in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            let instance = || Arc::new(Instance { world: Arc::clone(&world), me });
            // 32 connections, and so 8 that may wait.
            let access = Arc::new(Access::new(Vec::new()));
            let front =
                Front::new(Hosts::new([]), Arc::new(Gate::new(Some(64))), access, Peers::default());
            gates.push(Arc::clone(&front.gate));
            let rooms = Rooms { timers: instance(), tasks: None };
            tokio::spawn(serve((listener, None), instance(), rooms, front, std::future::pending()));
        }
        let pair = Self { world, addresses, client: reqwest::Client::new(), gates };
        pair.with(|world| {
            world.addresses = pair.addresses.iter().map(ToString::to_string).collect();
            world.owners = vec![Some(0), Some(1), Some(0), Some(1)];
        });
        pair
    }

    fn with<R>(&self, change: impl FnOnce(&mut World) -> R) -> R {
        change(&mut self.world.lock())
    }

    fn put(&self, id: &str, key: Option<&[u8]>, due_in_ms: u64) -> TimerName {
        let name = TimerName { id: id.to_owned(), key: key.map(<[u8]>::to_vec) };
        self.with(|world| {
            let n = world.timers.len();
            let mut order = [0; 16];
            order[8..].copy_from_slice(&(n as u64).to_be_bytes());
            let timer = Timer {
                timer_id: TimerId(order),
                state: TimerState::Delay,
                version: Version {
                    first_appended: UnixMillis(NOW - 1_000),
                    offset: Offset(n as i64),
                },
                supersedes: None,
                due: UnixMillis(NOW + due_in_ms),
                since: UnixMillis(NOW - 1_000),
                target: if n % 2 == 0 { "even" } else { "odd" }.into(),
                label: None,
                id: id.as_bytes().into(),
                key: key.map(Into::into),
                key_cut: false,
                code: None,
                task: None,
            };
            world.timers.push(LaneTimer { lane: Lane(lane_of(&name)), timer });
        });
        name
    }

    fn state(&self, name: &TimerName) -> &'static str {
        self.with(|world| world.find(name).expect("known").state.as_str())
    }

    /// Asks one of them: status, headers and body.
    async fn ask(
        &self,
        which: usize,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> (u16, HashMap<String, String>, Value) {
        // By hand, since clients tidy paths up before they send them.
        let mut stream = tokio::net::TcpStream::connect(self.addresses[which]).await.unwrap();
        let body = body.unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
        let status = head[9..12].parse().unwrap();
        let headers = head.lines().filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (status, headers, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// What an instance sends with a question.
    fn sealed(&self, question: &str) -> [(&'static str, String); 3] {
        let instance = Instance { world: Arc::clone(&self.world), me: 0 };
        seal::of_question(&instance, peer::PATH, question.as_bytes()).expect("a seal")
    }

    /// Asks one of them as another instance does: status and body.
    async fn peer(
        &self,
        which: usize,
        path: &str,
        headers: &[(&'static str, String)],
        question: &str,
    ) -> (u16, String) {
        let asked = self.client.post(format!("http://{}{path}", self.addresses[which]));
        let asked = headers.iter().fold(asked, |asked, (name, value)| asked.header(*name, value));
        let reply = asked.body(question.to_owned()).send().await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    }

    /// Asks both, which have to answer the same.
    async fn both(&self, method: &str, path: &str, body: Option<&str>) -> (u16, Value) {
        let (status, _, first) = self.ask(0, method, path, body).await;
        let (other, _, second) = self.ask(1, method, path, body).await;
        assert_eq!((status, &first), (other, &second), "{method} {path}");
        (status, first)
    }
}

#[tokio::test]
async fn any_instance_answers_for_any_timer() {
    let pair = Pair::start().await;
    let mut keys = vec![None, Some(&b"a/b c"[..]), Some(b"\xff\x00"), Some(b"")];
    keys.extend([Some(&b"b"[..]), Some(b"c"), Some(b"d")]);
    for (n, key) in keys.iter().enumerate() {
        pair.put(&format!("id/{n}?"), *key, 60_000);
    }
    #[rustfmt::skip]
    let queries = ["", "?key=a/b+c", "?key_base64=%2FwA%3D", "?key=", "?key=b", "?key=c", "?key=d"];
    for (n, query) in queries.iter().enumerate() {
        let (status, timer) =
            pair.both("GET", &format!("/v1/timers/id%2f{n}%3F{query}"), None).await;
        assert_eq!((status, &timer["id"]), (200, &json!(format!("id/{n}?"))), "{query}: {timer}");
        assert_eq!(timer["state"], "delay");
        assert_eq!(timer["due"], NOW + 60_000);
    }
    let (_, timer) = pair.both("GET", "/v1/timers/id%2f2%3F?key_base64=/wA=", None).await;
    assert_eq!((&timer["key"], &timer["key_base64"]), (&Value::Null, &json!("/wA=")));
    let (status, problem) = pair.both("GET", "/v1/timers/nobody", None).await;
    assert_eq!((status, &problem["code"]), (404, &json!("unknown_timer")));
}

#[tokio::test]
async fn a_cancel_answers_what_was_decided_wherever_it_is_asked_for() {
    let pair = Pair::start().await;
    for (n, which) in [0, 1, 0, 1].into_iter().enumerate() {
        let name = pair.put(&format!("t{n}"), Some(format!("k{n}").as_bytes()), 1_000);
        let path = format!("/v1/timers/t{n}?key=k{n}&wait=1s");
        let (status, _, told) = pair.ask(which, "DELETE", &path, None).await;
        let want = json!({ "id": format!("t{n}"), "key": format!("k{n}"), "outcome": "cancelled" });
        assert_eq!((status, told), (200, want));
        assert_eq!(pair.state(&name), "cancelled");
    }
    let (status, told) = pair.both("DELETE", "/v1/timers/nobody?key=x", None).await;
    assert_eq!((status, &told["outcome"]), (200, &json!("unknown")));
}

#[tokio::test]
async fn a_pending_cancel_says_where_to_ask_again() {
    let pair = Pair::start().await;
    pair.put("t", Some(b"k"), 1_000);
    pair.with(|world| world.pending = true);
    let (status, headers, told) = pair.ask(0, "DELETE", "/v1/timers/t?key=k&wait=0s", None).await;
    assert_eq!((status, &told["outcome"]), (202, &json!("pending")));
    let again = headers["location"].clone();
    assert_eq!(told["again"], again);
    let (status, told) = pair.both("GET", &again, None).await;
    assert_eq!((status, &told["outcome"]), (202, &json!("pending")));
    pair.with(|world| world.pending = false);
    let (status, told) = pair.both("GET", &again, None).await;
    assert_eq!((status, told), (200, json!({ "id": "t", "key": "k", "outcome": "cancelled" })));
    pair.with(|world| world.answers.clear());
    let (status, told) = pair.both("GET", &again, None).await;
    assert_eq!((status, &told["code"]), (410, &json!("answer_lost")));
    assert_eq!(told["timer"]["state"], "cancelled");
}

#[tokio::test]
async fn how_the_last_version_ended_is_told_once_all_is_settled_in_all_lanes() {
    let pair = Pair::start().await;
    for key in ["a", "b", "c", "d"] {
        let name = pair.put("t", Some(key.as_bytes()), 1_000);
        pair.with(|world| world.find(&name).unwrap().state = TimerState::Delivered);
    }
    let path = "/v1/timers/t?key=a";
    let settled = || pair.with(|world| std::mem::take(&mut world.settled));
    let (status, told) = pair.both("DELETE", path, None).await;
    assert_eq!((status, &told["outcome"], settled()), (200, &json!("delivered"), [0; 4]));
    pair.with(|world| world.is_last = true);
    // Its lane is the first one's, the other instance has others: in these a later version may stand.
    pair.with(|world| world.unsettled = Some(1));
    let began = Instant::now();
    let (status, _, pending) = pair.ask(0, "DELETE", &format!("{path}&wait=0s"), None).await;
    assert_eq!((status, &pending["outcome"]), (202, &json!("pending")), "{pending}");
    assert!(began.elapsed() < Duration::from_secs(2) + patient(Duration::from_secs(3)));
    pair.with(|world| world.unsettled = None);
    settled();
    for which in [0, 1] {
        let (status, _, told) = pair.ask(which, "DELETE", path, None).await;
        assert_eq!((status, &told["outcome"]), (200, &json!("delivered")), "{told}");
        assert_eq!(settled(), [2; 4], "first all stands in its lane, then that is decided");
    }
    let named = ["a", "b", "c", "d"].map(|key| json!({ "id": "t", "key": key }));
    let body = json!({ "timers": named, "wait": "5s" }).to_string();
    let (_, _, told) = pair.ask(0, "POST", "/v1/timers:batchCancel", Some(&body)).await;
    for n in 0..4 {
        assert_eq!(told["timers"][n]["outcome"], "delivered", "{told}");
    }
    assert_eq!(settled(), [2; 4], "once for all of them");
    // A later version was on its way.
    let (outcome, state, code) = (CommandOutcome::Cancelled, None, None);
    let moved = CommandStatus::Decided { outcome, state, code, is_last: false };
    pair.with(|world| world.moved = Some(moved));
    let again = pending["again"].as_str().expect("where to ask again");
    let (status, told) = pair.both("GET", again, None).await;
    assert_eq!((status, &told["outcome"], settled()), (200, &json!("cancelled"), [2; 4]));
}

#[tokio::test]
async fn an_instance_that_has_not_started_refuses_a_batch_as_a_whole_so_that_clients_come_again() {
    let pair = Pair::start().await;
    pair.put("t", Some(b"k"), 1_000);
    pair.with(|world| world.starting = true);
    let body = Some(r#"{"timers":[{"id":"t","key":"k"}]}"#);
    for path in ["/v1/timers:batchGet", "/v1/timers:batchCancel"] {
        let (status, headers, told) = pair.ask(0, "POST", path, body).await;
        assert_eq!((status, headers["retry-after"].as_str()), (503, "1"), "{path}: {told}");
    }
    pair.with(|world| world.starting = false);
    let (status, _, told) = pair.ask(0, "POST", "/v1/timers:batchCancel", body).await;
    assert_eq!((status, &told["timers"][0]["outcome"]), (200, &json!("cancelled")), "{told}");
}

#[tokio::test]
async fn while_a_lane_moves_or_its_owner_is_silent_a_caller_is_told_to_come_again() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"k"), 1_000);
    let lane = usize::from(lane_of(&name));
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = silent.local_addr().unwrap().to_string();
    drop(silent);
    let owner = pair.with(|world| world.owners[lane]);
    type Change<'a> = &'a dyn Fn(&mut World);
    let cases: [(&str, Change<'_>); 2] = [
        ("it moves", &|world| world.owners[lane] = None),
        ("its owner is gone", &|world| {
            world.addresses.push(gone.clone());
            world.owners[lane] = Some(world.addresses.len() - 1);
        }),
    ];
    for (why, change) in cases {
        pair.with(change);
        let later = Some(r#"{"delay":"7s"}"#);
        for (method, path, body) in [
            ("GET", "/v1/timers/t?key=k", None),
            ("PATCH", "/v1/timers/t?key=k", later),
            ("GET", "/v1/timers", None),
            ("GET", "/v1/forecast", None),
        ] {
            for which in 0..2 {
                let (status, headers, told) = pair.ask(which, method, path, body).await;
                assert_eq!(status, 503, "{why}: {method} {path}: {told}");
                assert_eq!(headers["retry-after"], "1", "{why}");
                assert_eq!(headers["content-type"], "application/problem+json", "{why}");
            }
        }
        let body = r#"{"timers":[{"id":"t","key":"k"}]}"#;
        let (status, _, told) = pair.ask(0, "POST", "/v1/timers:batchGet", Some(body)).await;
        let code = &told["timers"][0]["problem"]["code"];
        assert_eq!((status, code), (200, &json!("lane_moving")), "{why}: {told}");
    }
    // Two that each take the other for the owner: neither hands on what it was handed.
    pair.with(|world| world.owners[lane] = owner);
    // A page in somebody's browser does not ask through it.
    let url = format!("http://{}/v1/timers:batchCancel", pair.addresses[0]);
    let asked = pair.client.post(url).header("sec-fetch-site", "cross-site");
    let asked = asked.header("content-type", "application/json");
    let asked = asked.body(r#"{"timers":[{"id":"t","key":"k"}]}"#).send().await.unwrap();
    assert_eq!(asked.status(), 403);
    let question = json!({ "lanes": [lane], "what": { "ByIds": ["t"] } }).to_string();
    let other = 1 - owner.unwrap();
    let headers = pair.sealed(&question);
    let (status, reply) = pair.peer(other, peer::PATH, &headers, &question).await;
    assert!(status == 200 && reply.contains("Moving"), "{reply}");
    assert_eq!(pair.state(&name), "delay");
}

#[tokio::test]
async fn a_cancel_for_a_lane_that_nobody_has_is_written_and_told_by_who_has_it_next() {
    let pair = Pair::start().await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    type Change<'a> = &'a (dyn Fn(&mut World, usize) + Sync);
    let cases: [(&str, Change<'_>); 2] = [
        ("it moves", &|world, lane| world.owners[lane] = None),
        ("its owner is gone", &|world, lane| {
            world.addresses.push(gone.clone());
            world.owners[lane] = Some(world.addresses.len() - 1);
        }),
    ];
    for (n, (why, change)) in cases.into_iter().enumerate() {
        let keys = ["single", "named", "batch", "waits", "batch waits"];
        let names = keys.map(|key| pair.put("t", Some(format!("{key} {n}").as_bytes()), 60_000));
        let keyless = pair.put(&format!("keyless {n}"), None, 60_000);
        let owners = pair.with(|world| world.owners.clone());
        pair.with(|world| (0..usize::from(LANES)).for_each(|lane| change(world, lane)));
        // At once: it is written.
        let version = pair.with(|world| world.find(&names[1]).expect("known").version.to_string());
        let single = format!("/v1/timers/t?key=single+{n}&wait=0s");
        let mut again = String::new();
        for path in [
            single.clone(),
            format!("/v1/timers/t?key=named+{n}&wait=0s&version={version}"),
            format!("/v1/timers/keyless%20{n}?wait=0s"),
        ] {
            let (status, _, told) = pair.ask(0, "DELETE", &path, None).await;
            let seen = (status, &told["outcome"]);
            assert_eq!(seen, (202, &json!("pending")), "{why}: {path}: {told}");
            again = told["again"].as_str().expect("where to ask again").to_owned();
        }
        let body = |key: &str, wait: &str| {
            let named = json!([{ "id": "t", "key": format!("{key} {n}") }, { "id": "keyless" }]);
            json!({ "timers": named, "wait": wait }).to_string()
        };
        let batch = "/v1/timers:batchCancel";
        let (status, _, told) = pair.ask(1, "POST", batch, Some(&body("batch", "0s"))).await;
        let outcomes = [0, 1].map(|n| told["timers"][n]["outcome"].clone());
        assert_eq!((status, outcomes), (200, [json!("pending"), json!("pending")]), "{why}");
        let (status, _, told) = pair.ask(0, "GET", &format!("{again}?wait=0s"), None).await;
        assert_eq!((status, &told["outcome"]), (202, &json!("pending")), "{why}: {told}");
        // A waiting caller gets the decision once some instance has the lane.
        let waits = format!("/v1/timers/t?key=waits+{n}&wait=20s");
        let more = body("batch waits", "20s");
        let again = format!("{again}?wait=20s");
        let (first, second, third, ()) = tokio::join!(
            pair.ask(0, "DELETE", &waits, None),
            pair.ask(1, "POST", batch, Some(&more)),
            pair.ask(1, "GET", &again, None),
            async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                pair.with(|world| world.owners = owners);
            }
        );
        assert_eq!(
            (first.0, &first.2["outcome"]),
            (200, &json!("cancelled")),
            "{why}: {}",
            first.2
        );
        let told = [0, 1].map(|n| second.2["timers"][n]["outcome"].clone());
        assert_eq!(told, [json!("cancelled"), json!("unknown")], "{why}: {}", second.2);
        assert_eq!(
            (third.0, &third.2["outcome"]),
            (200, &json!("cancelled")),
            "{why}: {}",
            third.2
        );
        for name in names.iter().chain([&keyless]) {
            assert_eq!(pair.state(name), "cancelled", "{why}: {name:?}");
        }
    }
}

#[tokio::test]
async fn beside_an_owner_that_is_silent_a_cancel_is_written_here_and_answered_in_time() {
    let pair = Pair::start().await;
    let mut names = Vec::new();
    for key in ["a", "b", "c", "d"] {
        names.push(pair.put("t", Some(key.as_bytes()), 1_000));
    }
    // Connections are accepted, as the system does for a process that stands still, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (own, other): (Vec<&TimerName>, Vec<&TimerName>) =
        names.iter().partition(|name| lane_of(name).is_multiple_of(2));
    pair.with(|world| world.addresses[1] = silent.local_addr().unwrap().to_string());
    let key = |name: &TimerName| String::from_utf8(name.key.clone().unwrap()).unwrap();
    let began = Instant::now();
    let in_time = |wait: u64, what: &str| {
        let took = began.elapsed();
        // 2 s more than the wait, and what a busy machine takes.
        let most = Duration::from_secs(wait + 2) + patient(Duration::from_secs(3));
        assert!(took < most, "{what}: {took:?}");
    };
    let path = format!("/v1/timers/t?key={}&wait=1s", key(other[0]));
    let cancel = async {
        let (status, _, told) = pair.ask(0, "DELETE", &path, None).await;
        assert_eq!((status, &told["outcome"]), (202, &json!("pending")), "{told}");
        in_time(1, "a cancel");
        let again = told["again"].as_str().expect("where to ask again").to_owned();
        let (status, _, told) = pair.ask(0, "GET", &format!("{again}?wait=0s"), None).await;
        assert_eq!((status, &told["outcome"]), (202, &json!("pending")), "{told}");
        in_time(3, "what became of it");
    };
    let named = [own[0], other[1]].map(|name| json!({ "id": "t", "key": key(name) }));
    let body = json!({ "timers": named, "wait": "1s" }).to_string();
    let batch = async {
        let (status, _, told) = pair.ask(0, "POST", "/v1/timers:batchCancel", Some(&body)).await;
        let outcomes = [0, 1].map(|n| told["timers"][n]["outcome"].clone());
        let want = ["cancelled", "pending"].map(|word| json!(word));
        assert_eq!((status, outcomes), (200, want), "{told}");
        in_time(1, "a batch");
    };
    let path = format!("/v1/timers/t?key={}&wait=1s", key(other[0]));
    let put_off = async {
        let body = Some(r#"{"delay":"7s"}"#);
        let (status, _, told) = pair.ask(0, "PATCH", &path, body).await;
        assert_eq!((status, &told["code"]), (503, &json!("lane_moving")), "{told}");
        in_time(1, "another time");
    };
    tokio::join!(cancel, batch, put_off);
    let states = |of: &[&TimerName]| of.iter().map(|name| pair.state(name)).collect::<Vec<_>>();
    assert_eq!((states(&own[..1]), states(&other)), (vec!["cancelled"], vec!["cancelled"; 2]));
}

#[tokio::test]
async fn nobody_is_told_that_nothing_was_written_once_an_owner_was_asked_to_write_it() {
    let pair = Pair::start().await;
    // The caller stood still meanwhile, and has no time left to write the cancel itself.
    pair.with(|world| world.late = Some(0));
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
    let of_other = |key: &&String| {
        let key = Some(key.as_bytes().to_vec());
        !lane_of(&TimerName { id: "t".to_owned(), key }).is_multiple_of(2)
    };
    let key = keys.iter().find(of_other).expect("one of them");
    let body = json!({ "timers": [{ "id": "t", "key": key }], "wait": "0s" }).to_string();
    let mut between = Vec::new();
    for status in [403, 404, 502, 503, 504, 200] {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        between.push(proxy.local_addr().unwrap().to_string());
        let status = StatusCode::from_u16(status).unwrap();
        let app = Router::new().route(peer::PATH, post(async move || status));
        tokio::spawn(async move { axum::serve(proxy, app).await });
    }
    type Change<'a> = &'a (dyn Fn(&mut World) + Sync);
    #[rustfmt::skip]
    let cases: [(&str, Change<'_>, bool); 8] = [
        ("its owner was asked",         &|world| world.addresses[1] = address.clone(),      true),
        ("it refused the question",     &|world| world.addresses[1] = between[0].clone(),   false),
        ("nobody of it is there",       &|world| world.addresses[1] = between[1].clone(),   false),
        ("a proxy lost the answer",     &|world| world.addresses[1] = between[2].clone(),   true),
        ("a proxy lost the connection", &|world| world.addresses[1] = between[3].clone(),   true),
        ("a proxy waits no longer",     &|world| world.addresses[1] = between[4].clone(),   true),
        ("a proxy lost the seal",       &|world| world.addresses[1] = between[5].clone(),   true),
        ("nobody was asked",            &|world| world.owners = vec![None; usize::from(LANES)], false),
    ];
    for (why, change, may_be) in cases {
        pair.with(change);
        let path = format!("/v1/timers/t?key={key}&wait=0s");
        let (status, _, told) = pair.ask(0, "DELETE", &path, None).await;
        assert_eq!((status, &told["code"]), (503, &json!("lane_moving")), "{why}: {told}");
        let (_, _, batch) = pair.ask(0, "POST", "/v1/timers:batchCancel", Some(&body)).await;
        for told in [&told, &batch["timers"][0]["problem"]] {
            let detail = told["detail"].as_str().expect("a detail");
            let says = (detail.contains("may have been done"), detail.contains("nothing was"));
            assert_eq!(says, (may_be, !may_be), "{why}: {detail}");
        }
    }
}

#[tokio::test]
async fn a_question_that_nobody_waits_for_any_more_is_not_carried_out() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"k"), 1_000);
    let (lane, owner) = (lane_of(&name), usize::from(lane_of(&name) % 2));
    let command = TimerCommand { name: name.clone(), version: None, kind: CommandKind::Cancel };
    let times = json!({ "age_ms": 0, "wait_ms": 500, "left_ms": 1_000 });
    let to = pair.addresses[owner].to_string();
    let question =
        json!({ "lanes": [lane], "what": { "Do": [command] }, "times": times, "to": to });
    let question = question.to_string();
    let sealed = pair.sealed(&question);
    // It stood in the way for as long as its owners waited.
    pair.with(|world| world.now += 1_000);
    let (status, told) = pair.peer(owner, peer::PATH, &sealed, &question).await;
    assert!(status == 200 && told.contains("too long ago"), "{told}");
    assert_eq!(pair.state(&name), "delay");
    pair.with(|world| world.now -= 1);
    let (status, told) = pair.peer(owner, peer::PATH, &sealed, &question).await;
    assert!(status == 200 && told.contains("cancelled"), "{told}");
    assert_eq!(pair.state(&name), "cancelled");
}

#[tokio::test]
async fn a_change_that_somebody_has_recorded_is_made_once_and_by_whom_it_was_asked_of() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"k"), 1_000);
    let (lane, owner) = (lane_of(&name), usize::from(lane_of(&name) % 2));
    let command = TimerCommand { name: name.clone(), version: None, kind: CommandKind::Cancel };
    let of = |to: Option<usize>, number: u64| {
        let to = to.map(|to| pair.addresses[to].to_string());
        let times = json!({ "age_ms": 0, "wait_ms": 500, "left_ms": 20_000 });
        json!({ "lanes": [lane], "what": { "Do": [command] }, "times": times, "to": to, "number": number }).to_string()
    };
    let again = || pair.with(|world| world.find(&name).unwrap().state = TimerState::Delay);
    let question = of(Some(owner), 1);
    let sealed = pair.sealed(&question);
    let (status, told) = pair.peer(owner, peer::PATH, &sealed, &question).await;
    assert!(status == 200 && told.contains("cancelled"), "{told}");
    // Somebody makes it again, and somebody else repeats what he has heard: at once, and as late as it is valid.
    again();
    for (later_ms, status, why) in
        [(0, 403, "not_a_peer"), (19_999, 403, "not_a_peer"), (20_000, 200, "too long ago")]
    {
        pair.with(|world| world.now = NOW + later_ms);
        let (told_status, told) = pair.peer(owner, peer::PATH, &sealed, &question).await;
        assert!(told_status == status && told.contains(why), "{later_ms}: {told_status} {told}");
        assert_eq!(pair.state(&name), "delay", "{later_ms}");
    }
    // The lane comes to another one, which has not heard it.
    pair.with(|world| (world.now, world.owners[usize::from(lane)]) = (NOW, Some(1 - owner)));
    for (why, question) in [("of another", of(Some(owner), 2)), ("of nobody", of(None, 3))] {
        let sealed = pair.sealed(&question);
        let (status, told) = pair.peer(1 - owner, peer::PATH, &sealed, &question).await;
        assert!(status == 403 && told.contains("not_a_peer"), "{why}: {status} {told}");
    }
    assert_eq!(pair.state(&name), "delay");
    // It was asked before this one started, and is valid still.
    let question = of(Some(owner), 4);
    let sealed = pair.sealed(&question);
    pair.with(|world| {
        world.owners[usize::from(lane)] = Some(owner);
        (world.now, world.since) = (NOW + 5_000, NOW + 1);
    });
    let (status, told) = pair.peer(owner, peer::PATH, &sealed, &question).await;
    assert!(status == 403 && told.contains("before this instance started"), "{status} {told}");
    assert_eq!(pair.state(&name), "delay");
    // The same asked again by callers is another question, also within a millisecond.
    for _ in 0..20 {
        let asked = pair.ask(1 - owner, "DELETE", "/v1/timers/t?key=k", None);
        let (status, _, told) = asked.await;
        assert_eq!((status, &told["outcome"]), (200, &json!("cancelled")), "{told}");
    }
}

#[tokio::test]
async fn a_list_over_all_lanes_is_in_the_order_of_due_time_and_complete() {
    let pair = Pair::start().await;
    for n in 0..50_u64 {
        // Many at the same time, in every lane.
        pair.put(&format!("t{n}"), Some(&[n as u8]), n / 7 * 1_000);
    }
    for filter in
        ["", "&target=odd", "&state=delay&due_after=1700000002000&due_before=1700000005000"]
    {
        let (mut seen, mut page) = (Vec::<(u64, String)>::new(), String::new());
        loop {
            let path = format!("/v1/timers?limit=4{filter}{page}");
            let (status, told) = pair.both("GET", &path, None).await;
            assert_eq!(status, 200, "{told}");
            let timers = told["timers"].as_array().expect("timers");
            assert!(timers.len() <= 4);
            seen.extend(timers.iter().map(|timer| {
                (timer["due"].as_u64().unwrap(), timer["id"].as_str().unwrap().to_owned())
            }));
            match told["next"].as_str() {
                Some(next) => page = format!("&page={next}"),
                None => break,
            }
        }
        let mut want: Vec<String> = pair.with(|world| {
            let fits = |of: &&LaneTimer| match filter {
                "" => true,
                "&target=odd" => &*of.timer.target == "odd",
                _ => (2_000..5_000).contains(&(of.timer.due.0 - NOW)),
            };
            world.timers.iter().filter(fits).map(|of| of.name().id).collect()
        });
        assert!(seen.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{filter}: {seen:?}");
        let mut ids: Vec<String> = seen.into_iter().map(|(_, id)| id).collect();
        ids.sort();
        want.sort();
        assert_eq!(ids, want, "{filter}");
    }
}

#[tokio::test]
async fn a_bulk_cancel_does_what_was_counted_and_no_more() {
    let pair = Pair::start().await;
    let names: Vec<TimerName> =
        (0..20_u64).map(|n| pair.put(&format!("t{n}"), Some(&[n as u8]), n * 1_000)).collect();
    let filter = r#"{"target":"odd","due_before":1700000015000}"#;
    let (status, _, told) = pair.ask(0, "POST", "/v1/timers:bulkCancel", Some(filter)).await;
    assert_eq!((status, &told["count"]), (200, &json!(7)), "{told}");
    let token = told["token"].as_str().unwrap().to_owned();
    assert!(names.iter().all(|name| pair.state(name) == "delay"), "a count changes nothing");
    // One of them is replaced after the count.
    pair.with(|world| {
        world.find(&names[3]).unwrap().version = format!("{NOW}-99").parse().unwrap()
    });
    let (mut cancelled, mut page) = (0, Value::Null);
    loop {
        let body = json!({ "token": token, "page": page, "limit": 2 }).to_string();
        let (status, _, told) = pair.ask(1, "POST", "/v1/timers:bulkCancel", Some(&body)).await;
        assert_eq!((status, &told["count"]), (200, &json!(7)), "{told}");
        cancelled += told["outcomes"]["cancelled"].as_u64().unwrap_or(0);
        page = told["next"].clone();
        if page.is_null() {
            break;
        }
    }
    assert_eq!(cancelled, 6);
    for (n, name) in names.iter().enumerate() {
        let want = if n % 2 == 1 && n < 15 && n != 3 { "cancelled" } else { "delay" };
        assert_eq!(pair.state(name), want, "{n}");
    }
    // A token that was changed, or is old, is none.
    let mut forged = token.clone().into_bytes();
    let last = forged.len() - 2;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    for (why, token, later_ms) in [
        ("forged", forged.as_str(), 0),
        ("cut", &token[..10], 0),
        ("old", token.as_str(), 15 * 60_000 + 1),
    ] {
        pair.with(|world| world.now = NOW + later_ms);
        let body = json!({ "token": token }).to_string();
        let (status, told) = pair.both("POST", "/v1/timers:bulkCancel", Some(&body)).await;
        assert_eq!((status, &told["code"]), (400, &json!("bad_token")), "{why}");
    }
}

#[tokio::test]
async fn bad_input_is_named_and_changes_nothing() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"k"), 60_000);
    let long = format!("/v1/timers/{}?key=k", "a".repeat(256));
    let far = format!(
        "/v1/timers?page={}",
        token::of_page(
            Cursor { due: 1, order: [0; 16] },
            &Filter { target: Some("x".to_owned()), ..Filter::default() },
        )
    );
    let many = format!(r#"{{"timers":[{}]}}"#, vec![r#"{"id":"t"}"#; BATCH_MAX + 1].join(","));
    let (get, delete, patch, post) = ("GET", "DELETE", "PATCH", "POST");
    let (batch, bulk) = ("/v1/timers:batchCancel", "/v1/timers:bulkCancel");
    #[rustfmt::skip]
    let cases = [
        // method, path, body, status, code, at
        (delete, "/v1/timers/?key=k",               None, 400, "bad_id",              "path.id"),
        (delete, long.as_str(),                     None, 400, "bad_id",              "path.id"),
        (delete, "/v1/timers/%FF?key=k",            None, 400, "bad_id",              "path.id"),
        (delete, "/v1/timers/a%0ab?key=k",          None, 400, "bad_id",              "path.id"),
        (delete, "/v1/timers/t%2",                  None, 400, "bad_encoding",        "path.id"),
        (delete, "/v1/timers/t",                    None, 400, "key_needed",          "query.key"),
        (get,    "/v1/timers/t",                    None, 400, "key_needed",          "query.key"),
        (delete, "/v1/timers/t?key=%FF",            None, 400, "not_utf8",            "query.key"),
        (delete, "/v1/timers/t?key_base64=!",       None, 400, "bad_base64",          "query.key_base64"),
        (delete, "/v1/timers/t?key=k&key=l",        None, 400, "doubled_parameter",   "query.key"),
        (delete, "/v1/timers/t?kye=k",              None, 400, "unknown_parameter",   "query.kye"),
        (delete, "/v1/timers/t?key=k&wait=soon",    None, 400, "bad_duration",        "query.wait"),
        (delete, "/v1/timers/t?key=k&wait=61s",     None, 400, "bad_duration",        "query.wait"),
        (delete, "/v1/timers/t?key=k&wait=5",       None, 400, "bad_duration",        "query.wait"),
        (delete, "/v1/timers/t?key=k&wait=",        None, 400, "bad_duration",        "query.wait"),
        (post,   batch,                             Some(r#"{"timers":[{"id":"t","key":"k"}],"wait":"500"}"#), 400, "bad_duration", "body.wait"),
        (post,   batch,                             Some(r#"{"timers":[{"id":"t","key":"k"}],"wait":5}"#), 400, "wrong_type", "body.wait"),
        (post,   batch,                             Some(r#"{"timers":[{"id":"x","key":"x"}],"timers":[{"id":"t","key":"k"}]}"#), 400, "doubled_member", "body.timers"),
        (post,   batch,                             Some(r#"{"timers":[{"id":"x"},{"id":"x","key":"k","id":"t"}]}"#), 400, "doubled_member", "body.timers[1].id"),
        (post,   bulk,                              Some(r#"{"target":"x","target":null}"#), 400, "doubled_member", "body.target"),
        (patch,  "/v1/timers/t?key=k",              Some(r#"{"due":5,"due":6}"#), 400, "doubled_member", "body.due"),
        (patch,  "/v1/timers/t?key=k",              Some(r#"{"due":5} {}"#), 400, "not_json", "body"),
        (delete, "/v1/timers/t?key=k&version=7",    None, 400, "bad_version",         "query.version"),
        (post,   batch,                             Some(r#"{"timers":[{"id":"t","key":"k","version":"7"}]}"#), 400, "bad_version", "body.timers[0].version"),
        (patch,  "/v1/timers/t?key=k",              None, 400, "not_json",            "body"),
        (patch,  "/v1/timers/t?key=k",              Some("[]"), 400, "not_an_object", "body"),
        (patch,  "/v1/timers/t?key=k",              Some("{}"), 400, "no_time",       "body"),
        (patch,  "/v1/timers/t?key=k",              Some(r#"{"due":1,"delay":"1s"}"#), 400, "no_time", "body"),
        (patch,  "/v1/timers/t?key=k",              Some(r#"{"due":"soon"}"#), 400, "bad_time", "body.due"),
        (patch,  "/v1/timers/t?key=k",              Some(r#"{"due":true}"#), 400, "bad_time", "body.due"),
        (patch,  "/v1/timers/t?key=k",              Some(r#"{"delay":true}"#), 400, "bad_duration", "body.delay"),
        (patch,  "/v1/timers/t?key=k",              Some(r#"{"delay":"99999999999999999s"}"#), 400, "bad_duration", "body.delay"),
        (patch,  "/v1/timers/nobody",               Some(r#"{"due":1700000099000}"#), 404, "unknown_timer", ""),
        (get,    "/v1/timers?page=x",               None, 400, "bad_page",            "query.page"),
        (get,    far.as_str(),                      None, 400, "bad_page",            "query.page"),
        (get,    "/v1/timers?limit=0",              None, 400, "bad_limit",           "query.limit"),
        (get,    "/v1/timers?limit=1001",           None, 400, "bad_limit",           "query.limit"),
        (get,    "/v1/timers?limit=-1",             None, 400, "bad_limit",           "query.limit"),
        (get,    "/v1/timers?state=late",           None, 400, "bad_state",           "query.state"),
        (get,    "/v1/timers?stat=delay",           None, 400, "unknown_parameter",   "query.stat"),
        (get,    "/v1/timers?due_after=x",          None, 400, "bad_time",            "query.due_after"),
        (get,    "/v1/timers?due_after=1700000000005&due_before=1700000000005", None, 400, "bad_window", "query.due_before"),
        (post,   batch,                             Some("{"), 400, "not_json",       "body"),
        (post,   batch,                             Some("{}"), 400, "bad_batch",     "body.timers"),
        (post,   batch,                             Some(many.as_str()), 400, "bad_batch", "body.timers"),
        (post,   batch,                             Some(r#"{"timers":[{"id":""},{"id":"t","key":7}]}"#), 400, "bad_id", "body.timers[0].id"),
        (post,   batch,                             Some(r#"{"timers":[7]}"#), 400, "not_an_object", "body.timers[0]"),
        (post,   batch,                             Some(r#"{"timers":[{"id":"t","key":7}]}"#), 400, "wrong_type", "body.timers[0].key"),
        (post,   batch,                             Some(r#"{"timers":[{"id":"t","ky":"k"}]}"#), 400, "unknown_member", "body.timers[0].ky"),
        (post,   bulk,                              Some("{}"), 400, "means_all",     "body"),
        (post,   bulk,                              Some(r#"{"all":true,"target":"x"}"#), 400, "means_all", "body"),
        (post,   bulk,                              Some(r#"{"token":"x"}"#), 400, "bad_token", "body.token"),
        (post,   bulk,                              Some(r#"{"token":"x","target":"x"}"#), 400, "filter_and_token", "body.target"),
        (post,   bulk,                              Some(r#"{"target":"x","page":"y"}"#), 400, "no_token", "body.page"),
        (post,   bulk,                              Some(r#"{"due_before":"x"}"#), 400, "bad_time", "body.due_before"),
        (get,    "/v1/cancels/x",                   None, 400, "bad_ticket",          "path.ticket"),
        (get,    "/v1/nothing",                     None, 404, "no_such_page",        ""),
        (get,    "/v1/",                            None, 404, "no_such_page",        ""),
        (get,    "/v1/peer",                        None, 405, "no_such_method",      ""),
        ("PUT",  "/v1/timers/t",                    None, 405, "no_such_method",      ""),
        (post,   "/v1/peer",                        Some("{}"), 403, "not_a_peer", ""),
    ];
    for (method, path, body, status, code, at) in cases {
        let shown = &path[..path.len().min(60)];
        let (told_status, told) = pair.both(method, path, body).await;
        assert_eq!(
            (told_status, &told["code"]),
            (status, &json!(code)),
            "{method} {shown}: {told}"
        );
        assert_eq!(told["at"].as_str().unwrap_or_default(), at, "{method} {shown}: {told}");
        assert_eq!(told["status"], status, "{method} {shown}");
        let detail = told["detail"].as_str().unwrap_or_default();
        assert!(!detail.is_empty(), "{shown}");
        // What broke a limit is told the limit.
        for (broken, limit) in
            [("limit=1001", "1000"), ("wait=61s", "60 s"), ("timers/aaaa", "255")]
        {
            assert!(!path.contains(broken) || detail.contains(limit), "{shown}: {detail}");
        }
        assert!(told["type"].as_str().is_some_and(|kind| kind.ends_with(code)), "{shown}");
        assert!(told["title"].is_string(), "{shown}");
    }
    let (_, _, told) = pair.ask(0, delete, "/v1/timers/t?key=k&wait=5", None).await;
    assert!(told["detail"].as_str().is_some_and(|detail| detail.contains("\"5s\"")), "{told}");
    let (_, _, told) = pair.ask(0, delete, "/v1/timers/t", None).await;
    assert_eq!(told["timers"], json!([{ "id": "t", "key": "k" }]), "it says whose key is missing");
    // One byte too many: more would not be read, and the answer could be lost in a reset.
    let huge = format!("{{{}", " ".repeat(BODY_BYTES_MAX));
    let (status, told) = pair.both(post, batch, Some(&huge)).await;
    assert_eq!((status, &told["code"]), (413, &json!("too_large")));
    // Who keeps connections is told that this one ends.
    let asked = pair.client.post(format!("http://{}{batch}", pair.addresses[0]));
    let asked = asked.header("content-type", "application/json").body(huge);
    let reply = asked.send().await.unwrap();
    assert_eq!(
        (reply.status().as_u16(), &reply.headers()["connection"]),
        (413, &"close".parse().unwrap())
    );
    let body = r#"{"timers":[{"id":"t"}]}"#;
    let (_, _, told) = pair.ask(0, post, batch, Some(body)).await;
    assert_eq!(told["timers"][0]["problem"]["code"], "key_needed", "{told}");
    assert_eq!(pair.state(&name), "delay", "nothing was changed");
    assert_eq!(pair.with(|world| world.answers.len()), 0, "nothing was even written");
}

#[tokio::test]
async fn batches_answer_for_each_and_times_can_be_changed() {
    let pair = Pair::start().await;
    let names: Vec<TimerName> =
        ["a", "b", "c", "d"].iter().map(|key| pair.put("t", Some(key.as_bytes()), 1_000)).collect();
    let asked = r#"{"timers":[{"id":"t","key":"a"},{"id":"x","key":"y"},{"id":"t","key_base64":"Yg=="},{"id":"t","key":"c"}]}"#;
    let (_, told) = pair.both("POST", "/v1/timers:batchGet", Some(asked)).await;
    let states: Vec<&Value> =
        told["timers"].as_array().unwrap().iter().map(|t| &t["state"]).collect();
    assert_eq!(states, ["delay", "unknown", "delay", "delay"]);
    let (_, _, told) = pair.ask(1, "POST", "/v1/timers:batchCancel", Some(asked)).await;
    let outcomes: Vec<&Value> =
        told["timers"].as_array().unwrap().iter().map(|t| &t["outcome"]).collect();
    assert_eq!(outcomes, ["cancelled", "unknown", "cancelled", "cancelled"]);
    assert_eq!(pair.state(&names[3]), "delay");
    let bodies = [
        (r#"{"due":1700000099000}"#, 99_000),
        (r#"{"delay":"7s"}"#, 7_000),
        (r#"{"delay":8000}"#, 8_000),
    ];
    for (body, due) in bodies {
        let (status, told) = pair.both("PATCH", "/v1/timers/t?key=d", Some(body)).await;
        assert_eq!((status, &told["outcome"]), (200, &json!("replaced")));
        assert_eq!(pair.with(|world| world.find(&names[3]).unwrap().due.0), NOW + due);
        assert_eq!(told["due"], NOW + due, "{told}");
    }
    // What was not put off is a conflict, also for who asks again.
    let body = Some(r#"{"delay":"7s"}"#);
    let decided =
        |outcome, state| CommandStatus::Decided { outcome, state, code: None, is_last: false };
    #[rustfmt::skip]
    let cases = [
        (CommandOutcome::Superseded, None,                      409, "superseded",   None),
        (CommandOutcome::Cancelled,  None,                      409, "not_pending",  Some("cancelled")),
        (CommandOutcome::Delivered,  None,                      409, "not_pending",  Some("delivered")),
        (CommandOutcome::Unknown,    Some(TimerState::Expired), 409, "not_pending",  Some("expired")),
        (CommandOutcome::Unknown,    None,                      409, "not_pending",  None),
        (CommandOutcome::Refused,    None,                      409, "refused",      None),
    ];
    for (outcome, state, status, code, shown) in cases {
        pair.with(|world| world.pending = true);
        let (accepted, _, told) = pair.ask(0, "PATCH", "/v1/timers/t?key=d", body).await;
        assert_eq!((accepted, &told["due"]), (202, &Value::Null), "{told}");
        let again = told["again"].as_str().expect("where to ask again").to_owned();
        pair.with(|world| {
            world.pending = false;
            world.answers.values_mut().for_each(|answer| *answer = decided(outcome, state));
        });
        let (told_status, _, told) = pair.ask(1, "GET", &again, None).await;
        let seen = (told_status, &told["code"], told["state"].as_str());
        assert_eq!(seen, (status, &json!(code), shown), "{outcome:?}: {told}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_one_of_a_batch_stands_in_its_place_and_the_others_are_answered() {
    let pair = Pair::start().await;
    let names: Vec<TimerName> =
        ["a", "b"].iter().map(|key| pair.put("t", Some(key.as_bytes()), 1_000)).collect();
    let long = "x".repeat(256);
    #[rustfmt::skip]
    let elements = [
        (json!({ "id": "t", "key": "a" }),                  ""),
        (json!({ "id": "", "key": "a" }),                   "bad_id"),
        (json!({ "id": long, "key": "a" }),                 "bad_id"),
        (json!({ "id": "t", "key": 7 }),                    "wrong_type"),
        (json!({ "id": "t", "key_base64": "!" }),           "bad_base64"),
        (json!({ "id": "t", "ky": "a" }),                   "unknown_member"),
        (json!("t"),                                        "not_an_object"),
        // Its key is forgotten: its place is counted among all elements.
        (json!({ "id": "t" }),                              "key_needed"),
        (json!({ "id": "t", "key": "b" }),                  ""),
    ];
    let timers: Vec<&Value> = elements.iter().map(|(element, _)| element).collect();
    let body = json!({ "timers": timers }).to_string();
    for (path, member, right) in [
        ("/v1/timers:batchGet", "state", "delay"),
        ("/v1/timers:batchCancel", "outcome", "cancelled"),
    ] {
        let (status, told) = pair.both("POST", path, Some(&body)).await;
        assert_eq!(status, 200, "{path}: {told}");
        let told = told["timers"].as_array().expect("timers");
        assert_eq!(told.len(), elements.len(), "{path}: {told:?}");
        for (n, ((element, code), told)) in elements.iter().zip(told).enumerate() {
            assert_eq!(told["id"], element["id"], "{path}: {n}: {told}");
            if code.is_empty() {
                assert_eq!(told[member], right, "{path}: {n}: {told}");
                continue;
            }
            let problem = &told["problem"];
            assert_eq!(problem["code"], *code, "{path}: {n}: {told}");
            let at = problem["at"].as_str().expect("where");
            assert!(at.starts_with(&format!("body.timers[{n}]")), "{path}: {n}: {told}");
        }
    }
    assert!(names.iter().all(|name| pair.state(name) == "cancelled"));
    // A version that is none is wrong with its element only, too.
    let body = r#"{"timers":[{"id":"t","key":"a","version":"7"},{"id":"t","key":"b"}]}"#;
    let (status, told) = pair.both("POST", "/v1/timers:batchCancel", Some(body)).await;
    let seen = (&told["timers"][0]["problem"]["code"], &told["timers"][1]["outcome"]);
    assert_eq!((status, seen), (200, (&json!("bad_version"), &json!("cancelled"))), "{told}");
}

#[tokio::test]
async fn a_delay_counts_from_when_its_request_came() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"a"), 1_000);
    let body = r#"{"delay":"7s"}"#;
    let head = format!(
        "PATCH /v1/timers/t?key=a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(pair.addresses[0]).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut told = [0; 25];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    // Its body takes five seconds.
    pair.with(|world| world.now += 5_000);
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert_eq!(pair.with(|world| world.find(&name).unwrap().due.0), NOW + 7_000);
}

#[tokio::test]
async fn a_forecast_adds_up_over_lanes() {
    let pair = Pair::start().await;
    for n in 0..8_u64 {
        pair.put(&format!("t{n}"), Some(&[n as u8]), n / 4 * 60_000);
    }
    let (status, told) = pair.both("GET", "/v1/forecast", None).await;
    assert_eq!(status, 200);
    let even = &told["targets"][0];
    assert_eq!(
        (&even["target"], &even["total"], &even["hours"]),
        (&json!("even"), &json!(4), &json!([4]))
    );
    assert_eq!((&even["minutes"][0], &even["minutes"][1]), (&json!(2), &json!(2)));
    let tiers = json!([{ "tier": "intake", "pending": 2 }, { "tier": "1s", "pending": 4 }]);
    assert_eq!(told["tiers"], tiers);
}

#[tokio::test]
async fn an_instance_is_known_by_its_seal_and_nobody_else_is_answered() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"k"), 1_000);
    let lane = lane_of(&name);
    let owner = usize::from(lane % 2);
    let question = |id: &str| json!({ "lanes": [lane], "what": { "ByIds": [id] } }).to_string();
    let (asked, sealed) = (question("t"), pair.sealed(&question("t")));
    let without = |name: &str| {
        let kept = sealed.iter().filter(|(other, _)| *other != name);
        kept.cloned().collect::<Vec<_>>()
    };
    let with = |name: &str, value: &str| {
        let mut all = sealed.clone();
        let (_, old) = all.iter_mut().find(|(other, _)| *other == name).expect("a header");
        value.clone_into(old);
        all.to_vec()
    };
    let twice = [&sealed[..], &sealed[2..]].concat();
    type Case<'a> = (&'a str, &'a str, Vec<(&'static str, String)>, &'a str);
    let (status, told) = pair.peer(owner, peer::PATH, &sealed, &asked).await;
    assert!(status == 200 && told.contains("\"t\""), "{told}");
    let (now, other) = ((NOW + 1).to_string(), question("u"));
    let (_, digest) = pair.sealed(&other)[1].clone();
    #[rustfmt::skip]
    let cases: [Case<'_>; 10] = [
        ("no headers",              peer::PATH,              vec![],                             &asked),
        ("no time",                 peer::PATH,              without("waterclock-time"),         &asked),
        ("no seal",                 peer::PATH,              without("waterclock-seal"),         &asked),
        ("an empty seal",           peer::PATH,              with("waterclock-seal", ""),        &asked),
        ("two seals",               peer::PATH,              twice,                              &asked),
        ("another time",            peer::PATH,              with("waterclock-time", &now),      &asked),
        ("another query",           "/v1/peer?a=b",         sealed.to_vec(),                    &asked),
        ("another body",            peer::PATH,              sealed.to_vec(),                    &other),
        ("another digest",          peer::PATH,              with("waterclock-digest", &digest), &other),
        ("a body that is longer",   peer::PATH,              sealed.to_vec(),                    &format!("{asked} ")),
    ];
    for (why, path, headers, body) in cases {
        let (status, told) = pair.peer(owner, path, &headers, body).await;
        assert!(status == 403 && told.contains("not_a_peer"), "{why}: {status} {told}");
    }
    // By the brokers' time: 30 s of age or of difference are taken, and no more.
    for (at, want) in [(30_000, 200), (30_001, 403), (-30_000, 200), (-30_001, 403)] {
        pair.with(|world| world.now = NOW.wrapping_add_signed(at));
        let (status, told) = pair.peer(owner, peer::PATH, &sealed, &asked).await;
        assert_eq!(status, want, "{at}: {told}");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_owners_is_not_given_out() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"k"), 1_000);
    let fake = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = fake.local_addr().unwrap().to_string();
    let answer = async || r#"{"Ok":{"Found":[null]}}"#;
    let app = Router::new().route(peer::PATH, post(answer));
    tokio::spawn(async move { axum::serve(fake, app).await });
    let lane = lane_of(&name);
    pair.with(|world| world.addresses[usize::from(lane % 2)] = address);
    let asked = usize::from(1 - lane % 2);
    let (status, _, told) = pair.ask(asked, "GET", "/v1/timers/t?key=k", None).await;
    assert_eq!((status, &told["code"]), (503, &json!("lane_moving")), "{told}");
}

#[tokio::test]
async fn callers_that_wait_are_bounded_and_keep_nobody_from_looking() {
    let pair = Arc::new(Pair::start().await);
    pair.put("t", Some(b"k"), 1_000);
    pair.with(|world| world.pending = true);
    let owner =
        usize::from(lane_of(&TimerName { id: "t".to_owned(), key: Some(b"k".to_vec()) }) % 2);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let pair = Arc::clone(&pair);
        waiting.spawn(async move {
            pair.ask(owner, "DELETE", "/v1/timers/t?key=k&wait=60s", None).await
        });
    }
    for _ in 0..12 {
        let (status, headers, told) = waiting.join_next().await.expect("one").expect("no panic");
        assert_eq!((status, &told["code"]), (503, &json!("too_busy")), "{told}");
        assert_eq!(headers["retry-after"], "1");
    }
    let trouble = pair.gates[owner].trouble();
    assert!(matches!(&trouble[..], [one] if one.contains("8 at once")), "{trouble:?}");
    for path in ["/v1/timers/t?key=k", "/v1/timers", "/health/ready", "/metrics"] {
        let asked = pair.ask(owner, "GET", path, None);
        let told = tokio::time::timeout(patient(SOON), asked).await.expect(path);
        assert_eq!(told.0, 200, "{path}");
    }
    // The other one is asked for the same: it has places of its own, and the owner has some for it.
    let asked = pair.ask(1 - owner, "DELETE", "/v1/timers/t?key=k&wait=0s", None);
    let told = tokio::time::timeout(patient(SOON), asked).await.expect("an answer");
    assert_eq!(told.0, 202, "{}", told.2);
    // A client that goes away gives the place back.
    waiting.shutdown().await;
    let (status, told) = eventually("there is a place", async || {
        match pair.ask(owner, "DELETE", "/v1/timers/t?key=k&wait=0s", None).await {
            (503, _, told) => Err(told.to_string()),
            (status, _, told) => Ok((status, told)),
        }
    })
    .await;
    assert_eq!(status, 202, "{told}");
}

#[tokio::test]
async fn a_page_of_the_web_reaches_no_timer_and_a_form_is_no_request() {
    let pair = Pair::start().await;
    let name = pair.put("t", Some(b"k"), 1_000);
    let body = r#"{"timers":[{"id":"t","key":"k"}]}"#;
    let (json, form) = ("content-type: application/json", "content-type: text/plain");
    #[rustfmt::skip]
    let cases = [
        ("another name",        "DELETE /v1/timers/t?key=k HTTP/1.1\r\nHost: evil.example", "", 403, "foreign_host"),
        ("another target",      "DELETE http://evil.example/v1/timers/t?key=k HTTP/1.1\r\nHost: localhost", "", 403, "foreign_host"),
        ("no name",             "DELETE /v1/timers/t?key=k HTTP/1.1", "", 403, "foreign_host"),
        ("another page",        "DELETE /v1/timers/t?key=k HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example", "", 403, "cross_site"),
        ("a page of nowhere",   "DELETE /v1/timers/t?key=k HTTP/1.1\r\nHost: localhost\r\nOrigin: null", "", 403, "cross_site"),
        ("a form",              &format!("POST /v1/timers:batchCancel HTTP/1.1\r\nHost: localhost\r\n{form}"), body, 415, "not_json_type"),
        ("by another name",     &format!("POST /v1/timers:batchCancel HTTP/1.1\r\nHost: evil.example\r\n{json}"), body, 403, "foreign_host"),
        ("no such page",        "GET /v1/nothing HTTP/1.1\r\nHost: evil.example", "", 403, "foreign_host"),
        ("health by any name",  "GET /health/live HTTP/1.1\r\nHost: evil.example", "", 200, ""),
        ("figures by any name", "GET /metrics HTTP/1.0", "", 200, ""),
    ];
    for (why, head, body, want, code) in cases {
        let mut stream = tokio::net::TcpStream::connect(pair.addresses[0]).await.unwrap();
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let request = format!("{head}\r\nConnection: close\r\n{length}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer[9..].starts_with(&want.to_string()), "{why}: {answer}");
        assert!(answer.contains(code), "{why}: {answer}");
    }
    assert_eq!(pair.state(&name), "delay");
    assert_eq!(pair.with(|world| world.answers.len()), 0, "nothing was even written");
}

#[test]
fn what_waits_has_other_places_than_what_does_not() {
    let of = |method: &str, path: &str| kind(&method.parse().expect("a method"), path);
    assert_eq!(of("GET", "/v1/timers/a"), Kind::Look);
    assert_eq!(of("HEAD", "/v1/timers/"), Kind::Look);
    assert_eq!(of("DELETE", "/v1/timers/a"), Kind::Wait);
    assert_eq!(of("PATCH", "/v1/timers/a"), Kind::Wait);
    assert_eq!(of("GET", "/v1/cancels/a"), Kind::Wait);
    for path in ["/v1/timers", "/v1/timers:batchGet", "/v1/forecast", "/v1/nothing"] {
        assert_eq!(of("GET", path), Kind::Large, "{path}");
    }
}
