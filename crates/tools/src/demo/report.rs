//! The demo in words: a line a second where there is no terminal, and the summary.

use serde_json::{Value, json};

use super::callbacks::CallFigures;
use super::ledger::Figures;
use super::spec::Spec;
use super::view::{NO_CALLS, Picture};
use waterclock_engine::Millis;

/// One line, for pipes and logs.
pub(super) fn line(picture: &Picture<'_>) -> String {
    let Picture { spec, elapsed, figures, calls, .. } = picture;
    let calls = calls.map_or_else(String::new, |calls| {
        let (p50, p99) = calls.late_ms();
        format!(
            "  tasks {}  calls {}  ended {}  calls late p50 {p50} p99 {p99} ms",
            calls.created,
            calls.called,
            calls.finished + calls.failed,
        )
    });
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
         cancelled {}  dead letters {}{calls}",
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
    /// `None`: the broker has no callbacks.
    pub(super) calls: Option<&'a CallFigures>,
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
        lines.extend(self.of_calls());
        lines.push(String::new());
        lines.join("\n")
    }

    fn of_calls(&self) -> Vec<String> {
        let Some(calls) = self.calls else { return vec![format!("  callbacks     {NO_CALLS}")] };
        let CallFigures { created, called, retried, finished, failed, open, wrong, .. } = calls;
        let (p50, p99) = calls.late_ms();
        let mut lines = vec![
            format!("  callbacks     {created} tasks, {called} calls ({retried} of them again)"),
            format!(
                "                {finished} finished, {failed} failed as they should, {open} open"
            ),
            format!("                p50 {p50} ms, p99 {p99} ms from due time to the call"),
        ];
        if *wrong > 0 {
            lines.push(format!(
                "                {wrong} wrong (called early, or ended otherwise than was answered)"
            ));
        }
        lines
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
            "namespace": spec.namespace,
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
            "callbacks": self.calls.map(|calls| {
                let (p50, p99) = calls.late_ms();
                json!({
                    "created": calls.created,
                    "called": calls.called,
                    "retried": calls.retried,
                    "finished": calls.finished,
                    "failed": calls.failed,
                    "open": calls.open,
                    "pending": calls.pending(),
                    "wrong": calls.wrong,
                    "lateness_ms": { "p50": p50, "p99": p99 },
                })
            }),
        })
    }
}
