//! What an instance knows of timers, in plain types.
//!
//! The API reaches the instance only through [`Timers`]; `app` implements it. Times are epoch milliseconds of the
//! brokers' clocks.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a timer is called: its id, and the key of its record. A timer without a key is another than one with any key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// As the producer gave it: 1 to 255 bytes without control characters.
    pub id: String,
    /// The key of the record.
    #[serde(with = "base64_bytes")]
    pub key: Option<Vec<u8>>,
}

/// A tracked timer, as its lane's owner knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// What it is called; the key is its beginning if [`key_cut`](Self::key_cut).
    pub name: Name,
    /// The key is longer than what is kept of it.
    pub key_cut: bool,
    /// Orders timers of the same due time.
    pub order: [u8; 16],
    /// `delay`, `delivered`, `cancelled`, `expired`, `dead` or `lost`.
    pub state: String,
    /// Where it is or was delivered to.
    pub target: String,
    /// When it is due.
    pub due: u64,
    /// Its lane.
    pub lane: u16,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Which of the records under this name: the append time of its first one, a dash, its offset, and an x behind it if it
    /// did not come straight to the main intake.
    pub version: String,
    /// The version that it took the place of.
    pub supersedes: Option<String>,
    /// Since when it is in this state.
    pub since: u64,
    /// Why it is dead.
    pub code: Option<String>,
}

impl Timer {
    /// The append time of the first record of its version.
    #[must_use]
    pub fn born(&self) -> u64 {
        let (time, _) = self.version.split_once('-').unwrap_or_default();
        time.parse().unwrap_or(u64::MAX)
    }
}

/// The words of [`Timer::state`].
pub const STATES: [&str; 6] = ["delay", "delivered", "cancelled", "expired", "dead", "lost"];

/// Selects timers. A field that is not set matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Delivered to this topic.
    pub target: Option<String>,
    /// With this label.
    pub label: Option<String>,
    /// In this state.
    pub state: Option<String>,
    /// Due then or later.
    pub due_after: Option<u64>,
    /// Due earlier.
    pub due_before: Option<u64>,
}

/// Where a page ended: what is behind it comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// The due time of the last one that was looked at.
    pub due: u64,
    /// Its [`Timer::order`].
    pub order: [u8; 16],
}

/// Timers of one lane in the order of due time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Page {
    /// Those that fit the filter; may be none though there are more.
    pub timers: Vec<Timer>,
    /// Up to where it was looked; `None`: to the end.
    pub more: Option<Cursor>,
}

/// How many pending timers of a target fall due when. All intervals begin with the minute that is running.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// The target.
    pub target: String,
    /// All of them.
    pub total: u64,
    /// Due before that minute.
    pub overdue: u64,
    /// In each of 60 minutes.
    pub minutes: Vec<u64>,
    /// In each of 24 hours.
    pub hours: Vec<u64>,
    /// In each of 30 days.
    pub days: Vec<u64>,
    /// After that.
    pub later: u64,
}

/// Where a lane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It runs here, and all of it is known.
    Here,
    /// It is coming here and not ready, or nobody is known to have it.
    Moving,
    /// Another instance said that it runs there, reached at `host:port`.
    Elsewhere(String),
}

/// What to do to a timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Which timer.
    pub name: Name,
    /// Only if it is this version still.
    pub version: Option<String>,
    /// What.
    pub order: Order,
}

/// See [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// It is not to be delivered.
    Cancel,
    /// It is to be delivered then.
    Reschedule(u64),
}

/// The times of a request.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When it came. Where no version is named, what was pending then is meant.
    pub came: Instant,
    /// By when its answer has to be there: nothing is written afterwards.
    pub by: Instant,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is decided and committed.
    Decided {
        /// The word for it: `cancelled`, `delivered`, `superseded`, `unknown`, `recorded`,
        /// `replaced` or `refused`.
        outcome: String,
        /// How that ended which the command is about, where the word does not say it.
        state: Option<String>,
        /// Why it was refused.
        code: Option<String>,
        /// It named no version, and so ended the last one that is known. One that was submitted after that, and before the
        /// command, may be on its way to its lane until [all is settled](Timers::settle).
        #[serde(default)]
        is_last: bool,
    },
    /// It is written, and not decided within the wait.
    Pending,
    /// It is written, and who could answer has given the lane away or has restarted since.
    Lost,
}

/// Why something is not answered. Nothing was changed, unless it says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// The lane is on its way from one member to another, or its owner does not answer; soon it will.
    Moving(String),
    /// Somebody was asked for a change and has not answered: it may have been made, or be made yet. The text says so.
    Unknown(String),
    /// Kafka does not answer.
    Away(String),
    /// The owner has no index in this run; a person must mend that.
    NoIndex(String),
    /// As much is asked already as may be at once.
    Busy(String),
    /// The record of a pending timer was not found in time.
    NotFound(String),
    /// The timer that was to be due at another time is not pending: how it ended, if that is known.
    NotPending(Option<String>),
    /// It cannot be done like that: a word for programs, a sentence for people.
    Refused(String, String),
}

/// What will be told.
pub type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the API needs of the instance. Nothing here blocks the calling thread. An answer about lanes is
/// [`Trouble::Moving`] unless all of them stand [`Here`](Standing::Here). It is true at the moment when it is given.
pub trait Timers: Send + Sync + 'static {
    /// How many lanes there are; 0 until the instance has started.
    fn lanes(&self) -> u16;
    /// The lane of a timer.
    fn lane_of(&self, name: &Name) -> u16;
    /// Where a lane is.
    fn standing(&self, lane: u16) -> Standing;
    /// Where the others reach this instance, as it tells them.
    fn address(&self) -> String;
    /// Whether records with an id are tracked at all.
    fn tracks(&self) -> bool;
    /// The brokers' time; `None` before it is known.
    fn now(&self) -> Option<u64>;
    /// Since when this instance runs, by the brokers' time; `None` before that is known.
    fn since(&self) -> Option<u64>;
    /// A seal that only instances of this namespace can make.
    fn seal(&self, what: &[u8]) -> [u8; 32];
    /// A length of time in milliseconds, as the header contract reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn span(&self, text: &str) -> Result<u64, String>;
    /// A point in time, as the header contract reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn moment(&self, text: &str) -> Result<u64, String>;
    /// Whether a text is a version as answers show it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn version(&self, text: &str) -> Result<(), String>;
    /// The timers of these names, each in its lane.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn find<'a>(
        &'a self,
        names: &'a [(u16, Name)],
    ) -> Soon<'a, Result<Vec<Option<Timer>>, Trouble>>;
    /// All timers of these ids in these lanes, whatever their keys.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn by_ids<'a>(
        &'a self,
        lanes: &'a [u16],
        ids: &'a [String],
    ) -> Soon<'a, Result<Vec<Timer>, Trouble>>;
    /// At most so many of a lane's timers behind a place, in the order of due time.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn page<'a>(
        &'a self,
        lane: u16,
        filter: &'a Filter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page, Trouble>>;
    /// How many timers of these lanes are meant.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn count<'a>(&'a self, lanes: &'a [u16], filter: &'a Filter) -> Soon<'a, Result<u64, Trouble>>;
    /// When the pending timers of these lanes fall due, from `now` on.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn forecast<'a>(
        &'a self,
        lanes: &'a [u16],
        now: u64,
        target: Option<&'a str>,
    ) -> Soon<'a, Result<Vec<Forecast>, Trouble>>;
    /// How many records stand in each tier and intake in the lanes that run here, as last counted.
    fn backlog(&self) -> Vec<(String, u64)>;
    /// Writes commands; for each a ticket to ask for its answer with. A cancel is written wherever its lane runs; another
    /// time is given only [`Here`](Standing::Here).
    fn submit<'a>(
        &'a self,
        lane: u16,
        commands: &'a [Command],
        asked: Asked,
    ) -> Soon<'a, Vec<Result<String, Trouble>>>;
    /// What became of a command, waiting for at most so long.
    ///
    /// # Errors
    /// See [`Trouble`]; the command stands.
    fn answer<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
        wait: Duration,
    ) -> Soon<'a, Result<Answer, Trouble>>;
    /// Waits until all is decided that stands in the intakes of these lanes now: what belongs in another lane stands there then.
    ///
    /// # Errors
    /// Not by then; see [`Trouble`].
    fn settle<'a>(&'a self, lanes: &'a [u16], by: Instant) -> Soon<'a, Result<(), Trouble>>;
}

/// Bytes as base64 in what instances tell each other.
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
