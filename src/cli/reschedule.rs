//! `waterclock reschedule`: gives a pending timer another time; key, value and headers stay.
//!
//! Only the owner of its lane can do that, since it has the record: nothing is written in its place.

use std::time::Duration;

use crate::client::http::{Method, Url};
use clap::Args;
use serde_json::{Value, json};

use super::cancel::{asked, show};
use super::client::{Kind, ServerArg, typed, wait};
use super::name::Key;
use super::send::refused;
use super::{Exit, Failure, Global, Outcome};
use crate::config::Overrides;
use crate::engine::Record;
use crate::engine::header::{self, When};

/// Arguments of `reschedule`. Times are text for the contract's own parser.
#[derive(Args)]
#[command(group(clap::ArgGroup::new("when").required(true).args(["after", "until"])))]
pub(super) struct Reschedule {
    /// The name that the timer was given
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    key: Key,
    /// Due this long from now: 90s, 1h30m, 7d, or milliseconds
    #[arg(long = "in", value_name = "DURATION", allow_hyphen_values = true)]
    after: Option<String>,
    /// Due at: RFC 3339 with a zone, or epoch milliseconds
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,
    /// Only this version, as `status` and `list --json` show it: a timer that was created again is left alone
    #[arg(long, value_name = "VERSION")]
    only: Option<String>,
    /// How long to wait for an instance that is starting, and then for what becomes of it, at most 1m each; its record has to
    /// be found, which may take seconds
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = wait)]
    wait: Duration,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} cannot stand in an address; want an id without the segments . and ..")]
struct Unaddressed(String);

impl Reschedule {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let body = self.body()?;
        let path = path(&self.id)?;
        let mut query = vec![("wait", asked(self.wait))];
        query.extend(self.key.query());
        query.extend(self.only.clone().map(|only| ("version", only)));
        let client = self.server.open_within(self.wait, global, &config)?;
        let kind = Kind::Reschedule(self.wait);
        let told = client.ask(kind, &Method::PATCH, &path, &query, Some(&body))?;
        show(&typed(&told)?, &self.server, global.json())
    }

    /// The time that is asked for. What the contract would refuse is refused here, before anybody is asked.
    fn body(&self) -> Result<Value, Failure> {
        let key = self.key.bytes()?;
        let headers = [
            (header::DELAY, self.after.as_deref()),
            (header::UNTIL, self.until.as_deref()),
            (header::ID, Some(&*self.id)),
        ];
        let headers = headers.iter().filter(|(_, value)| value.is_some());
        let headers = headers.map(|(name, value)| (name.as_bytes(), value.map(str::as_bytes)));
        let record = Record::new(key.as_deref(), None, headers);
        let directive = header::read(record.headers()).map_err(refused)?;
        Ok(match directive.when {
            Some(When::At(at)) => json!({ "due": at.0 }),
            Some(When::After(delay)) => json!({ "delay": delay.0 }),
            // One of the two is required.
            None => Value::Null,
        })
    }
}

/// Where the timer stands in the API.
fn path(id: &str) -> Result<String, Failure> {
    let unaddressed = || Failure::new(Exit::Usage, Unaddressed(id.to_owned()));
    let mut url = Url::parse("http://instance/v1/timers/").map_err(|_| unaddressed())?;
    url.path_segments_mut().map_err(|()| unaddressed())?.pop_if_empty().push(id);
    let path = url.path().trim_start_matches('/').to_owned();
    if path == "v1/timers" || path == "v1/timers/" { Err(unaddressed()) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_segment_of_a_path() {
        #[rustfmt::skip]
        let cases = [
            ("payment",  Some("v1/timers/payment")),
            ("pay/17",   Some("v1/timers/pay%2F17")),
            ("a b?c#d%", Some("v1/timers/a%20b%3Fc%23d%25")),
            ("ä",        Some("v1/timers/%C3%A4")),
            ("..",       None),
            (".",        None),
        ];
        for (id, want) in cases {
            assert_eq!(path(id).ok().as_deref(), want, "{id}");
        }
    }
}
