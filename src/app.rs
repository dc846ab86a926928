//! The composition root: builds the rooms, wires them, runs them, stops them in order.
//!
//! # Invariants
//! 1. Nothing here decides about a record.
//! 2. Whatever is started here has been told to end when [`run`] returns, and was given the configured drain for it.
//! 3. Signals are the caller's matter: a service that embeds us has its own.

mod access;
mod executors;
mod health;
pub mod instance;
pub mod lanes;
pub mod members;
mod tasks;
mod timers;
mod workers;

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::TryRecvError;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::api::auth::Access;
use crate::api::tls::{Certificates, TlsError};
use crate::api::{self, Front, Gate, Hosts, Report, Rooms, Status as _};
use crate::config::{Config, MAIN_INTAKE};
use crate::kafka::{LaneThreads, Members, member};
use crate::telemetry::{self, Figures, TelemetryError};

use executors::Executors;
use health::Health;
use instance::Instance;
use lanes::Started;
use members::MembersOfInstance;
use tasks::TasksOfInstance;
use timers::TimersOfInstance;
use workers::Worker;

/// How often what was recorded is moved into the histograms' buckets, so that it does not pile up between scrapes.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// How often to check whether the process is ready, for the log.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What the lane threads are given beyond the drain, to leave the group.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Why the process could not run, or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing has started; choose another address.
    #[error("could not listen on {address} (http)")]
    Listen {
        /// As configured, or the free port of 127.0.0.1 that was asked for.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A certificate or a key cannot be used; put the file right. Nothing has started.
    #[error("could not set up TLS (http)")]
    Tls(#[from] TlsError),
    /// Nobody said which topics records may go to, and others may use these brokers. Nothing has started.
    #[error(
        "allow is not set, and brokers {brokers} are not on this machine: anyone who may write a delay could write to any \
         topic; set allow (--allow PATTERN) to the topics that are meant, or say --allow-all"
    )]
    Open {
        /// As configured.
        brokers: String,
    },
    /// No lane thread runs; the source says what to do.
    #[error("could not start")]
    Start(#[from] lanes::Error),
    /// A lane thread or the worker cannot go on, and all were stopped. What was in flight is taken over by others.
    #[error("a lane thread cannot go on")]
    Lanes(#[from] member::Error),
    /// The namespace's meta topic was made again, and has another secret: what this process would seal from now on nobody who starts
    /// could read. It has drained and stopped; start it again.
    #[error(
        "the namespace has another secret: its meta topic was deleted and made again. Start this instance again: it takes the new \
         secret; what was sealed with the one before becomes dead letters"
    )]
    Refounded,
    /// A lane thread ended by a mistake of ours; the log has more. What was in flight is taken over by others.
    #[error("a lane thread ended unexpectedly")]
    Died,
}

/// Runs until `stop` resolves; then takes no new work, drains, commits and leaves.
///
/// # Errors
/// See [`Error`]; what was started has been stopped again.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let (_, never) = mpsc::channel(1);
    run_reloading(config, never, stop).await
}

/// The same for a caller whose configuration may change meanwhile: of each one that `reloads` gives, the allow-lists
/// and the tokens hold from then on. What else is different is told in the log, and needs a restart.
///
/// # Errors
/// See [`Error`]; what was started has been stopped again.
pub async fn run_reloading(
    config: Config,
    reloads: mpsc::Receiver<Config>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    if config.is_ajar() {
        return Err(Error::Open { brokers: config.brokers });
    }
    let figures = match telemetry::install() {
        Ok(figures) => Some(figures),
        Err(TelemetryError::Taken) => {
            tracing::info!(
                "another metrics recorder is installed in this process and gets our metrics; /metrics is empty"
            );
            None
        }
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "no metrics are recorded");
            None
        }
    };
    let certificates = Certificates::open(access::tls(&config))?;
    let (tls, peers) = (certificates.listener(), certificates.peers());
    let address = config.http.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
    let refused = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let local = listener.local_addr().map_err(refused)?;
    tracing::info!(address = %local, tls = tls.is_some(), "HTTP server listens");
    let advertise = config.advertise.clone().unwrap_or_else(|| reached_at(local));
    certificates.warn_if_strange(&advertise);
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    warn_if_short_of(files);
    warn_if_open(&config);

    let (stopping, _) = watch::channel(());
    let gate = Arc::new(Gate::new(files));
    let own = config.http_hosts.iter().map(String::as_str).chain([advertise.as_str()]);
    let access = Arc::new(Access::default());
    access.set(access::tokens(&config), access::issuer(&config, None), access::principals(&config));
    access::warn_if_open(&config);
    let front = Front::new(Hosts::new(own), Arc::clone(&gate), Arc::clone(&access), peers.clone());
    let health = Arc::new(Health::new(figures.clone(), gate));
    let status = Arc::clone(&health) as Arc<dyn api::Status>;
    let known = Arc::new(TimersOfInstance::new(advertise.clone()));
    let timers = Arc::clone(&known) as Arc<dyn api::timers::model::Timers>;
    let tasks = config.roles.api.then(|| {
        let members = MembersOfInstance::new(&known, &health, peers.clone());
        let executors = Executors::new(&lanes::connection(&config));
        TasksOfInstance::new(&known, peers, executors).rooms(Arc::new(members), &config)
    });
    let counting = tasks
        .clone()
        .map(|tasks| tokio::spawn(api::tasks::count_pending(tasks, closed(&stopping))));
    let rooms = Rooms { timers, tasks };
    let serving = api::serve((listener, tls), status, rooms, front, closed(&stopping));
    let serving = tokio::spawn(async {
        tokio::select! { () = serving => {}, () = certificates.follow() => {} }
    });
    let tidying = tokio::spawn(tidy(figures, closed(&stopping)));

    let ended = lanes(config, advertise, reloads, (&health, &known, &access), stop).await;

    // Health stays visible while the lanes drain.
    drop(stopping);
    let _ = tokio::join!(serving, tidying);
    if let Some(counting) = counting {
        let _ = counting.await;
    }
    ended.inspect(|()| tracing::info!("stopped"))
}

/// Starts the lane threads, and waits until they have ended: told to by `stop`, or by themselves.
async fn lanes(
    config: Config,
    advertise: String,
    mut reloads: mpsc::Receiver<Config>,
    (health, known, access): (&Arc<Health>, &TimersOfInstance, &Access),
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let mut stop = pin!(stop);
    let threads = if config.roles.lanes { config.threads } else { 0 };
    let drain = Duration::from_millis(config.drain.0) + LEAVE_MAX;
    let runtime = Handle::current();
    let stopping = Arc::new(AtomicBool::new(false));
    let mut now = config.clone();
    // A caller that drops the future has given up on it.
    let _abandoned = Abandoned(Arc::clone(&stopping), Arc::clone(health));
    let (told, waits) = (Arc::clone(&stopping), Arc::clone(health));
    let mut starting = spawn_blocking(move || {
        lanes::start(&config, advertise, (&runtime, &told), |why| waits.waits(why))
    });
    let started = tokio::select! {
        started = &mut starting => started,
        () = &mut stop => {
            health.stops();
            stopping.store(true, Ordering::Relaxed);
            // What it asks Kafka cannot be interrupted; nothing has been read yet.
            return match tokio::time::timeout(drain, starting).await {
                Ok(Ok(Ok(Started { lane_threads, worker, instance, members, .. }))) => {
                    let of_lanes = (Arc::new(lane_threads), threads);
                    let running = Threads { of_lanes, worker: worker.map(Arc::new) };
                    running.stop();
                    drained(drain, watch_threads(running, instance, Arc::new(members))).await
                }
                _ => Ok(()),
            };
        }
    };
    let Started { lane_threads, service, worker, instance, members, secret } =
        started.map_err(|_| Error::Died)??;
    let (lane_threads, members) = (Arc::new(lane_threads), Arc::new(members));
    let threads =
        Threads { of_lanes: (Arc::clone(&lane_threads), threads), worker: worker.map(Arc::new) };
    let name = instance.name.clone();
    let ours = secret.clone();
    known.started(Arc::clone(&lane_threads), service, Arc::clone(&members), name, secret);
    // Who is told that this instance is ready is answered.
    health.started(threads.clone(), members.registry().clone());
    let mut running = watch_threads(threads.clone(), instance, Arc::clone(&members));
    let (mut look, mut was_ready) = (tokio::time::interval(LOOK_EVERY), false);
    let why = loop {
        tokio::select! {
            ended = &mut running => return ended.unwrap_or(Err(Error::Died)),
            () = &mut stop => break Ok(()),
            _ = look.tick() => {
                was_ready = say_whether_ready(was_ready, &health.ready());
                if members.secret().is_some_and(|secret| secret != ours) {
                    break Err(Error::Refounded);
                }
            }
            Some(new) = reloads.recv() => {
                now = reload(&now, &new, &lane_threads);
                let issuer = access::issuer(&now, access.issuer());
                access.set(access::tokens(&now), issuer, access::principals(&now));
            }
        }
    };
    tracing::info!("stopping");
    health.stops();
    threads.stop();
    let ended = drained(drain, running).await;
    why.and(ended)
}

/// Says when it becomes ready, and when it is not any more.
fn say_whether_ready(was_ready: bool, now: &Report) -> bool {
    if now.ok != was_ready {
        let what = if now.ok { "ready" } else { "not ready" };
        tracing::info!(why = now.reasons.join("; "), "{what}");
    }
    now.ok
}

/// Where the others reach what listens here, if nobody says otherwise.
fn reached_at(local: SocketAddr) -> String {
    if !local.ip().is_unspecified() {
        return local.to_string();
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => SocketAddr::from((Ipv4Addr::LOCALHOST, local.port())).to_string(),
        name => format!("{name}:{}", local.port()),
    }
}

/// Connections to a few brokers from every client, the index, and callers of the API.
const FILES_MIN: u64 = 512;

/// Without file descriptors there are no connections, and it seems as if no broker answered.
fn warn_if_short_of(files: Option<u64>) {
    if let Some(limit) = files.filter(|limit| *limit < FILES_MIN) {
        tracing::warn!(limit, "the limit of open files is low; want at least {FILES_MIN}");
    }
}

fn warn_if_open(config: &Config) {
    // A worker delivers nothing.
    if config.roles.lanes && config.allow(MAIN_INTAKE).is_ok_and(|allow| allow.is_open()) {
        tracing::warn!(
            "every topic is allowed: a producer that may write to an intake may deliver to any topic"
        );
    }
}

/// Puts in force what of a new configuration can be without a restart; gives back what is in force then.
fn reload(now: &Config, new: &Config, lane_threads: &LaneThreads) -> Config {
    let (reloaded, restart) = now.reloaded(new);
    if reloaded.is_ajar() {
        let error = Error::Open { brokers: reloaded.brokers };
        tracing::error!(%error, "the new allow-lists cannot be used; the old ones hold");
        return now.clone();
    }
    match reloaded.allow_of_all() {
        Ok(allow) => lane_threads.allow(allow),
        Err(error) => {
            tracing::error!(%error, "the new allow-lists cannot be used; the old ones hold");
            return now.clone();
        }
    }
    tracing::info!("configuration read again; its allow-lists and tokens are in force");
    warn_if_open(&reloaded);
    if !restart.is_empty() {
        tracing::warn!(
            keys = restart.join(", "),
            "these keys changed and take effect only after a restart"
        );
    }
    reloaded
}

/// Stops what was started when it is dropped.
struct Abandoned(Arc<AtomicBool>, Arc<Health>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.abandon();
    }
}

/// The threads of a process that are members of a group.
#[derive(Clone)]
struct Threads {
    /// The lane threads, and how many there are.
    of_lanes: (Arc<LaneThreads>, u16),
    worker: Option<Arc<Worker>>,
}

impl Threads {
    /// Tells all to finish what they have begun, and to leave.
    fn stop(&self) {
        self.of_lanes.0.stop();
        if let Some(worker) = &self.worker {
            worker.stop();
        }
    }

    /// Waits until one has ended.
    async fn ends(&self) {
        let worker = async {
            match &self.worker {
                Some(worker) => worker.ends().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { () = self.of_lanes.0.ends() => {}, () = worker => {} }
    }
}

/// Waits for every thread's end; the first that cannot go on stops the others.
///
/// The instance's name is held until then, so that nobody takes it while a thread still uses it; then the others are told
/// that it has left.
fn watch_threads(
    threads: Threads,
    instance: Instance,
    members: Arc<Members>,
) -> JoinHandle<Result<(), Error>> {
    let watching = threads.clone();
    let left = threads.of_lanes.1;
    let has_worker = threads.worker.is_some();
    let watched = Watched { threads, instance, members, left, has_worker, first: Ok(()) };
    let mut watch = Watch(Some(watched));
    tokio::spawn(async move {
        while watch.0.as_mut().is_some_and(Watched::is_running) {
            watching.ends().await;
        }
        drop(watching);
        let Some(watched) = watch.0.take() else { return Err(Error::Died) };
        spawn_blocking(|| watched.end()).await.unwrap_or(Err(Error::Died))
    })
}

/// The threads that run, and what is to be done after the last one.
struct Watched {
    threads: Threads,
    instance: Instance,
    members: Arc<Members>,
    /// How many lane threads have not ended yet.
    left: u16,
    /// The worker has not ended yet.
    has_worker: bool,
    first: Result<(), Error>,
}

impl Watched {
    /// Whether a thread runs. Does not wait.
    fn is_running(&mut self) -> bool {
        while self.left > 0 {
            match self.threads.of_lanes.0.ended().try_recv() {
                Ok(ended) => self.note_lanes(ended.map_err(Error::from)),
                Err(TryRecvError::Disconnected) => self.note_lanes(Err(Error::Died)),
                Err(TryRecvError::Empty) => break,
            }
        }
        if let Some(worker) = self.threads.worker.clone().filter(|_| self.has_worker) {
            match worker.ended().try_recv() {
                Ok(ended) => self.note_worker(ended.map_err(Error::from)),
                Err(TryRecvError::Disconnected) => self.note_worker(Err(Error::Died)),
                Err(TryRecvError::Empty) => {}
            }
        }
        self.left > 0 || self.has_worker
    }

    fn note_lanes(&mut self, ended: Result<(), Error>) {
        self.left -= 1;
        self.note(ended);
    }

    fn note_worker(&mut self, ended: Result<(), Error>) {
        self.has_worker = false;
        self.note(ended);
    }

    fn note(&mut self, ended: Result<(), Error>) {
        if ended.is_err() {
            self.threads.stop();
            if self.first.is_ok() {
                self.first = ended;
            }
        }
    }

    /// Waits for the threads that still run, and says farewell.
    fn end(mut self) -> Result<(), Error> {
        while self.left > 0 {
            let ended = self.threads.of_lanes.0.ended().recv();
            let ended = ended.map_err(|_| Error::Died);
            self.note_lanes(ended.and_then(|ended| ended.map_err(Error::from)));
        }
        if let Some(worker) = self.threads.worker.clone().filter(|_| self.has_worker) {
            let ended = worker.ended().recv().map_err(|_| Error::Died);
            self.note_worker(ended.and_then(|ended| ended.map_err(Error::from)));
        }
        self.members.leave();
        drop(self.instance);
        self.first
    }
}

/// What is watched. If the runtime ends before the threads, another thread waits for them.
struct Watch(Option<Watched>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(watched) = self.0.take() {
            let _ = std::thread::Builder::new().name("wc-watch".into()).spawn(|| watched.end());
        }
    }
}

async fn drained(drain: Duration, running: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    match tokio::time::timeout(drain, running).await {
        Ok(ended) => ended.unwrap_or(Err(Error::Died)),
        Err(_) => {
            tracing::warn!("the drain took too long; other instances take over what is left");
            Ok(())
        }
    }
}

/// Resolves when the sender is dropped.
fn closed(stopping: &watch::Sender<()>) -> impl Future<Output = ()> + use<> {
    let mut stopped = stopping.subscribe();
    async move { while stopped.changed().await.is_ok() {} }
}

async fn tidy(figures: Option<Figures>, stop: impl Future<Output = ()>) {
    let Some(figures) = figures else { return };
    let every = async {
        let mut ticks = tokio::time::interval(TIDY_EVERY);
        loop {
            ticks.tick().await;
            figures.tidy();
        }
    };
    tokio::select! { () = every => {}, () = stop => {} }
}
