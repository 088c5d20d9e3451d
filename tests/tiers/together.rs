//! A tier and a capacity that one request names together: one change, by the two of them.

use shmlimit::Align;

use super::*;

fn declared(limit: Limit) -> SetDeclaration {
    let free = Tier::new("free").capacity("requests", 2);
    let gold = Tier::new("gold").capacity("requests", 1000);
    SetDeclaration::new("api")
        .keyed(Keyed::new(10).overrides(true))
        .add_limit(limit)
        .add_tier(free)
        .add_tier(gold)
}

fn naming(set: &LimitSet, tier: &str, capacity: u64) -> shmlimit::Request {
    let request = set.request().with_tier(tier).expect("declared");
    request.with_override("requests", capacity).expect("a capacity")
}

#[test]
fn what_remains_is_bound_by_neither_of_the_two_alone() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let scene = Scene::new(declared(
            Limit::rate("requests", 100, MINUTE).algorithm(algorithm),
        ));
        let set = scene.set();
        let key = set.key("a").expect("keyed");
        let asking = |request: shmlimit::Request, units: u64| {
            let request = request.with("requests", units).expect("declared");
            key.check(&request).expect("no error").is_admitted()
        };
        assert!(asking(set.request(), 40));
        // The tier alone leaves two, the capacity alone would be of `default`.
        assert!(asking(naming(&set, "free", 200), 0));
        let peeked = key.peek(&set.request().with("requests", 1).expect("declared"));
        let peeked = peeked.expect("no error");
        assert_eq!((peeked[0].remaining, peeked[0].burst), (60, 200), "{algorithm:?}");
    }
}

#[test]
fn nothing_comes_back_of_what_was_reserved_before() {
    let limit = Limit::rate("requests", 100, MINUTE).algorithm(Algorithm::TokenBucket);
    let scene = Scene::new(declared(limit));
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let with = |request: shmlimit::Request, units: u64| request.with("requests", units).expect("declared");
    let permit_of = |request: shmlimit::Request| expect_permit(key.try_acquire(&request));
    for before in [set.request(), naming(&set, "gold", 50)] {
        let mut permit = permit_of(with(before, 30));
        drop(permit_of(with(naming(&set, "free", 200), 0)));
        let settled = permit.settle([("requests", 0)]).expect("not settled yet");
        assert_eq!(settled.refunded("requests"), 0);
        key.reset(&[]).expect("no error");
    }
}

#[test]
fn those_who_wait_are_served_by_the_two_together() {
    let window = Limit::calls("requests", 5, MINUTE * 1440).algorithm(Algorithm::FixedWindow);
    let declared = declared(window.align(Align::FirstUse)).waiters(4);
    let scene = Scene::new(declared);
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let five = set.request().with("requests", 5).expect("declared");
    assert!(key.check(&five).expect("no error").is_admitted());
    let mut waiting = Box::pin(key.acquire_async(&five, MINUTE));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut poll = || std::future::Future::poll(waiting.as_mut(), &mut context);
    assert!(poll().is_pending());
    // The tier alone would have plenty for it, and the two have too little ever to serve it.
    let request = naming(&set, "gold", 4).with("requests", 0).expect("declared");
    assert!(key.check(&request).is_ok());
    let began = std::time::Instant::now();
    let outcome = loop {
        match poll() {
            std::task::Poll::Ready(outcome) => break outcome,
            std::task::Poll::Pending => assert!(began.elapsed() < MINUTE / 2, "it waits on"),
        }
        std::thread::yield_now();
    };
    match outcome {
        Err(Error::Request(RequestError::NeverAdmissible { cost: 5, max: 4, .. })) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_capacity_that_the_key_cannot_have_leaves_it_in_its_tier() {
    let scene = Scene::new(
        declared(Limit::calls("requests", 5, MINUTE))
            .add_limit(Limit::concurrency("in_flight", 2))
            .holds(8),
    );
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let none = set.request().with("in_flight", 0).expect("declared");
    assert!(key.check(&none).expect("no error").is_admitted());
    let request = naming(&set, "gold", 7).with_override("in_flight", 1000);
    match key.try_acquire(&request.expect("a capacity")).map(drop) {
        Err(Error::Change(ChangeError::CannotOverride { limit, .. })) => assert_eq!(limit, "in_flight"),
        other => panic!("{other:?}"),
    }
    assert_eq!(key.tier().expect("no error"), "default");
    assert_eq!(key.overrides().expect("no error"), []);
}
