//! One parser a target.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use waterclock::api::timers::model::{Cursor, Filter};
use waterclock::index::fuzz as store;
use waterclock::timers::service::Ticket;

use super::api;
use super::input::Input;
use waterclock_engine::header::{
    self, Code, DETAIL_MAX, ID_MAX, LABEL_MAX, Refusal, TOPIC_MAX, duration, until,
};
use waterclock_engine::ladder;
use waterclock_engine::sealed;
use waterclock_engine::state::{Bound, Kind, State, StateKey, SubmissionOrder, TaskState};
use waterclock_engine::task::id::TaskId;
use waterclock_engine::task::registry::{self, Registry};
use waterclock_engine::task::report::{self, Report};
use waterclock_engine::task::result::{RESULT_MAX, TaskResult};
use waterclock_engine::task::spec::{SPEC_MAX, Spec};
use waterclock_engine::timers::{Change, TimerState, Version, progress};
use waterclock_engine::window::{METADATA_MAX, OffsetState, Window};
use waterclock_engine::{Millis, Offset, UnixMillis};

/// Longest report that is read, in bytes.
const REPORT_MAX: usize = 8 * 1024;

/// Names of the contract, so that a fuzzer need not guess them.
pub(super) const NAMES: [&str; 18] = [
    "x-delay",
    "x-delay-until",
    "x-delay-target",
    "x-delay-id",
    "x-delay-action",
    "x-delay-partition",
    "x-delay-expires",
    "x-delay-label",
    "x-delay-trace",
    "x-delay-state",
    "x-delay-due",
    "x-delay-attempt",
    "x-delay-error-code",
    "x-delay-",
    "x-delay-fired",
    "x-delay-task",
    "x-delay-result",
    "x-delay-nominal",
];

/// A header, or none behind the end.
pub(super) fn header<'a>(input: &mut Input<'a>) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    if input.is_empty() {
        return None;
    }
    let name = match NAMES.get(usize::from(input.byte() & 31)) {
        Some(name) => name.as_bytes(),
        None => input.part(),
    };
    Some((name, input.null_or_part()))
}

/// A refusal is one harmless line with a code of the list.
fn is_fit(refusal: &Refusal) {
    assert!(refusal.detail.len() <= DETAIL_MAX);
    assert!(refusal.detail.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    assert_eq!(refusal.code.as_str().parse::<Code>().ok(), Some(refusal.code));
}

/// `header::read`, and what follows from what it says.
pub fn headers(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (appended, max_delay) = (UnixMillis(input.number()), Millis(input.number()));
    let key = input.null_or_part();
    let mut headers = Vec::new();
    while let Some(found) = header(&mut input) {
        headers.push(found);
    }
    let directive = match header::read(headers.iter().copied()) {
        Ok(directive) => directive,
        Err(refusal) => return is_fit(&refusal),
    };
    assert!(directive.target.is_none_or(|target| (1..=TOPIC_MAX).contains(&target.len())));
    assert!(directive.id.is_none_or(|id| (1..=ID_MAX).contains(&id.len())));
    assert!(directive.label.is_none_or(|label| (1..=LABEL_MAX).contains(&label.len())));
    assert!(directive.partition.is_none_or(|partition| partition >= 0));
    match directive.when.map(|when| when.resolve(appended, max_delay)) {
        Some(Ok(due)) => assert!(due - appended <= max_delay),
        Some(Err(refusal)) => is_fit(&refusal),
        None => {}
    }
    if let Some(Err(refusal)) =
        directive.expires.map(|when| header::expires_at(when, appended, max_delay))
    {
        is_fit(&refusal);
    }
    if let Some(state) = directive.state
        && let Err(refusal) = State::open(state, &StateKey::new([7; 32]), &directive.bound(key))
    {
        is_fit(&refusal);
    }
}

/// Kinds of records that are no tasks.
const PLAIN: [Kind; 4] = [Kind::Hop, Kind::Move, Kind::Amend, Kind::Duplicate];
/// Kinds of records of tasks.
pub(super) const KINDS: [Kind; 6] =
    [Kind::Submit, Kind::Hop, Kind::Result, Kind::Work, Kind::Amend, Kind::Move];

/// `x-delay-state`: what was sealed is opened, for the record that it was sealed for and unchanged only.
pub fn state(bytes: &[u8]) {
    let key = StateKey::new([7; 32]);
    let mut input = Input(bytes);
    let bound = Bound {
        key: input.null_or_part(),
        target: input.null_or_part(),
        id: input.null_or_part(),
        partition: (input.byte() & 1 == 1).then(|| input.number() as i32),
        task: None,
        result: None,
    };
    let kind = input.byte();
    let sealed = State {
        kind: PLAIN[usize::from(kind) % PLAIN.len()],
        due: UnixMillis(input.word()),
        first_appended: UnixMillis(input.word()),
        order: SubmissionOrder {
            appended: UnixMillis(input.word()),
            offset: Offset(input.word().cast_signed()),
        },
        expires: Some(UnixMillis(input.word())).filter(|at| at.0 != u64::MAX),
        intake: input.word(),
        name: ["", "b"].into_iter().nth(usize::from(input.byte())).filter(|name| !name.is_empty()),
        target: ["", "orders"].into_iter().nth(usize::from(input.byte())).filter(|t| !t.is_empty()),
        hops: input.word() as u16,
        task: None,
    };
    // The same of a task, which has no texts, and is tied to more.
    let is_task = input.byte() & 1 == 1;
    let bound = match is_task {
        true => Bound { task: input.null_or_part(), result: input.null_or_part(), ..bound },
        false => bound,
    };
    let sealed = match is_task {
        true => {
            let kind = KINDS[usize::from(kind) % KINDS.len()];
            State { kind, name: None, target: None, task: Some(of_task(&mut input)), ..sealed }
        }
        false => sealed,
    };
    let text = sealed.seal(&key, &bound);
    assert_eq!(State::open(text.as_ref(), &key, &bound), Ok(sealed));
    let mut flipped = text.as_ref().to_vec();
    flip(&mut flipped, &mut input);
    assert!(State::open(&flipped, &key, &bound).is_err());
    assert!(State::open(text.as_ref(), &StateKey::new([8; 32]), &bound).is_err());
    let mut other = Vec::new();
    let other = of_another(&bound, &mut input, &mut other);
    assert!(State::open(text.as_ref(), &key, &other).is_err(), "{bound:?} {other:?}");
    if let Err(refusal) = State::open(input.0, &key, &bound) {
        is_fit(&refusal);
    }
}

fn of_task(input: &mut Input<'_>) -> TaskState {
    TaskState {
        turn: input.number() as u32,
        attempt: input.number() as u32,
        round: input.number() as u32,
        trigger: UnixMillis(input.word()),
        digest: std::array::from_fn(|_| input.byte()),
    }
}

/// One bit is another.
pub(super) fn flip(bytes: &mut [u8], input: &mut Input<'_>) {
    let bit = usize::from(input.byte()) | usize::from(input.byte()) << 8;
    let at = bit / 8 % bytes.len();
    bytes[at] ^= 1 << (bit % 8);
}

/// The parts of a record that differs in one of them, which is written to `other`.
fn of_another<'a>(bound: &Bound<'a>, input: &mut Input<'_>, other: &'a mut Vec<u8>) -> Bound<'a> {
    let mut changed = *bound;
    let part = match input.byte() % 6 {
        0 => &mut changed.key,
        1 => &mut changed.target,
        2 => &mut changed.id,
        3 => &mut changed.task,
        4 => &mut changed.result,
        _ => {
            let flipped = |partition: i32| partition ^ 1 << (input.byte() & 31);
            changed.partition = Some(bound.partition.map_or(0, flipped));
            return changed;
        }
    };
    // An empty part is another than none.
    if let Some(bytes) = *part {
        other.extend_from_slice(bytes);
        match bytes {
            [] => other.push(0),
            _ => flip(other, input),
        }
    }
    *part = Some(other);
    changed
}

/// `x-delay-task`: what is read is written and read back; a refusal names what is wrong, in harmless lines.
pub fn task_specification(bytes: &[u8]) {
    match Spec::parse(bytes) {
        Ok(spec) => {
            let json = spec.to_json();
            assert!(json.len() <= SPEC_MAX, "{} bytes", json.len());
            assert_eq!(Spec::parse(json.as_bytes()), Ok(spec));
        }
        Err(wrongs) => {
            assert!(!wrongs.is_empty());
            for wrong in wrongs {
                assert!(!wrong.to_string().chars().any(char::is_control), "{wrong}");
            }
        }
    }
}

/// `x-delay-result`: the same.
pub fn task_result(bytes: &[u8]) {
    match TaskResult::parse(bytes) {
        Ok(result) => {
            let json = result.to_json();
            assert!(json.len() <= RESULT_MAX, "{} bytes", json.len());
            assert_eq!(TaskResult::parse(json.as_bytes()), Ok(result));
        }
        Err(wrong) => assert!(!wrong.to_string().chars().any(char::is_control), "{wrong}"),
    }
}

/// What an executor sends: a ticket opens for its own task and namespace only, and what a report says can be said to a lane.
pub fn task_reports(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (id, other) = (TaskId::of_request("p", "a", None), TaskId::of_request("p", "b", None));
    let (Ok(id), Ok(other)) = (id, other) else { return };
    let (key, foreign) = (StateKey::new([1; 32]), StateKey::new([2; 32]));
    let ticket = sealed::Ticket {
        version: Version {
            first_appended: UnixMillis(input.number()),
            offset: Offset(input.number().cast_signed()),
        },
        turn: input.number() as u32,
        heartbeat: Millis(u64::from(input.number() as u32)),
    };
    let text = ticket.to_text(&key, &id);
    assert_eq!(sealed::Ticket::read(&text, &key, &id), Ok(ticket));
    assert!(sealed::Ticket::read(&text, &foreign, &id).is_err());
    assert!(sealed::Ticket::read(&text, &key, &other).is_err());
    let mut changed = text.clone().into_bytes();
    flip(&mut changed, &mut input);
    if changed != text.as_bytes() {
        let changed = String::from_utf8_lossy(&changed);
        assert!(sealed::Ticket::read(&changed, &key, &id).is_err(), "{changed}");
    }
    let json = input.0;
    assert!(sealed::Ticket::read(&String::from_utf8_lossy(json), &key, &id).is_err());
    for read in [report::read_result(json, REPORT_MAX), report::read_heartbeat(json, REPORT_MAX)] {
        match read {
            Ok(Report { result, .. }) => {
                assert!(sealed::may_be_feedback(result.outcome), "{result:?}");
                let json = result.to_json();
                assert_eq!(TaskResult::parse(json.as_bytes()), Ok(result));
            }
            Err(wrongs) => {
                assert!(!wrongs.is_empty());
                for wrong in wrongs {
                    assert!(!wrong.to_string().chars().any(char::is_control), "{wrong}");
                }
            }
        }
    }
}

/// The metadata of a commit: read, worked on, written and read back.
pub fn metadata(bytes: &[u8]) {
    let mut input = Input(bytes);
    let next = input.number().cast_signed();
    let work = input.part();
    let text = if input.byte() & 1 == 0 {
        String::from_utf8_lossy(input.0).into_owned()
    } else {
        STANDARD_NO_PAD.encode([&[1], input.0].concat())
    };
    let Ok(mut window) = Window::load(Offset(next), &text) else { return };
    same(&mut window);
    // Reading begins at the watermark again, and what is pending is shown again or passed over.
    let mut at = next;
    for step in work {
        // No log gets there.
        if at > i64::MAX / 2 {
            break;
        }
        let offset = Offset(at);
        if step & 1 == 0 && window.room(offset) {
            let begun = window.begin(offset);
            if step & 2 == 0 && begun.state != OffsetState::Done {
                window.finish(offset);
            }
            at += 1;
        } else {
            at = at.saturating_add(i64::from(step >> 1));
            window.pass(Offset(at));
        }
    }
    same(&mut window);
}

/// What is committed of a window is that window.
fn same(window: &mut Window) {
    let (low, text) = window.commit_anyway();
    assert!(text.len() <= METADATA_MAX, "{} characters", text.len());
    let mut again = Window::load(low, &text).unwrap();
    assert_eq!((again.low(), again.pending()), (window.low(), window.pending()));
    assert_eq!(again.commit_anyway(), (low, text));
}

/// A record of `<ns>.timers`, whatever it is about: a timer or a task, its cancel mark, an attempt, a definition.
pub fn changelog(bytes: &[u8]) {
    let mut input = Input(bytes);
    let kind = input.byte();
    let any = if kind & 3 == 0 { input.null_or_part() } else { None };
    let value = if input.byte() & 15 == 0 { None } else { Some(input.0) };
    // An attempt stands under the slot of its number.
    let number = value.and_then(|value| value.get(5..9)).and_then(|bytes| bytes.try_into().ok());
    let slot = progress::slot(number.map_or(1, u32::from_be_bytes));
    let behind: &[u8] = match kind & 7 {
        1 | 5 => &[],
        2 | 6 => &[1],
        3 => &[2, slot],
        _ => &[3],
    };
    let key = match kind & 7 {
        0 => any.map(<[u8]>::to_vec),
        _ => Some([&[7; 16], behind].concat()),
    };
    let Ok(change) = Change::decode(key.as_deref(), value) else { return };
    let (key, value) = change.encode();
    assert_eq!(Change::decode(Some(&key), value.as_deref()).as_ref(), Ok(&change));
}

/// A record of `<ns>.meta` about a project, a service or a target; and what a person asks of one.
pub fn registry(bytes: &[u8]) {
    let mut input = Input(bytes);
    let key = match input.byte() & 7 {
        0 => "project/shop",
        1 => "service/shop/billing",
        2 => "target/orders.out",
        _ => &String::from_utf8_lossy(input.part()),
    };
    let value = (input.byte() & 15 != 0).then_some(input.0);
    let mut read = Registry::default();
    for change in [registry::read(key, value), registry::read_request(key, input.0)] {
        let change = match change {
            Ok(change) => change,
            Err(wrongs) => {
                assert!(!wrongs.is_empty());
                for wrong in wrongs {
                    // The key stands there as it is; the log escapes it.
                    let own = wrong.to_string().replace(key, "");
                    assert!(!own.chars().any(char::is_control), "{wrong}");
                }
                continue;
            }
        };
        assert!(registry::is_key(change.key()) && change.key() == key);
        // What a person asks for has no revision yet.
        let revision = change.revision().max(1);
        let change = change.with_revision(revision);
        let value = change.value();
        let again = registry::read(key, value.as_deref().map(str::as_bytes));
        assert_eq!(again.as_ref(), Ok(&change));
        read.apply(change).unwrap();
    }
}

/// Texts that people and producers write: lengths, times, holds, names.
pub fn texts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(length) = duration(text) {
        assert_eq!(duration(&length.to_string()), Ok(length));
    }
    if let Err(refusal) = until(text) {
        is_fit(&refusal);
    }
    if let Err(refusal) = header::topic_name(text) {
        is_fit(&refusal);
    }
    if let Ok(holds) = ladder::holds(text) {
        let _ = ladder::Ladder::new(&holds, &[], Millis(2_000));
    }
    if let Ok(place) = text.parse::<Version>() {
        assert_eq!(place.to_string().parse::<Version>().ok(), Some(place));
    }
    if let Ok(phase) = text.parse::<TimerState>() {
        assert_eq!(phase.as_str(), text);
    }
    if let Ok(ticket) = text.parse::<Ticket>() {
        assert_eq!(ticket.to_string().parse::<Ticket>(), Ok(ticket));
    }
}

/// What callers of the API come back with.
pub fn tokens(bytes: &[u8]) {
    let mut input = Input(bytes);
    let kind = input.byte();
    let now = input.number();
    let text = |part: Option<&[u8]>| part.map(|part| String::from_utf8_lossy(part).into_owned());
    let filter = Filter {
        target: text(input.null_or_part()),
        label: text(input.null_or_part()),
        state: text(input.null_or_part()).and_then(|text| text.parse().ok()),
        due_after: (kind & 2 == 0).then(|| UnixMillis(input.number())),
        due_before: (kind & 4 == 0).then(|| UnixMillis(input.number())),
    };
    if kind & 1 == 0 {
        api::come_back(&String::from_utf8_lossy(input.0), &filter, now);
        api::come_back(&URL_SAFE_NO_PAD.encode(input.0), &filter, now);
        return;
    }
    let order = std::array::from_fn(|_| input.byte());
    api::give_out(Cursor { due: input.number(), order }, filter, input.number(), now);
}

/// Bytes of a file on disk; any program may have written them.
pub fn index(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (kind, name) = (input.byte(), input.part());
    match kind & 3 {
        0 => store::read(name, input.0, kind & 4 == 0),
        1 | 2 => store::read_sealed(name, input.0, kind & 4 == 0),
        _ => {
            let mut entries = std::collections::BTreeMap::new();
            while !input.is_empty() {
                let key = input.part().to_vec();
                entries.insert(key, input.null_or_part().map(<[u8]>::to_vec));
            }
            store::write(name, &Vec::from_iter(entries));
        }
    }
}
