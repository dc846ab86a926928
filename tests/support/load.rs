//! A steady load beside whatever else a test does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use super::{Fixture, out};

/// A producer that writes a few hundred records a second until it is told to stop; their ids are 0, 1, 2...
pub struct Load<'scope> {
    stop: &'scope AtomicBool,
    thread: ScopedJoinHandle<'scope, usize>,
}

impl<'scope> Load<'scope> {
    pub fn start<'env>(
        scope: &'scope std::thread::Scope<'scope, 'env>,
        fixture: &'env Fixture,
        target: &'env str,
        per_second: u64,
    ) -> Self {
        // Lives as long as the test, which is a process's end away.
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let thread = scope.spawn(move || {
            let producer = fixture.producer();
            let intake = fixture.names.intake();
            let (began, most) = (Instant::now(), Duration::from_secs(120));
            let mut sent = 0;
            while !stop.load(Ordering::SeqCst) && began.elapsed() < most {
                let due = began.elapsed().as_millis() as u64 * per_second / 1_000;
                while (sent as u64) < due {
                    let record = out(format!("{sent}"))
                        .key(format!("k{}", sent % 97))
                        .delay((sent * 37) % 3_000)
                        .to(target);
                    producer.send(&intake, &record);
                    sent += 1;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            producer.acks().len()
        });
        Self { stop, thread }
    }

    /// Stops it, and says how many records were acknowledged: all of them.
    pub fn end(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the load ran")
    }
}

impl Load<'_> {
    /// The ids of so many records.
    pub fn ids(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|n| n.to_string())
    }
}
