//! A TCP proxy that knows where Kafka's requests begin: it can hold one on its way, and let it go at a chosen moment.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// `EndTxn`: the request that commits a transaction.
pub const END_TXN: i16 = 26;
/// `TxnOffsetCommit`: the request that carries a transaction's offsets; records were produced before it.
pub const TXN_OFFSET_COMMIT: i16 = 28;

/// How long a broker is given to carry out a request that was let go, which nothing answers any more.
const CARRIED_OUT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Plan {
    /// The next request of this kind is held, with all that follows on its connection.
    hold: Option<i16>,
    /// What is held is let go before the next request of this kind of the same client, on another connection.
    release_before: Option<i16>,
    /// Whose request is held: producers take turns, and only its own next transaction can be ended by it.
    client: Vec<u8>,
    /// Requests that are held now.
    held: usize,
    /// How often something that was held was let go.
    released: usize,
    /// What was let go is with the broker.
    carried_out: bool,
    stopped: bool,
}

#[derive(Debug, Default)]
struct Gate {
    plan: Mutex<Plan>,
    changed: Condvar,
}

impl Gate {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().expect("no panic before")
    }
}

/// A proxy between clients and one broker; ends when dropped.
pub struct Proxy {
    listen: String,
    gate: Arc<Gate>,
}

/// An address of loopback where nothing listens.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

impl Proxy {
    /// Listens on `listen` and passes everything on to `upstream`.
    #[track_caller]
    pub fn start(listen: &str, upstream: &str) -> Self {
        let listener = TcpListener::bind(listen).expect("the proxy's address is free");
        let gate = Arc::<Gate>::default();
        let (of_all, upstream) = (Arc::clone(&gate), upstream.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if of_all.plan().stopped {
                    break;
                }
                let Ok(broker) = TcpStream::connect(&upstream) else { continue };
                if let (Ok(from), Ok(to)) = (broker.try_clone(), client.try_clone()) {
                    std::thread::spawn(move || pass_back(from, to));
                }
                let gate = Arc::clone(&of_all);
                std::thread::spawn(move || pass_on(client, &broker, &gate));
            }
        });
        Self { listen: listen.to_owned(), gate }
    }

    /// Holds the next request of kind `hold`, and lets it go before the first of kind `before` of the same `client.id`
    /// that comes after it on another connection.
    pub fn hold(&self, hold: i16, before: i16) {
        let mut plan = self.gate.plan();
        (plan.hold, plan.release_before) = (Some(hold), Some(before));
    }

    /// How many requests are held, and how many were let go.
    pub fn held_and_released(&self) -> (usize, usize) {
        let plan = self.gate.plan();
        (plan.held, plan.released)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.gate.plan().stopped = true;
        self.gate.changed.notify_all();
        let _ = TcpStream::connect(&self.listen);
    }
}

/// Takes the requests of one connection one by one.
fn pass_on(mut client: TcpStream, mut broker: &TcpStream, gate: &Gate) {
    let mut bytes = vec![0; 65_536];
    let mut unread = Vec::new();
    let _ = client.set_read_timeout(Some(Duration::from_millis(100)));
    loop {
        while let Some(request) = next_request(&mut unread) {
            let kind = i16::from_be_bytes([request[4], request[5]]);
            let client_id = client_of(&request);
            if take_hold(gate, kind, client_id) {
                return keep(&request, client, broker, gate);
            }
            let_go(gate, kind, client_id);
            if broker.write_all(&request).is_err() {
                return;
            }
        }
        match client.read(&mut bytes) {
            Ok(count) if count > 0 => unread.extend_from_slice(&bytes[..count]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if gate.plan().stopped {
                    break;
                }
            }
            _ => break,
        }
    }
    let _ = broker.shutdown(Shutdown::Both);
}

/// Length, kind, and the rest of the first request, once all of it is there.
fn next_request(unread: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(unread.get(..4)?.try_into().ok()?) as usize + 4;
    if unread.len() < length {
        return None;
    }
    let rest = unread.split_off(length);
    Some(std::mem::replace(unread, rest))
}

/// The `client.id` in a request's header: after length, kind, version and correlation.
fn client_of(request: &[u8]) -> &[u8] {
    let length = request.get(12..14).map_or(-1, |at| i16::from_be_bytes([at[0], at[1]]));
    usize::try_from(length).ok().and_then(|length| request.get(14..14 + length)).unwrap_or_default()
}

fn take_hold(gate: &Gate, kind: i16, client: &[u8]) -> bool {
    let mut plan = gate.plan();
    let take = plan.hold == Some(kind);
    if take {
        plan.hold = None;
        plan.held += 1;
        plan.client = client.to_vec();
    }
    take
}

/// Keeps a request until it is let go; its client hears nothing and gives up some time.
fn keep(request: &[u8], client: TcpStream, mut broker: &TcpStream, gate: &Gate) {
    let mut plan = gate.plan();
    while plan.released == 0 && !plan.stopped {
        plan = gate.changed.wait(plan).expect("no panic before");
    }
    drop(plan);
    let _ = broker.write_all(request);
    // A broker may drop what came on a connection that has ended.
    std::thread::sleep(CARRIED_OUT);
    gate.plan().carried_out = true;
    gate.changed.notify_all();
    let _ = broker.shutdown(Shutdown::Both);
    let _ = client.shutdown(Shutdown::Both);
}

fn let_go(gate: &Gate, kind: i16, client: &[u8]) {
    let mut plan = gate.plan();
    if plan.held == 0 || plan.release_before != Some(kind) || plan.client != client {
        return;
    }
    plan.release_before = None;
    drop(plan);
    // What the client has sent on its other connections by now is to be carried out before.
    std::thread::sleep(CARRIED_OUT);
    let mut plan = gate.plan();
    plan.released = plan.held;
    gate.changed.notify_all();
    while !plan.carried_out && !plan.stopped {
        plan = gate.changed.wait(plan).expect("no panic before");
    }
}

fn pass_back(mut broker: TcpStream, mut client: TcpStream) {
    let mut bytes = vec![0; 65_536];
    while let Ok(count) = broker.read(&mut bytes)
        && count > 0
    {
        if client.write_all(&bytes[..count]).is_err() {
            // The client is gone; what the broker still says is for nobody.
            let _ = std::io::copy(&mut broker, &mut std::io::sink());
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}
