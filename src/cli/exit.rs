//! The exit codes of what ends an instance. The codes themselves are in `crates/terminal`.

use std::io::ErrorKind;

use crate::app::{self, instance, lanes};
use crate::kafka::{TakeOverError, member};
use crate::terminal::Exit;

impl From<&app::Error> for Exit {
    fn from(error: &app::Error) -> Self {
        match error {
            app::Error::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse => {
                Self::InUse
            }
            app::Error::Listen { .. } => Self::Configuration,
            app::Error::Open { .. } | app::Error::Tls(_) => Self::Configuration,
            app::Error::Start(error) => of_start(error),
            app::Error::Lanes(member::Error::TakeOver(TakeOverError::PositionGone { .. })) => {
                Self::Configuration
            }
            app::Error::Lanes(
                member::Error::TakeOver(TakeOverError::NameInUse { .. })
                | member::Error::Fenced { .. },
            ) => Self::InUse,
            // The next start does.
            app::Error::Refounded => Self::Unavailable,
            app::Error::Lanes(_) | app::Error::Died => Self::Internal,
        }
    }
}

/// Of a data directory that was not to be had.
pub(super) fn of_instance(error: &instance::Error) -> Exit {
    match error {
        instance::Error::InUse(_) | instance::Error::AllInUse => Exit::InUse,
        // It must be mended, or another one named.
        instance::Error::Io { .. } | instance::Error::BadName(_) => Exit::Configuration,
    }
}

fn of_start(error: &lanes::Error) -> Exit {
    match error {
        lanes::Error::Instance(error) => of_instance(error),
        lanes::Error::Index(_) => Exit::InUse,
        lanes::Error::Topics(error) if error.is_away() => Exit::Unavailable,
        // The topics are configuration, too: it is a person who has to mend them.
        lanes::Error::Topics(_) | lanes::Error::Weak { .. } | lanes::Error::Allow { .. } => {
            Exit::Configuration
        }
        lanes::Error::Client(_) | lanes::Error::Worker(_) => Exit::Internal,
    }
}
