//! Conclusions about open transactions, members and positions. Pure.

use std::collections::BTreeMap;

use super::{Area, Facts, List, Location, Severity, Wish, backlog};
use crate::topics::Names;
use waterclock_engine::{Millis, UnixMillis};

/// Kafka's `transaction.max.timeout.ms` where nothing is set: no transaction may be open for longer.
const TRANSACTION_MAX: Millis = Millis(15 * 60_000);
/// The coordinator looks for transactions that are over their time this often.
const COORDINATOR_LOOK: Millis = Millis(10_000);
/// How the client ids of lane threads begin.
const CLIENT: &str = "waterclock/";

pub(super) fn transactions(wish: &Wish, facts: &Facts, now: UnixMillis, list: &mut List) {
    const AREA: Area = Area::Transactions;
    let most = facts.brokers.values().filter_map(|broker| match &broker.settings {
        super::Settings::Known(known) => known.get("transaction.max.timeout.ms")?.parse().ok(),
        _ => None,
    });
    let most = most.max().map_or(TRANSACTION_MAX, Millis) + COORDINATOR_LOOK;
    // The brokers' time, as far as it was measured: their stamps are compared with it.
    let ahead_us = facts.clocks.values().map(|skew| skew.least_us).min().unwrap_or_default();
    let now = UnixMillis(now.0.saturating_add_signed(ahead_us / 1_000));
    let mut open = 0;
    for ((topic, id), partition) in &facts.partitions {
        let (Some(stable), Some(last)) = (partition.stable, partition.last) else { continue };
        if stable >= last {
            continue;
        }
        open += 1;
        let Some(since) = partition.open_since else { continue };
        let age = now - since;
        let is_own = !facts.targets.contains(topic);
        let held = format!(
            "a transaction is open since {}: its readers wait at {stable}, the end is {last}",
            Millis(age.0 / 1_000 * 1_000)
        );
        let command = format!(
            "kafka-transactions.sh --bootstrap-server {} abort --topic {topic} --partition {id} --start-offset {stable}",
            facts.bootstrap
        );
        if age > most {
            let remedy =
                format!("it hangs: no producer may keep one for {most}. Abort it: {command}");
            list.add(wish.worst(facts, topic), AREA, Location::partition(topic, *id), held, remedy);
        } else if is_own && age > wish.transaction_timeout + COORDINATOR_LOOK {
            let remedy = "it is not one of ours, which end sooner: find the producer that writes here; records behind it wait";
            list.add(Severity::Note, AREA, Location::partition(topic, *id), held, remedy);
        }
    }
    let unknown = facts.partitions.iter().filter(|((topic, _), partition)| {
        !topic.starts_with("__") && partition.leader.is_some() && partition.stable.is_none()
    });
    let unknown = unknown.count();
    if unknown > 0 {
        list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            format!("the ends of {unknown} partitions are not known, so open transactions there are not seen"),
            "grant Describe on the topics",
        );
    }
    list.fine(AREA, format!("none hangs; {open} partitions have one open at this moment"));
}

/// Members that know nothing of tasks, where tasks are in force.
pub(super) fn without_tasks(wish: &Wish, facts: &Facts, list: &mut List) {
    let has_tasks = facts.survey.as_ref().is_ok_and(|survey| survey.tasks);
    if !has_tasks || wish.without_tasks.is_empty() {
        return;
    }
    let what = format!(
        "tasks are in force, and the instances at {} are of a version that knows none: they make dead letters of tasks",
        wish.without_tasks.join(", ")
    );
    let remedy = "stop them, and start this version in their place";
    list.add(Severity::Problem, Area::Group, Location::NONE, what, remedy);
}

/// The group of the workers. That it cannot be looked at is told with the permissions.
pub(super) fn workers(wish: &Wish, facts: &Facts, list: &mut List) {
    let Some(Ok(workers)) = &facts.workers else { return };
    if !workers.members.is_empty() {
        return;
    }
    let names = Names::new(&wish.request.namespace);
    let tasks = names.tasks();
    let of_tasks = facts.partitions.iter().filter(|((topic, _), _)| *topic == tasks);
    let is_used = of_tasks.filter_map(|(_, partition)| partition.last).any(|last| last > 0);
    let what = format!(
        "tasks are in force, and group {} has no members: no task is called",
        names.workers_group()
    );
    // Where no task was ever dispatched, nobody may want any.
    let severity = if is_used { Severity::Problem } else { Severity::Note };
    let remedy = "start an instance whose roles have `worker`: `waterclock run`, which has all roles unless `roles` says less";
    list.add(severity, Area::Group, Location::NONE, what, remedy);
}

pub(super) fn group(wish: &Wish, facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Group;
    let name = &wish.request.namespace;
    let group = match &facts.group {
        Ok(group) => group,
        Err(why) => {
            return list.add(
                Severity::Note,
                AREA,
                Location::NONE,
                format!("group {name} cannot be looked at: {why}"),
                "grant Describe on the group if it is refused; if its coordinator is only starting, look again in a few seconds",
            );
        }
    };
    let pending: u64 = backlog(facts).iter().map(|topic| topic.pending).sum();
    if group.members.is_empty() {
        let what = format!(
            "group {name} has no members: nothing is delivered; offsets that are not done: {pending}"
        );
        // Where nobody has run yet, nothing that stands there is late.
        let has_run = facts.committed.as_ref().is_ok_and(|all| all.values().any(Option::is_some));
        let severity = if has_run && pending > 0 { Severity::Problem } else { Severity::Note };
        return list.add(severity, AREA, Location::NONE, what, "start instances as they ran before: `waterclock run`, with the allow-lists in their configuration or by --allow");
    }
    if !group.is_stable {
        let what = format!("group {name} is rebalancing, with {} members", group.members.len());
        let remedy =
            "look again in a few seconds; if it goes on, members come and go: look at their logs";
        return list.add(Severity::Note, AREA, Location::NONE, what, remedy);
    }
    let Ok(survey) = &facts.survey else { return };
    let mut owners: BTreeMap<(&str, i32), &str> = BTreeMap::new();
    for member in &group.members {
        for (topic, partition) in &member.owns {
            owners.insert((topic, *partition), &member.client_id);
        }
    }
    // The owner of a lane's main intake runs the lane, with all topics that it knows.
    let intake = survey.topics.first().map_or("", String::as_str);
    let mut owned = 0;
    let mut apart = 0;
    for lane in 0..i32::from(survey.lanes) {
        let at = Location { partition: Some(lane), ..Location::NONE };
        match owners.get(&(intake, lane)) {
            None => list.add(
                Severity::Problem,
                AREA,
                at,
                format!("nobody owns {intake} of it: the lane does not run"),
                "the instance that notices it joins the group again by itself: look again in a minute. If it stays, look at the instances' logs",
            ),
            Some(owner) if !owner.starts_with(CLIENT) => list.add(
                Severity::Problem,
                AREA,
                at,
                format!("{intake} of it belongs to {owner}, which is no waterclock: the lane does not run"),
                "take it out of the group: nothing else may consume under this name",
            ),
            Some(owner) => {
                owned += 1;
                let of_lane = |topic: &String| owners.get(&(topic.as_str(), lane)) == Some(owner);
                apart += usize::from(!survey.topics.iter().all(of_lane));
            }
        }
    }
    if apart > 0 {
        list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            format!("members of the group know different topics: those of {apart} lanes were given to several members, or to none"),
            "an intake is read in the lanes of instances that know it: restart the others with the same configuration. Once all \
             have it the group forgets this at its next rebalance",
        );
    }
    let members = match group.members.len() {
        1 => "1 member owns".to_owned(),
        count => format!("{count} members own"),
    };
    list.fine(
        AREA,
        format!(
            "{members} {owned} of {} lanes; offsets that are not done: {pending}",
            survey.lanes
        ),
    );
}

pub(super) fn positions(wish: &Wish, facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Positions;
    let group = &wish.request.namespace;
    let committed = match &facts.committed {
        Ok(committed) => committed,
        Err(why) => {
            return list.add(
                Severity::Note,
                AREA,
                Location::NONE,
                format!("the positions of group {group} cannot be read: {why}"),
                "grant Describe on the group and on the topics",
            );
        }
    };
    let reset = |topic: &str, partition: i32| {
        format!(
            "to deliver again what may have been delivered: stop all instances, wait {} (Kafka keeps the last one's place in the group for so long), then kafka-consumer-groups.sh \
             --bootstrap-server {} --group {group} --topic {topic}:{partition} --reset-offsets --to-earliest --execute",
            wish.session_timeout, facts.bootstrap
        )
    };
    let is_running = facts.group.as_ref().is_ok_and(|group| !group.members.is_empty());
    let mut fresh = 0;
    for ((topic, id), position) in committed {
        let Some(partition) = facts.partitions.get(&(topic.clone(), *id)) else { continue };
        let (Some(first), Some(last)) = (partition.first, partition.last) else { continue };
        let at = Location::partition(topic, *id);
        match position {
            None if first > 0 && first < last => list.add(
                Severity::Problem,
                AREA,
                at,
                format!("no committed position, though records before {first} are done: it has expired, and no instance takes this lane over"),
                reset(topic, *id),
            ),
            None => fresh += 1,
            Some(position) if position.next < first || position.next > last => list.add(
                Severity::Problem,
                AREA,
                at,
                format!("the committed position {} is outside of the log, {first} to {last}: records were deleted, or the topic was created again", position.next),
                format!("find out who deleted them; what is left is delivered. {}", reset(topic, *id)),
            ),
            Some(position) if position.window.is_none() => list.add(
                Severity::Problem,
                AREA,
                at,
                format!("what is pending beside the committed position {} cannot be read: its lane rests", position.next),
                reset(topic, *id),
            ),
            Some(_) => {}
        }
    }
    let all = committed.len();
    let known = committed.values().flatten().count();
    if fresh > 0 && is_running {
        list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            format!("{fresh} of {all} partitions have no committed position yet"),
            "it passes when their lanes are taken over for the first time",
        );
    }
    list.fine(AREA, format!("{known} of {all} partitions committed, each inside of its log"));
}
