//! `waterclock cancel`: keeps a pending record from being delivered, and says what became of that.
//!
//! It asks an instance, which has the owner of the timer's lane decide. Where none can be reached it writes the cancel to
//! the intake itself, where the owner meets it later; then nothing is decided yet. What the header contract would refuse is
//! refused here, by the same parser, before anything connects.

mod bulk;

use std::time::{Duration, Instant};

use crate::api::timers::token::{Counted, Ticket};
use crate::client::Timer;
use crate::client::command::CommandResult;
use crate::client::http::Method;
use clap::Args;
use serde_json::json;

use super::client::{Client, ClientError, Kind, ServerArg, typed, wait};
use super::name::{self, Key};
use super::send::{intake_topic, of_kafka, refused};
use super::{Exit, Failure, Global, Outcome, again, output};
use crate::config::{Config, Overrides};
use crate::engine::header;
use crate::engine::{Record, UnixMillis};
use crate::kafka::{SubmitError, Submitter};

use bulk::Bulk;

/// Between two looks at what became of a cancel that was written to an intake.
const DECIDED_LOOK: Duration = Duration::from_millis(200);

/// Arguments of `cancel`.
#[derive(Args)]
pub(super) struct Cancel {
    /// The name that the timer was given
    #[arg(value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    key: Key,
    /// Only this version, as `status` and `list --json` show it: a timer that was created again is left alone
    #[arg(long, value_name = "VERSION", requires = "id", conflicts_with = "intake")]
    only: Option<String>,
    /// Writes the cancel to this intake, `<ns>.intake.NAME`, behind what was sent there before
    #[arg(long, value_name = "NAME", requires = "id")]
    intake: Option<String>,
    /// How long to wait for an instance that is starting, and then for what becomes of it, at most 1m each
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    wait: Duration,
    /// Asks again what became of a cancel that was pending
    #[arg(long, value_name = "TICKET", conflicts_with_all = ["id", "intake"], allow_hyphen_values = true)]
    again: Option<String>,
    #[command(flatten)]
    bulk: Bulk,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, thiserror::Error)]
enum CancelError {
    #[error(
        "say which: an ID, --again, --token, or --target, --label, --due-after, --due-before, --all to count"
    )]
    Which,
    #[error("an ID names one timer; filters and tokens mean many")]
    Both,
    #[error("a key (--key, --key-base64) names a timer together with its ID")]
    KeyAlone,
    #[error("--again wants the ticket of a pending cancel, as `cancel` and `reschedule` print it")]
    BadTicket,
    #[error("--token wants the token that a count printed")]
    BadToken,
    #[error("no instance could be asked, and only an instance cancels one version (--only)")]
    Only,
}

impl Cancel {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let usage = |error| Err(Failure::new(Exit::Usage, error));
        match (&self.id, &self.again, self.bulk.is_given()) {
            (None, None, false) => return usage(CancelError::Which),
            (Some(_), _, true) | (_, Some(_), true) => return usage(CancelError::Both),
            _ => {}
        }
        if self.id.is_none() && self.key.is_given() {
            return usage(CancelError::KeyAlone);
        }
        if self.again.as_ref().is_some_and(|again| !Ticket::has_form(ticket(again))) {
            return usage(CancelError::BadTicket);
        }
        if self.bulk.token().is_some_and(|token| !Counted::has_form(token)) {
            return usage(CancelError::BadToken);
        }
        let config = global.load(Overrides::default())?;
        let Some(id) = &self.id else {
            return match &self.again {
                Some(ticket) => {
                    let client = self.server.open_within(self.wait, global, &config)?;
                    self.again(&client, ticket, global.json())
                }
                None => self.bulk.run(&self.server, global, &config),
            };
        };
        let record = self.record(id)?;
        header::read(record.headers()).map_err(refused)?;
        if self.intake.is_some() {
            self.submit(id, &record, global, &config)?;
            return show(&self.decided(id, global, &config), &self.server, global.json());
        }
        let client = match self.server.open_within(self.wait, global, &config) {
            // Nobody runs. And who may write cancels need not be let read who the members are.
            Err(ClientError::Nobody(_) | ClientError::Members(_)) => None,
            Err(ClientError::Silent { .. }) if !self.server.is_named() => None,
            client => Some(client?),
        };
        let told = match client.map(|client| self.ask(id, &client)) {
            None => return self.write(id, &record, global, &config),
            // One that was named is not passed over; and a version that was asked for is for an instance to cancel, if nobody
            // has done so already.
            Some(Err(ClientError::Silent { may_be_done, .. }))
                if !(self.server.is_named() || may_be_done && self.only.is_some()) =>
            {
                // The instance that did not answer may have written it, too: two cancels have the same effect as one.
                return self.write(id, &record, global, &config);
            }
            Some(told) => told?,
        };
        show(&told, &self.server, global.json())
    }

    fn ask(&self, id: &str, client: &Client) -> Result<CommandResult, ClientError> {
        let mut timer = self.key.timer(id);
        timer["version"] = json!(self.only);
        let body = json!({ "timers": [timer], "wait": asked(self.wait) });
        client.ask_one(Kind::Cancel(self.wait), "v1/timers:batchCancel", &body)
    }

    fn again(&self, client: &Client, again: &str, json: bool) -> Outcome {
        let ticket = ticket(again);
        let wait = [("wait", asked(self.wait))];
        let kind = Kind::Again(self.wait);
        let told = client.ask(kind, &Method::GET, &format!("v1/cancels/{ticket}"), &wait, None)?;
        show(&typed(&told)?, &self.server, json)
    }

    /// Writes it to the intake: nothing is decided yet.
    fn write(&self, id: &str, record: &Record, global: &Global, config: &Config) -> Outcome {
        if self.only.is_some() {
            return Err(Failure::new(Exit::Unavailable, CancelError::Only));
        }
        self.submit(id, record, global, config)?;
        show(&self.pending(id), &self.server, global.json())
    }

    fn pending(&self, id: &str) -> CommandResult {
        let (key, key_base64) = self.key.written();
        let outcome = CommandResult::PENDING.to_owned();
        CommandResult { id: id.to_owned(), key, key_base64, outcome, ..CommandResult::default() }
    }

    /// What became of a cancel that was written, by the state of its timer; pending, if nobody says.
    fn decided(&self, id: &str, global: &Global, config: &Config) -> CommandResult {
        let until = Instant::now() + self.wait;
        let told = self.pending(id);
        let Ok(client) = self.server.open_within(self.wait, global, config) else { return told };
        while let Ok(Timer { state, .. }) = client.look_up(&self.key.timer(id)) {
            match state.as_str() {
                "cancelled" | "delivered" => return CommandResult { outcome: state, ..told },
                "dead" | "expired" | "lost" => {
                    let outcome = "unknown".to_owned();
                    return CommandResult { outcome, state: Some(state), ..told };
                }
                _ if Instant::now() + DECIDED_LOOK > until => return told,
                _ => std::thread::sleep(DECIDED_LOOK),
            }
        }
        told
    }

    fn submit(
        &self,
        id: &str,
        record: &Record,
        global: &Global,
        config: &Config,
    ) -> Result<(), Failure> {
        let topic = intake_topic(config, self.intake.as_deref())?;
        let submitter = Submitter::new(&global.connection(config)).map_err(of_kafka)?;
        let counts = submitter.partitions(&[&topic]).map_err(of_kafka)?;
        let Some(lanes) = counts.first().copied().flatten() else {
            return Err(of_kafka(SubmitError::NoTopic { topic }));
        };
        let lane_key = record.key().or(Some(id.as_bytes()));
        submitter.submit(&topic, lanes, lane_key, record).map_err(of_kafka)?;
        Ok(())
    }

    fn record(&self, id: &str) -> Result<Record, Failure> {
        let headers = [(header::ACTION, "cancel"), (header::ID, id)];
        let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        Ok(Record::new(self.key.bytes()?.as_deref(), None, headers))
    }
}

/// The ticket in what is given to `--again`: in a JSON result it is the end of a path.
fn ticket(again: &str) -> &str {
    again.rsplit('/').next().unwrap_or_default()
}

/// A wait as an instance is told of it.
pub(super) fn asked(wait: Duration) -> String {
    format!("{}ms", wait.as_millis())
}

/// An outcome, in a line.
fn said(CommandResult { outcome, state, code, due, .. }: &CommandResult) -> String {
    let more: Vec<_> = [state, code].into_iter().filter_map(Option::as_deref).collect();
    match (due, more.is_empty()) {
        (Some(due), _) => format!("{outcome}, due {}", output::time(UnixMillis(*due))),
        (None, false) => format!("{outcome} ({})", more.join(", ")),
        (None, true) => outcome.clone(),
    }
}

/// Tells an outcome, and ends with the code that goes with it.
pub(super) fn show(result: &CommandResult, server: &ServerArg, json: bool) -> Outcome {
    let outcome = result.outcome.as_str();
    if json {
        output::line(&json!(result).to_string())?;
    } else {
        output::line(&said(result))?;
        if outcome == CommandResult::PENDING {
            let id = result.id.as_str();
            let hint = match result.ticket() {
                Some(ticket) => {
                    let words = [&["cancel", "--again", ticket], &server.words()[..]].concat();
                    format!("written, and not decided yet; ask again: {}", again::command(&words))
                }
                None => {
                    let mut words = vec!["status"];
                    words.extend(name::words(result));
                    words.extend(server.words());
                    words.extend(["--", id].iter().skip(usize::from(!id.starts_with('-'))));
                    format!(
                        "written, and decided when an instance reads it; then ask: {}",
                        again::command(&words)
                    )
                }
            };
            output::aside(&hint);
        }
    }
    Ok(match outcome {
        "cancelled" | "recorded" | "replaced" => Exit::Ok,
        CommandResult::PENDING => Exit::Pending,
        _ => Exit::Negative,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        cancel: Cancel,
    }

    /// One in 64 tokens, tickets and keys begins with a hyphen.
    #[test]
    fn what_is_base64_may_begin_with_a_hyphen() {
        for word in ["-SLe", "--Kv", "-"] {
            let parsed = |words: &[&str]| {
                let line = Line::try_parse_from([&["x"], words].concat());
                line.map(|line| line.cancel).map_err(|error| error.to_string())
            };
            let cancel = parsed(&["--token", word]).expect("a token");
            assert_eq!(cancel.bulk.token(), Some(word));
            let cancel = parsed(&["--again", word]).expect("a ticket");
            assert_eq!(cancel.again.as_deref(), Some(word));
            assert!(parsed(&["i", "--key-base64", word]).is_ok(), "{word}");
        }
    }

    #[test]
    fn an_outcome_says_what_else_is_known_of_the_timer() {
        let of =
            |outcome: &str| CommandResult { outcome: outcome.to_owned(), ..Default::default() };
        assert_eq!(said(&of("cancelled")), "cancelled");
        let dead = CommandResult {
            state: Some("dead".to_owned()),
            code: Some("target_denied".to_owned()),
            ..of("unknown")
        };
        assert_eq!(said(&dead), "unknown (dead, target_denied)");
        let put_off = CommandResult { due: Some(1_896_076_800_000), ..of("replaced") };
        assert_eq!(said(&put_off), "replaced, due 2030-01-31T08:00:00.000Z");
        // An older instance does not say when.
        assert_eq!(said(&of("replaced")), "replaced");
    }
}
