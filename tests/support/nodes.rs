//! The brokers of this run's cluster: to be killed, frozen, stopped and healed.
//!
//! # Invariants
//! 1. [`Nodes::heal`] leaves every node running and every partition with all of its replicas in sync.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::{eventually_within, variable};

/// How long brokers may take to be whole again.
const HEAL_MAX: Duration = Duration::from_secs(120);

/// The nodes of a cluster.
pub struct Nodes {
    script: String,
    dir: String,
    /// Numbers of its nodes, from 1.
    pub all: Vec<i32>,
    client: BaseConsumer,
}

impl Nodes {
    /// The one of the environment.
    #[track_caller]
    pub fn ours() -> Self {
        let count: i32 = variable("WATERCLOCK_KAFKA_BROKERS").parse().expect("a number");
        let client = ClientConfig::new()
            .set("bootstrap.servers", variable("KAFKA_BOOTSTRAP"))
            .set("group.id", "asks-who-leads")
            .set("socket.timeout.ms", "3000")
            .set("reconnect.backoff.max.ms", "500")
            .create()
            .expect("a client");
        Self {
            script: variable("WATERCLOCK_KAFKA_SCRIPT"),
            dir: variable("WATERCLOCK_KAFKA_DIR"),
            all: (1..=count).collect(),
            client,
        }
    }

    fn order(&self, words: &[&str]) -> bool {
        self.order_with(words, &[])
    }

    fn order_with(&self, words: &[&str], environment: &[(&str, String)]) -> bool {
        let mut command = Command::new(&self.script);
        command.args(words).args(["--dir", &self.dir]);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().expect("scripts/kafka runs").success()
    }

    #[track_caller]
    fn node(&self, what: &str, node: i32) {
        assert!(self.order(&[what, &node.to_string()]), "scripts/kafka {what} {node}");
    }

    /// `kill -9`.
    pub fn kill(&self, node: i32) {
        self.node("kill", node);
    }

    /// SIGTERM, and waits until it has ended.
    pub fn stop(&self, node: i32) {
        self.node("stop", node);
    }

    /// SIGSTOP.
    pub fn pause(&self, node: i32) {
        self.node("pause", node);
    }

    /// SIGCONT.
    pub fn resume(&self, node: i32) {
        self.node("resume", node);
    }

    /// Starts one that does not run, and waits until the others see it.
    pub fn restart(&self, node: i32) {
        self.restart_with(node, &[]);
    }

    /// The same in an environment.
    #[track_caller]
    pub fn restart_with(&self, node: i32, environment: &[(&str, String)]) {
        let words = ["restart", &node.to_string()];
        assert!(self.order_with(&words, environment), "scripts/kafka restart {node}");
    }

    /// Everything runs again, and nothing lags behind.
    #[track_caller]
    pub fn heal(&self) {
        for node in &self.all {
            self.order(&["resume", &node.to_string()]);
        }
        for node in &self.all {
            if !self.order(&["status", &node.to_string()]) {
                self.restart(*node);
            }
        }
        eventually_within(HEAL_MAX, "all replicas are in sync", || {
            let lacking: Vec<String> = self
                .partitions()?
                .into_iter()
                .filter(|(_, found)| found.leader < 0 || found.isr < found.replicas)
                .map(|((topic, partition), _)| format!("{topic}/{partition}"))
                .collect();
            if lacking.is_empty() { Ok(()) } else { Err(lacking.join(" ")) }
        });
    }

    /// Every partition, and who has it.
    ///
    /// # Errors
    /// Nobody answered.
    pub fn partitions(&self) -> Result<BTreeMap<(String, i32), Replicas>, String> {
        let metadata =
            self.client.fetch_metadata(None, Duration::from_secs(5)).map_err(|e| e.to_string())?;
        let of_topic = |topic: &rdkafka::metadata::MetadataTopic| -> Vec<_> {
            let of = |p: &rdkafka::metadata::MetadataPartition| Replicas {
                leader: p.leader(),
                replicas: p.replicas().len(),
                isr: p.isr().len(),
            };
            let name = topic.name().to_owned();
            topic.partitions().iter().map(|p| ((name.clone(), p.id()), of(p))).collect()
        };
        Ok(metadata.topics().iter().flat_map(of_topic).collect())
    }

    /// Who leads a partition.
    #[track_caller]
    pub fn leader(&self, topic: &str, partition: i32) -> i32 {
        eventually_within(HEAL_MAX, &format!("{topic}/{partition} has a leader"), || {
            let partitions = self.partitions()?;
            match partitions.get(&(topic.to_owned(), partition)) {
                Some(found) if found.leader >= 0 => Ok(found.leader),
                other => Err(format!("{other:?}")),
            }
        })
    }

    /// The coordinator of a group.
    #[track_caller]
    pub fn group_coordinator(&self, group: &str) -> i32 {
        self.coordinator("__consumer_offsets", group)
    }

    /// The coordinator of a transactional id.
    #[track_caller]
    pub fn transaction_coordinator(&self, id: &str) -> i32 {
        self.coordinator("__transaction_state", id)
    }

    fn coordinator(&self, topic: &str, id: &str) -> i32 {
        let count = eventually_within(HEAL_MAX, &format!("{topic} is there"), || {
            let count = self.partitions()?.keys().filter(|(name, _)| name == topic).count();
            if count > 0 { Ok(count) } else { Err(String::new()) }
        });
        // As Java's String.hashCode does.
        let hash = id
            .encode_utf16()
            .fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
        self.leader(topic, (hash & i32::MAX) % count as i32)
    }
}

/// The brokers that have a partition.
#[derive(Clone, Copy, Debug)]
pub struct Replicas {
    /// Below 0: nobody.
    pub leader: i32,
    pub replicas: usize,
    pub isr: usize,
}
