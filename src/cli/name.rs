//! How a timer is named on the command line: by its id, and the key of its record.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use clap::Args;
use serde_json::{Value, json};

use super::{Exit, Failure};
use crate::client::command::CommandResult;

/// The key of a record, as text or in base64.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Key {
    /// Key of the record; leave it out for a record without a key
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    key: Option<String>,
    /// The same in base64, for a key that is not text
    #[arg(long, value_name = "BASE64", conflicts_with = "key", allow_hyphen_values = true)]
    key_base64: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("--key-base64: {0:?} is not base64")]
struct NotBase64(String);

impl Key {
    /// Whether there is one.
    pub(super) fn is_given(&self) -> bool {
        self.key.is_some() || self.key_base64.is_some()
    }

    /// Its bytes.
    ///
    /// # Errors
    /// It is not base64; nothing was asked.
    pub(super) fn bytes(&self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(text) = &self.key_base64 else {
            return Ok(self.key.as_ref().map(|key| key.as_bytes().to_vec()));
        };
        let read =
            STANDARD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')));
        read.map(Some).map_err(|_| Failure::new(Exit::Usage, NotBase64(text.clone())))
    }

    /// This timer, as a body of the API names it.
    pub(super) fn timer(&self, id: &str) -> Value {
        match &self.key_base64 {
            Some(text) => json!({ "id": id, "key_base64": text }),
            None => json!({ "id": id, "key": self.key }),
        }
    }

    /// As an answer of the API has it: as text, or in base64.
    pub(super) fn written(&self) -> (Option<String>, Option<String>) {
        (self.key.clone(), self.key_base64.clone())
    }

    /// As a query of the API has it.
    pub(super) fn query(&self) -> Option<(&'static str, String)> {
        let text = self.key.clone().map(|key| ("key", key));
        text.or_else(|| Some(("key_base64", self.key_base64.clone()?)))
    }
}

/// The options that name the key of the timer that a result is about.
pub(super) fn words(of: &CommandResult) -> Vec<&str> {
    let options = [("--key", &of.key), ("--key-base64", &of.key_base64)];
    let words = options.into_iter().find_map(|(name, word)| Some(vec![name, word.as_deref()?]));
    words.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_text_or_bytes_in_base64() {
        let bytes = |key: Option<&str>, base64: Option<&str>| {
            let (key, key_base64) = (key.map(str::to_owned), base64.map(str::to_owned));
            Key { key, key_base64 }.bytes().map_err(|failure| failure.exit())
        };
        assert_eq!(bytes(None, None), Ok(None));
        assert_eq!(bytes(Some("k"), None), Ok(Some(b"k".to_vec())));
        for text in ["/+8=", "_-8", "_-8="] {
            assert_eq!(bytes(None, Some(text)), Ok(Some(vec![0xff, 0xef])), "{text}");
        }
        assert_eq!(bytes(None, Some("!")), Err(Exit::Usage));
    }
}
