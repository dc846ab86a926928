//! `waterclock run-status`: a run as a grid of its shards, and the shards that matter most; with `--watch` until it has ended.
//!
//! What is shown is a function of one look. A watch takes one each second, on a thread of its own.
//!
//! # Invariants
//! 1. A watch ends with 0 only if the run is finished.
//! 2. An instance that goes does not end a watch: it asks the next one, for two minutes.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use super::client::{Client, ClientError, Kind, typed};
use super::looks::{CHECK_EVERY, Looks, system};
use super::project::To;
use super::runs::show::{counts, done, error, members, none, span, state, unbegun};
use super::runs::{look, path, run_id};
use super::task::show::{length, text, time, word};
use super::{Exit, Failure, Global, Outcome, output, table};
use crate::api::runs::model::{RunView, ShardPage, ShardView};
use crate::client::http::Method;
use crate::engine::task::id::TaskId;
use crate::engine::timers::{RunStatus as Status, ShardState};
use crate::engine::{Millis, UnixMillis};
use crate::kafka::wall_clock;
use crate::terminal::{self, Key, Screen, Stop};

mod grid;

use grid::{Colours, Grid};

/// Between two looks of a watch.
const EVERY: Duration = Duration::from_secs(1);
/// For how long a watch goes on while nobody answers.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Shards in the table.
const SHARDS_SHOWN: usize = 20;
/// Columns where standard output is no terminal.
const COLUMNS: usize = 80;
/// The first line of the screen.
const HINT: &str = "q or Ctrl-C ends it";

const EXAMPLES: &str = "Examples:
  waterclock run-status 9f2c53b1f4e04dd9a4a3d4a0c9cf4c11
  waterclock run-status 9f2c53b1f4e04dd9a4a3d4a0c9cf4c11 --watch && echo all shards are finished
NO_COLOR=1 in the environment leaves colours out.";

/// Arguments of `run-status`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RunStatus {
    /// The id of the run
    #[arg(value_name = "ID", value_parser = run_id)]
    id: TaskId,
    /// Looks again each second until the run has ended: 0 if it is finished then, else 1
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    to: To,
}

/// What is known of a run at one time.
struct Look {
    at: UnixMillis,
    /// As it came: also what a newer instance adds.
    told: Value,
    run: RunView,
    /// The shards that matter most, those first that have failed.
    shards: Vec<ShardView>,
}

impl RunStatus {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let first = Look::take(&client, &self.id, global.json())?;
        if !self.watch {
            first.print(global)?;
            return Ok(Exit::Ok);
        }
        // Nothing is to be written beside the screen.
        let silent = Global { json: true, ..global.clone() };
        let Self { id, to, .. } = self;
        let mut client = Some(client);
        let is_json = global.json();
        let take = move || {
            let asked = match client.take() {
                Some(client) => client,
                None => to.open(&silent)?,
            };
            let look = Look::take(&asked, &id, is_json)?;
            client = Some(asked);
            Ok(look)
        };
        let last = if global.json() || !io::stdout().is_terminal() {
            wait(first, take)?
        } else {
            let looks = Looks::start("wc-run-status", take)?;
            let last = show(first, &looks);
            looks.end();
            last?
        };
        last.print(global)?;
        Ok(ended(last.run.run_status))
    }
}

/// How a watch ends.
fn ended(status: Status) -> Exit {
    if status == Status::Finished { Exit::Ok } else { Exit::Negative }
}

/// Looks until the run has ended, and gives the last look.
fn wait(mut last: Look, mut take: impl FnMut() -> Result<Look, Failure>) -> Result<Look, Failure> {
    let mut silence = Silence::default();
    while !last.run.run_status.is_final() {
        std::thread::sleep(EVERY);
        if let Some(look) = silence.bears(take(), Instant::now())? {
            last = look;
        }
    }
    Ok(last)
}

/// Draws until the run has ended, a key or a signal ends it, or the terminal is gone. Gives the last look.
fn show(mut last: Look, looks: &Looks<Look>) -> Result<Look, Failure> {
    let stop = Stop::listen(|| {}).map_err(system("listen for signals"))?;
    let mut screen = match Screen::open() {
        Err(_) if !io::stdout().is_terminal() => return Ok(last),
        opened => opened.map_err(system("take the terminal over"))?,
    };
    let colours = Colours::of_terminal();
    let (mut silence, mut taken) = (Silence::default(), Instant::now());
    let (mut is_new, mut is_asked) = (true, false);
    while !stop.asked() && !last.run.run_status.is_final() {
        if is_asked && let Some(look) = looks.next() {
            if let Some(look) = silence.bears(look, Instant::now())? {
                last = look;
            }
            (is_new, is_asked, taken) = (true, false, Instant::now());
        }
        if is_new || screen.is_resized() {
            let (columns, rows) = screen.size();
            let view = View { columns, lines: Some((rows / 2).max(1)), colours };
            let note =
                if silence.is_over() { HINT } else { "no instance answers now; asking again" };
            if screen.draw(&format!("{note}\n{}", last.text(view))).is_err() {
                break;
            }
            is_new = false;
        }
        if screen.wait(CHECK_EVERY).map_err(system("read the keys"))? != Key::None {
            break;
        }
        if !is_asked && taken.elapsed() >= EVERY {
            looks.ask();
            is_asked = true;
        }
    }
    Ok(last)
}

/// For how long nobody has answered.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// Takes a look in; `None`: there was no answer, which may pass.
    fn bears<T>(&mut self, look: Result<T, Failure>, now: Instant) -> Result<Option<T>, Failure> {
        match look {
            Ok(look) => {
                self.since = None;
                Ok(Some(look))
            }
            Err(failure) if failure.exit() == Exit::Unavailable => {
                let since = *self.since.get_or_insert(now);
                match now.saturating_duration_since(since) < SILENCE_MAX {
                    true => Ok(None),
                    false => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether somebody answers.
    fn is_over(&self) -> bool {
        self.since.is_none()
    }
}

/// How a look is shown.
#[derive(Clone, Copy)]
struct View {
    columns: usize,
    /// Lines of the grid, at most.
    lines: Option<usize>,
    colours: Colours,
}

impl Look {
    /// `is_bare`: the run alone.
    fn take(client: &Client, id: &TaskId, is_bare: bool) -> Result<Self, ClientError> {
        let told = look(client, id)?;
        let run: RunView = typed(&told)?;
        let mut shards = Vec::new();
        if !is_bare {
            for (state, count) in notable(&run) {
                let most = count.min(SHARDS_SHOWN.saturating_sub(shards.len()));
                if most > 0 {
                    let query = [("state", state.to_owned()), ("limit", most.to_string())];
                    let path = path(id, "/shards");
                    let told = client.ask(Kind::AllLanes, &Method::GET, &path, &query, None)?;
                    shards.extend(typed::<ShardPage>(&told)?.shards);
                }
            }
            shards.truncate(SHARDS_SHOWN);
        }
        Ok(Self { at: wall_clock(), told, run, shards })
    }

    fn print(&self, global: &Global) -> Outcome {
        if global.json() {
            return output::line(&self.told.to_string());
        }
        let columns = terminal::columns().map_or(COLUMNS, usize::from);
        output::write(
            self.text(View { columns, lines: None, colours: Colours::of_terminal() }).as_bytes(),
        )
    }

    /// What people see.
    fn text(&self, View { columns, lines, colours }: View) -> String {
        let run = &self.run;
        let mut shown = format!(
            "run {}  {}/{}  {}\n\n",
            text(&run.run_id),
            text(&run.settings.project),
            text(&run.settings.group),
            word(run.run_status),
        );
        if let Some(states) = &run.grid {
            let grid = Grid { states: &text(states), columns, lines, colours };
            let _ = writeln!(shown, "{}\n", grid.draw());
        }
        let _ = writeln!(shown, "shards {}", counts(run.settings.shards, run.counts));
        let _ = writeln!(shown, "{}", self.times());
        if let Some(count) = run.members {
            let _ = writeln!(shown, "{}", members(count, &run.settings.task));
        }
        if let Some(why) = unbegun(run) {
            let _ = writeln!(shown, "{why}");
        }
        if let Some(table) = self.table() {
            let _ = writeln!(shown, "\n{table}");
        }
        shown
    }

    /// When it is due, expires, or ended.
    fn times(&self) -> String {
        let run = &self.run;
        let (left, over) = (|at: u64| span(UnixMillis(at) - self.at), |at: u64| at <= self.at.0);
        let with_code = |said: String| match &run.code {
            Some(code) => format!("{said} ({})", text(code)),
            None => said,
        };
        match (run.run_status.is_final(), run.ended_at, run.deadline_at) {
            (true, Some(ended), _) => {
                let apart = span(Millis(ended.abs_diff(run.trigger_at)));
                let side = if ended < run.trigger_at { "before" } else { "after" };
                with_code(format!("ended {}, {apart} {side} it was due", time(Some(ended))))
            }
            (true, None, _) => with_code("ended".to_owned()),
            (false, _, Some(deadline)) if over(deadline) => {
                format!("deadline {}, over", time(Some(deadline)))
            }
            (false, _, Some(deadline)) => {
                format!("deadline {}, {} left", time(Some(deadline)), left(deadline))
            }
            (false, _, None) => {
                let due = run.trigger_at;
                let left = if over(due) { "now".to_owned() } else { format!("in {}", left(due)) };
                let deadline = run.settings.deadline.as_ref().map_or_else(none, length);
                format!("due {}, {left}; from then on it has {deadline}", time(Some(due)))
            }
        }
    }

    /// The shards that matter most; `None`: there are none.
    fn table(&self) -> Option<String> {
        if self.shards.is_empty() {
            return None;
        }
        let mut table = table::fitted();
        table.set_header(["shard", "state", "worker", "turn", "done", "for", "error"]);
        table.add_rows(self.shards.iter().map(|shard| self.row(shard)));
        let all: usize = notable(&self.run).into_iter().map(|(_, count)| count).sum();
        let more = match all.saturating_sub(self.shards.len()) {
            0 => String::new(),
            more => format!("\nand {more} more"),
        };
        Some(table.trim_fmt() + &more)
    }

    fn row(&self, shard: &ShardView) -> [String; 7] {
        let until = shard.ended.or(self.run.ended_at).map_or(self.at, UnixMillis);
        let lasts = shard.started.map(|started| span(until - UnixMillis(started)));
        [
            shard.index.to_string(),
            state(shard),
            shard.worker.as_deref().map_or_else(none, text),
            shard.turn.to_string(),
            done(shard),
            lasts.unwrap_or_else(none),
            error(shard),
        ]
    }
}

/// The states of shards that matter, as the API writes them, and how many shards are in each. Those first that have failed.
fn notable(run: &RunView) -> [(&'static str, usize); 3] {
    let states = run.grid.as_deref().unwrap_or_default();
    let count = |of: ShardState| states.chars().filter(|state| *state == of.as_char()).count();
    let of = [
        ("failed", ShardState::Failed),
        ("again", ShardState::Again),
        ("executing", ShardState::Executing),
    ];
    of.map(|(name, state)| (name, count(state)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::runs::show::tests::{run, shard};
    use super::*;

    const DUE: u64 = 1_767_225_600_000;

    /// A look that was taken so many milliseconds after the run was due.
    fn look(after: u64, more: Value, shards: Vec<ShardView>) -> Look {
        Look { at: UnixMillis(DUE + after), told: Value::Null, run: run(more), shards }
    }

    fn lines(look: &Look) -> Vec<String> {
        let view = View { columns: 80, lines: None, colours: Colours::NONE };
        let text = look.text(view);
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_run_shows_its_grid_its_counts_its_deadline_and_the_shards_that_matter() {
        let states = format!("{}x{}r{}", "#".repeat(10), ">".repeat(2), "o".repeat(46));
        let shards = vec![
            shard(
                10,
                "failed",
                json!({"turn": 4, "started": DUE, "ended": DUE + 5_000, "error": "no stock"}),
            ),
            shard(13, "again", json!({"worker": "w-2", "turn": 2, "started": DUE + 1_000})),
            shard(11, "executing", json!({"worker": "w-1", "percent": 40, "started": DUE + 500})),
        ];
        let look = look(61_000, json!({"grid": states, "run_status": "re-executing"}), shards);
        assert_eq!(
            lines(&look),
            [
                "run 9f2c shop/settlement re-executing",
                "",
                &format!("0 {states}"),
                "# 10 finished > 2 executing r 1 handed out again o 46 waiting x 1 failed",
                "",
                "shards 60: 60 created, 12 begun, 1 handed out again, 10 finished, 1 failed",
                "deadline 2026-01-02T00:00:00.000Z, 23h58m59s left",
                "",
                "shard state worker turn done for error",
                "10 failed - 4 - 5s no stock",
                "13 handed out again w-2 2 - 1m -",
                "11 executing w-1 1 40 % 1m -",
                "and 1 more",
            ]
        );
    }

    #[test]
    fn the_screen_that_the_document_shows_is_what_is_drawn() {
        let page = include_str!("../../docs/runs.md");
        let (_, block) = page.split_once("```text\nrun 9f2c").expect("a screen");
        let (block, _) = block.split_once("\n```").expect("its end");
        let states =
            block.lines().find_map(|line| line.trim().strip_prefix("0  ")).expect("a grid");
        let at = 1_801_375_210_031_u64 - 21_492_000;
        let (ago, none) = (|seconds: u64| at - seconds * 1_000, json!(null));
        let of = |worker: &str, turn: u32, seconds: u64, percent: &Value| json!({"worker": worker, "turn": turn, "started": ago(seconds), "percent": percent});
        let mut failed = of("w-4", 4, 60, &none);
        failed["ended"] = ago(58).into();
        failed["error"] = "no stock".into();
        let shards = vec![
            shard(10, "failed", failed),
            shard(13, "again", of("w-2", 2, 5, &none)),
            shard(11, "executing", of("w-1", 1, 73, &json!(40))),
            shard(12, "executing", of("w-3", 1, 22, &json!(10))),
        ];
        let more = json!({
            "run_id": "9f2c53b1f4e04dd9a4a3d4a0c9cf4c11", "run_status": "re-executing", "grid": states,
            "deadline_at": at + 21_492_000, "members": 4,
            "counts": {"created": 60, "begun": 19, "again": 1, "finished": 15, "failed": 1},
        });
        let look = Look { at: UnixMillis(at), told: Value::Null, run: run(more), shards };
        let view = View { columns: 80, lines: None, colours: Colours::NONE };
        let lines = |text: &str| -> Vec<String> {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            text.trim_end().lines().map(words).collect()
        };
        assert_eq!(lines(&look.text(view)), lines(&format!("run 9f2c{block}")));
    }

    #[test]
    fn a_run_whose_topic_nobody_reads_says_so() {
        let of = |members: Value| look(0, json!({ "members": members }), Vec::new());
        let nobody = "nobody reads topic settlement: start an executor";
        assert_eq!(lines(&of(json!(0))).last().map(String::as_str), Some(nobody));
        let three = "3 members of consumer groups read topic settlement";
        assert_eq!(lines(&of(json!(3))).last().map(String::as_str), Some(three));
        let unknown = lines(&of(Value::Null));
        assert!(!unknown.iter().any(|line| line.contains("settlement:")), "{unknown:?}");
        assert!(unknown.last().is_some_and(|line| line.starts_with("deadline")), "{unknown:?}");
        let counts = json!({"created": 60, "begun": 0, "again": 0, "finished": 0, "failed": 60});
        let expired = json!({"run_status": "expired", "ended_at": DUE, "counts": counts});
        let why = "no shard was begun: nobody reads topic settlement?";
        assert!(lines(&look(0, expired, Vec::new())).iter().any(|line| line == why));
    }

    #[test]
    fn a_run_says_how_long_is_left() {
        let waiting = json!({"run_status": "waiting", "deadline_at": null});
        let times = |after, more: &Value| look(after, more.clone(), Vec::new()).times();
        assert_eq!(times(0, &waiting), "due 2026-01-01T00:00:00.000Z, now; from then on it has 1d");
        let mut before = look(0, waiting, Vec::new());
        before.at = UnixMillis(DUE - 90_500);
        assert!(before.times().contains(", in 1m30s; "), "{}", before.times());
        assert!(lines(&before).iter().all(|line| !line.contains("waiting ")), "no grid, no legend");
        let late = times(86_400_000, &json!({}));
        assert_eq!(late, "deadline 2026-01-02T00:00:00.000Z, over");
        let finished = json!({"run_status": "finished", "ended_at": DUE + 3_720_000});
        let want = "ended 2026-01-01T01:02:00.000Z, 1h2m after it was due";
        assert_eq!(times(0, &finished), want);
        let failed = json!({"run_status": "failed", "ended_at": DUE, "code": "task_failed"});
        assert!(times(0, &failed).ends_with("0s after it was due (task_failed)"));
        let cancelled = json!({"run_status": "cancelled", "ended_at": DUE - 60_000});
        assert!(
            times(0, &cancelled).ends_with(", 1m before it was due"),
            "{}",
            times(0, &cancelled)
        );
    }

    #[test]
    fn only_a_run_that_is_finished_ends_a_watch_well() {
        for status in Status::ALL {
            let want = if status == Status::Finished { Exit::Ok } else { Exit::Negative };
            assert_eq!(ended(status), want, "{status:?}");
        }
        let finished = json!({"run_status": "finished"});
        // One that has ended is not asked for again.
        let last = wait(look(0, finished, Vec::new()), || panic!("it has ended")).expect("a look");
        assert_eq!(last.run.run_status, Status::Finished);
    }

    #[test]
    fn a_watch_bears_a_silence_of_two_minutes_and_no_refusal() {
        let refused = |status: u16| -> Result<(), Failure> {
            Err(ClientError::Refused { status, detail: "why".to_owned(), at: None }.into())
        };
        let (mut silence, start) = (Silence::default(), Instant::now());
        assert!(silence.bears(refused(404), start).is_err());
        for (seconds, want) in [(0, true), (119, true), (120, false)] {
            let borne = silence.bears(refused(503), start + Duration::from_secs(seconds));
            assert_eq!(borne.is_ok(), want, "{seconds}");
        }
        assert!(!silence.is_over());
        // An answer begins the count anew.
        assert_eq!(silence.bears(Ok(7), start).ok(), Some(Some(7)));
        assert!(silence.is_over());
        assert!(silence.bears(refused(503), start + Duration::from_secs(500)).is_ok());
    }
}
