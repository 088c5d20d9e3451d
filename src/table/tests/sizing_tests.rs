//! Tables sized for a declaration hold what it declares.

use super::*;

fn all_find_a_place(max_keys: u64, seed: [u64; 2]) {
    let shards = shards_for(max_keys);
    let buckets = buckets_for(max_keys, shards);
    let mut tables = vec![PlainTable::new(buckets); shards as usize];
    for key in 0..max_keys {
        let fingerprint = Fingerprint::of(seed, format!("client-{key}").as_bytes());
        let table = &mut tables[fingerprint.shard(shards) as usize];
        assert!(table.keep(fingerprint), "key {key} of {max_keys} is refused");
    }
}

#[test]
fn as_many_keys_as_were_declared_all_find_a_place() {
    // Under Miri, ten thousand keys take minutes.
    let largest = if cfg!(miri) { 1000 } else { 1_000_000 };
    let smaller = (0..)
        .map(|digits| 10_u64.pow(digits))
        .take_while(|keys| *keys < largest);
    for max_keys in smaller {
        for seed in 0..4 {
            all_find_a_place(max_keys, [seed, 99]);
        }
    }
    all_find_a_place(largest, SEED);
}

#[test]
fn every_small_declaration_is_held_whole() {
    for max_keys in (1..200).step_by(if cfg!(miri) { 40 } else { 1 }) {
        for seed in 0..3 {
            all_find_a_place(max_keys, [seed, max_keys]);
        }
    }
}

#[test]
fn a_table_has_the_documented_size() {
    let sizes = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000].map(|max_keys| {
        let shards = shards_for(max_keys);
        (shards, buckets_for(max_keys, shards))
    });
    let expected = [
        (1, 1),
        (1, 1),
        (1, 4),
        (16, 4),
        (16, 27),
        (32, 116),
        (256, 144),
        (256, 1389),
    ];
    assert_eq!(sizes, expected);
}

#[test]
fn no_declaration_however_large_overflows() {
    for max_keys in [0, 1, u64::from(u32::MAX), u64::MAX] {
        assert!(buckets_for(max_keys, shards_for(max_keys)) >= 1);
        assert!(buckets_for(max_keys, 1) >= max_keys / BUCKET_ROWS);
    }
    let shards: Vec<u64> = (0..2_000_000).step_by(97).map(shards_for).collect();
    assert!(
        shards.is_sorted()
            && shards
                .iter()
                .all(|shards| shards.is_power_of_two() && *shards <= 256)
    );
}
