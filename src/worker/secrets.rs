//! The secrets that services name. Their values stand in the configuration of the workers only.
//!
//! # Invariants
//! 1. A project gets a secret only if the secret names the project.
//! 2. No value is printed, and none stands in an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use reqwest::header::HeaderValue;

use super::certificate::{self, Certificate, Identity};
use super::sign::{KEY_WANTED, Key};

const TWO_KEYS: &str = "two keys to sign with, each of them whsec_ and 24 to 64 bytes in base64";

/// One secret.
#[derive(Clone)]
pub struct Secret {
    value: Value,
    projects: BTreeSet<String>,
}

/// What it is good for.
#[derive(Clone)]
enum Value {
    Text {
        /// As calls have it.
        bearer: HeaderValue,
        /// The newest first; none: the text is no key.
        keys: Vec<Key>,
    },
    Certificate(Identity),
}

impl Secret {
    /// `value`: a bearer token, a key to sign with (`whsec_` and 24 to 64 bytes in base64), or a client certificate in PEM. `previous`: a key that calls are
    /// signed with, too, until every receiver has the new one. `projects`: whose services may name it.
    ///
    /// # Errors
    /// What is wrong, without the value.
    pub fn new(
        value: &str,
        previous: Option<&str>,
        projects: impl IntoIterator<Item = String>,
    ) -> Result<Self, &'static str> {
        let value = if certificate::is_pem(value) {
            match previous {
                Some(_) => return Err(TWO_KEYS),
                None => Value::Certificate(certificate::parse(value)?),
            }
        } else {
            Value::text(value, previous)?
        };
        Ok(Self { value, projects: projects.into_iter().collect() })
    }
}

impl Value {
    fn text(value: &str, previous: Option<&str>) -> Result<Self, &'static str> {
        let wanted = "visible ASCII without blanks at its ends, not empty; a key to sign with is whsec_ and 24 to 64 bytes in base64";
        let key = Key::parse(value);
        let is_visible = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        // Whatever begins like a key and is none would be sent as a token.
        let is_broken_key = value.starts_with("whsec_") && key.is_none();
        if value.is_empty() || value.trim() != value || !is_visible || is_broken_key {
            return Err(wanted);
        }
        let mut bearer = HeaderValue::try_from(format!("Bearer {value}")).map_err(|_| wanted)?;
        bearer.set_sensitive(true);
        let previous = match previous.map(Key::parse) {
            None => None,
            Some(Some(previous)) if key.is_some() => Some(previous),
            Some(_) => return Err(TWO_KEYS),
        };
        let keys = key.into_iter().chain(previous).collect();
        Ok(Self::Text { bearer, keys })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value: _, projects } = self;
        f.debug_struct("Secret").field("projects", projects).finish_non_exhaustive()
    }
}

/// All secrets of a worker, by name.
#[derive(Clone, Debug, Default)]
pub struct Secrets(BTreeMap<String, Secret>);

impl FromIterator<(String, Secret)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, Secret)>>(secrets: I) -> Self {
        Self(secrets.into_iter().collect())
    }
}

impl Secrets {
    /// The keys to sign calls of a project with, the newest first.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn keys(&self, name: &str, project: &str) -> Result<&[Key], String> {
        match self.of(name, project)? {
            Value::Text { keys, .. } if !keys.is_empty() => Ok(keys),
            _ => Err(format!("the secret {name} cannot sign; want {KEY_WANTED}")),
        }
    }

    /// The token that calls of a project have.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn bearer(&self, name: &str, project: &str) -> Result<HeaderValue, String> {
        match self.of(name, project)? {
            // Who reads the call would have the key.
            Value::Text { keys, .. } if !keys.is_empty() => Err(format!(
                "the secret {name} is a key to sign with, which is never sent; want a token"
            )),
            Value::Text { bearer, .. } => Ok(bearer.clone()),
            Value::Certificate(_) => {
                Err(format!("the secret {name} is a client certificate; want a token"))
            }
        }
    }

    /// The certificate that calls of a project show.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn certificate(&self, name: &str, project: &str) -> Result<Certificate, String> {
        match self.of(name, project)? {
            Value::Certificate(identity) => {
                Ok(Certificate { secret: name.to_owned(), identity: identity.clone() })
            }
            Value::Text { .. } => {
                let wanted = certificate::WANTED;
                Err(format!("the secret {name} is no client certificate; want {wanted}"))
            }
        }
    }

    fn of(&self, name: &str, project: &str) -> Result<&Value, String> {
        let secret = self.0.get(name).filter(|secret| secret.projects.contains(project));
        // Who may not use a secret does not learn that it is there.
        secret.map(|secret| &secret.value).ok_or_else(|| {
            format!(
                "the secret {name} of project {project} is not in this worker's configuration; add it to [secrets], \
                 or the project to secrets.{name}.projects"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::tests::certificate::PEM;

    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OLD: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn secrets() -> Secrets {
        let of = |name: &str, value, previous| {
            (name.to_owned(), Secret::new(value, previous, ["shop".to_owned()]).unwrap())
        };
        [of("signs", KEY, None), of("rotates", KEY, Some(OLD)), of("token", "t0ken", None)]
            .into_iter()
            .collect()
    }

    #[test]
    fn a_secret_is_given_to_its_projects_only() {
        let secrets = secrets();
        assert_eq!(secrets.keys("signs", "shop").unwrap().len(), 1);
        assert_eq!(
            secrets.keys("rotates", "shop").unwrap(),
            [KEY, OLD].map(|key| Key::parse(key).unwrap())
        );
        assert_eq!(secrets.bearer("token", "shop").unwrap(), "Bearer t0ken");
        for (name, project, want) in [
            ("signs", "other", "the secret signs of project other is not in this worker's"),
            ("none", "shop", "not in this worker's configuration"),
            ("token", "shop", "cannot sign"),
        ] {
            let said = secrets.keys(name, project).unwrap_err();
            assert!(said.contains(want), "{said}");
        }
        let [theirs, nobodys] = ["signs", "none"]
            .map(|name| secrets.keys(name, "other").unwrap_err().replace(name, "NAME"));
        assert_eq!(theirs, nobodys, "what another project has is not told");
        assert!(secrets.bearer("token", "other").is_err());
        let said = secrets.bearer("signs", "shop").unwrap_err();
        assert!(said.contains("never sent; want a token") && !said.contains("MfKQ"), "{said}");
    }

    #[test]
    fn nothing_of_a_value_is_printed() {
        let (secrets, bearer) = (secrets(), secrets().bearer("token", "shop"));
        let printed = format!("{secrets:?} {bearer:?}");
        assert!(printed.contains("shop"), "{printed}");
        for value in ["t0ken", "MfKQ", "AAEC"] {
            assert!(!printed.contains(value), "{printed}");
        }
    }

    #[test]
    fn what_cannot_be_a_secret_is_refused_without_being_shown() {
        let cases = [
            ("", None),
            (" a", None),
            ("a\n", None),
            ("a\u{7}", None),
            ("ä", None),
            ("whsec_x", None),
            ("token", Some(KEY)),
            (KEY, Some("token")),
            (KEY, Some("")),
            (PEM.as_str(), Some(KEY)),
        ];
        for (value, previous) in cases {
            let said = Secret::new(value, previous, []).expect_err(value);
            assert!(said.contains("whsec_ and 24") && !said.contains("MfKQ"), "{value:?}: {said}");
        }
    }
}
