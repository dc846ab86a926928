//! Answers, judged by what a client knows: what it sent and where Kafka said that it stands, which version it named, what it
//! was told and when, and what came to the targets and to the dead letters. No program's idea of the timer is asked.

use waterclock::engine::messages::Outcome;
use waterclock::engine::timers::{Change, Found as Of, TimerState};

use super::{Tale, answer_of, is_named, is_not_caught, stand};
use crate::checkers::{Accepted, Arrival, Found, View};
use crate::network::Told;
use crate::workload::Act;
use crate::world::{Answered, World};

/// An answer to one command, and all that it is held against.
struct Case<'a, 'w> {
    world: &'w World,
    view: &'w View<'a>,
    tale: &'w Tale<'a>,
    command: &'w Accepted<'a>,
    /// When it was heard.
    moment: u64,
}

/// Every answer is true.
pub(super) fn check(world: &World, view: &View<'_>, tale: &Tale<'_>, found: &mut Found) {
    for command in &tale.commands {
        let Some(Answered { told, moment }) = answer_of(world, command.number) else { continue };
        let case = Case { world, view, tale, command, moment };
        let lie = match command.submission.act {
            Act::Cancel | Act::CancelVersion(_) => case.of_cancel(told),
            Act::ReplaceVersion(_) => case.of_replace(told),
            Act::Create | Act::Replace => None,
        };
        if let Some((promise, why)) = lie {
            let act = command.submission.act;
            let what = format!("n={} {act:?}: {told:?}, and {why}", command.number);
            found.push((promise, what));
        }
    }
}

/// A promise, and what it is broken by.
type Lie = Option<(&'static str, String)>;

fn lie(promise: &'static str, is_one: bool, why: &str) -> Lie {
    is_one.then(|| (promise, why.to_owned()))
}

/// Whether a command was submitted before another one; `None`: within a millisecond that cannot be told.
fn is_before(one: &Accepted<'_>, other: &Accepted<'_>) -> Option<bool> {
    let (one, other) = (stand(one), stand(other));
    if one.prompt && other.prompt && one.log == other.log {
        return Some(one.offset < other.offset);
    }
    (one.stamp != other.stamp).then_some(one.stamp < other.stamp)
}

impl<'a, 'w> Case<'a, 'w> {
    /// The versions that the command may be about.
    fn meant(&self) -> impl Iterator<Item = &'a Accepted<'a>> {
        let named = self.command.submission.act.version();
        self.tale.versions().copied().filter(move |version| match named {
            Some(named) => version.number == named,
            None => is_before(version, self.command) != Some(false),
        })
    }

    fn came(&self, version: &Accepted<'_>) -> bool {
        self.view.of(version).iter().any(|arrival| arrival.target.is_some())
    }

    /// Whether a version had come to a target, or to the dead letters, before the answer.
    fn had_come(&self, version: &Accepted<'_>, is_dead: bool) -> bool {
        let mut arrivals = self.view.of(version).iter();
        arrivals.any(|arrival| arrival.target.is_none() == is_dead && arrival.moment < self.moment)
    }

    fn is_alone(&self) -> bool {
        self.tale.versions().count() == 1
    }

    /// Whether what became of the timer may have been forgotten by then: its history is over.
    fn is_forgotten(&self) -> bool {
        self.tale.said.iter().any(|said| {
            matches!(said.change, Change::ForgottenTimer(_) | Change::ForgottenCancelMark(_))
                && said.moment < self.moment
        })
    }

    fn of_cancel(&self, told: Told) -> Lie {
        match told {
            Told::By(Outcome::Cancelled) | Told::Found(Of::Ended(TimerState::Cancelled)) => {
                self.cancelled()
            }
            Told::Found(Of::Ended(TimerState::Delivered)) => self.delivered(),
            Told::By(Outcome::Superseded) | Told::Found(Of::Replaced) => self.superseded(),
            Told::Found(Of::Ended(state)) => self.dead(state),
            Told::Found(Of::Nothing) => self.unknown(),
            Told::By(Outcome::Refused(_)) => None,
            _ => lie("answers", true, "no cancel comes to that"),
        }
    }

    /// Whether a record that was written to a tier came up when the mark of the cancel was forgotten.
    fn outlives_the_mark(&self, version: &Accepted<'_>, arrival: &Arrival<'_>) -> bool {
        let intakes = self.world.plan.setup.topics.intakes.len();
        version.submission.topic >= intakes
            && is_not_caught(self.world, self.tale, version, self.moment..arrival.moment)
    }

    /// It never comes; and there was something that was kept back.
    fn cancelled(&self) -> Lie {
        if !self.world.plan.exactly_once() {
            return None;
        }
        let named = self.command.submission.act.version();
        let after = self.tale.arrivals(self.view).find(|(version, arrival)| {
            let is_sure = match named {
                Some(named) => version.number == named,
                None => is_before(version, self.command) == Some(true),
            };
            let counts = named.is_some() || arrival.moment > self.moment;
            is_sure && counts && !self.outlives_the_mark(version, arrival)
        });
        if let Some((version, arrival)) = after {
            let when = if arrival.moment > self.moment { "comes after it" } else { "had come" };
            return Some(("cancelled", format!("n={} {when}", version.number)));
        }
        let is_kept = self.meant().any(|version| self.view.of(version).is_empty());
        lie("cancelled", !is_kept, "nothing that it can be about was kept back")
    }

    /// What it is about was in its target before.
    fn delivered(&self) -> Lie {
        let had = self.meant().any(|version| self.had_come(version, false));
        lie("delivered", !had, "nothing that it can be about was there")
    }

    /// The version that it names was replaced, and never comes.
    fn superseded(&self) -> Lie {
        let Some(named) =
            self.meant().next().filter(|_| self.command.submission.act.names_a_version())
        else {
            return lie("answers", true, "it names no version");
        };
        if self.world.plan.exactly_once() && self.came(named) {
            return lie("answers", true, "that version is in its target");
        }
        let replaces = |other: &&&Accepted<'_>| {
            other.submission.act.replaces()
                && other.number != self.command.number
                && is_before(named, other) != Some(false)
        };
        lie("answers", !self.tale.versions().any(|other| replaces(&other)), "nobody replaced it")
    }

    fn dead(&self, state: TimerState) -> Lie {
        // What breaks the contract makes no version, and is told by its name all the same.
        let was_refused = |accepted: &Accepted<'_>| {
            let is_before = is_before(accepted, self.command) != Some(false);
            is_before && is_named(accepted, self.tale.timer) && self.had_come(accepted, true)
        };
        let is = self.meant().any(|version| self.had_come(version, true))
            || self.view.accepted.iter().any(was_refused)
            || state == TimerState::Lost && self.is_lost_anew();
        lie("answers", !is, &format!("nothing that it can be about was {}", state.as_str()))
    }

    /// In `at_least_once` a former owner may have written that a version is pending which had ended: that one has no record, and
    /// is told as lost once its lane is counted. It may have written all again that it knew of the timer.
    fn is_lost_anew(&self) -> bool {
        if self.world.plan.exactly_once() {
            return false;
        }
        let said = self.tale.said.iter().filter(|said| said.moment < self.moment);
        let timers: Vec<_> = said
            .filter_map(|said| match &said.change {
                Change::Timer(timer) => Some((timer.version, timer.state)),
                _ => None,
            })
            .collect();
        let mut lost = timers.iter().enumerate().filter(|(_, (_, is))| *is == TimerState::Lost);
        lost.any(|(at, (version, _))| {
            let before: Vec<TimerState> =
                timers[..at].iter().filter(|(of, _)| of == version).map(|(_, is)| *is).collect();
            let had_ended =
                |of: &[TimerState]| of.iter().any(|had| had.is_final() && *had != TimerState::Lost);
            before.split_last().is_some_and(|(last, rest)| !last.is_final() && had_ended(rest))
        })
    }

    /// It was not met, or there is something to take what is known of it away.
    fn unknown(&self) -> Lie {
        if !self.world.plan.exactly_once() || self.is_forgotten() {
            return None;
        }
        let version = self.meant().next()?;
        if self.command.submission.act.names_a_version() {
            // Its client has learned of it: it was pending once.
            let why = "there was no other version to take its place";
            return lie("answers", self.is_alone(), why)
                .or_else(|| self.is_surely_replaced(version));
        }
        // Another cancel may have come first, and have kept the record from ever being pending.
        let is_met = self.is_alone()
            && self.tale.cancels().count() == 1
            && stand(version).prompt
            && stand(version).log == stand(self.command).log
            && is_before(version, self.command) == Some(true);
        let is_known = self.had_come(version, false) || self.view.of(version).is_empty();
        lie("answers", is_met && is_known, "the only version stands before it in the same log")
    }

    /// A version of which its client was told that it is replaced, and nothing but replaces came after that.
    fn is_surely_replaced(&self, version: &Accepted<'_>) -> Lie {
        let sent =
            self.world.broker.partition(self.command.place)?.read(self.command.offset)?.moment;
        let told_before = |other: &&&Accepted<'_>| {
            other.submission.act == Act::ReplaceVersion(version.number)
                && answer_of(self.world, other.number).is_some_and(|answered| {
                    answered.told == Told::By(Outcome::Replaced) && answered.moment < sent
                })
        };
        let others = || self.tale.commands.iter().filter(|of| of.number != self.command.number);
        let only_replaces = others()
            .all(|of| of.number == version.number || of.submission.act.replaces())
            && self.tale.versions().all(|of| !self.had_come(of, false) && !self.had_come(of, true));
        let is_one = only_replaces && self.tale.versions().any(|other| told_before(&other));
        lie("answers", is_one, "its client was told that it was replaced")
    }

    fn of_replace(&self, told: Told) -> Lie {
        match told {
            Told::By(Outcome::Replaced) | Told::Found(Of::Done) => {
                let came = self.meant().any(|version| self.came(version));
                let why = "what it replaced is in its target";
                return lie("answers", self.world.plan.exactly_once() && came, why);
            }
            Told::By(Outcome::Created | Outcome::Recorded) => {
                return lie("answers", true, "it names a version");
            }
            _ => {}
        }
        if self.world.plan.exactly_once() && self.came(self.command) {
            return lie("answers", true, "it is in its target");
        }
        match told {
            Told::By(Outcome::Superseded) | Told::Found(Of::Replaced) => self.superseded(),
            Told::Found(Of::Ended(TimerState::Cancelled)) => {
                let came = self.meant().any(|version| self.came(version));
                lie("cancelled", self.world.plan.exactly_once() && came, "that is in its target")
            }
            Told::Found(Of::Ended(TimerState::Delivered)) => self.delivered(),
            Told::Found(Of::Ended(state)) => self.dead(state),
            Told::Found(Of::Nothing) => self.replaces_nothing(),
            _ => None,
        }
    }

    /// The version that it names had ended, and what became of it is not known any more, or others came after it. Nothing is
    /// replaced by what counts, by the leaders' clocks, as submitted before it.
    fn replaces_nothing(&self) -> Lie {
        if !self.world.plan.exactly_once() || self.is_forgotten() {
            return None;
        }
        let mut others =
            self.tale.versions().filter(|version| version.number != self.command.number);
        let one = others.next().filter(|one| is_before(one, self.command) == Some(true));
        let is_one = one.is_some() && others.next().is_none();
        lie("answers", is_one, "there was no other version to take its place")
    }
}
