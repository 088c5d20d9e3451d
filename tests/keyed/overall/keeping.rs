//! What stays with a segment: live changes, repairs after deaths, what dead processes hold.

use super::{MINUTE, keyed, overall, overall_places, own};
use crate::limits::{take, try_take};
use crate::scene::clock::Scene;
use crate::scene::process::{Child, TIMEOUT, die, eventually, in_own_process};
use crate::scene::{create, create_in, declaration, expect_differences, first_set, is_admitted};
use shmlimit::declare::{FleetLease, Scope};
use shmlimit::{Algorithm, DeclarationError, Keyed, Limit, Segment, SetDeclaration, Tier, Window};

#[test]
fn a_live_change_carries_over_once_what_all_keys_have_used() {
    let window = |limit: Limit| limit.algorithm(Algorithm::FixedWindow);
    let set = |of_key, of_all| {
        let set = keyed().add_limit(window(own(of_key)));
        set.add_limit(window(overall(of_all)))
    };
    let scene = Scene::new(set(10, 20));
    let (segment, api) = (&scene.segment, scene.set());
    let request = api.request();
    for key in ["a", "b", "c"] {
        for _ in 0..4 {
            assert!(is_admitted(&request, key));
        }
    }
    segment.apply(&declaration().add_set(set(6, 15))).expect("works");
    let left = |key: &str| {
        let verdicts = request.for_key(key).expect("a key").peek().expect("works");
        verdicts.iter().map(|it| it.remaining).collect::<Vec<_>>()
    };
    assert_eq!(left("d"), [6, 3], "12 of 15 are used");
    assert_eq!(left("a"), [2, 3]);
    segment.apply(&declaration().add_set(set(6, 100))).expect("works");
    assert_eq!(left("d"), [6, 88]);
}

#[test]
fn the_scope_of_a_limit_does_not_change_live() {
    let set = |limit: Limit| keyed().add_limit(own(10)).add_limit(limit);
    let (_directory, segment, _api) = create(set(overall(20)));
    let of_each = Limit::calls("overall", 20, MINUTE);
    let differences = expect_differences(segment.apply(&declaration().add_set(set(of_each.clone()))));
    assert!(differences.contains("scope"), "{differences}");
    let said = of_each.scope(Scope::Key);
    assert!(!expect_differences(segment.apply(&declaration().add_set(set(said)))).is_empty());
}

#[test]
fn what_has_no_meaning_beside_a_limit_of_all_keys_is_refused_with_advice() {
    let check = |set: SetDeclaration, field: &str, advice: &str| {
        let fleet = declaration().fleet_url("redis://127.0.0.1");
        let error = fleet.add_set(set).validate().expect_err("refused");
        let DeclarationError::Misplaced { place, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(place.ends_with(field), "{place}");
        assert!(error.to_string().contains(advice), "{error}");
    };
    let bare = SetDeclaration::new("api").add_limit(overall(1));
    check(bare, "limit \"overall\" / scope", "keyed = { max_keys");
    let networks = keyed().add_limit(own(1).prefix(24, 48)).add_limit(overall(1));
    check(networks, "scope", "networks");
    let drawn = keyed().add_limit(overall(100).credit(shmlimit::declare::Credit::batch(10)));
    check(drawn, "scope", "batches");
    let shared = keyed()
        .add_limit(own(1).fleet(FleetLease::new("key")))
        .add_limit(overall(1));
    check(shared, "scope", "hosts");
    let shared = keyed().add_limit(overall(1).fleet(FleetLease::new("key")));
    check(shared, "scope", "hosts");
    let tiered = keyed()
        .add_limit(own(1))
        .add_limit(overall(1))
        .add_tier(Tier::new("gold").capacity("overall", 10));
    check(tiered, "capacity", "all keys");
    let overridden = SetDeclaration::new("api")
        .keyed(Keyed::new(10).overrides(true))
        .add_limit(overall(1));
    check(overridden, "overrides", "all keys");
}

#[test]
fn a_scope_is_read_written_and_compared_as_it_is_meant() {
    let text = "[[set]]\nname = \"api\"\nkeyed = 100\n\n[[set.limit]]\nname = \"overall\"\nkind = \"calls\"\ncapacity = 5\n\
                window = \"60s\"\nscope = \"all_keys\"\n";
    let read: shmlimit::Declaration = text.parse().expect("a declaration");
    let built = shmlimit::Declaration::new().add_set(keyed().add_limit(overall(5)));
    assert!(read.differences(&built).is_empty());
    assert!(built.to_toml().expect("Unicode").contains("scope = \"all_keys\""));
    let each = |limit: Limit| shmlimit::Declaration::new().add_set(keyed().add_limit(limit));
    assert!(
        each(own(5))
            .differences(&each(own(5).scope(Scope::Key)))
            .is_empty()
    );
    assert_eq!(read.sets()[0].limits()[0].options().scope(), Scope::AllKeys);
}

#[test]
fn a_sliding_window_of_all_keys_keeps_as_long_a_log_as_one_without_keys() {
    let log = |scope| {
        let set = keyed().add_limit(own(1).algorithm(Algorithm::SlidingWindow).scope(scope));
        entries_of_log(&shmlimit::Declaration::new().add_set(set))
    };
    assert_eq!((log(Scope::Key), log(Scope::AllKeys)), (1, 1024));
}

/// How many entries the log of a segment's first limit has.
fn entries_of_log(declaration: &shmlimit::Declaration) -> u32 {
    let directory = tempfile::tempdir().expect("a directory");
    let segment = Segment::create(directory.path().join("limits"), declaration).expect("a segment");
    let text = segment.declaration().to_toml().expect("Unicode");
    let line = text.lines().find_map(|line| line.strip_prefix("entries = "));
    line.expect("entries are written").parse().expect("a number")
}

#[test]
fn a_rebuild_counts_again_what_all_keys_hold_and_keeps_what_they_have_used() {
    let set = keyed()
        .add_limit(Limit::concurrency("own", 5))
        .add_limit(overall_places(9))
        .add_limit(
            Limit::rate("tokens", 100, Window::Day)
                .algorithm(Algorithm::FixedWindow)
                .scope(Scope::AllKeys),
        );
    let (_directory, segment, api) = create(set);
    let request = api.request().with("tokens", 10).expect("declared");
    let held: Vec<_> = ["a", "a", "b", "c"].map(|key| take(key, &request)).into();
    let counted = || {
        let seen = first_set(&segment);
        (seen.active, seen.limits[1].remaining, seen.limits[2].remaining)
    };
    assert_eq!(counted(), (4, 5, 60));
    segment.rebuild().expect("works");
    assert_eq!(counted(), (4, 5, 60));
    drop(held);
    assert_eq!(counted(), (0, 9, 60));
}

#[test]
fn what_the_dead_hold_of_all_keys_is_left_out_of_looks_and_given_to_any_key_that_asks() {
    in_own_process(
        "overall::keeping::what_the_dead_hold_of_all_keys_is_left_out_of_looks_and_given_to_any_key_that_asks",
        TIMEOUT,
        |directory| {
            let set = keyed()
                .add_limit(Limit::concurrency("own", 5))
                .add_limit(overall_places(3));
            let (segment, api) = create_in(directory, set);
            let request = api.request();
            let live = take("b", &request);
            let mut child = Child::fork(|| {
                let _held = [take("a", &request), take("a", &request)];
                die();
            });
            child.wait();
            eventually("it is seen to be dead", || first_set(&segment).of_dead == 2);
            let seen = first_set(&segment);
            let of_all = &seen.limits[1];
            assert_eq!((seen.active, of_all.of_dead, of_all.remaining), (1, 2, 2));
            // A key that the dead process had nothing to do with sees it, too, and so does one without a row.
            for key in ["b", "c"] {
                let verdicts = request.for_key(key).expect("a key").peek().expect("works");
                assert_eq!((verdicts[1].remaining, verdicts[1].of_dead), (2, 2), "{key}");
            }
            let _taken = [take("c", &request), take("d", &request)];
            assert!(try_take("e", &request).is_none());
            assert_eq!(first_set(&segment).counts.reclaimed, 2);
            drop(live);
            assert!(try_take("e", &request).is_some());
        },
    );
}

#[test]
fn whoever_dies_leaves_either_both_limits_charged_or_neither() {
    in_own_process(
        "overall::keeping::whoever_dies_leaves_either_both_limits_charged_or_neither",
        TIMEOUT,
        |directory| {
            let day =
                |name: &str| Limit::calls(name, 1_000_000_000, Window::Day).algorithm(Algorithm::FixedWindow);
            let set = keyed()
                .add_limit(day("own"))
                .add_limit(day("all").scope(Scope::AllKeys))
                .add_limit(overall_places(4));
            let (segment, api) = create_in(directory, set);
            let request = api.request();
            for round in 0..30_u64 {
                let before = first_set(&segment).counts.admitted;
                let busy = Child::fork(|| {
                    loop {
                        drop(try_take(if round % 2 == 0 { "a" } else { "b" }, &request));
                    }
                });
                eventually("it is at it", || first_set(&segment).counts.admitted > before);
                busy.kill();
            }
            segment.recover().expect("works");
            assert!(try_take("c", &request).is_some());
            let used_of = |key: &str, limit: usize| {
                let verdicts = request.for_key(key).expect("a key").peek().expect("works");
                1_000_000_000 - verdicts[limit].remaining
            };
            let of_keys: u64 = ["a", "b", "c"].iter().map(|key| used_of(key, 0)).sum();
            assert_eq!(of_keys, used_of("new", 1));
            let seen = first_set(&segment);
            assert_eq!((seen.active, seen.limits[2].remaining), (0, 4));
        },
    );
}
