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

/// What the entry at `index` says.
fn stored(order: &(impl Order + ?Sized), index: u64) -> Result<Entry, Damaged> {
    let entry = Entry::from_words(order.load_entry(index)).ok_or(Damaged)?;
    if entry.row < order.rows() {
        Ok(entry)
    } else {
        Err(Damaged)
    }
}

/// The entry at `index`, if the key's row agrees, and the weight by which the key was counted.
fn entry_and_weight(order: &(impl Order + ?Sized), index: u64) -> Result<(Entry, u64), Damaged> {
    let entry = stored(order, index)?;
    match place_and_weight(order, entry.row) {
        (Place::Heap(place), weight) if place == index => Ok((entry, weight)),
        _ => Err(Damaged),
    }
}

fn entry(order: &(impl Order + ?Sized), index: u64) -> Result<Entry, Damaged> {
    entry_and_weight(order, index).map(|(entry, _)| entry)
}

/// A new entry for a key, by its tag.
fn next_entry(order: &mut (impl OrderMut + ?Sized), row: u64) -> Entry {
    let sequence = order.load(OrderWord::Sequence);
    order.store(OrderWord::Sequence, sequence.wrapping_add(1));
    Entry {
        tag: order.load_key(row, KeyWord::Tag),
        row,
        sequence: sequence as u32,
    }
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
    let added = next_entry(order, row);
    order.store(OrderWord::HeapLength, length + 1);
    rise(order, length, added, weight).map(drop)
}

/// Moves the key of a row, whose entry is at `index`, to where it belongs now.
pub(super) fn update(
    order: &mut (impl OrderMut + ?Sized),
    row: u64,
    index: u64,
    weight: u64,
) -> Result<(), Damaged> {
    if !has(order, row, index) {
        return Err(Damaged);
    }
    let updated = next_entry(order, row);
    place_at(order, index, updated, weight)
}

/// Removes the key of a row, whose entry is at `index`.
pub(super) fn remove(order: &mut (impl OrderMut + ?Sized), row: u64, index: u64) -> Result<(), Damaged> {
    let last = length(order)?.checked_sub(1).ok_or(Damaged)?;
    if !has(order, row, index) {
        return Err(Damaged);
    }
    let (moved, weight) = entry_and_weight(order, last)?;
    order.store(OrderWord::HeapLength, last);
    if index == last {
        return Ok(());
    }
    place_at(order, index, moved, weight)
}

/// Puts an entry where it belongs: at `index`, whose entry it replaces, or above or below that.
fn place_at(
    order: &mut (impl OrderMut + ?Sized),
    index: u64,
    entry: Entry,
    weight: u64,
) -> Result<(), Damaged> {
    if rise(order, index, entry, weight)? == index {
        sink(order, index, entry, weight)?;
    }
    Ok(())
}

/// Writes an entry, and its place into the key's row.
fn put(order: &mut (impl OrderMut + ?Sized), index: u64, entry: Entry, weight: u64) {
    order.store_entry(index, entry.to_words());
    order.store_key(entry.row, KeyWord::Place, placed(Place::Heap(index), weight));
}

/// Puts an entry at `index`, or above as far as it comes before those there. Returns where.
fn rise(
    order: &mut (impl OrderMut + ?Sized),
    mut index: u64,
    entry: Entry,
    weight: u64,
) -> Result<u64, Damaged> {
    while let Some(before) = index.checked_sub(1) {
        let above = before / BRANCHES;
        if !entry.is_before(stored(order, above)?) {
            break;
        }
        let (moved, of_moved) = entry_and_weight(order, above)?;
        put(order, index, moved, of_moved);
        index = above;
    }
    put(order, index, entry, weight);
    Ok(index)
}

/// Puts an entry at `index`, or below as far as it comes behind those there.
fn sink(
    order: &mut (impl OrderMut + ?Sized),
    mut index: u64,
    entry: Entry,
    weight: u64,
) -> Result<(), Damaged> {
    let length = length(order)?;
    loop {
        let first = index * BRANCHES + 1;
        let mut least: Option<(u64, Entry)> = None;
        for below in first..(first + BRANCHES).min(length) {
            let other = stored(order, below)?;
            if least.is_none_or(|(_, least)| other.is_before(least)) {
                least = Some((below, other));
            }
        }
        let Some((below, _)) = least.filter(|(_, least)| least.is_before(entry)) else {
            break;
        };
        let (moved, of_moved) = entry_and_weight(order, below)?;
        put(order, index, moved, of_moved);
        index = below;
    }
    put(order, index, entry, weight);
    Ok(())
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
