use std::collections::BTreeSet;

use super::in_force::{next, next_tasks};
use super::*;
use crate::meta::LadderInForce;
use waterclock_engine::ladder::Preset;

const S: Millis = Millis::SECOND;
const M: Millis = Millis::MINUTE;
const H: Millis = Millis::HOUR;

fn names() -> Names {
    Names::new("ns")
}

fn specs(brokers: usize) -> Vec<TopicSpec> {
    let ladder = Ladder::new(&[S, M], &[H], Millis(2_000)).unwrap();
    wanted(&names(), 6, &ladder, &["eu".to_owned()], brokers, true)
}

/// A cluster in which everything is as `apply` makes it.
fn fit(brokers: usize) -> Found {
    let ids: BTreeSet<i32> = (1..=brokers as i32).collect();
    let topics = specs(brokers).into_iter().map(|spec| {
        let settings = spec.must.into_iter().chain(spec.advice).collect();
        let topic = FoundTopic {
            partitions: spec.partitions,
            replication: spec.replication,
            leaders: ids.clone(),
            leaderless: 0,
            settings,
        };
        (spec.name, topic)
    });
    Found {
        bootstrap: "b:9092".to_owned(),
        cluster_id: None,
        brokers: ids.clone(),
        topics: topics.collect(),
    }
}

#[test]
fn a_namespace_needs_intakes_tiers_dead_letters_meta_and_timers_and_two_topics_for_tasks() {
    let rows: Vec<(String, i32, i32)> =
        specs(3).into_iter().map(|spec| (spec.name, spec.partitions, spec.replication)).collect();
    let want =
        ["intake", "intake.eu", "delay.1s", "delay.1m", "delay.1h", "dead", "meta", "timers"];
    let want: Vec<_> =
        want.iter().chain(&["tasks", "results"]).map(|name| (format!("ns.{name}"), 6, 3)).collect();
    assert_eq!(rows, want);
    let ladder = Ladder::new(&[S, M], &[H], Millis(2_000)).unwrap();
    let without = wanted(&names(), 6, &ladder, &["eu".to_owned()], 3, false);
    assert_eq!(without, specs(3)[..rows.len() - 2]);
    assert_eq!(specs(1)[0].replication, 1);
    assert_eq!(specs(5)[0].replication, 3);
    let meta = specs(5).into_iter().find(|spec| spec.kind == Kind::Meta);
    assert_eq!(meta.map(|meta| meta.partitions), Some(10));
    assert_eq!(names().tier(Millis(90_000)), "ns.delay.1m30s");
}

#[test]
fn what_apply_makes_has_no_findings() {
    for brokers in [1, 2, 3, 5] {
        assert_eq!(diff(&names(), &specs(brokers), &fit(brokers)), [], "{brokers} brokers");
    }
}

#[test]
fn every_record_fits_into_what_it_can_come_to() {
    let bytes = |kind| template(kind).must["max.message.bytes"].parse::<u64>().unwrap();
    assert!(bytes(Kind::Intake) >= 2 << 20);
    assert!(bytes(Kind::Delay) >= bytes(Kind::Intake) + STEP_BYTES);
    for kind in [Kind::Tasks, Kind::Results] {
        assert!(bytes(kind) >= bytes(Kind::Intake) + STEP_BYTES);
        assert!(bytes(Kind::Dead) >= bytes(kind) + STEP_BYTES);
    }
    assert!(bytes(Kind::Dead) >= bytes(Kind::Delay) + STEP_BYTES);
}

#[test]
fn each_setting_that_cannot_hold_is_refused_and_says_what_to_do() {
    use Severity::{Missing, Note, Weak, Wrong};
    type Break = fn(&mut Found);
    fn set(found: &mut Found, topic: &str, name: &str, value: &str) {
        let topic = found.topics.get_mut(topic).unwrap();
        topic.settings.insert(name.to_owned(), value.to_owned());
    }
    fn topic<'a>(found: &'a mut Found, name: &str) -> &'a mut FoundTopic {
        found.topics.get_mut(name).unwrap()
    }
    #[rustfmt::skip]
    let cases: [(&str, usize, Break, &str, &str, Severity, &str); 34] = [
        // why                            brokers, what is broken, topic, what, severity, in the remedy
        ("a tier is not there",           1, |f| { f.topics.remove("ns.delay.1m"); }, "ns.delay.1m", "topic", Missing, "waterclock topics apply"),
        ("pending records go by age",     1, |f| set(f, "ns.delay.1h", "retention.ms", "604800000"), "ns.delay.1h", "retention.ms", Wrong, "kafka-configs.sh --bootstrap-server b:9092 --alter --add-config retention.ms=-1 --entity-type topics --entity-name ns.delay.1h"),
        ("pending records go by size",    1, |f| set(f, "ns.intake", "retention.bytes", "1000"), "ns.intake", "retention.bytes", Wrong, "retention.bytes=-1"),
        ("producers choose the time",     1, |f| set(f, "ns.intake.eu", "message.timestamp.type", "CreateTime"), "ns.intake.eu", "message.timestamp.type", Wrong, "message.timestamp.type=LogAppendTime"),
        ("compaction loses records",      1, |f| set(f, "ns.delay.1s", "cleanup.policy", "compact"), "ns.delay.1s", "cleanup.policy", Wrong, "cleanup.policy=delete"),
        ("both is compaction, too",       1, |f| set(f, "ns.delay.1s", "cleanup.policy", "compact,delete"), "ns.delay.1s", "cleanup.policy", Wrong, "cleanup.policy=delete"),
        ("meta would be deleted",         1, |f| set(f, "ns.meta", "cleanup.policy", "delete"), "ns.meta", "cleanup.policy", Wrong, "cleanup.policy=compact"),
        ("cancels would go by age",       1, |f| set(f, "ns.timers", "cleanup.policy", "delete"), "ns.timers", "cleanup.policy", Wrong, "cleanup.policy=compact"),
        ("by age, for all compaction",    1, |f| set(f, "ns.timers", "cleanup.policy", "compact,delete"), "ns.timers", "cleanup.policy", Wrong, "cleanup.policy=compact"),
        ("a lane remembers no cancels",   1, |f| topic(f, "ns.timers").partitions = 5, "ns.timers", "partitions", Wrong, "--partitions 6"),
        ("a namespace from before it",    1, |f| { f.topics.remove("ns.timers"); }, "ns.timers", "topic", Missing, "waterclock topics apply"),
        ("clocks cannot be read",         1, |f| set(f, "ns.meta", "message.timestamp.type", "CreateTime"), "ns.meta", "message.timestamp.type", Wrong, "LogAppendTime"),
        ("acknowledged and lost",         1, |f| set(f, "ns.dead", "unclean.leader.election.enable", "true"), "ns.dead", "unclean.leader.election.enable", Wrong, "=false"),
        ("2 MiB do not fit",              1, |f| set(f, "ns.intake", "max.message.bytes", "1048588"), "ns.intake", "max.message.bytes", Wrong, "max.message.bytes=2162688"),
        ("a fitting record outgrows",     1, |f| set(f, "ns.intake.eu", "max.message.bytes", "9000000"), "ns.delay.1s", "max.message.bytes", Wrong, "max.message.bytes=9065536"),
        ("and so does a task",            1, |f| set(f, "ns.intake.eu", "max.message.bytes", "9000000"), "ns.tasks", "max.message.bytes", Wrong, "max.message.bytes=9065536"),
        ("tasks come into force",         1, |f| { f.topics.remove("ns.tasks"); }, "ns.tasks", "topic", Missing, "waterclock topics apply"),
        ("tasks would go by age",         1, |f| set(f, "ns.tasks", "retention.ms", "604800000"), "ns.tasks", "retention.ms", Wrong, "retention.ms=-1"),
        ("results at a chosen time",      1, |f| set(f, "ns.results", "message.timestamp.type", "CreateTime"), "ns.results", "message.timestamp.type", Wrong, "message.timestamp.type=LogAppendTime"),
        ("a lane gets no results",        1, |f| topic(f, "ns.results").partitions = 5, "ns.results", "partitions", Wrong, "--partitions 6"),
        ("dead letters are larger still", 1, |f| set(f, "ns.delay.1h", "max.message.bytes", "9000000"), "ns.dead", "max.message.bytes", Wrong, "max.message.bytes=9065536"),
        ("no batch of changes fits",      1, |f| set(f, "ns.timers", "max.message.bytes", "150"), "ns.timers", "max.message.bytes", Wrong, "max.message.bytes=1048588"),
        ("no checkpoint fits",            1, |f| set(f, "ns.meta", "max.message.bytes", "100"), "ns.meta", "max.message.bytes", Wrong, "max.message.bytes=1048588"),
        ("too few partitions",            1, |f| topic(f, "ns.delay.1m").partitions = 4, "ns.delay.1m", "partitions", Wrong, "kafka-topics.sh --bootstrap-server b:9092 --alter --partitions 6 --topic ns.delay.1m"),
        ("too many partitions",           1, |f| topic(f, "ns.intake").partitions = 7, "ns.intake", "partitions", Wrong, "More partitions than lanes"),
        ("a lane has no dead letters",    1, |f| topic(f, "ns.dead").partitions = 5, "ns.dead", "partitions", Wrong, "--partitions 6"),
        ("a lane has no checkpoints",     1, |f| topic(f, "ns.meta").partitions = 5, "ns.meta", "partitions", Wrong, "--partitions 6"),
        ("more than there are",           1, |f| set(f, "ns.intake", "min.insync.replicas", "2"), "ns.intake", "min.insync.replicas", Note, "min.insync.replicas=1"),
        ("one copy is no copy",           3, |f| set(f, "ns.intake", "min.insync.replicas", "1"), "ns.intake", "min.insync.replicas", Weak, "min.insync.replicas=2"),
        ("one broker down stops all",     3, |f| set(f, "ns.intake", "min.insync.replicas", "3"), "ns.intake", "min.insync.replicas", Note, "min.insync.replicas=2"),
        ("fewer replicas than brokers",   3, |f| { let t = topic(f, "ns.delay.1m"); t.replication = 2; t.settings.insert("min.insync.replicas".into(), "1".into()); }, "ns.delay.1m", "replication", Note, "kafka-reassign-partitions.sh"),
        ("a clock is not read",           3, |f| { topic(f, "ns.meta").leaders.remove(&2); }, "ns.meta", "leaders", Note, "--partitions 7"),
        ("dead letters go: yours to say", 1, |f| set(f, "ns.dead", "retention.ms", "1"), "ns.dead", "retention.ms", Note, "retention.ms=-1"),
        ("a tier nobody reads",           1, |f| { f.topics.insert("ns.delay.5m".into(), FoundTopic::default()); }, "ns.delay.5m", "topic", Note, "--delete --topic ns.delay.5m"),
    ];
    for (why, brokers, change, name, what, severity, remedy) in cases {
        let mut found = fit(brokers);
        change(&mut found);
        let findings = diff(&names(), &specs(brokers), &found);
        let finding = findings.iter().find(|finding| finding.topic == name && finding.what == what);
        let finding = finding.unwrap_or_else(|| panic!("{why}: {findings:?}"));
        assert_eq!(finding.severity, severity, "{why}");
        assert!(finding.remedy.contains(remedy), "{why}: {}", finding.remedy);
        assert!(findings.iter().all(|f| f.what == what), "{why}: {findings:?}");
    }
}

#[test]
fn more_than_is_needed_is_no_finding() {
    let mut found = fit(3);
    for (name, setting, value) in
        [("ns.dead", "max.message.bytes", "99000000"), ("ns.meta", "max.message.bytes", "99000000")]
    {
        let settings = &mut found.topics.get_mut(name).unwrap().settings;
        settings.insert(setting.to_owned(), value.to_owned());
    }
    found.topics.get_mut("ns.dead").unwrap().partitions = 12;
    found.topics.get_mut("ns.meta").unwrap().partitions = 50;
    found.topics.get_mut("ns.intake").unwrap().replication = 5;
    found.topics.insert("ns.intake.other".to_owned(), FoundTopic::default());
    assert_eq!(diff(&names(), &specs(3), &found), []);
}

fn request(lanes: Option<u16>, holds: Option<&[Millis]>) -> Request {
    Request {
        namespace: "ns".to_owned(),
        further_intakes: Vec::new(),
        lanes,
        holds: holds.map(<[Millis]>::to_vec),
        lead_max: Millis(2_000),
        horizon: Millis(2_000),
        tasks: false,
    }
}

#[test]
fn tasks_come_into_force_once_and_while_nobody_is_there() {
    let asked = Request { tasks: true, ..request(None, None) };
    let unasked = request(None, None);
    #[rustfmt::skip]
    let cases = [
        // why                      request   before    live  want
        ("nothing is asked",        &unasked, None,     0,    Ok(false)),
        ("with members, too",       &unasked, None,     3,    Ok(false)),
        ("asked for",               &asked,   None,     0,    Ok(true)),
        ("members would not see",   &asked,   None,     2,    Err("live members (2); stop all instances, then run `waterclock topics apply --tasks` again")),
        ("they are in force",       &asked,   Some(1),  2,    Ok(true)),
        ("nothing takes them away", &unasked, Some(1),  0,    Ok(true)),
    ];
    for (why, request, before, live, want) in cases {
        match (next_tasks(request, before, live), want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{why}"),
            (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{why}: {got}"),
            (got, want) => panic!("{why}: got {got:?}, want {want:?}"),
        }
    }
}

#[test]
fn the_first_apply_takes_what_was_asked_or_the_defaults() {
    let first = next(&request(None, None), None, None, 0).unwrap();
    assert_eq!((first.lanes, first.holds), (6, Preset::Round.holds()));
    let asked = next(&request(Some(12), Some(&[M, S])), None, None, 0).unwrap();
    assert_eq!(asked, LadderInForce { lanes: 12, holds: vec![S, M], draining: vec![] });
}

#[test]
fn what_is_in_force_changes_only_as_far_as_it_may() {
    let before = LadderInForce { lanes: 6, holds: vec![S, M, H], draining: vec![Millis::DAY] };
    let draining = |holds: &[Millis], draining: &[Millis]| {
        Ok(LadderInForce { lanes: 6, holds: holds.to_vec(), draining: draining.to_vec() })
    };
    #[rustfmt::skip]
    let cases = [
        // why                       lanes    holds                              live want
        ("nothing set",              None,    None,                              3, draining(&[S, M, H], &[Millis::DAY])),
        ("the same set",             Some(6), Some(vec![H, S, M]),               3, draining(&[S, M, H], &[Millis::DAY])),
        ("other lanes",              Some(5), None,                              0, Err("lanes: 5 asked, 6 in force")),
        ("one tier less",            None,    Some(vec![S, H]),                  0, draining(&[S, H], &[M, Millis::DAY])),
        ("a drained one again",      None,    Some(vec![S, M, H, Millis::DAY]),  0, draining(&[S, M, H, Millis::DAY], &[])),
        ("all others",               None,    Some(vec![Millis(5_000)]),         0, draining(&[Millis(5_000)], &[S, M, H, Millis::DAY])),
        ("members would not see it", None,    Some(vec![S, H]),                  1, Err("has live members (1); stop all instances")),
    ];
    for (why, lanes, holds, live, want) in cases {
        let got = next(&request(lanes, holds.as_deref()), None, Some(&before), live);
        match (got, want) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{why}"),
            (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{why}: {got}"),
            (got, want) => panic!("{why}: got {got:?}, want {want:?}"),
        }
    }
}
