//! The whole engine over a few arbitrary records: whatever they ask for, it ends, and nothing of it stays pending.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use super::input::Input as Bytes;
use super::parts::header;
use waterclock_engine::allow::Allow;
use waterclock_engine::ladder::Ladder;
use waterclock_engine::murmur2;
use waterclock_engine::state::{Bound, Kind, State, StateKey, SubmissionOrder};
use waterclock_engine::window::Window;
use waterclock_engine::{
    Action, Batch, Destination, Event, Intake, Lane, LaneEngine, Limits, Millis, Offset, Record,
    Setup, Source, Start, Target, TopicId, Topics, UnixMillis,
};

pub(super) const LANES: u16 = 2;
const BEGIN: UnixMillis = UnixMillis(1_800_000_000_000);
/// Some tiers, so that 400 days are a few dozen hops.
const HOLDS: [u64; 8] = [1, 10, 60, 600, 7_200, 86_400, 864_000, 8_640_000];
/// Steps after which something goes round in circles.
const STEPS_MAX: usize = 2_000;
/// The longest jump of time while nothing happens. Late is allowed, and the engine wakes every minute for its own sake.
const JUMP_MAX: Millis = Millis(40 * 86_400_000);

/// Made once: its patterns take longer than most runs.
fn setup() -> Arc<Setup> {
    static SETUP: OnceLock<Arc<Setup>> = OnceLock::new();
    Arc::clone(SETUP.get_or_init(|| setup_of(|topics| topics)))
}

/// The same where tasks are in force.
pub(super) fn setup_of_tasks() -> Arc<Setup> {
    static SETUP: OnceLock<Arc<Setup>> = OnceLock::new();
    Arc::clone(SETUP.get_or_init(|| setup_of(Topics::with_tasks)))
}

fn setup_of(with: impl FnOnce(Topics) -> Topics) -> Arc<Setup> {
    let holds = HOLDS.map(|seconds| Millis(seconds * 1_000));
    let ladder = Ladder::new(&holds, &[], Millis(2_000)).unwrap();
    let allow = || Allow::new("wc", Some(&["[a-z].*".to_owned()])).unwrap();
    let intakes = vec![
        Intake::new("", None, None, allow()),
        Intake::new("later", Some(Millis(90_000)), Some("orders"), allow()),
    ];
    let topics = with(Topics::new("wc", intakes, ladder));
    let key = StateKey::new([7; 32]);
    Arc::new(Setup { lanes: LANES, topics, key, limits: Limits::default() })
}

/// One engine with all lanes, and the logs that it writes to.
pub(super) struct World {
    engine: LaneEngine,
    pub(super) key: StateKey,
    pub(super) now: UnixMillis,
    logs: BTreeMap<Source, i64>,
    committed: BTreeMap<Source, (Offset, String)>,
    written: VecDeque<(Source, Record)>,
    delivered: usize,
    /// Dead letters.
    pub(super) dead: usize,
    /// Turns of tasks, and cancels of them, for workers.
    pub(super) dispatched: VecDeque<(Lane, Record)>,
    /// A look-up was answered: what waited for it goes on before more time passes, or the answer would be too old.
    is_told: bool,
}

impl World {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        let key = setup.key.clone();
        let topics = setup.topics.names().len() as u16;
        let mut world = Self {
            engine: LaneEngine::new(setup),
            key,
            now: BEGIN,
            logs: BTreeMap::new(),
            committed: BTreeMap::new(),
            written: VecDeque::new(),
            delivered: 0,
            dead: 0,
            dispatched: VecDeque::new(),
            is_told: false,
        };
        let every = (0..topics).flat_map(|topic| {
            (0..LANES).map(move |lane| Source { topic: TopicId(topic), lane: Lane(lane) })
        });
        let begin = |source| Start {
            source,
            next: Offset(0),
            metadata: String::new(),
            end: Offset(0),
            gone: false,
        };
        world.tell(Event::Registry(Arc::default()));
        world.tell(Event::Assigned { starts: every.clone().map(begin).collect() });
        for lane in (0..LANES).map(Lane) {
            world.tell(Event::TimersLoaded {
                lane,
                live: Vec::new(),
                cancel_marks: Vec::new(),
                last: true,
            });
        }
        for source in every {
            world.tell(Event::ReadUpTo { source, at: UnixMillis(0) });
        }
        world
    }

    pub(super) fn tell(&mut self, input: Event) {
        let mut out = Vec::new();
        self.engine.step(self.now, input, &mut out);
        for order in out {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Action) {
        match order {
            Action::DescribeTarget(name) => {
                let target = match name.len() % 4 {
                    0 => Target::Missing,
                    1 => Target::Hidden,
                    kind => {
                        Target::Found { partitions: 3, record_bytes_max: 600, keyed: kind == 2 }
                    }
                };
                self.is_told = true;
                self.tell(Event::Target(name, target));
            }
            Action::ListEndOffsets(sources) => {
                for source in sources {
                    let at = self.now;
                    self.tell(Event::ReadUpTo { source, at });
                }
            }
            Action::Overdue { lane, .. } => {
                self.tell(Event::Overdue { lane, timers: Vec::new(), more: None });
            }
            Action::Inventory { .. } => unreachable!("nothing is gone"),
            Action::ListExpired(lane) => {
                self.tell(Event::Expired { lane, timers: Vec::new(), tasks: Vec::new() })
            }
            Action::Recall { lane, timers } => {
                let timers = timers.into_iter().map(|name| (name, None)).collect();
                self.tell(Event::Recalled { lane, timers });
            }
            Action::Batch(batch) => self.carry_out(batch),
            Action::Pause(_) | Action::Resume(_) => {}
            Action::Seek(source, offset) => {
                panic!("{source:?} is to be read again at {offset:?}")
            }
        }
    }

    fn carry_out(&mut self, batch: Batch) {
        for send in &batch.sends {
            self.delivered += usize::from(matches!(send.to, Destination::Target(_)));
            self.dead += usize::from(send.to == Destination::Dead);
            let is_ours = matches!(
                send.to,
                Destination::Lane(_)
                    | Destination::Tasks
                    | Destination::Submitted
                    | Destination::Results
            );
            if !is_ours {
                continue;
            }
            let mut headers: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
            send.headers(|name, value| headers.push((name.to_vec(), value.map(<[u8]>::to_vec))));
            let record = Record::new(
                send.body().key(),
                send.body().value(),
                headers.iter().map(|(name, value)| (&name[..], value.as_deref())),
            );
            let lane = Lane(send.partition.unwrap() as u16);
            match send.to {
                Destination::Lane(topic) => {
                    self.written.push_back((Source { topic, lane }, record));
                }
                Destination::Submitted => {
                    self.written.push_back((Source { topic: TopicId(0), lane }, record));
                }
                _ => self.dispatched.push_back((lane, record)),
            }
        }
        for commit in batch.commits {
            // What is committed can be read back, or the lane could not be taken over.
            Window::load(commit.next, &commit.metadata).unwrap();
            self.committed.insert(commit.source, (commit.next, commit.metadata));
        }
        self.tell(Event::Committed(batch.id));
    }

    pub(super) fn append(&mut self, source: Source, record: Record) {
        let next = self.logs.entry(source).or_default();
        let offset = Offset(*next);
        *next += 1;
        self.tell(Event::Record { source, offset, appended: self.now, record });
    }

    /// Time passes until everything is done.
    pub(super) fn run(&mut self) {
        let mut jump = Millis(1);
        for _ in 0..STEPS_MAX {
            if let Some((source, record)) = self.written.pop_front() {
                self.append(source, record);
                jump = Millis(1);
                continue;
            }
            let is_done = self.logs.iter().all(|(source, next)| {
                self.committed.get(source).is_some_and(|(low, metadata)| {
                    low.0 == *next && Window::load(*low, metadata).unwrap().pending() == 0
                })
            });
            if is_done {
                return;
            }
            if !std::mem::take(&mut self.is_told) {
                let wake = self.engine.wake_at().unwrap_or(self.now);
                self.now = wake.max(self.now + jump);
                jump = Millis(jump.0 * 2).min(JUMP_MAX);
            }
            self.tell(Event::Tick);
        }
        let (now, logs, committed) = (self.now, &self.logs, &self.committed);
        panic!("pending after {STEPS_MAX} steps, at {now:?}: of {logs:?} done is {committed:?}");
    }
}

/// A time that is near the beginning more often than not.
pub(super) fn near(input: &mut Bytes<'_>) -> UnixMillis {
    UnixMillis((BEGIN.0 - 100_000).wrapping_add(input.number() >> 29))
}

/// A record of any headers; one of its states may be authentic.
fn record(input: &mut Bytes<'_>, key: &StateKey) -> Record {
    let of_record = input.null_or_part();
    let value = input.null_or_part();
    let count = usize::from(input.byte() & 7);
    let mut headers: Vec<(&[u8], Option<Vec<u8>>)> = Vec::new();
    for _ in 0..count {
        let Some((name, value)) = header(input) else { break };
        headers.push((name, value.map(<[u8]>::to_vec)));
    }
    if input.byte() & 3 == 0 {
        let plain: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_deref())).collect();
        let directive = waterclock_engine::header::read(plain.into_iter()).ok();
        let bound = directive.map_or_else(Bound::default, |directive| directive.bound(of_record));
        let sealed = State {
            kind: [Kind::Hop, Kind::Move, Kind::Amend][usize::from(input.byte() % 3)],
            due: near(input),
            first_appended: near(input),
            order: SubmissionOrder {
                appended: near(input),
                offset: Offset(i64::from(input.byte())),
            },
            expires: (input.byte() & 1 == 0).then(|| near(input)),
            intake: waterclock_engine::state::intake_tag(
                ["", "later", "gone"][usize::from(input.byte() % 3)],
            ),
            name: (input.byte() & 1 == 1).then_some("gone"),
            target: (input.byte() & 3 == 0).then_some("orders"),
            hops: u16::from(input.byte()),
            task: None,
        }
        .seal(key, &bound);
        headers.push((b"x-delay-state", Some(sealed.as_ref().to_vec())));
    }
    Record::new(of_record, value, headers.iter().map(|(name, value)| (*name, value.as_deref())))
}

/// Records in any lane topic, and time between them.
pub fn records(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let mut world = World::new(setup());
    let mut told = 0;
    while told < 8 && !input.is_empty() {
        told += 1;
        let topic = TopicId(u16::from(input.byte()) % (2 + HOLDS.len() as u16));
        let lane = Lane(u16::from(input.byte()) % LANES);
        let record = record(&mut input, &world.key);
        // Most in the lane of their key, as a producer with the same hash would have it.
        let lane = match record.key() {
            Some(key) if input.byte() & 3 != 0 => Lane(murmur2::partition(key, LANES)),
            _ => lane,
        };
        world.append(Source { topic, lane }, record);
        world.now = world.now + Millis(input.number() % 10_000);
        world.tell(Event::Tick);
    }
    world.run();
    let ended = world.delivered + world.dead;
    assert!(ended <= told, "{ended} ends of {told} records");
}
