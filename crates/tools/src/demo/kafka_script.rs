//! A real Kafka for the demo, by `scripts/kafka` of this repository; stopped when dropped.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use waterclock_terminal::Stop;

/// Between two looks whether the script has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Why there is no Kafka by the script.
#[derive(Debug, thiserror::Error)]
pub(super) enum KafkaScriptError {
    /// Say where it is, or run in a clone of the repository.
    #[error(
        "no scripts/kafka above the working directory or this program; name it with WATERCLOCK_KAFKA_SCRIPT, or \
         name brokers that run with --brokers"
    )]
    Missing,
    /// The script could not be run.
    #[error("could not run {}", path.display())]
    Run {
        /// The script.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The script has said why on standard error.
    #[error("{} start ended with {status}", path.display())]
    Failed {
        /// The script.
        path: PathBuf,
        /// How.
        status: ExitStatus,
    },
    /// It ended well, and told nothing.
    #[error("{} start printed no KAFKA_BOOTSTRAP", path.display())]
    Silent {
        /// The script.
        path: PathBuf,
    },
    /// Somebody ended the demo meanwhile.
    #[error("interrupted while Kafka started")]
    Interrupted,
}

/// A Kafka that the script has started.
#[derive(Debug)]
pub(super) struct ScriptedKafka {
    path: PathBuf,
    directory: PathBuf,
    /// `host:port`.
    pub(super) brokers: String,
}

impl ScriptedKafka {
    /// Starts one; its data goes to a fresh temporary directory.
    ///
    /// # Errors
    /// See [`KafkaScriptError`]; nothing is left running.
    pub(super) fn start(path: Option<&Path>, stop: &Stop) -> Result<Self, KafkaScriptError> {
        let path = path.map(Path::to_owned).or_else(found).ok_or(KafkaScriptError::Missing)?;
        let failed = |source| KafkaScriptError::Run { path: path.clone(), source };
        let name = format!("waterclock-demo-{}", uuid::Uuid::new_v4().simple());
        let directory = std::env::temp_dir().join(name);
        let mut child =
            command(&path, "start", &directory).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let ended = wait(&mut child, stop).map_err(failed)?;
        let mut kafka = Self { path: path.clone(), directory, brokers: String::new() };
        if stop.asked() {
            return Err(KafkaScriptError::Interrupted);
        }
        if !ended.success() {
            return Err(KafkaScriptError::Failed { path, status: ended });
        }
        let mut printed = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut printed).map_err(failed)?;
        }
        let brokers = printed.lines().find_map(|line| line.strip_prefix("KAFKA_BOOTSTRAP="));
        kafka.brokers = brokers.ok_or(KafkaScriptError::Silent { path })?.to_owned();
        Ok(kafka)
    }
}

impl Drop for ScriptedKafka {
    fn drop(&mut self) {
        // It tells by itself what went wrong; there is nobody here to mend it.
        let _ = command(&self.path, "stop", &self.directory).stdout(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// In a process group of its own: a Ctrl-C is for the demo, which still needs its brokers then.
fn command(path: &Path, what: &str, directory: &Path) -> Command {
    let mut command = Command::new(path);
    command.arg(what).arg("--dir").arg(directory).stdin(Stdio::null()).process_group(0);
    command
}

/// Waits for the script; when somebody ends the demo, the script is told to end, and cleans up.
fn wait(child: &mut Child, stop: &Stop) -> io::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.asked() && !told {
            told = true;
            rustix::process::kill_process(Pid::from_child(child), Signal::TERM)?;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// `scripts/kafka` beside a `Cargo.toml`, above the working directory or above this program.
fn found() -> Option<PathBuf> {
    let from = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    from.into_iter().flatten().find_map(|from| {
        let root = from.ancestors().find(|at| at.join("Cargo.toml").is_file())?;
        let script = root.join("scripts/kafka");
        script.is_file().then_some(script)
    })
}
