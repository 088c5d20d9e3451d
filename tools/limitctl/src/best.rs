//! Selects the first few of many items, in no more memory than those few take.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Keeps the highest-ranked of the items that it is offered.
#[derive(Debug)]
pub struct Best<R, T> {
    max: usize,
    /// The lowest-ranked item is on top, and is dropped when a better one comes.
    kept: BinaryHeap<Reverse<Ranked<R, T>>>,
}

#[derive(Debug)]
struct Ranked<R, T> {
    rank: R,
    item: T,
}

impl<R: Ord, T> Best<R, T> {
    pub fn new(max: usize) -> Self {
        Self {
            max,
            kept: BinaryHeap::new(),
        }
    }

    /// Keeps the result of `item` if its rank is high enough; only calls it then.
    pub fn offer(&mut self, rank: R, item: impl FnOnce() -> T) {
        let is_among_them =
            self.kept.len() < self.max || self.kept.peek().is_some_and(|Reverse(last)| rank > last.rank);
        if is_among_them {
            self.kept.push(Reverse(Ranked { rank, item: item() }));
            if self.kept.len() > self.max {
                self.kept.pop();
            }
        }
    }

    /// The kept items, the highest rank first.
    pub fn into_vec(self) -> Vec<T> {
        let ranked = self.kept.into_sorted_vec();
        ranked.into_iter().map(|Reverse(ranked)| ranked.item).collect()
    }
}

impl<R: Ord, T> PartialEq for Ranked<R, T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl<R: Ord, T> Eq for Ranked<R, T> {}

impl<R: Ord, T> PartialOrd for Ranked<R, T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Ord, T> Ord for Ranked<R, T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
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
