//! The settings of a lane thread's consumer: what our promises rest on.

use super::Plan;

/// Those of the consumer of this name.
pub(super) fn settings(plan: &Plan, client_id: &str) -> rdkafka::ClientConfig {
    let mut config = plan.connection.client(client_id);
    let session_ms = plan.session_timeout.as_millis();
    config
        .set("group.id", &plan.namespace)
        // 848's protocol has a fatal error after a slow poll in this librdkafka (faults 6, 10).
        .set("group.protocol", "classic")
        // Equal partition numbers of all topics to one member: the others do not (core notes 2).
        .set("partition.assignment.strategy", "range")
        .set("session.timeout.ms", session_ms.to_string())
        .set("heartbeat.interval.ms", (session_ms / 10).clamp(200, 1_000).to_string())
        .set("max.poll.interval.ms", "180000")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("allow.auto.create.topics", "false")
        .set("fetch.queue.backoff.ms", "5")
        .set("fetch.wait.max.ms", if plan.embedded { "10" } else { "500" })
        .set("fetch.message.max.bytes", "1048576")
        .set("fetch.max.bytes", "16777216")
        .set("receive.message.max.bytes", "100000000")
        .set("queued.max.messages.kbytes", "16384");
    config
}
