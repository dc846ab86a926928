//! A small service with waterclock inside: it takes reminders over HTTP and has them delivered when they are due.
//!
//! ```sh
//! waterclock topics apply
//! kafka-topics.sh --bootstrap-server localhost:9092 --create --topic reminders --partitions 6
//! cargo run --example embed
//! curl -X POST 'http://127.0.0.1:8089/remind?in=5s' -d 'take the kettle off'
//! kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic reminders
//! ```
//!
//! The runtime, the HTTP server, the signal, the logger are the service's own. `WATERCLOCK_...` configures waterclock, as
//! it would the binary.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::watch;
use waterclock::app::lanes;
use waterclock::config::Overrides;
use waterclock::engine::Record;
use waterclock::kafka::Submitter;
use waterclock::{Config, run};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where reminders go.
const TARGET: &str = "reminders";

/// Where reminders wait.
struct Intake {
    submitter: Submitter,
    topic: String,
}

impl Intake {
    /// Blocks until Kafka has the record.
    fn submit(&self, text: &str, within: &str) -> Result<(), Failure> {
        let partitions = self.submitter.partitions(&[&self.topic])?[0].ok_or("no such topic")?;
        let headers: [(&[u8], Option<&[u8]>); 2] =
            [(b"x-delay", Some(within.as_bytes())), (b"x-delay-target", Some(TARGET.as_bytes()))];
        let record = Record::new(None, Some(text.as_bytes()), headers.into_iter());
        self.submitter.submit(&self.topic, partitions, None, &record)?;
        Ok(())
    }
}

async fn remind(
    State(intake): State<Arc<Intake>>,
    RawQuery(query): RawQuery,
    text: String,
) -> (StatusCode, String) {
    let within = query.as_deref().and_then(|query| query.strip_prefix("in=")).map(str::to_owned);
    let Some(within) = within else {
        return (StatusCode::BAD_REQUEST, "say when: ?in=5m\n".to_owned());
    };
    let submitted = tokio::task::spawn_blocking(move || intake.submit(&text, &within)).await;
    match submitted.map_err(Failure::from).flatten() {
        Ok(()) => (StatusCode::ACCEPTED, "kept\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut config = Config::load(None, Overrides::default())?;
    config.allow = Some(vec![TARGET.to_owned()]);
    let config = config.checked()?;

    // One signal for all parts of the service.
    let (stopping, stopped) = watch::channel(false);
    let on_stop = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        let _ = stopping.send(true);
    });

    let intake = Arc::new(Intake {
        // Any Kafka producer will do; this one is at hand.
        submitter: Submitter::new(&lanes::connection(&config))?,
        topic: format!("{}.intake", config.namespace),
    });
    let delivering = tokio::spawn(run(config, on_stop(stopped.clone())));

    let listener = TcpListener::bind("127.0.0.1:8089").await?;
    tracing::info!(address = %listener.local_addr()?, "reminders are taken");
    let app = Router::new().route("/remind", post(remind)).with_state(intake);
    axum::serve(listener, app).with_graceful_shutdown(on_stop(stopped)).await?;
    delivering.await??;
    Ok(())
}
