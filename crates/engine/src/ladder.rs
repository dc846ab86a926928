//! The ladder: which tier a record waits in next, and how many hops a delay costs.
//!
//! A tier is a topic in which every record waits the same hold. It lets its head go a *lead* before the hold is
//! over, so that what it takes to collect, commit and fetch a hop falls into the lead and not into the lateness.
//!
//! # Invariants
//! 1. A tier is picked only if its wait *and* half its lead still fit into what remains: never an overshoot, and
//!    the append may come that much later than the pick.
//! 2. A tier that is being drained is read, and never picked.
//! 3. [`Ladder::hops_max`] bounds the hops of every delay, also when time is lost between them.
//!
//! A record written to a tier of hold `h` at `a` is let go at `a + h - lead`; a pick with `r` left is made only if
//! `h - lead + lead / 2 <= r`.
//!
//! What it does not do: it knows no topics and no partitions, and no record.

mod plan;

use std::fmt;
use std::str::FromStr;

use super::Millis;
use super::header::duration;

pub use plan::{Delays, HopFigures, figures, propose};

/// Lead of a tier unless configured otherwise; a tier of a shorter hold has half its hold.
pub const LEAD_MAX: Millis = Millis(2_000);
/// More tiers than this cost the brokers more than the hops that they save.
pub const TIERS_MAX: usize = 256;
/// The longest hold: the longest delay that waterclock accepts by default.
pub const HOLD_MAX: Millis = Millis(400 * 86_400_000);

/// One rung: a topic in which every record waits for the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// How long a record may be kept here; the topic is named by it.
    pub hold: Millis,
    /// How much of the hold is left over for the way onwards.
    pub lead: Millis,
    /// `false` while it is drained: read, but no longer written to.
    pub open: bool,
}

impl Tier {
    /// A tier of this hold; its lead is `lead_max`, or half its hold if that is shorter.
    #[must_use]
    pub fn new(hold: Millis, lead_max: Millis, open: bool) -> Self {
        Self { hold, lead: lead_max.min(hold.half()), open }
    }

    /// How long after its append the head is let go.
    #[must_use]
    pub fn wait(&self) -> Millis {
        self.hold.saturating_sub(self.lead)
    }

    /// What collecting a hop, committing and fetching may take before it costs lateness: half the lead.
    #[must_use]
    pub fn slack(&self) -> Millis {
        self.lead.half()
    }

    /// How far a new leader's clock may be behind that of the one before without harm to strict order.
    #[must_use]
    pub fn guard(&self) -> Millis {
        Millis(self.lead.0 / 8)
    }

    /// How late a hop may come up without being refused for it, where order is by due time: a quarter of the lead.
    #[must_use]
    pub fn tolerated(&self) -> Millis {
        Millis(self.lead.0 / 4)
    }

    /// The least that must remain of a delay for this tier to be picked.
    #[must_use]
    pub fn reach(&self) -> Millis {
        self.wait() + self.slack()
    }
}

/// A ladder that has a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// 1s, 1m, 1h: to see how it works, or for a few fixed delays.
    Classic,
    /// Round holds from 1s to 7d, each about double the one before: the default.
    #[default]
    Round,
    /// 1..59 s, 1..59 m, 1..23 h, 1..30 d: most topics, fewest rewrites.
    Clock,
}

impl Preset {
    /// All of them, fewest topics first.
    pub const ALL: [Self; 3] = [Self::Classic, Self::Round, Self::Clock];

    /// The holds of this preset, ascending.
    #[must_use]
    pub fn holds(self) -> Vec<Millis> {
        const S: u64 = 1_000;
        const M: u64 = 60 * S;
        const H: u64 = 60 * M;
        const D: u64 = 24 * H;
        match self {
            Self::Classic => vec![Millis(S), Millis(M), Millis(H)],
            Self::Round => ROUND.iter().copied().map(Millis).collect(),
            Self::Clock => [(S, 59), (M, 59), (H, 23), (D, 30)]
                .into_iter()
                .flat_map(|(unit, last)| (1..=last).map(move |n| Millis(n * unit)))
                .collect(),
        }
    }
}

/// Chosen by trying them all: every hold of the contract's list, and the fewest others that keep any delay to
/// 7 days within 15 hops.
#[rustfmt::skip]
const ROUND: [u64; 21] = [
    1_000, 3_000, 5_000, 10_000, 20_000, 30_000,
    60_000, 90_000, 180_000, 300_000, 600_000, 900_000, 1_800_000, 2_700_000,
    3_600_000, 7_200_000, 18_000_000, 43_200_000,
    86_400_000, 259_200_000, 604_800_000,
];

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classic => "classic",
            Self::Round => "round",
            Self::Clock => "clock",
        })
    }
}

impl FromStr for Preset {
    type Err = LadderError;

    fn from_str(text: &str) -> Result<Self, LadderError> {
        let found = Self::ALL.into_iter().find(|preset| preset.to_string() == text);
        found.ok_or_else(|| LadderError::Unknown(text.to_owned()))
    }
}

/// Why a list of holds is not a ladder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LadderError {
    /// There is nowhere to wait.
    #[error("a ladder needs at least one hold")]
    Empty,
    /// A record would go round without waiting.
    #[error("a hold must be longer than 0")]
    Zero,
    /// Two tiers would be one topic.
    #[error("hold {0} is there twice")]
    Twice(Millis),
    /// Longer than any delay may be.
    #[error("hold {0} is longer than {HOLD_MAX}")]
    TooLong(Millis),
    /// Shorter than a person may ask for.
    #[error("hold {0} is shorter than {HOLD_MIN}")]
    TooShort(Millis),
    /// Too many topics.
    #[error("{0} tiers are more than {TIERS_MAX}")]
    TooMany(usize),
    /// Some delays above the horizon would fit no tier.
    #[error("shortest hold {hold} takes {reach} at least, longer than the horizon of {horizon}")]
    Gap {
        /// The shortest hold that is written to.
        hold: Millis,
        /// What must remain for it to be picked.
        reach: Millis,
        /// What may wait in memory.
        horizon: Millis,
    },
    /// A record let go so early could not wait in memory, and would hop again.
    #[error("a lead of {lead} is longer than the horizon of {horizon}")]
    Lead {
        /// The longest lead of the ladder.
        lead: Millis,
        /// What may wait in memory.
        horizon: Millis,
    },
    /// Neither the name of a ladder nor a list of holds.
    #[error("no ladder is called {0:?}: say classic, round, clock, or a list like 1s,30s,5m")]
    Unknown(String),
    /// One entry of a list of holds.
    #[error("{0:?} is not a length of time: say 90s, 1m30s, 12h or 7d")]
    NotAHold(String),
}

/// Shortest hold that a person may ask for: commits and fetches take too much of a shorter one.
pub const HOLD_MIN: Millis = Millis::SECOND;

/// Reads the name of a preset, or a list of holds like `1s,30s,5m`, into ascending holds.
///
/// # Errors
/// Names the entry that is no hold; what the list lacks to be a ladder, [`Ladder::new`] says.
pub fn holds(text: &str) -> Result<Vec<Millis>, LadderError> {
    if let Ok(preset) = text.parse::<Preset>() {
        return Ok(preset.holds());
    }
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(LadderError::Unknown(text.to_owned()));
    }
    let hold = |entry: &str| match duration(entry.trim()) {
        Ok(hold) if hold < HOLD_MIN => Err(LadderError::TooShort(hold)),
        Ok(hold) => Ok(hold),
        Err(_) => Err(LadderError::NotAHold(entry.trim().to_owned())),
    };
    let mut holds = text.split(',').map(hold).collect::<Result<Vec<_>, _>>()?;
    holds.sort_unstable();
    Ok(holds)
}

/// Tiers in the order of their holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    tiers: Vec<Tier>,
    /// Of the open tiers, ascending: what must remain, and which tier it is.
    picks: Vec<(Millis, usize)>,
}

impl Ladder {
    /// Makes a ladder of `holds`, in any order, and of `draining` holds that are still read.
    ///
    /// # Errors
    /// The list is no ladder; refuse the configuration that it came from.
    pub fn new(
        holds: &[Millis],
        draining: &[Millis],
        lead_max: Millis,
    ) -> Result<Self, LadderError> {
        if holds.is_empty() {
            return Err(LadderError::Empty);
        }
        if holds.len() + draining.len() > TIERS_MAX {
            return Err(LadderError::TooMany(holds.len() + draining.len()));
        }
        let tier = |hold, open| Tier::new(hold, lead_max, open);
        let mut tiers: Vec<Tier> = holds.iter().map(|&hold| tier(hold, true)).collect();
        tiers.extend(draining.iter().map(|&hold| tier(hold, false)));
        tiers.sort_by_key(|tier| tier.hold);
        if tiers[0].hold == Millis(0) {
            return Err(LadderError::Zero);
        }
        if let Some(pair) = tiers.windows(2).find(|pair| pair[0].hold == pair[1].hold) {
            return Err(LadderError::Twice(pair[0].hold));
        }
        if let Some(tier) = tiers.iter().find(|tier| tier.hold > HOLD_MAX) {
            return Err(LadderError::TooLong(tier.hold));
        }
        let open = tiers.iter().enumerate().filter(|(_, tier)| tier.open);
        let picks = open.map(|(at, tier)| (tier.reach(), at)).collect();
        Ok(Self { tiers, picks })
    }

    /// The holds of a preset, ascending.
    #[must_use]
    pub fn preset(preset: Preset) -> Vec<Millis> {
        preset.holds()
    }

    /// Whether every delay above `horizon` fits a tier, and no lead is longer than it.
    ///
    /// # Errors
    /// Ladder and horizon do not go together; refuse to start.
    pub fn check(&self, horizon: Millis) -> Result<(), LadderError> {
        let (reach, at) = self.picks[0];
        if reach > horizon {
            return Err(LadderError::Gap { hold: self.tiers[at].hold, reach, horizon });
        }
        let lead = self.tiers.iter().map(|tier| tier.lead).max().unwrap_or_default();
        if lead > horizon {
            return Err(LadderError::Lead { lead, horizon });
        }
        Ok(())
    }

    /// All tiers, shortest hold first, those being drained among them.
    #[must_use]
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// The index of the tier to wait in next: the longest whose wait and slack fit into `remaining`.
    #[must_use]
    pub fn pick(&self, remaining: Millis) -> Option<usize> {
        let fit = self.picks.partition_point(|&(reach, _)| reach <= remaining);
        fit.checked_sub(1).map(|last| self.picks[last].1)
    }

    /// The index of the next longer tier that is written to.
    #[must_use]
    pub fn above(&self, tier: usize) -> Option<usize> {
        (tier + 1..self.tiers.len()).find(|longer| self.tiers[*longer].open)
    }

    /// The index of the shortest tier that is written to.
    #[must_use]
    pub fn shortest(&self) -> usize {
        self.picks[0].1
    }

    /// How many tiers a record of this delay passes through before it is within `horizon`.
    ///
    /// Every hop waits as long as its tier says and no time is lost between hops.
    #[must_use]
    pub fn hops(&self, delay: Millis, horizon: Millis) -> u32 {
        self.way(delay, horizon).fold(0, |hops, leg| hops.saturating_add(leg.hops))
    }

    /// The way of a record of this delay down the ladder, longest tier first.
    pub fn way(&self, delay: Millis, horizon: Millis) -> impl Iterator<Item = Leg> {
        let mut remaining = delay;
        std::iter::from_fn(move || {
            if remaining <= horizon {
                return None;
            }
            let fit = self.picks.partition_point(|&(reach, _)| reach <= remaining);
            let leg = self.leg(fit.checked_sub(1)?, remaining, horizon);
            remaining = leg.remaining;
            Some(leg)
        })
    }

    /// All hops that a record with `remaining` makes through one and the same tier.
    fn leg(&self, pick: usize, remaining: Millis, horizon: Millis) -> Leg {
        let (_, tier) = self.picks[pick];
        let wait = self.tiers[tier].wait().0;
        // The record comes back to this tier as long as it is at or above this.
        let from = self.from(pick, horizon).0;
        let hops = remaining.0.saturating_sub(from) / wait + 1;
        Leg {
            tier,
            hops: u32::try_from(hops).unwrap_or(u32::MAX),
            remaining: Millis(remaining.0.saturating_sub(hops.saturating_mul(wait))),
        }
    }

    /// The least remaining time at which a record above the horizon is given this tier.
    fn from(&self, pick: usize, horizon: Millis) -> Millis {
        self.picks[pick].0.max(horizon + Millis(1))
    }

    /// The most hops of any delay up to `delay_max`; exact if [`Ladder::check`] accepts the horizon.
    ///
    /// Let `most(c)` be the answer for delays up to `c`, let `c` be in the band of a tier, and let `k` be the hops
    /// that `c` itself makes through it. A delay of that band makes `k` of them and ends below the rest of `c`,
    /// or fewer and ends anywhere below the band. So `most(c)` is the larger of `k + most(rest of c)` and
    /// `k - 1 + most(below the band)`. A record that loses time between its hops ends in one of these, too.
    #[must_use]
    pub fn hops_max(&self, delay_max: Millis, horizon: Millis) -> u32 {
        // `below[i]`: the answer for everything below the band of pick i.
        let mut below = Vec::with_capacity(self.picks.len());
        for pick in 0..self.picks.len() {
            let end = self.from(pick, horizon).saturating_sub(Millis(1));
            below.push(self.most(end, horizon, &below));
        }
        self.most(delay_max, horizon, &below)
    }

    fn most(&self, mut c: Millis, horizon: Millis, below: &[u32]) -> u32 {
        let (mut most, mut made) = (0, 0u32);
        while c > horizon {
            // Of tiers with one and the same lower end the longest takes the band.
            let fit = self.picks[..].partition_point(|&(reach, _)| reach <= c);
            let Some(pick) = fit.checked_sub(1) else { break };
            let leg = self.leg(pick, c, horizon);
            made = made.saturating_add(leg.hops);
            most = most.max((made - 1).saturating_add(below[pick]));
            c = leg.remaining;
        }
        most.max(made)
    }
}

/// Hops through one tier, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Index of the tier.
    pub tier: usize,
    /// How many times in a row; at least 1.
    pub hops: u32,
    /// What remains of the delay afterwards.
    pub remaining: Millis,
}

#[cfg(test)]
mod tests;
