//! Metrics for Prometheus, in its text format or that of OpenMetrics. Names and labels are stable;
//! `docs/reference/metrics.md` lists them. Keys are never exported: there may be millions, and they may identify
//! people.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use shmlimit::Error;
use shmlimit::fleet::LeaseSnapshot;
use shmlimit::snapshot::{LimitSnapshot, SegmentReader, SegmentSnapshot, SetSnapshot};

use crate::live::usage::is_by_key;
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
    /// The header of a family, before its samples.
    fn head(self, family: &Family) -> String {
        let Family { name, kind, help, .. } = *family;
        let name = match self {
            Self::Prometheus => name,
            Self::OpenMetrics => name.strip_suffix(TOTAL).unwrap_or(name),
        };
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
    for family in FAMILIES {
        let head = text.len();
        text.push_str(&format.head(family));
        let body = text.len();
        for segment in segments.clone() {
            for set in &segment.sets {
                (family.write)(&mut Samples {
                    format,
                    text: &mut text,
                    name: family.name,
                    segment: &segment.path.to_string_lossy(),
                    set,
                });
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

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    write: fn(&mut Samples<'_>),
}

const FAMILIES: &[Family] = &[
    Family {
        name: "shmlimit_requests_total",
        kind: "counter",
        help: "Requests by result: of each limit, and with an empty limit of the set, where each request counts once.",
        write: requests,
    },
    Family {
        name: "shmlimit_active_permits",
        kind: "gauge",
        help: "Permits of live processes that hold something: of each limit, and with an empty limit of the set.",
        write: active_permits,
    },
    Family {
        name: "shmlimit_queued",
        kind: "gauge",
        help: "Requests that wait in the queue.",
        write: |samples| samples.add(&[], samples.set.queued()),
    },
    Family {
        name: "shmlimit_wait_seconds",
        kind: "histogram",
        help: "How long requests had waited in the queue when they were admitted.",
        write: wait_seconds,
    },
    Family {
        name: "shmlimit_permit_seconds",
        kind: "gauge",
        help: "How long the permits that are out have been held: the oldest of them, and their mean.",
        write: permit_seconds,
    },
    Family {
        name: "shmlimit_lapsed_total",
        kind: "counter",
        help: "Grants that were taken back because they were not collected while others waited.",
        write: |samples| samples.add(&[], samples.set.counts.lapsed),
    },
    Family {
        name: "shmlimit_reclaimed_total",
        kind: "counter",
        help: "Permits of dead processes that were given back.",
        write: |samples| samples.add(&[], samples.set.counts.reclaimed),
    },
    Family {
        name: "shmlimit_recoveries_total",
        kind: "counter",
        help: "Times the lock of the set was found with a dead owner, and recovered.",
        write: |samples| samples.add(&[], samples.set.counts.recoveries),
    },
    Family {
        name: "shmlimit_evicted_total",
        kind: "counter",
        help: "Keys whose row was given to another key: with nothing used, which loses nothing, or with something in use.",
        write: evicted,
    },
    Family {
        name: "shmlimit_limit_capacity",
        kind: "gauge",
        help: "The most that can be left of a limit, in the amounts of its declaration; none where each key has its own.",
        write: |samples| {
            of_whole_limits(samples, |limit| {
                Some(limit.format_units(limit.found_capacity.or(limit.capacity)?))
            });
        },
    },
    Family {
        name: "shmlimit_limit_remaining",
        kind: "gauge",
        help: "What is left of a limit, in the amounts of its declaration; none where each key has its own.",
        write: |samples| {
            of_whole_limits(samples, |limit| {
                limit.capacity?;
                Some(limit.format_units(limit.remaining))
            });
        },
    },
    Family {
        name: "shmlimit_near_limit_total",
        kind: "counter",
        help: "Requests that were admitted and left the limit near its capacity.",
        write: |samples| {
            let set = samples.set;
            for limit in &set.limits {
                samples.add(&[("limit", &limit.name)], limit.counts.near);
            }
        },
    },
    Family {
        name: "shmlimit_would_refuse_total",
        kind: "counter",
        help: "Requests that the limit would have refused if it were not in shadow.",
        write: |samples| {
            for limit in &samples.set.limits {
                samples.add(&[("limit", &limit.name)], limit.counts.would_refuse);
            }
        },
    },
    Family {
        name: "shmlimit_lease_units",
        kind: "gauge",
        help: "What this host has leased of a limit that hosts share and not spent, in the amounts of its declaration.",
        write: |samples| of_leased_limits(samples, |limit, lease| limit.format_units(lease.left)),
    },
    Family {
        name: "shmlimit_lease_valid_seconds",
        kind: "gauge",
        help: "How long what is leased may still be spent; zero if nothing is leased.",
        write: |samples| of_leases(samples, |lease| lease.valid_for.as_secs_f64()),
    },
    Family {
        name: "shmlimit_store_out_seconds",
        kind: "gauge",
        help: "For how long the store of a limit that hosts share has been out; zero where it answers.",
        write: |samples| {
            of_leases(samples, |lease| lease.out_for.unwrap_or_default().as_secs_f64());
        },
    },
    Family {
        name: "shmlimit_lease_requests_total",
        kind: "counter",
        help: "Requests of this host for leases, answers that granted something, and attempts that came to nothing.",
        write: lease_requests,
    },
    Family {
        name: "shmlimit_lease_expired_units_total",
        kind: "counter",
        help: "What was leased and not spent when its lease ran out, in the amounts of the limit's declaration.",
        write: |samples| {
            of_leased_limits(samples, |limit, lease| {
                limit.format_units(lease.counts.expired_units)
            });
        },
    },
];

/// The limits of a set that hosts share, and their leases.
fn leases(set: &SetSnapshot) -> impl Iterator<Item = (&LimitSnapshot, &LeaseSnapshot)> {
    let shared = set.limits.iter();
    shared.filter_map(|limit| Some((limit, limit.lease.as_ref()?)))
}

/// A figure of each limit that all requests share.
fn of_whole_limits(samples: &mut Samples<'_>, figure: impl Fn(&LimitSnapshot) -> Option<String>) {
    let set = samples.set;
    for limit in set.limits.iter().filter(|limit| !is_by_key(set, limit)) {
        if let Some(figure) = figure(limit) {
            samples.add(&[("limit", &limit.name)], figure);
        }
    }
}

fn of_leases(samples: &mut Samples<'_>, figure: impl Fn(&LeaseSnapshot) -> f64) {
    for (limit, lease) in leases(samples.set) {
        samples.add(&[("limit", &limit.name)], figure(lease));
    }
}

fn of_leased_limits(samples: &mut Samples<'_>, figure: impl Fn(&LimitSnapshot, &LeaseSnapshot) -> String) {
    for (limit, lease) in leases(samples.set) {
        samples.add(&[("limit", &limit.name)], figure(limit, lease));
    }
}

fn lease_requests(samples: &mut Samples<'_>) {
    for (limit, lease) in leases(samples.set) {
        let counts = lease.counts;
        for (result, number) in [
            ("asked", counts.requests),
            ("granted", counts.grants),
            ("failed", counts.failures),
        ] {
            samples.add(&[("limit", &limit.name), ("result", result)], number);
        }
    }
}

fn requests(samples: &mut Samples<'_>) {
    let set = samples.set;
    let of_set = [
        ("admitted", set.counts.admitted),
        ("refused", set.counts.refused()),
        ("timed_out", set.counts.timed_out),
    ];
    for (result, number) in of_set {
        samples.add(&[("limit", ""), ("result", result)], number);
    }
    // The limit that a request waited for may have changed meanwhile, so timeouts count for the set, not for a limit.
    let of_limit = |limit: &LimitSnapshot| {
        [
            ("admitted", limit.counts.admitted),
            ("refused", limit.counts.refused),
        ]
    };
    for limit in &set.limits {
        for (result, number) in of_limit(limit) {
            samples.add(&[("limit", &limit.name), ("result", result)], number);
        }
    }
}

fn active_permits(samples: &mut Samples<'_>) {
    let set = samples.set;
    if set.hold_capacity == 0 {
        return;
    }
    samples.add(&[("limit", "")], set.active);
    for limit in &set.limits {
        samples.add(&[("limit", &limit.name)], set.active_permits(&limit.name));
    }
}

fn wait_seconds(samples: &mut Samples<'_>) {
    let times = &samples.set.wait_times;
    let mut below = 0_u64;
    for (power, number) in times.iter().enumerate() {
        below = below.saturating_add(*number);
        // The last bucket has no end.
        let end = if power + 1 == times.len() {
            "+Inf".to_owned()
        } else {
            samples.format.bucket_end(power)
        };
        samples.add_to("_bucket", &[("le", &end)], below);
    }
    samples.add_to("_sum", &[], samples.set.wait_time.as_secs_f64());
    samples.add_to("_count", &[], below);
}

fn permit_seconds(samples: &mut Samples<'_>) {
    let set = samples.set;
    if set.hold_capacity == 0 {
        return;
    }
    let held_for = set.live_holds().map(|hold| hold.held_for.as_secs_f64());
    let (mut number, mut sum, mut oldest) = (0_u32, 0.0, 0.0_f64);
    for seconds in held_for {
        number = number.saturating_add(1);
        sum += seconds;
        oldest = oldest.max(seconds);
    }
    samples.add(&[("kind", "mean")], sum / f64::from(number.max(1)));
    samples.add(&[("kind", "oldest")], oldest);
}

fn evicted(samples: &mut Samples<'_>) {
    if let Some(keys) = &samples.set.keys {
        samples.add(&[("kind", "in_use")], keys.evicted_in_use);
        samples.add(&[("kind", "unused")], keys.evicted_unused);
    }
}

/// Writes the samples of a family for a set.
struct Samples<'a> {
    format: Format,
    text: &'a mut String,
    name: &'a str,
    segment: &'a str,
    set: &'a SetSnapshot,
}

impl Samples<'_> {
    fn add(&mut self, labels: &[(&str, &str)], value: impl ToString) {
        self.add_to("", labels, value);
    }

    fn add_to(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl ToString) {
        let of_all = [("segment", self.segment), ("set", self.set.name.as_str())];
        let labels = of_all.iter().chain(labels);
        let labels: Vec<String> = labels
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        _ = writeln!(
            self.text,
            "{}{suffix}{{{}}} {}",
            self.name,
            labels.join(","),
            value.to_string()
        );
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
