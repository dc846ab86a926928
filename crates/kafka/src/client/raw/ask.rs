//! Questions and orders to the brokers that rdkafka has no safe call for: the ends of many partitions in one request to each
//! leader, who leads the cluster, what the members of a group own, the ids and partitions of many topics, and what our
//! principal may do. And those for which rdkafka's admin client has a thread of its own: settings of topics, and to delete
//! records.
//!
//! # Invariants
//! 1. Whatever librdkafka gives is copied before the event that it came with is destroyed.
//! 2. Queue, options, lists and event are destroyed exactly once, and before the client.
//! 3. Every question ends within the time given to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::time::Duration;

use super::super::errors;
use rdkafka::ClientContext;
use rdkafka::bindings as rdsys;
use rdkafka::client::Client;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdsys::rd_kafka_AclOperation_t as Operation;
use rdsys::rd_kafka_admin_op_t as AdminOp;
use rdsys::rd_kafka_consumer_group_state_t as State;
use rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR as NO_ERROR;
use waterclock_engine::UnixMillis;

/// No offset at all.
const INVALID_OFFSET: i64 = rdsys::RD_KAFKA_OFFSET_INVALID as i64;

/// One end of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The first offset that there is.
    First,
    /// One past what a `read_committed` reader may read: an open transaction holds it back.
    Stable,
    /// One past the last record, committed or not.
    Last,
    /// The first offset that has this time or a later one, committed or not; -1: nothing is as late.
    Since(UnixMillis),
}

/// One end of one partition, or why it is not known.
pub(crate) type EndOf = (String, i32, Result<i64, RDKafkaErrorCode>);

/// What a principal may do with a resource, as the broker computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Fetch, or be a member of the group.
    Read,
    /// Produce.
    Write,
    /// Make topics.
    Create,
    /// Delete records or the whole.
    Delete,
    /// Change it.
    Alter,
    /// See that it is there.
    Describe,
    /// Read settings.
    DescribeConfigs,
    /// Change settings.
    AlterConfigs,
}

impl Right {
    /// As `kafka-acls.sh` spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Write => "Write",
            Self::Create => "Create",
            Self::Delete => "Delete",
            Self::Alter => "Alter",
            Self::Describe => "Describe",
            Self::DescribeConfigs => "DescribeConfigs",
            Self::AlterConfigs => "AlterConfigs",
        }
    }
}

/// All rights on one resource.
pub type Rights = BTreeSet<Right>;

/// A topic's rights; `Err` where the broker would not describe it.
pub(crate) type RightsOf = (String, Result<Rights, RDKafkaErrorCode>);

/// What a topic is made of, and what our principal may do with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) partitions: Vec<Part>,
    /// Empty where the broker does not tell rights.
    pub(crate) rights: Rights,
}

/// A partition of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: i32,
    pub(crate) has_leader: bool,
    /// Replicas in sync.
    pub(crate) in_sync: usize,
}

/// A member of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// `client.id`: names instance, thread and start.
    pub client_id: String,
    /// The address that it comes from.
    pub host: String,
    /// Topic and partition of all that it owns.
    pub owns: Vec<(String, i32)>,
}

/// A group of consumers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Assigned and at work: not in a rebalance.
    pub is_stable: bool,
    /// Its members; empty when nobody runs.
    pub members: Vec<Member>,
    /// What our principal may do with it.
    pub rights: Rights,
}

struct Queue(*mut rdsys::rd_kafka_queue_t);

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made by rd_kafka_queue_new, destroyed once, while the client is borrowed.
        unsafe { rdsys::rd_kafka_queue_destroy(self.0) }
    }
}

struct Options(*mut rdsys::rd_kafka_AdminOptions_t);

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: made by rd_kafka_AdminOptions_new, destroyed once.
        unsafe { rdsys::rd_kafka_AdminOptions_destroy(self.0) }
    }
}

/// An answer; what is read from it must be copied while it lives.
pub(super) struct Event(pub(super) *mut rdsys::rd_kafka_event_t);

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: given by rd_kafka_queue_poll, destroyed once.
        unsafe { rdsys::rd_kafka_event_destroy(self.0) }
    }
}

/// How long a leader waits for its followers before it says that records are deleted. It has deleted its own by then, and its
/// followers delete theirs with the next fetch. A leader that waits answers nothing else on that connection.
const FOLLOWERS_MAX_MS: i32 = 0;

/// What kind of question, and what is added to its options.
enum Kind {
    Ends(End),
    Settings,
    Delete,
    Topics,
    Groups,
}

/// Asks one thing and waits for the answer.
///
/// # Safety
/// `call` may use the options and the queue only during the call, and must hand the queue to one admin request.
unsafe fn ask<C: ClientContext>(
    client: &Client<C>,
    kind: &Kind,
    within: Duration,
    call: impl FnOnce(
        *mut rdsys::rd_kafka_t,
        *const rdsys::rd_kafka_AdminOptions_t,
        *mut rdsys::rd_kafka_queue_t,
    ),
) -> Result<Event, KafkaError> {
    let native = client.native_ptr();
    let within_ms = ms_of(within);
    let op = match kind {
        Kind::Ends(_) => AdminOp::RD_KAFKA_ADMIN_OP_LISTOFFSETS,
        Kind::Settings => AdminOp::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS,
        Kind::Delete => AdminOp::RD_KAFKA_ADMIN_OP_DELETERECORDS,
        Kind::Topics => AdminOp::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        Kind::Groups => AdminOp::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS,
    };
    // SAFETY: the client is alive; options and queue are ours until dropped; an error of a setter is ours to destroy.
    let event = unsafe {
        let options = Options(rdsys::rd_kafka_AdminOptions_new(native, op));
        let queue = Queue(rdsys::rd_kafka_queue_new(native));
        rdsys::rd_kafka_AdminOptions_set_request_timeout(options.0, within_ms, ptr::null_mut(), 0);
        let refused = match kind {
            Kind::Ends(end) => rdsys::rd_kafka_AdminOptions_set_isolation_level(
                options.0,
                if *end == End::Stable {
                    rdsys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED
                } else {
                    rdsys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED
                },
            ),
            Kind::Settings => ptr::null_mut(),
            // Its errors are for values that it does not take.
            Kind::Delete => {
                let ms = FOLLOWERS_MAX_MS;
                rdsys::rd_kafka_AdminOptions_set_operation_timeout(
                    options.0,
                    ms,
                    ptr::null_mut(),
                    0,
                );
                ptr::null_mut()
            }
            _ => rdsys::rd_kafka_AdminOptions_set_include_authorized_operations(options.0, 1),
        };
        if !refused.is_null() {
            let text = owned(rdsys::rd_kafka_error_string(refused));
            rdsys::rd_kafka_error_destroy(refused);
            return Err(KafkaError::AdminOpCreation(text));
        }
        call(native, options.0, queue.0);
        // The request has a time limit of its own; this one is for a client that does not keep it.
        rdsys::rd_kafka_queue_poll(queue.0, within_ms.saturating_add(2_000))
    };
    if event.is_null() {
        return Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut));
    }
    let event = Event(event);
    // SAFETY: the event lives.
    match unsafe { rdsys::rd_kafka_event_error(event.0) } {
        NO_ERROR => Ok(event),
        code => Err(KafkaError::AdminOp(code.into())),
    }
}

/// Copies a C string; null is empty.
///
/// # Safety
/// `text` is null or ends with a NUL and is valid during the call.
pub(super) unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text).to_string_lossy().into_owned() }
}

/// A list of librdkafka's as a slice; null is empty.
///
/// # Safety
/// `list` is null or valid for `count` elements during `'a`.
unsafe fn listed<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if list.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(list, count) }
}

/// The code of an error that belongs to an answer; `None` for no error.
///
/// # Safety
/// `error` is null or valid during the call.
unsafe fn code(error: *const rdsys::rd_kafka_error_t) -> Option<RDKafkaErrorCode> {
    // SAFETY: by this function's contract; null has code 0.
    match unsafe { rdsys::rd_kafka_error_code(error) } {
        NO_ERROR => None,
        code => Some(code.into()),
    }
}

fn rights(operations: &[Operation]) -> Rights {
    let right = |operation: &Operation| {
        Some(match operation {
            Operation::RD_KAFKA_ACL_OPERATION_READ => Right::Read,
            Operation::RD_KAFKA_ACL_OPERATION_WRITE => Right::Write,
            Operation::RD_KAFKA_ACL_OPERATION_CREATE => Right::Create,
            Operation::RD_KAFKA_ACL_OPERATION_DELETE => Right::Delete,
            Operation::RD_KAFKA_ACL_OPERATION_ALTER => Right::Alter,
            Operation::RD_KAFKA_ACL_OPERATION_DESCRIBE => Right::Describe,
            Operation::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS => Right::DescribeConfigs,
            Operation::RD_KAFKA_ACL_OPERATION_ALTER_CONFIGS => Right::AlterConfigs,
            _ => return None,
        })
    };
    operations.iter().filter_map(right).collect()
}

fn names(of: &[String]) -> Result<Vec<CString>, KafkaError> {
    of.iter().map(|name| CString::new(name.as_str()).map_err(KafkaError::from)).collect()
}

/// One end of each of these partitions, by one request (ListOffsets) to each leader. The crate has no other way to ask for
/// offsets. [`End::Stable`] is asked for as a reader of committed records (`read_committed`), all others are asked for as a
/// reader of all.
///
/// # Errors
/// No answer in time; nothing is known then.
pub(crate) fn ends<C: ClientContext>(
    client: &Client<C>,
    partitions: &[(String, i32)],
    end: End,
    within: Duration,
) -> Result<Vec<EndOf>, KafkaError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let spec = match end {
        End::First => rdsys::rd_kafka_OffsetSpec_t::RD_KAFKA_OFFSET_SPEC_EARLIEST as i64,
        End::Stable | End::Last => rdsys::rd_kafka_OffsetSpec_t::RD_KAFKA_OFFSET_SPEC_LATEST as i64,
        End::Since(time) => time.0.cast_signed(),
    };
    let mut topics = Vec::with_capacity(partitions.len());
    for (topic, partition) in partitions {
        topics.push((CString::new(topic.as_str())?, *partition));
    }
    // SAFETY: the list is ours, copied by the request, destroyed after it; the infos live as long as the event.
    unsafe {
        let list = rdsys::rd_kafka_topic_partition_list_new(topics.len() as i32);
        for (topic, partition) in &topics {
            let added = rdsys::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), *partition);
            (*added).offset = spec;
        }
        let answer = ask(client, &Kind::Ends(end), within, |native, options, queue| {
            rdsys::rd_kafka_ListOffsets(native, list, options, queue);
        });
        rdsys::rd_kafka_topic_partition_list_destroy(list);
        let event = answer?;
        let result = rdsys::rd_kafka_event_ListOffsets_result(event.0);
        if result.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage));
        }
        let mut count = 0;
        let infos = rdsys::rd_kafka_ListOffsets_result_infos(result, &raw mut count);
        let told = listed(infos.cast_const(), count).iter().map(|info| {
            let at = &*rdsys::rd_kafka_ListOffsetsResultInfo_topic_partition(*info);
            let offset = match at.err {
                // What librdkafka puts there before it asks, and leaves there without an error where a leader is silent.
                NO_ERROR if at.offset == INVALID_OFFSET => Err(errors::NO_ANSWER),
                NO_ERROR => Ok(at.offset),
                code => Err(code.into()),
            };
            (owned(at.topic), at.partition, offset)
        });
        Ok(told.collect())
    }
}

/// Deletes the records before an offset in each of these partitions, by one request to each leader; which leaders said why not.
///
/// # Errors
/// No answer in time; what was deleted is not known.
pub(crate) fn delete_before<C: ClientContext>(
    client: &Client<C>,
    before: &[(String, i32, i64)],
    within: Duration,
) -> Result<Vec<(String, i32, RDKafkaErrorCode)>, KafkaError> {
    let mut topics = Vec::with_capacity(before.len());
    for (topic, partition, offset) in before {
        topics.push((CString::new(topic.as_str())?, *partition, *offset));
    }
    // SAFETY: list and order are ours, copied by the request, and destroyed after it; the offsets live as long as the event.
    unsafe {
        let list = rdsys::rd_kafka_topic_partition_list_new(topics.len() as i32);
        for (topic, partition, offset) in &topics {
            let added = rdsys::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), *partition);
            (*added).offset = *offset;
        }
        let mut order = rdsys::rd_kafka_DeleteRecords_new(list);
        rdsys::rd_kafka_topic_partition_list_destroy(list);
        let answer = ask(client, &Kind::Delete, within, |native, options, queue| {
            rdsys::rd_kafka_DeleteRecords(native, &raw mut order, 1, options, queue);
        });
        rdsys::rd_kafka_DeleteRecords_destroy(order);
        let event = answer?;
        let result = rdsys::rd_kafka_event_DeleteRecords_result(event.0);
        if result.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage));
        }
        let told = rdsys::rd_kafka_DeleteRecords_result_offsets(result);
        let told = listed((*told).elems.cast_const(), (*told).cnt as usize).iter();
        let failed = told.filter(|of| of.err != NO_ERROR);
        Ok(failed.map(|of| (owned(of.topic), of.partition, of.err.into())).collect())
    }
}

/// All settings of a topic that have a value.
pub(crate) type Settings = BTreeMap<String, String>;

/// The settings of each of these topics, by one request for all; `Err` where the broker would not tell.
///
/// # Errors
/// No answer in time.
pub(crate) fn settings<C: ClientContext>(
    client: &Client<C>,
    of: &[String],
    within: Duration,
) -> Result<Each<Settings>, KafkaError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let names = names(of)?;
    // SAFETY: the resources are ours, copied by the request, and destroyed after it; what the result points to lives as long as
    // the event.
    unsafe {
        let topic = rdsys::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC;
        let mut resources: Vec<_> = names
            .iter()
            .map(|name| rdsys::rd_kafka_ConfigResource_new(topic, name.as_ptr()))
            .collect();
        let (at, count) = (resources.as_mut_ptr(), resources.len());
        let answer = ask(client, &Kind::Settings, within, |native, options, queue| {
            rdsys::rd_kafka_DescribeConfigs(native, at, count, options, queue);
        });
        rdsys::rd_kafka_ConfigResource_destroy_array(at, count);
        let event = answer?;
        let result = rdsys::rd_kafka_event_DescribeConfigs_result(event.0);
        if result.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage));
        }
        let mut count = 0;
        let found = rdsys::rd_kafka_DescribeConfigs_result_resources(result, &raw mut count);
        let told = listed(found.cast_const(), count).iter().map(|resource| {
            let name = owned(rdsys::rd_kafka_ConfigResource_name(*resource));
            let error = rdsys::rd_kafka_ConfigResource_error(*resource);
            if error != NO_ERROR {
                return (name, Err(error.into()));
            }
            let mut count = 0;
            let entries = rdsys::rd_kafka_ConfigResource_configs(*resource, &raw mut count);
            let entries = listed(entries.cast_const(), count).iter().filter_map(|entry| {
                let value = rdsys::rd_kafka_ConfigEntry_value(*entry);
                let name = owned(rdsys::rd_kafka_ConfigEntry_name(*entry));
                (!value.is_null()).then(|| (name, owned(value)))
            });
            (name, Ok(entries.collect()))
        });
        Ok(told.collect())
    }
}

/// What our principal may do with each of these topics.
///
/// # Errors
/// No answer in time.
pub(crate) fn topics<C: ClientContext>(
    client: &Client<C>,
    of: &[String],
    within: Duration,
) -> Result<Vec<RightsOf>, KafkaError> {
    // SAFETY: the description lives during the call.
    describe(client, of, within, |topic| unsafe { rights_of(topic) })
}

/// What our principal may do with a described topic.
///
/// # Safety
/// `topic` is valid during the call.
unsafe fn rights_of(topic: *const rdsys::rd_kafka_TopicDescription_t) -> Rights {
    let mut count = 0;
    // SAFETY: by this function's contract; the list lives as long as the description.
    unsafe {
        let list = rdsys::rd_kafka_TopicDescription_authorized_operations(topic, &raw mut count);
        rights(listed(list, count))
    }
}

/// What each of these topics is made of, by one request for all; `Err` where the broker would not tell. No topic is made by
/// that.
///
/// # Errors
/// No answer in time.
pub(crate) fn layouts<C: ClientContext>(
    client: &Client<C>,
    of: &[String],
    within: Duration,
) -> Result<Each<Layout>, KafkaError> {
    describe(client, of, within, |topic| {
        let mut count = 0;
        // SAFETY: the description lives during the call, and all that it points to as long as it.
        unsafe {
            let list = rdsys::rd_kafka_TopicDescription_partitions(topic, &raw mut count);
            let part = |part: &*const rdsys::rd_kafka_TopicPartitionInfo_t| {
                let leader = rdsys::rd_kafka_TopicPartitionInfo_leader(*part);
                let mut in_sync = 0;
                rdsys::rd_kafka_TopicPartitionInfo_isr(*part, &raw mut in_sync);
                Part {
                    id: rdsys::rd_kafka_TopicPartitionInfo_partition(*part),
                    has_leader: !leader.is_null() && rdsys::rd_kafka_Node_id(leader) >= 0,
                    in_sync,
                }
            };
            let partitions = listed(list.cast_const(), count).iter().map(part).collect();
            Layout { partitions, rights: rights_of(topic) }
        }
    })
}

/// What was asked of each topic or group, by its name; `Err` where the broker would not tell.
pub(crate) type Each<T> = Vec<(String, Result<T, RDKafkaErrorCode>)>;

/// The id of each of these topics, which another topic of the same name does not have; `Err` where the broker would not
/// describe it.
///
/// # Errors
/// No answer in time.
pub(crate) fn ids<C: ClientContext>(
    client: &Client<C>,
    of: &[String],
    within: Duration,
) -> Result<Each<String>, KafkaError> {
    describe(client, of, within, |topic| {
        // SAFETY: the description lives during the call, the id and its text as long as it.
        unsafe {
            let id = rdsys::rd_kafka_TopicDescription_topic_id(topic);
            if id.is_null() {
                return String::new();
            }
            owned(rdsys::rd_kafka_Uuid_base64str(id))
        }
    })
}

/// Describes topics, and takes one thing from each description, which lives during that call.
fn describe<C: ClientContext, T>(
    client: &Client<C>,
    of: &[String],
    within: Duration,
    take: impl Fn(*const rdsys::rd_kafka_TopicDescription_t) -> T,
) -> Result<Each<T>, KafkaError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let names = names(of)?;
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    // SAFETY: the names outlive the collection, which is destroyed after the request; the descriptions live as long as
    // the event.
    unsafe {
        let collection =
            rdsys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let answer = ask(client, &Kind::Topics, within, |native, options, queue| {
            rdsys::rd_kafka_DescribeTopics(native, collection, options, queue);
        });
        rdsys::rd_kafka_TopicCollection_destroy(collection);
        let event = answer?;
        let result = rdsys::rd_kafka_event_DescribeTopics_result(event.0);
        if result.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage));
        }
        let mut count = 0;
        let found = rdsys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let told = listed(found.cast_const(), count).iter().map(|topic| {
            let name = owned(rdsys::rd_kafka_TopicDescription_name(*topic));
            let told = match code(rdsys::rd_kafka_TopicDescription_error(*topic)) {
                Some(code) => Err(code),
                None => Ok(take(*topic)),
            };
            (name, told)
        });
        Ok(told.collect())
    }
}

/// Waits until a broker has answered something: from then on this client is connected.
///
/// # Errors
/// None answered in time, or it named no broker, as one does that has just come back.
pub(crate) fn reach<C: ClientContext>(
    client: &Client<C>,
    within: Duration,
) -> Result<(), KafkaError> {
    // Not `DescribeCluster`: librdkafka 2.12.1 ends the process where the answer names no broker.
    let mut metadata = ptr::null();
    // SAFETY: the client is alive. It asks for no topic, and gives metadata only if there is no error; they are destroyed once.
    let told = unsafe {
        let (all_topics, no_topic) = (0, ptr::null_mut());
        let told = rdsys::rd_kafka_metadata(
            client.native_ptr(),
            all_topics,
            no_topic,
            &raw mut metadata,
            ms_of(within),
        );
        if !metadata.is_null() {
            rdsys::rd_kafka_metadata_destroy(metadata);
        }
        told
    };
    if told == NO_ERROR { Ok(()) } else { Err(KafkaError::MetadataFetch(told.into())) }
}

/// Which broker leads the cluster; `None` when nobody has said so in time.
pub(crate) fn controller<C: ClientContext>(client: &Client<C>, within: Duration) -> Option<i32> {
    // SAFETY: the client is alive.
    let id = unsafe { rdsys::rd_kafka_controllerid(client.native_ptr(), ms_of(within)) };
    (id >= 0).then_some(id)
}

fn ms_of(within: Duration) -> i32 {
    i32::try_from(within.as_millis()).unwrap_or(i32::MAX)
}

/// One group: its members and what they own. A group that is not there has no members.
///
/// # Errors
/// No answer in time, or the broker does not let us see it.
pub(crate) fn group<C: ClientContext>(
    client: &Client<C>,
    name: &str,
    within: Duration,
) -> Result<Group, KafkaError> {
    let told = groups(client, &[name.to_owned()], within)?.pop();
    let (_, group) = told.ok_or(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage))?;
    group.map_err(KafkaError::AdminOp)
}

/// The same of each of these groups, by a request for each, of whichever protocol it is; `Err` where its broker would not tell. No name
/// may stand there twice.
///
/// # Errors
/// No answer in time.
pub(crate) fn groups<C: ClientContext>(
    client: &Client<C>,
    of: &[String],
    within: Duration,
) -> Result<Each<Group>, KafkaError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let names = names(of)?;
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    // SAFETY: the names outlive the request; what the result points to lives as long as the event.
    unsafe {
        let event = ask(client, &Kind::Groups, within, |native, options, queue| {
            rdsys::rd_kafka_DescribeConsumerGroups(
                native,
                pointers.as_mut_ptr(),
                pointers.len(),
                options,
                queue,
            );
        })?;
        let result = rdsys::rd_kafka_event_DescribeConsumerGroups_result(event.0);
        if result.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage));
        }
        let mut count = 0;
        let found = rdsys::rd_kafka_DescribeConsumerGroups_result_groups(result, &raw mut count);
        let told = listed(found.cast_const(), count).iter().map(|group| {
            let name = owned(rdsys::rd_kafka_ConsumerGroupDescription_group_id(*group));
            (name, described(*group))
        });
        Ok(told.collect())
    }
}

/// # Safety
/// `group` is valid during the call.
unsafe fn described(
    group: *const rdsys::rd_kafka_ConsumerGroupDescription_t,
) -> Result<Group, RDKafkaErrorCode> {
    // SAFETY: by this function's contract; the members and the list live as long as the group.
    unsafe {
        match code(rdsys::rd_kafka_ConsumerGroupDescription_error(group)) {
            None => {}
            Some(RDKafkaErrorCode::GroupIdNotFound) => return Ok(Group::default()),
            Some(code) => return Err(code),
        }
        let members = (0..rdsys::rd_kafka_ConsumerGroupDescription_member_count(group))
            .map(|at| member(rdsys::rd_kafka_ConsumerGroupDescription_member(group, at)));
        let members = members.collect();
        let mut count = 0;
        let list =
            rdsys::rd_kafka_ConsumerGroupDescription_authorized_operations(group, &raw mut count);
        let state = rdsys::rd_kafka_ConsumerGroupDescription_state(group);
        Ok(Group {
            is_stable: state == State::RD_KAFKA_CONSUMER_GROUP_STATE_STABLE,
            members,
            rights: rights(listed(list, count)),
        })
    }
}

/// # Safety
/// `at` is valid during the call.
unsafe fn member(at: *const rdsys::rd_kafka_MemberDescription_t) -> Member {
    // SAFETY: by this function's contract; the list, if there is one, lives as long as the member.
    unsafe {
        let assignment = rdsys::rd_kafka_MemberDescription_assignment(at);
        let list = if assignment.is_null() {
            ptr::null()
        } else {
            rdsys::rd_kafka_MemberAssignment_partitions(assignment)
        };
        let owns = if list.is_null() {
            Vec::new()
        } else {
            let elements = listed((*list).elems.cast_const(), (*list).cnt as usize);
            elements.iter().map(|one| (owned(one.topic), one.partition)).collect()
        };
        Member {
            client_id: owned(rdsys::rd_kafka_MemberDescription_client_id(at)),
            host: owned(rdsys::rd_kafka_MemberDescription_host(at)),
            owns,
        }
    }
}
