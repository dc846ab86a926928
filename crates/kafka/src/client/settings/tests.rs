use super::*;

fn given(settings: &[(&str, &str)]) -> Given {
    let own =
        |(name, value): &(&str, &str)| ((*name).to_owned(), Secret::from((*value).to_owned()));
    settings.iter().map(own).collect()
}

#[test]
fn what_is_wrong_is_found_before_anything_connects() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key").display().to_string();
    std::fs::write(&key, "").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    #[rustfmt::skip]
    let cases = [
        // why                        settings                                      name, got, want
        ("no such name",              &[("sasl.pasword", "x")][..],                  ["sasl.pasword", "an unknown setting", "CONFIGURATION.md"]),
        ("not one of its words",      &[("security.protocol", "tls")],               ["security.protocol", "\"tls\"", "Invalid value"]),
        ("below its range",           &[("metadata.max.age.ms", "0")],               ["metadata.max.age.ms", "\"0\"", "outside allowed range"]),
        ("no number",                 &[("broker.address.ttl", "long")],             ["broker.address.ttl", "\"long\"", "Invalid value"]),
        ("a callback",                &[("log_cb", "x")],                            ["log_cb", "\"x\"", "must be set through"]),
        ("ours",                      &[("acks", "1")],                              ["acks", "waterclock decides", "use the key delivery"]),
        ("ours, by its other name",   &[("metadata.broker.list", "a:1")],            ["metadata.broker.list", "waterclock decides", "use the key brokers"]),
        ("ours, without a key",       &[("isolation.level", "read_uncommitted")],    ["isolation.level", "waterclock decides", "aborted transaction"]),
        ("no such file",              &[("security.protocol", "ssl"), ("ssl.ca.location", "/nowhere.pem")], ["ssl.ca.location", "/nowhere.pem", "No such file"]),
        ("a key for everybody",       &[("ssl.key.location", &key)],                 ["ssl.key.location", "key", "everybody may read it, mode 644"]),
        ("no user",                   &[("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "PLAIN")], ["", "these settings", "sasl.username"]),
        ("not built in",              &[("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "GSSAPI")], ["", "these settings", "GSSAPI"]),
        ("a token for nobody",        &[("sasl.oauthbearer.scope", "a")],            ["sasl.oauthbearer.scope", "a setting for tokens", "OAUTHBEARER"]),
    ];
    for (why, settings, [name, got, want]) in cases {
        let faults = check(&given(settings));
        assert_eq!(faults.len(), 1, "{why}: {faults:?}");
        let fault = &faults[0];
        assert_eq!(fault.name, name, "{why}");
        assert!(fault.got.contains(got), "{why}: got {}", fault.got);
        assert!(fault.want.contains(want), "{why}: want {}", fault.want);
    }
}

#[test]
fn what_librdkafka_takes_is_taken() {
    let cases = [
        &[][..],
        &[("security.protocol", "SSL"), ("ssl.endpoint.identification.algorithm", "none")],
        &[
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "a"),
            ("sasl.password", "b"),
        ],
        &[
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanisms", "OAUTHBEARER"),
            ("enable.sasl.oauthbearer.unsecure.jwt", "true"),
            ("sasl.oauthbearer.config", "principal=a"),
        ],
        &[("compression.type", "zstd"), ("client.rack", "one"), ("debug", "security")],
    ];
    for settings in cases {
        assert_eq!(check(&given(settings)), [], "{settings:?}");
    }
}

#[test]
fn every_wrong_setting_is_told_and_no_secret_is() {
    let settings = given(&[
        ("acks", "1"),
        ("nothing", "xyzzy"),
        ("sasl.password.location", "xyzzy"),
        ("sasl.oauthbearer.client.secret", "xyzzy"),
        ("enable.ssl.certificate.verification", "perhaps"),
    ]);
    let faults = check(&settings);
    let names: Vec<_> = faults.iter().map(|fault| fault.name.as_str()).collect();
    let wrong =
        ["acks", "enable.ssl.certificate.verification", "nothing", "sasl.password.location"];
    assert_eq!(names, wrong);
    assert!(!format!("{faults:?}{settings:?}").contains("xyzzy"), "{faults:?}");
}

/// Path and text of every source below a directory of the package, without the tests in it.
fn sources(below: &str) -> Vec<(std::path::PathBuf, String)> {
    let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(below)];
    let mut sources = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if !path.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
            sources.push((path, code));
        }
    }
    sources
}

/// librdkafka's other names for what is set in this room, which a person might use instead.
#[test]
fn whatever_this_room_sets_no_person_may() {
    let mut count = 0;
    for (path, source) in sources("src") {
        if path.ends_with("settings.rs") {
            continue;
        }
        for set in source.split(".set(\"").skip(1) {
            let name = set.split('"').next().unwrap();
            let ours = why_protected(name).is_some() || Source::takes(name);
            assert!(ours, "{name} is set in {} and is not protected", path.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} settings were found");
}

/// A client that is made around [`Connection`](crate::client::Connection), or whose context gives no tokens, works
/// until somebody turns SASL on.
#[test]
fn every_client_can_be_given_tokens() {
    for (path, code) in sources("src") {
        let contexts = code.matches("ClientContext for ").count();
        let given = ["\n    tokens!();", "\n    tokens!(without_log);"];
        let given: usize = given.iter().map(|given| code.matches(given).count()).sum();
        assert_eq!(contexts, given, "contexts and tokens!() in {}", path.display());
        if path.ends_with("settings.rs") {
            continue;
        }
        for without in
            ["ClientConfig::new()", ".create()", "DefaultClientContext", "DefaultConsumerContext"]
        {
            assert!(!code.contains(without), "{without} in {}", path.display());
        }
    }
}

/// A consumer that chooses another position by itself passes over lost records in silence.
#[test]
fn every_consumer_stops_where_its_position_is_not_in_the_log() {
    let config = crate::client::Connection::new("", Given::new()).consumer("a");
    let promised = [
        ("auto.offset.reset", "error"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("allow.auto.create.topics", "false"),
    ];
    for (name, value) in promised {
        assert_eq!(config.get(name), Some(value), "{name}");
    }
    // Code that takes a configuration that is no consumer's makes a producer of it, and says how it is acknowledged.
    let mut count = 0;
    for (path, code) in sources("src") {
        if path.ends_with("client/connect.rs") {
            continue;
        }
        // A member of a group on a user's topic: what of that is lost has a deadline that somebody waits for.
        let is_of_users = path.ends_with("client/group_consumer.rs");
        let sets = code.contains(".set(\"auto.offset.reset\"");
        assert!(!sets || is_of_users, "set again in {}", path.display());
        let configs = code.split(".client(").skip(1).filter(|rest| !rest.starts_with(')'));
        for rest in configs {
            let made = rest.split("_context(").next().unwrap();
            let is_producer = ["\"acks\"", "\"enable.idempotence\"", "\"transactional.id\""]
                .iter()
                .any(|setting| made.contains(setting));
            assert!(is_producer, "a client in {} is not known to be a producer", path.display());
            count += 1;
        }
    }
    assert!(count >= 9, "{count} producers were found");
}

#[test]
fn a_protected_name_is_one_of_librdkafka_and_stands_in_one_row() {
    let mut seen = std::collections::BTreeSet::new();
    for name in PROTECTED.iter().flat_map(|row| row.names) {
        assert!(seen.insert(name), "{name} twice");
        let error = ClientConfig::new().set(*name, "1").create_native_config().map(drop);
        let text = error.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!text.contains("No such configuration"), "{name}: {text}");
    }
}
