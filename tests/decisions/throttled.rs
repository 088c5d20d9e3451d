//! The service behind the limits says that it takes nothing for a while: nothing is admitted until that is over, and
//! afterwards everything is as before.

use std::thread;
use std::time::{Duration, Instant};

use crate::scene;
use crate::scene::clock::{NANOSECOND, Scene};
use crate::scene::{create, expect_permit, expect_refusal, is_admitted};
use shmlimit::declare::{Adaptive, Credit, WhenFull};
use shmlimit::{
    Algorithm, Error, Keyed, Limit, LimitSet, Outcome, PermitError, RefusalReason, ReserveOutcome,
    SetDeclaration,
};

use crate::scene::process::TIMEOUT;

const MINUTE: Duration = Duration::from_secs(60);
const HALF: Duration = Duration::from_secs(30);

fn throttle(set: &LimitSet, wait: Duration) {
    let mut permit = expect_permit(set.request().try_acquire());
    permit.throttled(wait).expect("works");
}

#[test]
fn admits_nothing_before_the_instant_and_everything_at_it() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api")
            .add_limit(Limit::calls("requests", 1_000, MINUTE))
            .add_limit(Limit::concurrency("in_flight", 2)),
    );
    let set = scene.set();
    throttle(&set, HALF);
    for (instant, left, words) in [
        (Duration::ZERO, HALF, "30s"),
        (HALF - NANOSECOND, NANOSECOND, "1ms"), // rounded up
    ] {
        scene.clock.advance_to(instant);
        let refusal = expect_refusal(set.request().try_acquire());
        assert_eq!(
            (refusal.reason(), refusal.binding()),
            (RefusalReason::Throttled, None)
        );
        assert_eq!(refusal.retry_after(), Some(left));
        assert_eq!(
            refusal.to_string(),
            format!("set `api` is throttled, retry after {words}")
        );
        let standing = set.request().peek().expect("works");
        assert!(standing.iter().all(|verdict| verdict.retry_after == Some(left)));
        let forecast = set.forecast().expect("works");
        assert!(
            forecast
                .iter()
                .all(|limit| (limit.spendable, limit.next_unit_after) == (0, Some(left)))
        );
    }
    let snapshot = scene.segment.snapshot().expect("readable");
    assert_eq!(snapshot.sets[0].throttled_for, Duration::from_nanos(1));
    assert_eq!(snapshot.sets[0].counts.refused_throttled, 2);
    assert_eq!(snapshot.sets[0].active, 0, "the permit was given back");

    scene.clock.advance_to(HALF);
    assert!(set.request().try_acquire().expect("works").is_admitted());
    assert_eq!(scene.snapshot().throttled_for, Duration::ZERO);
}

#[test]
fn a_limit_that_takes_longer_binds_and_a_longer_throttling_stays() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api").add_limit(Limit::calls("requests", 1, MINUTE)),
    );
    let set = scene.set();
    throttle(&set, HALF);
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (RefusalReason::Rate, Some(MINUTE))
    );

    set.throttle(2 * MINUTE).expect("works");
    set.throttle(HALF).expect("works");
    let refusal = expect_refusal(set.request().try_acquire());
    assert_eq!(
        (refusal.reason(), refusal.retry_after()),
        (RefusalReason::Throttled, Some(2 * MINUTE))
    );
}

#[test]
fn throttles_one_key_and_keeps_its_row_until_then() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api")
            .keyed(Keyed::new(32))
            .add_limit(Limit::calls("requests", 1_000_000, MINUTE)),
    );
    let set = scene.set();
    let throttled = set.request().for_key("throttled").expect("keyed");
    let mut permit = expect_permit(throttled.try_acquire());
    permit.throttled(HALF).expect("works");
    let refusal = expect_refusal(throttled.try_acquire()).to_string();
    assert!(refusal.starts_with("this key of set `"), "{refusal}");
    let reason = || throttled.check().expect("works").reason();
    assert_eq!(reason(), Some(RefusalReason::Throttled));

    // By the time a row is needed, what its previous key used is replenished, so each of the others gets a row.
    for number in 0..10_u32 {
        scene.clock.advance_to(Duration::from_secs(u64::from(number)));
        for other in 0..20_u32 {
            let key = (number * 20 + other).to_le_bytes();
            assert!(is_admitted(&set.request(), key));
        }
        assert_eq!(reason(), Some(RefusalReason::Throttled));
    }
    let key = scene
        .segment
        .key_snapshot("api", b"throttled")
        .expect("keyed")
        .expect("a row");
    assert_eq!(key.throttled_for, Duration::from_secs(21));

    scene.clock.advance_to(HALF);
    assert_eq!(reason(), None);
}

#[test]
fn a_reset_ends_it() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api")
            .keyed(Keyed::new(100))
            .add_limit(Limit::calls("requests", 1_000, MINUTE)),
    );
    let set = scene.set();
    let keys = ["one", "other"];
    let are_admitted = || keys.map(|key| is_admitted(&set.request(), key));
    for key in keys {
        set.key(key).expect("keyed").throttle(HALF).expect("works");
    }
    assert_eq!(are_admitted(), [false, false]);
    set.key(keys[0]).expect("keyed").reset().run().expect("works");
    assert_eq!(are_admitted(), [true, false]);
    set.reset().run().expect("works");
    assert_eq!(are_admitted(), [true, true]);
}

#[test]
fn shrinks_an_adaptive_limit_once() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api").add_limit(
            Limit::concurrency("in_flight", 20)
                .adaptive(Adaptive::Aimd)
                .ceiling(100),
        ),
    );
    let set = scene.set();
    throttle(&set, HALF);
    let limit = &scene.snapshot().limits[0];
    assert!(
        limit.found_capacity.is_some_and(|capacity| capacity < 20),
        "{limit:?}"
    );
    assert_eq!(limit.counts.failed, 1);
}

#[test]
fn what_was_used_is_counted_and_what_is_in_shadow_goes_on() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api").add_limit(Limit::budget("tokens", 100, MINUTE)),
    );
    let set = scene.set();
    let mut streaming = expect_permit(set.request().try_acquire());
    throttle(&set, HALF);
    assert!(streaming.debit("tokens", 10).expect("works").is_admitted());
    assert!(set.debit("tokens", 10).expect("works").is_admitted());
    assert_eq!(
        expect_refusal(set.request().try_acquire()).reason(),
        RefusalReason::Throttled
    );

    let shadow = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api")
            .shadow(true)
            .add_limit(Limit::calls("requests", 10, MINUTE)),
    );
    throttle(&shadow.set(), HALF);
    let set = shadow.set();
    assert!(set.request().check().expect("works").is_admitted());
}

/// With the processor's counter, the clock may read a few microseconds earlier than it did when it was throttled.
#[test]
fn the_longest_time_begins_at_once() {
    let (_directory, _segment, set) =
        create(SetDeclaration::new("api").add_limit(Limit::calls("requests", 1_000, MINUTE)));
    for _ in 0..10 {
        set.throttle(Duration::from_secs(40 * 24 * 3600)).expect("works");
        let refusal = expect_refusal(set.request().try_acquire());
        assert_eq!(refusal.reason(), RefusalReason::Throttled);
        set.reset().run().expect("works");
    }
}

#[test]
fn reservations_begin_after_it() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api").add_limit(Limit::calls("requests", 1_000, MINUTE)),
    );
    let set = scene.set();
    set.throttle(HALF).expect("works");
    let reserve = |longest| set.request().reserve(longest).expect("works");
    assert!(matches!(reserve(HALF - NANOSECOND), ReserveOutcome::Refused(_)));
    let reservation = reserve(HALF).into_result().expect("soon enough");
    assert_eq!(reservation.delay(), HALF);
}

#[test]
fn batches_that_were_drawn_are_not_spent_meanwhile() {
    let limit = Limit::calls("requests", 1_000, MINUTE).credit(Credit::batch(100));
    let scene = Scene::at(Duration::ZERO, SetDeclaration::new("api").add_limit(limit));
    let set = scene.set();
    let admitted = || set.request().try_acquire().expect("works").is_admitted();
    assert!(admitted(), "and a batch is drawn");
    set.throttle(HALF).expect("works");
    assert!(!admitted());
    assert_eq!(scene.snapshot().limits[0].remaining, 999);
    scene.clock.advance_to(HALF);
    assert!(admitted());
}

#[test]
fn a_permit_says_it_once_and_while_it_holds_something() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 2)),
    );
    let set = scene.set();
    let mut permit = expect_permit(set.request().try_acquire());
    permit.throttled(HALF).expect("works");
    assert!(matches!(
        permit.throttled(HALF),
        Err(Error::Permit(PermitError::AlreadyReleased { .. }))
    ));
}

#[test]
fn those_who_wait_are_served_in_their_order_when_it_is_over_or_reset() {
    let set = SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 1));
    let (_directory, segment, set) = create(set);
    for ends_by_itself in [true, false] {
        let wait = if ends_by_itself {
            Duration::from_millis(200)
        } else {
            10 * TIMEOUT
        };
        let begun = Instant::now();
        throttle(&set, wait);
        let waiters: Vec<_> = (1..=2)
            .map(|count| {
                let other = set.clone();
                let waiter = thread::spawn(move || {
                    let outcome = other.request().acquire(TIMEOUT).expect("works");
                    assert!(matches!(outcome, Outcome::Admitted(_)), "{outcome:?}");
                    begun.elapsed()
                });
                scene::process::eventually("it waits", || {
                    let snapshot = segment.snapshot().expect("readable");
                    snapshot.sets[0].tickets.len() >= count || (ends_by_itself && begun.elapsed() >= wait)
                });
                waiter
            })
            .collect();
        if !ends_by_itself {
            set.reset().run().expect("works");
        }
        for waiter in waiters {
            let waited = waiter.join().expect("no panic");
            assert!(!ends_by_itself || waited >= wait, "{waited:?}");
        }
    }
}

#[test]
fn a_shorter_throttling_does_not_hide_for_how_long_the_first_in_line_waits() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api")
            .add_limit(Limit::calls("requests", 10, MINUTE).algorithm(Algorithm::SlidingWindow)),
    );
    let set = scene.set();
    let five = set.request().with("requests", 5).expect("declared");
    assert!(five.check().expect("works").is_admitted());
    thread::scope(|scope| {
        scope.spawn(|| {
            let all = set.request().with("requests", 10).expect("declared");
            let outcome = all.acquire(TIMEOUT).expect("works");
            assert!(outcome.is_admitted());
        });
        scene::process::eventually("it waits", || {
            let snapshot = scene.segment.snapshot().expect("readable");
            snapshot.sets[0].tickets.len() == 1
        });
        let refusals = || {
            let check = set.request().check().expect("works").into_result();
            [
                expect_refusal(set.request().try_acquire()),
                check.expect_err("no room"),
            ]
            .map(|refusal| (refusal.reason(), refusal.retry_after()))
        };
        set.throttle(Duration::from_secs(1)).expect("works");
        assert_eq!(refusals(), [(RefusalReason::Rate, Some(MINUTE)); 2]);
        set.throttle(2 * MINUTE).expect("works");
        assert_eq!(refusals(), [(RefusalReason::Throttled, Some(2 * MINUTE)); 2]);
        scene.clock.advance_to(3 * MINUTE);
    });
}

#[test]
fn what_was_admitted_without_a_row_throttles_no_other_key() {
    let scene = Scene::at(
        Duration::ZERO,
        SetDeclaration::new("api")
            .shadow(true)
            .keyed(Keyed::new(32).when_full(WhenFull::Refuse))
            .add_limit(Limit::calls("requests", 10, MINUTE)),
    );
    let set = scene.set();
    // More keys than there are rows.
    for number in 0..1_000_u32 {
        let key = number.to_le_bytes();
        let mut permit = expect_permit(set.request().for_key(key).expect("keyed").try_acquire());
        if number == 999 {
            permit.throttled(HALF).expect("works");
        }
    }
    let forecast = set.key("other").expect("keyed").forecast().expect("works");
    assert_eq!(
        (forecast[0].spendable, forecast[0].full_after),
        (10, Some(Duration::ZERO))
    );
}
