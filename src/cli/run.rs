//! `waterclock run`: the service, until a signal ends it.

use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::Signal as Kill;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::{Exit, Failure, Global, Outcome, failure};
use crate::app;
use crate::config::{Config, ConfigErrors, LogConfig, LogFormat, LogLevel, Overrides};
use crate::kafka;
use crate::telemetry;
use crate::terminal::ONE_SIGNAL;

/// Threads for HTTP and for what else may wait; records are the lane threads' matter.
const RUNTIME_THREADS: usize = 2;
/// Longest wait for what HTTP may still be doing when all else has ended.
const RUNTIME_STOP_MAX: Duration = Duration::from_millis(500);

/// How long a stop may take beyond the drain: 1 s to leave the group, 1 s for open requests, and the rest for closing.
const STOP_MAX: Duration = Duration::from_secs(4);

/// Arguments of `run`. Text, so that what is wrong in them is told with everything else that is wrong.
#[derive(Args)]
pub(super) struct Run {
    /// Directory that keeps this instance's name [env: WATERCLOCK_DATA_DIR] [default: the first free below ./waterclock-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Address of health, metrics, timers and tasks [env: WATERCLOCK_HTTP] [default: a free port on 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Serves timers to other machines, too: anyone who reaches the address may see them and cancel them. (Tasks want a token.)
    /// [env: WATERCLOCK_HTTP_UNAUTHENTICATED]
    #[arg(long)]
    http_unauthenticated: bool,
    /// Regular expression for whole names of topics that may be delivered to; may be given again
    /// [env: WATERCLOCK_ALLOW] [default: all, where the brokers are on this machine]
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,
    /// Every topic may be delivered to, wherever the brokers are [env: WATERCLOCK_ALLOW_ALL]
    #[arg(long, conflicts_with = "allow")]
    allow_all: bool,
    /// Start although one broker alone may have what topics of waterclock acknowledged (min.insync.replicas below 2)
    /// [env: WATERCLOCK_WEAK_TOPICS]
    #[arg(long)]
    weak_topics: bool,
    /// What this process does: lanes, worker, api [env: WATERCLOCK_ROLES] [default: lanes,worker,api]
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// Lane threads in this process [env: WATERCLOCK_THREADS] [default: 1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    threads: Option<String>,
    /// exactly_once or at_least_once [env: WATERCLOCK_DELIVERY] [default: exactly_once]
    #[arg(long, value_name = "MODE")]
    delivery: Option<String>,
    /// text, or json: an object for each line of the log [env: WATERCLOCK_LOG__FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

/// The system refused something that every process may have.
#[derive(Debug, thiserror::Error)]
#[error("could not start")]
struct Unstarted(#[source] std::io::Error);

impl Run {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let Self {
            data_dir,
            http,
            http_unauthenticated,
            allow,
            allow_all,
            weak_topics,
            roles,
            threads,
            delivery,
            log_format,
        } = self;
        let flags = Overrides {
            data_dir,
            http,
            http_unauthenticated,
            allow,
            allow_all,
            weak_topics,
            roles,
            threads,
            delivery,
            log_format,
            ..Overrides::default()
        };
        let end = |failure| if global.json() { Err(failure) } else { Ok(failure::log(&failure)) };
        let mut config = match global.load(flags.clone()) {
            Ok(config) => config,
            Err(failure) if Config::asks_for_json(&flags) => {
                let format = LogFormat::Json;
                let _ = telemetry::init_log(&LogConfig { format, ..LogConfig::default() });
                return end(failure);
            }
            Err(failure) => return Err(failure),
        };
        let is_in_json = config.log.format == LogFormat::Json;
        let verbose = match global.verbose {
            0 => LogLevel::Error,
            1 => LogLevel::Debug,
            _ => LogLevel::Trace,
        };
        config.log.level = config.log.level.max(verbose);
        kafka::bound_batches();
        // Refused only when somebody in this process logs already.
        let _ = telemetry::init_log(&config.log);
        let unstarted = |error| Failure::new(Exit::Internal, Unstarted(error));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .enable_all()
            .build()
            .map_err(unstarted)?;
        let again = || {
            let mut config = global.read(flags.clone())?;
            config.log.level = config.log.level.max(verbose);
            Ok(config)
        };
        let ended = runtime.block_on(serve(config, again));
        runtime.shutdown_timeout(RUNTIME_STOP_MAX);
        ended.or_else(|failure| if is_in_json { end(failure) } else { Err(failure) })
    }
}

async fn serve(config: Config, again: impl Fn() -> Result<Config, ConfigErrors>) -> Outcome {
    let bound = Duration::from_millis(config.drain.0) + STOP_MAX;
    let listen = |kind| signal(kind).map_err(|e| Failure::new(Exit::Internal, Unstarted(e)));
    let (mut terminate, mut interrupt) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = async move {
        let first = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = first, "stopping; a second signal ends at once");
        end_by(bound);
        let at = Instant::now();
        tokio::spawn(async move {
            // `timeout` sends its signal to its child and then to the group of both.
            while {
                either(&mut terminate, &mut interrupt).await;
                at.elapsed() < ONE_SIGNAL
            } {}
            tracing::warn!("ended by a second signal; what was in flight is taken over by others");
            std::process::exit(128 + first);
        });
    };
    let mut hangup = listen(SignalKind::hangup())?;
    let (reload, reloads) = mpsc::channel(1);
    // Read at a signal and not whenever the file changes: it may be half written then.
    let reloading = async {
        while hangup.recv().await.is_some() {
            match again() {
                Ok(config) => {
                    let _ = reload.send(config).await;
                }
                Err(ConfigErrors(all)) => {
                    for invalid in all {
                        tracing::error!(%invalid, "configuration not read again; nothing changes");
                    }
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = app::run_reloading(config, reloads, stop) => ended,
        () = reloading => Ok(()),
    };
    match ended {
        Ok(()) => Ok(Exit::Ok),
        Err(error) => Err(Failure::new(Exit::from(&error), error)),
    }
}

/// Ends the process when stopping takes longer than that: a Kafka client that is closed can hang. What was in flight is
/// taken over by others.
fn end_by(bound: Duration) {
    let ended = std::thread::Builder::new().name("wc-end".into()).spawn(move || {
        std::thread::sleep(bound);
        tracing::error!("stopping takes too long, the process ends now");
        // Ending, too, can hang: handlers run then, beside threads that still use what these clean up.
        let killed = std::thread::Builder::new().name("wc-kill".into()).spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            let _ = rustix::process::kill_process(rustix::process::getpid(), Kill::KILL);
        });
        drop(killed);
        std::process::exit(Exit::Internal as i32);
    });
    drop(ended);
}

/// The number of the signal that came first.
async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    }
}
