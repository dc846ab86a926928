//! `waterclock send`: one record, to be delivered later.
//!
//! What the header contract would refuse is refused here, by the same parser, before anything is sent.

use std::io::Read as _;

use clap::Args;
use serde_json::json;

use super::name::Key;
use super::{Exit, Failure, Global, Outcome, output};
use crate::config::{Config, IntakeConfig, MAIN_INTAKE, Overrides};
use crate::engine::Record;
use crate::engine::header::{self, Code, Directive, Refusal, TimerAction, When};
use crate::kafka::{
    Connection, Member, Receipt, Roster, Stands, SubmitError, Submitter, wall_clock,
};

/// Bytes of a value: what own topics take; more is refused before it is read to its end.
const VALUE_BYTES_MAX: u64 = 2 << 20;

/// Arguments of `send`. Times and the like are text for the contract's own parser.
#[derive(Args)]
pub(super) struct Send {
    /// Topic to deliver to; may be left out where the intake has a default
    #[arg(long, value_name = "TOPIC")]
    target: Option<String>,
    /// Wait this long from the broker's append: 90s, 1h30m, 7d, or milliseconds
    #[arg(
        long = "in",
        value_name = "DURATION",
        conflicts_with = "until",
        allow_hyphen_values = true
    )]
    after: Option<String>,
    /// Due at: RFC 3339 with a zone, or epoch milliseconds
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,
    #[command(flatten)]
    key: Key,
    /// Your name for this timer, unique per key
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    id: Option<String>,
    /// Takes the place of the pending timer of this id and key, if there is one
    #[arg(long, requires = "id")]
    replace: bool,
    /// Deliver to this partition of the target
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    partition: Option<String>,
    /// Past this do not deliver: a duration, RFC 3339, or milliseconds
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    expires: Option<String>,
    /// A word for lists and bulk cancels
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    label: Option<String>,
    /// Adds headers at the delivery that say when it was due and when it left
    #[arg(long)]
    trace: bool,
    /// Another intake than the main one: `<ns>.intake.NAME`
    #[arg(long, value_name = "NAME")]
    intake: Option<String>,
    /// A header of your own; may be given again, order is kept
    #[arg(long, value_name = "NAME=VALUE", value_parser = header_of, allow_hyphen_values = true)]
    header: Vec<(String, String)>,
    /// The value; - reads it from standard input, and one that begins with - stands behind --
    value: String,
}

/// `a=b`, at the first sign.
fn header_of(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header is NAME=VALUE")?;
    // librdkafka ends a name at its first NUL; an argument cannot have one.
    Ok((name.to_owned(), value.to_owned()))
}

/// What is wrong with a record before Kafka has seen it.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("refused by the header contract, nothing was sent")]
    Contract(#[source] Refusal),
    #[error("could not read the value from standard input")]
    Input(#[source] std::io::Error),
    #[error("the value is larger than {VALUE_BYTES_MAX} bytes, nothing was sent")]
    TooLarge,
    #[error("{0:?} cannot be the name of an intake")]
    Intake(String),
    #[error("could not prepare the list of allowed targets")]
    Allow(#[source] crate::engine::allow::BadPattern),
    #[error("written to {place}, but it will not be delivered")]
    Void {
        place: String,
        #[source]
        why: Refusal,
    },
}

/// What the contract refuses, before anything was sent.
pub(super) fn refused(refusal: Refusal) -> Failure {
    Failure::new(Exit::Usage, SendError::Contract(refusal))
}

/// What Kafka did not take.
pub(super) fn of_kafka(error: SubmitError) -> Failure {
    let exit = match &error {
        SubmitError::Unreachable(_)
        | SubmitError::Full { .. }
        | SubmitError::Unacknowledged { .. } => Exit::Unavailable,
        SubmitError::NoTopic { .. } | SubmitError::Refused { .. } => Exit::Negative,
    };
    Failure::new(exit, error)
}

/// The topic of an intake; of the main one, where none is named.
pub(super) fn intake_topic(config: &Config, intake: Option<&str>) -> Result<String, Failure> {
    let intake = intake.unwrap_or(MAIN_INTAKE);
    let topic = match intake {
        MAIN_INTAKE => format!("{}.intake", config.namespace),
        name => format!("{}.intake.{name}", config.namespace),
    };
    header::topic_name(&topic)
        .map_err(|_| Failure::new(Exit::Usage, SendError::Intake(intake.to_owned())))?;
    Ok(topic)
}

impl Send {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let topic = intake_topic(&config, self.intake.as_deref())?;
        let intake = self.intake.as_deref().unwrap_or(MAIN_INTAKE);
        let record = self.record()?;
        let directive = header::read(record.headers()).map_err(refused)?;
        let wish = Wish::check(&directive, &config.intake(intake), &config, intake)?;

        let connection = global.connection(&config);
        let submitter = Submitter::new(&connection).map_err(of_kafka)?;
        let counts = submitter.partitions(&[&topic, &wish.target]).map_err(of_kafka)?;
        let Some(lanes) = counts[0] else {
            return Err(of_kafka(SubmitError::NoTopic { topic }));
        };
        wish.fits(counts[1], directive.partition, &connection.brokers)?;
        let lane_key = record.key().or(directive.id);
        let receipt = submitter.submit(&topic, lanes, lane_key, &record).map_err(of_kafka)?;
        let told = wish.report(&topic, &receipt, &config, global.json())?;
        for warning in wish.warnings(&connection, &config, intake) {
            output::aside(&format!("warning: {warning}"));
        }
        Ok(told)
    }

    fn record(&self) -> Result<Record, Failure> {
        let value = match self.value.as_str() {
            "-" => standard_input()?,
            value => value.as_bytes().to_vec(),
        };
        if value.len() as u64 > VALUE_BYTES_MAX {
            return Err(Failure::new(Exit::Usage, SendError::TooLarge));
        }
        let key = self.key.bytes()?;
        let directives = [
            (header::DELAY, self.after.as_deref()),
            (header::UNTIL, self.until.as_deref()),
            (header::TARGET, self.target.as_deref()),
            (header::ID, self.id.as_deref()),
            (header::ACTION, self.replace.then_some("replace")),
            (header::PARTITION, self.partition.as_deref()),
            (header::EXPIRES, self.expires.as_deref()),
            (header::LABEL, self.label.as_deref()),
            (header::TRACE, self.trace.then_some("1")),
        ];
        let own = self.header.iter().map(|(name, value)| (name.as_str(), Some(value.as_str())));
        let headers = directives
            .into_iter()
            .filter(|(_, value)| value.is_some())
            .chain(own)
            .map(|(name, value)| (name.as_bytes(), value.map(str::as_bytes)));
        Ok(Record::new(key.as_deref(), Some(&value), headers))
    }
}

fn standard_input() -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    // One byte more than is allowed is enough to know.
    let read = std::io::stdin().lock().take(VALUE_BYTES_MAX + 1).read_to_end(&mut value);
    read.map_err(|error| Failure::new(Exit::Internal, SendError::Input(error)))?;
    Ok(value)
}

/// The instances of which something is true, for people; `None`: of none.
fn among(roster: &Roster, is_so: impl Fn(&Member) -> bool) -> Option<String> {
    let addresses = roster.active().filter(|member| is_so(member)).map(|member| &member.address);
    let addresses: Vec<&String> = addresses.collect();
    let (first, more) = addresses.split_first()?;
    Some(match more.len() {
        0 => format!("the instance at {first}"),
        more => format!("the instance at {first} (and {more} more)"),
    })
}

/// What is asked for, with the intake's defaults, as far as it can be checked without Kafka.
struct Wish {
    when: When,
    target: String,
    id: Option<String>,
}

impl Wish {
    fn check(
        directive: &Directive<'_>,
        defaults: &IntakeConfig,
        config: &Config,
        intake: &str,
    ) -> Result<Self, Failure> {
        if directive.action == TimerAction::Cancel {
            let detail = "say `waterclock cancel`: it is told what became of it".to_owned();
            return Err(refused(Refusal::new(Code::UnsupportedAction, detail)));
        }
        if directive.state.is_some() {
            let detail = format!("{} is waterclock's own", header::STATE);
            return Err(refused(Refusal::new(Code::BadState, detail)));
        }
        let when = directive.when.or_else(|| defaults.delay.map(When::After)).ok_or_else(|| {
            let detail =
                format!("say --in or --until: the intake {intake} has no default delay here");
            refused(Refusal::new(Code::MissingDelay, detail))
        })?;
        // What counts is the time of the append. A point in time that is too far by this machine's clock is so by Kafka's, but
        // for what lies between the two; that is seen after the append.
        let now = wall_clock();
        let due = when.resolve(now, config.max_delay).map_err(refused)?.max(now);
        if let Some(expires) = directive.expires {
            let expires = header::expires_at(expires, now, config.max_delay).map_err(refused)?;
            if expires <= due {
                let (expires, due) = (output::time(expires), output::time(due));
                let detail = format!(
                    "it expires at {expires} and is due at {due}: it could never be delivered"
                );
                return Err(refused(Refusal::new(Code::BadExpires, detail)));
            }
        }
        let target = directive.target.map(str::to_owned).or_else(|| defaults.target.clone());
        let target = target.ok_or_else(|| {
            let detail = format!("say --target: the intake {intake} has no default target here");
            refused(Refusal::new(Code::MissingTarget, detail))
        })?;
        let allow =
            config.allow(intake).map_err(|e| Failure::new(Exit::Internal, SendError::Allow(e)))?;
        allow.permits(&target).map_err(|code| {
            refused(Refusal::new(code, format!("{} {target}: {}", header::TARGET, code.meaning())))
        })?;
        let id = directive.id.map(|id| String::from_utf8_lossy(id).into_owned());
        Ok(Self { when, target, id })
    }

    /// Whether the target is there and has the partition that is asked for.
    fn fits(
        &self,
        partitions: Option<i32>,
        asked: Option<i32>,
        brokers: &str,
    ) -> Result<(), Failure> {
        let target = &self.target;
        let refusal = match (partitions, asked) {
            (None, _) => Refusal::new(
                Code::TargetMissing,
                format!(
                    "there is no topic {target}; make it first: kafka-topics.sh --bootstrap-server {brokers} --create --topic {target}"
                ),
            ),
            (Some(count), Some(asked)) if asked >= count => Refusal::new(
                Code::BadPartition,
                format!("{target} has the partitions 0 to {}, not {asked}", count - 1),
            ),
            _ => return Ok(()),
        };
        Err(refused(refusal))
    }

    /// What is to be said if those that run are known to make a dead letter of the record.
    fn warnings(&self, connection: &Connection, config: &Config, intake: &str) -> Vec<String> {
        let (namespace, target) = (&config.namespace, &self.target);
        let topic = format!("{namespace}.meta");
        let Ok(roster) = Roster::read(connection, &topic, namespace) else { return Vec::new() };
        let of = if intake == MAIN_INTAKE { "" } else { intake };
        // Of two starts with different lists nobody knows by which one it will be delivered.
        let refuses =
            |member: &Member| Some(member.allows(namespace, of)?.permits(target).is_err());
        let denied = among(&roster, |member| refuses(member) == Some(true)).map(|who| {
            format!(
                "{who} does not deliver to {target}: the record becomes a dead letter (target_denied) there. \
                 Allow it in every instance, beside what it allows already: `allow` in the configuration and SIGHUP, or a restart \
                 with --allow '{}' as well",
                regex::escape(target)
            )
        });
        let is_beyond = |member: &Member| {
            member.max_delay.is_some_and(|most| self.when.resolve(wall_clock(), most).is_err())
        };
        let beyond = among(&roster, is_beyond).map(|who| {
            format!(
                "{who} accepts no delay as long as this one: the record becomes a dead letter (delay_too_long) there. \
                 Raise `max-delay` in the configuration of the instances"
            )
        });
        denied.into_iter().chain(beyond).collect()
    }

    fn report(&self, topic: &str, receipt: &Receipt, config: &Config, json: bool) -> Outcome {
        let Receipt { partition, stands } = *receipt;
        let Some(Stands { offset, appended }) = stands else {
            let told = json!({ "topic": topic, "partition": partition, "offset": null,
                "appended_ms": null, "due_ms": null, "target": self.target, "id": self.id });
            return output::line(&if json {
                told.to_string()
            } else {
                format!("{topic}/{partition}: written; Kafka does not say where and when")
            });
        };
        let place = format!("{topic}/{partition}@{}", offset.0);
        let due = match self.when.resolve(appended, config.max_delay) {
            Ok(due) => due,
            Err(why) => return Err(Failure::new(Exit::Negative, SendError::Void { place, why })),
        };
        if json {
            return output::line(
                &json!({
                    "topic": topic,
                    "partition": partition,
                    "offset": offset.0,
                    "appended_ms": appended.0,
                    "due_ms": due.0,
                    "target": self.target,
                    "id": self.id,
                })
                .to_string(),
            );
        }
        output::line(&format!(
            "{place} appended {}\n{} due {} (in {})",
            output::time(appended),
            self.target,
            output::time(due),
            due - appended
        ))
    }
}
