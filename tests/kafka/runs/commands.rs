//! `waterclock runs` and `run-status`, as a shell runs them: what they print, and their exit codes.

use serde_json::json;

use super::ends::Site;
use super::executors::Work;
use super::{create, end_of, get, run_of, shards, status, until};
use crate::support::on_terminal::{OnTerminal, is_left};
use crate::support::tasks::{Ended, command, is_final};
use crate::support::{PATIENCE, eventually, waterclock};
use crate::tasks::fixture;

const SHARDS: u32 = 12;
/// An id that no run has.
const NONE: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn the_commands_about_runs_show_how_they_stand_and_retry_and_cancel_them() {
    let fixture = fixture("runs-commands");
    let site = Site::new(&fixture);
    let api = &site.api;
    // A command that must end with this code.
    let ends = |code: i32, words: &[&str]| -> Ended {
        let ended = command(&site.process, words);
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        ended
    };
    site.crew.fail(3);
    let work = Work { rows: 5, ms: 50 };
    let id = &*site.create(SHARDS, work, json!({}));
    end_of(api, id, PATIENCE);
    let shown = eventually("all of it is known", || {
        let shown = get(api, id);
        let all = shards(api, id, "");
        let is_over = all.iter().all(is_final);
        if is_over { Ok(shown) } else { Err(format!("{all:?}")) }
    });
    assert_eq!(ends(0, &["runs", "get", id, "--json"]).json(), shown);
    let said = ends(0, &["runs", "get", id]).said;
    let next = format!("waterclock runs shards {id} --state failed");
    assert!(said.contains("task_failed") && said.contains(&next), "{said}");

    // Its shards: all of them, and the one that is to be looked at.
    let lines = ends(0, &["runs", "shards", id, "--json"]).lines();
    assert_eq!(lines, shards(api, id, ""));
    let failed = ends(0, &["runs", "shards", id, "--state", "failed", "--json"]).lines();
    assert_eq!(failed, [lines[3].clone()]);
    let said = ends(0, &["runs", "shards", id, "--state", "failed"]).said;
    assert!(said.contains("no such account") && said.lines().count() >= 2, "{said}");
    let said = ends(0, &["run-status", id]).said;
    let has = |said: &str, want: &str| said.lines().any(|line| line.trim_end() == want);
    assert!(has(&said, " 0  ###x########") && said.contains("no such account"), "{said}");
    assert!(has(&said, "    # 11 finished  x 1 failed"), "{said}");
    assert_eq!(ends(0, &["run-status", id, "--json"]).json(), shown);
    // Who waits for its end is told that it did not go well.
    assert!(has(&ends(1, &["run-status", id, "--watch"]).said, " 0  ###x########"));

    site.crew.mend();
    let again = ends(0, &["runs", "retry", id, "--json"]).json();
    assert_eq!(again["run_id"], id, "{again}");
    until(api, id, PATIENCE, "is made anew", |run| run["version"] != shown["version"]);
    let said = ends(0, &["run-status", id, "--watch"]).said;
    assert!(has(&said, " 0  ############") && has(&said, "    # 12 finished"), "{said}");
    let refused = ends(1, &["runs", "retry", id]);
    assert!(refused.error.contains("refused") && refused.said.is_empty(), "{refused:?}");
    assert_eq!(ends(1, &["runs", "cancel", id, "--wait", "20s"]).said, "finished\n");

    // A person watches one that goes on, until a key ends that.
    site.crew.hang(5);
    let hangs = &*site.create(SHARDS, work, json!({"group": "watched"}));
    let watch = || {
        let mut command = waterclock();
        let server = format!("http://{}", site.process.address().expect("it serves"));
        command.args(["run-status", hangs, "--watch", "--server", &server]).env("NO_COLOR", "1");
        OnTerminal::start(command)
    };
    let mut watched = watch();
    watched.has_drawn(&["q or Ctrl-C ends it", " 0  #####>######", "> 1 executing"]);
    watched.press("q");
    let (code, drawn) = watched.ended();
    assert_eq!(code, Some(1), "it has not ended: {drawn:?}");
    is_left(&drawn);
    let (_, left) = drawn.rsplit_once("\x1b[?1049l").expect("it was left");
    assert!(left.contains(" 0  #####>######"), "the last look stays: {left:?}");
    // Without a key it ends with the run.
    let mut watched = watch();
    watched.has_drawn(&[" 0  #####>######"]);
    site.crew.let_go();
    let (code, drawn) = watched.ended();
    assert_eq!(code, Some(0), "{drawn:?}");
    is_left(&drawn);
    let (_, left) = drawn.rsplit_once("\x1b[?1049l").expect("it was left");
    assert!(left.contains(" 0  ############"), "{left:?}");

    let later = &*site.create(SHARDS, work, json!({"delay": "1h"}));
    let told = ends(0, &["runs", "cancel", later, "--wait", "20s", "--json"]).json();
    assert_eq!(told, json!({"run_id": later, "outcome": "cancelled"}));
    let told = until(api, later, PATIENCE, "is cancelled", |run| status(run) == "cancelled");
    let of_command = ends(0, &["runs", "get", later, "--json"]).json();
    assert_eq!((&of_command, &of_command["grid"]), (&told, &json!(null)));
    let said = ends(0, &["run-status", later]).said;
    assert!(said.contains("cancelled") && !said.contains("............"), "{said}");
    eventually("both are listed", || {
        let listed =
            ends(0, &["runs", "list", "--project", "shop", "--group", "nightly", "--json"]).lines();
        let ids: Vec<_> = listed.iter().map(|run| &run["run_id"]).collect();
        if json!(ids) == json!([id, later]) { Ok(()) } else { Err(format!("{listed:?}")) }
    });

    // Large ones do not all get on one page, and the command goes on to the next ones.
    let large = "x".repeat(60_000);
    let task = json!({"type": "http", "url": "http://127.0.0.1:9009/part", "body": large});
    let more = json!({"delay": "1h", "group": "large"});
    let mut all: Vec<String> =
        (0..40).map(|_| create(api, &run_of(1, task.clone(), more.clone()))).collect();
    all.sort_unstable();
    eventually("all are listed", || {
        let listed = ends(0, &["runs", "list", "--group", "large", "--json"]).lines();
        let ids = listed.iter().map(|run| run["run_id"].as_str().unwrap_or_default().to_owned());
        let mut ids: Vec<String> = ids.collect();
        ids.sort_unstable();
        if ids == all { Ok(()) } else { Err(format!("{ids:?}")) }
    });
    let (code, page) = api.answered("GET", "/v1/runs?group=large&limit=1000", None);
    let (len, bytes) = (page["runs"].as_array().map_or(0, Vec::len), page.to_string().len());
    assert!(code == 200 && len < all.len() && page["next"].is_string(), "{len} on a page");
    assert!((1 << 20..5 << 19).contains(&bytes), "{bytes} bytes");

    for words in [["runs", "get"], ["runs", "shards"], ["runs", "cancel"], ["runs", "retry"]] {
        let ended = ends(1, &[&words[..], &[NONE]].concat());
        assert!(ended.error.contains("there is no run") && ended.said.is_empty(), "{ended:?}");
    }
    let ended = ends(1, &["run-status", NONE]);
    assert!(ended.error.contains("there is no run") && ended.said.is_empty(), "{ended:?}");
    site.stop_well();
}
