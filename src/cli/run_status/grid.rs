//! The shards of a run as a grid: one character a shard, or for many of them.
//!
//! # Invariants
//! 1. No line is wider than the terminal, as long as that has room for the number of a shard and one character.
//! 2. A character that stands for several shards is that of the one which needs a person most. So nothing that has failed is hidden.

use std::io::{self, IsTerminal as _};

use crate::engine::timers::ShardState;

/// Most shards in a line: who reads the grid counts by tens.
const IN_A_LINE_MAX: usize = 100;
/// Ends a colour.
const RESET: &str = "\x1b[0m";

/// Every state of a shard as it is in the grid, what it means, and its colour. Their order is that of the legend.
#[rustfmt::skip]
const STATES: [(ShardState, &str, &str); 6] = [
    (ShardState::Finished,  "finished",         "\x1b[32m"),
    (ShardState::Executing, "executing",        "\x1b[36m"),
    (ShardState::Again,     "handed out again", "\x1b[33m"),
    (ShardState::Waiting,   "waiting",          ""),
    (ShardState::ToCreate,  "to create",        "\x1b[2m"),
    (ShardState::Failed,    "failed",           "\x1b[31m"),
];
/// The states, the one first that needs a person most.
const WORST: [ShardState; 6] = [
    ShardState::Failed,
    ShardState::Again,
    ShardState::Executing,
    ShardState::Waiting,
    ShardState::ToCreate,
    ShardState::Finished,
];

/// Whether there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colours(bool);

impl Colours {
    /// None.
    #[cfg(test)]
    pub(super) const NONE: Self = Self(false);

    /// Those of standard output: a terminal has them, unless `NO_COLOR` is set or it is a dumb one.
    pub(super) fn of_terminal() -> Self {
        let is_set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_dumb = is_set("TERM").is_none_or(|term| term == "dumb");
        Self(io::stdout().is_terminal() && is_set("NO_COLOR").is_none() && !is_dumb)
    }

    /// States of shards in their colours.
    fn paint(self, states: &[char]) -> String {
        let mut painted = String::with_capacity(states.len());
        for same in states.chunk_by(|a, b| a == b) {
            let colour = same.first().filter(|_| self.0).map_or("", |state| colour_of(*state));
            painted += colour;
            painted.extend(same);
            painted += if colour.is_empty() { "" } else { RESET };
        }
        painted
    }
}

fn colour_of(state: char) -> &'static str {
    let known = STATES.iter().find(|(of, ..)| of.as_char() == state);
    known.map_or("", |(_, _, colour)| colour)
}

/// The shards of a run.
pub(super) struct Grid<'a> {
    /// A character for each.
    pub(super) states: &'a str,
    /// How wide a line may be.
    pub(super) columns: usize,
    /// How many lines there may be, besides those of the legend; `None`: as many as it takes.
    pub(super) lines: Option<usize>,
    pub(super) colours: Colours,
}

impl Grid<'_> {
    /// Each line begins with the number of its first shard; the legend is behind them.
    pub(super) fn draw(&self) -> String {
        let states: Vec<char> = self.states.chars().collect();
        let digits = states.len().saturating_sub(1).to_string().len();
        let room = self.columns.saturating_sub(digits + 2).clamp(1, IN_A_LINE_MAX);
        let in_a_line = if room >= 10 { room / 10 * 10 } else { room };
        let most = self.lines.map_or(usize::MAX, |lines| lines.max(1).saturating_mul(in_a_line));
        let each = states.len().div_ceil(most).max(1);
        let cells: Vec<char> = states.chunks(each).map(worst).collect();
        let mut lines: Vec<String> = cells
            .chunks(in_a_line)
            .enumerate()
            .map(|(line, cells)| {
                let first = line * in_a_line * each;
                format!("{first:>digits$}  {}", self.colours.paint(cells))
            })
            .collect();
        let indent = " ".repeat(digits + 2);
        lines.extend(self.legend(&states).into_iter().map(|line| indent.clone() + &line));
        if each > 1 {
            let order: String =
                WORST.map(ShardState::as_char).iter().flat_map(|c| [' ', *c]).collect();
            lines.push(format!(
                "{indent}each is {each} shards, and shows the first there is of{order}"
            ));
        }
        lines.join("\n")
    }

    /// What the characters mean that are there, and how often each is, in lines that fit.
    fn legend(&self, states: &[char]) -> Vec<String> {
        let room =
            self.columns.saturating_sub(states.len().saturating_sub(1).to_string().len() + 2);
        let (mut lines, mut width) = (Vec::<String>::new(), 0);
        for (state, name, _) in STATES {
            let of = state.as_char();
            let count = states.iter().filter(|state| **state == of).count();
            if count == 0 {
                continue;
            }
            let words = format!(" {count} {name}");
            let entry = self.colours.paint(&[of]) + &words;
            let wide = 1 + words.len();
            match lines.last_mut().filter(|_| width + 2 + wide <= room) {
                Some(line) => {
                    *line += &format!("  {entry}");
                    width += 2 + wide;
                }
                None => {
                    lines.push(entry);
                    width = wide;
                }
            }
        }
        lines
    }
}

/// The state among these that needs a person most. One that a newer instance knows is not hidden.
fn worst(states: &[char]) -> char {
    let rank =
        |state: &char| WORST.iter().position(|of| of.as_char() == *state).map_or(0, |at| at + 1);
    states.iter().min_by_key(|state| rank(state)).copied().unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(states: &str, columns: usize, lines: Option<usize>) -> Vec<String> {
        let grid = Grid { states, columns, lines, colours: Colours::NONE };
        grid.draw().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_grid_wraps_to_the_width_by_tens() {
        let states = "#".repeat(25);
        assert_eq!(
            draw(&states, 18, None),
            [" 0  ##########", "10  ##########", "20  #####", "    # 25 finished"]
        );
        assert_eq!(draw(&states, 24, None)[..2], [" 0  ####################", "20  #####"]);
        // A narrow terminal has as many as it has room for, and one at least.
        assert_eq!(draw("#>ox", 6, None)[..2], ["0  #>o", "3  x"]);
        assert_eq!(draw("#>", 1, None)[..2], ["0  #", "1  >"]);
        // A wide one has a hundred.
        assert_eq!(draw(&"o".repeat(10_000), 500, None).len(), 101);
        assert_eq!(draw("", 80, None), Vec::<String>::new());
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let states: String = "#>ro.x".chars().cycle().take(1_234).collect();
        for columns in [20, 33, 80, 120] {
            for line in draw(&states, columns, None) {
                assert!(line.chars().count() <= columns.max(28), "{columns}: {line}");
            }
        }
    }

    #[test]
    fn the_legend_names_what_is_there() {
        let lines = draw("##>ro.xx", 80, None);
        let want = "   # 2 finished  > 1 executing  r 1 handed out again  o 1 waiting  . 1 to create  x 2 failed";
        assert_eq!(
            lines[1..].join("  ").split_whitespace().collect::<Vec<_>>(),
            want.split_whitespace().collect::<Vec<_>>()
        );
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert_eq!(draw("oo", 80, None)[1], "   o 2 waiting");
    }

    #[test]
    fn where_there_is_no_room_a_character_stands_for_several_and_shows_the_worst() {
        let mut states: Vec<char> = "#".repeat(1_000).chars().collect();
        (states[17], states[18], states[999]) = ('x', '>', 'o');
        let states: String = states.into_iter().collect();
        let lines = draw(&states, 55, Some(2));
        assert_eq!(lines[0], format!("  0  #x{}", "#".repeat(48)));
        assert_eq!(lines[1], format!("500  {}o", "#".repeat(49)));
        assert_eq!(lines[2], "     # 997 finished  > 1 executing  o 1 waiting");
        assert_eq!(lines[3], "     x 1 failed");
        assert_eq!(lines[4], "     each is 10 shards, and shows the first there is of x r > o . #");
        // What this release does not know is shown, too.
        assert_eq!(worst(&['#', '?', 'x']), '?');
    }

    #[test]
    fn colours_are_around_what_is_the_same() {
        let states: Vec<char> = "##ox".chars().collect();
        assert_eq!(Colours(true).paint(&states), "\x1b[32m##\x1b[0mo\x1b[31mx\x1b[0m");
        assert_eq!(Colours(false).paint(&states), "##ox");
    }

    #[test]
    fn every_state_has_a_place() {
        for (state, ..) in STATES {
            assert!(WORST.contains(&state), "{state:?}");
        }
        assert_eq!(STATES.len(), WORST.len());
    }
}
