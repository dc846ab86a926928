//! Schedules: many that have a time in each second. How late the calls of their tasks are, and what they cost.

use std::sync::Arc;
use std::time::Duration;

use super::figures::Schedules;
use super::lines::{Make, Until, closed};
use super::{AHEAD, BODY, Failed, LINES, PROJECT, SERVICE, Stage, WAIT_MAX, per_record};
use crate::line::Question;
use crate::service::Service;
use crate::stub::{CALL, Call};
use waterclock_engine::{Millis, UnixMillis};

/// Schedules at most, and one for so many records of the case.
const SCHEDULES_MAX: u64 = 1_000;
const SCHEDULES_PART: u64 = 50;
/// For so long at most.
const SECONDS_MAX: u64 = 60;
/// What it may take to make one.
const MAKING: Millis = Millis(30);
const SECOND: u64 = 1_000;

impl Stage<'_, '_> {
    /// Each schedule has a time in each second. Each time has to be one call.
    pub(super) fn schedules(&self, service: &Service, records: u64) -> Result<Schedules, Failed> {
        let schedules = (records / SCHEDULES_PART).clamp(1, SCHEDULES_MAX);
        let seconds = self.seconds.min(SECONDS_MAX);
        let count = schedules * seconds;
        self.stub.take();
        self.cases.observer.phase("putting schedules", schedules);
        let ready = self.cases.now() + AHEAD + Millis(MAKING.0 * schedules);
        let start = UnixMillis(ready.0.next_multiple_of(SECOND));
        let make: Make = Arc::new(move |n| {
            let of = serde_json::json!({
                "group": "bench", "every": "1s", "start": start.0, "count": seconds,
                "task": {
                    "type": "http", "service": SERVICE, "path": format!("{CALL}{n}"), "body": BODY,
                },
            });
            Question::put(&format!("/v1/schedules/schedule.{PROJECT}.s{n}"), of.to_string())
        });
        let puts = closed(service.http, LINES, (0, Until::Count(schedules)), make);
        let put_per_second = self.run("put a schedule", puts)?.per_second();
        let put_before_ms = start.0 as i64 - self.cases.now().0 as i64;
        self.cases.observer.phase("schedules that have a time in each second", count);
        while self.cases.now() + Millis(100) < start {
            self.sleep(Duration::from_millis(5))?;
        }
        let before = service.cpu();
        let longest = WAIT_MAX + Duration::from_secs(seconds);
        self.wait(longest, || self.stub.count() >= count)?;
        let cpu = service.cpu().since(&before);
        let calls: Vec<Call> = self.stub.take();
        // Each time of each schedule has a number of its own.
        let of_time = |call: &Call| {
            let second = (call.due - start).0 / SECOND;
            Call { n: call.n * seconds + second.min(seconds), ..*call }
        };
        let numbered: Vec<Call> = calls.iter().map(of_time).collect();
        let tally = self.tally(&numbered, count);
        let call_ms = tally.arrival.spread();
        Ok(Schedules {
            schedules,
            seconds,
            put_per_second,
            put_before_ms,
            call_ms: call_ms.ok_or(Failed::Nothing { topic: "the stub".to_owned() })?,
            cpu_us: per_record(&cpu, count),
            by_thread_us: cpu.per_record_us(count),
            check: tally.check,
        })
    }
}
