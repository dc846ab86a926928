//! Many timers by a filter: first counted, then, with the token of the count, cancelled.

use std::collections::BTreeMap;

use crate::client::command::{BulkCount, BulkPage};
use crate::client::http::Method;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::client::{Client, Kind, ServerArg, typed};
use crate::cli::list::Moment;
use crate::cli::{Exit, Global, Outcome, again, output};
use crate::config::Config;
use crate::terminal::Progress;

/// Where it is asked for.
const PATH: &str = "v1/timers:bulkCancel";

/// Which timers, or the token of a count.
#[derive(Args)]
pub(super) struct Bulk {
    /// Counts the pending timers with this target, and prints a token to cancel them with
    #[arg(long, value_name = "TOPIC")]
    target: Option<String>,
    /// Those with this label
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Those due then or later: RFC 3339, epoch milliseconds, or how long from now, e.g. 2h
    #[arg(long, value_name = "TIME")]
    due_after: Option<Moment>,
    /// Those due before
    #[arg(long, value_name = "TIME")]
    due_before: Option<Moment>,
    /// All of them
    #[arg(long, conflicts_with_all = ["target", "label", "due_after", "due_before"])]
    all: bool,
    /// Cancels what was counted when this token was given, within 15 minutes
    #[arg(
        long,
        conflicts_with_all = ["target", "label", "due_after", "due_before", "all"],
        allow_hyphen_values = true
    )]
    token: Option<String>,
}

impl Bulk {
    /// Whether anything of it is said.
    pub(super) fn is_given(&self) -> bool {
        self.all || self.token.is_some() || !self.filter().is_empty()
    }

    /// The token of a count.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    fn filter(&self) -> Map<String, Value> {
        let all = [
            ("target", self.target.clone().map(Value::from)),
            ("label", self.label.clone().map(Value::from)),
            ("due_after", self.due_after.map(|at| Value::from(at.0))),
            ("due_before", self.due_before.map(|at| Value::from(at.0))),
        ];
        let said = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        said.collect()
    }

    pub(super) fn run(&self, server: &ServerArg, global: &Global, config: &Config) -> Outcome {
        let client = server.open(global, config)?;
        match &self.token {
            Some(token) => carry_out(&client, token, global.json()),
            None => self.count(&client, server, global.json()),
        }
    }

    fn count(&self, client: &Client, server: &ServerArg, json: bool) -> Outcome {
        let mut body = self.filter();
        if self.all {
            body.insert("all".to_owned(), Value::from(true));
        }
        let body = Value::Object(body);
        let counted = client.ask(Kind::Count, &Method::POST, PATH, &[], Some(&body))?;
        let counted: BulkCount = typed(&counted)?;
        if json {
            return output::line(&json!(counted).to_string());
        }
        let BulkCount { count, token, .. } = counted;
        let again = again::command(&[&["cancel", "--token", &token], &server.words()[..]].concat());
        output::line(&match count {
            0 => "no timer would be cancelled".to_owned(),
            1 => {
                format!("1 timer would be cancelled, and is not yet. Within 15 minutes:\n{again}")
            }
            _ => format!(
                "{count} timers would be cancelled, none is yet. Within 15 minutes:\n{again}"
            ),
        })
    }
}

fn carry_out(client: &Client, token: &str, json: bool) -> Outcome {
    let progress = Progress::new(0);
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    let mut page = None::<String>;
    loop {
        let body = json!({ "token": token, "page": page });
        let done = client.ask(Kind::Page, &Method::POST, PATH, &[], Some(&body));
        let done = done.and_then(|done| typed::<BulkPage>(&done));
        let done = done.inspect_err(|_| progress.keep())?;
        progress.set_length(done.count);
        for (outcome, count) in done.outcomes {
            *outcomes.entry(outcome).or_default() += count;
            progress.add(count);
        }
        page = done.next;
        if page.is_none() {
            break;
        }
    }
    drop(progress);
    // What was delivered or superseded meanwhile is not what was to be cancelled any more.
    let left = ["failed", "pending", "refused", "key_too_long"];
    let is_whole = !left.iter().any(|word| outcomes.contains_key(*word));
    if json {
        output::line(&json!({ "outcomes": outcomes }).to_string())?;
    } else if outcomes.is_empty() {
        output::line("nothing was left to cancel")?;
    } else {
        let told: Vec<String> =
            outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        output::line(&told.join(", "))?;
    }
    Ok(if is_whole { Exit::Ok } else { Exit::Negative })
}
