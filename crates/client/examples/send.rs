//! Sends two records that arrive later: one that goes straight to a tier, and a timer with an id that can be replaced.
//!
//! ```sh
//! waterclock topics apply && waterclock run &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic reminders --partitions 6
//! cargo run -p waterclock-client --example send -- localhost:9092
//! kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic reminders --from-beginning
//! ```

#![allow(clippy::disallowed_methods, reason = "a service looks at its own clock")]

use std::time::{Duration, SystemTime};

use waterclock_client::{Client, ClientConfig, Delayed, Error, Sent};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let brokers = std::env::args().nth(1).unwrap_or_else(|| "localhost:9092".to_owned());
    let client = Client::connect(ClientConfig::new(brokers)).await?;

    let tea = Delayed::to("reminders").key("kitchen").value("the tea is ready");
    tell("tea", &client.send(&tea.after(Duration::from_secs(3))).await?);

    // An id makes it a timer: sent twice, it arrives once.
    let basket = Delayed::to("reminders")
        .key("customer-7")
        .value("your basket is waiting")
        .header("content-type", "text/plain")
        .until(SystemTime::now() + Duration::from_secs(5))
        .id("basket-42")
        .label("baskets");
    tell("basket", &client.send(&basket).await?);
    tell("basket", &client.send(&basket).await?);

    let fuller = basket.value("your basket is waiting, with two things in it");
    tell("fuller basket", &client.replace(&fuller.after(Duration::from_secs(7))).await?);
    Ok(())
}

fn tell(what: &str, sent: &Sent) {
    let left = sent.due.and_then(|due| due.duration_since(SystemTime::now()).ok());
    let at = sent.offset.map_or_else(String::new, |offset| format!("@{offset}"));
    eprintln!("{what}: {}/{}{at}, due in {left:?}", sent.topic, sent.partition);
}
