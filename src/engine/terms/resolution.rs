//! The outcome of a request, packed so that a permit fits into two cache lines.

use std::num::NonZeroU64;

use crate::engine::terms::credit_word::BatchShare;
use crate::shm::layout::geometry::MAX_SHARDS;
use crate::shm::layout::places::HoldReference;

/// The phase of a permit's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Reserved,
    Settled,
    Released,
    /// Released after its lease had run out, or after what it held was reclaimed.
    Lost,
}

/// What a permit has to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    Hold(HoldReference),
    /// Units of a batch of credit. The hold is the batch's.
    Share {
        hold_index: u64,
        share: BatchShare,
    },
}

/// A limit, and the nanoseconds until it admits what it was asked for:
/// [`NEVER`](crate::engine::terms::decided::NEVER) if time alone does not help.
pub(crate) type Binding = (usize, u64);

/// Why a request was refused, apart from what its limits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Nothing else: its limits refused it.
    Limits,
    /// Others wait ahead of it. The binding is that of those ahead, if known.
    Behind(Option<Binding>),
    /// No ticket was free: too many requests wait already. The binding is that of those ahead, if known.
    QueueFull(Option<Binding>),
    /// Every hold is taken.
    HoldsFull,
    /// The table has no row for the key. The nanoseconds until it will, if known.
    NoRow(Option<NonZeroU64>),
    /// Throttled: nothing is admitted for this many nanoseconds.
    Throttled(NonZeroU64),
}

impl Cause {
    /// The limit that those ahead in the queue make the request wait for, if known.
    pub(crate) fn ahead(self) -> Option<Binding> {
        match self {
            Self::Behind(ahead) | Self::QueueFull(ahead) => ahead,
            Self::Limits | Self::HoldsFull | Self::NoRow(_) | Self::Throttled(_) => None,
        }
    }

    /// Nanoseconds after which the cause is gone, if time alone removes it.
    pub(crate) fn ends_in(self) -> Option<u64> {
        match self {
            Self::NoRow(wait) => wait.map(NonZeroU64::get),
            Self::Throttled(wait) => Some(wait.get()),
            Self::Limits | Self::Behind(_) | Self::QueueFull(_) | Self::HoldsFull => None,
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    Admitted { phase: Phase, held: Held },
    Refused(Cause),
}

/// The words of a [`Resolution`], and the shard of the set that it was made in.
///
/// | resolution | tag | index | word |
/// |---|---|---|---|
/// | admitted, by [`Phase`] | 0 to 3 | the hold | its serial number, or a [`BatchShare`], whose highest bit is set; zero holds nothing |
/// | refused by its limits | 4 | | |
/// | behind others, or no ticket left | 5, 6 | the limit that binds those ahead | its wait; zero if unknown |
/// | no hold left | 7 | | |
/// | no row left | 8 | | the wait; zero if unknown |
/// | throttled | 9 | | the wait |
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedResolution {
    /// The shard in the lowest ten bits, and the tag above them.
    shard_and_tag: u16,
    index: u16,
    /// In bytes, so that it needs no alignment and leaves no gap between the fields of a decision.
    word: [u8; 8],
}

const RESERVED: u16 = 0;
const SETTLED: u16 = 1;
const RELEASED: u16 = 2;
const LOST: u16 = 3;
const BY_LIMITS: u16 = 4;
const BEHIND: u16 = 5;
const QUEUE_FULL: u16 = 6;
const HOLDS_FULL: u16 = 7;
const NO_ROW: u16 = 8;
const THROTTLED: u16 = 9;

const SHARD_BITS: u32 = MAX_SHARDS.ilog2();
const SHARD_MASK: u16 = (1 << SHARD_BITS) - 1;

impl PackedResolution {
    /// Nothing is decided yet. Looks like a refusal by the limits.
    pub(super) const PENDING: Self = Self {
        shard_and_tag: BY_LIMITS << SHARD_BITS,
        index: 0,
        word: [0; 8],
    };

    /// Admitted in a shard, in the phase [`Reserved`](Phase::Reserved).
    #[inline(always)]
    pub(super) fn admitted(shard: u16, held: Held) -> Self {
        let (index, word) = held.words();
        Self {
            shard_and_tag: (shard & SHARD_MASK) | RESERVED << SHARD_BITS,
            index,
            word,
        }
    }

    #[inline(always)]
    pub(super) fn refused(cause: Cause) -> Self {
        let binding = |tag, ahead: Option<Binding>| {
            let (limit, wait) = ahead.unwrap_or_default();
            (tag, limit as u16, wait)
        };
        let (tag, index, word) = match cause {
            Cause::Limits => return Self::PENDING,
            Cause::Behind(ahead) => binding(BEHIND, ahead),
            Cause::QueueFull(ahead) => binding(QUEUE_FULL, ahead),
            Cause::HoldsFull => (HOLDS_FULL, 0, 0),
            Cause::NoRow(wait) => (NO_ROW, 0, wait.map_or(0, NonZeroU64::get)),
            Cause::Throttled(wait) => (THROTTLED, 0, wait.get()),
        };
        Self {
            shard_and_tag: tag << SHARD_BITS,
            index,
            word: word.to_ne_bytes(),
        }
    }

    #[inline(always)]
    pub(super) fn view(self) -> Resolution {
        let word = NonZeroU64::new(u64::from_ne_bytes(self.word));
        let admitted = |phase| {
            let hold_index = u64::from(self.index);
            let held = match word.map(|serial| (serial, BatchShare::from_word(serial))) {
                None => Held::Nothing,
                Some((_, Some(share))) => Held::Share { hold_index, share },
                Some((serial, None)) => Held::Hold(HoldReference {
                    index: hold_index,
                    serial,
                }),
            };
            Resolution::Admitted { phase, held }
        };
        let ahead = || word.map(|wait| (usize::from(self.index), wait.get()));
        Resolution::Refused(match (self.shard_and_tag >> SHARD_BITS, word) {
            (RESERVED, _) => return admitted(Phase::Reserved),
            (SETTLED, _) => return admitted(Phase::Settled),
            (RELEASED, _) => return admitted(Phase::Released),
            (LOST, _) => return admitted(Phase::Lost),
            (BEHIND, _) => Cause::Behind(ahead()),
            (QUEUE_FULL, _) => Cause::QueueFull(ahead()),
            (HOLDS_FULL, _) => Cause::HoldsFull,
            (NO_ROW, wait) => Cause::NoRow(wait),
            (THROTTLED, Some(wait)) => Cause::Throttled(wait),
            _ => Cause::Limits,
        })
    }

    #[inline(always)]
    pub(super) fn set_phase(&mut self, phase: Phase) {
        let tag = match phase {
            Phase::Reserved => RESERVED,
            Phase::Settled => SETTLED,
            Phase::Released => RELEASED,
            Phase::Lost => LOST,
        };
        self.shard_and_tag = self.shard() | tag << SHARD_BITS;
    }

    #[inline(always)]
    pub(super) fn set_held(&mut self, held: Held) {
        (self.index, self.word) = held.words();
    }

    #[inline(always)]
    pub(super) fn shard(self) -> u16 {
        self.shard_and_tag & SHARD_MASK
    }
}

impl Held {
    /// The index and the word. The index fits, because a set has at most 65,536 holds.
    #[inline(always)]
    fn words(self) -> (u16, [u8; 8]) {
        let (index, word) = match self {
            Self::Nothing => (0, 0),
            Self::Hold(hold) => (hold.index, hold.serial.get()),
            Self::Share { hold_index, share } => (hold_index, share.to_word()),
        };
        (index as u16, word.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held() -> impl Strategy<Value = Held> {
        let serial = (1_u64..1 << 63).prop_filter_map("not zero", NonZeroU64::new);
        let index = 0_u64..1 << 16;
        prop_oneof![
            Just(Held::Nothing),
            (index.clone(), serial.clone())
                .prop_map(|(index, serial)| Held::Hold(HoldReference { index, serial })),
            (index, serial, any::<u64>(), any::<u64>()).prop_map(|(hold_index, serial, tag, left)| {
                Held::Share {
                    hold_index,
                    share: BatchShare::new(serial, tag, left),
                }
            }),
        ]
    }

    fn cause() -> impl Strategy<Value = Cause> {
        let wait = (1_u64..).prop_filter_map("not zero", NonZeroU64::new);
        let ahead = proptest::option::of((0_usize..16, 1_u64..));
        prop_oneof![
            Just(Cause::Limits),
            ahead.clone().prop_map(Cause::Behind),
            ahead.prop_map(Cause::QueueFull),
            Just(Cause::HoldsFull),
            proptest::option::of(wait.clone()).prop_map(Cause::NoRow),
            wait.prop_map(Cause::Throttled),
        ]
    }

    fn phase() -> impl Strategy<Value = Phase> {
        proptest::sample::select(vec![
            Phase::Reserved,
            Phase::Settled,
            Phase::Released,
            Phase::Lost,
        ])
    }

    proptest! {
        #[test]
        fn an_admission_is_unpacked_as_it_was_packed(
            shard in 0..MAX_SHARDS as u16,
            phase in phase(),
            first in held(),
            held in held(),
        ) {
            let mut packed = PackedResolution::admitted(shard, first);
            prop_assert_eq!(packed.view(), Resolution::Admitted { phase: Phase::Reserved, held: first });
            packed.set_phase(phase);
            packed.set_held(held);
            prop_assert_eq!(packed.view(), Resolution::Admitted { phase, held });
            prop_assert_eq!(packed.shard(), shard);
        }

        #[test]
        fn a_refusal_is_unpacked_as_it_was_packed(cause in cause()) {
            let packed = PackedResolution::refused(cause);
            prop_assert_eq!(packed.view(), Resolution::Refused(cause));
        }
    }
}
