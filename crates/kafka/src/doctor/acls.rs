//! The least rights that each role of a process needs, and the commands that grant them. Pure.
//!
//! They were found by having a broker's authorizer write down all that each role asks for; `tests/kafka/secure.rs` runs the roles
//! with these and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::client::raw::ask::Right;
use crate::topics::Request;

use Right::{Create, Delete, Describe, DescribeConfigs, Read, Write};

/// What somebody does with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AclRole {
    /// `run` with the role `lanes`.
    Lanes,
    /// `run` with the role `worker`.
    Worker,
    /// `run` with the role `api`.
    Api,
    /// A Kafka client that submits records.
    Producer,
    /// The commands that ask Kafka: `send`, `cancel`, `dead`, `topics check`, `index verify`, and those that look for an instance.
    Cli,
    /// `topics apply`.
    Admin,
}

impl AclRole {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Lanes, Self::Worker, Self::Api, Self::Producer, Self::Cli, Self::Admin];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lanes => "lanes",
            Self::Worker => "worker",
            Self::Api => "api",
            Self::Producer => "producer",
            Self::Cli => "cli",
            Self::Admin => "admin",
        }
    }
}

/// Of what rights are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AclResource {
    /// A topic.
    Topic,
    /// A consumer group.
    Group,
    /// A transactional id.
    TransactionalId,
}

impl fmt::Display for AclResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Topic => "topic",
            Self::Group => "group",
            Self::TransactionalId => "transactional-id",
        })
    }
}

/// Rights on one resource, or on all whose names begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Of what kind it is.
    pub resource: AclResource,
    /// Its name, or how its name begins.
    pub name: String,
    /// Whether `name` is how names begin.
    pub is_prefix: bool,
    /// At least one, without what another one implies.
    pub rights: BTreeSet<Right>,
}

/// What some roles need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acls {
    /// By resource and name.
    pub grants: Vec<Grant>,
    /// What no grant can say, for a person.
    pub notes: Vec<String>,
}

/// The rights that roles need together. `allowed`: the targets, as `allow` has them; `None`: it is not set.
#[must_use]
pub fn acls(request: &Request, roles: &[AclRole], allowed: Option<&[String]>) -> Acls {
    let mut needs = Needs::new(request);
    for role in roles {
        needs.role(*role, allowed);
    }
    needs.acls()
}

impl Acls {
    /// The commands that grant it, one a line; lines that begin with `#` are for people.
    #[must_use]
    pub fn commands(&self, bootstrap: &str, principal: &str) -> Vec<String> {
        let command = |grant: &Grant| {
            let Grant { resource, name, is_prefix, rights } = grant;
            let pattern = if *is_prefix { " --resource-pattern-type prefixed" } else { "" };
            let rights: String =
                rights.iter().map(|right| format!(" --operation {}", right.as_str())).collect();
            format!(
                "kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {}{pattern} --{resource} {}{rights}",
                quoted(principal),
                quoted(name)
            )
        };
        let notes = self.notes.iter().map(|note| format!("# {note}"));
        self.grants.iter().map(command).chain(notes).collect()
    }
}

type Resource = (AclResource, String, bool);

/// The name of whatever is of a kind.
const ANY: &str = "*";

struct Needs<'a> {
    namespace: &'a str,
    intakes: Vec<String>,
    granted: BTreeMap<Resource, BTreeSet<Right>>,
    notes: BTreeSet<String>,
}

impl<'a> Needs<'a> {
    fn new(request: &'a Request) -> Self {
        let namespace = request.namespace.as_str();
        let further = request.further_intakes.iter().map(|name| format!("intake.{name}"));
        let intakes = std::iter::once("intake".to_owned()).chain(further).collect();
        Self { namespace, intakes, granted: BTreeMap::new(), notes: BTreeSet::new() }
    }

    fn add(&mut self, resource: Resource, rights: &[Right]) {
        self.granted.entry(resource).or_default().extend(rights);
    }

    /// Rights on own topics, by their names without the namespace.
    fn own(&mut self, names: &[&str], rights: &[Right]) {
        for name in names {
            let name = format!("{}.{name}", self.namespace);
            self.add((AclResource::Topic, name, false), rights);
        }
    }

    fn intakes(&mut self, rights: &[Right]) {
        for name in self.intakes.clone() {
            self.own(&[&name], rights);
        }
    }

    fn tiers(&mut self, rights: &[Right]) {
        self.add((AclResource::Topic, format!("{}.delay.", self.namespace), true), rights);
    }

    fn group(&mut self, end: &str, rights: &[Right]) {
        self.add((AclResource::Group, format!("{}{end}", self.namespace), false), rights);
    }

    fn role(&mut self, role: AclRole, allowed: Option<&[String]>) {
        match role {
            AclRole::Lanes => {
                self.runs();
                self.intakes(&[Read, Write, Delete]);
                self.tiers(&[Read, Write, Delete]);
                // The lane of a shard writes to that of its run.
                self.own(&["results"], &[Read, Write, Delete]);
                // A retry by hand and a look at a payload read where the record stands.
                self.own(&["tasks", "timers", "dead"], &[Read, Write]);
                self.group("", &[Read]);
                self.targets(allowed, &[Write, DescribeConfigs]);
            }
            AclRole::Worker => {
                self.runs();
                self.own(&["tasks"], &[Read, Delete]);
                // A worker commits a position of it that nobody reads, which shows that the group still has the worker.
                self.own(&["results"], &[Read, Write]);
                self.own(&["dead"], &[Write]);
                self.group("-workers", &[Read]);
            }
            AclRole::Api => {
                self.runs();
                self.intakes(&[Write]);
                // Executors are in groups of any name. Who may not describe all of them does not say how many there are.
                self.add((AclResource::Group, ANY.to_owned(), false), &[Describe]);
            }
            AclRole::Producer => self.intakes(&[Write]),
            AclRole::Cli => {
                self.looks();
                self.own(&["meta", "timers", "dead"], &[Read]);
                self.intakes(&[Write]);
                self.group("-dead", &[Describe]);
                self.targets(allowed, &[Describe]);
            }
            AclRole::Admin => {
                self.looks();
                self.add((AclResource::Topic, format!("{}.", self.namespace), true), &[Create]);
                self.own(&["meta"], &[Read, Write]);
                let ids = format!("{}/", self.namespace);
                self.add((AclResource::TransactionalId, ids, true), &[Write]);
            }
        }
    }

    /// What every `run` needs: it checks the topics, says in `<ns>.meta` that it is there, and ends what the dead have left open.
    fn runs(&mut self) {
        self.looks();
        self.own(&["meta"], &[Read, Write]);
        let ids = format!("{}/", self.namespace);
        self.add((AclResource::TransactionalId, ids, true), &[Write]);
    }

    /// Sees own topics and their settings. Readers of topics are of the group by name, though not its members.
    fn looks(&mut self) {
        let rights = [Describe, DescribeConfigs];
        self.intakes(&rights);
        self.tiers(&rights);
        self.own(&["dead", "meta", "results", "tasks", "timers"], &rights);
        self.group("", &[Describe]);
    }

    fn targets(&mut self, allowed: Option<&[String]>, rights: &[Right]) {
        let words: Vec<&str> = rights.iter().map(|right| right.as_str()).collect();
        let words = words.join(", ");
        let Some(patterns) = allowed else {
            self.notes.insert(format!("allow is not set: set it, or grant each target {words}"));
            return;
        };
        for pattern in patterns {
            match shape(pattern) {
                Some((name, is_prefix)) => self.add((AclResource::Topic, name, is_prefix), rights),
                None => {
                    self.notes.insert(format!(
                        "allow {pattern:?} is neither one name nor a prefix; grant each of its topics {words}"
                    ));
                }
            }
        }
    }

    fn acls(self) -> Acls {
        let all_groups = (AclResource::Group, ANY.to_owned(), false);
        let sees_groups = self.granted.contains_key(&all_groups);
        let grant = |((resource, name, is_prefix), mut rights): (Resource, BTreeSet<Right>)| {
            let is_given = rights.iter().any(|right| matches!(right, Read | Write | Delete));
            let is_of_all = sees_groups && resource == AclResource::Group && name != ANY;
            if is_given || is_of_all {
                // Kafka takes it as given.
                rights.remove(&Describe);
            }
            Grant { resource, name, is_prefix, rights }
        };
        let grants = self.granted.into_iter().map(grant);
        let grants = grants.filter(|grant| !grant.rights.is_empty()).collect();
        Acls { grants, notes: self.notes.into_iter().collect() }
    }
}

/// A regular expression that is one name, or (`true`) all names with a prefix.
fn shape(pattern: &str) -> Option<(String, bool)> {
    let (rest, is_prefix) = match pattern.strip_suffix(".*") {
        Some(rest) if !rest.ends_with('\\') => (rest, true),
        _ => (pattern, false),
    };
    let mut name = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => name.push(chars.next().filter(|c| matches!(c, '.' | '-' | '_'))?),
            c if c.is_ascii_alphanumeric() || c == '_' || c == '-' => name.push(c),
            _ => return None,
        }
    }
    (!name.is_empty()).then_some((name, is_prefix))
}

/// For a shell, where that is needed.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use waterclock_engine::Millis;

    use super::*;

    fn request() -> Request {
        let further_intakes = vec!["eu".to_owned()];
        let (lead_max, horizon) = (Millis(2_000), Millis(2_000));
        let namespace = "ns".to_owned();
        Request {
            namespace,
            further_intakes,
            lanes: None,
            holds: None,
            lead_max,
            horizon,
            tasks: false,
        }
    }

    /// What is granted on a resource.
    fn on(acls: &Acls, of: AclResource, name: &str) -> String {
        let grant = acls.grants.iter().find(|grant| grant.resource == of && grant.name == name);
        let rights = grant.iter().flat_map(|grant| &grant.rights).map(|right| right.as_str());
        let pattern = if grant.is_some_and(|grant| grant.is_prefix) { "prefixed: " } else { "" };
        format!("{pattern}{}", rights.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn each_role_has_what_it_needs_and_two_together_have_both() {
        use AclResource::{Group, Topic, TransactionalId};
        use AclRole::{Admin, Api, Cli, Lanes, Producer, Worker};
        let allowed = ["orders".to_owned(), r"bills\..*".to_owned()];
        #[rustfmt::skip]
        let cases: &[(&[AclRole], AclResource, &str, &str)] = &[
            (&[Lanes],          Topic,           "ns.intake",    "Read Write Delete DescribeConfigs"),
            (&[Lanes],          Topic,           "ns.intake.eu", "Read Write Delete DescribeConfigs"),
            (&[Lanes],          Topic,           "ns.delay.",    "prefixed: Read Write Delete DescribeConfigs"),
            (&[Lanes],          Topic,           "ns.results",   "Read Write Delete DescribeConfigs"),
            (&[Lanes],          Topic,           "ns.tasks",     "Read Write DescribeConfigs"),
            (&[Lanes],          Topic,           "orders",       "Write DescribeConfigs"),
            (&[Lanes],          Topic,           "bills.",       "prefixed: Write DescribeConfigs"),
            (&[Lanes],          Group,           "ns",           "Read"),
            (&[Lanes],          Group,           "ns-workers",   ""),
            (&[Lanes],          TransactionalId, "ns/",          "prefixed: Write"),
            (&[Worker],         Topic,           "ns.intake",    "Describe DescribeConfigs"),
            (&[Worker],         Topic,           "ns.tasks",     "Read Delete DescribeConfigs"),
            (&[Worker],         Topic,           "ns.dead",      "Write DescribeConfigs"),
            (&[Worker],         Topic,           "orders",       ""),
            (&[Worker],         Group,           "ns-workers",   "Read"),
            (&[Worker],         Group,           "ns",           "Describe"),
            (&[Worker, Lanes],  Topic,           "ns.tasks",     "Read Write Delete DescribeConfigs"),
            (&[Worker, Lanes],  Group,           "ns",           "Read"),
            (&[Api],            Topic,           "ns.intake.eu", "Write DescribeConfigs"),
            (&[Api],            Group,           "*",            "Describe"),
            (&[Api],            Group,           "ns",           ""),
            (&[Api, Worker],    Group,           "ns-workers",   "Read"),
            (&[Api, Lanes],     Group,           "ns",           "Read"),
            (&[Api, Cli],       Group,           "ns-dead",      ""),
            (&[Lanes, Worker],  Group,           "*",            ""),
            (&[Api],            Topic,           "ns.tasks",     "Describe DescribeConfigs"),
            (&[Producer],       Topic,           "ns.intake",    "Write"),
            (&[Producer],       Topic,           "ns.meta",      ""),
            (&[Cli],            Topic,           "ns.dead",      "Read DescribeConfigs"),
            (&[Cli],            Topic,           "orders",       "Describe"),
            (&[Cli],            TransactionalId, "ns/",          ""),
            (&[Admin],          Topic,           "ns.",          "prefixed: Create"),
        ];
        for (roles, of, name, want) in cases {
            let acls = acls(&request(), roles, Some(&allowed));
            assert_eq!(on(&acls, *of, name), *want, "{roles:?}: {of} {name}");
            assert!(acls.notes.is_empty() && acls.grants.iter().all(|of| !of.rights.is_empty()));
        }
    }

    #[test]
    fn the_commands_can_be_copied_and_what_they_cannot_say_is_said() {
        let allowed = ["orders".to_owned(), "a|b".to_owned()];
        let found = acls(&request(), &[AclRole::Lanes], Some(&allowed));
        let lines = found.commands("b:9092", "User:w c");
        let start = "kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal 'User:w c' ";
        for words in [
            "--resource-pattern-type prefixed --topic ns.delay. --operation Read --operation Write",
            "--topic ns.results --operation Read --operation Write --operation Delete --operation DescribeConfigs",
            "--group ns --operation Read",
            "--resource-pattern-type prefixed --transactional-id ns/ --operation Write",
        ] {
            let line = format!("{start}{words}");
            assert!(lines.iter().any(|of| of.starts_with(&line)), "{line} is not in {lines:#?}");
        }
        let note = "# allow \"a|b\" is neither one name nor a prefix; grant each of its topics Write, DescribeConfigs";
        assert_eq!(lines.last().map(String::as_str), Some(note));
        assert_eq!(acls(&request(), &[AclRole::Lanes], None).notes.len(), 1);
        assert!(acls(&request(), &[AclRole::Worker], None).notes.is_empty());
    }

    #[test]
    fn an_allowed_pattern_becomes_an_acl_where_kafka_has_one_for_it() {
        type Shape = Option<(&'static str, bool)>;
        #[rustfmt::skip]
        let cases: [(&str, &str, Shape); 8] = [
            ("one name",                    "orders",           Some(("orders", false))),
            ("one name with a dot",         r"orders\.eu",      Some(("orders.eu", false))),
            ("a prefix",                    r"orders\..*",      Some(("orders.", true))),
            ("a bare dot is any character", "orders.eu",        None),
            ("an escaped dot, then a star", r"orders\.*",       None),
            ("a choice",                    "a|b",              None),
            ("everything",                  ".*",               None),
            ("a class",                     r"a\d",             None),
        ];
        for (why, pattern, want) in cases {
            let want = want.map(|(name, is_prefix)| (name.to_owned(), is_prefix));
            assert_eq!(shape(pattern), want, "{why}: {pattern}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell_where_that_is_needed() {
        assert_eq!(quoted("User:waterclock"), "User:waterclock");
        assert_eq!(quoted("User:CN=a b"), "'User:CN=a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
