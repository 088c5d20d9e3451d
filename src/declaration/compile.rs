//! Compiles a declared limit to the rule that decides.

use std::time::Duration;

use super::limit::adaptive::Adaptive;
use super::limit::amount::Amount;
use super::limit::checks::shortest_window::check_window;
use super::limit::credit::Credit;
use super::limit::prefix::Prefix;
use super::limit::window::Window;
use super::limit::{Algorithm, Align, Limit};
use super::location::{Location, check_range};
use crate::choices::Kind;
use crate::engine::terms::plan::LimitPlan;
use crate::error::DeclarationError;
use crate::limit::{
    self, AdaptiveAlgorithm, Backlog, Budget, Calendar, CalendarUnit, CapacityTerms, Concurrency,
    FixedWindow, InvalidLimit, LeaseTerms, LocalTime, Rule, SafeTerms, SlidingWindow, SlidingWindowCounter,
    Unlimited,
};
use crate::units::{NANOS_PER_SECOND, nanos_from_duration};

impl Limit {
    /// The rule of the limit, or what is wrong with it.
    pub(super) fn compile(
        &self,
        place: &Location<'_>,
        is_keyed: bool,
        has_lease_room: bool,
    ) -> Result<LimitPlan, DeclarationError> {
        self.check(place)?;
        check_window(place, "window", self.window)?;
        check_window(place, "interval", self.interval)?;
        // Checked as written, compiled as meant.
        let canonical = self.canonical();
        let terms = canonical.terms();
        let meant = canonical.per_window();
        let local = meant.rule(place)?;
        let rule = match &meant.fleet {
            Some(fleet) => {
                let capacity = meant.capacity_units().unwrap_or(1);
                let declared = meant.safe_units(place, capacity)?;
                let terms = LeaseTerms {
                    length: nanos_from_duration(meant.lease_length(fleet)).unwrap_or(u64::MAX),
                    outage: fleet.outage_policy(),
                    key: fleet.key_number(),
                    cold_wait: nanos_from_duration(fleet.cold_wait_length()).unwrap_or(u64::MAX),
                    safe: SafeTerms {
                        units: declared.unwrap_or(capacity),
                        is_divided: declared.is_none(),
                        window: meant.window.map_or(0, longest_nanos),
                    },
                    unleased: if is_keyed {
                        Some(meant.unleased_units(place, capacity)?)
                    } else {
                        None
                    },
                };
                let leased = local.leased(terms, self.refunds());
                leased.map_err(|invalid| unsuitable(place, &invalid))?.into()
            }
            None => local,
        };
        Ok(LimitPlan {
            name: self.name.clone(),
            kind: self.kind,
            unit: self.unit.clone().unwrap_or_else(|| "1".to_owned()),
            scope: self.scope.unwrap_or_default(),
            rule,
            window: meant.window.map_or(0, longest_nanos),
            // No key has a capacity of its own for a limit that all keys have together.
            terms: terms.filter(|_| !self.is_overall()),
            refunds: self.refunds(),
            lease: nanos(self.lease),
            shadow: self.shadow.unwrap_or_default(),
            // Checked to be a percentage.
            near_percent: meant.effective_near_limit() as u8,
            prefix: self.prefix.map(Prefix::lengths),
            credit: self.credit.as_ref().map(Credit::plan),
            has_lease_room,
            fleet_key: self.fleet.as_ref().map(|fleet| fleet.key().into()),
        })
    }

    /// The rule of an adaptive concurrency limit in canonical form.
    fn adaptive_rule(&self, place: &Location<'_>) -> Result<Option<Rule>, DeclarationError> {
        let amount = |field, amount: &Amount| {
            let units = self.units(amount);
            units.map_err(|invalid| place.value(field, amount, invalid))
        };
        let (Some(algorithm), Some(floor), Some(ceiling)) = (self.adaptive, &self.floor, &self.ceiling)
        else {
            return Ok(None);
        };
        let bounds = (amount("floor", floor)?, amount("ceiling", ceiling)?);
        let (Some(start), (Some(floor), Some(ceiling))) = (amount("capacity", &self.capacity)?, bounds)
        else {
            return Ok(None);
        };
        check_range(|| place.field("floor"), floor, 1, ceiling)?;
        check_range(|| place.field("capacity"), start, floor, ceiling)?;
        let algorithm = match algorithm {
            Adaptive::Aimd => AdaptiveAlgorithm::Aimd {
                timeout: nanos(self.latency_limit).unwrap_or(u64::MAX),
            },
            Adaptive::Gradient => AdaptiveAlgorithm::Gradient,
            Adaptive::Vegas => AdaptiveAlgorithm::Vegas,
        };
        let rule = limit::Adaptive::new(algorithm, start, floor, ceiling);
        Ok(Some(Rule::Adaptive(
            rule.map_err(|invalid| unsuitable(place, &invalid))?,
        )))
    }

    /// The rule of a limit in canonical form and per window, whose fields have been checked one by one.
    fn rule(&self, place: &Location<'_>) -> Result<Rule, DeclarationError> {
        let amount = |field, amount: &Amount| {
            self.units(amount)
                .map_err(|invalid| place.value(field, amount, invalid))
        };
        let Some(capacity) = amount("capacity", &self.capacity)? else {
            return Ok(Unlimited.into());
        };
        let burst = match &self.burst {
            Some(burst) => amount("burst", burst)?.unwrap_or(capacity),
            None => capacity,
        };
        let nanos = match self.window {
            Some(Window::Span(length)) => nanos_from_duration(length).unwrap_or(u64::MAX),
            _ => 0,
        };
        let local = self.local_time(place)?;
        let rule = match (self.kind, self.effective_algorithm()) {
            (Kind::Budget, _) => self
                .fixed_window(capacity, nanos, local)
                .and_then(Budget::new)
                .map(Rule::Budget),
            (_, None) => match self.adaptive_rule(place)? {
                None => Concurrency::new(capacity).map(Rule::Concurrency),
                Some(rule) => Ok(rule),
            },
            (_, Some(Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket)) => {
                Backlog::new(capacity, nanos, burst).map(Rule::Backlog)
            }
            (_, Some(Algorithm::FixedWindow)) => {
                self.fixed_window(capacity, nanos, local).map(Rule::FixedWindow)
            }
            (_, Some(Algorithm::SlidingWindow)) => {
                SlidingWindow::new(capacity, nanos, self.effective_entries()).map(Rule::SlidingWindow)
            }
            (_, Some(Algorithm::SlidingWindowCounter)) => {
                SlidingWindowCounter::new(capacity, nanos, self.effective_buckets())
                    .map(Rule::SlidingWindowCounter)
            }
        };
        rule.map_err(|invalid| unsuitable(place, &invalid))
    }

    /// How the rule changes with a key's own capacity, for a limit in canonical form whose fields have been checked.
    /// As when a declaration changes, a burst equal to the capacity follows it, a burst of its own stays as it is,
    /// and with a rate the capacity is the size of the bucket.
    fn terms(&self) -> Option<CapacityTerms> {
        let by_rate = self.is_by_rate();
        let meant = self.clone().per_window();
        let capacity = meant.capacity_units()?;
        if self.adaptive.is_some() {
            return None;
        }
        let burst = meant.burst.as_ref().and_then(|burst| self.units(burst).ok()?);
        Some(CapacityTerms {
            window: match meant.window {
                Some(Window::Span(length)) => nanos_from_duration(length).unwrap_or(u64::MAX),
                _ => 0,
            },
            rate: by_rate.then_some(capacity),
            burst: burst.filter(|burst| !by_rate && *burst != capacity),
        })
    }

    /// The local time by which the days of a calendar window begin.
    pub(super) fn local_time(&self, place: &Location<'_>) -> Result<LocalTime, DeclarationError> {
        let Some(zone) = &self.time_zone else {
            let minutes = self.utc_offset.unwrap_or_default().minutes;
            return Ok(LocalTime::at_offset(i32::from(minutes) * 60));
        };
        zone.local_time()
            .map_err(|unknown| place.value("time_zone", zone, unknown))
    }

    /// How a calendar window divides time; `None` for others.
    fn calendar(&self, local: LocalTime) -> Option<Calendar> {
        let unit = match self.window? {
            Window::Day => CalendarUnit::Day,
            Window::Week => CalendarUnit::Week,
            Window::Month => CalendarUnit::Month,
            Window::Span(_) => return None,
        };
        Some(Calendar {
            unit,
            local,
            week_start: self.week_start.unwrap_or_default() as u8,
        })
    }

    /// The shortest period of a calendar window.
    pub(super) fn shortest_period(&self, place: &Location<'_>) -> Option<Duration> {
        let calendar = self.calendar(self.local_time(place).ok()?)?;
        Some(Duration::from_nanos(calendar.shortest_period()))
    }

    /// The rule of a fixed window, which follows `local` if it is a calendar window.
    fn fixed_window(&self, capacity: u64, nanos: u64, local: LocalTime) -> Result<FixedWindow, InvalidLimit> {
        match self.calendar(local) {
            Some(calendar) => FixedWindow::calendar(capacity, calendar),
            None if self.align == Some(Align::FirstUse) => FixedWindow::first_use(capacity, nanos),
            None => FixedWindow::utc(capacity, nanos),
        }
    }
}

/// A length of time in nanoseconds, already checked to fit 64 bits.
fn nanos(length: Option<Window>) -> Option<u64> {
    match length {
        Some(Window::Span(length)) => nanos_from_duration(length),
        _ => None,
    }
}

/// The error for a rule that cannot be built from the declared values.
fn unsuitable(place: &Location<'_>, invalid: &InvalidLimit) -> DeclarationError {
    match *invalid {
        InvalidLimit::InexactBurst { given, max } => DeclarationError::InexactBurst {
            place: place.here(),
            given,
            max,
        },
        _ => DeclarationError::Unsuitable {
            place: place.here(),
            reason: invalid.to_string(),
        },
    }
}

/// The greatest length of a window, in nanoseconds.
pub(in crate::declaration) fn longest_nanos(window: Window) -> u64 {
    let days = match window {
        Window::Span(length) => return nanos_from_duration(length).unwrap_or(u64::MAX),
        Window::Day => 1,
        Window::Week => 7,
        Window::Month => 31,
    };
    days * 86_400 * NANOS_PER_SECOND
}
