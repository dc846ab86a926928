//! Tokens that an issuer has signed (JWT): whose they are, and what they allow.
//!
//! # Invariants
//! 1. Nothing that a token says is believed before its signature was checked, but which key and algorithm it names.
//! 2. The key says which algorithms may be used, not the token.
//! 3. A token has an end, an issuer, an audience and a subject, and the first three fit.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use axum::http::StatusCode;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::Value;
use url::Url;

use super::super::problem::Problem;
use super::keys::{Keys, Pace};
use super::{Caller, Role, crypto, keys};
use crate::telemetry;

/// How far clocks may differ, in seconds.
const LEEWAY_S: u64 = 60;
/// Bytes of a subject, which is in the log.
const SUBJECT_BYTES_MAX: usize = 255;
/// Stands for all projects.
const ALL: &str = "*";

/// Whose tokens are taken, and where they say what they allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerSettings {
    /// The claim `iss`, as it is.
    pub issuer: String,
    /// One of the claim `aud`.
    pub audience: String,
    /// Where the issuer's keys are.
    pub jwks: Url,
    /// The claim with the projects: a list, or a text with blanks between them; `*`: all. A name that begins with `/` is a JSON
    /// pointer.
    pub projects_claim: String,
    /// The claim with the role, or with a list that has it; named as the other one.
    pub role_claim: String,
}

/// An issuer whose tokens are taken, until this is dropped.
pub struct Issuer {
    settings: IssuerSettings,
    keys: Arc<Keys>,
}

/// Without its keys.
impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Issuer").field(&self.settings).finish()
    }
}

/// Whether keys may be fetched from a URL: over https, or from this machine.
#[must_use]
pub fn is_safe(jwks: &Url) -> bool {
    keys::is_safe(jwks)
}

/// Whether a text looks like a token that somebody has signed.
pub(super) fn is_signed(token: &str) -> bool {
    token.split('.').count() == 3
}

impl Issuer {
    /// Begins to fetch the issuer's keys. To be called inside of a tokio runtime.
    #[must_use]
    pub fn start(settings: IssuerSettings) -> Arc<Self> {
        Self::paced(settings, Pace::OF_ISSUERS)
    }

    fn paced(settings: IssuerSettings, pace: Pace) -> Arc<Self> {
        crypto::install();
        let keys = Keys::of(settings.jwks.clone(), pace);
        Arc::new(Self { settings, keys })
    }

    /// What it was started with.
    #[must_use]
    pub const fn settings(&self) -> &IssuerSettings {
        &self.settings
    }

    /// Waits for the key that a token names, where it may be had.
    pub(super) async fn prepare(&self, token: &str) {
        if let Some(id) = decode_header(token).ok().and_then(|header| header.kid) {
            self.keys.look_for(&id).await;
        }
    }

    /// Who holds a token.
    ///
    /// # Errors
    /// What is wrong with it. As long as its signature was not checked, that is not said: the log has it at `debug`.
    pub(super) fn caller(&self, token: &str) -> Result<Caller, Problem> {
        let refuse = |code, detail: &str| {
            telemetry::api_refused("credentials");
            Problem::no_credentials(code, detail)
        };
        let bad = |why: &str| {
            tracing::debug!(why, "a token was refused");
            refuse(
                "bad_credentials",
                "the token is not configured here, and no key of the issuer has signed it",
            )
        };
        let header = decode_header(token).map_err(|error| bad(&error.to_string()))?;
        let id = header.kid.ok_or_else(|| bad("it names no key"))?;
        let Some(key) = self.keys.find(&id) else {
            if !self.keys.are_here() {
                telemetry::api_refused("credentials");
                let detail = "the keys of the issuer could not be fetched yet; the log says why";
                let away = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_keys", detail);
                return Err(away.later(5));
            }
            let detail = "the token names a key that the issuer did not have a minute ago";
            return Err(refuse("unknown_key", detail));
        };
        if !key.algorithms.contains(&header.alg) {
            return Err(bad("its algorithm is none of its key"));
        }
        let IssuerSettings { issuer, audience, .. } = &self.settings;
        let mut wanted = Validation::new(header.alg);
        wanted.leeway = LEEWAY_S;
        wanted.validate_nbf = true;
        wanted.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        wanted.set_issuer(&[issuer]);
        wanted.set_audience(&[audience]);
        let read = decode::<Value>(token, &key.of, &wanted);
        let claims = read.map(|read| read.claims).map_err(|error| match error.kind() {
            ErrorKind::ExpiredSignature | ErrorKind::ImmatureSignature => {
                refuse("expired_token", "the token has expired, or is not valid yet")
            }
            ErrorKind::InvalidAudience | ErrorKind::InvalidIssuer => {
                refuse("wrong_audience", "the token is of another issuer, or for another audience")
            }
            ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
                let detail = format!("the claim {claim} of the token is missing or malformed");
                refuse("bad_claims", &detail)
            }
            _ => bad(&error.to_string()),
        })?;
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        let is_fit = (1..=SUBJECT_BYTES_MAX).contains(&subject.len());
        if !is_fit || subject.chars().any(char::is_control) {
            return Err(refuse("bad_claims", "the claim sub of the token is missing or malformed"));
        }
        self.allowed(subject, &claims)
    }

    /// What genuine claims allow their subject.
    fn allowed(&self, subject: &str, claims: &Value) -> Result<Caller, Problem> {
        let IssuerSettings { projects_claim, role_claim, .. } = &self.settings;
        let of = |word: &str| Role::ALL.into_iter().find(|role| role.as_str() == word);
        let roles = words(claim(claims, role_claim));
        let Some(role) = roles.into_iter().filter_map(of).max() else {
            telemetry::api_refused("role");
            let detail =
                format!("the claim {role_claim} of the token has no role: read, write or admin");
            return Err(Problem::new(StatusCode::FORBIDDEN, "role_denied", detail));
        };
        let projects = words(claim(claims, projects_claim));
        let projects: BTreeSet<String> = projects.into_iter().map(str::to_owned).collect();
        // A token that names no projects covers none.
        let projects = (!projects.contains(ALL)).then_some(projects);
        Ok(Caller { name: subject.to_owned(), role, projects })
    }
}

/// A claim by its name, or by a JSON pointer.
fn claim<'c>(claims: &'c Value, name: &str) -> Option<&'c Value> {
    if name.starts_with('/') { claims.pointer(name) } else { claims.get(name) }
}

/// The words of a claim.
fn words(claim: Option<&Value>) -> Vec<&str> {
    match claim {
        Some(Value::String(text)) => text.split_whitespace().collect(),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
