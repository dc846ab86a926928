//! What our principal may do, and what it must be able to do. Pure.

use crate::client::raw::ask::{Group, Right};
use crate::topics::{Kind, Names, TopicSpec};

use super::{AllowOf, Area, Facts, List, Location, Severity, Wish};

use Right::{Delete, Describe, DescribeConfigs, Read, Write};

/// What is needed on own topics of a kind.
fn needed(kind: Kind) -> &'static [Right] {
    match kind {
        // Records are moved between lanes and hop back; done records are deleted.
        // So are tasks that workers have ended, and what they said of them.
        Kind::Intake | Kind::Delay | Kind::Tasks | Kind::Results => {
            &[Read, Write, Delete, Describe, DescribeConfigs]
        }
        _ => &[Read, Write, Describe, DescribeConfigs],
    }
}

/// The rights that are needed on a target. Its settings are asked for, and guessed if there is no answer.
const ON_TARGETS: [Right; 2] = [Write, Describe];
const ON_THE_GROUP: [Right; 2] = [Read, Describe];
/// Targets that are named one by one; more are counted.
const NAMED_MAX: usize = 10;

pub(super) fn rights(wish: &Wish, facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Permissions;
    let Ok(survey) = &facts.survey else { return };
    for TopicSpec { name, kind, .. } in &survey.wanted {
        if let Some(known) = facts.rights.get(name) {
            match known {
                Ok(rights) => {
                    let missing = needed(*kind).iter().filter(|right| !rights.contains(right));
                    let missing: Vec<&str> = missing.map(|right| right.as_str()).collect();
                    if !missing.is_empty() {
                        list.add(
                            Severity::Problem,
                            AREA,
                            Location::topic(name),
                            format!("we may not {} here", missing.join(", ")),
                            "grant it; `waterclock acl print` prints all that is needed",
                        );
                    }
                }
                Err(why) => list.add(
                    Severity::Problem,
                    AREA,
                    Location::topic(name),
                    format!("it cannot be described: {why}"),
                    "grant Describe; `waterclock acl print` prints all that is needed",
                ),
            }
        }
    }
    let names = Names::new(&wish.request.namespace);
    on_group(names.namespace(), &facts.group, list);
    if let Some(workers) = &facts.workers {
        on_group(&names.workers_group(), workers, list);
    }
    match &facts.commit {
        Some(Err(why)) => list.add(
            Severity::Problem,
            AREA,
            Location::NONE,
            format!("a small transaction under {}/doctor failed: {why}", wish.request.namespace),
            "look at __transaction_state, and grant Write and Describe on the transactional ids; `waterclock acl print` \
             prints all that is needed",
        ),
        None if wish.exactly_once && wish.read_only => list.add(
            Severity::Note,
            AREA,
            Location::NONE,
            "transactions were not tried: reading only",
            "leave --read-only out",
        ),
        _ => {}
    }
    let owns = list.0.iter().filter(|finding| finding.area == AREA).count();
    if owns == 0 {
        let count = facts.rights.len() - facts.targets.len().min(facts.rights.len());
        list.fine(AREA, format!("all that is needed on {count} own topics"));
    }
}

fn on_group(name: &str, group: &Result<Group, String>, list: &mut List) {
    let Ok(group) = group else { return };
    let missing = ON_THE_GROUP.iter().filter(|right| !group.rights.contains(right));
    let missing: Vec<&str> = missing.map(|right| right.as_str()).collect();
    // A group that is not there yet tells nothing of rights.
    if !missing.is_empty() && !group.rights.is_empty() {
        let what = format!("we may not {} group {name}", missing.join(", "));
        let remedy = "grant it; `waterclock acl print` prints all that is needed";
        list.add(Severity::Problem, Area::Permissions, Location::NONE, what, remedy);
    }
}

pub(super) fn targets(wish: &Wish, facts: &Facts, list: &mut List) {
    const AREA: Area = Area::Targets;
    let is_open = wish.is_open();
    let whose = match wish.allow_of {
        AllowOf::Instances(1) => "the instance that runs".to_owned(),
        AllowOf::Instances(count) if wish.allow_differs.is_some() => {
            format!("one at least of the {count} instances that are known")
        }
        AllowOf::Instances(count) => format!("the {count} instances that are known"),
        AllowOf::Configuration => {
            "the configuration of this command, as no instance says its own".to_owned()
        }
    };
    if let Some([one, other]) = &wish.allow_differs {
        let what = format!(
            "the instances have different allow-lists, those at {one} and {other} for example: which one holds for a record depends on who owns its lane"
        );
        list.add(
            Severity::Problem,
            AREA,
            Location::NONE,
            what,
            "give all instances the same configuration, or the same --allow, and restart those that have another",
        );
    }
    if is_open {
        let severity = if wish.is_ajar { Severity::Problem } else { Severity::Note };
        let what = if wish.is_ajar {
            format!(
                "`allow` is not set in {whose}, and the brokers are not on this machine: with this, `run` does not start"
            )
        } else {
            format!(
                "`allow` is not set in {whose}: records are delivered to every topic that we may write to, for anyone who may write a delay"
            )
        };
        let remedy = "set allow to the topics that are meant, as in allow = ['orders\\..*']";
        list.add(severity, AREA, Location::NONE, what, remedy);
    }
    let refused: Vec<&String> = facts
        .targets
        .iter()
        .filter(|topic| {
            facts.rights.get(*topic).is_some_and(|known| {
                !known.as_ref().is_ok_and(|rights| ON_TARGETS.iter().all(|r| rights.contains(r)))
            })
        })
        .collect();
    // With an open list, most topics are not meant.
    if !is_open {
        for topic in refused.iter().take(NAMED_MAX) {
            list.add(
                Severity::Problem,
                AREA,
                Location::topic(topic),
                "allow permits it, and Kafka does not let us write to it: its records become dead letters or hold batches up",
                "grant Write and Describe on it, or take it out of allow",
            );
        }
        if refused.len() > NAMED_MAX {
            let more = refused.len() - NAMED_MAX;
            let what = format!("{more} more topics that allow permits cannot be written to");
            list.add(Severity::Problem, AREA, Location::NONE, what, "see above");
        }
    }
    let can = facts.targets.len() - refused.len();
    list.fine(
        AREA,
        format!(
            "{can} {} may be delivered to, by `allow` of {whose}",
            if can == 1 { "topic that is there" } else { "topics that are there" }
        ),
    );
}
