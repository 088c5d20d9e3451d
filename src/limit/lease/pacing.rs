//! How often a host asks.
//!
//! Requests are one pace apart: an eighth of a lease, but at least [`SHORTEST_PACE`], so that no host asks a store more
//! than twenty times a second, whatever happens. A host that runs short of a lease that it got in full may be
//! [`AHEAD`] requests ahead of that, so that a sudden need is met at once. Hosts do not all ask at the same instant: a
//! request that is not in a hurry is late by a part that differs from request to request.

use super::Leased;
use super::record::LeaseWord;
use crate::limit::{Now, State, StateMut};
use crate::units::NANOS_PER_SECOND;

/// A pace is one part in this many of a lease.
const PACES: u64 = 8;

/// No pace is shorter, in nanoseconds: with [`AHEAD`], at most 20 requests fit into a second.
const SHORTEST_PACE: u64 = 60_000_000;

/// How many requests a host that runs short may be ahead of its pace.
const AHEAD: u64 = 2;

/// An instant is late by up to one part in this many of the time before it.
pub(super) const JITTER: u64 = 4;

/// A lease that is not used is renewed when one part in this many of it is left.
const RENEWED_BEFORE: u64 = 4;

/// A lease that is used is renewed no later than after this, in nanoseconds, so that a long lease still lasts for nearly
/// its whole length whenever the store goes out. A short one is renewed only after half of it, so that the store has
/// little to do.
const REFRESHED_AFTER: u64 = NANOS_PER_SECOND;

impl Leased {
    /// The time between two requests, in nanoseconds. If two bursts come back in less than a lease, it is an eighth of
    /// that time: what is spent only comes back once it is reported, and at this pace never more than a quarter of the
    /// burst is missing.
    pub(super) fn pace(&self) -> u64 {
        let bursts = self
            .replenished_in()
            .map_or(u64::MAX, |nanos| nanos.saturating_mul(2));
        (self.length().min(bursts) / PACES).max(SHORTEST_PACE)
    }

    /// Whether a grant is used up no sooner than the next request may be made. What was wanted is what is used in one
    /// lease, or more.
    pub(super) fn lasts_until_asked_again(&self, granted: u64, wanted: u64) -> bool {
        let is_used_in = u128::from(granted) * u128::from(self.length());
        granted == wanted || is_used_in >= u128::from(wanted) * u128::from(self.pace())
    }

    /// When the next request may be made.
    pub(super) fn paced(&self, state: &(impl State + ?Sized), is_short: bool) -> u64 {
        let until = self.get(state, LeaseWord::PacedUntil);
        if is_short {
            let pace = self.pace();
            until.saturating_sub((pace + pace / JITTER).saturating_mul(AHEAD))
        } else {
            until
        }
    }

    /// Notes that a request is made.
    pub(super) fn pace_on(&self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let pace = self.pace();
        let until = self.get(state, LeaseWord::PacedUntil).max(now.monotonic);
        let until = until
            .saturating_add(pace)
            .saturating_add(self.jitter(state, pace / JITTER));
        self.put(state, LeaseWord::PacedUntil, until);
    }

    /// When a lease that is used is renewed.
    pub(super) fn refreshed_at(&self, state: &(impl State + ?Sized)) -> u64 {
        let after = self.pace().max(REFRESHED_AFTER.min(self.length() / 2));
        self.get(state, LeaseWord::AskedAt)
            .saturating_add(after)
            .saturating_add(self.jitter(state, after / PACES))
    }

    /// When a lease that is not used is renewed. One that ends with its window cannot be prolonged; then the next
    /// window is asked for.
    pub(super) fn renewed_at(&self, state: &(impl State + ?Sized)) -> u64 {
        let valid_until = self.get(state, LeaseWord::ValidUntil);
        if self.is_cut(state) {
            valid_until.saturating_add(self.jitter(state, self.pace()))
        } else {
            valid_until.saturating_sub(self.length() / RENEWED_BEFORE)
        }
    }

    /// Whether the lease ends with its window.
    pub(super) fn is_cut(&self, state: &(impl State + ?Sized)) -> bool {
        let length = self.length();
        let lasts = self
            .get(state, LeaseWord::ValidUntil)
            .saturating_sub(self.get(state, LeaseWord::AskedAt));
        // Clocks differ a little, so a whole lease may look shorter than it is.
        lasts < length - length / 16
    }

    /// A part of `longest` that differs between hosts and from request to request.
    pub(super) fn jitter(&self, state: &(impl State + ?Sized), longest: u64) -> u64 {
        let seed = self.get(state, LeaseWord::AskedAt) ^ self.get(state, LeaseWord::Sequence);
        // The upper half of a product with the golden ratio is as good as random for this.
        let part = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((u128::from(longest) * u128::from(part)) >> 32) as u64
    }
}
