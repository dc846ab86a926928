//! `waterclock acl`: the Kafka rights that each role needs. Asks nothing.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{Global, Outcome, output};
use crate::app::lanes;
use crate::config::{Overrides, Roles};
use crate::kafka::doctor::{self, AclRole, Acls, Grant};

/// Arguments of `acl`.
#[derive(Args)]
pub(super) struct Acl {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Prints the commands that give a principal exactly what some roles need, and asks nothing
    Print {
        /// What the principal does: may be given several times, or as a list with commas [default: the roles of the configuration]
        #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_enum)]
        roles: Vec<Role>,
        /// Who gets the rights: User:NAME; a NAME alone is that of a user [default: User: and sasl.username, else User:waterclock]
        #[arg(long, value_name = "NAME")]
        principal: Option<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    /// Instances that hold records and timers
    Lanes,
    /// Instances that make the calls of tasks
    Worker,
    /// Instances that take tasks over HTTP
    Api,
    /// Kafka clients that submit records
    Producer,
    /// Commands that ask Kafka: send, cancel, dead, topics check, index verify
    Cli,
    /// topics apply
    Admin,
}

impl Role {
    const fn of_acls(self) -> AclRole {
        match self {
            Self::Lanes => AclRole::Lanes,
            Self::Worker => AclRole::Worker,
            Self::Api => AclRole::Api,
            Self::Producer => AclRole::Producer,
            Self::Cli => AclRole::Cli,
            Self::Admin => AclRole::Admin,
        }
    }
}

impl Acl {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let What::Print { roles, principal } = self.what;
        let config = global.load(Overrides::default())?;
        let connection = global.connection(&config);
        let principal = match principal {
            Some(principal) => typed(&principal),
            None => user(connection.user().unwrap_or("waterclock")),
        };
        let roles: Vec<AclRole> = match roles.is_empty() {
            true => of_instances(config.roles),
            false => roles.into_iter().map(Role::of_acls).collect(),
        };
        let acls = doctor::acls(&lanes::request(&config), &roles, config.allow.as_deref());
        let commands = acls.commands(&config.brokers, &principal);
        if !global.json() {
            return output::line(&commands.join("\n"));
        }
        let roles: Vec<&str> = roles.into_iter().map(AclRole::as_str).collect();
        let Acls { grants, notes } = acls;
        let grants: Vec<_> = grants.iter().map(grant).collect();
        output::line(
            &json!({
                "principal": principal, "roles": roles, "grants": grants, "notes": notes, "commands": commands,
            })
            .to_string(),
        )
    }
}

fn user(name: &str) -> String {
    format!("User:{name}")
}

/// A principal with its type, which Kafka wants.
fn typed(principal: &str) -> String {
    if principal.contains(':') { principal.to_owned() } else { user(principal) }
}

/// What instances with these roles do.
fn of_instances(roles: Roles) -> Vec<AclRole> {
    let Roles { lanes, worker, api } = roles;
    let all = [(lanes, AclRole::Lanes), (worker, AclRole::Worker), (api, AclRole::Api)];
    all.into_iter().filter(|(is_on, _)| *is_on).map(|(_, role)| role).collect()
}

fn grant(grant: &Grant) -> serde_json::Value {
    let Grant { resource, name, is_prefix, rights } = grant;
    let rights: Vec<&str> = rights.iter().map(|right| right.as_str()).collect();
    let pattern = if *is_prefix { "prefixed" } else { "literal" };
    json!({ "resource": resource.to_string(), "name": name, "pattern": pattern, "operations": rights })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::config::Config;

    /// The document's table is made here; `UPDATE_DOCS=1 cargo test --lib documented` writes it.
    #[test]
    fn the_documented_rights_are_those_of_the_code() {
        let mut table = String::from(
            "| role | resource | name | pattern | operations |\n|---|---|---|---|---|\n",
        );
        let allowed = [r"orders\..*".to_owned()];
        for role in AclRole::ALL {
            let acls = doctor::acls(&lanes::request(&Config::default()), &[role], Some(&allowed));
            for of in acls.grants {
                let Grant { resource, name, is_prefix, rights } = of;
                let rights: Vec<&str> = rights.iter().map(|right| right.as_str()).collect();
                let (role, rights) = (role.as_str(), rights.join(", "));
                let pattern = if is_prefix { "prefixed" } else { "literal" };
                writeln!(table, "| `{role}` | {resource} | `{name}` | {pattern} | {rights} |")
                    .unwrap();
            }
        }
        crate::documented::compare("security.md", "rights", &table);
    }

    #[test]
    fn a_name_without_a_type_is_that_of_a_user() {
        for (given, want) in [
            ("waterclock", "User:waterclock"),
            ("CN=wc,OU=shop", "User:CN=wc,OU=shop"),
            ("User:wc", "User:wc"),
            ("Group:ops", "Group:ops"),
        ] {
            assert_eq!(typed(given), want);
        }
    }

    #[test]
    fn without_a_role_those_of_the_configuration_are_meant() {
        let roles = Roles { lanes: false, worker: true, api: true };
        assert_eq!(of_instances(roles), [AclRole::Worker, AclRole::Api]);
        assert_eq!(of_instances(Roles::default()).len(), 3);
    }
}
