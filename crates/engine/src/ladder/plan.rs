//! What a ladder costs for given delays, and which ladder serves given delays.

use super::{Ladder, LadderError, Tier};
use crate::Millis;

/// How many delays stand for a distribution; the mean moves by less than 0.1 beyond.
const SAMPLES: u32 = 20_000;
/// For comparing candidates, where only the order counts.
const SAMPLES_FEW: u32 = 2_000;
/// An append to the intake and one to the target.
const APPENDS_BESIDE_HOPS: u32 = 2;

/// How delays are distributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delays {
    /// Each up to this equally likely.
    Uniform(Millis),
    /// Each order of magnitude between these equally likely.
    LogUniform(Millis, Millis),
    /// These, equally often.
    Exactly(Vec<Millis>),
}

impl Delays {
    /// Delays that stand for all, the same each time.
    fn samples(&self, count: u32) -> Vec<Millis> {
        // The fractions of multiples of the golden ratio fall evenly, and with no period that the holds could share.
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        let evenly = (0..count).map(|n| ((f64::from(n) + 0.5) * golden).fract());
        match self {
            Self::Uniform(max) => evenly.map(|at| Millis((at * max.0 as f64) as u64)).collect(),
            Self::LogUniform(min, max) => {
                let (low, high) = ((min.0.max(1) as f64).ln(), (max.0.max(1) as f64).ln());
                evenly.map(|at| Millis((low + at * (high - low)).exp() as u64)).collect()
            }
            Self::Exactly(delays) => delays.clone(),
        }
    }
}

/// What delays cost on a ladder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopFigures {
    /// Hops of the delay that makes the most; of a distribution, of any delay up to its longest.
    pub hops_max: u32,
    /// Mean of the hops, when no time is lost between them.
    pub hops_mean: f64,
}

impl HopFigures {
    /// Appends per record in the mean: the intake's, the hops and the target's.
    #[must_use]
    pub fn appends_mean(&self) -> f64 {
        self.hops_mean + f64::from(APPENDS_BESIDE_HOPS)
    }

    /// Appends of the record that makes the most.
    #[must_use]
    pub fn appends_max(&self) -> u32 {
        self.hops_max.saturating_add(APPENDS_BESIDE_HOPS)
    }
}

/// What these delays cost on a ladder.
#[must_use]
pub fn figures(ladder: &Ladder, delays: &Delays, horizon: Millis) -> HopFigures {
    let hops_max = match delays {
        Delays::Uniform(max) | Delays::LogUniform(_, max) => ladder.hops_max(*max, horizon),
        Delays::Exactly(delays) => {
            delays.iter().map(|&delay| ladder.hops(delay, horizon)).max().unwrap_or_default()
        }
    };
    HopFigures { hops_max, hops_mean: mean(ladder, &delays.samples(SAMPLES), horizon) }
}

fn mean(ladder: &Ladder, delays: &[Millis], horizon: Millis) -> f64 {
    let sum: u64 = delays.iter().map(|&delay| u64::from(ladder.hops(delay, horizon))).sum();
    // No delay at all makes no hop.
    sum as f64 / delays.len().max(1) as f64
}

/// Holds that people read at a glance, in seconds, minutes, hours and days.
fn round_holds() -> impl Iterator<Item = Millis> {
    let small = [1, 2, 3, 5, 10, 15, 20, 30, 45];
    let hours = [1, 2, 3, 4, 5, 6, 8, 12];
    let days = [1, 2, 3, 5, 7, 14, 30, 60, 90, 180, 365];
    let of = |unit: Millis| move |n: u64| Millis(n * unit.0);
    let seconds = small.into_iter().map(of(Millis::SECOND));
    let minutes = small.into_iter().map(of(Millis::MINUTE));
    let hours = hours.into_iter().map(of(Millis::HOUR));
    seconds.chain(minutes).chain(hours).chain(days.into_iter().map(of(Millis::DAY)))
}

/// The fewest holds with which each of `delays` is one hop; then round ones, until no delay up to the longest makes
/// more than `hops_bound` hops (or no further one helps).
///
/// # Errors
/// No delay was given that needs a tier, or the holds are no ladder.
pub fn propose(
    delays: &[Millis],
    hops_bound: u32,
    lead_max: Millis,
    horizon: Millis,
) -> Result<Vec<Millis>, LadderError> {
    let mut delays: Vec<Millis> = delays.iter().copied().filter(|delay| *delay > horizon).collect();
    delays.sort_unstable();
    let longest = *delays.last().ok_or(LadderError::Empty)?;
    let mut holds = one_hop_each(&delays, lead_max, horizon);

    let tier = |hold: Millis| Tier::new(hold, lead_max, true);
    if holds.iter().all(|&hold| tier(hold).reach() > horizon) {
        // The longest that leaves no gap above the horizon: the fewest topics below the delays that were asked.
        let base = round_holds().filter(|&hold| tier(hold).reach() <= horizon).max();
        holds.push(base.unwrap_or(Millis::SECOND));
    }
    let samples = Delays::LogUniform(Millis::SECOND, longest).samples(SAMPLES_FEW);
    let cost = |holds: &[Millis]| -> Result<(u32, f64), LadderError> {
        let ladder = Ladder::new(holds, &[], lead_max)?;
        Ok((ladder.hops_max(longest, horizon), mean(&ladder, &samples, horizon)))
    };
    let mut now = cost(&holds)?;
    while now.0 > hops_bound {
        let mut best: Option<((u32, f64), Vec<Millis>)> = None;
        for hold in round_holds().filter(|hold| *hold < longest && !holds.contains(hold)) {
            let with: Vec<Millis> = holds.iter().copied().chain([hold]).collect();
            // A hold between two delays must not take one of them from the tier that serves it in one hop.
            let cost = cost(&with)?;
            let keeps = Ladder::new(&with, &[], lead_max)?;
            if delays.iter().any(|&delay| keeps.hops(delay, horizon) > 1) {
                continue;
            }
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, with));
            }
        }
        match best {
            Some((cost, with)) if cost < now => (now, holds) = (cost, with),
            _ => break,
        }
    }
    holds.sort_unstable();
    Ok(holds)
}

/// A tier serves, in one hop, delays from its hold up to where more than the horizon would be left of them. Taking
/// the shortest delay that is not served yet as the next hold gives the fewest tiers.
fn one_hop_each(delays: &[Millis], lead_max: Millis, horizon: Millis) -> Vec<Millis> {
    let mut holds: Vec<Millis> = Vec::new();
    for &delay in delays {
        let served = holds.last().is_some_and(|&hold| {
            delay.saturating_sub(Tier::new(hold, lead_max, true).wait()) <= horizon
        });
        if !served {
            holds.push(delay);
        }
    }
    holds
}
