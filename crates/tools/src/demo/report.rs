//! The demo in words: a line a second where there is no terminal, and the summary.

use serde_json::{Value, json};

use super::ledger::Figures;
use super::spec::Spec;
use super::view::Picture;
use waterclock_engine::Millis;

/// One line, for pipes and logs.
pub(super) fn line(picture: &Picture<'_>) -> String {
    let Picture { spec, elapsed, figures, .. } = picture;
    let levels = &figures.levels;
    let tiers: Vec<String> = spec
        .tiers
        .iter()
        .zip(&levels.tiers)
        .rev()
        .map(|(name, level)| format!("{name} {level}"))
        .collect();
    format!(
        "{:>3} s  sent {}  delivered {} ({}/s)  pending {}: moving {}, {}, wheel {}  late p50 {} p99 {} max {} ms  \
         cancelled {}  dead letters {}",
        elapsed.0 / 1_000,
        figures.sent,
        figures.delivered,
        figures.delivered_lately(*elapsed),
        figures.pending,
        levels.moving,
        tiers.join(", "),
        levels.wheel,
        figures.late_p50,
        figures.late_p99,
        figures.late_max,
        figures.cancelled,
        figures.dead_letters,
    )
}

/// How the demo ended.
#[derive(Clone, Debug)]
pub(super) struct Summary<'a> {
    pub(super) spec: &'a Spec,
    pub(super) elapsed: Millis,
    /// Somebody ended it before its time.
    pub(super) interrupted: bool,
    pub(super) figures: &'a Figures,
}

impl Summary<'_> {
    /// For people.
    pub(super) fn text(&self) -> String {
        let (spec, figures) = (self.spec, self.figures);
        let ended = if self.interrupted { "interrupted after" } else { "ended after" };
        let seconds = self.elapsed.0 as f64 / 1_000.0;
        let mut lines = vec![
            format!("waterclock demo, {ended} {seconds:.1} s"),
            format!("  broker        {}, {}", spec.broker, spec.delivery),
            format!("                {}", spec.note),
            format!("  sent          {} ({} of them bad on purpose)", figures.sent, figures.bad),
            format!("  delivered     {}", figures.delivered),
            format!("  cancelled     {}{}", figures.cancelled, self.of_cancelled()),
            format!("  dead letters  {}", figures.dead_letters),
            format!("  pending       {}{}", figures.pending, self.why_pending()),
            format!("  duplicates    {}", figures.duplicates),
            format!("  early         {}", figures.early),
            format!(
                "  lateness      p50 {} ms, p90 {} ms, p99 {} ms, max {} ms",
                figures.late_p50, figures.late_p90, figures.late_p99, figures.late_max
            ),
            format!("                {}", spec.measured),
        ];
        if figures.unsent > 0 {
            lines.push(format!(
                "  not taken     {} (Kafka did not acknowledge them)",
                figures.unsent
            ));
        }
        if figures.wrong > 0 {
            lines.push(format!(
                "  wrong         {} (a bad or cancelled one delivered, or a dead letter that should not be)",
                figures.wrong
            ));
        }
        lines.push(String::new());
        lines.join("\n")
    }

    fn of_cancelled(&self) -> String {
        match self.figures.escaped {
            0 => " (none of them arrived)".to_owned(),
            escaped => format!(" ({escaped} of them arrived all the same)"),
        }
    }

    fn why_pending(&self) -> &'static str {
        match (self.figures.pending, self.interrupted) {
            (0, _) => "",
            (_, true) => " (not due yet when the demo was ended)",
            (_, false) => " (not seen when the demo ended)",
        }
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let (spec, figures) = (self.spec, self.figures);
        json!({
            "broker": spec.broker,
            "note": spec.note,
            "delivery": spec.delivery,
            "lanes": spec.lanes,
            "elapsed_ms": self.elapsed.0,
            "interrupted": self.interrupted,
            "sent": figures.sent,
            "bad": figures.bad,
            "delivered": figures.delivered,
            "cancelled": figures.cancelled,
            "escaped": figures.escaped,
            "dead_letters": figures.dead_letters,
            "pending": figures.pending,
            "duplicates": figures.duplicates,
            "early": figures.early,
            "wrong": figures.wrong,
            "unsent": figures.unsent,
            "lateness_ms": {
                "p50": figures.late_p50,
                "p90": figures.late_p90,
                "p99": figures.late_p99,
                "max": figures.late_max,
            },
            "lateness_measured": spec.measured,
        })
    }
}
