//! Quotas that differ by key: the tiers of a keyed set, and capacities that single keys have of their own.

mod declared_overrides;
mod migration;
mod overrides;
mod requested;
#[path = "../scene/mod.rs"]
mod scene;
mod settled;
mod table;
mod waiting;

use std::time::Duration;

use scene::clock::Scene;
use scene::{create, expect_differences, expect_permit, expect_refusal, is_admitted};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Algorithm, ChangeError, Declaration, DeclarationError, Error, Keyed, Limit, LimitSet, Request,
    RequestError, SetDeclaration, Tier,
};

const MINUTE: Duration = Duration::from_secs(60);

fn keyed(max_keys: u64) -> SetDeclaration {
    SetDeclaration::new("api").keyed(Keyed::new(max_keys))
}

fn plans() -> SetDeclaration {
    keyed(100)
        .add_limit(Limit::calls("requests", 10, MINUTE).algorithm(Algorithm::SlidingWindow))
        .add_limit(Limit::concurrency("in_flight", 1))
        .add_tier(
            Tier::new("gold")
                .capacity("requests", 100)
                .capacity("in_flight", 3),
        )
        .add_tier(Tier::new("free").capacity("requests", 2))
}

/// How many of these requests the key is admitted at once.
fn admitted_of(key: &str, request: &Request<'_>) -> u64 {
    (0..).take_while(|_| is_admitted(request, key)).count() as u64
}

/// How many requests the key is admitted at once, without holding any.
fn admitted(set: &LimitSet, key: &str) -> u64 {
    admitted_of(key, &set.request().with("in_flight", 0).expect("declared"))
}

#[test]
fn each_key_is_limited_by_its_tier() {
    let scene = Scene::new(plans());
    let set = scene.set();
    assert_eq!(set.tiers().collect::<Vec<_>>(), ["default", "gold", "free"]);
    set.key("rich").expect("keyed").assign("gold").expect("a tier");
    set.key("poor").expect("keyed").assign("free").expect("a tier");
    for (key, tier, max) in [
        ("rich", "gold", 100),
        ("poor", "free", 2),
        ("other", "default", 10),
    ] {
        assert_eq!(admitted(&set, key), max, "{key}");
        assert_eq!(set.key(key).expect("keyed").tier().expect("no error"), tier);
    }
    let permits: Vec<_> = (0..3)
        .map(|_| {
            let request = set.request().with("requests", 0).expect("declared");
            expect_permit(request.for_key("rich").expect("keyed").try_acquire())
        })
        .collect();
    drop(permits);
}

#[test]
fn a_request_puts_its_key_into_the_tier_that_it_names() {
    let scene = Scene::new(plans());
    let (set, other) = (scene.set(), scene.other().set("api").expect("declared"));
    let plain = set.request();
    let gold = set.request().with_tier("gold").expect("a tier");
    let key = set.key("a").expect("keyed");
    let limits = |verdicts: Vec<shmlimit::Verdict<'_>>| verdicts[0].burst;
    assert_eq!(
        limits(plain.for_key("a").expect("keyed").peek().expect("no error")),
        10
    );
    assert_eq!(
        limits(gold.for_key("a").expect("keyed").peek().expect("no error")),
        100,
        "a key without a row would begin in it"
    );
    let mut permit = expect_permit(gold.for_key("a").expect("keyed").try_acquire());
    assert_eq!(permit.verdicts().next().expect("two limits").burst, 100);
    assert_eq!(permit.verdicts().next().expect("two limits").remaining, 99);
    permit.release().expect("held");
    assert_eq!(other.key("a").expect("keyed").tier().expect("no error"), "gold");
    assert_eq!(
        limits(
            other
                .request()
                .for_key("a")
                .expect("keyed")
                .peek()
                .expect("no error")
        ),
        100,
        "it stays"
    );
    let free = set.request().with_tier("free").expect("a tier");
    drop(expect_permit(free.for_key("a").expect("keyed").try_acquire()));
    let refused = free
        .for_key("a")
        .expect("keyed")
        .try_acquire()
        .expect("no error")
        .into_result();
    assert!(refused.is_err_and(|refusal| refusal.binding() == Some("requests")));
    assert_eq!(key.tier().expect("no error"), "free", "also where it is refused");
    let default = set.request().with_tier("default").expect("always there");
    assert!(
        default
            .for_key("a")
            .expect("keyed")
            .try_acquire()
            .expect("no error")
            .into_result()
            .is_ok()
    );
    assert_eq!(key.tier().expect("no error"), "default");
}

#[test]
fn many_keys_of_one_request_are_put_into_its_tier() {
    let scene = Scene::new(plans());
    let set = scene.set();
    let free = set
        .request()
        .with("in_flight", 0)
        .expect("declared")
        .with_tier("free")
        .expect("a tier");
    let answers = free.check_many(&["a", "b", "a", "a"]).expect("no error");
    let admitted: Vec<bool> = answers.iter().map(|answer| answer.is_admitted()).collect();
    assert_eq!(admitted, [true, true, true, false]);
}

#[test]
fn what_its_tier_never_admits_is_an_error_and_what_another_does_is_not() {
    let scene = Scene::new(plans());
    let set = scene.set();
    let fifty = set.request().with("requests", 50).expect("declared");
    let never = |result: Result<_, Error>| match result {
        Err(Error::Request(RequestError::NeverAdmissible { limit, cost, max, .. })) => (limit, cost, max),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        never(fifty.for_key("a").expect("keyed").try_acquire().map(drop)),
        ("requests".to_owned(), 50, 10)
    );
    let free = fifty.clone().with_tier("free").expect("a tier");
    assert_eq!(
        never(free.for_key("a").expect("keyed").try_acquire().map(drop)),
        ("requests".to_owned(), 50, 2)
    );
    let gold = fifty.with_tier("gold").expect("a tier");
    assert!(
        gold.for_key("a")
            .expect("keyed")
            .try_acquire()
            .expect("no error")
            .into_result()
            .is_ok()
    );
}

#[test]
fn a_tier_that_there_is_not_is_an_error_that_names_those_there_are() {
    let scene = Scene::new(plans());
    let set = scene.set();
    let unknown = |error: Error| match error {
        Error::Request(RequestError::UnknownTier { set, tier, known, .. }) => (set, tier, known),
        other => panic!("{other:?}"),
    };
    let expected = (
        "api".to_owned(),
        "silver".to_owned(),
        ["default", "gold", "free"].map(str::to_owned).to_vec(),
    );
    assert_eq!(
        unknown(
            set.key("a")
                .expect("keyed")
                .assign("silver")
                .expect_err("unknown")
        ),
        expected
    );
    assert_eq!(
        unknown(set.request().with_tier("silver").expect_err("unknown")),
        expected
    );
    let without = Scene::new(keyed(10).add_limit(Limit::calls("requests", 1, MINUTE)));
    let set = without.set();
    assert!(matches!(
        set.key("a").expect("keyed").assign("gold"),
        Err(Error::Request(RequestError::UnknownTier { .. }))
    ));
    set.key("a")
        .expect("keyed")
        .assign("default")
        .expect("always there");
    assert!(set.request().with_tier("default").is_ok());
}

#[test]
fn keys_are_shown_with_their_tiers_and_its_limits() {
    let scene = Scene::new(plans());
    let set = scene.set();
    set.key("rich").expect("keyed").assign("gold").expect("a tier");
    let free = set.request().with_tier("free").expect("a tier");
    drop(
        free.for_key("poor")
            .expect("keyed")
            .try_acquire()
            .expect("no error"),
    );
    let reader = SegmentReader::open(scene.path()).expect("a segment");
    let show = |key: &str| {
        let key = reader
            .key_snapshot("api", key.as_bytes())
            .expect("no error")
            .expect("a row");
        (key.tier, key.tier_assigned, key.limits[0].capacity)
    };
    assert_eq!(show("rich"), (Some("gold".to_owned()), true, Some(100)));
    assert_eq!(show("poor"), (Some("free".to_owned()), false, Some(2)));
    set.key("rich").expect("keyed").assign("default").expect("a tier");
    assert_eq!(show("rich"), (None, false, Some(10)));
}

#[test]
fn a_reset_replenishes_a_key_and_leaves_it_in_its_tier() {
    let scene = Scene::new(plans());
    let set = scene.set();
    set.key("rich").expect("keyed").assign("gold").expect("a tier");
    for reset in [0, 1] {
        assert_eq!(admitted(&set, "rich"), 100);
        let key = set.key("rich").expect("keyed");
        if reset == 0 {
            assert!(key.reset().run().expect("no error"));
        } else {
            set.reset().run().expect("no error");
        }
        assert_eq!(key.tier().expect("no error"), "gold");
    }
    assert_eq!(admitted(&set, "rich"), 100);
}
