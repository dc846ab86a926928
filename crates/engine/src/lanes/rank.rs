//! The order of records in a lane: by due time, and at the same due time by submission.

use std::collections::BTreeMap;

use super::super::state::SubmissionOrder;
use super::super::verdict::PendingRecord;
use super::{Offset, Source, UnixMillis};

/// A rank in the order of a lane: when a record is due, and which of those was submitted first.
pub(super) type Rank = (UnixMillis, SubmissionOrder);

/// A rank, and where the record stands: no two records have the same.
pub(super) type RankKey = (UnixMillis, SubmissionOrder, Source, Offset);

/// Records that wait for something, in their order.
pub(super) type Waiting = BTreeMap<RankKey, Box<PendingRecord>>;

/// Where a pending record waits.
pub(super) fn rank_key(entry: &PendingRecord) -> RankKey {
    (entry.due, entry.order, entry.source, entry.offset)
}
