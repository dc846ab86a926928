//! What a session leaves to the one that decides about its records.

use std::sync::Arc;
use std::time::Duration;

use super::session::Membership;
use crate::member::commit::{BatchOwner, Report};
use crate::member::fence::Members;
use crate::member::rebalance::Taken;
use waterclock_engine::member::{LateHop, Rules};
use waterclock_engine::{
    Answer, BatchId, Lane, Millis, Offset, Record, Refused, Source, UnixMillis,
};

/// A record as a session has polled it.
pub(super) struct Polled {
    /// Where it stands.
    pub(super) source: Source,
    /// Its position there.
    pub(super) offset: Offset,
    /// When the broker appended it.
    pub(super) appended: UnixMillis,
    /// Its bytes.
    pub(super) record: Record,
}

/// A batch that is committed.
pub(super) struct Committed {
    /// Which one.
    pub(super) id: BatchId,
    /// Its answers, which may be given now.
    pub(super) answers: Vec<Answer>,
    /// Its hops that were appended too late.
    pub(super) late: Vec<LateHop>,
}

/// The part that decides about the records of a group member: lanes, or a worker. The session polls, commits, joins and
/// leaves. It tells the role one fact at a time. The role acts through the [`Membership`].
pub(super) trait Role: Sized {
    /// By what rules positions of its partitions are read.
    type Rules: Rules + 'static;

    /// Which dead members of the group it waits for.
    const MEMBERS: Members;

    /// Its partitions are let go after the rebalance callback has returned, once it [has let go](Self::has_let_go) of them. Else
    /// they are let go inside of the callback, which waits for the batch that is on its way.
    const LETS_GO_LATER: bool;
    /// A failed batch ends no assignment: the role is told of it once there is a clean producer, and sends again.
    const GOES_ON: bool;
    /// It [waits](Self::wait) by itself until there is something to poll, too.
    const WAITS: bool;

    /// What the committer must know of its batches.
    fn batches(&self) -> Arc<dyn BatchOwner>;

    /// Partitions were taken over; `assignment`: the number of this, among those of all threads. Nothing of earlier ones is
    /// held: [`revoked`](Self::revoked) came before.
    fn begin(&mut self, member: &mut Membership<'_, Self::Rules>, assignment: u64, taken: Taken);

    /// Everything that is held of the partitions is dropped; `assignment`: the one that ends, if there was one.
    fn revoked(&mut self, member: &mut Membership<'_, Self::Rules>, assignment: Option<u64>);

    /// The next record of a partition, in offset order.
    fn read(&mut self, member: &mut Membership<'_, Self::Rules>, polled: Polled);

    /// A batch is committed.
    fn committed(&mut self, member: &mut Membership<'_, Self::Rules>, batch: Committed);

    /// The partitions are to be let go within that time: the group wants them back, or the process stops. Comes where it
    /// [lets go later](Self::LETS_GO_LATER).
    fn ending(&mut self, _member: &mut Membership<'_, Self::Rules>, _within: Millis) {}

    /// Nothing of the partitions is held any more, and all is committed: they may be let go.
    fn has_let_go(&self) -> bool {
        true
    }

    /// The group has heard this member after that time, in this assignment.
    fn heard(&mut self, _member: &mut Membership<'_, Self::Rules>, _since: Millis) {}

    /// A batch failed. The topics of records that were not taken in time, and what is there nevertheless, by batch and
    /// place in it. [`revoked`](Self::revoked) follows, unless the role [goes on](Self::GOES_ON).
    fn failed(
        &mut self,
        member: &mut Membership<'_, Self::Rules>,
        doubted: Vec<Arc<str>>,
        acknowledged: Vec<(BatchId, usize)>,
    );

    /// Kafka refused this of the batch that [`failed`](Self::failed), or fails next where the role [goes on](Self::GOES_ON).
    fn refused(&mut self, member: &mut Membership<'_, Self::Rules>, refused: Refused);

    /// How long a poll may take, as far as the role knows.
    fn patience(&self, member: &Membership<'_, Self::Rules>) -> Duration;

    /// Waits for an answer from another thread, and takes it; or for one of the [reports](Membership::reports), and returns it.
    fn wait(&mut self, member: &mut Membership<'_, Self::Rules>, most: Duration) -> Option<Report>;

    /// The end of a turn: the records at hand were read. It takes what other threads have answered meanwhile.
    fn turn(&mut self, member: &mut Membership<'_, Self::Rules>);

    /// Comes once a second.
    fn tell_figures(&mut self, member: &mut Membership<'_, Self::Rules>);

    /// The process is to stop: begin nothing new.
    fn drain(&mut self, member: &mut Membership<'_, Self::Rules>);

    /// Nothing is on its way any more.
    fn is_drained(&self) -> bool;

    /// The partitions that it works on, by their number, ascending.
    fn lanes(&self) -> Vec<Lane>;
}
