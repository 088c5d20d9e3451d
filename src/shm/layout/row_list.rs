//! Lists of a shard's rows, a bit for each. They are hints for the process that asks the store, and never journalled: a
//! row too many is looked at in vain, and after a death all rows are listed.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowList {
    /// Rows that may want something now.
    Wanting = 0,
    /// Rows that have something leased or unreported, and so will have something to tell the store in time.
    Kept = 1,
}

/// A list of rows. Whoever changes it holds the lock of the shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowBits<'a>(pub(super) &'a [AtomicU64]);

impl RowBits<'_> {
    fn change(self, row: u64, change: impl FnOnce(u64, u64) -> u64) {
        let bits = u64::from(u64::BITS);
        if let Some(word) = self.0.get((row / bits) as usize) {
            let before = word.load(Ordering::Relaxed);
            word.store(change(before, 1 << (row % bits)), Ordering::Relaxed);
        }
    }

    pub(crate) fn insert(self, row: u64) {
        self.change(row, |word, bit| word | bit);
    }

    pub(crate) fn remove(self, row: u64) {
        self.change(row, |word, bit| word & !bit);
    }

    /// Lists all rows, and also numbers that no row has.
    pub(crate) fn fill(self) {
        for word in self.0 {
            word.store(u64::MAX, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// How many rows are on this list or on `other`.
    pub(crate) fn count_with(self, other: Self) -> u64 {
        let words = self.0.iter().zip(other.0);
        let both = words.map(|(one, other)| one.load(Ordering::Relaxed) | other.load(Ordering::Relaxed));
        both.map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first row of the list that is not before `from`.
    pub(crate) fn next(self, from: u64) -> Option<u64> {
        let bits = u64::from(u64::BITS);
        let first = (from / bits) as usize;
        let words = self.0.get(first..)?;
        words.iter().zip(first as u64..).find_map(|(word, index)| {
            let passed = if index == from / bits { from % bits } else { 0 };
            let left = word.load(Ordering::Relaxed) & (u64::MAX << passed);
            (left != 0).then(|| index * bits + u64::from(left.trailing_zeros()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_are_sets_of_rows(changes in prop::collection::vec((0..200_u64, any::<bool>()), 0..100)) {
            let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
            let list = RowBits(&words);
            let mut rows = BTreeSet::new();
            for (row, is_in) in changes {
                if is_in {
                    list.insert(row);
                    rows.insert(row);
                } else {
                    list.remove(row);
                    rows.remove(&row);
                }
                prop_assert_eq!(list.is_empty(), rows.is_empty());
            }
            let mut found = BTreeSet::new();
            let mut from = 0;
            while let Some(row) = list.next(from) {
                found.insert(row);
                from = row + 1;
            }
            prop_assert_eq!(found, rows);
        }
    }
}
