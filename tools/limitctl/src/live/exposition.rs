//! Metrics for Prometheus, in its text format or that of OpenMetrics. `docs/reference/metrics.md` lists them.

use std::fmt::{Display, Write as _};
use std::path::Path;
use std::time::Duration;

use shmlimit::Error;
use shmlimit::snapshot::{Metric, MetricKind, MetricSample, MetricValue, SegmentReader, SegmentSnapshot};

use crate::text::human::as_text;
use crate::text::sanitise;

/// Copies a segment for export.
///
/// # Errors
///
/// Returns the errors of [`SegmentReader::open`].
pub fn copy(path: &Path) -> Result<SegmentSnapshot, Error> {
    let mut snapshot = SegmentReader::open(path)?.snapshot()?;
    snapshot.path = as_text(path);
    Ok(snapshot)
}

/// The format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format, 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0, in which a counter's name lacks the `_total` of its samples, units are declared, and the end is
    /// marked.
    OpenMetrics,
}

/// The suffix that OpenMetrics adds to the names of counters' samples.
const TOTAL: &str = "_total";

impl Format {
    /// The header of a metric, before its samples.
    fn head(self, metric: &Metric) -> String {
        let name = match self {
            Self::Prometheus => metric.name,
            Self::OpenMetrics => metric.name.strip_suffix(TOTAL).unwrap_or(metric.name),
        };
        let (kind, help) = (word(metric.kind), metric.help);
        let mut head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        if self == Self::OpenMetrics && name.ends_with("_seconds") {
            _ = writeln!(head, "# UNIT {name} seconds");
        }
        head
    }

    /// The upper end of the bucket of two to the power of `power` microseconds.
    fn bucket_end(self, power: usize) -> String {
        let seconds = Duration::from_micros(1 << power).as_secs_f64();
        match (self, power) {
            // OpenMetrics has only one form for powers of ten.
            (Self::OpenMetrics, 0) => format!("{seconds:e}").replace("e-6", "e-06"),
            _ => seconds.to_string(),
        }
    }
}

/// The metrics of segments, which must have distinct paths.
pub fn exposition<'a>(format: Format, segments: impl Iterator<Item = &'a SegmentSnapshot> + Clone) -> String {
    let mut text = String::new();
    for metric in Metric::all() {
        let head = text.len();
        text.push_str(&format.head(metric));
        let body = text.len();
        for segment in segments.clone() {
            for set in &segment.sets {
                let mut samples = Samples {
                    format,
                    text: &mut text,
                    name: metric.name,
                    segment: &segment.path.to_string_lossy(),
                    set: &set.name,
                };
                for sample in metric.samples(set) {
                    samples.add(&sample);
                }
            }
        }
        if text.len() == body {
            text.truncate(head);
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn word(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
        _ => "unknown",
    }
}

/// Writes the samples of a metric for a set.
struct Samples<'a> {
    format: Format,
    text: &'a mut String,
    name: &'a str,
    segment: &'a str,
    set: &'a str,
}

impl Samples<'_> {
    fn add(&mut self, sample: &MetricSample<'_>) {
        let labels = &sample.labels;
        match &sample.value {
            MetricValue::Count(count) => self.line("", labels, count),
            MetricValue::Amount(amount) => self.line("", labels, amount),
            MetricValue::Time(time) => self.line("", labels, time.as_secs_f64()),
            MetricValue::Distribution { counts, sum } => self.distribution(labels, counts, *sum),
            _ => {}
        }
    }

    fn distribution(&mut self, labels: &[(&str, &str)], counts: &[u64], sum: Duration) {
        let mut below = 0_u64;
        for (power, number) in counts.iter().enumerate() {
            below = below.saturating_add(*number);
            // The last bucket has no end.
            let end = if power + 1 == counts.len() {
                "+Inf".to_owned()
            } else {
                self.format.bucket_end(power)
            };
            self.line("_bucket", &[labels, &[("le", &end)]].concat(), below);
        }
        self.line("_sum", labels, sum.as_secs_f64());
        self.line("_count", labels, below);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let of_all = [("segment", self.segment), ("set", self.set)];
        let labels = of_all.iter().chain(labels);
        let labels: Vec<String> = labels
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        _ = writeln!(self.text, "{}{suffix}{{{}}} {value}", self.name, labels.join(","));
    }
}

/// A label's value, escaped as the format requires. Control characters that a terminal would obey are escaped, too.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            harmless if sanitise::is_harmless(harmless) => text.push(harmless),
            other => _ = write!(text, "\\\\u{{{:x}}}", u32::from(other)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_labels_are_escaped() {
        assert_eq!(escaped("größe \"a\" \\ \n"), r#"größe \"a\" \\ \n"#);
        assert_eq!(escaped("\u{1b}[2J"), r"\\u{1b}[2J");
    }
}
