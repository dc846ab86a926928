//! Exit codes: what a process tells its caller. `docs/cli.md` has the same table; a test compares them.

use std::process::ExitCode;

/// How a command ended. The numbers from 64 on are those of BSD's `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done as asked.
    Ok = 0,
    /// It worked, and the answer is no: something was found, is missing, or was refused.
    Negative = 1,
    /// The arguments are wrong, or ask for something that the contract refuses. Nothing was sent.
    Usage = 2,
    /// Kafka, or the instance that has to answer, cannot be reached (`EX_UNAVAILABLE`); trying again may help.
    Unavailable = 69,
    /// A mistake of waterclock or of the system it runs on (`EX_SOFTWARE`).
    Internal = 70,
    /// The data directory, the instance's name or the address is in use by another process, or the directory for manual pages
    /// cannot be written (`EX_CANTCREAT`).
    InUse = 73,
    /// It is written, and not decided yet (`EX_TEMPFAIL`); ask again.
    Pending = 75,
    /// The configuration is wrong (`EX_CONFIG`); trying again does not help.
    Configuration = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_lists_every_exit_code() {
        let document = include_str!("../../../docs/cli.md");
        let all = [
            Exit::Ok,
            Exit::Negative,
            Exit::Usage,
            Exit::Unavailable,
            Exit::Internal,
            Exit::InUse,
            Exit::Pending,
            Exit::Configuration,
        ];
        let listed: Vec<&str> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
            .filter(|cell| cell.parse::<u8>().is_ok())
            .collect();
        let want: Vec<String> = all.iter().map(|exit| (*exit as u8).to_string()).collect();
        assert_eq!(listed, want);
    }
}
