//! `waterclock token`: makes a token for callers of the API, and the lines of the configuration that let it in.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{ArgGroup, Args};
use serde_json::json;

use super::{Global, Outcome, output};
use crate::api::auth;
use crate::engine::task::registry::is_name;

/// Begins every token, so that a scanner of secrets finds one that was left somewhere.
const PREFIX: &str = "wct_";

/// Arguments of `token`.
#[derive(Args)]
#[command(group(ArgGroup::new("covered").required(true).args(["projects", "all"])))]
pub(super) struct Token {
    /// Whose it is, for the log
    #[arg(value_name = "NAME", value_parser = owner)]
    name: String,
    /// What its holder may do: read, write (create, cancel, retry), admin (projects, too)
    #[arg(long, default_value = "write", value_parser = ["read", "write", "admin"])]
    role: String,
    /// A project that it covers; may be given several times, and * is all
    #[arg(long = "project", value_name = "NAME", value_parser = project)]
    projects: Vec<String>,
    /// It covers all projects, and timers
    #[arg(long)]
    all: bool,
}

fn owner(text: &str) -> Result<String, String> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_owner = (1..=64).contains(&text.len()) && text.chars().all(is_fit);
    if is_owner {
        Ok(text.to_owned())
    } else {
        Err("want 1 to 64 of letters, digits, '.', '_', '-'".to_owned())
    }
}

fn project(text: &str) -> Result<String, String> {
    if text == "*" || is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("want 1 to 64 of a-z 0-9 . _ -, or *".to_owned())
    }
}

impl Token {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()));
        let sha256 = auth::sha256(&token).iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}");
            digits
        });
        if global.json() {
            let projects = self.covered();
            let Self { name, role, .. } = self;
            let line = json!({
                "token": token, "name": name, "sha256": sha256, "role": role, "projects": projects,
            });
            return output::line(&line.to_string());
        }
        output::line(&format!(
            "{token}\n\nThis is the only time that it is shown. Add this to the configuration of every instance, and send SIGHUP:\n\n{}",
            self.lines(&sha256)
        ))
    }

    fn covered(&self) -> Vec<String> {
        if self.all { vec!["*".to_owned()] } else { self.projects.clone() }
    }

    fn lines(&self, sha256: &str) -> String {
        let projects: Vec<String> =
            self.covered().iter().map(|name| format!("\"{name}\"")).collect();
        format!(
            "[[api.tokens]]\nname = \"{}\"\nsha256 = \"{sha256}\"\nrole = \"{}\"\nprojects = [{}]",
            self.name,
            self.role,
            projects.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::{Config, Overrides};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        token: Token,
    }

    #[test]
    fn the_lines_are_a_configuration_that_is_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        for (line, covered) in [
            ("x ci --project shop --project bank", Some(2)),
            ("x ops --role admin --all", None),
            ("x reader --role read --project *", None),
        ] {
            let Line { token } = Line::try_parse_from(line.split_whitespace()).expect(line);
            let file = directory.path().join("wc.toml");
            std::fs::write(&file, token.lines(&"0f".repeat(32))).expect("written");
            let config = Config::load_from(Some(&file), [], Overrides::default()).expect(line);
            let found = &config.api.tokens[0];
            assert_eq!(found.covered().map(<[String]>::len), covered, "{line}");
            assert_eq!(found.hash(), Some([0x0f; 32]));
        }
        for wrong in ["x", "x ci", "x c!i --all", "x ci --project A", "x ci --all --project a"] {
            assert!(Line::try_parse_from(wrong.split_whitespace()).is_err(), "{wrong}");
        }
    }
}
