//! What arrived when, and how late: the course of a run, where percentiles over all of it hide what happened.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, BLUE, ChartBuilder, Color as _, DrawingArea, IntoDrawingArea as _, IntoFont as _,
    LineSeries, RED, RGBColor, SVGBackend, SeriesLabelPosition, WHITE,
};
use serde::Serialize;

/// Points of a course, at most.
const POINTS_MAX: u64 = 200;
/// The narrowest stretch that is told apart.
const STRETCH_MIN_MS: u64 = 5;
/// Size of a picture in pixels.
const SIZE: (u32, u32) = (960, 640);

/// One record that arrived: when, and how late, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_us: u64,
    late_us: u64,
}

/// Every record of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<Sample>);

/// A stretch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    /// Its middle, in seconds since the first due time.
    pub(super) at_seconds: f64,
    pub(super) records_per_second: f64,
    /// Lateness at the reader of what arrived in it; nothing where nothing did.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

impl Samples {
    pub(super) fn add(&mut self, at_us: u64, late_us: u64) {
        self.0.push(Sample { at_us, late_us });
    }

    /// The course in equal stretches.
    pub(super) fn course(&self) -> Vec<Point> {
        let first = self.0.iter().map(|s| s.at_us.saturating_sub(s.late_us)).min();
        let last = self.0.iter().map(|s| s.at_us).max();
        let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
        let stretch_us = ((last - first) / POINTS_MAX + 1).max(STRETCH_MIN_MS * 1_000);
        let count = (last - first) / stretch_us + 1;
        let mut late: Vec<Vec<u64>> = (0..count).map(|_| Vec::new()).collect();
        for sample in &self.0 {
            late[((sample.at_us - first) / stretch_us) as usize].push(sample.late_us);
        }
        let seconds = |us: u64| us as f64 / 1e6;
        late.into_iter()
            .enumerate()
            .map(|(n, mut late)| {
                late.sort_unstable();
                let at = |part: f64| {
                    let index = (late.len() as f64 * part) as usize;
                    Some(*late.get(index.min(late.len().checked_sub(1)?))? as f64 / 1_000.0)
                };
                Point {
                    at_seconds: seconds(n as u64 * stretch_us + stretch_us / 2),
                    records_per_second: late.len() as f64 / seconds(stretch_us),
                    p50_ms: at(0.5),
                    p99_ms: at(0.99),
                }
            })
            .collect()
    }
}

/// Draws a course: throughput above, lateness below.
///
/// # Errors
/// The file could not be written.
pub(super) fn draw(path: &Path, title: &str, course: &[Point]) -> std::io::Result<()> {
    let mut picture = String::new();
    drawn(&mut picture, title, course).map_err(std::io::Error::other)?;
    std::fs::write(path, picture)
}

/// A line of a chart: its name, its colour, its points.
type Line = (&'static str, RGBColor, Vec<(f64, f64)>);

fn drawn(
    picture: &mut String,
    title: &str,
    course: &[Point],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let root = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 20))?;
    let (above, below) = root.split_vertically(SIZE.1 / 2 - 20);
    let line = |of: fn(&Point) -> Option<f64>| -> Vec<(f64, f64)> {
        course.iter().filter_map(|point| Some((point.at_seconds, of(point)?))).collect()
    };
    let rate: Line = ("records a second", BLUE, line(|point| Some(point.records_per_second)));
    let p50: Line = ("lateness p50, ms", BLUE, line(|point| point.p50_ms));
    let p99: Line = ("lateness p99, ms", RED, line(|point| point.p99_ms));
    let end = course.last().map_or(1.0, |point| point.at_seconds);
    chart(&above, end, "records/s", &[rate])?;
    chart(&below, end, "ms late", &[p99, p50])?;
    root.present()?;
    Ok(())
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    end: f64,
    unit: &str,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let most = lines.iter().flat_map(|(_, _, points)| points).map(|(_, y)| *y).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds since the first was due")
        .y_desc(unit)
        .label_style(("sans-serif", 13).into_font())
        .light_line_style(WHITE)
        .draw()?;
    for (name, colour, points) in lines {
        let colour = *colour;
        chart.draw_series(LineSeries::new(points.iter().copied(), &colour))?.label(*name).legend(
            move |(x, y)| plotters::prelude::PathElement::new([(x, y), (x + 18, y)], colour),
        );
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        let mut samples = Samples::default();
        for n in 0..1_000_u64 {
            // One a millisecond, 2 ms late, and those of the last tenth 50 ms.
            let late = if n < 900 { 2_000 } else { 50_000 };
            samples.add(10_000_000 + n * 1_000 + late, late);
        }
        samples
    }

    #[test]
    fn a_course_counts_every_record_once_where_it_arrived() {
        let course = samples().course();
        assert!(course.len() as u64 <= POINTS_MAX + 1 && course.len() > 100, "{}", course.len());
        let stretch = course[1].at_seconds - course[0].at_seconds;
        let total: f64 = course.iter().map(|point| point.records_per_second * stretch).sum();
        assert!((total - 1_000.0).abs() < 1.0, "{total}");
        assert_eq!(course[course.len() / 2].p50_ms, Some(2.0));
        assert_eq!(course[course.len() - 1].p99_ms, Some(50.0));
        assert_eq!(Samples::default().course(), []);
    }

    #[test]
    fn a_picture_has_both_charts_and_their_lines() {
        let mut picture = String::new();
        drawn(&mut picture, "steady", &samples().course()).unwrap();
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{picture:.80}");
        for what in ["steady", "records/s", "lateness p99, ms", "<polyline"] {
            assert!(picture.contains(what), "no {what}");
        }
    }
}
