//! Which dead members' transactions are to be ended.
//!
//! Offsets in an open transaction are not stable, and the next owner of the partitions waits for them. To initialise a
//! producer of the same transactional id aborts the transaction at once.
//!
//! # Invariants
//! 1. Fenced is only a member that is not in the group and left partitions behind. Its commits are refused anyway, as its
//!    generation is over. A member that was only thrown out makes new producers, as after any failed batch.
//! 2. Each start of a process is fenced once.

use std::collections::BTreeSet;
use std::fmt::Display;

/// A member, as it announced itself last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The name of its process.
    pub instance: String,
    /// Which start of the process it is.
    pub incarnation: String,
    /// How its members in the group are named.
    pub members: Named,
    /// It had partitions.
    pub has_partitions: bool,
}

/// How a process names its members in a group, as their transactional ids have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Lane threads: so many, numbered from 0.
    Threads(usize),
    /// Its worker: one, called [`WORKER`].
    Worker,
}

/// How the one worker of a process is called, where lane threads have a number.
pub const WORKER: &str = "w";

impl Announced {
    /// The transactional ids under which it may have left something open; each member takes so many in turns.
    #[must_use]
    pub fn transactional_ids(&self, namespace: impl Display, turns: usize) -> Vec<String> {
        let members = match self.members {
            Named::Threads(threads) => {
                (0..threads.max(1)).map(|thread| thread.to_string()).collect()
            }
            Named::Worker => vec![WORKER.to_owned()],
        };
        let ids = members.iter().flat_map(|member| (0..turns).map(move |turn| (member, turn)));
        let instance = &self.instance;
        ids.map(|(member, turn)| format!("{namespace}/{instance}/{member}/{turn}")).collect()
    }
}

/// Those that were fenced, by instance and incarnation.
#[derive(Debug, Default)]
pub struct Fenced(BTreeSet<(String, String)>);

impl Fenced {
    /// Takes from those that announced themselves the ones to fence now: each once. `is_here` says which instances have a
    /// member in the group.
    pub fn dead(
        &mut self,
        announced: impl IntoIterator<Item = Announced>,
        is_here: impl Fn(&str) -> bool,
    ) -> Vec<Announced> {
        let left = announced.into_iter().filter(|member| member.has_partitions);
        let dead = left.filter(|member| !is_here(&member.instance));
        let id = |member: &Announced| (member.instance.clone(), member.incarnation.clone());
        dead.filter(|member| self.0.insert(id(member))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(instance: &str, incarnation: &str, has_partitions: bool) -> Announced {
        let (instance, incarnation) = (instance.to_owned(), incarnation.to_owned());
        Announced { instance, incarnation, members: Named::Threads(2), has_partitions }
    }

    #[test]
    fn each_start_that_left_partitions_behind_is_fenced_once() {
        let mut fenced = Fenced::default();
        let is_here = |instance: &str| instance == "here";
        #[rustfmt::skip]
        let table = [
            ("in the group",               announced("here", "1", true),  false),
            ("it had nothing",             announced("dead", "1", false), false),
            ("it left partitions behind",  announced("dead", "1", true),  true),
            ("once",                       announced("dead", "1", true),  false),
            ("its next start",             announced("dead", "2", true),  true),
        ];
        for (why, member, want) in table {
            let dead = fenced.dead([member.clone()], is_here);
            assert_eq!(dead, Vec::from_iter(want.then_some(member)), "{why}");
        }
    }

    #[test]
    fn it_may_have_left_something_open_in_each_thread_and_turn() {
        let ids = announced("a", "1", true).transactional_ids("ns", 2);
        assert_eq!(ids, ["ns/a/0/0", "ns/a/0/1", "ns/a/1/0", "ns/a/1/1"]);
        let named = |members| Announced { members, ..announced("a", "1", true) };
        assert_eq!(named(Named::Threads(0)).transactional_ids("ns", 1), ["ns/a/0/0"]);
        assert_eq!(named(Named::Worker).transactional_ids("ns", 2), ["ns/a/w/0", "ns/a/w/1"]);
        assert!(announced("a", "1", true).transactional_ids("ns", 0).is_empty());
    }
}
