//! A command on a terminal, as a person sees it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use rustix::termios::{InputModes, LocalModes, OutputModes, tcgetattr};

use super::eventually;
use super::terminal::on_a_terminal;

/// A command on a terminal of its own.
pub struct OnTerminal {
    child: Child,
    /// Where a person sits.
    window: File,
    /// How the terminal was before.
    modes: Modes,
    parts: Receiver<Vec<u8>>,
    reader: Option<JoinHandle<()>>,
    drawn: Vec<u8>,
}

type Modes = (InputModes, OutputModes, LocalModes);

fn modes(window: &File) -> Modes {
    let is = tcgetattr(window).expect("its modes");
    (is.input_modes, is.output_modes, is.local_modes)
}

impl OnTerminal {
    pub fn start(mut command: Command) -> Self {
        let window = on_a_terminal(command.env("TERM", "xterm"));
        let modes = modes(&window);
        let child = command.spawn().expect("the binary runs");
        // From here on its end of the terminal is open in the child alone.
        drop(command);
        let mut out = window.try_clone().expect("another handle");
        let (drawn, parts) = channel();
        let reader = std::thread::spawn(move || {
            let mut part = [0; 4_096];
            while let Ok(length @ 1..) = out.read(&mut part) {
                if drawn.send(part[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, window, modes, parts, reader: Some(reader), drawn: Vec::new() }
    }

    /// Waits until all of these words were drawn.
    #[track_caller]
    pub fn has_drawn(&mut self, words: &[&str]) {
        eventually(&format!("{words:?} are drawn"), || {
            self.drawn.extend(self.parts.try_iter().flatten());
            let text = String::from_utf8_lossy(&self.drawn);
            let all = words.iter().all(|word| text.contains(word));
            if all { Ok(()) } else { Err(text.into_owned()) }
        });
    }

    pub fn press(&mut self, keys: &str) {
        self.window.write_all(keys.as_bytes()).expect("it reads");
    }

    /// Its exit code once it ends, and all that it has drawn. The terminal is as it was before.
    #[track_caller]
    pub fn ended(mut self) -> (Option<i32>, String) {
        let code = eventually("it ends", || {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            ended.map(|status| status.code()).ok_or_else(|| "it goes on".to_owned())
        });
        self.reader.take().expect("it ends once").join().expect("it read");
        self.drawn.extend(self.parts.try_iter().flatten());
        let drawn = String::from_utf8_lossy(&self.drawn).into_owned();
        assert_eq!(modes(&self.window), self.modes, "{drawn:?}");
        (code, drawn)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was drawn was on a screen of its own, and the last of all is what was there before.
#[track_caller]
pub fn is_left(drawn: &str) {
    let at = ["\x1b[?1049h", "\x1b[?25h\x1b[?1049l"].map(|of| drawn.rfind(of));
    assert!(at[0].is_some() && at[0] < at[1], "the screen as it was: {drawn:?}");
}
