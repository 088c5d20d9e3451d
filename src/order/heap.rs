//! The keys that have a lead, in a heap of four branches: the smallest tag on top, and of equal ones the earliest.

use super::key_words::{
    Damaged, KeyWord, Order, OrderMut, OrderWord, Place, Served, is_before, place_and_weight, placed,
};

const BRANCHES: u64 = 4;

/// An entry of the heap: the tag of a key in the first word; in the second its row plus one, and above that the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) tag: Served,
    pub(super) row: u64,
    pub(super) sequence: u32,
}

impl Entry {
    fn to_words(self) -> [u64; 2] {
        [self.tag, (self.row + 1) | u64::from(self.sequence) << 32]
    }

    fn from_words([tag, packed]: [u64; 2]) -> Option<Self> {
        Some(Self {
            tag,
            row: (packed & u64::from(u32::MAX)).checked_sub(1)?,
            sequence: (packed >> 32) as u32,
        })
    }

    fn is_before(self, other: Self) -> bool {
        if self.tag == other.tag {
            (self.sequence.wrapping_sub(other.sequence) as i32) < 0
        } else {
            is_before(self.tag, other.tag)
        }
    }
}

fn length(order: &(impl Order + ?Sized)) -> Result<u64, Damaged> {
    let length = order.load(OrderWord::HeapLength);
    if length <= order.capacity() {
        Ok(length)
    } else {
        Err(Damaged)
    }
}

/// The entry at `index`, if the key's row agrees.
fn entry(order: &(impl Order + ?Sized), index: u64) -> Result<Entry, Damaged> {
    let entry = Entry::from_words(order.load_entry(index)).ok_or(Damaged)?;
    let is_sound = entry.row < order.rows() && place_and_weight(order, entry.row).0 == Place::Heap(index);
    if is_sound { Ok(entry) } else { Err(Damaged) }
}

/// Whether the entry at `index` is that of the row.
pub(super) fn has(order: &(impl Order + ?Sized), row: u64, index: u64) -> bool {
    let is_within = length(order).is_ok_and(|length| index < length);
    is_within && entry(order, index).is_ok_and(|entry| entry.row == row)
}

/// The key with the smallest tag.
pub(super) fn top(order: &(impl Order + ?Sized)) -> Result<Option<Entry>, Damaged> {
    if length(order)? == 0 {
        return Ok(None);
    }
    entry(order, 0).map(Some)
}

/// Adds a key by its tag.
pub(super) fn insert(order: &mut (impl OrderMut + ?Sized), row: u64, weight: u64) -> Result<(), Damaged> {
    let length = length(order)?;
    if length == order.capacity() || row >= order.rows() {
        return Err(Damaged);
    }
    let added = Entry {
        tag: order.load_key(row, KeyWord::Tag),
        row,
        sequence: order.load(OrderWord::Sequence) as u32,
    };
    order.store(
        OrderWord::Sequence,
        order.load(OrderWord::Sequence).wrapping_add(1),
    );
    order.store(OrderWord::HeapLength, length + 1);
    put(order, length, added, weight);
    rise(order, length)
}

/// Removes the key of a row, whose entry is at `index`.
pub(super) fn remove(order: &mut (impl OrderMut + ?Sized), row: u64, index: u64) -> Result<(), Damaged> {
    let last = length(order)?.checked_sub(1).ok_or(Damaged)?;
    if index > last || entry(order, index)?.row != row {
        return Err(Damaged);
    }
    let moved = entry(order, last)?;
    order.store(OrderWord::HeapLength, last);
    if index == last {
        return Ok(());
    }
    let (_, weight) = place_and_weight(order, moved.row);
    put(order, index, moved, weight);
    rise(order, index)?;
    sink(order, index)
}

/// Writes an entry, and where it is into the key's row.
fn put(order: &mut (impl OrderMut + ?Sized), index: u64, entry: Entry, weight: u64) {
    order.store_entry(index, entry.to_words());
    order.store_key(entry.row, KeyWord::Place, placed(Place::Heap(index), weight));
}

/// Moves the entry at `index` up to where it belongs.
fn rise(order: &mut (impl OrderMut + ?Sized), mut index: u64) -> Result<(), Damaged> {
    while let Some(before) = index.checked_sub(1) {
        let above = before / BRANCHES;
        if !swap_unless_ordered(order, above, index)? {
            break;
        }
        index = above;
    }
    Ok(())
}

/// Moves the entry at `index` down to where it belongs.
fn sink(order: &mut (impl OrderMut + ?Sized), mut index: u64) -> Result<(), Damaged> {
    let length = length(order)?;
    loop {
        let first = index * BRANCHES + 1;
        let mut least: Option<(u64, Entry)> = None;
        for below in first..(first + BRANCHES).min(length) {
            let entry = entry(order, below)?;
            if least.is_none_or(|(_, least)| entry.is_before(least)) {
                least = Some((below, entry));
            }
        }
        let Some((below, _)) = least else { return Ok(()) };
        if !swap_unless_ordered(order, index, below)? {
            return Ok(());
        }
        index = below;
    }
}

/// Exchanges two entries if the lower one comes first. Returns whether it did.
fn swap_unless_ordered(
    order: &mut (impl OrderMut + ?Sized),
    above: u64,
    below: u64,
) -> Result<bool, Damaged> {
    let (upper, lower) = (entry(order, above)?, entry(order, below)?);
    if !lower.is_before(upper) {
        return Ok(false);
    }
    let weights = [upper, lower].map(|entry| place_and_weight(order, entry.row).1);
    put(order, above, lower, weights[1]);
    put(order, below, upper, weights[0]);
    Ok(true)
}

/// How many keys are in the heap; `None` unless each agrees with its row, and none is before the one above it.
pub(super) fn keys(order: &(impl Order + ?Sized)) -> Option<u64> {
    let length = length(order).ok()?;
    for index in 0..length {
        let own = entry(order, index).ok()?;
        if own.tag != order.load_key(own.row, KeyWord::Tag) {
            return None;
        }
        if let Some(before) = index.checked_sub(1)
            && own.is_before(entry(order, before / BRANCHES).ok()?)
        {
            return None;
        }
    }
    Some(length)
}
