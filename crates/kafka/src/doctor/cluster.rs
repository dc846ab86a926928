//! Conclusions about brokers, clocks, topics and the time that things take. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Area, Facts, List, Location, Settings, Severity, Wish};
use crate::topics;
use waterclock_engine::Millis;
use waterclock_engine::window::METADATA_MAX;

/// With fewer, an acknowledged record may stand on one disk only.
const BROKERS_MIN: usize = 3;
/// Clocks that differ by more make records late by as much, and are worth a look.
const SKEW_NOTED: Duration = Duration::from_millis(50);
/// Those that differ by more make every record late by as much: that is what hurts, whatever the ladder bears.
const SKEW_MAX: Duration = Duration::from_millis(500);
/// A machine that is off by more writes log lines and `x-delay-until` values that mislead.
const LOCAL_SKEW_NOTED: Duration = Duration::from_secs(1);
/// What Kafka allows for a batch where nothing is set.
const MESSAGE_BYTES_DEFAULT: u64 = 1_048_588;
const MINUTE_MS: u64 = 60_000;

pub(super) fn brokers(wish: &Wish, facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Brokers;
    let count = facts.brokers.len();
    for (id, broker) in &facts.brokers {
        match &broker.settings {
            Settings::Known(known) => settings(wish, *id, known, list),
            Settings::Refused => list.add(
                Severity::Note,
                AREA,
                Location::broker(*id),
                "it does not let us read its settings, so they are not checked",
                "grant DescribeConfigs on the cluster to the principal that runs `waterclock doctor`",
            ),
            Settings::Silent(why) => list.add(
                Severity::Problem,
                AREA,
                Location::broker(*id),
                format!("it does not answer at {}: {why}", broker.address),
                "look whether it runs, and whether its advertised.listeners can be reached from here",
            ),
        }
    }
    gone(wish, facts, list);
    internal(facts, list);
    if count < BROKERS_MIN {
        list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            format!("{count} of at least {BROKERS_MIN} brokers: what is acknowledged may stand on one disk only"),
            "for production, run three brokers or more, and new topics get three replicas",
        );
    }
    if facts.controller.is_none() {
        list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            "the cluster names no controller",
            "look at the logs of the controllers; topics cannot be made, nor leaders chosen, without one",
        );
    }
    let versions: BTreeSet<&str> = facts.brokers.values().filter_map(version).collect();
    if versions.len() > 1 {
        let all = versions.iter().copied().collect::<Vec<_>>().join(", ");
        list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            format!("brokers of different versions: {all}"),
            "finish the upgrade",
        );
    }
    let controller = facts.controller.map_or_else(String::new, |id| format!(", controller {id}"));
    let version = versions.first().map_or_else(String::new, |version| format!(", {version}"));
    list.fine(AREA, format!("{count} answer{controller}{version}"));
}

/// As far as settings tell it; the protocol does not.
fn version(broker: &super::Broker) -> Option<&str> {
    let Settings::Known(known) = &broker.settings else { return None };
    Some(match known.get("inter.broker.protocol.version") {
        Some(version) => version,
        None => "Kafka 4.0 or later",
    })
}

/// Brokers that should have replicas and are not in the cluster, and replicas that lag.
fn gone(wish: &Wish, facts: &Facts, list: &mut List) {
    let mut missing: BTreeMap<i32, usize> = BTreeMap::new();
    let mut lagging: BTreeMap<&str, usize> = BTreeMap::new();
    for ((topic, id), partition) in &facts.partitions {
        for replica in partition.replicas.iter().filter(|id| !facts.brokers.contains_key(id)) {
            *missing.entry(*replica).or_default() += 1;
        }
        if partition.leader.is_none() {
            list.add(
                wish.worst(facts, topic),
                Area::Brokers,
                Location::partition(topic, *id),
                "it has no leader: nothing can be read from it or written to it",
                "start the brokers that have its replicas",
            );
        } else if partition.in_sync.len() < partition.replicas.len() {
            *lagging.entry(topic).or_default() += 1;
        }
    }
    for (broker, count) in missing {
        list.add(
            Severity::Problem,
            Area::Brokers,
            Location::broker(broker),
            format!(
                "it is not there, and should have replicas of {count} partitions that concern us"
            ),
            "start it, or move its replicas with kafka-reassign-partitions.sh",
        );
    }
    for (topic, count) in lagging {
        list.add(
            Severity::Note,
            Area::Brokers,
            Location::topic(topic),
            format!("{count} partitions have replicas that are not in sync"),
            "look at the brokers' disks and network; it passes after a restart",
        );
    }
}

/// Kafka's own topics, on which exactly-once rests.
fn internal(facts: &Facts, list: &mut List) {
    let internal = facts.partitions.iter().filter(|((topic, _), _)| topic.starts_with("__"));
    let mut least: BTreeMap<&str, usize> = BTreeMap::new();
    for ((topic, _), partition) in internal {
        let replicas = partition.replicas.len();
        least.entry(topic).and_modify(|least| *least = replicas.min(*least)).or_insert(replicas);
    }
    for (topic, replicas) in least {
        if facts.brokers.len() >= BROKERS_MIN && replicas < BROKERS_MIN {
            list.add(
                Severity::Problem,
                Area::Brokers,
                Location::topic(topic),
                format!(
                    "{replicas} replicas: with that broker positions and transactions are lost"
                ),
                "give it three replicas with kafka-reassign-partitions.sh, and set \
                 offsets.topic.replication.factor and transaction.state.log.replication.factor to 3",
            );
        }
    }
}

/// One broker's settings.
fn settings(wish: &Wish, id: i32, known: &BTreeMap<String, String>, list: &mut List) {
    let number = |name: &str| known.get(name).and_then(|value| value.parse::<u64>().ok());
    let is_on = |name: &str| known.get(name).is_some_and(|value| value == "true");
    let mut add = |severity, what: String, remedy: String| {
        list.add(severity, Area::Brokers, Location::broker(id), what, remedy);
    };
    let set = |name: &str, value: u64| {
        format!("set {name}={value} in the properties of every broker, and restart them in turn")
    };
    if let Some(minutes) = number("offsets.retention.minutes")
        && minutes.saturating_mul(MINUTE_MS) < wish.outage.0
    {
        let name = "offsets.retention.minutes";
        add(
            Severity::Problem,
            format!(
                "{name} is {minutes}: when all instances are away for longer than {}, their positions are lost, and what \
                 was delivered cannot be told from what was not",
                Millis(minutes * MINUTE_MS)
            ),
            set(name, wish.outage.0.div_ceil(MINUTE_MS)),
        );
    }
    if let Some(bytes) = number("offset.metadata.max.bytes")
        && bytes < METADATA_MAX as u64
    {
        let name = "offset.metadata.max.bytes";
        add(
            Severity::Problem,
            format!(
                "{name} is {bytes}: a commit that says what is pending takes up to {METADATA_MAX}"
            ),
            set(name, METADATA_MAX as u64),
        );
    }
    if let Some(most) = number("transaction.max.timeout.ms").filter(|_| wish.exactly_once)
        && most < wish.transaction_timeout.0
    {
        let name = "transaction.max.timeout.ms";
        add(
            Severity::Problem,
            format!(
                "{name} is {most}, and transaction-timeout {}: no transaction can begin",
                wish.transaction_timeout
            ),
            format!(
                "set transaction-timeout to at most {}, or {}",
                Millis(most),
                set(name, 900_000)
            ),
        );
    }
    let session = wish.session_timeout;
    for (name, refuses) in [
        ("group.min.session.timeout.ms", (|limit, asked| asked < limit) as fn(u64, u64) -> bool),
        ("group.max.session.timeout.ms", |limit, asked| asked > limit),
    ] {
        if let Some(limit) = number(name).filter(|limit| refuses(*limit, session.0)) {
            add(
                Severity::Problem,
                format!("{name} is {limit}, and session-timeout {session}: no instance can join"),
                format!("set session-timeout to {}", Millis(limit)),
            );
        }
    }
    if let Some(bytes) = number("message.max.bytes").filter(|bytes| *bytes < MESSAGE_BYTES_DEFAULT)
    {
        add(
            Severity::Note,
            format!(
                "message.max.bytes is {bytes}: targets without a limit of their own take no larger batches, and what is larger is dead-lettered as too_large"
            ),
            format!(
                "{}, or max.message.bytes of the targets",
                set("message.max.bytes", MESSAGE_BYTES_DEFAULT)
            ),
        );
    }
    if is_on("auto.create.topics.enable") {
        add(
            Severity::Note,
            "auto.create.topics.enable is on: a producer that misspells an intake makes a new topic, which no process reads".to_owned(),
            "set auto.create.topics.enable=false in the properties of every broker".to_owned(),
        );
    }
    if is_on("unclean.leader.election.enable") {
        add(
            Severity::Note,
            "unclean.leader.election.enable is on: targets that do not switch it off may lose records that were \
             acknowledged (own topics do switch it off)"
                .to_owned(),
            "set unclean.leader.election.enable=false in the properties of every broker".to_owned(),
        );
    }
    if known.get("transaction.partition.verification.enable").is_some_and(|value| value == "false")
    {
        add(
            Severity::Note,
            "transaction.partition.verification.enable is off: a late write can leave a transaction open for ever"
                .to_owned(),
            "set transaction.partition.verification.enable=true in the properties of every broker".to_owned(),
        );
    }
}

/// At most how far the clocks of brokers certainly differ.
fn skew(facts: &Facts) -> Duration {
    let most = facts.clocks.values().map(|skew| skew.least_us).max();
    let least = facts.clocks.values().map(|skew| skew.most_us).min();
    let us = most.zip(least).map_or(0, |(most, least)| most.saturating_sub(least).max(0));
    Duration::from_micros(us.unsigned_abs())
}

pub(super) fn clocks(wish: &Wish, facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Clocks;
    if wish.read_only {
        let why = "not looked at: reading only";
        return list.add(Severity::Note, AREA, Location::NONE, why, "leave --read-only out");
    }
    // They are probed through a topic of ours.
    if !facts.survey.as_ref().is_ok_and(|survey| survey.applied) {
        return;
    }
    let silent: Vec<String> = facts
        .brokers
        .keys()
        .filter(|id| !facts.clocks.contains_key(id))
        .map(i32::to_string)
        .collect();
    if !silent.is_empty() {
        list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            format!("no probe was acknowledged by broker {}", silent.join(", ")),
            "a broker is probed through a partition of <ns>.meta that it leads: look whether it leads one \
             (`waterclock topics diff`), and whether we may write there",
        );
    }
    let between = skew(facts);
    if between > SKEW_NOTED {
        let by = |at: &dyn Fn(&super::Skew) -> i64, most: bool| {
            let all = facts.clocks.iter();
            let found = if most {
                all.max_by_key(|(_, skew)| at(skew))
            } else {
                all.min_by_key(|(_, skew)| at(skew))
            };
            found.map_or(-1, |(id, _)| *id)
        };
        let (ahead, behind) = (by(&|skew| skew.least_us, true), by(&|skew| skew.most_us, false));
        list.add(
            if between > SKEW_MAX { Severity::Problem } else { Severity::Note },
            AREA,
            Location::broker(ahead),
            format!(
                "its clock is at least {} ms ahead of broker {behind}'s: nothing is early by that, but records may be late by it",
                between.as_millis()
            ),
            "synchronise the brokers' clocks (chrony or ntpd)",
        );
    }
    for (id, skew) in &facts.clocks {
        let off = Duration::from_micros(
            skew.least_us.max(0).unsigned_abs().max((-skew.most_us).max(0).unsigned_abs()),
        );
        if off > LOCAL_SKEW_NOTED {
            list.add(
                Severity::Note,
                AREA,
                Location::broker(*id),
                format!(
                    "this machine's clock is at least {} ms off its clock: no due time is kept by it, but log lines and \
                     what producers here write into x-delay-until are",
                    off.as_millis()
                ),
                "synchronise this machine's clock",
            );
        }
    }
    if facts.clocks.is_empty() {
        return;
    }
    let round_trip = facts.clocks.values().map(|skew| skew.round_trip).max().unwrap_or_default();
    list.fine(
        AREA,
        format!(
            "brokers differ by {} ms for certain; round trip {:.1} ms at best",
            between.as_millis(),
            round_trip.as_secs_f64() * 1e3
        ),
    );
}

pub(super) fn topics(facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Topics;
    let survey = match &facts.survey {
        Ok(survey) => survey,
        Err(why) => {
            let remedy = "as it says";
            return list.add(Severity::Problem, AREA, Location::NONE, why, remedy);
        }
    };
    if !survey.applied {
        let remedy = "run `waterclock topics apply`";
        let what = "nothing is in force in this namespace";
        return list.add(Severity::Problem, AREA, Location::NONE, what, remedy);
    }
    for finding in &survey.findings {
        let severity = match finding.severity {
            topics::Severity::Missing | topics::Severity::Wrong | topics::Severity::Weak => {
                Severity::Problem
            }
            topics::Severity::Note => Severity::Note,
        };
        let topics::Finding { topic, what, found, wanted, remedy, .. } = finding;
        let what = format!("{what} is {found}, want {wanted}");
        list.add(severity, AREA, Location::topic(topic), what, remedy);
    }
    let (count, lanes) = (survey.wanted.len(), survey.lanes);
    list.fine(
        AREA,
        format!("{count} as they must be, {lanes} lanes; what is pending is kept for ever"),
    );
}

/// Design 5.2: what the way takes has to fit into the lead, and into what is left of the hold beside it.
pub(super) fn timing(wish: &Wish, facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Timing;
    let Ok(survey) = &facts.survey else { return };
    if wish.read_only {
        let why = "not measured: reading only";
        return list.add(Severity::Note, AREA, Location::NONE, why, "leave --read-only out");
    }
    if facts.clocks.is_empty() {
        return;
    }
    let ms = |took: Duration| Millis(took.as_millis() as u64);
    let commit = match &facts.commit {
        Some(Ok(took)) => ms(*took),
        _ => Millis(0),
    };
    let round_trip = facts.clocks.values().map(|skew| skew.round_trip).max().unwrap_or_default();
    let (fetch, skew) = (ms(round_trip), ms(skew(facts)));
    // From the choice of a tier to the append there.
    let hop = wish.hop_linger + wish.commit_interval + commit;
    // From the release of a head to where it waits for its due time.
    let way = fetch + wish.commit_interval + commit + skew;
    for tier in survey.ladder.tiers().iter().filter(|tier| tier.open) {
        let topic =
            || Location::topic(&topics::Names::new(&wish.request.namespace).tier(tier.hold));
        let in_hand = tier.reach().max(wish.request.horizon).saturating_sub(tier.wait());
        if hop > in_hand {
            list.add(
                Severity::Problem,
                AREA,
                topic(),
                format!("a hop takes {hop} (linger {}, commit {commit}), and {in_hand} are in hand: it would be late", wish.hop_linger),
                "shorten hop-linger, lengthen lead, or look why commits take so long",
            );
        }
        let room = tier.lead.min(tier.wait());
        if way > room {
            list.add(
                Severity::Problem,
                AREA,
                topic(),
                format!("from release to due there are {room}, and fetch {fetch}, commit {commit} and skew {skew} take {way}: records would be late"),
                "synchronise the brokers' clocks, look why commits take so long, lengthen lead, or leave short tiers out",
            );
        }
    }
    list.fine(
        AREA,
        format!("a hop takes {hop}, from release to due {way} (fetch {fetch}, commit {commit}, skew {skew}): it fits every tier"),
    );
}
