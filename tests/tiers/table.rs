//! What a tier means for the rows of the table.

use shmlimit::declare::WhenFull;

use super::*;

/// The rows of the smallest table.
const ROWS: usize = 32;

fn small(when_full: WhenFull) -> SetDeclaration {
    SetDeclaration::new("api")
        .keyed(Keyed::new(1).when_full(when_full))
        .add_limit(Limit::calls("requests", 10, MINUTE))
        .add_tier(Tier::new("gold").capacity("requests", 100))
}

#[test]
fn an_assigned_key_keeps_its_row_until_it_is_assigned_to_the_default() {
    let scene = Scene::new(small(WhenFull::Refuse));
    let set = scene.set();
    for key in 0..ROWS {
        set.key(key.to_string())
            .expect("keyed")
            .assign("gold")
            .expect("a row");
    }
    scene.pass(MINUTE);
    assert!(!is_admitted(&set.request(), "new"));
    assert!(matches!(
        set.key("new").expect("keyed").assign("gold"),
        Err(Error::Change(ChangeError::TableFull { .. }))
    ));
    set.key("new")
        .expect("keyed")
        .assign("default")
        .expect("which it is in without a row");
    assert_eq!(set.table_usage().expect("keyed").used, ROWS as u64);
    set.key("7").expect("keyed").assign("default").expect("a row");
    assert!(is_admitted(&set.request(), "new"));
    assert_eq!(set.key("8").expect("keyed").tier().expect("no error"), "gold");
}

#[test]
fn a_tier_that_a_request_named_keeps_no_row() {
    let scene = Scene::new(small(WhenFull::Refuse));
    let set = scene.set();
    let gold = set.request().with_tier("gold").expect("a tier");
    for key in 0..ROWS {
        let key = &key.to_string();
        assert!(is_admitted(&gold, key));
    }
    assert!(!is_admitted(&set.request(), "new"), "what they have used does");
    scene.pass(MINUTE);
    assert!(is_admitted(&set.request(), "new"));
    assert_eq!(
        set.key("new").expect("keyed").tier().expect("no error"),
        "default",
        "not that of the key before"
    );
}

#[test]
fn a_row_says_nothing_of_its_former_key_to_one_of_another_tier() {
    let hour = Duration::from_secs(3600);
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
    ] {
        let of = |tiers: [(u64, Duration); 2]| {
            let [(capacity, window), (gold, of_gold)] = tiers;
            SetDeclaration::new("api")
                .keyed(Keyed::new(1))
                .add_limit(Limit::calls("requests", capacity, window).algorithm(algorithm))
                .add_tier(
                    Tier::new("gold")
                        .capacity("requests", gold)
                        .window("requests", of_gold),
                )
        };
        for (tiers, before, after) in [
            ([(7, MINUTE), (100, hour)], "gold", "default"),
            ([(100, hour), (7, MINUTE)], "gold", "default"),
            ([(7, MINUTE), (100, hour)], "default", "gold"),
            ([(100, hour), (7, MINUTE)], "default", "gold"),
        ] {
            let scene = Scene::new(of(tiers));
            let set = scene.set();
            let request = |tier: &str| set.request().with_tier(tier).expect("a tier");
            for key in 0..ROWS {
                let key = &key.to_string();
                for _ in 0..7 {
                    assert!(is_admitted(&request(before), key));
                }
            }
            scene.pass(2 * hour);
            let max = if after == "gold" { tiers[1].0 } else { tiers[0].0 };
            for _ in 0..max {
                assert!(is_admitted(&request(after), "new"), "{algorithm:?} {tiers:?}");
            }
            assert!(!is_admitted(&request(after), "new"));
        }
    }
}

#[test]
fn a_key_that_is_evicted_begins_again_in_the_default() {
    for when_full in [WhenFull::EvictOldest, WhenFull::EvictLeastUsed] {
        let scene = Scene::new(small(when_full));
        let set = scene.set();
        for key in 0..ROWS {
            set.key(key.to_string())
                .expect("keyed")
                .assign("gold")
                .expect("a row");
            scene.pass(Duration::from_nanos(1));
        }
        scene.pass(MINUTE);
        assert!(is_admitted(&set.request(), "new"), "{when_full:?}");
        assert_eq!(
            set.table_usage().expect("keyed").evicted_in_use,
            1,
            "not silently"
        );
        let tier = |key: &str| set.key(key).expect("keyed").tier().expect("no error");
        assert_eq!(tier("0"), "default", "the one that was used the longest ago");
        assert_eq!(tier("1"), "gold");
        assert_eq!(tier("new"), "default");
    }
}

#[test]
fn tiers_take_no_memory_in_the_rows_of_keys() {
    let bytes = |set: SetDeclaration| {
        let scene = Scene::new(set);
        let path = scene.path();
        let file = std::fs::metadata(path).expect("a segment").len();
        let rows = scene.set().table_usage().expect("keyed").rows;
        (file, rows)
    };
    // These have two words of state: the row of a key is one cache line to its last byte.
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let limit = || Limit::calls("requests", 10, MINUTE).algorithm(algorithm);
        let (without, rows) = bytes(keyed(10_000).add_limit(limit()));
        let (with, _) = bytes(
            keyed(10_000)
                .add_limit(limit())
                .add_tier(Tier::new("gold").capacity("requests", 20)),
        );
        // The stored declaration says so, which may take one more cache line.
        assert_eq!((with - without) / rows, 0, "{algorithm:?}");
    }
}
