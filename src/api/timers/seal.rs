//! How instances authenticate each other: by a MAC with the namespace's secret, which only they can read.
//!
//! A request has three headers: the brokers' time at which it was made, the digest of its body, and a seal (the MAC) over
//! method, path with query, time and digest. So an instance knows the sender before it reads the body. An answer has a seal,
//! too, over the seal of its request and its own body.
//!
//! The time is the brokers', as both know it: no machine's clock matters.
//!
//! Somebody who listens on the network can repeat a request while its seal is valid. Repeating a query does no harm, but
//! repeating a change does. So an instance carries a change out once: the request names its receiver, and the receiver
//! remembers the seal for as long as it is valid.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::super::problem::Problem;
use super::model::{Timers, TimersError};
use crate::telemetry;

const TIME: &str = "waterclock-time";
const DIGEST: &str = "waterclock-digest";
/// The header of a seal.
pub(super) const SEAL: &str = "waterclock-seal";
/// How old a request may be, or how far ahead, in milliseconds: the brokers' time differs by less between two instances.
const AGE_MS_MAX: u64 = 30_000;

fn digest(body: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(body))
}

fn seal(timers: &dyn Timers, of: &str, parts: &[&str]) -> String {
    let text = format!("{of}\n{}", parts.join("\n"));
    URL_SAFE_NO_PAD.encode(timers.seal(text.as_bytes()))
}

/// Compares every byte, so that the time it takes does not show where they differ.
pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differs = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    a.len() == b.len() && differs == 0
}

/// The headers of a question.
///
/// # Errors
/// The brokers' time is not known yet.
pub(super) fn of_question(
    timers: &dyn Timers,
    path: &str,
    body: &[u8],
) -> Result<[(&'static str, String); 3], TimersError> {
    let now = timers.now();
    let now =
        now.ok_or_else(|| TimersError::Away("the brokers' time is not known yet".to_owned()))?;
    let (time, digest) = (now.to_string(), digest(body));
    let seal = seal(timers, "peer", &["POST", path, &time, &digest]);
    Ok([(TIME, time), (DIGEST, digest), (SEAL, seal)])
}

/// A question that an instance asks, as far as its head tells.
pub(super) struct Sealed {
    digest: String,
    seal: String,
    /// When it was asked, by the brokers' time in ms.
    asked_at: u64,
    underway_ms: u64,
}

/// Seals of questions that changed something.
pub(super) struct UsedSeals {
    most: usize,
    seals: Mutex<Seals>,
}

#[derive(Default)]
struct Seals {
    all: HashSet<String>,
    /// Up to when each is valid, by the brokers' time.
    by_time: BTreeSet<(u64, String)>,
}

impl UsedSeals {
    /// At most so many are remembered.
    pub(super) fn new(most: usize) -> Self {
        Self { most, seals: Mutex::default() }
    }

    /// Takes a seal in that is valid until then.
    fn take(&self, now: u64, seal: &str, until: u64) -> Result<(), Problem> {
        let mut seals = self.seals.lock();
        while seals.by_time.first().is_some_and(|(until, _)| *until < now)
            && let Some((_, old)) = seals.by_time.pop_first()
        {
            seals.all.remove(&old);
        }
        if seals.all.contains(seal) {
            return Err(stranger("the same question was asked before"));
        }
        if seals.all.len() >= self.most {
            let detail = format!("{} changes of other instances at once are the most", self.most);
            return Err(Problem::busy(detail));
        }
        seals.all.insert(seal.to_owned());
        seals.by_time.insert((until, seal.to_owned()));
        Ok(())
    }
}

/// Checks the head of a question.
///
/// # Errors
/// No instance of this namespace asks, or it did so too long ago.
pub(super) fn question(
    timers: &dyn Timers,
    (method, path): (&str, &str),
    headers: &HeaderMap,
) -> Result<Sealed, Problem> {
    // Before that there is neither a time nor a secret.
    let Some(now) = timers.now() else {
        return Err(TimersError::not_ready().into());
    };
    let text = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().and_then(|value| value.to_str().ok()).filter(|_| values.next().is_none())
    };
    let (Some(time), Some(digest), Some(given)) = (text(TIME), text(DIGEST), text(SEAL)) else {
        return Err(stranger("instances ask here, with a seal"));
    };
    let right = seal(timers, "peer", &[method, path, time, digest]);
    if !is_same(right.as_bytes(), given.as_bytes()) {
        return Err(stranger("the seal is not of this namespace, or not of this question"));
    }
    let asked_at: u64 = time.parse().unwrap_or_default();
    if now.abs_diff(asked_at) > AGE_MS_MAX {
        return Err(stranger(
            "by the brokers' time it was asked more than 30 s before or after now",
        ));
    }
    let underway_ms = now.saturating_sub(asked_at);
    Ok(Sealed { digest: digest.to_owned(), seal: given.to_owned(), asked_at, underway_ms })
}

impl Sealed {
    /// How long ago it was asked, by the brokers' time.
    pub(super) fn underway_ms(&self) -> u64 {
        self.underway_ms
    }

    /// Checks that a question that changes something is asked for the first time, and by somebody who means this instance.
    /// Its answer is waited for during `left_ms`.
    ///
    /// # Errors
    /// It is repeated, or was asked of another.
    pub(super) fn is_first(
        &self,
        timers: &dyn Timers,
        seen: &UsedSeals,
        to: Option<&str>,
        left_ms: u64,
    ) -> Result<(), Problem> {
        if to != Some(timers.address().as_str()) {
            return Err(stranger("it was asked of another instance"));
        }
        // What this instance was asked before it started, it may have done before it last ended.
        let (Some(now), Some(since)) = (timers.now(), timers.since()) else {
            return Err(TimersError::not_ready().into());
        };
        if self.asked_at < since {
            return Err(stranger("it was asked before this instance started"));
        }
        let until = self.asked_at.saturating_add(left_ms.min(AGE_MS_MAX));
        seen.take(now, &self.seal, until)
    }

    /// Checks the body of the question.
    ///
    /// # Errors
    /// It is another one.
    pub(super) fn check(&self, body: &[u8]) -> Result<(), Problem> {
        if digest(body) == self.digest {
            return Ok(());
        }
        Err(stranger("the body is not that of this question"))
    }

    /// The seal of the answer.
    pub(super) fn answer(&self, timers: &dyn Timers, body: &[u8]) -> HeaderValue {
        let seal = seal(timers, "peer answer", &[&self.seal, &digest(body)]);
        // Base64 is text.
        HeaderValue::from_str(&seal).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// Whether an answer is that of another instance to a question with this seal.
pub(super) fn is_answer(timers: &dyn Timers, question: &str, body: &[u8], given: &str) -> bool {
    let right = seal(timers, "peer answer", &[question, &digest(body)]);
    is_same(right.as_bytes(), given.as_bytes())
}

fn stranger(detail: &str) -> Problem {
    telemetry::api_refused("peer");
    Problem::new(StatusCode::FORBIDDEN, "not_a_peer", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(taken: Result<(), Problem>) -> String {
        let problem = taken.err().map(|problem| problem.as_json());
        problem.map_or_else(String::new, |problem| problem["code"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_seal_is_taken_once_for_as_long_as_it_is_valid_and_so_many_at_once() {
        let (seen, now) = (UsedSeals::new(3), 1_000_000_000);
        #[rustfmt::skip]
        let cases = [
            // why,                         now,         seal, valid until,  code
            ("the first",                   now,         "a",  now + 1_000,  ""),
            ("again",                       now,         "a",  now + 1_000,  "not_a_peer"),
            ("again at the end",            now + 1_000, "a",  now + 1_000,  "not_a_peer"),
            ("another",                     now,         "b",  now + 5_000,  ""),
            ("a third",                     now,         "c",  now + 5_000,  ""),
            ("one too many",                now,         "d",  now + 5_000,  "too_busy"),
            ("once one is not valid",       now + 1_001, "d",  now + 5_000,  ""),
            ("what is valid is remembered", now + 1_001, "b",  now + 5_000,  "not_a_peer"),
        ];
        for (why, at, seal, until, want) in cases {
            assert_eq!(code(seen.take(at, seal, until)), want, "{why}");
        }
    }
}
