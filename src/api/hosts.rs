//! The names by which this instance may be asked, so that a web page cannot ask through somebody's browser.
//!
//! A browser lets a page ask the server that the page came from, and goes by the name. The owner of a name can have it
//! point to this machine after the page was loaded. The request then has that name in `Host`, and nothing else tells it
//! from one of ours. An IP address cannot be made to point elsewhere, and nor can `localhost`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::{HeaderMap, Version, header};

/// Names beside IP addresses and `localhost`.
#[derive(Clone, Debug)]
pub struct Hosts(BTreeSet<String>);

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// It names no host, or more than one.
    NoHost,
    /// It names this host.
    Host(String),
    /// A page of another place asks.
    Page(String),
}

impl Hosts {
    /// With these names, each perhaps with a port, which does not matter.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all: BTreeSet<String> = names.into_iter().filter_map(host).collect();
        all.insert("localhost".to_owned());
        Self(all)
    }

    /// Checks where a request wants to go, and where it comes from.
    pub(super) fn check(&self, request: &Request) -> Result<(), Foreign> {
        let headers = request.headers();
        let mut asked: Vec<String> = Vec::new();
        for value in headers.get_all(header::HOST) {
            asked.push(String::from_utf8_lossy(value.as_bytes()).into_owned());
        }
        if asked.len() > 1 {
            return Err(Foreign::NoHost);
        }
        // In `GET http://name/path` the name stands twice.
        asked.extend(request.uri().authority().map(ToString::to_string));
        // No browser speaks 1.0, which needs no Host.
        if asked.is_empty() && request.version() != Version::HTTP_10 {
            return Err(Foreign::NoHost);
        }
        if let Some(other) = asked.iter().find(|asked| !self.takes(asked)) {
            return Err(Foreign::Host(other.clone()));
        }
        page(headers, asked.first().map(String::as_str))
    }

    fn takes(&self, authority: &str) -> bool {
        match host(authority) {
            Some(host) => is_address(&host) || self.0.contains(&host),
            None => false,
        }
    }
}

/// Refuses what a browser says that another page asks for.
fn page(headers: &HeaderMap, asked: Option<&str>) -> Result<(), Foreign> {
    let text =
        |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    for value in headers.get_all(header::ORIGIN) {
        let origin = text(value);
        let place = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if place.is_none() || !place.zip(asked).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b)) {
            return Err(Foreign::Page(origin));
        }
    }
    let sites = headers.get_all("sec-fetch-site");
    match sites.iter().find(|site| *site != "same-origin" && *site != "none") {
        Some(site) => Err(Foreign::Page(text(site))),
        None => Ok(()),
    }
}

/// `Name.:80` as `name`, `[::1]:80` as `[::1]`; `None` for what is no host.
fn host(authority: &str) -> Option<String> {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, rest) = rest.split_once(']')?;
            let port = if rest.is_empty() { "" } else { rest.strip_prefix(':')? };
            (format!("[{inside}]"), port)
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            (host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(), port)
        }
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_host = host.starts_with('[') || (!host.is_empty() && host.chars().all(is_name));
    (is_host && is_port(port)).then_some(host)
}

fn is_address(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        // The part behind a percent sign names the interface.
        Some(inside) => {
            inside.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
        }
        None => host.parse::<Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uri: &str, version: Version, headers: &[(&str, &str)]) -> Result<(), Foreign> {
        let mut request = Request::builder().uri(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(axum::body::Body::empty()).expect("a request");
        Hosts::new(["wc-1.example.org:8080", "Timers."]).check(&request)
    }

    #[test]
    fn only_addresses_and_names_of_ours_are_taken_as_host() {
        #[rustfmt::skip]
        let cases = [
            ("an IPv4 address",         "10.0.0.7",                 true),
            ("with a port",             "127.0.0.1:8080",           true),
            ("IPv6",                    "[::1]",                    true),
            ("IPv6 with a port",        "[fe80::1]:8080",           true),
            ("IPv6 of an interface",    "[fe80::1%25eth0]:8080",    true),
            ("localhost",               "localhost:8080",           true),
            ("in capitals",             "LocalHost",                true),
            ("advertised",              "wc-1.example.org:8080",    true),
            ("by another port",         "wc-1.example.org:80",      true),
            ("with the root's dot",     "wc-1.example.org.:8080",   true),
            ("configured",              "timers",                   true),
            ("another name",            "evil.example",             false),
            ("a name below ours",       "a.wc-1.example.org",       false),
            ("ours below another",      "localhost.evil.example",   false),
            ("an address in a name",    "127.0.0.1.evil.example",   false),
            ("a short address",         "127.1",                    false),
            ("IPv6 without brackets",   "::1",                      false),
            ("no IPv6",                 "[evil]",                   false),
            ("text behind a bracket",   "[::1]evil.example",        false),
            ("a port that is none",     "localhost:80x",            false),
            ("two ports",               "localhost:80:80",          false),
            ("a user before it",        "localhost@evil.example",   false),
            ("two dots",                "localhost..",              false),
            ("empty",                   "",                         false),
        ];
        for (why, host, want) in cases {
            let told = check("/v1/timers", Version::HTTP_11, &[("host", host)]);
            assert_eq!(told.is_ok(), want, "{why}: {told:?}");
        }
    }

    #[test]
    fn every_name_that_a_request_has_counts() {
        let (ours, theirs) = (("host", "localhost"), ("host", "evil.example"));
        let (one, zero) = (Version::HTTP_11, Version::HTTP_10);
        #[rustfmt::skip]
        let cases = [
            ("none",                        check("/v1", one, &[]),                                 false),
            ("none, in the first form",     check("/v1", zero, &[]),                                true),
            ("theirs, in the first form",   check("/v1", zero, &[theirs]),                          false),
            ("two",                         check("/v1", one, &[ours, ours]),                       false),
            ("ours in the target",          check("http://localhost:80/v1", one, &[ours]),          true),
            ("ours in the target alone",    check("http://localhost:80/v1", one, &[]),              true),
            ("theirs in the target",        check("http://evil.example/v1", one, &[ours]),          false),
            ("theirs behind the target",    check("http://localhost/v1", one, &[theirs]),           false),
        ];
        for (why, told, want) in cases {
            assert_eq!(told.is_ok(), want, "{why}: {told:?}");
        }
    }

    #[test]
    fn a_page_is_served_only_to_itself() {
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], bool);
        #[rustfmt::skip]
        let cases: [Case<'_>; 12] = [
            ("the same",                &[("origin", "http://localhost:8080")],             true),
            ("the same, in capitals",   &[("origin", "http://LOCALHOST:8080")],             true),
            ("behind a TLS proxy",      &[("origin", "https://localhost:8080")],            true),
            ("another port",            &[("origin", "http://localhost:3000")],             false),
            ("another name of ours",    &[("origin", "http://127.0.0.1:8080")],             false),
            ("another place",           &[("origin", "https://evil.example")],              false),
            ("nowhere",                 &[("origin", "null")],                              false),
            ("empty",                   &[("origin", "")],                                  false),
            ("two",                     &[("origin", "http://localhost:8080"), ("origin", "https://evil.example")], false),
            ("typed by a person",       &[("sec-fetch-site", "none")],                      true),
            ("a page of the same site", &[("sec-fetch-site", "same-site")],                 false),
            ("a page of another",       &[("sec-fetch-site", "cross-site")],                false),
        ];
        for (why, headers, want) in cases {
            let headers = [&[("host", "localhost:8080")], headers].concat();
            let told = check("/v1/timers", Version::HTTP_11, &headers);
            assert_eq!(told.is_ok(), want, "{why}: {told:?}");
        }
    }
}
