//! Looks at when hops were appended: whether they come up from their tier in time (docs/adr/0025, docs/adr/0013).
//!
//! # Invariants
//! 1. A hop that must not be committed is known before the commit of its transaction begins.
//! 2. The report of a batch goes with the batch: of each partition the last offset and the least due time.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

use waterclock_engine::{
    Batch, BatchId, Destination, Lane, Offset, Produce, Setup, Source, Tardy, TopicId, UnixMillis,
};

/// Hops of one batch that came to stand late in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) source: Source,
    /// The last of them.
    pub(crate) offset: Offset,
    /// When the first of them is due.
    pub(crate) due: UnixMillis,
}

/// Hops on their way, and what their delivery reports said.
#[derive(Debug)]
pub(super) struct LateHops {
    setup: Arc<Setup>,
    /// A transaction can be aborted.
    refuses: bool,
    state: Mutex<State>,
}

/// By place in its batch: where a hop goes, and when it is due.
type ByPlace = Vec<Option<(Source, UnixMillis)>>;

#[derive(Debug, Default)]
struct State {
    /// Of each batch on its way: its hops.
    open: VecDeque<(BatchId, ByPlace)>,
    late: Vec<(BatchId, Late)>,
    refused: Option<String>,
}

impl LateHops {
    pub(super) fn new(setup: Arc<Setup>, refuses: bool) -> Self {
        Self { setup, refuses, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A batch is about to be produced.
    pub(super) fn begin(&self, batch: &Batch) {
        let hop = |send: &Produce| match &send.to {
            Destination::Lane(topic) if self.setup.topics.tier_of(*topic).is_some() => {
                Some((Source { topic: *topic, lane: lane_of(send.partition)? }, send.due))
            }
            _ => None,
        };
        let hops = batch.sends.iter().map(hop).collect();
        self.lock().open.push_back((batch.id, hops));
    }

    /// A record was appended then, and stands there if that is known; `None` for both where it was sent twice.
    pub(super) fn appended(
        &self,
        (batch, at): (BatchId, usize),
        offset: Option<Offset>,
        appended: Option<UnixMillis>,
    ) {
        let mut state = self.lock();
        let known = state.open.iter_mut().find(|(of, _)| *of == batch);
        let hop = known.and_then(|(_, hops)| hops.get_mut(at)?.take());
        let Some((source, due)) = hop else { return };
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
                        "a hop to {name} came to stand too late for its tier, {late} ms overdue"
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

    /// What to report with a batch.
    pub(super) fn take(&self, batch: BatchId) -> Vec<Late> {
        let mut state = self.lock();
        state.open.retain(|(of, _)| *of != batch);
        state.late.extract_if(.., |(of, _)| *of == batch).map(|(_, late)| late).collect()
    }
}

fn lane_of(partition: Option<i32>) -> Option<Lane> {
    u16::try_from(partition?).ok().map(Lane)
}
