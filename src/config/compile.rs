//! From a declared limit to the rule that decides.

use serde::Serialize;

use super::amount::Amount;
use super::limit::{Algorithm, Align, Limit, OnDeath};
use super::place::{Place, check_range};
use super::window::{UtcOffset, Weekday, Window};
use crate::engine::plan::{Kind, LimitPlan};
use crate::error::DeclarationError;
use crate::limit::{
    self, Budget, Calendar, CalendarUnit, Concurrency, FixedWindow, Gcra, InvalidLimit, LeakyBucket, Rule,
    SlidingWindow, SlidingWindowCounter, TokenBucket,
};
use crate::units::nanos_from_duration;

const MOST_ENTRIES: u64 = 65_536;

impl Limit {
    /// The rule that decides, or what is wrong with the limit.
    pub(super) fn compile(&self, place: &Place<'_>) -> Result<LimitPlan, DeclarationError> {
        self.check_fields_belong(place)?;
        self.check_fields_are_there(place)?;
        self.check_values(place)?;
        // Checked as it was written, compiled as it is meant.
        let rule = self.canonical().rule(place)?;
        Ok(LimitPlan {
            name: self.name.clone(),
            kind: self.kind,
            rule,
            refund_on_death: self.refunds_on_death(),
            lease: match self.lease {
                Some(Window::Span(lease)) => nanos_from_duration(lease),
                _ => None,
            },
        })
    }

    /// No field stands beside others that rob it of its meaning.
    fn check_fields_belong(&self, place: &Place<'_>) -> Result<(), DeclarationError> {
        let algorithm = self.effective_algorithm();
        let windowed = self.kind != Kind::Concurrency;
        let chooses = matches!(self.kind, Kind::Calls | Kind::Rate);
        let scaled = matches!(self.kind, Kind::Rate | Kind::Budget);
        let leaky = algorithm == Some(Algorithm::LeakyBucket);
        let fixed = algorithm == Some(Algorithm::FixedWindow);
        let by_rate = self.rate.is_some() || self.interval.is_some();
        let calendar = self.window.is_some_and(Window::is_calendar);

        let demand = |field, given: Option<String>, belongs: bool, advice: &str| match given {
            Some(given) if !belongs => Err(DeclarationError::Misplaced {
                place: place.field(field),
                given,
                advice: advice.to_owned(),
            }),
            _ => Ok(()),
        };
        demand(
            "unit",
            written(&self.unit),
            scaled,
            "calls and concurrency are counted in ones; remove it, or declare kind = \"rate\"",
        )?;
        demand(
            "algorithm",
            written(&self.algorithm),
            chooses || (self.kind == Kind::Budget && self.algorithm == Some(Algorithm::FixedWindow)),
            "a concurrency limit has no algorithm and a budget counts in a fixed window; remove it",
        )?;
        demand(
            "rate",
            written(&self.rate),
            leaky,
            "only a leaky bucket has a `rate` per `interval`; remove both and declare `capacity` per `window`, or \
             declare algorithm = \"leaky_bucket\"",
        )?;
        demand(
            "interval",
            written(&self.interval),
            leaky,
            "only a leaky bucket has a `rate` per `interval`; declare `window`, or algorithm = \"leaky_bucket\"",
        )?;
        demand(
            "window",
            written(&self.window),
            windowed,
            "a concurrency limit counts what is held now, over no window; remove it, or declare kind = \"calls\"",
        )?;
        demand(
            "window",
            written(&self.window),
            !by_rate,
            "`rate` per `interval` says already how fast the bucket drains; remove it, or remove both",
        )?;
        demand(
            "window",
            written(&self.window),
            !calendar || fixed,
            "only a fixed window follows the calendar; declare algorithm = \"fixed_window\", or a length such as \
             \"24h\"",
        )?;
        demand(
            "burst",
            written(&self.burst),
            algorithm.is_some_and(Algorithm::has_burst),
            "only gcra, token_bucket and leaky_bucket have a burst; remove it, or declare one of them",
        )?;
        demand(
            "burst",
            written(&self.burst),
            !by_rate,
            "beside `rate` per `interval`, `capacity` is the size of the bucket; remove it",
        )?;
        demand(
            "align",
            written(&self.align),
            fixed && !calendar,
            "only fixed windows and budgets with a length of time are aligned; remove it, or declare algorithm = \
             \"fixed_window\" with a window such as \"60s\"",
        )?;
        demand(
            "utc_offset",
            written(&self.utc_offset),
            calendar,
            "only calendar windows have an offset from UTC; remove it, or declare a window such as \
             \"calendar:day\"",
        )?;
        demand(
            "week_start",
            written(&self.week_start),
            self.window == Some(Window::Week),
            "only weeks start on a weekday; remove it, or declare window = \"calendar:week\"",
        )?;
        demand(
            "buckets",
            written(&self.buckets),
            algorithm == Some(Algorithm::SlidingWindowCounter),
            "only a sliding_window_counter has buckets; remove it, or declare that algorithm",
        )?;
        demand(
            "entries",
            written(&self.entries),
            algorithm == Some(Algorithm::SlidingWindow),
            "only a sliding_window has entries; remove it, or declare that algorithm",
        )?;
        demand(
            "on_death",
            written(&self.on_death),
            self.kind == Kind::Rate,
            "calls and debits stay charged, and what a concurrency limit lent always comes back; remove it, or \
             declare kind = \"rate\"",
        )?;
        demand(
            "on_death",
            written(&self.on_death),
            self.on_death != Some(OnDeath::Refund) || algorithm.is_some_and(Algorithm::refunds),
            "only gcra and token_bucket can give back; declare one of them, or on_death = \"charge\"",
        )?;
        demand(
            "lease",
            written(&self.lease),
            !windowed,
            "only a concurrency limit is lent; remove it, or declare kind = \"concurrency\"",
        )?;
        demand(
            "lease",
            written(&self.lease),
            !self.lease.is_some_and(Window::is_calendar),
            "a lease is a length of time, such as \"30s\"",
        )
    }

    fn check_fields_are_there(&self, place: &Place<'_>) -> Result<(), DeclarationError> {
        let demand = |field, there: bool, advice: &str| {
            let missing = || DeclarationError::Missing {
                place: place.field(field),
                advice: advice.to_owned(),
            };
            there.then_some(()).ok_or_else(missing)
        };
        demand(
            "interval",
            self.rate.is_none() || self.interval.is_some(),
            "declare in what time the bucket drains by `rate`, such as interval = \"1s\"",
        )?;
        demand(
            "rate",
            self.interval.is_none() || self.rate.is_some(),
            "declare how much drains per `interval`, such as rate = 10",
        )?;
        demand(
            "window",
            self.window.is_some()
                || self.interval.is_some()
                || self.kind == Kind::Concurrency
                || self.capacity.is_unlimited(),
            "declare over what time the capacity counts, such as window = \"60s\"",
        )
    }

    /// Every value is in its range, by the name of the field that holds it.
    fn check_values(&self, place: &Place<'_>) -> Result<(), DeclarationError> {
        if let Some(unit) = &self.unit {
            self.scale()
                .map_err(|invalid| place.value("unit", unit, invalid))?;
        }
        self.check_amount("capacity", &self.capacity, place)?;
        for (field, amount) in [("rate", &self.rate), ("burst", &self.burst)] {
            let Some(amount) = amount else { continue };
            if amount.is_unlimited() {
                return Err(place.value(field, amount, "is for `capacity` only: write a number"));
            }
            self.check_amount(field, amount, place)?;
        }
        for (field, window) in [
            ("window", self.window),
            ("interval", self.interval),
            ("lease", self.lease),
        ] {
            match window {
                Some(Window::Span(length)) if length.is_zero() => {
                    return Err(place.value(
                        field,
                        Window::Span(length),
                        "is no time: write a positive length",
                    ));
                }
                Some(Window::Span(length)) if nanos_from_duration(length).is_none() => {
                    return Err(place.value(
                        field,
                        Window::Span(length),
                        "is more than 584 years: choose less",
                    ));
                }
                Some(calendar) if field == "interval" && calendar.is_calendar() => {
                    return Err(place.value(field, calendar, "is no fixed length: write one such as \"1s\""));
                }
                _ => {}
            }
        }
        if let Some(offset) = self.utc_offset
            && offset.minutes.unsigned_abs() > UtcOffset::MOST_MINUTES
        {
            return Err(place.value(
                "utc_offset",
                offset,
                "is out of range: choose from -18:00 to +18:00",
            ));
        }
        if let Some(entries) = self.entries {
            check_range(|| place.field("entries"), entries.into(), 1, MOST_ENTRIES)?;
        }
        Ok(())
    }

    fn check_amount(&self, field: &str, amount: &Amount, place: &Place<'_>) -> Result<(), DeclarationError> {
        match self
            .units(amount)
            .map_err(|invalid| place.value(field, amount, invalid))?
        {
            Some(0) => Err(DeclarationError::OutOfRange {
                place: place.field(field),
                given: 0,
                least: 1,
                most: u64::MAX,
            }),
            _ => Ok(()),
        }
    }

    /// The rule of a limit in its canonical form, whose fields have been checked one by one.
    fn rule(&self, place: &Place<'_>) -> Result<Rule, DeclarationError> {
        let amount = |field, amount: &Amount| {
            self.units(amount)
                .map_err(|invalid| place.value(field, amount, invalid))
        };
        let Some(capacity) = amount("capacity", &self.capacity)? else {
            return Ok(Rule::Unlimited);
        };
        let burst = match &self.burst {
            Some(burst) => amount("burst", burst)?.unwrap_or(capacity),
            None => capacity,
        };
        let nanos = match self.window {
            Some(Window::Span(length)) => nanos_from_duration(length).unwrap_or(u64::MAX),
            _ => 0,
        };
        let rule = match (self.kind, self.effective_algorithm()) {
            (Kind::Budget, _) => self
                .fixed_window(capacity, nanos)
                .and_then(Budget::new)
                .map(Rule::Budget),
            (_, None) => Concurrency::new(capacity).map(Rule::Concurrency),
            (_, Some(Algorithm::Gcra)) => Gcra::new(capacity, nanos, burst).map(Rule::Gcra),
            (_, Some(Algorithm::TokenBucket)) => {
                TokenBucket::new(capacity, nanos, burst).map(Rule::TokenBucket)
            }
            (_, Some(Algorithm::LeakyBucket)) => {
                LeakyBucket::new(capacity, nanos, burst).map(Rule::LeakyBucket)
            }
            (_, Some(Algorithm::FixedWindow)) => self.fixed_window(capacity, nanos).map(Rule::FixedWindow),
            (_, Some(Algorithm::SlidingWindow)) => {
                SlidingWindow::new(capacity, nanos, self.effective_entries()).map(Rule::SlidingWindow)
            }
            (_, Some(Algorithm::SlidingWindowCounter)) => {
                SlidingWindowCounter::new(capacity, nanos, self.effective_buckets())
                    .map(Rule::SlidingWindowCounter)
            }
        };
        rule.map_err(|invalid| DeclarationError::Unsuitable {
            place: place.here(),
            reason: invalid.to_string(),
        })
    }

    fn fixed_window(&self, capacity: u64, nanos: u64) -> Result<FixedWindow, InvalidLimit> {
        let unit = match self.window {
            Some(Window::Day) => CalendarUnit::Day,
            Some(Window::Week) => CalendarUnit::Week,
            Some(Window::Month) => CalendarUnit::Month,
            Some(Window::Span(_)) | None if self.align == Some(Align::FirstUse) => {
                return FixedWindow::first_use(capacity, nanos);
            }
            Some(Window::Span(_)) | None => return FixedWindow::utc(capacity, nanos),
        };
        let minutes = self.utc_offset.unwrap_or_default().minutes;
        FixedWindow::calendar(
            capacity,
            Calendar {
                unit,
                utc_offset_seconds: i32::from(minutes) * 60,
                week_start: self.week_start.unwrap_or_default().into(),
            },
        )
    }
}

/// A field as TOML writes it.
fn written(field: &Option<impl Serialize>) -> Option<String> {
    let value = toml::Value::try_from(field.as_ref()?);
    Some(value.map_or_else(|error| error.to_string(), |value| value.to_string()))
}

impl From<Weekday> for limit::Weekday {
    fn from(day: Weekday) -> Self {
        match day {
            Weekday::Monday => Self::Monday,
            Weekday::Tuesday => Self::Tuesday,
            Weekday::Wednesday => Self::Wednesday,
            Weekday::Thursday => Self::Thursday,
            Weekday::Friday => Self::Friday,
            Weekday::Saturday => Self::Saturday,
            Weekday::Sunday => Self::Sunday,
        }
    }
}
