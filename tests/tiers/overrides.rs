//! Capacities that single keys have of their own.

use shmlimit::declare::WhenFull;

use super::*;

/// The rows of the smallest table.
const ROWS: usize = 32;

pub(super) fn with_overrides(max_keys: u64) -> SetDeclaration {
    SetDeclaration::new("api").keyed(Keyed::new(max_keys).overrides(true))
}

fn two_limits() -> SetDeclaration {
    with_overrides(100)
        .add_limit(
            Limit::calls("requests", 10, MINUTE)
                .algorithm(Algorithm::SlidingWindow)
                .entries(64),
        )
        .add_limit(Limit::concurrency("in_flight", 1))
}

/// Gives a key twice the requests that others have.
fn give_twenty(set: &LimitSet, key: &str) {
    let key = set.key(key).expect("keyed");
    key.override_capacity("requests", 20).expect("a row");
}

#[test]
fn a_key_is_limited_by_the_capacity_of_its_own_and_others_are_not() {
    let scene = Scene::new(two_limits());
    let set = scene.set();
    let key = set.key("large").expect("keyed");
    key.override_capacity("requests", 25).expect("a capacity");
    assert_eq!(admitted(&set, "large"), 25);
    assert_eq!(admitted(&set, "other"), 10);
    key.override_capacity("in_flight", 3).expect("a capacity");
    let none = set.request().with("requests", 0).expect("declared");
    let large = none.for_key("large").expect("keyed");
    let hold_all = || {
        let admitted = || large.try_acquire().expect("no error").into_result().ok();
        std::iter::from_fn(admitted).collect::<Vec<_>>()
    };
    let held = hold_all();
    assert_eq!(held.len(), 3);
    assert_eq!(
        key.overrides().expect("no error"),
        [("requests".to_owned(), 25), ("in_flight".to_owned(), 3)]
    );
    drop(held);
    key.clear_override("in_flight").expect("no error");
    assert_eq!(hold_all().len(), 1);
}

#[test]
fn what_was_used_stays_used_when_a_capacity_comes_and_goes() {
    let scene = Scene::new(two_limits());
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    assert_eq!(admitted(&set, "a"), 10);
    key.override_capacity("requests", 12).expect("a capacity");
    assert_eq!(admitted(&set, "a"), 2);
    key.clear_override("requests").expect("no error");
    assert_eq!(admitted(&set, "a"), 0);
    scene.pass(MINUTE);
    assert_eq!(admitted(&set, "a"), 10);
}

#[test]
fn verdicts_refusals_and_errors_say_the_capacity_that_was_decided_by() {
    let scene = Scene::new(two_limits());
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    key.override_capacity("requests", 20).expect("a capacity");
    let request = set.request().with("requests", 15).expect("declared");
    let permit = expect_permit(request.for_key("a").expect("keyed").try_acquire());
    // The answer is about the decision, whatever has changed since.
    key.override_capacity("requests", 40).expect("a capacity");
    let said = |verdict: &shmlimit::Verdict<'_>| (verdict.remaining, verdict.burst);
    assert_eq!(
        permit
            .verdicts()
            .map(|verdict| said(&verdict))
            .collect::<Vec<_>>(),
        [(5, 20), (0, 1)]
    );
    let peeked = request.for_key("a").expect("keyed").peek().expect("no error");
    assert_eq!(peeked.iter().map(said).collect::<Vec<_>>(), [(25, 40), (0, 1)]);
    drop(permit);
    key.override_capacity("requests", 16).expect("a capacity");
    let refusal = expect_refusal(request.for_key("a").expect("keyed").try_acquire());
    let refused: Vec<_> = refusal.verdicts().map(|verdict| said(&verdict)).collect();
    assert_eq!(refused, [(1, 16), (1, 1)]);
    key.override_capacity("requests", 14).expect("a capacity");
    match request.for_key("a").expect("keyed").try_acquire() {
        Err(Error::Request(RequestError::NeverAdmissible { cost, max, .. })) => {
            assert_eq!((cost, max), (15, 14))
        }
        other => panic!("{other:?}"),
    }
    let forecast = key.forecast().expect("no error");
    assert_eq!(forecast[0].spendable, 0);
}

#[test]
fn many_limits_with_capacities_of_their_own_are_told_apart() {
    let names: Vec<String> = (0..16).map(|number| format!("limit {number}")).collect();
    let declared = names.iter().fold(with_overrides(10), |set, name| {
        set.add_limit(Limit::calls(name, 100, MINUTE))
    });
    let scene = Scene::new(declared);
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    for (name, own) in names.iter().zip(1000..).step_by(3) {
        key.override_capacity(name, own).expect("a capacity");
    }
    for asked in [0..16, 3..7, 9..10, 14..16] {
        let mut request = set.request();
        for name in &names {
            request = request.with(name, 0).expect("declared");
        }
        for name in &names[asked] {
            request = request.with(name, 1).expect("declared");
        }
        let expected = (0..16).map(|number| if number % 3 == 0 { 1000 + number } else { 100 });
        let permit = expect_permit(request.for_key("a").expect("keyed").try_acquire());
        let max: Vec<u64> = permit.verdicts().map(|verdict| verdict.burst).collect();
        assert_eq!(max, expected.collect::<Vec<u64>>());
    }
    key.throttle(MINUTE).expect("no error");
    let request = names.iter().fold(set.request(), |request, name| {
        request.with(name, 1).expect("declared")
    });
    let peeked = request.for_key("a").expect("keyed").peek().expect("no error");
    let max: Vec<u64> = peeked.iter().map(|verdict| verdict.burst).collect();
    let expected = (0..16).map(|number| if number % 3 == 0 { 1000 + number } else { 100 });
    assert_eq!(max, expected.collect::<Vec<u64>>(), "also while it is throttled");
}

#[test]
fn a_capacity_that_no_key_can_have_is_an_error_that_says_why() {
    let scene = Scene::new(
        with_overrides(10)
            .add_limit(Limit::calls("requests", 10, MINUTE))
            .add_limit(Limit::calls("free", "unlimited", MINUTE)),
    );
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let why = |limit: &str, capacity| match key.override_capacity(limit, capacity) {
        Err(Error::Change(ChangeError::CannotOverride { reason, .. })) => reason,
        other => panic!("{other:?}"),
    };
    assert!(why("requests", 0).contains("at least 1"));
    assert!(why("free", 5).contains("unlimited"));
    assert!(matches!(
        key.override_capacity("typo", 5),
        Err(Error::Request(RequestError::UnknownLimit { .. }))
    ));
    assert_eq!(set.table_usage().expect("keyed").used, 0, "and changes nothing");
    let without = Scene::new(keyed(10).add_limit(Limit::calls("requests", 10, MINUTE)));
    let set = without.set();
    match set.key("a").expect("keyed").override_capacity("requests", 5) {
        Err(Error::Change(ChangeError::CannotOverride { reason, .. })) => {
            assert!(reason.contains("overrides = true"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn unlimited_is_no_capacity_of_its_own() {
    let scene = Scene::new(two_limits().holds(64));
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    for limit in ["requests", "in_flight"] {
        match key.override_capacity(limit, u64::MAX) {
            Err(Error::Change(ChangeError::CannotOverride { reason, .. })) => {
                assert!(reason.contains("unlimited"), "{reason}")
            }
            other => panic!("{limit}: {other:?}"),
        }
    }
    assert_eq!(key.overrides().expect("no error"), []);
}

#[test]
fn the_concurrency_of_one_key_is_never_raised_beyond_the_holds_of_its_shard() {
    let scene = Scene::new(
        with_overrides(100)
            .holds(64)
            .add_limit(Limit::concurrency("in_flight", 4))
            .add_limit(Limit::concurrency("exports", 14))
            .add_limit(Limit::calls("requests", 10, MINUTE)),
    );
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let refused = |limit: &str, capacity| match key.override_capacity(limit, capacity) {
        Err(Error::Change(ChangeError::CannotOverride { reason, .. })) => reason,
        other => panic!("{other:?}"),
    };
    let reason = refused("in_flight", 5_000);
    assert!(
        reason.contains("64") && reason.contains("as many `holds`"),
        "{reason}"
    );
    // The holds have to be enough for the other limit, too.
    refused("in_flight", 51);
    assert_eq!(set.table_usage().expect("keyed").used, 0, "and changes nothing");
    key.override_capacity("in_flight", 50).expect("50 + 14");
    key.override_capacity("requests", 5_000)
        .expect("nothing of it is held");
    // What counts of the other limit is the key's own capacity.
    refused("exports", 15);
    key.override_capacity("exports", 14).expect("50 + 14");
    assert_eq!(key.overrides().expect("no error").len(), 3);
    // Less is possible, even nothing at all.
    key.override_capacity("in_flight", 49).expect("less");
    key.clear_override("in_flight").expect("no error");
    key.override_capacity("exports", 60).expect("4 + 60");
}

#[test]
fn a_key_may_have_as_much_as_was_declared_for_fewer_holds() {
    let scene = Scene::new(
        with_overrides(100)
            .holds(8)
            .add_limit(Limit::concurrency("in_flight", 20)),
    );
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    key.override_capacity("in_flight", 20).expect("as declared");
    assert!(matches!(
        key.override_capacity("in_flight", 21),
        Err(Error::Change(ChangeError::CannotOverride { .. }))
    ));
}

#[test]
fn a_check_of_many_keys_refuses_those_that_never_admit_the_cost_and_answers_the_others() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowCounter,
    ] {
        let scene = Scene::new(
            with_overrides(100)
                .add_limit(Limit::calls("other", 1_000, MINUTE))
                .add_limit(Limit::calls("requests", 10, MINUTE).algorithm(algorithm)),
        );
        let set = scene.set();
        for (key, own) in [("own", 4), ("small", 3)] {
            set.key(key)
                .expect("keyed")
                .override_capacity("requests", own)
                .expect("a capacity");
        }
        let request = set.request().with("requests", 5).expect("declared");
        let answers = request
            .check_many(&["a", "own", "b", "small", "a", "a"])
            .expect("no error");
        let admitted: Vec<bool> = answers.iter().map(|answer| answer.is_admitted()).collect();
        assert_eq!(admitted, [true, false, true, false, true, false], "{algorithm:?}");
        for (position, max) in [(1, 4), (3, 3)] {
            let answer = &answers[position];
            assert_eq!((answer.binding(), answer.retry_after()), (Some("requests"), None));
            assert_eq!(answer.reason(), Some(shmlimit::RefusalReason::Rate));
            let refusal = answer.refusal().expect("refused");
            let said: Vec<_> = refusal
                .verdicts()
                .map(|verdict| (verdict.admitted, verdict.remaining, verdict.burst))
                .collect();
            assert_eq!(said, [(true, 1_000, 1_000), (false, max, max)], "it took nothing");
        }
        assert!(
            answers[5].retry_after().is_some(),
            "as any other that was refused"
        );
        let counts = scene.segment.snapshot().expect("no error").sets[0].limits[1].counts;
        assert_eq!((counts.admitted, counts.refused), (3, 3));
    }
}

#[test]
fn what_no_key_admits_by_the_definition_is_an_error_before_any_is_charged() {
    let limited = |set: SetDeclaration| set.add_limit(Limit::calls("requests", 10, MINUTE));
    let tiered = limited(keyed(100)).add_tier(Tier::new("large").capacity("requests", 20));
    let scene = Scene::new(tiered);
    let set = scene.set();
    let cost = |units| set.request().with("requests", units).expect("declared");
    assert!(matches!(
        cost(21).check_many(&["a", "b"]),
        Err(Error::Request(RequestError::NeverAdmissible { cost: 21, .. }))
    ));
    set.key("b").expect("keyed").assign("large").expect("a tier");
    let answers = cost(11).check_many(&["a", "b"]).expect("another tier admits it");
    assert_eq!(
        [false, true],
        [answers[0].is_admitted(), answers[1].is_admitted()]
    );
    // The definition does not know what single keys may have of their own.
    let scene = Scene::new(limited(with_overrides(100)));
    let set = scene.set();
    set.key("b")
        .expect("keyed")
        .override_capacity("requests", 30)
        .expect("a capacity");
    let cost = set.request().with("requests", 30).expect("declared");
    let answers = cost.check_many(&["a", "b"]).expect("one of them admits it");
    assert_eq!(
        [false, true],
        [answers[0].is_admitted(), answers[1].is_admitted()]
    );
}

#[test]
fn a_set_has_tiers_or_overrides_and_never_both() {
    let limited = |set: SetDeclaration| set.add_limit(Limit::calls("requests", 10, MINUTE));
    let gold = || Tier::new("gold").capacity("requests", 100);
    let both = crate::scene::declaration().add_set(limited(with_overrides(100)).add_tier(gold()));
    match both.validate() {
        Err(DeclarationError::Misplaced { place, advice, .. }) => {
            assert_eq!(place, "set \"api\" / tier");
            assert!(
                advice.contains("not both") && advice.contains("overrides"),
                "{advice}"
            );
        }
        other => panic!("{other:?}"),
    }
    let overridden = Scene::new(limited(with_overrides(100))).set();
    let key = overridden.key("a").expect("keyed");
    for refused in [
        key.assign("gold").expect_err("no tier"),
        overridden.request().set_tier("gold").expect_err("no tier"),
    ] {
        let says = refused.to_string();
        assert!(
            matches!(
                refused,
                Error::Request(RequestError::UnknownTier {
                    has_overrides: true,
                    ..
                })
            ),
            "{refused:?}"
        );
        assert!(says.contains("in place of tiers"), "{says}");
    }
    key.assign("default").expect("the one that it is in");
    let tiered = Scene::new(limited(keyed(100)).add_tier(gold())).set();
    for refused in [
        tiered
            .key("a")
            .expect("keyed")
            .override_capacity("requests", 5)
            .expect_err("no overrides"),
        tiered
            .request()
            .set_override("requests", 5)
            .expect_err("no overrides"),
    ] {
        match refused {
            Error::Change(ChangeError::CannotOverride { reason, .. }) => {
                assert!(reason.contains("in place of tiers"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_capacity_of_its_own_survives_another_declaration() {
    let of = |capacity, seconds| {
        let window = Duration::from_secs(seconds);
        with_overrides(100).add_limit(Limit::calls("requests", capacity, window).algorithm(Algorithm::Gcra))
    };
    let scene = Scene::new(of(10, 60));
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    key.override_capacity("requests", 30).expect("a capacity");
    key.reset().run().expect("no error");
    assert_eq!(admitted_of("a", &set.request()), 30);
    let other = scene.other();
    other
        .apply(&crate::scene::declaration().add_set(of(500, 30)))
        .expect("applicable");
    // The window is that of the declaration: 30 in 30 seconds.
    scene.pass(Duration::from_secs(10));
    assert_eq!(admitted_of("a", &set.request()), 10);
    assert_eq!(admitted_of("b", &set.request()), 500);
}

#[test]
fn a_leaky_bucket_by_rate_gets_another_bucket_and_drains_as_before() {
    let limit = Limit::leaky_bucket("requests", 4, 2, Duration::from_secs(1));
    let scene = Scene::new(with_overrides(100).add_limit(limit));
    let set = scene.set();
    set.key("a")
        .expect("keyed")
        .override_capacity("requests", 10)
        .expect("a capacity");
    assert_eq!(admitted_of("a", &set.request()), 10);
    scene.pass(Duration::from_secs(1));
    assert_eq!(admitted_of("a", &set.request()), 2);
}

#[test]
fn a_key_keeps_its_row_until_its_last_capacity_is_taken_away() {
    let set = with_overrides(1)
        .add_limit(Limit::calls("requests", 10, MINUTE))
        .add_limit(Limit::calls("others", 10, MINUTE));
    let scene = Scene::new(set);
    let set = scene.set();
    (0..ROWS).for_each(|key| give_twenty(&set, &key.to_string()));
    let seventh = set.key("7").expect("keyed");
    seventh.override_capacity("others", 20).expect("a row");
    scene.pass(MINUTE);
    assert!(!is_admitted(&set.request(), "new"));
    let new = set.key("new").expect("keyed");
    assert!(matches!(
        new.override_capacity("requests", 20),
        Err(Error::Change(ChangeError::TableFull { .. }))
    ));
    new.clear_override("requests").expect("which it does not have");
    seventh.clear_override("requests").expect("no error");
    scene.pass(MINUTE);
    assert!(!is_admitted(&set.request(), "new"));
    seventh.clear_override("others").expect("no error");
    scene.pass(MINUTE);
    assert!(is_admitted(&set.request(), "new"));
    assert_eq!(admitted_of("new", &set.request()), 9, "as declared");
}

#[test]
fn a_key_that_is_evicted_begins_again_as_declared() {
    for when_full in [WhenFull::EvictOldest, WhenFull::EvictLeastUsed] {
        let keyed = Keyed::new(1).overrides(true).when_full(when_full);
        let set = SetDeclaration::new("api").keyed(keyed);
        let scene = Scene::new(set.add_limit(Limit::calls("requests", 10, MINUTE)));
        let set = scene.set();
        for key in 0..ROWS {
            give_twenty(&set, &key.to_string());
            scene.pass(Duration::from_nanos(1));
        }
        scene.pass(MINUTE);
        assert_eq!(admitted_of("new", &set.request()), 10, "{when_full:?}");
        let evicted = set.table_usage().expect("keyed").evicted_in_use;
        assert_eq!(evicted, 1, "not silently");
        let own = |key: &str| set.key(key).expect("keyed").overrides().expect("no error").len();
        assert_eq!((own("0"), own("1"), own("new")), (0, 1, 0));
    }
}

#[test]
fn keys_that_were_given_something_of_their_own_are_the_last_to_be_evicted_by_usage() {
    let declared = |overrides| {
        let keyed = Keyed::new(1)
            .overrides(overrides)
            .when_full(WhenFull::EvictLeastUsed);
        let set = SetDeclaration::new("api").keyed(keyed);
        set.add_limit(Limit::calls("requests", 10, MINUTE))
    };
    let tiered = declared(false).add_tier(Tier::new("gold").capacity("requests", 100));
    for (declared, is_tiered) in [(declared(true), false), (tiered, true)] {
        let scene = Scene::new(declared);
        let set = scene.set();
        for number in 0..ROWS {
            let name = number.to_string();
            let key = &name;
            match (number, is_tiered) {
                (3, true) => set.key(key).expect("keyed").assign("gold").expect("a row"),
                (3, false) => give_twenty(&set, key),
                _ => {
                    assert!(is_admitted(&set.request(), &name));
                    assert!(is_admitted(&set.request(), &name));
                }
            }
            scene.pass(Duration::from_nanos(1));
        }
        for new in 0..ROWS {
            assert!(is_admitted(&set.request(), format!("new {new}")));
            scene.pass(Duration::from_nanos(1));
        }
        let usage = set.table_usage().expect("keyed");
        assert_eq!(usage.evicted_in_use, ROWS as u64);
        let third = set.key("3").expect("keyed");
        if is_tiered {
            assert_eq!(third.tier().expect("no error"), "gold");
        } else {
            assert_eq!(
                third.overrides().expect("no error"),
                [("requests".to_owned(), 20)]
            );
        }
    }
}

#[test]
fn a_reset_replenishes_a_key_and_leaves_it_its_capacity() {
    let scene = Scene::new(two_limits());
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    key.override_capacity("requests", 20).expect("a capacity");
    for reset in [0, 1] {
        assert_eq!(admitted(&set, "a"), 20);
        if reset == 0 {
            assert!(key.reset().run().expect("no error"));
        } else {
            set.reset().run().expect("no error");
        }
    }
    assert_eq!(admitted(&set, "a"), 20);
}

#[test]
fn what_was_reserved_before_a_change_of_capacity_is_not_refunded() {
    let limit = Limit::rate("units", 10, MINUTE).algorithm(Algorithm::TokenBucket);
    let scene = Scene::new(with_overrides(10).add_limit(limit));
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let five = set.request().with("units", 5).expect("declared");
    let refunded = |changes: &[u64]| {
        let mut permit = expect_permit(five.for_key("a").expect("keyed").try_acquire());
        for own in changes {
            key.override_capacity("units", *own).expect("a capacity");
        }
        let settled = permit.settle([("units", 0)]).expect("not settled yet");
        key.clear_override("units").expect("no error");
        key.reset().run().expect("no error");
        settled.refunded("units")
    };
    assert_eq!(refunded(&[]), 5);
    assert_eq!(refunded(&[100]), 0);
    assert_eq!(refunded(&[100, 99]), 0);
}

#[test]
fn keys_are_shown_with_the_capacities_of_their_own() {
    let scene = Scene::new(two_limits());
    let set = scene.set();
    give_twenty(&set, "a");
    let reader = SegmentReader::open(scene.path()).expect("a segment");
    let shown = reader.key_snapshot("api", "a").expect("no error").expect("a row");
    let limits: Vec<_> = shown
        .limits
        .iter()
        .map(|limit| (limit.override_capacity, limit.capacity))
        .collect();
    assert_eq!(limits, [(Some(20), Some(20)), (None, Some(1))]);
}
