//! Random sequences against a map.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request for a key, which takes a row if it has none.
    Use {
        key: u64,
        evicts: bool,
        share: u64,
        replenished_in: u64,
    },
    /// The key's limits are full again, and nothing of it is held.
    Replenish { key: u64 },
    /// Something of the key is held.
    Hold { key: u64 },
    /// The key would be refused one more unit.
    Limit { key: u64, ends_in: Option<u64> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0_u64..160;
    // So few distinct shares that several are often the least.
    let usage = (any::<bool>(), 0_u64..3, 0_u64..3);
    let step = prop_oneof![
        6 => (key(), usage).prop_map(|(key, (evicts, share, replenished_in))| {
            Step::Use { key, evicts, share, replenished_in }
        }),
        1 => key().prop_map(|key| Step::Replenish { key }),
        1 => key().prop_map(|key| Step::Hold { key }),
        2 => (key(), prop::option::of(1_u64..9)).prop_map(|(key, ends_in)| Step::Limit { key, ends_in }),
    ];
    prop::collection::vec(step, 0..600)
}

/// What a row's limits would say.
#[derive(Clone, Copy, Debug)]
struct RowState {
    key: u64,
    carries_nothing: bool,
    claim: Claim,
}

impl RowState {
    fn usage(&self) -> Option<(u64, u64, u64)> {
        match self.claim {
            Claim::Used(usage) => Some((usage.share, usage.replenished_in, usage.used_at)),
            _ => None,
        }
    }

    fn ends_in(&self) -> Option<u64> {
        match self.claim {
            Claim::Limited { ends_in } => ends_in,
            _ => None,
        }
    }
}

/// The rows of a key's buckets, and what they hold.
fn neighbours(
    rows: &HashMap<u64, RowState>,
    buckets: [u64; 2],
) -> impl Iterator<Item = (u64, Option<&RowState>)> {
    let all = buckets.map(|bucket| bucket * BUCKET_ROWS..(bucket + 1) * BUCKET_ROWS);
    all.into_iter().flatten().map(|row| (row, rows.get(&row)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn a_key_has_one_row_and_loses_it_to_reuse_or_eviction_only(buckets in 1_u64..=4, steps in steps()) {
        let mut table = PlainTable::new(buckets);
        let mut rows: HashMap<u64, RowState> = HashMap::new();
        let row_of = |rows: &HashMap<u64, RowState>, key| {
            rows.iter().find(|(_, state)| state.key == key).map(|(row, _)| *row)
        };
        for (now, step) in steps.into_iter().enumerate() {
            match step {
                Step::Use { key, evicts, share, replenished_in } => {
                    let fingerprint = numbered(key);
                    let usage = Usage { share, replenished_in, used_at: now as u64 };
                    let used = RowState { key, carries_nothing: false, claim: Claim::Used(usage) };
                    if let Some(row) = find(&table, fingerprint) {
                        prop_assert_eq!(row_of(&rows, key), Some(row));
                        rows.insert(row, used);
                        continue;
                    }
                    prop_assert_eq!(row_of(&rows, key), None);
                    let place = find_new_row(
                        &table,
                        fingerprint,
                        |row| rows[&row].carries_nothing,
                        evicts.then_some(|row| rows[&row].claim),
                    );
                    let around: Vec<_> = neighbours(&rows, fingerprint.buckets(buckets)).collect();
                    let has_unused = around.iter().any(|(_, state)| state.is_none());
                    let mut occupied = around.iter().filter_map(|(row, state)| Some((row, (*state)?)));
                    let has_reusable = occupied.clone().any(|(_, state)| state.carries_nothing);
                    match place {
                        NewRow::Unused(row) => prop_assert!(around.iter().any(|(at, state)| *at == row && state.is_none())),
                        NewRow::Reused(row) => {
                            prop_assert!(!has_unused);
                            prop_assert!(occupied.any(|(at, state)| *at == row && state.carries_nothing));
                        }
                        NewRow::Evicted(row) => {
                            prop_assert!(!has_unused && !has_reusable && evicts);
                            let min = occupied.clone().filter_map(|(_, state)| state.usage()).min();
                            prop_assert!(min.is_some() && rows[&row].usage() == min);
                            prop_assert!(occupied.any(|(at, _)| *at == row));
                        }
                        NewRow::None { room_in } => {
                            prop_assert!(!has_unused && !has_reusable);
                            prop_assert!(!evicts || occupied.clone().all(|(_, state)| state.usage().is_none()));
                            let earliest = occupied.filter_map(|(_, state)| state.ends_in()).min();
                            prop_assert_eq!(room_in, earliest.filter(|_| evicts));
                        }
                    }
                    if let NewRow::Unused(row) | NewRow::Reused(row) | NewRow::Evicted(row) = place {
                        insert(&mut table, row, fingerprint);
                        rows.insert(row, used);
                    }
                }
                Step::Replenish { key } => {
                    if let Some(row) = row_of(&rows, key) {
                        rows.insert(row, RowState { key, carries_nothing: true, claim: oldest(now as u64) });
                    }
                }
                Step::Hold { key } => {
                    if let Some(row) = row_of(&rows, key) {
                        rows.insert(row, RowState { key, carries_nothing: false, claim: Claim::Pinned });
                    }
                }
                Step::Limit { key, ends_in } => {
                    if let Some(row) = row_of(&rows, key) {
                        rows.insert(row, RowState { key, carries_nothing: false, claim: Claim::Limited { ends_in } });
                    }
                }
            }
        }
        prop_assert!(is_consistent(&table, 0..table.rows()));
        for key in 0..160 {
            prop_assert_eq!(find(&table, numbered(key)), row_of(&rows, key));
        }
    }

    #[test]
    fn a_tag_is_found_where_it_is_and_nowhere_else(
        tags in prop::collection::vec(prop::sample::select(vec![0, 1, 2, 0x100, 0x7fff, 0x8000, 0x8001, 0xffff_u16]), 64),
        sought in prop::sample::select(vec![0, 1, 0x7fff, 0x8000, 0xffff_u16]),
    ) {
        let mut table = PlainTable::new(2);
        for (row, tag) in tags.iter().enumerate() {
            store_tag(&mut table, row as u64, *tag);
        }
        for (row, tag) in tags.iter().enumerate() {
            prop_assert_eq!(super::tag(&table, row as u64), *tag);
        }
        let mut found: Vec<u64> = [0, 1].into_iter().flat_map(|bucket| Matches::of(&table, bucket, sought)).collect();
        found.sort_unstable();
        let expected: Vec<u64> = (0..64).filter(|row| tags[*row as usize] == sought).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn the_emptier_bucket_is_filled_first() {
    let mut table = PlainTable::new(2);
    for number in 0..64 {
        assert!(table.keep(numbered(number)), "two buckets are one for every key");
        let used = |bucket: u64| {
            let rows = bucket * BUCKET_ROWS..(bucket + 1) * BUCKET_ROWS;
            rows.filter(|row| super::tag(&table, *row) != 0).count()
        };
        assert!(used(0).abs_diff(used(1)) <= 1);
    }
    assert!(!table.keep(numbered(64)));
}

#[test]
fn not_always_the_same_row_is_asked_first() {
    let mut table = PlainTable::new(2);
    for number in 0..64 {
        table.keep(numbered(number));
    }
    let first_asked = |number| {
        let mut first = None;
        let ask = |row| *first.get_or_insert(row) == u64::MAX;
        assert_eq!(
            find_new_row(&table, numbered(number), ask, NO_CLAIM),
            NewRow::None { room_in: None }
        );
        first
    };
    let asked: std::collections::BTreeSet<_> = (1000..2000).map(first_asked).collect();
    assert_eq!(asked.len(), 64);
}
