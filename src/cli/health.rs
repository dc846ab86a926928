//! `waterclock health`: asks one instance how it is, for what starts and stops it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::Args;
use serde_json::Value;

use super::client::ServerArg;
use super::{Exit, Failure, Global, Outcome, output};
use crate::config::Overrides;

/// Arguments of `health`.
#[derive(Args)]
pub(super) struct Health {
    /// Asks only whether a restart would help
    #[arg(long)]
    live: bool,
    /// Asks this instance, as in http://host:port [default: `http` of the configuration]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

impl Health {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let scheme = if config.api.tls.certificate.is_some() { "https" } else { "http" };
        let here = config.http.map(|address| format!("{scheme}://{}", reached(address)));
        let server = self.server.or(here).map(ServerArg::at);
        let server = server.ok_or_else(|| Failure::new(Exit::Usage, Error::Unnamed))?;
        let path = if self.live { "health/live" } else { "health/ready" };
        let told = server.open(global, &config)?.look(path)?;
        let well = told["ok"] == Value::Bool(true);
        let exit = if well { Exit::Ok } else { Exit::Negative };
        if global.json() {
            output::line(&told.to_string())?;
            return Ok(exit);
        }
        let word = match (self.live, well) {
            (true, true) => "live",
            (true, false) => "not live: a restart may help",
            (false, true) => "ready",
            (false, false) => "not ready",
        };
        let reasons = told["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let lines: Vec<_> = std::iter::once(word).chain(reasons).collect();
        output::line(&lines.join("\n"))?;
        Ok(exit)
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(
        "no address says where the instance is: want --server http://HOST:PORT, or `http` in the configuration \
         (WATERCLOCK_HTTP), as `run` has it"
    )]
    Unnamed,
}

/// Where this machine reaches what listens there: nothing can be asked at "all addresses".
fn reached(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listens_everywhere_is_asked_on_this_machine() {
        #[rustfmt::skip]
        let cases = [
            ("all of IPv4", "0.0.0.0:8080",    "127.0.0.1:8080"),
            ("all of IPv6", "[::]:8080",       "[::1]:8080"),
            ("one of them", "192.0.2.7:8080",  "192.0.2.7:8080"),
        ];
        for (why, listens, asked) in cases {
            assert_eq!(reached(listens.parse().expect(why)).to_string(), asked, "{why}");
        }
    }
}
