//! The order in which the keys of a set are served from what they share: weighted fair queuing.
//!
//! Every key has a *tag*: how much it has been served, divided by its weight. *Virtual time* is how far all keys that wait
//! have been served. How far a tag is after it is the key's *lead*. A key that waits is *ordered* here, in one of two places:
//!
//! - *Newcomers* have no lead. They are served before the others, first come, first served. So how long a key that seldom
//!   asks has to wait does not depend on how much the others ask for.
//! - The others are in a heap, and the one with the smallest tag is served next.
//!
//! A key that is served moves ahead by the cost of what it got, divided by its weight. Virtual time follows: a key that
//! is served from the heap moves it to the key's tag, and each newcomer moves it on by the newcomer's cost, divided by
//! the weights of all who wait. Once it has reached the smallest tag in the heap, newcomers and the heap take turns, so
//! that a flood of newcomers cannot stop those that have been waiting.
//!
//! A key gets no credit for the time in which it did not wait, and when nobody waits any more, all leads end. A key
//! that is still waiting when it turns out to have used less than it was charged may fall behind virtual time, and
//! catches up.
//!
//! This is pure, like the queue: it reads and changes words behind [`Order`] and [`OrderMut`]. What was served so far
//! (virtual time, the latest tag, tags and floors) is authoritative. The rest says who is ordered, and follows from who
//! waits: a caller that loses the rest [clears](clear) it and [restores](restore) every key.

mod heap;
mod key_words;
mod newcomers;
#[cfg(test)]
mod tests;

pub(crate) use key_words::{Damaged, KeyWord, MAX_COST, Order, OrderMut, OrderWord, PER_NANO, Place, Served};
use key_words::{MAX_LEAD, is_before, later, place_and_weight, placed};

/// Where the key of a row is ordered.
pub(crate) fn place(order: &(impl Order + ?Sized), row: u64) -> Place {
    place_and_weight(order, row).0
}

/// How far a key is ahead of virtual time.
pub(crate) fn lead(order: &(impl Order + ?Sized), row: u64) -> Served {
    let lead = order
        .load_key(row, KeyWord::Tag)
        .wrapping_sub(order.load(OrderWord::VirtualTime));
    // Tags wrap: one that seems to be farther ahead than any lead can be was left behind long ago.
    if lead > MAX_LEAD + MAX_COST { 0 } else { lead }
}

/// How a key stands among those that are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) weight: u64,
    /// The sum of the weights of all that are ordered.
    pub(crate) of_all: u64,
    /// How far it is ahead of virtual time.
    pub(crate) lead: Served,
}

/// How a key stands; `None` if it is not ordered.
pub(crate) fn standing(order: &(impl Order + ?Sized), row: u64) -> Option<Standing> {
    let (place, weight) = place_and_weight(order, row);
    (place != Place::Nowhere).then(|| Standing {
        weight,
        of_all: order.load(OrderWord::Weight).max(weight),
        lead: lead(order, row),
    })
}

/// Whether nobody is ordered.
pub(crate) fn is_empty(order: &(impl Order + ?Sized)) -> bool {
    order.load(OrderWord::HeapLength) == 0 && order.load(OrderWord::Newcomers) == 0
}

/// The key that is served next.
pub(crate) fn first(order: &(impl Order + ?Sized)) -> Result<Option<u64>, Damaged> {
    let newcomer = newcomers::first(order)?;
    let top = heap::top(order)?;
    let (Some(newcomer), Some((row, tag))) = (newcomer, top) else {
        return Ok(newcomer.or(top.map(|(row, _)| row)));
    };
    let is_due = !is_before(order.load(OrderWord::VirtualTime), tag);
    let was_newcomer = order.load(OrderWord::Contention) & 1 != 0;
    Ok(Some(if is_due && was_newcomer { row } else { newcomer }))
}

/// How many keys are served before a key, or more than `limit`: a guess for those far behind.
pub(crate) fn rank(order: &(impl Order + ?Sized), row: u64, limit: u64) -> u64 {
    match place(order, row) {
        Place::Nowhere => 0,
        Place::Newcomer => newcomers::count_before(order, row, limit),
        Place::Heap(index) => index.saturating_add(u64::from(order.load(OrderWord::Newcomers) != 0)),
    }
}

/// Where the key of a row is ordered, if the entry or the links there agree.
pub(crate) fn sound_place(order: &(impl Order + ?Sized), row: u64) -> Result<Place, Damaged> {
    let place = place(order, row);
    let is_sound = match place {
        Place::Nowhere => true,
        Place::Newcomer => newcomers::is_linked(order, row),
        Place::Heap(index) => heap::has(order, row, index),
    };
    if is_sound { Ok(place) } else { Err(Damaged) }
}

/// Orders a key that waits from `instant` on and was not ordered.
pub(crate) fn join(
    order: &mut (impl OrderMut + ?Sized),
    row: u64,
    weight: u64,
    instant: u64,
) -> Result<(), Damaged> {
    if place(order, row) != Place::Nowhere {
        return Err(Damaged);
    }
    if is_empty(order) {
        order.store(OrderWord::Contention, instant << 1);
        order.store(OrderWord::Weight, 0);
    }
    enter(order, row);
    insert(order, row, weight)
}

/// Begins the order of a key at virtual time, unless it has a lead.
fn enter(order: &mut (impl OrderMut + ?Sized), row: u64) {
    let now = order.load(OrderWord::VirtualTime);
    let lead = lead(order, row);
    order.store_key(row, KeyWord::Floor, now);
    if lead == 0 {
        order.store_key(row, KeyWord::Tag, now);
    }
}

/// Begins the order of a row that is given to another key, without credit and without a lead.
pub(crate) fn begin(order: &mut (impl OrderMut + ?Sized), row: u64) {
    let now = order.load(OrderWord::VirtualTime);
    order.store_key(row, KeyWord::Tag, now);
    order.store_key(row, KeyWord::Floor, now);
}

/// The newcomers in their order, as far as their links can be followed.
pub(crate) fn newcomers(order: &(impl Order + ?Sized)) -> impl Iterator<Item = u64> {
    newcomers::linked(order)
}

/// Orders a key again, after everything was [cleared](clear). It was at `before`, as far as that is known: if that is in
/// the heap, it is still owed as much as its tag is behind virtual time.
pub(crate) fn restore(
    order: &mut (impl OrderMut + ?Sized),
    row: u64,
    weight: u64,
    before: Place,
) -> Result<(), Damaged> {
    if place(order, row) != Place::Nowhere {
        return Err(Damaged);
    }
    let behind = order
        .load(OrderWord::VirtualTime)
        .wrapping_sub(order.load_key(row, KeyWord::Tag));
    match before {
        Place::Heap(_) if behind <= MAX_LEAD => {
            heap::insert(order, row, weight)?;
            count(order, weight);
            return Ok(());
        }
        // It joins the order only now.
        Place::Nowhere => enter(order, row),
        Place::Newcomer | Place::Heap(_) => {}
    }
    insert(order, row, weight)
}

/// Puts a key where it belongs with its tag.
fn insert(order: &mut (impl OrderMut + ?Sized), row: u64, weight: u64) -> Result<(), Damaged> {
    if lead(order, row) == 0 {
        newcomers::append(order, row, weight)?;
    } else {
        heap::insert(order, row, weight)?;
    }
    count(order, weight);
    Ok(())
}

/// Adds the weight of a key to that of all.
fn count(order: &mut (impl OrderMut + ?Sized), weight: u64) {
    let sum = order.load(OrderWord::Weight).saturating_add(weight);
    order.store(OrderWord::Weight, sum);
}

/// Takes a key out of the order, if it is there: it no longer waits, or waits for something of its own. Once nobody is
/// ordered, all leads end.
pub(crate) fn leave(order: &mut (impl OrderMut + ?Sized), row: u64) -> Result<(), Damaged> {
    if remove(order, row)? {
        end_if_empty(order);
    }
    Ok(())
}

/// Returns whether it was ordered.
fn remove(order: &mut (impl OrderMut + ?Sized), row: u64) -> Result<bool, Damaged> {
    let (place, weight) = place_and_weight(order, row);
    match place {
        Place::Nowhere => return Ok(false),
        Place::Newcomer => newcomers::remove(order, row)?,
        Place::Heap(index) => heap::remove(order, row, index)?,
    }
    order.store_key(row, KeyWord::Place, placed(Place::Nowhere, 0));
    let sum = order.load(OrderWord::Weight).saturating_sub(weight);
    order.store(OrderWord::Weight, sum);
    Ok(true)
}

/// Ends all leads if nobody is ordered any more.
pub(crate) fn end_if_empty(order: &mut (impl OrderMut + ?Sized)) {
    if !is_empty(order) {
        return;
    }
    let now = order.load(OrderWord::VirtualTime);
    let latest = order.load(OrderWord::LatestTag);
    // If it is farther ahead than any tag can be, it is damaged.
    if latest.wrapping_sub(now) <= MAX_LEAD + MAX_COST {
        order.store(OrderWord::VirtualTime, latest);
    }
}

/// Charges an ordered key, which is being served, for what it gets. It stays where it is until it is
/// [put back](replace) in order.
pub(crate) fn charge(
    order: &mut (impl OrderMut + ?Sized),
    row: u64,
    cost: Served,
    weight: u64,
) -> Result<(), Damaged> {
    let now = order.load(OrderWord::VirtualTime);
    let by_weight = cost.min(MAX_COST) / weight.max(1);
    let tag = order.load_key(row, KeyWord::Tag);
    let place = place(order, row);
    let (after, tag) = match place {
        Place::Nowhere => return Err(Damaged),
        Place::Newcomer => {
            let all = order.load(OrderWord::Weight).max(1);
            let moved = now.wrapping_add(cost.min(MAX_COST) / all);
            let after = match heap::smallest(order)? {
                Some(smallest) if is_before(smallest.tag, moved) => later(now, smallest.tag),
                _ => moved,
            };
            order.store_key(row, KeyWord::Floor, now);
            (after, now.wrapping_add(by_weight))
        }
        Place::Heap(_) => (later(now, tag), tag.wrapping_add(by_weight)),
    };
    store_tag(order, row, tag, after, by_weight);
    if after != now {
        order.store(OrderWord::VirtualTime, after);
    }
    let contention = order.load(OrderWord::Contention) & !1;
    let is_newcomer = u64::from(place == Place::Newcomer);
    order.store(OrderWord::Contention, contention | is_newcomer);
    Ok(())
}

/// Stores the tag of a key, which is at most an hour ahead, or as far as its latest request costs.
fn store_tag(order: &mut (impl OrderMut + ?Sized), row: u64, tag: Served, now: Served, by_weight: Served) {
    let most = now.wrapping_add(MAX_LEAD.max(by_weight));
    let tag = if is_before(most, tag) { most } else { tag };
    order.store_key(row, KeyWord::Tag, tag);
    let latest = order.load(OrderWord::LatestTag);
    // It is then from an earlier contention, or damaged.
    let is_stale = latest.wrapping_sub(now) > MAX_LEAD + MAX_COST;
    if is_stale || is_before(latest, tag) {
        order.store(OrderWord::LatestTag, tag);
    }
}

/// When a key last joined the order while it was empty; `None` if it is empty now.
pub(crate) fn contended_since(order: &(impl Order + ?Sized)) -> Option<u64> {
    (!is_empty(order)).then(|| order.load(OrderWord::Contention) >> 1)
}

/// Corrects what a key was charged at `charged_at` to what it turned out to use: downwards only if it was charged in
/// this contention, and not below its floor. If that changes its place, it is moved there; a newcomer that still has no
/// lead keeps its turn. While nobody is ordered, nothing is corrected.
pub(crate) fn correct(
    order: &mut (impl OrderMut + ?Sized),
    row: u64,
    charged: Served,
    used: Served,
    weight: u64,
    charged_at: u64,
) -> Result<(), Damaged> {
    let Some(since) = contended_since(order) else {
        return Ok(());
    };
    let now = order.load(OrderWord::VirtualTime);
    let by_weight = weight.max(1);
    let (charged, used) = (charged.min(MAX_COST) / by_weight, used.min(MAX_COST) / by_weight);
    let (tag, place) = (order.load_key(row, KeyWord::Tag), place(order, row));
    if used >= charged {
        let from = match place {
            Place::Heap(_) => tag,
            // The tag may be from a time when the key did not wait, for which it gets no credit.
            Place::Newcomer | Place::Nowhere => now.wrapping_add(lead(order, row)),
        };
        store_tag(order, row, from.wrapping_add(used - charged), now, 0);
    } else if charged_at >= since {
        let lower = tag.wrapping_sub(charged - used);
        let floor = order.load_key(row, KeyWord::Floor);
        order.store_key(row, KeyWord::Tag, later(lower, floor));
    }
    if place == Place::Newcomer && lead(order, row) == 0 {
        return Ok(());
    }
    replace(order, row, weight, true)
}

/// Puts an ordered key where it belongs after its tag or weight has changed, or takes it out if it no longer `waits`.
pub(crate) fn replace(
    order: &mut (impl OrderMut + ?Sized),
    row: u64,
    weight: u64,
    waits: bool,
) -> Result<(), Damaged> {
    let (place, counted) = place_and_weight(order, row);
    if let Place::Heap(index) = place
        && waits
    {
        // No key goes back from the heap to the newcomers: one that a correction has brought behind virtual time is owed
        // that much, and would lose it there.
        heap::update(order, row, index, weight)?;
        let others = order.load(OrderWord::Weight).saturating_sub(counted);
        order.store(OrderWord::Weight, others.saturating_add(weight));
        return Ok(());
    }
    if !remove(order, row)? {
        return Ok(());
    }
    if waits {
        return insert(order, row, weight);
    }
    end_if_empty(order);
    Ok(())
}

/// Forgets who is ordered, so that every key that waits can be [restored](restore), in the order in which the newcomers
/// among them came. `rows` are those that may have been ordered. How far each was served stays.
pub(crate) fn clear(order: &mut (impl OrderMut + ?Sized), rows: impl Iterator<Item = u64>) {
    for row in rows {
        if order.load_key(row, KeyWord::Place) != 0 {
            order.store_key(row, KeyWord::Place, 0);
        }
    }
    order.store(OrderWord::HeapLength, 0);
    order.store(OrderWord::Newcomers, 0);
    order.store(OrderWord::Weight, 0);
}

/// Whether places, entries, links and sums agree. Bounded, whatever they say.
pub(crate) fn is_consistent(order: &(impl Order + ?Sized)) -> bool {
    let (Some(in_heap), Some(newcomers)) = (heap::keys(order), newcomers::keys(order)) else {
        return false;
    };
    let mut weight = 0_u64;
    let mut ordered = 0;
    for row in 0..order.rows() {
        let (place, of_row) = place_and_weight(order, row);
        ordered += u64::from(place != Place::Nowhere);
        weight = weight.saturating_add(of_row);
    }
    ordered == in_heap + newcomers && order.load(OrderWord::Weight) == weight
}
