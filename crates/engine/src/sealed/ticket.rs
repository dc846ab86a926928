//! The ticket of a turn: what an executor reports with, and nobody else has.
//!
//! Any instance verifies a ticket without a look-up. It opens nothing but feedback about its own turn.
//!
//! # Invariants
//! 1. A ticket that is read says what a lane or a worker wrote for that task, or it is refused. Who changes a digit has no ticket.
//! 2. It brings the heartbeat of its task along: a heartbeat says by itself until when it counts.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

use crate::state::{CODE, StateKey};
use crate::task::id::TaskId;
use crate::timers::Version;
use crate::{Millis, Offset, UnixMillis};

/// Bytes of what is said.
const BODY: usize = 24;
/// Bytes of a ticket.
const SIZE: usize = BODY + CODE;
/// Bytes of a ticket as it is written.
#[cfg(test)]
const TEXT: usize = (SIZE * 4).div_ceil(3);

/// Which turn of which version of a task its holder works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The version.
    pub version: Version,
    /// The turn, from 1.
    pub turn: u32,
    /// For how long a heartbeat counts.
    pub heartbeat: Millis,
}

/// A text that is no ticket of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ticket is not one of this task; want the one that came with the turn, as it was: x-delay-ticket of a record, waterclock-ticket of a call"
)]
pub struct BadTicket;

impl Ticket {
    /// As it is handed out with a turn of this task.
    #[must_use]
    pub fn to_text(&self, key: &StateKey, id: &TaskId) -> String {
        let body = self.body();
        let code = key.ticket_code(&body, id.as_str().as_bytes());
        BASE64.encode([&body[..], &code[..]].concat())
    }

    /// Reads what [`to_text`](Self::to_text) wrote for this task under this key.
    ///
    /// # Errors
    /// It was written for another task or in another namespace, or somebody has changed it.
    pub fn read(text: &str, key: &StateKey, id: &TaskId) -> Result<Self, BadTicket> {
        let bytes = BASE64.decode(text).map_err(|_| BadTicket)?;
        let bytes: [u8; SIZE] = bytes.try_into().map_err(|_| BadTicket)?;
        let (body, code) = bytes.split_at(BODY);
        if !key.is_ticket_code(body, id.as_str().as_bytes(), code) {
            return Err(BadTicket);
        }
        let of = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&body[from..from + 8]);
            u64::from_be_bytes(word)
        };
        let (version, turns) = (
            Version { first_appended: UnixMillis(of(0)), offset: Offset(of(8).cast_signed()) },
            of(16),
        );
        let (turn, heartbeat) = ((turns >> 32) as u32, Millis(turns & u64::from(u32::MAX)));
        Ok(Self { version, turn, heartbeat })
    }

    fn body(&self) -> [u8; BODY] {
        let Self { version: Version { first_appended, offset }, turn, heartbeat } = *self;
        // No heartbeat is longer than 30 days.
        let heartbeat = u32::try_from(heartbeat.0).unwrap_or(u32::MAX);
        let turns = u64::from(turn) << 32 | u64::from(heartbeat);
        let mut body = [0; BODY];
        for (at, word) in
            [first_appended.0, offset.0.cast_unsigned(), turns].into_iter().enumerate()
        {
            body[8 * at..][..8].copy_from_slice(&word.to_be_bytes());
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(of: u8) -> StateKey {
        StateKey::new([of; 32])
    }

    fn id(n: u32) -> TaskId {
        TaskId::of_request("shop", &n.to_string(), None).expect("sound")
    }

    proptest! {
        #[test]
        fn a_ticket_is_read_back_for_its_task_and_for_no_other(
            (appended, offset, turn, beat) in (any::<u64>(), any::<i64>(), any::<u32>(), any::<u32>()), at in 0..TEXT,
        ) {
            let version = Version { first_appended: UnixMillis(appended), offset: Offset(offset) };
            let ticket = Ticket { version, turn, heartbeat: Millis(beat.into()) };
            let text = ticket.to_text(&key(1), &id(1));
            prop_assert_eq!(text.len(), TEXT);
            prop_assert_eq!(Ticket::read(&text, &key(1), &id(1)), Ok(ticket));
            prop_assert_eq!(Ticket::read(&text, &key(1), &id(2)), Err(BadTicket));
            prop_assert_eq!(Ticket::read(&text, &key(2), &id(1)), Err(BadTicket));
            let mut changed = text.into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("letters");
            prop_assert_eq!(Ticket::read(&changed, &key(1), &id(1)), Err(BadTicket));
        }

        #[test]
        fn made_up_tickets_do_no_harm(text in "\\PC{0,80}|[A-Za-z0-9_-]{54}") {
            prop_assert_eq!(Ticket::read(&text, &key(1), &id(1)), Err(BadTicket));
        }
    }

    #[test]
    fn who_has_another_ticket_is_told_what_is_wrong_with_it() {
        assert!(BadTicket.to_string().starts_with("the ticket is not one of this task"));
    }

    #[test]
    fn a_seal_of_a_record_is_no_code_of_a_ticket() {
        let (key, body) = (key(1), [0; BODY]);
        let code = key.ticket_code(&body, b"x");
        assert!(key.is_ticket_code(&body, b"x", &code));
        assert!(
            !key.is_ticket_code(&body, b"y", &code) && !key.is_ticket_code(&body, b"x", &code[1..])
        );
    }
}
