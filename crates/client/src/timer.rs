//! A timer as answers show it: the API writes this type, and the client reads it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use waterclock_engine::timers::LaneTimer;

/// A timer, as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Timer {
    /// Its id.
    pub id: String,
    /// The key of its record, if it has one that is text.
    #[serde(default)]
    pub key: Option<String>,
    /// The key of its record in base64, if it has one that is no text.
    #[serde(default)]
    pub key_base64: Option<String>,
    /// The key is only the beginning of the record's key, which is longer than what is kept of it.
    #[serde(default)]
    pub key_cut: bool,
    /// `delay` while it is pending; else `delivered`, `cancelled`, `expired`, `dead` or `lost`.
    pub state: String,
    /// The topic that it is for.
    #[serde(default)]
    pub target: Option<String>,
    /// When it is or was due, in milliseconds since 1970.
    #[serde(default)]
    pub due: u64,
    /// Its lane.
    #[serde(default)]
    pub lane: u16,
    /// Its label.
    #[serde(default)]
    pub label: Option<String>,
    /// Which of the records of this id it is.
    #[serde(default)]
    pub version: Option<String>,
    /// The version that it took the place of.
    #[serde(default)]
    pub supersedes: Option<String>,
    /// Why it was dead-lettered: a code of the header contract.
    #[serde(default)]
    pub code: Option<String>,
    /// Since when it is in this state, in milliseconds since 1970.
    #[serde(default)]
    pub since: Option<u64>,
}

/// A key as answers have it: as text, or in base64 if it is no text.
pub(crate) fn written(key: Option<&[u8]>) -> (Option<String>, Option<String>) {
    match key.map(std::str::from_utf8) {
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(_)) => (None, key.map(|key| STANDARD.encode(key))),
        None => (None, None),
    }
}

/// Writes that: `"key": null` without a key, and no `key` at all where it is no text.
pub(crate) fn write_key<M: SerializeMap>(
    map: &mut M,
    key: &Option<String>,
    key_base64: &Option<String>,
) -> Result<(), M::Error> {
    match key_base64 {
        Some(key) => map.serialize_entry("key_base64", key),
        None => map.serialize_entry("key", key),
    }
}

/// By hand: a timer without a key has `"key": null`, and one whose key is no text has no `key` at all.
impl Serialize for Timer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        write_key(&mut map, &self.key, &self.key_base64)?;
        if self.key_cut {
            map.serialize_entry("key_cut", &true)?;
        }
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("target", &self.target)?;
        map.serialize_entry("due", &self.due)?;
        map.serialize_entry("lane", &self.lane)?;
        map.serialize_entry("label", &self.label)?;
        map.serialize_entry("version", &self.version)?;
        map.serialize_entry("since", &self.since)?;
        if let Some(version) = &self.supersedes {
            map.serialize_entry("supersedes", version)?;
        }
        if let Some(code) = &self.code {
            map.serialize_entry("code", code)?;
        }
        map.end()
    }
}

impl From<&LaneTimer> for Timer {
    fn from(LaneTimer { lane, timer }: &LaneTimer) -> Self {
        let (key, key_base64) = written(timer.key.as_deref());
        Self {
            id: String::from_utf8_lossy(&timer.id).into_owned(),
            key,
            key_base64,
            key_cut: timer.key_cut,
            state: timer.state.as_str().to_owned(),
            target: Some(timer.target.as_ref().to_owned()),
            due: timer.due.0,
            lane: lane.0,
            label: timer.label.as_deref().map(str::to_owned),
            version: Some(timer.version.to_string()),
            supersedes: timer.supersedes.map(|replaced| replaced.last.to_string()),
            code: timer.code.map(|code| code.as_str().to_owned()),
            since: Some(timer.shown_since().0),
        }
    }
}

#[cfg(test)]
mod tests {
    use waterclock_engine::header::Code;
    use waterclock_engine::timers::{self, Replaced, TimerId, TimerState, Version};
    use waterclock_engine::{Lane, Offset, UnixMillis};

    use super::*;

    #[test]
    fn a_timer_is_written_as_documented_and_read_back() {
        let version = |offset| Version { first_appended: UnixMillis(9), offset: Offset(offset) };
        let timer = timers::Timer {
            timer_id: TimerId([7; 16]),
            state: TimerState::Delay,
            version: version(42),
            supersedes: None,
            due: UnixMillis(10),
            since: UnixMillis(3),
            target: "out".into(),
            label: None,
            id: b"i".as_slice().into(),
            key: None,
            key_cut: false,
            code: None,
            task: None,
        };
        let plain = r#""state":"delay","target":"out","due":10,"lane":3,"label":null,"version":"9-42","since":9"#;
        let key = |key: &[u8]| timers::Timer { key: Some(key.into()), ..timer.clone() };
        let replaced = Some(Replaced { first: version(40), last: version(41) });
        let all = timers::Timer {
            key_cut: true,
            supersedes: replaced,
            code: Some(Code::TooLarge),
            ..key(b"k")
        };
        #[rustfmt::skip]
        let cases = [
            ("no key",      timer.clone(),     format!(r#"{{"id":"i","key":null,{plain}}}"#)),
            ("a text",      key(b"k"),         format!(r#"{{"id":"i","key":"k",{plain}}}"#)),
            ("other bytes", key(b"\xff\xef"), format!(r#"{{"id":"i","key_base64":"/+8=",{plain}}}"#)),
            ("all of it",   all,               format!(r#"{{"id":"i","key":"k","key_cut":true,{plain},"supersedes":"9-41","code":"too_large"}}"#)),
        ];
        for (why, timer, want) in cases {
            let shown = Timer::from(&LaneTimer { lane: Lane(3), timer });
            let text = serde_json::to_string(&shown).expect("JSON");
            assert_eq!(text, want, "{why}");
            assert_eq!(serde_json::from_str::<Timer>(&text).expect("read"), shown, "{why}");
        }
    }
}
