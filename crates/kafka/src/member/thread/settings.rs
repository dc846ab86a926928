//! The settings of a member's consumer, on which our promises rest.

use std::time::Duration;

use super::Plan;

/// Between two heartbeats, by which a member learns that another came or left: the others' lanes rest meanwhile.
/// librdkafka's main thread looks at it twice a second at the least; [`Session`](super::session::Session) wakes it.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(200);

/// Those of the consumer of this name; `group_instance_id`: that of a static member, which gets its lanes back after a restart.
pub(super) fn settings(
    plan: &Plan,
    client_id: &str,
    group_instance_id: &str,
) -> rdkafka::ClientConfig {
    let mut config = plan.connection.consumer(client_id);
    if !plan.embedded {
        config.set("group.instance.id", group_instance_id);
    }
    config
        .set("group.id", &plan.group)
        // 848's protocol has a fatal error after a slow poll in this librdkafka (faults 6, 10).
        .set("group.protocol", "classic")
        // Equal partition numbers of all topics to one member, as the group's own tools show them; the others do not. Which
        // lanes a member has is told by the main intake alone (`rebalance`).
        .set("partition.assignment.strategy", "range")
        .set("session.timeout.ms", plan.session_timeout.as_millis().to_string())
        .set("heartbeat.interval.ms", HEARTBEAT.as_millis().to_string())
        .set("max.poll.interval.ms", poll_interval_ms())
        .set("isolation.level", "read_committed")
        .set("fetch.queue.backoff.ms", "5")
        .set("fetch.wait.max.ms", if plan.embedded { "10" } else { "500" })
        // librdkafka makes an answer into records as a whole, whatever waits already. For the smallest of records it needs
        // fifty times what was read (ADR 0019).
        .set("fetch.message.max.bytes", "1048576")
        .set("fetch.max.bytes", "2097152")
        .set("queued.max.messages.kbytes", "16384")
        .set("receive.message.max.bytes", "100000000")
        // A response may inflate to too much for one: the rest of it is fetched again.
        .set("fetch.error.backoff.ms", "100");
    config
}

/// Taking lanes over from a crashed member may hold a thread for more than a minute.
fn poll_interval_ms() -> &'static str {
    fail::fail_point!("short_poll_interval", |_| "7000");
    "180000"
}
