//! `waterclock top`: what all instances of a namespace do, refreshed again and again.
//!
//! It asks each member for its `/metrics`, and one of them for the forecast. The screen is a function of two such
//! readings. Rates and lateness cover the time between the two; for the first reading, the time since each instance
//! started.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use crate::client::http::Method;
use clap::Args;
use comfy_table::Table;
use serde_json::{Value, json};

use super::client::{Client, Kind, members};
use super::looks::{CHECK_EVERY, Looks, system};
use super::{Exit, Failure, Global, Outcome, output, table};
use crate::config::{Config, Overrides};
use crate::engine::{Millis, UnixMillis};
use crate::kafka::{Connection, Member, wall_clock};
use crate::terminal::{Key, Screen, Stop};

/// Arguments of `top`.
#[derive(Args)]
pub(super) struct Top {
    /// Seconds between two looks
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
    /// One look, and no more; always so where standard output is no terminal
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let connection = global.connection(&config);
        if self.once || global.json() || !io::stdout().is_terminal() {
            let look = Look::take(&config, &connection)?;
            let shown = if global.json() { look.json(&config) } else { look.text(None, &config) };
            output::line(&shown)?;
            return Ok(if look.is_well() { Exit::Ok } else { Exit::Negative });
        }
        let of = config.clone();
        let looks = Looks::start("wc-top", move || Look::take(&of, &connection))?;
        let ended = self.show(&looks, &config);
        looks.end();
        ended
    }

    /// Draws until a key or a signal ends it, or the terminal is gone: nobody looks then.
    fn show(&self, looks: &Looks<Look>, config: &Config) -> Outcome {
        let stop = Stop::listen(|| {}).map_err(system("listen for signals"))?;
        let mut screen = match Screen::open() {
            Err(_) if !io::stdout().is_terminal() => return Ok(Exit::Ok),
            opened => opened.map_err(system("take the terminal over"))?,
        };
        let every = Duration::from_secs(self.every);
        let (mut before, mut now) = (None, None::<Look>);
        let mut text = format!("{HINT}\nasking the instances of {}", config.namespace);
        let (mut is_new, mut is_asked) = (true, true);
        looks.ask();
        while !stop.asked() {
            if is_asked && let Some(look) = looks.next() {
                before = now.replace(look?);
                (is_new, is_asked) = (true, false);
            }
            if let Some(now) = now.as_ref().filter(|_| is_new) {
                text = format!("{HINT}\n{}", now.text(before.as_ref(), config));
            }
            if (is_new || screen.is_resized()) && screen.draw(&text).is_err() {
                break;
            }
            is_new = false;
            if screen.wait(CHECK_EVERY).map_err(system("read the keys"))? != Key::None {
                break;
            }
            if !is_asked && now.as_ref().is_some_and(|now| now.at.elapsed() >= every) {
                looks.ask();
                is_asked = true;
            }
        }
        Ok(Exit::Ok)
    }
}

/// The first line of the screen.
const HINT: &str = "q or Ctrl-C ends it";

/// What was seen at one time.
struct Look {
    at: Instant,
    wall: UnixMillis,
    members: Vec<MemberView>,
    /// Of the timers that have an id; none where nobody answers.
    forecast: Option<Value>,
}

/// One member, and its metrics; none where it does not answer.
struct MemberView {
    member: Member,
    metrics: Option<Metrics>,
}

/// The values of an exposition in Prometheus' text format, by name and labels as they stand there.
#[derive(Debug, Default)]
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn read(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let values = lines.filter_map(|line| line.rsplit_once(' '));
        Self(
            values
                .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
                .collect(),
        )
    }

    /// The values of one metric, by what stands between its braces.
    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let all = self.0.range(name.to_owned()..).take_while(move |(key, _)| key.starts_with(name));
        all.filter_map(move |(key, value)| {
            let rest = &key[name.len()..];
            let labels = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            (rest.is_empty() || labels.is_some()).then_some((labels.unwrap_or_default(), *value))
        })
    }

    fn sum(&self, name: &str) -> f64 {
        self.of(name).map(|(_, value)| value).sum()
    }

    fn max(&self, name: &str) -> f64 {
        self.of(name).map(|(_, value)| value).fold(0.0, f64::max)
    }
}

/// The value of a label among those that stand between the braces.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// How many deliveries were no later than each bound, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Lateness(BTreeMap<u64, f64>);

impl Lateness {
    fn add(&mut self, metrics: &Metrics) {
        for (labels, count) in metrics.of("waterclock_lateness_seconds_bucket") {
            let bound = label(labels, "le").and_then(|bound| bound.parse::<f64>().ok());
            // In microseconds, so that they can be told apart and are in order; without an end last of all.
            let bound = bound.map_or(u64::MAX, |seconds| (seconds * 1e6).round() as u64);
            *self.0.entry(bound).or_default() += count;
        }
    }

    /// What came since.
    fn since(&self, before: &Self) -> Self {
        let old = |bound| before.0.get(bound).copied().unwrap_or_default();
        // An instance that went took its counts along.
        Self(self.0.iter().map(|(bound, count)| (*bound, (count - old(bound)).max(0.0))).collect())
    }

    /// The bound that so many of a thousand keep.
    fn bound(&self, permille: f64) -> String {
        let all = self.0.last_key_value().map_or(0.0, |(_, count)| *count);
        if all == 0.0 {
            return "-".to_owned();
        }
        let bound = self.0.iter().find(|(_, count)| **count >= all * permille / 1_000.0);
        match bound.map_or(u64::MAX, |(bound, _)| *bound) {
            u64::MAX => "more than 1h".to_owned(),
            micros @ ..1_000 => format!("{} ms", micros as f64 / 1_000.0),
            micros => Millis(micros / 1_000).to_string(),
        }
    }
}

/// A bound in a sentence.
fn in_words(bound: String) -> String {
    if bound.starts_with(|first: char| first.is_ascii_digit()) {
        format!("up to {bound}")
    } else {
        bound
    }
}

impl Look {
    fn take(config: &Config, connection: &Connection) -> Result<Self, Failure> {
        let (at, wall) = (Instant::now(), wall_clock());
        let members = members(connection, config)?;
        let members: Vec<MemberView> = std::thread::scope(|scope| {
            let asked: Vec<_> = members
                .into_iter()
                .map(|member| {
                    scope.spawn(move || {
                        let client = Client::of_member(&member, config);
                        let told = client.ok().and_then(|client| client.read("metrics").ok());
                        let metrics = told.map(|(_, text)| Metrics::read(&text));
                        MemberView { member, metrics }
                    })
                })
                .collect();
            asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
        });
        let answers = members.iter().find(|seen| seen.metrics.is_some());
        let forecast = answers.and_then(|seen| {
            let client = Client::of_member(&seen.member, config).ok()?;
            client.ask(Kind::AllLanes, &Method::GET, "v1/forecast", &[], None).ok()
        });
        Ok(Self { at, wall, members, forecast })
    }

    fn metrics(&self) -> impl Iterator<Item = &Metrics> {
        self.members.iter().filter_map(|seen| seen.metrics.as_ref())
    }

    fn sum(&self, name: &str) -> f64 {
        self.metrics().map(|metrics| metrics.sum(name)).sum()
    }

    fn lateness(&self) -> Lateness {
        let mut all = Lateness::default();
        self.metrics().for_each(|metrics| all.add(metrics));
        all
    }

    /// What stands in each tier and intake, in the order in which it is read.
    fn tiers(&self) -> Vec<(String, u64)> {
        let mut tiers: BTreeMap<(Millis, String), u64> = BTreeMap::new();
        for metrics in self.metrics() {
            for (labels, count) in metrics.of("waterclock_pending") {
                let tier = label(labels, "tier").unwrap_or_default();
                let hold = crate::engine::header::duration(tier).unwrap_or_default();
                *tiers.entry((hold, tier.to_owned())).or_default() += count as u64;
            }
        }
        tiers.into_iter().map(|((_, tier), count)| (tier, count)).collect()
    }

    /// How much of the timers with an id is due within which time.
    fn due(&self) -> Option<[(&'static str, u64); 4]> {
        let targets = self.forecast.as_ref()?["targets"].as_array()?;
        let counts = |name: &str, most: usize| -> u64 {
            let of = |target: &Value| target[name].as_array().cloned().unwrap_or_default();
            let all = targets.iter().flat_map(|target| of(target).into_iter().take(most));
            all.filter_map(|count| count.as_u64()).sum()
        };
        let overdue = targets.iter().filter_map(|target| target["overdue"].as_u64()).sum();
        Some([
            ("overdue", overdue),
            ("in 1 minute", counts("minutes", 1)),
            ("in 1 hour", counts("minutes", 60)),
            ("in 1 day", counts("hours", 24)),
        ])
    }

    fn is_well(&self) -> bool {
        let is_ready = |seen: &MemberView| {
            seen.metrics.as_ref().is_some_and(|metrics| metrics.sum("waterclock_ready") == 1.0)
        };
        !self.members.is_empty() && self.members.iter().all(is_ready)
    }

    fn overdue(&self) -> f64 {
        self.metrics().map(|metrics| metrics.max("waterclock_overdue_seconds")).fold(0.0, f64::max)
    }

    /// What people see.
    fn text(&self, before: Option<&Self>, config: &Config) -> String {
        let mut text = format!(
            "waterclock top: namespace {}, {}\n",
            config.namespace,
            output::time(self.wall)
        );
        if self.members.is_empty() {
            text += "no instance of this namespace runs: how late records are, and what is pending, is not known\n";
            return text;
        }
        let lateness =
            before.map_or_else(|| self.lateness(), |old| self.lateness().since(&old.lateness()));
        let since = if before.is_some() { "since the last look" } else { "since the start" };
        // No line is wider than 80 columns: a terminal cuts what is.
        let (half, most) = (lateness.bound(500.0), lateness.bound(990.0));
        let _ = match half.as_str() {
            "-" => writeln!(text, "nothing delivered {since}"),
            _ => {
                let (half, most) = (in_words(half), in_words(most));
                writeln!(text, "late {since}: half of the records {half}, 99 % {most}")
            }
        };
        let _ = match self.overdue() {
            0.0 => writeln!(text, "no record is overdue\n"),
            overdue => writeln!(text, "the oldest overdue record waits for {overdue:.1} s\n"),
        };
        let mut table = headed([
            "instance",
            "address",
            "lanes",
            "health",
            "delivered",
            "dead",
            "timers",
            "memory",
        ]);
        for seen in &self.members {
            table.add_row(seen.row(before.and_then(|old| old.rate_from(self, seen))));
        }
        let _ = writeln!(text, "{}\n", table.trim_fmt());
        if let Some(due) = self.due() {
            let due = due.map(|(when, count)| format!("{when} {count}"));
            let _ = writeln!(text, "timers with an id: {}\n", due.join(", "));
        }
        // Last, since it is the longest: a small window cuts it.
        let mut tiers = headed(["stands in", "offsets not done, up to 15 s ago"]);
        tiers.add_rows(self.tiers().into_iter().map(|(tier, count)| [tier, count.to_string()]));
        let _ = write!(text, "{}", tiers.trim_fmt());
        text
    }

    /// Deliveries of a member since this look, and the seconds that lie between.
    fn rate_from(&self, now: &Self, seen: &MemberView) -> Option<f64> {
        let count =
            |seen: &MemberView| Some(seen.metrics.as_ref()?.sum("waterclock_delivered_total"));
        let old = self.members.iter().find(|old| {
            (&old.member.instance, &old.member.incarnation)
                == (&seen.member.instance, &seen.member.incarnation)
        })?;
        let seconds = now.at.duration_since(self.at).as_secs_f64().max(0.001);
        Some((count(seen)? - count(old)?) / seconds)
    }

    /// What programs see.
    fn json(&self, config: &Config) -> String {
        let lateness = self.lateness();
        let tiers = self.tiers();
        let tiers: Vec<Value> =
            tiers.iter().map(|(tier, count)| json!({ "tier": tier, "pending": count })).collect();
        let members: Vec<Value> = self.members.iter().map(MemberView::json).collect();
        let due = self.due().map(|[overdue, minute, hour, day]| {
            json!({ "overdue": overdue.1, "minute": minute.1, "hour": hour.1, "day": day.1 })
        });
        json!({
            "namespace": config.namespace,
            "members": members,
            "delivered": self.sum("waterclock_delivered_total"),
            "late_half": lateness.bound(500.0),
            "late_99_of_100": lateness.bound(990.0),
            "overdue_seconds": self.overdue(),
            "tiers": tiers,
            "due": due,
        })
        .to_string()
    }
}

impl MemberView {
    fn health(&self) -> &'static str {
        match &self.metrics {
            Some(metrics) if metrics.sum("waterclock_ready") == 1.0 => "ready",
            Some(_) => "not ready",
            None => "silent",
        }
    }

    fn row(&self, rate: Option<f64>) -> [String; 8] {
        let shown = |text: &str| output::shown(Some(text.as_bytes()));
        let value = |of: &dyn Fn(&Metrics) -> String| {
            self.metrics.as_ref().map_or_else(|| "-".to_owned(), of)
        };
        let sum = |name: &'static str| value(&move |metrics| metrics.sum(name).to_string());
        let delivered = match rate {
            Some(rate) => format!("{rate:.0}/s"),
            None => sum("waterclock_delivered_total"),
        };
        let memory = value(&|metrics| {
            let [is, most] = ["waterclock_memory_bytes", "waterclock_memory_limit_bytes"]
                .map(|name| metrics.sum(name));
            format!("{:.0} %", 100.0 * is / most.max(1.0))
        });
        [
            shown(&self.member.instance),
            shown(&self.member.address),
            sum("waterclock_lanes_owned"),
            self.health().to_owned(),
            delivered,
            sum("waterclock_dead_letters_total"),
            sum("waterclock_timers_pending"),
            memory,
        ]
    }

    fn json(&self) -> Value {
        let sum = |name| self.metrics.as_ref().map(|metrics| metrics.sum(name));
        json!({
            "instance": self.member.instance,
            "address": self.member.address,
            "lanes": self.member.lanes.iter().map(|lane| lane.0).collect::<Vec<_>>(),
            "health": self.health(),
            "delivered": sum("waterclock_delivered_total"),
            "dead_letters": sum("waterclock_dead_letters_total"),
            "timers": sum("waterclock_timers_pending"),
            "memory_bytes": sum("waterclock_memory_bytes"),
        })
    }
}

fn headed<const N: usize>(heads: [&str; N]) -> Table {
    let mut table = table::plain();
    table.set_header(heads);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP waterclock_pending Offsets\n\
waterclock_pending{tier=\"1m\"} 7\n\
waterclock_pending{tier=\"intake\"} 1\n\
waterclock_pending{tier=\"1s\"} 2\n\
waterclock_pending_in_memory 99\n\
waterclock_ready 1\n\
waterclock_lanes_owned 6\n\
waterclock_delivered_total 40\n\
waterclock_overdue_seconds{thread=\"0\"} 0.5\n\
waterclock_overdue_seconds{thread=\"1\"} 2.5\n\
waterclock_lateness_seconds_bucket{tier=\"1s\",le=\"0.0005\"} 10\n\
waterclock_lateness_seconds_bucket{tier=\"1s\",le=\"0.01\"} 30\n\
waterclock_lateness_seconds_bucket{tier=\"1s\",le=\"+Inf\"} 30\n\
waterclock_lateness_seconds_bucket{tier=\"intake\",le=\"0.0005\"} 0\n\
waterclock_lateness_seconds_bucket{tier=\"intake\",le=\"0.01\"} 5\n\
waterclock_lateness_seconds_bucket{tier=\"intake\",le=\"+Inf\"} 10\n";

    fn look(text: Option<&str>) -> Look {
        let member = Member {
            instance: "a".to_owned(),
            incarnation: "1".to_owned(),
            address: "127.0.0.1:80".to_owned(),
            tls: false,
            lanes: Vec::new(),
            threads: 1,
            allow: None,
            max_delay: None,
            tasks: true,
            worker: false,
            api: true,
            program: None,
            since: None,
            load: None,
        };
        let members = vec![MemberView { member, metrics: text.map(Metrics::read) }];
        Look { at: Instant::now(), wall: UnixMillis(0), members, forecast: None }
    }

    #[test]
    fn what_is_shown_is_what_the_instances_count() {
        let look = look(Some(TEXT));
        let tiers: Vec<(String, u64)> =
            [("intake", 1), ("1s", 2), ("1m", 7)].map(|(tier, n)| (tier.to_owned(), n)).into();
        assert_eq!(look.tiers(), tiers, "a metric of a longer name is another one");
        assert!((look.overdue() - 2.5).abs() < 1e-9);
        assert!(look.is_well());
        let lateness = look.lateness();
        assert_eq!(
            (lateness.bound(250.0), lateness.bound(500.0)),
            ("0.5 ms".to_owned(), "10ms".to_owned())
        );
        assert_eq!(lateness.bound(990.0), "more than 1h");
        let text = look.text(None, &Config::default());
        for word in [
            "ready",
            "half of the records up to 10ms",
            "overdue record waits for 2.5 s",
            "127.0.0.1:80",
        ] {
            assert!(text.contains(word), "{word:?} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn what_lies_between_two_looks_is_what_came_since() {
        let before = look(Some(TEXT));
        let more =
            TEXT.replace("delivered_total 40", "delivered_total 90").replace("\"} 30", "\"} 80");
        let mut now = look(Some(&more));
        now.at = before.at + Duration::from_secs(2);
        let since = now.lateness().since(&before.lateness());
        assert_eq!((since.bound(10.0), since.bound(990.0)), ("10ms".to_owned(), "10ms".to_owned()));
        assert_eq!(before.rate_from(&now, &now.members[0]), Some(25.0));
        let text = now.text(Some(&before), &Config::default());
        assert!(text.contains("25/s"), "{text}");
        assert_eq!(now.lateness().since(&now.lateness()).bound(500.0), "-");
        let text = now.text(Some(&now), &Config::default());
        assert!(text.contains("nothing delivered since the last look"), "{text}");
    }

    #[test]
    fn who_does_not_answer_is_silent_and_all_is_not_well() {
        let look = look(None);
        assert!(!look.is_well());
        assert!(look.text(None, &Config::default()).contains("silent"));
    }
}
