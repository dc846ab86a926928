//! Lines of the log that come again and again for one cause: each kind once in a while.
//!
//! # Invariants
//! 1. The first of a kind is shown, and one after each pause.
//! 2. It has a bound: kinds are constants of the code, or codes of librdkafka.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::types::RDKafkaErrorCode;

/// Between two lines of a kind.
const PAUSE: Duration = Duration::from_secs(60);

/// When each kind was shown last.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter(Mutex<Vec<(Option<RDKafkaErrorCode>, Instant)>>);

impl LogLimiter {
    /// Whether a line about this may be shown now.
    pub(crate) fn admits(&self, kind: Option<RDKafkaErrorCode>, now: Instant) -> bool {
        let mut last = self.0.lock();
        match last.iter_mut().find(|(shown, _)| *shown == kind) {
            Some((_, at)) if now.saturating_duration_since(*at) < PAUSE => false,
            Some((_, at)) => {
                *at = now;
                true
            }
            None => {
                last.push((kind, now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_shown_at_first_and_then_once_in_a_pause() {
        let (limiter, start) = (LogLimiter::default(), Instant::now());
        let unknown = Some(RDKafkaErrorCode::UnknownTopicOrPartition);
        let mut shown = 0;
        for second in 0..121 {
            shown += u32::from(limiter.admits(unknown, start + Duration::from_secs(second)));
        }
        assert_eq!(shown, 3);
        assert!(limiter.admits(None, start), "another kind");
    }
}
