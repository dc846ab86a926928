//! A Kafka of a test's own, for what the shared one must not suffer: other settings of the broker, its end, its clock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use waterclock::kafka::Connection;

use super::{Proxy, variable};

/// A cluster, gone with the test.
pub struct Cluster {
    dir: PathBuf,
    environment: Vec<(String, String)>,
    /// Where its brokers are.
    pub bootstrap: String,
    /// Where clients by way of a proxy come to, and where that passes them on to.
    proxied: (String, String),
}

impl Cluster {
    /// One broker with these lines in its `server.properties`.
    #[track_caller]
    pub fn start(properties: &str) -> Self {
        Self::start_with(properties, &[])
    }

    /// The same in an environment, which [`Cluster::restart`] has, too.
    #[track_caller]
    pub fn start_with(properties: &str, environment: &[(&str, String)]) -> Self {
        // Beside the cluster of the run, whose end is the end of this one, too.
        let beside = PathBuf::from(variable("WATERCLOCK_KAFKA_DIR"));
        let name = format!("own-{}", uuid::Uuid::new_v4().simple());
        let dir = beside.parent().expect("a parent").join(name);
        let files = tempfile::tempdir().expect("a directory");
        let add = files.path().join("server.properties");
        std::fs::write(&add, properties).expect("written");
        let environment =
            environment.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        let mut cluster =
            Self { dir, environment, bootstrap: String::new(), proxied: Default::default() };
        let started = cluster.run(["start".as_ref(), "--add".as_ref(), add.as_os_str()]);
        let printed = String::from_utf8_lossy(&started.stdout).into_owned();
        let of = |name: &str| {
            let mut lines = printed.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("no {name}: {printed}")).to_owned()
        };
        cluster.bootstrap = of("KAFKA_BOOTSTRAP");
        cluster.proxied = (of("KAFKA_PROXY_LISTEN"), of("KAFKA_PROXY_UPSTREAM"));
        cluster
    }

    pub fn connection(&self) -> Connection {
        Connection::new(&self.bootstrap, BTreeMap::new())
    }

    /// A proxy of the test's own in front of its node.
    #[track_caller]
    pub fn proxy(&self) -> Proxy {
        Proxy::start(&[(&self.proxied.0, &self.proxied.1)])
    }

    /// SIGKILL to all nodes.
    #[track_caller]
    pub fn kill(&self) {
        self.run(["kill".as_ref()]);
    }

    /// SIGSTOP to its node: connections stay open and say nothing.
    #[track_caller]
    pub fn pause(&self) {
        self.run(["pause".as_ref(), "1".as_ref()]);
    }

    /// SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.run(["resume".as_ref(), "1".as_ref()]);
    }

    /// A clean stop of all nodes.
    #[track_caller]
    pub fn stop(&self) {
        self.run(["stop".as_ref()]);
    }

    /// Starts all nodes with their data, and waits until they answer.
    #[track_caller]
    pub fn restart(&self) {
        self.run(["restart".as_ref()]);
    }

    /// Runs one of Kafka's own tools.
    #[track_caller]
    pub fn tool(&self, class: &str, arguments: &[&str]) -> String {
        let fixed = ["tool", class, "--bootstrap-server", &self.bootstrap];
        let all = fixed.iter().chain(arguments).map(|argument| argument.as_ref());
        let ended = self.run(all);
        String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
    }

    #[track_caller]
    fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a std::ffi::OsStr>) -> Output {
        let ended = self.script().args(arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        ended
    }

    fn script(&self) -> Command {
        let mut command = Command::new(variable("WATERCLOCK_KAFKA_SCRIPT"));
        command.env_remove("KAFKA_BOOTSTRAP").arg("--dir").arg(&self.dir);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Where it keeps everything.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.script().arg("kill").output();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
