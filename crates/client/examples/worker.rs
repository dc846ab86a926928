//! An executor of runs: settles accounts. A run's value says how many rows there are (1,000 if it says nothing). Each shard adds up
//! its own: row r is of shard r mod n. A pool does it, with three producers, five consumers, and a queue of 100 rows.
//!
//! ```sh
//! waterclock topics apply && waterclock run --allow settlement --http 127.0.0.1:8080 &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic settlement --partitions 12
//! cargo run -p waterclock-client --example worker -- localhost:9092 http://127.0.0.1:8080 settlement 4 30
//! ```
//!
//! Each shard prints a line when it begins, and one when it ends, with the monotonic clock of the machine and the wall clock, in
//! milliseconds. `last` of the end is when it settled its last row, by the first of them. Start it more than once, kill one, freeze
//! one (`kill -STOP`) and let it go on: no two of them ever work on one shard. With `LEDGER=FILE` each row that was settled is a line
//! of that file. Kill one in the middle: no row is missing there in the end, and the next turn has settled none below its cursor.

#![allow(clippy::print_stdout, reason = "it says what it does")]
#![allow(clippy::disallowed_methods, reason = "a program reads its environment and its clock")]

use std::fs::File;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use waterclock_client::tasks::{Tasks, TasksConfig};
use waterclock_client::worker::pool::{Load, Pool};
use waterclock_client::worker::{Context, Event, Failed, Handler, Shard, Worker};
use waterclock_client::{ClientConfig, Token};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "\
worker BROKERS SERVER TOPIC [WEIGHT [HEARTBEAT]]
  WEIGHT: how many shards at a time, 1 if it is not said
  HEARTBEAT: that of the tasks, in seconds; the worker asks SERVER for it if it is not said
The value of a run is how many rows it has: 1000 if it has none.

TOKEN in the environment is the bearer token, PAUSE how many milliseconds a row takes (10), LEDGER a file of the settled rows.";

/// Producers of a shard, each of which loads a part of its rows.
const PRODUCERS: u32 = 3;
const CONSUMERS: usize = 5;
/// Rows that were loaded and wait.
const QUEUE: usize = 100;

struct Settle {
    pause: Duration,
    ledger: Option<Arc<Ledger>>,
}

/// What was settled. Here you have your database.
struct Ledger(File);

impl Ledger {
    /// Goes on with the file of this name.
    fn open(path: &str) -> io::Result<Self> {
        File::options().create(true).append(true).open(path).map(Self)
    }

    /// `3/60 turn 1 row 123`, in one piece: a process that is killed leaves no half of a line.
    fn settle(&self, shard: &Shard, row: u64) -> io::Result<()> {
        let Shard { index, count, attempt, .. } = shard;
        (&self.0).write_all(format!("{index}/{count} turn {attempt} row {row}\n").as_bytes())
    }
}

/// The clock that runs since the machine was started, in milliseconds: the same for all processes.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000 + now.tv_nsec / 1_000_000).unwrap_or_default()
}

impl Settle {
    /// `begin id shard 3/60 turn 1 cursor ["7"] mono 1234 wall 1795295275106 ...`
    fn say(&self, what: &str, shard: &Shard, more: &str) {
        let Shard { task_id, index, count, attempt, cursor, .. } = shard;
        let cursor = cursor.as_deref().unwrap_or("-");
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mono = monotonic();
        println!(
            "{what} {task_id} shard {index}/{count} turn {attempt} cursor {cursor} mono {mono} wall {wall}{more}"
        );
    }
}

/// The end of a handler, however it ends: it says `dropped` if its turn was over.
struct End<'a> {
    of: &'a Settle,
    shard: Shard,
    sums: Arc<Sums>,
    with: String,
}

/// What was settled in this turn.
#[derive(Default)]
struct Sums {
    rows: AtomicU64,
    sum: AtomicU64,
    /// When the last row was.
    last: AtomicU64,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let Sums { rows, sum, last } = &*self.sums;
        let more = format!(" last {} rows {} sum {} {}", of(last), of(rows), of(sum), self.with);
        self.of.say("end", &self.shard, &more);
    }
}

impl Handler for Settle {
    async fn run(&self, shard: Shard, context: Context) -> Result<Value, Failed> {
        self.say("begin", &shard, "");
        let sums = Arc::new(Sums::default());
        let (settled, pause, ledger) = (Arc::clone(&sums), self.pause, self.ledger.clone());
        let with = "dropped".to_owned();
        let mut end = End { of: self, shard: shard.clone(), sums, with };
        let text = String::from_utf8_lossy(&shard.value);
        let wrong = |_| Failed::gone(format!("the value is {text:?}; want a number of rows"));
        let rows: u64 = if text.is_empty() { 1_000 } else { text.trim().parse().map_err(wrong)? };
        // Here you read them from a database. Each part has every third row of the shard.
        let load = move |load: Load| async move {
            let after = load.cursor.map(|cursor| cursor.parse::<u64>()).transpose()?;
            let (index, count) = (u64::from(load.shard.index), u64::from(load.shard.count));
            let first = index + count * u64::from(load.part.index);
            let step = count * u64::from(load.part.count);
            let from = after.map_or(first, |after| after.saturating_add(step));
            let next = (from..rows).step_by(usize::try_from(step)?).take(load.limit);
            Ok(next.map(|row| (row.to_string(), row)).collect())
        };
        // And here you settle one. It may be done again if this turn is lost, so it does no harm to do it twice.
        let process = move |shard: Arc<Shard>, row: u64| {
            let (settled, ledger) = (Arc::clone(&settled), ledger.clone());
            async move {
                tokio::time::sleep(pause).await;
                ledger.map_or(Ok(()), |ledger| ledger.settle(&shard, row))?;
                settled.rows.fetch_add(1, Ordering::Relaxed);
                settled.sum.fetch_add(row, Ordering::Relaxed);
                settled.last.fetch_max(monotonic(), Ordering::Relaxed);
                Ok(())
            }
        };
        let pool = Pool::new(load, process).parts(PRODUCERS).producers(PRODUCERS as usize);
        let done = pool.consumers(CONSUMERS).queue(QUEUE).run(shard, context).await;
        end.with =
            done.as_ref().map_or_else(|failed| format!("failed {failed}"), |_| "done".to_owned());
        done?;
        Ok(json!({ "sum": end.sums.sum.load(Ordering::Relaxed) }))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Err(failure) = work(&arguments).await else { return ExitCode::SUCCESS };
    // And what is behind it.
    let mut why: Option<&(dyn std::error::Error + 'static)> = Some(&*failure);
    while let Some(error) = why {
        eprintln!("{error}");
        why = error.source();
    }
    ExitCode::FAILURE
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, Failure> {
    text.parse().map_err(|_| format!("{name} is {text:?}; want a number\n{USAGE}").into())
}

async fn work(arguments: &[String]) -> Result<(), Failure> {
    let [brokers, server, topic, more @ ..] = arguments else { return Err(USAGE.into()) };
    let token = std::env::var("TOKEN").ok().map(Token::new);
    let pause = std::env::var("PAUSE").ok().map_or(Ok(10), |pause| number("PAUSE", &pause))?;
    let worker = Some(format!("worker-{}", std::process::id()));
    let tasks = Tasks::new(TasksConfig { token, worker, ..TasksConfig::new(server) })?;
    let ledger = std::env::var("LEDGER").ok().map(|path| Ledger::open(&path)).transpose()?;
    let settle = Settle { pause: Duration::from_millis(pause), ledger: ledger.map(Arc::new) };
    let mut worker = Worker::builder(ClientConfig::new(brokers), tasks)
        .handler(topic, settle)
        .weight(more.first().map_or(Ok(1), |weight| number("WEIGHT", weight))?)
        .observe(|event| match event {
            Event::Begun { .. } => {}
            event => eprintln!("{event}"),
        });
    if let Some(heartbeat) = more.get(1) {
        worker = worker.heartbeat(Duration::from_secs(number("HEARTBEAT", heartbeat)?));
    }
    // In a service: until it is told to stop, by a signal say. What is begun ends first.
    worker.build()?.run(std::future::pending()).await?;
    Ok(())
}
