//! The most that a declared limit admits, in numbers.

use std::fmt;
use std::time::Duration;

use super::window::Window;
use super::{Algorithm, Align, Limit};
use crate::choices::Kind;
use crate::declaration::location::Location;
use crate::limit::window::window_bound;
use crate::units::nanos_from_duration;

/// The most that a calls or rate limit admits in any stretch of time as long as one window, wherever it begins.
///
/// [`Limit::bound`] computes it, and documents the rule. Displayed as in `at most 19 in any 2s`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bound {
    /// The amount in the units that the limit counts.
    pub units: u64,
    /// The amount in natural units: a decimal number, digits with at most one point.
    pub amount: String,
    /// How many units each process may add from a batch drawn earlier: 0 without [credit](Limit::credit).
    pub per_process: u64,
    /// The length of the stretch: the window; for calendar windows, the shortest one, such as 28 days for months, or 23
    /// hours for days of a [time zone](Limit::time_zone) with summer time.
    pub span: Duration,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} in any {}", self.amount, Window::Span(self.span))?;
        match self.per_process {
            0 => Ok(()),
            units => write!(f, ", and {units} units more for each process"),
        }
    }
}

impl Limit {
    /// The most that the limit admits in any stretch of time as long as its window, wherever it begins: what a
    /// provider would count at the worst moment.
    ///
    /// With capacity *c*, burst *b* (by default the capacity) and a window of many nanoseconds:
    ///
    /// | algorithm | at most | for 10 in 2 s |
    /// |---|---|---|
    /// | [`Gcra`](Algorithm::Gcra), [`TokenBucket`](Algorithm::TokenBucket), [`LeakyBucket`](Algorithm::LeakyBucket) | *c* + *b* - 1: the burst, plus what is replenished between the first and the last instant | 19 |
    /// | [`FixedWindow`](Algorithm::FixedWindow) | 2 *c*: the end of one window and the beginning of the next; 2 *c* - 1 with [`Align::FirstUse`] | 20; 19 |
    /// | [`SlidingWindow`](Algorithm::SlidingWindow) | *c*, however few [entries](Limit::entries) its log has: it refuses early instead | 10 |
    /// | [`SlidingWindowCounter`](Algorithm::SlidingWindowCounter) | 2 *c* - 1, and *c* in any stretch shorter by a sub-window | 19 |
    ///
    /// The number is also exact if there are more units than nanoseconds in the window, except that it may then be
    /// more than is ever reached. It covers what is admitted, by the clock of the segment (by another clock, a window
    /// is up to 10 µs shorter: see [`ClockSource`](crate::declare::ClockSource)). Not included are usage beyond what was
    /// reserved, refunds out of order (see the caveats), what a [reset](crate::LimitSet::reset) makes available again,
    /// and what becomes available when the wall clock is set forward and the window follows it.
    ///
    /// With [credit](Self::credit), each process may add what it had drawn before: [`Bound::per_process`]. If batches
    /// are sized automatically, that is the number for a single process; the more there are, the less each adds.
    ///
    /// `None` for a budget, which admits as long as anything remains and counts afterwards; for concurrency, whose
    /// capacity is its bound; for unlimited capacities; if the declaration is invalid; and if the number exceeds 64
    /// bits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::{Algorithm, Limit};
    ///
    /// let requests = Limit::calls("requests", 10, Duration::from_secs(2));
    /// let bound = |limit: &Limit| limit.bound().map(|bound| bound.to_string());
    /// assert_eq!(bound(&requests).as_deref(), Some("at most 19 in any 2s"));
    /// assert_eq!(bound(&requests.clone().burst(1)).as_deref(), Some("at most 10 in any 2s"));
    /// let sliding = requests.algorithm(Algorithm::SlidingWindow);
    /// assert_eq!(bound(&sliding).as_deref(), Some("at most 10 in any 2s"));
    /// ```
    pub fn bound(&self) -> Option<Bound> {
        let place = Location {
            set: "",
            tier: None,
            limit: Some(&self.name),
        };
        if !matches!(self.kind, Kind::Calls | Kind::Rate) || self.compile(&place, false, false).is_err() {
            return None;
        }
        let meant = self.canonical().per_window();
        let capacity = meant.capacity_units()?;
        let span = match meant.window? {
            Window::Span(length) => length,
            Window::Day | Window::Week | Window::Month => meant.shortest_period(&place)?,
        };
        let window = nanos_from_duration(span)?;
        let units = match meant.algorithm? {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let burst = meant.units(meant.burst.as_ref()?).ok()??;
                window_bound::of_backlog(capacity, window, burst)
            }
            Algorithm::FixedWindow if meant.align == Some(Align::FirstUse) => {
                window_bound::of_window_from_first_use(capacity, window)
            }
            Algorithm::FixedWindow => window_bound::of_aligned_window(capacity, window),
            Algorithm::SlidingWindow => capacity.into(),
            Algorithm::SlidingWindowCounter => {
                window_bound::of_sliding_counter(capacity, window, meant.effective_buckets().into())
            }
        };
        let units = u64::try_from(units).ok()?;
        let burst = meant.burst.as_ref().and_then(|burst| meant.units(burst).ok()?);
        let per_process = meant
            .credit
            .as_ref()
            .map_or(0, |credit| credit.per_process(burst.unwrap_or(capacity)));
        Some(Bound {
            units,
            amount: meant.format_units(units),
            per_process,
            span,
        })
    }
}
