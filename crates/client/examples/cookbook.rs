//! The recipes of `docs/cookbook.md`, each with a command of its own; the programs in `docs/clients` have the same ones.
//!
//! ```sh
//! waterclock topics apply && waterclock run --allow 'shop\..*' &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic shop.unpaid --partitions 6
//! cargo run -p waterclock-client --example cookbook -- order shop.unpaid order-17 30m
//! cargo run -p waterclock-client --example cookbook -- paid order-17
//! ```

#![allow(clippy::disallowed_methods, reason = "a service looks at its own clock and environment")]
#![allow(clippy::print_stdout, reason = "a program for people, and for the test that runs it")]

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rdkafka::ClientConfig as KafkaConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{BorrowedMessage, Message as _};
use waterclock_client::{Client, ClientConfig, Delayed, Filter, Message, Outcome, Rescheduled};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
The recipes of docs/cookbook.md in Rust.

  cookbook order TARGET ORDER DELAY           an order is made: after DELAY (30m, 90s, 7d) it is to be closed
  cookbook paid ORDER                         it is paid: says whether to ship it or to give the money back
  cookbook stock TARGET SKU ID DELAY LABEL    stock is reserved: after DELAY it is to be released
  cookbook longer SKU ID DELAY                the reservation lasts longer: DELAY from now
  cookbook labelled LABEL                     lists what is pending with this label
  cookbook coupon TARGET CUSTOMER COUPON ENDS SECONDS
                    reminds SECONDS before ENDS (a time as 2026-12-24T18:00:00Z); once more: the end is another one
  cookbook payment TARGET PAYMENT INTERVAL TRIES FINAL
                    asks for a result every INTERVAL, TRIES times at most; it is final the FINALth time
  cookbook retry TOPIC GIVEN_UP SECONDS TRIES RECORDS
                    consumes TOPIC; what fails is tried again after SECONDS, twice that, ..., TRIES times at most,
                    and then written to GIVEN_UP. Ends when so many RECORDS are done or given up
  cookbook consume TOPIC RECORDS              consumes so many records and prints them

BROKERS and NAMESPACE in the environment say where: localhost:9092, waterclock. SERVER may name a load balancer; without it the
instance to ask is found through Kafka.";

fn env(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

/// `30m`, as in `x-delay`, with one unit.
fn length(text: &str) -> Result<Duration, Failure> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let seconds = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(format!("{text} is not like 30m").into()),
    };
    Ok(Duration::from_secs(text[..digits].parse::<u64>()? * seconds))
}

/// Consumes until so many records are finished: `work` says whether one is.
async fn each(
    topic: &str,
    mut records: u32,
    work: impl AsyncFn(&BorrowedMessage<'_>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let consumer: BaseConsumer = KafkaConfig::new()
        .set("bootstrap.servers", env("BROKERS", "localhost:9092"))
        .set("group.id", format!("{topic}-worker"))
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .create()?;
    consumer.subscribe(&[topic])?;
    while records > 0 {
        // It blocks the main thread; the client's tasks run in others.
        let Some(message) = consumer.poll(Duration::from_secs(1)) else { continue };
        let message = message?;
        if work(&message).await? {
            records -= 1;
        }
        // Only now: if we end before, the record is consumed once more, and nothing is lost.
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
    Ok(())
}

/// The end of an order that nobody pays.
async fn order(client: &Client, target: &str, order: &str, delay: Duration) -> Result<(), Failure> {
    let close = Delayed::to(target).key(order).value("nobody has paid").after(delay).id("payment");
    client.send(&close).await?;
    Ok(())
}

async fn paid(client: &Client, order: &str) -> Result<(), Failure> {
    match client.cancel(Some(order.as_bytes()), "payment").await? {
        // It will never be closed.
        Outcome::Cancelled => println!("{order}: ship it"),
        // It was closed a moment ago.
        Outcome::Delivered => println!("{order}: give the money back"),
        // Pending: ask again. Unknown: there is no such order, or not any more.
        other => return Err(format!("{order}: {other:?}").into()),
    }
    Ok(())
}

async fn stock(
    client: &Client,
    [target, sku, reservation, label]: [&str; 4],
    delay: Duration,
) -> Result<(), Failure> {
    let release = Delayed::to(target).key(sku).value(format!("release {reservation}"));
    client.send(&release.after(delay).id(reservation).label(label)).await?;
    Ok(())
}

async fn longer(
    client: &Client,
    sku: &str,
    reservation: &str,
    delay: Duration,
) -> Result<(), Failure> {
    let key = Some(sku.as_bytes());
    match client.reschedule(key, reservation, None, SystemTime::now() + delay).await? {
        Rescheduled::Replaced => println!("replaced"),
        Rescheduled::NotPending => match client.find(key, reservation).await? {
            Some(timer) => println!("not_pending ({})", timer.state),
            None => println!("unknown_timer"),
        },
        other => return Err(format!("{reservation}: {other:?}").into()),
    }
    Ok(())
}

async fn labelled(client: &Client, label: &str) -> Result<(), Failure> {
    let pending = Filter {
        label: Some(label.to_owned()),
        state: Some("delay".to_owned()),
        ..Filter::default()
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    for timer in client.list(&pending).await? {
        let (key, left) = (timer.key.unwrap_or_default(), timer.due as f64 / 1_000.0 - now);
        println!("{} of {key}, due in {left:.0} s", timer.id);
    }
    Ok(())
}

/// Made and moved by the same call. A time that is past is now; after its end it is a dead letter (`expired`), and no mail.
async fn coupon(
    client: &Client,
    [target, customer, coupon, ends]: [&str; 4],
    before: Duration,
) -> Result<(), Failure> {
    let end = SystemTime::from(ends.parse::<Timestamp>()?);
    let reminder = Delayed::to(target).key(customer).value(format!("{coupon} ends at {ends}"));
    client.replace(&reminder.until(end - before).expires_at(end).id(coupon)).await?;
    Ok(())
}

async fn payment(
    client: &Client,
    [target, payment]: [&str; 2],
    interval: Duration,
    [tries, last]: [u32; 2],
) -> Result<(), Failure> {
    // A trace tells how often it was delivered, and how long it waited.
    let question = Delayed::to(target).key(payment).value("is it final?").id("result");
    client.send(&question.after(interval).trace()).await?;
    let look = async |message: &BorrowedMessage<'_>| {
        let (asked, name) = (Message::from(message), text(message.key()));
        let tried = asked.attempt();
        // Stands for a question to the payment service.
        if tried >= last {
            println!("{name}: final, asked {tried} times");
        } else if tried >= tries {
            println!("{name}: given up, asked {tried} times");
        } else {
            client.again(&asked).await?;
            return Ok(false);
        }
        Ok(true)
    };
    each(target, 1, look).await
}

async fn retry(
    client: &Client,
    [topic, given_up]: [&str; 2],
    [seconds, tries, records]: [u32; 3],
) -> Result<(), Failure> {
    let attend = async |message: &BorrowedMessage<'_>| {
        let (consumed, name) = (Message::from(message), text(message.payload()));
        let tried = consumed.attempt();
        match work(&name, tried) {
            Ok(()) => println!("{name}: done"),
            Err(_) if tried < tries => {
                let pause = Duration::from_secs(u64::from(seconds) << tried);
                client.send(&consumed.delayed().after(pause).trace()).await?;
                println!("{name}: again");
                return Ok(false);
            }
            Err(why) => {
                let last = consumed.delayed_to(given_up).after(Duration::ZERO).header("why", why);
                client.send(&last).await?;
                println!("{name}: given up");
            }
        }
        Ok(true)
    };
    each(topic, records, attend).await
}

/// Stands for your work. `fail 2` fails twice.
fn work(name: &str, tried: u32) -> Result<(), String> {
    let fails = name.strip_prefix("fail ").and_then(|fails| fails.parse().ok()).unwrap_or(0);
    if tried < fails { Err(format!("failure {}", tried + 1)) } else { Ok(()) }
}

/// What closes an order, releases stock, or mails a reminder.
async fn consume(topic: &str, records: u32) -> Result<(), Failure> {
    let show = async |message: &BorrowedMessage<'_>| {
        println!("{}: {}", text(message.key()), text(message.payload()));
        Ok(true)
    };
    each(topic, records, show).await
}

fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u32>();
    let config = ClientConfig {
        namespace: env("NAMESPACE", "waterclock"),
        server: std::env::var("SERVER").ok(),
        within: Duration::from_secs(30),
        ..ClientConfig::new(env("BROKERS", "localhost:9092"))
    };
    let connect = || Client::connect(config);
    match arguments[..] {
        ["order", target, name, delay] => {
            order(&connect().await?, target, name, length(delay)?).await
        }
        ["paid", name] => paid(&connect().await?, name).await,
        ["stock", target, sku, id, delay, label] => {
            stock(&connect().await?, [target, sku, id, label], length(delay)?).await
        }
        ["longer", sku, id, delay] => longer(&connect().await?, sku, id, length(delay)?).await,
        ["labelled", label] => labelled(&connect().await?, label).await,
        ["coupon", target, customer, name, ends, seconds] => {
            let before = Duration::from_secs(seconds.parse()?);
            coupon(&connect().await?, [target, customer, name, ends], before).await
        }
        ["payment", target, name, interval, tries, last] => {
            let times = [number(tries)?, number(last)?];
            payment(&connect().await?, [target, name], length(interval)?, times).await
        }
        ["retry", topic, given_up, seconds, tries, records] => {
            let numbers = [number(seconds)?, number(tries)?, number(records)?];
            retry(&connect().await?, [topic, given_up], numbers).await
        }
        ["consume", topic, records] => consume(topic, number(records)?).await,
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(1)
        }
    }
}
