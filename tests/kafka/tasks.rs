//! Tasks, through the binary on a real Kafka: what callers are told, and what the services that are called see.

mod before;
mod calls;
mod crashes;
mod forged;
mod limits;
mod misbehaving;
mod refused;
mod targets;

use crate::support::tasks::{Api, is_final, task, turns, with};
use crate::support::{Fixture, Launch, Mode};

const LANES: u16 = 4;

fn fixture(test: &str) -> Fixture {
    Fixture::with(test, |request| request.lanes = Some(LANES))
}

/// A process with these roles; its worker may call loopback.
fn launch<'a>(fixture: &'a Fixture, data: &str, roles: &str) -> Launch<'a> {
    launch_for(fixture, data, roles, "127.0.0.0/8")
}

/// The same; its worker may call this network.
fn launch_for<'a>(fixture: &'a Fixture, data: &str, roles: &str, network: &str) -> Launch<'a> {
    let launch = fixture.launch(Mode::ExactlyOnce).data(data).arg("--roles").arg(roles);
    launch.config(&format!("[callbacks]\nnetworks = [\"{network}\"]\n"))
}
