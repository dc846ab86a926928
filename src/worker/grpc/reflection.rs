//! Bodies in JSON: the target says what its methods take, by its reflection service, and the JSON is encoded by that.
//!
//! # Invariants
//! 1. A target's descriptors have at most [`BYTES_MAX`] bytes and [`FILES_MAX`] files, and those that are kept [`KEPT_BYTES`] in all.
//! 2. They are kept for [`KEPT`]. What does not fit to descriptors older than [`AGAIN`] is tried once more with new ones.
//! 3. Who asks for the same descriptors at one time shares one question.
//! 4. What is sent has no field that the target does not know.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use prost_types::FileDescriptorProto;
use reqwest::header::HeaderMap;
use tokio::time::Instant;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::Failure;
use super::connections::Connection;
use super::exchange::Reply;
use super::request::{Prepared, Target};
use crate::engine::task::answer::{GrpcAnswer, GrpcStatus};

/// Bytes of the descriptors that one service needs, as they are sent.
const BYTES_MAX: usize = 1 << 20;
/// Files of them.
const FILES_MAX: usize = 256;
/// Bytes of all descriptors that are kept, as they were sent; in memory they take some times that.
const KEPT_BYTES: usize = 8 << 20;
/// Services whose descriptors are kept.
const KEPT_SERVICES: usize = 256;
/// How long they are kept.
const KEPT: Duration = Duration::from_secs(600);
/// What is older than this may be of a version that has gone.
const AGAIN: Duration = Duration::from_secs(10);
/// The reflection service, in its two versions. Their messages are the same on the wire.
const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
/// NOT_FOUND, as a number.
const NOT_FOUND: i32 = 5;

/// Project, address, secret with the client certificate, and service.
type Key = (String, String, Option<String>, String);

/// What targets have said of themselves.
#[derive(Default)]
pub(super) struct Descriptors(Mutex<HashMap<Key, Arc<Service>>>);

struct Service {
    found: tokio::sync::Mutex<Option<Found>>,
    bytes: AtomicUsize,
    used: Mutex<Instant>,
}

struct Found {
    pool: DescriptorPool,
    at: Instant,
}

impl Descriptors {
    /// The body of a task as the target takes it, and the method.
    pub(super) async fn encode(
        &self,
        connection: &Connection,
        prepared: &Prepared,
    ) -> Result<(Bytes, MethodDescriptor), Failure> {
        let service = self.service(prepared);
        let (pool, age) = {
            let mut found = service.found.lock().await;
            match found.as_ref().filter(|found| found.at.elapsed() < KEPT) {
                Some(found) => (found.pool.clone(), found.at.elapsed()),
                None => {
                    (self.ask(connection, prepared, &service, &mut found).await?, Duration::ZERO)
                }
            }
        };
        match encoded(&pool, prepared) {
            Err(_) if age >= AGAIN => {}
            encoded => return encoded,
        }
        let pool = {
            let mut found = service.found.lock().await;
            match found.as_ref().filter(|found| found.at.elapsed() < AGAIN) {
                Some(found) => found.pool.clone(),
                None => self.ask(connection, prepared, &service, &mut found).await?,
            }
        };
        encoded(&pool, prepared)
    }

    /// The target does not have what it said: it is asked anew for the next call.
    pub(super) fn forget(&self, prepared: &Prepared) {
        self.0.lock().remove(&key(&prepared.target, &prepared.grpc.service));
    }

    fn service(&self, prepared: &Prepared) -> Arc<Service> {
        let key = key(&prepared.target, &prepared.grpc.service);
        let now = Instant::now();
        let mut kept = self.0.lock();
        let service = kept.entry(key).or_insert_with(|| {
            Arc::new(Service {
                found: tokio::sync::Mutex::new(None),
                bytes: AtomicUsize::new(0),
                used: Mutex::new(now),
            })
        });
        *service.used.lock() = now;
        let service = Arc::clone(service);
        make_room(&mut kept);
        service
    }

    async fn ask(
        &self,
        connection: &Connection,
        prepared: &Prepared,
        service: &Service,
        found: &mut Option<Found>,
    ) -> Result<DescriptorPool, Failure> {
        let (pool, bytes) = fetch(connection, prepared).await?;
        service.bytes.store(bytes, Ordering::Relaxed);
        *found = Some(Found { pool: pool.clone(), at: Instant::now() });
        make_room(&mut self.0.lock());
        Ok(pool)
    }
}

fn key(target: &Target, service: &str) -> Key {
    let secret = target.certificate.as_ref().map(|(secret, _)| secret.clone());
    (target.project.clone(), target.base().to_owned(), secret, service.to_owned())
}

/// What was used longest ago goes first.
fn make_room(kept: &mut HashMap<Key, Arc<Service>>) {
    let bytes = |kept: &HashMap<Key, Arc<Service>>| {
        kept.values().map(|service| service.bytes.load(Ordering::Relaxed)).sum::<usize>()
    };
    while kept.len() > KEPT_SERVICES || (kept.len() > 1 && bytes(kept) > KEPT_BYTES) {
        let oldest = kept.iter().min_by_key(|(_, service)| *service.used.lock());
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
        kept.remove(&key);
    }
}

/// A body by what the target has said.
fn encoded(
    pool: &DescriptorPool,
    prepared: &Prepared,
) -> Result<(Bytes, MethodDescriptor), Failure> {
    let (name, method) = (&prepared.grpc.service, &prepared.grpc.method);
    let unknown = |what: String| Failure::broken(format!("method_unknown: {what}"));
    let service = pool
        .get_service_by_name(name)
        .ok_or_else(|| unknown(format!("the target has no service {name}")))?;
    let found = service.methods().find(|of| of.name() == method);
    let method =
        found.ok_or_else(|| unknown(format!("the service {name} has no method {method}")))?;
    if method.is_client_streaming() || method.is_server_streaming() {
        let text = format!(
            "it is a stream: {}; want a method of one message each way",
            method.full_name()
        );
        return Err(Failure::broken(format!("method_streams: {text}")));
    }
    let json: &[u8] = if prepared.body.is_empty() { b"{}" } else { &prepared.body };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let message = DynamicMessage::deserialize(method.input(), &mut reader)
        .and_then(|message| reader.end().map(|()| message));
    let message = message.map_err(|error| {
        Failure::broken(format!("body_mismatch: as {}: {error}", method.input().full_name()))
    })?;
    Ok((message.encode_to_vec().into(), method))
}

/// The largest answer that is shown as JSON. An `Any` in an `Any` takes twelve bytes, and the encoder over a kilobyte of the stack for
/// each: nothing else bounds how deep the target has them.
const JSON_ANSWER_MAX: usize = 4 << 10;

/// A message of a method's answer as JSON; `None`: it is none of its messages, or too large.
pub(super) fn to_json(method: &MethodDescriptor, message: &[u8]) -> Option<Vec<u8>> {
    if message.len() > JSON_ANSWER_MAX {
        return None;
    }
    let message = DynamicMessage::decode(method.output(), message).ok()?;
    serde_json::to_vec(&message).ok()
}

/// Asks for the file that has the service, and for all that this file needs.
async fn fetch(
    connection: &Connection,
    prepared: &Prepared,
) -> Result<(DescriptorPool, usize), Failure> {
    let own = ["webhook-", "waterclock-", "idempotency-key"];
    let mut headers = HeaderMap::new();
    for (name, value) in &prepared.headers {
        // What is about the task is not for the target's descriptors.
        if !own.iter().any(|start| name.as_str().starts_with(start)) {
            headers.append(name.clone(), value.clone());
        }
    }
    let service = &prepared.grpc.service;
    // What every language brings along is not asked for.
    let mut pool = DescriptorPool::global();
    let mut asker = Asker { connection, headers, version: 0, bytes: 0 };
    let mut files = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let mut wanted = vec![MessageRequest::FileContainingSymbol(service.clone())];
    while let Some(next) = wanted.pop() {
        for bytes in asker.ask(next, service).await? {
            let file = FileDescriptorProto::decode(&bytes[..])
                .map_err(|error| broken(format!("a file that cannot be read: {error}")))?;
            files.insert(file.name().to_owned(), file);
        }
        let needed: BTreeSet<&String> =
            files.values().flat_map(|file: &FileDescriptorProto| &file.dependency).collect();
        for name in needed {
            let is_there = files.contains_key(name) || pool.get_file_by_name(name).is_some();
            if !is_there && asked.insert(name.clone()) {
                wanted.push(MessageRequest::FileByFilename(name.clone()));
            }
        }
        if files.len().max(asked.len()) > FILES_MAX {
            return Err(broken(format!("more than {FILES_MAX} files")));
        }
    }
    let missing = files.into_values().filter(|file| pool.get_file_by_name(file.name()).is_none());
    let missing: Vec<_> = missing.collect();
    pool.add_file_descriptor_protos(missing)
        .map_err(|error| broken(format!("descriptors that do not fit together: {error}")))?;
    Ok((pool, asker.bytes))
}

fn broken(what: impl AsRef<str>) -> Failure {
    Failure::broken(format!("reflection_failed: the target answered with {}", what.as_ref()))
}

fn unknown(service: &str, text: &str) -> Failure {
    Failure::broken(format!(
        "method_unknown: the target does not know {service}, or a file of it: {text}"
    ))
}

/// Asks one target.
struct Asker<'a> {
    connection: &'a Connection,
    headers: HeaderMap,
    /// Which of [`PATHS`] it has.
    version: usize,
    /// That were answered so far.
    bytes: usize,
}

impl Asker<'_> {
    async fn ask(&mut self, what: MessageRequest, service: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let request = ServerReflectionRequest {
            message_request: Some(what),
            ..ServerReflectionRequest::default()
        };
        let request = Bytes::from(request.encode_to_vec());
        let mut reply = self.send(&request).await?;
        if reply.status == GrpcStatus::UNIMPLEMENTED && self.version == 0 && self.bytes == 0 {
            self.version = 1;
            reply = self.send(&request).await?;
        }
        let Reply { status, text, message, .. } = reply;
        let message = match (status, message) {
            (GrpcStatus::OK, Some(message)) => message,
            // Some say so here, and others in an answer.
            (status, _) if i32::from(status.code()) == NOT_FOUND => {
                return Err(unknown(service, &text));
            }
            (GrpcStatus::UNIMPLEMENTED, _) => {
                return Err(Failure::broken(
                    "reflection_missing: the target has no reflection service; send the body as protobuf, or add it there",
                ));
            }
            _ => {
                let answer = match status {
                    GrpcStatus::UNAVAILABLE => GrpcAnswer::Status { status, has_retry_info: false },
                    _ => GrpcAnswer::Broken,
                };
                let text = format!("reflection_failed: {}: {text}", status.name());
                return Err(Failure::Broken(answer, text));
            }
        };
        self.bytes += message.len();
        if self.bytes > BYTES_MAX {
            return Err(broken(format!("descriptors of more than {BYTES_MAX} bytes")));
        }
        let response = ServerReflectionResponse::decode(message)
            .map_err(|error| broken(format!("a message that cannot be read: {error}")))?;
        match response.message_response {
            Some(MessageResponse::FileDescriptorResponse(files)) => Ok(files.file_descriptor_proto),
            Some(MessageResponse::ErrorResponse(error)) if error.error_code == NOT_FOUND => {
                Err(unknown(service, &error.error_message))
            }
            Some(MessageResponse::ErrorResponse(error)) => {
                Err(broken(format!("error {}: {}", error.error_code, error.error_message)))
            }
            _ => Err(broken("something else than a file")),
        }
    }

    async fn send(&self, request: &Bytes) -> Result<Reply, Failure> {
        let path = PATHS[self.version];
        self.connection.exchange(path, self.headers.clone(), request.clone(), None, BYTES_MAX).await
    }
}

#[cfg(test)]
mod tests {
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{
        DescriptorProto, FieldDescriptorProto, MethodDescriptorProto, ServiceDescriptorProto,
    };

    use super::*;

    /// A method whose answer is `message A { google.protobuf.Any x = 1; }`.
    fn method() -> MethodDescriptor {
        let text = |of: &str| Some(of.to_owned());
        let field = FieldDescriptorProto {
            name: text("x"),
            number: Some(1),
            label: Some(Label::Optional.into()),
            r#type: Some(Type::Message.into()),
            type_name: text(".google.protobuf.Any"),
            ..FieldDescriptorProto::default()
        };
        let message =
            DescriptorProto { name: text("A"), field: vec![field], ..DescriptorProto::default() };
        let method = MethodDescriptorProto {
            name: text("M"),
            input_type: text(".A"),
            output_type: text(".A"),
            ..MethodDescriptorProto::default()
        };
        let service = ServiceDescriptorProto {
            name: text("S"),
            method: vec![method],
            ..ServiceDescriptorProto::default()
        };
        let file = FileDescriptorProto {
            name: text("a.proto"),
            dependency: vec!["google/protobuf/any.proto".to_owned()],
            message_type: vec![message],
            service: vec![service],
            syntax: text("proto3"),
            ..FileDescriptorProto::default()
        };
        let mut pool = DescriptorPool::global();
        pool.add_file_descriptor_proto(file).unwrap();
        let service = pool.get_service_by_name("S").unwrap();
        service.methods().next().unwrap()
    }

    /// Messages in messages, as deep as so many bytes allow.
    fn nested(most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let any = prost_types::Any { type_url: "/A".to_owned(), value: bytes.clone() };
            let any = any.encode_to_vec();
            let mut outer = vec![0x0a];
            prost::encoding::encode_varint(any.len() as u64, &mut outer);
            outer.extend(any);
            if outer.len() > most {
                return bytes;
            }
            bytes = outer;
        }
    }

    #[test]
    fn an_answer_that_is_nested_for_ever_costs_no_stack() {
        let method = method();
        // As much as a worker's thread has.
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let ended = thread.spawn(move || {
            let shown = to_json(&method, &nested(JSON_ANSWER_MAX)).map(|json| json.len());
            (shown > Some(JSON_ANSWER_MAX), to_json(&method, &nested(60 << 10)))
        });
        assert_eq!(ended.unwrap().join().unwrap(), (true, None));
    }
}
