//! What a tool makes outside of itself.

use std::path::PathBuf;

use waterclock_kafka::{Connection, bench as kafka};

/// A namespace of its own: its topics and groups, and a directory. All of it is gone when this is dropped.
pub(super) struct Corner {
    connection: Connection,
    namespace: String,
    /// Where the processes of the tool keep what they need.
    pub(super) dir: PathBuf,
}

impl Corner {
    /// Makes the directory. Topics are the caller's to make.
    pub(super) fn make(connection: &Connection, namespace: &str) -> std::io::Result<Self> {
        let dir = std::env::temp_dir().join(namespace);
        std::fs::create_dir_all(&dir)?;
        Ok(Self { connection: connection.clone(), namespace: namespace.to_owned(), dir })
    }
}

impl Drop for Corner {
    fn drop(&mut self) {
        let namespace = &self.namespace;
        let groups = ["", "-workers", "-source-copy"].map(|end| format!("{namespace}{end}"));
        if let Err(error) = kafka::delete(&self.connection, namespace, &groups) {
            // There is a result already, or a better reason to fail.
            tracing::warn!(%error, namespace, "could not delete the topics of this run");
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
