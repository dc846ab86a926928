//! `waterclock runs create`: a run as options say it, or a file.
//!
//! # Invariants
//! 1. It is checked as an instance checks it. So every field that is wrong is named before anything is sent.
//! 2. It has a request id. So it may be sent again where nobody answers.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{ArgGroup, Args};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{PATH, look};
use crate::api::runs::model::{RunCreated, RunView};
use crate::api::tasks::model::Length;
use crate::cli::client::{Kind, of_option, typed};
use crate::cli::list::Moment;
use crate::cli::project::To;
use crate::cli::schedule::definition::{of_json, unread};
use crate::cli::task::length;
use crate::cli::task::show::word;
use crate::cli::{Exit, Failure, Global, Outcome, output};
use crate::client::http::Method;
use crate::engine::UnixMillis;
use crate::engine::run::SHARDS_MAX;
use crate::engine::task::id::TaskId;
use crate::engine::task::request::{self, TaskType};
use crate::engine::timers::RunStatus;

/// Longest file, and longest request.
const BYTES_MAX: usize = 2 << 20;

const EXAMPLES: &str = "Examples:
  waterclock runs create --project shop --group settlement --shards 60 --topic settlement \\
      --value '{\"day\": 31}' --feedback-deadline 6h --heartbeat 30s --retries 3 --delay 10s
  waterclock runs create --project shop --group reports --shards 8 --service reports \\
      --path /part --retries 3 --at 2027-01-31T02:00:00Z
  waterclock runs create --file settlement.json --delay 0s
A file has the fields of POST /v1/runs; see docs/runs.md.";

/// Arguments of `runs create`.
#[derive(Args)]
#[command(
    group(ArgGroup::new("callee").required(true).args(["file", "topic", "url", "service"])),
    after_help = EXAMPLES
)]
pub(super) struct Create {
    /// A file in JSON with the fields of the run, in place of options; -: standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The project
    #[arg(long, value_name = "NAME", required_unless_present = "file", conflicts_with = "file")]
    project: Option<String>,
    /// A word for lists, such as the kind of the run
    #[arg(long, value_name = "NAME", required_unless_present = "file", conflicts_with = "file")]
    group: Option<String>,
    /// How many shards it has, at most 10000
    #[arg(long, value_name = "N", required_unless_present = "file", conflicts_with = "file",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_MAX)))]
    shards: Option<u32>,
    /// Each shard is a record of this topic, for executors that report how it went
    #[arg(long, value_name = "TOPIC", requires = "feedback_deadline")]
    topic: Option<String>,
    /// Each shard is a call of this URL
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Each shard is a call of this named service of the project
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// What follows the service's address
    #[arg(long, value_name = "PATH", conflicts_with_all = ["url", "topic", "file"])]
    path: Option<String>,
    /// The value of each record, or the body of each call
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["value_file", "file"])]
    value: Option<String>,
    /// A file that has it; -: standard input
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    value_file: Option<PathBuf>,
    /// An executor reports on a shard; a turn has failed of which nothing is heard for so long
    #[arg(long, value_name = "DURATION", value_parser = length, conflicts_with = "file")]
    feedback_deadline: Option<Length>,
    /// The same from the first heartbeat on [default: the feedback deadline]
    #[arg(long, value_name = "DURATION", value_parser = length, requires = "feedback_deadline", conflicts_with = "file")]
    heartbeat: Option<Length>,
    /// How often a shard that has failed is handed out again [default: 0, or as its service says]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    retries: Option<u32>,
    /// The wait before that [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = length, requires = "retries", conflicts_with = "file")]
    interval: Option<Length>,
    /// The run expires so long after its first shards are created, if they have not ended; at most 30d [default: 1d]
    #[arg(long, value_name = "DURATION", value_parser = length, conflicts_with = "file")]
    deadline: Option<Length>,
    /// It is due up to so much later, at most 1h: its id says how much [default: as its project says]
    #[arg(long, value_name = "DURATION", value_parser = length, conflicts_with = "file")]
    window: Option<Length>,
    /// Its shards are not created from then on: RFC 3339, epoch milliseconds, or how long from now
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    expires_at: Option<Moment>,
    /// What becomes of the other shards when one has failed for good: they go on, or are cancelled [default: continue]
    #[arg(long, value_parser = ["continue", "stop"], conflicts_with = "file")]
    on_shard_failure: Option<String>,
    /// Tells how the run ended by a record of this topic
    #[arg(long, value_name = "TOPIC", group = "on_finished", conflicts_with = "file")]
    on_finished_topic: Option<String>,
    /// Tells how the run ended by a call of this URL
    #[arg(long, value_name = "URL", group = "on_finished", conflicts_with = "file")]
    on_finished_url: Option<String>,
    /// Tells how the run ended by a call of this named service of the project
    #[arg(long, value_name = "NAME", group = "on_finished", conflicts_with = "file")]
    on_finished_service: Option<String>,
    /// How long from now it is due, as 10s; with a file, in place of the time there
    #[arg(long, visible_alias = "in", value_name = "DURATION", value_parser = length,
        required_unless_present_any = ["at", "file"], conflicts_with = "at")]
    delay: Option<Length>,
    /// When it is due: RFC 3339, epoch milliseconds, or how long from now; with a file, in place of the time there
    #[arg(long, value_name = "TIME")]
    at: Option<Moment>,
    /// The same id of a project is the same run [default: that of the file, or a new one]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    request_id: Option<String>,
    #[command(flatten)]
    to: To,
}

/// It is no run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongRun(String);

/// The option by which a field of a run is given.
fn option(field: &str) -> String {
    const OTHERS: [(&str, &str); 7] = [
        ("trigger_at", "--at"),
        ("task.body", "--value"),
        ("task.body_b64", "--value-file"),
        ("task.value_b64", "--value-file"),
        ("task.retry.count", "--retries"),
        ("task.feedback", "--feedback-deadline"),
        ("request", "the run"),
    ];
    if let Some((_, option)) = OTHERS.iter().find(|(of, _)| *of == field) {
        return (*option).to_owned();
    }
    let of_task = field.strip_prefix("task.").unwrap_or(field);
    let of_task = of_task.strip_prefix("retry.").unwrap_or(of_task);
    let name = of_task.strip_prefix("feedback.heartbeat").map_or(of_task, |_| "heartbeat");
    format!("--{}", name.replace(['_', '.'], "-"))
}

/// What is wrong with the option of a field. There are two deadlines, and a heartbeat comes within that of the feedback.
fn said_of_option(field: &str, detail: &str) -> String {
    let detail = of_option(detail).replace("than the deadline", "than --feedback-deadline");
    format!("{} {detail}", option(field))
}

/// Puts a field in, if there is one.
fn put(fields: &mut Map<String, Value>, name: &str, value: Option<impl Serialize>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), json!(value));
    }
}

/// Reads a file to its end, and no more than an instance would take; `-` is standard input.
fn read(file: &Path) -> Result<Vec<u8>, String> {
    let most = BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let (name, done) = if file == Path::new("-") {
        ("standard input".into(), io::stdin().take(most).read_to_end(&mut bytes))
    } else {
        let opened = std::fs::File::open(file);
        let done = opened.and_then(|file| file.take(most).read_to_end(&mut bytes));
        (file.to_string_lossy(), done)
    };
    done.map_err(|error| unread(&name, &error))?;
    match bytes.len() > BYTES_MAX {
        true => Err(format!("{name}: is larger than {BYTES_MAX} bytes")),
        false => Ok(bytes),
    }
}

/// The run that a file says.
fn of_file(file: &Path) -> Result<Map<String, Value>, String> {
    let name =
        if file == Path::new("-") { "standard input".into() } else { file.to_string_lossy() };
    let text = String::from_utf8(read(file)?).map_err(|_| format!("{name}: it is no UTF-8"))?;
    match of_json(&text).map_err(|(line, why)| format!("{name}:{line}: {why}"))? {
        Value::Object(fields) => Ok(fields),
        _ => Err(format!("{name}: want a JSON object with the fields of a run")),
    }
}

impl Create {
    /// What is sent, and which run that is.
    fn request(&self) -> Result<(Value, TaskId), String> {
        let mut fields = match &self.file {
            Some(file) => of_file(file)?,
            None => self.fields()?,
        };
        if self.delay.is_some() || self.at.is_some() {
            fields.remove("delay");
            fields.remove("trigger_at");
        }
        put(&mut fields, "delay", self.delay.as_ref());
        put(&mut fields, "trigger_at", self.at.map(|at| at.0));
        put(&mut fields, "request_id", self.request_id.as_ref());
        fields.entry("request_id").or_insert_with(|| uuid::Uuid::new_v4().to_string().into());
        let fields = Value::Object(fields);
        let read = request::read(TaskType::Run, fields.to_string().as_bytes(), BYTES_MAX);
        let read = read.map_err(|wrongs| {
            let said = |at: &str, detail: &str| match self.file {
                Some(_) => format!("{at} {detail}"),
                None => said_of_option(at, detail),
            };
            let wrongs: Vec<String> =
                wrongs.iter().map(|wrong| said(&wrong.at, &wrong.detail)).collect();
            let file = self.file.as_ref().map(|file| format!("{}: ", file.display()));
            file.unwrap_or_default() + &wrongs.join("; ")
        })?;
        let request_id = read.request_id.unwrap_or_default();
        let id = TaskId::run_of_request(read.spec.project(), &request_id);
        Ok((fields, id.map_err(|error| error.to_string())?))
    }

    /// The run that the options say, without its time and its request id.
    fn fields(&self) -> Result<Map<String, Value>, String> {
        let mut task = Map::new();
        let is_kafka = self.topic.is_some();
        put(&mut task, "type", Some(if is_kafka { "kafka" } else { "http" }));
        put(&mut task, "topic", self.topic.as_ref());
        put(&mut task, "url", self.url.as_ref());
        put(&mut task, "service", self.service.as_ref());
        put(&mut task, "path", self.path.as_ref());
        let value = match (&self.value, &self.value_file) {
            (Some(value), _) => Some(value.clone().into_bytes()),
            (None, Some(file)) => Some(read(file)?),
            (None, None) => None,
        };
        let (text, base64) = if is_kafka { ("value", "value_b64") } else { ("body", "body_b64") };
        match value.map(String::from_utf8) {
            Some(Ok(value)) => put(&mut task, text, Some(value)),
            Some(Err(error)) => put(&mut task, base64, Some(BASE64.encode(error.as_bytes()))),
            None => {}
        }
        if let Some(deadline) = &self.feedback_deadline {
            let mut feedback = Map::new();
            put(&mut feedback, "deadline", Some(deadline));
            put(&mut feedback, "heartbeat", self.heartbeat.as_ref());
            put(&mut task, "feedback", Some(feedback));
        }
        if let Some(count) = self.retries {
            let mut retry = Map::new();
            put(&mut retry, "count", Some(count));
            put(&mut retry, "interval", self.interval.as_ref());
            put(&mut task, "retry", Some(retry));
        }
        let mut on_finished = Map::new();
        put(&mut on_finished, "topic", self.on_finished_topic.as_ref());
        put(&mut on_finished, "url", self.on_finished_url.as_ref());
        put(&mut on_finished, "service", self.on_finished_service.as_ref());
        let mut run = Map::new();
        put(&mut run, "project", self.project.as_ref());
        put(&mut run, "group", self.group.as_ref());
        put(&mut run, "shards", self.shards);
        put(&mut run, "deadline", self.deadline.as_ref());
        put(&mut run, "window", self.window.as_ref());
        put(&mut run, "expires_at", self.expires_at.map(|at| at.0));
        put(&mut run, "on_shard_failure", self.on_shard_failure.as_ref());
        put(&mut run, "on_finished", (!on_finished.is_empty()).then_some(on_finished));
        put(&mut run, "task", Some(task));
        Ok(run)
    }

    pub(super) fn run(self, global: &Global) -> Outcome {
        let (body, id) = self.request().map_err(|why| Failure::new(Exit::Usage, WrongRun(why)))?;
        let client = self.to.open(global)?;
        // A request id may be that of a run that there is, or was: then nothing is created.
        let before = look(&client, &id).ok().and_then(|told| typed::<RunView>(&told).ok());
        let mut told = client.ask(Kind::Create, &Method::POST, PATH, &[], Some(&body))?;
        let new: RunCreated = typed(&told)?;
        if !global.json() {
            return output::line(&created(&new, before.as_ref()));
        }
        if let Some(before) = before.filter(|before| !is_unborn(before)) {
            told["trigger_at"] = before.trigger_at.into();
            told["existed"] = json!(before.run_status);
        }
        output::line(&told.to_string())
    }
}

/// One that was refused when it was created can be created again.
fn is_unborn(run: &RunView) -> bool {
    run.run_status == RunStatus::Failed && run.counts.created == 0
}

/// What a create has come to, by the run that was there before it.
fn created(new: &RunCreated, before: Option<&RunView>) -> String {
    let due = |at| output::time(UnixMillis(at));
    let id = output::shown(Some(new.run_id.as_bytes()));
    match before {
        None => format!("{id}  due {}", due(new.trigger_at)),
        Some(run) if is_unborn(run) => format!(
            "{id}  due {}; it failed before ({}): `waterclock runs get {id}` says whether it is there now",
            due(new.trigger_at),
            output::shown(Some(run.code.as_deref().unwrap_or("refused").as_bytes())),
        ),
        Some(run) => format!(
            "{id}  exists already, nothing was created: {}, due {}",
            word(run.run_status),
            due(run.trigger_at)
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::show::tests::run;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        create: Create,
    }

    fn parsed(words: &[&str]) -> Result<Create, clap::Error> {
        Line::try_parse_from([&["x"], words].concat()).map(|line| line.create)
    }

    fn body(line: &str) -> Value {
        let words: Vec<&str> = line.split_whitespace().collect();
        let create = parsed(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let (body, id) = create.request().unwrap_or_else(|wrong| panic!("{line}: {wrong}"));
        let request_id = body["request_id"].as_str().expect("one");
        let want = TaskId::run_of_request("shop", request_id).expect("an id");
        assert_eq!(id, want, "{line}");
        body
    }

    const KAFKA: &str =
        "--project shop --group settlement --shards 60 --topic settlement --feedback-deadline 1h";

    #[test]
    fn what_the_options_say_is_a_request_that_is_taken() {
        let all = format!(
            "{KAFKA} --value day-31 --heartbeat 30s --retries 3 --interval 1500ms --deadline 2h --on-shard-failure stop \
             --on-finished-topic settled --delay 10s --request-id day-31 --window 5m --expires-at 4000000000000"
        );
        let want = json!({
            "project": "shop", "group": "settlement", "shards": 60, "deadline": "2h", "on_shard_failure": "stop",
            "on_finished": {"topic": "settled"}, "delay": "10s", "request_id": "day-31",
            "window": "5m", "expires_at": 4_000_000_000_000_u64,
            "task": {
                "type": "kafka", "topic": "settlement", "value": "day-31",
                "feedback": {"deadline": "1h", "heartbeat": "30s"}, "retry": {"count": 3, "interval": "1500ms"},
            },
        });
        assert_eq!(body(&all), want);
        let call = "--project shop --group reports --shards 8 --at 1800000000000 --value -x";
        let by_url = body(&format!(
            "{call} --url https://a.example/part --on-finished-url http://a.example/"
        ));
        assert_eq!(by_url["trigger_at"], 1_800_000_000_000_u64);
        assert_eq!(
            by_url["task"],
            json!({"type": "http", "url": "https://a.example/part", "body": "-x"})
        );
        assert_eq!(by_url["on_finished"], json!({"url": "http://a.example/"}));
        let by_service =
            body(&format!("{call} --service reports --path /part --on-finished-service reports"));
        let task = json!({"type": "http", "service": "reports", "path": "/part", "body": "-x"});
        assert_eq!(by_service["task"], task);
        assert_eq!(by_service["on_finished"], json!({"service": "reports"}));
    }

    #[test]
    fn options_that_make_no_run_are_refused() {
        let call = "--project shop --group g --shards 8";
        for wrong in [
            String::new(),
            format!("{call} --delay 1s"),
            format!("{call} --url http://a.example/"),
            format!("{call} --url http://a.example/ --delay 1s --at 2h"),
            format!("{call} --url http://a.example/ --path /x --delay 1s"),
            format!("{call} --url http://a.example/ --topic t --feedback-deadline 1h --delay 1s"),
            format!("{call} --topic t --delay 1s"),
            format!("{call} --url http://a.example/ --delay 1s --heartbeat 5s"),
            format!("{call} --url http://a.example/ --delay 1s --interval 5s"),
            format!("{call} --url http://a.example/ --delay 1s --value a --value-file b"),
            format!("{KAFKA} --delay 1s --on-finished-topic t --on-finished-url http://a.example/"),
            format!("{KAFKA} --delay 1"),
            format!("{KAFKA} --delay 1s --on-shard-failure wait"),
            "--project shop --group g --url http://a.example/ --delay 1s".to_owned(),
            "--project shop --group g --shards 0 --url http://a.example/ --delay 1s".to_owned(),
            "--project shop --group g --shards 10001 --url http://a.example/ --delay 1s".to_owned(),
            "--file run.json --shards 8".to_owned(),
            "--file run.json --topic t".to_owned(),
            "--file run.json --value v".to_owned(),
            "--file run.json --path /x".to_owned(),
            "--file run.json --heartbeat 5s".to_owned(),
            "--file run.json --window 5m".to_owned(),
            "--file run.json --interval 5s".to_owned(),
            format!("{KAFKA} --delay 1s --path /x"),
        ] {
            let words: Vec<&str> = wrong.split_whitespace().collect();
            assert!(parsed(&words).is_err(), "{wrong}");
        }
        // What clap does not see is refused as an instance would.
        let line = format!("{KAFKA} --delay 1s --deadline 31d --heartbeat 2h");
        let words: Vec<&str> = line.split_whitespace().collect();
        let wrong = parsed(&words).expect("arguments").request().expect_err("two are wrong");
        assert!(wrong.contains("--deadline is ") && wrong.contains("--heartbeat is "), "{wrong}");
        assert!(wrong.contains("longer than --feedback-deadline;"), "{wrong}");
        // A bare number is refused, so nothing says that one is taken.
        assert!(wrong.contains("(\"1m30s\"), from"), "{wrong}");
    }

    #[test]
    fn errors_name_what_was_typed() {
        for (field, want) in [
            ("shards", "--shards"),
            ("on_shard_failure", "--on-shard-failure"),
            ("on_finished.url", "--on-finished-url"),
            ("deadline", "--deadline"),
            ("trigger_at", "--at"),
            ("request_id", "--request-id"),
            ("task.url", "--url"),
            ("task.topic", "--topic"),
            ("task.value", "--value"),
            ("task.body_b64", "--value-file"),
            ("task.feedback.deadline", "--feedback-deadline"),
            ("task.feedback.heartbeat", "--heartbeat"),
            ("task.retry.count", "--retries"),
            ("task.retry.interval", "--interval"),
        ] {
            assert_eq!(option(field), want, "{field}");
        }
    }

    #[test]
    fn a_file_has_the_fields_of_a_run_and_the_time_may_be_another_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("run.json");
        let name = file.to_str().expect("a name").to_owned();
        let write = |text: &str| std::fs::write(&file, text).expect("written");
        let run = json!({
            "project": "shop", "group": "settlement", "shards": 60, "trigger_at": 1_800_000_000_000_u64,
            "task": {"type": "kafka", "topic": "settlement", "feedback": {"deadline": "1h"}},
        });
        write(&run.to_string());
        let as_it_is = body(&format!("--file {name}"));
        assert_eq!(as_it_is["trigger_at"], run["trigger_at"]);
        assert_eq!(as_it_is["task"], run["task"]);
        let later = body(&format!("--file {name} --delay 5s --request-id again"));
        assert_eq!((&later["delay"], &later["trigger_at"]), (&json!("5s"), &Value::Null));
        assert_eq!(later["request_id"], "again");
        let wrong = |text: &str| {
            write(text);
            parsed(&["--file", &name]).expect("arguments").request().expect_err(text)
        };
        assert!(wrong("{\n\"project\": 1,\n}").contains("run.json:3: it is no JSON: "));
        assert!(wrong("[]").contains("run.json: want a JSON object"));
        let fields =
            wrong(r#"{"project": "shop", "group": "g", "shards": 0, "delay": 1, "task": {}}"#);
        assert!(fields.contains("run.json: ") && fields.contains("shards is 0"), "{fields}");
        assert!(fields.contains("task.type "), "{fields}");
        std::fs::remove_file(&file).expect("removed");
        let gone = parsed(&["--file", &name]).expect("arguments").request();
        assert!(gone.expect_err("it is gone").contains("could not read it"));
    }

    #[test]
    fn a_value_that_is_no_text_goes_in_base64() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("value");
        std::fs::write(&file, [0xff, 0]).expect("written");
        let line = format!("{KAFKA} --delay 1s --value-file {}", file.display());
        assert_eq!(body(&line)["task"]["value_b64"], "/wA=");
        std::fs::write(&file, "text").expect("written");
        assert_eq!(body(&line)["task"]["value"], "text");
    }

    #[test]
    fn the_run_that_the_document_shows_is_taken() {
        let page = include_str!("../../../docs/runs.md");
        let (_, block) = page.split_once("```json\n{\"project\"").expect("a file");
        let (block, _) = block.split_once("```").expect("its end");
        let text = format!("{{\"project\"{block}");
        let read = request::read(TaskType::Run, text.as_bytes(), BYTES_MAX).expect("a run");
        assert_eq!(read.spec.run().map(crate::engine::run::Run::shards), Some(60));
    }

    #[test]
    fn a_create_says_what_was_there_before_it() {
        let new = RunCreated { run_id: "9f2c".to_owned(), trigger_at: 1_767_312_000_000 };
        assert_eq!(created(&new, None), "9f2c  due 2026-01-02T00:00:00.000Z");
        let before = |status: &str, created: u32| {
            let counts =
                json!({"created": created, "begun": 0, "again": 0, "finished": 0, "failed": 0});
            run(json!({"run_status": status, "code": "target_denied", "counts": counts}))
        };
        let there = created(&new, Some(&before("re-executing", 60)));
        let want =
            "9f2c  exists already, nothing was created: re-executing, due 2026-01-01T00:00:00.000Z";
        assert_eq!(there, want);
        assert!(created(&new, Some(&before("failed", 60))).contains("exists already"));
        let again = created(&new, Some(&before("failed", 0)));
        assert!(again.contains("it failed before (target_denied)"), "{again}");
    }
}
