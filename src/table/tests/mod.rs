//! The index of keys against plain models: whatever happens in whatever order, a key has one row and keeps it.

use std::cell::Cell;

use super::*;

mod damaged_table_tests;
mod flooding_tests;
mod sizing_tests;
mod table_model_tests;

/// A seed for tests that do not depend on it.
const SEED: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// A shard's index in plain memory, which counts reads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainTable {
    tags: Vec<u64>,
    fingerprints: Vec<Fingerprint>,
    tag_words_read: Cell<u64>,
    fingerprints_read: Cell<u64>,
}

impl PlainTable {
    fn new(buckets: u64) -> Self {
        Self {
            tags: vec![0; (buckets * BUCKET_TAG_WORDS) as usize],
            fingerprints: vec![Fingerprint::NONE; (buckets * BUCKET_ROWS) as usize],
            tag_words_read: Cell::new(0),
            fingerprints_read: Cell::new(0),
        }
    }

    fn rows(&self) -> u64 {
        self.fingerprints.len() as u64
    }

    /// Inserts a key that is never given up. Returns whether there was a place.
    fn keep(&mut self, fingerprint: Fingerprint) -> bool {
        let place = find_new_row(self, fingerprint, |_| false, Some(|_| Claim::Pinned));
        if let NewRow::Unused(row) = place {
            insert(self, row, fingerprint);
        }
        place != NewRow::None { room_in: None }
    }

    fn forget_reads(&self) {
        self.tag_words_read.set(0);
        self.fingerprints_read.set(0);
    }
}

impl Table for PlainTable {
    fn buckets(&self) -> u64 {
        self.rows() / BUCKET_ROWS
    }

    fn tag_word(&self, bucket: u64, word: u64) -> u64 {
        assert!(word < BUCKET_TAG_WORDS);
        self.tag_words_read.set(self.tag_words_read.get() + 1);
        self.tags[(bucket * BUCKET_TAG_WORDS + word) as usize]
    }

    fn fingerprint(&self, row: u64) -> Fingerprint {
        self.fingerprints_read.set(self.fingerprints_read.get() + 1);
        self.fingerprints[row as usize]
    }
}

impl TableMut for PlainTable {
    fn store_tag_word(&mut self, bucket: u64, word: u64, value: u64) {
        assert!(word < BUCKET_TAG_WORDS);
        self.tags[(bucket * BUCKET_TAG_WORDS + word) as usize] = value;
    }

    fn store_fingerprint(&mut self, row: u64, fingerprint: Fingerprint) {
        self.fingerprints[row as usize] = fingerprint;
    }
}

/// For a table that evicts nothing.
const NO_CLAIM: Option<fn(u64) -> Claim> = None;

/// A row used at the instant of its number; how much of it was used does not matter.
fn oldest(row: u64) -> Claim {
    Claim::Used(Usage {
        share: 0,
        replenished_in: 0,
        used_at: row,
    })
}

fn numbered(number: u64) -> Fingerprint {
    Fingerprint::of(SEED, &number.to_le_bytes())
}

#[test]
fn a_key_is_known_by_the_published_siphash_128_of_its_bytes() {
    // Of the empty key under the seed 0, 0: the same on every machine and in every version.
    let expected = siphasher::sip128::SipHasher13::new_with_keys(0, 0).hash(b"");
    let fingerprint = Fingerprint::of([0, 0], b"");
    assert_eq!((fingerprint.low, fingerprint.high), (expected.h1, expected.h2));
    assert_ne!(Fingerprint::of([0, 0], b"a"), Fingerprint::of([0, 1], b"a"));
    assert_ne!(Fingerprint::of([0, 0], b"a"), Fingerprint::of([0, 0], b"a\0"));
}

proptest::proptest! {
    /// So all hosts name a key alike, and no two keys with different hashes are confused.
    #[test]
    fn a_fingerprint_that_hosts_share_contains_the_published_hash(seed: [u64; 2], key: Vec<u8>) {
        let hash = siphasher::sip128::SipHasher13::new().hash(&key);
        let mixer = Mixer::of(seed);
        let fingerprint = Fingerprint::of_shared(&mixer, &key);
        proptest::prop_assert_eq!(fingerprint.in_fleet(&mixer), u128::from(hash.h2) << 64 | u128::from(hash.h1));
        proptest::prop_assert_ne!(fingerprint, Fingerprint::of_shared(&Mixer::of([seed[0], !seed[1]]), &key));
    }
}

#[test]
fn shards_are_even_and_no_two_of_shard_bucket_and_tag_hang_together() {
    const KEYS: u64 = 64_000;
    let mut shards = [0_u64; 16];
    let mut buckets = [0_u64; 10];
    for fingerprint in (0..KEYS).map(numbered) {
        let shard = fingerprint.shard(16);
        shards[shard as usize] += 1;
        if shard == 3 && fingerprint.tag() % 2 == 1 {
            for bucket in fingerprint.buckets(10) {
                buckets[bucket as usize] += 1;
            }
        }
        assert_eq!(fingerprint.shard(1), 0);
    }
    // Ten standard deviations.
    assert!(
        shards.iter().all(|keys| keys.abs_diff(KEYS / 16) < 620),
        "{shards:?}"
    );
    assert!(
        buckets.iter().all(|keys| keys.abs_diff(KEYS / 160) < 200),
        "{buckets:?}"
    );
}

#[test]
fn the_two_buckets_differ_and_every_pair_occurs() {
    for buckets in 1..=9 {
        let mut pairs = std::collections::BTreeSet::new();
        for fingerprint in (0..4000).map(numbered) {
            let [first, second] = fingerprint.buckets(buckets);
            assert!(first < buckets && second < buckets);
            assert!(first != second || buckets == 1);
            pairs.insert((first, second));
        }
        assert_eq!(pairs.len() as u64, buckets * (buckets - 1).max(1));
    }
}
