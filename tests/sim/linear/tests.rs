use super::search::Search;
use super::{Answer, Failure, History, Index, Operation, Stand, What};
use crate::chance::Chance;

const ALWAYS: u64 = u64::MAX;

/// A history in the making. Every command stands where its time says, in the lane's intake unless it is said otherwise.
#[derive(Default)]
struct Tale(History);

impl Tale {
    fn add(&mut self, what: What, from: u64, until: u64, stand: Stand) -> Index {
        self.0.operations.push(Operation { what, from, until, stand, due: stand.stamp });
        self.0.operations.len() - 1
    }

    fn stand(at: u64) -> Stand {
        Stand {
            stamp: at,
            log: (0, 0),
            offset: at as i64,
            prompt: true,
            straight: true,
            in_tier: false,
        }
    }

    fn create(&mut self, at: u64) -> Index {
        self.add(What::Create, at, ALWAYS, Self::stand(at))
    }

    fn replace(&mut self, at: u64) -> Index {
        self.add(What::Replace { of: None }, at, ALWAYS, Self::stand(at))
    }

    fn cancel(&mut self, at: u64, answer: Option<(u64, Answer)>) -> Index {
        self.cancel_of(None, at, answer)
    }

    fn cancel_of(&mut self, of: Option<Index>, at: u64, told: Option<(u64, Answer)>) -> Index {
        let (until, answer) = told.map_or((ALWAYS, None), |(until, answer)| (until, Some(answer)));
        let what = What::Cancel { of, answer, forgotten: false };
        self.add(what, at, until, Self::stand(at))
    }

    fn fire(&mut self, version: Index, seen: u64) -> Index {
        let of = self.0.operations[version];
        self.add(What::Fire(version), of.from, seen, of.stand)
    }

    fn dead(&mut self, version: Index, seen: u64) -> Index {
        let of = self.0.operations[version];
        self.add(What::Dead(version), of.from, seen, of.stand)
    }

    /// The command came in by another partition, or by a tier.
    fn elsewhere(&mut self, command: Index) {
        let stand = &mut self.0.operations[command].stand;
        (stand.log, stand.prompt, stand.straight) = ((0, 1), false, false);
    }

    /// It is seen, and a command that could be read in time was known by then.
    fn fire_after(&mut self, command: Index, version: Index, seen: u64) {
        let fire = self.fire(version, seen);
        self.0.before.push((command, fire));
    }

    fn due(&mut self, version: Index, due: u64) {
        self.0.operations[version].due = due;
    }
}

/// What it is about, why it is so, whether there is an order, and the tale.
type Case = (&'static str, bool, fn(&mut Tale));

use Answer::{Cancelled, Delivered, Superseded, Unknown};

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("nothing happened", true, |_| {}),
    ("a timer fires", true, |t| { let a = t.create(1); t.fire(a, 9); }),
    ("a timer is forgotten", false, |t| { t.create(1); }),
    ("a duplicate does nothing", true, |t| { let a = t.create(1); t.create(2); t.fire(a, 9); }),
    ("of two the second is no duplicate of nothing", false, |t| { t.create(1); let b = t.create(2); t.fire(b, 9); }),
    ("a duplicate fires beside the first", false, |t| {
        let a = t.create(1); let b = t.create(2); let f = t.fire(a, 9); t.fire(b, 9); t.0.before.push((b, f));
    }),
    ("after it fired an id is free", true, |t| {
        let a = t.create(1); t.fire(a, 5); let b = t.create(6); t.fire(b, 9);
    }),
    ("after it fired another one is no duplicate", false, |t| { let a = t.create(1); t.fire(a, 5); t.create(6); }),
    ("one that is sent while another fires may be either: a duplicate", true, |t| {
        let a = t.create(1); t.create(5); t.fire(a, 7);
    }),
    ("one that is sent while another fires may be either: a new one", true, |t| {
        let a = t.create(1); let b = t.create(5); t.fire(a, 7); t.fire(b, 9);
    }),
    ("a replace takes the place", true, |t| { t.create(1); let b = t.replace(2); t.fire(b, 9); }),
    ("what was replaced fires", false, |t| { let a = t.create(1); t.replace(2); t.fire(a, 9); }),
    ("what was replaced fires as well", false, |t| {
        let a = t.create(1); let b = t.replace(2); t.fire(b, 8); let f = t.fire(a, 9); t.0.before.push((b, f));
    }),
    ("a replace that races with the fire is a create", true, |t| {
        let a = t.create(1); let b = t.replace(5); t.fire(a, 7); t.fire(b, 9);
    }),
    ("a replace that must have come before the fire", false, |t| {
        let a = t.create(1); let b = t.replace(5); let f = t.fire(a, 7); t.fire(b, 9); t.0.before.push((b, f));
    }),
    ("a replace of nothing is a create", true, |t| { let a = t.replace(1); t.fire(a, 9); }),
    ("a cancel wins", true, |t| { t.create(1); t.cancel(2, Some((3, Cancelled))); }),
    ("a cancelled timer fires", false, |t| { let a = t.create(1); t.cancel(2, Some((3, Cancelled))); t.fire(a, 9); }),
    ("a cancel without an answer wins", true, |t| { t.create(1); t.cancel(2, None); }),
    ("a cancel without an answer is too late", true, |t| { let a = t.create(1); t.cancel(2, None); t.fire(a, 9); }),
    ("a cancel that is early enough must win", false, |t| {
        let a = t.create(1); let c = t.cancel(2, None); let f = t.fire(a, 9); t.0.before.push((c, f));
    }),
    ("a cancel is too late", true, |t| { let a = t.create(1); t.fire(a, 5); t.cancel(6, Some((7, Delivered))); }),
    ("a cancel after the delivery says cancelled", false, |t| {
        let a = t.create(1); t.fire(a, 5); t.cancel(6, Some((7, Cancelled)));
    }),
    ("a cancel after the delivery says unknown", false, |t| {
        let a = t.create(1); t.fire(a, 5); t.cancel(6, Some((7, Unknown)));
    }),
    ("delivered is said of what never arrives", false, |t| { t.create(1); t.cancel(2, Some((3, Delivered))); }),
    ("delivered is said before it can be seen", true, |t| {
        // Whether it is there when it is said is another check: the order alone allows it.
        let a = t.create(1); t.cancel(2, Some((3, Delivered))); t.fire(a, 9);
    }),
    ("unknown is said of what is pending", false, |t| {
        let a = t.create(1); t.cancel(2, Some((3, Unknown))); t.fire(a, 9);
    }),
    ("nothing is known of nothing", true, |t| { t.cancel(2, Some((3, Unknown))); }),
    ("cancelled is said of nothing", false, |t| { t.cancel(2, Some((3, Cancelled))); }),
    ("a second cancel says cancelled again", true, |t| {
        t.create(1); t.cancel(2, Some((3, Cancelled))); t.cancel(4, Some((5, Cancelled)));
    }),
    ("a second cancel forgets the first", false, |t| {
        t.create(1); t.cancel(2, Some((3, Cancelled))); t.cancel(4, Some((5, Unknown)));
    }),
    ("cancelled, then made again: it lives", true, |t| {
        t.create(1); t.cancel(2, None); let b = t.create(3); t.fire(b, 9);
    }),
    ("cancelled, then made again: it is lost", false, |t| { t.create(1); t.cancel(2, None); t.create(3); }),
    ("cancelled and made again, the old one fires in its place", false, |t| {
        let a = t.create(1); t.cancel(2, Some((3, Cancelled))); t.create(4); t.fire(a, 9);
    }),
    ("the new one is delivered, and the cancel says cancelled of it", false, |t| {
        t.create(1); t.cancel(2, Some((3, Cancelled)));
        let b = t.create(4); t.fire(b, 6); t.cancel(7, Some((8, Cancelled)));
    }),
    ("two clients cancel at once: both are told so", true, |t| {
        t.create(1); t.cancel(2, Some((6, Cancelled))); t.cancel(3, Some((5, Cancelled)));
    }),
    ("two clients cancel at once: one is told unknown", false, |t| {
        t.create(1); t.cancel(2, Some((6, Cancelled))); t.cancel(3, Some((5, Unknown)));
    }),
    ("a cancel by version", true, |t| { let a = t.create(1); t.cancel_of(Some(a), 2, Some((3, Cancelled))); }),
    ("a cancel by an older version does nothing", true, |t| {
        let a = t.create(1); let b = t.replace(2); t.cancel_of(Some(a), 3, Some((4, Superseded))); t.fire(b, 9);
    }),
    ("a cancel by an older version hits the new one", false, |t| {
        let a = t.create(1); t.replace(2); t.cancel_of(Some(a), 3, Some((4, Superseded)));
    }),
    ("a cancel by an older version says cancelled", false, |t| {
        let a = t.create(1); let b = t.replace(2); t.cancel_of(Some(a), 3, Some((4, Cancelled))); t.fire(b, 9);
    }),
    ("a cancel by version after the delivery says unknown", false, |t| {
        let a = t.create(1); t.fire(a, 3); t.cancel_of(Some(a), 10, Some((11, Unknown)));
    }),
    ("another one was cancelled before it came, and is told in the place of what was delivered", true, |t| {
        let a = t.create(1); t.fire(a, 3); let b = t.create(5); t.elsewhere(b); t.cancel(6, Some((7, Delivered)));
        t.cancel(8, Some((9, Cancelled))); t.cancel_of(Some(a), 10, Some((11, Unknown)));
    }),
    ("superseded is said of what nobody replaced", false, |t| {
        let a = t.create(1); t.cancel_of(Some(a), 2, Some((3, Superseded))); t.fire(a, 9);
    }),
    ("a dead letter ends a timer", true, |t| {
        let a = t.create(1); t.dead(a, 5); t.cancel(6, Some((7, Unknown))); let b = t.create(8); t.fire(b, 9);
    }),
    ("a dead letter is said to be cancelled", false, |t| {
        let a = t.create(1); t.dead(a, 5); t.cancel(6, Some((7, Cancelled)));
    }),
    ("a replace that is refused leaves the pending one", true, |t| {
        let a = t.create(1); let b = t.replace(2); t.dead(b, 3); t.fire(a, 9);
    }),
    ("cancelled, and a dead letter all the same", false, |t| {
        let a = t.create(1); t.cancel(2, Some((3, Cancelled))); t.dead(a, 9);
    }),
    ("a cancel that was refused does nothing", true, |t| {
        let a = t.create(1); t.cancel(2, Some((3, Answer::Refused))); t.fire(a, 9);
    }),
    ("one in a tier is not known yet, and is cancelled all the same", true, |t| {
        let a = t.create(1); t.elsewhere(a); t.cancel(2, Some((3, Unknown)));
    }),
    ("one in a tier is not known yet, and fires all the same", false, |t| {
        let a = t.create(1); t.elsewhere(a); t.cancel(2, Some((3, Unknown))); t.fire(a, 9);
    }),
    ("in one log the order counts, not the append times: cancelled, then made again", true, |t| {
        t.create(5); t.cancel(6, None); let b = t.create(7); t.0.operations[b].stand.stamp = 3; t.fire(b, 9);
    }),
    ("in one log the order counts, not the append times: a new one is lost", false, |t| {
        t.create(5); t.cancel(6, None); let b = t.create(7); t.0.operations[b].stand.stamp = 3;
    }),
    ("one that comes late by another partition is a duplicate of the one that was taken", false, |t| {
        let a = t.create(1); t.elsewhere(a); let b = t.create(2); t.fire(b, 5); t.fire_after(b, a, 9);
    }),
    ("one that comes late by another partition is nothing", true, |t| {
        let a = t.create(1); t.elsewhere(a); let b = t.create(2); t.fire(b, 5);
    }),
    ("one that comes late by another partition may have fired before the next was sent", true, |t| {
        let a = t.create(1); t.elsewhere(a); let b = t.create(2); t.fire(b, 5); t.fire(a, 9);
    }),
    ("one that comes late was replaced by one that is delivered", false, |t| {
        let a = t.create(1); t.elsewhere(a); let b = t.replace(2); t.fire(b, 5); t.fire_after(b, a, 9);
    }),
    ("a replace that comes late was replaced by one that is delivered", false, |t| {
        let a = t.replace(1); t.elsewhere(a); let b = t.replace(2); t.fire(b, 5); t.fire_after(b, a, 9);
    }),
    ("one that comes late was sent in the millisecond of the one that was taken: a duplicate", true, |t| {
        let a = t.create(2); let b = t.create(2); t.elsewhere(b); let f = t.fire(a, 5); t.0.before.push((f, b));
    }),
    ("one that comes late was sent in the millisecond of the one that was taken: a new one", true, |t| {
        let a = t.create(2); let b = t.create(2); t.elsewhere(b); let f = t.fire(a, 5); t.fire(b, 9); t.0.before.push((f, b));
    }),
    ("one that was forgotten keeps nothing back", true, |t| {
        let a = t.create(1); t.elsewhere(a); let b = t.create(2); t.fire(b, 5); t.fire_after(b, a, 9);
        t.0.forgotten = true;
    }),
    ("a replace that was sent before one that was cancelled comes when that may be forgotten", true, |t| {
        let a = t.create(2); t.cancel_of(Some(a), 3, Some((4, Cancelled)));
        let b = t.replace(5); t.elsewhere(b); t.0.operations[b].stand.stamp = 1; t.0.forgotten = true;
    }),
    ("the same, and it is a new one", true, |t| {
        let a = t.create(2); t.cancel_of(Some(a), 3, Some((4, Cancelled)));
        let b = t.replace(5); t.elsewhere(b); t.0.operations[b].stand.stamp = 1; t.0.forgotten = true; t.fire(b, 9);
    }),
    ("the same, and nothing is forgotten", false, |t| {
        let a = t.create(2); t.cancel_of(Some(a), 3, Some((4, Cancelled)));
        let b = t.replace(5); t.elsewhere(b); t.0.operations[b].stand.stamp = 1; t.fire(b, 9);
    }),
    ("the same, and it was sent after the cancel", false, |t| {
        let a = t.create(2); t.cancel_of(Some(a), 3, Some((4, Cancelled)));
        let b = t.replace(5); t.elsewhere(b); t.0.forgotten = true;
    }),
    ("one that was sent while another was not due is a duplicate though it comes after that", false, |t| {
        let a = t.create(1); t.due(a, 4); let b = t.create(2); t.elsewhere(b); let f = t.fire(a, 5); t.fire(b, 9);
        t.0.before.push((f, b));
    }),
    ("the same, and a cancel was sent between the two", true, |t| {
        let a = t.create(1); t.due(a, 6); t.cancel(2, Some((9, Delivered)));
        let b = t.create(3); t.elsewhere(b); let f = t.fire(a, 7); t.fire(b, 12); t.0.before.push((f, 1));
    }),
    ("the same, and it is lost", false, |t| {
        let a = t.create(1); t.due(a, 6); let c = t.cancel(2, Some((9, Delivered)));
        let b = t.create(3); t.elsewhere(b); let f = t.fire(a, 7); t.0.before.extend([(f, c), (c, b)]);
    }),
    ("the same, and the cancel was sent after both", false, |t| {
        let a = t.create(1); t.due(a, 6); let b = t.create(2); t.elsewhere(b);
        let c = t.cancel(3, Some((9, Delivered))); let f = t.fire(a, 7); t.fire(b, 12); t.0.before.extend([(f, c), (c, b)]);
    }),
    ("a replace that was sent while another was not due, and comes after that, is a new one", true, |t| {
        let a = t.create(1); t.due(a, 4); let b = t.replace(2); t.elsewhere(b); let f = t.fire(a, 5); t.fire(b, 9);
        t.0.before.push((f, b));
    }),
    ("one that is sent after another was seen is a new one, whatever way it comes", false, |t| {
        let a = t.create(1); t.due(a, 4); t.fire(a, 5); let b = t.create(6); t.elsewhere(b);
    }),
    ("a cancel that comes late by another partition ends what stood before it", true, |t| {
        t.create(1); let c = t.cancel(2, Some((9, Cancelled))); t.elsewhere(c);
    }),
    ("a cancel that comes late by another partition ends what was made after it", false, |t| {
        t.create(1); let c = t.cancel(2, Some((9, Cancelled))); t.elsewhere(c); t.create(3);
    }),
    ("what was made after a cancel that comes late is delivered", true, |t| {
        t.create(1); let c = t.cancel(2, Some((9, Cancelled))); t.elsewhere(c); let b = t.create(3); t.fire(b, 12);
    }),
    ("what was made after a cancel that comes late is cancelled by the next", true, |t| {
        t.create(1); let c = t.cancel(2, Some((9, Cancelled))); t.elsewhere(c); t.create(3); t.cancel(4, Some((9, Cancelled)));
    }),
    ("a cancel that comes late by another partition spares what stood after it", false, |t| {
        let c = t.cancel(2, Some((9, Cancelled))); t.elsewhere(c); t.create(3);
    }),
    ("a replace that comes late finds a later one", true, |t| {
        let a = t.replace(1); t.elsewhere(a); let b = t.create(2); t.fire(b, 9);
    }),
    ("an answered cancel is over before what is sent then, wherever it stood", true, |t| {
        t.create(1); let c = t.cancel(2, Some((3, Cancelled))); t.elsewhere(c); let b = t.create(4); t.fire(b, 9);
    }),
    ("one that comes after two cancels is told to the first of them, whose answer came later", true, |t| {
        let a = t.create(1); t.elsewhere(a); t.cancel(2, Some((9, Cancelled))); t.cancel(3, Some((5, Unknown)));
    }),
    ("the same, and it was sent after that answer", false, |t| {
        let a = t.create(10); t.elsewhere(a); t.0.operations[a].stand.stamp = 1;
        t.cancel(2, Some((9, Cancelled))); t.cancel(3, Some((5, Unknown)));
    }),
    ("the same, and it fires", false, |t| {
        let a = t.create(1); t.elsewhere(a); t.cancel(2, Some((9, Cancelled))); t.cancel(3, Some((5, Unknown))); t.fire(a, 12);
    }),
    ("the same, and it is not what that cancel is about", false, |t| {
        t.cancel(2, Some((9, Cancelled))); let a = t.create(3); t.elsewhere(a); t.cancel(4, Some((6, Unknown)));
    }),
    ("what is before both in their log is told to both", false, |t| {
        t.create(1); t.cancel(2, Some((9, Cancelled))); t.cancel(3, Some((5, Unknown)));
    }),
];

#[test]
fn a_history_has_an_order_or_it_has_none() {
    for (what, possible, tell) in CASES {
        let mut tale = Tale::default();
        tell(&mut tale);
        let wanted = if *possible { Ok(()) } else { Err(Failure::Impossible) };
        assert_eq!(tale.0.order().map(drop), wanted, "{what}: {:#?}", tale.0);
    }
}

/// An owner who does one thing after the other, and clients who learn of it some time later.
fn honest(chance: &mut Chance) -> Tale {
    let (mut tale, mut now) = (Tale::default(), 0);
    let (mut live, mut last) = (None, Unknown);
    for _ in 0..chance.between(1, 14) {
        let sent = now + 1;
        now = sent + chance.between(0, 3);
        let told = now + chance.between(1, 6);
        match (chance.between(0, 4), live) {
            (0 | 1, None) => live = Some(tale.create(sent)),
            (0 | 1, Some(_)) => drop(tale.create(sent)),
            (2, _) => live = Some(tale.replace(sent)),
            (3, _) => {
                last = if live.take().is_some() { Cancelled } else { last };
                tale.cancel(sent, chance.percent(80).then_some((told, last)));
            }
            (_, Some(version)) => {
                (live, last) = (None, Delivered);
                tale.fire(version, told);
            }
            (_, None) => {}
        }
    }
    if let Some(version) = live {
        tale.fire(version, now + 1);
    }
    tale
}

#[test]
fn what_an_honest_owner_does_always_has_an_order() {
    let mut chance = Chance::new(1);
    for round in 0..3_000 {
        let tale = honest(&mut chance);
        let order = tale.0.order();
        assert!(order.is_ok(), "{round}: {order:?} of {:#?}", tale.0);
    }
}

#[test]
fn one_lie_among_many_answers_is_found() {
    let mut chance = Chance::new(2);
    let (mut lies, mut found) = (0, 0);
    for _ in 0..3_000 {
        let mut tale = honest(&mut chance).0;
        let answers: Vec<Index> = (0..tale.operations.len())
            .filter(|&at| matches!(tale.operations[at].what, What::Cancel { answer: Some(_), .. }))
            .collect();
        if answers.is_empty() {
            continue;
        }
        let at = *chance.pick(&answers);
        let What::Cancel { answer: Some(answer), .. } = &mut tale.operations[at].what else {
            continue;
        };
        *answer = match answer {
            Cancelled => *chance.pick(&[Delivered, Unknown]),
            _ => Cancelled,
        };
        lies += 1;
        found += u32::from(tale.order() == Err(Failure::Impossible));
    }
    // Some lies could be true: two things went on at once.
    assert!(found * 2 > lies, "{found} of {lies} lies found");
}

#[test]
fn a_search_agrees_with_trying_all_orders() {
    let mut chance = Chance::new(3);
    let mut impossible = 0;
    for _ in 0..400 {
        let tale = loop {
            let mut tale = honest(&mut chance).0;
            tale.operations.truncate(6);
            let whole = tale.operations.iter().all(
                |of| !matches!(of.what, What::Fire(at) | What::Dead(at) if at >= tale.operations.len()),
            );
            if whole && !tale.operations.is_empty() {
                break tale;
            }
        };
        let found = tale.order();
        impossible += u32::from(found.is_err());
        assert_eq!(found.is_ok(), by_trying(&tale), "{tale:#?}");
    }
    assert!(impossible > 20, "{impossible} of 400 were impossible");
}

/// The same without memory or cleverness.
fn by_trying(history: &History) -> bool {
    let search = Search {
        history,
        after: history.precedence(),
        tries: (0..history.operations.len()).collect(),
    };
    let fates = vec![super::Fate::Ahead; history.operations.len()];
    let start = super::State { done: 0, live: None, last: None, fates };
    fn go(search: &Search<'_>, state: &super::State) -> bool {
        let all = (1_u64 << search.tries.len()) - 1;
        if state.done == all {
            return state.live.is_none();
        }
        search.tries.iter().any(|&index| {
            let ready = state.done & (1 << index) == 0 && search.after[index] & !state.done == 0;
            ready
                && search.apply(state, index).into_iter().any(|mut next| {
                    next.done |= 1 << index;
                    go(search, &next)
                })
        })
    }
    go(&search, &start)
}
