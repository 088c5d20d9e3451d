//! What keeps a row from being given to another key, in one word: the ends of its queue, and how many holds and
//! granted tickets refer to it.

/// The word `row_references` of a key's row.
///
/// | bits | meaning |
/// |---|---|
/// | 0 to 19 | the ticket to be served next, plus one; zero if nobody waits |
/// | 20 to 39 | the ticket that came last, plus one |
/// | 40 to 63 | holds, and tickets that were granted and not collected |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowReferences(pub(crate) u64);

const END_BITS: u32 = 20;
const END_MASK: u64 = (1 << END_BITS) - 1;
const PINS_SHIFT: u32 = 2 * END_BITS;
const MAX_PINS: u64 = u64::MAX >> PINS_SHIFT;

impl RowReferences {
    #[inline]
    pub(crate) fn head(self) -> u64 {
        self.0 & END_MASK
    }

    #[inline]
    pub(crate) fn tail(self) -> u64 {
        (self.0 >> END_BITS) & END_MASK
    }

    #[inline]
    pub(crate) fn pins(self) -> u64 {
        self.0 >> PINS_SHIFT
    }

    #[must_use]
    pub(crate) fn with_head(self, ticket: u64) -> Self {
        Self((self.0 & !END_MASK) | (ticket & END_MASK))
    }

    #[must_use]
    pub(crate) fn with_tail(self, ticket: u64) -> Self {
        Self((self.0 & !(END_MASK << END_BITS)) | ((ticket & END_MASK) << END_BITS))
    }

    #[must_use]
    pub(crate) fn with_pins(self, pins: u64) -> Self {
        let ends = self.0 & ((1 << PINS_SHIFT) - 1);
        Self(ends | (pins.min(MAX_PINS) << PINS_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::row_references::*;

    proptest! {
        #[test]
        fn each_field_keeps_to_its_bits(
            word in any::<u64>(), head in 0..=END_MASK, tail in 0..=END_MASK, pins in 0..=MAX_PINS,
        ) {
            let row_references = RowReferences(word).with_head(head).with_tail(tail).with_pins(pins);
            prop_assert_eq!((row_references.head(), row_references.tail(), row_references.pins()), (head, tail, pins));
            prop_assert_eq!(row_references.with_head(RowReferences(word).head()).with_tail(RowReferences(word).tail())
                .with_pins(RowReferences(word).pins()), RowReferences(word));
        }
    }
}
