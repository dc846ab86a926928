//! What the answer to a call means for its task.
//!
//! # Invariants
//! 1. Each answer means one thing. What the specification expects is a success, whatever it would mean otherwise, but for
//!    "ask again" of a task that polls. Of a task with feedback it says that somebody works on it, and no more.

use super::result::Outcome;
use super::spec::Http;

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An HTTP answer with this status.
    Status(u16),
    /// No connection could be made.
    NoConnection,
    /// There was no answer in time.
    Timeout,
    /// Anything else: a name that does not resolve, a certificate that is not trusted, an answer that is no HTTP.
    Broken,
}

impl Answer {
    /// What it means for a task that is called over HTTP.
    #[must_use]
    pub fn outcome(self, http: &Http) -> Outcome {
        match self {
            Self::Status(202 | 425) if http.poll.is_some() => Outcome::NotYet,
            // Who took it over reports what comes of it.
            Self::Status(status) if http.expect.matches(status) => match http.feedback {
                Some(_) => Outcome::Accepted,
                None => Outcome::Finished,
            },
            Self::Status(410) => Outcome::Gone,
            _ => Outcome::Failed,
        }
    }

    /// Whether it says that the other side is away or has too much to do. A breaker counts such answers.
    #[must_use]
    pub fn is_away(self, http: &Http) -> bool {
        let may_be =
            matches!(self, Self::NoConnection | Self::Timeout | Self::Status(429 | 502..=504));
        may_be && self.outcome(http) == Outcome::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::spec::{Kind, Spec};

    fn http(more: &str) -> Http {
        let json = format!(
            r#"{{"type":"http","project":"p","group":"g","url":"http://a.example"{more}}}"#
        );
        let spec = Spec::parse(json.as_bytes()).expect("sound");
        let Kind::Http(http) = spec.kind() else { panic!("http") };
        http.clone()
    }

    #[test]
    fn each_answer_means_one_thing() {
        use Answer::{Broken, NoConnection, Status, Timeout};
        let (plain, polls) = (http(""), http(r#","poll":{"interval":"1s","rounds":3}"#));
        let all = http(r#","expect":"2xx,410,503","poll":{"interval":"1s","rounds":3}"#);
        let reported = http(r#","expect":"2xx,404","feedback":{"deadline":"1h"}"#);
        use Outcome::{Accepted, Failed, Finished, Gone, NotYet};
        #[rustfmt::skip]
        let cases = [
            //              plain     polls     expects 2xx, 410, 503 and polls;  expects 404, too, and has feedback;  away
            (Status(200),  [Finished, Finished, Finished, Accepted], false),
            (Status(202),  [Finished, NotYet,   NotYet,   Accepted], false),
            (Status(204),  [Finished, Finished, Finished, Accepted], false),
            (Status(302),  [Failed,   Failed,   Failed,   Failed],   false),
            (Status(404),  [Failed,   Failed,   Failed,   Accepted], false),
            (Status(408),  [Failed,   Failed,   Failed,   Failed],   false),
            (Status(410),  [Gone,     Gone,     Finished, Gone],     false),
            (Status(425),  [Failed,   NotYet,   NotYet,   Failed],   false),
            (Status(429),  [Failed,   Failed,   Failed,   Failed],   true),
            (Status(500),  [Failed,   Failed,   Failed,   Failed],   false),
            (Status(502),  [Failed,   Failed,   Failed,   Failed],   true),
            (Status(503),  [Failed,   Failed,   Finished, Failed],   true),
            (Status(504),  [Failed,   Failed,   Failed,   Failed],   true),
            (NoConnection, [Failed,   Failed,   Failed,   Failed],   true),
            (Timeout,      [Failed,   Failed,   Failed,   Failed],   true),
            (Broken,       [Failed,   Failed,   Failed,   Failed],   false),
        ];
        for (answer, want, is_away) in cases {
            let outcomes = [&plain, &polls, &all, &reported].map(|http| answer.outcome(http));
            assert_eq!(outcomes, want, "{answer:?}");
            assert_eq!(answer.is_away(&plain), is_away, "{answer:?}");
        }
        assert!(!Status(503).is_away(&all), "it is what was expected");
    }
}
