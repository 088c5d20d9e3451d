//! The metrics of sets, in one list: `limitctl export` writes them out, and a program's recorder is given them. Keys are
//! never among their labels: there may be millions, and they may identify people.

use std::time::Duration;

use super::fleet::LeaseSnapshot;
use super::snapshot::{LimitSnapshot, SetSnapshot};
use crate::choices::Scope;

/// A metric that sets have, and how it is read from the snapshot of one.
///
/// `limitctl export` and `SegmentSnapshot::record_metrics` report [all](Self::all) of them; this is for programs that
/// report them in another way. Names and labels are stable.
///
/// ```
/// use shmlimit::snapshot::{Metric, MetricValue, SegmentReader};
/// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("limits");
/// # let declaration = Declaration::new()
/// #     .add_set(SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 8)));
/// # let _segment = Segment::create(&path, &declaration)?;
/// let snapshot = SegmentReader::open(&path)?.snapshot()?;
/// for set in &snapshot.sets {
///     for metric in Metric::all() {
///         for sample in metric.samples(set) {
///             if let MetricValue::Count(count) = sample.value {
///                 println!("{} of {} {:?}: {count}", metric.name, set.name, sample.labels);
///             }
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Metric {
    /// Its name, such as `shmlimit_requests_total`.
    pub name: &'static str,
    /// What its values are.
    pub kind: MetricKind,
    /// What it means, in a sentence.
    pub help: &'static str,
    read: for<'a> fn(&'a SetSnapshot, &mut Vec<MetricSample<'a>>),
}

/// What the values of a [`Metric`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A number that rises, until the counters are reset.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A [distribution](MetricValue::Distribution).
    Histogram,
}

/// A value of a [`Metric`], with the labels that tell it from the other values of its set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MetricSample<'a> {
    /// The names and values of its labels, besides those that name the segment and the set.
    pub labels: Vec<(&'static str, &'a str)>,
    /// The value.
    pub value: MetricValue<'a>,
}

/// The value of a [`MetricSample`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MetricValue<'a> {
    /// A number of requests, permits or keys.
    Count(u64),
    /// An amount of a limit, as a decimal number in the terms of its declaration.
    Amount(String),
    /// A time, to be reported in seconds.
    Time(Duration),
    /// How many of what took how long.
    Distribution {
        /// By how long it took: up to 1 µs, 2 µs, 4 µs and so on; the last has no upper end.
        counts: &'a [u64],
        /// How long all of them took together.
        sum: Duration,
    },
}

impl Metric {
    /// All metrics, in the order in which they are reported.
    pub fn all() -> &'static [Self] {
        METRICS
    }

    /// Its values for a set: none if the set has nothing of the kind.
    pub fn samples<'a>(&self, set: &'a SetSnapshot) -> Vec<MetricSample<'a>> {
        let mut samples = Vec::new();
        (self.read)(set, &mut samples);
        samples
    }
}

const METRICS: &[Metric] = &[
    Metric {
        name: "shmlimit_requests_total",
        kind: MetricKind::Counter,
        help: "Requests by result: of each limit, and with an empty limit of the set, where each request counts once.",
        read: requests,
    },
    Metric {
        name: "shmlimit_active_permits",
        kind: MetricKind::Gauge,
        help: "Permits of live processes that hold something: of each limit, and with an empty limit of the set.",
        read: active_permits,
    },
    Metric {
        name: "shmlimit_queued",
        kind: MetricKind::Gauge,
        help: "Requests that wait in the queue.",
        read: |set, samples| samples.push(count(&[], set.queued())),
    },
    Metric {
        name: "shmlimit_wait_seconds",
        kind: MetricKind::Histogram,
        help: "How long requests had waited in the queue when they were admitted.",
        read: |set, samples| {
            samples.push(sample(
                &[],
                MetricValue::Distribution {
                    counts: &set.wait_times,
                    sum: set.wait_time,
                },
            ));
        },
    },
    Metric {
        name: "shmlimit_permit_seconds",
        kind: MetricKind::Gauge,
        help: "How long the permits that are out have been held: the oldest of them, and their mean.",
        read: permit_seconds,
    },
    Metric {
        name: "shmlimit_lapsed_total",
        kind: MetricKind::Counter,
        help: "Grants that were taken back because they were not collected while others waited.",
        read: |set, samples| samples.push(count(&[], set.counts.lapsed)),
    },
    Metric {
        name: "shmlimit_reclaimed_total",
        kind: MetricKind::Counter,
        help: "Permits of dead processes that were given back.",
        read: |set, samples| samples.push(count(&[], set.counts.reclaimed)),
    },
    Metric {
        name: "shmlimit_recoveries_total",
        kind: MetricKind::Counter,
        help: "Times the lock of the set was found with a dead owner, and recovered.",
        read: |set, samples| samples.push(count(&[], set.counts.recoveries)),
    },
    Metric {
        name: "shmlimit_evicted_total",
        kind: MetricKind::Counter,
        help: "Keys whose row was given to another key: with nothing used, which loses nothing, or with something in use.",
        read: evicted,
    },
    Metric {
        name: "shmlimit_limit_capacity",
        kind: MetricKind::Gauge,
        help: "The most that can be left of a limit, in the amounts of its declaration; none where each key has its own.",
        read: |set, samples| {
            of_whole_limits(set, samples, |limit| limit.found_capacity.or(limit.capacity));
        },
    },
    Metric {
        name: "shmlimit_limit_remaining",
        kind: MetricKind::Gauge,
        help: "What is left of a limit, in the amounts of its declaration; none where each key has its own.",
        read: |set, samples| {
            of_whole_limits(set, samples, |limit| limit.capacity.map(|_| limit.remaining));
        },
    },
    Metric {
        name: "shmlimit_near_limit_total",
        kind: MetricKind::Counter,
        help: "Requests that were admitted and left the limit near its capacity.",
        read: |set, samples| of_limits(set, samples, |limit| limit.counts.near),
    },
    Metric {
        name: "shmlimit_would_refuse_total",
        kind: MetricKind::Counter,
        help: "Requests that the limit would have refused if it were not in shadow.",
        read: |set, samples| of_limits(set, samples, |limit| limit.counts.would_refuse),
    },
    Metric {
        name: "shmlimit_lease_units",
        kind: MetricKind::Gauge,
        help: "What this host has leased of a limit that hosts share and not spent, in the amounts of its declaration.",
        read: |set, samples| {
            of_leases(set, samples, |limit, lease| {
                MetricValue::Amount(limit.format_units(lease.left))
            });
        },
    },
    Metric {
        name: "shmlimit_lease_valid_seconds",
        kind: MetricKind::Gauge,
        help: "How long what is leased may still be spent; zero if nothing is leased.",
        read: |set, samples| of_leases(set, samples, |_, lease| MetricValue::Time(lease.valid_for)),
    },
    Metric {
        name: "shmlimit_store_out_seconds",
        kind: MetricKind::Gauge,
        help: "For how long the store of a limit that hosts share has been out; zero where it answers.",
        read: |set, samples| {
            of_leases(set, samples, |_, lease| {
                MetricValue::Time(lease.out_for.unwrap_or_default())
            });
        },
    },
    Metric {
        name: "shmlimit_lease_requests_total",
        kind: MetricKind::Counter,
        help: "Requests of this host for leases, answers that granted something, and attempts that came to nothing.",
        read: lease_requests,
    },
    Metric {
        name: "shmlimit_lease_expired_units_total",
        kind: MetricKind::Counter,
        help: "What was leased and not spent when its lease ran out, in the amounts of the limit's declaration.",
        read: |set, samples| {
            of_leases(set, samples, |limit, lease| {
                MetricValue::Amount(limit.format_units(lease.counts.expired_units))
            });
        },
    },
];

fn sample<'a>(labels: &[(&'static str, &'a str)], value: MetricValue<'a>) -> MetricSample<'a> {
    MetricSample {
        labels: labels.to_vec(),
        value,
    }
}

fn count<'a>(labels: &[(&'static str, &'a str)], count: u64) -> MetricSample<'a> {
    sample(labels, MetricValue::Count(count))
}

/// A count of each result, for a limit or, if that is empty, for the set.
fn by_result<'a>(
    limit: &'a str,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> impl Iterator<Item = MetricSample<'a>> {
    let counts = counts.into_iter();
    counts.map(move |(result, number)| count(&[("limit", limit), ("result", result)], number))
}

fn requests<'a>(set: &'a SetSnapshot, samples: &mut Vec<MetricSample<'a>>) {
    let of_set = [
        ("admitted", set.counts.admitted),
        ("refused", set.counts.refused()),
        ("timed_out", set.counts.timed_out),
    ];
    samples.extend(by_result("", of_set));
    // The limit that a request waited for may have changed meanwhile, so timeouts count for the set, not for a limit.
    for limit in &set.limits {
        let of_limit = [
            ("admitted", limit.counts.admitted),
            ("refused", limit.counts.refused),
        ];
        samples.extend(by_result(&limit.name, of_limit));
    }
}

fn active_permits<'a>(set: &'a SetSnapshot, samples: &mut Vec<MetricSample<'a>>) {
    if set.hold_capacity > 0 {
        samples.push(count(&[("limit", "")], set.active));
        of_limits(set, samples, |limit| set.active_permits(&limit.name));
    }
}

fn permit_seconds<'a>(set: &'a SetSnapshot, samples: &mut Vec<MetricSample<'a>>) {
    if set.hold_capacity == 0 {
        return;
    }
    let (mut number, mut sum, mut oldest) = (0_u32, Duration::ZERO, Duration::ZERO);
    for hold in set.live_holds() {
        number = number.saturating_add(1);
        sum = sum.saturating_add(hold.held_for);
        oldest = oldest.max(hold.held_for);
    }
    let mean = sum.checked_div(number).unwrap_or_default();
    samples.push(sample(&[("kind", "mean")], MetricValue::Time(mean)));
    samples.push(sample(&[("kind", "oldest")], MetricValue::Time(oldest)));
}

fn evicted<'a>(set: &'a SetSnapshot, samples: &mut Vec<MetricSample<'a>>) {
    if let Some(keys) = &set.keys {
        samples.push(count(&[("kind", "in_use")], keys.evicted_in_use));
        samples.push(count(&[("kind", "unused")], keys.evicted_unused));
    }
}

fn lease_requests<'a>(set: &'a SetSnapshot, samples: &mut Vec<MetricSample<'a>>) {
    for (limit, lease) in leases(set) {
        let of_lease = [
            ("asked", lease.counts.requests),
            ("granted", lease.counts.grants),
            ("failed", lease.counts.failures),
        ];
        samples.extend(by_result(&limit.name, of_lease));
    }
}

/// A count of each limit.
fn of_limits<'a>(
    set: &'a SetSnapshot,
    samples: &mut Vec<MetricSample<'a>>,
    number: impl Fn(&LimitSnapshot) -> u64,
) {
    let limits = set.limits.iter();
    samples.extend(limits.map(|limit| count(&[("limit", &limit.name)], number(limit))));
}

/// A number of units of each limit that all requests share.
fn of_whole_limits<'a>(
    set: &'a SetSnapshot,
    samples: &mut Vec<MetricSample<'a>>,
    units: impl Fn(&LimitSnapshot) -> Option<u64>,
) {
    let is_by_key = |limit: &LimitSnapshot| set.keys.is_some() && limit.scope == Scope::Key;
    for limit in set.limits.iter().filter(|limit| !is_by_key(limit)) {
        if let Some(units) = units(limit) {
            let amount = MetricValue::Amount(limit.format_units(units));
            samples.push(sample(&[("limit", &limit.name)], amount));
        }
    }
}

/// A value of each limit that hosts share.
fn of_leases<'a>(
    set: &'a SetSnapshot,
    samples: &mut Vec<MetricSample<'a>>,
    value: impl Fn(&LimitSnapshot, &LeaseSnapshot) -> MetricValue<'a>,
) {
    let leases = leases(set);
    samples.extend(leases.map(|(limit, lease)| sample(&[("limit", &limit.name)], value(limit, lease))));
}

/// The limits of a set that hosts share, and their leases.
fn leases(set: &SetSnapshot) -> impl Iterator<Item = (&LimitSnapshot, &LeaseSnapshot)> {
    let shared = set.limits.iter();
    shared.filter_map(|limit| Some((limit, limit.lease.as_ref()?)))
}
