//! What an executor sends to report on its turn: one JSON object.
//!
//! # Invariants
//! 1. A report has one meaning or is refused, and the answer names every field that is wrong.

use super::Wrong;
use super::fields::{Fields, Wrongs, document, length, text, wanted};
use super::result::{self, CURSOR_MAX, ERROR_MAX, Outcome, TaskResult, WORKER_MAX};
use super::retry::RETRY_AFTER_MAX;
use crate::Millis;

/// What a report is called in an answer about all of it.
const DOCUMENT: &str = "request";
/// What an executor may say that its turn came to.
pub const OUTCOMES: [Outcome; 3] = [Outcome::Finished, Outcome::Failed, Outcome::Gone];

/// A report: the ticket as it was given, and what is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of which turn it is; `None`: of the one that is in force.
    pub ticket: Option<String>,
    /// What came of that. Of a heartbeat `started`.
    pub result: TaskResult,
}

/// Reads what came of a turn.
///
/// # Errors
/// Every field that is wrong, at least one.
pub fn read_result(json: &[u8], max: usize) -> Result<Report, Vec<Wrong>> {
    const KNOWN: [&str; 7] =
        ["outcome", "ticket", "error", "retry_after", "worker", "cursor", "percent"];
    read(json, max, (&KNOWN, "a result"), |fields, wrongs| {
        let outcome = fields.require("outcome", wrongs, |value| {
            let found = OUTCOMES.into_iter().find(|of| value.as_str() == Some(of.as_str()));
            found.ok_or_else(|| wanted(value, &OUTCOMES.map(Outcome::as_str).join(", ")))
        });
        let error = fields.read("error", wrongs, |value| result::line(value, ERROR_MAX));
        let retry_after =
            fields.read("retry_after", wrongs, |value| length(value, Millis(0)..=RETRY_AFTER_MAX));
        Some(TaskResult { error, retry_after, ..TaskResult::new(outcome?) })
    })
}

/// Reads a heartbeat.
///
/// # Errors
/// Every field that is wrong, at least one.
pub fn read_heartbeat(json: &[u8], max: usize) -> Result<Report, Vec<Wrong>> {
    const KNOWN: [&str; 4] = ["ticket", "worker", "cursor", "percent"];
    read(json, max, (&KNOWN, "a heartbeat"), |_, _| Some(TaskResult::new(Outcome::Started)))
}

fn read(
    json: &[u8],
    max: usize,
    (known, name): (&[&str], &str),
    result: impl FnOnce(&Fields<'_>, &mut Wrongs) -> Option<TaskResult>,
) -> Result<Report, Vec<Wrong>> {
    let mut wrongs = Wrongs::default();
    let map = document(DOCUMENT, json, max, &mut wrongs);
    let report = map.and_then(|map| {
        let fields = Fields::of_document(&map);
        fields.only(known, name, &mut wrongs);
        let ticket = fields.read("ticket", &mut wrongs, |value| text(value, "a ticket"));
        let result = result(&fields, &mut wrongs);
        let worker = fields.read("worker", &mut wrongs, |value| result::line(value, WORKER_MAX));
        let cursor = fields.read("cursor", &mut wrongs, |value| result::line(value, CURSOR_MAX));
        let percent = fields.read("percent", &mut wrongs, result::percent);
        let result = TaskResult { worker, cursor, percent, ..result? };
        Some(Report { ticket: ticket.map(str::to_owned), result })
    });
    match report {
        Some(report) if wrongs.is_empty() => Ok(report),
        _ => Err(wrongs.list(DOCUMENT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Millis;

    fn wrongs(read: Result<Report, Vec<Wrong>>) -> Vec<String> {
        read.expect_err("refused").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_result_and_a_heartbeat_are_read() {
        let json = br#"{"outcome":"failed","ticket":"t","error":"no stock","retry_after":"1m","worker":"w","cursor":"row:7","percent":70}"#;
        let want = TaskResult {
            error: Some("no stock".to_owned()),
            retry_after: Some(Millis(60_000)),
            worker: Some("w".to_owned()),
            cursor: Some("row:7".to_owned()),
            percent: Some(70),
            ..TaskResult::new(Outcome::Failed)
        };
        let read = read_result(json, 1_000);
        assert_eq!(read, Ok(Report { ticket: Some("t".to_owned()), result: want }));
        let read = read_heartbeat(br#"{"ticket":"t","cursor":"x"}"#, 1_000);
        let want = TaskResult { cursor: Some("x".to_owned()), ..TaskResult::new(Outcome::Started) };
        assert_eq!(read, Ok(Report { ticket: Some("t".to_owned()), result: want }));
    }

    #[test]
    fn every_wrong_field_is_named() {
        let json = br#"{"outcome":"started","ticket":7,"error":"a\nb","percent":101,"cursor":7,"colour":1}"#;
        let want = [
            "colour is not a field of a result; the fields are outcome, ticket, error, retry_after, worker, cursor, percent",
            "ticket is 7; want a ticket",
            "outcome is \"started\"; want finished, failed, gone",
            "error is \"a\\nb\"; want at most 200 bytes of text without control characters",
            "cursor is 7; want at most 256 bytes of text without control characters",
            "percent is 101; want an integer from 0 to 100",
        ];
        assert_eq!(wrongs(read_result(json, 1_000)), want);
        let said = wrongs(read_result(br#"{"outcome":"failed","retry_after":"61m"}"#, 1_000));
        let want = "retry_after is \"61m\"; want a length of time (\"1m30s\"; a number is seconds), from 0s to 1h";
        assert_eq!(said, [want]);
        let beat = wrongs(read_heartbeat(br#"{"ticket":1,"outcome":"finished"}"#, 1_000));
        assert_eq!(beat.len(), 2, "{beat:?}");
        let of_any = read_result(br#"{"outcome":"gone"}"#, 1_000).map(|report| report.ticket);
        assert_eq!(of_any, Ok(None));
        assert!(read_result(b"[]", 1_000).is_err() && read_heartbeat(b"", 1_000).is_err());
    }
}
