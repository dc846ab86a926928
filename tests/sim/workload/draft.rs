//! One submission in the making: its headers, and what each of them means for what may become of it.

use waterclock::engine::Millis;

use super::{Fate, Header, SMALL_TARGET, TARGETS, WIDENED, When, header, record};
use crate::broker::{EPOCH_MS, POISON, Time};
use crate::chance::Chance;
use crate::plan::{DAY, MINUTE, Plan, SECOND};
use crate::workload::DENIED;

/// Headers that break the contract, and the code that says so; all but the time and target are set by these.
pub(super) type Bad = (&'static [(&'static str, Option<&'static str>)], &'static str);

const GOOD_TARGET: (&str, Option<&str>) = ("x-delay-target", Some("t0"));

#[rustfmt::skip]
const BAD: &[Bad] = &[
    (&[GOOD_TARGET, ("x-delay", Some("soon"))], "bad_delay"),
    (&[GOOD_TARGET, ("x-delay", Some("-5"))], "negative_delay"),
    (&[GOOD_TARGET, ("x-delay", Some("500d"))], "delay_too_long"),
    (&[GOOD_TARGET, ("x-delay", Some("99999999999999999999"))], "delay_overflow"),
    (&[GOOD_TARGET, ("x-delay-until", Some("1700000000"))], "ambiguous_timestamp"),
    (&[GOOD_TARGET, ("x-delay-until", Some("yesterday"))], "bad_until"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-until", Some("1800000100000"))], "conflicting_directives"),
    (&[GOOD_TARGET], "missing_delay"),
    (&[("x-delay", Some("1s"))], "missing_target"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("a b"))], "bad_target"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("waterclock.intake"))], "target_forbidden"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("__consumer_offsets"))], "target_forbidden"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("secret"))], "target_denied"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("gone"))], "target_missing"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-partition", Some("-1"))], "bad_partition"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-partition", Some("99"))], "bad_partition"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-action", Some("cancel"))], "missing_id"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-action", Some("melt"))], "bad_action"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-id", Some(""))], "bad_id"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-expires", Some("never"))], "bad_expires"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-trace", Some("2"))], "bad_trace"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), GOOD_TARGET], "duplicate_header"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-spell", Some("1"))], "unknown_header"),
    (&[GOOD_TARGET, ("x-delay", None)], "bad_header"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-state", Some("\u{1}forged"))], "bad_state"),
];

/// One of them.
pub(super) fn malformed(chance: &mut Chance) -> Bad {
    loop {
        let bad = *chance.pick(BAD);
        // Whose target alone is wrong has something of a timer.
        if !matches!(bad.1, "bad_state") {
            return bad;
        }
    }
}

/// A submission in the making.
pub(super) struct Draft {
    pub(super) headers: Vec<Header>,
    pub(super) when: When,
    pub(super) fates: Vec<Fate>,
    pub(super) expires: Option<When>,
    pub(super) trace: bool,
    pub(super) topic: usize,
    /// It breaks the contract.
    pub(super) broken: bool,
}

impl Draft {
    pub(super) fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known == name.as_bytes())
    }

    pub(super) fn bad(&mut self, chance: &mut Chance) {
        let (headers, code) = *chance.pick(BAD);
        self.headers.extend(headers.iter().map(|(name, value)| {
            (name.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()))
        }));
        self.fates = vec![Fate::Dead(code)];
        // What only its target can tell may be cancelled before.
        let by_target = headers.iter().any(|(_, value)| matches!(value, Some("99" | "gone")))
            || matches!(code, "target_forbidden" | "target_denied");
        self.broken = !by_target;
    }

    /// Many of one key, due at one instant: their order is what counts.
    pub(super) fn crowd(&mut self, due: u64) {
        self.when = When::At(due);
        self.headers.push(header("x-delay-until", due));
        self.headers.push(header("x-delay-target", "t0"));
        self.fates = vec![Fate::Deliver { target: "t0", partition: None }];
    }

    /// Due within the horizon, but late enough to make it through a tier.
    pub(super) fn brief(&mut self, chance: &mut Chance) {
        let delay = chance.between(1_200, 1_990);
        self.after(chance, delay);
        self.headers.push(header("x-delay-target", "t0"));
        self.fates = vec![Fate::Deliver { target: "t0", partition: None }];
    }

    /// Follows the contract, and is refused by the broker.
    pub(super) fn poison(&mut self, plan: &Plan, chance: &mut Chance) {
        let delay = *chance.pick(&[0, 1_000, plan.delay_max.min(30 * SECOND)]);
        self.after(chance, delay);
        if chance.percent(30) {
            self.headers.push(header("x-delay-target", DENIED));
        } else {
            self.headers.push(header("x-delay-target", chance.pick(&["t0", "t1"])));
            self.headers.push((POISON.to_vec(), None));
        }
        self.fates = vec![Fate::Dead("target_refused")];
    }

    /// Nothing but what the intake's defaults say.
    pub(super) fn defaults(&mut self) {
        self.topic = 1;
        self.when = When::After(4_500);
        self.fates = vec![Fate::Deliver { target: "t0", partition: None }];
    }

    /// Written to a tier by one who knows the ladder.
    pub(super) fn tier(&mut self, plan: &Plan, chance: &mut Chance) {
        let tiers = plan.setup.topics.ladder.tiers();
        let within = tiers.iter().filter(|tier| tier.hold.0 <= plan.delay_max.max(SECOND)).count();
        let tier = chance.below(within.max(1));
        self.topic = plan.setup.topics.intakes.len() + tier;
        self.when = When::After(tiers[tier].hold.0);
        if chance.percent(30) {
            let delay = chance.spread(1, plan.delay_max);
            self.when = When::After(delay);
            self.headers.push(header("x-delay", delay));
        }
        self.target(plan, chance);
    }

    pub(super) fn ordinary(
        &mut self,
        plan: &Plan,
        chance: &mut Chance,
        at: Time,
        instants: &[u64],
    ) {
        match chance.between(0, 9) {
            0 => self.after(chance, 0),
            1 => {
                let delay = border(plan, chance);
                self.after(chance, delay);
            }
            2..=5 => {
                let delay = chance.spread(1, plan.delay_max);
                self.after(chance, delay);
            }
            6..=7 => {
                let due = *chance.pick(instants);
                self.when = When::At(due);
                self.headers.push(header("x-delay-until", due));
            }
            8 => {
                let due = EPOCH_MS + at + chance.spread(1, plan.delay_max);
                // A fraction of a millisecond is rounded up.
                let fraction = chance.between(0, 999_999);
                self.when = When::At(due + u64::from(fraction > 0));
                self.headers.push(header("x-delay-until", rfc3339(due, fraction)));
            }
            _ => {
                let due = EPOCH_MS - chance.spread(1, DAY);
                self.when = When::At(due);
                self.headers.push(header("x-delay-until", due));
            }
        }
        self.target(plan, chance);
        if chance.percent(10) {
            self.expiry(plan, chance);
        }
        if chance.percent(10) {
            self.trace = true;
            self.headers.push(header("x-delay-trace", 1));
        }
        if chance.percent(10) {
            self.headers.push(header("x-delay-label", "a label"));
        }
    }

    pub(super) fn after(&mut self, chance: &mut Chance, delay: u64) {
        self.when = When::After(delay);
        let text = if chance.percent(50) { delay.to_string() } else { Millis(delay).to_string() };
        self.headers.push(header("x-delay", text));
    }

    pub(super) fn target(&mut self, plan: &Plan, chance: &mut Chance) {
        let (name, partitions, _) = *chance.pick(&TARGETS);
        self.headers.push(header("x-delay-target", name));
        let widens = name == WIDENED.0 && !plan.healthy();
        let most = if widens { WIDENED.1 } else { partitions };
        let partition = chance.percent(15).then(|| chance.below(most) as i32);
        if let Some(partition) = partition {
            self.headers.push(header("x-delay-partition", partition));
        }
        self.fates = vec![Fate::Deliver { target: name, partition }];
        if partition.is_some_and(|partition| partition as usize >= partitions) {
            // Before it is widened there is no such partition.
            self.fates.push(Fate::Dead("bad_partition"));
        }
        if name == "later" {
            // Before it is made it is not there.
            self.fates.push(Fate::Dead("target_missing"));
        }
    }

    /// Either before the due time, so that it never arrives, or long after it.
    pub(super) fn expiry(&mut self, plan: &Plan, chance: &mut Chance) {
        let When::After(delay) = self.when else { return };
        let after = match chance.between(0, 2) {
            0 if delay > 1 => {
                self.fates.retain(|fate| matches!(fate, Fate::Dead(_)));
                self.fates.push(Fate::Dead("expired"));
                chance.between(1, delay - 1)
            }
            1 if !plan.healthy() => {
                self.fates.push(Fate::Dead("expired"));
                delay + chance.spread(1, 2 * SECOND)
            }
            _ => delay + plan.heal_at + 30 * MINUTE,
        };
        self.expires = Some(When::After(after));
        self.headers.push(header("x-delay-expires", format!("{after}ms")));
    }

    pub(super) fn value(
        &mut self,
        plan: &Plan,
        chance: &mut Chance,
        key: Option<&[u8]>,
    ) -> Option<Vec<u8>> {
        let bytes = match chance.between(0, 19) {
            0 => return None,
            1 => 0,
            2 if plan.large => chance.spread(1 << 10, 40 << 10),
            3 => chance.between(1_100, 1_500),
            _ => chance.between(1, 100),
        };
        let value: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
        if self.fates.iter().any(|fate| matches!(fate, Fate::Deliver { target: "t2", .. })) {
            // What is close to the limit may be refused or not: the state and other headers come and go.
            let size = crate::broker::batch_bytes(&record(key, Some(&value), &[]));
            if size + 800 > SMALL_TARGET {
                self.fates.push(Fate::Dead("too_large"));
            }
            if size > SMALL_TARGET {
                self.fates.retain(|fate| matches!(fate, Fate::Dead(_)));
            }
        }
        Some(value)
    }

    /// Headers of the user's own, in any place: repeated, null, empty, not text.
    pub(super) fn noise(&mut self, chance: &mut Chance) {
        for _ in 0..chance.between(0, 4) {
            let noise: Header = match chance.between(0, 5) {
                0 => (b"twice".to_vec(), Some(b"1".to_vec())),
                1 => (b"twice".to_vec(), None),
                2 => (b"".to_vec(), Some(Vec::new())),
                3 => (vec![0xff, 0], Some(vec![0xfe])),
                4 => (b"x-delayed".to_vec(), Some(b"not of the contract".to_vec())),
                _ => (b"traceparent".to_vec(), Some(b"00-1-2-01".to_vec())),
            };
            let place = chance.below(self.headers.len() + 1);
            self.headers.insert(place, noise);
        }
    }
}

/// A delay where a tier begins to be the right one, or a millisecond beside it; or the longest that there is.
fn border(plan: &Plan, chance: &mut Chance) -> u64 {
    let tiers = plan.setup.topics.ladder.tiers();
    let within = tiers.iter().filter(|tier| tier.hold.0 <= plan.delay_max).count();
    if within == 0 || chance.percent(10) {
        return plan.delay_max;
    }
    let tier = &tiers[chance.below(within)];
    let at = *chance.pick(&[tier.hold.0, tier.wait().0, plan.setup.limits.horizon.0]);
    (at + chance.between(0, 2)).saturating_sub(1)
}

/// `ms` and `fraction` nanoseconds after it, in words.
fn rfc3339(ms: u64, fraction: u64) -> String {
    let nanoseconds = i128::from(ms) * 1_000_000 + i128::from(fraction);
    jiff::Timestamp::from_nanosecond(nanoseconds).map(|at| at.to_string()).unwrap_or_default()
}
