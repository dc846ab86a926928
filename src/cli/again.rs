//! Commands that are printed for people: when they are pasted they mean the same Kafka, namespace and configuration as the
//! call that printed them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

/// The options of this call that say whom it is about, each with a space before it.
static OPTIONS: OnceLock<String> = OnceLock::new();

/// Keeps them; to be called once.
pub(super) fn remember(brokers: Option<&str>, namespace: Option<&str>, config: Option<&Path>) {
    let config = config.map(Path::to_string_lossy);
    let all = [("--brokers", brokers), ("--namespace", namespace), ("--config", config.as_deref())];
    let text = all.iter().fold(String::new(), |mut text, (name, value)| {
        if let Some(value) = value {
            let _ = write!(text, " {name} {}", quoted(value));
        }
        text
    });
    let _ = OPTIONS.set(text);
}

fn options() -> &'static str {
    OPTIONS.get().map_or("", String::as_str)
}

/// A command with these arguments.
pub(super) fn command(arguments: &[&str]) -> String {
    let text = format!("waterclock{}", options());
    arguments.iter().fold(text, |text, argument| format!("{text} {}", quoted(argument)))
}

/// A text in which commands stand between backquotes.
pub(super) fn mended(text: &str) -> String {
    with(text, options())
}

fn with(text: &str, options: &str) -> String {
    text.replace("`waterclock ", &format!("`waterclock{options} "))
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_in_a_text_has_the_options_of_the_call() {
        let text =
            "no topics; run `waterclock topics apply`, or `kafka-topics.sh`; see waterclock's log";
        let want = "no topics; run `waterclock --namespace a topics apply`, or `kafka-topics.sh`; see waterclock's log";
        assert_eq!(with(text, " --namespace a"), want);
        assert_eq!(with(text, ""), text);
    }

    #[test]
    fn a_word_is_one_word_for_a_shell() {
        for (word, want) in [
            ("payment", "payment"),
            ("a b", "'a b'"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("localhost:9092,b:1", "localhost:9092,b:1"),
        ] {
            assert_eq!(quoted(word), want);
        }
    }
}
