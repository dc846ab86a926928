//! Many pending timers: what they take, and how fast one is found, cancelled, and known again after a restart.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::blocking::{Client, Response};

use super::Failed;
use super::cases::{Cases, Held};
use super::report::{Timers, name};
use crate::lateness::Lateness;
use crate::service::Service;
use waterclock_engine::{Millis, murmur2};
use waterclock_kafka::Delivery;
use waterclock_kafka::bench::{self, Directions, Watch as _, id, key};

/// Requests of each kind.
const LOOK_UPS: u64 = 5_000;
const CANCELS: u64 = 500;
/// Between two cancels: an idle machine is what is asked for.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest wait until a timer of each lane is found.
const FOUND_MAX: Duration = Duration::from_secs(600);
/// One request.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// One process of waterclock, asked over HTTP.
struct Asker {
    client: Client,
    base: String,
    token: Option<String>,
}

impl Asker {
    fn new(service: &Service, token: Option<String>) -> Result<Self, Failed> {
        let base = format!("http://{}", service.http);
        // Not the client of services, which repeats what fails: here each answer is measured.
        // It runs on this machine: a proxy of the environment is for the world outside.
        let client = Client::builder()
            .no_proxy()
            .timeout(REQUEST_MAX)
            .build()
            .map_err(|source| Failed::Http { url: base.clone(), source })?;
        Ok(Self { client, base, token })
    }

    fn timer(&self, n: u64) -> String {
        let key = URL_SAFE_NO_PAD.encode(key(n));
        format!("{}/v1/timers/{}?key_base64={key}", self.base, id(n))
    }

    /// Sends a request and takes the time until its body is here; with the text of the body if it was answered with 200.
    fn ask(&self, method: reqwest::Method, url: &str) -> Result<(Duration, String), Failed> {
        let failed = |source| Failed::Http { url: url.to_owned(), source };
        let began = Instant::now();
        let mut request = self.client.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let text = request.send().and_then(Response::text).map_err(failed)?;
        Ok((began.elapsed(), text))
    }
}

impl Cases<'_> {
    /// Submits timers that are due in hours, and looks at the process.
    pub(super) fn timers(&self, delivery: Delivery, timers: u64) -> Result<Timers, Failed> {
        let most = Some(timers + timers / 10 + 10_000);
        let start = || {
            let began = Instant::now();
            self.service_tracking(delivery, Held::Tiers, most).map(|service| (service, began))
        };
        let (service, began) = start()?;
        let empty_seconds = began.elapsed().as_secs_f64();
        let topic = self.topic(&format!("timers-{}", name(delivery)));
        bench::create(&self.connection, std::slice::from_ref(&topic), self.lanes)?;
        self.observer.phase("submitting timers", timers);
        let began = Instant::now();
        let mut writer = self.submitter()?;
        let directions = Directions { target: &topic, tracked: true };
        for n in 0..timers {
            // Spread over a day, and none of it while this runs.
            let due = self.now() + Millis(2 * 3_600_000 + n * 7_919 % (22 * 3_600_000));
            writer.write(&self.payload.record(n, due, Some(directions)), self.observer)?;
            self.observer.done(n);
        }
        writer.settle(self.observer)?;
        self.observer.phase("waiting until nothing is left to do", 0);
        self.settle(&service)?;
        let took_seconds = began.elapsed().as_secs_f64();
        let (settled_bytes, peak_bytes) = (service.memory(), service.memory_peak());
        let index = self.dir.join("data").join("index");
        let index_bytes = bytes_below(&index);

        let asker = Asker::new(&service, self.token.clone())?;
        let mut wrong = 0;
        let (mut request, mut look_up, mut cancel) =
            (Lateness::new(), Lateness::new(), Lateness::new());
        self.observer.phase("looking timers up", LOOK_UPS);
        let live = format!("{}/health/live", asker.base);
        for at in 0..LOOK_UPS {
            let n = at.wrapping_mul(0x9e37_79b9) % timers;
            request.record(micros(asker.ask(reqwest::Method::GET, &live)?.0));
            let (took, text) = asker.ask(reqwest::Method::GET, &asker.timer(n))?;
            look_up.record(micros(took));
            wrong += u64::from(!says(&text, "state", "delay"));
            self.look(at)?;
        }
        self.observer.phase("cancelling timers", CANCELS);
        for at in 0..CANCELS.min(timers / 2) {
            thread::sleep(PAUSE);
            let n = at * (timers / CANCELS).max(1);
            let (took, text) = asker.ask(reqwest::Method::DELETE, &asker.timer(n))?;
            cancel.record(micros(took));
            wrong += u64::from(!says(&text, "outcome", "cancelled"));
            self.look(at)?;
        }

        let none = || Failed::Nothing { topic: topic.clone() };
        self.observer.phase("starting again with the index", 0);
        let warm = self.restart(service, timers, most, delivery, None)?;
        self.observer.phase("starting again without the index", 0);
        let cold = self.restart(warm.0, timers, most, delivery, Some(&index))?;
        Ok(Timers {
            delivery: name(delivery),
            timers,
            took_seconds,
            settled_bytes,
            peak_bytes,
            index_bytes,
            request_ms: request.spread().ok_or_else(none)?,
            look_up_ms: look_up.spread().ok_or_else(none)?,
            cancel_ms: cancel.spread().ok_or_else(none)?,
            warm_seconds: warm.1,
            cold_seconds: cold.1,
            empty_seconds,
            wrong,
        })
    }

    /// Shows how far it is; ends it when somebody wants that.
    fn look(&self, at: u64) -> Result<(), Failed> {
        self.observer.done(at);
        if self.observer.stopped() { Err(bench::Error::Interrupted.into()) } else { Ok(()) }
    }

    /// Ends a process and starts another one; how long until it finds a timer of each lane.
    fn restart(
        &self,
        service: Service,
        timers: u64,
        most: Option<u64>,
        delivery: Delivery,
        without: Option<&Path>,
    ) -> Result<(Service, f64), Failed> {
        drop(service);
        if let Some(index) = without {
            fs::remove_dir_all(index).map_err(Failed::Start)?;
        }
        let began = Instant::now();
        let service = self.start(delivery, Held::Tiers, most)?;
        let asker = Asker::new(&service, self.token.clone())?;
        // The last of each lane: none of those that were cancelled.
        let of_lane =
            |lane| (0..timers).rev().find(|n| murmur2::partition(&key(*n), self.lanes) == lane);
        for n in (0..self.lanes).filter_map(of_lane) {
            loop {
                let found = asker.ask(reqwest::Method::GET, &asker.timer(n));
                if found.as_ref().is_ok_and(|(_, text)| says(text, "state", "delay")) {
                    break;
                }
                if began.elapsed() > FOUND_MAX {
                    let last = match found {
                        Ok((_, text)) => text,
                        Err(error) => error.to_string(),
                    };
                    return Err(Failed::NotFound { seconds: FOUND_MAX.as_secs(), last });
                }
                self.look(0)?;
                thread::sleep(Duration::from_millis(20));
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        self.settle(&service)?;
        Ok((service, seconds))
    }
}

/// Whether an answer is an object in which this stands.
fn says(text: &str, field: &str, value: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text).is_ok_and(|answer| answer[field] == value)
}

fn micros(took: Duration) -> u64 {
    took.as_micros() as u64
}

/// Bytes of all files below a directory.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}
