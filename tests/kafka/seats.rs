//! Seats in the group are kept over a restart, and what the assignment was made for may be another by then.

use waterclock::kafka::topics::{apply, delete, inspect};

use crate::support::{
    Fixture, Launch, Log, Mode, Process, Producer, assert_each_once, eventually, out, whole,
};

/// A process whose configuration has one more intake, once that was applied.
fn with_intake<'a>(fixture: &'a Fixture, data: &str) -> Launch<'a> {
    let target = fixture.name("out");
    let config = format!("[intakes.eu]\ntarget = '{target}'\nallow = ['{target}']\n");
    fixture.launch(Mode::ExactlyOnce).data(data).config(&config)
}

/// Adds it to the topics that are in force.
fn add_intake(fixture: &Fixture) {
    let mut request = fixture.request.clone();
    request.further_intakes = vec!["eu".to_owned()];
    apply(&fixture.connection, &request).expect("applied");
}

/// Sends a record to each lane of an intake, and waits until all of them are delivered.
#[track_caller]
fn through(fixture: &Fixture, intake: &str, id: &str) {
    let producer = Producer::new(fixture, &[("partitioner", "murmur2_random")]);
    let (lanes, target) = (fixture.lanes(), fixture.name("out"));
    let mut log = Log::open(fixture, &target);
    for lane in 0..lanes {
        let key = fixture.keys(lane).next().expect("one of many");
        let record = out(format!("{id} {lane}")).key(key).delay(300);
        producer.send(intake, &record.to(&target));
    }
    producer.acks();
    log.until(id, |seen| {
        seen.iter().filter(|rec| rec.text().starts_with(id)).count() >= usize::from(lanes)
    });
}

#[track_caller]
fn wait_until_shared(lanes: usize, members: &[&Process]) {
    eventually("the lanes are shared", || {
        let own: Vec<usize> = members.iter().map(|member| member.lanes()).collect();
        if own.iter().sum::<usize>() == lanes && !own.contains(&0) {
            Ok(())
        } else {
            Err(format!("{own:?} of {lanes}"))
        }
    });
}

#[test]
fn an_intake_that_was_added_is_read_by_a_member_that_comes_back_to_its_seat() {
    let fixture = Fixture::new("seat-alone");
    let _ = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    through(&fixture, &fixture.names.intake(), "before");
    add_intake(&fixture);
    process.stop_well();
    // Within the session, so that the seat is still its own, with what was assigned to it.
    process = with_intake(&fixture, "a").start();
    wait_until_shared(3, &[&process]);
    through(&fixture, &fixture.names.intake(), "after");
    through(&fixture, &fixture.names.further_intake("eu"), "new");
    // And taken away again.
    process.kill();
    process = fixture.start(Mode::ExactlyOnce);
    wait_until_shared(3, &[&process]);
    through(&fixture, &fixture.names.intake(), "without");
    process.stop_well();
    let ids = ["before", "after", "new", "without"];
    let ids = ids.iter().flat_map(|id| (0..3).map(move |lane| format!("{id} {lane}")));
    assert_each_once(ids, &whole(&fixture, &fixture.name("out")));
}

/// Restarts two members with one more intake, one after the other.
#[track_caller]
fn roll(test: &str, end: impl Fn(&mut Process)) {
    let fixture = Fixture::with(test, |request| request.lanes = Some(4));
    let _ = fixture.target("out", 1);
    let old = |data: &str| fixture.launch(Mode::ExactlyOnce).data(data).start();
    let (mut a, mut b) = (old("a"), old("b"));
    wait_until_shared(4, &[&a, &b]);
    add_intake(&fixture);
    end(&mut b);
    b = with_intake(&fixture, "b").start();
    wait_until_shared(4, &[&a, &b]);
    through(&fixture, &fixture.names.intake(), "halfway");
    a.wait_until_ready();
    b.wait_until_ready();
    end(&mut a);
    a = with_intake(&fixture, "a").start();
    wait_until_shared(4, &[&a, &b]);
    through(&fixture, &fixture.names.intake(), "after");
    through(&fixture, &fixture.names.further_intake("eu"), "new");
    a.stop_well();
    b.stop_well();
    let ids = ["halfway", "after", "new"];
    let ids = ids.iter().flat_map(|id| (0..4).map(move |lane| format!("{id} {lane}")));
    assert_each_once(ids, &whole(&fixture, &fixture.name("out")));
}

#[test]
fn an_intake_is_added_by_a_rolling_restart() {
    roll("seat-stop", Process::stop_well);
}

#[test]
fn an_intake_is_added_by_members_that_die_and_come_back_to_their_seats() {
    roll("seat-kill", Process::kill);
}

/// Three members: by range the one in the middle gets other partitions of the new intake than of what all know.
#[test]
fn no_lane_rests_while_some_members_know_one_more_intake() {
    let fixture = Fixture::with("seat-three", |request| request.lanes = Some(6));
    let _ = fixture.target("out", 1);
    let mut members =
        ["a", "b", "c"].map(|data| fixture.launch(Mode::ExactlyOnce).data(data).start());
    wait_until_shared(6, &members.each_ref());
    add_intake(&fixture);
    for (n, data) in ["a", "b", "c"].into_iter().enumerate() {
        members[n].stop_well();
        members[n] = with_intake(&fixture, data).start();
        wait_until_shared(6, &members.each_ref());
        members.iter_mut().for_each(Process::wait_until_ready);
        through(&fixture, &fixture.names.intake(), &format!("turn {n}"));
    }
    through(&fixture, &fixture.names.further_intake("eu"), "new");
    members.iter_mut().for_each(Process::stop_well);
}

#[test]
fn lanes_that_nobody_was_given_are_joined_for_again_and_not_ready_until_then() {
    // The seat outlasts what is done to the topics, on a slow machine, too.
    const SEAT: (&str, &str) = ("WATERCLOCK_SESSION_TIMEOUT", "60s");
    let mut fixture = Fixture::new("seat-more");
    let _ = fixture.target("out", 1);
    let mut process = fixture.launch(Mode::ExactlyOnce).env(SEAT.0, SEAT.1).start();
    process.stop_well();
    // Made again with more lanes, while the seat has the three of before.
    let found = inspect(&fixture.connection, &fixture.names).expect("an answer");
    let of_it = format!("{}.", fixture.namespace());
    let topics: Vec<String> =
        found.topics.into_keys().filter(|topic| topic.starts_with(&of_it)).collect();
    delete(&fixture.connection, &topics).expect("deleted");
    fixture.request.lanes = Some(6);
    eventually("topics apply", || {
        apply(&fixture.connection, &fixture.request).map_err(|error| format!("{error:?}"))
    });
    process = fixture.launch(Mode::ExactlyOnce).env(SEAT.0, SEAT.1).spawn();
    eventually("it says why it is not ready", || match process.get("/health/ready")? {
        (503, body) if body.contains("no member owns lanes 3, 4, 5") => Ok(()),
        answer => Err(format!("{answer:?}")),
    });
    process.wait_until_ready();
    wait_until_shared(6, &[&process]);
    through(&fixture, &fixture.names.intake(), "all");
    process.stop_well();
}
