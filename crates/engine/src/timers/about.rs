//! What a command is about, and what the last state that is kept of a timer says of that.

use super::{Timer, TimerState, Version};

/// The versions in whose place one was put, each in the place of the one before it, without an end between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The first of them.
    pub first: Version,
    /// The last of them: the version itself was put in its place.
    pub last: Version,
}

impl Replaced {
    /// The versions that end when a version takes the place of `version`.
    pub(crate) fn by(version: Version, before: Option<Self>) -> Self {
        Self { first: before.map_or(version, |before| before.first), last: version }
    }

    /// Whether this version is among them, for certain. The first and the last are. Of those between them only the log tells: what is
    /// not in log order may have been delivered before the first of them was read.
    #[must_use]
    pub fn has(&self, version: Version) -> bool {
        let Self { first, last } = *self;
        if version == first || version == last {
            return true;
        }
        let are_in_log_order = ![first, version, last].iter().any(|of| of.is_not_in_log_order());
        are_in_log_order && first.is_before(version) && version.is_before(last)
    }
}

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// What was submitted before this version.
    Before(Version),
    /// This version.
    Version(Version),
    /// This version, in whose place the command was to put its own, by which it is read again as long as that is pending.
    Replace(Version, Version),
}

/// What became of what a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was never seen; or others came after it, and what became of it is not kept.
    Nothing,
    /// Another version replaced it.
    Replaced,
    /// The command itself did it, when it was read before.
    Done,
    /// This.
    Ended(TimerState),
}

impl About {
    /// What became of that, by the last state of its timer; it was not pending when the command was decided.
    #[must_use]
    pub fn found(self, last: Option<&Timer>) -> Found {
        let Some(last) = last else { return Found::Nothing };
        let was = |version| last.supersedes.is_some_and(|of| of.has(version));
        let is_it = match self {
            Self::Before(version) => last.version.is_before(version),
            Self::Version(version) | Self::Replace(version, _) => last.version == version,
        };
        match self {
            _ if is_it && last.state.is_final() => Found::Ended(last.state),
            // It was put in the place of that version only if that is among them: others may have come after that one's end.
            Self::Replace(version, own) if was(version) && (last.version == own || was(own)) => {
                Found::Done
            }
            Self::Version(version) | Self::Replace(version, _) if was(version) => Found::Replaced,
            _ => Found::Nothing,
        }
    }
}
