//! A limit that hosts share: what this host may spend of it, and when it asks for more.
//!
//! The limit's own rule is applied by the store, for all hosts together. Here there is what the store has granted: so
//! many units, until then. Nothing here knows a store; [`asking`] says what is asked of it, [`answers`] what becomes of
//! what it says.
//!
//! State: the words of the rule that decides where the limit is not shared, of which a concurrency limit uses the units in
//! use; and behind them the [record](LeaseWord).

mod answers;
mod asking;
#[cfg(test)]
mod document_tests;
mod lease_state;
mod record;

pub(crate) use answers::{Answer, Installed, Problem};
pub(crate) use asking::Ask;
pub(crate) use lease_state::LeaseState;
pub(crate) use record::{LEASE_WORDS, LeaseWord};

use record::{get, put};

use super::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, NearThreshold, Now, RuleOperations, Standing,
    State, StateMut,
};
use crate::units::{NANOS_PER_SECOND, UnitPrice};

/// What becomes of a limit while the store is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutagePolicy {
    Deny,
    SpendOut,
    Safe,
    Open,
}

/// What units are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// Taken up front, and come back evenly.
    Spent,
    /// The same, and given back as far as time has not done so already.
    Refunded,
    /// Taken up front, and counted in windows.
    Counted,
    /// Debited afterwards: a request needs no more than that a unit is left.
    Debited,
    /// Places that are held and given back.
    Held,
}

/// A limit that hosts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    units: Units,
    /// The words before the record.
    local_words: u8,
    reads_utc: bool,
    /// Of one unit, where they come back evenly.
    price: UnitPrice,
    /// The most that all hosts together may have at once.
    capacity: u64,
    /// For how long units are leased, in microseconds: at most an hour, so that a rule stays small.
    micros: u32,
    outage: OutagePolicy,
    /// Which key of the store it is: another one is another limit.
    key: u32,
}

/// Of a window, one host leases at most this part at once: so much may be left of it when it ends.
const WINDOW_PARTS: u64 = 50;

/// In the first number of a mark: the lease is nearly spent, and has not been asked for again yet.
const IS_LOW: u64 = 1 << 63;

/// In the second number of a mark of a concurrency limit: places are wanting that are free as far as the limit goes.
const WANTS_LEASE: u64 = 1;

/// How far the number of a grant lies above the number of what was taken of it.
const FENCING_SHIFT: u32 = 32;

// What is read as a pair.
const _: () = assert!(
    LeaseWord::Spent as usize + 1 == LeaseWord::Allowance as usize
        && LeaseWord::ValidUntil as usize + 1 == LeaseWord::OutSince as usize
);

/// What can be said of a lease at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spendable {
    /// So many units.
    Units(u64),
    /// As many as are asked for: the store is out, and the limit open.
    Anything,
}

impl Leased {
    /// The limit that `rule` decides where it is not shared, leased for `length` nanoseconds at a time. `price` is that of
    /// one of its units, where they come back evenly; `outage` says what becomes of it while the store is out, and `key`
    /// tells it from other limits of the store.
    pub(super) fn of(
        rule: &impl RuleOperations,
        units: Units,
        price: Option<UnitPrice>,
        (length, outage, key): (u64, OutagePolicy, u32),
    ) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(length, "lease")?;
        let price = price
            .or(UnitPrice::new(1, 1))
            .ok_or(InvalidLimit::Zero("price"))?;
        // The rules that hosts can share have three words at most.
        let local_words = rule.state_words() as u8;
        Ok(Self {
            units,
            local_words,
            reads_utc: rule.reads_utc(),
            price,
            capacity: rule.capacity(),
            micros: u32::try_from(length / 1000).unwrap_or(u32::MAX),
            outage,
            key,
        })
    }

    /// For how long units are leased, in nanoseconds.
    fn length(&self) -> u64 {
        u64::from(self.micros) * 1000
    }

    fn local_words(&self) -> usize {
        usize::from(self.local_words)
    }

    /// The most that is asked for beyond what a single request needs: of units that come back evenly, one second's worth.
    fn max_target(&self) -> u64 {
        let max = match self.units {
            Units::Held => self.capacity,
            Units::Spent | Units::Refunded => {
                let per_second = self.price.whole_units(self.price.scaled_nanos(NANOS_PER_SECOND));
                per_second.min(self.capacity)
            }
            Units::Counted | Units::Debited => self.capacity / WINDOW_PARTS,
        };
        max.max(1)
    }

    /// Whether a rule that counts so, in so many words, decides the limit where it is not shared.
    pub(super) fn is_leased_from(&self, units: Units, words: usize) -> bool {
        self.local_words() == words && self.is_held() == (units == Units::Held)
    }

    fn is_held(&self) -> bool {
        self.units == Units::Held
    }

    /// Units in use of a concurrency limit.
    fn in_use(&self, state: &(impl State + ?Sized)) -> u64 {
        if self.is_held() { state.load(0) } else { 0 }
    }

    fn get(&self, state: &(impl State + ?Sized), word: LeaseWord) -> u64 {
        get(state, self.local_words(), word)
    }

    fn put(&self, state: &mut (impl StateMut + ?Sized), word: LeaseWord, value: u64) {
        put(state, self.local_words(), word, value);
    }

    fn add(&self, state: &mut (impl StateMut + ?Sized), word: LeaseWord, amount: u64) {
        let sum = self.get(state, word).saturating_add(amount);
        self.put(state, word, sum);
    }

    /// What counts against the allowance: units spent, or places in use.
    #[inline]
    fn used(&self, state: &(impl State + ?Sized)) -> u64 {
        if self.is_held() {
            state.load(0)
        } else {
            self.get(state, LeaseWord::Spent)
        }
    }

    /// What is left of the lease, as long as it lasts.
    #[inline]
    fn left(&self, state: &(impl State + ?Sized)) -> u64 {
        self.get(state, LeaseWord::Allowance)
            .saturating_sub(self.used(state))
    }

    fn is_valid(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        now.monotonic < self.get(state, LeaseWord::ValidUntil)
    }

    /// Whether the store has been out for longer than the lease lasts, so that a host that plays safe grants itself its
    /// share.
    fn grants_itself(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.outage == OutagePolicy::Safe
            && self.get(state, LeaseWord::OutSince) != 0
            && !self.is_valid(state, now)
    }

    fn spendable(&self, state: &(impl State + ?Sized), now: Now) -> Spendable {
        if self.get(state, LeaseWord::Draining) != 0 {
            return Spendable::Units(0);
        }
        let is_out = self.get(state, LeaseWord::OutSince) != 0;
        if is_out && self.outage == OutagePolicy::Open {
            return Spendable::Anything;
        }
        if is_out && self.outage == OutagePolicy::Deny {
            return Spendable::Units(0);
        }
        if self.is_valid(state, now) {
            return Spendable::Units(self.left(state));
        }
        if self.grants_itself(state, now) {
            let share = self.get(state, LeaseWord::Share);
            let in_use = self.in_use(state);
            return Spendable::Units(share.saturating_sub(in_use));
        }
        Spendable::Units(0)
    }

    /// Whether the store has answered a request for this key of this host.
    pub(crate) fn was_answered(&self, state: &(impl State + ?Sized)) -> bool {
        self.get(state, LeaseWord::AnsweredAt) != 0
    }

    /// How many places may be held now; none where as many as there are holders for.
    pub(crate) fn places(&self, state: &(impl State + ?Sized), now: Now) -> Option<u64> {
        let is_out = self.get(state, LeaseWord::OutSince) != 0;
        match self.outage {
            OutagePolicy::Open if is_out => None,
            _ if !self.is_held() => None,
            _ if self.is_valid(state, now) => Some(self.get(state, LeaseWord::Allowance)),
            OutagePolicy::Safe if is_out => Some(self.get(state, LeaseWord::Share)),
            _ => Some(0),
        }
    }

    /// Whether the cost fits into what can be spent.
    fn fits(&self, spendable: Spendable, cost: u64) -> bool {
        match (spendable, self.units) {
            (Spendable::Anything, _) => true,
            // A unit must be left, whatever the cost turns out to be.
            (Spendable::Units(left), Units::Debited) => left > 0,
            (Spendable::Units(left), _) => cost <= left,
        }
    }

    /// How long it takes until the host grants itself its next share, where that would do.
    fn retry_after(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Option<u64> {
        let is_out = self.get(state, LeaseWord::OutSince) != 0;
        let waits = self.outage == OutagePolicy::Safe && is_out && !self.is_held();
        let share = self.get(state, LeaseWord::Share);
        let would_do = self.fits(Spendable::Units(share), cost);
        let until = self
            .get(state, LeaseWord::ValidUntil)
            .saturating_sub(now.monotonic);
        (waits && would_do && until > 0).then_some(until)
    }

    /// Takes what is spent of a lease that is in force, which it nearly always is, and reads each word once; none where there
    /// is more to it.
    #[inline]
    fn take_in_force(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) -> Option<Mark> {
        if !matches!(self.units, Units::Spent | Units::Refunded | Units::Counted) {
            return None;
        }
        let first = self.local_words();
        let [spent, allowance] = state.load_pair(first + LeaseWord::Spent as usize);
        let [valid_until, out_since] = state.load_pair(first + LeaseWord::ValidUntil as usize);
        let is_out = out_since | self.get(state, LeaseWord::Draining) != 0;
        if is_out || now.monotonic >= valid_until {
            return None;
        }
        let left = allowance.saturating_sub(spent).checked_sub(cost)?;
        if cost > 0 {
            state.store(first + LeaseWord::Spent as usize, spent.saturating_add(cost));
        }
        Some(self.mark_of(state, now, Spendable::Units(left)))
    }

    /// What a mark says of the limit with so much left.
    #[inline]
    fn mark_of(&self, state: &(impl State + ?Sized), now: Now, left: Spendable) -> Mark {
        let left = match left {
            Spendable::Anything => IS_LOW - 1,
            Spendable::Units(left) => left.min(IS_LOW - 1),
        };
        let is_low = left <= self.get(state, LeaseWord::LowWater) && self.get(state, LeaseWord::Alerted) == 0;
        let second = if self.is_held() {
            let is_free = self.used(state) < self.capacity;
            if left == 0 && is_free { WANTS_LEASE } else { 0 }
        } else {
            self.get(state, LeaseWord::DrainedAt)
                .saturating_sub(now.monotonic)
        };
        Mark {
            first: left | if is_low { IS_LOW } else { 0 },
            second,
        }
    }

    /// The number of the present grant, and in the lowest 32 bits how many times places of it were taken: numbers of the
    /// store's later grants exceed it.
    fn fencing_number(&self, state: &(impl State + ?Sized)) -> u64 {
        let taken = self.get(state, LeaseWord::TakenOfGrant).min(u64::from(u32::MAX));
        self.get(state, LeaseWord::GrantNumber) << FENCING_SHIFT | taken
    }

    /// What an admission that left the limit so has for those who guard what it was for; none of what is not held.
    pub(crate) fn fencing_number_of(&self, mark: Mark) -> Option<u64> {
        (self.is_held() && mark.second >> FENCING_SHIFT > 0).then_some(mark.second)
    }

    /// Whether a refusal by this limit, which stood so, is for want of a lease.
    pub(crate) fn wants_lease(&self, mark: Mark) -> bool {
        !self.is_held() || mark.second == WANTS_LEASE
    }

    /// Notes that so much was asked for and is not there; for who asks the store next. Answers whether the process that
    /// has duty is to be woken: once for each time that it asks. What it notes is only a hint and need not be undone.
    pub(crate) fn note_unmet(&self, state: &mut (impl StateMut + ?Sized), cost: u64) -> bool {
        let unmet = self.get(state, LeaseWord::Unmet);
        if cost > unmet || unmet == 0 {
            self.put(state, LeaseWord::Unmet, cost.max(1));
        }
        self.alert(state)
    }

    /// Notes that the process that has duty is to be woken; answers whether that was not noted yet.
    pub(crate) fn alert(&self, state: &mut (impl StateMut + ?Sized)) -> bool {
        if self.get(state, LeaseWord::Alerted) != 0 {
            return false;
        }
        self.put(state, LeaseWord::Alerted, 1);
        true
    }

    /// Makes the lease over, whatever is left of it.
    fn end(&self, state: &mut (impl StateMut + ?Sized)) {
        let spent = self.get(state, LeaseWord::Spent);
        self.put(
            state,
            LeaseWord::Allowance,
            if self.is_held() { 0 } else { spent },
        );
        self.put(state, LeaseWord::ValidUntil, 0);
        self.put(state, LeaseWord::SelfGranted, 0);
        self.put(state, LeaseWord::LowWater, 0);
    }

    /// Takes over the state of a limit that was not shared so far. What the host has used of it is the first that it
    /// reports, so that the store does not grant it anew.
    pub(super) fn migrate_from(
        &self,
        old: &impl RuleOperations,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
    ) {
        let used = old
            .capacity()
            .saturating_sub(old.standing(old.mark(state, now)).remaining);
        self.begin_with_key(state);
        self.end(state);
        if !self.is_held() {
            let spent = self.get(state, LeaseWord::Spent).saturating_add(used);
            self.put(state, LeaseWord::Spent, spent);
            self.put(state, LeaseWord::Allowance, spent);
        }
    }

    /// Hands the state over to the rule of a limit that is not shared from now on: what is leased can be spent, and the rest
    /// comes back as the rule says.
    pub(super) fn migrate_to(
        &self,
        new: &impl RuleOperations,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
    ) {
        let left = match self.spendable(state, now) {
            Spendable::Units(left) => left,
            Spendable::Anything => 0,
        };
        self.end(state);
        self.put(state, LeaseWord::Asked, 0);
        if !self.is_held() {
            new.reset(state);
            new.charge(state, now, new.capacity().saturating_sub(left));
        }
    }

    /// Forgets what was leased, asked and reported under another key of the store, which knows nothing of it.
    fn begin_with_key(&self, state: &mut (impl StateMut + ?Sized)) {
        if self.get(state, LeaseWord::Key) == u64::from(self.key) {
            return;
        }
        for word in LeaseWord::OF_ONE_KEY {
            self.put(state, word, 0);
        }
        self.put(state, LeaseWord::Key, u64::from(self.key));
    }

    /// Forgets everything that was reported to the store of this host, which is another one from now on: after a cold start.
    /// Idempotent.
    pub(crate) fn begin_as_another_host(state: &mut (impl StateMut + ?Sized), local_words: usize) {
        for word in LeaseWord::OF_ONE_KEY {
            put(state, local_words, word, 0);
        }
        put(state, local_words, LeaseWord::Sequence, 0);
        put(state, local_words, LeaseWord::Identity, 0);
        put(state, local_words, LeaseWord::Duty, 0);
        put(state, local_words, LeaseWord::DutyUntil, 0);
    }
}

impl RuleOperations for Leased {
    fn state_words(&self) -> usize {
        self.local_words() + LEASE_WORDS
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn burst(&self) -> u64 {
        if self.units == Units::Debited {
            u64::MAX
        } else {
            self.capacity
        }
    }

    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        if self.fits(self.spendable(state, now), cost) {
            Assessment::Admissible
        } else {
            Assessment::Refused {
                retry_after: self.retry_after(state, now, cost),
            }
        }
    }

    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        if cost == 0 {
            return;
        }
        if self.is_held() {
            state.store(0, state.load(0).saturating_add(cost));
            return;
        }
        let spent = self.get(state, LeaseWord::Spent);
        if self.grants_itself(state, now) {
            let share = self.get(state, LeaseWord::Share);
            self.put(state, LeaseWord::Allowance, spent.saturating_add(share));
            let until = now.monotonic.saturating_add(self.length());
            self.put(state, LeaseWord::ValidUntil, until);
            self.put(state, LeaseWord::SelfGranted, 1);
        }
        self.put(state, LeaseWord::Spent, spent.saturating_add(cost));
    }

    fn take(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) -> Result<Mark, Assessment> {
        if let Some(mark) = self.take_in_force(state, now, cost) {
            return Ok(mark);
        }
        let spendable = self.spendable(state, now);
        if !self.fits(spendable, cost) {
            return Err(Assessment::Refused {
                retry_after: self.retry_after(state, now, cost),
            });
        }
        self.charge(state, now, cost);
        if self.is_held() && cost > 0 {
            self.add(state, LeaseWord::TakenOfGrant, 1);
        }
        let left = match spendable {
            Spendable::Units(left) => Spendable::Units(left.saturating_sub(cost)),
            Spendable::Anything => Spendable::Anything,
        };
        let mark = self.mark_of(state, now, left);
        Ok(if self.is_held() {
            Mark {
                second: self.fencing_number(state),
                ..mark
            }
        } else {
            mark
        })
    }

    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        self.mark_of(state, now, self.spendable(state, now))
    }

    /// What the other hosts have used is not known.
    fn is_replenished(&self, _state: &(impl State + ?Sized), _now: Now) -> bool {
        false
    }

    /// What is leased is the store's to replenish.
    fn reset(&self, _state: &mut (impl StateMut + ?Sized)) {}

    fn with_capacity(&self, capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Ok(Self { capacity, ..*self })
    }

    fn reads_utc(&self) -> bool {
        self.reads_utc
    }

    /// What is left of the charge is given back as of a limit by itself, by what the store counted when it answered last:
    /// what hosts have used since can only make more be left. What has not been reported comes back to the lease; the rest
    /// is reported as unused.
    fn refund(&self, state: &mut (impl StateMut + ?Sized), now: Now, unused: u64, charge: &Charge) -> u64 {
        if self.units != Units::Refunded {
            return 0;
        }
        let price = self.price;
        let charged = price.scaled_cost(charge.cost);
        let end = charge.mark.map_or(0, |mark| price.scaled_nanos(mark.second));
        let elapsed = now.monotonic.saturating_sub(charge.instant);
        let left = end
            .max(charged)
            .saturating_sub(price.scaled_nanos(elapsed))
            .min(charged);
        let units = unused.min(price.whole_units(left));
        let spent = self.get(state, LeaseWord::Spent);
        let unreported = spent.saturating_sub(self.get(state, LeaseWord::AskedSpent));
        let to_lease = units.min(unreported);
        if to_lease > 0 {
            self.put(state, LeaseWord::Spent, spent - to_lease);
        }
        let to_store = units - to_lease;
        if to_store > 0 {
            let refunded = self.get(state, LeaseWord::Refunded);
            self.put(state, LeaseWord::Refunded, refunded.saturating_add(to_store));
        }
        units
    }

    fn give_back(&self, state: &mut (impl StateMut + ?Sized), amount: u64) {
        if self.is_held() && amount > 0 {
            state.store(0, state.load(0).saturating_sub(amount));
        }
    }

    fn standing(&self, mark: Mark) -> Standing {
        Standing {
            remaining: mark.first & !IS_LOW,
            // When the store replenishes it, no clock here says.
            reset_after: 0,
        }
    }

    fn near_threshold(&self, _percent: u8) -> NearThreshold {
        NearThreshold::NEVER
    }

    /// Whether the lease is nearly spent.
    fn is_near(&self, mark: Mark, _threshold: NearThreshold) -> bool {
        mark.first & IS_LOW != 0
    }

    fn share(&self, _mark: Mark) -> u64 {
        0
    }

    fn can_migrate(&self, old: &Self) -> bool {
        self.local_words == old.local_words && self.is_held() == old.is_held()
    }

    /// What is leased stays, unless it is another key of the store.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), _now: Now) {
        if self.key != old.key {
            self.end(state);
            self.begin_with_key(state);
        }
    }
}
