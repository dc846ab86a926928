//! What is known of projects and services, as this process has read it in `<ns>.meta`. The engine has the rules; here they meet
//! the log.
//!
//! # Invariants
//! 1. Nobody is given a registry before the topic was read to its end once: half of one would miss a pause or a limit.
//! 2. A value that cannot be read changes nothing: the last good one of its key stays, and the log says what is wrong.
//! 3. After [`RegistryFeed`] says that an offset is read, it gives a registry that has what stands there.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::log::TasksInForce;
use waterclock_engine::Offset;
use waterclock_engine::task::registry::{self, Registry};

/// Follows from the records of [`PARTITION`](super::PARTITION).
#[derive(Clone, Debug, Default)]
pub(super) struct RegistryReader {
    registry: Arc<Registry>,
    tasks: TasksInForce,
    progress: Progress,
}

/// How far the topic is read.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// One past the last record that was read.
    next: Offset,
    /// The topic's end was reached once.
    is_complete: bool,
    /// Tasks are in force.
    has_tasks: bool,
}

impl RegistryReader {
    /// Takes in the next record.
    pub(super) fn take(&mut self, offset: Offset, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.progress.next = offset.next();
        self.tasks.take(offset.0, key, value);
        self.progress.has_tasks = self.tasks.are();
        let key = key.and_then(|key| std::str::from_utf8(key).ok());
        let Some(key) = key.filter(|key| registry::is_key(key)) else { return };
        let applied = registry::read(key, value).and_then(|change| {
            // A reader that was given the registry keeps it as it was.
            Arc::make_mut(&mut self.registry).apply(change).map_err(|wrong| vec![wrong])
        });
        if let Err(wrongs) = applied {
            let wrong: Vec<String> = wrongs.iter().map(ToString::to_string).collect();
            tracing::warn!(
                key,
                offset = offset.0,
                wrong = wrong.join("; "),
                remedy = "put the project or service again over the API",
                "skipped a broken value in meta, what was in force before stays"
            );
        }
    }

    /// All records that the topic had a moment ago are taken in.
    pub(super) fn reached_end(&mut self) {
        self.progress.is_complete = true;
    }
}

/// What is known of projects and services now. Cheap to clone; all clones tell the same.
#[derive(Clone, Debug)]
pub struct RegistryFeed(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    registry: watch::Sender<Arc<Registry>>,
    progress: Mutex<Progress>,
    moved: Condvar,
}

impl Default for RegistryFeed {
    fn default() -> Self {
        let (registry, _) = watch::channel(Arc::default());
        Self(Arc::new(Shared { registry, progress: Mutex::default(), moved: Condvar::new() }))
    }
}

impl RegistryFeed {
    /// The registry as it was last read; an empty one before [`is_known`](Self::is_known).
    #[must_use]
    pub fn get(&self) -> Arc<Registry> {
        Arc::clone(&self.0.registry.borrow())
    }

    /// The same for somebody who wants to be told of changes: a thread asks `has_changed`, and a future waits for `changed`.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Registry>> {
        self.0.registry.subscribe()
    }

    /// Whether the topic was read to its end once.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.0.progress.lock().is_complete
    }

    /// Whether tasks are in force by now; false before [`is_known`](Self::is_known).
    #[must_use]
    pub fn has_tasks(&self) -> bool {
        self.0.progress.lock().has_tasks
    }

    /// Tells that there are no projects and services, and no topic that says so.
    pub(crate) fn publish_nothing(&self) {
        self.0.progress.lock().is_complete = true;
    }

    /// Tells what was read.
    pub(super) fn publish(&self, read: &RegistryReader) {
        fail::fail_point!("registry_unread", |_| ());
        if !read.progress.is_complete {
            return;
        }
        // A topic that is read from its beginning again mostly says what is known.
        self.0.registry.send_if_modified(|known| {
            let is_new = !Arc::ptr_eq(known, &read.registry) && **known != *read.registry;
            if is_new {
                *known = Arc::clone(&read.registry);
            }
            is_new
        });
        *self.0.progress.lock() = read.progress;
        self.0.moved.notify_all();
    }

    /// Waits until a record is read, for `most`; false: it was not.
    pub(super) fn wait_until_read(&self, offset: Offset, most: Duration) -> bool {
        let mut progress = self.0.progress.lock();
        self.0.moved.wait_while_for(&mut progress, |known| known.next <= offset, most);
        progress.next > offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSED: &str = r#"{"version":1,"revision":1,"paused":true}"#;

    fn take(reader: &mut RegistryReader, offset: i64, key: &str, value: Option<&str>) {
        reader.take(Offset(offset), Some(key.as_bytes()), value.map(str::as_bytes));
    }

    #[test]
    fn a_value_that_cannot_be_read_leaves_the_last_good_one() {
        let mut reader = RegistryReader::default();
        take(&mut reader, 0, "project/a", Some(PAUSED));
        let service = r#"{"version":1,"revision":4,"address":"https://pay.example"}"#;
        take(&mut reader, 1, "service/a/pay", Some(service));
        let before = Arc::clone(&reader.registry);
        assert!(before.project("a").paused);
        let newer = r#"{"version":2,"revision":2}"#;
        for (offset, broken) in (2..).zip(["", "{", "[]", newer, r#"{"version":1,"paused":false}"#])
        {
            take(&mut reader, offset, "project/a", Some(broken));
            take(&mut reader, offset, "service/a/pay", Some(broken));
        }
        take(&mut reader, 20, "project/NO", Some(PAUSED));
        reader.take(Offset(21), Some(b"project/\xff"), Some(PAUSED.as_bytes()));
        assert_eq!(reader.registry, before);
        take(&mut reader, 22, "project/a", None);
        take(&mut reader, 23, "service/a/pay", None);
        assert_eq!(*reader.registry, Registry::default(), "what is taken away is gone");
        assert!(before.project("a").paused, "who was given it keeps it as it was");
    }

    #[test]
    fn nothing_is_told_before_the_end_was_reached_and_changes_are_told_once() {
        let feed = RegistryFeed::default();
        let mut told = feed.subscribe();
        let mut reader = RegistryReader::default();
        take(&mut reader, 0, "tasks", Some(r#"{"version":1}"#));
        take(&mut reader, 1, "project/a", Some(PAUSED));
        feed.publish(&reader);
        assert!(!feed.is_known() && !feed.has_tasks() && !feed.get().project("a").paused);
        assert!(!feed.wait_until_read(Offset(0), Duration::ZERO));

        reader.reached_end();
        feed.publish(&reader);
        assert!(feed.is_known() && feed.has_tasks() && feed.get().project("a").paused);
        assert!(told.has_changed().unwrap());
        told.mark_unchanged();
        assert!(feed.wait_until_read(Offset(1), Duration::ZERO));
        assert!(!feed.wait_until_read(Offset(2), Duration::ZERO));

        // The topic was read from its beginning again, and says the same.
        let mut again = RegistryReader::default();
        take(&mut again, 1, "project/a", Some(PAUSED));
        again.reached_end();
        feed.publish(&again);
        assert!(!told.has_changed().unwrap(), "nothing is new");
        assert!(
            !feed.has_tasks(),
            "of a topic that was made again everything counts as it stands there"
        );
        take(&mut again, 2, "project/a", None);
        feed.publish(&again);
        assert!(told.has_changed().unwrap() && !feed.get().project("a").paused);
    }

    #[test]
    fn who_waits_is_woken_by_the_record() {
        let feed = RegistryFeed::default();
        assert!(!feed.wait_until_read(Offset(0), Duration::from_millis(5)));
        let waits = std::thread::spawn({
            let feed = feed.clone();
            move || {
                let most = Duration::from_secs(30);
                feed.wait_until_read(Offset(7), most)
            }
        });
        let mut reader = RegistryReader::default();
        reader.reached_end();
        for offset in 0..8 {
            reader.take(Offset(offset), None, None);
            feed.publish(&reader);
        }
        assert!(waits.join().unwrap());
    }
}
