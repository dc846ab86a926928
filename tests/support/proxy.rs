//! The fault proxy: TCP between clients and brokers, with the weather of a bad network, that knows where Kafka's
//! requests begin and can hold one on its way.
//!
//! # Invariants
//! 1. Nothing is lost on a connection that lives: what is cut or held back passes later, in order, as TCP would resend it.
//! 2. A request that is held stays on its way when its client has left: the connection to the broker is kept open.
//! 3. What comes after a held request on its connection stays behind it.
//! 4. Nothing of it outlives the [`Proxy`].
//!
//! It does not rewrite addresses: clients come to it because the broker's own listener names it (`scripts/kafka`).

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{eventually, variable, variable_if_set};

/// The request that writes records.
pub const PRODUCE: i16 = 0;
/// The request for brokers, topics and leaders.
const METADATA: i16 = 3;
/// A consumer says how far it is.
pub const OFFSET_COMMIT: i16 = 8;
/// The request that ends a transaction.
pub const END_TXN: i16 = 26;
/// The request that carries a transaction's offsets; records were produced before it.
pub const TXN_OFFSET_COMMIT: i16 = 28;

/// How long a broker is given to carry out a request that was let go, which perhaps nothing answers any more.
const CARRIED_OUT: Duration = Duration::from_millis(500);
/// The same for a transaction's other requests, some of which are tried again while the one before is being ended.
const OTHERS_CARRIED_OUT: Duration = Duration::from_secs(2);
/// Chunks of one connection and direction that wait for better weather.
const WAITING_MAX: usize = 256;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToBroker,
    ToClient,
}

/// What the network to one broker does to what passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Every chunk arrives this much later.
    pub delay: Duration,
    /// Bytes a second, of each connection and direction.
    pub rate: Option<u32>,
    /// Nothing passes to the broker.
    pub cut_to_broker: bool,
    /// Nothing passes to the client.
    pub cut_to_client: bool,
    /// Metadata name no broker, as those of a broker that its controller does not count among the living. Counts for
    /// connections that are made from then on.
    pub no_brokers: bool,
    /// Connections of an earlier era are reset.
    era: u64,
}

impl Weather {
    fn is_cut(self, way: Way) -> bool {
        match way {
            Way::ToBroker => self.cut_to_broker,
            Way::ToClient => self.cut_to_client,
        }
    }
}

/// How far a held request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No such request has come yet.
    Waiting,
    /// It is held.
    Held,
    /// The same, and its client's connection has ended.
    HungUp,
    /// It is on its way to the broker.
    Released,
    /// The broker has had the time to carry it out.
    CarriedOut,
}

/// Which request is held, and when it is let go by itself.
#[derive(Debug)]
struct Wish {
    kind: i16,
    /// The beginning of the sender's `client.id`.
    client: String,
    before: Option<i16>,
}

#[derive(Clone, Debug)]
struct Entry {
    wish: Arc<Wish>,
    /// The whole `client.id`, once it is held: producers take turns, and only its own next request counts.
    sender: Arc<Mutex<Vec<u8>>>,
    state: Arc<watch::Sender<State>>,
}

impl Entry {
    fn release(&self) {
        self.state.send_if_modified(|state| {
            let held = *state < State::Released;
            if held {
                *state = State::Released;
            }
            held
        });
    }
}

/// One request that is to be held; let go when this is dropped.
pub struct Hold(Entry);

impl Hold {
    pub fn state(&self) -> State {
        *self.0.state.borrow()
    }

    /// Waits until the request has come so far.
    #[track_caller]
    pub fn wait_until(&self, state: State) {
        eventually(&format!("a request of kind {} is {state:?}", self.0.wish.kind), || {
            if self.state() >= state { Ok(()) } else { Err(format!("it is {:?}", self.state())) }
        });
    }

    /// The `client.id` of who sent it; none until it is held.
    pub fn sender(&self) -> String {
        let sender = self.0.sender.lock();
        String::from_utf8(sender.clone()).expect("as we named it")
    }

    /// Ends its connection to the client in good order (FIN), which has no answer then; it stays on its way to the broker.
    pub fn hang_up(&self) {
        self.0.state.send_if_modified(|state| {
            let held = *state == State::Held;
            if held {
                *state = State::HungUp;
            }
            held
        });
    }

    /// Lets it go.
    pub fn release(&self) {
        self.0.release();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

#[derive(Debug, Default)]
struct Gate {
    entries: Mutex<Vec<Entry>>,
    /// Chunks that had to wait for the end of a cut.
    stalled: AtomicU64,
    reset: AtomicU64,
}

impl Gate {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock()
    }

    /// The wish that this request fulfils, if it is the first to do so.
    fn take(&self, kind: i16, client: &[u8]) -> Option<Entry> {
        let entries = self.entries();
        let entry = entries.iter().find(|entry| {
            entry.wish.kind == kind
                && client.starts_with(entry.wish.client.as_bytes())
                && *entry.state.borrow() == State::Waiting
        })?;
        *entry.sender.lock() = client.to_vec();
        entry.state.send_replace(State::Held);
        Some(entry.clone())
    }

    /// Those that are to be let go before this request.
    fn due_before(&self, kind: i16, client: &[u8]) -> Vec<Entry> {
        let entries = self.entries();
        let due = entries.iter().filter(|entry| {
            entry.wish.before == Some(kind)
                && *entry.state.borrow() == State::Held
                && *entry.sender.lock() == client
        });
        due.cloned().collect()
    }
}

/// A proxy in front of one or several brokers; its connections end with it.
pub struct Proxy {
    gate: Arc<Gate>,
    weather: Vec<watch::Sender<Weather>>,
    /// Where it listens, as a client is told of brokers.
    pub brokers: String,
    runtime: Option<Runtime>,
}

static SHARED: Mutex<Weak<Proxy>> = Mutex::new(Weak::new());

/// An address of loopback where nothing listens.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

impl Proxy {
    /// The one in front of the brokers of this run, which all that only hold their own requests share.
    #[track_caller]
    pub fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock();
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Self::start(&addresses()));
            *shared = Arc::downgrade(&started);
            started
        })
    }

    /// Listens on the first of each pair and passes everything on to the second; the pairs are brokers 0, 1...
    #[track_caller]
    pub fn start<L: AsRef<str>, U: AsRef<str>>(brokers: &[(L, U)]) -> Self {
        let gate = Arc::<Gate>::default();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let mut weather = Vec::new();
        for (listen, upstream) in brokers {
            let listener = eventually("the proxy's address is free", || {
                TcpListener::bind(listen.as_ref()).map_err(|error| error.to_string())
            });
            listener.set_nonblocking(true).expect("a listener");
            let (sender, now) = watch::channel(Weather::default());
            weather.push(sender);
            let (gate, upstream) = (Arc::clone(&gate), upstream.as_ref().to_owned());
            runtime.spawn(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                while let Ok((client, _)) = listener.accept().await {
                    let Ok(broker) = TcpStream::connect(&upstream).await else { continue };
                    let _ = (client.set_nodelay(true), broker.set_nodelay(true));
                    tokio::spawn(connection(client, broker, Arc::clone(&gate), now.clone()));
                }
            });
        }
        let listens: Vec<&str> = brokers.iter().map(|(listen, _)| listen.as_ref()).collect();
        Self { gate, weather, brokers: listens.join(","), runtime: Some(runtime) }
    }

    /// Holds the next request of this kind from a client whose `client.id` begins so (a processor's producers: the
    /// namespace). It is let go by [`Hold::release`], or before the next request of kind `before` of the same client
    /// on another connection.
    pub fn hold(&self, kind: i16, client: &str, before: Option<i16>) -> Hold {
        let wish = Arc::new(Wish { kind, client: client.to_owned(), before });
        let state = Arc::new(watch::Sender::new(State::Waiting));
        let entry = Entry { wish, sender: Arc::default(), state };
        self.gate.entries().push(entry.clone());
        Hold(entry)
    }

    /// Changes the weather to one broker.
    pub fn weather(&self, broker: usize, change: impl FnOnce(&mut Weather)) {
        self.weather[broker].send_modify(change);
    }

    /// Changes the weather to all brokers.
    pub fn everywhere(&self, change: impl Fn(&mut Weather)) {
        self.weather.iter().for_each(|weather| weather.send_modify(&change));
    }

    /// Everything passes again. Connections that were reset stay so.
    pub fn heal(&self) {
        self.everywhere(|weather| *weather = Weather { era: weather.era, ..Weather::default() });
    }

    /// Resets (RST) all connections to one broker; new ones are let in.
    pub fn reset(&self, broker: usize) {
        self.weather(broker, |weather| weather.era += 1);
    }

    /// How many chunks had to wait for the end of a cut.
    pub fn stalled(&self) -> u64 {
        self.gate.stalled.load(Ordering::SeqCst)
    }

    /// How many connections were reset.
    pub fn was_reset(&self) -> u64 {
        self.gate.reset.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// Where a proxy of this run listens and what is behind it, for each broker.
fn addresses() -> Vec<(String, String)> {
    let pair = |of: &str| {
        let at = |what| variable_if_set(&format!("KAFKA_PROXY_{what}{of}"));
        at("LISTEN").zip(at("UPSTREAM"))
    };
    let many: Vec<_> = (1..).map_while(|node| pair(&format!("_{node}"))).collect();
    if many.is_empty() {
        vec![(variable("KAFKA_PROXY_LISTEN"), variable("KAFKA_PROXY_UPSTREAM"))]
    } else {
        many
    }
}

async fn connection(
    mut client: TcpStream,
    mut broker: TcpStream,
    gate: Arc<Gate>,
    now: watch::Receiver<Weather>,
) {
    let era = now.borrow().era;
    let metadata = now.borrow().no_brokers.then(Metadata::default);
    let was_reset = {
        let (from_client, to_client) = client.split();
        let (from_broker, to_broker) = broker.split();
        let (hang_up, hung_up) = watch::channel(false);
        let passing = async {
            tokio::join!(
                requests(from_client, to_broker, (&gate, &metadata), now.clone(), hang_up),
                replies(from_broker, to_client, (&gate, &metadata), now.clone(), hung_up),
            )
        };
        tokio::select! {
            _ = passing => false,
            over = async { now.clone().wait_for(|weather| weather.era != era).await.is_ok() } => over,
        }
    };
    if was_reset {
        gate.reset.fetch_add(1, Ordering::SeqCst);
        let _ = (client.set_zero_linger(), broker.set_zero_linger());
    }
}

/// When it came, and what it is.
type Piece = (Instant, Vec<u8>);

/// Reads until the sender has ended, and hands on what `cut` makes of it.
async fn read_on(
    mut from: ReadHalf<'_>,
    to: mpsc::Sender<Piece>,
    cut: fn(&mut Vec<u8>) -> Option<Vec<u8>>,
) {
    let mut unread = Vec::new();
    while let Ok(count) = from.read_buf(&mut unread).await
        && count > 0
    {
        while let Some(piece) = cut(&mut unread) {
            if to.send((Instant::now(), piece)).await.is_err() {
                break;
            }
        }
    }
}

/// Waits until the weather lets a chunk pass that came at `at`.
async fn let_pass(
    at: Instant,
    size: usize,
    way: Way,
    gate: &Gate,
    now: &mut watch::Receiver<Weather>,
) {
    if now.borrow().is_cut(way) {
        gate.stalled.fetch_add(1, Ordering::SeqCst);
        let _ = now.wait_for(|weather| !weather.is_cut(way)).await;
    }
    let Weather { delay, rate, .. } = *now.borrow();
    sleep_until(at + delay).await;
    if let Some(rate) = rate {
        sleep(Duration::from_secs_f64(size as f64 / f64::from(rate))).await;
    }
}

async fn requests(
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    (gate, metadata): (&Gate, &Option<Metadata>),
    mut now: watch::Receiver<Weather>,
    hang_up: watch::Sender<bool>,
) {
    let (queue, mut queued) = mpsc::channel::<Piece>(WAITING_MAX);
    let passing = async {
        while let Some((at, request)) = queued.recv().await {
            let_pass(at, request.len(), Way::ToBroker, gate, &mut now).await;
            let kind = i16::from_be_bytes([request[4], request[5]]);
            let client = client_of(&request);
            metadata.iter().for_each(|metadata| metadata.note(&request));
            if let Some(held) = gate.take(kind, client) {
                let mut state = held.state.subscribe();
                let _ = state.wait_for(|state| *state >= State::HungUp).await;
                let is_hung_up = *state.borrow() == State::HungUp;
                if is_hung_up {
                    hang_up.send_replace(true);
                }
                let _ = state.wait_for(|state| *state >= State::Released).await;
                let _ = to.write_all(&request).await;
                // A broker may drop what came on a connection that has ended.
                sleep(CARRIED_OUT).await;
                held.state.send_replace(State::CarriedOut);
                continue;
            }
            for held in gate.due_before(kind, client) {
                // What the client sends on its other connections now is to be carried out before.
                sleep(OTHERS_CARRIED_OUT).await;
                held.release();
                let mut state = held.state.subscribe();
                let _ = state.wait_for(|state| *state == State::CarriedOut).await;
            }
            if to.write_all(&request).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read_on(from, queue, next_request), passing);
}

async fn replies(
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    (gate, metadata): (&Gate, &Option<Metadata>),
    mut now: watch::Receiver<Weather>,
    mut hung_up: watch::Receiver<bool>,
) {
    let (queue, mut queued) = mpsc::channel::<Piece>(WAITING_MAX);
    let passing = async {
        let mut is_gone = false;
        loop {
            let piece = tokio::select! {
                piece = queued.recv() => piece,
                Ok(()) = hung_up.changed(), if !is_gone => {
                    let _ = to.shutdown().await;
                    is_gone = true;
                    continue;
                }
            };
            let Some((at, mut bytes)) = piece else { break };
            if let Some(metadata) = metadata.as_ref().filter(|_| now.borrow().no_brokers) {
                metadata.name_no_broker(&mut bytes);
            }
            let_pass(at, bytes.len(), Way::ToClient, gate, &mut now).await;
            // When the client has left, what the broker still says is for nobody.
            is_gone = is_gone || to.write_all(&bytes).await.is_err();
        }
        let _ = to.shutdown().await;
    };
    let cut = if metadata.is_some() { next_request } else { whatever };
    tokio::join!(read_on(from, queue, cut), passing);
}

/// The requests for metadata of a connection: correlation and version.
#[derive(Debug, Default)]
struct Metadata(Mutex<Vec<([u8; 4], i16)>>);

impl Metadata {
    fn note(&self, request: &[u8]) {
        let (kind, rest) = request[4..].split_at(2);
        if kind == METADATA.to_be_bytes() {
            let version = i16::from_be_bytes([rest[0], rest[1]]);
            self.0.lock().push(([rest[2], rest[3], rest[4], rest[5]], version));
        }
    }

    /// Leaves the brokers out, if this is such an answer of a version that clients of today ask for (9 and later).
    fn name_no_broker(&self, answer: &mut Vec<u8>) {
        let mut asked = self.0.lock();
        let Some(at) = asked.iter().position(|(correlation, _)| answer[4..8] == *correlation)
        else {
            return;
        };
        let (_, version) = asked.swap_remove(at);
        assert!(version >= 9, "version {version} of Metadata has fields of fixed size");
        // Length, correlation, tags of the header, throttle time; then the brokers, a compact array.
        let begin = 4 + 4 + 1 + 4;
        let mut end = begin;
        let number = |at: &mut usize| {
            let mut value = 0_usize;
            for shift in (0..).step_by(7) {
                let byte = answer[*at];
                *at += 1;
                value |= usize::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        };
        for _ in 1..number(&mut end) {
            end += 4;
            end += number(&mut end).saturating_sub(1);
            end += 4;
            end += number(&mut end).saturating_sub(1);
            assert_eq!(number(&mut end), 0, "a broker has no tagged fields");
        }
        answer.splice(begin..end, [1]);
        let length = u32::try_from(answer.len() - 4).expect("a short answer");
        answer[..4].copy_from_slice(&length.to_be_bytes());
    }
}

/// All that is there.
fn whatever(unread: &mut Vec<u8>) -> Option<Vec<u8>> {
    if unread.is_empty() { None } else { Some(std::mem::take(unread)) }
}

/// The first request with its length before it, once all of it is there.
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
