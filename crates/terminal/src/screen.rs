//! The terminal while a command draws on it.
//!
//! # Invariants
//! 1. The terminal is restored when this is dropped, and by a panic of any thread.
//! 2. A wait for a key ends when the terminal is gone, also where SIGHUP is ignored, as below `nohup`.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Once;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{self, OptionalActions, Termios};

/// Alternate screen, no cursor, and no wrap: what is too long for a line is cut.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Ends all colours.
const RESET: &str = "\x1b[0m";
/// Between two looks at the size of the window, which may have changed.
const LOOK_AT_SIZE: Duration = Duration::from_millis(250);

const CONTROL_C: u8 = 3;
const ESCAPE: u8 = 0x1b;

/// What the terminal was before; `None`: no screen is open.
static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

struct Before {
    terminal: OwnedFd,
    modes: Termios,
}

/// The terminal, taken over.
#[derive(Debug)]
pub struct Screen {
    terminal: OwnedFd,
    size: Size,
}

/// Columns and rows.
type Size = (u16, u16);

/// What came of a wait for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// No key, or one that means nothing here.
    None,
    /// q, Esc or Ctrl-C: the command is to end.
    End,
    /// The terminal is gone, and nobody is there to press one.
    Gone,
}

impl Screen {
    /// Takes the terminal over: keys come one by one, Ctrl-C among them, and nothing is echoed.
    ///
    /// # Errors
    /// There is no terminal that can be drawn on.
    pub fn open() -> io::Result<Self> {
        let terminal = terminal()?;
        let modes = termios::tcgetattr(&terminal)?;
        let mut raw = modes.clone();
        raw.make_raw();
        *BEFORE.lock() = Some(Before { terminal: terminal.try_clone()?, modes });
        restore_after_a_panic();
        let opened = Self { terminal, size: size() };
        // From here on a drop restores it.
        termios::tcsetattr(&opened.terminal, OptionalActions::Now, &raw)?;
        write(ENTER)?;
        Ok(opened)
    }

    /// Draws a text from the first line of the window on. What the window has no room for is cut.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, text: &str) -> io::Result<()> {
        self.size = size();
        let (columns, rows) = self.size;
        write(frame(text, usize::from(columns), usize::from(rows)).as_bytes())
    }

    /// How many columns and rows the window has.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let (columns, rows) = size();
        (usize::from(columns), usize::from(rows))
    }

    /// Whether the window has another size than when it was drawn.
    #[must_use]
    pub fn is_resized(&self) -> bool {
        size() != self.size
    }

    /// Waits for a key, at most this long. Gives up early when the window has another size.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn wait(&self, most: Duration) -> io::Result<Key> {
        let until = Instant::now() + most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let key = key(&self.terminal, left.min(LOOK_AT_SIZE))?;
            if key != Key::None || left <= LOOK_AT_SIZE || self.is_resized() {
                return Ok(key);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// How wide the terminal of standard output is; `None`: it is no terminal, or does not say.
#[must_use]
pub fn columns() -> Option<u16> {
    let out = io::stdout();
    let size = out.is_terminal().then(|| termios::tcgetwinsize(out).ok()).flatten()?;
    Some(size.ws_col).filter(|columns| *columns > 0)
}

/// A terminal that does not say how large it is is taken for the smallest usual one.
fn size() -> Size {
    let size = termios::tcgetwinsize(io::stdout()).ok();
    let size = size.map(|size| (size.ws_col, size.ws_row));
    size.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((80, 24))
}

/// Where keys come from: standard input, or the terminal of this session where that is something else.
fn terminal() -> io::Result<OwnedFd> {
    let input = io::stdin();
    if input.is_terminal() {
        return input.as_fd().try_clone_to_owned();
    }
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/tty")?.into())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// What draws a text from the first line on, over what was drawn before.
fn frame(text: &str, columns: usize, rows: usize) -> String {
    let mut drawn = "\x1b[H".to_owned();
    let mut lines = text.lines();
    for row in 0..rows {
        // A line break behind the last row would scroll.
        drawn += if row == 0 { "\x1b[2K" } else { "\r\n\x1b[2K" };
        drawn += &cut(lines.next().unwrap_or_default(), columns);
    }
    drawn
}

/// As much of a line as so many columns have room for. Colours take no room; where they are cut off, they end.
fn cut(line: &str, columns: usize) -> String {
    let (mut kept, mut left) = (String::with_capacity(line.len()), columns);
    let (mut is_colour, mut is_coloured) = (false, false);
    for c in line.chars() {
        if is_colour || c == '\x1b' {
            is_colour = c != 'm';
            is_coloured = true;
        } else if left == 0 {
            kept += if is_coloured { RESET } else { "" };
            break;
        } else {
            left -= 1;
        }
        kept.push(c);
    }
    kept
}

/// Makes the terminal what it was, once.
fn restore() {
    let Some(Before { terminal, modes }) = BEFORE.lock().take() else { return };
    // If the terminal is gone nothing has to be restored.
    let _ = termios::tcsetattr(terminal, OptionalActions::Now, &modes);
    let _ = write(LEAVE);
}

/// So that the words of a panic can be read.
fn restore_after_a_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            next(panic);
        }));
    });
}

/// Waits for keys of a terminal. poll(2) reports a terminal that is gone at once, and for ever after.
fn key(terminal: &OwnedFd, most: Duration) -> io::Result<Key> {
    let mut polled = [PollFd::new(terminal, PollFlags::IN)];
    let most = Timespec::try_from(most).ok();
    match poll(&mut polled, most.as_ref()) {
        Ok(0) | Err(Errno::INTR) => return Ok(Key::None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        return Ok(Key::Gone);
    }
    let mut bytes = [0; 256];
    match rustix::io::read(terminal, &mut bytes) {
        Ok(0) | Err(Errno::IO) => Ok(Key::Gone),
        Ok(length) => Ok(if has_end(&bytes[..length]) { Key::End } else { Key::None }),
        Err(Errno::INTR | Errno::AGAIN) => Ok(Key::None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a key that ends the command is among these. Other keys are sequences that begin with an escape.
fn has_end(mut bytes: &[u8]) -> bool {
    while let Some((first, rest)) = bytes.split_first() {
        bytes = match (*first, rest) {
            (b'q' | CONTROL_C, _) | (ESCAPE, []) => return true,
            // Arrows and the like: parameters, and one last byte.
            (ESCAPE, [b'[' | b'O', sequence @ ..]) => {
                let last = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
                last.map_or(&[], |last| &sequence[last + 1..])
            }
            _ => rest,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Both ends of a terminal: that of a window, and that of a program.
    fn pair() -> (OwnedFd, OwnedFd) {
        let window = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a window");
        grantpt(&window).expect("granted");
        unlockpt(&window).expect("unlocked");
        let name = ptsname(&window, Vec::new()).expect("a name");
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its end");
        let mut raw = termios::tcgetattr(&terminal).expect("modes");
        raw.make_raw();
        termios::tcsetattr(&terminal, OptionalActions::Now, &raw).expect("raw");
        (window, terminal)
    }

    #[test]
    fn a_frame_fills_the_window_and_no_more() {
        let row = "\x1b[2K";
        assert_eq!(frame("abc\nd", 2, 3), format!("\x1b[H{row}ab\r\n{row}d\r\n{row}"));
        assert_eq!(frame("a\nb\nc", 9, 2), format!("\x1b[H{row}a\r\n{row}b"));
    }

    #[test]
    fn colours_take_no_room_and_end_where_they_are_cut_off() {
        let line = "a\x1b[32mbc\x1b[0md";
        assert_eq!(cut(line, 4), line);
        assert_eq!(cut(line, 9), line);
        assert_eq!(cut(line, 3), "a\x1b[32mbc\x1b[0m\x1b[0m");
        assert_eq!(cut(line, 2), "a\x1b[32mb\x1b[0m");
        assert_eq!(cut("abc", 2), "ab");
    }

    #[test]
    fn a_terminal_that_is_gone_ends_the_wait_at_once_and_each_time() {
        let (window, terminal) = pair();
        assert_eq!(key(&terminal, Duration::from_millis(1)).expect("it waits"), Key::None);
        let waiting = std::thread::spawn(move || {
            let began = Instant::now();
            let seen = [(); 3].map(|()| key(&terminal, LONG).expect("it waits"));
            (seen, began.elapsed())
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(window);
        let (seen, took) = waiting.join().expect("it ends");
        assert_eq!(seen, [Key::Gone; 3]);
        assert!(took < LONG / 2, "{took:?}");
    }

    #[test]
    fn a_key_that_is_pressed_is_seen() {
        for (pressed, want) in [(&b"q"[..], Key::End), (b"x", Key::None), (b"\x03", Key::End)] {
            let (window, terminal) = pair();
            rustix::io::write(&window, pressed).expect("written");
            assert_eq!(key(&terminal, LONG).expect("it waits"), want, "{pressed:?}");
        }
    }

    #[test]
    fn escape_ends_and_what_begins_with_it_does_not() {
        for (bytes, want) in [
            (&b"\x1b"[..], true),
            (b"\x1b[A", false),
            (b"\x1bOP", false),
            (b"\x1b[1;5D", false),
            (b"\x1b[Aq", true),
            (b"\x1b[", false),
            (b"xyz", false),
            (b"", false),
        ] {
            assert_eq!(has_end(bytes), want, "{bytes:?}");
        }
    }
}
