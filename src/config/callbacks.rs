//! `[callbacks]` and `[secrets]`: which addresses workers may call, and what services may name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::check::Fault;
use super::{Config, kafka};
use crate::engine::task::registry::is_name;
use crate::kafka::settings::{Secret, readable_by_all};
use crate::worker;

/// The table of secrets, and what begins the path of every key in it.
const SECRETS: &str = "secrets";
/// Most networks, hosts, secrets, and projects of one secret.
const ENTRIES_MAX: usize = 1_000;

/// `[callbacks]`: which addresses workers may call.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CallbacksConfig {
    /// Networks that workers may call though they are not public, as CIDRs or single addresses. Without an entry here, a
    /// task reaches no loopback, private, link-local or other special address, in whatever way a URL names it.
    ///
    /// Default: empty. Range: at most 1000 networks, such as `10.0.0.0/8` or `fd00::/8`.
    pub networks: Vec<String>,

    /// The only hosts that workers may call: names, IP addresses, or `*.` and a name for all names below it. It opens no
    /// network: an address must be public or stand in `callbacks.networks`, too.
    ///
    /// Default: not set; any host. Range: 1 to 1000 hosts, without ports.
    pub hosts: Option<Vec<String>>,

    /// A proxy through which workers make all calls. The proxy looks names up, so waterclock cannot check where they lead:
    /// `callbacks.hosts` must say which may be called. Proxies that the environment names are never used.
    ///
    /// Default: not set; no proxy. Range: a URL `http://` or `https://` with a host, without user information and path.
    pub proxy: Option<String>,
}

/// `[secrets.<name>]`: a secret that services may name. Printing it shows no value.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SecretConfig {
    /// A bearer token; or a key to sign calls with: `whsec_` and 24 to 64 bytes in base64; or a client certificate: PEM with
    /// a private key in PKCS #8, its certificate, and the chain. `value.file` names a file that holds it.
    ///
    /// Default: not set; a secret without it is refused. Range: visible ASCII, or PEM; at most 1 MiB.
    pub value: Option<SecretText>,

    /// A key that calls are signed with, too, while receivers change from it to the one in `value`. `previous.file` names a
    /// file that holds it.
    ///
    /// Default: not set; one signature. Range: as a key in `value`.
    pub previous: Option<SecretText>,

    /// Projects whose services may name this secret.
    ///
    /// Default: empty. Range: 1 to 1000 names of projects.
    pub projects: Vec<String>,
}

/// The text of a secret, or where it stands. [`Config::load`] has read every file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretText {
    /// The text.
    Is(Secret),
    /// A file that holds it.
    File(PathBuf),
}

impl SecretText {
    /// `None`: its file was not read.
    fn expose(&self) -> Option<&str> {
        match self {
            Self::Is(secret) => Some(secret.expose()),
            Self::File(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct InFile {
            file: PathBuf,
        }
        struct Text;
        // What is wrong is said without the value.
        impl<'de> Visitor<'de> for Text {
            type Value = SecretText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, or a table with file")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<SecretText, E> {
                Ok(SecretText::Is(text.to_owned().into()))
            }
            fn visit_bool<E: Error>(self, _: bool) -> Result<SecretText, E> {
                Err(E::custom("something else than text (not shown)"))
            }
            fn visit_i64<E: Error>(self, _: i64) -> Result<SecretText, E> {
                self.visit_bool(false)
            }
            fn visit_u64<E: Error>(self, _: u64) -> Result<SecretText, E> {
                self.visit_bool(false)
            }
            fn visit_f64<E: Error>(self, _: f64) -> Result<SecretText, E> {
                self.visit_bool(false)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SecretText, A::Error> {
                let InFile { file } = InFile::deserialize(MapAccessDeserializer::new(map))?;
                Ok(SecretText::File(file))
            }
        }
        from.deserialize_any(Text)
    }
}

/// Puts what the files hold in the place of their paths. A secret whose file cannot be read is told, and left out.
pub(super) fn settle(secrets: &mut BTreeMap<String, SecretConfig>) -> Vec<Fault> {
    let mut faults = Vec::new();
    secrets.retain(|name, secret| {
        let before = faults.len();
        for (key, text) in [("value", &mut secret.value), ("previous", &mut secret.previous)] {
            let Some(SecretText::File(path)) = text else { continue };
            match kafka::read_secret(path) {
                Ok(read) => *text = Some(SecretText::Is(read.into())),
                Err(what) => faults.push(Fault {
                    key: format!("{SECRETS}.{name}.{key}.file"),
                    value: format!("{path:?}, {what}"),
                    want: kafka::FILE_WANTED.to_owned(),
                }),
            }
        }
        faults.len() == before
    });
    faults
}

/// Secrets that stand in a file of the configuration which everybody may read.
pub(super) fn open_secrets(path: &Path, data: &Dict) -> Vec<Fault> {
    let mode = std::fs::metadata(path).ok().and_then(|about| readable_by_all(&about));
    let (Some(mode), Some(Value::Dict(_, secrets))) = (mode, data.get(SECRETS)) else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    for (name, secret) in secrets {
        let Value::Dict(_, secret) = secret else { continue };
        for key in ["value", "previous"] {
            if let Some(Value::String(..)) = secret.get(key) {
                faults.push(Fault {
                    key: format!("{SECRETS}.{name}.{key}"),
                    value: format!("a secret in a file that everybody may read (mode {mode:o})"),
                    want: format!("chmod o-r, or a file of its own: {SECRETS}.{name}.{key}.file"),
                });
            }
        }
    }
    faults
}

/// Everything that is wrong with both tables.
pub(super) fn check(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut say =
        |key: String, value: String, want: String| faults.push(Fault { key, value, want });
    let CallbacksConfig { networks, hosts, proxy } = &config.callbacks;
    if networks.len() > ENTRIES_MAX {
        let want = format!("at most {ENTRIES_MAX} networks");
        say("callbacks.networks".to_owned(), networks.len().to_string(), want);
    }
    let each =
        networks.iter().map(|network| ("callbacks.networks", std::slice::from_ref(network), None));
    let hosts = hosts.as_deref();
    if let Some(hosts) = hosts
        && !(1..=ENTRIES_MAX).contains(&hosts.len())
    {
        let want = format!("1 to {ENTRIES_MAX} hosts");
        say("callbacks.hosts".to_owned(), format!("{} hosts", hosts.len()), want);
    }
    let each_host = hosts.unwrap_or_default().iter();
    let each_host =
        each_host.map(|host| ("callbacks.hosts", &[][..], Some(std::slice::from_ref(host))));
    for (key, networks, hosts) in each.chain(each_host) {
        if let Err(worker::Malformed { got, want }) = worker::Guard::new(networks, hosts) {
            say(key.to_owned(), format!("{got:?}"), want);
        }
    }
    if let Some(text) = proxy {
        if proxy_of(text).is_none() {
            // It could have a password.
            let want = "a URL http:// or https:// with a host, without user information and path";
            say(
                "callbacks.proxy".to_owned(),
                "something else (not shown)".to_owned(),
                want.to_owned(),
            );
        } else if hosts.is_none() {
            let want = "callbacks.hosts beside it: the proxy looks names up, so waterclock cannot check where they lead";
            say("callbacks.proxy".to_owned(), format!("{text:?} alone"), want.to_owned());
        }
    }
    if config.secrets.len() > ENTRIES_MAX {
        let want = format!("at most {ENTRIES_MAX} secrets");
        say(SECRETS.to_owned(), config.secrets.len().to_string(), want);
    }
    for (name, secret) in &config.secrets {
        if !is_name(name) {
            let want = "names of 1 to 64 of a-z 0-9 . _ -, not . or ..";
            say(SECRETS.to_owned(), format!("{name:?}"), want.to_owned());
        }
        if let Err((key, value, want)) = secret_of(secret) {
            say(format!("{SECRETS}.{name}.{key}"), value.to_owned(), want.to_owned());
        }
        if !(1..=ENTRIES_MAX).contains(&secret.projects.len()) {
            let want = format!("1 to {ENTRIES_MAX} projects");
            say(
                format!("{SECRETS}.{name}.projects"),
                format!("{} projects", secret.projects.len()),
                want,
            );
        }
        for project in secret.projects.iter().filter(|project| !is_name(project)) {
            let want = "names of projects: 1 to 64 of a-z 0-9 . _ -, not . or ..";
            say(format!("{SECRETS}.{name}.projects"), format!("{project:?}"), want.to_owned());
        }
    }
    faults
}

/// What is wrong with one secret: the key, what is there, and what should be.
type SecretFault = (&'static str, &'static str, &'static str);

fn secret_of(secret: &SecretConfig) -> Result<worker::Secret, SecretFault> {
    let unread = |key| (key, "a file, which only Config::load reads", "the text itself");
    let Some(value) = &secret.value else {
        return Err(("value", "nothing", "the secret, or value.file and a file that holds it"));
    };
    let value = value.expose().ok_or_else(|| unread("value"))?;
    let previous = match &secret.previous {
        Some(text) => Some(text.expose().ok_or_else(|| unread("previous"))?),
        None => None,
    };
    let key = if previous.is_some() { "previous" } else { "value" };
    worker::Secret::new(value, previous, secret.projects.iter().cloned())
        .map_err(|want| (key, "something else (not shown)", want))
}

fn proxy_of(text: &str) -> Option<url::Url> {
    let url: url::Url = text.parse().ok()?;
    let is_bare = url.username().is_empty()
        && url.password().is_none()
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none();
    (matches!(url.scheme(), "http" | "https") && url.has_host() && is_bare).then_some(url)
}

impl Config {
    /// What calls of workers depend on. `name`: of this instance.
    ///
    /// # Errors
    /// None for a configuration from [`Config::load`], which has tried it.
    pub fn callers(&self, name: &str) -> Result<worker::Settings, worker::Malformed> {
        let CallbacksConfig { networks, hosts, proxy } = &self.callbacks;
        let secrets = self
            .secrets
            .iter()
            .filter_map(|(name, secret)| Some((name.clone(), secret_of(secret).ok()?)));
        Ok(worker::Settings {
            worker: name.to_owned(),
            guard: worker::Guard::new(networks, hosts.as_deref())?,
            secrets: secrets.collect(),
            proxy: proxy.as_deref().and_then(proxy_of),
            lookup: worker::system(),
        })
    }
}
