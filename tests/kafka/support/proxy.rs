//! A TCP proxy that can hold what clients send on the connections of the moment, and let it go later.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// One connection's way from the client to the broker.
#[derive(Default)]
struct Way {
    /// What the client sends is kept, until it is let go; then the connection ends.
    held: AtomicBool,
    /// Bytes that are kept.
    kept: AtomicU64,
}

#[derive(Default)]
struct Gate {
    /// How often what is held was let go.
    released: Mutex<u64>,
    changed: Condvar,
}

/// A proxy between clients and one broker; stops accepting when dropped.
pub struct Proxy {
    listen: String,
    ways: Arc<Mutex<Vec<Arc<Way>>>>,
    gate: Arc<Gate>,
    stopped: Arc<AtomicBool>,
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
        let (ways, gate) = (Arc::<Mutex<Vec<Arc<Way>>>>::default(), Arc::<Gate>::default());
        let stopped = Arc::new(AtomicBool::new(false));
        let (all, opening, stop) = (Arc::clone(&ways), Arc::clone(&gate), Arc::clone(&stopped));
        let upstream = upstream.to_owned();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(broker) = TcpStream::connect(&upstream) else { continue };
                let way = Arc::new(Way::default());
                all.lock().expect("no panic before").push(Arc::clone(&way));
                let (back_from, back_to) = (broker.try_clone(), client.try_clone());
                if let (Ok(from), Ok(to)) = (back_from, back_to) {
                    std::thread::spawn(move || pass_back(from, to));
                }
                let gate = Arc::clone(&opening);
                std::thread::spawn(move || pass_on(client, &broker, &way, &gate));
            }
        });
        Self { listen: listen.to_owned(), ways, gate, stopped }
    }

    /// From now on keeps what clients send on the connections that there are; new ones pass.
    pub fn hold(&self) {
        for way in self.ways.lock().expect("no panic before").iter() {
            way.held.store(true, Ordering::SeqCst);
        }
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> u64 {
        let ways = self.ways.lock().expect("no panic before");
        ways.iter().map(|way| way.kept.load(Ordering::SeqCst)).sum()
    }

    /// Sends what was kept to the broker, which then sees those connections end.
    pub fn release(&self) {
        *self.gate.released.lock().expect("no panic before") += 1;
        self.gate.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.release();
        let _ = TcpStream::connect(&self.listen);
    }
}

fn pass_on(mut client: TcpStream, mut broker: &TcpStream, way: &Way, gate: &Gate) {
    let mut bytes = vec![0; 65_536];
    let mut kept = Vec::new();
    let times_released = || *gate.released.lock().expect("no panic before");
    let released = times_released();
    let _ = client.set_read_timeout(Some(Duration::from_millis(50)));
    while times_released() == released {
        let held = way.held.load(Ordering::SeqCst);
        match client.read(&mut bytes) {
            Ok(count) if count > 0 && held => {
                kept.extend_from_slice(&bytes[..count]);
                way.kept.store(kept.len() as u64, Ordering::SeqCst);
            }
            Ok(count) if count > 0 => {
                if broker.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // A client that gives up does not end the connection to the broker while something is held.
            _ if held => {
                let mut now = gate.released.lock().expect("no panic before");
                while *now == released {
                    now = gate.changed.wait(now).expect("no panic before");
                }
                drop(now);
            }
            _ => break,
        }
    }
    let _ = broker.write_all(&kept);
    let _ = broker.shutdown(Shutdown::Write);
}

fn pass_back(mut broker: TcpStream, mut client: TcpStream) {
    let mut bytes = vec![0; 65_536];
    loop {
        match broker.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if client.write_all(&bytes[..count]).is_err() {
                    // The client is gone; the broker goes on with what it was sent.
                    let _ = std::io::copy(&mut broker, &mut std::io::sink());
                    break;
                }
            }
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}
