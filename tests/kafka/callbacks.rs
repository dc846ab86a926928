//! The recipes of `docs/cookbook-callbacks.md`, by the program that the page shows, against a real Kafka: what the shop's service was
//! called for and when, and what the shop's commands print. Times are scaled; those that are not are read from the API.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::clients::Client;
use crate::support::{
    Fixture, Mode, PATIENCE, Process, ask, client, eventually, now_ms, waterclock,
};

/// With what calls are signed: 32 bytes.
const KEY: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// A line that the shop's service printed, and when it was read.
pub type Line = (u64, String);

/// The shop's service, or another program that runs on; killed when it is dropped.
pub struct Service {
    child: Child,
    pub lines: Arc<Mutex<Vec<Line>>>,
}

impl Service {
    pub fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let lines = Arc::<Mutex<Vec<Line>>>::default();
        let to = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                to.lock().push((now_ms(), line));
            }
        });
        Self { child, lines }
    }

    /// When it printed this line, once it has.
    #[track_caller]
    pub fn said(&self, line: &str) -> u64 {
        let mut at = 0;
        eventually(line, || {
            let lines = self.lines.lock();
            at = lines.iter().find(|(_, said)| said == line).ok_or_else(|| format!("{lines:?}"))?.0;
            Ok(())
        });
        at
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGSTOP: it stands still until it is told to go on.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// SIGKILL, and waits until it is gone. What it has printed stays.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Who is told the results of payments: answers 200 and keeps the bodies.
fn upstream() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/results", listener.local_addr().expect("bound"));
    let heard = Arc::<Mutex<Vec<Value>>>::default();
    let to = Arc::clone(&heard);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut length, mut lines) =
                (0, BufReader::new(stream.try_clone().expect("a socket")));
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 2) {
                let lower = line.to_lowercase();
                if let Some(said) = lower.strip_prefix("content-length:") {
                    length = said.trim().parse().expect("a number");
                }
                line.clear();
            }
            let mut body = vec![0; length];
            lines.read_exact(&mut body).expect("a body");
            to.lock().push(serde_json::from_slice(&body).expect("JSON"));
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).expect("answered");
        }
    });
    (url, heard)
}

/// An instance, the shop's service, and the shop's program.
struct Shop {
    service: Service,
    program: Client,
    process: Process,
    port: u16,
}

impl Shop {
    fn open(fixture: &Fixture, upstream: &str) -> Self {
        let process = fixture
            .launch(Mode::ExactlyOnce)
            .env("WATERCLOCK_CALLBACKS__NETWORKS", "127.0.0.0/8")
            .env("WATERCLOCK_SECRETS__SIGNING__VALUE", KEY)
            .env("WATERCLOCK_SECRETS__SIGNING__PROJECTS", "shop")
            .start();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let database = fixture.path("shop.db").display().to_string();
        let environment = [("KEY", KEY), ("SHOP", &database), ("UPSTREAM", upstream)];
        let program = Client::callbacks(fixture, &process, &environment);
        let service = Service::start(program.prepared(&["serve", &port.to_string()]));
        eventually("the shop's service listens", || {
            TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string())
        });
        let shop = Self { service, program, process, port };
        let address = format!("http://127.0.0.1:{port}");
        shop.tool(&["project", "put", "shop", "--concurrency", "50"]);
        let put = ["service", "put", "shop", "shop", "--address", &address, "--secret", "signing"];
        shop.tool(&put);
        shop
    }

    #[track_caller]
    fn tool(&self, arguments: &[&str]) {
        let server = format!("http://{}", self.process.address().expect("it runs"));
        let told = waterclock().args(arguments).args(["--server", &server]).output();
        let told = told.expect("the binary runs");
        assert!(told.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&told.stderr));
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        self.program.run(arguments)
    }

    /// When the tasks of a group are due, by their path.
    fn due(&self, group: &str) -> BTreeMap<String, u64> {
        let path = format!("/v1/tasks?project=shop&group={group}");
        let told = ask(&self.process, "GET", &path, None);
        if told.status == 503 {
            // Its index is behind for a moment after the start.
            return BTreeMap::new();
        }
        let told = told.body;
        let tasks = told["tasks"].as_array().unwrap_or_else(|| panic!("{told}"));
        let of = |task: &Value| {
            let id = task["task_id"].as_str().expect("an id").to_owned();
            (id, task["trigger_at"].as_u64().expect("a time"))
        };
        tasks.iter().map(of).collect()
    }

    #[track_caller]
    fn one_is_due(&self, group: &str, when: std::ops::RangeInclusive<u64>) {
        eventually("it is due then", || {
            let due = self.due(group);
            match due.values().any(|at| when.contains(at)) {
                true => Ok(()),
                false => Err(format!("{due:?}, not {when:?}")),
            }
        });
    }
}

#[test]
fn the_python_program_of_the_callback_cookbook() {
    let fixture = Fixture::new("callbacks");
    let (upstream, heard) = upstream();
    let shop = Shop::open(&fixture, &upstream);
    let (minute, day) = (60_000, 86_400_000);

    // An order that is paid in time is never closed; of one that was closed the money is given back.
    let began = now_ms();
    shop.run(&["order", "order-17", "30m"]);
    shop.one_is_due("orders", began + 30 * minute..=now_ms() + 30 * minute);
    assert_eq!(shop.run(&["paid", "order-17"]), "order-17: ship it");
    let closes = now_ms() + 2_000;
    for _ in 0..2 {
        shop.run(&["order", "order-18", "2s"]);
    }

    // Reminded of before the end, and never after it.
    let now = Timestamp::now();
    let in_seconds = |seconds| (now + SignedDuration::from_secs(seconds)).to_string();
    let reminds = now_ms() + 1_000;
    shop.run(&["coupon", "customer-7", "coupon-5", &in_seconds(60), "58"]);
    let told = shop.program.fails(&["coupon", "customer-8", "coupon-6", &in_seconds(-5), "60"]);
    assert!(told.contains("want a time after the task is due"), "it has ended: {told}");
    let began = now_ms();
    shop.run(&["coupon", "customer-9", "coupon-7", &in_seconds(3 * 86_400), "86400"]);
    let ahead = began - minute + 2 * day..=now_ms() + 2 * day;
    shop.one_is_due("coupons", ahead);

    let began = now_ms();
    shop.run(&["stock", "reservation-1", "7d"]);
    shop.one_is_due("stock", began + 7 * day..=now_ms() + 7 * day);
    let releases = now_ms() + 2_000;
    shop.run(&["stock", "reservation-2", "2s"]);

    let asks = now_ms() + 3_000;
    shop.run(&["payment", "payment-3", "1s", "10"]);

    let began = now_ms();
    shop.run(&["praise", "order-19", "7d"]);
    shop.one_is_due("praise", began + 7 * day..=now_ms() + 7 * day);
    assert_eq!(shop.run(&["reviewed", "order-19"]), "order-19: thank you");
    let praises = now_ms() + 2_000;
    shop.run(&["praise", "order-20", "2s"]);

    for (line, due) in [
        ("order-18: close", closes),
        ("customer-7: remind coupon-5", reminds),
        ("reservation-2: release", releases),
        ("payment-3: paid, asked 3 times", asks),
        ("order-20: praise", praises),
    ] {
        let at = shop.service.said(line);
        assert!(at >= due, "{line}: {} ms early", due - at);
    }
    eventually("all that was due has ended", || {
        let open = ["delay", "ready", "running"].map(|status| {
            let path = format!("/v1/tasks?project=shop&status={status}");
            let told = ask(&shop.process, "GET", &path, None).body;
            told["tasks"].as_array().map_or(0, Vec::len)
        });
        // The reminder in two days, and the stock in seven.
        if open == [2, 0, 0] { Ok(()) } else { Err(format!("{open:?}")) }
    });
    assert_eq!(shop.run(&["paid", "order-18"]), "order-18: give the money back");
    let reviewed = shop.run(&["reviewed", "order-20"]);
    assert_eq!(reviewed, "order-20: thank you, and we had praised it already");
    let told = heard.lock().clone();
    assert_eq!(told, [serde_json::json!({"payment": "payment-3", "result": "paid"})]);
    assert_eq!(shop.service.lines.lock().len(), 5, "{:?}", shop.service.lines.lock());

    // Anybody can call the shop's service; only waterclock has the key.
    let url = format!("http://127.0.0.1:{}/orders/order-1/close", shop.port);
    let forged =
        client(PATIENCE).post(url).header("webhook-id", "a").header("webhook-timestamp", "1");
    let told = forged.header("webhook-signature", "v1,AAAA").send().expect("an answer");
    assert_eq!(told.status().as_u16(), 401);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(shop.service.lines.lock().len(), 5, "nothing was done");
}

#[test]
fn the_page_shows_the_program_as_it_stands() {
    let lines = |text: &str| text.lines().fold(String::new(), |all, line| all + line.trim() + "\n");
    let program = lines(include_str!("../../docs/clients/callbacks.py"));
    let page = include_str!("../../docs/cookbook-callbacks.md");
    let blocks: Vec<&str> = page.split("\n```python\n").skip(1).collect();
    assert_eq!(blocks.len(), 6, "one for each recipe, and the service's part of polling");
    for block in blocks {
        let (block, _) = block.split_once("\n```").expect("its end");
        for piece in block.split("\n\n") {
            assert!(program.contains(&lines(piece)), "not in the program: {piece}");
        }
    }
}
