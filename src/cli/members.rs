//! `waterclock members`: which instances run, which lanes each has, and how each is.

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, members};
use super::{Exit, Global, Outcome, output, table};
use crate::config::{Config, Overrides};
use crate::kafka::Member;

/// Arguments of `members`.
#[derive(Args)]
pub(super) struct Members {}

impl Members {
    pub(super) fn run(&self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let members = members(&global.connection(&config), &config)?;
        let told: Vec<Value> = members.iter().map(|member| told(member, &config)).collect();
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
fn told(member: &Member, config: &Config) -> Value {
    let health = Client::of_member(member, config).and_then(|client| client.look("health/ready"));
    let (word, reasons) = match health {
        Ok(health) if health["ok"] == true => ("ready", health["reasons"].clone()),
        Ok(health) => ("not ready", health["reasons"].clone()),
        Err(_) => ("silent", json!(["it does not answer there"])),
    };
    let lanes: Vec<u16> = member.lanes.iter().map(|lane| lane.0).collect();
    json!({ "instance": member.instance, "address": member.address, "roles": roles(member), "lanes": lanes,
        "threads": member.threads, "health": word, "reasons": reasons })
}

/// What a member does, in the words of `roles` in the configuration.
fn roles(member: &Member) -> Vec<&'static str> {
    // A program from before lane threads were said has lanes, or waits for some.
    let has_lanes = member.threads > 0 || !member.lanes.is_empty();
    let roles = [("lanes", has_lanes), ("worker", member.worker), ("api", member.api)];
    roles.into_iter().filter_map(|(role, has)| has.then_some(role)).collect()
}

fn members_table(members: &[Value]) -> String {
    let mut table = table::fitted();
    table.set_header(["instance", "address", "roles", "lanes", "health"]);
    table.add_rows(members.iter().map(|member| {
        let word = |name: &str| output::shown(member[name].as_str().map(str::as_bytes));
        let each = |name: &str| member[name].as_array().cloned().unwrap_or_default();
        let plain = |of: &Value| of.as_str().map_or_else(|| of.to_string(), str::to_owned);
        let list = |name: &str| {
            let all: Vec<String> = each(name).iter().map(plain).collect();
            if all.is_empty() { "none".to_owned() } else { all.join(" ") }
        };
        let reasons = each("reasons");
        let reasons = reasons.iter().filter_map(Value::as_str);
        let reasons = reasons.map(|reason| output::shown(Some(reason.as_bytes())));
        let health = std::iter::once(word("health")).chain(reasons).collect::<Vec<_>>().join(": ");
        [word("instance"), word("address"), list("roles"), list("lanes"), health]
    }));
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Lane;

    #[test]
    fn the_roles_of_each_instance_stand_in_the_table() {
        let member = |threads, lanes: &[u16], worker, api| Member {
            instance: "a".to_owned(),
            incarnation: String::new(),
            address: "a:80".to_owned(),
            tls: false,
            lanes: lanes.iter().copied().map(Lane).collect(),
            threads,
            allow: None,
            max_delay: None,
            tasks: true,
            worker,
            api,
        };
        for (why, member, want) in [
            ("all of them", member(1, &[0], true, true), "lanes worker api"),
            ("no lane yet", member(1, &[], false, false), "lanes"),
            ("threads were not said", member(0, &[0], false, true), "lanes api"),
            ("no lanes", member(0, &[], true, false), "worker"),
            ("a worker without tasks", member(0, &[], false, false), "none"),
        ] {
            let roles = roles(&member);
            let shown = json!({"instance": "a", "address": "a:80", "roles": roles, "lanes": [7], "health": "ready"});
            let table = members_table(&[shown]);
            let cells: Vec<&str> =
                table.lines().last().unwrap_or_default().split_whitespace().collect();
            assert_eq!(
                cells,
                [&["a", "a:80"][..], &want.split(' ').collect::<Vec<_>>(), &["7", "ready"]]
                    .concat(),
                "{why}"
            );
        }
    }
}
