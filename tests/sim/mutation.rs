//! Faults of waterclock itself, put in on purpose: what a checker must not let pass.

/// One wrong doing of the shell (or, seen from outside, of the engine behind it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The `now` is ahead of the slowest broker by this many milliseconds.
    Hasty(u64),
    /// A record of a batch is not produced.
    DropsSend,
    /// A record of a batch is produced twice.
    SendsTwice,
    /// Two neighbours of a batch change places.
    Swaps,
    /// A control header stays.
    KeepsControl,
    /// A null value becomes an empty one.
    NullBecomesEmpty,
    /// The order of the headers is turned round.
    TurnsHeaders,
    /// The record goes to the partition beside its own.
    WrongPartition,
    /// Offsets are committed, their records are not produced.
    OffsetsAlone,
    /// Records are produced and acknowledged, their offsets are never committed.
    RecordsAlone,
    /// After a commit of unknown outcome the same producer goes on, as if it had succeeded.
    GoesOnAfterUnknown,
    /// Committed offsets are fetched without waiting for open transactions.
    TakesUnstable,
    /// Members of an old generation may still commit.
    OldGenerations,
    /// `Pause` is not obeyed.
    NeverPauses,
    /// `Resume` is not obeyed.
    NeverResumes,
    /// It wakes up two seconds after it was asked to.
    Oversleeps,
    /// A dead letter says another offset than it stood at.
    Misleads,
    /// The engine is not told that a batch is done.
    ForgetsAnswer,
    /// After a timeout or an aborted commit a record is blamed.
    BlamesBrokers,
    /// The engine is not told that a record was refused.
    KeepsSilent,
    /// Records of aborted transactions are delivered: what users took back.
    ReadsUncommitted,
    /// A query about a timer that has ended gets no answer about its end.
    ForgetsEnded,
    /// Which versions are void is not told when lanes are taken over.
    ForgetsVoids,
    /// Pending timers are not reported when lanes are taken over.
    ForgetsLive,
    /// The last piece of the timers at a take-over is dropped.
    DropsLastPiece,
    /// A client learns what became of its command before that is committed.
    AnswersEarly,
    /// A command that found nothing gets the last outcome of the timer as its answer, of whatever version.
    AnswersOfAnother,
    /// Whatever is not known of a version is called superseded.
    SaysSuperseded,
    /// A partition is said to be read to an end that reading has not reached.
    PassesUnread,
    /// No timer waits until its intake is read up to `settle` before it is due.
    SkipsSettle,
    /// The second create of a pending id is delivered, too.
    DeliversDuplicates,
    /// A pending timer is written down as ended.
    FreesEarly,
    /// A void version is forgotten before its record was met.
    ForgetsUnmet,
    /// Records with an id do not wait until the intakes are read.
    SkipsGate,
    /// A cancel counts for what was submitted after it, too.
    ComparesWithoutOrder,
    /// Timer changes are not written.
    DropsTimers,
    /// A cancelled record is delivered nevertheless.
    DeliversCancelled,
    /// Records that are due at the same time leave in the opposite order.
    ReversesTies,
    /// Offsets are committed before what they stand for is produced.
    CommitsFirst,
    /// The done offsets above the watermark are forgotten when lanes are taken over.
    ForgetsWindow,
    /// After a commit that was slow the same producer goes on.
    ReusesDirty,
    /// After a transaction whose offsets were asked for again the same producer goes on.
    ReusesAfterOffsets,
    /// Only half of the rest of a lane is read.
    CountsHalf,
    /// What retention has deleted is passed over without a word.
    LosesInSilence,
    /// What the committed offsets were at first is believed, whatever was done and deleted since.
    BelievesOldPositions,
    /// Where offsets have expired, reading begins where the logs begin.
    StartsFromBeginning,
    /// Where offsets have expired, reading begins where the logs end.
    StartsFromEnd,
    /// Half of the checkpoints are not written.
    StaleCheckpoint,
    /// None is.
    NoCheckpoints,
    /// A client is told that what was cancelled was delivered.
    SaysDelivered,
    /// A client is told two things of one command.
    AnswersTwice,
    /// The engine is not told of a hop that stands too late for its tier.
    ForgetsLateHops,
    /// Strict order is asked for, and not kept.
    IgnoresStrict,
    /// The `now` is that of the process's own machine.
    TrustsWallClock,
    /// A node whose clock stepped back is believed to be where it was.
    IgnoresStepBack,
    /// What came to stand before it is due is committed.
    CommitsEarly,
    /// What came to stand after it had expired is committed.
    CommitsExpired,
    /// Nothing is read while a target is asked for.
    StallsForTargets,
    /// A state that was copied from another record is taken for one of its own.
    BelievesCopies,
    /// A create that finds a version pending is finished at once, and not kept lest a cancel comes late.
    FinishesDuplicates,
    /// What was kept as a duplicate is pending when it comes up, whether a cancel stands before it or not.
    FollowsAny,
    /// What is said of another turn of a task counts for the live one.
    IgnoresTurns,
    /// A worker calls what its owner before may have begun to call.
    CallsDoubtful,
    /// A worker begins calls before a position that says so is committed.
    CallsBeforeMark,
    /// A worker begins calls though it has not heard from its group for long.
    CallsUnfresh,
    /// A copy of a turn above 0 is a new task where none is pending.
    RevivesCopies,
    /// A result that is read again is dropped, though it is the only copy of its task.
    DropsReread,
    /// A result that is read again is decided again.
    DecidesTwice,
    /// A worker says of a call that has begun that it was cancelled before.
    SaysCancelled,
    /// A call that was cut by a hand-over counts as one in doubt.
    CountsHandOvers,
    /// At a take-over no task has credits.
    ForgetsCredits,
    /// Timers wait until the results of workers are read.
    WaitsForResults,
    /// A worker commits its offsets, and some of the results are not written.
    OffsetsWithoutResults,
    /// Nobody hears that a project is paused.
    MissesPauses,
    /// Nobody hears that a service is paused.
    MissesServicePauses,
    /// Nobody hears that a topic is paused.
    MissesTopicPauses,
    /// Nobody hears that a project or a service was deleted.
    MissesDeletions,
    /// Of a task whose project was deleted it is said that its calls have failed.
    BlamesCalls,
    /// A client is told that its retry was taken, which had come too late.
    SaysRetried,
    /// A retry by hand brings back what was cancelled.
    RevivesCancelled,
    /// A worker calls what has expired while it waited there.
    CallsExpired,
    /// Lanes do not read when a task expires.
    ForgetsExpiry,
    /// A worker sends another body than was submitted.
    CallsChanged,
    /// A task that a worker holds has one credit, however large it is.
    CountsNoBytes,
    /// Nobody hears of a rate.
    IgnoresRates,
    /// Nobody hears of the rate of a topic.
    IgnoresTopicRates,
    /// A turn that was put off counts as an attempt that failed.
    BurnsPutOffs,
    /// A worker believes that more calls may be open than may be.
    OpensMore,
    /// A heartbeat of an executor counts for no time.
    ForgetsHeartbeats,
    /// A heartbeat of an executor counts for a third of its time.
    CutsHeartbeats,
    /// Lanes do not read what executors report.
    ForgetsSuccesses,
    /// A worker takes a task for finished that its executor has only accepted.
    FinishesAccepted,
    /// Follow-ups are not written.
    ForgetsFollowUps,
    /// Who takes a lane over knows nothing of how far executors came.
    ForgetsCursors,
    /// The tasks of schedules are not written.
    ForgetsOccurrences,
    /// Those of them that have another one before them are not.
    ForgetsQueued,
    /// The task of a schedule is written twice.
    SubmitsTwice,
    /// The copy of a schedule is not written, which is due at its next time.
    LosesSchedules,
    /// Who takes a lane over does not know which times of a schedule had a task last.
    ForgetsTimes,
    /// Nobody hears that a schedule was changed, paused or resumed.
    MissesChanges,
    /// The end of a shard counts for the one beside it, too.
    CountsShardsTwice,
    /// Who takes a lane over knows nothing of shards that have ended.
    ForgetsEndsOfShards,
    /// A shard is created once more, with another id.
    RenamesShards,
    /// A run ends, and its shards go on.
    ForgetsToCancelShards,
    /// What is said of a shard counts for whatever version of its run is pending.
    TakesOldNews,
    /// What waits for a run begins once all shards of that are created.
    TakesCreatedForEnded,
    /// What waits for a run never hears of its end.
    MissesEndsOfRuns,
    /// A change of a schedule holds from when it is read on: what has come by then, and was not acted on, is left out.
    LosesTimesAtChanges,
    /// A run goes on though a shard has failed that is to end it.
    IgnoresStops,
    /// A run goes on though its deadline is over.
    IgnoresDeadlines,
}

impl Mutation {
    /// Each of them.
    pub fn all() -> Vec<Self> {
        vec![
            Self::Hasty(1),
            Self::DropsSend,
            Self::SendsTwice,
            Self::Swaps,
            Self::KeepsControl,
            Self::NullBecomesEmpty,
            Self::TurnsHeaders,
            Self::WrongPartition,
            Self::OffsetsAlone,
            Self::RecordsAlone,
            Self::GoesOnAfterUnknown,
            Self::TakesUnstable,
            Self::OldGenerations,
            Self::NeverPauses,
            Self::NeverResumes,
            Self::Oversleeps,
            Self::Misleads,
            Self::ForgetsAnswer,
            Self::BlamesBrokers,
            Self::KeepsSilent,
            Self::ReadsUncommitted,
            Self::ForgetsEnded,
            Self::ForgetsVoids,
            Self::ForgetsLive,
            Self::DropsLastPiece,
            Self::AnswersEarly,
            Self::AnswersOfAnother,
            Self::SaysSuperseded,
            Self::PassesUnread,
            Self::SkipsSettle,
            Self::DeliversDuplicates,
            Self::FreesEarly,
            Self::ForgetsUnmet,
            Self::SkipsGate,
            Self::ComparesWithoutOrder,
            Self::DropsTimers,
            Self::DeliversCancelled,
            Self::ReversesTies,
            Self::CommitsFirst,
            Self::ForgetsWindow,
            Self::ReusesDirty,
            Self::ReusesAfterOffsets,
            Self::CountsHalf,
            Self::LosesInSilence,
            Self::BelievesOldPositions,
            Self::StartsFromBeginning,
            Self::StartsFromEnd,
            Self::StaleCheckpoint,
            Self::NoCheckpoints,
            Self::SaysDelivered,
            Self::AnswersTwice,
            Self::ForgetsLateHops,
            Self::IgnoresStrict,
            Self::TrustsWallClock,
            Self::IgnoresStepBack,
            Self::CommitsEarly,
            Self::CommitsExpired,
            Self::StallsForTargets,
            Self::BelievesCopies,
            Self::FinishesDuplicates,
            Self::FollowsAny,
            Self::IgnoresTurns,
            Self::CallsDoubtful,
            Self::CallsBeforeMark,
            Self::CallsUnfresh,
            Self::RevivesCopies,
            Self::DropsReread,
            Self::DecidesTwice,
            Self::SaysCancelled,
            Self::CountsHandOvers,
            Self::ForgetsCredits,
            Self::WaitsForResults,
            Self::OffsetsWithoutResults,
            Self::MissesPauses,
            Self::MissesServicePauses,
            Self::MissesTopicPauses,
            Self::MissesDeletions,
            Self::BlamesCalls,
            Self::SaysRetried,
            Self::RevivesCancelled,
            Self::CallsExpired,
            Self::ForgetsExpiry,
            Self::CallsChanged,
            Self::CountsNoBytes,
            Self::IgnoresRates,
            Self::IgnoresTopicRates,
            Self::BurnsPutOffs,
            Self::OpensMore,
            Self::ForgetsHeartbeats,
            Self::CutsHeartbeats,
            Self::ForgetsSuccesses,
            Self::FinishesAccepted,
            Self::ForgetsFollowUps,
            Self::ForgetsCursors,
            Self::ForgetsOccurrences,
            Self::ForgetsQueued,
            Self::SubmitsTwice,
            Self::LosesSchedules,
            Self::ForgetsTimes,
            Self::MissesChanges,
            Self::CountsShardsTwice,
            Self::ForgetsEndsOfShards,
            Self::RenamesShards,
            Self::ForgetsToCancelShards,
            Self::TakesOldNews,
            Self::TakesCreatedForEnded,
            Self::MissesEndsOfRuns,
            Self::LosesTimesAtChanges,
            Self::IgnoresStops,
            Self::IgnoresDeadlines,
        ]
    }
}
