//! Rows on a cluster of three: `scripts/faults --brokers 3`.
//!
//! One after the other, on one cluster, which each of them leaves whole. Own topics and targets have three replicas, two of
//! which must be in sync. The fault of most rows goes on while recovery is awaited: what counts is the time from the
//! fault itself.

mod away;
mod brokers;
mod clocks;
mod groups;
mod network;
mod weak;

use std::sync::Arc;
use std::time::Duration;

use waterclock::engine::Millis;

use crate::load::{Load, Mix, mode};
use crate::support::{Fixture, Nodes, Process, Proxy};

/// A cluster with one process and a load.
struct Bed<'a> {
    nodes: &'a Nodes,
    fixture: &'a Fixture,
    process: &'a Process,
    load: &'a Load<'a>,
    proxy: Option<&'a Proxy>,
}

impl Bed<'_> {
    /// The proxy in front of the brokers.
    fn proxy(&self) -> &Proxy {
        self.proxy.expect("this row asked for it")
    }

    /// Where the proxy has a node.
    fn behind(node: i32) -> usize {
        node as usize - 1
    }

    /// The broker that coordinates the process's group.
    fn coordinator(&self) -> i32 {
        self.nodes.group_coordinator(self.fixture.namespace())
    }
}

/// How a row reaches the brokers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    Nothing,
    TheProxy,
}

/// Runs a load on one process that owns all lanes, does what `fault` does, and checks what came of it: everything that
/// was due is there within `recovery` of [`Load::healed`], which `fault` calls.
#[track_caller]
fn row(name: &str, through: Through, recovery: Duration, fault: impl FnOnce(&Bed<'_>)) {
    let nodes = Nodes::ours();
    nodes.heal();
    let proxy: Option<Arc<Proxy>> = (through == Through::TheProxy).then(Proxy::shared);
    // With a tier that is let go when all is over: what was done to hops shows then.
    let holds = [1_000, 2_000, 5_000, 20_000].map(Millis).to_vec();
    let fixture = Fixture::with(name, |request| request.holds = Some(holds));
    let mut launch = fixture.launch(mode());
    if let Some(proxy) = &proxy {
        launch = launch.brokers(&proxy.brokers);
    }
    let mut process = launch.start();
    let mut mix = Mix::default();
    mix.delays.push(25_000);
    let load = Load::begin(&fixture, mix);
    load.cancel_through(&[&process]);
    load.wait_for_more(120);
    fault(&Bed {
        nodes: &nodes,
        fixture: &fixture,
        process: &process,
        load: &load,
        proxy: proxy.as_deref(),
    });
    load.wait_for_more(100);
    let history = load.finish_within(name, Duration::from_secs(120));
    // What it was to survive is mended only now.
    nodes.heal();
    process.stop_well();
    println!(
        "{name}: {} batches failed, lanes were taken over {} times",
        process.log().matches("renewing the producer").count(),
        process.log().matches("lanes taken over").count(),
    );
    crate::checkers::check(&history, crate::checkers::Wish { recovery });
}
