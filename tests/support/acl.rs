//! Rights on topics, told to the broker in its own protocol: the client library has no call for it.

use serde_json::Value;

use super::{variable, wire};

/// Of what rights are told, as Kafka numbers it, and its name or what its name begins with.
#[derive(Clone, Copy, Debug)]
pub enum Resource<'a> {
    Topic(&'a str),
    Group(&'a str),
    TransactionalIds(&'a str),
}

/// What may be done to it, as Kafka numbers it.
#[derive(Clone, Copy, Debug)]
pub enum Right {
    All = 2,
    Read = 3,
    Write = 4,
    Delete = 6,
    Describe = 8,
    DescribeConfigs = 10,
    AlterConfigs = 11,
}

const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
const TOPIC: u8 = 2;
const GROUP: u8 = 3;
const TRANSACTIONAL_ID: u8 = 5;
const LITERAL: u8 = 3;
const PREFIXED: u8 = 4;
const DENY: u8 = 2;
const ALLOW: u8 = 3;
const SECURITY_DISABLED: i16 = 54;

/// Gives everybody these rights on a topic, and so no others: a topic of which nothing is said is free to all.
#[track_caller]
pub fn allow_only(topic: &str, rights: &[Right]) {
    allow(Resource::Topic(topic), rights);
}

/// The same for anything; what was given before stays.
#[track_caller]
pub fn allow(resource: Resource<'_>, rights: &[Right]) {
    let (kind, name, pattern) = match resource {
        Resource::Topic(name) => (TOPIC, name, LITERAL),
        Resource::Group(name) => (GROUP, name, LITERAL),
        Resource::TransactionalIds(prefix) => (TRANSACTIONAL_ID, prefix, PREFIXED),
    };
    let each = rights.iter().map(|right| (kind, name, pattern, *right as u8));
    create(&variable("KAFKA_BOOTSTRAP"), "User:*", ALLOW, &each.collect::<Vec<_>>());
}

/// What `waterclock acl print --json` says, for this principal, on another Kafka.
#[track_caller]
pub fn grant(brokers: &str, principal: &str, printed: &Value) {
    change(brokers, principal, ALLOW, printed["grants"].as_array().expect("grants"));
}

/// Takes one of these grants back: one with one operation.
#[track_caller]
pub fn revoke(brokers: &str, principal: &str, grant: &Value) {
    let rules = rules(std::slice::from_ref(grant));
    delete(brokers, principal, ALLOW, &borrowed(&rules));
}

/// Denies a principal a right that it has: a grant with one operation.
#[track_caller]
pub fn deny(brokers: &str, principal: &str, grant: &Value) {
    change(brokers, principal, DENY, std::slice::from_ref(grant));
}

/// Takes back that a principal was [denied](deny) a right.
#[track_caller]
pub fn deny_no_more(brokers: &str, principal: &str, grant: &Value) {
    let rules = rules(std::slice::from_ref(grant));
    delete(brokers, principal, DENY, &borrowed(&rules));
}

#[track_caller]
fn change(brokers: &str, principal: &str, permission: u8, grants: &[Value]) {
    let rules = rules(grants);
    create(brokers, principal, permission, &borrowed(&rules));
}

fn borrowed(rules: &[(u8, String, u8, u8)]) -> Vec<Rule<'_>> {
    rules.iter().map(|(a, name, b, c)| (*a, name.as_str(), *b, *c)).collect()
}

/// One for each operation of each grant.
#[track_caller]
fn rules(grants: &[Value]) -> Vec<(u8, String, u8, u8)> {
    let text = |of: &Value| of.as_str().expect("text").to_owned();
    let mut each = Vec::new();
    for grant in grants {
        let kind = match text(&grant["resource"]).as_str() {
            "topic" => TOPIC,
            "group" => GROUP,
            "transactional-id" => TRANSACTIONAL_ID,
            other => panic!("{other}"),
        };
        let pattern = if grant["pattern"] == "prefixed" { PREFIXED } else { LITERAL };
        for operation in grant["operations"].as_array().expect("operations") {
            let operation = match text(operation).as_str() {
                "Create" => 5,
                "Read" => Right::Read as u8,
                "Write" => Right::Write as u8,
                "Delete" => Right::Delete as u8,
                "Describe" => Right::Describe as u8,
                "DescribeConfigs" => Right::DescribeConfigs as u8,
                other => panic!("{other}"),
            };
            each.push((kind, text(&grant["name"]), pattern, operation));
        }
    }
    assert!(!each.is_empty());
    each
}

/// Kind, name, pattern and operation, as Kafka numbers them.
type Rule<'a> = (u8, &'a str, u8, u8);

#[track_caller]
fn create(addresses: &str, principal: &str, permission: u8, rules: &[Rule<'_>]) {
    let mut rest = ask(addresses, CREATE_ACLS, principal, permission, rules);
    // A code and a message for each.
    for rule in rules {
        let code = short(&mut rest);
        assert_ne!(
            code, SECURITY_DISABLED,
            "the cluster has no authorizer; scripts/kafka start has"
        );
        assert_eq!(code, 0, "{rule:?} for {principal}");
        skip_text(&mut rest);
    }
}

#[track_caller]
fn delete(addresses: &str, principal: &str, permission: u8, rules: &[Rule<'_>]) {
    let mut rest = ask(addresses, DELETE_ACLS, principal, permission, rules);
    // A code, a message and what was deleted, which is not read on: so there is one.
    assert_eq!(rules.len(), 1);
    assert_eq!(short(&mut rest), 0, "{rules:?} for {principal}");
    skip_text(&mut rest);
    let count = i32::from_be_bytes(rest[..4].try_into().expect("a count"));
    assert_eq!(count, 1, "{rules:?} for {principal} was there");
}

/// Sends rules, or filters of rules, which look the same; gives the answer behind its count.
#[track_caller]
fn ask(addresses: &str, what: i16, principal: &str, permission: u8, rules: &[Rule<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(what.to_be_bytes());
    body.extend(1_i16.to_be_bytes());
    body.extend(7_i32.to_be_bytes());
    put(&mut body, "test");
    body.extend((rules.len() as i32).to_be_bytes());
    for (kind, name, pattern, operation) in rules {
        body.push(*kind);
        put(&mut body, name);
        body.push(*pattern);
        put(&mut body, principal);
        put(&mut body, "*");
        body.extend([*operation, permission]);
    }
    // Behind correlation, throttle and count.
    wire::ask(addresses, &body).split_off(12)
}

fn short(rest: &mut Vec<u8>) -> i16 {
    let number = rest.drain(..2).collect::<Vec<_>>();
    i16::from_be_bytes([number[0], number[1]])
}

/// One that may be null.
fn skip_text(rest: &mut Vec<u8>) {
    let length = short(rest).max(0) as usize;
    rest.drain(..length);
}

fn put(body: &mut Vec<u8>, text: &str) {
    body.extend((text.len() as i16).to_be_bytes());
    body.extend(text.as_bytes());
}
