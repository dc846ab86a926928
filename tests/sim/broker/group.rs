//! The consumer group, classic protocol with `range`: a rebalance takes everything from everyone first.

use std::collections::BTreeMap;

/// The group coordinator's memory. The caller decides which members are alive ([`Group::remove`] is the session
/// timeout).
#[derive(Debug, Default)]
pub struct Group {
    generation: u32,
    /// Everyone known, and whether it has joined the round that is open.
    members: BTreeMap<String, bool>,
    /// Whether a round is open.
    preparing: bool,
    /// The lanes of each member of the present generation.
    assignment: BTreeMap<String, Vec<u16>>,
}

impl Group {
    /// Takes a member into the round; opens one if none is.
    pub fn join(&mut self, member: &str) {
        self.prepare();
        self.members.insert(member.to_owned(), true);
    }

    /// Someone left, or was silent for too long.
    pub fn remove(&mut self, member: &str) {
        if self.members.remove(member).is_some() {
            self.assignment.remove(member);
            self.prepare();
        }
    }

    fn prepare(&mut self) {
        if !self.preparing {
            self.preparing = true;
            self.members.values_mut().for_each(|joined| *joined = false);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn knows(&self, member: &str) -> bool {
        self.members.contains_key(member)
    }

    /// Whether the present round, open or over, has this member.
    pub fn has_joined(&self, member: &str) -> bool {
        self.members.get(member).is_some_and(|joined| *joined || !self.preparing)
    }

    /// Those that the round still waits for.
    pub fn awaited(&self) -> Vec<String> {
        let absent = self.members.iter().filter(|(_, joined)| self.preparing && !**joined);
        absent.map(|(member, _)| member.clone()).collect()
    }

    /// Ends the round if all have joined: `range` over `lanes` partitions of every topic.
    pub fn complete(&mut self, lanes: u16) -> bool {
        if !self.preparing || !self.awaited().is_empty() {
            return false;
        }
        self.preparing = false;
        self.generation += 1;
        self.assignment.clear();
        let count = self.members.len().max(1) as u16;
        let (each, more) = (lanes / count, lanes % count);
        let mut next = 0;
        for (index, member) in self.members.keys().enumerate() {
            let take = each + u16::from((index as u16) < more);
            self.assignment.insert(member.clone(), (next..next + take).collect());
            next += take;
        }
        true
    }

    /// Generation and lanes, once the round is over.
    pub fn assignment(&self, member: &str) -> Option<(u32, &[u16])> {
        let lanes = self.assignment.get(member)?;
        (!self.preparing).then_some((self.generation, lanes.as_slice()))
    }

    /// Whether offsets of this member are taken: its generation is the present one, though a round may be open.
    pub fn is_current(&self, member: &str, generation: u32) -> bool {
        self.generation == generation && self.members.contains_key(member)
    }
}
