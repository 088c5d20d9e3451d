//! The index of one shard of a keyed table: which row holds which key.
//!
//! This is pure, like the limit rules: it knows no memory, no clock, no lock and no limits. Rows are grouped into
//! buckets of [`BUCKET_ROWS`], and a key's row is in one of the two buckets that its fingerprint names. It never
//! moves. Each bucket has a 16-bit tag for every row, all in one cache line, so that finding a key, or knowing that
//! it is absent, takes at most two lines of tags and the row itself. A tag of zero marks a row that was never used.
//! The tags follow from the fingerprints, and [`rebuild`] restores them.
//!
//! Putting each key into the emptier of two buckets (Azar, Broder, Karlin and Upfal, "Balanced allocations") fills
//! buckets of 32 to more than 90 % before the first key finds both of its buckets full: see [`sizing`]. Because a key
//! never moves, it takes no stores but those that put it there, and nothing else can be interrupted halfway.

mod eviction;
mod fingerprint;
mod repair;
mod row_for_key;
mod sizing;
#[cfg(test)]
mod tests;

pub(crate) use eviction::{Claim, Usage};
pub(crate) use fingerprint::{Fingerprint, Mixer};
pub(crate) use repair::{is_consistent, rebuild};
pub(crate) use row_for_key::NewRow;
pub(crate) use sizing::{buckets_for, holds_for, shards_for};

use crate::units::{BUCKET_ROWS, BUCKET_TAG_WORDS, WORD_TAGS};

const TAG_BITS: u64 = 16;
/// The most rows that are asked whether they may be reused, or compared for eviction.
pub(crate) const MAX_ASKED: u64 = 2 * BUCKET_ROWS;

/// Read access to the words of a shard's index. Any word may hold anything.
///
/// Rows are numbered bucket by bucket: the one at `slot` of `bucket` is `bucket * BUCKET_ROWS + slot`.
pub(crate) trait Table {
    /// How many buckets there are: at least one, and less than 2^40.
    fn buckets(&self) -> u64;
    /// The tags of rows `4 * word` to `4 * word + 3` of a bucket below [`buckets`](Self::buckets); `word` is below
    /// [`BUCKET_TAG_WORDS`].
    fn tag_word(&self, bucket: u64, word: u64) -> u64;
    /// All words of tags of a bucket.
    #[inline]
    fn tag_words(&self, bucket: u64) -> [u64; BUCKET_TAG_WORDS as usize] {
        std::array::from_fn(|word| self.tag_word(bucket, word as u64))
    }
    /// The key of a row; [`Fingerprint::NONE`] if it has none.
    fn fingerprint(&self, row: u64) -> Fingerprint;
}

/// Write access to the words of a shard's index.
pub(crate) trait TableMut: Table {
    fn store_tag_word(&mut self, bucket: u64, word: u64, value: u64);
    fn store_fingerprint(&mut self, row: u64, fingerprint: Fingerprint);
}

/// The rows of a bucket with a certain tag.
#[derive(Clone, Copy)]
struct Matches {
    bucket: u64,
    /// One bit per row: its group of sixteen bits gives the position of the tag in its word, and its place among the
    /// lowest eight of the group gives the word.
    bits: u64,
}

impl Matches {
    #[inline]
    fn of(table: &(impl Table + ?Sized), bucket: u64, tag: u16) -> Self {
        const LOW: u64 = 0x7fff_7fff_7fff_7fff;
        let everywhere = u64::from(tag) * 0x0001_0001_0001_0001;
        let mut different = 0;
        for (word, tags) in (0..).zip(table.tag_words(bucket)) {
            let difference = tags ^ everywhere;
            // The highest bit of each group of sixteen tells whether any of its bits is set: the addition carries
            // into it from the others, and never beyond. So no tag is missed, and none is found that is not there.
            let marks = (((difference & LOW) + LOW) | difference) & !LOW;
            different |= marks >> (TAG_BITS - 1 - word);
        }
        Self {
            bucket,
            bits: !different & 0x00ff_00ff_00ff_00ff,
        }
    }

    fn count(self) -> u32 {
        self.bits.count_ones()
    }
}

impl Iterator for Matches {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.bits == 0 {
            return None;
        }
        let bit = u64::from(self.bits.trailing_zeros());
        self.bits &= self.bits - 1;
        let word = bit % TAG_BITS;
        Some(row_at(self.bucket, word * WORD_TAGS + bit / TAG_BITS))
    }
}

#[inline]
fn row_at(bucket: u64, slot: u64) -> u64 {
    (bucket * BUCKET_ROWS) | slot
}

/// The row that holds the key, if any does.
///
/// Reads fingerprints only of rows with the key's tag: for an absent key, one row in a thousand. The second bucket is
/// read after the first; reading both at once, so that memory answers both together, was measured to be no faster for
/// any number of keys.
#[inline]
pub(crate) fn find(table: &(impl Table + ?Sized), fingerprint: Fingerprint) -> Option<u64> {
    let buckets = fingerprint.buckets(table.buckets());
    buckets.into_iter().find_map(|bucket| {
        Matches::of(table, bucket, fingerprint.tag()).find(|row| table.fingerprint(*row) == fingerprint)
    })
}

/// The row that most likely holds the key: the first with the key's tag. Reads tags only.
#[inline]
pub(crate) fn probable(table: &(impl Table + ?Sized), fingerprint: Fingerprint) -> Option<u64> {
    let buckets = fingerprint.buckets(table.buckets());
    buckets
        .into_iter()
        .find_map(|bucket| Matches::of(table, bucket, fingerprint.tag()).next())
}

/// A row for a key that [`find`] does not find.
///
/// This is a row of the emptier bucket that was never used; else the first that carries nothing, according to
/// `can_reuse`; else, of those that may be evicted, the one with the smallest `claim`. Each of the two closures is
/// called for at most [`MAX_ASKED`] rows, once per row. Without a `claim` nothing is evicted.
pub(crate) fn find_new_row<C: FnMut(u64) -> Claim>(
    table: &(impl Table + ?Sized),
    fingerprint: Fingerprint,
    can_reuse: impl FnMut(u64) -> bool,
    claim: Option<C>,
) -> NewRow {
    let buckets = fingerprint.buckets(table.buckets());
    let [first, second] = buckets.map(|bucket| Matches::of(table, bucket, 0));
    let mut emptier = if second.count() > first.count() {
        second
    } else {
        first
    };
    if let Some(row) = emptier.next() {
        return NewRow::Unused(row);
    }
    if let Some(row) = rows_of(fingerprint, buckets).find_map(accepted_by(can_reuse)) {
        return NewRow::Reused(row);
    }
    match claim {
        Some(claim) => eviction::choose(rows_of(fingerprint, buckets), claim),
        None => NewRow::None { room_in: None },
    }
}

fn accepted_by(mut accepts: impl FnMut(u64) -> bool) -> impl FnMut(u64) -> Option<u64> {
    move |row| accepts(row).then_some(row)
}

/// Every row of both buckets, starting with one that depends on the fingerprint.
fn rows_of(fingerprint: Fingerprint, buckets: [u64; 2]) -> impl Iterator<Item = u64> {
    let rows = if buckets[0] == buckets[1] {
        BUCKET_ROWS
    } else {
        MAX_ASKED
    };
    (0..rows).map(move |step| {
        let index = (fingerprint.start() + step) % rows;
        let bucket = if index < BUCKET_ROWS {
            buckets[0]
        } else {
            buckets[1]
        };
        row_at(bucket, index % BUCKET_ROWS)
    })
}

/// Gives a row that [`find_new_row`] found to this key: stores two words of the row, then one of tags.
pub(crate) fn insert(table: &mut (impl TableMut + ?Sized), row: u64, fingerprint: Fingerprint) {
    table.store_fingerprint(row, fingerprint);
    store_tag(table, row, fingerprint.tag());
}

/// How many rows of a bucket have ever been given to a key.
pub(crate) fn rows_in_use(table: &(impl Table + ?Sized), bucket: u64) -> u64 {
    BUCKET_ROWS - u64::from(Matches::of(table, bucket, 0).count())
}

fn tag(table: &(impl Table + ?Sized), row: u64) -> u16 {
    let (bucket, slot) = (row / BUCKET_ROWS, row % BUCKET_ROWS);
    (table.tag_word(bucket, slot / WORD_TAGS) >> (slot % WORD_TAGS * TAG_BITS)) as u16
}

fn store_tag(table: &mut (impl TableMut + ?Sized), row: u64, tag: u16) {
    let (bucket, slot) = (row / BUCKET_ROWS, row % BUCKET_ROWS);
    let shift = slot % WORD_TAGS * TAG_BITS;
    let others = table.tag_word(bucket, slot / WORD_TAGS) & !(u64::from(u16::MAX) << shift);
    table.store_tag_word(bucket, slot / WORD_TAGS, others | (u64::from(tag) << shift));
}
