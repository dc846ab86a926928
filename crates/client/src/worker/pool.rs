//! Bulk work inside of one shard: producers load items into a bounded queue, consumers process them.
//!
//! ```no_run
//! use std::sync::Arc;
//! use waterclock_client::worker::pool::{Load, Pool};
//! use waterclock_client::worker::{Failed, Shard};
//!
//! /// Ten thousand rows of which each shard has its own, and of those each part: every n-th one.
//! async fn load(load: Load) -> Result<Vec<(String, u64)>, Failed> {
//!     let after = load.cursor.map(|cursor| cursor.parse::<u64>()).transpose()?;
//!     let (shard, part) = (&load.shard, load.part);
//!     let first = u64::from(shard.index) + u64::from(shard.count) * u64::from(part.index);
//!     let step = u64::from(shard.count) * u64::from(part.count);
//!     let from = after.map_or(first, |after| after + step);
//!     let rows = (from..10_000).step_by(usize::try_from(step)?).take(load.limit);
//!     Ok(rows.map(|row| (row.to_string(), row)).collect())
//! }
//!
//! async fn settle(_: Arc<Shard>, row: u64) -> Result<(), Failed> {
//!     if row == 13 { Err(Failed::retry("no such account")) } else { Ok(()) }
//! }
//!
//! let pool = Pool::new(load, settle).parts(2).producers(2).consumers(8).queue(1_000);
//! let handle = pool.handle();
//! // Give it to `Builder::handler`, or run it inside of a handler of your own. While it runs:
//! handle.set_consumers(16);
//! println!("{} rows, {} wait", handle.figures().processed, handle.figures().queue);
//! ```
//!
//! A shard is divided into parts, which are fixed: each has a cursor of its own, and is loaded in the order of its items. So one
//! producer for each part can load at a time. The cursor of the shard is a JSON list of those of its parts, of at most 256 bytes:
//! with two parts each cursor may have some 120 bytes, with eight some 28. How many parts a shard has is said by its first turn.
//!
//! # Invariants
//! 1. The cursor of a part is the last before which all items are processed. Each heartbeat brings it, and the next turn loads from
//!    there: no item below the last cursor that was answered is processed twice.
//! 2. Items that were loaded and not begun are at most as many as the queue takes. Those behind the cursor are at most 16 times that.
//! 3. Once the turn is over, no item is begun.

mod plan;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::executor::panicked;
use super::first::{First, first};
use super::{Context, Failed, Handler, Shard};
use plan::{Next, Number, Plan};

/// Which part of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0.
    pub index: u32,
    /// Parts of the shard.
    pub count: u32,
}

/// What a producer is to load.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Load {
    /// The shard.
    pub shard: Arc<Shard>,
    /// The part of it.
    pub part: Part,
    /// The cursor of the last item that was loaded of the part; `None`: begin at its start.
    pub cursor: Option<String>,
    /// How many items there is room for. More are left for the next load.
    pub limit: usize,
}

/// What a pool has done since it was made, and does now. Several shards that it works on at a time are added up.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PoolFigures {
    /// Items that were loaded.
    pub loaded: u64,
    /// Items that were processed well.
    pub processed: u64,
    /// Items that failed for good, and loads that failed. Each ends its shard's turn.
    pub failed: u64,
    /// Further attempts of items that had failed.
    pub retried: u64,
    /// Items that wait now.
    pub queue: usize,
    /// Loads that go on now.
    pub loading: usize,
    /// Items that are processed now.
    pub processing: usize,
    /// How many loads may go on at a time, for each shard.
    pub producers: usize,
    /// How many items may be processed at a time, for each shard.
    pub consumers: usize,
    /// Seconds that ended loads took, added up.
    pub load_seconds: f64,
    /// Seconds that the processing of ended items took, with all attempts, added up.
    pub process_seconds: f64,
    /// The last error.
    pub last_error: Option<String>,
}

/// What changes a pool while it runs, and shows its figures.
#[derive(Clone, Debug)]
pub struct PoolHandle(Arc<Control>);

#[derive(Debug)]
struct Control {
    threads: watch::Sender<Threads>,
    loaded: AtomicU64,
    processed: AtomicU64,
    failed: AtomicU64,
    retried: AtomicU64,
    load_nanos: AtomicU64,
    process_nanos: AtomicU64,
    queue: AtomicUsize,
    loading: AtomicUsize,
    processing: AtomicUsize,
    last_error: Mutex<Option<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Threads {
    producers: usize,
    consumers: usize,
}

impl PoolHandle {
    /// How many loads may go on at a time, for each shard, at once from now on; those that go on are not cut off. More than there are
    /// parts have nothing to do. 0: nothing more is loaded for now.
    pub fn set_producers(&self, count: usize) {
        self.0.threads.send_modify(|threads| threads.producers = count);
    }

    /// How many items may be processed at a time, for each shard, at once from now on; those that are begun are not cut off. 0: nothing
    /// more is processed for now.
    pub fn set_consumers(&self, count: usize) {
        self.0.threads.send_modify(|threads| threads.consumers = count);
    }

    /// What the pool has done, and does.
    #[must_use]
    pub fn figures(&self) -> PoolFigures {
        let of = &*self.0;
        let seconds =
            |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed)).as_secs_f64();
        let Threads { producers, consumers } = *of.threads.borrow();
        PoolFigures {
            loaded: of.loaded.load(Ordering::Relaxed),
            processed: of.processed.load(Ordering::Relaxed),
            failed: of.failed.load(Ordering::Relaxed),
            retried: of.retried.load(Ordering::Relaxed),
            queue: of.queue.load(Ordering::Relaxed),
            loading: of.loading.load(Ordering::Relaxed),
            processing: of.processing.load(Ordering::Relaxed),
            producers,
            consumers,
            load_seconds: seconds(&of.load_nanos),
            process_seconds: seconds(&of.process_nanos),
            last_error: of.last_error.lock().clone(),
        }
    }
}

/// A part of a gauge; it is taken off when this is dropped, however the work ends.
struct Share<'a>(&'a AtomicUsize, usize);

impl<'a> Share<'a> {
    fn of(gauge: &'a AtomicUsize, size: usize) -> Self {
        gauge.fetch_add(size, Ordering::Relaxed);
        Self(gauge, size)
    }

    fn set(&mut self, size: usize) {
        self.0.fetch_add(size, Ordering::Relaxed);
        self.0.fetch_sub(self.1, Ordering::Relaxed);
        self.1 = size;
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// See the [module](self). Clones share the counts and the figures.
#[derive(Debug)]
pub struct Pool<L, P> {
    functions: Arc<(L, P)>,
    parts: u32,
    queue: usize,
    retries: u32,
    pause: Duration,
    control: Arc<Control>,
}

impl<L, P> Clone for Pool<L, P> {
    fn clone(&self) -> Self {
        let (functions, control) = (Arc::clone(&self.functions), Arc::clone(&self.control));
        let Self { parts, queue, retries, pause, .. } = *self;
        Self { functions, parts, queue, retries, pause, control }
    }
}

impl<L, P> Pool<L, P> {
    /// A pool of these two functions. `load` gives the next items of a part, in their order, each with the cursor that stands behind
    /// it; none: the part has no more. `process` works on one item. By default one part, one producer, one consumer, a queue of
    /// 1,000 items, and no retries.
    pub fn new(load: L, process: P) -> Self {
        let control = Control {
            threads: watch::Sender::new(Threads { producers: 1, consumers: 1 }),
            loaded: AtomicU64::new(0),
            processed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            load_nanos: AtomicU64::new(0),
            process_nanos: AtomicU64::new(0),
            queue: AtomicUsize::new(0),
            loading: AtomicUsize::new(0),
            processing: AtomicUsize::new(0),
            last_error: Mutex::new(None),
        };
        Self {
            functions: Arc::new((load, process)),
            parts: 1,
            queue: 1_000,
            retries: 0,
            pause: Duration::ZERO,
            control: Arc::new(control),
        }
    }

    /// Into how many parts a shard is divided, at least 1. A shard that was begun with another number keeps that.
    #[must_use]
    pub fn parts(self, parts: u32) -> Self {
        Self { parts: parts.max(1), ..self }
    }

    /// How many loads may go on at a time, for each shard; see [`PoolHandle::set_producers`].
    #[must_use]
    pub fn producers(self, count: usize) -> Self {
        self.handle().set_producers(count);
        self
    }

    /// How many items may be processed at a time, for each shard; see [`PoolHandle::set_consumers`].
    #[must_use]
    pub fn consumers(self, count: usize) -> Self {
        self.handle().set_consumers(count);
        self
    }

    /// How many items may wait, for each shard; at least 1.
    #[must_use]
    pub fn queue(self, items: usize) -> Self {
        Self { queue: items.max(1), ..self }
    }

    /// How often an item that failed is processed again, after this pause each time, before its shard fails. One that is
    /// [gone](Failed::gone) is not tried again.
    #[must_use]
    pub fn retries(self, count: u32, pause: Duration) -> Self {
        Self { retries: count, pause, ..self }
    }

    /// What changes the pool while it runs.
    #[must_use]
    pub fn handle(&self) -> PoolHandle {
        PoolHandle(Arc::clone(&self.control))
    }
}

/// What a task of a pool came to.
enum Ended<T> {
    Loaded(usize, Vec<(String, T)>),
    Processed(Number),
}

impl<T, L, P, Loading, Processing> Handler for Pool<L, P>
where
    T: Clone + Send + 'static,
    L: Fn(Load) -> Loading + Send + Sync + 'static,
    Loading: Future<Output = Result<Vec<(String, T)>, Failed>> + Send + 'static,
    P: Fn(Arc<Shard>, T) -> Processing + Send + Sync + 'static,
    Processing: Future<Output = Result<(), Failed>> + Send + 'static,
{
    /// Works on all items behind the cursor of the shard. Gives how many it has `processed`.
    ///
    /// # Errors
    /// A load failed, or an item after its retries. Items that were begun end first, so that the cursor is as far as it can be.
    async fn run(&self, shard: Shard, context: Context) -> Result<Value, Failed> {
        let parts = usize::try_from(self.parts)?;
        let mut plan = Plan::new(plan::parse(shard.cursor.as_deref(), parts)?, self.queue);
        let (shard, control) = (Arc::new(shard), &*self.control);
        let mut queue = Share::of(&control.queue, 0);
        let mut threads = control.threads.subscribe();
        // All of them are dropped with this.
        let mut running = JoinSet::new();
        let (mut processed, mut failure) = (0_u64, None);
        loop {
            let Threads { producers, consumers } = *threads.borrow_and_update();
            while failure.is_none()
                && let Some(next) = plan.load(producers)
            {
                let (shard, context) = (Arc::clone(&shard), context.clone());
                running.spawn(self.clone().load(shard, next, plan.parts(), context));
            }
            while failure.is_none()
                && let Some((number, item)) = plan.process(consumers)
            {
                let (shard, context) = (Arc::clone(&shard), context.clone());
                running.spawn(self.clone().process(shard, number, item, context));
            }
            queue.set(plan.waiting());
            if running.is_empty() && (failure.is_some() || plan.is_done()) {
                break;
            }
            let next = async {
                match running.join_next().await {
                    Some(ended) => ended,
                    // Nothing may begin until there are more threads.
                    None => std::future::pending().await,
                }
            };
            match first(next, threads.changed()).await {
                First::One(Ok(Ok(Ended::Loaded(part, items)))) => {
                    let count = plan.loaded(part, items);
                    control.loaded.fetch_add(count as u64, Ordering::Relaxed);
                }
                First::One(Ok(Ok(Ended::Processed(number)))) => {
                    processed += 1;
                    control.processed.fetch_add(1, Ordering::Relaxed);
                    if plan.processed(number) {
                        context.progress(None, plan.cursor()?.as_deref())?;
                    }
                }
                // All of them count, and the first one is said.
                First::One(Ok(Err(failed))) => {
                    control.failed(&failed);
                    failure = failure.or(Some(failed));
                }
                First::One(Err(error)) => {
                    let failed = ended_badly(error);
                    control.failed(&failed);
                    failure = failure.or(Some(failed));
                }
                First::Other(_) => {}
            }
        }
        match failure {
            Some(failed) => Err(failed),
            None => Ok(json!({ "processed": processed })),
        }
    }
}

impl<L, P> Pool<L, P> {
    async fn load<T, Loading>(
        self,
        shard: Arc<Shard>,
        Next { part, cursor, limit }: Next,
        parts: usize,
        context: Context,
    ) -> Result<Ended<T>, Failed>
    where
        L: Fn(Load) -> Loading,
        Loading: Future<Output = Result<Vec<(String, T)>, Failed>>,
    {
        let (index, count) = (u32::try_from(part)?, u32::try_from(parts)?);
        let load = Load { shard, part: Part { index, count }, cursor, limit };
        let _loading = Share::of(&self.control.loading, 1);
        let began = Instant::now();
        let items = context.unless_cancelled(async { (self.functions.0)(load).await }).await?;
        took(&self.control.load_nanos, began);
        Ok(Ended::Loaded(part, items?))
    }

    async fn process<T: Clone, Processing>(
        self,
        shard: Arc<Shard>,
        number: Number,
        item: T,
        context: Context,
    ) -> Result<Ended<T>, Failed>
    where
        P: Fn(Arc<Shard>, T) -> Processing,
        Processing: Future<Output = Result<(), Failed>>,
    {
        let _processing = Share::of(&self.control.processing, 1);
        let began = Instant::now();
        let (functions, control) = (&*self.functions, &*self.control);
        let (mut left, pause) = (self.retries, self.pause);
        let work = async move {
            loop {
                match functions.1(Arc::clone(&shard), item.clone()).await {
                    Err(failed) if left > 0 && !failed.is_final() => {
                        left -= 1;
                        control.retried.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(pause).await;
                    }
                    ended => break ended,
                }
            }
        };
        let ended = context.unless_cancelled(work).await?;
        took(&self.control.process_nanos, began);
        ended.map(|()| Ended::Processed(number))
    }
}

impl Control {
    fn failed(&self, failed: &Failed) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock() = Some(failed.to_string());
    }
}

fn took(nanos: &AtomicU64, began: Instant) {
    let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    nanos.fetch_add(took, Ordering::Relaxed);
}

fn ended_badly(error: JoinError) -> Failed {
    match error.try_into_panic() {
        Ok(panic) => panicked(&*panic),
        Err(error) => Failed::retry(error.to_string()),
    }
}
