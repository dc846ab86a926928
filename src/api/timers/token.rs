//! The tokens that callers come back with: where a page ended, what was counted, which command is meant.
//!
//! All of it comes back from outside and may be anything; fuzzing reads it, too (`fuzz/`).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::model::{Cursor, Filter, TimerName};
use super::seal::is_same;

/// How long a count may be acted on.
pub const COUNT_MS_MAX: u64 = 15 * 60_000;
/// Bytes of the seal that stand in the token of a count.
const SEAL_BYTES: usize = 16;
/// The form of a page token.
const VERSION: u8 = 2;

/// Why a token says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadToken {
    /// It was not made here.
    Broken,
    /// It was made for another filter, or altered.
    OtherFilter,
    /// It is too old.
    Expired,
}

impl BadToken {
    /// What is wrong with the token of a page.
    #[must_use]
    pub const fn of_page(self) -> &'static str {
        match self {
            Self::OtherFilter => {
                "it was given for another filter, or altered; send `next` as it was given, and the same filter with every page"
            }
            Self::Broken | Self::Expired => "it is not a token that an answer gave in `next`",
        }
    }
}

/// A token for what is behind a place; it goes with its filter.
pub fn of_page(cursor: Cursor, filter: &impl Serialize) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend(cursor.due.to_be_bytes());
    bytes.extend(cursor.order);
    bytes.extend(sum(&bytes, filter));
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The place of a token.
pub fn page(token: &str, filter: &impl Serialize) -> Result<Cursor, BadToken> {
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| BadToken::Broken)?;
    let Some((place, sum_given)) = bytes.split_last_chunk::<4>() else {
        return Err(BadToken::Broken);
    };
    let Some(([VERSION], rest)) = place.split_first_chunk() else { return Err(BadToken::Broken) };
    let Some((due, order)) = rest.split_first_chunk() else { return Err(BadToken::Broken) };
    let Ok(order) = order.try_into() else { return Err(BadToken::Broken) };
    if *sum_given != sum(place, filter) {
        return Err(BadToken::OtherFilter);
    }
    Ok(Cursor { due: u64::from_be_bytes(*due), order })
}

/// A few bytes that tell one place and filter from another. They are no seal: a forged place shows nothing that the filter does not.
fn sum(place: &[u8], filter: &impl Serialize) -> [u8; 4] {
    use sha2::Digest as _;
    let filter = serde_json::to_vec(filter).unwrap_or_default();
    let bytes = sha2::Sha256::new().chain_update(place).chain_update(filter).finalize();
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

fn is_object(text: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(text).is_ok()
}

/// What was counted, and when.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// What was counted.
    pub filter: Filter,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// How many there were.
    pub count: u64,
}

impl Counted {
    fn sealed(&self, seal: impl Fn(&[u8]) -> [u8; 32]) -> (Vec<u8>, [u8; 32]) {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let sealed = seal(&[b"bulk cancel\n", &text[..]].concat());
        (text, sealed)
    }

    /// Whether a text has the form of a token, of whatever version: bytes of a seal, and a JSON object. Only an instance sees
    /// whether the seal is right.
    #[must_use]
    pub fn has_form(token: &str) -> bool {
        let bytes = URL_SAFE_NO_PAD.decode(token).unwrap_or_default();
        bytes.split_at_checked(SEAL_BYTES).is_some_and(|(_, text)| is_object(text))
    }

    /// A token, with a seal that only instances of the namespace can make.
    pub fn token(&self, seal: impl Fn(&[u8]) -> [u8; 32]) -> String {
        let (text, seal) = self.sealed(seal);
        URL_SAFE_NO_PAD.encode([&seal[..SEAL_BYTES], &text].concat())
    }

    /// What a token says, if it was sealed so and is not too old.
    ///
    /// # Errors
    /// It was not, or it is.
    pub fn of_token(
        seal: impl Fn(&[u8]) -> [u8; 32],
        token: &str,
        now: u64,
    ) -> Result<Self, BadToken> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| BadToken::Broken)?;
        let (given, text) = bytes.split_at_checked(SEAL_BYTES).ok_or(BadToken::Broken)?;
        let counted: Self = serde_json::from_slice(text).map_err(|_| BadToken::Broken)?;
        let (_, right) = counted.sealed(seal);
        if !is_same(given, &right[..SEAL_BYTES]) {
            return Err(BadToken::Broken);
        }
        if now.saturating_sub(counted.at) > COUNT_MS_MAX {
            return Err(BadToken::Expired);
        }
        Ok(counted)
    }
}

/// What to ask again with: which command about which timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The timer.
    #[serde(rename = "n")]
    pub name: TimerName,
    /// Where the command stands.
    #[serde(rename = "t")]
    pub ticket: String,
    /// It gives the timer another time.
    #[serde(rename = "p", default, skip_serializing_if = "std::ops::Not::not")]
    pub puts_off: bool,
}

impl Ticket {
    /// As callers are given it.
    #[must_use]
    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Whether a text has the form of a ticket, of whatever version.
    #[must_use]
    pub fn has_form(text: &str) -> bool {
        URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| is_object(&bytes))
    }

    /// `None`: it is no such text.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_read_back_with_its_filter_only() {
        let cursor = Cursor { due: 7, order: [7; 16] };
        let filter = Filter { target: Some("out".to_owned()), ..Filter::default() };
        let token = of_page(cursor, &filter);
        assert_eq!(page(&token, &filter), Ok(cursor));
        let other = Filter::default();
        for (why, token, filter, want) in [
            ("another filter", token.as_str(), &other, BadToken::OtherFilter),
            ("cut", &token[..20], &filter, BadToken::Broken),
            ("longer", &format!("{token}AAAA"), &filter, BadToken::Broken),
            ("no base64", "?", &filter, BadToken::Broken),
            ("empty", "", &filter, BadToken::Broken),
            ("another form", &format!("B{}", &token[1..]), &filter, BadToken::Broken),
            (
                "another place",
                &format!("{}Q{}", &token[..5], &token[6..]),
                &filter,
                BadToken::OtherFilter,
            ),
        ] {
            assert_eq!(page(token, filter), Err(want), "{why}");
        }
        for at in 0..token.len() {
            let mut altered = token.clone().into_bytes();
            altered[at] = if altered[at] == b'A' { b'Q' } else { b'A' };
            let altered = String::from_utf8(altered).expect("letters");
            assert!(page(&altered, &filter).is_err(), "the character {at}: {altered}");
        }
    }

    #[test]
    fn the_token_of_a_count_is_read_back_with_its_seal_and_in_time_only() {
        let seal = |of: u8| move |bytes: &[u8]| [of ^ bytes.iter().fold(0, |sum, b| sum ^ b); 32];
        let counted = || Counted { filter: Filter::default(), at: 1_000, count: 3 };
        let token = counted().token(seal(1));
        assert_eq!(Counted::of_token(seal(1), &token, 1_000 + COUNT_MS_MAX), Ok(counted()));
        for (why, token, of, now, want) in [
            ("too late", token.as_str(), 1, 1_001 + COUNT_MS_MAX, BadToken::Expired),
            ("another namespace", &token, 2, 1_000, BadToken::Broken),
            ("cut", &token[..24], 1, 1_000, BadToken::Broken),
            ("no base64", "?", 1, 1_000, BadToken::Broken),
            ("empty", "", 1, 1_000, BadToken::Broken),
        ] {
            assert_eq!(Counted::of_token(seal(of), token, now), Err(want), "{why}");
        }
    }
}
