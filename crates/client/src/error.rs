//! Why something was not done, and what to do about it.

use std::time::Duration;

use waterclock_engine::header::Refusal;
use waterclock_kafka::settings::Fault;
use waterclock_kafka::{SubmitError, meta};

use crate::http::BadAddress;

/// Why something was not done. [`Error::is_safe_to_repeat`] says whether to try again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting for librdkafka cannot be used; nothing was connected. Put it right.
    #[error("setting {}", of_fault(_0))]
    Setting(Fault),
    /// The address of the server is not one. Give `http://host:port` or `https://host:port`.
    #[error("{url:?} is not the address of a server: want http://host:port or https://host:port")]
    Address {
        /// What was given.
        url: String,
    },
    /// What is in force for the namespace could not be read. It says whether the topic is missing or Kafka is away.
    #[error("could not read what is in force for the namespace {namespace}")]
    Meta {
        /// The namespace.
        namespace: String,
        /// What happened.
        #[source]
        source: Box<meta::Error>,
    },
    /// Nothing was applied for this namespace. Check its name, or run `waterclock topics apply`.
    #[error(
        "the namespace {namespace} has no ladder; check its name, or run `waterclock topics apply`"
    )]
    NotApplied {
        /// The namespace.
        namespace: String,
    },
    /// The header contract refuses it; nothing was sent. Put the record right.
    #[error("refused by the header contract, nothing was sent")]
    Contract(#[from] Refusal),
    /// Kafka did not take it, or did not say so. With an id, sending it again is safe; without one it may arrive twice if
    /// the acknowledgement is what is missing.
    #[error("not sent")]
    Submit(#[from] SubmitError),
    /// To replace, a record needs an id. Give it one, or `send` it.
    #[error("a record without an id replaces nothing; give it the id of the timer")]
    NoId,
    /// Nothing says how long the record waited: it was sent without `trace`, or for a time. Use `Message::delayed`.
    #[error(
        "nothing says how long the record waited; send it with trace, or say when by Message::delayed"
    )]
    NoInterval,
    /// No instance of the namespace says where it answers. Start one, or name a server in the configuration.
    #[error(
        "no instance of the namespace {namespace} says where it answers; start one, or name a server"
    )]
    NoInstance {
        /// The namespace.
        namespace: String,
    },
    /// Nobody gave an answer in time; lanes may be moving. Ask again: a cancel may be repeated.
    #[error("no answer from {url} within {} s", within.as_secs())]
    Busy {
        /// The server that was asked last.
        url: String,
        /// How long was tried.
        within: Duration,
        /// The last failure, if it was one of the connection.
        #[source]
        source: Option<Box<reqwest::Error>>,
    },
    /// The server refused what was asked. Its words say what to change.
    #[error("{url} answered {status} {code}: {detail}")]
    Refused {
        /// The server that was asked.
        url: String,
        /// The status of HTTP.
        status: u16,
        /// Its word for programs, as in `docs/http-api.md`.
        code: String,
        /// Its words for people.
        detail: String,
    },
    /// The answer is not one of waterclock's. Check that the address is that of an instance of the same version.
    #[error("the answer of {url} is not understood")]
    Answer {
        /// The server that was asked.
        url: String,
        /// What is wrong with it.
        #[source]
        source: Box<serde_json::Error>,
    },
    /// The client could not start what it needs: a thread, or an HTTP client. The system is out of something.
    #[error("could not start the client")]
    Start(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Whether the same call may be made again and may succeed, without anything happening twice if the record has an id.
    #[must_use]
    pub fn is_safe_to_repeat(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::NoInstance { .. } => true,
            Self::Submit(error) => !matches!(error, SubmitError::Refused { .. }),
            Self::Meta { source, .. } => {
                matches!(**source, meta::Error::Away(_) | meta::Error::Slow { .. })
            }
            _ => false,
        }
    }
}

impl From<BadAddress> for Error {
    fn from(BadAddress(url): BadAddress) -> Self {
        Self::Address { url }
    }
}

fn of_fault(fault: &Fault) -> String {
    let Fault { name, got, want } = fault;
    format!("{name}: {got}, want {want}")
}
