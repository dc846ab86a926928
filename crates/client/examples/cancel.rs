//! Sends a timer, cancels it, and looks it up: the answer says what became of it.
//!
//! ```sh
//! waterclock topics apply && waterclock run &
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic reminders --partitions 6
//! cargo run -p waterclock-client --example cancel -- localhost:9092
//! ```
//!
//! A second argument is the address of an instance or of a load balancer before several, `http://localhost:8080`; without
//! it, the instance that has the timer is found through Kafka.

use std::time::Duration;

use waterclock_client::{Client, ClientConfig, Delayed, Error, Outcome};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let brokers = arguments.next().unwrap_or_else(|| "localhost:9092".to_owned());
    let config = ClientConfig { server: arguments.next(), ..ClientConfig::new(brokers) };
    let client = Client::connect(config).await?;

    let reminder = Delayed::to("reminders").key("customer-7").value("your basket is waiting");
    client.send(&reminder.after(Duration::from_secs(3_600)).id("basket-7")).await?;
    match client.cancel(Some(b"customer-7"), "basket-7").await? {
        Outcome::Cancelled => eprintln!("cancelled: it will never arrive"),
        Outcome::Delivered => eprintln!("too late: it has arrived"),
        Outcome::Unknown { state, code } => {
            eprintln!("there is none; it ended as {state:?} by {code:?}");
        }
        Outcome::Pending => eprintln!("not decided yet; cancel again to ask again"),
        other => eprintln!("{other:?}"),
    }
    // To cancel again is no mistake: the answer is the same.
    eprintln!("again: {:?}", client.cancel(Some(b"customer-7"), "basket-7").await?);
    eprintln!("found: {:?}", client.find(Some(b"customer-7"), "basket-7").await?);
    Ok(())
}
