//! Tokens of the API.

use waterclock::api::timers::model::{Cursor, Filter};
use waterclock::api::timers::token;

/// Whatever a caller comes back with is refused, or is what was given out.
pub(super) fn come_back(text: &str, filter: &Filter, now: u64) {
    if let Ok(cursor) = token::page(text, filter) {
        assert_eq!(token::page(&token::of_page(cursor, filter), filter), Ok(cursor));
    }
    if let Some(ticket) = token::Ticket::decode(text) {
        assert_eq!(token::Ticket::decode(&ticket.encode()), Some(ticket));
    }
    let seal = |bytes: &[u8]| [bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)); 32];
    if let Ok(counted) = token::Counted::of_token(seal, text, now) {
        let again = counted.token(seal);
        assert_eq!(token::Counted::of_token(seal, &again, now), Ok(counted));
    }
}

/// What is given out is read back.
pub(super) fn give_out(cursor: Cursor, filter: Filter, count: u64, now: u64) {
    assert_eq!(token::page(&token::of_page(cursor, &filter), &filter), Ok(cursor));
    let counted = token::Counted { filter, at: now, count };
    let seal = |_: &[u8]| [7; 32];
    let text = counted.token(seal);
    assert_eq!(token::Counted::of_token(seal, &text, now), Ok(counted));
}
