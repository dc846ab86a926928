//! `waterclock members`: which instances run, what each does and has to do, and how it is.

use clap::Args;
use serde_json::json;

use super::client::{Client, Untrusted, members};
use super::{Exit, Global, Outcome, output, table};
use crate::api::Report;
use crate::api::members::{MemberHealth, MemberLoad, MemberView};
use crate::app::members::view;
use crate::config::{Config, Overrides};
use crate::engine::UnixMillis;
use crate::kafka::Member;

/// Arguments of `members`.
#[derive(Args)]
pub(super) struct Members {}

impl Members {
    pub(super) fn run(&self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let told = asked(&members(&global.connection(&config), &config)?, &config);
        if global.json() {
            told.iter()
                .try_for_each(|member| output::line(&json!(member).to_string()).map(drop))?;
        } else if told.is_empty() {
            output::line(&format!("no instance of namespace {} runs", config.namespace))?;
        } else {
            output::line(&members_table(&told))?;
        }
        let is_well =
            !told.is_empty() && told.iter().all(|member| member.health == MemberHealth::Ready);
        Ok(if is_well { Exit::Ok } else { Exit::Negative })
    }
}

/// What the members have said of themselves, and what each answers when it is asked how it is. All are asked at once.
fn asked(members: &[Member], config: &Config) -> Vec<MemberView> {
    let look = |member: &Member| Client::of_member(member, config)?.look("health/ready");
    let ask = move |member: &Member| match look(member) {
        Ok(told) => view(member, serde_json::from_value::<Report>(told).ok()),
        Err(error) => silent(view(member, None), error.untrusted()),
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            members.iter().map(|member| (member, scope.spawn(move || ask(member)))).collect();
        let told = asked.into_iter().map(|(member, asked)| (member, asked.join()));
        told.map(|(member, told)| told.unwrap_or_else(|_| view(member, None))).collect()
    })
}

/// One that does not answer, with why, if a certificate is the reason.
fn silent(member: MemberView, why: Option<Untrusted>) -> MemberView {
    let why = match why {
        None => return member,
        Some(Untrusted::Theirs) => {
            "its certificate is not trusted here: name its authority in WATERCLOCK_API__CA, or in api.ca of the configuration"
        }
        Some(Untrusted::Ours) => {
            "it takes no client without a certificate that it trusts: name one in api.client-certificate and api.client-key"
        }
    };
    MemberView { reasons: vec![why.to_owned()], ..member }
}

fn members_table(members: &[MemberView]) -> String {
    let mut table = table::fitted();
    table.set_header([
        "instance", "address", "roles", "lanes", "version", "since", "load", "health",
    ]);
    table.add_rows(members.iter().map(row));
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A member in the table.
fn row(member: &MemberView) -> [String; 8] {
    let word = |word: &str| output::shown(Some(word.as_bytes()));
    let all = |all: Vec<String>| if all.is_empty() { "none".to_owned() } else { all.join(" ") };
    let or_not = |said: Option<String>| said.unwrap_or_else(|| "-".to_owned());
    let health = std::iter::once(member.health.as_str());
    let health = health.chain(member.reasons.iter().map(String::as_str)).map(word);
    [
        word(&member.instance),
        word(&member.address),
        all(member.roles.iter().map(|role| role.as_str().to_owned()).collect()),
        all(member.lanes.iter().map(u16::to_string).collect()),
        or_not(member.version.as_deref().map(word)),
        or_not(member.since.map(|at| output::time(UnixMillis(at)))),
        or_not(member.load.map(load)),
        health.collect::<Vec<_>>().join(": "),
    ]
}

/// As people see it.
fn load(load: MemberLoad) -> String {
    let MemberLoad { pending, timers, open_calls, per_second } = load;
    format!("pending {pending}, timers {timers}, calls {open_calls}, {per_second}/s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::members::MemberRole;

    #[test]
    fn what_is_known_of_each_instance_stands_in_the_table() {
        let older = MemberView {
            instance: "a".to_owned(),
            address: "a:80".to_owned(),
            roles: vec![MemberRole::Lanes, MemberRole::Api],
            lanes: vec![7, 9],
            threads: 1,
            version: None,
            since: None,
            load: None,
            health: MemberHealth::Silent,
            reasons: Vec::new(),
        };
        let newer = MemberView {
            roles: Vec::new(),
            lanes: Vec::new(),
            version: Some("1.2.3".to_owned()),
            since: Some(1_700_000_000_000),
            load: Some(MemberLoad { pending: 9, timers: 7, open_calls: 2, per_second: 40 }),
            health: MemberHealth::NotReady,
            reasons: vec!["it\u{1b}stops".to_owned()],
            ..older.clone()
        };
        let want = ["a", "a:80", "lanes api", "7 9", "-", "-", "-", "silent"];
        assert_eq!(row(&older), want);
        let told = row(&newer);
        let want = ["a", "a:80", "none", "none", "1.2.3", "2023-11-14T22:13:20.000Z"];
        assert_eq!(told[..6], want);
        assert_eq!(told[6], "pending 9, timers 7, calls 2, 40/s");
        assert!(told[7].starts_with("not ready: it") && !told[7].contains('\u{1b}'), "{told:?}");
        let untrusted = silent(older.clone(), Some(Untrusted::Theirs));
        assert!(untrusted.reasons[0].contains("WATERCLOCK_API__CA"), "{untrusted:?}");
        assert_eq!(silent(older.clone(), None), older);
        let table = members_table(&[older, newer]);
        assert!(
            table.lines().next().is_some_and(|line| line.trim().starts_with("instance")),
            "{table}"
        );
    }
}
