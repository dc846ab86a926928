//! The command line: one file per subcommand, and what they share.
//!
//! For the binary: a service that runs an instance needs only `run` and `Config` of the crate.
//!
//! Results go to standard output (tables for people, with `--json` one object per line), everything else to
//! standard error. Exit codes are in [`Exit`].
//!
//! A subcommand is a clap `Args` struct with `run(self, &Global) -> Outcome`. It loads the configuration first, so
//! that what is wrong there stops it before anything connects.

mod acl;
mod again;
mod cancel;
mod client;
mod dead;
mod doctor;
mod exit;
mod failure;
mod forecast;
mod health;
mod index;
mod list;
mod looks;
mod members;
mod name;
mod pages;
mod plan;
mod project;
mod reschedule;
mod run;
mod run_status;
mod runs;
mod schedule;
mod send;
mod status;
mod table;
mod target;
mod task;
mod token;
mod tools;
mod top;
mod topics;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ContextKind;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use crate::terminal::{Exit, Failure, Outcome};

use crate::app::lanes;
use crate::config::{Config, ConfigErrors, LogConfig, LogLevel, Overrides};
use crate::kafka::Connection;
use crate::telemetry;
use crate::terminal::output;

/// Delayed delivery for Apache Kafka: a header in, a record out, on time, exactly once, in order.
#[derive(Parser)]
#[command(name = "waterclock", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 a finding or a negative answer, 2 usage, 69 Kafka or an instance \
                        cannot be reached, 70 internal, 73 data directory, name or address in use, or \
                        no place to write, 75 pending, 78 configuration. See docs/cli.md."
)]
struct Cli {
    #[command(flatten, next_help_heading = "Options of every command")]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand takes.
#[derive(Args, Clone, Debug, Default)]
pub struct Global {
    /// Addresses of Kafka, host:port, comma-separated [env: WATERCLOCK_BROKERS] [default: localhost:9092]
    #[arg(long, global = true, value_name = "LIST")]
    brokers: Option<String>,
    /// Prefix of all topics of waterclock, and its consumer group [env: WATERCLOCK_NAMESPACE] [default: waterclock]
    #[arg(long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// File of the configuration, in TOML; see docs/configuration.md
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WATERCLOCK_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
    /// Prints JSON for programs: one object per line; errors, too
    #[arg(long, global = true)]
    json: bool,
    /// Logs more to standard error; twice, still more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the service until SIGTERM or SIGINT
    Run(run::Run),
    /// Creates and checks the topics, and says which ladder is in force
    Topics(topics::Topics),
    /// Shows what a ladder costs, or proposes one
    Plan(plan::Plan),
    /// Shows delays for half a minute: by itself on a stand-in broker, with --kafka or --brokers on a real Kafka
    Demo(tools::Demo),
    /// Submits one record, to be delivered later
    Send(send::Send),
    /// Keeps pending timers from being delivered: one by its ID, or many by a filter, which are counted first
    Cancel(cancel::Cancel),
    /// Gives a pending timer another time
    Reschedule(reschedule::Reschedule),
    /// Says what is known of a timer
    Status(status::Status),
    /// Lists timers by due time
    List(list::List),
    /// Creates, shows, lists, cancels and retries tasks: timers that call back
    Task(task::Task),
    /// Schedules, which submit tasks again and again: puts, shows, lists, pauses and deletes them, and shows their times
    Schedule(schedule::Schedule),
    /// Runs, which are many shards of one task: creates, lists, shows, cancels and retries them
    Runs(runs::Runs),
    /// Shows how far the shards of a run are, as a grid; with --watch until it has ended
    RunStatus(run_status::RunStatus),
    /// Limits and pauses of a project, and its services
    Project(project::Project),
    /// Addresses and limits of the services that the tasks of a project call
    Service(project::Service),
    /// Pauses of topics that records go to
    Target(target::Target),
    /// Makes a token for callers of the API, and the lines of the configuration that let it in
    Token(token::Token),
    /// Says how much falls due when, per target, and what stands in each tier
    Forecast(forecast::Forecast),
    /// Says how an instance is: whether it is ready, or with --live whether a restart would help
    Health(health::Health),
    /// Lists the instances that run: where each is, which lanes it has, and whether it is ready
    Members(members::Members),
    /// Shows all of it live: lanes, what stands in each tier, how late deliveries are, what is due soon
    Top(top::Top),
    /// Shows what could not be delivered, and why
    Dead(dead::Dead),
    /// Says what is wrong with the cluster for us, and how to mend it; exit code 1 if anything is a problem
    Doctor(doctor::Doctor),
    /// Prints the Kafka rights that each role needs
    Acl(acl::Acl),
    /// Looks at the index of an instance that does not run, compares it with Kafka, creates it again
    Index(index::IndexCommand),
    /// Measures how fast and how late, beside the raw limits of the same brokers
    Bench(tools::Bench),
    /// Prints completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Writes a manual page for each command into a directory
    Man {
        /// An existing directory, such as /usr/local/share/man/man1
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

impl Global {
    /// Whether results are for programs.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }

    /// Loads all layers, `flags` above them; `--brokers` and `--namespace` are added here.
    ///
    /// # Errors
    /// Everything that is wrong; [`main`] prints it.
    pub fn load(&self, flags: Overrides) -> Result<Config, Failure> {
        self.read(flags).map_err(|errors| Failure::new(Exit::Configuration, errors))
    }

    fn read(&self, flags: Overrides) -> Result<Config, ConfigErrors> {
        let (brokers, namespace) = (self.brokers.clone(), self.namespace.clone());
        let flags = Overrides { brokers, namespace, ..flags };
        Config::load(self.config.as_deref(), flags)
    }

    /// How a short command reaches Kafka; with `-v` it logs what the client does. To be called once.
    #[must_use]
    pub fn connection(&self, config: &Config) -> Connection {
        let level = match self.verbose {
            // What a short command has to say is its result or its error.
            0 => None,
            1 => Some(LogLevel::Info),
            2 => Some(LogLevel::Debug),
            _ => Some(LogLevel::Trace),
        };
        if let Some(level) = level {
            // Only a second set-up in one process is refused, and then lines go somewhere already.
            let _ = telemetry::init_log(&LogConfig { level, ..config.log.clone() });
        }
        lanes::connection(config)
    }
}

/// The whole program: reads the arguments of this process, does what they say, reports what went wrong.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { global, command } = match parsed(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let error = without_guess(error);
            if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
                failure::report(&Failure::new(Exit::Usage, in_one_line(&error)), true);
                return Exit::Usage.into();
            }
            // Help and version are no errors, and go to standard output; a closed pipe is nobody's problem.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() };
        }
    };
    again::remember(
        global.brokers.as_deref(),
        global.namespace.as_deref(),
        global.config.as_deref(),
    );
    let json = global.json;
    let outcome = match command {
        Command::Run(run) => run.run(&global),
        Command::Topics(topics) => topics.run(&global),
        Command::Plan(plan) => plan.run(&global),
        Command::Demo(demo) => demo.run(&global),
        Command::Send(send) => send.run(&global),
        Command::Cancel(cancel) => cancel.run(&global),
        Command::Reschedule(reschedule) => reschedule.run(&global),
        Command::Status(status) => status.run(&global),
        Command::List(list) => list.run(&global),
        Command::Task(task) => task.run(&global),
        Command::Schedule(schedule) => schedule.run(&global),
        Command::Runs(runs) => runs.run(&global),
        Command::RunStatus(run_status) => run_status.run(&global),
        Command::Project(project) => project.run(&global),
        Command::Service(service) => service.run(&global),
        Command::Target(target) => target.run(&global),
        Command::Token(token) => token.run(&global),
        Command::Forecast(forecast) => forecast.run(&global),
        Command::Health(health) => health.run(&global),
        Command::Members(members) => members.run(&global),
        Command::Top(top) => top.run(&global),
        Command::Dead(dead) => dead.run(&global),
        Command::Doctor(doctor) => doctor.run(&global),
        Command::Acl(acl) => acl.run(&global),
        Command::Index(index) => index.run(&global),
        Command::Bench(bench) => bench.run(&global),
        Command::Completions { shell } => completions(shell),
        Command::Man { directory } => man(&directory),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure::report(&failure, json);
            failure.exit().into()
        }
    }
}

/// Reads the arguments. A negative number is a value: what takes none says which ones it takes.
fn parsed(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    fn with_negatives(command: clap::Command) -> clap::Command {
        let is_value = |argument: clap::Arg| match argument.get_action().takes_values() {
            true => argument.allow_negative_numbers(true),
            false => argument,
        };
        command.mut_args(is_value).mut_subcommands(with_negatives)
    }
    Cli::from_arg_matches(&with_negatives(Cli::command()).try_get_matches_from(arguments)?)
}

/// clap guesses a value by the letters that two words share: `expired` for `weird`. All values stand in the line above anyway.
fn without_guess(mut error: clap::Error) -> clap::Error {
    error.remove(ContextKind::SuggestedValue);
    error
}

/// What is wrong with the arguments, and what may have been meant, without the usage behind it.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<&str> = lines
        .take_while(|line| !["Usage:", "For more"].iter().any(|of| line.starts_with(of)))
        .collect();
    told.join("; ").trim_start_matches("error: ").to_owned()
}

fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "waterclock", &mut script);
    output::write(&script)
}

#[derive(Debug, thiserror::Error)]
#[error("could not write the manual pages to {}", directory.display())]
struct Unwritten {
    directory: PathBuf,
    #[source]
    error: std::io::Error,
}

fn man(directory: &Path) -> Outcome {
    let pages = clap_mangen::generate_to(Cli::command(), directory);
    pages.map(|()| Exit::Ok).map_err(|error| {
        Failure::new(Exit::InUse, Unwritten { directory: directory.to_owned(), error })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    /// clap does not say so itself: it dies when such a command is called, be it the option that is the same or the field.
    #[test]
    fn no_option_of_a_command_has_the_name_of_one_of_every_command() {
        fn names(argument: &clap::Arg) -> [Option<String>; 2] {
            [Some(argument.get_id().to_string()), argument.get_long().map(str::to_owned)]
        }
        fn look(command: &clap::Command, taken: &[String]) {
            let own = command.get_arguments().filter(|argument| !argument.is_global_set());
            for name in own.flat_map(names).flatten() {
                assert!(!taken.contains(&name), "{name} of {}", command.get_name());
            }
            command.get_subcommands().for_each(|of| look(of, taken));
        }
        let command = Cli::command();
        let global = command.get_arguments().filter(|argument| argument.is_global_set());
        let taken: Vec<String> = global.flat_map(names).flatten().collect();
        assert!(taken.iter().any(|of| of == "json"), "{taken:?}");
        look(&command, &taken);
    }

    #[test]
    fn a_number_that_is_too_small_is_told_what_may_be_said() {
        let task = "waterclock task create http --project p --group g --in 1s --url http://a";
        let topic = "waterclock task create kafka --project p --group g --in 1s --topic t";
        for (line, want) in [
            (format!("{task} --retries -1"), "-1 is not in 0..=1000"),
            (format!("{task} --retries 1001"), "1001 is not in 0..=1000"),
            (format!("{task} --poll 1s --rounds -1"), "-1 is not in 0..=100000"),
            (format!("{topic} --partition -1"), "-1 is not in 0..=2147483647"),
            ("waterclock project put p --concurrency -1".to_owned(), "-1 is not in 0..=10000"),
            ("waterclock project put p --max-pending -1".to_owned(), "-1 is not in 0..=1000000000"),
        ] {
            let line = line.split_whitespace().map(OsString::from);
            let Err(error) = parsed(line) else { panic!("{want}") };
            assert!(in_one_line(&error).contains(want), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_with_the_arguments_fits_into_one_line() {
        let wrong = Cli::try_parse_from(["waterclock", "send", "--kye=x", "v"]);
        let Err(error) = wrong else { panic!("--kye is no option") };
        let line = in_one_line(&error);
        assert!(line.starts_with("unexpected argument '--kye' found; tip: "), "{line}");
        assert!(!line.contains("Usage"), "{line}");
    }

    #[test]
    fn a_value_that_is_none_of_a_list_is_answered_with_the_list_alone() {
        let wrong = Cli::try_parse_from(["waterclock", "task", "list", "--status", "weird"]);
        let Err(error) = wrong else { panic!("weird is no status") };
        let line = in_one_line(&without_guess(error));
        let want = "invalid value 'weird' for '--status <STATUS>'; [possible values: delay, ready, running, ";
        assert!(line.starts_with(want), "{line}");
        assert!(line.ends_with("expired]") && !line.contains("tip"), "{line}");
        // What may have been meant is said of an option, whose list is long.
        let wrong = Cli::try_parse_from(["waterclock", "task", "list", "--statsu", "failed"]);
        let Err(error) = wrong else { panic!("--statsu is no option") };
        let line = in_one_line(&without_guess(error));
        assert!(line.contains("tip: a similar argument exists: '--status'"), "{line}");
    }

    /// What Docker runs: a container with a misspelt health check would be restarted for ever.
    #[test]
    fn every_command_of_the_image_and_of_compose_is_one_of_ours() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("text");
        let list = regex::Regex::new(r"\[([^\]\n]*)\]").expect("sound");
        let words = |line: &str| -> Vec<String> {
            let found = list.captures(line).unwrap_or_else(|| panic!("want a list: {line}"));
            let plain = |word: &str| word.trim().trim_matches(['"', '\'']).to_owned();
            found[1].split(',').map(plain).collect()
        };
        let mut commands = Vec::new();
        let image = read("Dockerfile");
        let entry = image.lines().find(|line| line.starts_with("ENTRYPOINT")).expect("an entry");
        assert_eq!(words(entry), ["waterclock"]);
        let command = image.lines().find(|line| line.starts_with("CMD")).expect("a command");
        commands.push([words(entry), words(command)].concat());
        let health = image.lines().find(|line| line.starts_with("HEALTHCHECK")).expect("a check");
        commands.push(words(health));
        let compose = read("docker-compose.yml");
        // The services of Kafka's own image run its scripts.
        for line in compose.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some(test) =
                line.strip_prefix("test:").filter(|test| test.contains("waterclock"))
            {
                let test = words(test);
                assert_eq!(test[0], "CMD", "{line}");
                commands.push(test[1..].to_vec());
            } else if let Some(command) =
                line.strip_prefix("command:").filter(|of| of.contains('['))
            {
                commands.push([words(entry), words(command)].concat());
            }
        }
        assert!(commands.len() >= 4, "{commands:?}");
        for command in &commands {
            assert_eq!(command[0], "waterclock", "{command:?}");
            let parsed = Cli::command().try_get_matches_from(command);
            assert!(parsed.is_ok(), "{command:?}: {parsed:?}");
        }
        let checks = commands.iter().filter(|command| command[1] == "health").count();
        assert_eq!(checks, 2, "the image has one, and compose has one");
    }

    /// What README does with compose: the host asks the API, and sends to targets that are there and allowed.
    #[test]
    fn compose_publishes_the_api_and_makes_the_targets_of_the_readme() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("text");
        let (compose, readme) = (read("docker-compose.yml"), read("README.md"));
        let service = |name: &str| -> String {
            let from = compose.split(&format!("\n  {name}:\n")).nth(1).expect("a service");
            let is_of_it = |line: &&str| line.is_empty() || line.starts_with("    ");
            from.lines().take_while(is_of_it).collect::<Vec<_>>().join("\n")
        };
        let waterclock = service("waterclock");
        assert!(waterclock.contains("WATERCLOCK_HTTP: 0.0.0.0:8080"), "{waterclock}");
        assert!(waterclock.contains("- \"127.0.0.1:8080-8089:8080\""), "{waterclock}");
        let allowed = regex::Regex::new(r"--allow, '([^']+)'").expect("sound");
        let allowed = &allowed.captures(&waterclock).expect("it says what is allowed")[1];
        let allowed = regex::Regex::new(&format!("^(?:{allowed})$")).expect("sound");
        let target = regex::Regex::new(r"--target (\S+)").expect("sound");
        let made = service("targets");
        let targets: std::collections::BTreeSet<&str> =
            target.captures_iter(&readme).map(|found| found.extract::<1>().1[0]).collect();
        assert!(!targets.is_empty());
        for name in targets {
            assert!(allowed.is_match(name), "{name} is not allowed");
            assert!(
                made.split_whitespace().any(|word| word.trim_end_matches(';') == name),
                "{name}"
            );
        }
    }

    #[test]
    fn every_command_in_the_documents_is_one_of_ours_with_options_that_it_has() {
        use clap::error::ErrorKind;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |path: &Path| std::fs::read_to_string(path).expect("text");
        let mut pages: Vec<PathBuf> =
            ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "topics/README.md"]
                .map(|name| root.join(name))
                .to_vec();
        for dir in ["docs", "docs/adr", "docs/clients", "docs/monitoring"] {
            let entries = std::fs::read_dir(root.join(dir)).expect("readable");
            pages.extend(
                entries.map(|entry| entry.expect("an entry").path()).filter(|p| p.is_file()),
            );
        }
        // What seals `x-delay-state` is called so, and is no command.
        let inline = regex::Regex::new(r"`(waterclock [a-wyz-][^`\n]*)`").expect("sound");
        let quoted = regex::Regex::new(r#"'[^']*'|"[^"]*""#).expect("sound");
        let (mut count, mut wrong) = (0, Vec::new());
        for page in pages {
            let text = read(&page);
            let inline = inline.captures_iter(&text).map(|found| (false, found[1].to_owned()));
            let blocks = text.split("```sh\n").skip(1).filter_map(|of| of.split("```").next());
            let lines = blocks.flat_map(str::lines).filter(|line| line.starts_with("waterclock "));
            for (is_whole, command) in inline.chain(lines.map(|line| (true, line.to_owned()))) {
                let plain = quoted.replace_all(&command, "x");
                let plain = plain.split(['#', '|', '<', '>', '&', ';']).next().unwrap_or_default();
                let words = plain.split_whitespace().filter(|word| *word != "...");
                let parsed = Cli::command().try_get_matches_from(words);
                let kind = parsed.err().map(|error| error.kind());
                // In a sentence a command may stand without what it needs.
                let is_unknown = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
                if kind.is_some_and(|kind| is_whole || is_unknown.contains(&kind)) {
                    wrong.push(format!("{}: {command}", page.display()));
                }
                count += 1;
            }
        }
        assert!(count > 120, "{count} commands");
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
