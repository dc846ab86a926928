//! Which statuses mean that a task is done.

use std::fmt;

use serde_json::Value;

use super::super::fields::wanted;

/// A set of statuses from 200 to 599: classes and single codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Bit c: every status of class c.
    classes: u8,
    /// In order, each once, none of a class above.
    codes: Vec<u16>,
}

impl Default for Expect {
    /// Every status of success.
    fn default() -> Self {
        Self { classes: 1 << 2, codes: Vec::new() }
    }
}

impl Expect {
    /// Whether a task whose call is answered with this status is done.
    #[must_use]
    pub fn matches(&self, status: u16) -> bool {
        self.has_class(status / 100) || self.codes.binary_search(&status).is_ok()
    }

    fn has_class(&self, class: u16) -> bool {
        class < 8 && self.classes & 1 << class != 0
    }

    /// Reads classes and codes with commas between them: `2xx,404`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut expect = Self { classes: 0, codes: Vec::new() };
        for part in text.split(',') {
            let part = part.trim_matches(' ');
            match part.as_bytes() {
                [class @ b'2'..=b'5', b'x', b'x'] => expect.classes |= 1 << (class - b'0'),
                [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9'] => expect.codes.push(part.parse().ok()?),
                _ => return None,
            }
        }
        let codes = std::mem::take(&mut expect.codes);
        expect.codes = codes.into_iter().filter(|code| !expect.has_class(code / 100)).collect();
        expect.codes.sort_unstable();
        expect.codes.dedup();
        Some(expect)
    }
}

/// Classes first, then codes.
impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = (2..=5).filter(|class| self.has_class(*class));
        let parts = classes.map(|class| format!("{class}xx"));
        let parts = parts.chain(self.codes.iter().map(u16::to_string));
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}

pub(super) fn read(value: &Value) -> Result<Expect, String> {
    value.as_str().and_then(Expect::parse).ok_or_else(|| {
        wanted(value, "classes from 2xx to 5xx and codes from 200 to 599, as in \"2xx,404\"")
    })
}
