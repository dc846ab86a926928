//! Topics of a measurement: made before it, gone after it.

use std::time::Duration;

use rdkafka::admin::AdminOptions;

use crate::client::Connection;
use crate::topics::{self, Kind, Names, TopicSpec};

/// Longest wait for the deletion of the groups.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Creates topics with the broker's time as that of every record, replicated as waterclock's own are.
///
/// # Errors
/// Kafka refused one; those made before stay.
pub fn create(
    connection: &Connection,
    names: &[String],
    partitions: u16,
) -> Result<(), topics::Error> {
    let brokers = topics::inspect(connection, &Names::new(&names.concat()))?.brokers.len();
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let specs: Vec<TopicSpec> = names
        .iter()
        .map(|name| TopicSpec {
            name: name.clone(),
            kind: Kind::Intake,
            partitions: i32::from(partitions),
            replication: brokers.clamp(1, 3) as i32,
            must: [setting("message.timestamp.type", "LogAppendTime")].into(),
            advice: [setting("retention.ms", "-1")].into(),
        })
        .collect();
    topics::create(connection, &specs).map(|_| ())
}

/// Deletes the groups, and every topic whose name begins with `prefix`.
///
/// # Errors
/// Kafka refused one; others may be gone.
pub fn delete(
    connection: &Connection,
    prefix: &str,
    groups: &[String],
) -> Result<usize, topics::Error> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| topics::Error::Kafka { what, source }
    };
    let admin = connection.admin("waterclock-bench").map_err(failed("make an admin client"))?;
    let metadata =
        admin.inner().fetch_metadata(None, ANSWER_MAX).map_err(failed("list the topics"))?;
    let ours: Vec<String> = metadata
        .topics()
        .iter()
        .map(|topic| topic.name().to_owned())
        .filter(|name| name.starts_with(prefix))
        .collect();
    if !ours.is_empty() {
        topics::delete(connection, &ours)?;
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let options = AdminOptions::new().request_timeout(Some(ANSWER_MAX));
    // A group that was never used is not there, and an empty one goes by itself in time.
    let deleting = admin.delete_groups(&groups, &options);
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build()
        && let Err(error) = runtime.block_on(deleting)
    {
        tracing::debug!(%error, "groups were not deleted");
    }
    Ok(ours.len())
}
