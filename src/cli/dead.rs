//! `waterclock dead`: what could not be delivered, and why; and a second try.

mod filter;
mod replay;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::str::FromStr;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Exit, Failure, Global, Outcome, output, table};
use crate::config::Overrides;
use crate::engine::header;
use crate::engine::{Offset, Record};
use crate::kafka::topic_reader::ReadError;
use crate::kafka::{DeadLetters, DeadRecord, LogError, Submitter};

use filter::Filter;
use replay::Replay;

/// Characters of a key in the table.
const KEY_SHOWN: usize = 24;

/// Arguments of `dead`.
#[derive(Args)]
pub(super) struct Dead {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Lists the newest dead letters, oldest first
    List {
        /// How many
        #[arg(long, default_value = "100")]
        limit: NonZeroUsize,
        #[command(flatten)]
        filter: Filter,
    },
    /// Prints one dead letter whole
    Show {
        /// Where it stands, as the list says: PARTITION@OFFSET
        place: LetterPosition,
    },
    /// Submits dead letters again; they stay among the dead letters, too
    Replay(Replay),
}

/// `3@42`.
#[derive(Clone, Copy)]
struct LetterPosition {
    partition: i32,
    offset: Offset,
}

impl FromStr for LetterPosition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (partition, offset) = text.split_once('@')?;
            Some((partition.parse().ok()?, offset.parse().ok()?))
        };
        match read() {
            Some((partition @ 0.., offset @ 0..)) => Ok(Self { partition, offset: Offset(offset) }),
            _ => Err("a place is PARTITION@OFFSET, as in 3@42"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("there is no dead letter at {0}@{1}")]
struct NoSuchLetter(i32, i64);

fn of_kafka(error: LogError) -> Failure {
    let exit = match &error {
        LogError::Unreachable { .. } | LogError::Read(ReadError::Silent { .. }) => {
            Exit::Unavailable
        }
        LogError::NoTopic { .. } => Exit::Negative,
        LogError::Read(_) => Exit::Internal,
    };
    Failure::new(exit, error)
}

impl Dead {
    pub(super) fn run(self, global: &Global) -> Outcome {
        if let What::Replay(replay) = &self.what {
            replay.check()?;
        }
        let config = global.load(Overrides::default())?;
        let connection = global.connection(&config);
        let mut letters = DeadLetters::open(&connection, &config.namespace).map_err(of_kafka)?;
        match self.what {
            What::List { limit, filter } => list(&mut letters, limit.get(), &filter, global.json()),
            What::Show { place } => show(&mut letters, place, global.json()),
            What::Replay(replay) => {
                let submitter = Submitter::new(&connection).map_err(super::send::of_kafka)?;
                replay.run(&mut letters, &config.namespace, submitter, global.json())
            }
        }
    }
}

fn list(letters: &mut DeadLetters, limit: usize, filter: &Filter, json: bool) -> Outcome {
    let mut newest = Newest { limit, rows: VecDeque::new() };
    let read = letters.read(|letter| {
        if filter.takes(&letter) {
            newest.add(Row::of(&letter));
        }
    });
    read.map_err(of_kafka)?;
    let rows = newest.rows;
    if json {
        let lines = rows.iter().fold(String::new(), |mut lines, row| {
            let _ = writeln!(lines, "{}", row.as_json());
            lines
        });
        return output::write(lines.as_bytes());
    }
    if rows.is_empty() {
        return output::line("no dead letters");
    }
    let mut table = table::fitted();
    table.set_header(["place", "time", "code", "stood at", "key", "target", "id", "detail"]);
    table.add_rows(rows.iter().map(Row::cells));
    output::line(&table.trim_fmt())
}

/// The newest rows by time, bounded: the topic may be longer than memory.
struct Newest {
    limit: usize,
    /// Oldest first.
    rows: VecDeque<Row>,
}

impl Newest {
    fn add(&mut self, row: Row) {
        // Partitions are read side by side, so a row mostly belongs near the end.
        let later = self.rows.iter().rev().take_while(|known| known.time_ms > row.time_ms).count();
        self.rows.insert(self.rows.len() - later, row);
        if self.rows.len() > self.limit {
            self.rows.pop_front();
        }
    }
}

/// What the list says of one dead letter.
struct Row {
    partition: i32,
    offset: i64,
    time_ms: u64,
    code: Option<String>,
    detail: Option<String>,
    /// Topic, partition and offset where it stood.
    stood: [Option<String>; 3],
    target: Option<String>,
    /// Of a timer that has one, or of a task.
    id: Option<String>,
    key: Option<Vec<u8>>,
}

impl Row {
    fn of(letter: &DeadRecord) -> Self {
        let text = |name| last(&letter.record, name).map(|value| output::shown(Some(value)));
        // A row keeps no more of a key than it can show; JSON of whole keys is what `show` is for.
        let key = letter.record.key().map(|key| key[..key.len().min(1_024)].to_vec());
        Self {
            partition: letter.partition,
            offset: letter.offset.0,
            time_ms: letter.timestamp.0,
            code: text(header::ERROR_CODE),
            detail: text(header::ERROR_DETAIL),
            stood: [header::ERROR_TOPIC, header::ERROR_PARTITION, header::ERROR_OFFSET].map(text),
            target: text(header::TARGET),
            id: text(header::ID),
            key,
        }
    }

    fn cells(&self) -> [String; 8] {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let [topic, partition, offset] = self.stood.each_ref().map(or_none);
        [
            format!("{}@{}", self.partition, self.offset),
            output::time(crate::engine::UnixMillis(self.time_ms)),
            or_none(&self.code),
            format!("{topic}/{partition}@{offset}"),
            output::shortened(self.key.as_deref(), KEY_SHOWN),
            or_none(&self.target),
            or_none(&self.id),
            or_none(&self.detail),
        ]
    }

    fn as_json(&self) -> Value {
        let number = |text: &Option<String>| text.as_ref().and_then(|t| t.parse::<i64>().ok());
        let mut row = json!({
            "partition": self.partition,
            "offset": self.offset,
            "time_ms": self.time_ms,
            "code": self.code,
            "detail": self.detail,
            "stood": {
                "topic": self.stood[0],
                "partition": number(&self.stood[1]),
                "offset": number(&self.stood[2]),
            },
            "target": self.target,
            "id": self.id,
        });
        output::put_bytes(&mut row, "key", self.key.as_deref());
        row
    }
}

/// The last header of a name: what waterclock adds stands at the end.
fn last<'a>(record: &'a Record, name: &str) -> Option<&'a [u8]> {
    record
        .headers()
        .filter(|(known, _)| *known == name.as_bytes())
        .last()
        .and_then(|(_, value)| value)
}

fn show(letters: &mut DeadLetters, place: LetterPosition, json: bool) -> Outcome {
    let LetterPosition { partition, offset } = place;
    let letter = letters.at(partition, offset).map_err(of_kafka)?;
    let letter =
        letter.ok_or_else(|| Failure::new(Exit::Negative, NoSuchLetter(partition, offset.0)))?;
    output::line(&if json { whole_json(&letter).to_string() } else { whole_text(&letter) })
}

fn whole_json(letter: &DeadRecord) -> Value {
    let headers: Vec<Value> = letter
        .record
        .headers()
        .map(|(name, value)| {
            let mut header = json!({});
            output::put_bytes(&mut header, "name", Some(name));
            output::put_bytes(&mut header, "value", value);
            header
        })
        .collect();
    let mut whole = json!({
        "partition": letter.partition,
        "offset": letter.offset.0,
        "time_ms": letter.timestamp.0,
        "headers": headers,
    });
    output::put_bytes(&mut whole, "key", letter.record.key());
    output::put_bytes(&mut whole, "value", letter.record.value());
    whole
}

fn whole_text(letter: &DeadRecord) -> String {
    let DeadRecord { partition, offset, timestamp, record } = letter;
    let mut text = format!("place   {partition}@{}\n", offset.0);
    let _ = writeln!(text, "time    {}", output::time(*timestamp));
    let _ = writeln!(text, "key     {}", output::shown(record.key()));
    for (name, value) in record.headers() {
        let _ = writeln!(text, "header  {}: {}", output::shown(Some(name)), output::shown(value));
    }
    let _ = write!(text, "value   {}", output::shown(record.value()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::UnixMillis;

    fn letter(partition: i32, offset: i64, time: u64) -> DeadRecord {
        let headers: [(&[u8], Option<&[u8]>); 5] = [
            (b"x-delay-error-code", Some(b"forged by the producer")),
            (b"\xff", None),
            (b"x-delay-error-code", Some(b"expired")),
            (b"x-delay-error-topic", Some(b"wc.intake")),
            (b"x-delay-error-partition", Some(b"3")),
        ];
        DeadRecord {
            partition,
            offset: Offset(offset),
            timestamp: UnixMillis(time),
            record: Record::new(Some(b"\xfe"), None, headers.iter().copied()),
        }
    }

    #[test]
    fn a_row_tells_what_waterclock_added_last() {
        let row = Row::of(&letter(1, 2, 3)).as_json();
        assert_eq!(row["code"], "expired");
        assert_eq!(row["stood"], json!({ "topic": "wc.intake", "partition": 3, "offset": null }));
        assert_eq!(row["key_base64"], "/g==");
    }

    #[test]
    fn a_whole_letter_keeps_order_nulls_and_binary_names() {
        let whole = whole_json(&letter(1, 2, 3));
        assert_eq!(whole["headers"][1], json!({ "name_base64": "/w==", "value": null }));
        assert_eq!(whole["value"], Value::Null);
        assert!(whole_text(&letter(1, 2, 3)).contains("header  0xff: null\n"));
    }

    #[test]
    fn the_list_keeps_the_newest_in_the_order_of_time_across_partitions() {
        let mut newest = Newest { limit: 3, rows: VecDeque::new() };
        for (partition, offset, time) in [(0, 0, 10), (0, 1, 40), (1, 0, 20), (1, 1, 30), (2, 0, 5)]
        {
            newest.add(Row::of(&letter(partition, offset, time)));
        }
        let times: Vec<u64> = newest.rows.iter().map(|row| row.time_ms).collect();
        assert_eq!(times, [20, 30, 40]);
    }

    #[test]
    fn a_place_is_a_partition_and_an_offset() {
        assert!("3@42".parse::<LetterPosition>().is_ok());
        for wrong in ["", "3", "@", "3@", "@4", "-1@4", "3@-4", "3@4x", "99999999999@1"] {
            assert!(wrong.parse::<LetterPosition>().is_err(), "{wrong}");
        }
    }
}
