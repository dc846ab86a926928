//! Tasks that wait to be called, and who is next: in turns over projects, then over what a project calls.
//!
//! A *line* is what waits of one scope in one partition. Limits are shares of partitions, so each line has its own part of
//! them: calls that may be open, a bucket of tokens, a breaker.
//!
//! # Invariants
//! 1. A project's turn does not come again before that of every other one that may begin something. The same holds for the
//!    lines of a project.
//! 2. Of one line the first that came begins first.
//! 3. Counts of what is open and of what is held in memory are those of the tasks: what leaves is taken off.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::breaker::{Breaker, Gate};
use super::{Callee, Now, PUT_OFF, Scope, Shares, Task};
use crate::task::bucket::{Bucket, Rate};
use crate::task::scope::Limits;
use crate::{Lane, Millis, Offset, UnixMillis};

/// A task, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) partition: Lane,
    pub(super) offset: Offset,
    pub(super) task: Arc<Task>,
}

/// What of a limit a line or a project has in one partition.
#[derive(Debug, Default)]
struct Share {
    /// Calls that are open.
    open: usize,
    /// Its tokens, and the rate and burst that they are of; `None`: no rate is set, or it was not looked up yet.
    bucket: Option<(Rate, u32, Bucket)>,
}

impl Share {
    /// Follows the limits, if they have changed.
    fn follow(&mut self, limits: &Limits, now: Millis) {
        let want = limits.rate.map(|rate| (rate, limits.burst));
        if self.bucket.as_ref().map(|(rate, burst, _)| (*rate, *burst)) != want {
            self.bucket = want.map(|(rate, burst)| (rate, burst, Bucket::new(rate, burst, now)));
        }
    }

    /// When a token may be taken, if not now.
    fn token_at(&self, now: Millis) -> Option<Millis> {
        self.bucket.as_ref().map(|(.., bucket)| bucket.next_at(now)).filter(|at| *at > now)
    }

    fn take_token(&mut self, now: Millis) {
        if let Some((.., bucket)) = &mut self.bucket {
            bucket.take(now);
        }
    }
}

/// What waits of one scope in one partition.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<At>,
    share: Share,
    breaker: Breaker,
    /// Calls that began in this second and in the one before, and which second that is.
    begun: (u64, [usize; 2]),
}

impl Line {
    fn note_begun(&mut self, now: Millis) {
        self.turn_to(now);
        self.begun.1[0] += 1;
    }

    fn turn_to(&mut self, now: Millis) {
        let second = now.0 / 1_000;
        let (at, [this, _]) = self.begun;
        self.begun = match second.saturating_sub(at) {
            0 => return,
            1 => (second, [0, this]),
            _ => (second, [0, 0]),
        };
    }

    /// How many are likely to begin within two seconds: as many as did in the last two, and one.
    fn likely_soon(&mut self, now: Millis) -> usize {
        self.turn_to(now);
        self.begun.1.iter().sum::<usize>() + 1
    }
}

/// What a scope or a project has in all partitions.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Calls that are open.
    open: usize,
    /// Bytes of its tasks in memory.
    bytes: usize,
    /// Those of tasks that are not reported yet: they wait, or are called.
    staying: usize,
}

#[derive(Debug, Default)]
struct Project {
    held: Held,
    scopes: BTreeMap<Callee, Held>,
    shares: BTreeMap<Lane, Share>,
    /// Its lines that have tasks waiting, in the order of their turns.
    turns: VecDeque<(Lane, Callee)>,
    lines: BTreeMap<(Lane, Callee), Line>,
}

/// How much of the process one scope or project may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Open calls of the process.
    pub(super) calls: usize,
    /// Bytes of tasks in the process.
    pub(super) bytes: usize,
}

/// What is to become of the first task of a line.
enum Verdict {
    /// It begins.
    Begin,
    /// It goes back to its lane, not to come again before then.
    Defer(UnixMillis, bool),
    /// It waits until then, or until something ends.
    Wait(Option<Millis>),
}

/// What is found when the next is looked for.
#[derive(Debug)]
pub(super) enum Next {
    /// Its call begins.
    Begin(At),
    /// It goes back to its lane.
    Defer(At, UnixMillis, bool),
    /// Nothing may begin before then, if nothing ends and nothing comes.
    Nothing(Option<Millis>),
}

/// All that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    bounds: Bounds,
    projects: BTreeMap<Arc<str>, Project>,
    /// Projects that have tasks waiting, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    /// Of the whole process.
    all: Held,
}

impl Waiting {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, projects: BTreeMap::new(), turns: VecDeque::new(), all: Held::default() }
    }

    /// Bytes of all tasks in memory: they wait, are called, or their results are not committed.
    pub(super) fn bytes(&self) -> usize {
        self.all.bytes
    }

    /// A task is in memory. Each is taken in once, [reported](Self::leave) once, and [let go](Self::release) once.
    pub(super) fn hold(&mut self, task: &Task) {
        self.count(task, |held, size| {
            held.bytes += size;
            held.staying += size;
        });
    }

    /// It is reported: its memory is free once that is committed.
    pub(super) fn leave(&mut self, task: &Task) {
        self.count(task, |held, size| held.staying = held.staying.saturating_sub(size));
    }

    /// It is done with: what was reported of it is committed, or nobody is to hear of it.
    pub(super) fn release(&mut self, now: Millis, task: &Task) {
        self.count(task, |held, size| held.bytes = held.bytes.saturating_sub(size));
        self.forget(now, &task.scope);
    }

    fn count(&mut self, task: &Task, how: impl Fn(&mut Held, usize)) {
        let size = task.size();
        let project = self.projects.entry(Arc::clone(&task.scope.project)).or_default();
        how(&mut self.all, size);
        how(&mut project.held, size);
        how(project.scopes.entry(task.scope.callee.clone()).or_default(), size);
    }

    /// Forgets a scope of which nothing is there, and its project. A breaker that has seen failures is kept for a while: its tasks
    /// went back to their lane, and come again.
    fn forget(&mut self, now: Millis, Scope { project: name, callee }: &Scope) {
        let Some(project) = self.projects.get_mut(name) else { return };
        let is_held = project.scopes.get(callee).is_some_and(|held| held.bytes > 0);
        let mut lines = project.lines.iter().filter(|((_, of), _)| of == callee);
        if is_held || !lines.all(|(_, line)| line.breaker.is_at_rest(now)) {
            return;
        }
        project.scopes.remove(callee);
        project.lines.retain(|(_, of), _| of != callee);
        if project.scopes.is_empty() {
            self.projects.remove(name);
        }
    }

    /// Forgets all scopes of which nothing is there.
    pub(super) fn sweep(&mut self, now: Millis) {
        let scopes = self.projects.iter().flat_map(|(name, project)| {
            let of = |callee: &Callee| Scope { project: Arc::clone(name), callee: callee.clone() };
            project.scopes.keys().map(of).collect::<Vec<_>>()
        });
        for scope in scopes.collect::<Vec<_>>() {
            self.forget(now, &scope);
        }
    }

    /// A task waits for its turn.
    pub(super) fn push(&mut self, at: At) {
        let Scope { project: name, callee } = at.task.scope.clone();
        let project = self.projects.entry(Arc::clone(&name)).or_default();
        let place = (at.partition, callee);
        let line = project.lines.entry(place.clone()).or_default();
        line.waiting.push_back(at);
        if line.waiting.len() == 1 {
            project.turns.push_back(place);
            if project.turns.len() == 1 {
                self.turns.push_back(name);
            }
        }
    }

    /// Takes a task out that waits.
    pub(super) fn remove(&mut self, partition: Lane, offset: Offset, scope: &Scope) -> Option<At> {
        let project = self.projects.get_mut(&scope.project)?;
        let place = (partition, scope.callee.clone());
        let line = project.lines.get_mut(&place)?;
        // They stand in the order of their offsets.
        let found = line.waiting.binary_search_by_key(&offset, |at| at.offset).ok()?;
        let at = line.waiting.remove(found)?;
        if line.waiting.is_empty() {
            project.turns.retain(|turn| *turn != place);
            if project.turns.is_empty() {
                self.turns.retain(|turn| *turn != scope.project);
            }
        }
        Some(at)
    }

    /// Takes all that wait; what is open stays counted until it ends.
    pub(super) fn take_all(&mut self) -> Vec<At> {
        let mut all = Vec::new();
        self.turns.clear();
        for project in self.projects.values_mut() {
            project.turns.clear();
            for line in project.lines.values_mut() {
                all.extend(line.waiting.drain(..));
            }
        }
        all
    }

    /// Another assignment begins with no tokens and closed breakers: a rebalance gives no burst.
    pub(super) fn begin_again(&mut self) {
        for project in self.projects.values_mut() {
            project.shares.clear();
            project.lines.clear();
        }
    }

    /// Who is next. A task that may begin is counted as open.
    pub(super) fn next(
        &mut self,
        now: Now,
        shares: &Shares,
        is_marked: impl Fn(Lane) -> bool,
    ) -> Next {
        if self.all.open >= self.bounds.calls {
            return Next::Nothing(None);
        }
        let mut wake: Option<Millis> = None;
        for _ in 0..self.turns.len() {
            let Some(name) = self.turns.pop_front() else { break };
            let found = self.projects.get_mut(&name).map(|project| {
                project.next(self.bounds, now, (&name, shares), &is_marked, &mut wake)
            });
            let has_more =
                self.projects.get(&name).is_some_and(|project| !project.turns.is_empty());
            if has_more {
                self.turns.push_back(name);
            }
            if let Some(Some((at, verdict))) = found {
                if let Verdict::Defer(until, breaker) = verdict {
                    return Next::Defer(at, until, breaker);
                }
                self.all.open += 1;
                return Next::Begin(at);
            }
        }
        Next::Nothing(wake)
    }

    /// A call has ended; `is_away`: its breaker counts that as a failure; `None`: nobody knows how it would have ended.
    pub(super) fn end(
        &mut self,
        now: Millis,
        partition: Lane,
        scope: &Scope,
        is_away: Option<bool>,
    ) {
        self.all.open = self.all.open.saturating_sub(1);
        let Some(project) = self.projects.get_mut(&scope.project) else { return };
        project.held.open = project.held.open.saturating_sub(1);
        if let Some(held) = project.scopes.get_mut(&scope.callee) {
            held.open = held.open.saturating_sub(1);
        }
        if let Some(share) = project.shares.get_mut(&partition) {
            share.open = share.open.saturating_sub(1);
        }
        if let Some(line) = project.lines.get_mut(&(partition, scope.callee.clone())) {
            line.share.open = line.share.open.saturating_sub(1);
            match is_away {
                Some(is_away) => line.breaker.end(now, is_away),
                None => line.breaker.forget(),
            }
        }
    }

    /// Takes a task that is to go back to its lane, so that there is room again: the last one that waits of the scope with the
    /// most bytes, if it cannot begin soon.
    pub(super) fn take_least_urgent(&mut self, now: Millis, room: Room) -> Option<At> {
        let bounds = self.bounds;
        let is_over = self.all.staying > bounds.bytes / 2;
        let mut most: Option<(usize, Arc<str>, (Lane, Callee))> = None;
        for (name, project) in &mut self.projects {
            let is_project_over = project.held.staying > bounds.bytes / 2;
            for (place, line) in &mut project.lines {
                let staying = project.scopes.get(&place.1).map_or(0, |held| held.staying);
                let counts = match room {
                    Room::Window(partition) => place.0 == partition,
                    Room::Memory => is_over,
                    Room::Shares => is_project_over || staying > bounds.bytes / 4,
                };
                if counts
                    && line.waiting.len() > line.likely_soon(now)
                    && most.as_ref().is_none_or(|(most, ..)| staying > *most)
                {
                    most = Some((staying, Arc::clone(name), place.clone()));
                }
            }
        }
        let (_, name, place) = most?;
        // More than one waits there: it keeps its turn.
        let at = self.projects.get_mut(&name)?.lines.get_mut(&place)?.waiting.pop_back()?;
        Some(at)
    }
}

/// Of what there is to be more room.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// Of the process's memory: half of it is to be free.
    Memory,
    /// Of memory for others, where a scope has more than a quarter of it, or a project more than half.
    Shares,
    /// Of what the position of a partition can say.
    Window(Lane),
}

impl Project {
    /// The first of its lines that may begin something, or has something to be deferred.
    fn next(
        &mut self,
        bounds: Bounds,
        now: Now,
        (name, shares): (&Arc<str>, &Shares),
        is_marked: &impl Fn(Lane) -> bool,
        wake: &mut Option<Millis>,
    ) -> Option<(At, Verdict)> {
        if self.held.open >= bounds.calls.div_ceil(2) {
            return None;
        }
        for _ in 0..self.turns.len() {
            let place = self.turns.pop_front()?;
            let verdict = self.judge(bounds, now, (name, shares), is_marked, &place);
            let line = self.lines.get_mut(&place)?;
            let taken = match verdict {
                Verdict::Wait(until) => {
                    *wake = match (*wake, until) {
                        (Some(one), Some(other)) => Some(one.min(other)),
                        (one, other) => one.or(other),
                    };
                    None
                }
                Verdict::Begin | Verdict::Defer(..) => line.waiting.pop_front(),
            };
            if !line.waiting.is_empty() {
                self.turns.push_back(place.clone());
            }
            let Some(at) = taken else { continue };
            if matches!(verdict, Verdict::Begin) {
                line.breaker.begin();
                line.note_begun(now.monotonic);
                line.share.open += 1;
                line.share.take_token(now.monotonic);
                self.held.open += 1;
                if let Some(held) = self.scopes.get_mut(&place.1) {
                    held.open += 1;
                }
                let share = self.shares.entry(place.0).or_default();
                share.open += 1;
                share.take_token(now.monotonic);
            }
            return Some((at, verdict));
        }
        None
    }

    fn judge(
        &mut self,
        bounds: Bounds,
        now: Now,
        (name, shares): (&Arc<str>, &Shares),
        is_marked: &impl Fn(Lane) -> bool,
        (partition, callee): &(Lane, Callee),
    ) -> Verdict {
        let Some(line) = self.lines.get_mut(&(*partition, callee.clone())) else {
            return Verdict::Wait(None);
        };
        let Some((of_project, of_callee)) = shares.of(*partition, name, callee) else {
            // The lane has not heard of it yet.
            return Verdict::Defer(now.broker + PUT_OFF, false);
        };
        let expires = line.waiting.front().and_then(|at| at.task.sealed.expires);
        if let Some(over) = expires.filter(|expires| *expires < now.broker) {
            return Verdict::Defer(over, false);
        }
        match line.breaker.gate(now.monotonic) {
            Gate::Open(until) => {
                let until = now.broker + until.saturating_sub(now.monotonic);
                return Verdict::Defer(until, true);
            }
            Gate::Probing => return Verdict::Wait(None),
            Gate::Closed | Gate::Probe => {}
        }
        let share = self.shares.entry(*partition).or_default();
        share.follow(&of_project, now.monotonic);
        line.share.follow(&of_callee, now.monotonic);
        let of_scope = self.scopes.get(callee).map_or(0, |held| held.open);
        let is_full = share.open >= of_project.concurrency as usize
            || line.share.open >= of_callee.concurrency as usize
            || of_scope >= bounds.calls.div_ceil(4);
        if is_full || !is_marked(*partition) {
            return Verdict::Wait(None);
        }
        let tokens = [share.token_at(now.monotonic), line.share.token_at(now.monotonic)];
        match tokens.into_iter().flatten().max() {
            Some(at) => Verdict::Wait(Some(at)),
            None => Verdict::Begin,
        }
    }
}
