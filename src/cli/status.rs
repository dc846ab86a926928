//! `waterclock status`: what is known of one timer.

use clap::Args;

use super::door::{StartWait, Where};
use super::name::Key;
use super::{Exit, Global, Outcome, list, output};
use crate::config::Overrides;

/// Arguments of `status`.
#[derive(Args)]
pub(super) struct Status {
    /// The name that the timer was given
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    id: String,
    #[command(flatten)]
    key: Key,
    #[command(flatten)]
    wait: StartWait,
    #[command(flatten)]
    server: Where,
}

impl Status {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        self.key.bytes()?;
        let door = self.server.open_within(self.wait, global, &config)?;
        let timer = &door.look_up(&self.key.timer(&self.id))?;
        let is_known = timer["state"] != "unknown";
        if global.json() {
            output::line(&timer.to_string())?;
        } else if is_known {
            output::line(&list::whole(timer))?;
        } else {
            output::line("unknown")?;
        }
        Ok(if is_known { Exit::Ok } else { Exit::Negative })
    }
}
