//! Selects the few highest-ranked of many items, in no more memory than those few take.

use std::collections::BTreeMap;

/// Keeps the highest-ranked of the items that it is offered. No two of them have the same rank.
#[derive(Debug)]
pub struct Best<R, T> {
    max: usize,
    kept: BTreeMap<R, T>,
}

impl<R: Ord, T> Best<R, T> {
    pub fn new(max: usize) -> Self {
        Self {
            max,
            kept: BTreeMap::new(),
        }
    }

    /// Keeps the result of `item` if its rank is high enough. Calls it only then.
    pub fn offer(&mut self, rank: R, item: impl FnOnce() -> T) {
        let lowest = self.kept.first_key_value();
        if self.kept.len() < self.max || lowest.is_some_and(|(lowest, _)| rank > *lowest) {
            self.kept.insert(rank, item());
        }
        if self.kept.len() > self.max {
            self.kept.pop_first();
        }
    }

    /// The kept items, the highest rank first.
    pub fn into_vec(self) -> Vec<T> {
        self.kept.into_values().rev().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_ranks_are_kept_and_come_first() {
        let mut best = Best::new(3);
        for rank in [5, 1, 9, 7, 3, 8] {
            best.offer(rank, || rank * 10);
        }
        assert_eq!(best.into_vec(), [90, 80, 70]);
    }

    #[test]
    fn nothing_is_made_for_what_is_not_kept() {
        let mut best = Best::new(1);
        best.offer(2, || ());
        best.offer(1, || panic!("made"));
        let mut none = Best::new(0);
        none.offer(1, || panic!("made"));
        assert_eq!(best.into_vec().len() + none.into_vec().len(), 1);
    }
}
