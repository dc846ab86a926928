//! Records of tasks: in the topics of the lanes, and in the one that workers read.

use std::sync::Arc;

use super::input::Input;
use super::parts::{KINDS, flip, header};
use super::run::{LANES, World, near, setup_of_tasks};
use waterclock_engine::header;
use waterclock_engine::sealed::{Work, read_work, result_record};
use waterclock_engine::state::{Kind, State, StateKey, SubmissionOrder, TaskState, intake_tag};
use waterclock_engine::task::digest;
use waterclock_engine::task::id::TaskId;
use waterclock_engine::task::result::{Outcome, TaskResult};
use waterclock_engine::work::{Form, Said, Task};
use waterclock_engine::{Lane, Millis, Offset, Record, Source, TopicId, left};

/// Some of them are in the lane of a key.
const IDS: [&str; 3] = [
    "00112233445566778899aabbccddeeff",
    "k0000000a-00112233445566778899aabbccddeeff",
    "schedule.shop.nightly",
];
const SPECS: [&str; 6] = [
    r#"{"type":"http","project":"p","group":"g","url":"http://a.example/","retry":{"count":2,"interval":5}}"#,
    r#"{"type":"http","project":"p","group":"g","service":"s","path":"/x","poll":{"interval":"10s","rounds":3}}"#,
    r#"{"type":"kafka","project":"p","group":"g","topic":"orders"}"#,
    r#"{"type":"kafka","project":"p","group":"g","topic":"orders","feedback":{"deadline":"10s","heartbeat":"2s"}}"#,
    r#"{"type":"grpc","project":"p","group":"g","host":"a.example:80","service":"s","method":"m","retry":{"count":1}}"#,
    r#"{"type":"kafka","project":"p","group":"h","topic":"abc","partition":1,"retry":{"count":1}}"#,
];
const RESULTS: [&str; 5] = [
    r#"{"outcome":"finished"}"#,
    r#"{"outcome":"failed","status":503,"retry_after_ms":3000,"error":"away"}"#,
    r#"{"outcome":"deferred","until":1800000500000,"breaker":true}"#,
    r#"{"outcome":"interrupted","in_doubt":true}"#,
    r#"{"outcome":"started","cursor":"row:7","percent":40}"#,
];
/// Records of one input, and results of one more.
const RECORDS_MAX: usize = 8;

/// What stands in a header: mostly one of these, or anything, or nothing.
fn one_of<'a>(input: &mut Input<'a>, known: &[&'static str]) -> Option<&'a [u8]> {
    let byte = usize::from(input.byte() & 15);
    match known.get(byte) {
        Some(text) => Some(text.as_bytes()),
        None if byte < 8 => Some(input.part()),
        None => known.get(byte & 1).map(|text| text.as_bytes()),
    }
}

/// A record of a task that is sealed as waterclock would. `None`: its headers are not of the contract.
fn sealed(input: &mut Input<'_>, key: &StateKey, kind: Kind) -> Option<Record> {
    let (of_record, value) = (input.null_or_part(), input.null_or_part());
    let mut headers: Vec<(&[u8], Option<&[u8]>)> = Vec::new();
    for _ in 0..input.byte() & 3 {
        headers.extend(header(input));
    }
    headers.push((header::ID.as_bytes(), one_of(input, &IDS)));
    let action = input.byte() & 15;
    let is_feedback = kind == Kind::Submit && action & 3 == 3;
    // A success and a heartbeat come without the payload.
    if !is_feedback || action & 4 == 0 {
        headers.push((header::TASK.as_bytes(), one_of(input, &SPECS)));
    }
    if kind == Kind::Result || is_feedback {
        headers.push((header::RESULT.as_bytes(), one_of(input, &RESULTS)));
    }
    match action {
        0 => headers.push((header::ACTION.as_bytes(), Some(b"cancel"))),
        1 => headers.push((header::ACTION.as_bytes(), Some(b"replace"))),
        _ if is_feedback => headers.push((header::ACTION.as_bytes(), Some(b"result"))),
        _ => {}
    }
    let body = digest(&Record::new(of_record, value, headers.iter().copied()));
    let state = State {
        kind,
        due: near(input),
        first_appended: near(input),
        order: SubmissionOrder { appended: near(input), offset: Offset(input.byte().into()) },
        expires: (input.byte() & 3 == 0).then(|| near(input)),
        intake: intake_tag(""),
        name: None,
        target: None,
        hops: input.byte().into(),
        task: Some(TaskState {
            turn: (input.byte() & 3).into(),
            attempt: (input.byte() & 3).into(),
            round: (input.byte() & 3).into(),
            trigger: near(input),
            digest: if input.byte() & 7 == 0 { [7; 16] } else { body },
        }),
    };
    let directive = header::read(headers.iter().copied()).ok()?;
    let state = state.seal(key, &directive.bound(of_record));
    headers.push((header::STATE.as_bytes(), Some(state.as_ref())));
    Some(Record::new(of_record, value, headers.into_iter()))
}

/// The same record, with one bit of what its seal covers changed. `None`: it does not have that part.
fn forged(record: &Record, input: &mut Input<'_>) -> Option<Record> {
    let parts = [header::ID, header::TASK, header::RESULT, header::STATE];
    let part = parts.get(usize::from(input.byte()) % (parts.len() + 1));
    let flipped = |old: Option<&[u8]>, input: &mut Input<'_>| {
        let mut bytes = old.filter(|old| !old.is_empty())?.to_vec();
        flip(&mut bytes, input);
        Some(bytes)
    };
    let Some(part) = part else {
        let key = flipped(record.key(), input)?;
        return Some(Record::new(Some(&key), record.value(), record.headers()));
    };
    let is_part = |name: &[u8]| name == part.as_bytes();
    let old = record.headers().find(|(name, _)| is_part(name))?.1;
    let new = flipped(old, input)?;
    let headers = record
        .headers()
        .map(|(name, old)| (name, if is_part(name) { Some(&new[..]) } else { old }));
    Some(Record::new(record.key(), record.value(), headers))
}

/// The lane of a record of a task.
fn lane_of(record: &Record) -> Option<Lane> {
    let id = record.headers().find(|(name, _)| *name == header::ID.as_bytes())?.1?;
    Some(TaskId::parse(std::str::from_utf8(id).ok()?).ok()?.lane_of(LANES))
}

/// What a worker says of a turn.
fn said(input: &mut Input<'_>) -> Said {
    let outcome = |outcome| Said::Ended(Box::new(TaskResult::new(outcome)));
    match input.byte() & 7 {
        0 => Said::Started(near(input)),
        1 => Said::Deferred { until: near(input), breaker: input.byte() & 1 == 1 },
        2 => Said::Interrupted { in_doubt: input.byte() & 1 == 1 },
        3 => Said::Cancelled,
        4 => outcome(Outcome::ALL[usize::from(input.byte()) % Outcome::ALL.len()]),
        5 => outcome(Outcome::Finished),
        6 => outcome(Outcome::NotYet),
        _ => outcome(Outcome::Failed),
    }
}

/// Records of tasks, sealed and not, in the topics that they may stand in and in others. What is not as it was sealed is refused.
/// What the lanes dispatch is read by a worker, and its results come back.
pub fn task_records(bytes: &[u8]) {
    let mut input = Input(bytes);
    let setup = setup_of_tasks();
    let results = setup.topics.results().unwrap();
    let mut world = World::new(Arc::clone(&setup));
    for _ in 0..RECORDS_MAX {
        if input.is_empty() {
            break;
        }
        let how = input.byte();
        let usual = KINDS[usize::from(how & 3)];
        let kind = match how & 0x1c {
            0 => KINDS[usize::from(input.byte()) % KINDS.len()],
            _ => usual,
        };
        let Some(record) = sealed(&mut input, &setup.key, kind) else { continue };
        let forged = if how >= 0xe0 { forged(&record, &mut input) } else { None };
        let (is_forged, record) = (forged.is_some(), forged.unwrap_or(record));
        let lane = lane_of(&record).filter(|_| input.byte() & 7 != 0).unwrap_or(Lane(0));
        if usual == Kind::Work {
            let read = read_work(&setup.key, LANES, (Lane(0), world.now), record);
            assert!(!is_forged || read.is_err(), "a worker takes {read:?}");
            if let Ok(Work::Task(task)) = read {
                report(&mut world, results, &task, &mut input);
            }
            continue;
        }
        let tiers =
            (0..results.0).map(TopicId).find(|topic| setup.topics.tier_of(*topic).is_some());
        let topic = match usual {
            Kind::Submit => TopicId(0),
            Kind::Result => results,
            _ => TopicId(tiers.unwrap().0 + u16::from(input.byte() & 7)),
        };
        let source = Source { topic, lane };
        let _ = left(&setup, (source, Offset(0)), world.now, &record);
        if is_forged {
            let mut alone = World::new(Arc::clone(&setup));
            alone.append(source, record);
            alone.run();
            assert_eq!((alone.dead, alone.dispatched.len()), (1, 0), "dead letters, and turns");
            continue;
        }
        world.append(source, record);
        world.now = world.now + Millis(input.number() % 10_000);
        world.tell(waterclock_engine::Event::Tick);
    }
    world.run();
    for _ in 0..RECORDS_MAX {
        let Some((partition, record)) = world.dispatched.pop_front() else { break };
        match read_work(&setup.key, LANES, (partition, world.now), record) {
            Ok(Work::Task(task)) => {
                assert_eq!(digest(&task.record), task.sealed.digest, "another body is sent");
                report(&mut world, results, &task, &mut input);
            }
            Ok(Work::Cancel(..)) => {}
            Err((record, refusal)) => panic!("a lane wrote {record:?}: {refusal:?}"),
        }
        world.run();
    }
}

/// A worker writes what became of a turn. Its record can be read, and says the same.
fn report(world: &mut World, results: TopicId, task: &Task, input: &mut Input<'_>) {
    let said = said(input);
    let form = [Form::Whole, Form::Short, Form::Letter][usize::from(input.byte() % 3)];
    let record = result_record(&world.key, task, &said, "w", form);
    let directive = header::read(record.headers()).unwrap();
    let state = State::open(directive.state.unwrap(), &world.key, &directive.bound(record.key()));
    let of = state.unwrap().task.unwrap();
    assert_eq!((of.turn, of.digest), (task.turn.turn, task.sealed.digest));
    let result = TaskResult::parse(directive.result.unwrap()).unwrap();
    assert_eq!(result, waterclock_engine::sealed::result_of(&said, "w", form));
    world.append(Source { topic: results, lane: task.lane }, record);
}
