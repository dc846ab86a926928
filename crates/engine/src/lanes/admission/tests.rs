//! Decisions by hand: a record, what is known, and what becomes of it. Nothing else is needed for that.

use std::sync::Arc;

use super::*;
use crate::allow::Allow;
use crate::header;
use crate::ladder::Ladder;
use crate::setup::{Intake, Limits, Topics};
use crate::state::{StateKey, SubmissionOrder};
use crate::{Offset, Record, Source};

const NOW: UnixMillis = UnixMillis(1_800_000_000_000);
const LANE: Lane = Lane(0);

/// What is known, and is changed by hand only.
struct World {
    setup: Setup,
    timers: Timers,
    poison: Poison,
    targets: Targets,
    partitions: Partitions,
}

impl World {
    fn new(limits: Limits) -> Self {
        let ladder = Ladder::new(&[Millis(60_000)], &[], Millis(2_000)).expect("a ladder");
        let allow = Allow::new("wc", Some(&["orders\\..*".to_owned()])).expect("patterns");
        let topics = Topics::new("wc", vec![Intake::new("", None, None, allow)], ladder);
        let setup = Setup { lanes: 4, topics, key: StateKey::new([7; 32]), limits };
        Self {
            timers: Timers::new(setup.lanes),
            poison: Poison::new(),
            targets: Targets::new(4),
            partitions: Partitions::new(&setup),
            setup,
        }
    }

    fn facts(&self) -> Facts<'_> {
        let Self { setup, timers, poison, targets, partitions } = self;
        Facts { setup, timers, poison, targets, partitions }
    }

    /// Decides, and makes sure that asking again gives the same.
    fn decide(&self, now: UnixMillis, entry: &PendingRecord) -> Admission {
        let History::Known(past) = self.facts().history(now, entry) else {
            panic!("the index need not be asked")
        };
        let decide = || self.facts().decide(now, entry, past);
        assert_eq!(format!("{:?}", decide()), format!("{:?}", decide()));
        decide()
    }

    /// A record is the pending version of its timer.
    fn make_live(&mut self, entry: &PendingRecord) {
        self.timers.make_live(entry, entry.timer_id.expect("an id"), None, None);
    }
}

fn entry(offset: i64, origin: Origin) -> PendingRecord {
    let appended = NOW + Millis(offset as u64);
    let headers = [(header::ID.as_bytes(), Some(&b"i"[..]))];
    let record = Record::new(Some(b"k"), None, headers.into_iter());
    PendingRecord {
        source: Source { topic: TopicId(0), lane: LANE },
        offset: Offset(offset),
        appended,
        timer_id: Some(TimerId::new(record.key(), b"i")),
        record,
        due: NOW + Millis(3_600_000),
        order: SubmissionOrder { appended, offset: Offset(offset) },
        target: Arc::from("orders.out"),
        intake: Some(0),
        hops: 0,
        first_appended: appended,
        expires: None,
        origin,
        decided: false,
        deferred: false,
        task: None,
    }
}

fn goes_on(admission: Admission) -> GoOn {
    match admission {
        Admission::GoOn(go_on) => go_on,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_create_is_pending_and_a_second_one_waits_for_what_comes_late() {
    let mut world = World::new(Limits::default());
    let first = entry(1, Origin::Create);
    let of_first = goes_on(world.decide(NOW, &first));
    assert!(matches!(of_first.change, Change::Create), "{of_first:?}");
    assert!(of_first.looks_up);
    assert_eq!(of_first.is_known, Ok(false), "nobody has described its target");
    world.make_live(&first);
    let again = goes_on(world.decide(NOW, &first));
    assert!(matches!(again.change, Change::Live), "{again:?}");

    let second = entry(2, Origin::Create);
    let aside = world.decide(NOW, &second);
    assert!(matches!(aside, Admission::SetAside(of) if of == first.version()), "{aside:?}");
    let later = world.facts().kept_until(&second);
    let aside = world.decide(later, &second);
    assert!(matches!(aside, Admission::Duplicate), "{aside:?}");
}

#[test]
fn a_replace_ends_what_is_pending_and_nothing_else() {
    let mut world = World::new(Limits::default());
    let first = entry(1, Origin::Create);
    world.make_live(&first);
    let GoOn { change, .. } = goes_on(world.decide(NOW, &entry(2, Origin::Replace(None))));
    let Change::Replace(Some((old, mark))) = change else { panic!("{change:?}") };
    assert_eq!(old.version, first.version());
    assert!(mark.covers(first.version()) && mark.seen && !mark.cancels);
    let late = world.decide(NOW, &entry(0, Origin::Replace(None)));
    assert!(matches!(late, Admission::Finish(Outcome::Superseded)), "{late:?}");
    let other = Some(entry(7, Origin::Create).version());
    let missed = world.decide(NOW, &entry(2, Origin::Replace(other)));
    assert!(matches!(missed, Admission::Finish(Outcome::Absent)), "{missed:?}");
}

#[test]
fn a_cancel_ends_what_is_pending_or_leaves_its_mark_once() {
    let mut world = World::new(Limits::default());
    let cancel = entry(5, Origin::Cancel(None));
    let recorded = world.decide(NOW, &cancel);
    let Admission::Record(mark, Outcome::Absent) = recorded else { panic!("{recorded:?}") };
    assert!(!mark.seen && mark.cancels);
    world.timers.put_cancel_mark(LANE, mark);
    let again = world.decide(NOW, &cancel);
    assert!(matches!(again, Admission::Finish(Outcome::Absent)), "{again:?}");
    let covered = world.decide(NOW, &entry(1, Origin::Create));
    assert!(matches!(covered, Admission::Suppress(Outcome::Superseded)), "{covered:?}");

    let next = entry(6, Origin::Create);
    world.make_live(&next);
    let ended = world.decide(NOW, &entry(7, Origin::Cancel(None)));
    let Admission::End(live, wider) = ended else { panic!("{ended:?}") };
    assert_eq!(live.version, next.version());
    assert!(wider.covers(next.version()) && wider.cancels && wider.until >= mark.until);
}

#[test]
fn what_may_not_go_on_is_refused_for_its_first_reason() {
    let code = |world: &World, entry: &PendingRecord| {
        let GoOn { looks_up, is_known, .. } = goes_on(world.decide(NOW, entry));
        (looks_up, is_known.map_err(|refusal| refusal.code))
    };
    let full = World::new(Limits { tracked_max: 0, ..Limits::default() });
    let create = entry(1, Origin::Create);
    assert_eq!(code(&full, &create), (true, Err(Code::TooManyTimers)));
    let revived = entry(1, Origin::Hop);
    assert_eq!(code(&full, &revived), (true, Ok(true)), "it was remembered once");
    let denied = PendingRecord { target: Arc::from("payments"), ..entry(1, Origin::Create) };
    assert_eq!(code(&full, &denied), (false, Err(Code::TargetDenied)));
    let below = PendingRecord { target: Arc::from("payments"), ..entry(1, Origin::Hop) };
    assert_eq!(code(&full, &below), (true, Ok(true)), "it is denied when it is due");
    let unnamed = PendingRecord { timer_id: None, ..entry(1, Origin::Create) };
    assert_eq!(code(&full, &unnamed), (true, Ok(false)), "nothing is remembered of it");
}

#[test]
fn what_belongs_to_another_lane_is_moved_or_says_nothing_of_its_timer() {
    let world = World::new(Limits::default());
    let moved = |entry: &PendingRecord| world.facts().decide_move(entry, Lane(3));
    let create = entry(1, Origin::Create);
    assert!(matches!(moved(&create), Admission::Move(Lane(3), TopicId(0), _)));
    let denied = PendingRecord { target: Arc::from("payments"), ..entry(1, Origin::Create) };
    assert!(matches!(moved(&denied), Admission::Move(..)), "its own lane refuses it");
    let unnamed = PendingRecord { timer_id: None, ..denied };
    assert!(matches!(moved(&unnamed), Admission::RefuseMove(_)));
}
