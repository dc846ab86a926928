//! Lists of hosts that calls may go to: that of an installation, and those of projects.
//!
//! # Invariants
//! 1. A host is compared as the parser of URLs has it: lower case, in Punycode, an address in its one form.
//! 2. An entry that has no meaning makes no list.
//! 3. A list opens no network: whether an address is public is asked elsewhere.

use url::{Host, Url};

/// Most entries of a list.
pub const HOSTS_MAX: usize = 1_000;
/// What an entry is.
pub const HOST_WANTED: &str =
    "a host name, an IP address, or *. and a name for all below it; no port, no scheme";

/// The only hosts that may be called.
#[derive(Clone, Debug)]
pub struct Hosts {
    texts: Vec<String>,
    patterns: Vec<Pattern>,
}

/// A host that may be called, or all below one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Is(Host),
    /// Ends with this text, which begins with a dot.
    Below(String),
}

/// An entry that is none; want [`HOST_WANTED`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("got {got:?}, want {HOST_WANTED}")]
pub struct BadHost {
    /// The entry.
    pub got: String,
}

impl Hosts {
    /// Hosts that one of the entries names: a name, an IP address, or `*.` and a name for all names below it.
    ///
    /// # Errors
    /// The first entry that is none of these.
    pub fn new(texts: Vec<String>) -> Result<Self, BadHost> {
        let patterns = texts.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?;
        Ok(Self { texts, patterns })
    }

    /// The entries, as they were written.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Whether one of the entries names the host of this URL. A URL without a host is not permitted.
    #[must_use]
    pub fn permit(&self, url: &Url) -> bool {
        url.host().is_some_and(|host| self.patterns.iter().any(|pattern| pattern.matches(&host)))
    }
}

impl PartialEq for Hosts {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for Hosts {}

impl Pattern {
    fn matches(&self, host: &Host<&str>) -> bool {
        match (self, host) {
            (Self::Is(Host::Domain(wanted)), Host::Domain(name)) => {
                name.strip_suffix('.').unwrap_or(name) == wanted
            }
            (Self::Below(suffix), Host::Domain(name)) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                name.strip_suffix(suffix.as_str()).is_some_and(|rest| !rest.is_empty())
            }
            (Self::Is(Host::Ipv4(wanted)), Host::Ipv4(ip)) => wanted == ip,
            (Self::Is(Host::Ipv6(wanted)), Host::Ipv6(ip)) => wanted == ip,
            _ => false,
        }
    }
}

fn pattern(text: &str) -> Result<Pattern, BadHost> {
    let wrong = || BadHost { got: text.to_owned() };
    let named = text.strip_prefix("*.");
    let bare = named.unwrap_or(text);
    // Addresses of IPv6 stand in brackets in a URL only.
    let host = match bare.contains(':') && !bare.starts_with('[') {
        true => Host::parse(&format!("[{bare}]")),
        false => Host::parse(bare),
    };
    match (named, host.map_err(|_| wrong())?) {
        (_, Host::Domain(name)) if name.is_empty() || name.contains('*') || name.ends_with('.') => {
            Err(wrong())
        }
        (Some(_), Host::Domain(name)) => Ok(Pattern::Below(format!(".{name}"))),
        (Some(_), _) => Err(wrong()),
        (None, host) => Ok(Pattern::Is(host)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(texts: &[&str]) -> Result<Hosts, BadHost> {
        Hosts::new(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn no_host_is_permitted_that_no_entry_names() {
        let hosts = hosts(&["a.example", "*.B.example", "8.8.8.8", "2606:4700::1"]).unwrap();
        #[rustfmt::skip]
        let cases = [
            ("a.example", true),    ("A.EXAMPLE", true),       ("a.example.", true),      ("x.b.example", true),
            ("y.x.b.example", true), ("8.8.8.8", true),        ("134744072", true),       ("[2606:4700::1]", true),
            ("[2606:4700:0::1]", true),
            ("b.example", false),   ("xa.example", false),     ("xb.example", false),     ("a.example.evil", false),
            ("8.8.4.4", false),     ("[2606:4700::2]", false), ("example", false),        ("x.a.example", false),
        ];
        for (host, want) in cases {
            let url = Url::parse(&format!("http://{host}/")).unwrap();
            assert_eq!(hosts.permit(&url), want, "{host}");
        }
        assert!(!hosts.permit(&Url::parse("data:a.example").unwrap()));
        let none = Hosts::new(Vec::new()).unwrap();
        assert!(
            !none.permit(&Url::parse("http://a.example").unwrap()),
            "an empty list permits none"
        );
    }

    #[test]
    fn an_entry_that_is_none_makes_no_list() {
        for host in [
            "",
            "*",
            "*.",
            "*.*.a",
            "a.*",
            "a:80",
            "http://a",
            "a/b",
            "*.10.0.0.1",
            "*.::1",
            "[::1",
            "::1]",
            "1:2:3",
            "a b",
            "*a.example",
            "a.",
        ] {
            assert_eq!(hosts(&["ok", host]), Err(BadHost { got: host.to_owned() }), "{host}");
        }
    }
}
