//! Which topics may be delivered to.
//!
//! # Invariants
//! 1. A topic of waterclock itself, of this or of any other namespace, or one that begins with `__`, is never permitted,
//!    whatever the patterns. Own topics are known by their names. Those of another namespace are known by what stands beside
//!    them, so that a user's own `orders.dead` can be a target ([`namespaces_of`]).
//! 2. A pattern matches the whole name or not at all.
//! 3. Narrowing never permits more.

use regex::{Regex, RegexSet};

use super::header::{Code, duration};

/// Own topics without a further part in their name: `<ns>.` and one of these.
const OWN: [&str; 7] = ["intake", "timers", "meta", "schedules", "tasks", "results", "dead"];
/// Own topics with a further part: `<ns>.` and one of these.
const OWN_FAMILIES: [&str; 2] = ["intake.", "delay."];

/// Where all of these are, below one name, there is a namespace of that name.
pub const SIGNS: [&str; 3] = ["intake", "timers", "meta"];

/// The namespaces that a topic of this name would belong to, if they exist: `<ns>.dead`, `<ns>.intake.<name>` and so on.
pub fn namespaces_of(topic: &str) -> impl Iterator<Item = &str> {
    let (above, last) = topic.rsplit_once('.').unwrap_or_default();
    let (upper, family) = above.rsplit_once('.').unwrap_or_default();
    let is_of_family = match family {
        "intake" => !last.is_empty(),
        "delay" => duration(last).is_ok(),
        _ => false,
    };
    let found = [OWN.contains(&last).then_some(above), is_of_family.then_some(upper)];
    found.into_iter().flatten().filter(|namespace| !namespace.is_empty())
}

/// Whether a topic belongs to a namespace that exists; `has` says which topics there are.
pub fn is_owned(topic: &str, has: impl Fn(&str) -> bool) -> bool {
    namespaces_of(topic)
        .any(|namespace| SIGNS.iter().all(|sign| has(&format!("{namespace}.{sign}"))))
}

/// What the configuration permits.
#[derive(Clone, Debug)]
pub struct Allow {
    /// The namespace and a dot.
    prefix: String,
    /// Each of them must match; none: everything is permitted but what is waterclock's or Kafka's.
    sets: Vec<RegexSet>,
}

/// A pattern that is not a regular expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a regular expression: {pattern:?} ({why})")]
pub struct BadPattern {
    /// The pattern.
    pub pattern: String,
    /// What is wrong with it, in few words.
    pub why: String,
}

impl BadPattern {
    fn new(pattern: String, error: &regex::Error) -> Self {
        let why = match error {
            regex::Error::CompiledTooBig(_) => "too large".to_owned(),
            // Above its last line the library shows the pattern.
            error => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default();
                last.strip_prefix("error: ").unwrap_or(last).to_owned()
            }
        };
        Self { pattern, why }
    }
}

impl Allow {
    /// Permits what one of the patterns matches as a whole; with `None`, everything but own topics and `__*`.
    ///
    /// # Errors
    /// A pattern is no regular expression; refuse the configuration that it came from.
    pub fn new(namespace: &str, patterns: Option<&[String]>) -> Result<Self, BadPattern> {
        let allow = Self::any(namespace);
        match patterns {
            Some(patterns) => allow.narrow(patterns),
            None => Ok(allow),
        }
    }

    /// Permits everything but own topics and `__*`: what the name of a target alone decides.
    #[must_use]
    pub fn any(namespace: &str) -> Self {
        Self { prefix: format!("{namespace}."), sets: Vec::new() }
    }

    /// Permits of what it permitted only what one of these patterns matches, too.
    ///
    /// # Errors
    /// As [`Allow::new`].
    pub fn narrow(mut self, patterns: &[String]) -> Result<Self, BadPattern> {
        let mut anchored = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            let bad = |error| BadPattern::new(pattern.clone(), &error);
            // By itself first: `a)|(b` becomes an expression only by what is put around it.
            Regex::new(pattern).map_err(bad)?;
            let whole = format!(r"\A(?:{pattern})\z");
            Regex::new(&whole).map_err(bad)?;
            anchored.push(whole);
        }
        // All of them together can be too large for the library's limit, which is as bad as one that is.
        let bad = |error| BadPattern::new(patterns.join(", "), &error);
        let set = RegexSet::new(&anchored).map_err(bad)?;
        self.sets.push(set);
        Ok(self)
    }

    /// What makes up the same list elsewhere: sets of expressions, each of which must match. See [`Allow::of_sets`].
    #[must_use]
    pub fn sets(&self) -> Vec<Vec<String>> {
        self.sets.iter().map(|set| set.patterns().to_vec()).collect()
    }

    /// The list that another process has published with [`Allow::sets`].
    ///
    /// # Errors
    /// One of the texts is no valid expression: the other process runs another version.
    pub fn of_sets(namespace: &str, sets: &[Vec<String>]) -> Result<Self, BadPattern> {
        let set = |set: &Vec<String>| {
            RegexSet::new(set).map_err(|error| BadPattern::new(set.join(", "), &error))
        };
        let sets = sets.iter().map(set).collect::<Result<_, _>>()?;
        Ok(Self { prefix: format!("{namespace}."), sets })
    }

    /// Whether there is a list at all. Without one a person should be warned.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.sets.is_empty()
    }

    /// Whether a record may be delivered to this topic.
    ///
    /// # Errors
    /// `target_forbidden` for own topics and `__*`, `target_denied` for what no pattern matches: the record is to
    /// be dead-lettered.
    pub fn permits(&self, target: &str) -> Result<(), Code> {
        if target.starts_with("__") || self.is_own(target) {
            return Err(Code::TargetForbidden);
        }
        if self.sets.iter().all(|set| set.is_match(target)) {
            Ok(())
        } else {
            Err(Code::TargetDenied)
        }
    }

    fn is_own(&self, target: &str) -> bool {
        target.strip_prefix(&self.prefix).is_some_and(|rest| {
            OWN.contains(&rest) || OWN_FAMILIES.iter().any(|family| rest.starts_with(family))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(list: &[&str]) -> Vec<String> {
        list.iter().map(|p| (*p).to_owned()).collect()
    }

    #[test]
    fn a_target_is_permitted_only_if_a_pattern_matches_all_of_it() {
        let list = patterns(&["orders", r"billing\..*", "a|b", "wc.*"]);
        let allow = Allow::new("wc", Some(&list)).unwrap();
        let (yes, denied, forbidden) =
            (Ok(()), Err(Code::TargetDenied), Err(Code::TargetForbidden));
        #[rustfmt::skip]
        let cases = [
            // why                                        target              want
            ("named",                                     "orders",           yes),
            ("longer than the pattern",                   "orders2",          denied),
            ("the pattern stands in the middle",          "my-orders-x",      denied),
            ("a family",                                  "billing.a",        yes),
            ("the dot is escaped",                        "billingXa",        denied),
            ("an alternative is anchored on both sides",  "b",                yes),
            ("an alternative is not a prefix",            "ab",               denied),
            ("Kafka's own",                               "__consumer_offsets", forbidden),
            ("two underscores are enough",                "__mine",           forbidden),
            ("one underscore is anybody's",               "_mine",            denied),
            ("a pattern does not open our own topics",    "wc.intake",        forbidden),
            ("a further intake",                          "wc.intake.orders", forbidden),
            ("a tier",                                    "wc.delay.1m",      forbidden),
            ("a hold that there is not yet",              "wc.delay.17s",     forbidden),
            ("timers",                                    "wc.timers",        forbidden),
            ("meta",                                      "wc.meta",          forbidden),
            ("schedules",                                 "wc.schedules",     forbidden),
            ("tasks",                                     "wc.tasks",         forbidden),
            ("results",                                   "wc.results",       forbidden),
            ("dead letters",                              "wc.dead",          forbidden),
            ("below our prefix, but not ours",            "wc.orders",        yes),
            ("another's is known by what is beside it",   "wc2.intake",       yes),
        ];
        for (why, target, want) in cases {
            assert_eq!(allow.permits(target), want, "{why}: {target}");
        }
    }

    #[test]
    fn without_a_list_everything_is_permitted_but_own_topics_and_those_of_kafka() {
        let allow = Allow::new("waterclock", None).unwrap();
        assert!(allow.is_open() && Allow::any("waterclock").is_open());
        assert_eq!(allow.permits("orders"), Ok(()));
        assert_eq!(allow.permits("waterclock.dead"), Err(Code::TargetForbidden));
        assert_eq!(allow.permits("__transaction_state"), Err(Code::TargetForbidden));
        for target in ["orders", "waterclock.dead", "__transaction_state"] {
            assert_eq!(Allow::any("waterclock").permits(target), allow.permits(target), "{target}");
        }
    }

    #[test]
    fn a_topic_could_be_of_the_namespace_that_its_name_says() {
        #[rustfmt::skip]
        let cases: [(&str, &[&str]); 14] = [
            ("orders.dead",           &["orders"]),
            ("orders.meta",           &["orders"]),
            ("a.b.intake",            &["a.b"]),
            ("a.b.intake.eu",         &["a.b"]),
            ("a.intake.intake",       &["a.intake", "a"]),
            ("a.intake.dead",         &["a.intake", "a"]),
            ("a.delay.1m30s",         &["a"]),
            ("a.delay.soon",          &[]),
            ("a.delays.1m",           &[]),
            ("a.results",             &["a"]),
            ("orders",                &[]),
            ("dead",                  &[]),
            (".dead",                 &[]),
            ("orders.expire",         &[]),
        ];
        for (topic, want) in cases {
            assert_eq!(namespaces_of(topic).collect::<Vec<_>>(), want, "{topic}");
        }
    }

    #[test]
    fn an_empty_list_permits_nothing() {
        let allow = Allow::new("wc", Some(&[])).unwrap();
        assert_eq!(allow.permits("orders"), Err(Code::TargetDenied));
    }

    #[test]
    fn narrowing_needs_both_lists_to_match() {
        let allow = Allow::new("wc", Some(&patterns(&["a.*"]))).unwrap();
        let allow = allow.narrow(&patterns(&[".*z"])).unwrap();
        for (target, want) in
            [("az", Ok(())), ("ab", Err(Code::TargetDenied)), ("bz", Err(Code::TargetDenied))]
        {
            assert_eq!(allow.permits(target), want, "{target}");
        }
    }

    #[test]
    fn what_is_no_expression_by_itself_is_refused() {
        for (pattern, why) in [
            ("(", "unclosed group"),
            ("a)|(b", "unopened group"),
            ("[", "unclosed character class"),
            ("*", "repetition operator missing expression"),
            ("(?x) a # swallows what follows", "unclosed group"),
        ] {
            let (pattern, why) = (pattern.to_owned(), why.to_owned());
            let refused = Allow::new("wc", Some(std::slice::from_ref(&pattern)));
            assert_eq!(refused.err(), Some(BadPattern { pattern, why }));
        }
        let refused = Allow::new("wc", Some(&patterns(&["a{1000}{1000}{1000}"])));
        assert_eq!(refused.err().map(|bad| bad.why).as_deref(), Some("too large"));
    }
}
