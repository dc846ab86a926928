//! Shows that the checkers can object: a world that does one thing wrong on purpose is found out within so many seeds.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::mutation::Mutation;
use crate::options::Options;
use crate::plan::{Delivery, Kind};
use crate::shrink::Shrinking;
use crate::world::PROMISES;
use crate::{on_all_cores, run};

/// The first seed that mutations are tried with.
const FIRST: u64 = 1_000;

/// What objects to a wrong end of a timer.
const TIMERS: &[&str] =
    &["cancelled", "cancelled in time", "delivered", "linearizable", "timers", "answers"];

/// Where to look for it: `None` is wherever the seeds lead.
type Where = Option<(Kind, Delivery)>;

const ANY: Where = None;
const AWAY: Where = Some((Kind::Away, Delivery::ExactlyOnce));
const CLOCKS: Where = Some((Kind::Clocks, Delivery::ExactlyOnce));
/// Where what is early cannot be aborted.
const CLOCKS_TWICE: Where = Some((Kind::Clocks, Delivery::AtLeastOnce));
const FAULTY: Where = Some((Kind::Faulty, Delivery::ExactlyOnce));
const HEALTHY: Where = Some((Kind::Healthy, Delivery::ExactlyOnce));
const HOSTILE: Where = Some((Kind::Hostile, Delivery::ExactlyOnce));
const RETENTION: Where = Some((Kind::Retention, Delivery::ExactlyOnce));
const STRICT: Where = Some((Kind::Strict, Delivery::ExactlyOnce));
const TASKS: Where = Some((Kind::Tasks, Delivery::ExactlyOnce));
const TWICE: Where = Some((Kind::Faulty, Delivery::AtLeastOnce));

/// What is done wrong, where, which promises object, and within how many seeds.
type Case = (Mutation, Where, &'static [&'static str], u64);

#[rustfmt::skip]
const CASES: &[Case] = &[
    (Mutation::Hasty(1), TWICE, &["never early"], 30),
    (Mutation::TrustsWallClock, CLOCKS_TWICE, &["never early"], 30),
    (Mutation::IgnoresStepBack, CLOCKS_TWICE, &["never early"], 50),
    (Mutation::CommitsEarly, CLOCKS, &["never early"], 50),
    (Mutation::DropsSend, ANY, &["never lost"], 30),
    (Mutation::OffsetsAlone, ANY, &["never lost"], 30),
    (Mutation::CommitsFirst, TWICE, &["never lost"], 30),
    (Mutation::ForgetsAnswer, ANY, &["never lost"], 30),
    (Mutation::NeverResumes, ANY, &["never lost"], 30),
    (Mutation::ComparesWithoutOrder, ANY, &["never lost", "linearizable"], 30),
    (Mutation::KeepsSilent, ANY, &["never lost"], 30),
    (Mutation::CountsHalf, FAULTY, &["never lost"], 30),
    (Mutation::LosesInSilence, RETENTION, &["never silent"], 50),
    (Mutation::BelievesOldPositions, FAULTY, &["never silent"], 600),
    (Mutation::StartsFromEnd, AWAY, &["never lost"], 30),
    (Mutation::SendsTwice, ANY, &["exactly once"], 30),
    (Mutation::RecordsAlone, ANY, &["exactly once"], 30),
    (Mutation::ForgetsWindow, FAULTY, &["exactly once"], 50),
    (Mutation::StartsFromBeginning, AWAY, &["exactly once"], 30),
    (Mutation::StaleCheckpoint, AWAY, &["exactly once"], 30),
    (Mutation::NoCheckpoints, AWAY, &["liveness"], 30),
    (Mutation::GoesOnAfterUnknown, FAULTY, &["never lost", "exactly once"], 150),
    (Mutation::ReusesDirty, FAULTY, &["exactly once", "never lost"], 150),
    (Mutation::ReusesAfterOffsets, FAULTY, &["exactly once", "never lost"], 150),
    (Mutation::TakesUnstable, FAULTY, &["exactly once"], 150),
    (Mutation::OldGenerations, FAULTY, &["never lost", "exactly once"], 150),
    (Mutation::Swaps, HEALTHY, &["in order"], 150),
    (Mutation::ReversesTies, HEALTHY, &["in order"], 30),
    (Mutation::IgnoresStrict, STRICT, &["strictly in order"], 30),
    (Mutation::ForgetsLateHops, STRICT, &["strictly in order"], 1_500),
    (Mutation::KeepsControl, ANY, &["your bytes"], 30),
    (Mutation::NullBecomesEmpty, ANY, &["your bytes"], 30),
    (Mutation::TurnsHeaders, ANY, &["your bytes"], 30),
    (Mutation::WrongPartition, ANY, &["as agreed"], 30),
    (Mutation::CommitsExpired, FAULTY, &["as agreed"], 600),
    (Mutation::BlamesBrokers, ANY, &["as agreed"], 100),
    (Mutation::Oversleeps, HEALTHY, &["on time"], 30),
    (Mutation::StallsForTargets, HOSTILE, &["on time"], 30),
    (Mutation::BelievesCopies, HOSTILE, &["as agreed"], 30),
    (Mutation::Misleads, ANY, &["dead letters"], 30),
    (Mutation::NeverPauses, ANY, &["memory"], 50),
    (Mutation::DropsTimers, ANY, TIMERS, 30),
    (Mutation::DeliversCancelled, ANY, TIMERS, 30),
    (Mutation::ForgetsEnded, FAULTY, &["linearizable"], 30),
    (Mutation::ForgetsVoids, ANY, &["cancelled", "cancelled in time", "linearizable"], 30),
    (Mutation::ForgetsUnmet, ANY, &["cancelled", "cancelled in time", "linearizable"], 30),
    (Mutation::SkipsGate, FAULTY, &["cancelled in time", "linearizable"], 400),
    (Mutation::SkipsSettle, FAULTY, &["cancelled in time", "linearizable"], 400),
    (Mutation::PassesUnread, ANY, &["cancelled in time", "linearizable"], 100),
    (Mutation::AnswersEarly, FAULTY, &["cancelled", "delivered", "answers", "linearizable"], 400),
    (Mutation::AnswersOfAnother, FAULTY, &["cancelled", "delivered"], 100),
    (Mutation::SaysSuperseded, FAULTY, &["answers"], 100),
    (Mutation::SaysDelivered, FAULTY, &["delivered"], 30),
    (Mutation::AnswersTwice, FAULTY, &["answers"], 30),
    (Mutation::DeliversDuplicates, ANY, &["linearizable"], 30),
    (Mutation::FinishesDuplicates, HEALTHY, TIMERS, 400),
    (Mutation::FollowsAny, ANY, TIMERS, 30),
    (Mutation::FreesEarly, ANY, TIMERS, 30),
    (Mutation::ForgetsLive, ANY, TIMERS, 30),
    (Mutation::DropsLastPiece, ANY, TIMERS, 30),
    (Mutation::ReadsUncommitted, ANY, &["no phantom"], 30),
    (Mutation::IgnoresTurns, TASKS, &["one end", "none later", "attempts"], 100),
    (Mutation::CallsDoubtful, TASKS, &["one call a turn"], 100),
    (Mutation::CallsBeforeMark, TASKS, &["one call a turn"], 100),
    (Mutation::CallsUnfresh, TASKS, &["one call a turn", "none later"], 300),
    (Mutation::RevivesCopies, TASKS, &["one call a turn", "one end", "none later"], 30),
    (Mutation::DropsReread, TASKS, &["liveness", "never lost"], 30),
    (Mutation::DecidesTwice, TASKS, &["attempts", "liveness"], 100),
    (Mutation::SaysCancelled, TASKS, &["cancelled means never"], 100),
    (Mutation::CountsHandOvers, TASKS, &["interruptions"], 100),
    (Mutation::ForgetsCredits, TASKS, &["credits"], 100),
    (Mutation::WaitsForResults, TASKS, &["on time"], 100),
    (Mutation::ForgetsEnded, TASKS, &["one task"], 100),
    (Mutation::OffsetsWithoutResults, TASKS, &["liveness"], 30),
    (Mutation::FreesEarly, TASKS, &["one end"], 30),
    (Mutation::FreesEarly, TASKS, &["none later"], 30),
    (Mutation::MissesPauses, TASKS, &["paused"], 100),
    (Mutation::MissesServicePauses, TASKS, &["paused"], 100),
    (Mutation::MissesTopicPauses, TASKS, &["paused topics"], 100),
    (Mutation::MissesDeletions, TASKS, &["deleted"], 100),
    (Mutation::BlamesCalls, TASKS, &["deleted ends"], 300),
    (Mutation::SaysRetried, TASKS, &["retries"], 100),
    (Mutation::RevivesCancelled, TASKS, &["retries"], 300),
    (Mutation::CallsExpired, TASKS, &["expired"], 200),
    (Mutation::ForgetsExpiry, TASKS, &["expired"], 100),
    (Mutation::CallsChanged, TASKS, &["your bytes"], 300),
    (Mutation::CountsNoBytes, TASKS, &["credits"], 100),
    (Mutation::IgnoresRates, TASKS, &["rates"], 100),
    (Mutation::IgnoresTopicRates, TASKS, &["rates of topics"], 100),
    (Mutation::BurnsPutOffs, TASKS, &["attempts"], 100),
    (Mutation::OpensMore, TASKS, &["open calls"], 100),
    (Mutation::ForgetsHeartbeats, TASKS, &["feedback"], 100),
    (Mutation::CutsHeartbeats, TASKS, &["one executor"], 300),
    (Mutation::ForgetsSuccesses, TASKS, &["feedback"], 100),
    (Mutation::SkipsSettle, TASKS, &["feedback"], 400),
    (Mutation::FinishesAccepted, TASKS, &["feedback"], 100),
    (Mutation::ForgetsFollowUps, TASKS, &["follow-ups"], 30),
    (Mutation::ForgetsCursors, TASKS, &["cursors"], 300),
    (Mutation::ForgetsOccurrences, TASKS, &["no time left out"], 100),
    (Mutation::ForgetsQueued, TASKS, &["no time left out"], 100),
    (Mutation::SubmitsTwice, TASKS, &["one occurrence"], 100),
    (Mutation::LosesSchedules, TASKS, &["liveness", "never lost"], 100),
    (Mutation::ForgetsTimes, TASKS, &["no overlap"], 300),
    (Mutation::MissesChanges, TASKS, &["changes of schedules"], 100),
    (Mutation::CountsShardsTwice, TASKS, &["runs agree"], 100),
    (Mutation::ForgetsEndsOfShards, TASKS, &["runs agree"], 300),
    (Mutation::RenamesShards, TASKS, &["shards"], 100),
    (Mutation::ForgetsToCancelShards, TASKS, &["cancelled shards"], 100),
    (Mutation::ForgetsToCancelShards, TASKS, &["no shard later"], 600),
    (Mutation::TakesOldNews, TASKS, &["runs agree"], 600),
    (Mutation::TakesCreatedForEnded, TASKS, &["no overlap"], 300),
    (Mutation::MissesEndsOfRuns, TASKS, &["liveness"], 300),
    (Mutation::MissesEndsOfRuns, TASKS, &["on time"], 300),
    (Mutation::LosesTimesAtChanges, TASKS, &["no time left out"], 300),
    (Mutation::IgnoresStops, TASKS, &["runs end in time"], 300),
    (Mutation::IgnoresDeadlines, TASKS, &["runs end in time"], 300),
];

fn options(seed: u64, mutation: Mutation, place: Where) -> Options {
    let (kind, delivery) = place.unzip();
    Options { kind, delivery, mutation: Some(mutation), ..Options::seed(seed) }
}

/// The promises that objected, by the first seed with one that should; or what others did.
fn found(
    (mutation, place, promises, seeds): Case,
) -> Result<(u64, Vec<&'static str>), Vec<&'static str>> {
    let mut others = Vec::new();
    for seed in FIRST..FIRST + seeds {
        let world = run(&options(seed, mutation, place), 0);
        let found = world.breaches.iter().map(|breach| breach.promise);
        let right: Vec<&str> = found.clone().filter(|of| promises.contains(of)).collect();
        if !right.is_empty() {
            return Ok((seed, right));
        }
        others.extend(found);
    }
    others.sort_unstable();
    others.dedup();
    Err(others)
}

#[test]
fn every_mutation_is_seen_and_every_checker_bites() {
    let (bitten, unseen) = (Mutex::new(BTreeSet::<&str>::new()), Mutex::new(Vec::new()));
    on_all_cores(CASES, |case| match found(*case) {
        Ok((seed, promises)) => {
            eprintln!("{:?}: {} after {} seeds", case.0, promises[0], seed - FIRST + 1);
            bitten.lock().extend(promises);
        }
        Err(others) => unseen.lock().push((case.0, others)),
    });
    let (bitten, unseen) = (bitten.into_inner(), unseen.into_inner());
    assert!(unseen.is_empty(), "unseen, and what else objected: {unseen:#?}");
    let never: Vec<_> = PROMISES.iter().filter(|promise| !bitten.contains(*promise)).collect();
    assert!(never.is_empty(), "nothing in the list makes these object: {never:?}");
}

#[test]
fn every_mutation_is_in_the_list() {
    let listed: Vec<Mutation> = CASES.iter().map(|case| case.0).collect();
    let missing: Vec<_> = Mutation::all().into_iter().filter(|of| !listed.contains(of)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_failure_shrinks_to_a_few_submissions_that_still_fail() {
    let cases: [Case; 3] = [
        (Mutation::ReversesTies, HEALTHY, &["in order"], 30),
        (Mutation::ForgetsWindow, FAULTY, &["exactly once"], 50),
        (Mutation::DeliversCancelled, ANY, &["cancelled", "linearizable"], 30),
    ];
    for case in cases {
        let (seed, promises) = found(case).unwrap_or_else(|others| panic!("{case:?}: {others:?}"));
        let least = Shrinking::new(options(seed, case.0, case.1), promises[0]).run();
        let command: crate::options::Command = least.to_string().parse().unwrap_or_default();
        let again = run(&command.one.unwrap_or_default(), 0);
        let still = again.breaches.iter().any(|breach| breach.promise == promises[0]);
        assert!(still, "{least} does not fail any more");
        let left = least.submissions.as_ref().map_or(usize::MAX, |of| of.len());
        eprintln!("{least}");
        assert!(left <= 8, "{left} submissions are left of {:?}", case.0);
    }
}
