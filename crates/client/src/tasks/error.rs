//! Why a call about tasks has no answer, and what the caller is to do.

use std::time::Duration;

use super::super::http::{self, BadAddress};

/// Why a call about tasks was not answered as wished. [`Error::advice`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address of a server is not one, or none was given. Give `http://host:port` or `https://host:port`.
    #[error("{url:?} is not the address of a server: want http://host:port or https://host:port")]
    Address {
        /// What was given.
        url: String,
    },
    /// The HTTP client could not be set up: the system has no random numbers, or no certificates to offer.
    #[error("could not set up the connections")]
    Start(#[source] Box<http::Error>),
    /// An instance refused it, and nothing was done. Its words say what to change.
    #[error("{url} answered {status} {code}: {detail}{}", named(fields))]
    Refused {
        /// The server that was asked.
        url: String,
        /// The status of HTTP.
        status: u16,
        /// Its word for programs, as in `docs/http-api.md`.
        code: String,
        /// Its words for people.
        detail: String,
        /// Every field of the request that is wrong: where it stands, and what is wrong with it.
        fields: Vec<(String, String)>,
    },
    /// The turn is over: another one has begun, or the task has ended. Stop working on it. If it is the answer to a report that was
    /// sent again, the first one may be what ended the turn.
    #[error("the turn is over, stop working on it: {detail}")]
    Stale {
        /// The words of the instance.
        detail: String,
    },
    /// Nobody answered in time, or an instance asked to come back later. The same call may be made again, and nothing happens twice.
    #[error("no answer from {url}{}; try again in {} ms", of(code), retry_after.as_millis())]
    Busy {
        /// The server that was asked last.
        url: String,
        /// Its word for programs, if it answered: `lane_moving`, say.
        code: Option<String>,
        /// How long to wait before the next call.
        retry_after: Duration,
        /// Why there was no connection or no answer, if there was none.
        #[source]
        source: Option<Box<http::Error>>,
    },
    /// Nobody said whether it was done, and to do it again might do it twice: it was a create without a request id, or a retry by
    /// hand.
    #[error("no answer from {url}{}: it may have been done", of(code))]
    Unknown {
        /// The server that was asked.
        url: String,
        /// Its word for programs, if it answered.
        code: Option<String>,
        /// Why there was no answer, if there was none.
        #[source]
        source: Option<Box<http::Error>>,
    },
    /// The answer is not one of waterclock's. Check that the address is that of an instance of this version or a newer one.
    #[error("the answer of {url} is not understood")]
    Answer {
        /// The server that was asked.
        url: String,
        /// What is wrong with it.
        #[source]
        source: Box<serde_json::Error>,
    },
    /// The record is not one of a task with feedback: it lacks this header. It was written by somebody else, or the task was
    /// created without feedback.
    #[error("the record has no {header}, so it is not of a task with feedback")]
    NotHanded {
        /// What is missing.
        header: &'static str,
    },
    /// The record says that it is a shard of a run, and not which one: want `i/n`, i from 0 and below n. It was written by somebody
    /// else.
    #[error("{got:?} is no shard of a run: want i/n")]
    BadShard {
        /// What it says.
        got: String,
    },
    /// The record says for which nominal time it is, and that is no time: want milliseconds since 1970. It was written by somebody else.
    #[error("{got:?} is no nominal time: want milliseconds since 1970")]
    BadNominal {
        /// What it says.
        got: String,
    },
    /// No heartbeat can say this. Shorten it, and leave control characters out.
    #[error(
        "a cursor is at most {max} bytes of text without control characters, and a percentage at most 100"
    )]
    BadProgress {
        /// The most bytes of a cursor.
        max: usize,
    },
}

/// What to do after an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Make the same call again. Nothing happens twice.
    Retry {
        /// Not before.
        after: Duration,
    },
    /// Do not repeat it: it may have been done. List the tasks of the project, or look the task up, and decide.
    Look,
    /// End the work of this turn, and report nothing more of it.
    Stop,
    /// Do not repeat it as it is: the call, the configuration or the rights are wrong.
    Correct,
}

impl Error {
    /// What to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Busy { retry_after, .. } => Advice::Retry { after: *retry_after },
            Self::Unknown { .. } => Advice::Look,
            // What failed there may have failed behind the change.
            Self::Refused { status: 500.., .. } | Self::Answer { .. } => Advice::Look,
            Self::Stale { .. } => Advice::Stop,
            Self::Refused { .. }
            | Self::Address { .. }
            | Self::Start(_)
            | Self::NotHanded { .. }
            | Self::BadShard { .. }
            | Self::BadNominal { .. }
            | Self::BadProgress { .. } => Advice::Correct,
        }
    }
}

impl From<BadAddress> for Error {
    fn from(BadAddress(url): BadAddress) -> Self {
        Self::Address { url }
    }
}

fn of(code: &Option<String>) -> String {
    code.as_ref().map(|code| format!(" but {code}")).unwrap_or_default()
}

/// The first is in the detail already.
fn named(fields: &[(String, String)]) -> String {
    let more = fields.iter().skip(1).map(|(at, detail)| format!("; {at} {detail}"));
    more.collect()
}
