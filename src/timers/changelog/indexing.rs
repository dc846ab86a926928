//! Opens the index of a namespace, if it is to be believed.

use std::fmt;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::engine::Millis;
use crate::engine::timers::VERSION;
use crate::kafka::topics::InForce;
use crate::telemetry;
use crate::timers::index::{self, Identity, Index};

/// An index, and what must be known of its changelog to believe it.
#[derive(Debug)]
pub struct Indexing {
    pub(super) index: Index,
    pub(super) tombstones: Millis,
}

impl Indexing {
    /// Opens the index of what is in force for a namespace, in this directory.
    ///
    /// `None`: this run goes without, since the disk does not work; it has been logged.
    ///
    /// # Errors
    /// A person must mend it: another process has it, or the system does not let us.
    pub fn open(
        namespace: &str,
        in_force: &InForce,
        directory: &Path,
    ) -> Result<Option<Self>, index::Error> {
        let Some(identity) = Self::identity(namespace, in_force) else {
            give_up(&"Kafka does not tell its cluster's id");
            return Ok(None);
        };
        match Index::open(directory, &identity) {
            Ok(index) => Ok(Some(Self { index, tombstones: in_force.tombstones })),
            Err(error @ (index::Error::InUse(_) | index::Error::Refused { .. })) => Err(error),
            Err(error) => {
                give_up(&error);
                Ok(None)
            }
        }
    }

    /// Whose index that of a namespace is; `None`: Kafka does not tell its cluster's id.
    #[must_use]
    pub fn identity(namespace: &str, in_force: &InForce) -> Option<Identity> {
        let cluster_id = in_force.cluster_id.clone()?;
        // One of the same name that was deleted had another secret; what stands on disk must not tell it.
        let secret = Sha256::new().chain_update("index").chain_update(in_force.secret.bytes());
        let mark: String =
            secret.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let namespace = format!("{namespace} {mark}");
        Some(Identity { cluster_id, namespace, version: u32::from(VERSION) })
    }
}

pub(super) fn give_up(why: &dyn fmt::Display) {
    tracing::warn!(
        %why,
        "no index in this run: timers cannot be looked up here, and what is pending is read from the changelog \
         whenever lanes are taken over"
    );
    telemetry::index_given_up();
}
