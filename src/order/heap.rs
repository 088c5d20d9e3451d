//! The keys that have a lead, in a heap with four branches: the smallest tag is on top, and of equal tags the earliest.

use super::key_words::{
    Damaged, KeyWord, Order, OrderMut, OrderWord, Place, Served, place_and_weight, placed,
};

const BRANCHES: u64 = 4;

/// An entry of the heap: the tag of a key in the first word; in the second its row plus one, and above that the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) tag: Served,
    key: u64,
}

impl Entry {
    fn new(tag: Served, row: u64, sequence: u64) -> Self {
        Self {
            tag,
            key: (row + 1) | sequence << 32,
        }
    }

    fn stored(order: &(impl Order + ?Sized), index: u64) -> Self {
        let [tag, key] = order.load_entry(index);
        Self { tag, key }
    }

    /// The row of the key, if there is such a row.
    pub(super) fn row(self, order: &(impl Order + ?Sized)) -> Result<u64, Damaged> {
        let row = (self.key & u64::from(u32::MAX)).checked_sub(1);
        row.filter(|row| *row < order.rows()).ok_or(Damaged)
    }

    /// Without a branch, because nobody could predict it.
    fn is_before(self, other: Self) -> bool {
        let ahead = self.tag.wrapping_sub(other.tag) as i64;
        let sequences = [self, other].map(|entry| (entry.key >> 32) as u32);
        let came_earlier = (sequences[0].wrapping_sub(sequences[1]) as i32) < 0;
        ahead.saturating_sub(i64::from(came_earlier)) < 0
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

/// The row of the entry at `index` and the weight by which its key was counted, if the row agrees.
fn row_and_weight(order: &(impl Order + ?Sized), index: u64, entry: Entry) -> Result<(u64, u64), Damaged> {
    let row = entry.row(order)?;
    match place_and_weight(order, row) {
        (Place::Heap(place), weight) if place == index => Ok((row, weight)),
        _ => Err(Damaged),
    }
}

/// A new entry for a key, by its tag.
fn next_entry(order: &mut (impl OrderMut + ?Sized), row: u64) -> Entry {
    let sequence = order.load(OrderWord::Sequence);
    order.store(OrderWord::Sequence, sequence.wrapping_add(1));
    Entry::new(order.load_key(row, KeyWord::Tag), row, sequence)
}

/// Whether the entry at `index` is that of the row, as the row says.
pub(super) fn has(order: &(impl Order + ?Sized), row: u64, index: u64) -> bool {
    let is_within = length(order).is_ok_and(|length| index < length);
    is_within && Entry::stored(order, index).row(order) == Ok(row)
}

/// The entry with the smallest tag. Does not check whether its row agrees.
pub(super) fn smallest(order: &(impl Order + ?Sized)) -> Result<Option<Entry>, Damaged> {
    Ok((length(order)? > 0).then(|| Entry::stored(order, 0)))
}

/// The key with the smallest tag, and that tag.
pub(super) fn top(order: &(impl Order + ?Sized)) -> Result<Option<(u64, Served)>, Damaged> {
    let Some(entry) = smallest(order)? else {
        return Ok(None);
    };
    let (row, _) = row_and_weight(order, 0, entry)?;
    Ok(Some((row, entry.tag)))
}

/// Adds a key by its tag.
pub(super) fn insert(order: &mut (impl OrderMut + ?Sized), row: u64, weight: u64) -> Result<(), Damaged> {
    let length = length(order)?;
    if length == order.capacity() || row >= order.rows() {
        return Err(Damaged);
    }
    let added = next_entry(order, row);
    order.store(OrderWord::HeapLength, length + 1);
    rise(
        order,
        length,
        Keyed {
            entry: added,
            row,
            weight,
        },
    )
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
    let entry = next_entry(order, row);
    place_at(order, index, length(order)?, Keyed { entry, row, weight })
}

/// Removes the key of a row, whose entry is at `index`.
pub(super) fn remove(order: &mut (impl OrderMut + ?Sized), row: u64, index: u64) -> Result<(), Damaged> {
    let last = length(order)?.checked_sub(1).ok_or(Damaged)?;
    if !has(order, row, index) {
        return Err(Damaged);
    }
    let entry = Entry::stored(order, last);
    let (moved, weight) = row_and_weight(order, last, entry)?;
    order.store(OrderWord::HeapLength, last);
    if index == last {
        return Ok(());
    }
    let moved = Keyed {
        entry,
        row: moved,
        weight,
    };
    place_at(order, index, last, moved)
}

/// An entry, with the row of its key and the weight by which that is counted.
#[derive(Clone, Copy)]
struct Keyed {
    entry: Entry,
    row: u64,
    weight: u64,
}

/// Puts an entry where it belongs: at `index`, whose entry it replaces, or above or below that.
fn place_at(
    order: &mut (impl OrderMut + ?Sized),
    index: u64,
    length: u64,
    keyed: Keyed,
) -> Result<(), Damaged> {
    let above = index
        .checked_sub(1)
        .map(|before| Entry::stored(order, before / BRANCHES));
    if above.is_some_and(|above| keyed.entry.is_before(above)) {
        rise(order, index, keyed)
    } else {
        sink(order, index, length, keyed)
    }
}

/// Writes an entry, and its place into the key's row.
fn put(order: &mut (impl OrderMut + ?Sized), index: u64, keyed: Keyed) {
    let Keyed { entry, row, weight } = keyed;
    order.store_entry(index, [entry.tag, entry.key]);
    order.store_key(row, KeyWord::Place, placed(Place::Heap(index), weight));
}

/// Moves the entry at `from` to `to`.
fn shift(order: &mut (impl OrderMut + ?Sized), from: u64, entry: Entry, to: u64) -> Result<(), Damaged> {
    let (row, weight) = row_and_weight(order, from, entry)?;
    put(order, to, Keyed { entry, row, weight });
    Ok(())
}

/// Puts an entry at `index`, or moves it up past those that it comes before.
fn rise(order: &mut (impl OrderMut + ?Sized), mut index: u64, keyed: Keyed) -> Result<(), Damaged> {
    while let Some(before) = index.checked_sub(1) {
        let above = before / BRANCHES;
        let other = Entry::stored(order, above);
        if !keyed.entry.is_before(other) {
            break;
        }
        shift(order, above, other, index)?;
        index = above;
    }
    put(order, index, keyed);
    Ok(())
}

/// Puts an entry at `index`, or moves it down past those that it comes behind.
fn sink(
    order: &mut (impl OrderMut + ?Sized),
    mut index: u64,
    length: u64,
    keyed: Keyed,
) -> Result<(), Damaged> {
    loop {
        let first = index * BRANCHES + 1;
        let (mut below, mut least) = (index, keyed.entry);
        for other in first..(first + BRANCHES).min(length) {
            let entry = Entry::stored(order, other);
            if entry.is_before(least) {
                (below, least) = (other, entry);
            }
        }
        if below == index {
            break;
        }
        shift(order, below, least, index)?;
        index = below;
    }
    put(order, index, keyed);
    Ok(())
}

/// How many keys are in the heap; `None` unless each agrees with its row and none comes before the one above it.
pub(super) fn keys(order: &(impl Order + ?Sized)) -> Option<u64> {
    let length = length(order).ok()?;
    for index in 0..length {
        let own = Entry::stored(order, index);
        let (row, _) = row_and_weight(order, index, own).ok()?;
        if own.tag != order.load_key(row, KeyWord::Tag) {
            return None;
        }
        if let Some(before) = index.checked_sub(1)
            && own.is_before(Entry::stored(order, before / BRANCHES))
        {
            return None;
        }
    }
    Some(length)
}
