//! A terminal for a program that is tested, and its other end.

use std::fs::File;
use std::io::Read as _;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Has the program read from a terminal and write to it, and gives its other end. It is not the terminal of a session: no SIGHUP
/// comes when it goes, as below `nohup`.
pub fn on_a_terminal(command: &mut Command) -> File {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    // Programs of other tests that start meanwhile must not hold this end, too. Elsewhere it cannot be said at once.
    #[cfg(target_os = "linux")]
    let flags = flags | OpenptFlags::CLOEXEC;
    let window = openpt(flags).expect("a terminal");
    fcntl_setfd(&window, FdFlags::CLOEXEC).expect("it is closed in programs");
    grantpt(&window).and_then(|()| unlockpt(&window)).expect("it may be opened");
    let size = Winsize { ws_col: 120, ws_row: 40, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&window, size).expect("a size");
    let name = ptsname(&window, Vec::new()).expect("its name");
    let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        .expect("its other end");
    let another = || terminal.try_clone().expect("another handle");
    command.stdin(another()).stdout(another()).stderr(terminal);
    window.into()
}

/// Reads at this end until what was drawn has these words.
pub fn read_until(window: &mut File, words: &str) {
    let (mut drawn, mut part) = (Vec::new(), [0; 4_096]);
    while !String::from_utf8_lossy(&drawn).contains(words) {
        let length = window.read(&mut part).expect("it draws");
        drawn.extend_from_slice(&part[..length]);
    }
}

/// Whether programs that this one starts ignore SIGHUP, as below `nohup`. Only Linux says so; elsewhere they are taken to.
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask & 1 == 1)
}
