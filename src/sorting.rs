//! Sorting, for code that rarely sorts. The standard library's sorts are faster, but take five to seven kilobytes of
//! code for each type and order. So do sets and maps that are collected, because they sort first.

use std::collections::{BTreeMap, BTreeSet};

/// Sorts by an order; equal items end up in any order.
pub(crate) fn sort_by<T>(items: &mut [T], is_before: impl Fn(&T, &T) -> bool) {
    for top in (0..items.len() / 2).rev() {
        sink(items, top, &is_before);
    }
    for end in (1..items.len()).rev() {
        items.swap(0, end);
        sink(&mut items[..end], 0, &is_before);
    }
}

/// Moves an item down a heap whose last item is at its top, until it is in its place.
#[inline(never)]
fn sink<T>(heap: &mut [T], mut place: usize, is_before: &impl Fn(&T, &T) -> bool) {
    loop {
        let mut below = 2 * place + 1;
        if below + 1 < heap.len() && is_before(&heap[below], &heap[below + 1]) {
            below += 1;
        }
        if below >= heap.len() || !is_before(&heap[place], &heap[below]) {
            return;
        }
        heap.swap(place, below);
        place = below;
    }
}

/// A set of these items.
pub(crate) fn set_of<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(items);
    set
}

/// A map of these pairs.
pub(crate) fn map_of<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(pairs);
    map
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sorts_as_the_standard_library_does(items: Vec<(u8, u8)>) {
            let mut sorted = items.clone();
            sort_by(&mut sorted, |one, other| one < other);
            let mut expected = items;
            expected.sort_unstable();
            prop_assert_eq!(sorted, expected);
        }
    }
}
