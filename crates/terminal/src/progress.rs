//! How far a long command is, on one line of standard error that is written again and again.
//!
//! # Invariants
//! 1. Where standard error is no terminal nothing is written.
//! 2. The line is gone when this is dropped, unless it is [kept](Progress::keep).

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::termios;

/// Between two drawings of the line.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// A line that says what is being done, and how much of it is done.
#[derive(Debug)]
pub struct Progress {
    line: Mutex<Line>,
    is_shown: bool,
}

#[derive(Debug)]
struct Line {
    phase: String,
    done: u64,
    of: u64,
    began: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// A line for so many things to do; 0: nobody knows how many.
    #[must_use]
    pub fn new(of: u64) -> Self {
        let line = Line { phase: String::new(), done: 0, of, began: Instant::now(), drawn: None };
        Self { line: Mutex::new(line), is_shown: io::stderr().is_terminal() }
    }

    /// What is being done now. What is done already stays as it is.
    pub fn set_phase(&self, phase: impl Into<String>) {
        self.change(|line| line.phase = phase.into());
    }

    /// How much there is to do.
    pub fn set_length(&self, of: u64) {
        self.change(|line| line.of = of);
    }

    /// How much is done.
    pub fn set(&self, done: u64) {
        self.change(|line| line.done = done);
    }

    /// So much more is done.
    pub fn add(&self, more: u64) {
        self.change(|line| line.done += more);
    }

    /// How much is done.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.line.lock().done
    }

    /// Begins again, with another thing to do.
    pub fn begin(&self, phase: impl Into<String>, of: u64) {
        self.change(|line| {
            *line = Line { phase: phase.into(), done: 0, of, began: Instant::now(), drawn: None };
        });
    }

    /// Does something that writes to the same terminal.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        let mut line = self.line.lock();
        self.clear(&mut line);
        let written = write();
        self.draw(&mut line);
        written
    }

    /// Leaves the line where it is, for people to see how far it came.
    pub fn keep(&self) {
        let mut line = self.line.lock();
        self.draw(&mut line);
        if line.drawn.take().is_some() {
            let _ = io::stderr().write_all(b"\n");
        }
    }

    fn change(&self, change: impl FnOnce(&mut Line)) {
        let mut line = self.line.lock();
        change(&mut line);
        if line.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
            self.draw(&mut line);
        }
    }

    /// If nobody reads standard error there is nobody to tell.
    fn draw(&self, line: &mut Line) {
        if !self.is_shown {
            return;
        }
        line.drawn = Some(Instant::now());
        let size = termios::tcgetwinsize(io::stderr()).ok();
        // A terminal that does not say how wide it is is as wide as a narrow one.
        let columns = size.map(|size| size.ws_col).filter(|columns| *columns > 0).unwrap_or(80);
        let text: String = line.text().chars().take(usize::from(columns)).collect();
        let _ = io::stderr().write_all(format!("\r\x1b[2K{text}").as_bytes());
    }

    fn clear(&self, line: &mut Line) {
        if line.drawn.take().is_some() {
            let _ = io::stderr().write_all(b"\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut line = self.line.lock();
        self.clear(&mut line);
    }
}

impl Line {
    fn text(&self) -> String {
        let seconds = self.began.elapsed().as_secs();
        let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
        let clock = format!("{hours:02}:{minutes:02}:{:02}", seconds % 60);
        let rate = self.done as f64 / self.began.elapsed().as_secs_f64().max(0.001);
        let done = match (self.done, self.of) {
            (0, 0) => String::new(),
            (done, 0) => format!("{done}  {rate:.0}/s"),
            (done, of) => format!("{done} of {of}  {rate:.0}/s"),
        };
        let parts = [clock, self.phase.clone(), done];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_known() {
        let line = |phase: &str, done, of| {
            let began = Instant::now().checked_sub(Duration::from_secs(3_661)).expect("a past");
            Line { phase: phase.to_owned(), done, of, began, drawn: None }.text()
        };
        assert_eq!(line("", 0, 0), "01:01:01");
        assert_eq!(line("waiting", 0, 0), "01:01:01  waiting");
        assert_eq!(line("lane 3", 36_610, 40_000), "01:01:01  lane 3  36610 of 40000  10/s");
        assert_eq!(line("", 36_610, 0), "01:01:01  36610  10/s");
    }

    #[test]
    fn what_is_done_is_counted_and_begins_again() {
        let progress = Progress::new(3);
        progress.set(1);
        progress.add(1);
        assert_eq!(progress.done(), 2);
        assert_eq!(progress.aside(|| 7), 7);
        progress.begin("more", 5);
        assert_eq!(progress.done(), 0);
    }
}
