//! Stories: what clients do to one timer, again and again, and mostly about when it is due.
//!
//! Two clients or one, it is the same from outside: commands come at any time, also at the same.

use waterclock::engine::timers::TimerId;

use super::{Act, End, Fate, Header, Submission, When, Workload, header, java_partition, record};
use crate::broker::{EPOCH_MS, Time};
use crate::chance::Chance;
use crate::plan::{MINUTE, Plan, SECOND};

/// How far from the due time commands come, in milliseconds; `settle` is mostly 50.
const AROUND: &[i64] = &[
    -5_000, -1_000, -200, -110, -80, -60, -52, -51, -50, -49, -40, -30, -20, -10, -5, -1, 0, 1, 5,
    10, 30, 50, 100, 200, 1_000, 5_000, 70_000,
];

/// One timer, as its clients know it.
struct Story {
    id: String,
    key: Option<Vec<u8>>,
    own: i32,
    target: &'static str,
    from: Time,
    /// The intake that its commands mostly use.
    intake: usize,
    /// When it is due, as far as a client can tell.
    due: Time,
    /// Its creates and replaces.
    versions: Vec<usize>,
}

impl Workload {
    pub(super) fn stories(&mut self, plan: &Plan, chance: &mut Chance) {
        for number in 0..plan.stories {
            let mut story = Story::new(plan, chance, number);
            let first = if chance.percent(90) { Act::Create } else { Act::Replace };
            let delay = story.due - story.from;
            story.make(self, plan, chance, story.from, delay, first);
            for _ in 0..chance.between(1, 7) {
                story.go_on(self, plan, chance);
            }
            if !plan.healthy() && chance.percent(20) {
                story.hide(self, chance);
            }
        }
    }
}

impl Story {
    fn new(plan: &Plan, chance: &mut Chance, number: usize) -> Self {
        let key = match chance.between(0, 9) {
            0 => None,
            1 => Some(Vec::new()),
            _ => Some(format!("k{}", chance.below(4)).into_bytes()),
        };
        let id = format!("story-{number}");
        let identity = key.clone().unwrap_or_else(|| id.clone().into_bytes());
        let from = chance.between(plan.submits.0, plan.submits.1);
        let delay = match chance.between(0, 9) {
            0 => chance.between(0, 60),
            1..=6 => chance.between(60, 6 * SECOND),
            _ => chance.spread(1, plan.delay_max),
        };
        Self {
            own: java_partition(&identity, u32::from(plan.setup.lanes)),
            target: *chance.pick(&["t0", "t1"]),
            intake: usize::from(chance.percent(15)),
            due: from + delay.min(plan.delay_max),
            versions: Vec::new(),
            id,
            key,
            from,
        }
    }

    fn timer(&self) -> TimerId {
        TimerId::new(self.key.as_deref(), self.id.as_bytes())
    }

    /// One more command, or two.
    fn go_on(&mut self, load: &mut Workload, plan: &Plan, chance: &mut Chance) {
        let at = match chance.between(0, 9) {
            0 => self.from + chance.between(0, 20),
            1 => chance.between(self.from, self.due),
            _ => self.due.saturating_add_signed(*chance.pick(AROUND)),
        };
        let at = at.max(self.from);
        let delay = *chance.pick(&[0, 40, 200, SECOND, 3 * SECOND, plan.delay_max.min(MINUTE)]);
        match chance.between(0, 99) {
            0..=9 => self.twice(load, plan, chance, at),
            10..=34 => self.cancel(load, plan, chance, at),
            35..=49 => {
                self.cancel(load, plan, chance, at);
                let after = at + chance.between(0, 3) * chance.between(0, 20);
                self.make(load, plan, chance, after, delay, Act::Create);
            }
            50..=64 => {
                self.make(load, plan, chance, at, delay, Act::Replace);
                if chance.percent(60) {
                    self.due = at + delay;
                }
            }
            65..=79 => {
                let delay = self.due.saturating_sub(at);
                self.make(load, plan, chance, at, delay, Act::Create);
            }
            80..=89 => {
                let of = *chance.pick(&self.versions);
                let headers = vec![header("x-delay-action", "cancel")];
                self.push(load, plan, chance, at, headers, Act::CancelVersion(of));
            }
            90..=94 => {
                let of = *chance.pick(&self.versions);
                self.make(load, plan, chance, at, delay, Act::ReplaceVersion(of));
            }
            _ => self.tier(load, plan, chance, at),
        }
    }

    fn cancel(&self, load: &mut Workload, plan: &Plan, chance: &mut Chance, at: Time) {
        let headers = vec![header("x-delay-action", "cancel")];
        self.push(load, plan, chance, at, headers, Act::Cancel);
    }

    /// A producer with another partitioner, and soon after it one with ours: the first one's may come long after.
    fn twice(&mut self, load: &mut Workload, plan: &Plan, chance: &mut Chance, at: Time) {
        let delay = *chance.pick(&[100, SECOND, 3 * SECOND]);
        let first = if chance.percent(80) { Act::Create } else { Act::Replace };
        self.make(load, plan, chance, at, delay, first);
        let intakes = plan.setup.topics.intakes.len();
        let stray = load.submissions.last_mut().filter(|_| chance.percent(85));
        if let Some(stray) = stray {
            stray.partition = (self.own + 1) % i32::from(plan.setup.lanes);
            stray.own_lane = stray.partition == self.own;
            stray.topic = if chance.percent(20) { chance.below(intakes) } else { stray.topic };
        }
        let after = at + chance.between(1, delay);
        match chance.between(0, 9) {
            0..=5 => self.make(load, plan, chance, after, delay, Act::Create),
            6..=7 => self.make(load, plan, chance, after, delay, Act::Replace),
            _ => self.cancel(load, plan, chance, after),
        }
    }

    /// A create or a replace.
    fn make(
        &mut self,
        load: &mut Workload,
        plan: &Plan,
        chance: &mut Chance,
        at: Time,
        delay: Time,
        act: Act,
    ) {
        let mut headers = vec![header("x-delay-target", self.target)];
        let when = if chance.percent(50) || matches!(act, Act::ReplaceVersion(_)) {
            When::At(EPOCH_MS + at + delay)
        } else {
            When::After(delay)
        };
        headers.push(match when {
            When::At(due) => header("x-delay-until", due),
            When::After(delay) => header("x-delay", delay),
        });
        if act.replaces() {
            headers.push(header("x-delay-action", "replace"));
        }
        self.push(load, plan, chance, at, headers, act);
        let made = load.submissions.len() - 1;
        load.submissions[made].when = when;
        self.versions.push(made);
    }

    /// A create that is written straight to a tier.
    fn tier(&mut self, load: &mut Workload, plan: &Plan, chance: &mut Chance, at: Time) {
        let tiers = plan.setup.topics.ladder.tiers();
        let short = tiers.iter().take_while(|tier| tier.hold.0 <= MINUTE).count();
        let tier = chance.below(short.max(1));
        let headers = vec![header("x-delay-target", self.target)];
        self.push(load, plan, chance, at, headers, Act::Create);
        let made = load.submissions.len() - 1;
        let of = &mut load.submissions[made];
        of.topic = plan.setup.topics.intakes.len() + tier;
        of.when = When::After(tiers[tier].hold.0);
        self.versions.push(made);
    }

    fn push(
        &self,
        load: &mut Workload,
        plan: &Plan,
        chance: &mut Chance,
        at: Time,
        mut headers: Vec<Header>,
        act: Act,
    ) {
        let number = load.submissions.len();
        headers.push(header("n", number));
        headers.push(header("x-delay-id", &self.id));
        // What waterclock writes itself knows its lane.
        let strays = !act.names_a_version() && chance.percent(12);
        let partition =
            if strays { chance.below(usize::from(plan.setup.lanes)) as i32 } else { self.own };
        let another = !act.cancels() && chance.percent(5);
        let topic = match self.intake {
            _ if act.names_a_version() => 0,
            intake if another => 1 - intake,
            intake => intake,
        };
        let value = (!act.cancels()).then(|| vec![7; chance.below(40)]);
        let fates = if act.cancels() {
            Vec::new()
        } else {
            vec![Fate::Deliver { target: self.target, partition: None }]
        };
        if act == Act::Cancel {
            load.cancels.entry(self.timer()).or_default().push(number);
        }
        load.submissions.push(Submission {
            at,
            topic,
            partition,
            record: record(self.key.as_deref(), value.as_deref(), &headers),
            when: When::After(0),
            fates,
            expires: None,
            trace: false,
            transaction: None,
            own_lane: partition == self.own,
            timer: Some(self.timer()),
            act,
            hostile: false,
            theft: None,
        });
    }

    /// Somebody else's transaction is open in the lane's intake while the timer is due.
    fn hide(&self, load: &mut Workload, chance: &mut Chance) {
        let at = self.due.saturating_sub(chance.between(0, 300)).max(self.from);
        let transaction = load.transactions.len();
        let end = at + chance.spread(1, 20 * SECOND);
        load.transactions.push(match chance.between(0, 2) {
            0 => End::Commit(end),
            1 => End::Abort(end),
            _ => End::Hang,
        });
        let number = load.submissions.len();
        let headers = [header("n", number), header("x-delay-target", "t0"), header("x-delay", 100)];
        load.submissions.push(Submission {
            at,
            topic: 0,
            partition: self.own,
            record: record(None, None, &headers),
            when: When::After(100),
            fates: vec![Fate::Deliver { target: "t0", partition: None }],
            expires: None,
            trace: false,
            transaction: Some(transaction),
            own_lane: true,
            timer: None,
            act: Act::Create,
            hostile: false,
            theft: None,
        });
    }
}
