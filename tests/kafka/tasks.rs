//! Tasks, through the binary on a real Kafka: what callers are told, and what the services that are called see.

mod before;
mod calls;
mod client;
mod commands;
mod crashes;
mod deleted;
mod described;
mod feedback;
mod follow_ups;
mod forged;
mod grpc;
mod grpc_calls;
mod grpc_health;
mod grpc_projects;
mod grpc_runs;
mod grpc_schedules;
mod limits;
mod misbehaving;
mod payloads;
mod quotas;
mod refused;
mod run_executors;
mod schedules;
mod targets;
mod tls;
mod tokens;

use serde_json::Value;
use waterclock::engine::task::id::TaskId;
use waterclock::kafka::Roster;

use crate::support::tasks::{Api, command, is_final, task, turns, with};
use crate::support::{Fixture, Launch, Mode, Process, eventually};

pub const LANES: u16 = 4;

pub fn fixture(test: &str) -> Fixture {
    Fixture::with(test, |request| request.lanes = Some(LANES))
}

/// A process with these roles; its worker may call loopback.
pub fn launch<'a>(fixture: &'a Fixture, data: &str, roles: &str) -> Launch<'a> {
    launch_for(fixture, data, roles, "127.0.0.0/8")
}

/// The same; its worker may call this network.
fn launch_for<'a>(fixture: &'a Fixture, data: &str, roles: &str, network: &str) -> Launch<'a> {
    let launch = fixture.launch(Mode::ExactlyOnce).data(data).arg("--roles").arg(roles);
    launch.config(&format!("[callbacks]\nnetworks = [\"{network}\"]\n"))
}

/// Puts a service of a project.
#[track_caller]
pub fn put_service(api: &Api, project: &str, service: &str, settings: &Value) {
    let path = format!("/v1/projects/{project}/services/{service}");
    let (status, told) = api.answered("PUT", &path, Some(settings));
    assert_eq!(status, 200, "{told}");
}

/// Partitions of tasks that the worker of a process has taken over last.
fn partitions(worker: &Process) -> usize {
    let log = worker.log();
    let taken = log.lines().rfind(|line| line.contains("worker has taken partitions over"));
    let count =
        taken.and_then(|line| line.split_once("partitions=")?.1.split(' ').next()?.parse().ok());
    count.unwrap_or_default()
}

/// Waits until each has partitions of the workers' group, and none has another's.
#[track_caller]
pub fn share(workers: &[&Process]) {
    eventually("all workers have partitions", || {
        let owned: Vec<usize> = workers.iter().map(|worker| partitions(worker)).collect();
        let all: usize = owned.iter().sum();
        let is_shared = all == usize::from(LANES) && !owned.contains(&0);
        if is_shared { Ok(()) } else { Err(format!("{owned:?}")) }
    });
}

/// Which of these processes owns the lane of a task, a run or a schedule.
#[track_caller]
pub fn owner_of(fixture: &Fixture, id: &str, processes: &[&Process]) -> usize {
    let lane = TaskId::parse(id).expect("an id").lane_of(LANES);
    let meta = fixture.names.meta();
    let addresses: Vec<_> = processes.iter().map(|process| process.address().ok()).collect();
    eventually("its lane has an owner", || {
        let roster = Roster::read(&fixture.connection, &meta, fixture.namespace());
        let roster = roster.map_err(|error| error.to_string())?;
        let owner = roster.owner(lane).ok_or("nobody")?;
        let found = addresses.iter().position(|of| of.as_deref() == Some(&*owner.address));
        found.ok_or_else(|| format!("{} of {addresses:?}", owner.address))
    })
}

/// Waits until a process has all lanes: it answers for them then.
#[track_caller]
pub fn has_all_lanes(process: &Process) {
    eventually("it has all lanes", || match process.lanes() {
        lanes if lanes == usize::from(LANES) => Ok(()),
        lanes => Err(lanes.to_string()),
    });
}

/// Waits until two processes have half of the lanes each.
#[track_caller]
pub fn share_lanes(two: [&Process; 2]) {
    eventually("the lanes are shared", || {
        let own = two.map(Process::lanes);
        let half = usize::from(LANES) / 2;
        if own == [half; 2] { Ok(()) } else { Err(format!("{own:?}")) }
    });
}
