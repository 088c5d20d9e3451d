//! The word of a hold that says what is left of a batch of credit, and what a permit remembers of the batch that it
//! is from.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits 0 to 19: units left. Bits 20 to 39: requests admitted from the batch and not yet counted. Bits 40 to 63: a
/// tag that tells the batch from earlier and later ones in the same hold.
///
/// The process that drew the batch spends from it without the lock. Other processes change the word only under the
/// lock and with [`take`](Self::take), so that each unit is either spent or taken back, and never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreditWord(u64);

const FIELD_BITS: u32 = 20;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
const ONE_REQUEST: u64 = 1 << FIELD_BITS;
const TAG_SHIFT: u32 = 2 * FIELD_BITS;
const MAX_TAG: u64 = u64::MAX >> TAG_SHIFT;

impl CreditWord {
    pub(in crate::engine) fn new(tag: u64, units: u64) -> Self {
        Self((tag & MAX_TAG) << TAG_SHIFT | units.min(FIELD))
    }

    pub(in crate::engine) fn load(word: &AtomicU64) -> Self {
        Self(word.load(Ordering::Relaxed))
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(in crate::engine) fn to_word(self) -> u64 {
        self.0
    }

    pub(crate) fn units(self) -> u64 {
        self.0 & FIELD
    }

    /// Requests that were admitted from the batch and are not yet counted.
    pub(crate) fn requests(self) -> u64 {
        self.0 >> FIELD_BITS & FIELD
    }

    pub(in crate::engine) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// The same batch with no units left. Its requests are still to be counted.
    pub(in crate::engine) fn emptied(self) -> Self {
        Self(self.0 & !FIELD)
    }

    /// The same batch with no requests to count.
    pub(in crate::engine) fn without_requests(self) -> Self {
        Self(self.0 & !(FIELD << FIELD_BITS))
    }

    /// The tag of the next batch in the hold.
    pub(in crate::engine) fn next_tag(self) -> u64 {
        (self.tag() + 1) & MAX_TAG
    }

    /// Spends units of the batch with this tag, for one request. Returns how many are left; `None` if there are too
    /// few, or the hold has another batch by now.
    #[inline]
    pub(in crate::engine) fn spend(word: &AtomicU64, tag: u64, units: u64) -> Option<u64> {
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let found = Self(seen);
            // A request costs at least one unit, so there are never more requests than the batch had units.
            if found.tag() != tag {
                return None;
            }
            let left = found.units().checked_sub(units)?;
            let spent = seen - units + ONE_REQUEST;
            match word.compare_exchange_weak(seen, spent, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(left),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes what is left, and leaves an empty batch with the next tag. The caller holds the lock.
    pub(in crate::engine) fn take(word: &AtomicU64) -> Self {
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let emptied = Self::new(Self(seen).next_tag(), 0);
            match word.compare_exchange_weak(seen, emptied.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Self(seen),
                Err(now) => seen = now,
            }
        }
    }

    /// Adds units to the batch with this tag, up to `room` altogether, and takes the requests that are not yet counted.
    /// Returns the units added, and those requests. The caller holds the lock.
    pub(in crate::engine) fn put_back(word: &AtomicU64, tag: u64, units: u64, room: u64) -> (u64, u64) {
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let found = Self(seen);
            if found.tag() != tag {
                return (0, 0);
            }
            let added = units.min(room.saturating_sub(found.units()));
            let filled = Self::new(tag, found.units() + added);
            match word.compare_exchange_weak(seen, filled.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (added, found.requests()),
                Err(now) => seen = now,
            }
        }
    }
}

/// What a permit that was admitted from a batch remembers of it. Other permits keep the serial number of their hold
/// in its place, which never has the highest bit set.
///
/// Bits 0 to 18: the lowest bits of the serial number of the batch's hold. Bits 19 to 42: the batch's tag there. Bits
/// 43 to 62: units that the request left in the batch. Bit 63: set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct BatchShare(u64);

const SHARE_TAG_SHIFT: u32 = 19;
const SHARE_LEFT_SHIFT: u32 = 43;
const SHARE_BIT: u64 = 1 << 63;

impl BatchShare {
    #[inline(always)]
    pub(in crate::engine) fn new(hold_serial: NonZeroU64, tag: u64, left: u64) -> Self {
        Self(SHARE_BIT | left.min(FIELD) << SHARE_LEFT_SHIFT | Self::batch(hold_serial, tag))
    }

    #[inline(always)]
    fn batch(hold_serial: NonZeroU64, tag: u64) -> u64 {
        let serial = hold_serial.get() & ((1 << SHARE_TAG_SHIFT) - 1);
        serial | (tag & MAX_TAG) << SHARE_TAG_SHIFT
    }

    #[inline]
    pub(in crate::engine) fn from_word(word: NonZeroU64) -> Option<Self> {
        (word.get() & SHARE_BIT != 0).then_some(Self(word.get()))
    }

    /// Never zero.
    #[inline]
    pub(in crate::engine) fn to_word(self) -> u64 {
        self.0
    }

    /// Whether it is a share of that batch, or of one that these bits cannot tell from it: drawn into a hold with the
    /// same lowest serial bits, or 2^24 batches before or after.
    pub(in crate::engine) fn is_of(self, hold_serial: NonZeroU64, tag: u64) -> bool {
        self.0 & ((1 << SHARE_LEFT_SHIFT) - 1) == Self::batch(hold_serial, tag)
    }

    /// Units that the request left in the batch, which were charged after its own.
    pub(in crate::engine) fn left(self) -> u64 {
        self.0 >> SHARE_LEFT_SHIFT & FIELD
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::credit_word::*;
    use crate::engine::terms::plan::MAX_BATCH;
    use crate::shm::file::region::load_acquire;

    #[test]
    fn what_threads_spend_was_charged_and_is_taken_back_by_none() {
        const TAG: u64 = 3;
        const DRAWS: u64 = if cfg!(miri) { 10 } else { 10_000 };
        const UNITS: u64 = 4;
        let word = AtomicU64::new(CreditWord::new(TAG, 0).to_word());
        let (charged, is_over) = (AtomicU64::new(0), AtomicU64::new(0));
        let spend = || {
            let mut spent = 0;
            while load_acquire(&is_over) == 0 {
                while CreditWord::spend(&word, TAG, 1).is_some() {
                    spent += 1;
                    assert!(charged.load(Ordering::Relaxed) >= spent, "not charged before");
                }
                std::thread::yield_now();
            }
            spent
        };
        let (spent, added, left) = std::thread::scope(|scope| {
            let spenders = [scope.spawn(spend), scope.spawn(spend)];
            // As under the lock: units are charged before they can be spent.
            let draw = |draw| {
                charged.store(draw * UNITS, Ordering::Relaxed);
                CreditWord::put_back(&word, TAG, UNITS, u64::MAX).0
            };
            let added: u64 = (1..=DRAWS).map(draw).sum();
            let left = CreditWord::take(&word).units();
            is_over.store(1, Ordering::Release);
            let spent = spenders.map(|spender| spender.join().expect("no panic"));
            (spent, added, left)
        });
        assert_eq!(added, DRAWS * UNITS);
        assert_eq!(spent[0] + spent[1] + left, added);
    }

    proptest! {
        #[test]
        fn each_unit_is_spent_or_taken_back_and_never_both(
            tag in 0..=MAX_TAG, drawn in 0..=MAX_BATCH, costs in prop::collection::vec(1..=MAX_BATCH, 0..20),
        ) {
            let word = AtomicU64::new(CreditWord::new(tag, drawn).to_word());
            let spent: Vec<u64> = costs.into_iter().filter(|cost| CreditWord::spend(&word, tag, *cost).is_some()).collect();
            let taken = CreditWord::take(&word);
            prop_assert_eq!(taken.units() + spent.iter().sum::<u64>(), drawn);
            prop_assert_eq!((taken.requests(), taken.tag()), (spent.len() as u64, tag));
            prop_assert_eq!(CreditWord::spend(&word, tag, 1), None);
            prop_assert_eq!(CreditWord::take(&word).units(), 0);
        }

        #[test]
        fn any_word_is_read_as_some_batch(word in any::<u64>(), units in 1..=MAX_BATCH, room in 0..=MAX_BATCH) {
            let atomic = AtomicU64::new(word);
            let found = CreditWord::from_word(word);
            CreditWord::put_back(&atomic, found.tag(), units, room);
            let left = CreditWord::load(&atomic);
            prop_assert!(left.units() <= found.units().max(room));
            prop_assert_eq!(CreditWord::spend(&atomic, found.tag(), units), left.units().checked_sub(units));
            prop_assert_eq!(CreditWord::spend(&atomic, found.next_tag(), units), None);
        }

        #[test]
        fn a_share_is_of_its_own_batch_and_is_no_serial_number_of_a_hold(
            serial in 1..=u64::MAX >> 1, tag in 0..=MAX_TAG, left in 0..=MAX_BATCH, other in 0..=MAX_TAG,
        ) {
            let serial = NonZeroU64::new(serial).expect("not zero");
            let share = BatchShare::new(serial, tag, left);
            prop_assert_eq!(NonZeroU64::new(share.to_word()).and_then(BatchShare::from_word), Some(share));
            prop_assert_eq!(BatchShare::from_word(serial), None);
            prop_assert_eq!((share.left(), share.is_of(serial, tag)), (left, true));
            prop_assert_eq!(share.is_of(serial, other), other == tag);
        }
    }

    #[test]
    fn the_largest_batch_is_the_largest_number_of_units_that_fits() {
        for tag in [0, MAX_TAG] {
            let word = AtomicU64::new(CreditWord::new(tag, MAX_BATCH).to_word());
            assert_eq!(CreditWord::spend(&word, tag, MAX_BATCH), Some(0));
            assert_eq!(CreditWord::new(tag, MAX_BATCH + 1).units(), MAX_BATCH);
        }
    }

    #[test]
    fn many_requests_at_once_are_admitted_for_no_more_than_there_is() {
        let word = AtomicU64::new(CreditWord::new(7, 10_000).to_word());
        let spent: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=4)
                .map(|cost| {
                    let word = &word;
                    scope.spawn(move || {
                        (0..).map_while(|_: u32| CreditWord::spend(word, 7, cost)).count() as u64 * cost
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum()
        });
        assert_eq!(spent + CreditWord::take(&word).units(), 10_000);
    }
}
