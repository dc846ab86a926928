//! Positions that are gone: offsets of a group that was away for too long expire.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::Value;

use waterclock::engine::Millis;
use waterclock::kafka::topics::{apply, delete};

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Process, Producer, eventually, eventually_within,
    in_both_modes, out, patience, whole,
};

/// Deletes the group, as the broker does after `offsets.retention.minutes`.
fn forget(fixture: &Fixture) {
    let admin: AdminClient<DefaultClientContext> =
        fixture.client().create().expect("an admin client");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
    eventually("the group is deleted", || {
        let deleted = runtime.block_on(admin.delete_groups(&[fixture.namespace()], &options));
        match deleted.expect("an answer").pop() {
            Some(Ok(_)) => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    });
}

/// Takes every checkpoint out of meta: as if it had been created again.
fn forget_checkpoints(fixture: &Fixture) {
    let producer: rdkafka::producer::BaseProducer = fixture.client().create().expect("a producer");
    let meta = fixture.names.meta();
    for topic in fixture.lane_topics() {
        for lane in 0..i32::from(fixture.lanes()) {
            let key = format!("position/{topic}/{lane}");
            let record: BaseRecord<'_, str, str> = BaseRecord::to(&meta).partition(1).key(&key);
            producer.send(record).expect("enqueued");
        }
    }
    producer.flush(PATIENCE).expect("flushed");
}

#[test]
fn a_group_that_is_gone_goes_on_from_its_checkpoints() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let mut log = Log::open(&fixture, &target);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer = fixture.producer();
    for n in 0..4 {
        let record = out(n.to_string()).key("k").to(&target).delay(0);
        producer.send(&fixture.names.intake(), &record);
    }
    log.count(4);
    process.stop_well();

    forget(&fixture);
    let mut again = fixture.start(Mode::ExactlyOnce);
    producer.send_one(&fixture.names.intake(), &out("4").key("k").to(&target).delay(0));
    log.count(5);
    again.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 5, "nothing was delivered again");
}

#[test]
fn a_lane_whose_position_is_known_to_nobody_is_not_guessed() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let intake = fixture.names.intake();
    let mut log = Log::open(&fixture, &target);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer = fixture.producer();
    let mut last = None;
    for n in 0..4 {
        last = Some(producer.send_one(&intake, &out(n.to_string()).key("k").to(&target).delay(0)));
    }
    let last = last.expect("four were sent");
    log.count(4);
    process.stop_well();

    fixture.delete_records(&intake, last.partition, Offset::Offset(last.offset));
    forget(&fixture);
    forget_checkpoints(&fixture);
    let mut again = fixture.launch(Mode::ExactlyOnce).spawn();
    let code = again.wait(PATIENCE);
    assert_eq!(code, Some(78), "{}", again.log());
    let said = format!("has no committed offset for {intake}/{}", last.partition);
    assert!(again.log().contains(&said), "{}", again.log());
    // Of this partition and no other: records behind a reset are delivered again.
    let reset = format!(
        "--bootstrap-server {} --group {} --topic {intake}:{} --reset-offsets --to-earliest --execute",
        fixture.connection.brokers,
        fixture.namespace(),
        last.partition
    );
    assert!(again.log().contains(&reset), "{}", again.log());
    assert_eq!(whole(&fixture, &target).len(), 4, "nothing was delivered again");
}

/// `position/<topic>/<partition>` of one partition only.
fn forget_checkpoint(fixture: &Fixture, topic: &str, partition: i32) {
    let producer: rdkafka::producer::BaseProducer = fixture.client().create().expect("a producer");
    let (meta, key) = (fixture.names.meta(), format!("position/{topic}/{partition}"));
    let record: BaseRecord<'_, str, str> = BaseRecord::to(&meta).partition(1).key(&key);
    producer.send(record).expect("enqueued");
    producer.flush(PATIENCE).expect("flushed");
}

#[test]
fn what_was_deleted_while_nobody_knew_a_position_is_said_and_a_new_topic_says_nothing() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let intake = fixture.names.intake();
    let send =
        |id: &str| fixture.producer().send_one(&intake, &out(id).key("k").to(&target).delay(0));
    let mut log = Log::open(&fixture, &target);
    // Before the first start: they may have been anything.
    let before = [send("0"), send("1")][1];
    fixture.delete_records(&intake, before.partition, Offset::Offset(before.offset + 1));
    let mut process = fixture.start(Mode::ExactlyOnce);
    send("2");
    log.count(1);
    let said = "were deleted before it was read for the first time";
    assert_eq!(process.log().matches(said).count(), 1, "of one partition: {}", process.log());
    assert_eq!((process.metric(LOST), process.log().matches("is lost").count()), (0.0, 0));
    process.stop_well();

    // While the group was away, with a checkpoint: of the other lane, whose position never changed.
    let other = 1 - before.partition;
    let producer = fixture.producer();
    let (mut elsewhere, mut delivered) = (None, 1);
    for n in 0..64 {
        let ack = producer.send_one(&intake, &out("never").key(n.to_string()).to(&target).delay(0));
        if ack.partition == other {
            elsewhere = Some(ack);
            break;
        }
        delivered += 1;
    }
    let elsewhere = elsewhere.expect("a key of the other lane");
    fixture.delete_records(&intake, other, Offset::Offset(elsewhere.offset + 1));
    forget(&fixture);
    let mut process = fixture.start(Mode::ExactlyOnce);
    process.wait_until_logged(PATIENCE, "the position is outside of the log");
    assert_eq!(process.metric(LOST), (elsewhere.offset + 1) as f64);
    log.count(delivered);
    process.stop_well();

    // The same without: a lane that was read before has lost its position.
    let last = send("never");
    fixture.delete_records(&intake, last.partition, Offset::Offset(last.offset + 1));
    forget(&fixture);
    forget_checkpoint(&fixture, &intake, last.partition);
    let mut process = fixture.start(Mode::ExactlyOnce);
    process.wait_until_logged(PATIENCE, "what of them was done is not known");
    assert!(process.metric(LOST) >= (last.offset + 1) as f64, "{}", process.metric(LOST));
    send("3");
    log.count(delivered + 1);
    process.stop_well();
}

fn what_is_done_is_known_after_a_clean_stop_and_no_offsets(mode: Mode) {
    let fixture = Fixture::new("positions");
    let target = fixture.target("out", 1);
    let mut log = Log::open(&fixture, &target);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    for n in 0..100 {
        let record = out(n.to_string()).key(n.to_string()).to(&target).delay(n * 50);
        producer.send(&fixture.names.intake(), &record);
    }
    log.count(100);
    process.stop_well();
    forget(&fixture);
    let mut again = fixture.start(mode);
    fixture.wait_until_nothing_is_pending();
    again.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 100, "{mode:?}: a clean stop repeats nothing");
}

in_both_modes!(what_is_done_is_known_after_a_clean_stop_and_no_offsets);

/// Deletes all that stands in a topic; how many offsets that are.
fn trim_all(fixture: &Fixture, topic: &str) -> i64 {
    (0..i32::from(fixture.lanes()))
        .map(|lane| {
            let (low, high) = bounds(fixture, topic, lane);
            if high > low {
                fixture.delete_records(topic, lane, Offset::Offset(high));
            }
            high - low
        })
        .sum()
}

/// Where a partition begins and ends.
fn bounds(fixture: &Fixture, topic: &str, partition: i32) -> (i64, i64) {
    let consumer: BaseConsumer = fixture.client().create().expect("a consumer");
    consumer.fetch_watermarks(topic, partition, Duration::from_secs(20)).expect("ends")
}

/// Samples whether the process is ready: the only member is never ready without lanes. The result is its answer at the
/// time when it was not.
fn is_no_spare(process: &Process, most: Duration) -> Vec<String> {
    let until = Instant::now() + most;
    let mut said = Vec::new();
    while Instant::now() < until {
        match process.get("/health/ready") {
            Ok((200, body)) => assert!(body.contains("owns"), "it is ready without lanes: {body}"),
            Ok((_, body)) => said.push(body),
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    said.dedup();
    said
}

const LOST: &str = "waterclock_records_lost_total";

/// With many tiers, of one of which all was deleted while nobody ran.
fn a_position_outside_of_its_log_costs_one_question_once(mode: Mode) {
    let holds = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800];
    let fixture = Fixture::with("positions", |request| {
        request.lanes = Some(6);
        request.holds = Some(holds.map(|seconds| Millis(seconds * 1_000)).to_vec());
    });
    let target = fixture.target("out", 1);
    let tier = fixture.names.tier(Millis(3_600_000));
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    for n in 0..30 {
        let record = out(n.to_string()).key(n.to_string()).to(&target).delay("1h");
        producer.send(&fixture.names.intake(), &record);
    }
    let mut there = Log::open(&fixture, &tier);
    there.count(30);
    process.stop_well();
    let deleted = trim_all(&fixture, &tier);

    let began = Instant::now();
    let mut process = fixture.launch(mode).spawn();
    process.wait_until_ready();
    producer.send_one(&fixture.names.intake(), &out("kept").key("k").to(&target).delay(0));
    Log::open(&fixture, &target).count(1);
    let took = began.elapsed();
    // Asked one by one, half a second each, 108 partitions would take 54 s.
    let most = (Duration::from_secs(20) * patience()).min(Duration::from_secs(50));
    assert!(took < most, "one question for all: {took:?}");
    is_no_spare(&process, Duration::from_secs(3));
    assert_eq!(process.log().matches("the position is outside of the log").count(), 6);
    let lost = process.metric(LOST);
    assert!((30.0..=deleted as f64).contains(&lost), "{lost} of {deleted}");
    process.stop_well();

    let mut process = fixture.start(mode);
    is_no_spare(&process, Duration::from_secs(3));
    assert_eq!(process.metric(LOST), 0.0, "counted once");
    assert!(!process.log().contains("outside of the log"), "{}", process.log());
    process.stop_well();
    println!("{mode:?}: the next record arrived after {took:?}");
}

/// The records are deleted under members that wait for them.
fn records_that_are_deleted_under_it_leave_nobody_ready_without_lanes(mode: Mode) {
    let fixture = Fixture::with("positions", |request| {
        request.lanes = Some(6);
        request.holds = Some([1_000, 10_000].map(Millis).to_vec());
    });
    let target = fixture.target("out", 1);
    let tier = fixture.names.tier(Millis(10_000));
    // Long enough for what it says meanwhile to be seen.
    let slow = "take_over_waits=sleep(2500)";
    let launch = fixture.launch(mode).env("FAILPOINTS", slow);
    // A worker takes partitions over, too.
    let mut process = launch.env("WATERCLOCK_ROLES", "lanes,api").start();
    let producer = fixture.producer();
    // Written and deleted between two looks.
    process.freeze();
    for n in 0..60 {
        producer.send(&tier, &out(n.to_string()).key(n.to_string()).to(&target));
    }
    Log::open(&fixture, &tier).count(60);
    trim_all(&fixture, &tier);
    process.thaw();
    let mut said = Vec::new();
    eventually("it is found out", || {
        said.extend(is_no_spare(&process, Duration::from_millis(200)));
        match process.metric(LOST) {
            lost if lost > 0.0 => Ok(()),
            lost => Err(format!("{lost}")),
        }
    });
    // Meanwhile it said what it does, with how many partitions, and for how long by then.
    let is_take_over = |body: &&String| {
        body.contains("takes 24 partitions over, for ")
            && body.contains(" s by now: asking where the logs begin and end")
    };
    assert!(said.iter().filter(is_take_over).count() >= 2, "{said:#?}");
    is_no_spare(&process, Duration::from_secs(2));
    producer.send_one(&fixture.names.intake(), &out("kept").key("k").to(&target).delay(0));
    Log::open(&fixture, &target)
        .until("it arrives", |seen| seen.iter().any(|rec| rec.text() == "kept"));
    process.stop_well();
}

in_both_modes!(
    a_position_outside_of_its_log_costs_one_question_once,
    #[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
    records_that_are_deleted_under_it_leave_nobody_ready_without_lanes,
    #[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
    a_timer_whose_record_is_gone_ends_as_lost_and_its_id_is_free,
    timers_whose_records_are_gone_are_not_listed_as_pending,
    #[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
    timers_whose_records_are_gone_are_found_by_the_next_owner_too,
);

/// Commits of which nothing is heard, as while the group's coordinator is away.
#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
fn what_is_not_committed_is_not_deleted() {
    let fixture = || Fixture::with("positions", |request| request.lanes = Some(1));
    let (unheard, heard) = (fixture(), fixture());
    let delivers = |fixture: &Fixture, failpoints: &str| {
        let target = fixture.target("out", 1);
        let launch = fixture.launch(Mode::AtLeastOnce).env("FAILPOINTS", failpoints);
        let process = launch.start();
        let producer = fixture.producer();
        for n in 0..20 {
            let record = out(n.to_string()).key("k").to(&target).delay(0);
            producer.send(&fixture.names.intake(), &record);
        }
        Log::open(fixture, &target).count(20);
        process
    };
    let low = |fixture: &Fixture| bounds(fixture, &fixture.names.intake(), 0).0;
    // Each deletes every 30 s, from its start on. This one starts first, so its time is over when the other one has deleted.
    let mut of_unheard = delivers(&unheard, "commit_unheard=return");
    let mut of_heard = delivers(&heard, "");
    eventually("as soon as the coordinator has said so", || match low(&heard) {
        20 => Ok(()),
        low => Err(format!("the log begins at {low}")),
    });
    std::thread::sleep(Duration::from_secs(3) * patience());
    assert_eq!(low(&unheard), 0, "not before the coordinator has said so");
    of_unheard.kill();
    of_heard.kill();
}

#[test]
fn what_was_done_before_a_restart_is_deleted_after_it() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(1));
    let (target, intake) = (fixture.target("out", 1), fixture.names.intake());
    let mut process = fixture.start(Mode::ExactlyOnce);
    let producer = fixture.producer();
    for n in 0..20 {
        producer.send(&intake, &out(n.to_string()).key("k").to(&target).delay(0));
    }
    Log::open(&fixture, &target).count(20);
    // Sooner than it deletes for the first time.
    process.stop_well();
    assert_eq!(bounds(&fixture, &intake, 0).0, 0, "the next one has something to delete");
    // Nothing comes in any more, so nothing is committed.
    let mut next = fixture.start(Mode::ExactlyOnce);
    eventually_within(Duration::from_secs(60) * patience(), "it is deleted", || {
        match bounds(&fixture, &intake, 0).0 {
            20 => Ok(()),
            low => Err(format!("the log begins at {low}")),
        }
    });
    next.stop_well();
}

/// A tracked timer of the key `k`.
fn timer(id: &str, target: &str, delay: &str) -> Out {
    out(id).key("k").to(target).delay(delay).header("x-delay-id", id)
}

fn cancel(id: &str) -> Out {
    let none = out("").key("k").header("x-delay-id", id);
    none.header("x-delay-action", "cancel")
}

/// Waits until a timer is in this state.
fn is_in_state(process: &Process, id: &str, state: &str, most: Duration) {
    eventually_within(most, &format!("{id} is {state}"), || {
        let (_, body) = process.get(&format!("/v1/timers?state={state}"))?;
        if body.contains(&format!("\"{id}\"")) { Ok(()) } else { Err(body) }
    });
}

/// An overdue timer without a record ends as lost, and its id is free.
fn a_timer_whose_record_is_gone_ends_as_lost_and_its_id_is_free(mode: Mode) {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(1));
    let target = fixture.target("out", 1);
    let intake = fixture.names.intake();
    let producer = fixture.producer();
    let mut process = fixture.start(mode);
    producer.send_one(&intake, &timer("x", &target, "20s"));
    Log::open(&fixture, &fixture.names.tier(Millis(5_000))).count(1);
    // With at_least_once it stands there before it is done with in the intake, which a stop waits for.
    process.stop_well();
    for hold in [1_000, 2_000, 5_000] {
        trim_all(&fixture, &fixture.names.tier(Millis(hold)));
    }
    // Nobody can read what is left. Then it is ten minutes after it was due; the test does not wait for that.
    let points = "lost_soon=return;lane_unread=return";
    let mut process = fixture.launch(mode).env("FAILPOINTS", points).start();
    process.wait_until_logged(PATIENCE, "could not read what is left of the lane");
    is_in_state(&process, "x", "delay", PATIENCE);
    is_in_state(&process, "x", "lost", Duration::from_secs(180));
    eventually("it is counted", || match process.metric("waterclock_timers_lost_total") {
        1.0 => Ok(()),
        lost => Err(format!("{lost}")),
    });
    process.wait_until_logged(PATIENCE, "as their records are gone");
    producer.send_one(&intake, &timer("x", &target, "0"));
    Log::open(&fixture, &target).count(1);
    is_in_state(&process, "x", "delivered", PATIENCE);
    process.stop_well();
}

/// The ids of the timers in a state.
fn in_state(process: &Process, state: &str) -> Result<BTreeSet<String>, String> {
    let (_, body) = process.get(&format!("/v1/timers?state={state}&limit=100"))?;
    let told: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
    let timers = told["timers"].as_array().ok_or(body)?;
    Ok(timers.iter().filter_map(|timer| timer["id"].as_str()).map(str::to_owned).collect())
}

/// Nobody waits for hours to hear that a timer is gone: the rest of the lane is read as soon as records are missing.
fn timers_whose_records_are_gone_are_not_listed_as_pending(mode: Mode) {
    let fixture = Fixture::with("positions", |request| {
        request.lanes = Some(2);
        request.holds = Some([1_000, 60_000, 3_600_000].map(Millis).to_vec());
    });
    let target = fixture.target("out", 1);
    let producer = fixture.producer();
    let mut process = fixture.start(mode);
    let of = |prefix: &str| (0..20).map(|n| format!("{prefix}{n}")).collect::<BTreeSet<_>>();
    let (long, short) = (of("long"), of("short"));
    for (ids, delay) in [(&long, "5h"), (&short, "50m")] {
        for id in ids {
            let record = timer(id, &target, delay).key(id.as_str());
            producer.send(&fixture.names.intake(), &record);
        }
    }
    let (hour, minute) =
        (fixture.names.tier(Millis(3_600_000)), fixture.names.tier(Millis(60_000)));
    Log::open(&fixture, &hour).count(20);
    Log::open(&fixture, &minute).count(20);
    process.stop_well();
    trim_all(&fixture, &hour);

    let are = |process: &Process, lost: &BTreeSet<String>, delay: &BTreeSet<String>| {
        eventually("those that are gone are lost, and no others", || {
            let told = (in_state(process, "lost")?, in_state(process, "delay")?);
            if told == (lost.clone(), delay.clone()) { Ok(()) } else { Err(format!("{told:?}")) }
        });
        eventually("they are counted", || {
            let counted = process.metric("waterclock_timers_lost_total");
            if counted == 20.0 { Ok(()) } else { Err(format!("{counted}")) }
        });
    };
    let mut process = fixture.start(mode);
    are(&process, &long, &short);
    // A create after it is a create. A lost timer stays lost, and is counted once.
    let again = "long7";
    producer.send_one(&fixture.names.intake(), &timer(again, &target, "0").key(again));
    Log::open(&fixture, &target).count(1);
    process.stop_well();
    let mut process = fixture.start(mode);
    is_no_spare(&process, Duration::from_secs(3));
    let lost: BTreeSet<String> = long.iter().filter(|id| *id != again).cloned().collect();
    assert_eq!(in_state(&process, "lost"), Ok(lost));
    assert_eq!(process.metric("waterclock_timers_lost_total"), 0.0);
    assert_eq!(process.metric(LOST), 0.0, "{}", process.log());
    process.stop_well();

    // A whole tier, under it.
    let mut process = fixture.start(mode);
    delete(&fixture.connection, std::slice::from_ref(&minute)).expect("deleted");
    eventually("the tier is created again", || {
        apply(&fixture.connection, &fixture.request).map_err(|error| format!("{error:?}"))
    });
    process.wait_until_logged(PATIENCE, "was deleted and created again");
    let all: BTreeSet<String> = long.union(&short).filter(|id| *id != again).cloned().collect();
    are(&process, &all, &BTreeSet::new());
    process.stop_well();
}

/// A process that finds records gone may lose the lane before it has read the rest. Then the next owner reads it.
fn timers_whose_records_are_gone_are_found_by_the_next_owner_too(mode: Mode) {
    let fixture = Fixture::with("positions", |request| {
        request.lanes = Some(2);
        request.holds = Some([1_000, 60_000, 3_600_000].map(Millis).to_vec());
    });
    let target = fixture.target("out", 1);
    let hour = fixture.names.tier(Millis(3_600_000));
    let producer = fixture.producer();
    let ids: BTreeSet<String> = (0..20).map(|n| format!("gone{n}")).collect();
    let mut process = fixture.start(mode);
    for id in &ids {
        let record = timer(id, &target, "5h").key(id.as_str());
        producer.send(&fixture.names.intake(), &record);
    }
    Log::open(&fixture, &hour).count(20);
    process.stop_well();
    trim_all(&fixture, &hour);
    // The process finds the gap, logs it, cannot read the rest of the lane, and is killed.
    let mut process = fixture.launch(mode).env("FAILPOINTS", "lane_unread=return").start();
    process.wait_until_logged(PATIENCE, "could not read what is left of the lane");
    assert!(process.metric(LOST) >= 20.0, "{}", process.metric(LOST));
    process.kill();
    let mut process = fixture.launch(mode).data("another").start();
    eventually("they are lost", || {
        let told = in_state(&process, "lost")?;
        if told == ids { Ok(()) } else { Err(format!("{told:?}")) }
    });
    process.stop_well();
    let mut process = fixture.start(mode);
    is_no_spare(&process, Duration::from_secs(2));
    assert!(!process.log().contains("outside of the log"), "{}", process.log());
    process.stop_well();
}

/// What was remembered of the intake that was there before says nothing of what comes by the new one.
#[test]
fn an_intake_that_was_created_again_swallows_no_create() {
    let fixture = Fixture::with("positions", |request| request.lanes = Some(1));
    let target = fixture.target("out", 1);
    let intake = fixture.names.intake();
    let producer = fixture.producer();
    let mut process = fixture.start(Mode::ExactlyOnce);
    let mut there = Log::open(&fixture, &target);
    for n in 0..20 {
        producer.send_one(&intake, &out(n.to_string()).key("k").to(&target).delay(0));
    }
    there.count(20);
    producer.send_one(&intake, &timer("x", &target, "30s"));
    producer.send_one(&intake, &cancel("x"));
    is_in_state(&process, "x", "cancelled", PATIENCE);
    delete(&fixture.connection, std::slice::from_ref(&intake)).expect("deleted");
    eventually("the intake is created again", || {
        apply(&fixture.connection, &fixture.request).map_err(|error| format!("{error:?}"))
    });
    process.wait_until_logged(PATIENCE, "was deleted and created again");
    for (round, restart) in [(1, true), (2, false)] {
        let producer = fixture.producer();
        producer.send_one(&intake, &timer("x", &target, "0"));
        there.count(20 + round);
        if restart {
            process.stop_well();
            process = fixture.start(Mode::ExactlyOnce);
        }
    }
    process.stop_well();
}

#[test]
fn a_lane_of_which_it_cannot_be_read_what_is_pending_rests_and_is_not_ready() {
    let fixture = Fixture::with("unreadable", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    // Somebody else's commit for the group, before it has members.
    let mut config = fixture.client();
    config.set("group.id", fixture.namespace());
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&fixture.names.intake(), 1, Offset::Offset(0)).expect("an offset");
    list.elements_for_topic(&fixture.names.intake())[0].set_metadata("of a tool");
    consumer.commit(&list, CommitMode::Sync).expect("committed");
    let mut process = fixture.launch(Mode::ExactlyOnce).spawn();
    eventually("it says which lane rests", || match process.get("/health/ready")? {
        (503, body) if body.contains("lanes 1 rest: what is pending in them cannot be read") => {
            Ok(())
        }
        answer => Err(format!("{answer:?}")),
    });
    let producer = Producer::new(&fixture, &[("partitioner", "murmur2_random")]);
    let key = fixture.keys(0).next().expect("one of many");
    let record = out("beside").key(key).to(&target).delay(0);
    producer.send_one(&fixture.names.intake(), &record);
    Log::open(&fixture, &target).count(1);
    eventually("it owns the other lane only", || match process.lanes() {
        1 => Ok(()),
        lanes => Err(format!("{lanes}")),
    });
    process.stop_well();
}
