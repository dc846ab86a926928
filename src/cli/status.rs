//! `waterclock status`: what is known of one timer.

use clap::Args;
use serde_json::Value;

use super::client::{ServerArg, StartWait, typed};
use super::name::Key;
use super::send::{intake_topic, of_kafka};
use super::{Exit, Global, Outcome, list, output};
use crate::config::Overrides;
use crate::kafka::{SubmitError, Submitter};

/// Arguments of `status`.
#[derive(Args)]
pub(super) struct Status {
    /// The name that the timer was given
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    key: Key,
    /// The intake that it came by: an instance knows a timer by its key and its id alone, so this only checks that there is such
    /// an intake
    #[arg(long, value_name = "NAME")]
    intake: Option<String>,
    #[command(flatten)]
    wait: StartWait,
    #[command(flatten)]
    server: ServerArg,
}

impl Status {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        self.key.bytes()?;
        if self.intake.is_some() {
            let topic = intake_topic(&config, self.intake.as_deref())?;
            let submitter = Submitter::new(&global.connection(&config)).map_err(of_kafka)?;
            if submitter.partitions(&[&topic]).map_err(of_kafka)? == [None] {
                return Err(of_kafka(SubmitError::NoTopic { topic }));
            }
        }
        let client = self.server.open_within(self.wait.wait, global, &config)?;
        // As it came: also what a newer instance adds.
        let timer: Value = client.look_up(&self.key.timer(&self.id))?;
        let is_known = timer["state"] != "unknown";
        if global.json() {
            output::line(&timer.to_string())?;
        } else if is_known {
            output::line(&list::whole(&typed(&timer)?))?;
        } else {
            output::line("unknown")?;
        }
        Ok(if is_known { Exit::Ok } else { Exit::Negative })
    }
}
