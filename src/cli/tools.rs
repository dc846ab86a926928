//! `bench` and `demo`. The crate `waterclock-tools` has them, and only a build with the feature `tools` takes it in.

#[cfg(not(feature = "tools"))]
pub(super) use absent::{Bench, Demo};

#[cfg(feature = "tools")]
pub(super) use crate::tools::{Bench, Demo};

#[cfg(feature = "tools")]
mod program {
    use std::path::Path;

    use crate::app::lanes;
    use crate::cli::{Exit, Failure, Global};
    use crate::config::{Config, Delivery, LadderConfig, Overrides};
    use crate::kafka::topics::Request;
    use crate::kafka::{self, BrokerClock, Connection, LaneThreads, Settings};
    use crate::timers;
    use crate::tools::{DemoBroker, DemoConfig, Program};

    impl Program for Global {
        fn is_json(&self) -> bool {
            self.json
        }

        fn config_file(&self) -> Option<&Path> {
            self.config.as_deref()
        }

        fn names_brokers(&self) -> bool {
            self.brokers.is_some()
        }

        fn connection(&self) -> Result<Connection, Failure> {
            let config = self.load(Overrides::default())?;
            Ok(Self::connection(self, &config))
        }

        fn api_token(&self) -> Result<Option<String>, Failure> {
            let config = self.load(Overrides::default())?;
            Ok(config.api.token.as_ref().map(|token| token.expose().to_owned()))
        }

        fn bench_topics(&self, namespace: &str, lanes: u16) -> Result<Request, Failure> {
            let config = self.load(Overrides::default())?;
            let namespace = namespace.to_owned();
            Ok(lanes::request(&Config { namespace, lanes: Some(lanes), ..config }))
        }

        fn demo_topics(&self, demo: &DemoConfig) -> Request {
            lanes::request(&config(demo))
        }

        fn start_demo(
            &self,
            demo: &DemoConfig,
            broker: DemoBroker,
        ) -> Result<LaneThreads, Failure> {
            let DemoBroker { connection, ladder, key, is_embedded } = broker;
            let config = config(demo);
            let setup = lanes::setup(&config, demo.lanes, ladder, key, false)
                .map_err(|error| Failure::new(Exit::Internal, error))?;
            let directory_id = uuid::Uuid::new_v4().simple().to_string();
            let incarnation = BrokerClock::incarnation();
            let settings =
                lanes::settings(&config, connection, ("demo", &directory_id), &incarnation, setup);
            let settings = Settings { embedded: is_embedded, ..settings };
            let started = timers::start(&settings, None);
            let (lane_threads, ..) = started
                .map_err(|error| Failure::new(Exit::Unavailable, lanes::Error::Client(error)))?;
            lane_threads.stay_alone();
            Ok(lane_threads)
        }
    }

    fn config(demo: &DemoConfig) -> Config {
        Config {
            namespace: demo.namespace.clone(),
            delivery: match demo.delivery {
                kafka::Delivery::ExactlyOnce => Delivery::ExactlyOnce,
                kafka::Delivery::AtLeastOnce => Delivery::AtLeastOnce,
            },
            allow: Some(vec![regex::escape(&demo.target)]),
            horizon: demo.horizon,
            hop_linger: Some(demo.hop_linger),
            ladder: Some(LadderConfig::Holds(demo.holds.clone())),
            lanes: Some(demo.lanes),
            drain: demo.drain,
            ..Config::default()
        }
    }
}

#[cfg(not(feature = "tools"))]
mod absent {
    use std::ffi::OsString;

    use clap::Args;

    use crate::cli::{Exit, Failure, Global, Outcome};

    /// A command that this build does not have, whatever its arguments are.
    #[derive(Args)]
    pub(crate) struct Absent<const BENCH: bool> {
        /// What the command takes where it is there; see docs/cli.md
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    }

    pub(crate) type Bench = Absent<true>;
    pub(crate) type Demo = Absent<false>;

    #[derive(Debug, thiserror::Error)]
    #[error(
        "this build of waterclock is for servers and has no `{0}`; build one that has it by `cargo build --release`"
    )]
    struct NoSuchCommand(&'static str);

    impl<const BENCH: bool> Absent<BENCH> {
        pub(crate) fn run(self, _: &Global) -> Outcome {
            let Self { arguments: _ } = self;
            let name = if BENCH { "bench" } else { "demo" };
            Err(Failure::new(Exit::Usage, NoSuchCommand(name)))
        }
    }
}
