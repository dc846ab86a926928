//! Reports about when a deadline is over, while the owner of the lanes is killed. Which of them count is judged by the times of
//! their records in the intake, and never by what was answered: of a dead owner nothing is heard.

use std::thread::{scope, sleep};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::{Api, fixture, launch};
use super::{Appended, HANDED_OVER, Handed, Intake, TRIES, Topic, next_at, report, wait_until};
use crate::support::{Fixture, PATIENCE, Process, Rec, eventually, now_ms, patience, patient};

/// Tasks of a round.
const TASKS: usize = 24;
/// So long before the first deadline of a round the owner of the lanes dies, and the next one has this data directory. One that
/// has that of the dead has the lanes as soon as it runs; for any other the session has to expire.
const KILLS: [(u64, &str); 3] = [(150, "b"), (20, "c"), (2_500, "c")];
/// Within so long after the kill the next owner acts on what is due: the session timeout, and the take-over.
const TAKEN_OVER: Duration = Duration::from_secs(6 + 4);
/// The wait before a retry.
const INTERVAL_MS: u64 = 1_000;
/// What executors of a first turn call themselves, and how far they say that they are.
const FIRST: &str = "first";
const CURSOR: &str = "row:7";

/// What an executor does about its deadline.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Finish,
    Fail,
    Beat,
    /// It goes on, and finishes when the deadline is over that its heartbeat has moved.
    BeatAndFinish,
    BeSilent,
}

impl Plan {
    fn of(nth: usize) -> Self {
        match nth % 12 {
            0..=4 => Self::Finish,
            5..=7 => Self::Fail,
            8 => Self::Beat,
            9 | 10 => Self::BeatAndFinish,
            _ => Self::BeSilent,
        }
    }
}

/// What was heard of a report.
#[derive(Debug)]
struct Heard {
    outcome: &'static str,
    /// When it was sent the last time.
    sent: u64,
    status: u16,
    /// Kafka has it, as far as the answer says.
    is_appended: bool,
}

/// The first turn of a task.
struct Task {
    id: String,
    value: String,
    plan: Plan,
    ticket: String,
    next_at: u64,
    /// So long before a deadline its executor reports.
    before: u64,
}

impl Task {
    fn say(&self, api: &Api, outcome: &str) -> (u16, Value) {
        let (path, body) = match outcome {
            "started" => {
                ("heartbeat", json!({"ticket": self.ticket, "worker": FIRST, "cursor": CURSOR}))
            }
            _ => (
                "result",
                json!({
                    "ticket": self.ticket, "worker": FIRST, "outcome": outcome, "error": "no stock",
                }),
            ),
        };
        api.ask("POST", &format!("/v1/tasks/{}/{path}", self.id), Some(&body))
    }

    /// Reports again and again, until somebody takes it or the turn is over by then.
    fn insist(&self, api: &Api, outcome: &'static str, until: u64) -> Heard {
        loop {
            let sent = now_ms();
            let (status, told) = self.say(api, outcome);
            let detail = told["detail"].as_str().unwrap_or_default();
            let is_appended = status == 200 || detail.starts_with("the report is written");
            if is_appended || status != 503 || now_ms() >= until {
                return Heard { outcome, sent, status, is_appended };
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Does as planned about the deadline.
    fn execute(&self, api: &Api, period: u64) -> Vec<Heard> {
        wait_until(self.next_at - self.before);
        let insist = |outcome| self.insist(api, outcome, self.next_at);
        match self.plan {
            Plan::Finish => vec![insist("finished")],
            Plan::Fail => vec![insist("failed")],
            Plan::Beat => vec![insist("started")],
            Plan::BeatAndFinish => {
                let beat = insist("started");
                if !beat.is_appended {
                    return vec![beat];
                }
                // It counts from its append on, which was later.
                let next_at = beat.sent + period;
                wait_until(next_at - self.before);
                vec![beat, self.insist(api, "finished", next_at)]
            }
            Plan::BeSilent => Vec::new(),
        }
    }
}

/// What a first turn comes to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Finished,
    /// Since then.
    Failed(u64),
    /// Nobody reported until then.
    Silent(u64),
    /// A report came so late that it may count or not.
    Late,
}

impl Verdict {
    fn of(reports: &[Appended], mut next_at: u64, period: u64) -> Self {
        for report in reports {
            if !report.is_in_time(next_at) {
                return Self::Late;
            }
            match &*report.outcome {
                "finished" => return Self::Finished,
                "failed" => return Self::Failed(report.at),
                "started" => next_at = report.at + period,
                other => panic!("{other} was not reported"),
            }
        }
        Self::Silent(next_at)
    }
}

/// A task that has ended, and how often it was handed over.
struct Ended {
    id: String,
    value: String,
    turns: usize,
}

/// What a round has shown.
#[derive(Debug, Default)]
struct Shown {
    finished: usize,
    /// Of those, the ones that the dead owner has not answered.
    unanswered: usize,
    failed: usize,
    silent: usize,
    late: usize,
    /// Of all but those that are late, the ones with a heartbeat in time.
    kept: usize,
}

/// The processes and the topics of the test.
struct Race<'a> {
    fixture: &'a Fixture,
    api: Api,
    owner: Process,
    topic: Topic,
    intake: Intake,
    /// From the delivery to the deadline, and from a heartbeat to the next one.
    period: u64,
}

impl Race<'_> {
    /// Creates tasks, and gives them once their first turns are with their executors.
    fn tasks(&mut self, project: &str) -> Vec<Task> {
        let task = |nth: usize| {
            json!({
                "type": "kafka", "project": project, "group": "g", "delay": "1s",
                "topic": self.topic.name, "value": format!("{project} {nth}"),
                "feedback": {"deadline": self.period / 1_000},
                // Enough for a third turn, and for a fourth.
                "retry": {"count": 3, "interval": INTERVAL_MS / 1_000},
            })
        };
        let ids = self.api.create_all((0..TASKS).map(task).collect());
        let running = self.api.wait_for(PATIENCE, project, "running", TASKS);
        let find = |seen: &[Rec], value: &str| seen.iter().find(|rec| rec.text() == value).cloned();
        let values: Vec<String> = (0..TASKS).map(|nth| format!("{project} {nth}")).collect();
        let seen = self.topic.log.until("all first turns are handed over", |seen| {
            values.iter().all(|value| find(seen, value).is_some())
        });
        let of = |(nth, (id, value)): (usize, (String, String))| {
            let handed = Handed::of(&find(seen, &value).expect("it was handed over"));
            let shown = running.iter().find(|task| task["task_id"] == *id);
            let shown = shown.unwrap_or_else(|| panic!("{id} is not running"));
            assert_eq!(shown["turn"], 1, "{shown}");
            let before = 20 + 20 * (nth as u64 * 7 % 12);
            let (plan, ticket) = (Plan::of(nth), handed.ticket);
            Task { id, value, plan, ticket, next_at: next_at(shown), before }
        };
        ids.into_iter().zip(values).enumerate().map(of).collect()
    }

    /// Kills the owner of the lanes so long before the first deadline, has another one started, and has all tasks ended: whatever
    /// is handed over again is finished at once. Gives when the owner was dead, and what first executors heard.
    fn run(&mut self, tasks: &[Task], project: &str, kill: (u64, &str)) -> (u64, Vec<Vec<Heard>>) {
        let (api, period) = (&self.api, self.period);
        let (owner, topic, intake) = (&mut self.owner, &mut self.topic, &mut self.intake);
        let first = tasks.iter().map(|task| task.next_at).min().expect("there are some");
        scope(|scope| {
            let execute = |task| scope.spawn(move || Task::execute(task, api, period));
            let executors: Vec<_> = tasks.iter().map(execute).collect();
            wait_until(first - kill.0);
            owner.kill();
            let killed = now_ms();
            *owner = launch(self.fixture, kill.1, "lanes").spawn();
            let mut known = topic.log.seen.len();
            let list = format!("/v1/tasks?limit=1000&project={project}&status=finished");
            eventually("all tasks are finished", || {
                topic.log.read_on(Duration::from_millis(50));
                intake.0.read_on(Duration::from_millis(50));
                for rec in &topic.log.seen[known..] {
                    let task = tasks.iter().find(|task| task.value == rec.text());
                    let (task, handed) = (task.expect("one of this round"), Handed::of(rec));
                    scope.spawn(move || {
                        let told = report(api, &task.id, &handed.ticket, "finished");
                        assert_eq!(told, (200, json!({"outcome": "finished"})), "{}", task.id);
                    });
                }
                known = topic.log.seen.len();
                // Nobody answers for lanes without an owner.
                let (_, told) = api.ask("GET", &list, None);
                let finished = told["tasks"].as_array().map_or(0, Vec::len);
                if finished == tasks.len() {
                    Ok(())
                } else {
                    Err(format!("{finished} are: {told}"))
                }
            });
            owner.wait_until_ready();
            let heard = executors.into_iter().map(|of| of.join().expect("it is answered"));
            (killed, heard.collect())
        })
    }

    /// A round, and what it has shown; `None` if this machine was too slow to show anything.
    fn round(&mut self, project: &str, kill: (u64, &str)) -> (Vec<Ended>, Option<Shown>) {
        let tasks = self.tasks(project);
        let (killed, heard) = self.run(&tasks, project, kill);
        // What came while the last of them ended.
        self.topic.log.read_on(Duration::from_millis(300));
        self.intake.0.read_on(Duration::from_millis(300));
        let (mut ended, mut shown, mut is_slow) = (Vec::new(), Shown::default(), false);
        for (task, heard) in tasks.into_iter().zip(heard) {
            let Task { id, value, plan, next_at, .. } = task;
            let (handed, reports) = (self.topic.seen(&value), self.reports(&id, &heard));
            let (first, later) = reports
                .into_iter()
                .partition::<Vec<_>, _>(|report| report.worker.as_deref() == Some(FIRST));
            let verdict = Verdict::of(&first, next_at, self.period);
            let shows =
                format!("{id} {plan:?} {verdict:?} {next_at} {killed}: {heard:?} {first:?}");
            let task = self.api.task(&id);
            let attempts = &task["attempts"];
            ended.push(Ended { id, value, turns: handed.len() });
            // A second turn that is finished late is over by its own deadline.
            if let Some(second) = handed.get(1)
                && later.first().is_none_or(|of| of.at > second.at + self.period / 2)
            {
                println!("the second turn was finished late: {shows} {later:?}");
                is_slow = true;
                continue;
            }
            let turns: Vec<&str> = handed.iter().map(|of| &*of.attempt).collect();
            let (is_one, is_two) = (turns == ["1"], turns == ["1", "2"]);
            let again = handed.get(1).map_or(0, |second| second.at);
            // By when a turn is handed over that follows one that was over then.
            let by = |over: u64| {
                let since = over.max(killed + patient(TAKEN_OVER).as_millis() as u64);
                since + INTERVAL_MS + patient(HANDED_OVER).as_millis() as u64
            };
            let has_beaten = first.iter().any(|report| report.outcome == "started");
            shown.kept += usize::from(has_beaten && verdict != Verdict::Late);
            match verdict {
                Verdict::Finished => {
                    assert!(is_one, "{turns:?} {shows}");
                    assert_eq!(attempts[0]["outcome"], "finished", "{task} {shows}");
                    shown.finished += 1;
                    shown.unanswered += usize::from(heard.last().is_none_or(|of| of.status != 200));
                }
                Verdict::Failed(at) => {
                    assert!(is_two, "{turns:?} {shows}");
                    assert!((at + INTERVAL_MS..by(at)).contains(&again), "at {again}: {shows}");
                    assert_eq!(attempts[0]["error"], "no stock", "{task} {shows}");
                    shown.failed += 1;
                }
                Verdict::Silent(until) => {
                    assert!(is_two, "{turns:?} {shows}");
                    let when = until + INTERVAL_MS..by(until);
                    assert!(when.contains(&again), "at {again}: {shows}");
                    let error = attempts[0]["error"].as_str().unwrap_or_default();
                    assert!(error.starts_with("timeout"), "{task} {shows}");
                    shown.silent += 1;
                }
                Verdict::Late => {
                    assert!(is_one || is_two, "{turns:?} {shows}");
                    shown.late += 1;
                }
            }
        }
        println!("{project}, killed {} ms before its first deadline: {shown:?}", kill.0);
        let is_shown = !is_slow && shown.finished > 0;
        (ended, is_shown.then_some(shown))
    }

    /// All reports about a task. What was acknowledged is among them.
    fn reports(&mut self, id: &str, heard: &[Heard]) -> Vec<Appended> {
        eventually("what was acknowledged stands in the intake", || {
            let reports = self.intake.seen(id);
            let lacks = heard.iter().find(|heard| {
                let is_it = |of: &Appended| {
                    of.worker.as_deref() == Some(FIRST) && of.outcome == heard.outcome
                };
                heard.is_appended && !reports.iter().any(is_it)
            });
            match lacks {
                None => Ok(reports),
                Some(heard) => {
                    self.intake.0.read_on(Duration::from_millis(50));
                    Err(format!("{id} {heard:?}: {reports:?}"))
                }
            }
        })
    }
}

#[test]
fn a_report_in_time_counts_though_the_owner_of_the_lanes_dies_about_its_deadline() {
    let fixture = fixture("tasks-feedback-raced");
    let owner = launch(&fixture, "a", "lanes").start();
    // There is no process with the API alone.
    let mut server = launch(&fixture, "api", "worker,api").start();
    let mut race = Race {
        fixture: &fixture,
        api: Api::of(&server),
        owner,
        topic: Topic::new(&fixture),
        intake: Intake::open(&fixture),
        period: 4_000 * u64::from(patience()),
    };
    let (mut all, mut sum) = (Vec::new(), Shown::default());
    for (nth, kill) in KILLS.into_iter().enumerate() {
        let shown = (0..TRIES).find_map(|again| {
            let (ended, shown) = race.round(&format!("round-{nth}-{again}"), kill);
            all.extend(ended);
            // Of the first one some reports come while nobody has the lanes.
            shown.filter(|shown| nth > 0 || shown.unanswered > 0)
        });
        let shown = shown.expect("a success was appended in time, and decided by the next owner");
        sum.failed += shown.failed;
        sum.silent += shown.silent;
        sum.kept += shown.kept;
    }
    for (what, count) in [("failed", sum.failed), ("silent", sum.silent), ("kept", sum.kept)] {
        assert!(count > 0, "no first turn was {what}");
    }
    // No deadline, and no retry, of what has ended is left.
    sleep(Duration::from_millis(race.period + INTERVAL_MS + 2_000));
    race.topic.log.read_on(Duration::from_secs(2));
    for Ended { id, value, turns } in &all {
        assert_eq!(race.topic.seen(value).len(), *turns, "no turn follows an end: {id}");
        let task = race.api.task(id);
        assert_eq!(task["task_status"], "finished", "{task}");
    }
    race.owner.stop_well();
    server.stop_well();
}
