//! Health over gRPC, of an instance that waits for its Kafka, is ready, and stops.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::grpc::{grpcurl, grpcurl_command};
use super::{fixture, launch};
use crate::support::{Process, Proxy, eventually, free_address};

/// The whole instance, and each service.
const SERVICES: [&str; 5] = [
    "",
    "waterclock.v1.Tasks",
    "waterclock.v1.Projects",
    "waterclock.v1.Schedules",
    "waterclock.v1.Runs",
];

/// A grpcurl that watches the health of one service; killed when it is dropped.
struct Watch {
    child: Child,
    heard: Arc<Mutex<Vec<String>>>,
    reading: Option<JoinHandle<()>>,
}

impl Watch {
    #[track_caller]
    fn start(process: &Process, service: &str) -> Self {
        let request = json!({ "service": service });
        let method = "grpc.health.v1.Health/Watch";
        let mut command = grpcurl_command(&["-plaintext"], process, method, Some(&request));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let out = child.stdout.take().expect("piped");
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let of_reader = Arc::clone(&heard);
        let reading = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Each message is an object with this member alone.
                if let Some((_, status)) = line.split_once("\"status\":") {
                    of_reader.lock().push(status.trim().trim_matches('"').to_owned());
                }
            }
        });
        Self { child, heard, reading: Some(reading) }
    }

    /// Waits until it has heard these and nothing else.
    #[track_caller]
    fn hears(&self, want: &[&str]) {
        eventually(&format!("{want:?} is heard"), || {
            let heard = self.heard.lock().clone();
            if heard == want { Ok(()) } else { Err(format!("{heard:?}")) }
        });
    }

    /// Waits until the instance has ended the call.
    #[track_caller]
    fn wait(&mut self) {
        eventually("the call has ended", || match self.child.try_wait().expect("a child") {
            Some(_) => Ok(()),
            None => Err("it is open".to_owned()),
        });
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}

/// What `Check` says of each service.
#[track_caller]
fn checked(process: &Process) -> Vec<Value> {
    let check = |service: &str| -> Value {
        let request = json!({ "service": service });
        let told = grpcurl(process, "grpc.health.v1.Health/Check", Some(&request));
        let told: Value = serde_json::from_str(&told).expect("JSON");
        told["status"].clone()
    };
    SERVICES.map(check).to_vec()
}

#[test]
fn the_go_program_of_grpcurl_hears_whether_an_instance_is_ready_and_of_each_change() {
    let fixture = fixture("tasks-grpc-health");
    let address = free_address();
    let mut process = launch(&fixture, "a", "lanes,worker,api").brokers(&address).spawn();
    let (ready, body) = eventually("it answers", || process.get("/health/ready"));
    assert_eq!(ready, 503, "{body}");
    let mut watches = SERVICES.map(|service| Watch::start(&process, service));
    for watch in &watches {
        watch.hears(&["NOT_SERVING"]);
    }
    assert_eq!(checked(&process), ["NOT_SERVING"; SERVICES.len()], "Kafka is away");

    // The metadata there names the broker's own address, so the proxy is needed for the first step only.
    let brokers = &fixture.connection.brokers;
    let broker = brokers.split(',').next().unwrap_or(brokers);
    let _proxy = Proxy::start(&[(&*address, broker)]);
    process.wait_until_ready();
    // What has not changed is not told again.
    for watch in &watches {
        watch.hears(&["NOT_SERVING", "SERVING"]);
    }
    assert_eq!(checked(&process), ["SERVING"; SERVICES.len()]);

    // A stop waits for no watcher.
    process.stop_well();
    for watch in &mut watches {
        watch.wait();
    }
}
