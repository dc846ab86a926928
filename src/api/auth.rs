//! Who asks: bearer tokens and client certificates, what each may do, and of which projects.
//!
//! # Invariants
//! 1. A token is compared by its SHA-256, with all that are configured, in constant time. Only a token that is none of them may
//!    be one that the issuer signed. No token is kept or logged.
//! 2. Tasks and projects are open to this machine alone while no token, no issuer and no principal is configured.
//! 3. A project that a caller does not cover is as if it were not there.
//! 4. A request that brings a token is its holder's, whatever certificate its connection has shown.

mod certificate;
mod crypto;
mod jwt;
mod keys;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::problem::Problem;
use super::projects::no_project;
use crate::telemetry;

pub(super) use certificate::Shown;
pub use certificate::{BadSubject, Principal, Subject};
pub use jwt::{Issuer, IssuerSettings, is_safe};

/// What the holder of a token may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look tasks and projects up.
    Read,
    /// Create, cancel and retry tasks, and report on them with a ticket, too.
    Write,
    /// Change and pause projects and services, and report without a ticket, too.
    Admin,
}

impl Role {
    /// From the least on.
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// As it is configured.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

/// One token that is configured.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Whose it is, for the log.
    pub name: String,
    /// The SHA-256 of the token.
    pub sha256: [u8; 32],
    /// The projects that it covers; `None`: all.
    pub projects: Option<BTreeSet<String>>,
    /// What its holder may do.
    pub role: Role,
}

/// Without the hash.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("role", &self.role).finish()
    }
}

/// The SHA-256 of a token, as [`Token::sha256`] has it.
#[must_use]
pub fn sha256(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Whom the API lets in. It may be changed while requests are answered.
#[derive(Debug, Default)]
pub struct Access(RwLock<Known>);

#[derive(Clone, Debug, Default)]
struct Known {
    tokens: Arc<[Token]>,
    issuer: Option<Arc<Issuer>>,
    principals: Arc<[Principal]>,
}

/// The address that a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// Who asks, and what he may do.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// For the log.
    pub(super) name: String,
    role: Role,
    /// `None`: all.
    projects: Option<BTreeSet<String>>,
}

impl Caller {
    /// Somebody who needs no token.
    fn trusted(name: &str) -> Self {
        Self { name: name.to_owned(), role: Role::Admin, projects: None }
    }

    /// Whether he may know of a project.
    pub(super) fn sees(&self, project: &str) -> bool {
        self.projects.as_ref().is_none_or(|all| all.contains(project))
    }

    /// The projects that he may know of; `None`: all.
    pub(super) const fn projects(&self) -> Option<&BTreeSet<String>> {
        self.projects.as_ref()
    }

    /// Refuses what the role does not allow.
    pub(super) fn may(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        telemetry::api_refused("role");
        let (has, wants) = (self.role.as_str(), role.as_str());
        let detail = format!("this needs the role {wants}, and {} has {has}", self.name);
        Err(Problem::new(StatusCode::FORBIDDEN, "role_denied", detail))
    }

    /// Refuses what is of no project, unless the role allows it and he covers all projects. `what` it is about begins a sentence.
    pub(super) fn may_with_all_projects(&self, role: Role, what: &str) -> Result<(), Problem> {
        self.may(role)?;
        if self.projects.is_none() {
            return Ok(());
        }
        telemetry::api_refused("project");
        let name = &self.name;
        let detail = format!(
            "{what} is of no project: it needs a token of all projects, and {name} covers some"
        );
        Err(Problem::new(StatusCode::FORBIDDEN, "project_denied", detail))
    }

    /// Refuses a project that he named and the token does not cover, as one that is not there.
    pub(super) fn may_name(&self, project: &str) -> Result<(), Problem> {
        if self.sees(project) {
            return Ok(());
        }
        telemetry::api_refused("project");
        Err(no_project(project))
    }
}

impl Access {
    /// With these tokens, and without an issuer.
    #[must_use]
    pub fn new(tokens: Vec<Token>) -> Self {
        Self(RwLock::new(Known { tokens: tokens.into(), ..Known::default() }))
    }

    /// Puts other tokens, another issuer and other principals in force, for every request from now on.
    pub fn set(&self, tokens: Vec<Token>, issuer: Option<Arc<Issuer>>, principals: Vec<Principal>) {
        *self.0.write() = Known { tokens: tokens.into(), issuer, principals: principals.into() };
    }

    /// The issuer whose tokens are taken.
    pub fn issuer(&self) -> Option<Arc<Issuer>> {
        self.0.read().issuer.clone()
    }

    /// Waits until the key is here by which a request's token is signed, where the issuer may have it: a few seconds at most.
    pub(super) async fn prepare(&self, headers: &HeaderMap) {
        let Known { tokens, issuer, .. } = self.0.read().clone();
        let (Some(issuer), Ok(token)) = (issuer, bearer(headers)) else { return };
        if holder(&tokens, token).is_none() {
            issuer.prepare(token).await;
        }
    }

    /// Who asks for a task or a project: the holder of a token or a certificate; with nobody configured, this machine.
    pub(super) fn of_tasks(&self, request: &Request) -> Result<Caller, Problem> {
        let known = self.0.read().clone();
        if !known.is_open() {
            return known.caller(request);
        }
        let peer = request.extensions().get::<Peer>();
        if peer.is_some_and(|Peer(address)| address.to_canonical().is_loopback()) {
            return Ok(Caller::trusted("this machine"));
        }
        telemetry::api_refused("credentials");
        let detail = "no token is configured, so tasks and projects are open to this machine alone; \
                      configure one (waterclock token, [[api.tokens]], [api.jwt], [[api.tls.principals]])";
        Err(Problem::new(StatusCode::FORBIDDEN, "local_only", detail))
    }

    /// Who asks for a timer. Timers have no project: once there are tokens, one of all projects is needed. Without tokens
    /// anybody may ask whom the listener reaches.
    pub(super) fn of_timers(&self, request: &Request, role: Role) -> Result<Caller, Problem> {
        let known = self.0.read().clone();
        if known.is_open() {
            return Ok(Caller::trusted("anybody"));
        }
        let caller = known.caller(request)?;
        if caller.projects.is_some() {
            telemetry::api_refused("project");
            let detail = format!(
                "timers are of no project: this needs all projects, and {} has some",
                caller.name
            );
            return Err(Problem::new(StatusCode::FORBIDDEN, "project_denied", detail));
        }
        caller.may(role)?;
        Ok(caller)
    }
}

impl Known {
    /// Whether nobody has to say who he is.
    fn is_open(&self) -> bool {
        self.tokens.is_empty() && self.issuer.is_none() && self.principals.is_empty()
    }

    /// Who sends a request: by the token that it brings, or else by the certificate of its connection.
    fn caller(&self, request: &Request) -> Result<Caller, Problem> {
        let headers = request.headers();
        let shown = request.extensions().get::<Shown>();
        if let Some(shown) = shown.filter(|_| !self.principals.is_empty())
            && !headers.contains_key(header::AUTHORIZATION)
        {
            return self.holder_of(shown);
        }
        self.bearer(headers)
    }

    /// Who has shown a certificate.
    fn holder_of(&self, shown: &Shown) -> Result<Caller, Problem> {
        let Some(of) = shown.principal(&self.principals) else {
            telemetry::api_refused("role");
            let detail = "no name of the client certificate is one of the principals here ([[api.tls.principals]])";
            return Err(Problem::new(StatusCode::FORBIDDEN, "role_denied", detail));
        };
        Ok(Caller { name: of.name.clone(), role: of.role, projects: of.projects.clone() })
    }

    /// Who holds the token that a request brings.
    fn bearer(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let refuse = |code, detail| {
            telemetry::api_refused("credentials");
            Problem::no_credentials(code, detail)
        };
        let token = bearer(headers).map_err(|detail| refuse("no_credentials", detail))?;
        if let Some(Token { name, projects, role, .. }) = holder(&self.tokens, token) {
            return Ok(Caller { name: name.clone(), role: *role, projects: projects.clone() });
        }
        match self.issuer.as_ref().filter(|_| jwt::is_signed(token)) {
            Some(issuer) => issuer.caller(token),
            None => Err(refuse(
                "bad_credentials",
                "the token is not configured here, or is not any more",
            )),
        }
    }
}

/// The token that a request brings.
///
/// # Errors
/// What the caller should send.
fn bearer(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return Err("send one header: Authorization: Bearer <token>");
    };
    match value.to_str().unwrap_or_default().split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err("want a token: Authorization: Bearer <token>"),
    }
}

/// Which of the configured tokens this is.
fn holder<'t>(tokens: &'t [Token], token: &str) -> Option<&'t Token> {
    let hash = sha256(token);
    // All are compared, whichever fits: how long it takes says nothing.
    let mut found = u64::MAX;
    for (nth, known) in (0_u64..).zip(tokens) {
        let fits: Choice = known.sha256.ct_eq(&hash);
        found.conditional_assign(&nth, fits);
    }
    usize::try_from(found).ok().and_then(|nth| tokens.get(nth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[&str]) -> Request {
        let mut request = Request::builder().uri("/v1/tasks");
        for value in headers {
            request = request.header("authorization", *value);
        }
        request.body(axum::body::Body::empty()).expect("a request")
    }

    fn code(result: Result<Caller, Problem>) -> Result<String, String> {
        let code = |problem: Problem| problem.as_json()["code"].as_str().map(str::to_owned);
        result.map(|caller| caller.name).map_err(|problem| code(problem).unwrap_or_default())
    }

    fn token(name: &str, projects: Option<&[&str]>, role: Role) -> Token {
        let projects = projects.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
        Token { name: name.to_owned(), sha256: sha256(name), projects, role }
    }

    #[test]
    fn a_token_is_found_among_all_and_another_text_is_refused() {
        let access = Access::new(vec![
            token("one", Some(&["shop"]), Role::Write),
            token("two", None, Role::Read),
        ]);
        let bad = Err("bad_credentials".to_owned());
        let none = Err("no_credentials".to_owned());
        #[rustfmt::skip]
        let cases: [(&[&str], Result<String, String>); 9] = [
            (&["Bearer one"],               Ok("one".to_owned())),
            (&["bearer  two"],              Ok("two".to_owned())),
            (&["Bearer three"],             bad.clone()),
            (&["Bearer on"],                bad.clone()),
            (&["Bearer "],                  bad),
            (&["Basic one"],                none.clone()),
            (&["one"],                      none.clone()),
            (&[],                           none.clone()),
            (&["Bearer one", "Bearer one"], none),
        ];
        for (headers, want) in cases {
            assert_eq!(code(access.of_tasks(&request(headers))), want, "{headers:?}");
        }
    }

    #[test]
    fn without_a_token_tasks_are_for_this_machine_and_timers_for_all() {
        let access = Access::default();
        let from = |address: Option<&str>| {
            let mut request = request(&[]);
            if let Some(address) = address {
                let address = address.parse().expect("an address");
                request.extensions_mut().insert(Peer(address));
            }
            request
        };
        #[rustfmt::skip]
        let cases = [
            (Some("127.0.0.1"),          true),
            (Some("::1"),                true),
            (Some("::ffff:127.0.0.1"),   true),
            (Some("10.0.0.7"),           false),
            (Some("fe80::1"),            false),
            (None,                       false),
        ];
        for (address, want) in cases {
            assert_eq!(access.of_tasks(&from(address)).is_ok(), want, "{address:?}");
            assert!(access.of_timers(&from(address), Role::Write).is_ok(), "{address:?}");
        }
        // A token that is configured ends that, at once.
        access.set(vec![token("one", None, Role::Admin)], None, Vec::new());
        for request in [from(Some("127.0.0.1")), from(None)] {
            assert_eq!(code(access.of_tasks(&request)), Err("no_credentials".to_owned()));
            let told = code(access.of_timers(&request, Role::Read));
            assert_eq!(told, Err("no_credentials".to_owned()));
        }
    }

    #[test]
    fn timers_need_a_token_of_all_projects_with_the_role() {
        let all = vec![
            token("some", Some(&["shop"]), Role::Admin),
            token("reader", None, Role::Read),
            token("writer", None, Role::Write),
        ];
        let access = Access::new(all);
        let of =
            |name: &str, role| code(access.of_timers(&request(&[&format!("Bearer {name}")]), role));
        assert_eq!(of("some", Role::Read), Err("project_denied".to_owned()));
        assert_eq!(of("reader", Role::Read), Ok("reader".to_owned()));
        assert_eq!(of("reader", Role::Write), Err("role_denied".to_owned()));
        assert_eq!(of("writer", Role::Write), Ok("writer".to_owned()));
    }
}
