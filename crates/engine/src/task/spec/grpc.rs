//! Calls over gRPC.
//!
//! # Invariants
//! 1. Host and port are always both there, and a host is read as the parser of URLs reads it.
//! 2. A header has a name and a value that gRPC can send, and none that gRPC itself sets.

use serde_json::Value;
use url::{Position, Url};

use super::super::super::Millis;
use super::super::fields::{Fields, Wrongs, item, length, shown, text, wanted, wanted_address};
use super::{Feedback, Poll, TIMEOUT_MAX, address, name, read_headers, read_what_follows};

/// Longest host with its port, in bytes.
pub const HOST_MAX: usize = 261;
/// Longest name of a gRPC service, with its package, and longest name of a method, in bytes.
pub const SERVICE_MAX: usize = 256;

/// A unary call over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grpc {
    /// Who is called.
    pub address: GrpcAddress,
    /// The service of gRPC: a name, or a package and a name.
    pub service: String,
    /// Its method.
    pub method: String,
    /// What the body is.
    pub format: BodyFormat,
    /// Names and values of metadata, as they were written. The value of a name that ends in `-bin` is base64, as gRPC sends it.
    pub headers: Vec<(String, String)>,
    /// How long the call may take; `None`: the named service's time, or waterclock's default.
    pub timeout: Option<Millis>,
    /// Present: the call is made again until the thing has happened. Not beside `feedback`.
    pub poll: Option<Poll>,
    /// Present: the task goes on after its call was answered with OK, until an executor reports.
    pub feedback: Option<Feedback>,
}

/// Who is called over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcAddress {
    /// A named service of the project.
    Service(String),
    /// A host with its port: a URL that has nothing else. With TLS it is https, else http.
    Host(Url),
}

/// What the body of a gRPC task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyFormat {
    /// The message as it is sent: protobuf.
    #[default]
    Protobuf,
    /// JSON. The worker asks the target for the type of the message, and encodes it.
    Json,
}

impl BodyFormat {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Protobuf => "protobuf",
            Self::Json => "json",
        }
    }
}

impl Grpc {
    /// The path of the call.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/{}/{}", self.service, self.method)
    }

    /// Host and port, and whether they are called with TLS; `None`: a named service says both.
    #[must_use]
    pub fn host(&self) -> Option<(String, bool)> {
        let GrpcAddress::Host(url) = &self.address else { return None };
        // A URL leaves the port out that its scheme has anyway.
        let port = url.port_or_known_default().unwrap_or_default();
        let host = &url[Position::BeforeHost..Position::AfterHost];
        Some((format!("{host}:{port}"), url.scheme() == "https"))
    }
}

pub(super) fn read(fields: &Fields<'_>, wrongs: &mut Wrongs) -> Option<Grpc> {
    let named = fields.read("named_service", wrongs, name);
    let tls = fields
        .read("tls", wrongs, |value| value.as_bool().ok_or_else(|| wanted(value, "true or false")));
    let host = fields.read("host", wrongs, |value| host(value, tls == Some(true)));
    match (fields.has("named_service"), fields.has("host")) {
        (true, true) => {
            wrongs.add(fields.at("host"), "is there beside named_service; want exactly one of them")
        }
        (false, false) => {
            wrongs.add(fields.at("host"), "is missing; want exactly one of host and named_service");
        }
        (true, false) if fields.has("tls") => {
            let detail = "is there beside named_service, whose address says it; want it with host";
            wrongs.add(fields.at("tls"), detail);
        }
        _ => {}
    }
    let service = fields.require("service", wrongs, |value| {
        const WANT: &str =
            "the name of a gRPC service, with its package if it has one: shop.v1.Orders";
        identifiers(value, WANT, true)
    });
    let method = fields.require("method", wrongs, |value| {
        identifiers(value, "the name of a method of the gRPC service: Expire", false)
    });
    let format = fields.read("format", wrongs, |value| match value.as_str() {
        Some("protobuf") => Ok(BodyFormat::Protobuf),
        Some("json") => Ok(BodyFormat::Json),
        _ => Err(wanted(value, "protobuf or json")),
    });
    let headers = read_headers(fields, wrongs);
    for (index, (name, value)) in headers.iter().enumerate() {
        if let Err(detail) = metadata(name, value) {
            wrongs.add(item(&fields.at("headers"), index), detail);
        }
    }
    let timeout = fields.read("timeout", wrongs, |value| length(value, Millis(1)..=TIMEOUT_MAX));
    let (poll, feedback) = read_what_follows(fields, wrongs);
    let address = match (named, host) {
        (Some(named), _) => GrpcAddress::Service(named),
        (None, Some(host)) => GrpcAddress::Host(host),
        (None, None) => return None,
    };
    let format = format.unwrap_or_default();
    let (service, method) = (service?, method?);
    Some(Grpc { address, service, method, format, headers, timeout, poll, feedback })
}

/// Reads a host with its port.
fn host(value: &Value, tls: bool) -> Result<Url, String> {
    const WANT: &str = "a host and its port, without a scheme and a path: shop.example:50051";
    let text = text(value, WANT)?;
    if text.contains('@') {
        return Err(wanted_address(text, WANT));
    }
    let port = text.rsplit_once(':').map(|(_, port)| port).unwrap_or_default();
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    if text.len() > HOST_MAX || !is_port || text.contains(['/', '?', '#', '\\']) {
        return Err(wanted(value, WANT));
    }
    let scheme = if tls { "https" } else { "http" };
    address::strictly(&format!("{scheme}://{text}/"))
        .map_err(|what| format!("is {} ({what}); want {WANT}", shown(value)))
}

/// A name as protobuf has it, or several of them with dots between.
fn identifiers(value: &Value, want: &str, with_package: bool) -> Result<String, String> {
    let text = text(value, want)?;
    let is_one = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let is_sound = if with_package { text.split('.').all(is_one) } else { is_one(text) };
    let is_fit = is_sound && text.len() <= SERVICE_MAX;
    if is_fit { Ok(text.to_owned()) } else { Err(wanted(value, want)) }
}

/// What gRPC does not send as metadata. The value is not shown: it may be a secret.
fn metadata(name: &str, value: &str) -> Result<(), &'static str> {
    let lower = name.to_ascii_lowercase();
    if lower.starts_with("grpc-") || lower == "content-type" {
        return Err("is one of the headers that gRPC itself sets; want metadata of your own");
    }
    if !lower.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)) {
        return Err("has a name that gRPC does not send; want letters, digits and _ - .");
    }
    if !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err("has a value that gRPC does not send; want printable ASCII");
    }
    Ok(())
}
