//! By when a request is answered: fixed when all of it is here, and kept by everything that works on it.

use std::time::{Duration, Instant};

use super::model::RequestTimes;

/// What an answer may take beyond the wait of its request.
const GRACE: Duration = Duration::from_secs(2);
/// The end of that, kept for this instance: to write a cancel itself when the owner of its lane is silent.
const RESERVE: Duration = Duration::from_secs(1);
/// How long the owner of a lane may wait for what becomes of a cancel before it answers that it is written. One that is silent
/// for longer has not written it, as far as can be known, and a timer may be due soon.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long one owner is asked at a time what became of a command: its lane may have another one by then.
const TURN: Duration = Duration::from_secs(1);
/// What an answer takes from the instance that has it to the client that waits for it.
const HANDOVER: Duration = Duration::from_millis(250);
/// The longest look-up that comes before a command.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(3);
/// Look-ups by name: one timer, or a batch.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// What asks all lanes for their timers: a list, a forecast, a page of a bulk cancel.
pub(super) const ALL_LANES: Duration = Duration::from_secs(18);
/// What searches Kafka for the record of one task, and perhaps writes it again.
pub(super) const SEARCH: Duration = Duration::from_secs(14);
/// What looks at every timer: the count before a bulk cancel.
pub(super) const COUNT: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// When the head of the request was here.
    came: Instant,
    /// Until then what becomes of a command is waited for.
    wait: Instant,
    /// By then the answer is made.
    by: Instant,
}

impl Deadline {
    /// Of a request that came then, is here now, and may wait for so long.
    pub(super) fn new(came: Instant, wait: Duration) -> Self {
        let wait = Instant::now() + wait;
        Self { came, wait, by: wait + GRACE }
    }

    /// Of a question that came from another instance, which has said how old its request is and how long it waits.
    pub(super) fn of_question(arrived: Instant, times: Times) -> Self {
        let after = |ms| arrived + Duration::from_millis(ms);
        let came = arrived.checked_sub(Duration::from_millis(times.age_ms));
        let (wait, left) = (after(times.wait_ms), after(times.left_ms));
        // The time that the answer takes is out of what is left already.
        Self { came: came.unwrap_or(arrived), wait: wait.min(left), by: left + HANDOVER }
    }

    /// For a look-up that comes before a command: it leaves time for the command.
    pub(super) fn before_command(self) -> Self {
        let by = (self.by - RESERVE).min(Instant::now() + FIRST_LOOK_MAX);
        Self { wait: self.wait.min(by), by, ..self }
    }

    /// The same for a command that is carried out by the owner of its lane, if somebody else can do it afterwards.
    pub(super) fn of_first_try(self) -> Self {
        let wait = self.wait.min(Instant::now() + FIRST_WAIT_MAX);
        Self { wait, by: (self.by - RESERVE).min(wait + RESERVE), ..self }
    }

    /// The same for one of several questions about what became of a command.
    pub(super) fn of_turn(self) -> Self {
        let wait = self.wait.min(Instant::now() + TURN);
        // Past the wait, too, it is asked once.
        let by = (wait + RESERVE).max(Instant::now() + RESERVE).min(self.by - RESERVE);
        Self { wait, by, ..self }
    }

    /// The same for what must be known before an answer may be given that is there already.
    pub(super) fn of_settling(self) -> Self {
        Self { by: (self.wait + RESERVE).min(self.by - RESERVE), ..self }
    }

    /// The same for what comes before commands that wait for so long.
    pub(super) fn with_time_for(self, wait: Duration) -> Self {
        let by = self.by - wait - GRACE;
        Self { wait: self.wait.min(by), by, ..self }
    }

    /// The same, waiting for no longer than this from now on.
    pub(super) fn wait_at_most(self, wait: Duration) -> Self {
        let last = self.by.checked_sub(GRACE).unwrap_or(self.by);
        Self { wait: last.min(Instant::now() + wait), ..self }
    }

    /// Until when what becomes of a command is waited for.
    pub(super) fn wait_left(self) -> Duration {
        self.wait.saturating_duration_since(Instant::now())
    }

    /// Whether the time to wait is over.
    pub(super) fn is_wait_over(self) -> bool {
        self.wait_left().is_zero()
    }

    /// By when the answer is made.
    pub(super) fn by(self) -> tokio::time::Instant {
        self.by.into()
    }

    /// As the instance is asked that owns the lane, so that its answer is here in time.
    pub(super) fn request_times(self) -> RequestTimes {
        RequestTimes { came: self.came, by: self.by.checked_sub(HANDOVER).unwrap_or(self.by) }
    }

    /// As another instance is told. Instants mean nothing there.
    pub(super) fn times(self) -> Times {
        let now = Instant::now();
        let ms = |span: Duration| span.as_millis() as u64;
        Times {
            age_ms: ms(now.saturating_duration_since(self.came)),
            wait_ms: ms(self.wait.saturating_duration_since(now)),
            left_ms: ms(self.request_times().by.saturating_duration_since(now)),
        }
    }
}

/// The times of a question among instances, when it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Times {
    /// Since when its request is there.
    pub(super) age_ms: u64,
    /// For how long what becomes of a command is waited for.
    pub(super) wait_ms: u64,
    /// In what time the answer has to be here. Nobody waits for it afterwards, and nothing may be done then.
    pub(super) left_ms: u64,
}

/// Of a question that does not say it: nothing is waited for, and an answer is taken for a minute.
impl Default for Times {
    fn default() -> Self {
        Self { age_ms: 0, wait_ms: 0, left_ms: super::WAIT_MS_MAX }
    }
}

impl Times {
    /// When the question has taken so long to arrive; `None`: nobody waits for the answer any more.
    pub(super) fn after(self, underway_ms: u64) -> Option<Self> {
        let left_ms = self.left_ms.checked_sub(underway_ms).filter(|left| *left > 0)?;
        let (age_ms, wait_ms) = (self.age_ms, self.wait_ms.saturating_sub(underway_ms));
        // No longer than any caller may say.
        Some(Self { age_ms, wait_ms: wait_ms.min(super::WAIT_MS_MAX), left_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_is_under_way_for_too_long_is_not_carried_out() {
        let times = Times { age_ms: 5, wait_ms: 1_000, left_ms: 2_000 };
        #[rustfmt::skip]
        let cases = [
            (0,     Some(times)),
            (400,   Some(Times { wait_ms: 600, left_ms: 1_600, ..times })),
            (1_999, Some(Times { wait_ms: 0, left_ms: 1, ..times })),
            (2_000, None),
            (9_000, None),
        ];
        for (underway_ms, want) in cases {
            assert_eq!(times.after(underway_ms), want, "{underway_ms}");
        }
    }

    #[test]
    fn what_comes_before_a_command_leaves_time_for_it() {
        for wait_ms in [0, 1_000, 60_000] {
            let deadline = Deadline::new(Instant::now(), Duration::from_millis(wait_ms));
            for first in [deadline.before_command(), deadline.of_first_try()] {
                assert!(first.by + RESERVE <= deadline.by, "{wait_ms}");
                assert!(first.wait <= first.by, "{wait_ms}");
            }
            let look = deadline.before_command().by.saturating_duration_since(Instant::now());
            assert!(look <= FIRST_LOOK_MAX, "{wait_ms}: {look:?}");
            assert!(deadline.request_times().by < deadline.by, "{wait_ms}");
        }
    }
}
