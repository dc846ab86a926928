//! Hostile producers: records that no well-behaved client writes, many of them at once, beside those of all others.
//!
//! They may write to every intake and tier, read what stands there, and know every name. What each of their records must come to
//! is said by the contract as for any other record; that nobody else is late because of them, and that memory is bounded, is
//! checked of the others.

use waterclock::engine::timers::TimerId;
use waterclock::engine::{Cut, CutBy, Millis, Record};

use super::{
    Act, Fate, Header, Submission, When, Workload, header, java_partition, malformed, record,
};
use crate::broker::Time;
use crate::chance::Chance;
use crate::plan::{Hostile, Plan, SECOND};

/// A target whose partition 0 has no leader for some time.
pub const AWAY: &str = "x-away";
/// A compacted target.
pub const KEYED: &str = "x-keyed";
/// Targets of hostile worlds: name, partitions, limit.
pub const TARGETS: [(&str, usize, u64); 2] =
    [(AWAY, 2, super::RECORD_BYTES_MAX), (KEYED, 1, super::RECORD_BYTES_MAX)];
/// Targets that are there, and that no record may go to: name, and the code that says so.
pub const CLOSED: [(&str, &str); 4] = [
    ("x-owned", "target_forbidden"),
    ("x-hidden", "target_refused"),
    ("x-narrow", "target_refused"),
    ("x-closed", "target_refused"),
];
/// What names of targets begin with that do not exist; brokers take their time to say so.
pub const GHOST: &str = "x-ghost-";

/// A state of waterclock's that its producer has read in a topic and puts on a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theft {
    /// On a record of another key.
    Foreign,
    /// On a copy of its record, in a topic that takes no such state.
    Elsewhere,
    /// On a copy of its record, changed by a bit.
    Changed,
    /// On another record of the same key and target, where it may stand: nothing but that is sealed.
    Twice,
}

/// Headers that break the contract besides those that every world has.
type Bad = (&'static [(&'static str, Option<&'static str>)], &'static str);

#[rustfmt::skip]
const BAD: &[Bad] = &[
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-label", Some("a\nb"))], "bad_label"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-label", Some("0123456789012345678901234567890123456789012345678901234567890123456"))], "bad_label"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-attempt", Some("first"))], "bad_header"),
    (&[("x-delay", Some("1s")), ("x-delay-target", None)], "bad_header"),
    (&[("x-delay", Some("9223372036854775807")), ("x-delay-target", Some("t0"))], "delay_overflow"),
    (&[("x-delay-until", Some("2099-01-01T00:00:00Z")), ("x-delay-target", Some("t0"))], "delay_too_long"),
    (&[("x-delay-until", Some("100000000000001")), ("x-delay-target", Some("t0"))], "ambiguous_timestamp"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-partition", Some("2147483648"))], "bad_partition"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-id", Some("a/../b"))], "bad_id"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-action", Some("replace"))], "missing_id"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-error-code", Some("expired"))], "unknown_header"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("t0")), ("x-delay-expires", Some("500d"))], "bad_expires"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("other.timers"))], "target_denied"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("waterclock.delay.1s"))], "target_forbidden"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("waterclock.dead"))], "target_forbidden"),
];

/// What its producers draw from.
struct Gang<'a> {
    load: &'a mut Workload,
    plan: &'a Plan,
    chance: &'a mut Chance,
}

impl Workload {
    /// What hostile producers do, beside all that was drawn before.
    pub(super) fn attack(&mut self, plan: &Plan, of: &Hostile, chance: &mut Chance) {
        let mut gang = Gang { load: self, plan, chance };
        gang.ghosts(of.ghosts);
        gang.malformed(of.malformed);
        gang.commands(of.commands);
        (0..of.others).for_each(|_| gang.other());
        if of.others > 0 {
            gang.longest();
        }
    }
}

impl Gang<'_> {
    fn at(&mut self) -> Time {
        self.chance.between(self.plan.submits.0, self.plan.submits.1)
    }

    /// Writes a record; a key that is none of anybody else's.
    fn push(&mut self, at: Time, topic: usize, headers: Vec<Header>, fates: Vec<Fate>) -> usize {
        let key = format!("evil-{}", self.chance.below(50)).into_bytes();
        self.push_of(Some(key), at, topic, headers, fates)
    }

    fn push_of(
        &mut self,
        key: Option<Vec<u8>>,
        at: Time,
        topic: usize,
        mut headers: Vec<Header>,
        fates: Vec<Fate>,
    ) -> usize {
        let number = self.load.submissions.len();
        headers.insert(0, header("n", number));
        let id = headers.iter().find(|(name, _)| name == b"x-delay-id");
        let id = id.and_then(|(_, id)| id.clone());
        let lanes = u32::from(self.plan.setup.lanes);
        let own = key.as_deref().or(id.as_deref()).map(|key| java_partition(key, lanes));
        // Of another partitioner, now and then.
        let partition = match own {
            Some(own) if self.chance.percent(80) => own,
            _ => self.chance.below(lanes as usize) as i32,
        };
        let value = vec![7; self.chance.below(40)];
        self.load.submissions.push(Submission {
            at,
            topic,
            partition,
            record: record(key.as_deref(), Some(&value), &headers),
            when: When::After(0),
            fates,
            expires: None,
            trace: false,
            transaction: None,
            own_lane: own.is_none_or(|own| own == partition),
            timer: id.map(|id| TimerId::new(key.as_deref(), &id)),
            act: Act::Create,
            hostile: true,
            theft: None,
        });
        number
    }

    fn due(&mut self, made: usize, when: When) {
        self.load.submissions[made].when = when;
    }

    /// An intake, or a tier that lets go within the longest delay, and its hold.
    fn topic(&mut self) -> (usize, Time) {
        let intakes = self.plan.setup.topics.intakes.len();
        if self.chance.percent(60) {
            return (self.chance.below(intakes), 0);
        }
        let tiers = self.plan.setup.topics.ladder.tiers();
        let within = tiers.iter().filter(|tier| tier.hold.0 <= self.plan.delay_max.max(SECOND));
        let tier = self.chance.below(within.count().max(1));
        (intakes + tier, tiers[tier].hold.0)
    }

    /// Records for targets that do not exist, each for another one, within some milliseconds.
    fn ghosts(&mut self, count: usize) {
        let from = self.at();
        for n in 0..count {
            let at = from + self.chance.between(0, 200);
            let delay = *self.chance.pick(&[0, 10, SECOND, self.plan.delay_max]);
            let headers =
                vec![header("x-delay-target", format!("{GHOST}{n}")), header("x-delay", delay)];
            let made = self.push(at, 0, headers, vec![Fate::Dead("target_missing")]);
            self.due(made, When::After(delay));
        }
    }

    /// Records that break the contract, in one lane.
    fn malformed(&mut self, count: usize) {
        let (from, lane) = (self.at(), self.chance.below(usize::from(self.plan.setup.lanes)));
        for _ in 0..count {
            let at = from + self.chance.between(0, 100);
            let made = self.bad(at);
            self.load.submissions[made].partition = lane as i32;
        }
    }

    fn bad(&mut self, at: Time) -> usize {
        let (headers, code) =
            if self.chance.percent(50) { *self.chance.pick(BAD) } else { malformed(self.chance) };
        let of = headers.iter().map(|(name, value)| {
            (name.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()))
        });
        let made = self.push(at, 0, of.collect(), vec![Fate::Dead(code)]);
        // It is no timer's.
        self.load.submissions[made].timer = None;
        made
    }

    /// Cancels and replaces of ids that nobody made.
    fn commands(&mut self, count: usize) {
        let from = self.at();
        for n in 0..count {
            let at = from + self.chance.between(0, 2 * SECOND);
            let cancels = self.chance.percent(70);
            let mut headers = vec![header("x-delay-id", format!("never-{n}"))];
            let (action, fates) = if cancels {
                ("cancel", Vec::new())
            } else {
                headers.push(header("x-delay-target", "t1"));
                headers.push(header("x-delay", 200));
                ("replace", vec![Fate::Deliver { target: "t1", partition: None }])
            };
            headers.push(header("x-delay-action", action));
            let topic = self.chance.below(2);
            let made = self.push(at, topic, headers, fates);
            let of = &mut self.load.submissions[made];
            of.act = if cancels { Act::Cancel } else { Act::Replace };
            of.when = When::After(if cancels { 0 } else { 200 });
            if let Some(timer) = of.timer.filter(|_| cancels) {
                self.load.cancels.entry(timer).or_default().push(made);
            }
        }
    }

    fn other(&mut self) {
        let at = self.at();
        match self.chance.between(0, 99) {
            0..=19 => {
                self.bad(at);
            }
            20..=29 => self.closed(at),
            30..=39 => self.away(at),
            40..=49 => self.collides(at),
            50..=57 => self.expires(at),
            58..=64 => self.cut(at),
            65..=69 => self.in_a_tier(at),
            70..=74 => self.without_a_key(at),
            75..=77 => self.many_headers(at),
            78..=82 => self.delays(at),
            _ => self.steals(at),
        }
    }

    fn closed(&mut self, at: Time) {
        let (target, code) = *self.chance.pick(&CLOSED);
        let delay = self.chance.spread(1, self.plan.delay_max);
        let mut headers = vec![header("x-delay-target", target), header("x-delay", delay)];
        if self.chance.percent(30) {
            headers.push(header("x-delay-id", format!("closed-{}", self.chance.below(9))));
        }
        let (topic, _) = self.topic();
        let made = self.push(at, topic, headers, vec![Fate::Dead(code)]);
        self.due(made, When::After(delay));
    }

    fn away(&mut self, at: Time) {
        let delay = self.chance.spread(1, self.plan.delay_max);
        let headers = vec![header("x-delay-target", AWAY), header("x-delay", delay)];
        let fates = vec![Fate::Deliver { target: AWAY, partition: None }];
        let (topic, _) = self.topic();
        let made = self.push(at, topic, headers, fates);
        self.due(made, When::After(delay));
    }

    /// The id of somebody else's timer, with another key: its own, or the id itself.
    fn collides(&mut self, at: Time) {
        let ids: Vec<Vec<u8>> = (0..20)
            .map(|n| format!("id-{n}"))
            .chain((0..self.plan.stories).map(|n| format!("story-{n}")))
            .map(String::into_bytes)
            .collect();
        let id = self.chance.pick(&ids).clone();
        let key = if self.chance.percent(50) { id.clone() } else { b"evil".to_vec() };
        let delay = self.chance.spread(1, self.plan.delay_max);
        let mut headers = vec![(b"x-delay-id".to_vec(), Some(id))];
        let cancels = self.chance.percent(40);
        let fates = if cancels {
            headers.push(header("x-delay-action", "cancel"));
            Vec::new()
        } else {
            headers.push(header("x-delay-target", "t0"));
            headers.push(header("x-delay", delay));
            vec![Fate::Deliver { target: "t0", partition: None }]
        };
        // The commands of one id use one intake.
        let made = self.push_of(Some(key), at, 0, headers, fates);
        let of = &mut self.load.submissions[made];
        of.when = When::After(if cancels { 0 } else { delay });
        of.act = if cancels { Act::Cancel } else { Act::Create };
        if let Some(timer) = of.timer.filter(|_| cancels) {
            self.load.cancels.entry(timer).or_default().push(made);
        }
    }

    /// An expiry within some milliseconds of the due time.
    fn expires(&mut self, at: Time) {
        let delay = *self.chance.pick(&[100, SECOND, self.plan.delay_max.max(100)]);
        let around = *self.chance.pick(&[-1, 0, 1, 40, 49, 50, 51, 60, 200]);
        let expires = delay.saturating_add_signed(around);
        let headers = vec![
            header("x-delay-target", "t1"),
            header("x-delay", delay),
            header("x-delay-expires", expires),
        ];
        let mut fates = vec![Fate::Dead("expired")];
        if around >= 0 {
            fates.push(Fate::Deliver { target: "t1", partition: None });
        }
        let made = self.push(at, 0, headers, fates);
        let of = &mut self.load.submissions[made];
        (of.when, of.expires) = (When::After(delay), Some(When::After(expires)));
    }

    /// The rest of a record that is larger than what is ever held, or whose batch is broken.
    fn cut(&mut self, at: Time) {
        let (by, code, most) = *self.chance.pick(&[
            (CutBy::Record, "too_large", 1),
            (CutBy::Batch, "too_large", 3),
            (CutBy::Headers, "too_large", 1),
            (CutBy::Unreadable, "unreadable", 3),
        ]);
        let fates = vec![Fate::Dead(code)];
        let made = self.push(at, 0, vec![header("x-delay-target", "t0")], fates);
        let of = &mut self.load.submissions[made];
        let others = self.chance.below(most) as u32;
        let bytes = 600 << 20;
        let cut = Cut { bytes, by, others, without_key: false, without_headers: false };
        // Of one with more headers than can be read none is left, and so no number.
        let headers = of.record.headers().take(if by == CutBy::Headers { 0 } else { usize::MAX });
        of.record = Record::cut(cut, of.record.key(), headers);
    }

    /// With an id, and mostly a command, straight to a tier.
    fn in_a_tier(&mut self, at: Time) {
        let tiers = self.plan.setup.topics.ladder.tiers();
        let tier = self.chance.below(tiers.len().min(2));
        let topic = self.plan.setup.topics.intakes.len() + tier;
        let mut headers = vec![header("x-delay-target", "t0"), header("x-delay-id", "tier")];
        if self.chance.percent(70) {
            let action = *self.chance.pick(&["cancel", "replace"]);
            headers.push(header("x-delay-action", action));
            let made = self.push(at, topic, headers, vec![Fate::Dead("unsupported_action")]);
            self.load.submissions[made].timer = None;
            return;
        }
        let fates = vec![Fate::Deliver { target: "t0", partition: None }];
        let made = self.push(at, topic, headers, fates);
        self.due(made, When::After(tiers[tier].hold.0));
    }

    fn without_a_key(&mut self, at: Time) {
        let headers = vec![header("x-delay-target", KEYED), header("x-delay", 300)];
        let key = self.chance.percent(30).then(|| b"evil".to_vec());
        let fates = match &key {
            Some(_) => vec![Fate::Deliver { target: KEYED, partition: None }],
            None => vec![Fate::Dead("missing_key")],
        };
        let made = self.push_of(key, at, 0, headers, fates);
        self.due(made, When::After(300));
    }

    fn many_headers(&mut self, at: Time) {
        let mut headers = vec![header("x-delay-target", "t0"), header("x-delay", 0)];
        let is_one_too_many = self.chance.percent(70);
        // The number is one of them.
        let count = if is_one_too_many { 1_001 } else { 1_000 };
        headers.extend((headers.len() + 1..count).map(|_| header("h", "")));
        let fates = if is_one_too_many {
            vec![Fate::Dead("too_many_headers")]
        } else {
            vec![Fate::Deliver { target: "t0", partition: None }]
        };
        self.push(at, 0, headers, fates);
    }

    /// As short as can be, and one millisecond more than is allowed.
    fn delays(&mut self, at: Time) {
        let max = self.plan.setup.limits.max_delay;
        let (delay, fate) = if self.chance.percent(50) {
            (0, Fate::Deliver { target: "t0", partition: None })
        } else {
            (max.0 + 1, Fate::Dead("delay_too_long"))
        };
        let headers = vec![header("x-delay-target", "t0"), header("x-delay", delay)];
        self.push(at, 0, headers, vec![fate]);
    }

    /// The longest delay that is allowed.
    fn longest(&mut self) {
        let (at, Millis(delay)) = (self.at(), self.plan.setup.limits.max_delay);
        let headers = vec![header("x-delay-target", "t0"), header("x-delay", delay)];
        let fates = vec![Fate::Deliver { target: "t0", partition: None }];
        let made = self.push(at, 0, headers, fates);
        self.due(made, When::After(delay));
    }

    /// What it steals is found when it is written ([`World::steal`](crate::world::World)).
    fn steals(&mut self, at: Time) {
        let kinds = [Theft::Foreign, Theft::Elsewhere, Theft::Changed, Theft::Twice];
        let theft = *self.chance.pick(&kinds);
        // Once something stands in the tiers.
        let at = at + self.chance.spread(1, 20 * SECOND);
        let headers = vec![header("x-delay-target", "t0"), header("x-delay", 0)];
        let made = self.push(at, 0, headers, vec![Fate::Dead("bad_state")]);
        self.load.submissions[made].theft = Some(theft);
    }
}

/// What a state says of when its record is due and expires (section 7 of the contract), where it says it in the shorter form.
pub fn due_and_expiry(state: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| Some(u64::from_be_bytes(*state.get(at..)?.first_chunk::<8>()?));
    Some((number(4)?, number(36)?)).filter(|_| state.first() == Some(&1))
}

/// Whether a state has the form of a task's (section 7 of the contract).
pub fn is_of_task(state: &[u8]) -> bool {
    state.first() == Some(&3)
}
