//! Why a command failed. `src/cli/failure.rs` prints it.

use std::error::Error;

use crate::Exit;

/// What a command gives back.
pub type Outcome = Result<Exit, Failure>;

/// Why a command failed, with its exit code.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: Box<dyn Error + Send + Sync>,
}

impl Failure {
    /// A failure with the error of the module in which it happened. Its sources are printed, too.
    pub fn new(exit: Exit, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit, error: error.into() }
    }

    /// The code to end with.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// What happened.
    #[must_use]
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }
}
