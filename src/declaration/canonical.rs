//! The canonical form of a limit, whatever its declaration leaves out or writes in other words.

use super::limit::amount::Amount;
use super::limit::credit::Credit;
use super::limit::fleet_lease::FleetLease;
use super::limit::window::Window;
use super::limit::{Algorithm, Limit};
use crate::choices::{Kind, Scope};

const NEAR_PERCENT: u32 = 80;

/// How many entries a sliding window without keys has by default, 32 bytes each: units come back late by at most a
/// 1024th of the window, whatever the capacity is or becomes.
pub(super) const DEFAULT_ENTRIES: u32 = 1024;

/// The most entries that a sliding window of a keyed set has by default: 2 KiB for each key.
pub(super) const MAX_DEFAULT_ENTRIES_OF_A_KEY: u32 = 64;

impl Limit {
    /// The same limit with every default written out and every value in canonical form. Two limits mean the same if
    /// and only if their canonical forms are equal, provided that both are declared [by rate](Self::is_by_rate) or
    /// neither is.
    ///
    /// Invalid limits have one too: what cannot be understood stays as it is.
    pub(super) fn canonical(&self) -> Self {
        let algorithm = self.effective_algorithm();
        let mut limit = Self {
            algorithm,
            capacity: self.capacity.canonical(),
            ..self.clone()
        };
        limit.rate = self.rate.as_ref().map(Amount::canonical);
        if matches!(self.kind, Kind::Rate | Kind::Budget) {
            limit.unit = self.scale().ok().map(|scale| scale.to_string()).or(limit.unit);
        }
        if matches!(self.kind, Kind::Calls | Kind::Rate) {
            // An unlimited limit has nothing to give back, whatever was written.
            limit.refund = (!limit.capacity.is_unlimited()).then_some(self.refunds());
        }
        match algorithm {
            // With a rate, the capacity is the size of the bucket.
            Some(Algorithm::LeakyBucket) if self.is_by_rate() => {}
            Some(Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket) => {
                // An unlimited capacity has no burst, whatever was written.
                let burst = limit.burst.as_ref().unwrap_or(&limit.capacity).canonical();
                limit.burst = (!limit.capacity.is_unlimited()).then_some(burst);
            }
            Some(Algorithm::FixedWindow) => match limit.window {
                Some(window) if window.is_calendar() => {
                    // Unknown zones are errors elsewhere.
                    let looked_up = self.time_zone.as_ref().and_then(|zone| zone.looked_up().ok());
                    limit.time_zone = looked_up.or(limit.time_zone);
                    if limit.time_zone.is_none() {
                        limit.utc_offset = Some(self.utc_offset.unwrap_or_default());
                    }
                    if window == Window::Week {
                        limit.week_start = Some(self.week_start.unwrap_or_default());
                    }
                }
                _ => limit.align = Some(self.align.unwrap_or_default()),
            },
            Some(Algorithm::SlidingWindow) => limit.entries = Some(self.effective_entries()),
            Some(Algorithm::SlidingWindowCounter) => limit.buckets = Some(self.effective_buckets()),
            None => {}
        }
        if self.adaptive.is_some() {
            limit.floor = Some(self.floor.as_ref().map_or(Amount::Whole(1), Amount::canonical));
        }
        limit.credit = self.credit.as_ref().map(Credit::canonical);
        limit.fleet = self.fleet.as_ref().map(FleetLease::canonical);
        limit.ceiling = self.ceiling.as_ref().map(Amount::canonical);
        // An unlimited capacity is never near, whatever was written.
        limit.near_limit = (!limit.capacity.is_unlimited()).then_some(self.effective_near_limit());
        limit.shadow = Some(self.shadow.unwrap_or_default());
        limit.scope = self.scope.filter(|scope| *scope != Scope::default());
        limit
    }

    pub(super) fn effective_near_limit(&self) -> u32 {
        self.near_limit.unwrap_or(NEAR_PERCENT)
    }

    pub(super) fn effective_buckets(&self) -> u32 {
        self.buckets.unwrap_or(10)
    }

    /// The number of entries, which [`SetDeclaration::with_entries`](super::SetDeclaration::with_entries) declares for
    /// a limit in its set.
    pub(super) fn effective_entries(&self) -> u32 {
        self.entries.unwrap_or(DEFAULT_ENTRIES)
    }
}
