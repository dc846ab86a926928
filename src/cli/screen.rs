//! The terminal while a command draws on it; restored when this is dropped, and by a panic of any thread.

use std::io;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};

/// The terminal, taken over.
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// There is none that can be.
    pub(super) fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Self { terminal })
    }

    /// Draws one moment.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(view).map(drop)
    }

    /// Waits for keys, at most this long; true when one of them ends the command.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn ends(&self, most: Duration) -> io::Result<bool> {
        if !event::poll(most)? {
            return Ok(false);
        }
        let Event::Key(key) = event::read()? else { return Ok(false) };
        let control_c =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        let quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
        Ok(key.kind == KeyEventKind::Press && (control_c || quit))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
