//! What is sent for a task. Everything is checked here once more, right before the call: a record may have waited for months.
//!
//! # Invariants
//! 1. A body is sent only if the state of its task was sealed over it.
//! 2. What waterclock says in headers of its own comes from waterclock: the specification cannot name them.
//! 3. A URL is sent only if the guard and the list of hosts of the task's project have allowed it.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use url::Url;

use super::certificate::Certificate;
use super::grpc;
use super::guard::Guard;
use super::secrets::Secrets;
use super::sign::Signer;
use crate::engine::UnixMillis;
use crate::engine::header::{self, Code};
use crate::engine::messages::TracedTurn;
use crate::engine::task::digest;
use crate::engine::task::id::TaskId;
use crate::engine::task::registry::{self, Protocol, Registry, Service};
use crate::engine::task::spec::{Address, Grpc, GrpcAddress, Http, Kind, Method, Shard, Spec};
use crate::engine::work::Task;

/// What waterclock calls itself.
const AGENT: &str = concat!("waterclock/", env!("CARGO_PKG_VERSION"));

/// A call that can be made.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) http: Http,
    pub(super) request: reqwest::Request,
    /// For all of it, from the look-up of the name to the end of the answer.
    pub(super) timeout: Duration,
    /// What the other side sees if it asks for a client certificate.
    pub(super) certificate: Option<Certificate>,
}

/// A call over either protocol.
pub(super) enum Call {
    Http(Box<Prepared>),
    Grpc(Box<grpc::request::Prepared>),
}

/// Why no call is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// A word for programs.
    pub(super) code: &'static str,
    pub(super) detail: String,
}

impl Refused {
    pub(super) fn secret(detail: String) -> Self {
        Self { code: "secret_denied", detail }
    }

    fn task(detail: impl Into<String>) -> Self {
        Self { code: Code::BadTask.as_str(), detail: detail.into() }
    }
}

/// Makes the request of a task. `now`: when it is signed.
///
/// # Errors
/// Why it is not to be called.
pub(super) fn prepare(
    task: &Arc<Task>,
    registry: &Registry,
    guard: &Guard,
    secrets: &Secrets,
    now: UnixMillis,
) -> Result<Call, Refused> {
    if digest(&task.record) != task.sealed.digest {
        return Err(Refused::task("its body or headers are not those that were submitted"));
    }
    let named = |name: &str| {
        let found = task.record.headers().find(|(of, _)| *of == name.as_bytes());
        found.and_then(|(_, value)| value).ok_or_else(|| Refused::task(format!("it has no {name}")))
    };
    let spec = Spec::parse(named(header::TASK)?).map_err(|wrongs| {
        let first = wrongs.into_iter().next();
        Refused::task(
            first.map_or_else(String::new, |wrong| format!("{} {}", wrong.at, wrong.detail)),
        )
    })?;
    let id = std::str::from_utf8(named(header::ID)?);
    let id = id.map_err(|_| Refused::task("its id is no UTF-8"))?;
    let over = match spec.kind() {
        Kind::Http(http) => Over::Http(http),
        Kind::Grpc(grpc) => Over::Grpc(grpc),
        Kind::Kafka(_) | Kind::Schedule(_) | Kind::Run(_) => {
            let of_type = spec.type_name();
            let detail = format!("its type is {of_type}; workers call http and grpc");
            return Err(Refused::task(detail));
        }
    };
    let project = registry.project(spec.project());
    if project.is_deleted {
        let detail = format!("the project {} was deleted", spec.project());
        return Err(Refused { code: "project_deleted", detail });
    }
    let (url, service) = over.address(spec.project(), registry)?;
    let denied = |detail| Refused { code: "address_denied", detail };
    guard.url(&url).map_err(|why| denied(why.to_string()))?;
    if !project.permits_host_of(&url) {
        let host = url.host_str().unwrap_or_default();
        let detail = format!("{host} is not in the hosts of the project {}", spec.project());
        return Err(denied(detail));
    }

    let body = Bytes::from_owner(Body(Arc::clone(task)));
    let is_grpc = matches!(over, Over::Grpc(_));
    let nominal = TaskId::parse(id).ok().and_then(|id| id.nominal());
    let (polls, shard) = (spec.poll().is_some(), spec.shard());
    let said = Said { task, id, polls, shard, nominal, is_grpc, now };
    let (of_user, timeout) = match over {
        Over::Http(http) => (&http.headers, http.timeout),
        Over::Grpc(grpc) => (&grpc.headers, grpc.timeout),
    };
    let mut headers = user_headers(of_user)?;
    let signer = said.add(&mut headers, service, spec.project(), secrets)?;
    let certificate = service
        .and_then(|service| service.client_certificate.as_deref())
        .map(|name| secrets.certificate(name, spec.project()).map_err(Refused::secret))
        .transpose()?;
    let timeout = timeout.or_else(|| service.map(|service| service.timeout));
    let timeout = timeout.unwrap_or(registry::TIMEOUT).min(registry::TIMEOUT_MAX);
    let timeout = Duration::from_millis(timeout.0);
    let http = match over {
        Over::Http(http) => http.clone(),
        Over::Grpc(grpc) => {
            let certificate = certificate.map(|of| (of.secret, of.identity.grpc));
            let project = spec.project().to_owned();
            let target = grpc::request::Target { project, url, certificate };
            let grpc = grpc.clone();
            let prepared = grpc::request::Prepared { grpc, target, headers, signer, body, timeout };
            return Ok(Call::Grpc(Box::new(prepared)));
        }
    };
    if let Some(signer) = signer {
        headers.insert("webhook-signature", signer.signature(&body)?);
    }
    let method = reqwest::Method::from_bytes(http.method.as_str().as_bytes())
        .map_err(|_| Refused::task("its method is none of HTTP's"))?;
    let mut request = reqwest::Request::new(method, url);
    *request.headers_mut() = headers;
    if !body.is_empty() {
        *request.body_mut() = Some(body.into());
    } else if matches!(http.method, Method::Post | Method::Put | Method::Patch) {
        // Some servers answer 411 to a POST that does not say how long its body is.
        request.headers_mut().insert(CONTENT_LENGTH, 0.into());
    }
    Ok(Call::Http(Box::new(Prepared { http, request, timeout, certificate })))
}

/// The value of a task, without a copy of it.
struct Body(Arc<Task>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        self.0.record.value().unwrap_or_default()
    }
}

/// What is called, by its protocol.
#[derive(Clone, Copy)]
enum Over<'a> {
    Http(&'a Http),
    Grpc(&'a Grpc),
}

impl Over<'_> {
    /// Where the call goes, and the service that says so.
    fn address<'a>(
        self,
        project: &str,
        registry: &'a Registry,
    ) -> Result<(Url, Option<&'a Service>), Refused> {
        let (protocol, name, path) = match self {
            Over::Http(Http { address: Address::Url(url), .. })
            | Over::Grpc(Grpc { address: GrpcAddress::Host(url), .. }) => {
                return Ok((url.clone(), None));
            }
            Over::Http(Http { address: Address::Service { name, path }, .. }) => {
                (Protocol::Http, name, path.as_deref())
            }
            Over::Grpc(Grpc { address: GrpcAddress::Service(name), .. }) => {
                (Protocol::Grpc, name, None)
            }
        };
        let service = registry.service(project, name).ok_or_else(|| Refused {
            code: "service_missing",
            detail: format!(
                "the project {project} has no service {name}; put it, and retry the task"
            ),
        })?;
        if service.protocol != protocol {
            let (is, wanted) = (service.protocol.as_str(), protocol.as_str());
            return Err(Refused {
                code: "service_protocol",
                detail: format!(
                    "the service {name} is called over {is}, and the task wants {wanted}; put it again, or name another one"
                ),
            });
        }
        service_url(name, service, path).map(|url| (url, Some(service)))
    }
}

/// The address of a service, with a path behind it.
fn service_url(name: &str, service: &Service, path: Option<&str>) -> Result<Url, Refused> {
    let text = match path {
        // A path begins with a slash.
        Some(path) => format!("{}{path}", service.address.trim_end_matches('/')),
        None => service.address.clone(),
    };
    // The address is not shown: it could be a password.
    text.parse().map_err(|error| Refused {
        code: "service_address",
        detail: format!("the address of the service {name} is no URL ({error}); put it again"),
    })
}

/// Those of the specification.
fn user_headers(of_user: &[(String, String)]) -> Result<HeaderMap, Refused> {
    let mut headers = HeaderMap::with_capacity(of_user.len() + 12);
    for (name, value) in of_user {
        let pair = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .zip(HeaderValue::from_bytes(value.as_bytes()).ok());
        // The value may be a secret.
        let (name, value) =
            pair.ok_or_else(|| Refused::task(format!("its header {name:?} cannot be sent")))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// What waterclock says in headers of a call.
struct Said<'a> {
    task: &'a Task,
    id: &'a str,
    /// Whether it is called again until the thing has happened.
    polls: bool,
    /// Of a run.
    shard: Option<Shard>,
    /// Of a schedule: for which time.
    nominal: Option<UnixMillis>,
    is_grpc: bool,
    now: UnixMillis,
}

impl Said<'_> {
    /// The same for each attempt, so that a receiver can tell a repeat; another one for each round of polling, which is a question
    /// of its own.
    fn webhook_id(&self) -> String {
        match self.task.sealed.round {
            round if round > 0 && self.polls => format!("{}.r{round}", self.id),
            _ => self.id.to_owned(),
        }
    }

    /// Adds all but the signature, and gives what makes that.
    fn add(
        &self,
        headers: &mut HeaderMap,
        service: Option<&Service>,
        project: &str,
        secrets: &Secrets,
    ) -> Result<Option<Signer>, Refused> {
        let webhook_id = self.webhook_id();
        let seconds = self.now.0 / 1_000;
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        let id = HeaderValue::from_str(&webhook_id)
            .map_err(|_| Refused::task("its id cannot be sent in a header"))?;
        // Whatever the specification says of these, this is what is sent.
        headers.insert("idempotency-key", id.clone());
        headers.insert("webhook-id", id);
        headers.insert("webhook-timestamp", seconds.into());
        headers.insert("waterclock-turn", self.task.turn.turn.into());
        headers.insert("waterclock-attempt", self.task.sealed.attempt.into());
        headers.insert("waterclock-due", self.task.sealed.due.0.into());
        if let Some(shard) = self.shard {
            let shard = HeaderValue::try_from(shard.to_string());
            let unsent = |_| Refused::task("which shard it is cannot be sent in a header");
            headers.insert("waterclock-shard", shard.map_err(unsent)?);
        }
        if let Some(nominal) = self.nominal {
            headers.insert("waterclock-nominal", nominal.0.into());
        }
        if let Some(TracedTurn { ticket, cursor, .. }) = &self.task.traced {
            let unsent = |_| Refused::task("its ticket or cursor cannot be sent in a header");
            headers.insert("waterclock-ticket", HeaderValue::try_from(ticket).map_err(unsent)?);
            match cursor {
                // Metadata of gRPC is ASCII, or binary: its libraries decode that by themselves.
                Some(cursor) if self.is_grpc => {
                    let cursor = HeaderValue::try_from(STANDARD.encode(cursor.as_bytes()));
                    headers.insert("waterclock-cursor-bin", cursor.map_err(unsent)?);
                }
                Some(cursor) => {
                    let cursor = HeaderValue::from_bytes(cursor.as_bytes()).map_err(unsent)?;
                    headers.insert("waterclock-cursor", cursor);
                }
                None => {}
            }
        }
        let secret = service.and_then(|service| service.secret.as_deref());
        let signer = secret.map(|secret| {
            let keys = secrets.keys(secret, project).map_err(Refused::secret)?;
            Ok(Signer::new(keys, secret, &webhook_id, seconds))
        });
        let signer = signer.transpose()?;
        if let Some(bearer) = service.and_then(|service| service.bearer.as_deref()) {
            headers
                .insert(AUTHORIZATION, secrets.bearer(bearer, project).map_err(Refused::secret)?);
        }
        Ok(signer)
    }
}
