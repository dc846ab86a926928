//! What the tests on a real Kafka share: a namespace of their own, producers, readers, and the real binary.
//!
//! # Invariants
//! 1. Names are unique, so that tests run side by side on one broker.
//! 2. Nothing waits by sleeping for some length: everything asks until it is so, with a deadline.
//! 3. A broker that is absent fails the test and says what to type.
//! 4. Every process that a test starts ends with the test, and tells its log if the test failed.

pub mod acl;
mod ask;
mod binary;
mod clock;
mod cluster;
mod endpoint;
mod fixture;
pub mod hostile;
mod lanes;
mod load;
mod nodes;
pub mod on_terminal;
pub mod preload;
mod process;
mod producer;
mod proxy;
mod reader;
pub mod secure;
pub mod tasks;
pub mod terminal;
pub mod wire;

use std::time::{Duration, Instant};

pub use acl::{Resource, Right, allow, allow_only};
pub use ask::{Told, ask, client};
pub use binary::{patience, waterclock};
pub use clock::Clock;
pub use cluster::Cluster;
pub use endpoint::{Call, Endpoint};
pub use fixture::Fixture;
pub use load::Load;
pub use nodes::Nodes;
pub use process::{Launch, Process, start_all};
pub use producer::{Ack, Out, Producer, open_transaction, out};
pub use proxy::{
    END_TXN, Hold, OFFSET_COMMIT, PRODUCE, Proxy, State, TXN_OFFSET_COMMIT, Way, Weather,
    free_address,
};
pub use reader::{Log, Rec, whole, written_again};

/// How long anything may take that has no bound of its own: a rebalance on a machine that also builds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// This machine's clock, which is that of a broker on loopback.
#[allow(clippy::disallowed_methods, reason = "it is compared with a broker's append times")]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_millis() as u64
}

/// A bound of a test, longer on a machine that does much else.
pub fn patient(bound: Duration) -> Duration {
    bound * patience()
}

/// How records get to their targets: each test that makes sense in both runs in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    ExactlyOnce,
    AtLeastOnce,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly_once",
            Self::AtLeastOnce => "at_least_once",
        }
    }
}

/// Runs one of Kafka's own tools on the cluster of this run.
#[track_caller]
pub fn tool(class: &str, arguments: &[&str]) {
    let mut command = std::process::Command::new(variable("WATERCLOCK_KAFKA_SCRIPT"));
    command.args(["tool", "--dir", &variable("WATERCLOCK_KAFKA_DIR"), class]);
    command.args(["--bootstrap-server", &variable("KAFKA_BOOTSTRAP")]).args(arguments);
    let ended = command.output().expect("scripts/kafka runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Makes two tests of each function that takes a [`Mode`]; both have the attributes before its name.
macro_rules! in_both_modes {
    ($($(#[$attribute:meta])* $name:ident),+ $(,)?) => { $(
        mod $name {
            use crate::support::Mode;
            #[test]
            $(#[$attribute])*
            fn exactly_once() { super::$name(Mode::ExactlyOnce) }
            #[test]
            $(#[$attribute])*
            fn at_least_once() { super::$name(Mode::AtLeastOnce) }
        }
    )+ };
}
pub(crate) use in_both_modes;

/// Asks until there is an answer; fails with what was last seen when the time is over.
#[track_caller]
pub fn eventually_within<T>(
    most: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<T, String>,
) -> T {
    let most = most * patience();
    let until = Instant::now() + most;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(seen) => assert!(Instant::now() < until, "not within {most:?}: {what}; {seen}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As `eventually_within`, with [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, ask: impl FnMut() -> Result<T, String>) -> T {
    eventually_within(PATIENCE, what, ask)
}

/// How many a page of a bulk cancel has cancelled; it says nothing else. A page waits for 5 s: what takes longer is written, and
/// decided a moment later.
#[track_caller]
pub fn bulk_cancelled(told: &serde_json::Value) -> u64 {
    let outcomes = told["outcomes"].as_object().unwrap_or_else(|| panic!("no outcomes: {told}"));
    let each = outcomes.iter().map(|(word, count)| {
        assert!(matches!(&**word, "cancelled" | "pending"), "{told}");
        count.as_u64().expect("a number")
    });
    each.sum()
}

/// A variable of the environment that `scripts/kafka start` prints.
#[track_caller]
pub fn variable(name: &str) -> String {
    variable_if_set(name).unwrap_or_else(|| {
        panic!("{name} is not set: type `scripts/kafka start` and `eval \"$(scripts/kafka env)\"`")
    })
}

/// The same, where a run may do without.
#[allow(clippy::disallowed_methods, reason = "a test must be told where the broker is")]
pub fn variable_if_set(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Each of the ids is there once and nothing else is; tells what is missing, doubled or foreign.
#[track_caller]
pub fn assert_each_once(want: impl IntoIterator<Item = String>, seen: &[Rec]) {
    let mut counts = std::collections::BTreeMap::new();
    for id in want {
        counts.insert(id, 0);
    }
    let mut foreign = Vec::new();
    for rec in seen {
        match counts.get_mut(&rec.text()) {
            Some(count) => *count += 1,
            None => foreign.push(rec.text()),
        }
    }
    let of = |what: fn(i32) -> bool| -> Vec<&String> {
        counts.iter().filter(|(_, count)| what(**count)).map(|(id, _)| id).collect()
    };
    let (missing, doubled) = (of(|count| count == 0), of(|count| count > 1));
    assert!(
        missing.is_empty() && doubled.is_empty() && foreign.is_empty(),
        "of {} ids {} are missing: {:?}, {} are there more than once: {:?}; foreign: {foreign:?}",
        counts.len(),
        missing.len(),
        &missing[..missing.len().min(20)],
        doubled.len(),
        &doubled[..doubled.len().min(20)],
    );
}

/// Each of the ids is there at least once and nothing else is.
#[track_caller]
pub fn assert_none_lost(want: impl IntoIterator<Item = String>, seen: &[Rec]) {
    let mut once = seen.to_vec();
    once.sort_by_key(Rec::text);
    once.dedup_by_key(|rec| rec.text());
    assert_each_once(want, &once);
}

/// What a mode promises of a run with crashes.
#[track_caller]
pub fn assert_promise(mode: Mode, want: impl IntoIterator<Item = String>, seen: &[Rec]) {
    match mode {
        Mode::ExactlyOnce => assert_each_once(want, seen),
        Mode::AtLeastOnce => assert_none_lost(want, seen),
    }
}
