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

/// What a request takes of each limit of a set, and what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) limits: LimitMask,
    /// The tier that the key is to be in.
    pub(crate) tier: Option<TierIndex>,
    /// What the request is labelled with: at most [`MAX_LABEL_BYTES`](crate::shm::layout::label::MAX_LABEL_BYTES).
    pub(crate) label: Option<Arc<str>>,
    pub(crate) amounts: [u64; MAX_LIMITS],
    /// The capacities that the key is to have of its own. Apart, because few requests say so.
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
    /// Of one limit only.
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

/// What can never be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Impossible {
    /// A cost above the most that the limit admits at once.
    Cost { limit: usize, cost: u64, max: u64 },
    /// A capacity that the key cannot have.
    Capacity(RefusedCapacity),
}

/// How many capacities fit where one limit is decided on.
const OVERRIDES_IN_A_NOTE: usize = 3;

/// How often such room is needed for the capacities that a key has of its own of so many limits.
pub(in crate::engine) const fn notes_of_overrides(limits: usize) -> usize {
    limits.div_ceil(OVERRIDES_IN_A_NOTE)
}

/// In the note of what is impossible, beside the limit: that it is a capacity.
const CAPACITY_REFUSED: usize = MAX_LIMITS;

const _: () = assert!(MAX_LIMITS.is_power_of_two());

/// The wait of a request that only those before it keep waiting, who need not wait any longer.
pub(in crate::engine) const SHORTEST_WAIT: u64 = 1;

/// Limits whose decisions a permit or refusal carries within itself. With three, a permit is two cache lines, and
/// moving it costs next to nothing; room for all sixteen would make its moves cost more than deciding does. The
/// decisions on more limits are on the heap.
const DECIDED_INLINE: usize = 3;

/// How a request was decided. Filled in place and never taken apart: moving it about in pieces would cost more than
/// deciding.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    details: Details,
    /// The participant that the request was decided for.
    pub(crate) owner: u64,
    /// When, on the segment clock.
    pub(crate) decided_at: u64,
}

/// What a decision says, which is all that a refusal needs of it.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    limits: LimitMask,
    /// By which definition of the set it was decided.
    pub(crate) definition: DefinitionBits,
    resolution: PackedResolution,
    /// What is said of each limit, in their order, and what is noted beside. What was not noted yet is zeros.
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
    /// Has the room for what is to be decided, because nothing is allocated under a lock: of each limit, and so much
    /// [beside](crate::engine::rules::set_outline::SetOutline::notes_beside).
    #[inline(always)]
    pub(crate) fn pending(costs: &Costs, notes_beside: usize) -> Self {
        let is_more = match notes_beside {
            // First, because most requests ask for one.
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

    /// With the room that each decision has.
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

    /// That a request was admitted from the batch of a set without keys.
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

    /// As [`of_limits`](Self::of_limits), with more room. Each makes a whole decision, so that it is made where it is wanted
    /// and not moved there.
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

    /// What it says, for what outlives who asked.
    #[inline]
    pub(crate) fn into_details(self) -> Details {
        self.details
    }

    /// Begins an admission, in a shard of the set, for a participant. Its [notes](Self::notes) are cleared, unless the
    /// decision `is_pending`: then they are still empty.
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

    /// Where it is noted how each limit was decided, one after the other, and behind them the [key](Self::key).
    #[inline(always)]
    pub(in crate::engine) fn notes(&mut self) -> Notes<'_> {
        Notes(self.decided.iter_mut())
    }

    /// Notes how the next limit was decided. There is room for it.
    #[inline(always)]
    pub(crate) fn note(&mut self, decided: Decided) {
        self.decided.push(decided);
    }

    /// Fills in that `cost` was taken of a batch of credit, which was drawn in a shard of the set, and that it left so
    /// much.
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

    /// Whether it was admitted from that batch.
    pub(in crate::engine) fn is_from(&self, drawn: &Drawn) -> bool {
        let Held::Share { hold_index, share } = self.held() else {
            return false;
        };
        // The instant tells batches apart whose tags have begun again.
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

    /// The row that an admitted request was decided on, and the key that had it then; without a key, the only one.
    pub(in crate::engine) fn key(&self) -> (RowReference, Fingerprint) {
        // Behind the decisions on limits stands the key that they were made on, if there is one.
        let key = self.decided.get(self.limits.0.count_ones() as usize);
        match key.map(Decided::words) {
            Some([low, high, row]) => (RowReference::from_word(row), Fingerprint { low, high }),
            None => (RowReference::default(), Fingerprint::NONE),
        }
    }

    /// Notes, behind the key, the capacity of its own that it has of each limit that is asked for. There is room for it.
    pub(in crate::engine) fn note_own_capacities(&mut self, capacity: impl Fn(usize) -> Option<NonZeroU64>) {
        let count = self.limits.0.count_ones() as usize;
        // A refusal or a look has no place for these yet.
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

    /// Notes what can never be met. There is room for it: something was asked for.
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

    /// What can never be met, which was [noted](Self::note_impossible).
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

    /// The shard of the set that it was decided in.
    #[inline]
    pub(crate) fn shard(&self) -> u32 {
        u32::from(self.resolution.shard())
    }

    /// Of a look: no limit admits anything before so many nanoseconds have passed.
    pub(in crate::engine) fn wait_at_least(&mut self, wait: u64) {
        let count = self.limits.0.count_ones() as usize;
        for decided in self.details.decided.iter_mut().take(count) {
            decided.wait_at_least(wait);
        }
    }

    /// How far the permit of an admitted request has come. There is no permit of a refusal, which is as one that was released.
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

    /// Notes that more was taken of a limit than when it was decided. Where the limit was not asked then, it has nothing
    /// to be noted on.
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

    /// The capacity of its own that the key was decided on with, of a limit that was asked for.
    pub(crate) fn own_capacity(&self, index: usize) -> Option<NonZeroU64> {
        let count = self.limits.0.count_ones() as usize;
        // Most keys have none, and what is decided on them says no more.
        let noted = self.decided.get(count + 1..)?;
        let position = self.limits.iter().position(|limit| limit == index)?;
        let words = noted.get(position / OVERRIDES_IN_A_NOTE)?.words();
        NonZeroU64::new(words[position % OVERRIDES_IN_A_NOTE])
    }

    /// The limit that refused and the nanoseconds until it would not, [`NEVER`] where time does not help. What only
    /// another process can heal binds before what time heals, and of the latter the longest; the first of equals stays.
    /// Where others wait before, what binds the first of them counts as well. `None` where a full table of holds or of
    /// keys binds before any limit, and where no limit takes longer than it is throttled.
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

/// Of two limits and their waits the one that takes longer, the first of equals.
pub(in crate::engine) fn longer_wait(first: Binding, second: Binding) -> Binding {
    if second.1 > first.1 { second } else { first }
}

/// The notes of a [`Decision`]: places that are filled in order, which is cheaper than pushing.
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

    /// Notes the key of the row, if it has one. The last note, after those of the limits.
    #[inline(always)]
    pub(in crate::engine) fn note_key(&mut self, row: Row<'_>, reference: RowReference) {
        if let Some(key) = Decided::of_key(row, reference) {
            self.note(key);
        }
    }
}

/// Why a limit refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// A rate or calls limit has too little left.
    Rate,
    /// Too much of a concurrency limit is held.
    Concurrency,
    /// The budget of the window is spent.
    Budget,
    /// No row was left for the key, whatever its limits would say.
    TableFull,
    /// Every [hold](crate::SetDeclaration::holds) is taken, of a keyed set those of the key's shard, whatever the limits
    /// themselves would say.
    HoldsFull,
    /// As many requests wait in the queue as the set was declared for.
    QueueFull,
    /// What is behind the limits said that it takes nothing for a while, and that is not over: see
    /// [`Permit::throttled`](crate::Permit::throttled).
    Throttled,
    /// Too little of a limit that hosts share is leased to this host: see [`Limit::fleet`](crate::Limit::fleet). It is asked
    /// for in the background; when that comes to something, no clock says.
    Lease,
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
