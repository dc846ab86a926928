//! How fast a scope's turns end, and for how long one more of its tasks is put off.
//!
//! # Invariants
//! 1. The rate is what a scope can do, and not what it was asked to: time counts only while others of it wait for a credit. So a scope
//!    that had little to do for an hour is not taken for a slow one when a spike comes.
//! 2. However coarse a ladder is, the tasks of a scope come up no more often in the mean than their number allows: they are spread
//!    over the tiers above and below what is wanted.
//! 3. A rate is used only after it was looked at for a while. Until then nothing is known, and a put-off is as short as the number
//!    and the bytes of those that wait allow.
//! 4. What comes up again of a scope has a bounded number of bytes in a second. Where its turns end faster than that allows, it may
//!    be twice as many as end: enough to keep it busy.
//! 5. Tasks that are over a limit come up one after the other: each waits for another time, spread over half of the time that all
//!    take. If all waited for equally long, they would come up together, and most of them in vain.
//! 6. A rate is believed for four times as long as tasks have waited so far: a service that was slow for a second, when nothing else
//!    was known of it, delays nothing by minutes.

use super::super::super::ladder::Ladder;
use super::super::{Millis, UnixMillis};
use super::{PUT_OFF_MAX, PUT_OFF_MIN, PUT_OFFS_PER_SECOND};

/// How long a rate is looked at before it is used, and until the next look begins. If nothing ends for as long as the latter, it says
/// nothing of what the scope can do once something ends again.
const LOOK: (Millis, Millis) = (Millis(500), Millis(8_000));

/// Of the bytes of a scope, so many come up again in a millisecond: 4 MiB in a second.
const BYTES_PER_MS: u64 = (4 << 20) / 1_000;

/// For how long a task is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOff {
    /// All for `most`, or as nearly below as the ladder has it; but at least for `mean` in the mean.
    Alike { most: Millis, mean: Millis },
    /// Each for another time, for `mean` in the mean. Where the ladder has too wide a step for that, for `number` in the mean. But
    /// at least for `bytes`.
    Spread { mean: Millis, number: Millis, bytes: Millis },
}

impl PutOff {
    /// The shortest.
    pub(super) const LEAST: Self = Self::Alike { most: PUT_OFF_MIN, mean: Millis(0) };

    /// The tier to wait in, up to `last`. `luck`: another one for each task and each time.
    pub(crate) fn tier(self, ladder: &Ladder, last: usize, luck: u64) -> usize {
        match self {
            Self::Alike { most, mean } => alike(ladder, last, luck, most, mean),
            Self::Spread { mean, number, bytes } => spread(ladder, last, luck, mean, number, bytes),
        }
    }
}

fn alike(ladder: &Ladder, last: usize, luck: u64, most: Millis, mean: Millis) -> usize {
    let wait = |tier: usize| ladder.tiers()[tier].wait();
    let tier = ladder.pick(most).unwrap_or_else(|| ladder.shortest()).min(last);
    let Some(above) = ladder.above(tier).filter(|above| *above <= last) else { return tier };
    let lacks = mean.saturating_sub(wait(tier));
    let apart = wait(above).saturating_sub(wait(tier));
    // Where steps are wide, too many would go through the short one again and again before the long one takes them.
    let is_far = mean.0 > wait(tier).0 * 4;
    if is_far || luck % apart.0.max(1) < lacks.0 { above } else { tier }
}

fn spread(
    ladder: &Ladder,
    last: usize,
    luck: u64,
    mean: Millis,
    number: Millis,
    bytes: Millis,
) -> usize {
    let wait = |tier: usize| ladder.tiers()[tier].wait();
    let above = |tier: usize| ladder.above(tier).filter(|above| *above <= last);
    let within = |most: Millis| {
        let next = |tier: &usize| above(*tier).filter(|above| wait(*above) <= most);
        let tiers = std::iter::successors(Some(ladder.shortest().min(last)), next);
        tiers.last().unwrap_or(last)
    };
    // From nothing to twice the mean, where the ladder has a tier for that. Else as far to both sides of the mean as the tier below
    // allows: none waits for much longer than twice the mean. On a step that is too wide for either, many would wait for far too
    // long so that others may wait for too short a time.
    let low = within(mean + mean);
    let (below, next) = (wait(low), above(low).map(wait));
    let has_tier = next.is_some_and(|next| next <= mean + mean + mean);
    let is_wide = below < mean && next.is_some() && !has_tier;
    let mean = if is_wide { number.min(mean) } else { mean };
    let to = if has_tier || is_wide { mean + mean } else { below.max(mean) };
    let from = (mean + mean).saturating_sub(to);
    let range = to.saturating_sub(from).0 + 1;
    let aim = (from + Millis(luck % range)).max(bytes).max(PUT_OFF_MIN);
    // Between two tiers chance decides, so that the mean is what it is to be.
    let tier = within(aim);
    let Some(above) = above(tier) else { return tier };
    let (lacks, apart) = (aim.saturating_sub(wait(tier)), wait(above).saturating_sub(wait(tier)));
    if luck / range % apart.0.max(1) < lacks.0 { above } else { tier }
}

/// How fast the turns of a scope end, while others wait.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Since when somebody waits, if so.
    since: Option<UnixMillis>,
    /// How long somebody has waited before that in this look.
    before: Millis,
    /// Turns that have ended in this look while somebody waited.
    ended: u64,
    /// What the last whole look has shown: turns in a thousand seconds.
    last: Option<u64>,
    /// Since when nothing has ended though somebody waits.
    silent: Option<UnixMillis>,
    /// When the bytes of all that were put off have come up again, in microseconds.
    bytes_until: u64,
}

impl Pace {
    /// A task finds no credit.
    pub(super) fn denied(&mut self, now: UnixMillis) {
        self.since.get_or_insert(now);
        self.silent.get_or_insert(now);
    }

    /// A turn has ended. `waits`: whether others still wait in memory.
    pub(super) fn ended(&mut self, now: UnixMillis, waits: bool) {
        let silence = self.silent.take().map_or(Millis(0), |silent| now - silent);
        let Some(since) = self.since else { return };
        self.ended += 1;
        let over = self.before + (now - since);
        if over >= LOOK.1 {
            self.last = (silence < LOOK.1).then(|| per_thousand_seconds(self.ended, over));
            (self.since, self.before, self.ended) = (Some(now), Millis(0), 0);
        }
        if !waits {
            self.before = self.before + self.since.map_or(Millis(0), |since| now - since);
            self.since = None;
        }
    }

    /// Turns that end in a thousand seconds, if that is known.
    pub(super) fn rate(&self, now: UnixMillis) -> Option<u64> {
        let over = self.before + self.since.map_or(Millis(0), |since| now - since);
        let seen = per_thousand_seconds(self.ended, over.max(LOOK.0));
        let Some(last) = self.last else { return (over >= LOOK.0).then_some(seen) };
        // The look before counts less and less until this one is whole. More turns count at once.
        let (whole, part) = (LOOK.1.0, over.min(LOOK.1).0);
        let mixed = (last * (whole - part) + seen * part) / whole;
        Some(mixed.max(seen))
    }

    /// For how long one more task of so many bytes is put off, of so many that are overdue. `blocked`: since when none may go, if
    /// so. `crowded`: since when some of the scope are put off.
    pub(super) fn put_off(
        &mut self,
        now: UnixMillis,
        bytes: usize,
        overdue: u64,
        blocked: Option<UnixMillis>,
        crowded: UnixMillis,
    ) -> PutOff {
        let rate = self.rate(now).filter(|rate| *rate > 0 && blocked.is_none());
        let of_bytes = self.turn_of(now, bytes, rate);
        // So many come up in a second, at most: those that are called, and those that are put off again.
        let in_thousand_seconds = PUT_OFFS_PER_SECOND * 1_000 + rate.unwrap_or_default();
        let of_number = Millis(overdue.saturating_mul(1_000_000) / in_thousand_seconds);
        if let Some(rate) = rate {
            let of_rate = Millis(overdue.saturating_mul(1_000_000) / (rate * 4));
            let believed = Millis((now - crowded).0 * 2);
            let mean = of_rate.min(believed).max(of_number).min(PUT_OFF_MAX);
            return PutOff::Spread { mean, number: of_number, bytes: of_bytes };
        }
        let mean = of_number.max(of_bytes).min(PUT_OFF_MAX);
        let since = blocked.or(self.silent).unwrap_or(now);
        let most = Millis((now - since).0 / 4).min(PUT_OFF_MAX).max(mean).max(PUT_OFF_MIN);
        PutOff::Alike { most, mean }
    }

    /// When so many bytes may come up again, behind all that were put off before.
    fn turn_of(&mut self, now: UnixMillis, bytes: usize, rate: Option<u64>) -> Millis {
        let (now, most) = (now.0 * 1_000, PUT_OFF_MAX.0 * 1_000);
        let takes = bytes as u64 * 1_000 / BYTES_PER_MS;
        // A thousand seconds, in microseconds, for twice as many.
        let takes = rate.map_or(takes, |rate| takes.min(1_000_000_000 / (rate * 2)));
        self.bytes_until = (self.bytes_until.max(now) + takes).min(now + most);
        Millis((self.bytes_until - now) / 1_000)
    }
}

fn per_thousand_seconds(count: u64, over: Millis) -> u64 {
    count * 1_000_000 / over.0.max(1)
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::super::super::super::ladder::{LEAD_MAX, Preset};
    use super::super::WAITING_OF_SCOPE;
    use super::*;

    impl PutOff {
        /// None waits for longer, as far as the ladder allows.
        pub(in super::super) fn most(self) -> Millis {
            match self {
                Self::Alike { most, .. } => most,
                Self::Spread { mean, bytes, .. } => (mean + mean).max(bytes).max(PUT_OFF_MIN),
            }
        }

        /// So long in the mean, or longer.
        fn mean(self) -> Millis {
            match self {
                Self::Alike { mean, .. } | Self::Spread { mean, .. } => mean,
            }
        }

        /// What its bytes ask for, where they ask for most.
        fn at_least(self) -> Millis {
            match self {
                Self::Alike { mean: bytes, .. } | Self::Spread { bytes, .. } => bytes,
            }
        }
    }

    const T0: UnixMillis = UnixMillis(1_000_000);
    const LONG_AGO: UnixMillis = UnixMillis(0);
    /// Bytes of a small task and of a large one.
    const SMALL: usize = 500;
    const LARGE: usize = 1 << 20;

    /// So many turns end, one every `every`, while others wait.
    fn busy(pace: &mut Pace, from: UnixMillis, turns: u64, every: Millis) -> UnixMillis {
        pace.denied(from);
        (1..=turns).fold(from, |_, n| {
            let at = from + Millis(every.0 * n);
            pace.ended(at, true);
            at
        })
    }

    #[test]
    fn the_first_of_a_spike_are_put_off_for_the_shortest_time() {
        let mut pace = Pace::default();
        pace.denied(T0);
        assert_eq!(pace.put_off(T0, SMALL, 1, None, T0).most(), PUT_OFF_MIN);
        // One turn has ended in a millisecond: that is no rate yet.
        pace.ended(T0 + Millis(1), true);
        assert_eq!(pace.rate(T0 + Millis(1)), None);
        assert_eq!(pace.put_off(T0 + Millis(1), SMALL, 3_000, None, T0).most(), Millis(3_000));
    }

    #[test]
    fn an_idle_hour_makes_no_scope_slow() {
        let mut pace = Pace::default();
        // 20 turns in an hour, none of which waited.
        for n in 0..20 {
            pace.ended(T0 + Millis(n * 180_000), false);
        }
        let now = T0 + Millis(3_600_000);
        assert_eq!(pace.rate(now), None);
        pace.denied(now);
        assert_eq!(pace.put_off(now, SMALL, 100, None, T0).most(), PUT_OFF_MIN);
        // Neither does one that comes after a busy time.
        let busy_until = busy(&mut pace, now, 10_000, Millis(1));
        pace.ended(busy_until, false);
        let later = busy_until + Millis(3_600_000);
        pace.denied(later);
        let rate = pace.rate(later).expect("known");
        assert!((900_000..=1_100_000).contains(&rate), "{rate}");
    }

    #[test]
    fn over_the_limit_the_mean_wait_is_a_quarter_of_the_time_that_all_take() {
        let mut pace = Pace::default();
        // 10 turns a second for 20 s.
        let now = busy(&mut pace, T0, 200, Millis(100));
        let wait = pace.put_off(now, SMALL, 4_000, None, LONG_AGO).mean();
        assert!((95_000..=105_000).contains(&wait.0), "4,000 take 400 s, not four times {wait}");
    }

    #[test]
    fn a_service_that_was_slow_for_a_second_delays_nothing_by_minutes() {
        let mut pace = Pace::default();
        pace.denied(T0);
        // Its first calls take 700 ms, and one has ended.
        pace.ended(T0 + Millis(700), true);
        let mut put_off = |after| pace.put_off(T0 + Millis(after), SMALL, 900, None, T0).most();
        assert_eq!(put_off(700), Millis(2_800), "900 of one in 700 ms take ten minutes");
        // It stays that slow: that is believed as far as it was seen.
        assert_eq!(put_off(7_000), Millis(28_000));
        assert_eq!(put_off(70_000), Millis(280_000));
    }

    #[test]
    fn a_moment_in_which_little_ends_is_no_slow_service() {
        let mut pace = Pace::default();
        // 50 turns a second for 600 s. Then one in 700 ms, right after a look has begun.
        let mut now = busy(&mut pace, T0, 30_000, Millis(20));
        while pace.ended > 0 {
            now = now + Millis(20);
            pace.ended(now, true);
        }
        now = now + Millis(700);
        pace.ended(now, true);
        let rate = pace.rate(now).expect("known");
        assert!((40_000..=50_000).contains(&rate), "{rate}");
        // If it goes on, that is what the service can do now.
        for _ in 0..12 {
            now = now + Millis(700);
            pace.ended(now, true);
        }
        let rate = pace.rate(now).expect("known");
        assert!((1_300..=1_600).contains(&rate), "{rate}");
    }

    #[test]
    fn a_blocked_scope_is_asked_again_after_a_quarter_of_that_time_and_at_a_bounded_rate() {
        let mut pace = Pace::default();
        let mut at = |after: u64, overdue| {
            pace.put_off(T0 + Millis(after), SMALL, overdue, Some(T0), T0).most()
        };
        assert_eq!(at(0, 1), Millis(1_000));
        assert_eq!(at(60_000, 1), Millis(15_000));
        assert_eq!(at(60_000, 100_000), Millis(100_000));
        assert_eq!(at(3_600_000, 1), PUT_OFF_MAX);
        assert_eq!(at(60_000, 10_000_000), PUT_OFF_MAX);
    }

    #[test]
    fn where_nothing_ends_the_wait_grows_with_the_silence() {
        let mut pace = Pace::default();
        pace.denied(T0);
        assert_eq!(pace.put_off(T0 + Millis(40_000), SMALL, 1, None, T0).most(), Millis(10_000));
        // It may have hung, and be well again: nobody knows.
        pace.ended(T0 + Millis(40_000), true);
        pace.denied(T0 + Millis(40_001));
        assert_eq!(pace.put_off(T0 + Millis(40_001), SMALL, 1, None, T0).most(), PUT_OFF_MIN);
    }

    #[test]
    fn a_slow_scope_that_ends_turns_is_no_silent_one() {
        let mut pace = Pace::default();
        // One in 5 s, for 20 s.
        let now = busy(&mut pace, T0, 4, Millis(5_000));
        pace.denied(now + Millis(1));
        let wait = pace.put_off(now + Millis(1), SMALL, 40, None, LONG_AGO).mean();
        assert!((50_000..=50_500).contains(&wait.0), "40 of one in 5 s take 200 s");
        // They end faster now: that counts at once, though the look has just begun.
        let faster = (1..=10).fold(now, |_, n| {
            let at = now + Millis(n * 10);
            pace.ended(at, true);
            at
        });
        let wait = pace.put_off(faster, SMALL, 40, None, T0).most();
        assert_eq!(wait, PUT_OFF_MIN);
    }

    #[test]
    fn after_a_hang_nothing_is_put_off_for_longer_than_it_must_be() {
        let mut pace = Pace::default();
        pace.denied(T0);
        // Two hang for 170 s, and end. Then turns of 5 ms end, one after the other, while more come up now and then.
        let mut now = T0 + Millis(170_000);
        pace.ended(now, false);
        pace.ended(now, false);
        for _ in 0..20 {
            now = now + Millis(100);
            pace.denied(now);
            let wait = pace.put_off(now, 400 << 10, 10, None, T0);
            assert!(wait.most() <= Millis(2_000), "{wait:?}");
            pace.ended(now + Millis(5), false);
        }
    }

    /// Another one for each task and each time, as the lanes have it.
    fn luck_of(task: u64, at: u64) -> u64 {
        let mixed = (task << 32 | at).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32);
        mixed.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    /// So many paused tasks fall due within 8 s in one lane: put-offs a second from `from` until `until`, in seconds after the start.
    fn put_offs(ladder: &Ladder, tasks: u64, spans: [(u64, u64); 2]) -> [u64; 2] {
        let last = ladder.pick(PUT_OFF_MAX).expect("a tier");
        let mut queue: BinaryHeap<Reverse<(u64, u64, bool)>> =
            (0..tasks).map(|n| Reverse((n * 8_000 / tasks, n, true))).collect();
        let (mut pace, mut put_off, mut counts) = (Pace::default(), 0, [0; 2]);
        let end = spans.iter().map(|(_, until)| until * 1_000).max().expect("one");
        while let Some(Reverse((at, n, is_first))) = queue.pop().filter(|next| next.0.0 < end) {
            for (count, (from, until)) in counts.iter_mut().zip(spans) {
                *count += u64::from((from * 1_000..until * 1_000).contains(&at));
            }
            put_off += u64::from(is_first);
            let wait = pace.put_off(T0 + Millis(at), SMALL, put_off, Some(T0), T0);
            let luck = luck_of(n, at);
            let tier = wait.tier(ladder, last, luck);
            queue.push(Reverse((at + ladder.tiers()[tier].wait().0, n, false)));
        }
        let mut each = counts.into_iter().zip(spans);
        std::array::from_fn(|_| each.next().map_or(0, |(n, (from, until))| n / (until - from)))
    }

    #[test]
    fn a_hundred_thousand_paused_tasks_come_up_as_seldom_as_is_promised_on_every_ladder() {
        for preset in Preset::ALL {
            let ladder = Ladder::new(&preset.holds(), &[], LEAD_MAX).expect("sound");
            // One of six lanes: 16,667 of them.
            let [first, later] = put_offs(&ladder, 16_667, [(10, 130), (2_400, 3_600)]);
            assert!((200..=6_100 / 6).contains(&first), "{preset}: {first} a second at first");
            // The classic ladder has nothing between a minute and an hour.
            let most = if preset == Preset::Classic { 16_667 / 58 } else { 400 / 6 };
            assert!((1..=most).contains(&later), "{preset}: {later} a second after 40 minutes");
        }
    }

    #[test]
    fn a_million_paused_tasks_come_up_no_more_often_than_is_promised_for_any_number() {
        let ladder = Ladder::new(&Preset::Round.holds(), &[], LEAD_MAX).expect("sound");
        // One of six lanes: 166,667 of them.
        let [first, later] = put_offs(&ladder, 166_667, [(10, 610), (2_400, 3_600)]);
        let most = 1_100;
        assert!((100..=most).contains(&first) && (100..=most).contains(&later), "{first} {later}");
    }

    /// What became of a backlog.
    struct Drained {
        /// When the last task was called.
        end: Millis,
        /// How often a task was put off, in the mean.
        hops: f64,
        /// Put-offs of a second in the mean of a minute, at most: but for the first of each task, which nothing can spare.
        most_again: u64,
    }

    /// So many tasks fall due at once in a lane, of a service that ends one every `every` ms. It takes 100 us to read one.
    fn drain(ladder: &Ladder, tasks: u64, every: u64) -> Drained {
        let last = ladder.pick(PUT_OFF_MAX).expect("a tier");
        let mut queue: BinaryHeap<Reverse<(u64, u64, bool)>> =
            (0..tasks).map(|n| Reverse((0, n, false))).collect();
        let (mut pace, mut hops, mut put_off, mut waiting) = (Pace::default(), 0, 0, 0);
        let (mut next, mut read) = (0, 0);
        let mut again = Vec::new();
        while let Some(Reverse((at, n, was_off))) = queue.pop() {
            read = (read + 100).max(at * 1_000);
            let at = read / 1_000;
            while waiting > 0 && next <= at {
                waiting -= 1;
                pace.ended(T0 + Millis(next), waiting > 0);
                next += every;
            }
            next = next.max(at);
            put_off -= u64::from(was_off);
            pace.denied(T0 + Millis(at));
            if waiting < WAITING_OF_SCOPE.0 as u64 {
                waiting += 1;
                continue;
            }
            let overdue = put_off + waiting + 1;
            let wait = pace.put_off(T0 + Millis(at), SMALL, overdue, None, T0);
            (hops, put_off) = (hops + 1, put_off + 1);
            if was_off {
                let minute = (at / 60_000) as usize;
                again.resize(again.len().max(minute + 1), 0);
                again[minute] += 1;
            }
            let wait = ladder.tiers()[wait.tier(ladder, last, luck_of(n, at))].wait();
            queue.push(Reverse((at + wait.0, n, true)));
        }
        Drained {
            end: Millis(next + waiting * every),
            hops: hops as f64 / tasks as f64,
            most_again: again.into_iter().max().unwrap_or(0) / 60,
        }
    }

    /// The ladders that come with the program, and a coarse one.
    fn ladders() -> Vec<(String, Ladder)> {
        let coarse = [1, 30, 300, 3_600].map(|hold| Millis(hold * 1_000)).to_vec();
        let presets = Preset::ALL.map(|preset| (preset.to_string(), preset.holds()));
        let all = presets.into_iter().chain([("coarse".to_owned(), coarse)]);
        let new = |holds: &[Millis]| Ladder::new(holds, &[], LEAD_MAX).expect("sound");
        all.map(|(name, holds)| (name, new(&holds))).collect()
    }

    #[test]
    fn a_backlog_of_thousands_is_called_about_as_fast_as_its_service_can() {
        let cases = [
            (600, 1_000, 5.0),
            (2_000, 100, 7.0),
            (3_000, 2, 3.0),
            (20_000, 1, 3.0),
            (20_000, 20, 7.0),
            (100_000, 5, 7.0),
        ];
        for (name, ladder) in ladders() {
            for (tasks, every, hops_most) in cases {
                let Drained { end, hops, most_again } = drain(&ladder, tasks, every);
                let what = format!(
                    "{name}: {tasks} every {every} ms: {end}, {hops} put-offs of each, {most_again} a second"
                );
                let again = (hops - 1.0) * tasks as f64;
                let all = (again * 1_000.0 / end.0 as f64) as u64;
                assert!(all <= PUT_OFFS_PER_SECOND, "{what}, {all} in the mean of all");
                // The others have nothing between seconds and half a minute or a whole one.
                if ["round", "clock"].contains(&name.as_str()) {
                    assert!(hops < hops_most, "{what}");
                    assert!(end.0 <= tasks * every * 7 / 5, "{what}");
                    // A quarter more in the first minute: the first to be put off were spread when few waited.
                    assert!(most_again <= PUT_OFFS_PER_SECOND * 5 / 4, "{what}");
                }
            }
        }
    }

    #[test]
    fn what_is_spread_waits_as_long_in_the_mean_as_it_is_to_and_never_much_longer_than_twice() {
        for (name, ladder) in ladders() {
            let last = ladder.pick(PUT_OFF_MAX).expect("a tier");
            let longest = ladder.tiers()[last].wait();
            for mean in [1_000, 1_800, 3_900, 7_000, 28_500, 60_000, 150_000, 295_000, 600_000] {
                let (mean, bytes) = (Millis(mean), Millis(0));
                let wait = PutOff::Spread { mean, number: mean, bytes };
                let mean = mean.0;
                let waits = (0..20_000).map(|n| wait.tier(&ladder, last, luck_of(n, 7)));
                let waits: Vec<u64> = waits.map(|tier| ladder.tiers()[tier].wait().0).collect();
                let seen = waits.iter().sum::<u64>() / 20_000;
                let want = mean.min(longest.0);
                assert!(
                    (want * 95 / 100..=want * 130 / 100).contains(&seen),
                    "{name} {mean}: {seen}"
                );
                let most = waits.into_iter().max().expect("one");
                if ["round", "clock"].contains(&name.as_str()) {
                    assert!(most <= mean * 3, "{name} {mean}: {most}");
                }
            }
        }
    }

    #[test]
    fn large_tasks_that_are_over_the_limit_come_up_at_a_bounded_number_of_bytes_too() {
        let ladder = Ladder::new(&Preset::Round.holds(), &[], LEAD_MAX).expect("sound");
        let last = ladder.pick(PUT_OFF_MAX).expect("a tier");
        let mut pace = Pace::default();
        // 2.5 of them in a second.
        let now = busy(&mut pace, T0, 100, Millis(400));
        let mut up: Vec<u64> = (0..2_000)
            .map(|n| {
                let wait = pace.put_off(now, LARGE, n + 1, None, LONG_AGO);
                ladder.tiers()[wait.tier(&ladder, last, luck_of(n, 3))].wait().0
            })
            .collect();
        up.sort_unstable();
        // Twice as many as end, 5 in a second; and half as many again where the steps of the ladder have it so.
        for seconds in [10, 30, 60, 120, 300] {
            let count = up.partition_point(|wait| *wait <= seconds * 1_000) as u64;
            assert!((seconds * 4..=seconds * 15 / 2).contains(&count), "{count} in {seconds} s");
        }
    }

    #[test]
    fn a_short_pause_of_few_is_over_within_a_quarter_of_it() {
        let ladder = Ladder::new(&Preset::Round.holds(), &[], LEAD_MAX).expect("sound");
        let last = ladder.pick(PUT_OFF_MAX).expect("a tier");
        let wait = Pace::default().put_off(T0 + Millis(240_000), SMALL, 500, Some(T0), T0);
        for luck in 0..10_000 {
            let tier = wait.tier(&ladder, last, luck);
            assert!(ladder.tiers()[tier].wait() <= Millis(60_000));
        }
    }

    /// When the last of so many large tasks comes up again that are put off at once.
    fn last_of_large(pace: &mut Pace, now: UnixMillis, tasks: u64, paused: bool) -> Millis {
        let blocked = paused.then_some(now);
        let waits = (1..=tasks).map(|n| pace.put_off(now, LARGE, n, blocked, T0).at_least());
        waits.last().expect("one")
    }

    #[test]
    fn large_tasks_come_up_at_a_bounded_number_of_bytes_a_second() {
        for paused in [false, true] {
            let mut pace = Pace::default();
            pace.denied(T0);
            // 80 MiB, 4 in a second.
            let last = last_of_large(&mut pace, T0, 80, paused);
            assert!((20_000..=20_200).contains(&last.0), "{last}");
            // Those that come up meanwhile go behind them, and a small one waits no longer than they do.
            let later = T0 + Millis(10_000);
            let again = pace.put_off(later, LARGE, 80, paused.then_some(T0), T0).at_least();
            assert!((10_000..=10_500).contains(&again.0), "{again}");
            assert!(pace.put_off(later, SMALL, 80, None, T0).at_least() <= again + Millis(1));
            // However many there are.
            assert_eq!(last_of_large(&mut pace, later, 100_000, paused), PUT_OFF_MAX);
        }
    }

    #[test]
    fn where_large_turns_end_fast_twice_as_many_come_up() {
        let mut pace = Pace::default();
        // 20 of them in a second.
        let now = busy(&mut pace, T0, 100, Millis(50));
        let last = last_of_large(&mut pace, now, 80, false);
        assert!((1_900..=2_100).contains(&last.0), "40 in a second: {last}");
        // They end no more: nobody knows how many more will.
        let silent = now + Millis(600_000);
        let last = last_of_large(&mut pace, silent, 80, false);
        assert!((19_900..=20_200).contains(&last.0), "{last}");
    }
}
