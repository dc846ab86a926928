//! The ticket by which a caller asks for the answer to a command.

use std::fmt;
use std::str::FromStr;

use crate::engine::timers::TimerId;
use crate::engine::{Lane, Offset};

/// Where a command stands in the main intake, and which timer it is about. People see it as `3-1042-` and 32 hexadecimal
/// digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The lane.
    pub lane: Lane,
    /// The offset in the lane's partition of the main intake.
    pub offset: Offset,
    /// The timer.
    pub timer_id: TimerId,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{:?}", self.lane.0, self.offset.0, self.timer_id)
    }
}

/// A text that is no ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no ticket of a command")]
pub struct BadTicket(pub String);

impl FromStr for Ticket {
    type Err = BadTicket;

    fn from_str(text: &str) -> Result<Self, BadTicket> {
        read(text).ok_or_else(|| BadTicket(text.to_owned()))
    }
}

fn read(text: &str) -> Option<Ticket> {
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let mut parts = text.split('-');
    let (lane, offset, name) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || !digits(lane) || !digits(offset) {
        return None;
    }
    let mut bytes = [0; 16];
    if name.len() != 2 * bytes.len() || !name.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(name.get(at..at + 2)?, 16).ok()?;
    }
    Some(Ticket {
        lane: Lane(lane.parse().ok()?),
        offset: Offset(offset.parse().ok()?),
        timer_id: TimerId(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_is_written_and_nothing_else_is() {
        let ticket = Ticket {
            lane: Lane(3),
            offset: Offset(1_042),
            timer_id: TimerId::new(Some(b"order-7"), b"reminder"),
        };
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
        let name = "00112233445566778899aabbccddeeff";
        for bad in [
            String::new(),
            "3-1".to_owned(),
            format!("3-1-{name}0"),
            format!("3-1-{}", &name[1..]),
            format!("3--1-{name}"),
            format!("70000-1-{name}"),
            format!("+3-1-{name}"),
            format!("3-1-{name}-1"),
            format!("3-1-{}\u{e9}", &name[2..]),
        ] {
            assert_eq!(bad.parse::<Ticket>(), Err(BadTicket(bad.clone())));
        }
    }
}
