//! Checks the program against `docs/header-contract.md` and the examples of `docs/header-vectors.md`: the documents are the
//! specification, this is their reader.

use std::collections::BTreeSet;

use waterclock::engine::header::{
    self, Code, DETAIL_MAX, Directive, EPOCH_MAX, EPOCH_MIN, HEADERS_MAX, ID_MAX, LABEL_MAX,
    Refusal, TOPIC_MAX, TimerAction,
};
use waterclock::engine::state::{
    Bound, Kind, SIZE, SIZE_MAX, State, StateKey, SubmissionOrder, intake_tag,
};
use waterclock::engine::{Millis, Offset, UnixMillis, murmur2};

const DOCUMENT: &str = include_str!("../docs/header-contract.md");
const VECTORS: &str = include_str!("../docs/header-vectors.md");

/// What the document says of `max-delay` where an example does not.
const MAX_DELAY: u64 = 34_560_000_000;

/// One fenced block: the facts before `=>` and those after it, each a word and the rest of the line.
struct Block {
    why: &'static str,
    given: Vec<(&'static str, &'static str)>,
    want: Vec<(&'static str, &'static str)>,
}

impl Block {
    fn given(&self, word: &str) -> Option<&'static str> {
        self.given.iter().find(|(found, _)| *found == word).map(|(_, rest)| *rest)
    }

    fn number(&self, word: &str) -> Option<u64> {
        self.given(word).map(|rest| rest.parse().unwrap_or_else(|_| panic!("{}: {word}", self.why)))
    }

    fn bytes(&self, word: &str) -> Option<Vec<u8>> {
        self.given(word).and_then(bytes)
    }
}

/// All blocks of one kind. The tests say how many there must be at least, so that a change of the form cannot pass as success.
fn blocks(kind: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = VECTORS.lines();
    while let Some(line) = lines.next() {
        if line != format!("```{kind}") {
            continue;
        }
        let mut block = Block { why: "", given: Vec::new(), want: Vec::new() };
        let mut after = false;
        for line in lines.by_ref().take_while(|line| *line != "```") {
            if let Some(why) = line.strip_prefix("# ") {
                block.why = why;
            } else if line == "=>" {
                after = true;
            } else {
                let fact = line.split_once(' ').unwrap_or_else(|| panic!("no fact: {line:?}"));
                if after { block.want.push(fact) } else { block.given.push(fact) }
            }
        }
        assert!(!block.why.is_empty() && !block.want.is_empty(), "a block is cut short");
        found.push(block);
    }
    found
}

/// Reads `HEX`, `empty` or `null`, and checks the comment that shows the bytes as text.
fn bytes(field: &str) -> Option<Vec<u8>> {
    let (hex, shown) =
        field.split_once("  # ").map_or((field, None), |(hex, text)| (hex, Some(text)));
    let bytes = match hex {
        "null" => return None,
        "empty" => Vec::new(),
        _ => (0..hex.len())
            .step_by(2)
            .map(|at| {
                u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_else(|_| panic!("{field}"))
            })
            .collect(),
    };
    if let Some(shown) = shown {
        assert_eq!(shown, shown_as_text(&bytes), "the comment shows other bytes");
    }
    Some(bytes)
}

fn shown_as_text(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text + "\""
}

/// Name and value of a `header` or `delivered` line.
fn pair(rest: &'static str) -> (&'static [u8], Option<Vec<u8>>) {
    let (name, value) = rest.split_once(' ').unwrap_or_else(|| panic!("no value: {rest:?}"));
    (name.as_bytes(), bytes(value))
}

/// What the program makes of an example, in the words of the document.
fn outcome(block: &Block) -> Result<Vec<String>, Refusal> {
    let headers: Vec<_> = block
        .given
        .iter()
        .filter(|(word, _)| *word == "header")
        .map(|(_, rest)| pair(rest))
        .collect();
    let append = UnixMillis(block.number("append").expect("an append time"));
    let max_delay = Millis(block.number("max-delay").unwrap_or(MAX_DELAY));
    let directive = header::read(headers.iter().map(|(name, value)| (*name, value.as_deref())))?;
    let Directive {
        when,
        target,
        id,
        action,
        partition,
        expires,
        label,
        trace,
        attempt,
        state,
        task,
        result,
    } = directive;
    assert_eq!((state, task, result), (None, None, None));
    let mut lines = Vec::new();
    lines.push(match when {
        Some(when) => format!("due {}", when.resolve(append, max_delay)?.0),
        None => "due default".to_owned(),
    });
    lines.push(format!("target {}", target.unwrap_or("default")));
    let hex = |bytes: &[u8]| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}  # {}", shown_as_text(bytes))
    };
    lines.extend(id.map(|id| format!("id {}", hex(id))));
    lines.push(format!(
        "action {}",
        match action {
            TimerAction::Create => "create",
            TimerAction::Replace => "replace",
            TimerAction::Cancel => "cancel",
            TimerAction::Result => "result",
        }
    ));
    lines.extend(partition.map(|partition| format!("partition {partition}")));
    if let Some(expires) = expires {
        lines.push(format!("expires {}", header::expires_at(expires, append, max_delay)?.0));
    }
    lines.extend(label.map(|label| format!("label {}", hex(label))));
    lines.push(format!("trace {}", u8::from(trace)));
    lines.push(format!("attempt {attempt}"));
    if block.want.iter().any(|(word, _)| *word == "delivered") {
        let before = lines.len();
        for (name, value) in &headers {
            if header::is_control(name) {
                continue;
            }
            let name = std::str::from_utf8(name).expect("a name in text");
            lines.push(match value.as_deref() {
                None => format!("delivered {name} null"),
                Some(b"") => format!("delivered {name} empty"),
                Some(value) => format!("delivered {name} {}", hex(value)),
            });
        }
        if lines.len() == before {
            lines.push("delivered nothing".to_owned());
        }
    }
    Ok(lines)
}

#[test]
fn every_golden_example_holds() {
    let blocks = blocks("example");
    assert!(blocks.len() >= 111, "only {} examples found", blocks.len());
    let mut codes = BTreeSet::new();
    for block in &blocks {
        let mut want: Vec<String> =
            block.want.iter().map(|(word, rest)| format!("{word} {rest}")).collect();
        let mut got = outcome(block).unwrap_or_else(|refusal| {
            codes.insert(refusal.code.as_str());
            vec![format!("code {}", refusal.code)]
        });
        // What an example leaves out is as if the header were not there.
        for absent in ["action create", "trace 0", "attempt 0"] {
            let word = absent.split(' ').next().unwrap();
            if !want[0].starts_with("code") && !want.iter().any(|line| line.starts_with(word)) {
                want.push(absent.to_owned());
            }
        }
        // Facts may stand in any order, except those of a list.
        let by_word = |line: &String| line.split(' ').next().unwrap().to_owned();
        want.sort_by_key(by_word);
        got.sort_by_key(by_word);
        assert_eq!(got, want, "{} {:?}", block.why, block.given);
    }
    let told_by_headers = [
        "ambiguous_timestamp",
        "bad_action",
        "bad_delay",
        "bad_expires",
        "bad_header",
        "bad_id",
        "bad_label",
        "bad_partition",
        "bad_target",
        "bad_trace",
        "bad_until",
        "conflicting_directives",
        "delay_overflow",
        "delay_too_long",
        "duplicate_header",
        "missing_id",
        "negative_delay",
        "unknown_header",
    ];
    assert_eq!(codes, BTreeSet::from(told_by_headers), "each has an example");
}

#[test]
fn every_golden_lane_is_that_of_the_hash() {
    let blocks = blocks("lane");
    assert!(blocks.len() >= 8, "only {} lanes found", blocks.len());
    for block in &blocks {
        let lanes = block.number("lanes").expect("a number of lanes");
        let lane = block.bytes("key").or_else(|| block.bytes("id")).map_or_else(
            || "any".to_owned(),
            |key| murmur2::partition(&key, u16::try_from(lanes).unwrap()).to_string(),
        );
        assert_eq!(block.want, [("lane", lane.as_str())], "{}", block.why);
    }
}

#[test]
fn every_golden_state_is_sealed_to_those_bytes_and_opens_or_is_refused() {
    let blocks = blocks("state");
    let (mut kinds, mut refused) = (BTreeSet::new(), 0);
    for block in &blocks {
        let secret = block.bytes("secret").expect("a secret");
        let secret = StateKey::new(secret.try_into().expect("32 bytes"));
        let parts = ["key", "target", "id"].map(|word| block.bytes(word));
        let [key, target, id] = parts.each_ref().map(|part| part.as_deref());
        let partition =
            block.number("partition").map(|number| i32::try_from(number).expect("31 bits"));
        let bound = Bound { key, target, id, partition, task: None, result: None };
        if let Some(state) = block.bytes("state") {
            let refusal = State::open(&state, &secret, &bound).expect_err(block.why);
            assert_eq!(block.want, [("code", refusal.code.as_str())], "{}", block.why);
            // The kind is looked at once the code is known to be right.
            assert!(refusal.detail.contains(" is of kind 5;"), "{}: {refusal:?}", block.why);
            refused += 1;
            continue;
        }
        let time = |word: &str| block.number(word).map(UnixMillis);
        let kind = block.given("kind").expect("a kind");
        kinds.insert(kind);
        let state = State {
            kind: match kind {
                "hop" => Kind::Hop,
                "move" => Kind::Move,
                "version" => Kind::Amend,
                "duplicate" => Kind::Duplicate,
                other => panic!("{}: kind {other:?}", block.why),
            },
            due: time("due").unwrap(),
            first_appended: time("first-append").unwrap(),
            order: SubmissionOrder {
                appended: time("order-append").unwrap(),
                offset: Offset(block.number("order-offset").unwrap().cast_signed()),
            },
            expires: time("expires"),
            intake: intake_tag(block.given("intake").unwrap_or_default()),
            name: block.given("intake"),
            target: block.given("default-target"),
            hops: u16::try_from(block.number("hops").unwrap()).unwrap(),
            task: None,
        };
        let want = bytes(block.want[0].1).unwrap();
        assert_eq!(state.seal(&secret, &bound).as_ref(), want, "{}", block.why);
        assert_eq!(State::open(&want, &secret, &bound), Ok(state), "{}", block.why);
    }
    assert_eq!(kinds, BTreeSet::from(["duplicate", "hop", "move", "version"]), "each is there");
    assert!(blocks.len() >= 6 && refused == 1, "only {} states found", blocks.len());
}

/// The rows of the table that begins with this line.
fn table(head: &str) -> Vec<&'static str> {
    let mut lines = DOCUMENT.lines().skip_while(|line| *line != head);
    assert_eq!(lines.next(), Some(head));
    lines.skip(1).take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_table_of_codes_is_the_closed_list() {
    let want: Vec<_> =
        Code::ALL.iter().map(|code| format!("| `{code}` | {} |", code.meaning())).collect();
    assert_eq!(table("| code | meaning |"), want);
}

#[test]
fn the_tables_of_headers_are_what_the_program_knows() {
    let name = |row: &&str| row.split('`').nth(1).unwrap().to_owned();
    let documented: Vec<_> = table("| header | value | without it |").iter().map(name).collect();
    let known = [
        header::DELAY,
        header::UNTIL,
        header::TARGET,
        header::ID,
        header::ACTION,
        header::PARTITION,
        header::EXPIRES,
        header::LABEL,
        header::TRACE,
        header::STATE,
        header::DUE,
        header::FIRED,
        header::ATTEMPT,
        header::TASK,
        header::RESULT,
        header::TICKET,
        header::CURSOR,
        header::SHARD,
        header::NOMINAL,
    ];
    assert_eq!(documented, known);
    for name in &documented {
        assert!(header::is_control(name.as_bytes()), "{name} is gone at delivery");
    }
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `x-delay-error-"));
    let errors: Vec<_> = rows.map(|row| name(&row)).collect();
    assert_eq!(errors, header::ERRORS);
}

/// Whether a text has these words: whole ones, so that 100 is not found in 1000, nor 8 in 108.
fn stands(text: &str, words: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (first, last) = (words.chars().next(), words.chars().next_back());
    text.match_indices(words).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + words.len()..]);
        let cut = |edge: Option<char>, beside: Option<char>| {
            edge.is_some_and(is_part) && beside.is_some_and(is_part)
        };
        !cut(first, before.chars().next_back()) && !cut(last, after.chars().next())
    })
}

#[test]
fn a_number_is_not_found_in_a_longer_one() {
    for (text, words, wanted) in [
        ("at most 100 headers", "at most 100 headers", true),
        ("at most 1000 headers", "at most 100", false),
        ("108 bytes, integers", "8 bytes, integers", false),
        ("1*255OCTET", "*255OCTET", true),
        ("1*255OCTETS", "*255OCTET", false),
    ] {
        assert_eq!(stands(text, words), wanted, "{words:?} in {text:?}");
    }
}

#[test]
fn the_limits_are_the_documented_ones() {
    for limit in [
        format!("at most {HEADERS_MAX} headers"),
        format!("1*{ID_MAX}OCTET"),
        format!("*{LABEL_MAX}OCTET"),
        format!("1*{TOPIC_MAX}( ALPHA"),
        format!("at most {DETAIL_MAX} bytes of printable ASCII"),
        format!("{SIZE} to {SIZE_MAX} bytes, integers big-endian"),
        format!("400 days ({MAX_DELAY} ms)"),
    ] {
        assert!(stands(DOCUMENT, &limit), "not in the document: {limit}");
    }
    assert_eq!((EPOCH_MIN, EPOCH_MAX), (10u64.pow(12), 10u64.pow(14)));
    assert_eq!(MAX_DELAY, 400 * Millis::DAY.0);
}

/// Where each kind of bad input is tested: the input, the answer, and what stands in that file: `fn` and the name of a test,
/// or a case of one.
#[rustfmt::skip]
const BAD_INPUT: &[(u8, &str, &str, &str, &str)] = &[
    (1,  "no number, spaces, signs, bases",      "bad_delay",            UNIT,  "row 1: a word"),
    (2,  "below zero, -0",                       "negative_delay",       UNIT,  "row 2: negative zero"),
    (3,  "2^63 - 1, 2^63, 400 digits, the sum",  "delay_overflow",       UNIT,  "row 3: 2^63 - 1: the sum overflows"),
    (4,  "other digits, BOM, NUL, RTL",          "bad_delay",            UNIT,  "row 4: a right-to-left mark"),
    (5,  "not UTF-8, null, an empty name",       "bad_header, or yours", UNIT,  "row 5:"),
    (5,  "a name that is not UTF-8, on a broker", "delivered",           BYTES, "fn a_header_name_that_is_not_utf_8_passes"),
    (6,  "more than max_delay",                  "delay_too_long",       UNIT,  "row 6: one above max_delay"),
    (7,  "seconds, microseconds",                "ambiguous_timestamp",  UNIT,  "row 7:"),
    (8,  "in the past",                          "delivered at once",    UNIT,  "row 8: past is at once"),
    (9,  "both times, or neither",               "conflicting_directives, missing_delay", UNIT, "row 9:"),
    (10, "the same header twice",                "duplicate_header",     UNIT,  "row 10:"),
    (11, "1001 headers",                         "too_many_headers",     UNIT,  "row 11:"),
    (11, "10 000 headers, a header of 1 MiB, on a broker", "too_many_headers, delivered", EDGES, "fn a_mebibyte_may_be_in_the_key_or_in_a_header"),
    (12, "no name that a topic can have",        "bad_target",           UNIT,  "row 12:"),
    (13, "waterclock's own topics",              "target_forbidden",     DEAD,  "(Code::TargetForbidden,       soon(\"our own\")"),
    (14, "a loop",                               "too_many_hops",        LANES, "fn a_record_that_hopped_more_often_than_any_delay_needs"),
    (15, "Kafka's own topics",                   "target_forbidden",     DEAD,  "(Code::TargetForbidden,       soon(\"Kafka's own\")"),
    (16, "not on the allow-list",                "target_denied",        DEAD,  "(Code::TargetDenied,"),
    (17, "a target that does not exist",         "target_missing",       LANES, "fn a_missing_target_is_found_out_before_anything_is_produced"),
    (17, "the same on a broker",                 "target_missing",       DEAD,  "(Code::TargetMissing,"),
    (18, "a.b beside a_b",                       "allowed",              UNIT,  "row 18:"),
    (19, "no partition number",                  "bad_partition",        UNIT,  "row 19:"),
    (19, "a partition that the target lacks",    "bad_partition",        DEAD,  "fine(\"not there\").header(\"x-delay-partition\", \"99\")"),
    (20, "a null value",                         "delivered as null",    BYTES, "\"a tombstone with headers\""),
    (21, "a null key",                           "delivered without one", BYTES, "\"null key\""),
    (21, "a null key for a compacted target",    "missing_key",          DEAD,  "(Code::MissingKey,"),
    (21, "a key of 1 MiB",                       "delivered",            EDGES, "fn a_mebibyte_may_be_in_the_key_or_in_a_header"),
    (22, "a value at the limit, and one above",  "delivered, too_large", EDGES, "fn a_value_at_the_limit_of_its_target_is_delivered"),
    (22, "10 MiB that came in compressed",       "too_large",            EDGES, "fn ten_mebibytes_that_came_in_compressed"),
    (22, "a limit lowered under a record",       "too_large",            POISON, "fn a_limit_that_is_lowered_under_a_record_stops_nothing"),
    (23, "timestamps of 1970 and of 9999",       "they do not count",    EDGES, "fn the_timestamp_of_a_producer_does_not_count"),
    (24, "empty, long, control characters, ../", "bad_id",               UNIT,  "row 24:"),
];

const UNIT: &str = include_str!("../crates/engine/src/header/tests.rs");
const LANES: &str = include_str!("../crates/engine/src/lanes/tests.rs");
const BYTES: &str = include_str!("kafka/bytes.rs");
const DEAD: &str = include_str!("kafka/dead.rs");
const EDGES: &str = include_str!("kafka/limits.rs");
const POISON: &str = include_str!("kafka/poison.rs");

/// Whether these words are code of a test file, not of a comment; and if they name a function, whether that is a test.
fn is_tested(file: &str, words: &str) -> bool {
    let code: Vec<&str> =
        file.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    let Some(name) = words.strip_prefix("fn ") else {
        return code.iter().any(|line| stands(line, words));
    };
    // Some names are cut short here.
    let starts =
        |line: &str, with: &str| line.strip_prefix(with).is_some_and(|rest| rest.starts_with(name));
    let defined = code.iter().position(|line| starts(line, "fn "));
    let is_test =
        defined.is_some_and(|at| code[..at].iter().rev().take(3).any(|line| *line == "#[test]"));
    // The macro makes tests of the names that it lists, a line each.
    is_test || defined.is_some() && code.iter().any(|line| starts(line, "") && line.ends_with(','))
}

#[test]
fn every_kind_of_bad_input_has_its_test_and_its_answer() {
    let rows: BTreeSet<u8> = BAD_INPUT.iter().map(|row| row.0).collect();
    assert_eq!(rows, (1..=24).collect());
    for (row, input, answer, file, text) in BAD_INPUT {
        assert!(is_tested(file, text), "{row}, {input}: no test has {text:?}");
        for code in answer.split(", ").filter(|word| word.contains('_')) {
            assert!(code.parse::<Code>().is_ok(), "{row}, {input}: {code} is no code");
        }
    }
}
