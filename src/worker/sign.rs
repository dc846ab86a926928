//! Signatures of calls, as Standard Webhooks has them: a receiver that has the key knows that waterclock made the call.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use reqwest::header::HeaderValue;
use sha2::Sha256;

use super::request::Refused;

/// Begins the text of a key.
const PREFIX: &str = "whsec_";
/// How many bytes a key may have.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// What the text of a key has to be.
pub(super) const KEY_WANTED: &str = "whsec_ and 24 to 64 bytes in base64";

/// A key that calls are signed with. Printing it shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key(Vec<u8>);

impl Key {
    /// Reads [`KEY_WANTED`]; `None`: it is something else.
    #[must_use]
    pub(super) fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?;
        BYTES.contains(&bytes.len()).then_some(Self(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// The value of `webhook-signature`: one signature for each key, with a blank between two. `seconds`: since 1970.
fn signatures(keys: &[Key], id: &str, seconds: u64, body: &[u8]) -> String {
    let signed = keys.iter().filter_map(|Key(key)| {
        // A key of any length is taken.
        let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    });
    signed.collect::<Vec<_>>().join(" ")
}

/// Signs the body of one call, once it is known.
pub(super) struct Signer {
    keys: Vec<Key>,
    /// The name of the secret that has them.
    secret: String,
    id: String,
    seconds: u64,
}

impl Signer {
    /// `id`: the `webhook-id` of the call; `seconds`: its `webhook-timestamp`.
    pub(super) fn new(keys: &[Key], secret: &str, id: &str, seconds: u64) -> Self {
        Self { keys: keys.to_vec(), secret: secret.to_owned(), id: id.to_owned(), seconds }
    }

    /// The value of `webhook-signature` for this body.
    pub(super) fn signature(&self, body: &[u8]) -> Result<HeaderValue, Refused> {
        let text = signatures(&self.keys, &self.id, self.seconds, body);
        HeaderValue::try_from(text)
            .map_err(|_| Refused::secret(format!("the secret {} gives no signature", self.secret)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts were made with Python's `hmac` and `base64`, not with this code.
    #[test]
    fn signatures_are_those_of_another_implementation() {
        let one = Key::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let two = Key::parse("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
        let of = |keys: &[Key]| {
            signatures(
                keys,
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                br#"{"test": 2432232314}"#,
            )
        };
        let (first, second) = (
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            "v1,O4Gjv1HqPqsMrjmczoggs/sWA8gZD0VyHG+fLh4+ktI=",
        );
        assert_eq!(of(std::slice::from_ref(&one)), first);
        assert_eq!(of(&[one, two]), format!("{first} {second}"));
        assert_eq!(of(&[]), "");
    }

    #[test]
    fn a_key_is_read_strictly_and_never_printed() {
        for text in [
            "",
            "whsec_",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_c2hvcnQ=",
            "whsec_!!!!",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw ",
        ] {
            assert_eq!(Key::parse(text), None, "{text:?}");
        }
        let key = Key::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        assert_eq!(format!("{key:?}"), "Some(Key(not shown))");
    }
}
