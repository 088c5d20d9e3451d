//! Declarations of sets whose keys may have capacities of their own.

use super::overrides::with_overrides;
use super::*;

#[test]
fn a_declaration_says_whether_keys_have_capacities_of_their_own_for_good() {
    let limit = || Limit::calls("requests", 10, MINUTE);
    let with = Scene::new(with_overrides(10).add_limit(limit()));
    let without = Scene::new(keyed(10).add_limit(limit()));
    for (scene, asked) in [
        (&with, keyed(10).add_limit(limit())),
        (&without, with_overrides(10).add_limit(limit())),
    ] {
        let declaration = crate::scene::declaration().add_set(asked);
        let differences = expect_differences(scene.segment.apply(&declaration));
        assert!(differences.contains("overrides"), "{differences}");
    }
    let toml = r#"
        [[set]]
        name = "api"
        keyed = { max_keys = 10, overrides = true }
          [[set.limit]]
          name = "requests"
          kind = "calls"
          capacity = 10
          window = "1m"
    "#;
    let read = Declaration::from_toml(toml).expect("valid");
    let declared = crate::scene::declaration().add_set(with_overrides(10).add_limit(limit()));
    assert_eq!(read.differences(&declared), []);
    let not = crate::scene::declaration().add_set(keyed(10).add_limit(limit()));
    let explicitly = SetDeclaration::new("api").keyed(Keyed::new(10).overrides(false));
    let explicitly = crate::scene::declaration().add_set(explicitly.add_limit(limit()));
    assert_eq!(explicitly.differences(&not), []);
}

#[test]
fn what_no_key_can_have_of_its_own_is_not_declared() {
    let invalid = |set: SetDeclaration| {
        let invalid = crate::scene::declaration().add_set(set).validate();
        invalid.expect_err("invalid").to_string()
    };
    let networks = with_overrides(10).add_limit(Limit::calls("requests", 1, MINUTE).prefix(24, 64));
    assert!(invalid(networks).contains("networks have no capacities of their own"));
    let credit = with_overrides(10)
        .add_limit(Limit::calls("requests", 100, MINUTE).credit(shmlimit::declare::Credit::batch(10)));
    assert!(invalid(credit).contains("drawn in advance"));
    let unlimited = with_overrides(10).add_limit(Limit::calls("requests", "unlimited", MINUTE));
    assert!(invalid(unlimited).contains("unlimited, adaptive or shared"));
}

/// How many bytes the file has, and how many rows the table.
fn size(set: SetDeclaration) -> (u64, u64) {
    let scene = Scene::new(set);
    let path = scene.path();
    let file = std::fs::metadata(path).expect("a segment").len();
    (file, scene.set().table_usage().expect("keyed").rows)
}

#[test]
fn a_row_has_a_word_more_for_each_limit_only_where_keys_have_capacities_of_their_own() {
    let size_of = |overrides: Option<bool>, limits: &[Limit]| {
        let keyed = overrides.into_iter().fold(Keyed::new(10_000), Keyed::overrides);
        let set = SetDeclaration::new("api").keyed(keyed);
        size(limits.iter().cloned().fold(set, SetDeclaration::add_limit))
    };
    let requests = |name: &str| Limit::calls(name, 10, MINUTE);
    let in_flight = || Limit::concurrency("in_flight", 10);
    // A row is 48 bytes and 8 for each word, in lines of 64; a limit of calls has two words, and one of concurrency one.
    for (limits, more) in [
        (vec![requests("a")], 64),
        (vec![in_flight()], 0),
        // 72 and 16 bytes more.
        (vec![requests("a"), in_flight()], 0),
        (vec![requests("a"), requests("b"), requests("c")], 0),
        // 112 and 32.
        (
            vec![requests("a"), requests("b"), requests("c"), requests("d")],
            64,
        ),
    ] {
        let (without, rows) = size_of(None, &limits);
        assert_eq!(size_of(Some(false), &limits), (without, rows), "{limits:?}");
        let (with, _) = size_of(Some(true), &limits);
        // The stored declaration says that keys have them, which may take one more cache line.
        assert_eq!((with - without) / rows, more, "{limits:?}");
    }
}
