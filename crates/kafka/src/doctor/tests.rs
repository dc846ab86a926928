use std::collections::BTreeSet;

use super::*;
use crate::doctor::{Member, Right};
use crate::topics::{Found, FoundTopic, Names, diff, wanted};
use waterclock_engine::ladder::Ladder;

const NOW: UnixMillis = UnixMillis(1_800_000_000_000);
const TARGET: &str = "orders";
const TIER: &str = "ns.delay.1m";

fn wish() -> Wish {
    Wish {
        request: Request {
            namespace: "ns".to_owned(),
            further_intakes: Vec::new(),
            lanes: None,
            holds: None,
            lead_max: Millis(2_000),
            horizon: Millis(2_000),
            tasks: false,
        },
        exactly_once: true,
        session_timeout: Millis(10_000),
        transaction_timeout: Millis(15_000),
        hop_linger: Millis(500),
        commit_interval: Millis(5),
        allow: vec![Allow::new("ns", Some(&["orders".to_owned()])).unwrap()],
        allow_of: AllowOf::Instances(1),
        allow_differs: None,
        without_tasks: Vec::new(),
        is_ajar: false,
        outage: Millis(7 * Millis::DAY.0),
        read_only: false,
    }
}

fn all_rights() -> Rights {
    use Right::{Delete, Describe, DescribeConfigs, Read, Write};
    [Delete, Describe, DescribeConfigs, Read, Write].into_iter().collect()
}

/// Three brokers, two lanes, one member, nothing wrong.
fn healthy() -> Facts {
    let ladder = Ladder::new(&[Millis::SECOND, Millis::MINUTE], &[], Millis(2_000)).unwrap();
    let names = Names::new("ns");
    let wanted = wanted(&names, 2, &ladder, &[], 3, true);
    let topics = names.of_lanes(&[], &ladder, false);
    let ids: BTreeSet<i32> = [1, 2, 3].into();
    let there = wanted.iter().map(|spec| {
        let found = FoundTopic {
            partitions: spec.partitions,
            replication: 3,
            leaders: ids.clone(),
            leaderless: 0,
            settings: spec.must.clone().into_iter().chain(spec.advice.clone()).collect(),
        };
        (spec.name.clone(), found)
    });
    let found = Found {
        bootstrap: "b:9092".to_owned(),
        cluster_id: None,
        brokers: ids.clone(),
        topics: there.collect(),
    };
    let partition = Partition {
        leader: Some(1),
        replicas: vec![1, 2, 3],
        in_sync: vec![1, 2, 3],
        first: Some(5),
        stable: Some(20),
        last: Some(20),
        open_since: None,
    };
    let mut partitions = BTreeMap::new();
    for topic in topics.iter().map(String::as_str).chain([TARGET, "__consumer_offsets"]) {
        for id in 0..2 {
            partitions.insert((topic.to_owned(), id), partition.clone());
        }
    }
    let owns: Vec<(String, i32)> =
        topics.iter().flat_map(|topic| (0..2).map(|id| (topic.clone(), id))).collect();
    let committed = owns.iter().cloned().map(|at| {
        let position = Position { next: 10, window: Some((2, 18)) };
        (at, Some(position))
    });
    let settings: BTreeMap<String, String> = [
        ("offsets.retention.minutes", "10080"),
        ("offset.metadata.max.bytes", "4096"),
        ("transaction.max.timeout.ms", "900000"),
        ("group.min.session.timeout.ms", "6000"),
        ("group.max.session.timeout.ms", "1800000"),
        ("message.max.bytes", "1048588"),
        ("auto.create.topics.enable", "false"),
        ("unclean.leader.election.enable", "false"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    let broker = |id: &i32| {
        let known = Settings::Known(settings.clone());
        (*id, Broker { address: format!("b{id}:9092"), settings: known })
    };
    let rights = wanted.iter().map(|spec| spec.name.clone()).chain([TARGET.to_owned()]);
    Facts {
        bootstrap: "b:9092".to_owned(),
        brokers: ids.iter().map(broker).collect(),
        controller: Some(1),
        rights: rights.map(|topic| (topic, Ok(all_rights()))).collect(),
        survey: Ok(Survey {
            applied: true,
            tasks: true,
            lanes: 2,
            topics,
            findings: diff(&names, &wanted, &found),
            ladder,
            wanted,
            found,
        }),
        partitions,
        targets: vec![TARGET.to_owned()],
        group: Ok(Group {
            is_stable: true,
            members: vec![Member {
                client_id: "waterclock/a/0/x".to_owned(),
                host: "h".to_owned(),
                owns: owns.clone(),
            }],
            rights: all_rights(),
        }),
        workers: Some(Ok(Group {
            is_stable: true,
            members: vec![Member {
                client_id: "waterclock/a/w/x".to_owned(),
                host: "h".to_owned(),
                owns: Vec::new(),
            }],
            rights: all_rights(),
        })),
        committed: Ok(committed.collect()),
        clocks: ids
            .iter()
            .map(|id| {
                let skew =
                    Skew { least_us: -400, most_us: 900, round_trip: Duration::from_millis(1) };
                (*id, skew)
            })
            .collect(),
        commit: Some(Ok(Duration::from_millis(4))),
    }
}

fn survey(facts: &mut Facts) -> &mut Survey {
    facts.survey.as_mut().unwrap()
}

/// Changes what was found of a topic, and compares again.
fn change(facts: &mut Facts, topic: &str, change: impl FnOnce(&mut FoundTopic)) {
    let survey = survey(facts);
    change(survey.found.topics.get_mut(topic).unwrap());
    survey.findings = diff(&Names::new("ns"), &survey.wanted, &survey.found);
}

fn set(facts: &mut Facts, name: &str, value: &str) {
    for broker in facts.brokers.values_mut() {
        let Settings::Known(known) = &mut broker.settings else { continue };
        known.insert(name.to_owned(), value.to_owned());
    }
}

fn partition<'a>(facts: &'a mut Facts, topic: &str) -> &'a mut Partition {
    facts.partitions.get_mut(&(topic.to_owned(), 1)).unwrap()
}

fn committed(facts: &mut Facts, position: Option<Position>) {
    facts.committed.as_mut().unwrap().insert((TIER.to_owned(), 1), position);
}

fn members(facts: &mut Facts) -> &mut Vec<Member> {
    &mut facts.group.as_mut().unwrap().members
}

#[test]
fn a_healthy_cluster_has_nothing_but_what_is_in_order() {
    let list = findings(&wish(), &healthy(), NOW);
    let bad: Vec<&Finding> = list.iter().filter(|f| f.severity != Severity::Ok).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let areas: BTreeSet<Area> = list.iter().map(|finding| finding.area).collect();
    assert_eq!(areas.len(), 9, "every area but the machine is told: {areas:?}");
    assert!(list.iter().all(|finding| finding.remedy.is_empty()));
}

#[test]
fn what_is_wrong_is_named_with_its_place_and_what_to_do() {
    use Area::*;
    use Severity::{Note, Problem};
    type Change = fn(&mut Wish, &mut Facts);
    #[rustfmt::skip]
    let cases: [(&str, Severity, Area, &str, &str, Change); 54] = [
        // why                              how bad  area          where            words               what is changed
        ("one broker is one disk",          Note,    Brokers,      "",              "1 of at least 3",  |_, f| { f.brokers.retain(|id, _| *id == 1); f.partitions.values_mut().for_each(|p| { p.replicas = vec![1]; p.in_sync = vec![1]; }); f.clocks.retain(|id, _| *id == 1); }),
        ("a broker hangs",                  Problem, Brokers,      "broker 2",      "does not answer",  |_, f| f.brokers.get_mut(&2).unwrap().settings = Settings::Silent("late".into())),
        ("settings are not shown to us",    Note,    Brokers,      "broker 2",      "read its settings",|_, f| f.brokers.get_mut(&2).unwrap().settings = Settings::Refused),
        ("a broker has gone",               Problem, Brokers,      "broker 4",      "is not there",     |_, f| partition(f, TIER).replicas = vec![1, 2, 4]),
        ("a partition has no leader",       Problem, Brokers,      "ns.delay.1m/1", "no leader",     |_, f| partition(f, TIER).leader = None),
        ("a replica lags",                  Note,    Brokers,      TIER,            "not in sync",      |_, f| partition(f, TIER).in_sync = vec![1, 2]),
        ("positions on one disk",           Problem, Brokers,      "__consumer_offsets", "1 replicas",  |_, f| partition(f, "__consumer_offsets").replicas = vec![1]),
        ("nobody leads the cluster",        Note,    Brokers,      "",              "controller",       |_, f| f.controller = None),
        ("an upgrade in the middle",        Note,    Brokers,      "",              "different versions", |_, f| { if let Settings::Known(known) = &mut f.brokers.get_mut(&2).unwrap().settings { known.insert("inter.broker.protocol.version".into(), "3.9-IV0".into()); } }),
        ("positions expire in a day",       Problem, Brokers,      "broker 1",      "offsets.retention.minutes is 1440", |_, f| set(f, "offsets.retention.minutes", "1440")),
        ("metadata does not fit",           Problem, Brokers,      "broker 1",      "offset.metadata.max.bytes is 1024", |_, f| set(f, "offset.metadata.max.bytes", "1024")),
        ("transactions are too long",       Problem, Brokers,      "broker 1",      "transaction.max.timeout.ms", |_, f| set(f, "transaction.max.timeout.ms", "14999")),
        ("the session is too short",        Problem, Brokers,      "broker 1",      "group.min.session", |_, f| set(f, "group.min.session.timeout.ms", "10001")),
        ("the session is too long",         Problem, Brokers,      "broker 1",      "group.max.session", |_, f| set(f, "group.max.session.timeout.ms", "9999")),
        ("targets take little",             Note,    Brokers,      "broker 1",      "message.max.bytes", |_, f| set(f, "message.max.bytes", "100000")),
        ("topics come by themselves",       Note,    Brokers,      "broker 1",      "auto.create",      |_, f| set(f, "auto.create.topics.enable", "true")),
        ("replicas that lag may lead",      Note,    Brokers,      "broker 1",      "unclean",          |_, f| set(f, "unclean.leader.election.enable", "true")),
        ("late writes are not refused",     Note,    Brokers,      "broker 1",      "verification",     |_, f| set(f, "transaction.partition.verification.enable", "false")),
        ("brokers disagree on the time",    Note,    Clocks,       "broker 3",      "98 ms ahead",      |_, f| f.clocks.get_mut(&3).unwrap().least_us = 99_000),
        ("they disagree by too much",       Problem, Clocks,       "broker 3",      "599 ms ahead",     |_, f| f.clocks.get_mut(&3).unwrap().least_us = 600_000),
        ("they disagree by the whole lead", Problem, Timing,       "ns.delay.1s",   "would be late",    |_, f| f.clocks.get_mut(&3).unwrap().least_us = 800_000),
        ("this machine is off",             Note,    Clocks,       "broker 2",      "this machine",     |_, f| { for skew in f.clocks.values_mut() { (skew.least_us, skew.most_us) = (-5_000_500, -5_000_000); } }),
        ("a broker leads nothing of meta",  Note,    Clocks,       "",              "broker 3",         |_, f| { f.clocks.remove(&3); }),
        ("no probe was allowed",            Note,    Clocks,       "",              "reading only",     |w, f| { w.read_only = true; f.clocks.clear(); f.commit = None; }),
        ("commits take half a second",      Problem, Timing,       TIER,            "a hop takes",      |_, f| f.commit = Some(Ok(Duration::from_millis(600)))),
        ("nothing is in force",             Problem, Topics,       "",              "nothing is in force", |_, f| survey(f).applied = false),
        ("lanes differ from what is set",   Problem, Topics,       "",              "lanes: 3 asked",   |_, f| f.survey = Err("lanes: 3 asked".into())),
        ("one broker may acknowledge",      Problem, Topics,       TIER,            "min.insync.replicas is 1 of 3", |_, f| change(f, TIER, |t| { t.settings.insert("min.insync.replicas".into(), "1".into()); })),
        ("a tier forgets",                  Problem, Topics,       TIER,            "retention.ms is 1000", |_, f| change(f, TIER, |t| { t.settings.insert("retention.ms".into(), "1000".into()); })),
        ("a tier forgets by size",          Problem, Topics,       TIER,            "retention.bytes is 1", |_, f| change(f, TIER, |t| { t.settings.insert("retention.bytes".into(), "1".into()); })),
        ("meta is not compacted",           Problem, Topics,       "ns.meta",       "cleanup.policy is delete", |_, f| change(f, "ns.meta", |t| { t.settings.insert("cleanup.policy".into(), "delete".into()); })),
        ("a tier has too many partitions",  Problem, Topics,       TIER,            "partitions is 3",  |_, f| change(f, TIER, |t| t.partitions = 3)),
        ("a tier is missing",               Problem, Topics,       TIER,            "not there",        |_, f| { let s = survey(f); s.found.topics.remove(TIER); s.findings = diff(&Names::new("ns"), &s.wanted, &s.found); }),
        ("we may not write to a tier",      Problem, Permissions,  TIER,            "may not Write",    |_, f| { f.rights.get_mut(TIER).unwrap().as_mut().unwrap().remove(&Right::Write); }),
        ("we may not even see it",          Problem, Permissions,  TIER,            "described",        |_, f| { f.rights.insert(TIER.into(), Err("no".into())); }),
        ("we may not trim what is done",    Problem, Permissions,  "ns.tasks",      "may not Delete",   |_, f| { f.rights.get_mut("ns.tasks").unwrap().as_mut().unwrap().remove(&Right::Delete); }),
        ("workers may not join",            Problem, Permissions,  "",              "may not Read group ns-workers", |_, f| { f.workers.as_mut().unwrap().as_mut().unwrap().rights.remove(&Right::Read); }),
        ("results go by age",               Problem, Topics,       "ns.results",    "retention.ms is 1000", |_, f| change(f, "ns.results", |t| { t.settings.insert("retention.ms".into(), "1000".into()); })),
        ("a member of before tasks",        Problem, Group,        "",              "instances at a:1, b:2 are", |w, _| w.without_tasks = ["a:1", "b:2"].map(str::to_owned).into()),
        ("nobody calls tasks",              Note,    Group,        "",              "group ns-workers has no members", |_, f| f.workers.as_mut().unwrap().as_mut().unwrap().members.clear()),
        ("tasks wait for a worker",         Problem, Group,        "",              "no task is called", |_, f| { f.workers.as_mut().unwrap().as_mut().unwrap().members.clear(); let p = partition(f, TIER).clone(); f.partitions.insert(("ns.tasks".into(), 1), p); }),
        ("transactions are refused",        Problem, Permissions,  "",              "ns/doctor failed", |_, f| f.commit = Some(Err("no".into()))),
        ("a target refuses us",             Problem, Targets,      TARGET,          "allow permits",    |_, f| { f.rights.get_mut(TARGET).unwrap().as_mut().unwrap().remove(&Right::Write); }),
        ("everything is allowed",           Note,    Targets,      "",              "instance that runs", |w, _| w.allow = vec![Allow::new("ns", None).unwrap()]),
        ("instances differ",                Problem, Targets,      "",              "at a:1 and b:2",    |w, _| { w.allow_of = AllowOf::Instances(2); w.allow_differs = Some(["a:1", "b:2"].map(str::to_owned)); }),
        ("nobody says what is allowed",     Note,    Targets,      "",              "of this command",  |w, _| { w.allow = vec![Allow::new("ns", None).unwrap()]; w.allow_of = AllowOf::Configuration; }),
        ("everything is, for everybody",    Problem, Targets,      "",              "does not start",   |w, _| { w.allow = vec![Allow::new("ns", None).unwrap()]; w.is_ajar = true; }),
        ("a transaction hangs",             Problem, Transactions, "orders/1",      "open since",       |_, f| { let p = partition(f, TARGET); (p.stable, p.open_since) = (Some(7), Some(UnixMillis(NOW.0 - 1_000_000))); }),
        ("it hangs where nobody may mean",  Note,    Transactions, "orders/1",      "open since",       |w, f| { w.allow = vec![Allow::new("ns", None).unwrap()]; let p = partition(f, TARGET); (p.stable, p.open_since) = (Some(7), Some(UnixMillis(NOW.0 - 1_000_000))); }),
        ("a stranger's is open in a tier",  Note,    Transactions, "ns.delay.1m/1", "open since",       |_, f| { let p = partition(f, TIER); (p.stable, p.open_since) = (Some(7), Some(UnixMillis(NOW.0 - 60_000))); }),
        ("nobody runs, and records wait",   Problem, Group,        "",              "no members",       |_, f| members(f).clear()),
        ("nobody owns a lane",              Problem, Group,        "lane 1",        "nobody owns ns.intake", |_, f| members(f)[0].owns.retain(|(_, id)| *id == 0)),
        ("a position has expired",          Problem, Positions,    "ns.delay.1m/1", "no committed position", |_, f| committed(f, None)),
        ("a log was created again",             Problem, Positions,    "ns.delay.1m/1", "outside of the log", |_, f| committed(f, Some(Position { next: 21, window: Some((0, 21)) }))),
    ];
    for (why, severity, area, at, words, change) in cases {
        let (mut wish, mut facts) = (wish(), healthy());
        change(&mut wish, &mut facts);
        let list = findings(&wish, &facts, NOW);
        let is_it = |finding: &&Finding| {
            finding.severity == severity
                && finding.area == area
                && finding.at.to_string() == at
                && finding.what.contains(words)
        };
        let found = list.iter().find(is_it);
        assert!(found.is_some_and(|found| !found.remedy.is_empty()), "{why}: {list:#?}");
        let worst = list.iter().map(|finding| finding.severity).min();
        assert_eq!(worst, Some(severity), "{why}: {list:#?}");
    }
}

#[test]
fn what_passes_by_itself_is_no_problem() {
    type Change = fn(&mut Facts);
    #[rustfmt::skip]
    let cases: [(&str, Change); 6] = [
        ("nobody runs yet",                  |f| { members(f).clear(); for p in f.partitions.values_mut() { p.first = Some(0); } f.committed.as_mut().unwrap().values_mut().for_each(|p| *p = None); }),
        ("nobody runs, and nothing waits",   |f| { members(f).clear(); f.committed.as_mut().unwrap().values_mut().for_each(|p| *p = Some(Position { next: 20, window: Some((0, 20)) })); }),
        ("a rebalance is under way",         |f| f.group.as_mut().unwrap().is_stable = false),
        ("a lane was never started",         |f| { for p in f.partitions.values_mut() { p.first = Some(0); } committed(f, None); }),
        ("all of a lane is done and gone",   |f| { let p = partition(f, TIER); p.first = Some(20); committed(f, None); }),
        ("a transaction that has just begun",|f| { let p = partition(f, TIER); (p.stable, p.open_since) = (Some(7), Some(UnixMillis(NOW.0 - 5_000))); }),
    ];
    for (why, change) in cases {
        let mut facts = healthy();
        change(&mut facts);
        let list = findings(&wish(), &facts, NOW);
        let problem = list.iter().find(|finding| finding.severity == Severity::Problem);
        assert_eq!(problem, None, "{why}");
    }
}

/// Gives a topic of lane 0 to another member.
fn move_to(facts: &mut Facts, topic: &str, client_id: &str) {
    let all = members(facts);
    let mut other = Member { client_id: client_id.to_owned(), ..Member::default() };
    let taken = all[0].owns.iter().position(|(of, id)| of == topic && *id == 0).unwrap();
    other.owns.push(all[0].owns.remove(taken));
    all.push(other);
}

#[test]
fn a_lane_that_a_stranger_has_is_a_problem() {
    let mut facts = healthy();
    move_to(&mut facts, "ns.intake", "stranger");
    let list = findings(&wish(), &facts, NOW);
    let problem = list.iter().find(|finding| finding.severity == Severity::Problem).unwrap();
    assert_eq!(problem.at.to_string(), "lane 0");
    assert!(problem.what.contains("stranger"), "{}", problem.what);
}

#[test]
fn a_lane_runs_when_another_member_has_its_other_topics_and_a_note_says_so() {
    let mut facts = healthy();
    move_to(&mut facts, TIER, "waterclock/b/0/y");
    let list = findings(&wish(), &facts, NOW);
    let worst = list.iter().filter(|finding| finding.area == Area::Group).map(|f| f.severity).min();
    assert_eq!(worst, Some(Severity::Note), "{list:#?}");
    assert!(list.iter().any(|f| f.what.contains("topics: those of 1 lanes")), "{list:#?}");
}

#[test]
fn what_is_pending_is_counted_from_position_window_and_end() {
    let mut facts = healthy();
    // Of 10..18 two are pending, and 18..20 were not read: four in each of two lanes.
    assert!(backlog(&facts).iter().all(|topic| topic.pending == 8), "{:?}", backlog(&facts));
    committed(&mut facts, None);
    let tier = backlog(&facts).into_iter().find(|topic| topic.topic == TIER);
    assert_eq!(
        tier.map(|topic| topic.pending),
        Some(4 + 15),
        "all that is there where nothing is committed"
    );
}

#[test]
fn without_tasks_nothing_of_them_is_asked() {
    let (mut wish, mut facts) = (wish(), healthy());
    survey(&mut facts).tasks = false;
    survey(&mut facts).wanted.retain(|spec| !spec.kind.is_of_tasks());
    for topic in ["ns.tasks", "ns.results"] {
        survey(&mut facts).found.topics.remove(topic);
        facts.rights.remove(topic);
    }
    facts.workers = None;
    wish.without_tasks = vec!["a:1".to_owned()];
    let list = findings(&wish, &facts, NOW);
    assert!(list.iter().all(|finding| finding.severity == Severity::Ok), "{list:#?}");
}
