//! What a handler knows of its turn, and says of its work.

use std::sync::Arc;

use super::super::tasks::{Beats, Error, Over};

/// The turn of a handler. Clones go to what it spawns; they do not keep the turn alive.
#[derive(Clone, Debug)]
pub struct Context(Arc<Beats>);

impl Context {
    pub(super) fn new(beats: &Arc<Beats>) -> Self {
        Self(Arc::clone(beats))
    }

    /// Whether the turn is over: another executor may have the shard by now, or the run was cancelled, or the handler has ended. It
    /// costs a look at the clock.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_over().is_some()
    }

    /// Waits until the turn is over, and says why. The handler is dropped then; this is for what it has spawned.
    pub async fn cancelled(&self) -> Over {
        self.0.over().await
    }

    /// Does a piece of the work as long as the turn is ours: for what a handler spawns.
    ///
    /// # Errors
    /// The turn is over: the work was dropped where it last waited.
    pub async fn unless_cancelled<F: Future>(&self, work: F) -> Result<F::Output, Over> {
        self.0.unless_over(work).await
    }

    /// Says how far the work is: 0 to 100 percent for people, and a cursor of at most 256 bytes, which the next turn is handed if
    /// this one is lost. The next heartbeat brings it, and so does the report. What is `None` stays as it was.
    ///
    /// # Errors
    /// [`Error::BadProgress`], and the last progress stays.
    pub fn progress(&self, percent: Option<u8>, cursor: Option<&str>) -> Result<(), Error> {
        self.0.progress(percent, cursor)
    }

    /// The same, and sends a heartbeat now: after it waterclock knows the cursor. That is three small records in Kafka, so call it
    /// where a cursor must not be lost, and [`progress`](Self::progress) elsewhere. It waits until an instance answers.
    ///
    /// # Errors
    /// [`Error::Stale`]: the turn is over. [`Error::BadProgress`]: nothing was sent.
    pub async fn heartbeat(&self, percent: Option<u8>, cursor: Option<&str>) -> Result<(), Error> {
        self.0.progress(percent, cursor)?;
        self.0.heard().await.map_err(|over| Error::Stale { detail: over.to_string() })
    }
}
