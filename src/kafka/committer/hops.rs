//! Looks at when hops were appended, for strict order (docs/adr/0013): whether they come up from their tier in time.
//!
//! # Invariants
//! 1. A hop that must not be committed is known before the commit of its transaction begins.
//! 2. What is told of a batch is told with the batch: of each partition the last offset and the least due time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{Batch, BatchId, Lane, Offset, Setup, Source, Tardy, To, TopicId, UnixMillis};

/// Hops of one batch that came to stand late in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kafka) struct Late {
    pub(in crate::kafka) source: Source,
    /// The last of them.
    pub(in crate::kafka) offset: Offset,
    /// When the first of them is due.
    pub(in crate::kafka) due: UnixMillis,
}

/// Hops on their way, and what their delivery reports said.
#[derive(Debug)]
pub(super) struct Hops {
    setup: Arc<Setup>,
    /// A transaction can be aborted.
    refuses: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By batch and place in it: where it goes, and when it is due.
    open: HashMap<(BatchId, usize), (Source, UnixMillis)>,
    late: Vec<(BatchId, Late)>,
    refused: Option<String>,
}

impl Hops {
    pub(super) fn new(setup: Arc<Setup>, refuses: bool) -> Self {
        Self { setup, refuses, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch is about to be produced.
    pub(super) fn begin(&self, batch: &Batch) {
        let mut state = self.lock();
        for (at, send) in batch.sends.iter().enumerate() {
            if let (To::Lane(topic), Some(lane)) = (&send.to, lane_of(send.partition))
                && self.setup.topics.tier_of(*topic).is_some()
            {
                let source = Source { topic: *topic, lane };
                state.open.insert((batch.id, at), (source, send.due));
            }
        }
    }

    /// A record was appended then, and stands there if that is known; `None` for both where it was sent twice.
    pub(super) fn appended(
        &self,
        (batch, at): (BatchId, usize),
        offset: Option<Offset>,
        appended: Option<UnixMillis>,
    ) {
        let mut state = self.lock();
        let Some((source, due)) = state.open.remove(&(batch, at)) else { return };
        let TopicId(topic) = source.topic;
        let tardy =
            appended.map_or(Tardy::Refuse, |at| self.setup.tardiness(source.topic, due, at));
        match (tardy, offset) {
            (Tardy::No, _) => {}
            (Tardy::Refuse, _) | (Tardy::Tell, None) if self.refuses => {
                let late = appended.map_or(0, |at| at.0.saturating_sub(due.0));
                state.refused.get_or_insert_with(|| {
                    let name = self.setup.topics.name(TopicId(topic));
                    format!(
                        "a hop to {name} came to stand too late for strict order, {late} ms overdue"
                    )
                });
            }
            (_, Some(offset)) => {
                let known =
                    state.late.iter_mut().find(|(of, late)| *of == batch && late.source == source);
                match known {
                    Some((_, late)) => {
                        late.offset = late.offset.max(offset);
                        late.due = late.due.min(due);
                    }
                    None => state.late.push((batch, Late { source, offset, due })),
                }
            }
            (_, None) => tracing::debug!("nobody knows where a late hop stands"),
        }
    }

    /// Why the open transaction must be aborted, if it must.
    pub(super) fn refused(&self) -> Option<String> {
        self.lock().refused.take()
    }

    /// What is to be told with a batch.
    pub(super) fn take(&self, batch: BatchId) -> Vec<Late> {
        let mut state = self.lock();
        if state.late.is_empty() {
            return Vec::new();
        }
        state.late.extract_if(.., |(of, _)| *of == batch).map(|(_, late)| late).collect()
    }
}

fn lane_of(partition: Option<i32>) -> Option<Lane> {
    u16::try_from(partition?).ok().map(Lane)
}
