//! What is admitted, refused, given back, looked at and reset.

use std::time::Duration;

use super::{MINUTE, keyed, overall, overall_places, own};
use crate::limits::{ask, take, try_take};
use crate::scene::clock::Scene;
use crate::scene::{ALGORITHMS, create, first_set, is_admitted};
use shmlimit::declare::{Adaptive, Align, Scope};
use shmlimit::{
    Algorithm, ChangeError, Error, Keyed, Limit, RefusalReason, RequestError, ReserveOutcome, Tier, Verdict,
};

#[test]
fn a_key_is_charged_nothing_that_the_limit_of_all_keys_refuses_and_the_other_way_round() {
    let (_directory, _segment, set) = create(keyed().add_limit(own(2)).add_limit(overall(3)));
    let request = set.request();
    assert!(is_admitted(&request, "a") && is_admitted(&request, "a"));
    let refused = ask("a", &request).expect_err("a has none left");
    assert_eq!(refused.binding(), Some("own"));
    assert!(
        is_admitted(&request, "b"),
        "nothing of what all share was taken by the refusal"
    );
    for _ in 0..3 {
        let refused = ask("b", &request).expect_err("all of them have none left");
        assert_eq!(
            (refused.binding(), refused.reason()),
            (Some("overall"), RefusalReason::Rate)
        );
    }
    let verdicts = request.for_key("b").expect("a key").peek().expect("works");
    let seen = |verdict: &Verdict<'_>| (verdict.limit.to_owned(), verdict.scope, verdict.remaining);
    let said: Vec<_> = verdicts.iter().map(seen).collect();
    let expected = [("own", Scope::Key, 1), ("overall", Scope::AllKeys, 0)];
    assert_eq!(
        said,
        expected.map(|(limit, scope, left)| (limit.to_owned(), scope, left))
    );
    // A key without a row sees the same.
    let verdicts = request.for_key("new").expect("a key").peek().expect("works");
    assert_eq!(verdicts.iter().map(|it| it.remaining).collect::<Vec<_>>(), [2, 0]);
}

#[test]
fn under_every_algorithm_all_keys_together_take_the_capacity_and_no_more() {
    for algorithm in ALGORITHMS {
        let shared = overall(10).algorithm(algorithm);
        let scene = Scene::new(keyed().add_limit(own(4)).add_limit(shared));
        let set = scene.set();
        let request = set.request();
        let admitted = |round: u64| {
            (0..100_u64)
                .filter(|key| is_admitted(&request, format!("{round}-{}", key % 25)))
                .count()
        };
        assert_eq!(admitted(0), 10, "{algorithm}");
        // If a refusal says when a request will be admitted, it charges nothing, and the request is admitted then.
        let refused = ask("later", &request).expect_err("none left");
        scene.pass(refused.retry_after().expect("by time"));
        assert!(is_admitted(&request, "later"), "{algorithm}");
    }
}

#[test]
fn what_a_permit_did_not_use_comes_back_to_all_keys_even_if_its_key_has_lost_its_row() {
    let tokens = Limit::rate("tokens", 1_000, MINUTE).scope(Scope::AllKeys);
    let own_tokens = Limit::rate("own", 800, MINUTE);
    let scene = Scene::new(keyed().add_limit(own_tokens).add_limit(tokens));
    let set = scene.set();
    let left = |key: &str| {
        let request = set
            .request()
            .with("own", 0)
            .and_then(|it| it.with("tokens", 0))
            .expect("declared");
        let verdicts = request.for_key(key).expect("a key").peek().expect("works");
        (verdicts[0].remaining, verdicts[1].remaining)
    };
    let request = set
        .request()
        .with("own", 500)
        .and_then(|it| it.with("tokens", 500))
        .expect("declared");
    let mut permit = take("a", &request);
    assert_eq!((left("a"), left("b")), ((300, 500), (800, 500)));
    let settled = permit.settle([("own", 100), ("tokens", 100)]).expect("works");
    assert_eq!((settled.refunded("own"), settled.refunded("tokens")), (400, 400));
    assert_eq!(left("a"), (700, 900));

    let mut permit = take("a", &request);
    set.key("a").expect("a key").reset().run().expect("works");
    assert_eq!(
        left("a"),
        (800, 400),
        "a reset of a key gives it nothing of what all share"
    );
    let settled = permit.settle([("own", 0), ("tokens", 0)]).expect("works");
    assert_eq!((settled.refunded("own"), settled.refunded("tokens")), (0, 500));
    assert_eq!(left("a"), (800, 900));

    let mut permit = take("a", &request);
    set.reset().run().expect("works");
    assert_eq!(left("a"), (800, 1_000));
    permit.settle([("own", 0), ("tokens", 300)]).expect("works");
    assert_eq!(
        left("a"),
        (800, 1_000),
        "what was reserved before a reset is not refunded after it"
    );

    let mut permit = take("a", &request);
    permit.settle([("own", 600), ("tokens", 700)]).expect("works");
    assert_eq!(left("a"), (200, 300), "used above what was reserved");
}

#[test]
fn what_is_held_of_all_keys_is_given_back_by_whoever_held_it() {
    let places = Limit::concurrency("own places", 2);
    let set = keyed().add_limit(places).add_limit(overall_places(3));
    let (_directory, segment, set) = create(set);
    let request = set.request();
    let (a, also_a, b) = (take("a", &request), take("a", &request), take("b", &request));
    let binding = |key: &str| {
        ask(key, &request)
            .expect_err("none left")
            .binding()
            .map(str::to_owned)
    };
    assert_eq!(binding("c").as_deref(), Some("places"));
    assert!(binding("a").is_some());
    drop(a);
    let c = take("c", &request);
    assert_eq!(binding("a").as_deref(), Some("places"));
    let seen = first_set(&segment);
    assert_eq!(
        (seen.active, seen.limits[1].remaining, seen.limits[1].scope),
        (3, 0, Scope::AllKeys)
    );
    assert_eq!(
        (seen.limits[0].remaining, seen.limits[0].scope),
        (2, Scope::Key),
        "of an unused key"
    );
    assert_eq!(seen.limits[1].counts.high_water, 3);
    for permit in [also_a, b, c] {
        drop(permit);
    }
    assert_eq!(first_set(&segment).limits[1].remaining, 3);
}

#[test]
fn budgets_adaptive_capacities_and_shadow_are_of_all_keys_too() {
    let dollars = Limit::budget("dollars", 100, MINUTE)
        .align(Align::FirstUse)
        .scope(Scope::AllKeys);
    let (_directory, _segment, set) = create(keyed().add_limit(own(100)).add_limit(dollars));
    let request = set.request();
    let mut permit = take("a", &request);
    permit.settle([("dollars", 130)]).expect("works");
    assert_eq!(
        ask("b", &request).expect_err("spent").reason(),
        RefusalReason::Budget
    );

    let places = Limit::concurrency("places", 4)
        .adaptive(Adaptive::Aimd)
        .ceiling(100)
        .scope(Scope::AllKeys);
    let (_directory, segment, set) = create(keyed().add_limit(places));
    let request = set.request();
    let mut permit = take("a", &request);
    permit.release_failed().expect("works");
    let found = first_set(&segment).limits[0].found_capacity;
    assert!(found.is_some_and(|found| found < 4), "{found:?}");
    let verdicts = request.for_key("b").expect("a key").peek().expect("works");
    assert_eq!(Some(verdicts[0].burst), found);

    let set = keyed().add_limit(own(5)).add_limit(overall(2).shadow(true));
    let (_directory, segment, set) = create(set);
    let request = set.request();
    for key in ["a", "b", "c"] {
        assert!(is_admitted(&request, key));
    }
    assert_eq!(first_set(&segment).limits[1].counts.would_refuse, 1);
}

#[test]
fn tiers_and_capacities_of_single_keys_leave_alone_what_all_keys_have_together() {
    let tiered = keyed()
        .add_limit(own(1).algorithm(Algorithm::FixedWindow))
        .add_limit(overall(4))
        .add_tier(Tier::new("gold").capacity("own", 10));
    let (_directory, _segment, set) = create(tiered);
    let request = set.request();
    assert!(is_admitted(&request, "a") && !is_admitted(&request, "a"));
    set.key("a").expect("a key").assign("gold").expect("works");
    let admitted = (0..5).filter(|_| is_admitted(&request, "a")).count();
    assert_eq!(admitted, 3, "of all keys");

    let set = shmlimit::SetDeclaration::new("api")
        .keyed(Keyed::new(100).overrides(true))
        .add_limit(own(1).algorithm(Algorithm::FixedWindow))
        .add_limit(overall(4));
    let (_directory, _segment, set) = create(set);
    let key = set.key("a").expect("a key");
    key.override_capacity("own", 10).expect("works");
    let error = key.override_capacity("overall", 10).expect_err("no key's");
    assert!(
        matches!(error, Error::Change(ChangeError::CannotOverride { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("all keys"), "{error}");
    let error = set.request().with_override("overall", 10).expect_err("no key's");
    assert!(
        matches!(error, Error::Change(ChangeError::CannotOverride { .. })),
        "{error}"
    );
    let request = set.request();
    assert_eq!((0..5).filter(|_| is_admitted(&request, "a")).count(), 4);
}

#[test]
fn what_is_done_to_a_key_is_not_done_to_what_all_keys_have_together() {
    let scene = Scene::new(keyed().add_limit(own(3)).add_limit(overall(5)));
    let set = scene.set();
    let request = set.request();
    let key = set.key("a").expect("a key");
    assert!(is_admitted(&request, "a"));
    let error = key.reset().limits(["overall"]).run().expect_err("no key's");
    assert!(
        matches!(error, Error::Request(RequestError::NotOfOneKey { .. })),
        "{error}"
    );
    key.throttle(Duration::from_secs(5)).expect("works");
    let refused = ask("a", &request).expect_err("throttled");
    assert_eq!(refused.reason(), RefusalReason::Throttled);
    assert!(
        refused.to_string().contains(" or this key of it is throttled"),
        "{refused}"
    );
    assert!(is_admitted(&request, "b"), "which another key is not");

    set.throttle(Duration::from_secs(20)).expect("works");
    for (key, wait) in [("a", 20), ("b", 20), ("new", 20)] {
        let refused = ask(key, &request).expect_err("all are throttled");
        assert_eq!(refused.reason(), RefusalReason::Throttled, "{key}");
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(wait)), "{key}");
    }
    assert_eq!(scene.snapshot().throttled_for, Duration::from_secs(20));
    set.reset().run().expect("works");
    assert!(is_admitted(&request, "a") && is_admitted(&request, "b"));

    let mut permit = take("a", &request);
    permit.throttled(Duration::from_secs(7)).expect("works");
    assert_eq!(
        ask("b", &request)
            .expect_err("the upstream is that of all")
            .reason(),
        RefusalReason::Throttled
    );
    scene.pass(Duration::from_secs(7));
    assert!(is_admitted(&request, "b"));
}

#[test]
fn what_all_keys_have_together_is_not_reserved() {
    let (_directory, _segment, set) = create(keyed().add_limit(own(3)).add_limit(overall(5)));
    let request = set.request();
    let reserve =
        |request: &shmlimit::Request<'_>| request.for_key("a").expect("a key").reserve(MINUTE).map(|_| ());
    let error = reserve(&request).expect_err("for all keys");
    assert!(
        matches!(error, Error::Request(RequestError::NotReservable { .. })),
        "{error}"
    );
    let only_own = request.with("overall", 0).expect("declared");
    let outcome = only_own
        .for_key("a")
        .expect("a key")
        .reserve(MINUTE)
        .expect("works");
    assert!(matches!(outcome, ReserveOutcome::Reserved(_)), "{outcome:?}");
}

#[test]
fn many_keys_are_checked_at_one_instant_and_the_first_of_them_take_what_there_is() {
    let (_directory, _segment, set) = create(keyed().add_limit(own(1)).add_limit(overall(3)));
    let request = set.request();
    let answers = request.check_many(&["a", "b", "a", "c", "d"]).expect("works");
    let admitted: Vec<bool> = answers.iter().map(shmlimit::Checked::is_admitted).collect();
    assert_eq!(admitted, [true, true, false, true, false]);
}

#[test]
fn a_key_that_goes_takes_nothing_of_what_all_keys_have_together_with_it() {
    let set = shmlimit::SetDeclaration::new("api")
        .keyed(Keyed::new(1))
        .add_limit(Limit::calls("own", 1, Duration::from_secs(1)).algorithm(Algorithm::Gcra))
        .add_limit(overall(200).algorithm(Algorithm::FixedWindow));
    let scene = Scene::new(set);
    let set = scene.set();
    let request = set.request();
    // There are 32 rows, and each goes to another key as soon as its own limit is replenished.
    for round in 0..5 {
        for key in 0..32 {
            assert!(is_admitted(&request, format!("{round}-{key}")));
        }
        scene.pass(Duration::from_secs(1));
    }
    assert_eq!(scene.snapshot().limits[1].remaining, 200 - 160);
    assert!(
        scene
            .snapshot()
            .keys
            .is_some_and(|keys| keys.evicted_unused == 128)
    );
}

#[test]
fn a_request_without_a_free_row_takes_nothing_of_what_all_keys_share() {
    let set = shmlimit::SetDeclaration::new("api")
        .keyed(Keyed::new(1))
        .add_limit(own(1))
        .add_limit(overall(100));
    let (_directory, segment, set) = create(set);
    let request = set.request();
    let admitted = (0..40)
        .filter(|key| is_admitted(&request, format!("{key}")))
        .count() as u64;
    assert_eq!(admitted, 32);
    assert_eq!(first_set(&segment).limits[1].remaining, 100 - admitted);
    assert!(try_take("another", &request).is_none());
}

#[test]
fn a_look_ahead_counts_what_all_keys_share() {
    let scene = Scene::new(keyed().add_limit(own(10)).add_limit(overall(4)));
    let set = scene.set();
    for key in ["a", "b", "c"] {
        assert!(is_admitted(&set.request(), key));
    }
    let key = set.key("d").expect("a key");
    let forecasts = key.forecast().expect("works");
    let remaining: Vec<u64> = forecasts.iter().map(|it| it.spendable).collect();
    assert_eq!(remaining, [10, 1]);
    assert_eq!(forecasts[1].next_unit_after, Some(Duration::from_secs(15)));
}
