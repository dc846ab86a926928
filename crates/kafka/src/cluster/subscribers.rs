//! How many members of consumer groups read a topic: whether anybody is there to execute what stands in it.
//!
//! Kafka describes groups, and no topic says who reads it. So one question is about all groups, and its answer is good for all topics.
//!
//! A group of the classic protocol is in librdkafka's list, with what its members subscribe to and are given. One of the protocol of
//! KIP-848 stands there as if it were dead. It is described by itself, and librdkafka gives only what its members are given.
//!
//! # Invariants
//! 1. That nobody reads a topic is said only where nothing hides a reader: no right that is missing, no group that could not be looked
//!    into. Kafka leaves out of its list the groups that we may not describe, and does not say so.
//! 2. The question goes by a client of its own. Brokers answer a connection in order, and what lanes ask must not stand behind
//!    thousands of groups.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::client::Connection;
use crate::client::connect::Asker;
use crate::client::consumer_protocol::{partitions, topics};
use crate::client::raw::ask::{self, Each, Group};
use crate::client::resilient_admin::ResilientAdmin;

/// How long the brokers may take to describe all groups.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Groups that are described each by itself, at most.
const DESCRIBED_MAX: usize = 100;
/// A group that nobody has. Only who may describe all groups is told that it is not there.
const NOBODYS: &str = "?";
/// What clients call the protocol of consumers.
const CONSUMERS: &str = "consumer";

/// Asks Kafka who reads what.
pub struct Subscribers {
    connection: Connection,
    /// Made with the first question: most processes are never asked.
    admin: Option<ResilientAdmin>,
}

impl Subscribers {
    /// Asks these brokers, from the first question on.
    #[must_use]
    pub fn new(connection: &Connection) -> Self {
        Self { connection: connection.clone(), admin: None }
    }

    /// Asks about all groups. Blocks for some seconds at most.
    ///
    /// # Errors
    /// No answer in time.
    pub fn ask(&mut self) -> Result<Subscriptions, KafkaError> {
        let admin = match &self.admin {
            Some(admin) => admin,
            None => self.admin.insert(ResilientAdmin::new(&self.connection, "waterclock-groups")?),
        };
        admin.ask_parts(look)
    }
}

/// What the groups say, and the errors of those that could not be described.
fn look(asker: &Asker) -> Result<(Subscriptions, Vec<RDKafkaErrorCode>), KafkaError> {
    let until = Instant::now() + ANSWER_MAX;
    let list = asker.fetch_group_list(None, ANSWER_MAX)?;
    let mut found = Subscriptions { is_whole: true, ..Subscriptions::default() };
    // None is described twice, which librdkafka refuses.
    let mut others = BTreeSet::from([NOBODYS.to_owned()]);
    for group in list.groups() {
        let members = group.members().iter().map(|member| {
            (member.metadata().unwrap_or_default(), member.assignment().unwrap_or_default())
        });
        let of = (group.protocol_type(), group.state());
        if !found.take_in(of, members) {
            others.insert(group.name().to_owned());
        }
    }
    if others.len() > DESCRIBED_MAX {
        others.clear();
        found.is_whole = false;
    }
    let others: Vec<String> = others.into_iter().collect();
    let described = ask::groups(asker, &others, until.saturating_duration_since(Instant::now()))?;
    let errors = described.iter().filter_map(|(_, group)| group.as_ref().err().copied()).collect();
    found.take_in_described(described);
    Ok((found, errors))
}

/// How many members of groups read each topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriptions {
    members: BTreeMap<String, u32>,
    /// Nothing hides a reader.
    is_whole: bool,
}

impl Subscriptions {
    /// How many members read this topic, as far as Kafka tells us; `None`: none does that is seen, and there may be some.
    #[must_use]
    pub fn of(&self, topic: &str) -> Option<u32> {
        match self.members.get(topic) {
            Some(count) => Some(*count),
            None => self.is_whole.then_some(0),
        }
    }

    /// Takes in a group of the list: its type of protocol and its state, and of each member what it subscribes to and is given. False:
    /// the list does not know this group, which is of another protocol.
    fn take_in<'a>(
        &mut self,
        (of_type, state): (&str, &str),
        members: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> bool {
        match (of_type, state) {
            (_, "Dead") => return false,
            (_, "Empty") => {}
            (CONSUMERS, "Stable") => {
                for (subscription, assignment) in members {
                    let (Some(topics), Some(partitions)) =
                        (topics(subscription), partitions(assignment))
                    else {
                        self.is_whole = false;
                        continue;
                    };
                    let given = partitions.into_iter().map(|(topic, _)| topic);
                    self.count(topics.into_iter().chain(given).collect());
                }
            }
            // In a rebalance a broker does not say what members subscribe to. Without a type it is one that we may not describe.
            (CONSUMERS | "", _) => self.is_whole = false,
            // Workers of Kafka Connect, say.
            _ => {}
        }
        true
    }

    /// Takes in the groups that were described each by itself.
    fn take_in_described(&mut self, groups: Each<Group>) {
        for (_, group) in groups {
            let Ok(group) = group else {
                self.is_whole = false;
                continue;
            };
            for member in group.members {
                // Nobody says what it subscribes to.
                self.is_whole &= !member.owns.is_empty();
                self.count(member.owns.iter().map(|(topic, _)| topic.as_str()).collect());
            }
        }
    }

    /// Counts a member that reads these topics.
    fn count(&mut self, topics: BTreeSet<&str>) {
        for topic in topics {
            *self.members.entry(topic.to_owned()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::consumer_protocol::tests::{assignment, subscription};
    use crate::client::raw::ask::Member;

    type Members = [(Vec<u8>, Vec<u8>)];

    fn whole() -> Subscriptions {
        Subscriptions { is_whole: true, ..Subscriptions::default() }
    }

    fn take(into: &mut Subscriptions, of: (&str, &str), members: &Members) -> bool {
        into.take_in(of, members.iter().map(|(subscription, given)| (&**subscription, &**given)))
    }

    fn owner(of: &[(&str, i32)]) -> Member {
        let owns = of.iter().map(|(topic, partition)| ((*topic).to_owned(), *partition)).collect();
        Member { owns, ..Member::default() }
    }

    #[test]
    fn members_are_counted_by_what_they_subscribe_to_and_are_given() {
        let mut found = whole();
        let a = (subscription(&["parts"]), assignment(&[("parts", &[0, 1])]));
        let spare = (subscription(&["parts"]), Vec::new());
        let both = (subscription(&["parts", "bills"]), assignment(&[("bills", &[0])]));
        // It was given this before it subscribed to something else.
        let late = (subscription(&["bills"]), assignment(&[("orders", &[3])]));
        assert!(take(&mut found, (CONSUMERS, "Stable"), &[a, spare]));
        assert!(take(&mut found, (CONSUMERS, "Stable"), &[both, late]));
        assert!(take(&mut found, (CONSUMERS, "Empty"), &[]));
        assert!(take(&mut found, ("connect", "Stable"), &[(b"other".to_vec(), Vec::new())]));
        assert!(take(&mut found, ("connect", "PreparingRebalance"), &[]));
        for (topic, want) in [("parts", 3), ("bills", 2), ("orders", 1), ("other", 0)] {
            assert_eq!(found.of(topic), Some(want), "{topic}");
        }
    }

    #[test]
    fn nobody_is_said_to_be_there_only_if_nothing_hides_a_reader() {
        let of = |topic: &str| (subscription(&[topic]), Vec::new());
        #[rustfmt::skip]
        let cases: [(&str, (&str, &str), &Members, bool); 7] = [
            ("another one is read",        (CONSUMERS, "Stable"),              &[of("bills")],                 true),
            ("nobody is in it",            ("", "Empty"),                      &[],                            true),
            ("a member cannot be read",    (CONSUMERS, "Stable"),              &[(b"\0".to_vec(), Vec::new())], false),
            ("nor what it was given",      (CONSUMERS, "Stable"),              &[(of("bills").0, vec![1])],    false),
            ("a rebalance",                (CONSUMERS, "PreparingRebalance"),  &[(Vec::new(), Vec::new())],    false),
            ("the end of one",             (CONSUMERS, "CompletingRebalance"), &[(Vec::new(), Vec::new())],    false),
            ("one that we may not describe", ("", ""),                         &[],                            false),
        ];
        for (why, group, members, is_known) in cases {
            let mut found = whole();
            assert!(take(&mut found, group, members), "{why}");
            assert_eq!(found.of("parts"), is_known.then_some(0), "{why}");
            // Who is seen is counted all the same.
            assert!(take(&mut found, (CONSUMERS, "Stable"), &[of("parts")]), "{why}");
            assert_eq!(found.of("parts"), Some(1), "{why}");
        }
        assert_eq!(Subscriptions::default().of("parts"), None);
    }

    #[test]
    fn a_group_of_the_other_protocol_is_described_by_itself() {
        let mut found = whole();
        assert!(!take(&mut found, ("", "Dead"), &[]));
        let group = |members: &[Member]| Group { members: members.to_vec(), ..Group::default() };
        let named = |group| ("g".to_owned(), group);
        let owner = owner(&[("parts", 0), ("parts", 1)]);
        found.take_in_described(vec![named(Ok(group(&[]))), named(Ok(group(&[owner])))]);
        assert_eq!((found.of("parts"), found.of("bills")), (Some(1), Some(0)));
        // A member that is given nothing may be about to read it; and a group may be none that we may look into.
        let denied = RDKafkaErrorCode::GroupAuthorizationFailed;
        for hides in [Ok(group(&[Member::default()])), Err(denied)] {
            let mut found = found.clone();
            found.take_in_described(vec![named(hides)]);
            assert_eq!((found.of("parts"), found.of("bills")), (Some(1), None));
        }
    }
}
