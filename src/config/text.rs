//! Values as people write them: one form for the file, the environment and flags.
//!
//! The environment and flags have only text, so every value that is not a list or a table can be given as text.

use std::fmt;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Unexpected, Visitor};

use super::{
    ClientAuth, Delivery, LadderConfig, LogFormat, LogLevel, Order, Roles, TokenRole, Tracking,
};
use crate::engine::{Millis, header};
use crate::kafka::settings::Secret;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Prints the largest unit that divides it: `256MiB`, else bytes.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, bits)| self.0 > 0 && self.0.is_multiple_of(1 << bits));
        match unit {
            Some((unit, bits)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Something that can be given as text, and perhaps as an integer.
pub(super) trait Text: Sized {
    /// What is wanted, for the error.
    const WANT: &'static str;
    /// Reads it; `None` when it is something else.
    fn read(text: &str) -> Option<Self>;
    /// Reads it from an integer in the file.
    fn whole(_: u64) -> Option<Self> {
        None
    }
    /// Reads it from `true` or `false` in the file.
    fn truth(_: bool) -> Option<Self> {
        None
    }
}

impl Text for bool {
    const WANT: &'static str = "true or false";
    fn read(text: &str) -> Option<Self> {
        match text {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }
    fn truth(truth: bool) -> Option<Self> {
        Some(truth)
    }
}

impl Text for Millis {
    const WANT: &'static str = "a duration with units, such as 90s or 1h30m";
    fn read(text: &str) -> Option<Self> {
        // A bare number would be milliseconds in a header; in a file its unit is anybody's guess.
        let bare = text.bytes().all(|b| b.is_ascii_digit());
        (!bare).then(|| header::duration(text).ok())?
    }
}

impl Text for u16 {
    const WANT: &'static str = "an integer";
    fn read(text: &str) -> Option<Self> {
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
    }
    fn whole(number: u64) -> Option<Self> {
        Self::try_from(number).ok()
    }
}

impl Text for u64 {
    const WANT: &'static str = "an integer";
    fn read(text: &str) -> Option<Self> {
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
    }
    fn whole(number: u64) -> Option<Self> {
        Some(number)
    }
}

impl Text for Tracking {
    const WANT: &'static str = "full or cancellations";
    fn read(text: &str) -> Option<Self> {
        match text {
            "full" => Some(Self::Full),
            "cancellations" => Some(Self::Cancellations),
            _ => None,
        }
    }
}

impl Text for Roles {
    const WANT: &'static str =
        "one or more of lanes, worker and api, with commas; lanes or worker among them";
    fn read(text: &str) -> Option<Self> {
        let mut roles = Self { lanes: false, worker: false, api: false };
        for role in text.split(',').map(str::trim) {
            let of = match role {
                "lanes" => &mut roles.lanes,
                "worker" => &mut roles.worker,
                "api" => &mut roles.api,
                _ => return None,
            };
            if std::mem::replace(of, true) {
                return None;
            }
        }
        (roles.lanes || roles.worker).then_some(roles)
    }
}

impl Text for Order {
    const WANT: &'static str = "by-due or strict";
    fn read(text: &str) -> Option<Self> {
        match text {
            "by-due" => Some(Self::ByDue),
            "strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

impl Text for ByteSize {
    const WANT: &'static str = "bytes, as in 256MiB";
    fn read(text: &str) -> Option<Self> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().ok()?;
        if unit.is_empty() {
            return Some(Self(number));
        }
        let (_, bits) = UNITS.iter().find(|(name, _)| *name == unit)?;
        number.checked_mul(1 << bits).map(Self)
    }
    fn whole(number: u64) -> Option<Self> {
        Some(Self(number))
    }
}

impl Text for SocketAddr {
    const WANT: &'static str = "localhost or an IP address, and a port, as in 127.0.0.1:8080 (0.0.0.0 is every address of this machine)";
    fn read(text: &str) -> Option<Self> {
        // No other name is looked up: what it means may differ from one start to the next.
        let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let here = port.map(|port| Self::from((Ipv4Addr::LOCALHOST, port)));
        here.or_else(|| text.parse().ok())
    }
}

impl Text for PathBuf {
    const WANT: &'static str = "a path";
    fn read(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::from(text))
    }
}

impl Text for Delivery {
    const WANT: &'static str = "exactly_once or at_least_once";
    fn read(text: &str) -> Option<Self> {
        match text {
            "exactly_once" => Some(Self::ExactlyOnce),
            "at_least_once" => Some(Self::AtLeastOnce),
            _ => None,
        }
    }
}

impl Text for TokenRole {
    const WANT: &'static str = "read, write or admin";
    fn read(text: &str) -> Option<Self> {
        match text {
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }
}

impl Text for ClientAuth {
    const WANT: &'static str = "optional or required";
    fn read(text: &str) -> Option<Self> {
        match text {
            "optional" => Some(Self::Optional),
            "required" => Some(Self::Required),
            _ => None,
        }
    }
}

impl Text for Secret {
    const WANT: &'static str = "text";
    fn read(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned().into())
    }
}

impl Text for LogLevel {
    const WANT: &'static str = "error, warn, info, debug or trace";
    fn read(text: &str) -> Option<Self> {
        match text {
            "error" => Some(Self::Error),
            "warn" => Some(Self::Warn),
            "info" => Some(Self::Info),
            "debug" => Some(Self::Debug),
            "trace" => Some(Self::Trace),
            _ => None,
        }
    }
}

impl Text for LogFormat {
    const WANT: &'static str = "text or json";
    fn read(text: &str) -> Option<Self> {
        match text {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// `deserialize_with` for a value that has a default.
pub(super) fn one<'de, T: Text, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_any(TextVisitor(PhantomData))
}

/// `deserialize_with` for a value that may be left out; written down, it is set.
pub(super) fn some<'de, T: Text, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    one(from).map(Some)
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: Text> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WANT)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::read(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        T::whole(number).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<T, E> {
        T::truth(truth).ok_or_else(|| E::invalid_type(Unexpected::Bool(truth), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        let read = u64::try_from(number).ok().and_then(T::whole);
        read.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// One hold in a list: a duration by itself.
struct Hold(Millis);

impl<'de> Deserialize<'de> for Hold {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        one(from).map(Self)
    }
}

impl<'de> Deserialize<'de> for LadderConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(LadderVisitor)
    }
}

struct LadderVisitor;

impl<'de> Visitor<'de> for LadderVisitor {
    type Value = LadderConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("classic, round, clock, or a list of holds such as [\"1s\", \"1m\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        let preset = text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))?;
        Ok(LadderConfig::Preset(preset))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut holds = Vec::new();
        while let Some(Hold(hold)) = list.next_element()? {
            holds.push(hold);
        }
        Ok(LadderConfig::Holds(holds))
    }
}

/// Splits a list that was given as one text at its commas, but for those within `{}` and `[]`, which belong to
/// a regular expression.
pub(super) fn split_list(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0_u32);
    for c in text.chars() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part).trim().to_owned());
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    parts.push(part.trim().to_owned());
    parts
}
