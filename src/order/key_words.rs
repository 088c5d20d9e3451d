//! The words of an order, and how to read and change them.

/// A cost, a tag or virtual time: the time in which the limits of all keys replenish that much, in units of 2^-10
/// nanoseconds. Wraps around.
pub(crate) type Served = u64;

/// How many units of [`Served`] make a nanosecond.
pub(crate) const PER_NANO: u64 = 1 << 10;

/// The most that a key can be ahead of virtual time, apart from the cost of a single request: an hour.
pub(super) const MAX_LEAD: Served = 3_600_000_000_000 * PER_NANO;

/// The cost of a single request is at most this: 26 days, so that differences of tags have a sign.
pub(crate) const MAX_COST: Served = 1 << 61;

/// A word of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderWord {
    VirtualTime,
    /// The greatest tag that any key has had since the instant in `Contention`.
    LatestTag,
    /// Twice the instant at which a key last joined the order while it was empty, plus one if the key served last was a
    /// newcomer.
    Contention,
    /// How many keys are in the heap.
    HeapLength,
    /// The first and the last newcomer, each plus one, packed.
    Newcomers,
    /// The sum of the weights of all ordered keys.
    Weight,
    /// Counts what was put into the heap, so that the earlier of two equal tags comes first.
    Sequence,
}

/// A word of one key's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyWord {
    Tag,
    /// No correction lowers the tag below this: virtual time when the key joined, or was served as a newcomer.
    Floor,
    /// Where the key is ordered, and by which weight: see [`Place`].
    Place,
    /// The newcomers before and behind it, each plus one, packed.
    Neighbours,
}

/// Read access to the words of an order. Any word may hold anything.
pub(crate) trait Order {
    /// How many keys the heap has room for.
    fn capacity(&self) -> u64;
    /// How many rows there are.
    fn rows(&self) -> u64;
    fn load(&self, word: OrderWord) -> u64;
    /// A word of a row; zero if there is no such row.
    fn load_key(&self, row: u64, word: KeyWord) -> u64;
    /// The two words of an entry of the heap; zero beyond it.
    fn load_entry(&self, index: u64) -> [u64; 2];
}

/// Write access to the words of an order.
pub(crate) trait OrderMut: Order {
    fn store(&mut self, word: OrderWord, value: u64);
    fn store_key(&mut self, row: u64, word: KeyWord, value: u64);
    /// Stores an entry of the heap; `index` is below the capacity.
    fn store_entry(&mut self, index: u64, entry: [u64; 2]);
}

/// Words contradict each other, so who is ordered has to be determined anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Whether one tag is before another.
pub(super) fn is_before(one: Served, other: Served) -> bool {
    (one.wrapping_sub(other) as i64) < 0
}

/// Where a key is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Nowhere,
    Newcomer,
    /// In the heap, at this index.
    Heap(u64),
}

/// The word of a [`Place`]: zero for nowhere, one for newcomers, and otherwise the index in the heap plus two; in the
/// upper half the weight by which the key was counted.
pub(super) fn placed(place: Place, weight: u64) -> u64 {
    match place {
        Place::Nowhere => 0,
        Place::Newcomer => 1 | weight << 32,
        Place::Heap(index) => (index + 2) | weight << 32,
    }
}

pub(super) fn place_and_weight(order: &(impl Order + ?Sized), row: u64) -> (Place, u64) {
    let word = order.load_key(row, KeyWord::Place);
    let place = match word & u64::from(u32::MAX) {
        0 => Place::Nowhere,
        1 => Place::Newcomer,
        index => Place::Heap(index - 2),
    };
    (place, word >> 32)
}

pub(super) fn later(one: Served, other: Served) -> Served {
    if is_before(one, other) { other } else { one }
}
