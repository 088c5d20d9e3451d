//! What a host does while the store is out: its policy, what it grants itself, and how the policy ends.

use super::record::LeaseWord;
use super::{Leased, Spendable, Units};
use crate::choices::Outage;
use crate::limit::{Now, State, StateMut};
use crate::units::saturate;

impl Leased {
    /// Whether the outage policy is in force: the store is out, or it is back, but has not granted enough yet.
    pub(super) fn is_out(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        let until = self.get(state, LeaseWord::PolicyUntil);
        self.get(state, LeaseWord::OutSince) != 0 && (until == 0 || now.monotonic < until)
    }

    /// What is left of the units that the host has granted itself, until the time that they are for is over; `None` if it
    /// has granted itself none for now.
    pub(super) fn self_granted_left(&self, state: &(impl State + ?Sized), now: Now) -> Option<u64> {
        let is_in_force = self.get(state, LeaseWord::SelfGranted) != 0 && self.is_valid(state, now);
        is_in_force.then(|| self.left(state))
    }

    /// Whether the host may grant itself units: its policy is `Safe`, and what it has leased is spent or over.
    pub(super) fn grants_itself(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        let has_already = self.self_granted_left(state, now).is_some();
        self.outage == Outage::Safe && self.is_out(state, now) && !has_already
    }

    /// What the host goes on with under the policy `Safe`: units of a window, or places. It depends on neither what was
    /// used before the outage nor what was leased.
    pub(super) fn safe_units(&self, state: &(impl State + ?Sized)) -> u64 {
        if !self.safe.is_divided {
            return self.safe.units;
        }
        self.safe.units / self.get(state, LeaseWord::Hosts).max(1)
    }

    /// How many units the host grants itself at once under the policy `Safe`, and for how long. Units that come back
    /// evenly are granted lease by lease; those of a window all at once, because they may be needed at once.
    pub(super) fn self_grant(&self, state: &(impl State + ?Sized)) -> (u64, u64) {
        let units = self.safe_units(state).max(1);
        let window = self.safe.window.max(1);
        if !matches!(self.units, Units::Spent | Units::Refunded) {
            return (units, window);
        }
        let by_lease = (u128::from(units) * u128::from(self.length())).div_ceil(u128::from(window));
        (
            saturate(by_lease),
            saturate(by_lease * u128::from(window) / u128::from(units)),
        )
    }

    /// How much of a charge no store has granted, because the outage policy admits it.
    pub(super) fn ungranted_of(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> u64 {
        if self.self_granted_left(state, now).is_some() {
            return cost;
        }
        match self.outage {
            Outage::Open if self.is_out(state, now) => cost.saturating_sub(self.left_in_time(state, now)),
            _ => 0,
        }
    }

    /// How long until the host grants itself its next share, if that will be enough.
    pub(super) fn retry_after(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Option<u64> {
        let is_out = self.is_out(state, now);
        if !is_out && self.is_by_key() {
            return self.free_in(state, now, cost);
        }
        let waits = self.outage == Outage::Safe && is_out && !self.is_held();
        let would_do = self.fits(Spendable::Units(self.self_grant(state).0), cost);
        let until = self
            .get(state, LeaseWord::ValidUntil)
            .saturating_sub(now.monotonic);
        (waits && would_do && until > 0).then_some(until)
    }

    /// Puts the outage policy into force, because the store does not answer, or grants nothing.
    pub(super) fn begin_outage(&self, state: &mut (impl StateMut + ?Sized), now: Now, problem: u64) {
        let is_new =
            self.get(state, LeaseWord::OutSince) == 0 || self.get(state, LeaseWord::PolicyUntil) != 0;
        if is_new {
            self.put(state, LeaseWord::OutSince, now.monotonic.max(1));
        }
        self.put(state, LeaseWord::PolicyUntil, 0);
        self.put(state, LeaseWord::Problem, problem);
    }

    /// Ends the outage policy, because the store answers. If it does not grant enough yet, the policies that admit go on
    /// for as long as the store was out, and for one lease at most: by then it has granted something, unless the limit
    /// is used up.
    pub(super) fn end_outage(&self, state: &mut (impl StateMut + ?Sized), now: Now, is_enough: bool) {
        let out_since = self.get(state, LeaseWord::OutSince);
        let until = match self.get(state, LeaseWord::PolicyUntil) {
            0 => {
                let was_out = now.monotonic.saturating_sub(out_since);
                now.monotonic.saturating_add(was_out.min(self.length()))
            }
            until => until,
        };
        self.put(state, LeaseWord::Problem, 0);
        let admits = matches!(self.outage, Outage::Safe | Outage::Open);
        if admits && out_since != 0 && !is_enough && now.monotonic < until {
            self.put(state, LeaseWord::PolicyUntil, until);
        } else {
            self.put(state, LeaseWord::OutSince, 0);
            self.put(state, LeaseWord::PolicyUntil, 0);
        }
    }
}
