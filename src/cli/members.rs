//! `waterclock members`: which instances run, which lanes each has, and how each is.

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, members};
use super::{Exit, Global, Outcome, output, table};
use crate::config::Overrides;
use crate::kafka::Member;

/// Arguments of `members`.
#[derive(Args)]
pub(super) struct Members {}

impl Members {
    pub(super) fn run(&self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let members = members(&global.connection(&config), &config)?;
        let told: Vec<Value> = members.iter().map(told).collect();
        if global.json() {
            told.iter().try_for_each(|member| output::line(&member.to_string()).map(drop))?;
        } else if told.is_empty() {
            output::line(&format!("no instance of namespace {} runs", config.namespace))?;
        } else {
            output::line(&members_table(&told))?;
        }
        let is_well = !told.is_empty() && told.iter().all(|member| member["health"] == "ready");
        Ok(if is_well { Exit::Ok } else { Exit::Negative })
    }
}

/// What a member has said of itself, and what it answers when it is asked how it is.
fn told(member: &Member) -> Value {
    let health = Client::of_member(member).and_then(|client| client.look("health/ready"));
    let (word, reasons) = match health {
        Ok(health) if health["ok"] == true => ("ready", health["reasons"].clone()),
        Ok(health) => ("not ready", health["reasons"].clone()),
        Err(_) => ("silent", json!(["it does not answer there"])),
    };
    let lanes: Vec<u16> = member.lanes.iter().map(|lane| lane.0).collect();
    json!({ "instance": member.instance, "address": member.address, "lanes": lanes, "threads": member.threads,
        "health": word, "reasons": reasons })
}

fn members_table(members: &[Value]) -> String {
    let mut table = table::fitted();
    table.set_header(["instance", "address", "lanes", "health"]);
    table.add_rows(members.iter().map(|member| {
        let word = |name: &str| output::shown(member[name].as_str().map(str::as_bytes));
        let each = |name: &str| member[name].as_array().cloned().unwrap_or_default();
        let lanes: Vec<String> = each("lanes").iter().map(Value::to_string).collect();
        let lanes = if lanes.is_empty() { "none".to_owned() } else { lanes.join(" ") };
        let reasons = each("reasons");
        let reasons = reasons.iter().filter_map(Value::as_str);
        let reasons = reasons.map(|reason| output::shown(Some(reason.as_bytes())));
        let health = std::iter::once(word("health")).chain(reasons).collect::<Vec<_>>().join(": ");
        [word("instance"), word("address"), lanes, health]
    }));
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
