//! Reminders that lie before or after an event: 24 hours before a coupon ends, three days before a membership ends, 15 minutes after
//! an order came that its shop has not accepted.
//!
//! ```sh
//! waterclock topics apply && waterclock run --allow reminders &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic reminders --partitions 6
//! cargo run -p waterclock-client --example reminders -- set reminders customer-7 coupon-5 24h before 2026-12-24T18:00:00Z
//! cargo run -p waterclock-client --example reminders -- set reminders member-8 membership 3d before 2027-06-30T22:00:00Z
//! cargo run -p waterclock-client --example reminders -- set reminders shop-9 order-17 15m after 2026-12-01T12:00:00Z
//! cargo run -p waterclock-client --example reminders -- drop shop-9 order-17
//! ```

#![allow(clippy::disallowed_methods, reason = "a service looks at its own environment")]
#![allow(clippy::print_stdout, reason = "a program for people, and for the test that runs it")]

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use waterclock_client::{Client, ClientConfig, Delayed, Outcome};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
reminders set TOPIC WHOM WHAT LENGTH before|after EVENT
  writes to TOPIC at LENGTH (24h, 3d, 15m) before or after EVENT (2026-12-24T18:00:00Z); once more: the event is at another time
reminders drop WHOM WHAT
  the event falls away; says whether the reminder was still there (cancelled) or has come already (delivered)

BROKERS and NAMESPACE in the environment say where: localhost:9092, waterclock.";

fn env(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

/// `3d`: a number with one unit.
fn length(text: &str) -> Result<Duration, Failure> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let seconds = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(format!("{text} is not like 3d").into()),
    };
    let length = text[..digits].parse::<u64>()?.checked_mul(seconds);
    Ok(Duration::from_secs(length.ok_or_else(|| format!("{text} is too long"))?))
}

/// Made and moved by the same call: it takes the place of what was set for the same WHOM and WHAT.
async fn set(
    client: &Client,
    [topic, whom, what]: [&str; 3],
    [ahead, side, event]: [&str; 3],
) -> Result<(), Failure> {
    let at = SystemTime::from(event.parse::<Timestamp>()?);
    let reminder = Delayed::to(topic).key(whom).id(what);
    let reminder = reminder.value(format!("{what}: {ahead} {side} {event}"));
    let far = || format!("{ahead} {side} {event} is no time");
    let reminder = match side {
        // A time that is past is now; after the event it is a dead letter (`expired`), and nobody is reminded.
        "before" => {
            let due = at.checked_sub(length(ahead)?).ok_or_else(far)?;
            reminder.until(due).expires_at(at)
        }
        _ => reminder.until(at.checked_add(length(ahead)?).ok_or_else(far)?),
    };
    client.replace(&reminder).await?;
    Ok(())
}

async fn drop_it(client: &Client, whom: &str, what: &str) -> Result<(), Failure> {
    match client.cancel(Some(whom.as_bytes()), what).await? {
        // It will never come.
        Outcome::Cancelled => println!("cancelled"),
        // It came a moment ago.
        Outcome::Delivered => println!("delivered"),
        // Pending: drop it again. Unknown: there is none, or not any more.
        other => return Err(format!("{what} of {whom}: {other:?}").into()),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let connect = || {
        Client::connect(ClientConfig {
            namespace: env("NAMESPACE", "waterclock"),
            within: Duration::from_secs(30),
            ..ClientConfig::new(env("BROKERS", "localhost:9092"))
        })
    };
    match arguments[..] {
        ["set", topic, whom, what, ahead, side @ ("before" | "after"), event] => {
            set(&connect().await?, [topic, whom, what], [ahead, side, event]).await
        }
        ["drop", whom, what] => drop_it(&connect().await?, whom, what).await,
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(1)
        }
    }
}
