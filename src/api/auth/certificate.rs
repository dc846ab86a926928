//! Callers who have shown a certificate: by which of its names one is known, and what he may do.
//!
//! # Invariants
//! 1. Only a certificate that TLS has verified gets here.
//! 2. A name counts as a whole and by its kind: no wildcard, and no common name in the place of another name.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use openssl::nid::Nid;
use openssl::x509::X509Ref;

use super::Role;

/// Kinds of names, as they begin.
const KINDS: [&str; 4] = ["dns:", "uri:", "email:", "cn:"];
/// Bytes of a name.
const NAME_BYTES_MAX: usize = 1024;

/// A name of a certificate: `dns:`, `uri:` and `email:` are alternative names, `cn:` is the common name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject(String);

/// A text that is no [`Subject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("dns:, uri:, email: or cn:, and then a name of 1 to 1024 bytes without a wildcard")]
pub struct BadSubject;

impl Subject {
    fn new(kind: &str, name: &str) -> Self {
        match kind {
            // Case says nothing in a name of DNS.
            "dns:" => Self(format!("{kind}{}", name.to_ascii_lowercase())),
            kind => Self(format!("{kind}{name}")),
        }
    }
}

impl FromStr for Subject {
    type Err = BadSubject;

    fn from_str(text: &str) -> Result<Self, BadSubject> {
        let kind = KINDS.into_iter().find(|kind| text.starts_with(kind)).ok_or(BadSubject)?;
        let name = &text[kind.len()..];
        let is_fit = (1..=NAME_BYTES_MAX).contains(&name.len())
            && !name.chars().any(char::is_control)
            && !(kind == "dns:" && name.contains('*'));
        if is_fit { Ok(Self::new(kind, name)) } else { Err(BadSubject) }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Somebody who is known by a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Who it is, for the log.
    pub name: String,
    /// The name that the certificate has.
    pub subject: Subject,
    /// The projects that he may know of; `None`: all.
    pub projects: Option<BTreeSet<String>>,
    /// What he may do.
    pub role: Role,
}

/// The names of the certificate that a connection has shown.
#[derive(Clone, Debug)]
pub(in crate::api) struct Shown(Arc<[Subject]>);

impl Shown {
    /// What a certificate says. A name that is no text, or has signs of control, is passed over.
    pub(in crate::api) fn of(certificate: &X509Ref) -> Self {
        let mut all = Vec::new();
        let mut add = |kind: &str, name: &str| {
            if !name.is_empty() && !name.chars().any(char::is_control) {
                all.push(Subject::new(kind, name));
            }
        };
        for name in certificate.subject_alt_names().into_iter().flatten() {
            let of = [("dns:", name.dnsname()), ("uri:", name.uri()), ("email:", name.email())];
            of.into_iter().for_each(|(kind, name)| add(kind, name.unwrap_or_default()));
        }
        for name in certificate.subject_name().entries_by_nid(Nid::COMMONNAME) {
            add("cn:", std::str::from_utf8(name.data().as_slice()).unwrap_or_default());
        }
        Self(all.into())
    }

    /// Which of them it is: the first one that has one of the names.
    pub(super) fn principal<'p>(&self, all: &'p [Principal]) -> Option<&'p Principal> {
        all.iter().find(|principal| self.0.contains(&principal.subject))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_with_its_kind() {
        #[rustfmt::skip]
        let cases = [
            ("dns:CI.example.org",            Some("dns:ci.example.org")),
            ("uri:spiffe://example.org/ci",   Some("uri:spiffe://example.org/ci")),
            ("email:Ci@example.org",          Some("email:Ci@example.org")),
            ("cn:CI of the Shop",             Some("cn:CI of the Shop")),
            ("ci.example.org",                None),
            ("DNS:ci.example.org",            None),
            ("ip:10.0.0.7",                   None),
            ("dns:",                          None),
            ("dns:*.example.org",             None),
            ("cn:a\0b",                       None),
            ("",                              None),
        ];
        for (text, want) in cases {
            let read = text.parse::<Subject>().ok().map(|subject| subject.to_string());
            assert_eq!(read.as_deref(), want, "{text}");
        }
        assert!(format!("cn:{}", "x".repeat(1025)).parse::<Subject>().is_err());
    }

    #[test]
    fn the_first_principal_of_whose_names_a_certificate_has_one_is_meant() {
        let principal = |name: &str, subject: &str| Principal {
            name: name.to_owned(),
            subject: subject.parse().expect("a subject"),
            projects: None,
            role: Role::Read,
        };
        let all = [
            principal("one", "cn:ci"),
            principal("two", "dns:ci"),
            principal("three", "uri:spiffe://ci"),
        ];
        let shown = |names: &[&str]| {
            Shown(names.iter().map(|name| name.parse().expect("a subject")).collect())
        };
        let of = |names: &[&str]| shown(names).principal(&all).map(|of| of.name.clone());
        assert_eq!(of(&["dns:ci"]).as_deref(), Some("two"));
        assert_eq!(of(&["uri:spiffe://ci", "dns:ci"]).as_deref(), Some("two"));
        assert_eq!(of(&["cn:ci", "dns:x"]).as_deref(), Some("one"));
        assert_eq!(of(&["cn:CI", "email:ci", "dns:ci.example"]), None);
        assert_eq!(of(&[]), None);
    }
}
