//! What a worker counts.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, gauge, histogram};

use waterclock_engine::header::Code;
use waterclock_engine::member::Renewed;
use waterclock_engine::task::result::Outcome;

use super::names::{
    BATCHES, COMMIT, DEAD_LETTERS, IN_DOUBT, LOST, Level, PRODUCERS_RENEWED, RESULTS, TASKS_READ,
    TASKS_WAITING, WORKER_MEMORY, WORKER_PAUSED, reason_of,
};

/// What a worker counts, with every handle looked up beforehand.
pub struct WorkerFigures {
    read: Counter,
    /// By position in [`Outcome::ALL`].
    results: Vec<Counter>,
    in_doubt: Counter,
    batches: Counter,
    /// By position in [`Code::ALL`].
    dead_letters: Vec<Counter>,
    commit: Histogram,
    /// By position in [`Renewed::ALL`].
    renewed: Vec<Counter>,
    lost: Counter,
}

impl Default for WorkerFigures {
    /// Looks the handles up.
    fn default() -> Self {
        let result = |of: Outcome| counter!(RESULTS, "outcome" => of.as_str());
        let code = |code: &Code| counter!(DEAD_LETTERS, "code" => code.as_str());
        let reason = |why| counter!(PRODUCERS_RENEWED, "reason" => reason_of(why));
        Self {
            read: counter!(TASKS_READ),
            results: Outcome::ALL.into_iter().map(result).collect(),
            in_doubt: counter!(IN_DOUBT),
            batches: counter!(BATCHES),
            dead_letters: Code::ALL.iter().map(code).collect(),
            commit: histogram!(COMMIT),
            renewed: Renewed::ALL.into_iter().map(reason).collect(),
            lost: counter!(LOST),
        }
    }
}

impl WorkerFigures {
    /// A task was read.
    pub fn read(&self) {
        self.read.increment(1);
    }

    /// A batch is committed.
    pub fn batch(&self) {
        self.batches.increment(1);
    }

    /// A result of a batch that is committed says this of its turn.
    pub fn result(&self, outcome: Outcome, in_doubt: bool) {
        count(&self.results, &Outcome::ALL, outcome);
        self.in_doubt.increment(in_doubt.into());
    }

    /// A dead letter of a batch that is committed has this code.
    pub fn dead_letter(&self, code: Code) {
        count(&self.dead_letters, Code::ALL, code);
    }

    /// A transaction took so long.
    pub fn committed(&self, took: Duration) {
        self.commit.record(took);
    }

    /// A producer was renewed.
    pub fn renewed(&self, why: Renewed) {
        count(&self.renewed, &Renewed::ALL, why);
    }

    /// `count` tasks were deleted before they were done.
    pub fn lost(&self, count: u64) {
        self.lost.increment(count);
    }
}

fn count<T: PartialEq>(counters: &[Counter], all: &[T], of: T) {
    let at = all.iter().position(|known| *known == of);
    if let Some(counter) = at.and_then(|at| counters.get(at)) {
        counter.increment(1);
    }
}

/// What a worker holds now.
pub struct WorkerLevels {
    /// Tasks whose calls have not begun.
    pub waiting: Level,
    /// Partitions paused.
    pub paused: Level,
    /// Bytes of tasks in memory.
    pub memory_bytes: Level,
}

impl Default for WorkerLevels {
    /// Looks the handles up.
    fn default() -> Self {
        Self {
            waiting: Level::new(gauge!(TASKS_WAITING)),
            paused: Level::new(gauge!(WORKER_PAUSED)),
            memory_bytes: Level::new(gauge!(WORKER_MEMORY)),
        }
    }
}
