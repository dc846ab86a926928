//! `waterclock doctor`: looks at the cluster, says what is wrong and how to mend it. Changes nothing.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::client::ClientError;
use super::{Exit, Failure, Global, Outcome, again, output, table};
use crate::app::{instance, lanes};
use crate::config::{Config, Delivery, Overrides};
use crate::engine::Millis;
use crate::engine::allow::Allow;
use crate::kafka::doctor::{AllowOf, Area, Backlog, Finding, Location, Severity, Wish};
use crate::kafka::meta::Error as MetaError;
use crate::kafka::{Connection, Roster, doctor, wall_clock};

/// Positions must outlast all instances being away for this long.
const OUTAGE: Millis = Millis(7 * Millis::DAY.0);

/// Arguments of `doctor`.
#[derive(Args)]
pub(super) struct Doctor {
    /// Writes nothing at all: no probe records to `<ns>.meta`, no small transactions, no file in the data directory
    #[arg(long)]
    read_only: bool,
    /// Data directory to look at [default: that of the configuration]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
}

impl Doctor {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let Self { read_only, data_dir } = self;
        let config = global.load(Overrides { data_dir, ..Overrides::default() })?;
        let connection = global.connection(&config);
        let wish = wish(&config, said(&config, &connection)?, read_only)?;
        let facts = doctor::ask(&connection, &wish)
            .map_err(|error| Failure::new(Exit::Unavailable, error))?;
        let mut findings = doctor::findings(&wish, &facts, wall_clock());
        findings.push(directory(config.data_dir.as_deref(), read_only));
        let is_probed = !facts.clocks.is_empty();
        let report = Report { findings, backlog: doctor::backlog(&facts), is_probed };
        let text = if global.json() {
            format!("{}\n", report.json(&config))
        } else {
            report.text(&config)
        };
        output::write(text.as_bytes())?;
        Ok(if report.count(Severity::Problem) > 0 { Exit::Negative } else { Exit::Ok })
    }
}

/// `said`: how many instances have said what they deliver to, and what that is.
fn wish(config: &Config, said: AnnouncedLists, read_only: bool) -> Result<Wish, Failure> {
    let (allow_differs, without_tasks) = (said.differs, said.without_tasks);
    let (allow, allow_of) = match (said.instances, said.allow) {
        (0, _) => {
            let own = config.allow_of_all();
            let own = own.map_err(|error| Failure::new(Exit::Configuration, error))?;
            (own, AllowOf::Configuration)
        }
        (instances, allow) => (allow, AllowOf::Instances(instances)),
    };
    Ok(Wish {
        request: lanes::request(config),
        exactly_once: config.delivery == Delivery::ExactlyOnce,
        session_timeout: config.session_timeout,
        transaction_timeout: config.transaction_timeout,
        hop_linger: config.hop_linger(),
        commit_interval: config.commit_interval,
        allow,
        allow_of,
        allow_differs,
        without_tasks,
        is_ajar: allow_of == AllowOf::Configuration && config.is_ajar(),
        outage: OUTAGE,
        read_only,
    })
}

/// What the instances that run have said: which topics they deliver to, and whether they know tasks.
#[derive(Default)]
struct AnnouncedLists {
    /// How many have said it.
    instances: usize,
    /// The lists of all of them, of each intake.
    allow: Vec<Allow>,
    /// Where two answer that have not said the same.
    differs: Option<[String; 2]>,
    /// Where those answer that do not say that they know tasks.
    without_tasks: Vec<String>,
}

fn said(config: &Config, connection: &Connection) -> Result<AnnouncedLists, Failure> {
    let namespace = &config.namespace;
    let roster = match Roster::read(connection, &format!("{namespace}.meta"), namespace) {
        Err(MetaError::Away(error)) => return Err(ClientError::Kafka(error).into()),
        // That the topic is not there, or may not be read, is found besides.
        roster => roster.unwrap_or_default(),
    };
    let said = roster.active().filter_map(|member| Some((&member.address, member.allow.as_ref()?)));
    let lists: Vec<_> = said.collect();
    let sets = lists.iter().flat_map(|(_, list)| list.values());
    let allow = sets.filter_map(|sets| Allow::of_sets(namespace, sets).ok()).collect();
    let differing = lists.windows(2).find(|pair| pair[0].1 != pair[1].1);
    let differs = differing.map(|pair| [pair[0].0.clone(), pair[1].0.clone()]);
    let without_tasks = roster.active().filter(|member| !member.tasks);
    let without_tasks = without_tasks.map(|member| member.address.clone()).collect();
    Ok(AnnouncedLists { instances: lists.len(), allow, differs, without_tasks })
}

/// Whether an instance could keep its name here.
fn directory(configured: Option<&Path>, read_only: bool) -> Finding {
    let path = configured.map_or_else(|| PathBuf::from(instance::DIRECTORIES), Path::to_owned);
    // A directory that does not exist yet is made below its nearest ancestor that does.
    let there = path.ancestors().find(|above| above.exists());
    let there = there.unwrap_or_else(|| Path::new("."));
    let shown = path.display();
    let (severity, what, remedy) = match is_writable(there, read_only) {
        Ok(()) => (Severity::Ok, format!("data directory {shown} can be used"), String::new()),
        Err(error) => (
            Severity::Problem,
            format!(
                "data directory {shown} cannot be used: {} cannot be written: {error}",
                there.display()
            ),
            "give this user the directory, or choose another with data-dir".to_owned(),
        ),
    };
    Finding { severity, area: Area::Machine, at: Location::NONE, what, remedy }
}

fn is_writable(directory: &Path, read_only: bool) -> io::Result<()> {
    let known = fs::metadata(directory)?;
    if !known.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if read_only {
        return if known.permissions().readonly() {
            Err(io::ErrorKind::PermissionDenied.into())
        } else {
            Ok(())
        };
    }
    let path = directory.join(format!(".doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&path)?;
    fs::remove_file(path)
}

/// What is told, in both forms.
struct Report {
    findings: Vec<Finding>,
    backlog: Vec<Backlog>,
    /// Whether probe records were written.
    is_probed: bool,
}

impl Report {
    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// What was seen as a table; what to do below it, each on a line of its own, so that a command can be copied whole.
    fn text(&self, config: &Config) -> String {
        let mut table = table::fitted();
        table.set_header(["", "", "looked at", "where", "seen"]);
        let mut todo = String::new();
        let mut number = 0;
        for finding in &self.findings {
            let Finding { severity, area, at, what, remedy } = finding;
            let mut mark = String::new();
            if !remedy.is_empty() {
                number += 1;
                mark = number.to_string();
                let _ = writeln!(todo, "{number:>3}  {}", again::mended(remedy));
            }
            table.add_row([
                mark,
                severity.to_string(),
                area.to_string(),
                at.to_string(),
                what.clone(),
            ]);
        }
        let mut text = format!(
            "namespace {} on {}\n\n{}\n",
            config.namespace,
            config.brokers,
            table.trim_fmt()
        );
        if !todo.is_empty() {
            let _ = write!(text, "\nwhat to do\n{todo}");
        }
        let waiting = self.backlog.iter().filter(|topic| topic.pending > 0);
        let waiting: Vec<String> =
            waiting.map(|topic| format!("{} {}", topic.topic, topic.pending)).collect();
        if !waiting.is_empty() {
            let _ = writeln!(text, "\noffsets that are not done: {}", waiting.join(", "));
        }
        let (problems, notes) = (self.count(Severity::Problem), self.count(Severity::Note));
        let wrote = if self.is_probed {
            "nothing was changed; small probe records went to the meta topic"
        } else {
            "nothing was written"
        };
        let s = |count| if count == 1 { "" } else { "s" };
        let (p, n) = (s(problems), s(notes));
        let _ = writeln!(text, "\n{problems} problem{p}, {notes} note{n}; {wrote}");
        text
    }

    fn json(&self, config: &Config) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "severity": finding.severity.to_string(),
                    "area": finding.area.to_string(),
                    "topic": finding.at.topic,
                    "partition": finding.at.partition,
                    "broker": finding.at.broker,
                    "what": finding.what,
                    "remedy": again::mended(&finding.remedy),
                })
            })
            .collect();
        let pending: Vec<Value> = self
            .backlog
            .iter()
            .map(|topic| json!({ "topic": topic.topic, "pending": topic.pending }))
            .collect();
        json!({
            "namespace": config.namespace,
            "brokers": config.brokers,
            "problems": self.count(Severity::Problem),
            "notes": self.count(Severity::Note),
            "findings": findings,
            "pending": pending,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, remedy: &str) -> Finding {
        Finding {
            severity,
            area: Area::Topics,
            at: Location::partition("ns.delay.1m", 3),
            what: "it leaks".to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    #[test]
    fn what_to_do_stands_whole_on_a_line_below_the_table() {
        let command = format!("kafka-configs.sh {}", "--add-config ".repeat(30));
        let findings = vec![finding(Severity::Problem, &command), finding(Severity::Ok, "")];
        let backlog = vec![
            Backlog { topic: "ns.delay.1m".to_owned(), pending: 7 },
            Backlog { topic: "ns.delay.1h".to_owned(), pending: 0 },
        ];
        let report = Report { findings, backlog, is_probed: false };
        let text = report.text(&Config::default());
        assert!(text.contains(&format!("\n  1  {command}\n")), "{text}");
        assert!(text.contains("\noffsets that are not done: ns.delay.1m 7\n"), "{text}");
        assert!(text.ends_with("\n1 problem, 0 notes; nothing was written\n"), "{text}");
        let json = report.json(&Config::default());
        assert_eq!(json["findings"][0]["partition"], 3);
        assert_eq!(json["findings"][1]["severity"], "ok");
        assert_eq!(json["pending"][0]["pending"], 7);
    }

    #[test]
    fn a_data_directory_is_looked_for_where_it_would_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let deep = dir.path().join("not/there/yet");
        #[rustfmt::skip]
        let cases = [
            ("it is there",             dir.path(),             Severity::Ok),
            ("it would be made",        deep.as_path(),         Severity::Ok),
            ("a file is in its place",  file.as_path(),         Severity::Problem),
        ];
        for (why, path, want) in cases {
            for read_only in [true, false] {
                let found = directory(Some(path), read_only);
                assert_eq!(found.severity, want, "{why}: {}", found.what);
            }
        }
        assert!(!deep.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left there");
    }
}
