//! The whole engine against a model of what becomes of timers, which knows nothing of hops, batches, marks or changelogs.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::kafka::{BEGAN, Kafka, LANES, Out, TARGET, lane_of, record, source};
use crate::header::Code;
use crate::messages::Outcome;
use crate::timers::{Change, TimerState};
use crate::{Lane, Millis, UnixMillis};

/// Key and id of each timer: of both lanes, and two of one key.
const TIMERS: [(&str, &str); 4] = [("k", "i"), ("k", "j"), ("l", "i"), ("m", "i")];
const DELAYS: [u64; 9] = [0, 1, 40, 900, 1_999, 3_000, 7_500, 61_000, 200_000];
const WAITS: [u64; 7] = [0, 1, 39, 950, 2_500, 30_000, 900_000];
/// The tier that is written to, its hold, and after how long it lets go.
const TIER: (usize, u64, u64) = (1, 5_000, 3_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Create,
    Replace,
    Cancel,
}

/// A command, as the model sees it.
#[derive(Clone, Debug)]
struct Command {
    n: String,
    timer: usize,
    what: What,
    first_appended: UnixMillis,
    /// Its number among all that came to their lanes.
    number: usize,
    due: UnixMillis,
    expires: Option<UnixMillis>,
    /// It did not come straight to its lane's intake.
    elsewhere: bool,
}

impl Command {
    fn place(&self) -> (UnixMillis, bool, usize) {
        (self.first_appended, !self.elsewhere, self.number)
    }
}

/// One timer, as its user understands it.
#[derive(Debug, Default)]
struct Timer {
    live: Option<Command>,
    /// Everything submitted before is void, for ever.
    void: Option<(UnixMillis, bool, usize)>,
    /// The version that ended last, and until when what was submitted is a duplicate of it.
    ended: Option<((UnixMillis, bool, usize), UnixMillis)>,
    /// Creates that came while a version was pending which was submitted before, and the places of those.
    duplicates: Vec<((UnixMillis, bool, usize), Command)>,
    /// One of them was none. It waited in a tier, so that it may be late.
    is_made_again: bool,
    /// What came after that found another timer, or there were more of them than are kept.
    is_unsure: bool,
    /// A batch failed while there were some, or their owner died: nobody has a note of them, and what is made later may stand
    /// for them.
    is_unnoted: bool,
}

/// Creates that are kept of one timer.
const KEPT: usize = 4;

impl Timer {
    /// Another version is pending: of what was a duplicate before only what is behind it still may be none.
    fn come_after(&mut self) {
        let Some(live) = self.live.as_ref().map(Command::place) else { return };
        self.duplicates.retain(|(_, command)| live < command.place());
        self.duplicates.iter_mut().for_each(|(of, _)| *of = live);
    }

    /// A batch has failed, or the owner has died: of two the one that comes up first may be pending.
    fn fail(&mut self) {
        self.is_unsure |= self.duplicates.len() > 1;
        self.is_unnoted |= !self.duplicates.is_empty();
    }

    fn take(&mut self, command: Command) -> Option<Outcome> {
        self.is_unsure |= self.is_made_again || self.duplicates.len() > KEPT;
        self.is_unsure |= self.is_unnoted && command.what != What::Cancel;
        let place = command.place();
        let is_void = self.void.is_some_and(|void| place < void);
        let older = self.live.as_ref().is_some_and(|live| live.place() < place);
        let ended = self.ended.filter(|_| command.elsewhere && self.live.is_none());
        let before = ended.is_some_and(|(last, _)| place < last);
        // A cancel between the two parts them.
        let is_parted =
            ended.is_some_and(|(last, _)| self.void.is_some_and(|void| last < void && !is_void));
        let within = ended.is_some_and(|(_, until)| command.first_appended < until) && !is_parted;
        match command.what {
            What::Create => {
                if is_void || before || within {
                    return None;
                }
                match &self.live {
                    None => {
                        self.live = Some(command);
                        self.come_after();
                    }
                    Some(live) if older => self.duplicates.push((live.place(), command)),
                    Some(_) => {}
                }
                None
            }
            What::Replace if is_void || before || (self.live.is_some() && !older) => {
                Some(Outcome::Superseded)
            }
            What::Replace => {
                self.live = Some(command);
                self.come_after();
                if !older {
                    return Some(Outcome::Created);
                }
                self.void = self.void.max(Some(place));
                Some(Outcome::Replaced)
            }
            What::Cancel => {
                self.void = self.void.max(Some(place));
                if let Some(live) = self.live.take_if(|_| older) {
                    self.ended = Some((live.place(), UnixMillis(0)));
                }
                if self.live.is_none() {
                    let behind = self.duplicates.iter().enumerate();
                    // Another cancel may stand behind it.
                    let is_void = |by: &Command| self.void.is_some_and(|void| by.place() < void);
                    let behind = behind.filter(|(_, (of, by))| *of < place && !is_void(by));
                    let first = behind.min_by_key(|(_, (_, by))| by.place()).map(|(at, _)| at);
                    self.live = first.map(|at| self.duplicates.swap_remove(at).1);
                    self.is_made_again |= self.live.is_some();
                    self.come_after();
                }
                Some(if older { Outcome::Cancelled } else { Outcome::Absent })
            }
        }
    }
}

/// What a test does.
#[derive(Clone, Debug)]
enum Step {
    /// Submits to the lane's partition of the intake, or to another one.
    Submit {
        timer: usize,
        what: What,
        delay: usize,
        stray: bool,
        expires: bool,
    },
    /// Writes straight to a tier.
    Tier {
        timer: usize,
    },
    Wait(usize),
    /// The owner dies; until the next step that takes over nobody works.
    Stop,
    /// An owner takes over; of a lane it is told what is known only later.
    TakeOver(Option<u16>),
    Tell,
    /// The next batch fails.
    Fail,
}

#[derive(Default)]
struct Model {
    now: UnixMillis,
    timers: BTreeMap<usize, Timer>,
    /// By lane: what stands in its intake and is not decided, and what stands there for another lane.
    intakes: Vec<Vec<Command>>,
    strays: Vec<Vec<Command>>,
    /// Written to a tier, until it lets them go: by when that is.
    heads: Vec<(UnixMillis, Command)>,
    /// Let go by a tier in a lane of which not all is known.
    early: Vec<Command>,
    numbers: usize,
    out: Vec<Out>,
    outcomes: BTreeMap<String, Outcome>,
    is_up: bool,
    slow: Option<u16>,
}

impl Model {
    fn lane(command: &Command) -> u16 {
        lane_of(TIMERS[command.timer].0)
    }

    /// A command has come to its lane.
    fn arrive(&mut self, mut command: Command) {
        command.number = self.numbers;
        self.numbers += 1;
        self.intakes[usize::from(Self::lane(&command))].push(command);
    }

    fn decide(&mut self, command: Command) {
        let n = command.n.clone();
        let outcome = self.timers.entry(command.timer).or_default().take(command);
        if let Some(outcome) = outcome {
            self.outcomes.insert(n, outcome);
        }
    }

    /// All that happens at this time: commands are read, tiers let go, what is due fires; what stood in another
    /// partition comes after that.
    fn happen(&mut self) {
        if !self.is_up {
            return;
        }
        let slow = self.slow;
        let lanes = || (0..LANES).filter(move |lane| slow != Some(*lane));
        loop {
            for lane in lanes() {
                for command in std::mem::take(&mut self.intakes[usize::from(lane)]) {
                    self.decide(command);
                }
            }
            let now = self.now;
            self.heads.sort_by_key(|(_, command)| command.first_appended);
            let (go, stay): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.heads).into_iter().partition(|(at, _)| *at <= now);
            self.heads = stay;
            for (_, command) in go {
                if self.slow == Some(Self::lane(&command)) {
                    self.early.push(command);
                } else {
                    self.decide(command);
                }
            }
            for (timer, state) in &mut self.timers {
                if self.slow == Some(lane_of(TIMERS[*timer].0)) {
                    continue;
                }
                if let Some(live) = state.live.take_if(|live| live.due <= now) {
                    state.ended = Some((live.place(), now));
                    // A delivery may take 50 ms.
                    let expired = live.expires.is_some_and(|expires| now + Millis(50) > expires);
                    let code = expired.then_some(Code::Expired);
                    self.out.push(Out { n: live.n, at: now, code });
                }
            }
            let mut moved = Vec::new();
            for lane in lanes() {
                moved.append(&mut self.strays[usize::from(lane)]);
            }
            if moved.is_empty() {
                return;
            }
            moved.into_iter().for_each(|command| self.arrive(command));
        }
    }

    fn fail(&mut self, failed: bool) {
        self.timers.values_mut().filter(|_| failed).for_each(Timer::fail);
    }

    fn tell(&mut self) {
        self.slow = None;
        for command in std::mem::take(&mut self.early) {
            self.decide(command);
        }
        self.happen();
    }

    fn pass_to(&mut self, until: UnixMillis) {
        self.happen();
        loop {
            let dues = self.timers.values().filter_map(|timer| timer.live.as_ref());
            let next = dues
                .map(|live| live.due)
                .chain(self.heads.iter().map(|(at, _)| *at))
                .filter(|at| *at > self.now && *at <= until)
                .min();
            self.now = next.unwrap_or(until);
            self.happen();
            if next.is_none() {
                return;
            }
        }
    }
}

struct World {
    kafka: Kafka,
    model: Model,
    count: usize,
    /// Of which timer each is, and when it is due.
    timers: BTreeMap<String, (usize, UnixMillis)>,
}

impl World {
    fn new() -> Self {
        let empty = || (0..LANES).map(|_| Vec::new()).collect();
        let model = Model {
            now: BEGAN,
            is_up: true,
            intakes: empty(),
            strays: empty(),
            ..Model::default()
        };
        let kafka = Kafka::new(Kafka::limits());
        Self { kafka, model, count: 0, timers: BTreeMap::new() }
    }

    fn wait(&mut self, wait: u64) {
        let failed = self.kafka.fails;
        self.kafka.after(Millis(wait));
        let failed = failed && !self.kafka.fails;
        // At some time meanwhile.
        self.model.fail(failed);
        self.model.pass_to(self.kafka.now);
        self.model.fail(failed);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Submit { timer, what, delay, stray, expires } => {
                self.submit(*timer, *what, DELAYS[*delay], *stray, *expires);
            }
            Step::Tier { timer } => self.write_to_tier(*timer),
            Step::Wait(wait) => {
                // A cancel mark lasts longer than any tier holds. A record that waits even longer in another partition
                // is not caught.
                if WAITS[*wait] > 600_000 {
                    self.step(&Step::Tell);
                }
                self.wait(WAITS[*wait]);
            }
            Step::Stop => {
                // What is overdue when an owner comes, and what has to be moved first, may happen in any order.
                if self.model.strays.iter().any(|strays| !strays.is_empty()) {
                    self.step(&Step::Tell);
                }
                self.wait(0);
                self.kafka.stop();
                self.model.is_up = false;
                self.model.fail(true);
                // What its owner had held of it comes up again for the next one.
                self.model.slow = None;
                let early = std::mem::take(&mut self.model.early);
                self.model.heads.extend(early.into_iter().map(|command| (BEGAN, command)));
            }
            Step::TakeOver(slow) => {
                self.step(&Step::Stop);
                let lanes: Vec<Lane> = slow.iter().map(|lane| Lane(*lane)).collect();
                // No record is gone. The count finds every record that is left.
                self.kafka.is_told_gone = slow.is_some();
                self.kafka.take_over(&lanes);
                (self.model.is_up, self.model.slow) = (true, *slow);
                self.wait(0);
            }
            Step::Tell => {
                if self.model.is_up {
                    self.wait(0);
                    // After it everything would be known at once, and be decided in another order.
                    self.kafka.fails = false;
                    self.kafka.tell_unknown();
                    self.model.tell();
                }
            }
            Step::Fail => self.kafka.fails = true,
        }
    }

    fn number(&mut self) -> String {
        self.count += 1;
        self.count.to_string()
    }

    fn submit(&mut self, timer: usize, what: What, delay: u64, stray: bool, expires: bool) {
        let (key, id) = TIMERS[timer];
        let n = self.number();
        self.timers.insert(n.clone(), (timer, self.kafka.now + Millis(delay)));
        let (delay_ms, expires_ms) = (delay.to_string(), (delay + 60).to_string());
        let mut headers = vec![("x-delay-id", id), ("n", &n)];
        match what {
            What::Cancel => headers.push(("x-delay-action", "cancel")),
            What::Create => {}
            What::Replace => headers.push(("x-delay-action", "replace")),
        }
        if what != What::Cancel {
            headers.extend([("x-delay", &*delay_ms), ("x-delay-target", TARGET)]);
            if expires {
                headers.push(("x-delay-expires", &expires_ms));
            }
        }
        let now = self.kafka.now;
        // For the same reason as in `Stop`.
        let stray = stray && self.model.is_up;
        let command = Command {
            n: n.clone(),
            timer,
            what,
            first_appended: now,
            number: 0,
            due: now + Millis(delay),
            expires: expires.then(|| now + Millis(delay + 60)),
            elsewhere: stray,
        };
        let lane = lane_of(key);
        let partition = if stray { (lane + 1) % LANES } else { lane };
        self.kafka.append(source(0, partition), record(key, &headers));
        if stray {
            self.model.strays[usize::from(partition)].push(command);
        } else {
            self.model.arrive(command);
        }
    }

    fn write_to_tier(&mut self, timer: usize) {
        // Within a millisecond its place in another log says nothing of what was first.
        self.wait(1);
        let (key, id) = TIMERS[timer];
        let n = self.number();
        let headers = [("x-delay-id", id), ("x-delay-target", TARGET), ("n", &n)];
        let (tier, hold, wait) = TIER;
        self.timers.insert(n.clone(), (timer, self.kafka.now + Millis(hold)));
        let topic = self.kafka.setup.topics.of_tier(tier).0;
        self.kafka.append(source(topic, lane_of(key)), record(key, &headers));
        let now = self.kafka.now;
        let command = Command {
            n: n.clone(),
            timer,
            what: What::Create,
            first_appended: now,
            number: 0,
            due: now + Millis(hold),
            expires: None,
            elsewhere: true,
        };
        self.model.heads.push((now + Millis(wait), command));
        self.wait(1);
    }

    fn compare(&self) {
        let is_late = |n: &String| {
            let timer = self.timers.get(n).and_then(|(at, _)| self.model.timers.get(at));
            timer.is_some_and(|timer| timer.is_made_again)
        };
        let is_unsure = |n: &String| {
            let timer = self.timers.get(n).and_then(|(at, _)| self.model.timers.get(at));
            timer.is_some_and(|timer| timer.is_made_again && timer.is_unsure)
        };
        for out in &self.kafka.out {
            assert!(self.timers[&out.n].1 <= out.at, "{} came early", out.n);
        }
        let but_late = |out: &Vec<Out>| -> Vec<Out> {
            out.iter().filter(|out| !is_late(&out.n)).cloned().collect()
        };
        let (mut out, mut want) = (but_late(&self.kafka.out), but_late(&self.model.out));
        out.sort();
        want.sort();
        assert_eq!(out, want, "what came out");
        let mut outcomes = BTreeMap::new();
        for answer in &self.kafka.answers {
            // Read again after a restart it is answered again, and nobody listens.
            outcomes.entry(self.kafka.n_at(answer.source, answer.offset)).or_insert(answer.outcome);
        }
        outcomes.retain(|n, _| !is_unsure(n));
        let mut wanted = self.model.outcomes.clone();
        wanted.retain(|n, _| !is_unsure(n));
        assert_eq!(outcomes, wanted, "what was answered");
        let mut live = 0;
        for (at, (key, id)) in TIMERS.iter().enumerate() {
            let wanted = self.model.timers.get(&at).and_then(|timer| timer.live.as_ref());
            live += usize::from(wanted.is_some());
            if self.model.timers.get(&at).is_some_and(|timer| timer.is_made_again) {
                continue;
            }
            let said = self.kafka.timer(key, id);
            let pending = said.filter(|said| said.state == TimerState::Delay).map(|said| said.due);
            assert_eq!(pending, wanted.map(|live| live.due), "timer {at} in the changelog");
        }
        if self.model.is_up
            && self.model.slow.is_none()
            && self.model.timers.values().all(|timer| !timer.is_made_again)
        {
            assert_eq!(self.kafka.figures().live, live);
        }
    }
}

/// Timers that were created again must end in the same way, even if later or too late.
fn compare_made_again(world: &World) {
    for (at, timer) in &world.model.timers {
        if !timer.is_made_again || timer.is_unsure {
            continue;
        }
        let of = |out: &[Out]| -> BTreeMap<String, UnixMillis> {
            let of_timer = out.iter().filter(|out| world.timers[&out.n].0 == *at);
            of_timer.map(|out| (out.n.clone(), out.at)).collect()
        };
        let (out, want) = (of(&world.kafka.out), of(&world.model.out));
        assert!(out.keys().eq(want.keys()), "timer {at}: {out:?} came out, want {want:?}");
        assert!(out.iter().all(|(n, at)| want[n] <= *at), "timer {at}: {out:?}, {want:?}");
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        4 => Just(What::Create), 3 => Just(What::Replace), 3 => Just(What::Cancel),
    ];
    let submit = (0..TIMERS.len(), what, 0..DELAYS.len(), prop::bool::weighted(0.2), any::<bool>())
        .prop_map(|(timer, what, delay, stray, expires)| Step::Submit {
            timer,
            what,
            delay,
            stray,
            expires,
        });
    prop_oneof![
        12 => submit,
        2 => (0..TIMERS.len()).prop_map(|timer| Step::Tier { timer }),
        5 => (0..WAITS.len()).prop_map(Step::Wait),
        1 => Just(Step::Stop),
        2 => proptest::option::of(0..LANES).prop_map(Step::TakeOver),
        1 => Just(Step::Tell),
        1 => Just(Step::Fail),
    ]
}

fn agree(steps: &[Step]) {
    let mut world = World::new();
    for step in steps {
        world.step(step);
        world.wait(0);
        world.compare();
    }
    if !world.model.is_up {
        world.step(&Step::TakeOver(None));
    }
    world.step(&Step::Tell);
    world.wait(7_300_000);
    world.compare();
    compare_made_again(&world);
    let Kafka { timers, .. } = &world.kafka;
    assert!(timers.is_empty(), "everything is over, and is forgotten: {timers:?}");
    let figures = world.kafka.figures();
    assert_eq!((figures.memory_bytes, figures.gated, world.kafka.pending()), (0, 0, 0));
    assert_eq!(figures.lost_timers, 0, "nobody deletes anything");
    let mut out: Vec<&String> = world.kafka.out.iter().map(|out| &out.n).collect();
    out.sort();
    assert!(out.windows(2).all(|two| two[0] != two[1]), "nothing comes out twice: {out:?}");
    let bad = world.kafka.said.iter().filter(|(_, change)| match change {
        Change::Timer(timer) => timer.state.is_final() && timer.since > world.kafka.now,
        _ => false,
    });
    assert_eq!(bad.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_to_timers_what_the_model_does(
        steps in proptest::collection::vec(any_step(), 1..40),
    ) {
        agree(&steps);
    }
}
