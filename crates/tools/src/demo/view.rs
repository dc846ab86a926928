//! Draws the demo: the ladder as vessels that empty one into the next, and the lateness of what comes out.
//!
//! Pure: the drawing is a function of a [`Picture`] and the size of the terminal, down to 80 by 24.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::symbols::bar::NINE_LEVELS;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Bar, BarChart, BarGroup, Block, Paragraph, Sparkline, Widget};

use super::callbacks::CallFigures;
use super::ledger::{BARS_MS, Figures, Interval, SLOT};
use super::spec::Spec;
use waterclock_engine::Millis;

/// Columns of the figures beside the vessels.
const FIGURES_WIDTH: u16 = 26;
/// A vessel is not drawn wider than this.
const VESSEL_WIDTH_MAX: u16 = 14;
/// A vessel is full at this many records at least, so that a few drops are no flood.
const FULL_MIN: u64 = 50;
/// Captions of the bars of lateness: up to so many ms, and more.
const BARS: [&str; BARS_MS.len() + 1] = ["1", "2", "5", "10", "20", "50", "+"];

/// What the demo is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Records are written.
    Running,
    /// None are written any more; what is due soon still comes.
    Draining,
    /// The instance finishes and leaves its group.
    Leaving,
}

/// One moment of the demo.
#[derive(Clone, Debug)]
pub(super) struct Picture<'a> {
    pub(super) spec: &'a Spec,
    pub(super) phase: Phase,
    pub(super) elapsed: Millis,
    pub(super) figures: &'a Figures,
    /// `None`: the broker has no callbacks.
    pub(super) calls: Option<&'a CallFigures>,
    /// The most that any vessel has held.
    pub(super) full: u64,
    /// What keeps the instance from working, if anything does.
    pub(super) trouble: Option<String>,
}

impl Picture<'_> {
    /// How far the demo is, in words.
    pub(super) fn clock(&self) -> String {
        let (elapsed, total) = (self.elapsed.0 / 1_000, self.spec.total.0 / 1_000);
        match self.phase {
            Phase::Running => {
                format!("{elapsed} s of {total} s, {} s left", total - elapsed.min(total))
            }
            Phase::Draining => format!("{elapsed} s: no more writes, what is due soon still comes"),
            Phase::Leaving => format!("{elapsed} s: leaving the group"),
        }
    }
}

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, picture: &Picture<'_>) {
    // On a small terminal the curves are lower.
    let curves = if frame.area().height < 26 { 5 } else { 7 };
    let rows = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(8),
        Constraint::Length(2),
        Constraint::Length(curves),
        Constraint::Length(1),
    ]);
    let [head, ladder, calls, curves, foot] = rows.areas(frame.area());
    let buffer = frame.buffer_mut();
    heading(picture, head, buffer);
    let columns = Layout::horizontal([Constraint::Min(20), Constraint::Length(FIGURES_WIDTH)]);
    let [vessels_at, figures_at] = columns.areas(ladder);
    vessels(picture, vessels_at, buffer);
    figures(picture.figures, figures_at, buffer);
    callbacks(picture.calls, calls, buffer);
    let thirds = Layout::horizontal([Constraint::Ratio(1, 3); 3]);
    let [flow, late, bars] = thirds.areas(curves);
    curve_of_deliveries(picture, flow, buffer);
    curve_of_lateness(picture, late, buffer);
    bars_of_lateness(picture.figures, bars, buffer);
    let last = match &picture.trouble {
        Some(trouble) => Line::from(format!(" {trouble}")).red(),
        None => Line::from(" q or Ctrl-C ends it").dark_gray(),
    };
    last.render(foot, buffer);
}

fn heading(picture: &Picture<'_>, area: Rect, buffer: &mut Buffer) {
    let spec = picture.spec;
    let text = vec![
        Line::from(vec![
            Span::from(" waterclock demo ").bold().cyan(),
            Span::from(format!("  {}", picture.clock())),
        ]),
        Line::from(vec![
            Span::from(format!(" {}, ", spec.broker)),
            Span::from(spec.delivery).bold(),
            Span::from(format!(", {} lanes, {} records/s and bursts", spec.lanes, spec.rate)),
        ]),
        Line::from(format!(" {}", spec.note)).yellow(),
        Line::from(format!(" lateness: {}", spec.measured)).dark_gray(),
    ];
    Paragraph::new(text).render(area, buffer);
}

/// One vessel: a caption, how much is in it, and its colour.
struct Vessel<'a> {
    name: &'a str,
    level: u64,
    colour: Color,
}

fn vessels(picture: &Picture<'_>, area: Rect, buffer: &mut Buffer) {
    let block = Block::bordered().title(" pending: each tier empties into shorter ones ");
    let inner = block.inner(area);
    block.render(area, buffer);
    let levels = &picture.figures.levels;
    let tiers = picture.spec.tiers.iter().zip(&levels.tiers);
    let mut all = vec![Vessel { name: "moving", level: levels.moving, colour: Color::Gray }];
    all.extend(
        tiers.map(|(name, level)| Vessel { name, level: *level, colour: Color::Blue }).rev(),
    );
    all.push(Vessel { name: "wheel", level: levels.wheel, colour: Color::Cyan });
    let width = (inner.width / all.len().max(1) as u16).min(VESSEL_WIDTH_MAX);
    if width < 3 || inner.height < 4 {
        return;
    }
    let full = picture.full.max(FULL_MIN);
    for (at, vessel) in all.iter().enumerate() {
        let x = inner.x + at as u16 * width;
        draw_vessel(vessel, full, Rect { x, width, ..inner }, buffer);
    }
}

fn draw_vessel(vessel: &Vessel<'_>, full: u64, area: Rect, buffer: &mut Buffer) {
    let caption = |text: &str| format!("{text:^width$}", width = usize::from(area.width));
    let count = caption(&vessel.level.to_string());
    let bottom = area.bottom() - 1;
    buffer.set_string(area.x, bottom, caption(vessel.name), Style::new());
    buffer.set_string(area.x, bottom - 1, count, Style::new().bold());
    let glass = Style::new().fg(Color::DarkGray);
    let (left, right) = (area.x, area.right() - 2);
    let floor = bottom - 2;
    let inside = usize::from(right - left - 1);
    buffer.set_string(left, floor, format!("\u{2570}{}\u{256f}", "\u{2500}".repeat(inside)), glass);
    let height = u64::from(floor - area.y);
    // In eighths of a row; whatever is there is seen.
    let filled = vessel.level.saturating_mul(height * 8).div_ceil(full).min(height * 8);
    for row in 0..floor - area.y {
        let y = floor - 1 - row;
        let eighths = filled.saturating_sub(u64::from(row) * 8).min(8);
        buffer.set_string(left, y, "\u{2502}", glass);
        let water = surface(eighths).repeat(inside);
        buffer.set_string(left + 1, y, water, Style::new().fg(vessel.colour));
        buffer.set_string(right, y, "\u{2502}", glass);
    }
}

/// A cell that is so many eighths full.
fn surface(eighths: u64) -> &'static str {
    let set = NINE_LEVELS;
    [
        set.empty,
        set.one_eighth,
        set.one_quarter,
        set.three_eighths,
        set.half,
        set.five_eighths,
        set.three_quarters,
        set.seven_eighths,
        set.full,
    ][eighths.min(8) as usize]
}

fn figures(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let block = Block::bordered().title(" records ");
    let inner = block.inner(area);
    block.render(area, buffer);
    let line = |name: &str, count: u64, bad: bool| {
        let width = usize::from(inner.width).saturating_sub(name.len());
        let text = format!("{name}{count:>width$}");
        if bad { Line::from(text).bold().red() } else { Line::from(text) }
    };
    let mut text = vec![
        line("sent", figures.sent, false),
        line("delivered", figures.delivered, false),
        line("cancelled", figures.cancelled, figures.escaped > 0),
        line("pending", figures.pending, false),
        line("dead letters", figures.dead_letters, figures.wrong > 0),
        line("duplicates", figures.duplicates, figures.duplicates > 0),
        line("early", figures.early, figures.early > 0),
        Line::from("latest dead letters:").dark_gray(),
    ];
    text.extend(figures.letters.iter().map(|code| Line::from(format!(" {code}")).yellow()));
    Paragraph::new(text).render(inner, buffer);
}

/// What stands in place of the counts of callbacks on the stand-in broker, which has no workers.
pub(super) const NO_CALLS: &str = "none: they need a real Kafka (--kafka or --brokers)";

fn callbacks(calls: Option<&CallFigures>, area: Rect, buffer: &mut Buffer) {
    let Some(calls) = calls else {
        let name = Span::from(" callbacks").bold();
        let why = Span::from(format!("  {NO_CALLS}")).yellow();
        return Line::from(vec![name, why]).render(area, buffer);
    };
    let CallFigures { created, called, retried, finished, failed, open, .. } = calls;
    let (p50, p99) = calls.late_ms();
    let name = Span::from(" callbacks").bold();
    let counts = format!(
        "  created {created}, called {called} ({retried} again), finished {finished}, failed {failed}"
    );
    let late = format!("            open calls {open}; from due to call p50 {p50} p99 {p99} ms");
    let mut second = vec![Span::from(late)];
    if calls.wrong > 0 {
        second.push(Span::from(format!("; {} wrong", calls.wrong)).bold().red());
    }
    let text = vec![Line::from(vec![name, Span::from(counts)]), Line::from(second)];
    Paragraph::new(text).render(area, buffer);
}

/// The whole run, squeezed into `width` values.
fn squeezed(
    slots: &[Interval],
    total: Millis,
    width: u16,
    of: impl Fn(&[Interval]) -> u64,
) -> Vec<u64> {
    let count = slots.len().max((total.0 / SLOT.0) as usize).max(1);
    let width = usize::from(width.max(1)).min(count);
    (0..width)
        .map(|at| (at * count / width, (at + 1) * count / width))
        .map(|(from, to)| of(&slots[from.min(slots.len())..to.min(slots.len())]))
        .collect()
}

fn curve_of_deliveries(picture: &Picture<'_>, area: Rect, buffer: &mut Buffer) {
    let now = picture.figures.delivered_lately(picture.elapsed);
    let block = Block::bordered().title(format!(" delivered: {now}/s "));
    let inner = block.inner(area);
    let sum = |slots: &[Interval]| {
        // Per second, whatever the width.
        let all: u64 = slots.iter().map(|slot| slot.delivered).sum();
        all * 1_000 / (SLOT.0 * slots.len().max(1) as u64)
    };
    let values = squeezed(&picture.figures.slots, picture.spec.total, inner.width, sum);
    Sparkline::default().data(&values).block(block).cyan().render(area, buffer);
}

fn curve_of_lateness(picture: &Picture<'_>, area: Rect, buffer: &mut Buffer) {
    let Figures { late_p50, late_p99, late_max, .. } = picture.figures;
    let block = Block::bordered().title(" latest of each moment ");
    let inner = block.inner(area);
    block.render(area, buffer);
    let [text, curve] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(inner);
    Line::from(format!("p50 {late_p50} p99 {late_p99} max {late_max} ms"))
        .bold()
        .render(text, buffer);
    let most = |slots: &[Interval]| slots.iter().map(|slot| slot.late_ms_max).max().unwrap_or(0);
    let values = squeezed(&picture.figures.slots, picture.spec.total, inner.width, most);
    Sparkline::default().data(&values).magenta().render(curve, buffer);
}

fn bars_of_lateness(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let block = Block::bordered().title(" ms late, up to ");
    let inner = block.inner(area);
    block.render(area, buffer);
    let count = BARS.len() as u16;
    let width = (inner.width / count).clamp(2, 8);
    let bars: Vec<Bar<'_>> = BARS
        .iter()
        .zip(&figures.bars)
        .map(|(name, value)| Bar::default().value(*value).text_value("").label(*name))
        .collect();
    BarChart::default()
        .data(BarGroup::default().bars(&bars))
        .bar_width(width - 1)
        .bar_gap(1)
        .bar_style(Style::new().magenta())
        .render(inner, buffer);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::ledger::Levels;
    use super::*;
    use crate::lateness::Spread;
    use waterclock_engine::header::Code;

    fn spec() -> Spec {
        Spec {
            namespace: "waterclock-demo-7".to_owned(),
            broker: "embedded stand-in broker".to_owned(),
            delivery: "at_least_once",
            note: "No Kafka: nothing on disk".to_owned(),
            measured: "due time to arrival",
            tiers: ["1s", "2s", "5s", "10s", "20s"].map(str::to_owned).to_vec(),
            lanes: 4,
            total: Millis(30_000),
            rate: 200,
        }
    }

    fn some_figures() -> Figures {
        Figures {
            sent: 4_321,
            delivered: 3_210,
            cancelled: 43,
            pending: 1_111,
            dead_letters: 2,
            late_p50: 3,
            late_p99: 17,
            late_max: 41,
            bars: vec![0, 9, 0, 0, 0, 0, 1],
            slots: (0..40).map(|at| Interval { delivered: at, late_ms_max: at % 7 }).collect(),
            levels: Levels { tiers: vec![0, 10, 50, 100, 400], moving: 1, wheel: 200 },
            letters: vec![Code::BadDelay, Code::MissingTarget],
            ..Figures::default()
        }
    }

    /// What stands on a terminal of this size, a line each.
    fn drawn(width: u16, height: u16, figures: &Figures, trouble: Option<&str>) -> Vec<String> {
        drawn_with((width, height), figures, None, trouble)
    }

    fn drawn_with(
        (width, height): (u16, u16),
        figures: &Figures,
        calls: Option<&CallFigures>,
        trouble: Option<&str>,
    ) -> Vec<String> {
        let spec = spec();
        let picture = Picture {
            spec: &spec,
            phase: Phase::Running,
            elapsed: Millis(10_000),
            figures,
            calls,
            full: 400,
            trouble: trouble.map(str::to_owned),
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &picture)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..height).map(row).collect()
    }

    #[test]
    fn everything_that_counts_is_on_a_small_terminal() {
        let lines = drawn(80, 24, &some_figures(), None);
        let screen = lines.join("\n");
        let words = screen.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "10 s of 30 s, 20 s left",
            "embedded stand-in broker, at_least_once, 4 lanes, 200 records/s",
            "No Kafka: nothing on disk",
            "lateness: due time to arrival",
            "sent 4321",
            "delivered 3210",
            "cancelled 43",
            "pending 1111",
            "dead letters 2",
            "early 0",
            "bad_delay",
            "missing_target",
            "p50 3 p99 17 max 41 ms",
            "delivered: 150/s",
            "q or Ctrl-C ends it",
        ] {
            assert!(words.contains(part), "{part:?} is not on\n{screen}");
        }
        let names = lines.iter().find(|line| line.contains("moving")).expect("captions");
        let order: Vec<&str> =
            names.split([' ', '\u{2502}']).filter(|word| !word.is_empty()).collect();
        assert_eq!(order[..7], ["moving", "20s", "10s", "5s", "2s", "1s", "wheel"]);
    }

    #[test]
    fn callbacks_are_on_a_small_terminal_and_so_is_why_there_are_none() {
        let mut calls = CallFigures {
            created: 1_200,
            called: 1_352,
            retried: 165,
            finished: 1_100,
            failed: 29,
            open: 3,
            late: Some(Spread { p50: 4.2, p90: 8.0, p99: 15.0, max: 40.0 }),
            ..CallFigures::default()
        };
        let words = |calls: Option<&CallFigures>| {
            let lines = drawn_with((80, 24), &some_figures(), calls, None);
            lines.join("\n").split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let screen = words(Some(&calls));
        for part in [
            "callbacks created 1200, called 1352 (165 again), finished 1100, failed 29",
            "open calls 3; from due to call p50 4 p99 15 ms",
        ] {
            assert!(screen.contains(part), "{part:?} is not on {screen}");
        }
        calls.wrong = 2;
        assert!(words(Some(&calls)).contains("2 wrong"));
        let screen = words(None);
        assert!(screen.contains(&format!("callbacks {NO_CALLS}")), "{screen}");
    }

    #[test]
    fn a_vessel_is_as_full_as_its_level() {
        let lines = drawn(80, 24, &some_figures(), None);
        // Of every vessel the middle of its inside, from the row below the border up to the floor.
        let column = |vessel: usize| -> String {
            let x = 1 + vessel * 7 + 2;
            (5..12).map(|y| lines[y].chars().nth(x).unwrap()).collect()
        };
        let air = |rows| " ".repeat(rows);
        let full = NINE_LEVELS.full;
        assert_eq!(column(1), full.repeat(7), "400 of 400 in delay.20s\n{}", lines.join("\n"));
        let two = format!("{}{}{full}", air(5), NINE_LEVELS.three_quarters);
        assert_eq!(column(2), two, "100 of 400");
        assert_eq!(column(3), air(6) + NINE_LEVELS.seven_eighths, "50 of 400");
        assert_eq!(column(0), air(6) + NINE_LEVELS.one_eighth, "one drop is seen");
        assert_eq!(column(5), air(7), "nothing in delay.1s");
        let half = format!("{}{}{}", air(3), NINE_LEVELS.half, full.repeat(3));
        assert_eq!(column(6), half, "200 of 400 in the wheel");
    }

    #[test]
    fn any_size_is_drawn_and_trouble_is_told() {
        let empty = Figures {
            levels: Levels { tiers: vec![0; 5], ..Levels::default() },
            bars: vec![0; BARS.len()],
            ..Figures::default()
        };
        for (width, height) in [(1, 1), (3, 30), (20, 5), (79, 23), (300, 100)] {
            drawn(width, height, &some_figures(), None);
            drawn(width, height, &empty, None);
        }
        let screen = drawn(80, 24, &empty, Some("no broker answers")).join("\n");
        assert!(screen.contains("no broker answers"), "{screen}");
    }

    #[test]
    fn a_curve_is_the_whole_run_whatever_its_width() {
        let slots: Vec<Interval> =
            (0..8).map(|at| Interval { delivered: at, late_ms_max: 0 }).collect();
        let sum = |slots: &[Interval]| slots.iter().map(|slot| slot.delivered).sum();
        assert_eq!(squeezed(&slots, Millis(4_000), 4, sum), [6, 22, 0, 0]);
        assert_eq!(squeezed(&slots, Millis(2_000), 100, sum), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(squeezed(&[], Millis(0), 5, sum), [0]);
    }
}
