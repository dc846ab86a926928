//! Which member runs which lanes, and where it answers: what every member writes about itself in `<ns>.meta`, for
//! clients and members that have to find the owner of a lane.
//!
//! # Invariants
//! 1. The last member that claimed a lane is its owner, as far as can be known here. It may have lost the lane since.
//!    Only the member itself knows, so its answer must say when it is not the owner.
//! 2. A member that has written nothing for [`SILENT`] counts for nothing. That time is the topic's own, told by the
//!    probes of the brokers' clocks that come by: nobody's clock matters.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::log::{self, MEMBER, Secret, SecretInForce};
use crate::client::Connection;
use crate::client::topic_reader::Consumed;
use crate::client::wall_clock;
use waterclock_engine::allow::Allow;
use waterclock_engine::{Lane, Millis, UnixMillis};

/// The form that this program writes and understands.
const VERSION: u32 = 1;
/// Members say it again every 30 s; one that has missed that three times is gone.
const SILENT: Millis = Millis(95_000);

/// A process of the namespace, as it described itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub instance: String,
    /// Which start of it.
    pub incarnation: String,
    /// Where it answers, `host:port`.
    pub address: String,
    /// It takes TLS there.
    pub tls: bool,
    /// The lanes that it ran when it said so, ascending.
    pub lanes: Vec<Lane>,
    /// Its lane threads, each of which has transactions of its own; 0: it did not say so.
    pub threads: u16,
    /// By intake: which targets it delivers to, as [`Allow::sets`] has it; `None`: it did not say so.
    pub allow: Option<BTreeMap<String, Vec<Vec<String>>>>,
    /// The longest delay that it accepts; `None`: it did not say so.
    pub max_delay: Option<Millis>,
    /// It knows tasks; a program from before them does not say so.
    pub tasks: bool,
    /// It has a worker.
    pub worker: bool,
    /// It has the API, so it may create tasks; one that does not say so may.
    pub api: bool,
    /// The version of its program; `None`: it did not say so.
    pub program: Option<String>,
    /// When this start of it began, by its own clock; `None`: it did not say so.
    pub since: Option<UnixMillis>,
    /// What it had to do when it said so; `None`: it did not, or did not know it yet.
    pub load: Option<Load>,
}

/// What a member has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Offsets of its lanes that are not done, by the last count.
    pub pending: u64,
    /// Timers and tasks that are pending in its lanes: those of the records that have an id.
    pub timers: u64,
    /// Calls that its worker has open.
    pub open_calls: u64,
    /// Records that it delivered, and calls that it finished, a second.
    pub per_second: u64,
}

#[derive(Serialize, Deserialize)]
struct Text {
    /// Of this form.
    version: u32,
    instance: String,
    #[serde(rename = "boot")]
    incarnation: String,
    address: String,
    #[serde(default)]
    tls: bool,
    lanes: Vec<u16>,
    #[serde(default)]
    threads: u16,
    #[serde(default)]
    allow: Option<BTreeMap<String, Vec<Vec<String>>>>,
    /// In milliseconds.
    #[serde(default)]
    max_delay: Option<u64>,
    #[serde(default)]
    tasks: bool,
    #[serde(default)]
    worker: bool,
    #[serde(default = "yes")]
    api: bool,
    #[serde(default)]
    program: Option<String>,
    #[serde(default)]
    since: Option<u64>,
    #[serde(default)]
    load: Option<Load>,
    /// When it was written by the member's own clock, for people.
    at: u64,
}

fn yes() -> bool {
    true
}

impl Member {
    pub(crate) fn encode(&self) -> String {
        let text = Text {
            version: VERSION,
            instance: self.instance.clone(),
            incarnation: self.incarnation.clone(),
            address: self.address.clone(),
            tls: self.tls,
            lanes: self.lanes.iter().map(|lane| lane.0).collect(),
            threads: self.threads,
            allow: self.allow.clone(),
            max_delay: self.max_delay.map(|most| most.0),
            tasks: self.tasks,
            worker: self.worker,
            api: self.api,
            program: self.program.clone(),
            since: self.since.map(|at| at.0),
            load: self.load,
            at: wall_clock().0,
        };
        // Numbers and strings: nothing in them can fail.
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// `None` for an entry that it does not understand: one of a newer form is of no member that could be asked.
    fn decode(value: &[u8]) -> Option<Self> {
        let text: Text = serde_json::from_slice(value).ok()?;
        (text.version == VERSION).then(|| Self {
            instance: text.instance,
            incarnation: text.incarnation,
            address: text.address,
            tls: text.tls,
            lanes: text.lanes.into_iter().map(Lane).collect(),
            threads: text.threads,
            allow: text.allow,
            max_delay: text.max_delay.map(Millis),
            tasks: text.tasks,
            worker: text.worker,
            api: text.api,
            program: text.program,
            since: text.since.map(UnixMillis),
            load: text.load,
        })
    }

    /// Where it answers: `http://host:port`, or `https://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.address)
    }

    /// Which targets it delivers to of what comes by an intake; `None`: it did not say so.
    #[must_use]
    pub fn allows(&self, namespace: &str, intake: &str) -> Option<Allow> {
        Allow::of_sets(namespace, self.allow.as_ref()?.get(intake)?).ok()
    }
}

/// What the members have announced, as far as this process has read it.
pub type SharedRoster = Arc<Mutex<Roster>>;

/// What all members have announced, as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    announcements: BTreeMap<String, Announcement>,
    secret: SecretInForce,
    /// The topic's time: the last append time that was read.
    now: UnixMillis,
}

#[derive(Clone, Debug)]
struct Announcement {
    member: Member,
    offset: i64,
    at: UnixMillis,
}

impl Roster {
    /// Reads what the members say, up to the end that the topic has now.
    ///
    /// Blocks for at most 40 s. `topic` is `<ns>.meta`, `group` the namespace (nothing is committed).
    ///
    /// # Errors
    /// As [`read`](super::read).
    pub fn read(connection: &Connection, topic: &str, group: &str) -> Result<Self, log::Error> {
        let mut roster = Self::default();
        log::each(connection, topic, group, |record| roster.take_record(record))?;
        Ok(roster)
    }

    /// All members that are not silent, in the order of their names.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.present().map(|announced| &announced.member)
    }

    /// The member that last claimed a lane.
    #[must_use]
    pub fn owner(&self, lane: Lane) -> Option<&Member> {
        let claims = self.present().filter(|announced| announced.member.lanes.contains(&lane));
        claims.max_by_key(|announced| announced.offset).map(|announced| &announced.member)
    }

    /// The lanes of a member that no other has claimed since.
    pub fn lanes_of(&self, member: &Member) -> impl Iterator<Item = Lane> {
        let is_last = move |lane: &Lane| self.owner(*lane).is_some_and(|owner| owner == member);
        member.lanes.iter().copied().filter(is_last)
    }

    /// The members, each with the lanes that no other has claimed since.
    #[must_use]
    pub fn listed(&self) -> Vec<Member> {
        let listed = |member: &Member| {
            let lanes = self.lanes_of(member).collect();
            Member { lanes, ..member.clone() }
        };
        self.members().map(listed).collect()
    }

    /// Members whose announcements hold: not those whose lanes others have all claimed since. Such a member was killed, or it
    /// is about to say that it has none.
    pub fn active(&self) -> impl Iterator<Item = &Member> {
        let is_replaced = |of: &&Member| !of.lanes.is_empty() && self.lanes_of(of).next().is_none();
        self.members().filter(move |member| !is_replaced(member))
    }

    /// Announcements of members that are not silent.
    fn present(&self) -> impl Iterator<Item = &Announcement> {
        self.announcements.values().filter(|announced| self.now - announced.at <= SILENT)
    }

    /// The secret of the namespace, if it was read.
    pub(super) fn secret(&self) -> Option<Secret> {
        self.secret.get()
    }

    /// What the topic says of a member, silent or not.
    pub(crate) fn announced(&self, instance: &str) -> Option<&Member> {
        self.announcements.get(instance).map(|announced| &announced.member)
    }

    /// Takes in a record that was polled.
    pub(super) fn take_record(&mut self, record: &Consumed<'_>) {
        let at = record.appended().unwrap_or_default();
        self.secret.take(record.offset().0, record.key(), record.value());
        self.take(record.offset().0, at, record.key(), record.value());
    }

    pub(super) fn take(
        &mut self,
        offset: i64,
        at: UnixMillis,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) {
        self.now = self.now.max(at);
        let name = key.and_then(|key| key.strip_prefix(MEMBER.as_bytes()));
        let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else { return };
        match value.and_then(Member::decode) {
            Some(member) if member.instance == name => {
                self.announcements.insert(name.to_owned(), Announcement { member, offset, at });
            }
            // A farewell, or something that nobody can be asked by.
            _ => {
                self.announcements.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(instance: &str, lanes: &[u16]) -> Member {
        Member {
            instance: instance.to_owned(),
            incarnation: "0001".to_owned(),
            address: format!("{instance}:80"),
            tls: false,
            lanes: lanes.iter().copied().map(Lane).collect(),
            allow: None,
            max_delay: Some(Millis(60_000)),
            tasks: true,
            worker: true,
            api: false,
            threads: 1,
            program: Some("1.2.3".to_owned()),
            since: Some(UnixMillis(1_700_000_000_000)),
            load: Some(Load { pending: 9, timers: 7, open_calls: 2, per_second: 40 }),
        }
    }

    /// What is written at which second, by key and value; the roster that follows.
    fn roster(records: &[(u64, &str, Option<String>)]) -> Roster {
        let mut roster = Roster::default();
        for (offset, (at, key, value)) in (0..).zip(records) {
            let value = value.as_ref().map(String::as_bytes);
            roster.take(offset, UnixMillis(at * 1_000), Some(key.as_bytes()), value);
        }
        roster
    }

    #[test]
    fn the_last_one_that_claimed_a_lane_and_is_not_silent_owns_it() {
        let a = |lanes| Some(member("a", lanes).encode());
        let b = |lanes| Some(member("b", lanes).encode());
        type Case<'a> = (&'a str, &'a [(u64, &'a str, Option<String>)], Option<&'a str>);
        #[rustfmt::skip]
        let cases: [Case<'_>; 9] = [
            ("nobody",              &[], None),
            ("one",                 &[(0, "member/a", a(&[0, 1]))], Some("a")),
            ("of another lane",     &[(0, "member/a", a(&[0]))], None),
            ("both, the later",     &[(0, "member/a", a(&[1])), (1, "member/b", b(&[1]))], Some("b")),
            ("one let go",          &[(0, "member/b", b(&[1])), (1, "member/a", a(&[1])), (2, "member/a", a(&[]))], Some("b")),
            ("one left",            &[(0, "member/b", b(&[1])), (1, "member/a", a(&[1])), (2, "member/a", None)], Some("b")),
            ("silent for long",     &[(0, "member/a", a(&[1])), (96, "clock", None)], None),
            ("silent for a bit",    &[(0, "member/a", a(&[1])), (90, "clock", None)], Some("a")),
            ("under a wrong name",  &[(0, "member/c", a(&[1]))], None),
        ];
        for (why, records, want) in cases {
            let roster = roster(records);
            let owner = roster.owner(Lane(1)).map(|member| member.instance.as_str());
            assert_eq!(owner, want, "{why}");
        }
    }

    #[test]
    fn the_lanes_of_a_member_are_those_that_nobody_claimed_since() {
        let said = |name: &str, lanes: &[u16]| Some(member(name, lanes).encode());
        let mut records =
            vec![(0, "member/a", said("a", &[0, 1])), (1, "member/b", said("b", &[1, 2]))];
        let lanes = |roster: &Roster, name: &str| -> (Vec<u16>, bool) {
            let member = roster.announced(name).unwrap();
            let is_active = roster.active().any(|of| of == member);
            (roster.lanes_of(member).map(|lane| lane.0).collect(), is_active)
        };
        let before = roster(&records);
        assert_eq!(lanes(&before, "a"), (vec![0], true));
        assert_eq!(lanes(&before, "b"), (vec![1, 2], true));
        records.push((2, "member/b", said("b", &[0, 1, 2])));
        records.push((3, "member/c", said("c", &[])));
        let after = roster(&records);
        assert_eq!(lanes(&after, "a"), (vec![], false));
        assert_eq!(lanes(&after, "b"), (vec![0, 1, 2], true));
        assert_eq!(lanes(&after, "c"), (vec![], true), "it had none to lose");
        let listed: Vec<(String, usize)> =
            after.listed().into_iter().map(|of| (of.instance, of.lanes.len())).collect();
        assert_eq!(listed, [("a", 0), ("b", 3), ("c", 0)].map(|(name, n)| (name.to_owned(), n)));
    }

    #[test]
    fn a_member_of_before_knows_no_tasks_and_has_no_worker() {
        let said = r#"{"version":1,"instance":"a","boot":"1","address":"a:80","lanes":[],"at":0}"#;
        let before = Member::decode(said.as_bytes()).unwrap();
        assert_eq!((before.tasks, before.worker), (false, false));
        assert_eq!((before.program, before.since, before.load), (None, None, None));
    }

    /// As a program reads it that is older or newer.
    #[test]
    fn fields_that_are_not_known_or_not_there_do_not_matter() {
        let text = member("a", &[0]).encode();
        let newer = text
            .replacen('{', r#"{"colour":"red","#, 1)
            .replace(r#""pending":9"#, r#""pending":9,"weight":1"#)
            .replace(r#","per_second":40"#, "");
        assert_ne!(newer, text);
        let read = Member::decode(newer.as_bytes()).unwrap();
        let load = Load { per_second: 0, ..member("a", &[0]).load.unwrap() };
        assert_eq!(read, Member { load: Some(load), ..member("a", &[0]) });
    }

    #[test]
    fn what_a_member_says_is_read_back_and_what_is_not_understood_is_nobody() {
        let a = member("a", &[0, 7]);
        assert_eq!(Member::decode(a.encode().as_bytes()), Some(a.clone()));
        for strange in ["", "{", "null", &a.encode().replace("\"version\":1", "\"version\":2")] {
            let roster = roster(&[
                (0, "member/a", Some(a.encode())),
                (1, "member/a", Some(strange.to_owned())),
            ]);
            assert_eq!(roster.members().count(), 0, "{strange}");
        }
    }
}
