//! F49: topics of three replicas that acknowledge what one broker alone has.

use crate::load::mode;
use crate::support::{Fixture, Nodes, PATIENCE, out, tool, whole};

/// `EX_CONFIG`: a person must change something before it can start.
const CONFIG: i32 = 78;

/// The arguments behind `--bootstrap-server ADDRESS` of the command that a refusal prints for `topic`.
fn printed_command(log: &str, topic: &str) -> Vec<String> {
    let (_, command) = log.split_once("kafka-configs.sh ").expect("a command");
    let words =
        command.split_whitespace().map(|word| word.trim_matches(['.', '"', '\'', '`', ';']));
    let words: Vec<String> = words.map(str::to_owned).collect();
    let end = words.iter().position(|word| word == topic).expect("the command names the topic");
    assert_eq!(words[0], "--bootstrap-server", "{command}");
    words[2..=end].to_vec()
}

#[test]
#[ignore = "scripts/faults --brokers 3"]
fn f49_topics_that_lose_with_one_broker_are_refused_until_it_is_meant_or_mended() {
    Nodes::ours().heal();
    let fixture = Fixture::new("f49");
    let target = fixture.target("in", 1);
    let timers = format!("{}.timers", fixture.namespace());
    let of_topic = ["--alter", "--entity-type", "topics", "--entity-name", &timers];
    let one = ["--add-config", "min.insync.replicas=1"];
    tool("kafka.admin.ConfigCommand", &[&of_topic[..], &one].concat());

    let mut refused = fixture.launch(mode()).spawn();
    assert_eq!(refused.wait(PATIENCE), Some(CONFIG), "{}", refused.log());
    for words in [&*timers, "1 of 3", "--weak-topics"] {
        assert!(refused.log().contains(words), "{words}: {}", refused.log());
    }

    // It is meant: it starts, delivers, and tells of it.
    let mut meant = fixture.launch(mode()).arg("--weak-topics").start();
    let record = out("a").to(&target).delay(1_000);
    fixture.producer().send_one(&fixture.names.intake(), &record);
    fixture.wait_until_nothing_is_pending();
    assert_eq!(whole(&fixture, &target).len(), 1);
    let (status, ready) = meant.get("/health/ready").expect("an answer");
    assert_eq!(status, 200, "{ready}");
    assert!(ready.contains("one lost broker loses records") && ready.contains(&timers), "{ready}");
    meant.stop_well();

    // It is mended with the command that was printed.
    let command = printed_command(&refused.log(), &timers);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    tool("kafka.admin.ConfigCommand", &command);
    let mut mended = fixture.start(mode());
    let (_, ready) = mended.get("/health/ready").expect("an answer");
    assert!(!ready.contains("loses records"), "{ready}");
    mended.stop_well();
}
