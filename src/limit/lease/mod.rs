//! A limit that hosts share: how much of it this host may spend, and when it asks for more.
//!
//! The store applies the limit's own rule, for all hosts together. This module keeps what the store has granted: a
//! number of units, valid until some instant. Nothing here knows a store; [`asking`] says what to ask it, [`answers`]
//! what its answers change, [`floor`] what an idle host keeps, and [`pacing`] how often it asks.
//!
//! State: the words of the rule that decides when the limit is not shared (a concurrency limit uses only its units in
//! use), followed by the [record](LeaseWord).

mod answers;
mod asking;
#[cfg(test)]
mod document_tests;
mod floor;
mod key_lease;
mod lease_state;
mod lease_terms;
mod length;
mod missing_units;
mod outage;
mod pacing;
mod record;
mod usable;

pub(crate) use answers::{Answer, Installed, Problem, Quarantine};
pub(crate) use asking::Ask;
pub(crate) use key_lease::LeaseOutcome;
pub(crate) use lease_state::{KeyLeaseState, LeaseState};
pub(crate) use lease_terms::{LeaseTerms, SafeTerms};
pub(crate) use length::{Supply, automatic_length};
pub(crate) use missing_units::Shortage;
pub(crate) use record::{LEASE_WORDS, LeaseWord};

use record::{get, put};

use super::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, NearThreshold, Now, RuleOperations, Standing,
    State, StateMut,
};
use crate::choices::Outage;
use crate::units::UnitPrice;

/// How units are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// Taken up front, and replenished evenly.
    Spent,
    /// The same, but unused units are given back as far as time has not replenished them already.
    Refunded,
    /// Taken up front, and counted in windows.
    Counted,
    /// Debited afterwards: a request only needs one unit to be left.
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
    /// The price of a unit, if units come back evenly.
    price: UnitPrice,
    /// The most that all hosts together may have at once.
    capacity: u64,
    /// How long units are leased for, in microseconds: at most an hour, so that a rule stays small.
    micros: u32,
    outage: Outage,
    /// Which key of the store this is: another key is another limit.
    key: u32,
    /// How long a request waits for the store's answer if too little is leased, in microseconds.
    cold_micros: u32,
    safe: SafeTerms,
    /// How many units of a key may be spent and unreported while nothing is leased; `None` if all requests share the
    /// limit.
    unleased: Option<u64>,
}

/// One host leases at most one part in this many of a window at once, because that much may be left unused when the
/// window ends. The store hands out less when little is left.
const WINDOW_PARTS: u64 = 4;

/// Set in a mark's first number: the lease is nearly spent, and the host has not asked again yet.
const IS_LOW: u64 = 1 << 63;

/// How far a [`Shortage`] is shifted in a mark's first number.
const SHORTAGE_SHIFT: u32 = 61;

/// The rest of a mark's first number: what is left, at most this.
const LEFT: u64 = (1 << SHORTAGE_SHIFT) - 1;

/// In the second number of a concurrency limit's mark: leased places are missing, although the limit itself has
/// places free.
const WANTS_LEASE: u64 = 1;

/// How far a grant's number is shifted above the count of what was taken from it.
const FENCING_SHIFT: u32 = 32;

// Each of these is loaded as a pair.
const _: () = assert!(
    LeaseWord::Spent as usize + 1 == LeaseWord::Allowance as usize
        && LeaseWord::ValidUntil as usize + 1 == LeaseWord::OutSince as usize
);

/// How much of a lease can be spent at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spendable {
    /// This many units.
    Units(u64),
    /// As many as anyone asks for: the store is out, and the limit is open.
    Anything,
}

impl Leased {
    /// The limit that `rule` decides when it is not shared. `price` is that of one unit, if units come back evenly.
    pub(super) fn of(
        rule: &impl RuleOperations,
        units: Units,
        price: Option<UnitPrice>,
        terms: LeaseTerms,
    ) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(terms.length, "lease")?;
        let price = price
            .or(UnitPrice::new(1, 1))
            .ok_or(InvalidLimit::Zero("price"))?;
        // Rules that hosts can share have at most three words.
        let local_words = rule.state_words() as u8;
        Ok(Self {
            units,
            local_words,
            reads_utc: rule.reads_utc(),
            price,
            capacity: rule.capacity(),
            micros: u32::try_from(terms.length / 1000).unwrap_or(u32::MAX),
            outage: terms.outage,
            key: terms.key,
            safe: terms.safe,
            cold_micros: u32::try_from(terms.cold_wait / 1000).unwrap_or(u32::MAX),
            unleased: terms.unleased,
        })
    }

    /// How long units are leased for, in nanoseconds.
    fn length(&self) -> u64 {
        u64::from(self.micros) * 1000
    }

    /// The length and a quarter more: a lease is renewed after a part of it, and what is left then has to last for the
    /// rest.
    fn length_with_margin(&self) -> u64 {
        let length = self.length();
        length.saturating_add(length / 4)
    }

    fn local_words(&self) -> usize {
        usize::from(self.local_words)
    }

    /// The most to ask for beyond what a single request needs: what comes back while a lease lasts, and a margin, if
    /// units come back evenly.
    fn max_target(&self) -> u64 {
        let max = match self.units {
            Units::Held => self.capacity,
            Units::Spent | Units::Refunded => {
                let nanos = self.length_with_margin();
                let of_a_lease = self.price.whole_units(self.price.scaled_nanos(nanos));
                of_a_lease.min(self.capacity)
            }
            Units::Counted | Units::Debited => self.capacity / WINDOW_PARTS,
        };
        max.max(1)
    }

    /// Whether a rule with these units and this many words decides the limit when it is not shared.
    pub(super) fn is_leased_from(&self, units: Units, words: usize) -> bool {
        self.local_words() == words && self.is_held() == (units == Units::Held)
    }

    /// How long it takes to replenish everything, in nanoseconds; `None` if units do not come back evenly.
    fn replenished_in(&self) -> Option<u64> {
        let comes_back = matches!(self.units, Units::Spent | Units::Refunded);
        comes_back.then(|| self.price.nanos_to_cover(self.price.scaled_cost(self.capacity)))
    }

    /// Whether units come back with windows, which also end leases.
    fn is_in_windows(&self) -> bool {
        matches!(self.units, Units::Counted | Units::Debited)
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

    /// What is left of the lease while it lasts.
    #[inline]
    fn left(&self, state: &(impl State + ?Sized)) -> u64 {
        self.get(state, LeaseWord::Allowance)
            .saturating_sub(self.used(state))
    }

    /// What is left of the lease; nothing once it is over.
    fn left_in_time(&self, state: &(impl State + ?Sized), now: Now) -> u64 {
        if self.is_valid(state, now) {
            self.left(state)
        } else {
            0
        }
    }

    pub(crate) fn is_valid(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        now.monotonic < self.get(state, LeaseWord::ValidUntil)
    }

    fn spendable(&self, state: &(impl State + ?Sized), now: Now) -> Spendable {
        if self.get(state, LeaseWord::Draining) != 0 {
            return Spendable::Units(0);
        }
        let is_out = self.is_out(state, now);
        if is_out && self.outage == Outage::Open {
            return Spendable::Anything;
        }
        if is_out && self.outage == Outage::Deny {
            return Spendable::Units(0);
        }
        if let Some(places) = self.places(state, now) {
            let places = if is_out {
                places
            } else {
                places.min(self.get(state, LeaseWord::Ceiling))
            };
            return Spendable::Units(places.saturating_sub(self.in_use(state)));
        }
        let leased = self.left_in_time(state, now);
        let granted = if self.grants_itself(state, now) {
            self.self_grant(state).0
        } else if is_out {
            0
        } else {
            self.unleased_left(state, now)
        };
        Spendable::Units(leased.max(granted))
    }

    /// Whether the store has ever answered a request of this host for this key.
    pub(crate) fn was_answered(&self, state: &(impl State + ?Sized)) -> bool {
        self.get(state, LeaseWord::AnsweredAt) != 0
    }

    /// How many places may be held now; `None` if the lease sets no bound.
    pub(crate) fn places(&self, state: &(impl State + ?Sized), now: Now) -> Option<u64> {
        if !self.is_held() {
            return None;
        }
        let leased = if self.is_valid(state, now) {
            self.get(state, LeaseWord::Allowance)
        } else {
            0
        };
        match self.outage {
            Outage::Open if self.is_out(state, now) => None,
            Outage::Safe if self.is_out(state, now) => Some(leased.max(self.safe_units(state))),
            _ => Some(leased),
        }
    }

    /// Whether the cost fits into what can be spent.
    fn fits(&self, spendable: Spendable, cost: u64) -> bool {
        match (spendable, self.units) {
            (Spendable::Anything, _) => true,
            // One unit must be left, whatever the cost turns out to be.
            (Spendable::Units(left), Units::Debited) => left > 0,
            (Spendable::Units(left), _) => cost <= left,
        }
    }

    /// Whether units are taken when a request is admitted, and not held.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self.units, Units::Spent | Units::Refunded | Units::Counted)
    }

    /// Whether `cost` can be taken from a lease in force, and leaves more of it than [low water](LeaseWord::LowWater).
    #[inline]
    pub(crate) fn is_ample(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> bool {
        self.after_ample(state, now, cost).is_some()
    }

    /// What is spent and what is left once `cost` is taken, if the lease is ample.
    #[inline]
    fn after_ample(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Option<(u64, u64)> {
        let first = self.local_words();
        let [spent, allowance] = state.load_pair(first + LeaseWord::Spent as usize);
        let [valid_until, out_since] = state.load_pair(first + LeaseWord::ValidUntil as usize);
        let is_in_force =
            now.monotonic < valid_until && out_since | self.get(state, LeaseWord::Draining) == 0;
        let spent = spent.saturating_add(cost);
        let left = allowance.saturating_sub(spent);
        (is_in_force && left > self.get(state, LeaseWord::LowWater)).then_some((spent, left))
    }

    /// What the [spent units](LeaseWord::Spent) become with `cost`, and the mark that the limit is then left at, if the
    /// lease is [ample](Self::is_ample) and no other word changes.
    #[inline]
    pub(crate) fn spent_amply(
        &self,
        state: &(impl State + ?Sized),
        now: Now,
        cost: u64,
    ) -> Option<(u64, Mark)> {
        if cost > self.get(state, LeaseWord::Largest) {
            return None;
        }
        let (spent, left) = self.after_ample(state, now, cost)?;
        Some((spent, self.mark_of(state, now, Spendable::Units(left))))
    }

    /// The index of the word that counts what was spent, in the state.
    pub(crate) fn spent_word(&self) -> usize {
        self.local_words() + LeaseWord::Spent as usize
    }

    /// The fast path: takes from a lease if it is in force, which it nearly always is, and reads each word once. `None`
    /// if it is not that simple.
    #[inline]
    fn take_in_force(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) -> Option<Mark> {
        if !self.is_taken() {
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
            self.note_cost(state, cost);
        }
        Some(self.mark_of(state, now, Spendable::Units(left)))
    }

    /// The mark of the limit with `left` to spend.
    #[inline]
    fn mark_of(&self, state: &(impl State + ?Sized), now: Now, left: Spendable) -> Mark {
        let left = match left {
            Spendable::Anything => LEFT,
            Spendable::Units(left) => left.min(LEFT),
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

    /// The number of the present grant, with the number of times that places were taken from it in the lowest 32
    /// bits. Later grants of the store have higher numbers.
    fn fencing_number(&self, state: &(impl State + ?Sized)) -> u64 {
        let taken = self.get(state, LeaseWord::TakenOfGrant).min(u64::from(u32::MAX));
        self.get(state, LeaseWord::GrantNumber) << FENCING_SHIFT | taken
    }

    /// The fencing number of an admission that left the limit at `mark`, by which the resource that a place guards can
    /// recognise earlier holders; `None` if units are not held.
    pub(crate) fn fencing_number_of(&self, mark: Mark) -> Option<u64> {
        (self.is_held() && mark.second >> FENCING_SHIFT > 0).then_some(mark.second)
    }

    /// Ends the lease, whatever is left of it.
    fn end(&self, state: &mut (impl StateMut + ?Sized)) {
        let spent = self.get(state, LeaseWord::Spent);
        let allowance = match self.unleased {
            _ if self.is_held() => 0,
            None => spent,
            // What was spent beyond it is not reported yet.
            Some(_) => self.get(state, LeaseWord::Allowance).min(spent),
        };
        self.put(state, LeaseWord::Allowance, allowance);
        self.put(state, LeaseWord::ValidUntil, 0);
        self.put(state, LeaseWord::SelfGranted, 0);
        self.put(state, LeaseWord::LowWater, 0);
    }

    /// Takes over the state of a limit that was not shared before. The host's first report includes what it has used
    /// already, so that the store does not grant it anew.
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

    /// Hands the state over to the rule of a limit that is no longer shared. What is leased can be spent, and the
    /// rest comes back as the rule says.
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

    /// Forgets what was leased, asked and reported under another key of the store: this key knows nothing of it.
    fn begin_with_key(&self, state: &mut (impl StateMut + ?Sized)) {
        if self.get(state, LeaseWord::Key) == u64::from(self.key) {
            return;
        }
        self.begin(state);
    }

    /// Begins with nothing leased, asked or reported.
    pub(crate) fn begin(&self, state: &mut (impl StateMut + ?Sized)) {
        for word in LeaseWord::OF_ONE_KEY {
            self.put(state, word, 0);
        }
        self.put(state, LeaseWord::Key, u64::from(self.key));
        if self.is_by_key() {
            self.leave_list(state);
        }
    }

    /// Forgets everything this host has reported to the store, because after a cold start it is another host.
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
        if !self.is_by_key() || self.is_held() {
            self.note_cost(state, cost);
        }
        if self.is_held() {
            // Places that come back before the host asks leave no other trace of their use.
            self.note_use(state, now);
            state.store(0, state.load(0).saturating_add(cost));
            return;
        }
        let spent = self.get(state, LeaseWord::Spent);
        let leased = self.left_in_time(state, now);
        if self.grants_itself(state, now) && !self.fits(Spendable::Units(leased), cost) {
            let (units, length) = self.self_grant(state);
            self.put(state, LeaseWord::Allowance, spent.saturating_add(units));
            let until = now.monotonic.saturating_add(length);
            self.put(state, LeaseWord::ValidUntil, until);
            self.put(state, LeaseWord::SelfGranted, 1);
        }
        let ungranted = self.ungranted_of(state, now, cost);
        if self.is_by_key() && !self.is_valid(state, now) {
            // What is left of a lease that is over makes no room for units that are not leased.
            let allowance = self.get(state, LeaseWord::Allowance).min(spent);
            self.put(state, LeaseWord::Allowance, allowance);
        }
        self.put(state, LeaseWord::Spent, spent.saturating_add(cost));
        if ungranted > 0 {
            self.add(state, LeaseWord::Ungranted, ungranted);
        }
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
        let mark = self.mark_of(state, now, self.spendable(state, now));
        let shortage = self.shortage(state, now) as u64;
        Mark {
            first: mark.first | shortage << SHORTAGE_SHIFT,
            ..mark
        }
    }

    /// Never, if all requests share the limit: what the other hosts have used is unknown. By key, once nothing is left to
    /// report or to ask for, and nothing that the store said still holds.
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.is_by_key() && self.is_forgettable(state, now)
    }

    /// Replenishing a lease is up to the store.
    fn reset(&self, _state: &mut (impl StateMut + ?Sized)) {}

    fn with_capacity(&self, capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Ok(Self { capacity, ..*self })
    }

    fn reads_utc(&self) -> bool {
        self.reads_utc
    }

    /// Gives back what time has left of the charge, as an unshared limit does, judged by what the store counted when
    /// it last answered: what hosts have used since can only leave more of it. Unreported units come back to the
    /// lease; the rest is reported as unused.
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
            remaining: mark.first & LEFT,
            // Only the store knows when it will be replenished.
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

    /// What is leased stays, unless the key of the store changes.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), _now: Now) {
        if self.key != old.key {
            self.end(state);
            self.begin_with_key(state);
        }
    }
}
