//! The word of a slot lock, and every change of it. Pure, so that the model of the protocol runs the same code.
//!
//! | bits | part |
//! |---|---|
//! | 0 to 15 | slot of the owner, plus one; zero in a free lock |
//! | 16 to 30 | generation of the slot, its low 15 bits |
//! | 31 | waiters: the next unlock wakes one |
//! | 32 to 63 | generation of the slot, its bits 15 to 46 |
//!
//! The futex is the low half, which has the slot, the waiters' bit and the part of the generation that changes with
//! each life of a slot.

/// The word, as it was read or is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotWord(pub(crate) u64);

const SLOT_MASK: u64 = 0xffff;
const WAITERS: u64 = 1 << 31;
const LOW_MASK: u64 = WAITERS - 1;

/// What a process that wants the lock does next, after reading the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Swap the word for this one; then it has the lock.
    Take(SlotWord),
    /// Swap the word for this one, and then sleep: it is the first waiter.
    Announce(SlotWord),
    /// Sleep until the word changes: according to the word, somebody else is the first waiter.
    Sleep,
}

impl SlotWord {
    pub(crate) const FREE: Self = Self(0);

    /// The word while a participant holds the lock. Its owner word has the slot plus one in the low 16 bits and the
    /// generation above; there is no room here for the generation's highest bit.
    #[inline(always)]
    pub(crate) fn held_by(owner: u64) -> Self {
        Self((owner & LOW_MASK) | (owner >> 31 << 32))
    }

    #[inline]
    pub(crate) fn is_free(self) -> bool {
        self == Self::FREE
    }

    /// The slot of the owner; `None` if the lock is free or the word is damaged.
    pub(crate) fn slot(self) -> Option<u64> {
        (self.0 & SLOT_MASK).checked_sub(1)
    }

    /// Whether the participant with that owner word holds the lock.
    pub(crate) fn names(self, owner: u64) -> bool {
        Self(self.0 & !WAITERS) == Self::held_by(owner)
    }

    pub(crate) fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }

    #[must_use]
    pub(crate) fn with_waiters(self) -> Self {
        Self(self.0 | WAITERS)
    }

    /// What a process does next if it has read this word and would hold the lock as `own`. If it has slept, it cannot
    /// know whether others are still asleep, so it takes the lock with the waiters' bit set: its unlock wakes the
    /// next one.
    pub(crate) fn next_step(self, own: Self, has_slept: bool) -> NextStep {
        if self.is_free() {
            NextStep::Take(if has_slept { own.with_waiters() } else { own })
        } else if self.has_waiters() {
            NextStep::Sleep
        } else {
            NextStep::Announce(self.with_waiters())
        }
    }

    /// The word of a process that takes the lock over from an owner found dead after this word was read. It replaces
    /// exactly this word: if the owner was alive and unlocked, or another process was faster, the word has changed.
    /// If the dead owner had unlocked and locked it again in between, that does no harm: it is dead all the same.
    #[must_use]
    pub(crate) fn taken_over_by(self, own: Self) -> Self {
        if self.has_waiters() {
            own.with_waiters()
        } else {
            own
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::slot_word::*;

    /// Packs an owner word.
    fn owner(slot: u64, generation: u64) -> u64 {
        generation << 16 | (slot + 1)
    }

    #[test]
    fn fields_lie_where_the_layout_has_them() {
        let word = SlotWord::held_by(owner(3, 0b101 << 15 | 0b11));
        assert_eq!(word.0, 5 << 32 | 3 << 16 | 4);
        assert_eq!(word.with_waiters().0, 5 << 32 | 1 << 31 | 3 << 16 | 4);
        assert_eq!(SlotWord::FREE.slot(), None);
        assert!(SlotWord::FREE.is_free() && !SlotWord::FREE.has_waiters());
    }

    proptest! {
        #[test]
        fn a_word_names_one_life_of_one_slot_whether_or_not_others_wait(
            slot in 0..4096_u64, generation in 0..1_u64 << 47, other_slot in 0..4096_u64, bit in 0..47_u32,
        ) {
            let word = SlotWord::held_by(owner(slot, generation));
            let other_generation = generation ^ (1_u64 << bit);
            for word in [word, word.with_waiters()] {
                prop_assert!(!word.is_free());
                prop_assert_eq!(word.slot(), Some(slot));
                prop_assert!(word.names(owner(slot, generation)));
                prop_assert!(!word.names(owner(slot, other_generation)));
                prop_assert_eq!(word.names(owner(other_slot, generation)), other_slot == slot);
                // The generation in owner words is one bit wider.
                prop_assert!(word.names(owner(slot, generation | 1 << 47)));
            }
            prop_assert!(!word.has_waiters());
        }

        #[test]
        fn no_step_loses_a_waiter(seen in any::<u64>(), own in 1..u64::MAX >> 16, has_slept in any::<bool>()) {
            let (seen, own) = (SlotWord(seen), SlotWord::held_by(own));
            match seen.next_step(own, has_slept) {
                NextStep::Take(word) => {
                    prop_assert!(seen.is_free());
                    prop_assert_eq!(word.has_waiters(), has_slept);
                }
                NextStep::Announce(word) => {
                    prop_assert_eq!(word, seen.with_waiters());
                    prop_assert_ne!(word, seen);
                }
                NextStep::Sleep => prop_assert!(seen.has_waiters()),
            }
            prop_assert_eq!(seen.taken_over_by(own).has_waiters(), seen.has_waiters());
            prop_assert_eq!(seen.taken_over_by(own).slot(), own.slot());
        }
    }
}
