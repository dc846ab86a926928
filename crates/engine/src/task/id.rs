//! Ids of tasks: how they are made, and which lane they are of.
//!
//! # Invariants
//! 1. The same project, request id and key always make the same id. Another project or request id makes another one. Those of tasks and
//!    those of runs are never the same.
//! 2. The lane follows from the id alone: [`TaskId::lane_of`] is the only place that says so. A task with a key is in the
//!    lane of the records of that key.
//! 3. Every id is an id of the [header contract](crate::header): it can stand in `x-delay-id`, in a URL and in a log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::header::ID_MAX;
use crate::{Lane, Millis, Offset, UnixMillis, murmur2};

/// Longest request id, in bytes.
pub const REQUEST_ID_MAX: usize = 128;
/// What is hashed before a request id of a task, so that the hash is never that of something else.
const TASK: &[u8] = b"waterclock task";
/// The same of a run.
const RUN: &[u8] = b"waterclock run";
/// What is hashed before an id to spread tasks over a window.
const WINDOW: &[u8] = b"waterclock window";
/// What is hashed before a version and an id to make the id of its follow-up.
const FOLLOW_UP: &[u8] = b"waterclock follow-up";
/// What the id of a schedule begins with.
const SCHEDULE: &str = "schedule.";
/// What stands between the id of a schedule and which of its tasks it is; nothing of a schedule's name has it.
const OCCURRENCE: char = '@';
/// What the id of a shard begins with.
const SHARD: &str = "r.";
/// What is hashed before an id to make one that no task has.
const ABSENT: &[u8] = b"waterclock no task";
/// Hex digits of a hash of a key.
const KEY_DIGITS: usize = 8;

/// Why there is no id of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is no id.
    #[error("not the id of a task; want 1 to 255 of a-z 0-9 . _ @ -, not . or ..")]
    Text,
    /// The request id is empty or too long.
    #[error("a request id of {0} bytes; want 1 to 128")]
    RequestId(usize),
}

/// The id of a task: 1 to 255 bytes of `a-z 0-9 . _ @ -`.
///
/// Most are 32 hex digits. Where the task has a key, or follows another one, `k`, eight hex digits and `-` stand before them.
/// Schedules and runs have ids with words in them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskId(Box<str>);

impl TaskId {
    /// Reads an id.
    ///
    /// # Errors
    /// [`IdError::Text`].
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._@-".contains(&byte)
        };
        // The two names mean another path in a URL, so the header contract refuses them too.
        let sound = (1..=ID_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && !matches!(text, "." | "..");
        if sound { Ok(Self(text.into())) } else { Err(IdError::Text) }
    }

    /// The id of the task that a project asked for with this request id. `key`: the task has to be in the lane of this key.
    ///
    /// # Errors
    /// [`IdError::RequestId`].
    pub fn of_request(
        project: &str,
        request_id: &str,
        key: Option<&[u8]>,
    ) -> Result<Self, IdError> {
        Ok(Self::of_bytes(named(TASK, project, request_id)?, key))
    }

    /// The id of the run that a project asked for with this request id.
    ///
    /// # Errors
    /// [`IdError::RequestId`].
    pub fn run_of_request(project: &str, request_id: &str) -> Result<Self, IdError> {
        Ok(Self::of_bytes(named(RUN, project, request_id)?, None))
    }

    /// An id of random bytes, which the caller brings. `key`: the task has to be in the lane of this key.
    #[must_use]
    pub fn random(bytes: [u8; 16], key: Option<&[u8]>) -> Self {
        Self::of_bytes(bytes, key)
    }

    fn of_bytes(bytes: [u8; 16], key: Option<&[u8]>) -> Self {
        let digits = u128::from_be_bytes(bytes);
        let text = match key {
            Some(key) => format!("k{:08x}-{digits:032x}", murmur2::murmur2(key)),
            None => format!("{digits:032x}"),
        };
        Self(text.into())
    }

    /// The lane of the task: that of the key whose hash the id begins with, else that of the id.
    #[must_use]
    pub fn lane_of(&self, lanes: u16) -> Lane {
        Lane(murmur2::partition_of(self.lane_hash(), lanes))
    }

    /// How much later than it was asked for this task is due, if tasks are spread over a window: less than the window, and always
    /// the same. No window, no delay.
    #[must_use]
    pub fn offset_in(&self, window: Millis) -> Millis {
        // Not the hash that says which lane it is: the tasks of one lane are to be spread as all are.
        let hash = Sha256::new().chain_update(WINDOW).chain_update(self.0.as_bytes()).finalize();
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hash[..8]);
        Millis(u64::from_be_bytes(bytes).checked_rem(window.0).unwrap_or(0))
    }

    /// The id of the task that tells how a version of this one ended: that which was appended then, there. It is of the same lane.
    #[must_use]
    pub fn follow_up(&self, (first_appended, offset): (UnixMillis, Offset)) -> Self {
        let hash = Sha256::new()
            .chain_update(FOLLOW_UP)
            .chain_update(first_appended.0.to_be_bytes())
            .chain_update(offset.0.to_be_bytes())
            .chain_update(self.0.as_bytes());
        self.beside(hash)
    }

    /// The id of the schedule of a project that has this name. A name has no dot, so no other project and name make the same id.
    ///
    /// # Errors
    /// [`IdError::Text`]: one of them is no name.
    pub fn schedule(project: &str, name: &str) -> Result<Self, IdError> {
        if name.contains('.') {
            return Err(IdError::Text);
        }
        Self::parse(&format!("{SCHEDULE}{project}.{name}"))
    }

    /// The project and the name of the schedule that has this id; `None`: it is that of a task.
    #[must_use]
    pub fn as_schedule(&self) -> Option<(&str, &str)> {
        let of = self.0.strip_prefix(SCHEDULE).filter(|of| !of.contains(OCCURRENCE))?;
        of.rsplit_once('.').filter(|(project, name)| !project.is_empty() && !name.is_empty())
    }

    /// The id of the task of a nominal time of this schedule. It is of the same lane.
    #[must_use]
    pub fn occurrence(&self, nominal: UnixMillis) -> Self {
        self.of_schedule(&nominal.0.to_string())
    }

    /// The id of a task of this schedule that somebody asked for, of random bytes, which the caller brings. It is of the same lane.
    #[must_use]
    pub fn triggered(&self, bytes: [u8; 8]) -> Self {
        self.of_schedule(&format!("manual-{:016x}", u64::from_be_bytes(bytes)))
    }

    fn of_schedule(&self, which: &str) -> Self {
        Self(format!("k{:08x}-{}{OCCURRENCE}{which}", self.lane_hash(), self.0).into())
    }

    /// The id of a shard, counted from 0, of the version of this run that was appended then, there. No hash of a key begins it: shards
    /// are spread over all lanes.
    #[must_use]
    pub fn shard(&self, (first_appended, offset): (UnixMillis, Offset), index: u32) -> Self {
        Self(format!("{SHARD}{}.{}-{}.{index}", self.0, first_appended.0, offset.0).into())
    }

    /// The run whose shard this is, which version of it, and which shard; `None`: it is none.
    #[must_use]
    pub fn as_shard(&self) -> Option<(Self, (UnixMillis, Offset), u32)> {
        Self::read_shard(&self.0)
    }

    /// The same of an id as it is written.
    pub(crate) fn read_shard(id: &str) -> Option<(Self, (UnixMillis, Offset), u32)> {
        let (rest, index) = id.strip_prefix(SHARD)?.rsplit_once('.')?;
        let (run, version) = rest.rsplit_once('.')?;
        let (first_appended, offset) = version.split_once('-')?;
        let version = (UnixMillis(first_appended.parse().ok()?), Offset(offset.parse().ok()?));
        Some((Self::parse(run).ok()?, version, index.parse().ok()?))
    }

    /// The nominal time whose task of a schedule this is, or of whose run it is a shard; `None`: it is of no schedule, or somebody asked
    /// for it by hand. Nobody chooses the id of a task, so nobody but a schedule makes one that has a time.
    #[must_use]
    pub fn nominal(&self) -> Option<UnixMillis> {
        let run = self.as_shard().map(|(run, ..)| run);
        let id = run.as_ref().unwrap_or(self);
        let (of, which) = id.0.rsplit_once(OCCURRENCE)?;
        let (_, schedule) = of.split_once('-')?;
        let (schedule, nominal) = (Self(schedule.into()), UnixMillis(which.parse().ok()?));
        // Only what is made is read: no other text has that time.
        let is_made = schedule.as_schedule().is_some() && schedule.occurrence(nominal) == *id;
        is_made.then_some(nominal)
    }

    /// Another id, of the same lane, that no task has.
    #[must_use]
    pub fn absent_beside(&self) -> Self {
        self.beside(Sha256::new().chain_update(ABSENT).chain_update(self.0.as_bytes()))
    }

    fn beside(&self, hash: Sha256) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(format!("k{:08x}-{:032x}", self.lane_hash(), u128::from_be_bytes(bytes)).into())
    }

    fn lane_hash(&self) -> u32 {
        self.key_hash().unwrap_or_else(|| murmur2::murmur2(self.0.as_bytes()))
    }

    /// The hash of the key, where the id begins with one.
    fn key_hash(&self) -> Option<u32> {
        let (digits, _) = self.0.strip_prefix('k')?.split_once('-')?;
        // The parser of numbers would read a plus sign too, which no id has, and no capitals are in an id.
        let is_hash =
            digits.len() == KEY_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    }

    /// The id as a text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a request id stands for, of what is called so.
fn named(what: &[u8], project: &str, request_id: &str) -> Result<[u8; 16], IdError> {
    if !(1..=REQUEST_ID_MAX).contains(&request_id.len()) {
        return Err(IdError::RequestId(request_id.len()));
    }
    let mut hash = Sha256::new();
    // Lengths before the parts: no other parts make the same bytes.
    for part in [what, project.as_bytes(), request_id.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    Ok(bytes)
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TaskId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for TaskId {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        Self::parse(&text)
    }
}

impl From<TaskId> for String {
    fn from(id: TaskId) -> Self {
        id.0.into()
    }
}

#[cfg(test)]
mod tests;
