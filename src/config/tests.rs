use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::*;

/// Writes `text` to a file of its own and loads it with these variables and flags.
fn load(
    text: &str,
    variables: &[(&str, &str)],
    flags: Overrides,
) -> (PathBuf, Result<Config, ConfigErrors>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("waterclock.toml");
    std::fs::write(&path, text).unwrap();
    let variables = variables.iter().map(|(k, v)| (OsString::from(k), OsString::from(v)));
    let loaded = Config::load_from(Some(&path), variables, flags);
    (path, loaded)
}

fn file(text: &str) -> Result<Config, ConfigErrors> {
    load(text, &[], Overrides::default()).1
}

fn flag(brokers: &str) -> Overrides {
    Overrides { brokers: Some(brokers.to_owned()), ..Overrides::default() }
}

#[test]
fn nothing_given_is_the_default() {
    let config = Config::load_from(None, [], Overrides::default());
    assert_eq!(config, Ok(Config::default()));
}

#[test]
fn a_later_layer_wins_over_an_earlier_one() {
    let variables = [("WATERCLOCK_BROKERS", "env:1"), ("WATERCLOCK_LOG__LEVEL", "debug")];
    let text = "brokers = \"file:1\"\nthreads = 3\n[log]\nformat = \"json\"";
    let both = load(text, &variables, Overrides::default()).1.unwrap();
    assert_eq!((both.brokers.as_str(), both.threads), ("env:1", 3));
    assert_eq!((both.log.level, both.log.format), (LogLevel::Debug, LogFormat::Json));
    let all = load(text, &variables, flag("flag:1")).1.unwrap();
    assert_eq!(all.brokers, "flag:1");
}

#[test]
fn every_key_can_be_written_in_a_file() {
    let config = file(
        r#"
brokers = "a:9092,b:9093"
namespace = "wc"
data-dir = "/var/lib/waterclock"
instance = "one"
http = "[::1]:8080"
advertise = "[fe80::1]:8080"
http-unauthenticated = true
http-hosts = ["timers.example.org"]
threads = 2
delivery = "at_least_once"
allow = ["orders", 'billing\..*']
max-delay = "30d"
horizon = "10s"
lead = "1s"
hop-linger = "100ms"
memory = "1GiB"
ladder = ["1s", "10s", "1m30s"]
lanes = 12
session-timeout = "20s"
transaction-timeout = "1m"
commit-interval = "10ms"
drain = "5s"
[intakes.default]
target = "orders"
[intakes.bills]
delay = "30m"
target = "billing.a"
allow = ['billing\.a']
[log]
level = "warn"
format = "json"
"#,
    )
    .unwrap();
    assert_eq!(
        config.ladder,
        Some(LadderConfig::Holds([1_000, 10_000, 90_000].map(Millis).into()))
    );
    assert_eq!(config.memory, ByteSize(1 << 30));
    assert_eq!(config.intakes["bills"].delay, Some(Millis(1_800_000)));
    assert_eq!(config.further_intakes().collect::<Vec<_>>(), ["bills"]);
    let bills = config.allow("bills").unwrap();
    assert_eq!(
        (bills.permits("billing.a").is_ok(), bills.permits("orders").is_ok()),
        (true, false)
    );
    assert!(config.allow(MAIN_INTAKE).unwrap().permits("billing.b").is_ok());
}

#[test]
fn the_environment_says_everything_that_a_file_can() {
    let variables = [
        ("WATERCLOCK_DATA_DIR", "/d"),
        ("WATERCLOCK_THREADS", "4"),
        ("WATERCLOCK_MEMORY", "67108864"),
        ("WATERCLOCK_ALLOW", r"orders,a{1,3},[b,c]"),
        ("WATERCLOCK_LADDER", "1s, 30s"),
        ("WATERCLOCK_INTAKES__BILLS__DELAY", "5m"),
        ("WATERCLOCK_INTAKES__BILLS__TARGET", "orders"),
        ("WATERCLOCK_LANES", "3"),
        ("WATERCLOCK_NAMESPACE", "123"),
    ];
    let config = load("", &variables, Overrides::default()).1.unwrap();
    assert_eq!(config.data_dir, Some("/d".into()));
    assert_eq!((config.threads, config.lanes, config.memory), (4, Some(3), ByteSize(64 << 20)));
    let allow = ["orders", "a{1,3}", "[b,c]"].map(str::to_owned).to_vec();
    assert_eq!(config.allow, Some(allow), "commas of an expression do not split it");
    assert_eq!(config.holds(), Some(vec![Millis(1_000), Millis(30_000)]));
    assert_eq!(config.intakes["bills"].delay, Some(Millis(300_000)));
    assert_eq!(config.namespace, "123", "text that looks like a number is text");
    let preset = load("", &[("WATERCLOCK_LADDER", "clock")], Overrides::default()).1.unwrap();
    assert_eq!(preset.ladder, Some(LadderConfig::Preset(Preset::Clock)));
}

#[test]
fn http_takes_localhost_as_this_machine() {
    let config = load("http = \"localhost:8080\"", &[], Overrides::default()).1.unwrap();
    assert_eq!(config.http, Some("127.0.0.1:8080".parse().unwrap()));
}

#[test]
fn what_kubernetes_and_the_scripts_put_into_the_environment_is_not_read() {
    let variables = [
        ("WATERCLOCK_SERVICE_HOST", "10.0.0.1"),
        ("WATERCLOCK_SERVICE_PORT", "8080"),
        ("WATERCLOCK_SERVICE_PORT_HTTP", "8080"),
        ("WATERCLOCK_PORT", "tcp://10.0.0.1:8080"),
        ("WATERCLOCK_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("WATERCLOCK_CONFIG", "/etc/waterclock.toml"),
        ("WATERCLOCK_KAFKA_DIR", "anywhere"),
        ("WATERCLOCK_MAVEN_REPOSITORY", "https://repository"),
        ("PATH", "/bin"),
    ];
    assert_eq!(load("", &variables, Overrides::default()).1, Ok(Config::default()));
    let level = [("WATERCLOCK_KAFKA__CLIENT_RACK", "a")];
    let config = load("", &level, Overrides::default()).1.unwrap();
    assert_eq!(config.kafka.given()["client.rack"].expose(), "a", "two underscores are a level");
}

#[test]
fn each_wrong_value_is_named_with_its_range() {
    #[rustfmt::skip]
    let cases = [
        // why                               file                                       key, got, want
        ("unknown key",                      "brokerz = \"a:1\"",                       ["brokerz", "did you mean \"brokers\"?", ""]),
        ("unknown key deeper",               "[log]\nlevl = \"info\"",                  ["log.levl", "did you mean \"level\"?", ""]),
        ("unknown key like no other",        "colour = \"red\"",                        ["colour", "docs/configuration.md", ""]),
        ("unknown key of a few",             "[log]\ncolour = \"red\"",                 ["log.colour", "there are level, format", ""]),
        ("no broker",                        "brokers = \"\"",                          ["brokers", "\"\"", "host:port"]),
        ("no port",                          "brokers = \"a:x\"",                       ["brokers", "a:x", "host:port"]),
        ("empty entry",                      "brokers = \"a:1,,b:1\"",                  ["brokers", ",,", "host:port"]),
        ("an address that is a URL",         "brokers = \"a:1, http://b:1\"",           ["brokers", "no \"http://\"; say host:port", ""]),
        ("a number alone",                   "brokers = \"5\"",                         ["brokers", "\"5\"", "host:port"]),
        ("number for text",                  "brokers = 5",                             ["brokers", "5", "string"]),
        ("a slash",                          "namespace = \"a/b\"",                     ["namespace", "a/b", "letters"]),
        ("like Kafka's own topics",          "namespace = \"__x\"",                     ["namespace", "__x", "a letter or digit"]),
        ("too long",                         "instance = \"\"",                         ["instance", "\"\"", "64 bytes"]),
        ("an address without a port",        "advertise = \"example.org\"",             ["advertise", "example.org", "host:port"]),
        ("an address that is a URL",         "advertise = \"http://a:80\"",             ["advertise", "http://a:80", "host:port"]),
        ("an address with a bare IPv6",      "advertise = \"::1:80\"",                  ["advertise", "::1:80", "host:port"]),
        ("open to others",                   "http = \"0.0.0.0:80\"",                   ["http", "0.0.0.0:80", "http-unauthenticated = true"]),
        ("open to others by IPv6",           "http = \"[::]:80\"",                      ["http", "[::]:80", "http-unauthenticated = true"]),
        ("open to others, and said not",     "http = \"10.0.0.1:80\"\nhttp-unauthenticated = false", ["http", "10.0.0.1:80", "anyone who reaches it"]),
        ("told to others",                   "advertise = \"wc-1:8080\"",               ["advertise", "wc-1:8080", "http-unauthenticated = true"]),
        ("neither yes nor no",               "http-unauthenticated = \"yes\"",          ["http-unauthenticated", "yes", "true or false"]),
        ("a host with a port",               "http-hosts = [\"a:80\"]",                 ["http-hosts", "a:80", "without ports"]),
        ("a host that is any",               "http-hosts = [\"*\"]",                    ["http-hosts", "*", "host names"]),
        ("a name, not an address",           "http = \"example.org:80\"",               ["http", "example.org:80", "localhost or an IP address"]),
        ("no such role",                     "roles = \"lanes,cook\"",                  ["roles", "lanes,cook", "lanes, worker and api"]),
        ("no role that works",               "roles = \"api\"",                         ["roles", "api", "lanes or worker"]),
        ("no thread",                        "threads = 0",                             ["threads", "0", "1 to 64"]),
        ("too many",                         "threads = 65",                            ["threads", "65", "1 to 64"]),
        ("negative",                         "threads = -1",                            ["threads", "-1", "1 to 64"]),
        ("no integer",                       "threads = 1.5",                           ["threads", "1.5", "1 to 64"]),
        ("beyond the type",                  "threads = 70000",                         ["threads", "70000", "1 to 64"]),
        ("no such thing",                    "tracking = \"none\"",                     ["tracking", "none", "full or cancellations"]),
        ("no such order",                    "order = \"due\"",                         ["order", "due", "by-due or strict"]),
        ("longer than any horizon",          "settle = \"2s\"",                         ["settle", "2s", "0s to 1s"]),
        ("longer than transactions live",    "foreign-wait = \"1h\"",                   ["foreign-wait", "1h", "0s to 15m"]),
        ("too short to catch a retry",       "history = \"10s\"",                         ["history", "10s", "1m to 30d"]),
        ("too few to be of use",             "max-tracked = 10",                            ["max-tracked", "10", "1000 to 100000000"]),
        ("misspelt",                         "delivery = \"exactly-once\"",             ["delivery", "exactly-once", "exactly_once or at_least_once"]),
        ("no expression",                    "allow = [\"(\"]",                         ["allow", "\"(\"", "regular expression"]),
        ("empty list",                       "allow = []",                              ["allow", "0 expressions", "1 to 1000"]),
        ("a list, and everything",           "allow = [\"a\"]\nallow-all = true",      ["allow-all", "true beside allow", "one of them"]),
        ("no flag",                          "allow-all = \"maybe\"",                   ["allow-all", "maybe", "true or false"]),
        ("no list",                          "allow = \"a\"",                           ["allow", "\"a\"", "a list"]),
        ("no unit",                          "max-delay = 500",                         ["max-delay", "500", "1s to 3650d"]),
        ("no unit in text",                  "max-delay = \"500\"",                     ["max-delay", "500", "1s to 3650d"]),
        ("too long",                         "max-delay = \"3651d\"",                   ["max-delay", "3651d", "1s to 3650d"]),
        ("too short",                        "horizon = \"999ms\"",                     ["horizon", "999ms", "1s to 1m"]),
        ("lead above horizon",               "lead = \"3s\"",                           ["lead", "3s", "at most the horizon, 2s"]),
        ("linger above half the lead",       "lead = \"500ms\"\nhop-linger = \"300ms\"", ["hop-linger", "300ms", "at most half the lead, 250ms"]),
        ("too little memory",                "memory = \"31MiB\"",                      ["memory", "31MiB", "32MiB to 1TiB"]),
        ("decimal unit",                     "memory = \"256MB\"",                      ["memory", "256MB", "32MiB to 1TiB"]),
        ("unknown ladder",                   "ladder = \"spiral\"",                     ["ladder", "spiral", "classic, round, clock"]),
        ("tier of no time",                  "ladder = [\"0s\", \"1s\"]",               ["ladder", "0s", "1s to 400d"]),
        ("not sorted",                       "ladder = [\"1s\", \"1m\", \"30s\"]",      ["ladder", "1m before 30s", "ascending"]),
        ("twice",                            "ladder = [\"1s\", \"1s\"]",               ["ladder", "1s before 1s", "ascending"]),
        ("no tier",                          "ladder = []",                             ["ladder", "0 holds", "1 to 256"]),
        ("a gap above the horizon",          "ladder = [\"1m\"]",                       ["ladder", "1m", "without gaps"]),
        ("no lane",                          "lanes = 0",                               ["lanes", "0", "1 to 1000"]),
        ("broker would refuse",              "session-timeout = \"5s\"",                ["session-timeout", "5s", "6s to 30m"]),
        ("broker would refuse",              "transaction-timeout = \"16m\"",           ["transaction-timeout", "16m", "10s to 15m"]),
        ("too slow",                         "commit-interval = \"1s\"",                ["commit-interval", "1s", "0s to 500ms"]),
        ("too long",                         "drain = \"61s\"",                         ["drain", "1m1s", "0s to 1m"]),
        ("level",                            "[log]\nlevel = \"loud\"",                 ["log.level", "loud", "error, warn"]),
        ("name of an intake",                "[intakes.\"a.b\"]",                       ["intakes", "a.b", "is the main intake"]),
        ("the intake of another namespace",  "[intakes.intake]",                        ["intakes", "\"intake\"", "namespace waterclock.intake"]),
        ("its dead letters",                 "[intakes.dead]",                          ["intakes", "\"dead\"", "namespace waterclock.intake"]),
        ("what is in force there",           "[intakes.meta]",                          ["intakes", "\"meta\"", "namespace waterclock.intake"]),
        ("its changelog",                    "[intakes.timers]",                        ["intakes", "\"timers\"", "namespace waterclock.intake"]),
        ("no name",                          "[intakes.\"\"]",                          ["intakes", "\"\"", "is the main intake"]),
        ("longer than allowed",              "[intakes.a]\ndelay = \"500d\"",           ["intakes.a.delay", "500d", "0s to max-delay, 400d"]),
        ("no topic",                         "[intakes.a]\ntarget = \"a b\"",           ["intakes.a.target", "a b", "a topic"]),
        ("own topic",                        "[intakes.a]\ntarget = \"waterclock.dead\"", ["intakes.a.target", "waterclock.dead", "target_forbidden"]),
        ("no network",                       "[callbacks]\nnetworks = [\"10.1.2.3/8\"]", ["callbacks.networks", "10.1.2.3/8", "10.0.0.0/8, or a longer prefix"]),
        ("a name for a network",             "[callbacks]\nnetworks = [\"a.example\"]", ["callbacks.networks", "a.example", "a network such as"]),
        ("a host with a port",               "[callbacks]\nhosts = [\"a.example:80\"]", ["callbacks.hosts", "a.example:80", "no port"]),
        ("no host at all",                   "[callbacks]\nhosts = []",                 ["callbacks.hosts", "0 hosts", "1 to 1000"]),
        ("a proxy that looks names up",      "[callbacks]\nproxy = \"http://p:3128\"", ["callbacks.proxy", "http://p:3128", "callbacks.hosts beside it"]),
        ("a proxy with a password",          "[callbacks]\nproxy = \"http://u:w@p\"",  ["callbacks.proxy", "not shown", "without user information"]),
        ("not allowed",                      "allow = [\"b\"]\n[intakes.a]\ntarget = \"c\"", ["intakes.a.target", "\"c\"", "target_denied"]),
    ];
    for (why, text, [key, got, want]) in cases {
        let (path, loaded) = load(text, &[], Overrides::default());
        let errors = loaded.expect_err(why).0;
        assert_eq!(errors.len(), 1, "{why}: {errors:?}");
        let Invalid { key: k, origin, line, value, want: w } = &errors[0];
        assert_eq!((k.as_str(), origin), (key, &Origin::File(path)), "{why}");
        let at =
            text.split('\n').position(|line| line.contains(key.rsplit('.').next().unwrap_or(key)));
        assert_eq!(*line, at.map(|line| line + 1), "{why}");
        assert_eq!(want.is_empty(), w.is_empty(), "{why}: want {w:?}");
        assert!(value.contains(got), "{why}: got {value:?}");
        assert!(w.contains(want), "{why}: want {w:?}");
    }
}

#[test]
fn all_errors_of_all_layers_are_told_at_once_with_the_key_as_written() {
    let text = "threads = 0\nhorizn = \"2s\"\nmax-delay = \"x\"\nladder = [\"1x\", \"1s\", \"2y\"]\n[log]\nlevel = 3\n";
    let variables =
        [("WATERCLOCK_COMMIT_INTERVAL", "soon"), ("WATERCLOCK_INTAKES__A__DELAY", "-1s")];
    let flags = Overrides {
        threads: Some("many".into()),
        delivery: Some("twice".into()),
        allow: vec!["(".into(), ")".into()],
        ..Overrides::default()
    };
    let (path, loaded) = load(text, &variables, flags);
    let errors = loaded.unwrap_err();
    let mut keys: Vec<_> = errors.0.iter().map(|e| (e.key.as_str(), e.origin.clone())).collect();
    keys.sort_by_key(|(key, _)| *key);
    let of_file = || Origin::File(path.clone());
    assert_eq!(
        keys,
        [
            ("--allow", Origin::Flag),
            ("--allow", Origin::Flag),
            ("--delivery", Origin::Flag),
            ("--threads", Origin::Flag),
            ("WATERCLOCK_COMMIT_INTERVAL", Origin::Environment),
            ("WATERCLOCK_INTAKES__A__DELAY", Origin::Environment),
            ("horizn", of_file()),
            ("ladder", of_file()),
            ("ladder", of_file()),
            ("log.level", of_file()),
            ("max-delay", of_file()),
        ]
    );
    let lines: Vec<_> = errors.0.iter().map(|e| (e.key.as_str(), e.line)).collect();
    for (key, line) in [("horizn", 2), ("max-delay", 3), ("ladder", 4), ("log.level", 6)] {
        assert!(lines.contains(&(key, Some(line))), "{key}: {lines:?}");
    }
    assert!(lines.contains(&("--delivery", None)), "{lines:?}");
    let shown = errors.to_string();
    let unknown = format!(
        "horizn in {}, line 2: there is no such key; did you mean \"horizon\"?",
        path.display()
    );
    assert!(shown.lines().any(|line| line == unknown), "{shown}");
    assert!(
        shown.contains(
            "WATERCLOCK_COMMIT_INTERVAL in the environment: got \"soon\", want a duration"
        ),
        "{shown}"
    );
    assert!(
        shown.contains("--delivery: got \"twice\", want exactly_once or at_least_once"),
        "{shown}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_one_error_among_the_others() {
    let missing = Config::load_from(Some("/nowhere/at.toml".as_ref()), [], flag("a:x"));
    let errors = missing.unwrap_err().0;
    assert_eq!(
        errors.iter().map(|e| e.key.as_str()).collect::<Vec<_>>(),
        ["the configuration", "--brokers"]
    );
    assert_eq!(
        errors[0].to_string(),
        "the configuration in /nowhere/at.toml: it cannot be read: No such file or directory (os error 2)"
    );
    #[rustfmt::skip]
    let cases = [
        ("not TOML",               "threads = 1\nbrokers = \n", "line 2"),
        ("the same key twice",     "threads = 1\nthreads = 2\n", "line 2"),
        ("a byte order mark",      "\u{feff}threads = 1\n",     "byte order mark"),
        ("lines of another system", "threads = 1\r\n",          "line 1: this line ends in a carriage return"),
    ];
    for (why, text, got) in cases {
        let errors = file(text).expect_err(why);
        assert!(errors.0[0].to_string().contains(got), "{why}: {errors}");
    }
}

/// Writes a file that not everybody may read, or that they may.
fn secret(directory: &tempfile::TempDir, name: &str, text: &str, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.display().to_string()
}

/// librdkafka's settings as text.
fn of_kafka(config: &Config) -> Vec<(&str, &str)> {
    let given = config.kafka.given().iter();
    given.map(|(name, value)| (name.as_str(), value.expose())).collect()
}

#[test]
fn a_setting_of_kafka_is_the_same_however_it_is_written() {
    let want =
        [("client.rack", "a"), ("metadata.max.age.ms", "60000"), ("security.protocol", "SSL")];
    let cases = [
        "[kafka]\n\"client.rack\" = \"a\"\n\"metadata.max.age.ms\" = 60000\n\"security.protocol\" = \"SSL\"",
        "[kafka]\nclient.rack = \"a\"\nmetadata.max.age.ms = 60000\nsecurity.protocol = \"SSL\"",
        "[kafka.client]\nrack = \"a\"\n[kafka.metadata]\nmax = { age.ms = \"60000\" }\n[kafka]\n\"security\" = { protocol = \"SSL\" }",
    ];
    for text in cases {
        assert_eq!(of_kafka(&file(text).expect(text)), want, "{text}");
    }
    let variables = [
        ("WATERCLOCK_KAFKA__CLIENT_RACK", "a"),
        ("WATERCLOCK_KAFKA__METADATA_MAX_AGE_MS", "60000"),
        ("WATERCLOCK_KAFKA__SECURITY_PROTOCOL", "SSL"),
    ];
    let below = "[kafka]\nsecurity.protocol = \"SASL_SSL\"";
    let config = load(below, &variables, Overrides::default()).1.unwrap();
    assert_eq!(of_kafka(&config), want, "the environment wins over the file");
}

#[test]
fn a_secret_comes_from_a_file_or_from_the_environment_and_is_not_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = secret(&directory, "password", "xyzzy\n", 0o400);
    let name = "WATERCLOCK_KAFKA__SASL_PASSWORD";
    let from_file = load("", &[(&format!("{name}_FILE"), &path)], Overrides::default()).1.unwrap();
    assert_eq!(of_kafka(&from_file), [("sasl.password", "xyzzy")]);
    let text = format!("[kafka]\nsasl.password.file = {path:?}");
    assert_eq!(file(&text).unwrap().kafka, from_file.kafka);
    let given = load(&text, &[(name, "plugh")], Overrides::default()).1.unwrap();
    assert_eq!(of_kafka(&given), [("sasl.password", "plugh")], "a later layer wins");
    assert!(!format!("{from_file:?}").contains("xyzzy"));
}

#[test]
fn a_secret_of_callbacks_comes_from_a_file_or_the_environment_and_is_not_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = secret(&directory, "key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 0o600);
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let pem = made.signing_key.serialize_pem() + &made.cert.pem();
    let pem_path = secret(&directory, "pem", &pem, 0o600);
    let text = format!(
        "[secrets.signs]\nvalue.file = {path:?}\nprojects = [\"shop\", \"b\"]\n\
         [secrets.shown-too]\nvalue.file = {pem_path:?}\nprojects = [\"shop\"]"
    );
    let variables = [
        ("WATERCLOCK_SECRETS__TOKEN__VALUE", "t0ken"),
        ("WATERCLOCK_SECRETS__TOKEN__PROJECTS", "shop,b"),
        ("WATERCLOCK_SECRETS__OTHER__VALUE__FILE", path.as_str()),
        ("WATERCLOCK_SECRETS__OTHER__PROJECTS", "shop"),
        ("WATERCLOCK_SECRETS__SHOWN__VALUE", pem.as_str()),
        ("WATERCLOCK_SECRETS__SHOWN__PROJECTS", "shop"),
        ("WATERCLOCK_CALLBACKS__NETWORKS", "10.0.0.0/8, fd00::/8"),
    ];
    let config = load(&text, &variables, Overrides::default()).1.unwrap();
    assert_eq!(config.callbacks.networks, ["10.0.0.0/8", "fd00::/8"]);
    let text_of = |name: &str| match &config.secrets[name].value {
        Some(SecretText::Is(secret)) => secret.expose().to_owned(),
        other => panic!("{name}: {other:?}"),
    };
    let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    assert_eq!(["signs", "token", "other"].map(text_of), [key, "t0ken", key]);
    assert_eq!(
        ["shown", "shown-too"].map(|name| text_of(name).trim_end().to_owned()),
        [pem.trim_end(); 2]
    );
    let callers = config.callers("w-1").unwrap();
    let printed = format!("{config:?} {:?}", callers.secrets);
    assert!(printed.contains("shop") && !printed.contains("t0ken") && !printed.contains("MfKQ"));
    assert!(!printed.contains("BEGIN"), "{printed}");
    for (name, mode, want) in [("open", 0o644, "mode 644"), ("empty", 0o600, "empty")] {
        let path = secret(&directory, name, if name == "empty" { "" } else { "a" }, mode);
        let text = format!("[secrets.a]\nvalue.file = {path:?}\nprojects = [\"shop\"]");
        let errors = file(&text).unwrap_err().0;
        assert_eq!(
            (errors.len(), errors[0].key.as_str()),
            (1, "secrets.a.value.file"),
            "{errors:?}"
        );
        assert!(errors[0].value.contains(want), "{errors:?}");
    }
}

#[test]
fn a_secret_of_callbacks_that_is_wrong_is_named_and_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    #[rustfmt::skip]
    let cases = [
        // why                      the table of the secret a                               key, got, want
        ("no value",                r#"projects = ["p"]"#,                                  ["secrets.a.value", "nothing", "value.file"]),
        ("of nobody",               r#"value = "hidden""#,                                  ["secrets.a.projects", "0 projects", "1 to 1000"]),
        ("of no project",           "value = \"hidden\"\nprojects = [\"A\"]",              ["secrets.a.projects", "\"A\"", "names of projects"]),
        ("an empty value",          "value = \"\"\nprojects = [\"p\"]",                    ["secrets.a.value", "not shown", "not empty"]),
        ("a key that is none",      "value = \"whsec_hidden\"\nprojects = [\"p\"]",        ["secrets.a.value", "not shown", "24 to 64 bytes"]),
        ("a number",                "value = 51\nprojects = [\"p\"]",                      ["secrets.a.value", "not shown", ""]),
        ("an older token",          "value = \"hidden\"\nprevious = \"x\"\nprojects = [\"p\"]", ["secrets.a.previous", "not shown", "two keys"]),
        ("no certificate",          "value = \"-----BEGIN hidden\"\nprojects = [\"p\"]",   ["secrets.a.value", "not shown", "PEM with one private key"]),
        ("another key of a file",   "value.path = \"x\"\nprojects = [\"p\"]",              ["secrets.a.value.path", "no such key", ""]),
    ];
    for (why, table, [key, got, want]) in cases {
        let path = secret(&directory, "wc.toml", &format!("[secrets.a]\n{table}"), 0o600);
        let loaded = Config::load_from(Some(Path::new(&path)), [], Overrides::default());
        let errors = loaded.expect_err(why).0;
        let named: Vec<_> = errors.iter().map(|error| error.key.as_str()).collect();
        assert!(named.contains(&key), "{why}: {errors:?}");
        let error = errors.iter().find(|error| error.key == key).unwrap();
        assert!(error.value.contains(got) && error.want.contains(want), "{why}: {error:?}");
        assert!(!format!("{errors:?}").contains("hidden"), "{why}: {errors:?}");
    }
    let open = file("[secrets.a]\nvalue = \"hidden\"\nprojects = [\"p\"]").unwrap_err().0;
    assert_eq!((open.len(), open[0].key.as_str(), open[0].line), (1, "secrets.a.value", Some(2)));
    assert!(open[0].value.contains("everybody may read"), "{open:?}");
}

#[test]
fn a_setting_of_kafka_that_is_wrong_is_named_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let open = secret(&directory, "open", "xyzzy", 0o644);
    let empty = secret(&directory, "empty", "\n", 0o400);
    let file_of = |path: &str| format!("[kafka]\nsasl.password.file = {path:?}");
    let nested = |name: &str| format!("WATERCLOCK_KAFKA__{name}");
    #[rustfmt::skip]
    let cases = [
        // why                          file                                          variable, value                        key, got, want
        ("unknown",                     "[kafka]\nsecurity.protocl = \"SSL\"".into(),  None,                                ["kafka.security.protocl", "unknown", "CONFIGURATION"]),
        ("no such value",               "[kafka.security]\nprotocol = \"TLS\"".into(), None,                                ["kafka.security.protocol", "\"TLS\"", "Invalid value"]),
        ("a list",                      "[kafka]\nclient.rack = [1]".into(),            None,                                ["kafka.client.rack", "a list", "text, a number"]),
        ("ours",                        "[kafka]\n\"group.id\" = \"x\"".into(),        None,                                ["kafka.group.id", "decides", "use the key namespace"]),
        ("ours, in the environment",    String::new(),                                  Some((nested("ENABLE_IDEMPOTENCE"), "false".to_owned())), ["WATERCLOCK_KAFKA__ENABLE_IDEMPOTENCE", "decides", "lost, doubled"]),
        ("written twice",               "[kafka]\n\"client.rack\" = \"a\"\nclient.rack = \"b\"".into(), None,          ["kafka.client.rack", "another", "one way"]),
        ("no such file",                file_of("/nowhere/at"),                         None,                                ["kafka.sasl.password.file", "cannot be read", "not everybody"]),
        ("empty",                       file_of(&empty),                                None,                                ["kafka.sasl.password.file", "is empty", "not everybody"]),
        ("readable by all",             file_of(&open),                                 None,                                ["kafka.sasl.password.file", "mode 644", "not everybody"]),
        ("no such file either",         String::new(),                                  Some((nested("SASL_PASSWORD_FILE"), open.clone())), ["WATERCLOCK_KAFKA__SASL_PASSWORD_FILE", "mode 644", "not everybody"]),
        ("readable by all, too",        "[kafka]\nsasl.password = \"xyzzy\"".into(),   None,                                ["kafka.sasl.password", "mode 644", "sasl.password.file"]),
        ("none of it together",         "[kafka]\nsecurity.protocol = \"SASL_SSL\"".into(), None,                          ["kafka", "these settings", "GSSAPI"]),
    ];
    for (why, text, variable, [key, got, want]) in cases {
        let path = secret(&directory, "waterclock.toml", &text, 0o644);
        let variables = variable.into_iter().map(|(k, v)| (OsString::from(k), OsString::from(v)));
        let errors = Config::load_from(Some(path.as_ref()), variables, Overrides::default());
        let errors = errors.expect_err(why).0;
        assert_eq!(errors.len(), 1, "{why}: {errors:?}");
        let Invalid { key: k, value, want: w, .. } = &errors[0];
        assert_eq!(k, key, "{why}");
        assert!(value.contains(got) && w.contains(want), "{why}: got {value}, want {w}");
        assert!(!format!("{errors:?}").contains("xyzzy"), "{why}: {errors:?}");
    }
    let both =
        [("WATERCLOCK_KAFKA__SASL_PASSWORD", "a"), ("WATERCLOCK_KAFKA__SASL_PASSWORD_FILE", "b")];
    let errors = load("", &both, Overrides::default()).1.unwrap_err().0;
    assert_eq!((errors.len(), errors[0].key.as_str()), (1, both[1].0), "{errors:?}");
}

#[test]
fn a_configuration_that_is_read_again_brings_its_allow_lists_and_nothing_else() {
    let text = "allow = [\"a.*\"]\nthreads = 2\n[intakes.default]\nallow = [\"ab\"]\n[intakes.x]\ndelay = \"1s\"\n";
    let now = file(text).unwrap();
    let other = file("allow = [\"b.*\"]\nthreads = 3\n[intakes.x]\nallow = [\"bc\"]\ndelay = \"2s\"\n[log]\nlevel = \"warn\"").unwrap();
    let (new, restart) = now.reloaded(&other);
    assert_eq!(restart, ["threads", "intakes", "log"]);
    assert_eq!((new.threads, new.intake("x").delay), (2, Some(Millis(1_000))));
    let permits =
        |config: &Config, intake, target| config.allow(intake).unwrap().permits(target).is_ok();
    let seen = [(MAIN_INTAKE, "ab"), (MAIN_INTAKE, "bb"), ("x", "bc"), ("x", "bb")]
        .map(|(intake, target)| permits(&new, intake, target));
    assert_eq!(seen, [false, true, true, false]);
    assert_eq!(new.allow_of_all().unwrap().len(), 2);
    assert_eq!(new.reloaded(&new), (new.clone(), vec![]));
}

const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn token(more: &str) -> String {
    format!("[[api.tokens]]\nname = \"ci\"\nsha256 = \"{HASH}\"\n{more}\n")
}

#[test]
fn a_token_covers_what_it_says_and_is_read_again() {
    let of = |more: &str| file(&token(more)).map(|config| config.api.tokens[0].clone());
    let some = of("role = \"write\"\nprojects = [\"shop\"]").unwrap();
    assert_eq!((some.role, some.covered()), (TokenRole::Write, Some(&["shop".to_owned()][..])));
    assert_eq!(some.hash().map(|hash| (hash[0], hash[31])), Some((0x9f, 0x08)));
    assert_eq!(of("projects = [\"*\"]").unwrap().covered(), None);
    assert_eq!(of("role = \"admin\"").unwrap().covered(), None);
    let narrow = of("role = \"admin\"\nprojects = [\"shop\"]").unwrap();
    assert!(narrow.covered().is_some());
    // Others may be let in once they have to say who they are.
    let open = format!("http = \"0.0.0.0:8080\"\n{}", token("role = \"admin\""));
    let open = file(&open).unwrap();
    let now = file("http = \"0.0.0.0:8080\"\nhttp-unauthenticated = true").unwrap();
    let (new, restart) = now.reloaded(&open);
    assert_eq!((new.api.tokens.len(), &restart[..]), (1, &["http-unauthenticated"][..]));
}

#[test]
fn a_token_that_is_wrong_is_named_and_its_text_is_not_shown() {
    #[rustfmt::skip]
    let cases = [
        ("api.tokens.projects", token("role = \"read\"")),
        ("api.tokens.projects", token("projects = [\"Shop\"]")),
        ("api.tokens.role",     token("role = \"root\"\nprojects = [\"*\"]")),
        ("api.tokens.name",     token("projects = [\"*\"]").replace("ci", "c i")),
        ("api.tokens.name",     token("projects = [\"*\"]").repeat(2)),
        ("api.tokens.sha256",   token("projects = [\"*\"]").replace(HASH, "wct_pasted")),
    ];
    for (key, text) in cases {
        let errors = file(&text).unwrap_err();
        let shown = errors.to_string();
        assert!(errors.0.iter().any(|error| error.key == key), "{key}: {shown}");
        assert!(!shown.contains("pasted"), "{shown}");
    }
    let config =
        load("", &[("WATERCLOCK_API__TOKEN", "wct_secret")], Overrides::default()).1.unwrap();
    assert_eq!(config.api.token.as_ref().map(|token| token.expose()), Some("wct_secret"));
    assert!(!format!("{config:?}").contains("wct_secret"));
}

#[test]
fn all_that_is_wrong_about_tokens_is_told_with_whose_and_where() {
    let text = format!(
        "{}\n{}\n{}",
        token("role = \"root\"\nproject = [\"shop\"]\nprojects = [\"Shop\"]"),
        token("projects = [\"*\"]").replace("ci", "cd"),
        token("role = \"root\"\nprojects = \"shop\"\nsha256 = 5").replace("ci", "ce").replacen(
            &format!("sha256 = \"{HASH}\"\n"),
            "",
            1
        ),
    );
    let told = |invalid: &Invalid| {
        let line = invalid.line.map(|line| text.lines().nth(line - 1).unwrap_or_default());
        (invalid.key.clone(), line.unwrap_or_default().to_owned(), invalid.to_string())
    };
    let mut all: Vec<_> = file(&text).unwrap_err().0.iter().map(told).collect();
    all.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    let seen: Vec<(&str, &str)> = all.iter().map(|(key, line, _)| (&**key, &**line)).collect();
    let want = [
        ("api.tokens.project", "project = [\"shop\"]"),
        ("api.tokens.projects", "projects = \"shop\""),
        ("api.tokens.projects", "projects = [\"Shop\"]"),
        ("api.tokens.role", "role = \"root\""),
        ("api.tokens.role", "role = \"root\""),
        ("api.tokens.sha256", "sha256 = 5"),
    ];
    assert_eq!(seen, want, "{all:?}");
    for (n, (_, _, shown)) in all.iter().enumerate() {
        assert!(
            shown.contains(if matches!(n, 0 | 2 | 3) { "\"ci\"" } else { "\"ce\"" }),
            "{shown}"
        );
    }
    assert_ne!(all[3], all[4], "each has a line of its own");
}

const JWT: &str = "[api.jwt]\nissuer = \"https://id.example\"\naudience = \"waterclock\"\n";

#[test]
fn signed_tokens_are_tokens_and_are_read_again() {
    let whole = format!("{JWT}jwks = \"https://id.example/keys\"\nrole-claim = \"/access/role\"");
    let now = file("").unwrap();
    assert!(!now.api.wants_credentials());
    let other = file(&format!("http = \"0.0.0.0:8080\"\n{whole}")).unwrap();
    assert!(other.api.wants_credentials());
    let (new, restart) = now.reloaded(&other);
    assert_eq!((new.api.jwt.role_claim.as_str(), &restart[..]), ("/access/role", &["http"][..]));
    assert_eq!(new.api.jwt.projects_claim, "projects");
}

#[test]
fn what_is_wrong_about_signed_tokens_is_named_and_an_address_is_not_shown() {
    let with = |more: &str| format!("{JWT}{more}");
    #[rustfmt::skip]
    let cases = [
        ("api.jwt",             JWT.to_owned()),
        ("api.jwt",             "[api.jwt]\njwks = \"https://id.example/keys\"".to_owned()),
        ("api.jwt.jwks",        with("jwks = \"http://id.example/plugh\"")),
        ("api.jwt.jwks",        with("jwks = \"https://anna:plugh@id.example/\"")),
        ("api.jwt.jwks",        with("jwks = \"plugh\"")),
        ("api.jwt.audience",    JWT.replace("\"waterclock\"", "\"\"") + "jwks = \"https://id.example/\""),
        ("api.jwt.role-claim",  with("jwks = \"https://id.example/\"\nrole-claim = \"\"")),
    ];
    for (key, text) in cases {
        let errors = file(&text).unwrap_err();
        let shown = errors.to_string();
        assert!(errors.0.iter().any(|error| error.key == key), "{key}: {shown}");
        assert!(!shown.contains("plugh"), "{shown}");
    }
}

/// A listener that takes certificates.
fn mtls(more: &str, principals: &str) -> String {
    format!(
        "[api.tls]\ncertificate = \"a.pem\"\nkey = \"a.key\"\nclient-ca = \"c.pem\"\n{more}\n{principals}"
    )
}

fn principal(more: &str) -> String {
    format!("[[api.tls.principals]]\nname = \"ci\"\nsubject = \"dns:ci.example\"\n{more}\n")
}

#[test]
fn principals_are_read_again_and_files_of_another_name_are_not() {
    let now = file("").unwrap();
    let text = mtls("", &principal("role = \"write\"\nprojects = [\"shop\"]"));
    // Others may be let in once they have to say who they are, by a certificate, too.
    let other = file(&format!("http = \"0.0.0.0:8080\"\n{text}")).unwrap();
    let one = &other.api.tls.principals[0];
    assert_eq!((one.role, one.covered()), (TokenRole::Write, Some(&["shop".to_owned()][..])));
    assert_eq!(other.api.tls.client_auth, ClientAuth::Optional);
    let (new, restart) = now.reloaded(&other);
    assert_eq!(restart, ["http", "api.tls"]);
    assert_eq!((new.api.tls.principals.len(), &new.api.tls.certificate), (1, &None));
    let (_, restart) = other.reloaded(
        &file(&format!("http = \"0.0.0.0:8080\"\n{}", text.replace("dns:ci", "dns:cd"))).unwrap(),
    );
    assert_eq!(restart, Vec::<&str>::new());
    let client = "[api]\nca = \"a\"\nclient-certificate = \"b\"\nclient-key = \"c\"";
    let (new, restart) = now.reloaded(&file(client).unwrap());
    assert_eq!(restart, ["api.ca", "api.client-certificate", "api.client-key"]);
    assert_eq!(new, now);
}

#[test]
fn files_of_tls_that_do_not_go_together_are_named() {
    let all = principal("projects = [\"*\"]");
    let without = |line: &str| mtls("", &all).replace(line, "");
    #[rustfmt::skip]
    let cases = [
        ("api.tls.certificate",        "no api.tls.key",         without("key = \"a.key\"\n")),
        ("api.tls.key",                "no api.tls.certificate", without("certificate = \"a.pem\"\n")),
        ("api.client-key",             "no api.client-cert",     "[api]\nclient-key = \"a\"".to_owned()),
        ("api.tls.client-ca",          "no api.tls.certificate", "[api.tls]\nclient-ca = \"a\"\nclient-auth = \"required\"".to_owned()),
        ("api.tls.client-auth",        "without api.tls.client", "[api.tls]\nclient-auth = \"required\"".to_owned()),
        ("api.tls.client-auth",        "optional or required",   mtls("client-auth = \"maybe\"", &all)),
        ("api.tls.client-ca",          "nobody who is known",    mtls("", "")),
        ("api.tls.principals",         "no authority",           without("client-ca = \"c.pem\"\n")),
        ("api.tls.principals.name",    "twice",                  mtls("", &all.repeat(2))),
        ("api.tls.principals.subject", "twice",                  mtls("", &(all.clone() + &all.replace("\"ci\"", "\"cd\"")))),
        ("api.tls.principals.subject", "want dns:, uri:",        mtls("", &all.replace("dns:", ""))),
        ("api.tls.principals.projects", "none for",              mtls("", &principal(""))),
        // A certificate alone does not say who has it.
        ("http",                       "[[api.tls.principals]]", format!("http = \"0.0.0.0:80\"\n{}", mtls("client-auth = \"required\"", ""))),
    ];
    for (key, want, text) in cases {
        let errors = file(&text).unwrap_err();
        let shown = errors.to_string();
        assert!(errors.0.iter().any(|error| error.key == key), "{key}: {shown}");
        assert!(shown.contains(want), "{want}: {shown}");
    }
    assert!(file(&mtls("client-auth = \"required\"", "")).is_ok());
}

/// Each key but the allow-lists and the tokens holds only after a restart, and a reload has to say so.
#[test]
fn a_reload_names_every_key_that_it_leaves_as_it_was() {
    let now = file("").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = secret(&directory, "token", "b", 0o600);
    let secrets = format!("{{ a = {{ value.file = {path:?}, projects = [\"shop\"] }} }}");
    #[rustfmt::skip]
    let keys = [
        ("advertise",            "\"127.0.0.1:8082\""),
        ("brokers",              "\"127.0.0.1:9093\""),
        ("callbacks",            "{ networks = [\"10.0.0.0/8\"] }"),
        ("commit-interval",      "\"3ms\""),
        ("data-dir",             "\"/srv/other\""),
        ("delivery",             "\"at_least_once\""),
        ("drain",                "\"7s\""),
        ("foreign-wait",         "\"3s\""),
        ("history",              "\"3d\""),
        ("hop-linger",           "\"100ms\""),
        ("horizon",              "\"50s\""),
        ("http",                 "\"127.0.0.1:8081\""),
        ("http-hosts",           "[\"other\"]"),
        ("http-unauthenticated", "true"),
        ("instance",             "\"other\""),
        ("intakes",              "{ x = { delay = \"1s\" } }"),
        ("kafka",                "{ \"socket.keepalive.enable\" = \"true\" }"),
        ("ladder",               "\"classic\""),
        ("lanes",                "7"),
        ("lead",                 "\"1s\""),
        ("log",                  "{ level = \"warn\" }"),
        ("max-delay",            "\"300d\""),
        ("max-tracked",          "7000000"),
        ("memory",               "\"256MiB\""),
        ("namespace",            "\"other\""),
        ("order",                "\"strict\""),
        ("roles",                "\"worker\""),
        ("secrets",              &secrets),
        ("session-timeout",      "\"7s\""),
        ("settle",               "\"700ms\""),
        ("threads",              "2"),
        ("tracking",             "\"cancellations\""),
        ("transaction-timeout",  "\"16s\""),
        ("weak-topics",          "true"),
    ];
    // All that there are, as the documents name them.
    let table = include_str!("../../docs/configuration.md");
    let (_, table) = table.split_once("<!-- keys: begin -->").expect("the table");
    let (table, _) = table.split_once("<!-- keys: end -->").expect("its end");
    let documented = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut documented: Vec<&str> =
        documented.map(|key| key.split('.').next().unwrap_or(key)).collect();
    documented.sort_unstable();
    documented.dedup();
    documented.retain(|key| !["allow", "allow-all", "api"].contains(key));
    assert_eq!(keys.map(|(key, _)| key)[..], documented);
    for (key, value) in keys {
        let other = file(&format!("{key} = {value}")).unwrap();
        let (new, restart) = now.reloaded(&other);
        assert_eq!(restart, [key]);
        assert_eq!(new, now, "{key}");
    }
}

#[test]
fn a_list_of_the_main_intake_that_is_new_in_the_file_holds_at_once() {
    let now = file("allow = [\"a.*\"]").unwrap();
    let (new, restart) =
        now.reloaded(&file("allow = [\"a.*\"]\n[intakes.default]\nallow = [\"ab\"]").unwrap());
    let permits =
        |config: &Config, target| config.allow(MAIN_INTAKE).unwrap().permits(target).is_ok();
    assert!(permits(&now, "ac") && !permits(&new, "ac") && permits(&new, "ab"));
    assert_eq!(restart, Vec::<&str>::new());
    // What else is set there holds only after a restart.
    let more = "allow = [\"a.*\"]\n[intakes.default]\nallow = [\"ab\"]\ndelay = \"1s\"";
    let (new, restart) = now.reloaded(&file(more).unwrap());
    assert!(!permits(&new, "ac") && new.intake(MAIN_INTAKE).delay.is_none());
    assert_eq!(restart, ["intakes"]);
}

#[test]
fn an_intake_that_is_gone_from_the_file_keeps_its_list_until_the_restart() {
    let now = file("[intakes.default]\nallow = [\"ab\"]\n[intakes.x]\nallow = [\"bc\"]").unwrap();
    let (new, restart) = now.reloaded(&file("allow = [\".*\"]").unwrap());
    let permits = |intake, target| new.allow(intake).unwrap().permits(target).is_ok();
    assert!(permits(MAIN_INTAKE, "any") && permits("x", "bc") && !permits("x", "any"));
    assert_eq!(restart, ["intakes"]);
}

#[test]
fn without_a_list_every_topic_is_allowed_on_this_machine_only() {
    #[rustfmt::skip]
    let cases = [
        ("localhost:9092",                       true),
        ("LOCALHOST:9092",                       true),
        ("127.0.0.1:9092, 127.1.2.3:9092",       true),
        ("[::1]:9092",                           true),
        ("PLAINTEXT://localhost:9092",           true),
        ("kafka:9092",                           false),
        ("10.0.0.1:9092",                        false),
        ("0.0.0.0:9092",                         false),
        ("localhost:9092,kafka:9092",            false),
        ("localhost.example.com:9092",           false),
        ("[::ffff:10.0.0.1]:9092",               false),
    ];
    for (brokers, is_local) in cases {
        let config = Config { brokers: brokers.to_owned(), ..Config::default() };
        assert_eq!(config.is_ajar(), !is_local, "{brokers}");
        let said = Config { allow_all: true, ..config.clone() };
        let listed = Config { allow: Some(vec!["a".to_owned()]), ..config };
        assert!(!said.is_ajar() && !listed.is_ajar(), "{brokers}");
    }
    for (text, variables) in
        [("allow-all = true", vec![]), ("", vec![("WATERCLOCK_ALLOW_ALL", "true")])]
    {
        assert!(load(text, &variables, Overrides::default()).1.unwrap().allow_all);
    }
}

#[test]
fn lead_and_linger_that_are_not_set_follow_the_horizon() {
    let config = file("horizon = \"1s\"").unwrap();
    assert_eq!((config.lead(), config.hop_linger()), (Millis(1_000), Millis(500)));
    let config = file("lead = \"400ms\"").unwrap();
    assert_eq!((config.lead(), config.hop_linger()), (Millis(400), Millis(200)));
}

#[test]
fn what_a_size_prints_it_reads() {
    for (size, shown) in [(32 << 20, "32MiB"), (1 << 40, "1TiB"), (1_000, "1000"), (0, "0")] {
        assert_eq!(ByteSize(size).to_string(), shown);
        assert_eq!(<ByteSize as text::Text>::read(shown), Some(ByteSize(size)));
    }
}

/// One documented field, read from the source of this room.
struct Field {
    key: String,
    optional: bool,
    meaning: String,
    default: String,
    range: String,
}

/// Reads the documentation of the fields of `name`, whose keys begin with `prefix`.
fn fields(name: &str, prefix: &str) -> Vec<Field> {
    let source = [include_str!("../config.rs"), include_str!("callbacks.rs")].concat();
    let start = source.find(&format!("pub struct {name} {{")).expect("the struct is there");
    let body = source[start..].split("\n}\n").next().unwrap_or_default();
    let (mut found, mut doc) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push_str(text);
        } else if let Some(field) = line.strip_prefix("pub ").filter(|l| l.contains(':')) {
            let (name, kind) = field.split_once(':').unwrap();
            let text = std::mem::take(&mut doc).trim().to_owned();
            if ["CallbacksConfig", "LogConfig", "ApiConfig", "JwtConfig", "TlsConfig"]
                .iter()
                .any(|of| kind.trim().starts_with(of))
            {
                continue;
            }
            let (meaning, rest) =
                text.split_once("Default: ").unwrap_or_else(|| panic!("{name}: no default"));
            let (default, range) = rest.split_once(" Range: ").unwrap_or((rest, "a path."));
            let tidy = |text: &str| text.trim().trim_end_matches('.').to_owned();
            found.push(Field {
                key: format!("{prefix}{}", name.trim().replace('_', "-")),
                optional: kind.trim().starts_with("Option"),
                meaning: meaning.trim().to_owned(),
                default: tidy(default),
                range: tidy(range),
            });
        }
    }
    found
}

fn all_fields() -> Vec<Field> {
    let mut all = fields("Config", "");
    all.extend(fields("IntakeConfig", "intakes.<name>."));
    all.extend(fields("CallbacksConfig", "callbacks."));
    all.extend(fields("SecretConfig", "secrets.<name>."));
    all.extend(fields("ApiConfig", "api."));
    all.extend(fields("JwtConfig", "api.jwt."));
    all.extend(fields("TlsConfig", "api.tls."));
    all.extend(fields("LogConfig", "log."));
    all
}

#[test]
fn the_documented_default_is_the_default() {
    for field in all_fields() {
        if field.optional {
            assert!(field.default.starts_with("not set"), "{}: {}", field.key, field.default);
            continue;
        }
        let Some(default) = field.default.strip_prefix('`').and_then(|d| d.strip_suffix('`'))
        else {
            let key = field.key.as_str();
            #[rustfmt::skip]
            let empty = [
                "http-hosts", "intakes", "kafka", "callbacks.networks", "secrets", "secrets.<name>.projects",
                "api.tokens", "api.tls.principals",
            ];
            assert!(empty.contains(&key) && field.default == "empty", "{key}");
            continue;
        };
        let variable = format!("WATERCLOCK_{}", field.key.replace('.', "__").replace('-', "_"));
        let loaded = load("", &[(&variable.to_ascii_uppercase(), default)], Overrides::default()).1;
        assert_eq!(loaded, Ok(Config::default()), "{}", field.key);
    }
}

#[test]
fn the_documented_range_is_the_one_that_is_checked() {
    let all = all_fields();
    for (key, range) in &check::RANGES {
        let field = all.iter().find(|field| field.key == *key).expect("documented");
        assert_eq!(field.range, range.to_string(), "{key}");
    }
}

/// The document's table is made here; `UPDATE_DOCS=1 cargo test --lib documented` writes it.
#[test]
fn the_documented_table_is_made_from_the_code() {
    let mut table = String::from("| key | default | range | meaning |\n|---|---|---|---|\n");
    for Field { key, default, range, meaning, .. } in all_fields() {
        let row = format!("| `{key}` | {default} | {range} | {meaning} |");
        writeln!(table, "{}", row.replace("  ", " ")).unwrap();
    }
    crate::documented::compare("configuration.md", "keys", &table);
}

/// The document's table is made here; `UPDATE_DOCS=1 cargo test --lib documented` writes it.
#[test]
fn the_documented_table_of_protected_settings_is_made_from_the_code() {
    use crate::kafka::settings::{PROTECTED, Protected};
    let mut table = String::from("| settings | instead | because |\n|---|---|---|\n");
    for Protected { names, instead, reason } in &PROTECTED {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let instead = instead.map(|key| format!("`{key}`")).unwrap_or_default();
        let row = format!("| {} | {instead} | {reason} |", names.join(", "));
        writeln!(table, "{}", row.replace("  ", " ")).unwrap();
    }
    crate::documented::compare("configuration.md", "protected", &table);
}
