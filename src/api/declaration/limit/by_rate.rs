//! Leaky buckets in the words of Ray's actor: `rate` per `interval`, beside a capacity that is the bucket.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use super::amount::{Amount, InvalidAmount};
use super::window::Window;
use super::{Algorithm, Limit};
use crate::units::nanos_from_duration;

const CAPACITY: u64 = 60;
const RATE: u64 = 1;
const INTERVAL: Window = Window::Span(Duration::from_secs(1));

impl Limit {
    /// Whether it is a leaky bucket that is declared by `rate` and `interval`.
    pub(in crate::api::declaration) fn is_by_rate(&self) -> bool {
        self.rate.is_some() && self.interval.is_some()
    }

    /// What the bucket drains, in whole units, and in what time: 0.5 in one second is 1 in two. None where it is not declared
    /// by rate and interval.
    pub(in crate::api::declaration) fn drain(&self) -> Result<Option<(u64, Window)>, InvalidAmount> {
        let (Some(rate), Some(interval)) = (&self.rate, self.interval) else {
            return Ok(None);
        };
        let (scale, text) = match (self.units(rate), rate) {
            (Err(InvalidAmount::NotWhole(scale)), Amount::Decimal(text)) => (scale, text),
            (units, _) => return Ok(units?.map(|units| (units, interval))),
        };
        let longer = |intervals: u32| match interval {
            Window::Span(length) => length.checked_mul(intervals),
            Window::Day | Window::Week | Window::Month => None,
        };
        scale
            .fraction(text)
            .and_then(|(units, intervals)| Some((units, longer(intervals)?)))
            .filter(|(_, length)| nanos_from_duration(*length).is_some())
            .map(|(units, length)| Some((units, Window::Span(length))))
            .ok_or(InvalidAmount::NotWhole(scale))
    }

    /// Whether the rate is no whole number of units, and the bucket drains a whole number in some intervals.
    pub(in crate::api::declaration) fn drains_by_a_fraction(&self) -> bool {
        self.drain()
            .is_ok_and(|drain| drain.is_some_and(|(_, window)| Some(window) != self.interval))
    }

    /// The same limit as a capacity per window, with a burst of its own, where it is declared by rate and interval.
    pub(crate) fn per_window(self) -> Self {
        let (Some(rate), Some(interval)) = (&self.rate, self.interval) else {
            return self;
        };
        let (capacity, window) = match self.drain() {
            _ if self.capacity.is_unlimited() => (Amount::Unlimited, interval),
            Ok(Some((units, window))) => (
                Amount::from(self.format_units(units).as_str()).canonical(),
                window,
            ),
            // Not valid, which its check says.
            Ok(None) | Err(_) => (rate.clone(), interval),
        };
        Self {
            window: Some(window),
            burst: (!self.capacity.is_unlimited()).then_some(self.capacity),
            capacity,
            rate: None,
            interval: None,
            ..self
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    /// Reads the fields. A leaky bucket of which a rate or an interval is given has the actor's defaults for the others.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The derived function, which is no method of the trait.
        let mut limit = Self::deserialize(deserializer)?;
        let is_by_rate = limit.rate.is_some() || limit.interval.is_some();
        if is_by_rate && limit.algorithm == Some(Algorithm::LeakyBucket) {
            limit.rate.get_or_insert(Amount::Whole(RATE));
            limit.interval.get_or_insert(INTERVAL);
            if limit.capacity.is_absent() {
                limit.capacity = Amount::Whole(CAPACITY);
            }
        }
        if limit.capacity.is_absent() {
            return Err(D::Error::missing_field("capacity"));
        }
        Ok(limit)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}
