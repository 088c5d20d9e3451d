//! Capacities that requests name for their keys.

use std::thread;

use super::*;
use crate::scene::ALGORITHMS;

/// The rows of the smallest table.
const ROWS: usize = 32;

fn with_overrides(max_keys: u64) -> SetDeclaration {
    SetDeclaration::new("api").keyed(Keyed::new(max_keys).overrides(true))
}

fn one_limit() -> SetDeclaration {
    with_overrides(100).add_limit(Limit::calls("requests", 2, MINUTE).algorithm(Algorithm::SlidingWindow))
}

fn naming(set: &LimitSet, capacity: impl Into<Option<u64>>) -> shmlimit::Request<'_> {
    let request = set.request();
    request.with_override("requests", capacity).expect("a capacity")
}

fn own(set: &LimitSet, key: &str) -> Vec<u64> {
    let own = set.key(key).expect("keyed").overrides().expect("no error");
    own.into_iter().map(|(_, capacity)| capacity).collect()
}

#[test]
fn a_request_gives_its_key_the_capacity_that_it_names_before_it_is_decided() {
    let scene = Scene::new(one_limit());
    let set = scene.set();
    assert_eq!(admitted_of("a", &naming(&set, 5)), 5);
    assert_eq!(own(&set, "a"), [5]);
    assert_eq!(admitted_of("a", &set.request()), 0, "and it keeps it");
    assert_eq!(admitted_of("a", &naming(&set, 6)), 1);
    let verdicts = naming(&set, 100)
        .for_key("a")
        .expect("keyed")
        .peek()
        .expect("no error");
    assert_eq!(verdicts[0].burst, 6, "which only looks");
    assert_eq!(admitted_of("a", &naming(&set, None)), 0);
    assert_eq!(own(&set, "a"), [] as [u64; 0]);
    assert_eq!(admitted_of("other", &set.request()), 2);
}

type Take<'a> = &'a dyn Fn(&str) -> bool;

#[test]
fn every_way_to_take_gives_the_key_the_capacity() {
    let scene = Scene::new(one_limit());
    let set = scene.set();
    let five = naming(&set, 5);
    let tries: [(&str, Take<'_>); 5] = [
        ("check", &|key| is_admitted(&five, key)),
        ("try", &|key| {
            five.for_key(key)
                .expect("keyed")
                .try_acquire()
                .expect("no error")
                .is_admitted()
        }),
        ("acquire", &|key| {
            let outcome = five.for_key(key).expect("keyed").acquire(Duration::ZERO);
            outcome.expect("no error").is_admitted()
        }),
        ("reserve", &|key| {
            let outcome = five
                .for_key(key)
                .expect("keyed")
                .reserve(Duration::ZERO)
                .expect("no error");
            matches!(outcome, shmlimit::ReserveOutcome::Reserved(_))
        }),
        ("async", &|key| {
            let outcome = smol::block_on(five.for_key(key).expect("keyed").acquire_async(Duration::ZERO));
            outcome.expect("no error").is_admitted()
        }),
    ];
    for (key, take) in tries {
        let count = std::iter::repeat_with(|| take(key))
            .take_while(|is_admitted| *is_admitted)
            .count();
        assert_eq!((count, own(&set, key)), (5, vec![5]), "{key}");
    }
    let many = five.check_many(&["m", "m", "m", "n"]).expect("no error");
    assert!(many.iter().all(|checked| checked.is_admitted()));
    assert_eq!(own(&set, "n"), [5]);
}

#[test]
fn a_new_key_is_decided_by_the_capacity_that_its_first_request_names() {
    let scene = Scene::new(one_limit());
    let set = scene.set();
    let three = set.request().with("requests", 3).expect("declared");
    let naming = |capacity: u64| {
        three
            .clone()
            .with_override("requests", capacity)
            .expect("a capacity")
    };
    let peeked = naming(4).for_key("a").expect("keyed").peek().expect("no error");
    assert_eq!((peeked[0].remaining, peeked[0].burst), (4, 4));
    match naming(2).for_key("a").expect("keyed").check() {
        Err(Error::Request(RequestError::NeverAdmissible { cost: 3, max: 2, .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(set.table_usage().expect("keyed").used, 0);
    assert_eq!(own(&set, "a"), [] as [u64; 0], "which takes no row");
    assert!(is_admitted(&naming(4), "a"));
    let refused = naming(4).for_key("a").expect("keyed").check().expect("no error");
    assert_eq!(refused.verdicts().next().expect("one limit").burst, 4);
}

#[test]
fn a_request_that_names_what_its_key_has_changes_nothing() {
    let limit = |name: &str| Limit::rate(name, 10, MINUTE).algorithm(Algorithm::TokenBucket);
    let scene = Scene::new(
        with_overrides(10)
            .add_limit(limit("units"))
            .add_limit(limit("others")),
    );
    let set = scene.set();
    let five = set.request().with("units", 5).expect("declared");
    let naming = |units: u64, others: u64| {
        let request = set.request().with("units", 0).expect("declared");
        let request = request.with_override("units", units).expect("a capacity");
        request.with_override("others", others).expect("a capacity")
    };
    let refunded = |changes: &[(u64, u64)]| {
        assert!(is_admitted(&naming(20, 20), "a"));
        let mut permit = expect_permit(five.for_key("a").expect("keyed").try_acquire());
        for (units, others) in changes {
            let request = naming(*units, *others);
            assert!(is_admitted(&request, "a"));
        }
        let settled = permit.settle([("units", 0)]).expect("not settled yet");
        set.key("a").expect("keyed").reset().run().expect("no error");
        settled.refunded("units")
    };
    assert_eq!(refunded(&[(20, 20), (20, 20), (20, 20)]), 5);
    // What was reserved before a change of its key is not refunded.
    assert_eq!(refunded(&[(20, 20), (20, 100)]), 0);
}

#[test]
fn requests_that_disagree_are_each_decided_by_their_own_and_the_last_stays() {
    let scene = Scene::new(
        with_overrides(10)
            .add_limit(Limit::concurrency("in_flight", 1))
            .holds(64),
    );
    let set = scene.set();
    let rounds = 400;
    // The number of holds lies between the two capacities, so each request is always decided by its own.
    let held: Vec<_> = {
        let four = set.request().with_override("in_flight", 4).expect("a capacity");
        (0..4)
            .map(|_| expect_permit(four.for_key("a").expect("keyed").try_acquire()))
            .collect()
    };
    thread::scope(|scope| {
        for (capacity, is_admitted) in [(3, false), (8, true)] {
            let other = scene.other();
            scope.spawn(move || {
                let set = other.set("api").expect("declared");
                let request = set
                    .request()
                    .with_override("in_flight", capacity)
                    .expect("a capacity");
                for _ in 0..rounds {
                    let outcome = request.for_key("a").expect("keyed").try_acquire();
                    assert_eq!(
                        outcome.expect("no error").is_admitted(),
                        is_admitted,
                        "{capacity}"
                    );
                }
            });
        }
    });
    assert!(matches!(own(&set, "a")[..], [3 | 8]));
    drop(held);
}

#[test]
fn a_capacity_that_a_request_named_keeps_no_row() {
    let scene = Scene::new(with_overrides(1).add_limit(Limit::calls("requests", 2, MINUTE)));
    let set = scene.set();
    let five = naming(&set, 5);
    for key in 0..ROWS {
        let key = key.to_string();
        assert!(is_admitted(&five, key));
    }
    assert!(!is_admitted(&set.request(), "new"), "what they have used does");
    scene.pass(MINUTE);
    assert_eq!(admitted_of("new", &set.request()), 2, "not as the key before");
    assert_eq!(own(&set, "new"), [] as [u64; 0]);
}

/// Few requests and many others a minute.
fn requests_beside_others() -> Scene {
    Scene::new(
        with_overrides(1)
            .add_limit(Limit::calls("requests", 2, MINUTE))
            .add_limit(Limit::calls("others", 100, MINUTE)),
    )
}

#[test]
fn a_capacity_that_was_given_by_name_keeps_its_row_whatever_requests_name() {
    let scene = requests_beside_others();
    let set = scene.set();
    let five = naming(&set, 5);
    for number in 0..ROWS {
        let key = &number.to_string();
        if number % 2 == 0 {
            set.key(key)
                .expect("keyed")
                .override_capacity("requests", 4)
                .expect("a row");
        }
        assert!(is_admitted(&five, key));
        if number % 2 == 1 {
            // The capacity that the key has already, given by name from now on.
            set.key(key)
                .expect("keyed")
                .override_capacity("requests", 5)
                .expect("a row");
        }
    }
    scene.pass(MINUTE);
    assert!(!is_admitted(&five, "new"));
    assert!(is_admitted(&naming(&set, None), "7"));
    scene.pass(MINUTE);
    assert!(is_admitted(&five, "new"));
}

#[test]
fn to_clear_one_capacity_keeps_no_row_for_another_that_a_request_named() {
    let scene = requests_beside_others();
    let set = scene.set();
    let five = naming(&set, 5);
    for number in 0..ROWS {
        let key = &number.to_string();
        assert!(is_admitted(&five, key));
        set.key(key)
            .expect("keyed")
            .clear_override("others")
            .expect("none is there");
    }
    scene.pass(MINUTE);
    assert!(is_admitted(&five, "new"));
}

/// What a row says under one capacity would mean something else under another.
#[test]
fn a_row_says_nothing_of_its_former_key_to_one_with_another_capacity() {
    for algorithm in ALGORITHMS {
        for (before, after) in [(7, None), (7, Some(11)), (700, Some(3))] {
            let limit = Limit::calls("requests", 2, MINUTE).algorithm(algorithm);
            let scene = Scene::new(with_overrides(1).add_limit(limit));
            let set = scene.set();
            for key in 0..ROWS {
                let key = key.to_string();
                assert!(is_admitted(&naming(&set, before), key));
            }
            scene.pass(MINUTE * 3);
            let request = naming(&set, after);
            let max = after.unwrap_or(2);
            assert_eq!(
                admitted_of("new", &request),
                max,
                "{algorithm:?} {before} {after:?}"
            );
        }
    }
}

#[test]
fn a_capacity_that_its_key_cannot_have_changes_nothing() {
    let scene = Scene::new(
        with_overrides(1)
            .add_limit(Limit::calls("requests", 2, MINUTE))
            .add_limit(Limit::concurrency("in_flight", 2))
            .add_limit(Limit::calls("unlimited", "unlimited", MINUTE))
            .holds(8),
    );
    let set = scene.set();
    let refused = |error: Result<(), Error>| match error {
        Err(Error::Change(ChangeError::CannotOverride { limit, reason, .. })) => (limit, reason),
        other => panic!("{other:?}"),
    };
    for capacity in [0, u64::MAX] {
        refused(set.request().set_override("requests", capacity));
    }
    assert!(matches!(
        set.request().set_override("typo", 5),
        Err(Error::Request(RequestError::UnknownLimit { .. }))
    ));
    for (limit, capacity, says) in [
        ("in_flight", 1000, "holds are too few"),
        ("unlimited", 5, "it is unlimited"),
    ] {
        // The request also names a capacity that the key can have.
        let request = set.request().with_override("requests", 5).expect("a capacity");
        let request = request.with_override(limit, capacity).expect("a capacity");
        for is_known in [false, true] {
            let asked = request.for_key("a").expect("keyed").try_acquire().map(drop);
            let (named, reason) = refused(asked);
            assert!(named == limit && reason.contains(says), "{named}: {reason}");
            assert_eq!(own(&set, "a"), [] as [u64; 0]);
            if is_known {
                continue;
            }
            assert_eq!(set.table_usage().expect("keyed").used, 0, "no row");
            let request = set.request().with("in_flight", 0).expect("declared");
            assert!(is_admitted(&request, "a"));
        }
        scene.pass(MINUTE * 2);
    }
}

#[test]
fn sets_without_overrides_have_none_by_request_either() {
    let limit = || Limit::calls("requests", 2, MINUTE);
    let without = Scene::new(keyed(10).add_limit(limit())).set();
    assert!(matches!(
        without.request().set_override("requests", 5),
        Err(Error::Change(ChangeError::CannotOverride { .. }))
    ));
    let nothing = without.request().with_override("requests", None).expect("none");
    assert_eq!(admitted_of("a", &nothing), 2);
    let plain = Scene::new(SetDeclaration::new("api").add_limit(limit())).set();
    for capacity in [None, Some(5)] {
        let named = plain.request().with_override("requests", capacity);
        assert!(matches!(
            named,
            Err(Error::Request(RequestError::NotKeyed { .. }))
        ));
    }
}

/// Another definition may be unable to use a capacity that a key was given under the previous one.
#[test]
fn a_capacity_that_the_definition_of_now_cannot_count_with_is_refused_whichever_key_has_it() {
    const PLENTY: u64 = u64::MAX - 1;
    let tokens = |window| {
        let limit = Limit::rate("tokens", 10, window).algorithm(Algorithm::TokenBucket);
        with_overrides(10)
            .add_limit(limit)
            .add_limit(Limit::calls("requests", 9, MINUTE))
    };
    let scene = Scene::new(tokens(MINUTE));
    let set = scene.set();
    let named = |capacity| {
        let request = set.request().with("tokens", 0).expect("declared");
        request.with_override("tokens", capacity).expect("a capacity")
    };
    let refused = |request: &shmlimit::Request| {
        ["known", "new"].map(|key| match request.for_key(key).expect("keyed").check() {
            Ok(_) => false,
            Err(Error::Change(ChangeError::CannotOverride { capacity, .. })) => {
                assert_eq!(capacity, PLENTY);
                true
            }
            other => panic!("{other:?}"),
        })
    };
    assert!(named(PLENTY).for_key("known").expect("keyed").check().is_ok());
    let longest = crate::scene::declaration().add_set(tokens(Duration::from_nanos(u64::MAX - 2)));
    scene.segment.apply(&longest).expect("applicable");
    assert_eq!(refused(&named(PLENTY)), [true; 2]);
    let others = named(PLENTY).with_override("requests", 8).expect("a capacity");
    assert_eq!(refused(&others), [true; 2]);
    assert_eq!(refused(&named(20)), [false; 2]);
}
