//! How patient a unit test is: the same as the tests in `tests/`, by `TEST_PATIENCE`.

use std::time::{Duration, Instant};

/// How long anything may take that has no bound of its own.
const PATIENCE: Duration = Duration::from_secs(20);

/// A bound of a test, longer on a machine that does much else.
#[allow(clippy::disallowed_methods, reason = "a test is told how patient it is to be")]
pub(crate) fn patient(bound: Duration) -> Duration {
    let factor = std::env::var("TEST_PATIENCE").ok().and_then(|told| told.parse().ok());
    bound * factor.unwrap_or(1)
}

/// Asks until there is an answer. Fails with what was seen last.
pub(crate) async fn eventually<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let most = patient(PATIENCE);
    let until = Instant::now() + most;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(seen) => assert!(Instant::now() < until, "not within {most:?}: {what}; {seen}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
