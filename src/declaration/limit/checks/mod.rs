//! Checks of a limit by itself, on each field as it was written.

mod credit_checks;
mod fleet_checks;
mod shared_limit;
pub(in crate::declaration) mod shortest_window;

use serde::Serialize;

use crate::choices::Kind;
use crate::declaration::limit::adaptive::Adaptive;
use crate::declaration::limit::amount::Amount;
use crate::declaration::limit::time_zone::TimeZone;
use crate::declaration::limit::window::{UtcOffset, Window};
use crate::declaration::limit::{Algorithm, Limit};
use crate::declaration::location::{Location, check_range};
use crate::declaration::toml_text::as_table;
use crate::error::DeclarationError;
use crate::units::nanos_from_duration;

const MAX_ENTRIES: u64 = 65_536;

impl Limit {
    pub(in crate::declaration) fn check(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        self.check_fields_belong(place)?;
        self.check_fields_are_there(place)?;
        self.check_values(place)?;
        self.check_credit(place)
    }

    /// Rejects fields that have no effect together with the others.
    fn check_fields_belong(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        let algorithm = self.effective_algorithm();
        let windowed = self.kind != Kind::Concurrency;
        let chooses = matches!(self.kind, Kind::Calls | Kind::Rate);
        let scaled = matches!(self.kind, Kind::Rate | Kind::Budget);
        let leaky = algorithm == Some(Algorithm::LeakyBucket);
        let fixed = algorithm == Some(Algorithm::FixedWindow);
        let by_rate = self.rate.is_some() || self.interval.is_some();
        let calendar = self.window.is_some_and(Window::is_calendar);

        // A field, whether it has an effect, and what to do if it has none.
        let rules = [
            (
                "unit",
                scaled,
                "calls and concurrency are counted in ones; remove it, or declare kind = \"rate\"",
            ),
            (
                "algorithm",
                chooses || (self.kind == Kind::Budget && self.algorithm == Some(Algorithm::FixedWindow)),
                "a concurrency limit has no algorithm and a budget counts in a fixed window; remove it",
            ),
            (
                "rate",
                leaky,
                "only a leaky bucket has a `rate` per `interval`; remove both and declare `capacity` per `window`, or \
                 declare algorithm = \"leaky_bucket\"",
            ),
            (
                "interval",
                leaky,
                "only a leaky bucket has a `rate` per `interval`; declare `window`, or algorithm = \"leaky_bucket\"",
            ),
            (
                "window",
                windowed,
                "a concurrency limit counts what is held now, over no window; remove it, or declare kind = \"calls\"",
            ),
            (
                "window",
                !by_rate,
                "`rate` per `interval` already says how fast the bucket drains; remove it, or remove both",
            ),
            (
                "window",
                !calendar || fixed,
                "only a fixed window follows the calendar; declare algorithm = \"fixed_window\", or a length such as \
                 \"24h\"",
            ),
            (
                "burst",
                algorithm.is_some_and(Algorithm::keeps_backlog),
                "only gcra, token_bucket and leaky_bucket have a burst; remove it, or declare one of them",
            ),
            (
                "burst",
                !by_rate,
                "with `rate` per `interval`, `capacity` is the size of the bucket; remove it",
            ),
            (
                "align",
                fixed && !calendar,
                "only fixed windows and budgets with a length of time are aligned; remove it, or declare algorithm = \
                 \"fixed_window\" with a window such as \"60s\"",
            ),
            (
                "utc_offset",
                calendar,
                "only calendar windows have an offset from UTC; remove it, or declare a window such as \
                 \"calendar:day\"",
            ),
            (
                "time_zone",
                calendar,
                "only calendar windows have a time zone; remove it, or declare a window such as \"calendar:day\"",
            ),
            (
                "utc_offset",
                self.time_zone.is_none(),
                "a time zone says what the offset is at any time; remove one of them",
            ),
            (
                "week_start",
                self.window == Some(Window::Week),
                "only weeks start on a weekday; remove it, or declare window = \"calendar:week\"",
            ),
            (
                "buckets",
                algorithm == Some(Algorithm::SlidingWindowCounter),
                "only a sliding_window_counter has buckets; remove it, or declare that algorithm",
            ),
            (
                "entries",
                algorithm == Some(Algorithm::SlidingWindow),
                "only a sliding_window has entries; remove it, or declare that algorithm",
            ),
            (
                "refund",
                chooses,
                "what a concurrency limit lends always comes back, and a budget takes nothing in advance; remove it, or declare \
                 kind = \"rate\"",
            ),
            (
                "refund",
                self.refund != Some(true) || !self.keeps_windows_charged(),
                "what processes draw in advance from a window, or hosts count together in one, stays charged; remove it, or \
                 `credit` or `fleet`, or declare algorithm = \"gcra\", \"token_bucket\" or \"leaky_bucket\"",
            ),
            (
                "lease",
                !windowed,
                "only what a concurrency limit lends has a lease; remove it, or declare kind = \"concurrency\"",
            ),
            (
                "lease",
                !self.lease.is_some_and(Window::is_calendar),
                "a lease is a length of time, such as \"30s\"",
            ),
            (
                "adaptive",
                !windowed,
                "only the capacity of a concurrency limit adapts; remove it, or declare kind = \"concurrency\"",
            ),
            (
                "floor",
                self.adaptive.is_some(),
                "only an adaptive capacity moves; remove it, or declare adaptive = \"aimd\", \"gradient\" or \
                 \"vegas\"",
            ),
            (
                "ceiling",
                self.adaptive.is_some(),
                "only an adaptive capacity moves; remove it, or declare adaptive = \"aimd\", \"gradient\" or \
                 \"vegas\"",
            ),
            (
                "latency_limit",
                self.adaptive == Some(Adaptive::Aimd),
                "only aimd uses a declared latency; remove it, or declare adaptive = \"aimd\"",
            ),
            (
                "latency_limit",
                !self.latency_limit.is_some_and(Window::is_calendar),
                "a latency is a length of time, such as \"2s\"",
            ),
            (
                "prefix",
                windowed,
                "what is lent comes back to one key, not to its networks; remove it, or declare kind = \"calls\"",
            ),
        ];
        let is_declared = |field| self.declared_options().any(|(name, _)| name == field);
        for (field, has_effect, advice) in rules {
            if !has_effect && is_declared(field) {
                return Err(self.misplaced(place, field, advice));
            }
        }
        Ok(())
    }

    /// The error for a field that is declared and must not be.
    pub(in crate::declaration) fn misplaced(
        &self,
        place: &Location<'_>,
        field: &str,
        advice: &str,
    ) -> DeclarationError {
        // Nobody could read the offsets of a zone.
        let named = self.time_zone.as_ref().map(|zone| TimeZone::named(zone.name()));
        let shown = Self {
            time_zone: named,
            ..self.clone()
        };
        DeclarationError::Misplaced {
            place: place.field(field),
            given: written(&shown, field),
            advice: advice.to_owned(),
        }
    }

    fn check_fields_are_there(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        let demand = |field, there: bool, advice: &str| {
            let missing = || DeclarationError::Missing {
                place: place.field(field),
                advice: advice.to_owned(),
            };
            there.then_some(()).ok_or_else(missing)
        };
        demand(
            "window",
            self.window.is_some()
                || self.interval.is_some()
                || self.kind == Kind::Concurrency
                || self.capacity.is_unlimited(),
            "declare over what time the capacity counts, such as window = \"60s\"",
        )?;
        demand(
            "ceiling",
            self.adaptive.is_none() || self.ceiling.is_some(),
            "declare the most that the adaptive capacity may rise to, such as ceiling = 200",
        )
    }

    /// Requires every value to be in its range, naming the field that holds it.
    fn check_values(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        if let Some(unit) = &self.unit {
            self.scale()
                .map_err(|invalid| place.value("unit", unit, invalid))?;
        }
        self.check_amount("capacity", &self.capacity, place)?;
        if self.adaptive.is_some() && self.capacity.is_unlimited() {
            return Err(place.value(
                "capacity",
                &self.capacity,
                "is nowhere for an adaptive capacity to start: write a number from `floor` to `ceiling`",
            ));
        }
        for (field, amount) in [
            ("rate", &self.rate),
            ("burst", &self.burst),
            ("floor", &self.floor),
            ("ceiling", &self.ceiling),
        ] {
            let Some(amount) = amount else { continue };
            if amount.is_unlimited() {
                return Err(place.value(field, amount, "is for `capacity` only: write a number"));
            }
            if !(field == "rate" && self.drains_by_a_fraction()) {
                self.check_amount(field, amount, place)?;
            }
        }
        for (field, window) in [
            ("window", self.window),
            ("interval", self.interval),
            ("lease", self.lease),
            ("latency_limit", self.latency_limit),
        ] {
            match window {
                Some(Window::Span(length)) if length.is_zero() => {
                    return Err(place.value(field, Window::Span(length), "is zero: write a positive length"));
                }
                Some(Window::Span(length)) if nanos_from_duration(length).is_none() => {
                    return Err(place.value(
                        field,
                        Window::Span(length),
                        "is more than 584 years: choose less",
                    ));
                }
                Some(calendar) if field == "interval" && calendar.is_calendar() => {
                    return Err(place.value(
                        field,
                        calendar,
                        "is not a fixed length: write one such as \"1s\"",
                    ));
                }
                _ => {}
            }
        }
        if let Some(offset) = self.utc_offset
            && offset.minutes.unsigned_abs() > UtcOffset::MAX_MINUTES
        {
            return Err(place.value(
                "utc_offset",
                offset,
                "is out of range: choose from -18:00 to +18:00",
            ));
        }
        self.local_time(place)?;
        if let Some(entries) = self.entries {
            check_range(|| place.field("entries"), entries.into(), 1, MAX_ENTRIES)?;
        }
        let percent = self.effective_near_limit();
        check_range(|| place.field("near_limit"), percent.into(), 1, 100)?;
        if let Some(prefix) = self.prefix {
            prefix.check(place)?;
        }
        Ok(())
    }

    fn check_amount(
        &self,
        field: &str,
        amount: &Amount,
        place: &Location<'_>,
    ) -> Result<(), DeclarationError> {
        match self
            .units(amount)
            .map_err(|invalid| place.value(field, amount, invalid))?
        {
            Some(0) => Err(DeclarationError::OutOfRange {
                place: place.field(field),
                given: 0,
                min: 1,
                max: u64::MAX,
            }),
            _ => Ok(()),
        }
    }
}

/// A field as TOML writes it; empty if it is not declared.
pub(in crate::declaration) fn written(of: &impl Serialize, field: &str) -> String {
    let table = as_table(of);
    table.get(field).map(ToString::to_string).unwrap_or_default()
}
