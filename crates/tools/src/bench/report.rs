//! What a bench found: ratios first, then what they are made from; as a table, as Markdown, as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::tally::Check;
use super::tasks::{Recurring, Tasks};
use super::timeline::Point;
use crate::lateness::Spread;
use crate::machine::Machine;
use waterclock_kafka::Delivery;

/// What stands where nothing was measured.
const NONE: &str = "-";

/// Raw copies of one kind.
#[derive(Debug, Serialize)]
pub(super) struct Copies {
    pub(super) delivery: &'static str,
    /// Records a second of every round, in their order.
    pub(super) rounds_per_second: Vec<f64>,
    pub(super) median_per_second: f64,
    pub(super) checks: Vec<Check>,
}

/// A direct produce to the target, by the same writer to the same reader.
#[derive(Debug, Serialize)]
pub(super) struct Floor {
    pub(super) arrival_ms: Spread,
    pub(super) check: Check,
}

/// All due at one instant.
#[derive(Debug, Serialize)]
pub(super) struct Spike {
    pub(super) delivery: &'static str,
    /// Where they waited: `tiers` or `memory`.
    pub(super) held: &'static str,
    /// Every record has an id.
    pub(super) tracked: bool,
    pub(super) submitted_per_second: f64,
    /// How long before the due instant the last one was acknowledged; negative: it came too late.
    pub(super) submitted_before_due_ms: i64,
    /// From the due instant until the last was with the reader.
    pub(super) drain_ms: f64,
    pub(super) drained_per_second: f64,
    pub(super) of_copy: f64,
    pub(super) process: Process,
    pub(super) check: Check,
    pub(super) course: Vec<Point>,
}

/// A steady rate with one delay.
#[derive(Debug, Serialize)]
pub(super) struct Steady {
    pub(super) delivery: &'static str,
    pub(super) arrival_ms: Spread,
    pub(super) append_ms: Spread,
    pub(super) process: Process,
    pub(super) check: Check,
    pub(super) course: Vec<Point>,
}

/// What a process takes with that many records pending.
#[derive(Debug, Serialize)]
pub(super) struct Pending {
    pub(super) delivery: &'static str,
    pub(super) records: u64,
    /// Resident memory once it had nothing to do any more.
    pub(super) settled_bytes: Option<u64>,
    /// Most that it ever was.
    pub(super) peak_bytes: Option<u64>,
    /// From the first submission until it had nothing to do.
    pub(super) took_seconds: f64,
    /// Processor time used while nothing was due, part of a core.
    pub(super) idle_core: f64,
}

/// What many pending timers cost, and how fast they are found, cancelled and read again.
#[derive(Debug, Serialize)]
pub(super) struct Timers {
    pub(super) delivery: &'static str,
    /// Pending timers.
    pub(super) timers: u64,
    /// From the first submission until waterclock had nothing to do.
    pub(super) took_seconds: f64,
    /// Resident memory then.
    pub(super) settled_bytes: Option<u64>,
    /// Most that it ever was, until then.
    pub(super) peak_bytes: Option<u64>,
    /// The index on disk.
    pub(super) index_bytes: u64,
    /// A request that is answered without looking at anything (`/health/live`).
    pub(super) request_ms: Spread,
    /// A look-up by key and id over HTTP.
    pub(super) look_up_ms: Spread,
    /// A cancel over HTTP, to its decided answer.
    pub(super) cancel_ms: Spread,
    /// From the start of a process that finds its index until a timer of each lane was looked up.
    pub(super) warm_seconds: f64,
    /// The same without an index.
    pub(super) cold_seconds: f64,
    /// The same of a namespace in which nothing is pending: joining the group, and all else that has nothing to do with timers.
    pub(super) empty_seconds: f64,
    /// Look-ups and cancels that were answered otherwise than they had to be.
    pub(super) wrong: u64,
}

/// What the process of waterclock used.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    /// Processor time for each record from its submission to its arrival, in microseconds.
    pub(super) cpu_us: f64,
    /// Of it, what was used after the due instant of a spike, by thread.
    pub(super) drain_cpu_us: Vec<(String, f64)>,
    pub(super) memory_peak_bytes: Option<u64>,
}

/// What was asked for.
#[derive(Debug, Serialize)]
pub(super) struct Parameters {
    pub(super) records: u64,
    pub(super) rate: u64,
    pub(super) seconds: u64,
    pub(super) delay_ms: u64,
    pub(super) lanes: u16,
}

/// The figures that travel between machines, of one way of delivery.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Ratios {
    delivery: &'static str,
    spike_tiers_of_copy: Option<f64>,
    spike_memory_of_copy: Option<f64>,
    tracked_of_untracked_tiers: Option<f64>,
    tracked_of_untracked_memory: Option<f64>,
    p50_above_floor_ms: Option<f64>,
    p99_above_floor_ms: Option<f64>,
}

/// Everything that a bench found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// When it began, RFC 3339, by the brokers' clock.
    pub(super) began: String,
    /// What all its topics began with; they are gone.
    pub(super) namespace: String,
    pub(super) asked: Parameters,
    pub(super) machine: Machine,
    pub(super) copies: Vec<Copies>,
    pub(super) floor: Option<Floor>,
    pub(super) spikes: Vec<Spike>,
    pub(super) steady: Vec<Steady>,
    pub(super) pending: Vec<Pending>,
    pub(super) timers: Vec<Timers>,
    pub(super) tasks: Option<Tasks>,
    pub(super) schedules: Option<Recurring>,
}

/// The name of a way of delivery, as it is configured.
pub(super) fn name(delivery: Delivery) -> &'static str {
    match delivery {
        Delivery::ExactlyOnce => "exactly_once",
        Delivery::AtLeastOnce => "at_least_once",
    }
}

pub(super) fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// One part of another; nothing where there is no other.
pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn thousands(rate: f64) -> String {
    format!("{:.0} k/s", rate / 1_000.0)
}

/// The same for what takes less than a millisecond.
pub(super) fn fine(Spread { p50, p90, p99, max }: Spread) -> String {
    format!("{p50:.2} / {p90:.2} / {p99:.2} / {max:.1}")
}

pub(super) fn spread(Spread { p50, p90, p99, max }: Spread) -> String {
    format!("{p50:.1} / {p90:.1} / {p99:.1} / {max:.0}")
}

impl Spike {
    fn what(&self) -> String {
        let kind = if self.tracked { "spike of timers" } else { "spike" };
        format!("{kind} held in {}, {}", self.held, self.delivery)
    }
}

impl Report {
    /// The name of every check that failed, with what it counted.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut look = |what: String, check: &Check| {
            if !check.holds() {
                failures.push(format!(
                    "{what}: {} of {} delivered, {} duplicates, {} early, {} never sent",
                    check.seen, check.expected, check.duplicates, check.early, check.strangers
                ));
            }
        };
        for copies in &self.copies {
            for check in &copies.checks {
                look(format!("copy as in {}", copies.delivery), check);
            }
        }
        if let Some(floor) = &self.floor {
            look("floor".to_owned(), &floor.check);
        }
        for steady in &self.steady {
            look(format!("steady, {}", steady.delivery), &steady.check);
        }
        for spike in &self.spikes {
            look(spike.what(), &spike.check);
        }
        for (what, check) in self.tasks.iter().flat_map(Tasks::checks) {
            look(what.to_owned(), check);
        }
        for (what, check) in self.schedules.iter().flat_map(Recurring::checks) {
            look(what.to_owned(), check);
        }
        if let Some(late) = self.schedules.as_ref().and_then(Recurring::put_late_ms) {
            failures.push(format!(
                "schedules: made {late} ms after their first time, so their calls show nothing"
            ));
        }
        if let Some(late) = self.tasks.as_ref().and_then(Tasks::created_late_ms) {
            failures.push(format!(
                "spike of calls: created {late} ms after it was due, so it shows nothing"
            ));
        }
        if self.tasks.as_ref().is_some_and(|tasks| !tasks.were_called_again()) {
            failures.push("killed worker: its calls were not made, or not made again".to_owned());
        }
        for timers in self.timers.iter().filter(|timers| timers.wrong > 0) {
            failures.push(format!("timers, {}: {} wrong answers", timers.delivery, timers.wrong));
        }
        for spike in self.spikes.iter().filter(|spike| spike.submitted_before_due_ms < 0) {
            failures.push(format!(
                "{}: submitted {} ms after it was due, so it shows nothing",
                spike.what(),
                -spike.submitted_before_due_ms
            ));
        }
        failures
    }

    pub(super) fn ratios(&self) -> Vec<Ratios> {
        self.copies.iter().map(|copies| self.ratios_of(copies.delivery)).collect()
    }

    fn ratios_of(&self, delivery: &'static str) -> Ratios {
        let spike = |held| Some(rounded(self.spike(delivery, held, false)?.of_copy));
        let tracked = |held| {
            let untracked = self.spike(delivery, held, false)?.drained_per_second;
            let tracked = self.spike(delivery, held, true)?.drained_per_second;
            Some(rounded(ratio(tracked, untracked)))
        };
        let above = |at: fn(&Spread) -> f64| {
            let steady = self.steady.iter().find(|steady| steady.delivery == delivery)?;
            Some(rounded(at(&steady.arrival_ms) - at(&self.floor.as_ref()?.arrival_ms)))
        };
        Ratios {
            delivery,
            spike_tiers_of_copy: spike("tiers"),
            spike_memory_of_copy: spike("memory"),
            tracked_of_untracked_tiers: tracked("tiers"),
            tracked_of_untracked_memory: tracked("memory"),
            p50_above_floor_ms: above(|spread| spread.p50),
            p99_above_floor_ms: above(|spread| spread.p99),
        }
    }

    fn spike(&self, delivery: &str, held: &str, tracked: bool) -> Option<&Spike> {
        let is = |spike: &&Spike| {
            spike.delivery == delivery && spike.held == held && spike.tracked == tracked
        };
        self.spikes.iter().find(is)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "ok": self.failures().is_empty(),
            "failures": self.failures(),
            "ratios": self.ratios(),
            "report": self,
        })
    }

    pub(super) fn table(&self) -> String {
        self.render(presets::UTF8_FULL_CONDENSED)
    }

    pub(super) fn markdown(&self) -> String {
        self.render(presets::ASCII_MARKDOWN)
    }

    fn render(&self, preset: &str) -> String {
        let mut table = Table::new();
        table.load_preset(preset);
        table.set_header(std::iter::once("").chain(self.ways()));
        for (what, cells) in self.rows() {
            // What no case of this run has measured is no row.
            if cells.iter().any(Option::is_some) {
                let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| NONE.to_owned()));
                table.add_row(std::iter::once(what).chain(cells));
            }
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("{}\n\n{table}\n", self.facts())
    }

    /// The ways of delivery that were measured: the columns.
    fn ways(&self) -> Vec<&'static str> {
        let copies = self.copies.iter().map(|copies| copies.delivery);
        let pending = self.pending.iter().map(|pending| pending.delivery);
        let timers = self.timers.iter().map(|timers| timers.delivery);
        let tasks = self.tasks.iter().map(|tasks| tasks.delivery);
        let schedules = self.schedules.iter().map(|schedules| schedules.delivery);
        let tasks = tasks.chain(schedules);
        let mut ways: Vec<_> = copies.chain(pending).chain(timers).chain(tasks).collect();
        ways.dedup();
        ways
    }

    /// One line: when, where, what.
    fn facts(&self) -> String {
        let Machine { cores, kernel, load_before, load_after, waterclock, librdkafka, .. } =
            &self.machine;
        let load =
            |load: &Option<f64>| load.map_or("unknown".to_owned(), |load| format!("{load:.1}"));
        let kafka = self.machine.kafka.as_deref().unwrap_or("of unknown version");
        let build = if self.machine.optimized { "" } else { " (NOT OPTIMIZED: worth nothing)" };
        let Parameters { records, rate, seconds, delay_ms, lanes } = &self.asked;
        format!(
            "{}: {cores} cores, kernel {}, load average {} before and {} after; waterclock {waterclock}{build}, \
             librdkafka {librdkafka}, Kafka {kafka}; {lanes} lanes, spikes of {records}, {rate}/s for {seconds} s \
             with a delay of {}",
            self.began,
            kernel.as_deref().unwrap_or("unknown"),
            load(load_before),
            load(load_after),
            waterclock_engine::Millis(*delay_ms),
        )
    }

    fn rows(&self) -> Vec<(String, Vec<Option<String>>)> {
        let each = |what: &str, cell: &dyn Fn(&'static str) -> Option<String>| {
            (what.to_owned(), self.ways().into_iter().map(cell).collect())
        };
        let ratio = |what: &str, of: fn(&Ratios) -> Option<f64>, digits: usize| {
            each(what, &|d| of(&self.ratios_of(d)).map(|value| format!("{value:.digits$}")))
        };
        let steady = |d: &str| self.steady.iter().find(|steady| steady.delivery == d);
        let mut rows = vec![
            ratio("spike through tiers, part of the copy rate", |r| r.spike_tiers_of_copy, 2),
            ratio("spike from memory, part of the copy rate", |r| r.spike_memory_of_copy, 2),
            ratio(
                "timers, part of the rate without an id, tiers",
                |r| r.tracked_of_untracked_tiers,
                2,
            ),
            ratio(
                "timers, part of the rate without an id, memory",
                |r| r.tracked_of_untracked_memory,
                2,
            ),
            ratio("lateness above the floor, p50 ms", |r| r.p50_above_floor_ms, 1),
            ratio("lateness above the floor, p99 ms", |r| r.p99_above_floor_ms, 1),
            each("raw copy, median", &|d| {
                let copies = self.copies.iter().find(|copies| copies.delivery == d)?;
                Some(thousands(copies.median_per_second))
            }),
        ];
        for (kind, tracked) in [("spike", false), ("spike of timers", true)] {
            for held in ["tiers", "memory"] {
                rows.push(each(&format!("{kind}, held in {held}"), &|d| {
                    Some(thousands(self.spike(d, held, tracked)?.drained_per_second))
                }));
            }
        }
        rows.extend(self.timer_rows());
        let tasks = self.tasks.iter().flat_map(Tasks::rows);
        for (what, cell) in tasks.chain(self.schedules.iter().flat_map(Recurring::rows)) {
            rows.push(each(&what, &|_| Some(cell.clone())));
        }
        let mut counts: Vec<u64> = self.pending.iter().map(|pending| pending.records).collect();
        counts.sort_unstable();
        counts.dedup();
        for count in counts {
            let of = |d: &str| self.pending.iter().find(|p| p.delivery == d && p.records == count);
            rows.push(each(
                &format!("memory with {count} pending, settled / at most, MiB"),
                &|d| {
                    let pending = of(d)?;
                    Some(format!(
                        "{:.1} / {:.1}",
                        mib(pending.settled_bytes?),
                        mib(pending.peak_bytes?)
                    ))
                },
            ));
            rows.push(each(&format!("idle with {count} pending, part of a core"), &|d| {
                Some(format!("{:.1} %", of(d)?.idle_core * 100.0))
            }));
        }
        rows.extend([
            each("lateness at the reader, p50 / p90 / p99 / max ms", &|d| {
                Some(spread(steady(d)?.arrival_ms))
            }),
            each("lateness at the append, p50 / p90 / p99 / max ms", &|d| {
                Some(spread(steady(d)?.append_ms))
            }),
            each("floor at the reader, p50 / p90 / p99 / max ms", &|_| {
                Some(spread(self.floor.as_ref()?.arrival_ms))
            }),
            each("processor time a record of a spike, us", &|d| {
                let spike = self.spike(d, "tiers", false)?;
                Some(format!("{:.1}", spike.process.cpu_us))
            }),
            each("memory at most, MiB", &|d| {
                let bytes = self.spike(d, "tiers", false)?.process.memory_peak_bytes?;
                Some(format!("{:.0}", mib(bytes)))
            }),
        ]);
        rows
    }
}

impl Report {
    /// What pending timers cost.
    fn timer_rows(&self) -> Vec<(String, Vec<Option<String>>)> {
        let of = |d: &str| self.timers.iter().find(|timers| timers.delivery == d);
        let count = self.timers.first().map_or(0, |timers| timers.timers);
        let row = |what: &str, cell: &dyn Fn(&Timers) -> Option<String>| {
            let what = format!("{count} timers: {what}");
            (what, self.ways().into_iter().map(|d| of(d).and_then(cell)).collect())
        };
        vec![
            row("memory, settled / at most, MiB", &|t| {
                Some(format!("{:.0} / {:.0}", mib(t.settled_bytes?), mib(t.peak_bytes?)))
            }),
            row("index on disk, MiB", &|t| Some(format!("{:.0}", mib(t.index_bytes)))),
            row("a request, p50 / p90 / p99 / max ms", &|t| Some(fine(t.request_ms))),
            row("a look-up, p50 / p90 / p99 / max ms", &|t| Some(fine(t.look_up_ms))),
            row("a decided cancel, p50 / p90 / p99 / max ms", &|t| Some(spread(t.cancel_ms))),
            row("restart, warm / cold / with nothing pending, s", &|t| {
                let (warm, cold, empty) = (t.warm_seconds, t.cold_seconds, t.empty_seconds);
                Some(format!("{warm:.1} / {cold:.1} / {empty:.1}"))
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread_of(p50: f64, p99: f64) -> Spread {
        Spread { p50, p90: p99, p99, max: p99 }
    }

    fn whole() -> Check {
        Check { expected: 10, seen: 10, ..Check::default() }
    }

    fn process() -> Process {
        Process { cpu_us: 2.0, drain_cpu_us: Vec::new(), memory_peak_bytes: Some(64 << 20) }
    }

    fn report() -> Report {
        let delivery = "exactly_once";
        Report {
            began: "2026-01-01T00:00:00.000Z".to_owned(),
            namespace: "waterclock-bench-0".to_owned(),
            asked: Parameters { records: 10, rate: 5, seconds: 2, delay_ms: 10_000, lanes: 6 },
            machine: Machine::look(Some("4.3.0".to_owned())),
            copies: vec![Copies {
                delivery,
                rounds_per_second: vec![400_000.0],
                median_per_second: 400_000.0,
                checks: vec![whole()],
            }],
            floor: Some(Floor { arrival_ms: spread_of(5.0, 8.0), check: whole() }),
            spikes: vec![Spike {
                delivery,
                held: "tiers",
                tracked: false,
                submitted_per_second: 1.0,
                submitted_before_due_ms: 5_000,
                drain_ms: 1.0,
                drained_per_second: 200_000.0,
                of_copy: ratio(200_000.0, 400_000.0),
                process: process(),
                check: whole(),
                course: Vec::new(),
            }],
            steady: vec![Steady {
                delivery,
                arrival_ms: spread_of(11.0, 30.5),
                append_ms: spread_of(3.0, 20.0),
                process: process(),
                check: whole(),
                course: Vec::new(),
            }],
            pending: Vec::new(),
            timers: Vec::new(),
            tasks: None,
            schedules: None,
        }
    }

    #[test]
    fn ratios_are_to_the_copy_and_to_the_floor_of_the_same_run() {
        let want = Ratios {
            delivery: "exactly_once",
            spike_tiers_of_copy: Some(0.5),
            spike_memory_of_copy: None,
            tracked_of_untracked_tiers: None,
            tracked_of_untracked_memory: None,
            p50_above_floor_ms: Some(6.0),
            p99_above_floor_ms: Some(22.5),
        };
        assert_eq!(report().ratios(), [want]);
    }

    #[test]
    fn a_failed_check_is_told() {
        assert_eq!(report().failures(), Vec::<String>::new());
        let mut lost = report();
        lost.steady[0].check.seen = 9;
        lost.spikes[0].submitted_before_due_ms = -3;
        let failures = lost.failures();
        assert!(failures[0].starts_with("steady, exactly_once: 9 of 10 delivered"), "{failures:?}");
        assert!(failures[1].contains("3 ms after it was due"), "{failures:?}");
        assert_eq!(lost.json()["ok"], false);
    }

    #[test]
    fn the_markdown_begins_with_the_facts_and_then_the_ratios() {
        let markdown = report().markdown();
        let lines: Vec<&str> = markdown.lines().collect();
        assert!(lines[0].contains("Kafka 4.3.0; 6 lanes, spikes of 10, 5/s for 2 s"), "{markdown}");
        assert!(lines[2].starts_with("| ") && lines[2].contains("exactly_once"), "{markdown}");
        assert!(
            lines[4].contains("part of the copy rate") && lines[4].contains("0.50"),
            "{markdown}"
        );
        assert!(
            !markdown.contains("held in memory"),
            "what was not measured is left out: {markdown}"
        );
    }

    #[test]
    fn the_median_is_the_middle_round() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(&[]).abs() < f64::EPSILON);
        assert!(ratio(1.0, 0.0).abs() < f64::EPSILON);
    }
}
