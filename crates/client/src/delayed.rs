//! What is to be delivered later: a record of yours, and what the header contract asks for.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::message::INTERVAL;
use waterclock_engine::header::{self, EPOCH_MIN, Refusal, TimerAction, When};
use waterclock_engine::{Millis, Record, UnixMillis};

/// A record that is to arrive in its target later. Made by [`Delayed::to`], or of a consumed one by
/// [`Message::again`](super::Message::again).
///
/// ```
/// use std::time::Duration;
/// use waterclock_client::Delayed;
///
/// let reminder = Delayed::to("reminders")
///     .key("customer-7")
///     .value(r#"{"basket": 42}"#)
///     .header("content-type", "application/json")
///     .after(Duration::from_secs(30 * 60))
///     .id("basket-42");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is sent before it is handed to a client"]
pub struct Delayed {
    target: String,
    pub(super) key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(super) when: Option<When>,
    pub(super) id: Option<String>,
    label: Option<String>,
    expires: Option<When>,
    partition: Option<u32>,
    trace: bool,
    attempt: u32,
}

impl Delayed {
    /// A record for this topic: null key, null value, no headers. Say when by [`after`](Self::after) or
    /// [`until`](Self::until), or leave it to the default of the intake.
    pub fn to(target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            key: None,
            value: None,
            headers: Vec::new(),
            when: None,
            id: None,
            label: None,
            expires: None,
            partition: None,
            trace: false,
            attempt: 0,
        }
    }

    /// Its key. It decides the lane and the partition of the target, and is half of a timer's name.
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Its value, byte for byte.
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// One more header of yours. Names that begin with `x-delay` are the contract's.
    pub fn header(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// This header of yours, in the place of all that have its name: of a consumed record, say, which has them from before.
    pub fn replace_header(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        let name = name.into();
        self.headers.retain(|(known, _)| *known != name);
        self.header(name, value)
    }

    /// One more header of yours; its value may be null.
    pub(super) fn header_or_null(mut self, name: &[u8], value: Option<&[u8]>) -> Self {
        self.headers.push((name.to_vec(), value.map(<[u8]>::to_vec)));
        self
    }

    /// Due this long after Kafka appended it, rounded up to a millisecond. Takes the place of an earlier
    /// [`until`](Self::until).
    pub fn after(mut self, delay: Duration) -> Self {
        self.when = Some(When::After(millis(delay)));
        self
    }

    /// Due at this time, rounded up to a millisecond; one in the past is due at once. Takes the place of an earlier
    /// [`after`](Self::after).
    pub fn until(mut self, due: SystemTime) -> Self {
        self.when = Some(When::At(epoch(due)));
        self
    }

    /// Your name for this timer, 1 to 255 bytes, unique per key: it can be cancelled, replaced and found, and a second
    /// send of it while it is pending does nothing.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// A word for lists, bulk cancels and metrics, at most 64 bytes.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Not to be delivered later than this after Kafka appended it; it becomes a dead letter then.
    pub fn expires_after(mut self, life: Duration) -> Self {
        self.expires = Some(When::After(millis(life)));
        self
    }

    /// Not to be delivered after this time; it becomes a dead letter then.
    pub fn expires_at(mut self, end: SystemTime) -> Self {
        self.expires = Some(When::At(epoch(end)));
        self
    }

    /// Deliver to this partition of the target, and not to the one that Java's default partitioner gives the key.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// The delivery tells about itself: when it was due and left, its id, how many times it was delivered, and (in a
    /// header `waterclock-interval`) how long it waited, so that [`Message::again`](super::Message::again) knows.
    pub fn trace(mut self) -> Self {
        self.trace = true;
        self
    }

    /// How many deliveries there were before this one; told, plus one, by a [`trace`](Self::trace).
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// The hold of the tier that it could be written to; `None` if it has to pass an intake.
    pub(super) fn hold(&self) -> Option<Millis> {
        match self.when {
            Some(When::After(delay)) if self.id.is_none() => Some(delay),
            _ => None,
        }
    }

    /// What decides its lane; `None`: any.
    pub(super) fn lane_key(&self) -> Option<&[u8]> {
        self.key.as_deref().or_else(|| self.id.as_deref().map(str::as_bytes))
    }

    /// The record for an intake, or for the tier of its hold.
    ///
    /// # Errors
    /// The contract refuses it.
    pub(super) fn record(&self, action: TimerAction, to_tier: bool) -> Result<Record, Refusal> {
        let is_own =
            |name: &str, value: Option<String>| value.map(|value| (name.to_owned(), value));
        let time = |when: When| match when {
            When::After(Millis(ms)) => format!("{ms}ms"),
            When::At(UnixMillis(ms)) => ms.to_string(),
        };
        let (delay, until) = match self.when.filter(|_| !to_tier) {
            Some(when @ When::After(_)) => (Some(time(when)), None),
            Some(when @ When::At(_)) => (None, Some(time(when))),
            None => (None, None),
        };
        let interval = match self.when {
            Some(When::After(Millis(ms))) if self.trace => Some(ms.to_string()),
            _ => None,
        };
        let directives = [
            is_own(header::DELAY, delay),
            is_own(header::UNTIL, until),
            is_own(header::TARGET, Some(self.target.clone())),
            is_own(header::ID, self.id.clone()),
            is_own(header::ACTION, (action == TimerAction::Replace).then(|| "replace".to_owned())),
            is_own(header::PARTITION, self.partition.map(|number| number.to_string())),
            is_own(header::EXPIRES, self.expires.map(time)),
            is_own(header::LABEL, self.label.clone()),
            is_own(header::TRACE, self.trace.then(|| "1".to_owned())),
            is_own(header::ATTEMPT, (self.attempt > 0).then(|| self.attempt.to_string())),
            is_own(INTERVAL, interval),
        ];
        let directives: Vec<(String, String)> = directives.into_iter().flatten().collect();
        let headers = directives
            .iter()
            .map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())))
            .chain(self.headers.iter().map(|(name, value)| (&name[..], value.as_deref())));
        let record = Record::new(self.key.as_deref(), self.value.as_deref(), headers);
        header::read(record.headers())?;
        Ok(record)
    }
}

/// Whole milliseconds, rounded up.
pub(super) fn millis(length: Duration) -> Millis {
    let nanos = length.as_nanos().div_ceil(1_000_000);
    Millis(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Whole milliseconds, rounded up. A time too long past becomes the earliest that the contract can say.
fn epoch(at: SystemTime) -> UnixMillis {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(millis(since).0.max(EPOCH_MIN))
}

/// The same point for callers.
pub(super) fn system(at: UnixMillis) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(at.0)
}
