//! F11 to F14: the network between the process and its brokers; the brokers reach each other, and others reach them.

use std::time::{Duration, Instant};

use crate::load::mode;
use crate::one::held::offsets_come_in_the_next_transaction;
use crate::support::{Hold, Mode, Nodes, eventually};

use super::{Bed, Through, row};

/// When the network is whole again: a request that is on its way has to time out (8 s), and the lanes are taken over again.
const HEALED: Duration = Duration::from_secs(15);

/// Producers that were renewed.
fn renewed(bed: &Bed<'_>) -> f64 {
    bed.process.metric("waterclock_producers_renewed_total")
}

/// Waits for the rest of a cut, once it has bitten.
fn for_so_long(bed: &Bed<'_>, long: Duration) {
    let since = Instant::now();
    eventually("something cannot pass", || {
        if bed.proxy().stalled() > 0 { Ok(()) } else { Err(String::new()) }
    });
    std::thread::sleep(long.saturating_sub(since.elapsed()));
    bed.proxy().heal();
    bed.load.healed();
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f11_one_broker_cannot_be_reached_for_30_s() {
    row("f11", Through::TheProxy, HEALED, |bed| {
        let node = bed.coordinator();
        bed.proxy().weather(Bed::behind(node), |weather| {
            (weather.cut_to_broker, weather.cut_to_client) = (true, true);
        });
        for_so_long(bed, Duration::from_secs(30));
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f12_no_broker_can_be_reached_beyond_the_transaction_timeout() {
    row("f12", Through::TheProxy, HEALED, |bed| {
        let before = renewed(bed);
        bed.proxy().everywhere(|weather| {
            (weather.cut_to_broker, weather.cut_to_client) = (true, true);
        });
        // Session 6 s, transaction 10 s, and the coordinator's look a second later.
        for_so_long(bed, Duration::from_secs(30));
        eventually("a producer was renewed", || {
            if renewed(bed) > before { Ok(()) } else { Err(String::new()) }
        });
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f13_replies_are_lost_for_20_s() {
    row("f13", Through::TheProxy, HEALED, |bed| {
        let before = renewed(bed);
        bed.proxy().everywhere(|weather| weather.cut_to_client = true);
        for_so_long(bed, Duration::from_secs(20));
        eventually("a commit of unknown outcome made a producer dirty", || {
            if renewed(bed) > before { Ok(()) } else { Err(String::new()) }
        });
    });
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f14_connections_are_reset_again_and_again() {
    row("f14", Through::TheProxy, HEALED, |bed| {
        let before = renewed(bed);
        for _ in 0..15 {
            for node in &bed.nodes.all {
                bed.proxy().reset(Bed::behind(*node));
            }
            std::thread::sleep(Duration::from_secs(2));
        }
        bed.load.healed();
        let reset = bed.proxy().was_reset();
        println!("f14: {reset} connections were reset");
        assert!(reset >= 45, "{reset} connections were reset");
        // Without one librdkafka sends again what was not answered.
        if mode() == Mode::ExactlyOnce {
            assert!(
                renewed(bed) > before,
                "a disconnect in a transaction makes its producer dirty"
            );
        }
    });
}

/// Where another broker is there, librdkafka makes no error of it.
#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f17_offsets_whose_connection_ended_move_nothing_back_later() {
    Nodes::ours().heal();
    offsets_come_in_the_next_transaction("f17-ended", Hold::hang_up);
}
