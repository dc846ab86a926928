//! Records of `<ns>.tasks`, as a lane writes them, and what stands in `<ns>.results`.

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use serde_json::Value;
use waterclock::engine::allow::Allow;
use waterclock::engine::header;
use waterclock::engine::ladder::Ladder;
use waterclock::engine::state::{
    Bound, Kind, State, StateKey, SubmissionOrder, TaskState, intake_tag,
};
use waterclock::engine::task::id::TaskId;
use waterclock::engine::task::spec::Spec;
use waterclock::engine::{Intake, Limits, Millis, Offset, Record, Setup, Topics, UnixMillis};

use std::time::Duration;

use crate::support::{Fixture, Rec, now_ms, whole};

fn key() -> StateKey {
    StateKey::new([7; 32])
}

/// What all workers of a test are given.
pub(super) fn setup(namespace: &str, lanes: u16) -> Setup {
    let ladder = Ladder::new(&[Millis(1_000)], &[], Millis(2_000)).expect("a ladder");
    let intake = Intake::new("", None, None, Allow::new("ns", None).expect("a list"));
    let topics = Topics::new(namespace, vec![intake], ladder);
    Setup { lanes, topics, key: key(), limits: Limits::default() }
}

/// Tasks, and where they are written to.
pub(super) struct Tasks<'a> {
    fixture: &'a Fixture,
    tasks: String,
    results: String,
    producer: ThreadedProducer<DefaultProducerContext>,
}

/// The `n`th task of a test.
pub(super) fn task_id(n: usize) -> TaskId {
    TaskId::of_request("shop", &n.to_string(), None).expect("an id")
}

pub(super) fn id_of(record: &Record) -> String {
    let id = record.headers().find(|(name, _)| *name == header::ID.as_bytes());
    String::from_utf8_lossy(id.and_then(|(_, id)| id).unwrap_or_default()).into_owned()
}

impl<'a> Tasks<'a> {
    /// The topics of a namespace that has tasks.
    pub(super) fn new(fixture: &'a Fixture) -> Self {
        Self {
            fixture,
            tasks: fixture.names.tasks(),
            results: fixture.names.results(),
            producer: fixture.client().create().expect("a producer"),
        }
    }

    /// Dispatches these tasks, each in its first turn.
    pub(super) fn dispatch(&self, of: impl IntoIterator<Item = usize>) {
        for n in of {
            let id = task_id(n);
            let host = n % 16;
            let spec = format!(
                r#"{{"type":"http","project":"p{}","group":"g","url":"http://h{host}.example/x"}}"#,
                n % 8
            );
            let spec = Spec::parse(spec.as_bytes()).expect("a specification").to_json();
            let headers: [(&str, &[u8]); 2] =
                [(header::ID, id.as_str().as_bytes()), (header::TASK, spec.as_bytes())];
            self.write(&id, &headers, Some(b"body"));
        }
        self.producer.flush(Duration::from_secs(30)).expect("written");
    }

    /// The note behind a task: it was cancelled.
    pub(super) fn cancel(&self, of: impl IntoIterator<Item = usize>) {
        for n in of {
            let id = task_id(n);
            let headers: [(&str, &[u8]); 2] =
                [(header::ID, id.as_str().as_bytes()), (header::ACTION, b"cancel")];
            self.write(&id, &headers, None);
        }
        self.producer.flush(Duration::from_secs(30)).expect("written");
    }

    fn write(&self, id: &TaskId, headers: &[(&str, &[u8])], value: Option<&[u8]>) {
        let task = TaskState { turn: 1, attempt: 1, ..TaskState::default() };
        let appended = UnixMillis(1_000);
        let state = State {
            kind: Kind::Work,
            due: UnixMillis(now_ms()),
            first_appended: appended,
            order: SubmissionOrder { appended, offset: Offset(1) },
            expires: None,
            intake: intake_tag(""),
            name: None,
            target: None,
            hops: 0,
            task: Some(task),
        };
        let of = |wanted| headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        let bound = Bound { id: of(header::ID), task: of(header::TASK), ..Bound::default() };
        let sealed = state.seal(&key(), &bound);
        let mut written = OwnedHeaders::new();
        for (key, value) in headers.iter().copied().chain([(header::STATE, sealed.as_ref())]) {
            written = written.insert(Header { key, value: Some(value) });
        }
        let lane = id.lane_of(self.fixture.lanes());
        let mut record = BaseRecord::<(), [u8]>::to(&self.tasks).partition(i32::from(lane.0));
        record = record.headers(written);
        if let Some(value) = value {
            record = record.payload(value);
        }
        self.producer.send(record).map_err(|(error, _)| error).expect("room");
    }

    /// The topic of the results.
    pub(super) fn results_topic(&self) -> &str {
        &self.results
    }

    /// The topic of the tasks.
    pub(super) fn tasks_topic(&self) -> &str {
        &self.tasks
    }

    /// All that stands in the topic of results, and is committed.
    #[track_caller]
    pub(super) fn results(&self) -> Vec<Said> {
        whole(self.fixture, &self.results).iter().map(Said::of).collect()
    }
}

/// A result, as a lane reads it.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) id: String,
    pub(super) outcome: String,
    pub(super) in_doubt: bool,
    pub(super) partition: i32,
}

impl Said {
    pub(super) fn of(rec: &Rec) -> Self {
        let result = rec.header("x-delay-result").expect("a result");
        let result: Value = serde_json::from_str(&result).expect("JSON");
        Self {
            id: rec.header(header::ID).expect("an id"),
            outcome: result["outcome"].as_str().expect("an outcome").to_owned(),
            in_doubt: result["in_doubt"].as_bool().unwrap_or_default(),
            partition: rec.partition,
        }
    }
}
