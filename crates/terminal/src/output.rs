//! Results on standard output, and bytes of strangers made fit for a terminal.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::Value;

use waterclock_engine::UnixMillis;

use crate::{Exit, Failure, Outcome};

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("could not write the result")]
struct Unwritten(#[source] std::io::Error);

/// Writes a result. A reader that has gone (as in `| head`) has seen enough, and so has one whose terminal is gone.
///
/// # Errors
/// Standard output cannot be written.
pub fn write(bytes: &[u8]) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe && !is_gone(&out, &error) => {
            Err(Failure::new(Exit::Internal, Unwritten(error)))
        }
        _ => Ok(Exit::Ok),
    }
}

/// Whether a terminal refuses this since nobody is at its other end any more; of a file the error is a failure.
fn is_gone(out: impl std::os::fd::AsFd, error: &std::io::Error) -> bool {
    let is_device = |stat: rustix::fs::Stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
    };
    let is_refused = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    is_refused && rustix::fs::fstat(out).is_ok_and(is_device)
}

/// Writes one line of text.
///
/// # Errors
/// As [`write()`].
pub fn line(text: &str) -> Outcome {
    write(format!("{text}\n").as_bytes())
}

/// Writes one line for people to standard error, as standard output has the result only. That nobody reads it is no failure.
pub fn aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A point in time as RFC 3339 in UTC, with milliseconds; as a number when no calendar has it.
#[must_use]
pub fn time(at: UnixMillis) -> String {
    let timestamp = i64::try_from(at.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    timestamp.map_or_else(|| at.0.to_string(), |t| format!("{t:.3}"))
}

/// Bytes for a terminal: text as it is, but for what steers a terminal; anything else in hexadecimal.
#[must_use]
pub fn shown(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else { return "null".to_owned() };
    match std::str::from_utf8(bytes) {
        Ok(text) => printable(text),
        Err(_) => bytes.iter().fold("0x".to_owned(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        }),
    }
}

/// The same, at most `max` characters of it.
#[must_use]
pub fn shortened(bytes: Option<&[u8]>, max: usize) -> String {
    // Four bytes are the longest character, and hexadecimal is longer than what it shows.
    let cut = bytes.map(|bytes| &bytes[..bytes.len().min(max * 4)]);
    let text = match cut.map(std::str::from_utf8) {
        // A character that was cut in two is no reason to show all of it in hexadecimal.
        Some(Err(error)) if error.error_len().is_none() => {
            shown(cut.map(|c| &c[..error.valid_up_to()]))
        }
        _ => shown(cut),
    };
    let is_cut = text.chars().count() > max || cut.map(<[u8]>::len) < bytes.map(<[u8]>::len);
    if is_cut { text.chars().take(max - 1).chain(['~']).collect() } else { text }
}

fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut kept, c| {
        // Besides control characters, what turns the direction of text can make a line say something else.
        if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            kept.extend(c.escape_default());
        } else {
            kept.push(c);
        }
        kept
    })
}

/// Bytes for a program, as the HTTP API has a key: under their name as text or null, or what is no UTF-8 under `<name>_base64`.
pub fn put_bytes(object: &mut Value, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => object[name] = Value::Null,
        Some((_, Ok(text))) => object[name] = text.into(),
        Some((bytes, Err(_))) => object[format!("{name}_base64")] = BASE64.encode(bytes).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_strangers_do_not_steer_the_terminal() {
        #[rustfmt::skip]
        let cases: [(&str, Option<&[u8]>, &str); 6] = [
            ("null",                    None,                       "null"),
            ("empty",                   Some(b""),                  ""),
            ("text",                    Some("käse".as_bytes()),    "käse"),
            ("an escape sequence",      Some(b"\x1b[2Ja\n"),        "\\u{1b}[2Ja\\n"),
            ("a turn of direction",     Some("a\u{202e}b".as_bytes()), "a\\u{202e}b"),
            ("binary",                  Some(b"\xff\x00"),          "0xff00"),
        ];
        for (why, bytes, want) in cases {
            assert_eq!(shown(bytes), want, "{why}");
        }
    }

    #[test]
    fn what_is_long_is_cut_between_characters() {
        assert_eq!(shortened(Some(b"12345"), 5), "12345");
        assert_eq!(shortened(Some(b"123456"), 5), "1234~");
        assert_eq!(shortened(Some("ääääääääääää".as_bytes()), 2), "ä~");
        assert_eq!(shortened(Some("€€€€".as_bytes()), 2), "€~");
        assert_eq!(shortened(Some(&[0xff; 9]), 6), "0xfff~");
    }

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        assert_eq!(time(UnixMillis(1_700_000_000_007)), "2023-11-14T22:13:20.007Z");
        assert_eq!(time(UnixMillis(u64::MAX)), u64::MAX.to_string());
    }
}
