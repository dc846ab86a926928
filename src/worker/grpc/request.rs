//! What is sent for a gRPC task, but for what is known only once there is a connection: the body of a task in JSON, and so its signature.

use std::time::Duration;

use bytes::Bytes;
use native_tls::Identity;
use reqwest::header::HeaderMap;
use url::Url;

use super::super::sign::Signer;
use crate::engine::task::spec::Grpc;

/// A call that can be made.
pub(in crate::worker) struct Prepared {
    pub(in crate::worker) grpc: Grpc,
    pub(in crate::worker) target: Target,
    /// All but the signature and the time that is left.
    pub(in crate::worker) headers: HeaderMap,
    /// Signs the body as it is sent.
    pub(in crate::worker) signer: Option<Signer>,
    pub(in crate::worker) body: Bytes,
    /// For all of it.
    pub(in crate::worker) timeout: Duration,
}

/// Where a call goes. Calls of one target share a connection.
pub(in crate::worker) struct Target {
    /// A project's calls wait behind no other project's on one connection.
    pub(in crate::worker) project: String,
    /// Scheme, host and port. The guard and the project's hosts have allowed it.
    pub(in crate::worker) url: Url,
    /// What the other side sees if it asks for a client certificate, and the name of the secret that holds it.
    pub(in crate::worker) certificate: Option<(String, Identity)>,
}
