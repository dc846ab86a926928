//! `waterclock topics`: creates missing topics, reports what is not as it should be, changes nothing that exists.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Exit, Failure, Global, Outcome, again, output};
use crate::config::{ASCENDING, Config, LadderConfig, Overrides};
use crate::engine::ladder::{self, LadderError};
use crate::engine::{Millis, header};
use crate::kafka::meta;
use crate::kafka::topics::{self, Applied, Error, Finding, Request, Severity, holds_text};

/// Arguments of `topics`.
#[derive(Args)]
pub(super) struct Topics {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Creates missing topics and puts ladder, lanes and tasks in force; exit code 1 if something cannot hold
    Apply(AllArgs),
    /// Lists every difference; exit code 1 if there is one
    Diff(AllArgs),
    /// Says whether `run` would start; exit code 1 if not
    Check(LadderArgs),
}

/// What to put in force, or to compare with. What is left out is as it is in force.
#[derive(Args)]
struct LadderArgs {
    /// Partitions of every lane topic, 1 to 1000; fixed for a namespace [default: what is in force, else 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    lanes: Option<u16>,
    /// classic, round, clock, or holds like 1s,5s,1m [default: what is in force, else round]
    #[arg(long, value_name = "LADDER")]
    ladder: Option<Holds>,
}

/// The same, with what can only be put there.
#[derive(Args)]
struct AllArgs {
    #[command(flatten)]
    ladder: LadderArgs,
    /// Puts tasks in force, for good: stop all instances first. A new namespace has them anyway
    #[arg(long)]
    tasks: bool,
}

/// Holds of a ladder as an argument.
#[derive(Clone, Debug)]
pub(super) struct Holds(pub(super) Vec<Millis>);

impl std::str::FromStr for Holds {
    type Err = BadHolds;

    fn from_str(text: &str) -> Result<Self, BadHolds> {
        let holds = ladder::holds(text)?;
        // These are sorted. A preset has a name and no list; its name is no length of time either.
        let given = text.split(',').map_while(|entry| header::duration(entry.trim()).ok());
        let given: Vec<Millis> = given.collect();
        match given.windows(2).find(|pair| pair[0] >= pair[1]) {
            Some(pair) => Err(BadHolds::Order(pair[0], pair[1])),
            None => Ok(Self(holds)),
        }
    }
}

/// Why an argument is no ladder.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadHolds {
    #[error(transparent)]
    Ladder(#[from] LadderError),
    /// As the configuration says it.
    #[error("{0} before {1}: want {ASCENDING}")]
    Order(Millis, Millis),
}

/// The holds that the configuration asks for.
pub(super) fn configured(config: &Config) -> Option<Vec<Millis>> {
    config.ladder.as_ref().map(|ladder| match ladder {
        LadderConfig::Preset(preset) => preset.holds(),
        LadderConfig::Holds(holds) => holds.clone(),
    })
}

fn failed(error: Error) -> Failure {
    let exit = match &error {
        error if error.is_away() => Exit::Unavailable,
        Error::Meta(meta::Error::Random(_)) => Exit::Internal,
        Error::BadLadder(_) => Exit::Usage,
        _ => Exit::Negative,
    };
    Failure::new(exit, error)
}

impl Topics {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let (asked, tasks) = match &self.what {
            What::Apply(AllArgs { ladder, tasks }) | What::Diff(AllArgs { ladder, tasks }) => {
                (ladder, *tasks)
            }
            What::Check(ladder) => (ladder, false),
        };
        let request = Request {
            namespace: config.namespace.clone(),
            further_intakes: config.further_intakes().map(str::to_owned).collect(),
            lanes: asked.lanes.or(config.lanes),
            holds: asked.ladder.clone().map(|holds| holds.0).or_else(|| configured(&config)),
            lead_max: config.lead(),
            horizon: config.horizon,
            tasks,
        };
        let connection = global.connection(&config);
        let report = match self.what {
            What::Apply(_) => {
                applied(&topics::apply(&connection, &request).map_err(failed)?, &request.namespace)
            }
            What::Diff(_) => {
                let survey = topics::survey(&connection, &request).map_err(failed)?;
                differences(&survey.findings, survey.tasks)
            }
            What::Check(_) => match topics::check(&connection, &request) {
                Ok(in_force) => fit(&in_force),
                Err(Error::Misconfigured(findings)) => misconfigured(&findings),
                Err(error) => return Err(failed(error)),
            },
        };
        let text = if global.json() { format!("{}\n", report.json) } else { report.text };
        output::write(text.as_bytes())?;
        Ok(report.exit)
    }
}

/// A result in both forms.
struct Report {
    text: String,
    json: Value,
    exit: Exit,
}

fn exit_if(found: bool) -> Exit {
    if found { Exit::Negative } else { Exit::Ok }
}

fn applied(applied: &Applied, namespace: &str) -> Report {
    let Applied { in_force, tasks, changed, created, drained, empty, findings } = applied;
    let mut text = String::new();
    for topic in created {
        let _ = writeln!(text, "created  {topic}");
    }
    for hold in drained {
        let _ = writeln!(
            text,
            "drained  {namespace}.delay.{hold}: nothing is pending there; it may be deleted"
        );
    }
    for hold in &in_force.draining {
        let why = if empty.contains(hold) {
            "nothing is pending there; `topics apply` takes it off the list when no instance runs"
        } else {
            "still read, no longer written to"
        };
        let _ = writeln!(text, "draining {namespace}.delay.{hold}: {why}");
    }
    let now = if *changed { "now in force" } else { "in force, as before" };
    let holds = holds_text(&in_force.holds);
    let _ = writeln!(text, "{now}: {} lanes, ladder {holds}{}", in_force.lanes, and_tasks(*tasks));
    text.push_str(&listed(findings));
    let json = json!({
        "namespace": namespace,
        "lanes": in_force.lanes,
        "holds": texts(&in_force.holds),
        "draining": texts(&in_force.draining),
        "tasks": tasks,
        "drained": texts(drained),
        "changed": changed,
        "created": created,
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    });
    Report { text, json, exit: exit_if(findings.iter().any(Finding::refuses)) }
}

/// Behind the ladder that is in force.
fn and_tasks(are_in_force: bool) -> &'static str {
    if are_in_force { ", tasks" } else { "; no tasks (`topics apply --tasks`)" }
}

fn differences(findings: &[Finding], tasks: bool) -> Report {
    let text = if findings.is_empty() { "no difference\n".to_owned() } else { listed(findings) };
    let json = json!({
        "tasks": tasks,
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    });
    Report { text, json, exit: exit_if(!findings.is_empty()) }
}

fn fit(in_force: &topics::InForce) -> Report {
    let holds = |open: bool| -> Vec<Millis> {
        let tiers = in_force.ladder.tiers().iter().filter(|tier| tier.open == open);
        tiers.map(|tier| tier.hold).collect()
    };
    let (open, draining) = (holds(true), holds(false));
    let (lanes, tasks) = (in_force.lanes, in_force.tasks);
    let mut text =
        format!("fit: {lanes} lanes, ladder {}{}\n", holds_text(&open), and_tasks(tasks));
    if !draining.is_empty() {
        let _ = writeln!(text, "draining {}", holds_text(&draining));
    }
    text.push_str(&listed(&in_force.notes));
    let json = json!({
        "fit": true,
        "lanes": in_force.lanes,
        "holds": texts(&open),
        "draining": texts(&draining),
        "tasks": tasks,
        "findings": in_force.notes.iter().map(finding).collect::<Vec<_>>(),
    });
    Report { text, json, exit: Exit::Ok }
}

fn misconfigured(findings: &[Finding]) -> Report {
    let text = format!("not fit, `run` would not start:\n{}", listed(findings));
    let findings: Vec<_> = findings.iter().map(finding).collect();
    Report { text, json: json!({ "fit": false, "findings": findings }), exit: Exit::Negative }
}

fn texts(holds: &[Millis]) -> Vec<String> {
    holds.iter().map(Millis::to_string).collect()
}

/// The finding on one line, what to do on the next, so that a command can be copied whole.
fn listed(findings: &[Finding]) -> String {
    findings.iter().fold(String::new(), |mut text, finding| {
        let Finding { topic, what, found, wanted, severity, remedy } = finding;
        let _ = writeln!(text, "{severity:<8} {topic}: {what} is {found}, want {wanted}");
        let _ = writeln!(text, "         {}", again::mended(remedy));
        text
    })
}

fn finding(finding: &Finding) -> Value {
    let Finding { topic, what, found, wanted, severity, remedy } = finding;
    let severity: &Severity = severity;
    json!({
        "topic": topic,
        "what": what,
        "found": found,
        "wanted": wanted,
        "severity": severity.to_string(),
        "remedy": again::mended(remedy),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::meta::LadderInForce;

    fn a_finding(severity: Severity) -> Finding {
        Finding {
            topic: "ns.delay.1m".to_owned(),
            what: "retention.ms".to_owned(),
            found: "1000".to_owned(),
            wanted: "-1".to_owned(),
            severity,
            remedy: "kafka-configs.sh ...".to_owned(),
        }
    }

    fn an_apply(findings: Vec<Finding>) -> Applied {
        let (m, h) = (Millis::MINUTE, Millis::HOUR);
        Applied {
            in_force: LadderInForce { lanes: 6, holds: vec![Millis::SECOND], draining: vec![m, h] },
            tasks: true,
            changed: true,
            created: vec!["ns.intake".to_owned()],
            drained: vec![Millis::DAY],
            empty: vec![h],
            findings,
        }
    }

    #[test]
    fn an_apply_tells_what_it_did_and_what_is_left_to_do() {
        let report = applied(&an_apply(vec![a_finding(Severity::Wrong)]), "ns");
        let want = "created  ns.intake\n\
                    drained  ns.delay.1d: nothing is pending there; it may be deleted\n\
                    draining ns.delay.1m: still read, no longer written to\n\
                    draining ns.delay.1h: nothing is pending there; `topics apply` takes it off the list when no instance runs\n\
                    now in force: 6 lanes, ladder 1s, tasks\n\
                    wrong    ns.delay.1m: retention.ms is 1000, want -1\n         kafka-configs.sh ...\n";
        assert_eq!(report.text, want);
        assert_eq!(report.json["findings"][0]["severity"], "wrong");
        assert_eq!(report.json["draining"], json!(["1m", "1h"]));
    }

    #[test]
    fn the_exit_code_says_whether_there_is_something_to_do() {
        let exit = |severity| applied(&an_apply(vec![a_finding(severity)]), "ns").exit;
        assert_eq!(applied(&an_apply(vec![]), "ns").exit, Exit::Ok);
        assert_eq!(exit(Severity::Note), Exit::Ok, "a note stops nothing");
        assert_eq!(exit(Severity::Wrong), Exit::Negative);
        assert_eq!(differences(&[], true).exit, Exit::Ok);
        assert_eq!(differences(&[a_finding(Severity::Note)], false).exit, Exit::Negative);
        assert_eq!(misconfigured(&[a_finding(Severity::Missing)]).exit, Exit::Negative);
    }
}
