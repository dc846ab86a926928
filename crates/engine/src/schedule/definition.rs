//! What a schedule is: when, and the task of each of its times.
//!
//! # Invariants
//! 1. A definition that was read makes a legal task at every time that it has.
//! 2. The task stands in it as somebody wrote it. So what is shown of a schedule is what was asked for.

use std::fmt;

use serde_json::{Map, Value};

use super::{FIELDS as TIMING_FIELDS, Overlap, Timing};
use crate::task::Wrong;
use crate::task::fields::{Fields, Wrongs, length, text, wanted};
use crate::task::id::TaskId;
use crate::task::request::{self, Request};
use crate::task::spec::{Occurrence, Spec};
use crate::task::template::{TASK, Template};
use crate::{Millis, UnixMillis};

/// Longest definition, in bytes: as it is written, and as it is kept.
pub const SCHEDULE_MAX: usize = 64 * 1024;
/// Longest name of a schedule, in bytes.
pub const NAME_MAX: usize = 64;
/// When a schedule is due that is paused: never.
pub const NEVER: UnixMillis = super::rule::TIME_MAX;
/// A nominal time is late that has passed for longer than that. Longer than the lanes of an instance that was killed need to go on
/// elsewhere: that is no outage.
pub const GRACE: Millis = Millis(20_000);

const NAME_WANTED: &str = "1 to 64 of a-z 0-9 _ -";
/// Fields of a schedule beside those of every specification and those that say when.
const OWN: [&str; 4] = ["name", "expires", "paused", TASK];
/// What a schedule says of its tasks, and they do not say themselves.
const NOT_OF_TASK: [(&str, &str); 8] = [
    ("project", "a task has the project of its schedule"),
    ("group", "a task has the group of its schedule"),
    ("trigger_at", "a task is due when its schedule says"),
    ("delay", "a task is due when its schedule says"),
    ("window", "want the jitter of the schedule"),
    ("expires_at", "want expires of the schedule"),
    ("request_id", "a task is named by its time"),
    ("occurrence", "it is what waterclock writes"),
];

/// A schedule: when its tasks are due, and what they are.
#[derive(Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Its name: one in its project.
    name: String,
    timing: Timing,
    /// How long after it is due a task is begun at the latest.
    expires: Option<Millis>,
    /// There are no tasks while it is so.
    paused: bool,
    /// The task of each time.
    task: Template,
}

impl fmt::Debug for Schedule {
    /// A task may have what is not for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("name", &self.name)
            .field("timing", &self.timing)
            .field("expires", &self.expires)
            .field("paused", &self.paused)
            .finish_non_exhaustive()
    }
}

/// The fields of a schedule beside those that every specification has.
pub(crate) fn fields() -> impl Iterator<Item = &'static str> {
    TIMING_FIELDS.into_iter().chain(OWN)
}

impl Schedule {
    /// Reads the fields of one. `of`: project and group, where those could be read.
    pub(crate) fn read(
        fields: &Fields<'_>,
        of: Option<(&str, &str)>,
        wrongs: &mut Wrongs,
    ) -> Option<Self> {
        let name = fields.require("name", wrongs, name);
        let expires = fields.read("expires", wrongs, |value| {
            length(value, Millis::SECOND..=Millis(30 * Millis::DAY.0))
        });
        let paused = fields.read("paused", wrongs, |value| {
            value.as_bool().ok_or_else(|| wanted(value, "true or false"))
        });
        let timing = Timing::read(fields, wrongs);
        let task = Template::read(fields, of, &NOT_OF_TASK, wrongs);
        Some(Self {
            name: name?,
            timing: timing?,
            expires,
            paused: paused.unwrap_or_default(),
            task: task?,
        })
    }

    /// The fields that were read, for who writes them.
    pub(crate) fn wire(&self) -> Wire<'_> {
        Wire {
            name: &self.name,
            timing: self.timing.wire(),
            last_of_count: self.timing.last,
            expires: self.expires.map(crate::task::fields::Length),
            paused: self.paused,
            task: self.task.as_map(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When its tasks are due.
    #[must_use]
    pub const fn timing(&self) -> &Timing {
        &self.timing
    }

    /// How long after it is due a task is begun at the latest.
    #[must_use]
    pub const fn expires(&self) -> Option<Millis> {
        self.expires
    }

    /// Whether it has no tasks for now.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// The same, paused or not.
    #[must_use]
    pub fn with_paused(self, paused: bool) -> Self {
        Self { paused, ..self }
    }

    /// The task, as it was written.
    #[must_use]
    pub const fn task(&self) -> &Map<String, Value> {
        self.task.as_map()
    }

    /// The type of its tasks, as it is written.
    #[must_use]
    pub fn type_of_task(&self) -> &str {
        self.task.type_of_task()
    }

    /// When it is acted on first, if it is made, changed or resumed `now`: at its next nominal time; never while it is paused.
    ///
    /// # Errors
    /// It has no time: the field that is the reason.
    pub fn first_after(&self, now: UnixMillis) -> Result<UnixMillis, Wrong> {
        let first = self.timing.first_after(now)?;
        Ok(if self.paused { NEVER } else { first })
    }

    /// The task of a nominal time, or one that somebody asks for: what is submitted for it `now`. `at`: that time. `after`: the one
    /// whose task is to have ended before.
    ///
    /// # Errors
    /// It was read by another release, and this one does not take its task: every field that is wrong.
    pub fn occurrence(
        &self,
        of: (&str, &str),
        id: TaskId,
        (at, now): (UnixMillis, UnixMillis),
        after: Option<UnixMillis>,
    ) -> Result<Submitted, Vec<Wrong>> {
        let due = self.timing.due(at, &id);
        let request = self.request(of, due)?;
        let expires = self.expires.map(|expires| due.max(now) + expires);
        let occurrence = Occurrence { schedule: self.name.clone(), nominal: at, after };
        let Request { spec, key, value, headers, .. } = request;
        Ok(Submitted {
            id,
            spec: spec.with_occurrence(occurrence),
            due,
            expires,
            key,
            value,
            headers,
        })
    }

    /// The task of a time as a request for it, to look at what cannot be seen in it alone.
    ///
    /// # Errors
    /// As those of [`occurrence`](Self::occurrence).
    pub fn request(&self, of: (&str, &str), due: UnixMillis) -> Result<Request, Vec<Wrong>> {
        self.task.request(of, due)
    }
}

/// A task of a schedule, ready to be submitted.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// Its id, which says its lane.
    pub id: TaskId,
    /// What is to be done.
    pub spec: Spec,
    /// When.
    pub due: UnixMillis,
    /// Past it, nothing is begun.
    pub expires: Option<UnixMillis>,
    /// The key at delivery, of a Kafka task.
    pub key: Option<Vec<u8>>,
    /// The body.
    pub value: Option<Vec<u8>>,
    /// Headers at delivery, of a Kafka task.
    pub headers: Vec<request::Header>,
}

/// A schedule as JSON has it, beside what every specification has.
#[derive(serde::Serialize)]
pub(crate) struct Wire<'a> {
    name: &'a str,
    #[serde(flatten)]
    timing: super::Wire<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_of_count: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<crate::task::fields::Length>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
    task: &'a Map<String, Value>,
}

/// The name of a schedule. It has no dot: so its id has one project and one name.
fn name(value: &Value) -> Result<String, String> {
    let is_fit = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
    };
    let name = text(value, NAME_WANTED)?;
    let is_name = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_fit);
    if is_name { Ok(name.to_owned()) } else { Err(wanted(value, NAME_WANTED)) }
}

/// What becomes of a nominal time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its task is created.
    Free,
    /// Its task is created, and is not begun before that of another time has ended.
    Behind(UnixMillis),
    /// It has no task.
    None,
}

impl Schedule {
    /// Whether there is a place for the task of one more time. `last`: the last one that has a task, if that has not ended, and whether
    /// that was begun.
    pub(crate) fn place(&self, last: Option<(UnixMillis, bool)>) -> Place {
        match (self.timing.overlap(), last) {
            (Overlap::Allow, _) | (_, None) => Place::Free,
            (Overlap::QueueOne, Some((last, true))) => Place::Behind(last),
            (Overlap::Skip | Overlap::QueueOne, Some(_)) => Place::None,
        }
    }
}
