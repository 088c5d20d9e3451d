//! What a request asks for, and how it was decided.

use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::terms::credit_word::BatchShare;
use crate::engine::terms::decided::{Decided, NEVER};
use crate::engine::terms::definition_bits::{DefinitionBits, TierIndex};
use crate::engine::terms::drawn::Drawn;
use crate::engine::terms::drawn::Spent;
use crate::engine::terms::own_capacities::{LimitMask, OwnCapacities, RefusedCapacity};
use crate::engine::terms::resolution::{Binding, Cause, Held, PackedResolution, Phase, Resolution};
use crate::shm::layout::places::HoldReference;
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::layout::row::{Row, RowReference};
use crate::table::Fingerprint;
use crate::words::words;

/// What a request takes from each limit of a set, and what else it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) limits: LimitMask,
    /// The tier to put the key in.
    pub(crate) tier: Option<TierIndex>,
    /// The request's label, of at most [`MAX_LABEL_BYTES`](crate::shm::layout::label::MAX_LABEL_BYTES).
    pub(crate) label: Option<Arc<str>>,
    pub(crate) amounts: [u64; MAX_LIMITS],
    /// The capacities to give the key as its own. Out of line, because few requests name any.
    pub(crate) own_capacities: Option<Arc<OwnCapacities>>,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            limits: LimitMask::default(),
            tier: None,
            label: None,
            amounts: [0; MAX_LIMITS],
            own_capacities: None,
        }
    }
}

impl Costs {
    /// A cost of one limit only.
    pub(crate) fn of_one(index: usize, cost: u64) -> Self {
        let mut costs = Self::default();
        if let Some(amount) = costs.amounts.get_mut(index) {
            *amount = cost;
            costs.limits.insert(index);
        }
        costs
    }

    /// Adds what another request takes.
    pub(in crate::engine) fn add(&mut self, other: &Self) {
        for (index, cost) in other.iter() {
            self.limits.insert(index);
            let sum = &mut self.amounts[index % MAX_LIMITS];
            *sum = sum.saturating_add(cost);
        }
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        // The mask never has a bit beyond the amounts; taking the remainder says so to the compiler.
        self.limits
            .iter()
            .map(|index| (index, self.amounts[index % MAX_LIMITS]))
    }
}

/// What a request asks for that can never be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Impossible {
    /// A cost above the most that the limit admits at once.
    Cost { limit: usize, cost: u64, max: u64 },
    /// A capacity that the key cannot have.
    Capacity(RefusedCapacity),
}

/// How many capacities fit into one note, which is a [`Decided`].
const OVERRIDES_IN_A_NOTE: usize = 3;

/// How many notes it takes to record a key's own capacities for this many limits.
pub(in crate::engine) const fn notes_of_overrides(limits: usize) -> usize {
    limits.div_ceil(OVERRIDES_IN_A_NOTE)
}

/// A bit beside the limit in the note of what is impossible: it is a capacity, not a cost.
const CAPACITY_REFUSED: usize = MAX_LIMITS;

const _: () = assert!(MAX_LIMITS.is_power_of_two());

/// The wait, in nanoseconds, of a request that is kept waiting only by others ahead of it, who are about to be served.
pub(in crate::engine) const SHORTEST_WAIT: u64 = 1;

/// The number of limits whose decisions a permit or refusal carries inline. With three, a permit takes two cache lines,
/// and moving it costs next to nothing. With room for all sixteen, moving it would cost more than deciding. The
/// decisions on more limits are on the heap.
const DECIDED_INLINE: usize = 3;

/// How a request was decided. Filled in place, because moving it about in pieces would cost more than deciding.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    details: Details,
    /// The participant that the request was decided for.
    pub(crate) owner: u64,
    /// When it was decided, on the segment clock.
    pub(crate) decided_at: u64,
}

/// The part of a decision that a refusal needs.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    limits: LimitMask,
    /// The definition of the set that the request was decided by.
    pub(crate) definition: DefinitionBits,
    resolution: PackedResolution,
    /// How each limit was decided, in order, and after them the other notes: the key, and its own capacities. Notes
    /// that have not been made yet are zeros.
    pub(in crate::engine) decided: SmallVec<[Decided; DECIDED_INLINE]>,
}

impl Deref for Decision {
    type Target = Details;

    #[inline(always)]
    fn deref(&self) -> &Details {
        &self.details
    }
}

impl DerefMut for Decision {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Details {
        &mut self.details
    }
}

impl Decision {
    /// Nothing decided yet. There is room for everything to be noted, because nothing is allocated under a lock: one
    /// note for each limit, and [`notes_beside`](crate::engine::rules::set_outline::SetOutline::notes_beside) others.
    #[inline(always)]
    pub(crate) fn pending(costs: &Costs, notes_beside: usize) -> Self {
        let is_more = match notes_beside {
            // First, because most requests ask for one limit.
            0 | 1 if !costs.limits.is_more_than::<1>() => false,
            0 => costs.limits.is_more_than::<DECIDED_INLINE>(),
            1 => costs.limits.is_more_than::<{ DECIDED_INLINE - 1 }>(),
            _ => true,
        };
        if is_more {
            Self::with_room(costs.limits, notes_beside)
        } else {
            Self::of_limits(costs.limits)
        }
    }

    /// Nothing decided yet, with inline room only.
    #[inline(always)]
    fn of_limits(limits: LimitMask) -> Self {
        Self {
            details: Details {
                limits,
                definition: DefinitionBits::default(),
                resolution: PackedResolution::PENDING,
                decided: SmallVec::from_buf([Decided::NOTHING; DECIDED_INLINE]),
            },
            owner: 0,
            decided_at: 0,
        }
    }

    /// An admission from the batch of credit of a set without keys.
    #[inline(always)]
    pub(crate) fn of_spent(spent: &Spent) -> Self {
        let Spent { batch, cost, left } = spent;
        let charged = Decided::charged(batch.mark, *cost);
        Self {
            details: Details {
                limits: LimitMask(1),
                definition: DefinitionBits::of_default(batch.generation),
                resolution: PackedResolution::admitted(
                    0,
                    Held::Share {
                        hold_index: batch.hold_index(),
                        share: BatchShare::new(batch.serial, batch.tag(), *left),
                    },
                ),
                decided: SmallVec::from_buf_and_len([charged; DECIDED_INLINE], 1),
            },
            owner: batch.owner,
            decided_at: batch.drawn_at,
        }
    }

    /// Nothing decided yet, with more room, on the heap. Like [`of_limits`](Self::of_limits) it makes a whole decision,
    /// so that it is built where the caller wants it and not moved there.
    #[inline(never)]
    fn with_room(limits: LimitMask, notes_beside: usize) -> Self {
        let mut pending = Self::of_limits(limits);
        let needed = limits.0.count_ones() as usize + notes_beside;
        pending
            .decided
            .reserve_exact(needed.saturating_sub(DECIDED_INLINE));
        pending.decided.resize(needed, Decided::NOTHING);
        pending
    }

    /// The part that a refusal needs, to be kept.
    #[inline]
    pub(crate) fn into_details(self) -> Details {
        self.details
    }

    /// Begins an admission of the participant `owner` in a shard of the set. Clears the [notes](Self::notes), unless
    /// the decision `is_pending`: then they are still empty.
    #[inline(always)]
    pub(in crate::engine) fn begin(
        &mut self,
        shard: u32,
        definition: DefinitionBits,
        now: u64,
        owner: u64,
        is_pending: bool,
    ) {
        // A set has at most 1024 shards.
        self.resolution = PackedResolution::admitted(shard as u16, Held::Nothing);
        self.definition = definition;
        self.owner = owner;
        self.decided_at = now;
        debug_assert!(
            !is_pending || self.decided.iter().all(|it| it.words() == [0; 3]),
            "another decision was made in its place"
        );
        if !is_pending {
            // As much as there is room for, so that nothing is allocated.
            let room = self.decided.capacity();
            self.decided.clear();
            self.decided.resize(room, Decided::NOTHING);
        }
    }

    /// The notes to fill in: how each limit was decided, in order, and then the [key](Self::key).
    #[inline(always)]
    pub(in crate::engine) fn notes(&mut self) -> Notes<'_> {
        Notes(self.decided.iter_mut())
    }

    /// Appends how the next limit was decided. There is room for it.
    #[inline(always)]
    pub(crate) fn note(&mut self, decided: Decided) {
        self.decided.push(decided);
    }

    /// Fills in that the request was admitted from a batch of credit, drawn in a shard of the set: it took `cost` units
    /// of the batch, and `left` remain.
    #[inline]
    pub(in crate::engine) fn admit_from_credit(&mut self, shard: u32, drawn: &Drawn, cost: u64, left: u64) {
        // A set has at most 1024 shards.
        self.resolution = PackedResolution::admitted(
            shard as u16,
            Held::Share {
                hold_index: drawn.hold.index,
                share: BatchShare::new(drawn.hold.serial, drawn.tag, left),
            },
        );
        self.definition = DefinitionBits::of_default(drawn.generation);
        self.decided_at = drawn.drawn_at;
        self.decided.clear();
        self.decided.push(Decided::charged(drawn.mark, cost));
        let Fingerprint { low, high } = drawn.fingerprint;
        if drawn.fingerprint != Fingerprint::NONE {
            self.decided
                .push(Decided::of_words([low, high, drawn.row.to_word()]));
        }
    }

    /// Which units of which batch an admitted request took, if it was admitted from one.
    pub(in crate::engine) fn batch_share(&self) -> Option<BatchShare> {
        match self.held() {
            Held::Share { share, .. } => Some(share),
            Held::Hold(_) | Held::Nothing => None,
        }
    }

    /// Whether the request was admitted from this batch.
    pub(in crate::engine) fn is_from(&self, drawn: &Drawn) -> bool {
        let Held::Share { hold_index, share } = self.held() else {
            return false;
        };
        // Tags wrap around. The instant tells batches with the same tag apart.
        self.owner == drawn.owner
            && self.decided_at == drawn.drawn_at
            && hold_index == drawn.hold.index
            && share.is_of(drawn.hold.serial, drawn.tag)
    }

    /// Notes what an admitted request holds.
    #[inline(always)]
    pub(crate) fn set_hold(&mut self, hold: Option<HoldReference>) {
        self.resolution.set_held(hold.map_or(Held::Nothing, Held::Hold));
    }

    /// Notes why the request was refused.
    #[inline(always)]
    pub(in crate::engine) fn refuse(&mut self, cause: Cause) {
        self.resolution = PackedResolution::refused(cause);
    }

    /// The row that an admitted request was decided on, and the key that had it then. Without a key, the only row.
    pub(in crate::engine) fn key(&self) -> (RowReference, Fingerprint) {
        // The key, if there is one, follows the notes of the limits.
        let key = self.decided.get(self.limits.0.count_ones() as usize);
        match key.map(Decided::words) {
            Some([low, high, row]) => (RowReference::from_word(row), Fingerprint { low, high }),
            None => (RowReference::default(), Fingerprint::NONE),
        }
    }

    /// Notes, after the key, its own capacity for each limit that is asked. There is room for it.
    pub(in crate::engine) fn note_own_capacities(&mut self, capacity: impl Fn(usize) -> Option<NonZeroU64>) {
        let count = self.limits.0.count_ones() as usize;
        // In a refusal or a peek, these notes do not exist yet.
        let end = count + 1 + notes_of_overrides(count);
        if self.decided.len() < end {
            self.decided.resize(end, Decided::NOTHING);
        }
        let mut capacities = self
            .limits
            .iter()
            .map(|index| capacity(index).map_or(0, NonZeroU64::get));
        for place in self.details.decided.iter_mut().take(end).skip(count + 1) {
            let words = [(); OVERRIDES_IN_A_NOTE].map(|()| capacities.next().unwrap_or(0));
            *place = Decided::of_words(words);
        }
    }

    /// Notes what can never be met, in place of all other notes. There is room for it, because something was asked for.
    #[cold]
    pub(in crate::engine) fn note_impossible(&mut self, impossible: Impossible) {
        let (limit, first, second) = match impossible {
            Impossible::Cost { limit, cost, max } => (limit, cost, max),
            Impossible::Capacity(refused) => {
                self.definition = refused.definition;
                (
                    refused.limit | CAPACITY_REFUSED,
                    refused.capacity,
                    refused.concurrency,
                )
            }
        };
        self.decided.clear();
        self.decided
            .push(Decided::of_words([first, second, limit as u64]));
    }

    /// What can never be met, as it was [noted](Self::note_impossible).
    pub(in crate::engine) fn impossible(&self) -> Impossible {
        let [first, second, limit] = self.decided.first().map_or([0; 3], Decided::words);
        let limit = limit as usize;
        if limit & CAPACITY_REFUSED != 0 {
            return Impossible::Capacity(RefusedCapacity {
                limit: limit & !CAPACITY_REFUSED,
                capacity: first,
                definition: self.definition,
                concurrency: second,
            });
        }
        Impossible::Cost {
            limit,
            cost: first,
            max: second,
        }
    }

    /// The index of the shard that the request was decided in.
    #[inline]
    pub(crate) fn shard(&self) -> u32 {
        u32::from(self.resolution.shard())
    }

    /// In a peek, makes every limit that is asked wait for at least `wait` nanoseconds.
    pub(in crate::engine) fn wait_at_least(&mut self, wait: u64) {
        let count = self.limits.0.count_ones() as usize;
        for decided in self.details.decided.iter_mut().take(count) {
            decided.wait_at_least(wait);
        }
    }

    /// The phase of an admitted request's permit. A refusal has no permit and counts as released.
    #[inline(always)]
    pub(crate) fn phase(&self) -> Phase {
        match self.resolution.view() {
            Resolution::Admitted { phase, .. } => phase,
            Resolution::Refused(_) => Phase::Released,
        }
    }

    #[inline(always)]
    pub(crate) fn set_phase(&mut self, phase: Phase) {
        self.resolution.set_phase(phase);
    }

    #[inline(always)]
    fn held(&self) -> Held {
        match self.resolution.view() {
            Resolution::Admitted { held, .. } => held,
            Resolution::Refused(_) => Held::Nothing,
        }
    }

    /// The hold of an admitted request, if it has one of its own.
    #[inline]
    pub(crate) fn hold(&self) -> Option<HoldReference> {
        match self.held() {
            Held::Hold(hold) => Some(hold),
            Held::Share { .. } | Held::Nothing => None,
        }
    }

    /// Whether an admitted request holds something, or took units of a batch.
    #[inline]
    pub(crate) fn holds_something(&self) -> bool {
        self.held() != Held::Nothing
    }

    /// Notes that more was taken from a limit after the decision. Does nothing if the request did not ask that limit.
    pub(crate) fn add_to_cost(&mut self, index: usize, amount: u64) {
        let limits = self.limits.iter();
        if let Some((_, decided)) = limits
            .zip(&mut self.details.decided)
            .find(|(limit, _)| *limit == index)
        {
            decided.add_to_cost(amount);
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Decided> {
        self.iter()
            .find(|(limit, _)| *limit == index)
            .map(|(_, decided)| decided)
    }
}

impl Details {
    /// Why the request was refused, apart from what its limits say.
    #[inline(always)]
    pub(crate) fn cause(&self) -> Cause {
        match self.resolution.view() {
            Resolution::Refused(cause) => cause,
            Resolution::Admitted { .. } => Cause::Limits,
        }
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Decided)> {
        self.limits.iter().zip(&self.decided)
    }

    /// The key's own capacity, at the time of the decision, for a limit that was asked.
    pub(crate) fn own_capacity(&self, index: usize) -> Option<NonZeroU64> {
        let count = self.limits.0.count_ones() as usize;
        // Most keys have none. Then at most zeros follow the key.
        let noted = self.decided.get(count + 1..)?;
        let position = self.limits.iter().position(|limit| limit == index)?;
        let words = noted.get(position / OVERRIDES_IN_A_NOTE)?.words();
        NonZeroU64::new(words[position % OVERRIDES_IN_A_NOTE])
    }

    /// The limit that binds, and the nanoseconds until it would admit the request: [`NEVER`] if time alone does not
    /// help. A limit that time does not help binds before all others, then the one with the longest wait; of equals,
    /// the first. If others wait ahead in the queue, the limit that they make the request wait for counts as well.
    /// `None` if a full table of holds or of keys binds before any limit, or if no limit takes longer than the
    /// throttle.
    pub(crate) fn binding(&self) -> Option<Binding> {
        let cause = self.cause();
        self.iter()
            .map(|(index, decided)| (index, decided.wait()))
            .filter(|(_, wait)| *wait > 0)
            .chain(cause.ahead())
            .reduce(longer_wait)
            .filter(|(_, wait)| match cause {
                Cause::HoldsFull | Cause::NoRow(_) => *wait == NEVER,
                Cause::Throttled(throttled) => *wait > throttled.get(),
                Cause::Limits | Cause::Behind(_) | Cause::QueueFull(_) => true,
            })
    }
}

/// The one of two limits that takes longer; the first if they take equally long.
pub(in crate::engine) fn longer_wait(first: Binding, second: Binding) -> Binding {
    if second.1 > first.1 { second } else { first }
}

/// The notes of a [`Decision`], filled in order, which is cheaper than pushing.
pub(in crate::engine) struct Notes<'a>(std::slice::IterMut<'a, Decided>);

impl Notes<'_> {
    /// Fills the next place.
    #[inline(always)]
    pub(in crate::engine) fn note(&mut self, decided: Decided) {
        let place = self.0.next();
        debug_assert!(place.is_some(), "a decision has room for all that is noted");
        if let Some(place) = place {
            *place = decided;
        }
    }

    /// Notes the key of the row, if it has one. Comes after the notes of all limits.
    #[inline(always)]
    pub(in crate::engine) fn note_key(&mut self, row: Row<'_>, reference: RowReference) {
        if let Some(key) = Decided::of_key(row, reference) {
            self.note(key);
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// A rate or calls limit has too little left.
    Rate,
    /// Too much of a concurrency limit is held.
    Concurrency,
    /// The budget of the window is spent.
    Budget,
    /// No row of the table was left for the key, whatever its limits would say.
    TableFull,
    /// Every [hold](crate::SetDeclaration::holds) is taken, or in a keyed set every hold of the key's shard, whatever
    /// the limits would say.
    HoldsFull,
    /// The queue is full: as many requests wait as the set was declared for.
    QueueFull,
    /// The set or the key is throttled: its upstream accepts nothing for a while, or an operator keeps requests out. See
    /// [`Permit::throttled`](crate::Permit::throttled).
    Throttled,
    /// Too little of a limit that hosts share is leased to this host, because the store had no more for it: see
    /// [`Limit::fleet`](crate::Limit::fleet). The store is asked again in the background, and no retry time is known.
    /// Also the reason while the host [gives everything back](crate::fleet::Fleet::set_draining).
    Lease,
    /// Not enough of a limit that hosts share is leased yet. More is being asked for in the background, and as
    /// far as is known, nothing is wrong with the store.
    LeasePending,
    /// The store of a limit that hosts share is out or grants nothing, and neither what is leased nor the
    /// [outage policy](crate::declare::Outage) admits the request.
    StoreOut,
}

words!(RefusalReason, "a reason of refusals", {
    Rate = "rate",
    Concurrency = "concurrency",
    Budget = "budget",
    TableFull = "table_full",
    HoldsFull = "holds_full",
    QueueFull = "queue_full",
    Throttled = "throttled",
    Lease = "lease",
    LeasePending = "lease_pending",
    StoreOut = "store_out",
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_that_is_noted_under_the_lock() {
        for limits in 0..=MAX_LIMITS {
            for notes_beside in 0..=1 + notes_of_overrides(MAX_LIMITS) {
                let mut costs = Costs::default();
                (0..limits).for_each(|index| costs.limits.insert(index));
                let decision = Decision::pending(&costs, notes_beside);
                assert!(decision.decided.capacity() >= limits + notes_beside);
            }
        }
    }
}
