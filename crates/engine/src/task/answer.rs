//! What the answer to a call means for its task.
//!
//! # Invariants
//! 1. Each answer means one thing. What the specification expects is a success, whatever it would mean otherwise, but for
//!    "ask again" of a task that polls. Of a task with feedback it says that somebody works on it, and no more.

use super::result::Outcome;
use super::spec::{Grpc, Http};

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

/// The names of the statuses of gRPC, by their codes.
const STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// A status of gRPC. A code that gRPC does not have is UNKNOWN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcStatus(u8);

impl GrpcStatus {
    /// The call was done.
    pub const OK: Self = Self(0);
    /// Whatever else it is.
    pub const UNKNOWN: Self = Self(2);
    /// The caller may not do that.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// The state of the other side does not allow it now.
    pub const FAILED_PRECONDITION: Self = Self(9);
    /// The other side has no such method.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// Something is broken there.
    pub const INTERNAL: Self = Self(13);
    /// The other side cannot do it now.
    pub const UNAVAILABLE: Self = Self(14);
    /// The time of the call was over, as the other side says.
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    /// The other side does not know who calls.
    pub const UNAUTHENTICATED: Self = Self(16);

    /// The status of a code.
    #[must_use]
    pub fn of_code(code: i32) -> Self {
        let known = u8::try_from(code).ok().filter(|code| usize::from(*code) < STATUSES.len());
        known.map_or(Self::UNKNOWN, Self)
    }

    /// What the status of an HTTP answer means that has none of gRPC: it came from something in between.
    #[must_use]
    pub const fn of_http(status: u16) -> Self {
        match status {
            400 => Self::INTERNAL,
            401 => Self::UNAUTHENTICATED,
            403 => Self::PERMISSION_DENIED,
            404 => Self::UNIMPLEMENTED,
            429 | 502..=504 => Self::UNAVAILABLE,
            _ => Self::UNKNOWN,
        }
    }

    /// Its code, 0 to 16.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Its name, in capitals.
    #[must_use]
    pub fn name(self) -> &'static str {
        STATUSES[usize::from(self.0)]
    }
}

/// What came of a call over gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcAnswer {
    /// The other side answered.
    Status {
        /// With this status.
        status: GrpcStatus,
        /// It says that the call may be made again (`google.rpc.RetryInfo`).
        has_retry_info: bool,
    },
    /// No connection could be made.
    NoConnection,
    /// There was no answer in time.
    Timeout,
    /// Anything else: a name that does not resolve, a body that is not the method's, an answer that is no gRPC.
    Broken,
}

impl GrpcAnswer {
    /// What it means for a task that is called over gRPC.
    #[must_use]
    pub fn outcome(self, grpc: &Grpc) -> Outcome {
        let polls = grpc.poll.is_some();
        match self {
            Self::Status { status: GrpcStatus::OK, .. } => match grpc.feedback {
                Some(_) => Outcome::Accepted,
                None => Outcome::Finished,
            },
            Self::Status { status: GrpcStatus::FAILED_PRECONDITION, .. }
            | Self::Status { status: GrpcStatus::UNAVAILABLE, has_retry_info: true }
                if polls =>
            {
                Outcome::NotYet
            }
            _ => Outcome::Failed,
        }
    }

    /// Whether it says that the other side is away or has too much to do. A breaker counts such answers.
    #[must_use]
    pub fn is_away(self, grpc: &Grpc) -> bool {
        let may_be = matches!(
            self,
            Self::NoConnection
                | Self::Timeout
                | Self::Status {
                    status: GrpcStatus::UNAVAILABLE | GrpcStatus::DEADLINE_EXCEEDED,
                    ..
                }
        );
        may_be && self.outcome(grpc) == Outcome::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::spec::{Kind, Spec};

    fn grpc(more: &str) -> Grpc {
        let json = format!(
            r#"{{"type":"grpc","project":"p","group":"g","host":"a.example:1","service":"s","method":"m"{more}}}"#
        );
        let spec = Spec::parse(json.as_bytes()).expect("sound");
        let Kind::Grpc(grpc) = spec.kind() else { panic!("grpc") };
        grpc.clone()
    }

    #[test]
    fn each_status_of_grpc_means_one_thing() {
        use Outcome::{Accepted, Failed, Finished, NotYet};
        let reported = grpc(r#","feedback":{"deadline":"1h"}"#);
        let (plain, polls) = (grpc(""), grpc(r#","poll":{"interval":"1s","rounds":3}"#));
        for code in -1..=17 {
            let status = GrpcStatus::of_code(code);
            for has_retry_info in [false, true] {
                let answer = GrpcAnswer::Status { status, has_retry_info };
                let (outcome, polled) = match code {
                    0 => (Finished, Finished),
                    9 => (Failed, NotYet),
                    14 if has_retry_info => (Failed, NotYet),
                    _ => (Failed, Failed),
                };
                let got = [&plain, &polls].map(|grpc| answer.outcome(grpc));
                assert_eq!(got, [outcome, polled], "{answer:?}");
                let taken = if code == 0 { Accepted } else { Failed };
                assert_eq!(answer.outcome(&reported), taken, "{answer:?}");
                // 4: it knows the time of the call, and says itself that it is over.
                assert_eq!(answer.is_away(&plain), [4, 14].contains(&code), "{answer:?}");
                let is_away = code == 4 || code == 14 && !has_retry_info;
                assert_eq!(answer.is_away(&polls), is_away, "{answer:?}");
            }
        }
        for (answer, is_away) in [
            (GrpcAnswer::NoConnection, true),
            (GrpcAnswer::Timeout, true),
            (GrpcAnswer::Broken, false),
        ] {
            assert_eq!((answer.outcome(&polls), answer.is_away(&polls)), (Failed, is_away));
        }
        let names = [(0, "OK"), (5, "NOT_FOUND"), (14, "UNAVAILABLE"), (16, "UNAUTHENTICATED")];
        for (code, name) in names {
            assert_eq!(GrpcStatus::of_code(code).name(), name);
        }
        // Codes that gRPC does not have.
        assert_eq!([17, -1, 256].map(GrpcStatus::of_code), [GrpcStatus::UNKNOWN; 3]);
    }

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
