//! `waterclock cancel`: keeps a pending record from being delivered.
//!
//! It writes the cancel to the intake, where the owner of the lane meets it, and waits for the acknowledgement. What the
//! header contract would refuse is refused here, by the same parser, before anything connects.

use clap::Args;
use serde_json::json;

use super::send::{intake_topic, of_kafka, refused};
use super::{Global, Outcome, output};
use crate::config::Overrides;
use crate::engine::Record;
use crate::engine::header;
use crate::kafka::{SubmitError, Submitter};

/// Arguments of `cancel`.
#[derive(Args)]
pub(super) struct Cancel {
    /// The name that the timer was given
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    id: String,
    /// Key of its record; leave it out for a record without a key
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    key: Option<String>,
    /// The intake that it was sent to, if not the main one: `<ns>.intake.NAME`
    #[arg(long, value_name = "NAME")]
    intake: Option<String>,
}

impl Cancel {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let topic = intake_topic(&config, self.intake.as_deref())?;
        let record = self.record();
        header::read(record.headers()).map_err(refused)?;

        let submitter = Submitter::new(&global.connection(&config)).map_err(of_kafka)?;
        let counts = submitter.partitions(&[&topic]).map_err(of_kafka)?;
        let Some(lanes) = counts.first().copied().flatten() else {
            return Err(of_kafka(SubmitError::NoTopic { topic }));
        };
        let lane_key = record.key().or(Some(self.id.as_bytes()));
        submitter.submit(&topic, lanes, lane_key, &record).map_err(of_kafka)?;
        if global.json() {
            let told = json!({ "id": self.id, "key": self.key, "outcome": "recorded" });
            return output::line(&told.to_string());
        }
        output::line("recorded")
    }

    fn record(&self) -> Record {
        let headers = [(header::ACTION, "cancel"), (header::ID, &self.id)];
        let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        Record::new(self.key.as_deref().map(str::as_bytes), None, headers)
    }
}
