//! Prints why a command failed.

use std::error::Error;
use std::fmt::Write as _;

use serde_json::json;

use super::again;
use crate::config::{Config, ConfigErrors, Invalid, Origin};
use crate::kafka::NoAnswer;
use crate::terminal::{Exit, Failure};

/// Writes it to standard error: `error: what: because`, or one JSON object.
pub(super) fn report(failure: &Failure, json: bool) {
    let text = if json { format!("{}\n", as_json(failure)) } else { as_text(failure) };
    // If nobody reads standard error, the exit code is all that is left.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

/// Writes it to the log, one line for each thing that is wrong. Gives the code to end with: nothing is left to be printed.
pub(super) fn log(failure: &Failure) -> Exit {
    let exit = failure.exit() as u8;
    match failure.error().downcast_ref() {
        Some(ConfigErrors(all)) => {
            all.iter()
                .for_each(|invalid| tracing::error!(exit, because = %invalid, "configuration"));
        }
        None => {
            let chain = chain(failure.error());
            let because = again::mended(&chain[1..].join(": "));
            tracing::error!(exit, because, "{}", again::mended(&chain[0]));
        }
    }
    failure.exit()
}

fn as_text(failure: &Failure) -> String {
    match failure.error().downcast_ref() {
        Some(ConfigErrors(all)) => all.iter().fold(String::new(), |mut text, invalid| {
            let _ = writeln!(text, "error: configuration: {invalid}");
            text
        }),
        None => format!("error: {}\n", again::mended(&chain(failure.error()).join(": "))),
    }
}

fn as_json(failure: &Failure) -> serde_json::Value {
    let exit = failure.exit() as u8;
    match failure.error().downcast_ref() {
        Some(ConfigErrors(all)) => {
            let invalid: Vec<_> = all.iter().map(invalid).collect();
            json!({ "error": "configuration", "exit": exit, "invalid": invalid })
        }
        None => {
            let chain: Vec<_> =
                chain(failure.error()).iter().map(|text| again::mended(text)).collect();
            json!({ "error": chain[0], "because": chain[1..], "exit": exit })
        }
    }
}

fn invalid(Invalid { key, origin, line, value, want }: &Invalid) -> serde_json::Value {
    let origin = match origin {
        Origin::Default => "default".to_owned(),
        Origin::File(path) => path.display().to_string(),
        Origin::Environment => "environment".to_owned(),
        Origin::Flag => "flag".to_owned(),
        Origin::Code => "code".to_owned(),
    };
    match &**want {
        "" => json!({ "key": key, "origin": origin, "line": line, "because": value }),
        want => json!({ "key": key, "origin": origin, "line": line, "value": value, "want": want }),
    }
}

/// The error and its sources, outermost first.
fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let (mut told, mut next) = (Vec::<String>::new(), Some(error));
    let mut is_default = false;
    while let Some(error) = next {
        let text = error.to_string();
        // rdkafka's errors say their source's text in their own.
        if !told.last().is_some_and(|above| above.ends_with(&text)) {
            told.push(text);
        }
        let away = error.downcast_ref::<NoAnswer>();
        is_default |= away.is_some_and(|away| away.brokers == Config::default().brokers);
        next = error.source();
    }
    if is_default {
        told.push("if Kafka is elsewhere, say so with --brokers or WATERCLOCK_BROKERS".to_owned());
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::Exit;

    #[derive(Debug, thiserror::Error)]
    #[error("could not pour")]
    struct Outer(#[source] std::fmt::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("meta data: {0}")]
    struct Repeating(#[source] std::fmt::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("could not look")]
    struct Above(#[source] Repeating);

    #[test]
    fn what_an_error_says_of_its_source_is_not_said_again() {
        let told = chain(&Above(Repeating(std::fmt::Error)));
        assert_eq!(told, ["could not look", &format!("meta data: {}", std::fmt::Error)]);
    }

    #[test]
    fn who_asked_nobody_in_particular_is_told_how_to_say_where_kafka_is() {
        for (brokers, want) in [(Config::default().brokers.as_str(), true), ("b:9092", false)] {
            let source = Box::new(crate::kafka::KafkaError::Canceled);
            let away = NoAnswer { brokers: brokers.to_owned(), reason: None, source };
            let told = chain(&away).join(": ");
            assert_eq!(told.contains("--brokers or WATERCLOCK_BROKERS"), want, "{told}");
        }
    }

    #[test]
    fn the_report_walks_the_chain_of_causes() {
        let failure = Failure::new(Exit::Unavailable, Outer(std::fmt::Error));
        let because = std::fmt::Error.to_string();
        assert_eq!(as_text(&failure), format!("error: could not pour: {because}\n"));
        assert_eq!(
            as_json(&failure),
            json!({ "error": "could not pour", "because": [because], "exit": 69 })
        );
    }
}
