//! What callers ask about timers and do to them. The index, the timer service and the API share these types, and instances
//! send them to each other as JSON.

use serde::{Deserialize, Serialize};

use super::{Replaced, Timer, TimerId, TimerState, Version};
use crate::header::Code;
use crate::{Lane, UnixMillis};

/// What callers name a timer by: its id, and the key of its record. A timer without a key is another than one with any key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TimerName {
    /// As the producer gave it: 1 to 255 bytes without control characters.
    pub id: String,
    /// The key of the record.
    #[serde(default, with = "base64_bytes")]
    pub key: Option<Vec<u8>>,
}

/// Where a listing of timers by due time goes on: behind the timer of this due time and name.
pub type After = (UnixMillis, TimerId);

/// Selects timers. A field that is not set matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Delivered to this topic.
    pub target: Option<String>,
    /// With this label.
    pub label: Option<String>,
    /// In this state.
    pub state: Option<TimerState>,
    /// Due then or later.
    pub due_after: Option<UnixMillis>,
    /// Due earlier.
    pub due_before: Option<UnixMillis>,
}

impl Filter {
    /// Whether a timer matches.
    #[must_use]
    pub fn matches(&self, timer: &Timer) -> bool {
        self.target.as_deref().is_none_or(|target| *timer.target == *target)
            && self.label.as_deref().is_none_or(|label| timer.label.as_deref() == Some(label))
            && self.state.is_none_or(|state| timer.state == state)
            && self.due_after.is_none_or(|after| timer.due >= after)
            && self.due_before.is_none_or(|before| timer.due < before)
    }
}

/// A timer, and the lane that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "PeerTimer", from = "PeerTimer")]
pub struct LaneTimer {
    /// Its lane.
    pub lane: Lane,
    /// The timer.
    pub timer: Timer,
}

impl LaneTimer {
    /// What callers name it by. The key is only the beginning of it if [`Timer::key_cut`].
    #[must_use]
    pub fn name(&self) -> TimerName {
        let Timer { id, key, .. } = &self.timer;
        let id = String::from_utf8_lossy(id).into_owned();
        TimerName { id, key: key.as_deref().map(<[u8]>::to_vec) }
    }
}

/// A timer as instances send it to each other.
#[derive(Serialize, Deserialize)]
struct PeerTimer {
    name: TimerName,
    key_cut: bool,
    order: [u8; 16],
    state: TimerState,
    target: String,
    due: UnixMillis,
    lane: Lane,
    label: Option<String>,
    version: Version,
    /// Only the last of the versions that it replaced: nobody is shown the others.
    supersedes: Option<Version>,
    since: UnixMillis,
    #[serde(default, with = "code_or_none")]
    code: Option<Code>,
}

impl From<LaneTimer> for PeerTimer {
    fn from(of: LaneTimer) -> Self {
        let name = of.name();
        let LaneTimer { lane, timer } = of;
        Self {
            name,
            key_cut: timer.key_cut,
            order: timer.timer_id.0,
            state: timer.state,
            target: timer.target.as_ref().to_owned(),
            due: timer.due,
            lane,
            label: timer.label.as_deref().map(str::to_owned),
            version: timer.version,
            supersedes: timer.supersedes.map(|replaced| replaced.last),
            since: timer.shown_since(),
            code: timer.code,
        }
    }
}

impl From<PeerTimer> for LaneTimer {
    fn from(of: PeerTimer) -> Self {
        let timer = Timer {
            timer_id: TimerId(of.order),
            state: of.state,
            version: of.version,
            supersedes: of.supersedes.map(|last| Replaced { first: last, last }),
            due: of.due,
            since: of.since,
            target: of.target.into(),
            label: of.label.map(Into::into),
            id: of.name.id.into_bytes().into(),
            key: of.name.key.map(Into::into),
            key_cut: of.key_cut,
            code: of.code,
            task: None,
        };
        Self { lane: of.lane, timer }
    }
}

/// When pending timers of one target fall due. All intervals begin with the minute that is running.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// The target.
    pub target: String,
    /// All of them.
    pub total: u64,
    /// Due before that minute.
    pub overdue: u64,
    /// In each of the next 60 minutes.
    pub minutes: Vec<u64>,
    /// In each of the next 24 hours.
    pub hours: Vec<u64>,
    /// In each of the next 30 days.
    pub days: Vec<u64>,
    /// After that.
    pub later: u64,
}

/// What to do to a timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerCommand {
    /// Which timer.
    pub name: TimerName,
    /// Only if it is this version still.
    pub version: Option<Version>,
    /// What.
    #[serde(rename = "order")]
    pub kind: CommandKind,
}

/// See [`TimerCommand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandKind {
    /// It is not to be delivered.
    Cancel,
    /// It is to be delivered then.
    Reschedule(UnixMillis),
}

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandStatus {
    /// It is decided and committed.
    Decided {
        /// How.
        outcome: CommandOutcome,
        /// How the timer ended that the command is about, where the outcome does not say it.
        state: Option<TimerState>,
        /// Why it was refused, or why the timer is a dead letter.
        #[serde(default, with = "code_or_none")]
        code: Option<Code>,
        /// The command named no version, and this is how the last known version ended. One that was submitted after that,
        /// and before the command, may still stand in another lane's intakes, or in another intake.
        #[serde(default)]
        is_last: bool,
    },
    /// It is written, and not decided within the wait.
    Pending,
    /// It is written. The instance that could answer has given the lane away, or has restarted since.
    Lost,
}

/// How a command was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandOutcome {
    /// The timer will never be in its target.
    Cancelled,
    /// It was there before.
    Delivered,
    /// Another version was put in the place of the one that was meant.
    Superseded,
    /// It is due at another time now.
    Replaced,
    /// Nothing was pending, and something is now.
    Created,
    /// The cancel is remembered; what it hits is not known (`tracking = "cancellations"`).
    Recorded,
    /// Nothing that it is about is known to have been pending, delivered or cancelled.
    Unknown,
    /// It is a dead letter.
    Refused,
}

impl CommandOutcome {
    /// As programs see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Delivered => "delivered",
            Self::Superseded => "superseded",
            Self::Replaced => "replaced",
            Self::Created => "created",
            Self::Recorded => "recorded",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
        }
    }
}

/// A code by its word. Codes are a closed list, but an instance of a later version may have more of them: a word that this one
/// does not know is left out.
mod code_or_none {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::header::Code;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands the field over like this")]
    pub(super) fn serialize<S: Serializer>(
        code: &Option<Code>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        code.map(Code::as_str).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Code>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(text.and_then(|text| text.parse().ok()))
    }
}

/// Bytes as base64.
mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(|bytes| STANDARD.encode(bytes)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| STANDARD.decode(text).map_err(D::Error::custom)).transpose()
    }
}
