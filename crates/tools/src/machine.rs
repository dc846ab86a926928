//! What a figure needs beside it: the machine, and what a process used of it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde::Serialize;

use waterclock_kafka::bench;

/// The machine and the versions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cores: usize,
    pub(super) kernel: Option<String>,
    /// Load average of a minute when the bench began, and when it ended.
    pub(super) load_before: Option<f64>,
    pub(super) load_after: Option<f64>,
    pub(super) waterclock: &'static str,
    pub(super) librdkafka: String,
    pub(super) kafka: Option<String>,
    /// Whether the compiler optimized: figures of another build are worth nothing.
    pub(super) optimized: bool,
}

impl Machine {
    pub(super) fn look(kafka: Option<String>) -> Self {
        let text = |path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: text("/proc/sys/kernel/osrelease"),
            load_before: load(),
            load_after: None,
            waterclock: env!("CARGO_PKG_VERSION"),
            librdkafka: bench::librdkafka(),
            kafka,
            optimized: !cfg!(debug_assertions),
        }
    }
}

/// The load average of the last minute.
pub(super) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Processor time of a process, by the names of its threads. Empty where the system does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cpu(BTreeMap<String, Duration>);

impl Cpu {
    /// Since the process began.
    pub(super) fn of(process: u32) -> Self {
        let mut all = BTreeMap::new();
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let read = |file| fs::read_to_string(task.path().join(file));
            // A thread may end during the reading.
            let (Ok(name), Ok(stat)) = (read("comm"), read("schedstat")) else { continue };
            let ran = stat.split_whitespace().next().and_then(|ns| ns.parse().ok());
            *all.entry(name.trim().to_owned()).or_default() +=
                Duration::from_nanos(ran.unwrap_or_default());
        }
        Self(all)
    }

    /// What was used between `earlier` and this.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let used = |(name, now): (&String, &Duration)| {
            (name.clone(), now.saturating_sub(earlier.0.get(name).copied().unwrap_or_default()))
        };
        Self(self.0.iter().map(used).collect())
    }

    pub(super) fn total(&self) -> Duration {
        self.0.values().sum()
    }

    /// Microseconds for each of `records`, by thread, the most first; idle threads are left out.
    pub(super) fn per_record_us(&self, records: u64) -> Vec<(String, f64)> {
        let each = |used: &Duration| used.as_secs_f64() * 1e6 / records.max(1) as f64;
        let mut all: Vec<_> =
            self.0.iter().map(|(name, used)| (name.clone(), each(used))).collect();
        all.retain(|(_, us)| *us >= 0.01);
        all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        all
    }
}

/// Most memory that a process had at once, in bytes.
pub(super) fn memory_peak(process: u32) -> Option<u64> {
    status(process, "VmHWM:")
}

/// Memory that a process has now, in bytes.
pub(super) fn memory(process: u32) -> Option<u64> {
    status(process, "VmRSS:")
}

fn status(process: u32, what: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(what))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_told_by_thread_and_by_record() {
        let cpu = |ms: [u64; 2]| {
            let names = ["lane", "commit"];
            let each =
                names.iter().zip(ms).map(|(n, ms)| ((*n).to_owned(), Duration::from_millis(ms)));
            Cpu(each.collect())
        };
        let used = cpu([10, 25]).since(&cpu([10, 5]));
        assert_eq!(used.total(), Duration::from_millis(20));
        assert_eq!(used.per_record_us(10_000), [("commit".to_owned(), 2.0)]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_used_processor_and_memory() {
        assert!(Cpu::of(std::process::id()).total() > Duration::ZERO);
        assert!(memory_peak(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
    }
}
