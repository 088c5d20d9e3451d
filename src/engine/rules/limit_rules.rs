//! One limit of a set: its rule, and how the rule is applied to the words of a row.

use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use crate::choices::{Kind, Scope};
use crate::engine::rules::limit_state::StateWords;
use crate::engine::terms::credit_word::CreditWord;
use crate::engine::terms::plan::{CreditPlan, LimitPlan};
use crate::limit::{
    Answer, Ask, Assessment, CapacityTerms, Charge, Installed, KeyLeaseState, LEASE_WORDS, LeaseOutcome,
    LeaseState, Leased, Mark, NearThreshold, Now, Problem, Rule, RuleOperations, Sample, Shortage, State,
    StateMut,
};
use crate::order::{MAX_COST, PER_NANO, Served};
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::Transaction;
use crate::shm::lock::store::{Direct, Store};
use crate::units::saturate;

/// Where a limit stands in its set, and where its state starts in a row.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct LimitPlace {
    /// Its position in the set.
    pub(in crate::engine) index: usize,
    /// The position, among the set's prefix lengths, of those whose networks it counts; zero if it counts none.
    pub(in crate::engine) level: usize,
    /// The index of its first word among the states of its scope.
    pub(in crate::engine) first_word: usize,
    /// The word of a row's state that holds the key's own capacity; `None` if keys cannot have one.
    pub(in crate::engine) override_word: Option<usize>,
}

/// A limit and where its state lies in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitRules {
    /// Its position in the set.
    pub(crate) index: usize,
    pub(crate) rule: Rule,
    pub(crate) kind: Kind,
    /// Whether each key has it for itself, or all keys have it together.
    pub(crate) scope: Scope,
    /// A cost above this can never be admitted.
    pub(crate) burst: u64,
    /// Whether what was charged and not used is refunded.
    pub(crate) refunds: bool,
    pub(crate) lease: Option<u64>,
    pub(crate) credit: Option<CreditPlan>,
    /// Whether it decides and counts, but never refuses.
    pub(crate) shadow: bool,
    near: NearThreshold,
    near_percent: u8,
    /// How another capacity for a key changes the rule; `None` if the capacity adapts, or is no bound.
    pub(in crate::engine) terms: Option<CapacityTerms>,
    /// The word of a row's state that holds the key's own capacity; `None` if keys cannot have one.
    pub(in crate::engine) override_word: Option<usize>,
    /// Whether its capacity adapts to how the work goes.
    pub(in crate::engine) adapts: bool,
    /// Whether its capacity can differ from key to key.
    differs_by_row: bool,
    /// The position, among the set's prefix lengths, of those whose networks it counts; zero if it counts none.
    pub(in crate::engine) level: usize,
    first_word: usize,
    words: usize,
    /// Whether its last words are room for a lease.
    has_lease_room: bool,
}

impl LimitRules {
    pub(in crate::engine) fn new(plan: &LimitPlan, place: LimitPlace) -> Self {
        Self {
            index: place.index,
            rule: plan.rule,
            kind: plan.kind,
            scope: plan.scope,
            burst: plan.rule.burst(),
            refunds: plan.refunds,
            lease: plan.lease,
            credit: plan.credit,
            shadow: plan.shadow,
            level: place.level,
            adapts: matches!(plan.rule, Rule::Adaptive(_)),
            differs_by_row: matches!(plan.rule, Rule::Adaptive(_)) || place.override_word.is_some(),
            near: plan.rule.near_threshold(plan.near_percent),
            near_percent: plan.near_percent,
            terms: plan.terms,
            override_word: place.override_word,
            first_word: place.first_word,
            words: plan.state_words(),
            has_lease_room: plan.has_lease_room,
        }
    }

    /// The same limit under another rule, whose state has as many words.
    pub(in crate::engine) fn by_rule(&self, rule: Rule) -> Self {
        Self {
            rule,
            burst: rule.burst(),
            near: rule.near_threshold(self.near_percent),
            ..*self
        }
    }

    /// Whether admitting a request only takes from the limit, and fills a hold if the limit is held: it is not drawn in
    /// batches, never admits in shadow, and is decided on the request's first row. If it is leased, only [while there is
    /// enough](Self::has_ample_lease).
    pub(in crate::engine) fn is_plain(&self) -> bool {
        let is_taken = self.leased().is_none_or(Leased::is_taken);
        !self.shadow && self.credit.is_none() && self.level == 0 && is_taken
    }

    pub(in crate::engine) fn near(&self) -> NearThreshold {
        self.near
    }

    /// Whether all keys have it together, so that it belongs to no key.
    #[inline(always)]
    pub(crate) fn is_overall(&self) -> bool {
        self.scope == Scope::AllKeys
    }

    /// What holding `amount` units for so many nanoseconds weighs when keys are compared; zero if the limit is not
    /// held.
    pub(in crate::engine) fn time_held(&self, row: Row<'_>, now: Now, amount: u64, nanos: u64) -> Served {
        if self.kind != Kind::Concurrency || self.shadow || matches!(self.rule, Rule::Unlimited(_)) {
            return 0;
        }
        let found = self.adapts.then(|| self.rule.found_capacity(self.mark(row, now)));
        let capacity = found.flatten().unwrap_or_else(|| self.rule.capacity()).max(1);
        let of_all = nanos
            .checked_mul(PER_NANO)
            .and_then(|of_one| of_one.checked_mul(amount));
        // Nearly always. Dividing 128 bits would take longer than all the rest.
        let time = if let Some(of_all) = of_all {
            of_all / capacity
        } else {
            let of_one = u128::from(nanos) * u128::from(PER_NANO);
            saturate(of_one.saturating_mul(u128::from(amount)) / u128::from(capacity))
        };
        time.min(MAX_COST)
    }

    /// The index of its first word among the states of its scope.
    pub(in crate::engine) fn first_word(&self) -> usize {
        self.first_word
    }

    #[inline]
    fn state<'a>(&self, row: Row<'a>) -> &'a [AtomicU64] {
        let words = self.first_word..self.first_word + self.words;
        row.states(self.scope).get(words).unwrap_or_default()
    }

    #[inline(always)]
    fn changing<'a, S: Store>(&self, row: Row<'a>, store: S) -> StateWords<'a, S> {
        StateWords::changing(self.state(row), store)
    }

    /// The units that a word of a hold's amounts stands for. With credit the word is packed.
    pub(crate) fn held(&self, amount: u64) -> u64 {
        match self.credit {
            None => amount,
            Some(_) => CreditWord::from_word(amount).units(),
        }
    }

    /// What the word of a hold's amounts becomes when nothing is held.
    pub(crate) fn nothing_held(&self, amount: u64) -> u64 {
        match self.credit {
            None => 0,
            // A free hold keeps the tag of its latest batch, so that the next batch gets another.
            Some(_) => CreditWord::from_word(amount)
                .without_requests()
                .emptied()
                .to_word(),
        }
    }

    /// The word that says how much of a concurrency limit is in use; `None` for other limits.
    pub(crate) fn in_use<'a>(&self, row: Row<'a>) -> Option<&'a AtomicU64> {
        if self.kind == Kind::Concurrency {
            self.state(row).first()
        } else {
            None
        }
    }

    /// Whether a lease that runs from `counts_from` has expired.
    pub(in crate::engine) fn has_expired(&self, counts_from: u64, now: Now) -> bool {
        self.lease
            .is_some_and(|lease| counts_from.saturating_add(lease) <= now.monotonic)
    }

    /// The limit's answer to `cost`, in shadow or not.
    #[inline]
    pub(crate) fn assess(&self, row: Row<'_>, now: Now, cost: u64) -> Assessment {
        self.rule.assess(&StateWords::reading(self.state(row)), now, cost)
    }

    /// The limit's answer to `cost`. In shadow it always admits.
    #[inline]
    pub(crate) fn verdict(&self, row: Row<'_>, now: Now, cost: u64) -> Assessment {
        self.verdict_and_mark(row, now, cost).0
    }

    /// The [`verdict`](Self::verdict), and how the limit stands.
    #[inline]
    pub(crate) fn verdict_and_mark(&self, row: Row<'_>, now: Now, cost: u64) -> (Assessment, Mark) {
        let state = StateWords::reading(self.state(row));
        let (assessment, mark) = self.rule.assess_and_mark(&state, now, cost);
        if self.shadow {
            return (Assessment::Admissible, mark);
        }
        (assessment, mark)
    }

    /// A lower bound, in nanoseconds, on when all of `amount` units can have been taken, in whatever portions.
    pub(in crate::engine) fn earliest(&self, row: Row<'_>, now: Now, amount: u64) -> u64 {
        self.rule
            .earliest(&StateWords::reading(self.state(row)), now, amount)
    }

    /// Whether a limit that stands at `mark` is near its capacity.
    #[inline]
    pub(crate) fn is_near(&self, mark: Mark) -> bool {
        self.rule.is_near(mark, self.near)
    }

    #[inline]
    pub(crate) fn mark(&self, row: Row<'_>, now: Now) -> Mark {
        self.rule.mark(&StateWords::reading(self.state(row)), now)
    }

    /// Takes the cost if the limit admits it. Returns how the limit then stands, or else the assessment.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
        cost: u64,
    ) -> Result<Mark, Assessment> {
        self.rule.take(&mut self.changing(row, transaction), now, cost)
    }

    /// Charges usage that has already happened, whatever the limit says.
    pub(crate) fn charge(&self, row: Row<'_>, transaction: &mut Transaction<'_>, now: Now, cost: u64) {
        self.rule.charge(&mut self.changing(row, transaction), now, cost);
    }

    /// Charges usage that happened before `next` replaced this limit. Nothing of the row may be used yet.
    pub(in crate::engine) fn charge_before(
        &self,
        next: &Self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
        cost: u64,
    ) {
        if self.rule == next.rule {
            return next.charge(row, transaction, now, cost);
        }
        let mut between = StateBetween {
            words: self.state(row),
            changed: SmallVec::new(),
        };
        self.rule.charge(&mut between, now, cost);
        next.rule.migrate(&self.rule, &mut between, now);
        for (index, value) in between.changed {
            if let Some(word) = between.words.get(index) {
                transaction.store(word, value);
            }
        }
    }

    /// Charges for a use `delay` nanoseconds from now, as of that instant, by which the limit must admit it. If it were
    /// charged as of now, it would leave room for others at that instant. Returns how the limit stands now; `None` if
    /// it is in shadow and would refuse.
    #[cold]
    pub(crate) fn take_ahead(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
        delay: u64,
        cost: u64,
    ) -> Option<Mark> {
        if self.shadow && self.assess(row, now, cost) != Assessment::Admissible {
            return None;
        }
        let state = &mut self.changing(row, transaction);
        self.rule.charge_ahead(state, now, delay, cost);
        Some(self.mark(row, now))
    }

    /// Refunds `unused` units of a charge by this rule. Returns the units actually refunded.
    pub(crate) fn refund(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
        unused: u64,
        charge: &Charge,
    ) -> u64 {
        self.rule
            .refund(&mut self.changing(row, transaction), now, unused, charge)
    }

    /// Tells an adaptive limit how the work went whose units are about to be given back.
    #[inline]
    pub(crate) fn observe(&self, row: Row<'_>, transaction: &mut Transaction<'_>, now: Now, sample: Sample) {
        if self.adapts {
            self.rule
                .observe(&mut self.changing(row, transaction), now, sample);
        }
    }

    #[inline(always)]
    pub(crate) fn give_back(&self, row: Row<'_>, store: impl Store, amount: u64) {
        self.rule.give_back(&mut self.changing(row, store), amount);
    }

    /// Forgets the key's own capacity, or what an adaptive limit has learnt, so that the row's next key starts as declared.
    pub(crate) fn forget(&self, row: Row<'_>, transaction: &mut Transaction<'_>) {
        if !self.differs_by_row || self.is_overall() {
            return;
        }
        if let Some(word) = self.capacity_word(row) {
            transaction.store(word, 0);
        } else {
            self.rule.reset(&mut self.changing(row, transaction));
        }
    }

    /// Whether the limit is as if it had never been used.
    #[inline]
    pub(crate) fn is_replenished(&self, row: Row<'_>, now: Now) -> bool {
        self.rule
            .is_replenished(&StateWords::reading(self.state(row)), now)
    }

    /// Whether hosts share the limit.
    #[inline]
    pub(in crate::engine) fn is_leased(&self) -> bool {
        matches!(self.rule, Rule::Leased(_))
    }

    /// The first of the limit's words that is room for a lease.
    fn lease_room(&self) -> Option<usize> {
        self.has_lease_room
            .then(|| self.words.saturating_sub(LEASE_WORDS))
    }

    /// The index, in a row's state, of the first word that is room for a lease.
    pub(in crate::engine) fn lease_word(&self) -> Option<usize> {
        Some(self.first_word + self.lease_room()?)
    }

    /// The rule of the lease, if hosts share the limit.
    fn leased(&self) -> Option<&Leased> {
        match &self.rule {
            Rule::Leased(leased) => Some(leased),
            _ => None,
        }
    }

    /// Why too little was leased, if that is the reason for a refusal that left the limit at `mark`.
    pub(in crate::engine) fn shortage_of(&self, mark: Mark) -> Option<Shortage> {
        self.leased().and_then(|leased| leased.shortage_of(mark))
    }

    /// The words of the lease record, for readers.
    pub(in crate::engine) fn lease_words<'a>(&self, row: Row<'a>) -> Option<&'a [AtomicU64]> {
        self.state(row).get(self.lease_room()?..)
    }

    /// How many places of a concurrency limit that hosts share are held beyond what is leased.
    pub(in crate::engine) fn places_above_lease(&self, row: Row<'_>, now: Now) -> u64 {
        let state = StateWords::reading(self.state(row));
        // Until the store has answered for this key, nothing exceeds the lease: what is already held is asked for
        // first.
        let leased = self.leased().filter(|leased| leased.was_answered(&state));
        let places = leased.and_then(|leased| leased.places(&state, now));
        places.map_or(0, |places| state.load(0).saturating_sub(places))
    }

    /// The fencing number of an admission that left the limit at `mark`; `None` unless hosts share the limit and it is
    /// held.
    pub(in crate::engine) fn fencing_number(&self, mark: Mark) -> Option<u64> {
        self.leased()?.fencing_number_of(mark)
    }

    /// The state of the lease, if hosts share the limit.
    pub(crate) fn lease_state(&self, row: Row<'_>, now: Now) -> Option<LeaseState> {
        Some(
            self.leased()?
                .read_state(&StateWords::reading(self.state(row)), now),
        )
    }

    /// What a key has leased, if hosts share the limit.
    pub(in crate::engine) fn key_lease_state(&self, row: Row<'_>, now: Now) -> Option<KeyLeaseState> {
        let state = StateWords::reading(self.state(row));
        Some(self.leased()?.read_key_state(&state, now))
    }

    /// Whether a lease is in force that has so much left that `cost` gives no reason to ask for more.
    #[inline]
    pub(in crate::engine) fn has_ample_lease(&self, row: Row<'_>, now: Now, cost: u64) -> bool {
        let state = StateWords::reading(self.state(row));
        self.leased()
            .is_some_and(|leased| leased.is_ample(&state, now, cost))
    }

    /// The word of the lease that changes if `cost` is taken, its next value and the mark that the limit is then left at,
    /// if there is [ample](Self::has_ample_lease) left and nothing else changes.
    #[inline]
    pub(in crate::engine) fn take_amply<'a>(
        &self,
        row: Row<'a>,
        now: Now,
        cost: u64,
    ) -> Option<(&'a AtomicU64, u64, Mark)> {
        let leased = self.leased()?;
        let words = self.state(row);
        let (spent, mark) = leased.spent_amply(&StateWords::reading(words), now, cost)?;
        Some((words.get(leased.spent_word())?, spent, mark))
    }

    /// Whether a lease is in force.
    pub(in crate::engine) fn has_lease(&self, row: Row<'_>, now: Now) -> bool {
        let state = StateWords::reading(self.state(row));
        self.leased().is_some_and(|leased| leased.is_valid(&state, now))
    }

    /// Whether something was spent or refunded that no request has reported yet.
    pub(in crate::engine) fn is_unreported(&self, row: Row<'_>) -> bool {
        let state = StateWords::reading(self.state(row));
        self.leased().is_some_and(|leased| leased.is_unreported(&state))
    }

    /// Whether a place was released that other hosts wait for.
    pub(in crate::engine) fn has_place_to_return(&self, row: Row<'_>, now: Now) -> bool {
        let state = StateWords::reading(self.state(row));
        self.leased()
            .is_some_and(|leased| leased.has_place_to_return(&state, now))
    }

    /// Notes that the lease is nearly spent. Returns whether to wake the process on duty. The note is only a hint and
    /// need not be undone.
    pub(in crate::engine) fn note_low(&self, row: Row<'_>) -> bool {
        let mut state = self.changing(row, Direct);
        self.leased().is_some_and(|leased| leased.alert(&mut state))
    }

    /// Notes that `cost` units were asked for and missing: a hint, like [`note_low`](Self::note_low). Returns whether
    /// to wake the process on duty.
    pub(in crate::engine) fn note_unmet(&self, row: Row<'_>, now: Now, cost: u64) -> bool {
        let mut state = self.changing(row, Direct);
        self.leased()
            .is_some_and(|leased| leased.note_unmet(&mut state, now, cost))
    }

    /// Begins the lease of a row for a key that has none. `of_shard` is the row that says how the store fares.
    pub(in crate::engine) fn begin_key(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        of_shard: Row<'_>,
    ) {
        if let Some(leased) = self.leased() {
            let outage = StateWords::reading(self.state(of_shard));
            leased.begin_key(&mut self.changing(row, transaction), &outage);
        }
    }

    /// Puts an outage of the store into force for a key, if the shard knows of one. Returns whether it does.
    pub(in crate::engine) fn follow_outage(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        of_shard: Row<'_>,
        now: Now,
    ) -> bool {
        let outage = StateWords::reading(self.state(of_shard));
        let state = &mut self.changing(row, transaction);
        self.leased()
            .is_some_and(|leased| leased.follow_outage(state, &outage, now))
    }

    /// Lets a key drain, or not, as its shard does.
    pub(in crate::engine) fn follow_draining(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        of_shard: Row<'_>,
    ) {
        let draining = StateWords::reading(self.state(of_shard));
        if let Some(leased) = self.leased() {
            leased.follow_draining(&mut self.changing(row, transaction), &draining);
        }
    }

    /// Notes in the record of the shard that a request for a key was answered, or failed.
    pub(in crate::engine) fn note_outcome(
        &self,
        of_shard: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
        outcome: LeaseOutcome,
    ) {
        if let Some(leased) = self.leased() {
            leased.note_outcome(&mut self.changing(of_shard, transaction), now, outcome);
        }
    }

    /// Whether a record says that the store is out.
    pub(in crate::engine) fn is_known_out(&self, row: Row<'_>) -> bool {
        let state = StateWords::reading(self.state(row));
        self.leased().is_some_and(|leased| leased.is_known_out(&state))
    }

    /// Takes over what the record of another shard says of an outage.
    pub(in crate::engine) fn copy_outage(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        other: Row<'_>,
    ) {
        let other = StateWords::reading(self.state(other));
        if let Some(leased) = self.leased() {
            leased.copy_outage(&mut self.changing(row, transaction), &other);
        }
    }

    /// Notes that the row of a key is on no list of those to ask for.
    pub(in crate::engine) fn leave_list(&self, row: Row<'_>, transaction: &mut Transaction<'_>) {
        if let Some(leased) = self.leased() {
            leased.leave_list(&mut self.changing(row, transaction));
        }
    }

    /// Whether a key has to be asked for at once.
    pub(in crate::engine) fn is_key_in_hurry(&self, row: Row<'_>, now: Now) -> bool {
        self.leased()
            .is_some_and(|leased| leased.is_key_in_hurry(&StateWords::reading(self.state(row)), now))
    }

    /// For how many nanoseconds the reports of keys are gathered.
    pub(in crate::engine) fn reports_gathered_for(&self) -> u64 {
        self.leased().map_or(1, Leased::reports_gathered_for)
    }

    /// For how many nanoseconds a request that is refused while a lease is pending waits for the store's answer.
    pub(in crate::engine) fn cold_wait(&self) -> u64 {
        self.leased().map_or(0, Leased::cold_wait)
    }

    /// When the next request for a lease is due, on the segment clock.
    pub(in crate::engine) fn lease_due_at(&self, row: Row<'_>, now: Now) -> Option<u64> {
        self.leased()?.due_at(&StateWords::reading(self.state(row)), now)
    }

    /// The request to send to the store now, if one is due. It is recorded in the state.
    pub(in crate::engine) fn ask_lease(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
    ) -> Option<Ask> {
        self.leased()?.ask(&mut self.changing(row, transaction), now)
    }

    /// Applies an answer of the store.
    pub(in crate::engine) fn install_lease(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
        attempt_at: u64,
        answer: Answer,
    ) -> Option<Installed> {
        let state = &mut self.changing(row, transaction);
        self.leased()?.install(state, now, attempt_at, answer)
    }

    /// Notes that a request to the store failed.
    pub(in crate::engine) fn fail_lease(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        now: Now,
        sequence: u64,
        problem: Problem,
        retry_at: u64,
    ) -> bool {
        let state = &mut self.changing(row, transaction);
        self.leased()
            .is_some_and(|leased| leased.fail(state, now, sequence, problem, retry_at))
    }

    /// Starts giving back everything that is leased, or stops doing so.
    pub(in crate::engine) fn set_draining(
        &self,
        row: Row<'_>,
        transaction: &mut Transaction<'_>,
        draining: bool,
    ) {
        if let Some(leased) = self.leased() {
            leased.set_draining(&mut self.changing(row, transaction), draining);
        }
    }

    /// Forgets everything reported to the store, because this is another host now. Not journalled, as it can be
    /// repeated.
    pub(in crate::engine) fn begin_as_another_host(&self, row: Row<'_>) {
        if let Some(local_words) = self.lease_room() {
            let mut state = self.changing(row, Direct);
            Leased::begin_as_another_host(&mut state, local_words);
            // A key may spend before the process on duty has looked at it.
            if let Some(leased) = self.leased().filter(|leased| leased.is_by_key()) {
                leased.begin(&mut state);
            }
        }
    }

    /// Carries the state over from `old`, the limit that this one replaces.
    pub(crate) fn migrate(&self, old: &Self, row: Row<'_>, transaction: &mut Transaction<'_>, now: Now) {
        self.rule
            .migrate(&old.rule, &mut self.changing(row, transaction), now);
    }

    /// Replenishes the limit. Not journalled, as it can be repeated.
    pub(crate) fn reset(&self, row: Row<'_>) {
        self.rule.reset(&mut self.changing(row, Direct));
    }
}

/// A limit's state in the middle of several steps, of which only the outcome is journalled.
struct StateBetween<'a> {
    words: &'a [AtomicU64],
    /// A charge stores at most 5 words, a migration 65.
    changed: SmallVec<[(usize, u64); 96]>,
}

impl State for StateBetween<'_> {
    fn load(&self, index: usize) -> u64 {
        let changed = self.changed.iter().find(|(changed, _)| *changed == index);
        changed.map_or_else(
            || StateWords::reading(self.words).load(index),
            |(_, value)| *value,
        )
    }
}

impl StateMut for StateBetween<'_> {
    fn store(&mut self, index: usize, value: u64) {
        match self.changed.iter_mut().find(|(changed, _)| *changed == index) {
            Some((_, present)) => *present = value,
            None => self.changed.push((index, value)),
        }
    }
}
