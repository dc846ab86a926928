//! Logs dead letters: enough that nobody misses them, and not a line for each.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use waterclock_engine::header::Code;
use waterclock_engine::messages::DeadLetter;
use waterclock_engine::task::id::TaskId;

/// After so long without a line the next one is said again.
const QUIET: Duration = Duration::from_secs(60);

/// Says the first of a code, the tenth, the hundredth; after a while without a line it begins again.
#[derive(Debug, Default)]
pub(super) struct Letters {
    of: HashMap<Code, Since>,
}

#[derive(Clone, Copy, Debug)]
struct Since {
    count: u64,
    said: Instant,
}

/// All threads of this process say it together.
static LETTERS: LazyLock<Mutex<Letters>> = LazyLock::new(Mutex::default);

impl Letters {
    /// One more; how many there are if that is to be said.
    fn note(&mut self, now: Instant, code: Code) -> Option<u64> {
        let since = self.of.entry(code).or_insert(Since { count: 0, said: now });
        if now.duration_since(since.said) >= QUIET {
            since.count = 0;
        }
        since.count += 1;
        let is_round = 10_u64.pow(since.count.ilog10()) == since.count;
        is_round.then(|| {
            since.said = now;
            since.count
        })
    }
}

/// A record has become a dead letter; `task`: that of its task, if it has one.
pub(super) fn tell(letter: &DeadLetter, task: Option<&TaskId>) {
    let mut letters = LETTERS.lock();
    let count = letters.note(Instant::now(), letter.code);
    drop(letters);
    let Some(count) = count else { return };
    tracing::warn!(
        code = letter.code.as_str(),
        count,
        topic = &*letter.topic,
        partition = letter.partition,
        offset = letter.offset.0,
        task = task.map(TaskId::as_str),
        detail = ?letter.detail,
        "a record became a dead letter; see `waterclock dead list`"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_said_in_a_few_lines_and_what_comes_later_is_said_again() {
        let (mut letters, began) = (Letters::default(), Instant::now());
        let mut said = Vec::new();
        for n in 0..12_345_u64 {
            let at = began + Duration::from_millis(n / 1_000);
            said.extend(letters.note(at, Code::TargetMissing));
        }
        assert_eq!(said, [1, 10, 100, 1_000, 10_000]);
        assert_eq!(letters.note(began, Code::TargetDenied), Some(1), "each code for itself");
        let later = began + QUIET;
        assert_eq!(letters.note(later, Code::TargetMissing), None, "the last line was later");
        assert_eq!(letters.note(later + QUIET, Code::TargetMissing), Some(1));
    }

    #[test]
    fn a_trickle_is_said_once_a_minute() {
        let (mut letters, began) = (Letters::default(), Instant::now());
        let at = |n: u64| began + Duration::from_secs(n * 20);
        let said: Vec<_> =
            (0..9).filter(|n| letters.note(at(*n), Code::Expired).is_some()).collect();
        assert_eq!(said, [0, 3, 6]);
    }
}
