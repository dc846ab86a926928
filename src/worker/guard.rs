//! Which addresses may be called. A task's URL comes from outside, and a worker stands inside: without this room, a task could
//! reach databases, neighbours and the metadata of a cloud.
//!
//! # Invariants
//! 1. An address is refused unless it is a public one, or stands in a network that the configuration allows.
//! 2. An address that stands for another one (a translated, mapped or tunnelled IPv4) is allowed only if both are.
//! 3. Of a name, every address of the answer must be allowed. The resolver hands on the addresses that were checked, and no
//!    others are connected to.
//! 4. An IP address in a URL is checked as the URL parser reads it, whatever way it is written.
//! 5. What is said of a refusal does not tell to which address a name leads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

use crate::engine::task::hosts::{BadHost, HOST_WANTED, Hosts};

/// Why an address is not called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(String);

/// Which addresses, names and ports may be called.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Allowed, though they are not public.
    networks: Vec<IpNet>,
    /// The only hosts that may be called; `None`: any.
    hosts: Option<Hosts>,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(parts: [u16; 4], bits: u8) -> Ipv6Net {
    let [a, b, c, d] = parts;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), bits)
}

/// IPv4 that is not public, and what it is.
#[rustfmt::skip]
const REFUSED_V4: [(Ipv4Net, &str); 17] = [
    (v4(0, 0, 0, 0, 8),          "this network"),
    (v4(10, 0, 0, 0, 8),         "private"),
    (v4(100, 64, 0, 0, 10),      "shared by a provider"),
    (v4(127, 0, 0, 0, 8),        "loopback"),
    // A cloud's agent, at a public address.
    (v4(168, 63, 129, 16, 32),   "metadata"),
    (v4(169, 254, 0, 0, 16),     "link-local"),
    (v4(172, 16, 0, 0, 12),      "private"),
    (v4(192, 0, 0, 0, 24),       "reserved"),
    (v4(192, 0, 2, 0, 24),       "documentation"),
    (v4(192, 88, 99, 0, 24),     "6to4"),
    (v4(192, 168, 0, 0, 16),     "private"),
    (v4(198, 18, 0, 0, 15),      "benchmark"),
    (v4(198, 51, 100, 0, 24),    "documentation"),
    (v4(203, 0, 113, 0, 24),     "documentation"),
    (v4(224, 0, 0, 0, 4),        "multicast"),
    (v4(255, 255, 255, 255, 32), "broadcast"),
    (v4(240, 0, 0, 0, 4),        "reserved"),
];

/// All of IPv6 that is given to hosts of the internet. Outside of it nothing is public.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0], 3);
/// Within it, what is not public.
#[rustfmt::skip]
const REFUSED_V6: [(Ipv6Net, &str); 5] = [
    (v6([0x2001, 0, 0, 0], 32),      "teredo"),
    (v6([0x2001, 0, 0, 0], 23),      "reserved"),
    (v6([0x2001, 0xdb8, 0, 0], 32),  "documentation"),
    (SIX_TO_FOUR,                    "6to4"),
    (v6([0x3fff, 0, 0, 0], 20),      "documentation"),
];
/// Outside of it, what a person should read; the rest is "not global".
#[rustfmt::skip]
const OTHER_V6: [(Ipv6Net, &str); 10] = [
    (v6([0, 0, 0, 0], 128),          "unspecified"),
    (LOOPBACK_V6,                    "loopback"),
    (MAPPED,                         "mapped IPv4"),
    (TRANSLATED,                     "translated IPv4"),
    (COMPATIBLE,                     "IPv4-compatible"),
    (NAT64,                          "NAT64"),
    (v6([0x64, 0xff9b, 1, 0], 48),   "NAT64"),
    (v6([0xfc00, 0, 0, 0], 7),       "unique-local"),
    (v6([0xfe80, 0, 0, 0], 10),      "link-local"),
    (v6([0xff00, 0, 0, 0], 8),       "multicast"),
];
const LOOPBACK_V6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128);
const COMPATIBLE: Ipv6Net = v6([0, 0, 0, 0], 96);
const MAPPED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);
const TRANSLATED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96);
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0], 96);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0], 16);

/// Ports above 1023 at which stores, brokers and control planes listen, and no receiver of callbacks does.
const INTERNAL_PORTS: [u16; 38] = [
    1433, 1521, 2049, 2181, 2375, 2376, 2377, 2379, 2380, 3260, 3306, 3389, 4001, 4369, 5432, 5672,
    5900, 5984, 5985, 5986, 6379, 6443, 6667, 7000, 7001, 8086, 8200, 8500, 9042, 9092, 9093, 9200,
    9300, 10250, 10255, 11211, 26379, 27017,
];

impl Guard {
    /// `networks`: CIDRs of addresses that may be called though they are not public. `hosts`: the only hosts that may be called:
    /// a name, an IP address, or `*.` and a name for all names below it.
    ///
    /// # Errors
    /// The first entry that is neither.
    pub fn new(networks: &[String], hosts: Option<&[String]>) -> Result<Self, Malformed> {
        let networks = networks.iter().map(|text| network(text)).collect::<Result<_, _>>()?;
        let hosts = hosts.map(|hosts| Hosts::new(hosts.to_vec())).transpose()?;
        Ok(Self { networks, hosts })
    }

    /// Checks what a URL says by itself. If its host is a name, the addresses of the name are still to be checked.
    ///
    /// # Errors
    /// It is not to be called.
    pub fn url(&self, url: &Url) -> Result<(), Denied> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Denied("its scheme is neither http nor https".to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Denied("it has user information; use a service's secret".to_owned()));
        }
        let port = url.port_or_known_default().unwrap_or_default();
        let is_usual = matches!(port, 80 | 443) || port >= 1024;
        if !is_usual || INTERNAL_PORTS.contains(&port) {
            return Err(Denied(format!(
                "port {port} is not for callbacks; 80, 443 and most from 1024 on are"
            )));
        }
        let Some(host) = url.host() else { return Err(Denied("it has no host".to_owned())) };
        if let Some(hosts) = &self.hosts
            && !hosts.permit(url)
        {
            return Err(Denied(format!("{host} is not in callbacks.hosts")));
        }
        let literal = match host {
            Host::Domain(_) => return Ok(()),
            Host::Ipv4(ip) => IpAddr::V4(ip),
            Host::Ipv6(ip) => IpAddr::V6(ip),
        };
        self.address(literal).map_err(|what| {
            Denied(format!("{literal} ({what}) is not public and not in callbacks.networks"))
        })
    }

    /// Checks every address of a name.
    ///
    /// # Errors
    /// One of them is not to be called.
    pub(super) fn addresses(&self, name: &str, addresses: &[IpAddr]) -> Result<(), Denied> {
        addresses.iter().try_for_each(|address| self.address(*address)).map_err(|what| {
            Denied(format!(
                "{name} leads to an address ({what}) that is not public and not in callbacks.networks"
            ))
        })
    }

    /// What an address is, if it may not be called.
    fn address(&self, address: IpAddr) -> Result<(), &'static str> {
        let refused = match address {
            IpAddr::V4(ip) => class_of_v4(ip),
            IpAddr::V6(ip) => class_of_v6(ip),
        };
        let Some(class) = refused else { return Ok(()) };
        if !self.networks.iter().any(|network| network.contains(&address)) {
            return Err(class);
        }
        match inside(address) {
            Some(inside) => self.address(IpAddr::V4(inside)),
            None => Ok(()),
        }
    }
}

fn class_of_v4(ip: Ipv4Addr) -> Option<&'static str> {
    REFUSED_V4.iter().find(|(network, _)| network.contains(&ip)).map(|(_, class)| *class)
}

fn class_of_v6(ip: Ipv6Addr) -> Option<&'static str> {
    let class = |list: &[(Ipv6Net, &'static str)]| {
        list.iter().find(|(network, _)| network.contains(&ip)).map(|(_, class)| *class)
    };
    if GLOBAL_V6.contains(&ip) {
        class(&REFUSED_V6)
    } else {
        class(&OTHER_V6).or(Some("not global"))
    }
}

/// The IPv4 address that an IPv6 address leads to.
fn inside(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = address else { return None };
    let [_, b, c, .., g, h] = ip.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    // `::1` is in the range of the compatible ones and is none.
    if ip.is_unspecified() || ip.is_loopback() {
        None
    } else if [COMPATIBLE, MAPPED, TRANSLATED, NAT64].iter().any(|of| of.contains(&ip)) {
        Some(of(g, h))
    } else if SIX_TO_FOUR.contains(&ip) {
        Some(of(b, c))
    } else {
        None
    }
}

/// An entry of a list that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("got {got:?}, want {want}")]
pub struct Malformed {
    /// The entry.
    pub got: String,
    /// What it should be.
    pub want: String,
}

impl From<BadHost> for Malformed {
    fn from(BadHost { got }: BadHost) -> Self {
        Self { got, want: HOST_WANTED.to_owned() }
    }
}

impl Malformed {
    fn of(got: &str, want: &str) -> Self {
        Self { got: got.to_owned(), want: want.to_owned() }
    }
}

/// Reads a network: a CIDR, or one address.
fn network(text: &str) -> Result<IpNet, Malformed> {
    const WANT: &str = "a network such as 10.0.0.0/8 or fd00::/8, or an IP address";
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = text.parse::<IpNet>().ok().or_else(address);
    let network = network.ok_or_else(|| Malformed::of(text, WANT))?;
    // Who writes 10.1.2.3/8 means one of two things.
    if network == network.trunc() {
        Ok(network)
    } else {
        Err(Malformed::of(text, &format!("{}, or a longer prefix", network.trunc())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(networks: &[&str], hosts: Option<&[&str]>) -> Guard {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Guard::new(&owned(networks), hosts.map(owned).as_deref()).unwrap()
    }

    fn denied(guard: &Guard, url: &str) -> Option<String> {
        guard.url(&Url::parse(url).expect(url)).err().map(|denied| denied.to_string())
    }

    #[test]
    fn every_way_to_write_an_address_that_is_not_public_is_refused() {
        let guard = Guard::default();
        #[rustfmt::skip]
        let cases = [
            ("127.0.0.1", "loopback"),            ("127.255.255.254", "loopback"),     ("127.1", "loopback"),
            ("2130706433", "loopback"),           ("0x7f000001", "loopback"),          ("0x7f.0.0.1", "loopback"),
            ("0177.0.0.1", "loopback"),           ("017700000001", "loopback"),        ("127.0.0.1.", "loopback"),
            ("%31%32%37.0.0.1", "loopback"),      ("127。0。0。1", "loopback"),        ("１２７.0.0.1", "loopback"),
            ("0.0.0.0", "this network"),          ("0", "this network"),               ("0.1.2.3", "this network"),
            ("10.0.0.1", "private"),              ("172.16.0.1", "private"),           ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),           ("100.64.0.1", "shared by a provider"), ("100.100.100.200", "shared by a provider"),
            ("169.254.169.254", "link-local"),    ("2852039166", "link-local"),        ("168.63.129.16", "metadata"),
            ("192.0.0.192", "reserved"),          ("192.0.2.1", "documentation"),      ("192.88.99.1", "6to4"),
            ("198.18.0.1", "benchmark"),          ("198.19.255.255", "benchmark"),     ("198.51.100.1", "documentation"),
            ("203.0.113.1", "documentation"),     ("224.0.0.1", "multicast"),          ("239.255.255.250", "multicast"),
            ("240.0.0.1", "reserved"),            ("255.255.255.255", "broadcast"),
            ("[::]", "unspecified"),              ("[::1]", "loopback"),               ("[0:0:0:0:0:0:0:1]", "loopback"),
            ("[::ffff:127.0.0.1]", "mapped IPv4"), ("[::ffff:8.8.8.8]", "mapped IPv4"), ("[::ffff:7f00:1]", "mapped IPv4"),
            ("[::127.0.0.1]", "IPv4-compatible"), ("[::8.8.8.8]", "IPv4-compatible"),  ("[::ffff:0:127.0.0.1]", "translated IPv4"),
            ("[64:ff9b::7f00:1]", "NAT64"),       ("[64:ff9b::8.8.8.8]", "NAT64"),     ("[64:ff9b:1::1]", "NAT64"),
            ("[2001::1]", "teredo"),              ("[2001:2::1]", "reserved"),         ("[2001:20::1]", "reserved"),
            ("[2001:db8::1]", "documentation"),   ("[2002:7f00:1::]", "6to4"),         ("[2002:808:808::]", "6to4"),
            ("[3fff::1]", "documentation"),       ("[100::1]", "not global"),          ("[5f00::1]", "not global"),
            ("[fc00::1]", "unique-local"),        ("[fd00:ec2::254]", "unique-local"), ("[fd20:ce::254]", "unique-local"),
            ("[fe80::1]", "link-local"),          ("[fec0::1]", "not global"),         ("[ff02::1]", "multicast"),
        ];
        for (host, class) in cases {
            let said =
                denied(&guard, &format!("http://{host}/")).unwrap_or_else(|| panic!("{host}"));
            assert!(said.contains(&format!("({class})")), "{host}: {said}");
        }
    }

    #[test]
    fn public_addresses_and_names_are_allowed() {
        for host in [
            "8.8.8.8",
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "[2606:4700::1]",
            "[2a00:1450::1]",
            "[2001:4860::8888]",
            "example.com",
            "localhost",
            "10.example.com",
        ] {
            assert_eq!(denied(&Guard::default(), &format!("https://{host}/a?b")), None, "{host}");
        }
    }

    #[test]
    fn a_network_that_is_allowed_opens_itself_and_nothing_behind_it() {
        let of = |networks: &[&str], address: &str| {
            guard(networks, None).address(address.parse().unwrap()).err()
        };
        #[rustfmt::skip]
        let cases: [(&[&str], &str, Option<&str>); 11] = [
            (&["10.0.0.0/8"],                       "10.1.2.3",           None),
            (&["10.1.0.0/16", "127.0.0.1"],         "127.0.0.1",          None),
            (&["10.1.0.0/16", "127.0.0.1"],         "127.0.0.2",          Some("loopback")),
            (&["10.1.0.0/16"],                      "10.2.0.1",           Some("private")),
            (&["127.0.0.0/8"],                      "::ffff:127.0.0.1",   Some("mapped IPv4")),
            (&["64:ff9b::/96"],                     "64:ff9b::808:808",   None),
            (&["64:ff9b::/96"],                     "64:ff9b::7f00:1",    Some("loopback")),
            (&["64:ff9b::/96", "127.0.0.0/8"],      "64:ff9b::7f00:1",    None),
            (&["2002::/16"],                        "2002:a9fe:a9fe::1",  Some("link-local")),
            (&["::/0"],                             "::1",                None),
            (&["fd00::/8"],                         "fd00::1",            None),
        ];
        for (networks, address, want) in cases {
            assert_eq!(of(networks, address), want, "{networks:?} {address}");
        }
    }

    #[test]
    fn one_forbidden_address_of_a_name_is_enough_and_is_not_told() {
        let both = ["8.8.8.8", "10.9.8.7"].map(|ip| ip.parse().unwrap());
        assert_eq!(Guard::default().addresses("a.example", &both[..1]), Ok(()));
        let said = Guard::default().addresses("a.example", &both).unwrap_err().to_string();
        assert!(said.contains("a.example") && said.contains("private"), "{said}");
        assert!(!said.contains("10.9.8.7"), "{said}");
    }

    #[test]
    fn ports_schemes_and_user_information_are_checked() {
        let guard = Guard::default();
        for url in [
            "http://a.example/",
            "https://a.example/",
            "http://a.example:443/",
            "http://a.example:1024/",
            "http://a.example:8080/",
            "http://a.example:65535/",
        ] {
            assert_eq!(denied(&guard, url), None, "{url}");
        }
        #[rustfmt::skip]
        let cases = [
            ("http://a.example:22/", "port 22"),      ("http://a.example:0/", "port 0"),     ("http://a.example:1023/", "port 1023"),
            ("http://a.example:6379/", "port 6379"),  ("http://a.example:9092/", "port 9092"), ("ftp://a.example/", "scheme"),
            ("file:///etc/passwd", "scheme"),         ("http://u@a.example/", "user information"), ("http://:p@a.example/", "user information"),
        ];
        for (url, want) in cases {
            let said = denied(&guard, url).unwrap_or_default();
            assert!(said.contains(want), "{url}: {said:?}");
        }
    }

    #[test]
    fn with_a_list_of_hosts_no_other_host_is_called() {
        let guard = guard(&[], Some(&["a.example", "*.B.example", "8.8.8.8", "2606:4700::1"]));
        for host in [
            "a.example",
            "A.EXAMPLE",
            "a.example.",
            "x.b.example",
            "y.x.b.example",
            "8.8.8.8",
            "134744072",
            "[2606:4700::1]",
        ] {
            assert_eq!(denied(&guard, &format!("http://{host}/")), None, "{host}");
        }
        for host in
            ["b.example", "xa.example", "xb.example", "a.example.evil", "8.8.4.4", "[2606:4700::2]"]
        {
            let said = denied(&guard, &format!("http://{host}/")).unwrap_or_default();
            assert!(said.contains("callbacks.hosts"), "{host}: {said:?}");
        }
        let private = self::guard(&[], Some(&["10.0.0.1"]));
        assert!(denied(&private, "http://10.0.0.1/").is_some(), "a list opens no network");
    }

    #[test]
    fn an_entry_that_is_none_is_named() {
        let of = |networks: &[&str], hosts: &[&str]| {
            let owned =
                |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            Guard::new(&owned(networks), Some(&owned(hosts))).map(|_| ()).map_err(|wrong| wrong.got)
        };
        for network in
            ["", "10", "10.0.0.0/33", "10.1.2.3/8", "a.example", "fd00::/129", "10.0.0.0/8,"]
        {
            assert_eq!(of(&[network], &[]), Err(network.to_owned()));
        }
        for host in [
            "",
            "*",
            "*.",
            "*.*.a",
            "a.*",
            "a:80",
            "http://a",
            "a/b",
            "*.10.0.0.1",
            "a b",
            "*a.example",
            "a.",
        ] {
            assert_eq!(of(&[], &[host]), Err(host.to_owned()), "{host}");
        }
    }
}
