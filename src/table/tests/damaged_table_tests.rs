//! Words that no process wrote.

use proptest::prelude::*;

use super::*;

/// Limits the number of stores, as a death does.
struct Dying<'a> {
    table: &'a mut PlainTable,
    stores_left: u64,
}

impl Dying<'_> {
    fn lives(&mut self) -> bool {
        let lives = self.stores_left > 0;
        self.stores_left = self.stores_left.saturating_sub(1);
        lives
    }
}

impl Table for Dying<'_> {
    fn buckets(&self) -> u64 {
        self.table.buckets()
    }

    fn tag_word(&self, bucket: u64, word: u64) -> u64 {
        self.table.tag_word(bucket, word)
    }

    fn fingerprint(&self, row: u64) -> Fingerprint {
        self.table.fingerprint(row)
    }
}

impl TableMut for Dying<'_> {
    fn store_tag_word(&mut self, bucket: u64, word: u64, value: u64) {
        if self.lives() {
            self.table.store_tag_word(bucket, word, value);
        }
    }

    fn store_fingerprint(&mut self, row: u64, fingerprint: Fingerprint) {
        if self.lives() {
            self.table.store_fingerprint(row, fingerprint);
        }
    }
}

/// Random words, many of them repeated, and many from sound keys.
fn damaged() -> impl Strategy<Value = PlainTable> {
    (1_u64..=3).prop_flat_map(|buckets| {
        let word = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
        let key = prop_oneof![
            Just(Fingerprint::NONE),
            (any::<u64>(), any::<u64>()).prop_map(|(low, high)| Fingerprint { low, high }),
            (0_u64..40).prop_map(numbered),
        ];
        let tags = prop::collection::vec(word, (buckets * BUCKET_TAG_WORDS) as usize);
        let fingerprints = prop::collection::vec(key, (buckets * BUCKET_ROWS) as usize);
        (tags, fingerprints).prop_map(move |(tags, fingerprints)| PlainTable {
            tags,
            fingerprints,
            ..PlainTable::new(buckets)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn whatever_the_words_hold_only_a_row_of_the_key_s_own_buckets_is_answered(table in damaged()) {
        for fingerprint in (0..40).map(numbered).chain([Fingerprint::NONE]) {
            let buckets = fingerprint.buckets(table.buckets());
            if let Some(row) = find(&table, fingerprint) {
                prop_assert_eq!(table.fingerprints[row as usize], fingerprint);
                prop_assert!(buckets.contains(&(row / BUCKET_ROWS)));
            }
            let place = find_new_row(&table, fingerprint, |row| row % 7 == 0, Some(oldest));
            if let NewRow::Unused(row) | NewRow::Reused(row) | NewRow::Evicted(row) = place {
                prop_assert!(buckets.contains(&(row / BUCKET_ROWS)));
            }
        }
    }

    #[test]
    fn a_rebuild_makes_it_sound_keeps_every_key_in_its_place_and_changes_nothing_the_second_time(table in damaged()) {
        let mut rebuilt = table.clone();
        rebuild(&mut rebuilt);
        prop_assert!(is_consistent(&rebuilt, 0..rebuilt.rows()));
        for (row, fingerprint) in table.fingerprints.iter().enumerate() {
            let is_in_place = fingerprint.buckets(table.buckets()).contains(&(row as u64 / BUCKET_ROWS));
            if *fingerprint != Fingerprint::NONE && is_in_place {
                let found = find(&rebuilt, *fingerprint);
                prop_assert!(found.is_some_and(|row| table.fingerprints[row as usize] == *fingerprint));
            }
        }
        let once = rebuilt.clone();
        rebuild(&mut rebuilt);
        prop_assert_eq!(&once.tags, &rebuilt.tags);
        prop_assert_eq!(once.fingerprints, rebuilt.fingerprints);
    }

    #[test]
    fn a_rebuild_that_is_cut_short_and_repeated_comes_to_the_same_end(table in damaged(), stores in 0_u64..400) {
        let mut at_once = table.clone();
        rebuild(&mut at_once);
        let mut twice = table;
        rebuild(&mut Dying { table: &mut twice, stores_left: stores });
        rebuild(&mut twice);
        prop_assert_eq!(&at_once.tags, &twice.tags);
        prop_assert_eq!(at_once.fingerprints, twice.fingerprints);
    }
}

#[test]
fn a_wrong_tag_a_wrong_bucket_a_double_and_a_key_without_tag_are_each_noticed() {
    let mut sound = PlainTable::new(8);
    for number in 0..100 {
        assert!(sound.keep(numbered(number)));
    }
    assert!(is_consistent(&sound, 0..sound.rows()));
    let row = find(&sound, numbered(0)).expect("kept");
    let other = find(&sound, numbered(1)).expect("kept");
    let elsewhere = (0..sound.rows())
        .find(|row| super::tag(&sound, *row) == 0 && !numbered(0).buckets(8).contains(&(row / BUCKET_ROWS)))
        .expect("an unused row of another bucket");
    let damage: [&dyn Fn(&mut PlainTable); 6] = [
        &|table| store_tag(table, row, 0),
        &|table| store_tag(table, row, numbered(0).tag() ^ 2),
        &|table| table.store_fingerprint(row, Fingerprint::NONE),
        &|table| table.store_fingerprint(elsewhere, numbered(0)),
        &|table| insert(table, elsewhere, numbered(0)),
        &|table| {
            let twin = match find_new_row(table, numbered(0), |_| false, NO_CLAIM) {
                NewRow::Unused(row) => row,
                _ => other,
            };
            insert(table, twin, numbered(0));
        },
    ];
    for (which, damage) in damage.into_iter().enumerate() {
        let mut table = sound.clone();
        damage(&mut table);
        assert!(!is_consistent(&table, 0..table.rows()), "damage {which}");
        rebuild(&mut table);
        assert!(is_consistent(&table, 0..table.rows()), "damage {which}");
    }
}
