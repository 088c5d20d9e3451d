//! Leaky buckets in the terms of Ray's actor: `rate` per `interval`, with the bucket as the capacity.

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
    /// Whether it is a leaky bucket declared by `rate` and `interval`.
    pub(in crate::declaration) fn is_by_rate(&self) -> bool {
        self.rate.is_some() && self.interval.is_some()
    }

    /// What the bucket drains, in whole units, and in what time: 0.5 in one second is 1 in two. `None` if it is not
    /// declared by rate and interval.
    pub(in crate::declaration) fn drain(&self) -> Result<Option<(u64, Window)>, InvalidAmount> {
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

    /// Whether the rate is not a whole number of units, but the bucket drains a whole number over several intervals.
    pub(in crate::declaration) fn drains_by_a_fraction(&self) -> bool {
        self.drain()
            .is_ok_and(|drain| drain.is_some_and(|(_, window)| Some(window) != self.interval))
    }

    /// A limit declared by rate and interval, as a capacity per window with a burst of its own. Other limits stay as
    /// they are.
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
            // Invalid; the limit's check reports it.
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
    /// Reads the fields. A leaky bucket with a rate or an interval gets the actor's defaults for the others.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The derived function, which is not the trait's method.
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
