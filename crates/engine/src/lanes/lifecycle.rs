//! What becomes of timers: records with an id are created, replaced, cancelled, delivered, each decided once.
//!
//! # Invariants
//! 1. Of one timer one version is pending at most: the *live* one. Only it is ever delivered or a dead letter; whether a
//!    record is the live version is asked when it is let go and again when it leaves.
//! 2. A version that was live and is not any more, and of which a record may still be on its way, is *void* until that
//!    record has surely been met: after a restart nothing else would tell it from one that was forgotten.
//! 3. A transition goes to `<ns>.timers` in the batch that carries what it did, or the command that did it; and what is
//!    written of one timer is in the order in which it was decided. So [`Engine::ready`] is a queue, and what
//!    belongs together is glued.
//! 4. An offset that is finished without anything to send is finished not before what made it so is in a batch.
//! 5. The answer to a command is in the batch that carries what it did.
//! 6. A lane decides about nothing with an id before all is known of its timers.
//! 7. Of one id the older of two is superseded, or a duplicate, also when the newer one has ended; and a create is a
//!    duplicate of what was pending when it was submitted. What comes late is held against what ended ([`past`](super::past)).

use super::super::header::{self, Code, Refusal};
use super::super::orders::{Answer, Because, Edit, Outcome, Said, Send, To};
use super::super::setup::Tracking;
use super::super::timers::{
    About, Before, Ended, Live, Pending, Phase, Place, Remembered, Replaced, TimerKey, Told, Void,
};
use super::super::verdict::{self, Entry, Stage, Verdict, Way, refusal};
use super::{Engine, Lane, Millis, Offset, Ready, Record, Source, TopicId, UnixMillis};

/// A void version is remembered for this much longer than until it is due, at least: what is late may still be on its
/// way, and in `at_least_once` come again.
pub(super) const VOID_SLACK: Millis = Millis(600_000);

/// What is to become of a record with an id that was let go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// Nothing is decided about it: it has no id, or timers are not tracked.
    None,
    /// It is the live version.
    Live,
    /// Nothing is pending: it is the live version from now on.
    Create,
    /// It was pending, be it that nobody remembers.
    Revive,
    /// The live version from now on, in the place of that one.
    Replace(Option<Pending>),
    /// It is void.
    Void,
    /// The same, by a cancel that had found nothing: it was about this one, and nobody knows of it yet.
    Cancelled,
    /// Another version is live: there is nothing to do.
    Duplicate,
    /// The same, unless a cancel comes late that was submitted between that version, which may have ended since, and this one.
    Aside(Place),
    /// It came too late to be put in the place of anything, or that is gone.
    Idle(Outcome),
}

/// A version of a timer that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) name: TimerKey,
    pub(super) place: Place,
    /// It was the live one when it was let go.
    pub(super) decided: bool,
}

impl Engine {
    fn is_full(&self) -> bool {
        self.setup.limits.tracking == Tracking::Full
    }

    /// Whether a record may go on: it is the live version of its timer, or of none.
    pub(super) fn stands(&self, entry: &Entry) -> bool {
        stands(&self.timers, entry)
    }

    /// The places of what comes by an intake that was made anew are told from others by their times: what is remembered may be of
    /// the log that was there before.
    pub(super) fn placed(&self, source: Source, mut verdict: Verdict) -> Verdict {
        if self.is_remade
            && source.topic == TopicId(0)
            && let Verdict::Wait(entry) | Verdict::Cancel(entry) = &mut verdict
        {
            let mark = self.setup.topics.mark(source.topic);
            entry.order.offset = Place::elsewhere(entry.place().offset_in_log(), mark);
        }
        verdict
    }

    /// An older program did not mark the topics that versions were made in. What is known by such a version is the same record.
    pub(super) fn recognise(&self, entry: &mut Entry, past: Option<Ended>) {
        let (Some(name), old) = (entry.timer, entry.place().without_topic()) else { return };
        let live = self.timers.live(entry.source.lane, name).map(|live| live.version);
        if live == Some(old) || past.is_some_and(|ended| ended.version == old) {
            entry.order.offset = old.offset;
        }
    }

    /// What is to become of a record that its lane let go. `past`: what has ended of its timer, if that counts for it.
    pub(super) fn judge(&self, now: UnixMillis, entry: &Entry, past: Option<Ended>) -> Fate {
        let Some(name) = entry.timer else { return Fate::None };
        let (lane, place) = (entry.source.lane, entry.place());
        let live = if self.is_full() { self.timers.live(lane, name) } else { None };
        if live.is_some_and(|live| live.version == place) {
            return Fate::Live;
        }
        let void = self.timers.void(lane, name);
        if let Some(void) = void.filter(|void| void.covers(place)) {
            if entry.way == Way::Duplicate {
                return Fate::Duplicate;
            }
            // What is known is this version itself, which is read again, or a newer one, or one of which it is a duplicate.
            let is_known =
                past.is_some_and(|ended| ended.version == place || ended.counts_for(place));
            let is_first = !void.met && !is_known && self.past_counts(entry);
            return if is_first { Fate::Cancelled } else { Fate::Void };
        }
        // Where a batch failed in at_least_once it may be said of a version itself that it ended.
        let past = past.filter(|ended| ended.version != place);
        if !self.is_full() {
            return match entry.way {
                Way::Replace(_) => Fate::Replace(None),
                // It was one while all was tracked; a cancel from before it says that it is none.
                Way::Duplicate if !void.is_some_and(|void| void.cancels) => Fate::Duplicate,
                _ => Fate::None,
            };
        }
        let is_parted = |ended: Ended| void.is_some_and(|void| void.parts(ended.version, place));
        match (entry.way, live) {
            (Way::Create | Way::Tier | Way::Duplicate, Some(live)) => {
                self.duplicate(now, entry, live.version)
            }
            (Way::Duplicate, None) => match past {
                Some(ended) if is_parted(ended) => Fate::Create,
                Some(ended) => self.duplicate(now, entry, ended.version),
                None => Fate::Duplicate,
            },
            (Way::Create | Way::Tier, None)
                if let Some(ended) = past
                    && ended.counts_for(place)
                    && !is_parted(ended) =>
            {
                self.duplicate(now, entry, ended.version)
            }
            (Way::Create | Way::Tier, None) => Fate::Create,
            (Way::Replace(None), None)
                if past.is_some_and(|ended| place.is_before(ended.version)) =>
            {
                Fate::Idle(Outcome::Superseded)
            }
            (Way::Replace(None), None) => Fate::Replace(None),
            (Way::Hop, None) => Fate::Revive,
            (Way::Hop, Some(_)) => Fate::Duplicate,
            (Way::Replace(None), Some(live)) if live.version.is_before(place) => {
                Fate::Replace(Some(live))
            }
            (Way::Replace(Some(meant)), Some(live))
                if live.version == meant && meant.is_before(place) =>
            {
                Fate::Replace(Some(live))
            }
            (Way::Replace(None), Some(_)) => Fate::Idle(Outcome::Superseded),
            (Way::Replace(Some(_)), _) => Fate::Idle(self.missed((lane, name), about(entry))),
            // It has its own way.
            (Way::Cancel(_), _) => Fate::Idle(Outcome::Absent),
        }
    }

    /// What a command comes to that is about what is not pending. Only of a version that was replaced by the pending one this
    /// is known here; whether one was delivered or cancelled no mark tells.
    fn missed(&self, (lane, name): (Lane, TimerKey), about: About) -> Outcome {
        let was = |version| self.timers.replaced(lane, name).is_some_and(|of| of.has(version));
        match about {
            About::Replace(version, own) if was(version) && was(own) => Outcome::Replaced,
            About::Version(version) | About::Replace(version, _) if was(version) => {
                Outcome::Superseded
            }
            _ => Outcome::Absent,
        }
    }

    /// Ends a record that nothing is to be done with; gives back any other.
    pub(super) fn lay_to_rest(
        &mut self,
        entry: Box<Entry>,
        fate: Fate,
        now: UnixMillis,
    ) -> Option<Box<Entry>> {
        let outcome = match fate {
            Fate::None
            | Fate::Live
            | Fate::Create
            | Fate::Revive
            | Fate::Replace(_)
            | Fate::Aside(_) => {
                return Some(entry);
            }
            Fate::Void | Fate::Cancelled => match (entry.timer, entry.way) {
                (Some(name), Way::Replace(Some(_))) => {
                    self.missed((entry.source.lane, name), about(&entry))
                }
                _ => Outcome::Superseded,
            },
            Fate::Duplicate => {
                // One that was set aside was counted then.
                let is_new = !matches!(entry.way, Way::Hop | Way::Duplicate);
                self.figures.duplicates += u64::from(is_new);
                Outcome::Absent
            }
            Fate::Idle(outcome) => outcome,
        };
        let answer = answer(&entry, outcome);
        match fate {
            Fate::Void => self.meet(now, *entry, answer),
            Fate::Cancelled => self.miss(now, *entry, answer),
            _ => self.finish(&entry, answer),
        }
        None
    }

    /// Carries out what was decided about a record that goes on.
    ///
    /// # Errors
    /// It is one too many, and is to be dead-lettered.
    pub(super) fn enact(
        &mut self,
        now: UnixMillis,
        entry: &mut Entry,
        fate: Fate,
    ) -> Result<(), Refusal> {
        let (lane, place) = (entry.source.lane, entry.place());
        let Some(name) = entry.timer else { return Ok(()) };
        if entry.way == Way::Duplicate {
            // It goes on as any other.
            entry.way = Way::Hop;
        }
        match fate {
            Fate::Live => {
                entry.decided = true;
                // Read again: it was answered, or nobody asks any more; but in a batch that failed it was not.
                let answer = answer(entry, Outcome::Replaced);
                self.ready.extend(answer.map(Ready::answer));
            }
            Fate::Create | Fate::Revive => {
                if !matches!(fate, Fate::Revive) {
                    self.room()?;
                }
                self.make_live(now, entry, name, None)?;
            }
            Fate::Replace(old) if self.is_full() => {
                self.room()?;
                let answer = answer(entry, old.map_or(Outcome::Created, |_| Outcome::Replaced));
                let before = self.timers.replaced(lane, name);
                let replaced = old.map(|old| Replaced::by(old.version, before));
                self.make_live(now, entry, name, replaced)?;
                if let Some(old) = old {
                    self.figures.superseded += 1;
                    let void = self.voided(now, (lane, name), place, old);
                    self.glue();
                    self.say_void(lane, void, Because::Superseded);
                }
                self.attach(answer);
            }
            Fate::Replace(_) => {
                self.room()?;
                let void = self.recorded(now, (lane, name), place, false);
                if self.timers.void(lane, name) != Some(void) {
                    self.say_void(lane, void, Because::Superseded);
                }
                self.attach(answer(entry, Outcome::Recorded));
            }
            _ => {}
        }
        Ok(())
    }

    fn make_live(
        &mut self,
        now: UnixMillis,
        entry: &mut Entry,
        name: TimerKey,
        supersedes: Option<Replaced>,
    ) -> Result<(), Refusal> {
        entry.decided = true;
        let directive = header::read(entry.record.headers())?;
        let stage = Stage { supersedes, ..Stage::new(Phase::Delay, now) };
        let label = directive.label.and_then(|label| std::str::from_utf8(label).ok());
        let lane = entry.source.lane;
        let at = (entry.place(), entry.due);
        self.timers.put_live(lane, name, at, (&entry.target, label));
        self.timers.put_replaced(lane, name, supersedes);
        self.duplicates.come_after(name, entry.place());
        self.here(lane, name);
        if let Some(record) = verdict::said(entry, &directive, stage) {
            self.ready.push_back(Ready::said(lane, record, Because::Created));
        }
        Ok(())
    }

    /// Whether one more timer may be remembered.
    fn room(&self) -> Result<(), Refusal> {
        self.room_for(self.setup.limits.tracked_max)
    }

    fn room_for(&self, most: usize) -> Result<(), Refusal> {
        let len = self.timers.len();
        if len < most {
            return Ok(());
        }
        let detail = format!("{len} timers are remembered already; max-tracked allows no more");
        Err(refusal(Code::TooManyTimers, detail))
    }

    /// A cancel was let go by an intake of its lane.
    pub(super) fn cancel(&mut self, now: UnixMillis, entry: Entry) {
        let (Some(name), Way::Cancel(meant)) = (entry.timer, entry.way) else { return };
        let (lane, place) = (entry.source.lane, entry.place());
        let mut before = meant.map_or(place, Place::next);
        let void = self.timers.void(lane, name);
        if !self.is_full() {
            if void.is_none()
                && let Err(refusal) = self.room()
            {
                return self.refuse(now, entry, refusal);
            }
            let mark = self.recorded(now, (lane, name), before, meant.is_none());
            let answer = answer(&entry, Outcome::Recorded);
            if void == Some(mark) {
                // It is read again. To write all marks again at each new start may take longer than until the next one.
                return self.finish(&entry, answer);
            }
            self.say_void(lane, mark, Because::Recorded);
            self.conclude((entry.source, entry.offset), entry.record);
            return self.attach(answer);
        }
        let live = self.timers.live(lane, name);
        let ends = live.filter(|live| match meant {
            Some(meant) => live.version == meant,
            None => live.version.is_before(place),
        });
        if let Some(live) = ends {
            if before.is_elsewhere() && !place.is_elsewhere() {
                // The clock that its time is of may be ahead of the lane's. What comes straight to the lane after the cancel
                // is not meant, whatever its time is; what came before it is not pending any more, since that version is.
                let first_appended = live.version.first_appended + Millis(1);
                before = Place { first_appended, offset: place.offset };
            }
            let void = self.voided(now, (lane, name), before, live);
            let void = Void { cancels: meant.is_none(), ..void };
            self.say_cancelled(now, (lane, name), live, &entry);
            self.glue();
            self.say_void(lane, void, Because::Recorded);
            self.follow(now, lane, &void, &entry);
            let answer = answer(&entry, Outcome::Cancelled);
            self.conclude((entry.source, entry.offset), entry.record);
            return self.attach(answer);
        }
        // It may be about a record that its producer wrote to a tier, which is not known before it comes up.
        let known = void.map(|void| void.before).unwrap_or_default();
        if meant.is_none() && known.or(place) != known {
            // Those for which nothing was pending shall not keep others from being pending.
            if let (None, Err(refusal)) =
                (void, self.room_for(self.setup.limits.tracked_max / 4 * 3))
            {
                return self.refuse(now, entry, refusal);
            }
            let until = now + self.longest_hold() + VOID_SLACK;
            let until = void.map_or(until, |void| until.max(void.until));
            let before = known.or(place);
            let void = Void { name, before, until, met: false, several: false, cancels: true };
            self.say_void(lane, void, Because::Recorded);
            self.follow(now, lane, &void, &entry);
            let answer = answer(&entry, Outcome::Absent);
            self.conclude((entry.source, entry.offset), entry.record);
            return self.attach(answer);
        }
        let answer = answer(&entry, self.missed((lane, name), about(&entry)));
        self.finish(&entry, answer);
    }

    fn longest_hold(&self) -> Millis {
        self.setup.topics.ladder.tiers().last().map(|tier| tier.hold).unwrap_or_default()
    }

    /// Everything before a place is void from now on, and what was live until now.
    fn voided(
        &self,
        now: UnixMillis,
        (lane, name): (Lane, TimerKey),
        before: Place,
        live: Pending,
    ) -> Void {
        let mut until = live.due.max(now) + VOID_SLACK;
        if self.timers.voids_len() < self.setup.limits.tracked_max / 4 {
            // An older one may have been written to a tier, and come up after this one would have been due.
            until = until.max(now + self.longest_hold() + VOID_SLACK);
        }
        let old = self.timers.void(lane, name);
        Void {
            name,
            before: old.map(|old| old.before).unwrap_or_default().or(before),
            until: old.map_or(until, |old| until.max(old.until)),
            met: true,
            several: false,
            cancels: false,
        }
    }

    /// The same, where it is not known what is on its way.
    fn recorded(
        &self,
        now: UnixMillis,
        (lane, name): (Lane, TimerKey),
        before: Place,
        cancels: bool,
    ) -> Void {
        let limits = &self.setup.limits;
        // Nothing from before it is due later than that; and be it late, there is some time to meet it.
        let until = (before.first_appended + limits.max_delay).max(now) + limits.history;
        match self.timers.void(lane, name) {
            None => {
                let before = Before::of(before);
                Void { name, before, until, met: false, several: false, cancels }
            }
            // An older one that comes late: it was moved here, or is read again.
            Some(old) if old.before.or(before) == old.before => old,
            Some(old) => Void {
                name,
                before: old.before.or(before),
                until: until.max(old.until),
                met: false,
                // What the older one was about may not have been met.
                several: !old.met || old.several,
                cancels,
            },
        }
    }

    /// A void record is kept from its target.
    pub(super) fn meet(&mut self, now: UnixMillis, entry: Entry, answer: Option<Answer>) {
        let named = entry.timer.map(|name| (name, entry.place()));
        self.meet_record(now, (entry.source, entry.offset), named, entry.record);
        self.attach(answer);
    }

    /// A record that was cancelled before it came is kept from its target, and told as cancelled.
    fn miss(&mut self, now: UnixMillis, entry: Entry, answer: Option<Answer>) {
        let lane = entry.source.lane;
        let directive = header::read(entry.record.headers()).unwrap_or_default();
        let said = verdict::said(&entry, &directive, Stage::new(Phase::Cancelled, now));
        if let (Some(name), Some(record)) = (entry.timer, said) {
            self.end(now, lane, name);
            self.ready.push_back(Ready::said(lane, record, Because::Missed));
            self.glue();
        }
        self.meet(now, entry, answer);
    }

    /// The same, where only this is left of it.
    pub(super) fn meet_record(
        &mut self,
        now: UnixMillis,
        (source, offset): (Source, Offset),
        named: Option<(TimerKey, Place)>,
        record: Record,
    ) {
        let void = named.and_then(|(name, place)| {
            self.timers.void(source.lane, name).filter(|void| void.covers(place))
        });
        match void.filter(|void| !void.met || !self.is_full()) {
            Some(void) => {
                // Another submit of it, by a producer that did not hear of the first, comes soon or never.
                let soon = now + self.setup.limits.history;
                let until = if self.is_full() || void.several { void.until } else { soon };
                self.say_void(source.lane, Void { until, met: true, ..void }, Because::Met);
                self.conclude((source, offset), record);
            }
            None => self.ready.push_back(Ready::done((source, offset), &record)),
        }
    }

    /// Nothing is to be done with a record.
    pub(super) fn finish(&mut self, entry: &Entry, answer: Option<Answer>) {
        self.ready.push_back(Ready::done((entry.source, entry.offset), &entry.record));
        self.attach(answer);
    }

    /// A record is finished by what was said last, and leaves in its place.
    fn conclude(&mut self, done: (Source, Offset), record: Record) {
        let Some(last) = self.ready.back_mut() else { return };
        (last.done, last.held) = (Some(done), record.size());
        if let Some(send) = &mut last.send {
            send.record = record;
        }
    }

    /// A record of the pending version of a timer is here.
    pub(super) fn here(&mut self, lane: Lane, name: TimerKey) {
        self.timers.set_here(lane, name, true);
        self.calling.met(lane, name);
    }

    /// A version is pending no more.
    pub(super) fn end(&mut self, now: UnixMillis, lane: Lane, name: TimerKey) {
        let live = self.timers.live(lane, name);
        let at = live.map_or(now, |live| now.max(live.version.first_appended));
        self.past.note(lane, name, at);
        self.timers.end(lane, name);
        self.endings.note(name);
    }

    /// What became of the live version with its dead letter; nothing of any other record.
    pub(super) fn buried(&mut self, now: UnixMillis, entry: &Entry, code: Code) -> Option<Record> {
        let name = entry.timer.filter(|_| entry.decided)?;
        let directive = header::read(entry.record.headers()).ok()?;
        let phase = if code == Code::Expired { Phase::Expired } else { Phase::Dead };
        let supersedes = self.timers.replaced(entry.source.lane, name);
        // The leader's clock may be ahead of ours; what is dead since before it came never was pending.
        let since = now.max(entry.first_appended);
        let stage = Stage { code: Some(code), supersedes, ..Stage::new(phase, since) };
        let record = verdict::said(entry, &directive, stage);
        self.end(now, entry.source.lane, name);
        record
    }

    /// What is said of the timer of a record that is refused before it was pending: dead since before it came, which tells it
    /// from what was pending. Not if another version is pending, or the record is none that makes one.
    pub(super) fn unborn(&self, entry: &Entry, code: Code) -> Option<(TimerKey, Record)> {
        let makes = !matches!(entry.way, Way::Cancel(_) | Way::Replace(Some(_)));
        let name = entry.timer.filter(|_| makes && !entry.decided)?;
        if !self.is_news(entry.source.lane, name) {
            return None;
        }
        let directive = header::read(entry.record.headers()).ok()?;
        let phase = if code == Code::Expired { Phase::Expired } else { Phase::Dead };
        let stage =
            Stage { code: Some(code), ..Stage::new(phase, verdict::before(entry.first_appended)) };
        Some((name, verdict::said(entry, &directive, stage)?))
    }

    /// Whether it may be said what became of a record of this timer that was refused.
    pub(super) fn is_news(&self, lane: Lane, name: TimerKey) -> bool {
        self.is_full() && self.timers.live(lane, name).is_none()
    }

    fn say_cancelled(
        &mut self,
        now: UnixMillis,
        (lane, name): (Lane, TimerKey),
        live: Pending,
        cancel: &Entry,
    ) {
        let (target, label) = self.timers.words(live);
        let (at, words) = ((live.version, live.due), (target, label));
        let supersedes = self.timers.replaced(lane, name);
        let told = Told { supersedes, ..told(cancel, Phase::Cancelled, now, at, words) };
        let record = verdict::timer_record(name, &told);
        self.end(now, lane, name);
        self.ready.push_back(Ready::said(lane, record, Because::Cancelled));
    }

    fn say_void(&mut self, lane: Lane, void: Void, because: Because) {
        self.timers.put_void(lane, void);
        let record =
            Record::new(Some(&Void::key(void.name)), Some(&void.value()), std::iter::empty());
        self.ready.push_back(Ready::said(lane, record, because));
    }

    /// What is said last leaves together with what is said next.
    pub(super) fn glue(&mut self) {
        if let Some(last) = self.ready.back_mut() {
            last.glued = true;
        }
    }

    /// An answer leaves with what was said last.
    pub(super) fn attach(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else { return };
        match self.ready.back_mut() {
            Some(last) if last.answer.is_none() => last.answer = Some(answer),
            _ => self.ready.push_back(Ready::answer(answer)),
        }
    }

    /// Takes in a piece of what holds of a lane's timers.
    pub(super) fn know(&mut self, lane: Lane, live: &[Live], voids: Vec<Void>) {
        // In at_least_once an owner that is none any more may have written that it is pending after another one had ended it.
        if self.is_full() {
            for live in live {
                let void = self.timers.void(lane, live.name);
                if !void.is_some_and(|void| void.covers(live.version)) {
                    self.timers.know_live(lane, live);
                }
            }
        }
        for void in voids {
            let live = self.timers.live(lane, void.name);
            if live.is_some_and(|live| void.covers(live.version)) {
                self.timers.end(lane, void.name);
            }
            self.timers.put_void(lane, void);
        }
    }
}

/// Whether a record may go on: it is the live version of its timer, or of none.
pub(super) fn stands(timers: &Remembered, entry: &Entry) -> bool {
    let Some(name) = entry.timer else { return true };
    let named = Named { name, place: entry.place(), decided: entry.decided };
    is_standing(timers, entry.source.lane, named)
}

/// The same, of what is left of it.
pub(super) fn is_standing(timers: &Remembered, lane: Lane, named: Named) -> bool {
    let Named { name, place, decided } = named;
    if decided {
        return timers.live(lane, name).is_some_and(|live| live.version == place);
    }
    !timers.void(lane, name).is_some_and(|void| void.covers(place))
}

/// What a cancel leads to for a version, with the names that the cancel has for its timer.
pub(super) fn told<'a>(
    cancel: &'a Entry,
    phase: Phase,
    since: UnixMillis,
    (version, due): (Place, UnixMillis),
    (target, label): (&'a str, Option<&'a str>),
) -> Told<'a> {
    let directive = header::read(cancel.record.headers()).unwrap_or_default();
    Told {
        phase,
        version,
        supersedes: None,
        due,
        since,
        target,
        label: label.map(str::as_bytes),
        id: directive.id.unwrap_or_default(),
        key: cancel.record.key(),
        code: None,
    }
}

/// What is told to who waits for it, if anybody does.
pub(super) fn answer(entry: &Entry, outcome: Outcome) -> Option<Answer> {
    let Entry { source, offset, timer: Some(name), way, .. } = *entry else { return None };
    way.is_command().then(|| Answer { source, offset, name, about: about(entry), outcome })
}

/// What a command is about.
fn about(entry: &Entry) -> About {
    match entry.way {
        Way::Replace(Some(version)) => About::Replace(version, entry.place()),
        Way::Cancel(Some(version)) => About::Version(version),
        _ => About::Before(entry.place()),
    }
}

impl Ready {
    /// What is said of a timer.
    pub(super) fn said(lane: Lane, record: Record, because: Because) -> Self {
        let edit = Edit::Timer(Box::new(Said { record, because }));
        let partition = Some(i32::from(lane.0));
        let due = UnixMillis(0);
        let (record, expires) = (Record::empty(), None);
        let send = Send { to: To::Timers, partition, record, edit, due, expires };
        Self { send: Some(send), ..Self::default() }
    }

    fn done(done: (Source, Offset), record: &Record) -> Self {
        Self { done: Some(done), held: record.size(), ..Self::default() }
    }

    /// Whether it is said of a timer that it is lost.
    pub(super) fn is_of_a_lost_one(&self) -> bool {
        let edit = self.send.as_ref().map(|send| &send.edit);
        matches!(edit, Some(Edit::Timer(said)) if said.because == Because::Lost)
    }

    pub(super) fn answer(answer: Answer) -> Self {
        Self { answer: Some(answer), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
