//! `waterclock dead replay`: submits dead letters again.
//!
//! # Invariants
//! 1. A dead letter stays where it is; the replay submits a copy. Nothing can be lost. A letter that is replayed twice
//!    is delivered twice.
//! 2. All in-sync replicas acknowledge a copy before it is reported as replayed.
//! 3. No copy is delivered before its first due time, unless the caller asks for it (`--now`).
//! 4. A copy is under the rules of the intake by which the record came: no replay gets round an allow-list.
//! 5. The dead letter of a task is not replayed: a copy of its sealed record would be another dead letter.

use clap::Args;
use serde_json::json;

use super::filter::Filter;
use super::{LetterPosition, NoSuchLetter, last, of_kafka};
use crate::cli::{Exit, Failure, Outcome, output};
use crate::engine::header::{self, When};
use crate::engine::sealed;
use crate::engine::task::id::TaskId;
use crate::engine::{Millis, NOT_KEPT, Record, UnixMillis};
use crate::kafka::{DeadLetters, DeadRecord, Receipt, Stands, SubmitError, Submitter};
use crate::terminal::Progress;

/// Arguments of `dead replay`.
#[derive(Args)]
pub(super) struct Replay {
    /// Those that stand here, as the list says: PARTITION@OFFSET
    #[arg(value_name = "PLACE", conflicts_with_all = ["all", "code", "target", "since", "until"])]
    places: Vec<LetterPosition>,
    /// All of them
    #[arg(long, conflicts_with_all = ["code", "target", "since", "until"])]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    /// Due at once, whatever was asked for
    #[arg(long)]
    now: bool,
    /// To this intake (`default` is the main one), under its rules; else to the one by which it came
    #[arg(long, value_name = "NAME")]
    intake: Option<String>,
    /// Only say what would be replayed
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error("say which: places, --code, --target, --since, --until, or --all")]
    Which,
    #[error(
        "the dead letter {letter} is that of task {id}, and nothing was replayed: run `waterclock task retry {id}` for it; a task that was refused when it was created is created again, with the same request id"
    )]
    OfTask { letter: String, id: String },
    #[error("{0}")]
    PassedOver(String),
    #[error(
        "{partition}@{offset} does not say by which intake it came, with {before} replayed before it; say --intake"
    )]
    Whence { partition: i32, offset: i64, before: u64 },
    #[error("stopped at {partition}@{offset}, with {before} replayed before it")]
    Stopped {
        partition: i32,
        offset: i64,
        before: u64,
        #[source]
        source: SubmitError,
    },
}

impl Replay {
    /// Whether it says what is meant: asked before anything connects.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.places.is_empty() && !self.all && self.filter.is_empty() {
            return Err(Failure::new(Exit::Usage, ReplayError::Which));
        }
        Ok(())
    }

    pub(super) fn run(
        self,
        letters: &mut DeadLetters,
        namespace: &str,
        submitter: Submitter,
        json: bool,
    ) -> Outcome {
        let main = format!("{namespace}.intake");
        let mut run = Run {
            replay: &self,
            main,
            dead: format!("{namespace}.dead"),
            submitter,
            json,
            progress: Progress::new(0),
            replayed: 0,
            not_kept: PassedOver::default(),
            of_tasks: PassedOver::default(),
            failure: None,
            lanes: None,
        };
        if self.places.is_empty() {
            run.progress.set_length(letters.span());
            letters.read(|letter| run.one(&letter)).map_err(of_kafka)?;
        } else {
            run.progress.set_length(self.places.len() as u64);
            // Looked up before anything is sent, so that a slip of the pen sends nothing.
            let mut found = Vec::new();
            for LetterPosition { partition, offset } in &self.places {
                let letter = letters.at(*partition, *offset).map_err(of_kafka)?;
                let letter = letter.ok_or_else(|| {
                    Failure::new(Exit::Negative, NoSuchLetter(*partition, offset.0))
                })?;
                if let Some(id) = task_of(&letter) {
                    let letter = run.place(&letter);
                    return Err(Failure::new(Exit::Negative, ReplayError::OfTask { letter, id }));
                }
                found.push(letter);
            }
            found.iter().for_each(|letter| run.one(letter));
        }
        if let Some(failure) = run.failure {
            return Err(failure);
        }
        if let Some(told) = run.passed_over() {
            let others = if self.dry_run { "would be replayed" } else { "are replayed" };
            let told = format!("{told}; all others {others}");
            return Err(Failure::new(Exit::Negative, ReplayError::PassedOver(told)));
        }
        let would = if self.dry_run { "would be replayed" } else { "replayed" };
        if json { Ok(Exit::Ok) } else { output::line(&format!("{} {would}", run.replayed)) }
    }
}

/// One run of the command.
struct Run<'a> {
    replay: &'a Replay,
    /// The main intake.
    main: String,
    /// The topic of the letters.
    dead: String,
    submitter: Submitter,
    json: bool,
    progress: Progress,
    replayed: u64,
    /// Those that have no value to be sent.
    not_kept: PassedOver,
    /// Those of tasks.
    of_tasks: PassedOver,
    /// Why it was stopped; nothing is sent any more.
    failure: Option<Failure>,
    /// The last intake that was written to, with its partitions.
    lanes: Option<(String, i32)>,
}

/// Letters of one kind that are not replayed: how many, and what is said of the first.
#[derive(Default)]
struct PassedOver {
    count: usize,
    first: String,
}

impl PassedOver {
    fn add(&mut self, first: impl FnOnce() -> String) {
        if self.count == 0 {
            self.first = first();
        }
        self.count += 1;
    }
}

impl Run<'_> {
    fn one(&mut self, letter: &DeadRecord) {
        self.progress.add(1);
        if self.failure.is_some() || !self.replay.filter.takes(letter) {
            return;
        }
        if is_cut(letter) {
            let place = self.place(letter);
            return self.not_kept.add(|| place);
        }
        if let Some(id) = task_of(letter) {
            let place = self.place(letter);
            let first = || format!("{place}: run `waterclock task retry {id}` for it");
            return self.of_tasks.add(first);
        }
        let again = again(letter, &self.main, self.replay.now);
        let intake = match &self.replay.intake {
            Some(name) if name == crate::config::MAIN_INTAKE => self.main.clone(),
            Some(name) => format!("{}.{name}", self.main),
            None => match intake_of(letter, &self.main) {
                Some(intake) => intake.to_owned(),
                None => {
                    let (partition, offset) = (letter.partition, letter.offset.0);
                    let whence = ReplayError::Whence { partition, offset, before: self.replayed };
                    self.failure = Some(Failure::new(Exit::Negative, whence));
                    return;
                }
            },
        };
        let sent =
            if self.replay.dry_run { Ok(None) } else { self.send(&intake, &again).map(Some) };
        let told = match sent {
            Ok(receipt) => {
                self.replayed += 1;
                self.progress.set_phase(format!("{} replayed", self.replayed));
                self.tell(letter, &intake, receipt)
            }
            Err(source) => {
                let (partition, offset) = (letter.partition, letter.offset.0);
                let stopped =
                    ReplayError::Stopped { partition, offset, before: self.replayed, source };
                Err(Failure::new(Exit::Unavailable, stopped))
            }
        };
        self.failure = told.err();
    }

    /// Where a letter stands.
    fn place(&self, letter: &DeadRecord) -> String {
        format!("{}/{}@{}", self.dead, letter.partition, letter.offset.0)
    }

    /// What is said of the letters that were not replayed; nothing if all were.
    fn passed_over(&self) -> Option<String> {
        let Self { not_kept, of_tasks, .. } = self;
        let not_kept = (not_kept.count > 0).then(|| {
            format!(
                "the values of {} were not kept (too_large, unreadable), the first at {}: their producer has to write them again",
                not_kept.count, not_kept.first
            )
        });
        let of_tasks = (of_tasks.count > 0).then(|| {
            format!(
                "{} are of tasks, which are not replayed, the first at {}",
                of_tasks.count, of_tasks.first
            )
        });
        let told: Vec<String> = [not_kept, of_tasks].into_iter().flatten().collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    fn send(&mut self, intake: &str, record: &Record) -> Result<Receipt, SubmitError> {
        let lanes = match &self.lanes {
            Some((known, lanes)) if known == intake => *lanes,
            _ => {
                let found = self.submitter.partitions(&[intake])?[0];
                let topic = || intake.to_owned();
                let lanes = found.ok_or_else(|| SubmitError::NoTopic { topic: topic() })?;
                self.lanes = Some((topic(), lanes));
                lanes
            }
        };
        let id = record.headers().find(|(name, _)| *name == header::ID.as_bytes());
        let lane_key = record.key().or_else(|| id.and_then(|(_, value)| value));
        self.submitter.submit(intake, lanes, lane_key, record)
    }

    fn tell(&self, letter: &DeadRecord, intake: &str, receipt: Option<Receipt>) -> Outcome {
        let DeadRecord { partition, offset, .. } = letter;
        let place = format!("{partition}@{}", offset.0);
        let line = match (self.json, receipt) {
            (true, receipt) => {
                let to = receipt.map(|to| {
                    let offset = to.stands.map(|stands| stands.offset.0);
                    let appended = to.stands.map(|stands| stands.appended.0);
                    json!({ "partition": to.partition, "offset": offset, "appended_ms": appended })
                });
                let from = json!({ "partition": partition, "offset": offset.0 });
                json!({ "dead": from, "topic": intake, "replayed": to }).to_string()
            }
            (false, Some(Receipt { partition, stands: Some(Stands { offset, .. }) })) => {
                format!("{place} -> {intake}/{partition}@{}", offset.0)
            }
            (false, Some(to)) => format!("{place} -> {intake}/{}", to.partition),
            (false, None) => format!("{place} -> {intake}"),
        };
        self.progress.aside(|| output::line(&line))
    }
}

/// Whether its value was not kept.
fn is_cut(letter: &DeadRecord) -> bool {
    let detail = last(&letter.record, header::ERROR_DETAIL).unwrap_or_default();
    let code = last(&letter.record, header::ERROR_CODE);
    let codes = [header::Code::TooLarge, header::Code::Unreadable];
    codes.iter().any(|of| code == Some(of.as_str().as_bytes()))
        && letter.record.value().is_none()
        && String::from_utf8_lossy(detail).contains(NOT_KEPT)
}

/// The id of the task whose dead letter it is; `ID` if it has none that could be read.
fn task_of(letter: &DeadRecord) -> Option<String> {
    let id = || last(&letter.record, header::ID).and_then(|id| std::str::from_utf8(id).ok());
    let id = || id().and_then(|id| TaskId::parse(id).ok());
    sealed::is_of_task(&letter.record)
        .then(|| id().map_or_else(|| "ID".to_owned(), |id| id.to_string()))
}

/// The intake by which a dead letter came, if it says so; one of an older waterclock says where it stood.
fn intake_of<'a>(letter: &'a DeadRecord, main: &str) -> Option<&'a str> {
    let intake = |name| {
        let topic = std::str::from_utf8(last(&letter.record, name)?).ok()?;
        intake_of_topic(topic, main)
    };
    intake(header::ERROR_INTAKE).or_else(|| intake(header::ERROR_TOPIC))
}

/// The topic, if it is an intake.
fn intake_of_topic<'a>(topic: &'a str, main: &str) -> Option<&'a str> {
    let rest = topic.strip_prefix(main)?;
    (rest.is_empty() || rest.starts_with('.')).then_some(topic)
}

/// The record as it is submitted again: without what was added, without its expiry, and due when it was due.
fn again(letter: &DeadRecord, main: &str, now: bool) -> Record {
    let all: Vec<(&[u8], Option<&[u8]>)> = letter.record.headers().collect();
    let mut kept = all.len();
    for name in header::ERRORS.iter().rev() {
        if kept > 0 && all[kept - 1].0 == name.as_bytes() {
            kept -= 1;
        }
    }
    let due = if now { None } else { due_of(letter, main).map(|due| due.0.to_string()) };
    let mut headers: Vec<(&[u8], Option<&[u8]>)> = Vec::with_capacity(kept + 1);
    for (name, value) in &all[..kept] {
        let is = |known: &str| *name == known.as_bytes();
        match &due {
            _ if is(header::EXPIRES) => {}
            _ if now && (is(header::DELAY) || is(header::UNTIL)) => {}
            Some(due) if is(header::DELAY) => {
                headers.push((header::UNTIL.as_bytes(), Some(due.as_bytes())));
            }
            _ => headers.push((name, *value)),
        }
    }
    if now {
        headers.push((header::DELAY.as_bytes(), Some(b"0")));
    }
    Record::new(letter.record.key(), letter.record.value(), headers.iter().copied())
}

/// When a relative delay was over, counted from where the record stood, if that was an intake. From a tier it cannot
/// be told, and counts again.
fn due_of(letter: &DeadRecord, main: &str) -> Option<UnixMillis> {
    let text = |name| std::str::from_utf8(last(&letter.record, name)?).ok();
    intake_of_topic(text(header::ERROR_TOPIC)?, main)?;
    let appended = UnixMillis(text(header::ERROR_TIMESTAMP)?.parse().ok()?);
    let delay = header::duration(text(header::DELAY)?).ok()?;
    When::After(delay).resolve(appended, Millis(u64::MAX / 2)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Offset;

    type Header<'a> = (&'a str, Option<&'a str>);

    fn letter(stood: &str, came: Option<&str>, own: &[Header<'_>]) -> DeadRecord {
        let added = [
            (header::ERROR_CODE, Some("expired")),
            (header::ERROR_DETAIL, Some("a sentence")),
            (header::ERROR_TOPIC, Some(stood)),
            (header::ERROR_PARTITION, Some("3")),
            (header::ERROR_OFFSET, Some("7")),
            (header::ERROR_TIMESTAMP, Some("1767225600000")),
            (header::ERROR_INTAKE, came),
        ];
        // One of an older waterclock has no such header.
        let added = &added[..if came.is_some() { 7 } else { 6 }];
        let headers: Vec<(&[u8], Option<&[u8]>)> = own
            .iter()
            .chain(added)
            .map(|(name, value)| (name.as_bytes(), value.map(str::as_bytes)))
            .collect();
        let record = Record::new(Some(b"k"), Some(b"v"), headers.iter().copied());
        DeadRecord { partition: 0, offset: Offset(0), timestamp: UnixMillis(0), record }
    }

    #[test]
    fn what_is_replayed_has_its_headers_back_and_is_due_when_it_was() {
        let (intake, tier) = ("wc.intake", "wc.delay.1m");
        let target = ("x-delay-target", Some("orders"));
        type Case<'a> = (&'a str, &'a str, bool, Vec<Header<'a>>, Vec<Header<'a>>);
        #[rustfmt::skip]
        let table: Vec<Case<'_>> = vec![
            ("a relative delay is counted from its first append",
             intake, false, vec![("a", None), ("x-delay", Some("5s")), target], vec![("a", None), ("x-delay-until", Some("1767225605000")), target]),
            ("from a tier nobody knows that any more: it counts again",
             tier, false, vec![("x-delay", Some("5s")), target], vec![("x-delay", Some("5s")), target]),
            ("a point in time stays",
             tier, false, vec![("x-delay-until", Some("1767225600000"))], vec![("x-delay-until", Some("1767225600000"))]),
            ("what cannot be read stays, and is refused again",
             intake, false, vec![("x-delay", Some("soon"))], vec![("x-delay", Some("soon"))]),
            ("it does not expire a second time",
             intake, false, vec![target, ("x-delay-expires", Some("1m"))], vec![target]),
            ("at once is at once",
             tier, true, vec![("x-delay", Some("7d")), target], vec![target, ("x-delay", Some("0"))]),
            ("error headers of its own stay where they were",
             intake, false, vec![("x-delay-error-code", Some("mine")), ("z", Some(""))], vec![("x-delay-error-code", Some("mine")), ("z", Some(""))]),
        ];
        for (why, stood, now, own, want) in table {
            for came in [None, Some(intake)] {
                let record = again(&letter(stood, came, &own), intake, now);
                let got: Vec<(&[u8], Option<&[u8]>)> = record.headers().collect();
                let want: Vec<(&[u8], Option<&[u8]>)> =
                    want.iter().map(|(n, v)| (n.as_bytes(), v.map(str::as_bytes))).collect();
                assert_eq!(got, want, "{why}");
                assert_eq!(
                    (record.key(), record.value()),
                    (Some(&b"k"[..]), Some(&b"v"[..])),
                    "{why}"
                );
            }
        }
    }

    #[test]
    fn a_letter_whose_value_was_not_kept_is_known() {
        let of = |code: &str, detail: &str, value: Option<&[u8]>| {
            let added = [(header::ERROR_CODE, code), (header::ERROR_DETAIL, detail)];
            let headers = added.iter().map(|(n, v)| (n.as_bytes(), Some(v.as_bytes())));
            let record = Record::new(Some(b"k"), value, headers);
            DeadRecord { partition: 0, offset: Offset(0), timestamp: UnixMillis(0), record }
        };
        assert!(is_cut(&of("too_large", "9 bytes; its value is not kept", None)));
        assert!(!is_cut(&of("too_large", "9 bytes; target t takes 5", None)), "a tombstone");
        assert!(!is_cut(&of("too_large", "its value is not kept", Some(b""))));
        assert!(!is_cut(&of("bad_state", "not kept", None)));
    }

    #[test]
    fn it_goes_back_to_the_intake_by_which_it_came_and_never_to_another_by_itself() {
        #[rustfmt::skip]
        let cases = [
            // stood in               came by                    goes to
            ("wc.intake",             Some("wc.intake"),         Some("wc.intake")),
            ("wc.delay.1m",           Some("wc.intake"),         Some("wc.intake")),
            ("wc.delay.1m",           Some("wc.intake.orders"),  Some("wc.intake.orders")),
            ("wc.intake",             Some("wc.intake.orders"),  Some("wc.intake.orders")),
            ("wc.delay.1m",           Some(""),                  None),
            ("wc.delay.1m",           Some("ns.intake.orders"),  None),
            // of an older waterclock
            ("wc.intake",             None,                      Some("wc.intake")),
            ("wc.intake.orders",      None,                      Some("wc.intake.orders")),
            ("wc.delay.1m",           None,                      None),
            ("another.intake.orders", None,                      None),
            ("wc.intakes",            None,                      None),
        ];
        for (stood, came, want) in cases {
            let letter = letter(stood, came, &[]);
            assert_eq!(intake_of(&letter, "wc.intake"), want, "{stood} {came:?}");
        }
    }
}
