//! Attackers who choose their keys.

use super::*;

const OTHER_SEED: [u64; 2] = [1, 2];

/// How many of `keys` one shard can hold if none is ever evicted.
fn kept(seed: [u64; 2], keys: impl Iterator<Item = u64>, buckets: u64) -> usize {
    let mut table = PlainTable::new(buckets);
    keys.filter(|key| table.keep(Fingerprint::of(seed, &key.to_le_bytes())))
        .count()
}

#[test]
fn keys_that_collide_under_another_seed_fill_a_shard_as_well_as_any() {
    const KEYS: usize = 500;
    let buckets = buckets_for(KEYS as u64, 1);
    let colliding: Vec<u64> = (0..)
        .filter(|key: &u64| {
            Fingerprint::of(OTHER_SEED, &key.to_le_bytes())
                .buckets(buckets)
                .contains(&0)
        })
        .take(KEYS)
        .collect();
    assert_eq!(kept(SEED, colliding.iter().copied(), buckets), KEYS);
    assert_eq!(kept(SEED, 0..KEYS as u64, buckets), KEYS);
    // Under the seed they were chosen for, they find no more room than two buckets have.
    let in_one_pair: Vec<u64> = (0..)
        .filter(|key: &u64| Fingerprint::of(OTHER_SEED, &key.to_le_bytes()).buckets(buckets) == [0, 1])
        .take(KEYS)
        .collect();
    assert_eq!(kept(OTHER_SEED, in_one_pair.iter().copied(), buckets), 64);
    assert_eq!(kept(SEED, in_one_pair.into_iter(), buckets), KEYS);
}

/// The fingerprints of keys that hosts share are [mixed](Mixer) from hashes known to whoever chooses the keys, who can make
/// them as similar as they like.
#[test]
fn hashes_that_are_alike_fill_a_shard_as_well_as_any() {
    const KEYS: u64 = 500;
    let buckets = buckets_for(KEYS, 1);
    let alike: [fn(u64) -> [u64; 2]; 8] = [
        |number| [number, 0],
        |number| [0, number],
        |number| [number, number],
        |number| [number, !number],
        |number| [7, number << 52],
        |number| [number << 52, 7],
        |number| [number << 32, number << 20],
        |number| [number.wrapping_mul(0x0101_0101_0101_0101), 1 << 63],
    ];
    for seed in 0..if cfg!(miri) { 1 } else { 50 } {
        let mixer = Mixer::of([seed, !seed]);
        for (index, hash) in alike.iter().enumerate() {
            let mut table = PlainTable::new(buckets);
            let fingerprints = (0..KEYS).map(|number| Fingerprint::mixed(&mixer, hash(number)));
            let kept = fingerprints
                .filter(|fingerprint| table.keep(*fingerprint))
                .count();
            assert_eq!(kept as u64, KEYS, "hashes {index}, seed {seed}");
        }
    }
}

#[test]
fn seeing_refusals_does_not_help_to_lengthen_searches_or_grow_the_table() {
    let mut table = PlainTable::new(buckets_for(100, 1));
    let rows = table.rows();
    let mut refused: Vec<Vec<u8>> = Vec::new();
    let mut fresh = 0_u64;
    // Under Miri each turn takes milliseconds.
    let turns: u64 = if cfg!(miri) { 1_000 } else { 20_000 };
    for turn in 0..turns {
        // Of every three keys, one was refused already and one is such a key with another byte appended.
        let key = match (turn % 3, refused.get(turn as usize % refused.len().max(1))) {
            (1, Some(key)) => key.clone(),
            (2, Some(key)) => [key.as_slice(), &turn.to_le_bytes()[..1]].concat(),
            _ => {
                fresh += 1;
                fresh.to_le_bytes().to_vec()
            }
        };
        let fingerprint = Fingerprint::of(SEED, &key);
        table.forget_reads();
        let found = find(&table, fingerprint);
        assert!(table.tag_words_read.get() <= 2 * BUCKET_TAG_WORDS);
        assert!(table.fingerprints_read.get() <= MAX_ASKED);
        if found.is_some() {
            continue;
        }
        table.forget_reads();
        let asked = Cell::new(0);
        let ask = || asked.set(asked.get() + 1);
        let can_reuse = |_| {
            ask();
            false
        };
        let claim = |_| {
            ask();
            Claim::Pinned
        };
        let place = find_new_row(&table, fingerprint, can_reuse, Some(claim));
        assert_eq!(
            (table.tag_words_read.get(), table.fingerprints_read.get()),
            (2 * BUCKET_TAG_WORDS, 0)
        );
        assert!(asked.get() <= 2 * MAX_ASKED);
        match place {
            NewRow::Unused(row) => insert(&mut table, row, fingerprint),
            _ => refused.push(key),
        }
    }
    assert!(refused.len() as u64 > turns / 2);
    assert_eq!(table.rows(), rows);
    assert!(is_consistent(&table, 0..table.rows()));
}

#[test]
fn rows_that_all_have_the_key_s_tag_are_each_examined_once() {
    let mut table = PlainTable::new(5);
    let fingerprint = numbered(7);
    for row in 0..table.rows() {
        store_tag(&mut table, row, fingerprint.tag());
    }
    table.forget_reads();
    assert_eq!(find(&table, fingerprint), None);
    assert_eq!(table.fingerprints_read.get(), MAX_ASKED);
}
