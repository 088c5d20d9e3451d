//! The keys that have no lead: a list linked through their rows, first in, first out.

use super::key_words::{Damaged, KeyWord, Order, OrderMut, OrderWord, Place, place_and_weight, placed};

/// Two rows, each plus one, or zero for none: the ends of the list, or the neighbours of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    before: u64,
    behind: u64,
}

impl Pair {
    fn from_word(word: u64) -> Self {
        Self {
            before: word & u64::from(u32::MAX),
            behind: word >> 32,
        }
    }

    fn to_word(self) -> u64 {
        self.before | self.behind << 32
    }
}

fn ends(order: &(impl Order + ?Sized)) -> Pair {
    Pair::from_word(order.load(OrderWord::Newcomers))
}

fn neighbours(order: &(impl Order + ?Sized), row: u64) -> Pair {
    Pair::from_word(order.load_key(row, KeyWord::Neighbours))
}

fn is_newcomer(order: &(impl Order + ?Sized), row: u64) -> bool {
    row < order.rows() && place_and_weight(order, row).0 == Place::Newcomer
}

/// The one that came first.
pub(super) fn first(order: &(impl Order + ?Sized)) -> Result<Option<u64>, Damaged> {
    let Some(row) = ends(order).before.checked_sub(1) else {
        return Ok(None);
    };
    if is_newcomer(order, row) && neighbours(order, row).before == 0 {
        Ok(Some(row))
    } else {
        Err(Damaged)
    }
}

/// The keys that can be reached from the first, in their order. Bounded, whatever the links say.
pub(super) fn linked(order: &(impl Order + ?Sized)) -> impl Iterator<Item = u64> {
    let newcomer = |link: u64| link.checked_sub(1).filter(|row| is_newcomer(order, *row));
    let next = move |row: &u64| newcomer(neighbours(order, *row).behind);
    std::iter::successors(newcomer(ends(order).before), next).take(order.capacity() as usize)
}

/// Whether the list links the key of a row.
pub(super) fn is_linked(order: &(impl Order + ?Sized), row: u64) -> bool {
    let link = match neighbours(order, row).before.checked_sub(1) {
        Some(before) if is_newcomer(order, before) => neighbours(order, before).behind,
        Some(_) => 0,
        None => ends(order).before,
    };
    link == row + 1
}

/// How many are before the key of a row, or one more than `limit`.
pub(super) fn count_before(order: &(impl Order + ?Sized), row: u64, limit: u64) -> u64 {
    let mut count = 0;
    let mut before = neighbours(order, row).before;
    while let Some(other) = before.checked_sub(1)
        && count <= limit
    {
        count += 1;
        before = neighbours(order, other).before;
    }
    count
}

pub(super) fn append(order: &mut (impl OrderMut + ?Sized), row: u64, weight: u64) -> Result<(), Damaged> {
    let ends = ends(order);
    if row >= order.rows() || (ends.before == 0) != (ends.behind == 0) {
        return Err(Damaged);
    }
    if let Some(last) = ends.behind.checked_sub(1) {
        let of_last = neighbours(order, last);
        if !is_newcomer(order, last) || of_last.behind != 0 {
            return Err(Damaged);
        }
        let behind = row + 1;
        order.store_key(last, KeyWord::Neighbours, Pair { behind, ..of_last }.to_word());
    }
    let own = Pair {
        before: ends.behind,
        behind: 0,
    };
    order.store_key(row, KeyWord::Neighbours, own.to_word());
    order.store_key(row, KeyWord::Place, placed(Place::Newcomer, weight));
    let after = Pair {
        before: if ends.before == 0 { row + 1 } else { ends.before },
        behind: row + 1,
    };
    order.store(OrderWord::Newcomers, after.to_word());
    Ok(())
}

/// Takes a key out of the list.
pub(super) fn remove(order: &mut (impl OrderMut + ?Sized), row: u64) -> Result<(), Damaged> {
    let mut ends = ends(order);
    let Pair { before, behind } = neighbours(order, row);
    let expected_behind = match behind.checked_sub(1) {
        Some(behind) if is_newcomer(order, behind) => neighbours(order, behind).before,
        Some(_) => return Err(Damaged),
        None => ends.behind,
    };
    if !is_linked(order, row) || expected_behind != row + 1 {
        return Err(Damaged);
    }
    match before.checked_sub(1) {
        Some(other) => {
            let of_other = neighbours(order, other);
            order.store_key(other, KeyWord::Neighbours, Pair { behind, ..of_other }.to_word());
        }
        None => ends.before = behind,
    }
    match behind.checked_sub(1) {
        Some(other) => {
            let of_other = neighbours(order, other);
            order.store_key(other, KeyWord::Neighbours, Pair { before, ..of_other }.to_word());
        }
        None => ends.behind = before,
    }
    order.store(OrderWord::Newcomers, ends.to_word());
    Ok(())
}

/// How many newcomers there are; `None` if their links are wrong.
pub(super) fn keys(order: &(impl Order + ?Sized)) -> Option<u64> {
    let mut count = 0;
    let mut before = 0;
    let mut next = ends(order).before;
    while let Some(row) = next.checked_sub(1) {
        if count >= order.rows() || !is_newcomer(order, row) || neighbours(order, row).before != before {
            return None;
        }
        count += 1;
        before = next;
        next = neighbours(order, row).behind;
    }
    (ends(order).behind == before).then_some(count)
}
