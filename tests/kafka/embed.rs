//! The whole processor inside another program: this one.

use std::future::pending;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use waterclock::config::LadderConfig;
use waterclock::{Config, Error, run};

use crate::support::{Fixture, Log, client, eventually, free_address, out};

/// The configuration of a host, made in code.
fn config(fixture: &Fixture, http: &str) -> Config {
    Config {
        brokers: fixture.connection.brokers.clone(),
        namespace: fixture.namespace().to_owned(),
        data_dir: Some(fixture.path("embedded")),
        http: Some(http.parse().expect("an address")),
        ladder: fixture.request.holds.clone().map(LadderConfig::Holds),
        ..Config::default()
    }
    .checked()
    .expect("the ranges hold")
}

fn runtimes() -> [(&'static str, Runtime); 2] {
    [
        ("current thread", Builder::new_current_thread().enable_all().build().expect("a runtime")),
        (
            "multi thread",
            Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"),
        ),
    ]
}

fn wait_until_ready(http: &str) {
    let client = client(Duration::from_secs(5));
    eventually("ready", || {
        let answer = client.get(format!("http://{http}/health/ready")).send();
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status().is_success() { Ok(()) } else { Err(answer.text().unwrap_or_default()) }
    });
}

#[test]
fn it_delivers_stops_and_starts_again_in_one_process_on_both_kinds_of_runtime() {
    let fixture = Fixture::new("embed");
    let target = fixture.target("orders", 1);
    let mut log = Log::open(&fixture, &target);
    let producer = fixture.producer();
    for (round, (kind, runtime)) in runtimes().into_iter().enumerate() {
        let http = free_address();
        let config = config(&fixture, &http);
        let (stop, stopped) = oneshot::channel::<()>();
        let host = std::thread::spawn(move || {
            runtime.block_on(async {
                // As a service does it: beside its own work.
                tokio::spawn(run(config, async {
                    let _ = stopped.await;
                }))
                .await
            })
        });
        wait_until_ready(&http);
        let id = round.to_string();
        producer.send_one(&fixture.names.intake(), &out(&id).key(&id).to(&target).delay(200));
        log.count(round + 1);
        stop.send(()).expect("it runs");
        let ended = host.join().expect("no panic").expect("no panic");
        assert!(ended.is_ok(), "{kind}: {ended:?}");
        let metrics = waterclock::telemetry::install().map(|figures| figures.render());
        let metrics = metrics.unwrap_or_default();
        assert!(metrics.contains("waterclock_lanes_owned 0"), "{kind}: lanes are still owned");
    }
}

#[test]
fn a_future_that_is_dropped_lets_the_lanes_and_the_data_directory_go() {
    let fixture = Fixture::new("embed-drop");
    let runtime =
        Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let http = free_address();
    let task = runtime.spawn(run(config(&fixture, &http), pending()));
    wait_until_ready(&http);
    task.abort();
    eventually("another one can start where it was", || {
        let soon = async { tokio::time::sleep(Duration::from_millis(200)).await };
        match runtime.block_on(run(config(&fixture, &free_address()), soon)) {
            Ok(()) => Ok(()),
            Err(error @ Error::Start(_)) => Err(format!("{error:?}")),
            Err(error) => panic!("{error:?}"),
        }
    });
}

#[test]
fn a_configuration_made_in_code_is_checked_like_any_other() {
    let wrong = Config { threads: 0, namespace: "a b".to_owned(), ..Config::default() };
    let errors = wrong.checked().expect_err("two ranges do not hold").to_string();
    assert!(errors.contains("threads: got 0, want 1 to 64"), "{errors}");
    assert!(errors.contains("namespace: got"), "{errors}");
}
