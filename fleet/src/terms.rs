//! A limit's declaration in the numbers that the store counts with.

use std::fmt;

use shmlimit::Window;
use shmlimit::declare::Weekday;
use shmlimit::fleet::{LeasedLimit, LeasedRule};
use thiserror::Error;

use shmlimit::debug_is_message;

/// Scripts count with doubles, which are exact for whole numbers up to 2^53. Within this bound, the sum of two
/// numbers is exact too.
const MAX_EXACT: u128 = 1 << 52;

const NANOS_PER_MICROSECOND: u64 = 1_000;
const MIN_LEASE_MICROS: u64 = 100_000;
const MAX_LEASE_MICROS: u64 = 86_400_000_000;

/// Why the store cannot count a limit.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TermsError {
    /// A number that must be positive is zero.
    #[error("{0} is 0: it must be positive")]
    Zero(&'static str),
    /// The lease is too short or too long.
    #[error("a lease of {given_micros} us: it must be between 100 ms and 1 day")]
    Lease {
        /// The declared lease, in microseconds.
        given_micros: u128,
    },
    /// The store's arithmetic is exact only up to 2^52.
    #[error(
        "{what} {given} is more than the store counts exactly, which is {max}: declare a larger unit, or a rate and a \
         period with common factors"
    )]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The declared number.
        given: u64,
        /// The largest number that can be counted with the rest of the declaration.
        max: u64,
    },
    /// The store counts windows in whole microseconds.
    #[error("a window of {given_nanos} ns is not a whole number of microseconds")]
    Window {
        /// The declared window, in nanoseconds.
        given_nanos: u128,
    },
    /// The library is newer than this client.
    #[error("{declared}: this version of the client does not know such limits: update it")]
    Unknown {
        /// The declaration.
        declared: String,
    },
}

debug_is_message!(TermsError);

/// How time is cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// Multiples of this many microseconds since the Unix epoch.
    Length(u64),
    /// Days, at this offset in seconds east of UTC.
    Day(i32),
    /// Weeks, at this offset, that begin this many days after Monday.
    Week(i32, u8),
    /// Months, at this offset.
    Month(i32),
}

/// How the store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A level that falls with time.
    Backlog,
    /// A count that starts over with each window.
    Window,
    /// Units that are given back.
    Places,
}

/// A declaration, checked to be within what the store counts exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub(crate) kind: Kind,
    pub(crate) burst: u64,
    /// How much a level falls per quantum, in units times the period.
    pub(crate) units: u64,
    /// How much one unit adds to a level.
    pub(crate) period: u64,
    /// In microseconds.
    pub(crate) quantum: u64,
    /// In microseconds.
    pub(crate) lease: u64,
    pub(crate) window: Option<Windows>,
    pub(crate) version: u64,
    /// The declaration as text, by which hosts are compared.
    fingerprint: String,
}

impl Terms {
    /// Checks a declaration. If two hosts differ, the declaration with the higher `version` is in force; with equal
    /// versions, the first.
    ///
    /// # Errors
    ///
    /// [`TermsError`] for numbers that the store cannot count with.
    pub fn new(declared: &LeasedLimit, version: u64) -> Result<Self, TermsError> {
        let lease = declared.lease.as_micros();
        let lease = u64::try_from(lease)
            .ok()
            .filter(|lease| (MIN_LEASE_MICROS..=MAX_LEASE_MICROS).contains(lease))
            .ok_or(TermsError::Lease { given_micros: lease })?;
        let terms = Self {
            kind: Kind::Places,
            burst: 0,
            units: 0,
            period: 1,
            quantum: 1,
            lease,
            window: None,
            // Exact up to this number, which no real version comes near.
            version: version.min(saturated(MAX_EXACT)),
            fingerprint: declared.to_string(),
        };
        let unknown = || TermsError::Unknown {
            declared: declared.to_string(),
        };
        let in_windows = |terms: Self, capacity, window| {
            Ok(Self {
                kind: Kind::Window,
                burst: countable("the capacity", capacity)?,
                window: Some(window),
                ..terms
            })
        };
        match declared.rule {
            LeasedRule::Backlog {
                capacity,
                window,
                burst,
            } => terms.with_backlog(capacity, window.as_nanos(), burst),
            LeasedRule::Window { capacity, window } => {
                let nanos = window.as_nanos();
                if nanos == 0 {
                    return Err(TermsError::Zero("the window"));
                }
                if nanos % u128::from(NANOS_PER_MICROSECOND) != 0 {
                    return Err(TermsError::Window { given_nanos: nanos });
                }
                let micros = countable("the window", saturated(nanos / u128::from(NANOS_PER_MICROSECOND)))?;
                in_windows(terms, capacity, Windows::Length(micros))
            }
            LeasedRule::Calendar {
                capacity,
                window,
                utc_offset_minutes,
                week_start,
            } => {
                let east = i32::from(utc_offset_minutes) * 60;
                let window = match window {
                    Window::Day => Windows::Day(east),
                    Window::Week => Windows::Week(east, days_after_monday(week_start)),
                    Window::Month => Windows::Month(east),
                    _ => return Err(unknown()),
                };
                in_windows(terms, capacity, window)
            }
            LeasedRule::Concurrency { places } => Ok(Self {
                burst: countable("the capacity", places)?,
                ..terms
            }),
            _ => Err(unknown()),
        }
    }

    /// Uses the finest quantum of time in which both the burst and what is replenished during one lease are exact.
    fn with_backlog(self, units: u64, period: u128, burst: u64) -> Result<Self, TermsError> {
        if units == 0 {
            return Err(TermsError::Zero("the rate"));
        }
        if period == 0 {
            return Err(TermsError::Zero("the period"));
        }
        let burst = countable("the burst", burst)?;
        let mut max = 0;
        for quantum in (0..=6).map(|exponent| 10_u64.pow(exponent)) {
            let per_quantum = u128::from(units) * u128::from(quantum * NANOS_PER_MICROSECOND);
            let common = greatest_common_divisor(per_quantum, period);
            let (per_quantum, period) = (per_quantum / common, period / common);
            let in_a_lease = per_quantum.saturating_mul(u128::from(self.lease / quantum + 1));
            if u128::from(burst).saturating_mul(period) <= MAX_EXACT && in_a_lease <= MAX_EXACT {
                return Ok(Self {
                    kind: Kind::Backlog,
                    burst,
                    units: saturated(per_quantum),
                    period: saturated(period),
                    quantum,
                    ..self
                });
            }
            if in_a_lease <= MAX_EXACT {
                max = max.max(saturated(MAX_EXACT / period));
            }
        }
        Err(TermsError::TooLarge {
            what: "the burst",
            given: burst,
            max,
        })
    }

    /// The declaration on one line, by which hosts are compared.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// The ten words that the script reads.
impl fmt::Display for Terms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Backlog => "backlog",
            Kind::Window => "window",
            Kind::Places => "places",
        };
        let Self {
            burst,
            units,
            period,
            quantum,
            lease,
            ..
        } = self;
        write!(formatter, "{kind} {burst} {units} {period} {quantum} {lease} ")?;
        match self.window {
            None => write!(formatter, "none 0 0 0"),
            Some(Windows::Length(micros)) => write!(formatter, "length {micros} 0 0"),
            Some(Windows::Day(east)) => write!(formatter, "day 0 {east} 0"),
            Some(Windows::Week(east, start)) => write!(formatter, "week 0 {east} {start}"),
            Some(Windows::Month(east)) => write!(formatter, "month 0 {east} 0"),
        }
    }
}

/// Describes how two fingerprints differ, as in `burst=100 here, burst=200 in the store`.
#[must_use]
pub fn difference(here: &str, in_force: &str) -> String {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (here, in_force) = (words(here), words(in_force));
    let only = |these: &[String], others: &[String]| {
        let only: Vec<_> = these
            .iter()
            .filter(|word| !others.contains(word))
            .map(String::as_str)
            .collect();
        if only.is_empty() {
            "nothing".to_owned()
        } else {
            only.join(" ")
        }
    };
    format!(
        "{} here, {} in the store",
        only(&here, &in_force),
        only(&in_force, &here)
    )
}

fn days_after_monday(day: Weekday) -> u8 {
    match day {
        Weekday::Monday => 0,
        Weekday::Tuesday => 1,
        Weekday::Wednesday => 2,
        Weekday::Thursday => 3,
        Weekday::Friday => 4,
        Weekday::Saturday => 5,
        Weekday::Sunday => 6,
    }
}

fn countable(what: &'static str, given: u64) -> Result<u64, TermsError> {
    if given == 0 {
        return Err(TermsError::Zero(what));
    }
    let max = saturated(MAX_EXACT);
    if given > max {
        return Err(TermsError::TooLarge { what, given, max });
    }
    Ok(given)
}

fn greatest_common_divisor(first: u128, second: u128) -> u128 {
    let (mut larger, mut smaller) = (first, second);
    while smaller > 0 {
        (larger, smaller) = (smaller, larger % smaller);
    }
    larger
}

fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
