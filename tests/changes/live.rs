//! Limits that change while the segment is in use.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene::clock::{NANOSECOND, Scene};
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use crate::scene::{self, ALGORITHMS, is_admitted};
use fastrand::Rng;
use shmlimit::declare::Align;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Algorithm, ChangeError, Declaration, Error, Keyed, Limit, LimitSet, Outcome, Permit, RequestError,
    ReserveOutcome, Segment, SetDeclaration, Tier,
};

const MINUTE: Duration = Duration::from_secs(60);

struct Live {
    scene: Scene,
    set: LimitSet,
    /// Another attachment to the same file, like that of another process.
    other: LimitSet,
}

fn declare(set: SetDeclaration) -> Declaration {
    scene::declaration().add_set(set)
}

fn plain(limit: Limit) -> SetDeclaration {
    SetDeclaration::new("api").add_limit(limit)
}

fn keyed(limit: Limit) -> SetDeclaration {
    plain(limit).keyed(Keyed::new(1000))
}

impl Live {
    fn new(set: SetDeclaration) -> Self {
        let scene = Scene::new(set);
        Self {
            set: scene.set(),
            other: scene.other().set("api").expect("declared"),
            scene,
        }
    }

    fn apply(&self, set: SetDeclaration) -> Vec<String> {
        let changes = self.scene.segment.apply(&declare(set)).expect("applies");
        changes.iter().map(ToString::to_string).collect()
    }
}

fn ask(set: &LimitSet, cost: u64) -> Outcome<'_> {
    let request = set.request().with("units", cost).expect("declared");
    request.try_acquire().expect("a decision")
}

fn take(set: &LimitSet, cost: u64) -> Permit<'_> {
    ask(set, cost).into_result().expect("there is room")
}

fn remaining(set: &LimitSet, key: Option<&str>) -> u64 {
    let request = set.request().with("units", 0).expect("declared");
    match key {
        Some(key) => request.for_key(key).expect("a key").peek().expect("works")[0].remaining,
        None => request.peek().expect("works")[0].remaining,
    }
}

#[test]
fn a_lease_that_comes_later_does_not_take_at_once_what_is_held() {
    let lease = Duration::from_secs(30);
    let live = Live::new(plain(Limit::concurrency("units", 2)));
    let held = take(&live.set, 1);
    live.scene.pass(10 * MINUTE);
    live.apply(plain(Limit::concurrency("units", 2).lease(lease)));
    assert!(!ask(&live.other, 2).is_admitted());
    live.scene.pass(lease - NANOSECOND);
    assert!(!ask(&live.other, 2).is_admitted());
    assert!(!held.reclaimed());
    live.scene.pass(NANOSECOND);
    assert!(ask(&live.other, 2).is_admitted(), "it was not renewed in time");
    assert!(held.reclaimed());
}

#[test]
fn a_lease_that_ran_out_in_another_life_of_a_hold_says_nothing_of_this_one() {
    let lease = Duration::from_secs(30);
    let live = Live::new(plain(Limit::concurrency("units", 1).lease(lease)));
    let expired = take(&live.set, 1);
    live.scene.pass(lease);
    live.scene.segment.recover().expect("works");
    assert!(expired.reclaimed());
    drop(expired);
    live.apply(plain(Limit::concurrency("units", 1)));
    let third = take(&live.set, 1);
    assert!(!third.reclaimed());
    live.scene.pass(10 * MINUTE);
    live.apply(plain(Limit::concurrency("units", 1).lease(lease)));
    third.heartbeat().expect("it is held still");
    assert!(!third.reclaimed());
    assert!(!ask(&live.other, 1).is_admitted());
}

#[test]
fn who_asks_for_more_than_a_lowered_capacity_is_told_so_whatever_it_knew_before() {
    let of = |capacity| plain(Limit::calls("units", capacity, MINUTE));
    let too_much = |error: Option<Error>| match error {
        Some(Error::Request(RequestError::NeverAdmissible { cost, max, .. })) => {
            assert_eq!((cost, max), (9, 5))
        }
        other => panic!("{other:?}"),
    };
    for ask in [
        (|request| request.try_acquire().err()) as fn(&shmlimit::Request<'_>) -> Option<Error>,
        |request| request.acquire(None).err(),
        |request| request.check().err(),
        |request| request.reserve(60 * MINUTE).err(),
    ] {
        let live = Live::new(of(10));
        let request = live.other.request().with("units", 9).expect("declared");
        assert!(request.check().expect("works").is_admitted());
        live.apply(of(5));
        too_much(ask(&request));
    }
}

#[test]
fn a_raised_limit_grants_nothing_for_the_past() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let of = |capacity| plain(Limit::rate("units", capacity, MINUTE).algorithm(algorithm));
        let live = Live::new(of(10));
        drop(take(&live.set, 10));
        live.scene.pass(MINUTE / 2);
        assert_eq!(remaining(&live.set, None), 5);
        let changes = live.apply(of(60));
        assert!(
            changes.iter().any(|change| change.contains("capacity")),
            "{changes:?}"
        );
        for set in [&live.other, &live.set] {
            assert_eq!(remaining(set, None), 5, "{algorithm:?}");
        }
        live.scene.pass(MINUTE / 60 - NANOSECOND);
        assert_eq!(remaining(&live.other, None), 5);
        live.scene.pass(NANOSECOND);
        assert_eq!(remaining(&live.other, None), 6);
        live.scene.pass(MINUTE);
        assert_eq!(remaining(&live.other, None), 60);
        live.apply(of(20));
        assert_eq!(remaining(&live.other, None), 20);
        assert!(live.apply(of(20)).is_empty());
    }
}

#[test]
fn what_a_window_has_counted_stays_counted_against_the_new_capacity() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let of = |capacity| {
            let limit = Limit::rate("units", capacity, MINUTE).algorithm(algorithm);
            plain(if algorithm == Algorithm::SlidingWindow {
                limit.entries(16)
            } else {
                limit
            })
        };
        let live = Live::new(of(10));
        drop(take(&live.set, 7));
        for (capacity, left) in [(20, 13), (5, 0), (8, 1), (10, 3)] {
            live.apply(of(capacity));
            assert_eq!(remaining(&live.other, None), left, "{algorithm:?} of {capacity}");
            assert_eq!(remaining(&live.set, None), left);
        }
    }
}

#[test]
fn every_key_keeps_what_it_has_used_and_new_ones_begin_by_the_new_definition() {
    let of = |capacity| keyed(Limit::rate("units", capacity, 60 * MINUTE).algorithm(Algorithm::FixedWindow));
    let live = Live::new(of(10));
    let name = |number: u64| format!("key-{number}");
    for number in 0..200 {
        let request = live.set.request().with("units", number % 11).expect("declared");
        assert!(is_admitted(&request, name(number)));
    }
    live.apply(of(15));
    for number in 0..200 {
        for set in [&live.set, &live.other] {
            assert_eq!(remaining(set, Some(&name(number))), 15 - number % 11);
        }
    }
    assert_eq!(remaining(&live.other, Some("new")), 15);
}

#[test]
fn what_is_held_stays_held_above_a_lowered_capacity() {
    let of = |capacity| plain(Limit::concurrency("units", capacity));
    let live = Live::new(of(4));
    let mut held: Vec<_> = (0..4).map(|_| take(&live.set, 1)).collect();
    live.apply(of(2));
    for _ in 0..3 {
        assert!(!ask(&live.other, 1).is_admitted(), "{} are held of 2", held.len());
        held.pop();
    }
    let other = take(&live.other, 1);
    assert!(!ask(&live.set, 1).is_admitted());
    drop((held, other));
    assert_eq!(remaining(&live.other, None), 2);
}

#[test]
fn who_waits_is_served_by_a_raised_capacity() {
    for is_keyed in [false, true] {
        let of = |capacity| {
            let limit = Limit::concurrency("units", capacity);
            if is_keyed {
                keyed(limit)
            } else {
                plain(limit).holds(8)
            }
        };
        let live = Live::new(of(1));
        fn request(set: &LimitSet) -> shmlimit::Request<'_> {
            let mut request = set.request();
            if set.is_keyed() {
                request.set_key("a").expect("keyed");
            }
            request
        }
        let _held = scene::expect_permit(request(&live.set).try_acquire());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| request(&live.set).acquire(TIMEOUT).expect("works").is_admitted());
            eventually("it waits", || {
                let tickets = &live.scene.segment.snapshot().expect("a snapshot").sets[0].tickets;
                !tickets.is_empty()
            });
            live.apply(of(2));
            assert!(waiter.join().expect("no panic"));
        });
    }
}

#[test]
fn what_cannot_change_in_place_is_named_and_nothing_is_changed() {
    let limit = || Limit::rate("units", 10, MINUTE);
    let live = Live::new(keyed(limit()));
    let refused = |set: SetDeclaration| scene::expect_differences(live.scene.segment.apply(&declare(set)));
    let more = limit().algorithm(Algorithm::SlidingWindow);
    for (set, named) in [
        (plain(limit()), "keyed"),
        (plain(limit()).keyed(Keyed::new(2000)), "max_keys"),
        (keyed(more), "algorithm"),
        (
            keyed(limit()).add_limit(Limit::calls("calls", 1, MINUTE)),
            "calls",
        ),
        (keyed(Limit::rate("other", 10, MINUTE)), "other"),
        (keyed(limit()).waiters(7), "waiters"),
    ] {
        // The change is refused even though it comes with one that would be possible.
        let words = refused(set.add_metadata("region", "here"));
        assert!(words.contains(named), "{named} is not named in: {words}");
        assert!(
            live.scene
                .segment
                .declaration_in_force()
                .expect("works")
                .differences(&declare(keyed(limit())))
                .is_empty()
        );
    }
}

/// Raising the capacity beyond the number of holds would have no effect.
#[test]
fn a_concurrency_that_there_are_too_few_holds_for_is_refused() {
    let of = |capacity| plain(Limit::concurrency("units", capacity)).holds(4);
    let live = Live::new(of(4));
    let refused = live
        .scene
        .segment
        .apply(&declare(of(5)))
        .expect_err("there are four holds");
    assert!(
        matches!(&refused, Error::Change(ChangeError::CannotApply { .. }))
            && refused.to_string().contains("holds"),
        "{refused}"
    );
    live.apply(of(2));
    live.apply(of(4));
    let live = Live::new(of(4).holds(5));
    live.apply(of(5).holds(5));
    let held: Vec<_> = (0..5).map(|_| take(&live.other, 1)).collect();
    assert!(!ask(&live.set, 1).is_admitted());
    drop(held);
    // If the declaration had too few holds from the start, it may go on like that.
    let live = Live::new(of(8).holds(2));
    live.apply(of(9).holds(2));
}

#[test]
fn a_process_that_was_attached_before_decides_by_the_new_definition_at_once() {
    in_own_process(
        "live::a_process_that_was_attached_before_decides_by_the_new_definition_at_once",
        TIMEOUT,
        |directory| {
            let of = |capacity| {
                declare(plain(
                    Limit::calls("units", capacity, 60 * MINUTE)
                        .algorithm(Algorithm::FixedWindow)
                        .align(Align::FirstUse),
                ))
            };
            let segment = Segment::create(directory.join("limits"), &of(5)).expect("a segment");
            let words = SharedWords::new(2);
            let child = Child::fork(|| {
                let opened = Segment::open(segment.path()).expect("opens");
                let set = opened.set("api").expect("declared");
                drop(take(&set, 5));
                assert!(!ask(&set, 1).is_admitted());
                words[0].store(1, Ordering::SeqCst);
                eventually("it was applied", || words[1].load(Ordering::SeqCst) == 1);
                drop(take(&set, 2));
                assert!(!ask(&set, 1).is_admitted());
            });
            eventually("the child has used it up", || {
                words[0].load(Ordering::SeqCst) == 1
            });
            segment.apply(&of(7)).expect("applies");
            words[1].store(1, Ordering::SeqCst);
            child.succeed();
        },
    );
}

#[test]
fn a_change_that_its_process_dies_in_is_made_whole_or_not_at_all() {
    const KEYS: u64 = 300;
    in_own_process(
        "live::a_change_that_its_process_dies_in_is_made_whole_or_not_at_all",
        2 * TIMEOUT,
        |directory| {
            let of = |capacity| declare(keyed(Limit::rate("units", capacity, 60 * MINUTE)));
            let segment = Segment::create(directory.join("limits"), &of(1000)).expect("a segment");
            let set = segment.set("api").expect("declared");
            let name = |number: u64| format!("key-{number}");
            for number in 0..KEYS {
                let request = set.request().with("units", 1000 - number % 7).expect("declared");
                assert!(is_admitted(&request, name(number)));
            }
            let mut dice = Rng::with_seed(20_260_101);
            for _ in 0..40 {
                let child = Child::fork(|| {
                    let opened = Segment::open(segment.path()).expect("opens");
                    for round in 0_u64.. {
                        opened.apply(&of(1000 + 1000 * (round % 2))).expect("applies");
                    }
                });
                std::thread::sleep(Duration::from_micros(2_000 + dice.u64(..8_000)));
                child.kill();
                let in_force = segment.declaration_in_force().expect("works");
                assert!(
                    [1000, 2000]
                        .iter()
                        .any(|capacity| of(*capacity).differences(&in_force).is_empty())
                );
                for number in 0..KEYS {
                    let left = remaining(&set, Some(&name(number)));
                    // The most that thousands of units per hour can replenish in the minute that this may take.
                    let min = number % 7;
                    assert!(
                        (min..=min + 100).contains(&left),
                        "{left} of key {number}, of which {min} were left"
                    );
                }
            }
        },
    );
}

/// A refund is not converted: 49 units that come back must not become 49,000 to spend.
#[test]
fn a_reservation_asks_what_a_raised_capacity_allows() {
    let of = |capacity| plain(Limit::calls("units", capacity, MINUTE));
    let live = Live::new(of(10));
    let request = live.other.request().with("units", 15).expect("declared");
    live.apply(of(20));
    let reserved = request.reserve(MINUTE).expect("may be had by now");
    assert!(matches!(reserved, ReserveOutcome::Reserved(_)));
}

/// Whichever rule charged the units, the rule that replaced it does not know what they are worth.
#[test]
fn nothing_comes_back_of_what_was_reserved_before_a_change() {
    for algorithm in ALGORITHMS {
        let of = |capacity| plain(Limit::rate("units", capacity, MINUTE).algorithm(algorithm));
        let live = Live::new(of(100));
        let mut oldest = take(&live.other, 50);
        live.apply(of(200));
        let mut old = take(&live.other, 10);
        live.apply(of(300));
        let mut present = take(&live.other, 10);
        let before = remaining(&live.set, None);
        for (permit, refunded) in [(&mut oldest, 0), (&mut old, 0), (&mut present, 10)] {
            assert_eq!(
                permit.settle([("units", 0)]).expect("works").refunded("units"),
                refunded,
                "{algorithm:?}"
            );
        }
        assert_eq!(remaining(&live.set, None), before + 10, "{algorithm:?}");
    }
}

#[test]
fn how_a_limit_stood_is_told_by_the_definition_that_decided() {
    let of = |capacity| plain(Limit::rate("units", capacity, MINUTE));
    let live = Live::new(of(10));
    let permit = take(&live.set, 4);
    let refusal = ask(&live.set, 7)
        .into_result()
        .map(drop)
        .expect_err("six are left");
    live.apply(of(1_000));
    assert_eq!(remaining(&live.set, None), 6);
    for verdict in permit.verdicts().chain(refusal.verdicts()) {
        assert_eq!((verdict.remaining, verdict.burst), (6, 10));
        assert_eq!(verdict.reset_after, 4 * MINUTE / 10);
    }
}

#[test]
fn nothing_comes_back_of_a_grant_that_is_claimed_after_a_change() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    let of = |capacity| {
        let rate = Limit::rate("units", capacity, MINUTE).burst(100);
        plain(rate).add_limit(Limit::concurrency("places", 1))
    };
    let live = Live::new(of(60));
    let held = take(&live.set, 0);
    let request = live.set.request().with("units", 50).expect("declared");
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting = Box::pin(request.acquire_async(None));
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    drop(held);
    // Granted now: of the fifty units, ten are replenished before the change, and half a unit after it.
    live.scene.pass(10 * MINUTE / 60);
    live.apply(of(1));
    live.scene.pass(MINUTE / 2);
    let Poll::Ready(outcome) = waiting.as_mut().poll(&mut context) else {
        panic!("granted by who gave back");
    };
    let mut permit = outcome.expect("works").into_result().expect("granted");
    assert_eq!(permit.settle([("units", 0)]).expect("works").refunded("units"), 0);
    assert_eq!(remaining(&live.other, None), 60);
}

#[test]
fn a_raised_sliding_window_admits_all_of_its_new_capacity() {
    let sliding = |capacity| Limit::calls("units", capacity, MINUTE).algorithm(Algorithm::SlidingWindow);
    for (before, after) in [(2, 60), (10, 100)] {
        let live = Live::new(plain(sliding(before)));
        for _ in 0..before {
            drop(take(&live.set, 1));
        }
        let changes = live.apply(plain(sliding(after)));
        assert_eq!(
            changes,
            [format!(
                "set \"api\" / limit \"units\" / capacity: declared {after}, in the segment {before}"
            )]
        );
        // Whatever was taken before the change has expired.
        live.scene.clock.advance_to(live.scene.clock.now() + MINUTE);
        for _ in 0..10 * after {
            assert!(
                matches!(ask(&live.set, 1), Outcome::Admitted(_)),
                "{before} raised to {after}"
            );
            live.scene
                .clock
                .advance_to(live.scene.clock.now() + MINUTE / after as u32);
        }
    }
}

#[test]
fn a_segment_keeps_the_entries_that_it_has_whatever_the_default_is() {
    let sliding = |capacity| Limit::calls("units", capacity, MINUTE).algorithm(Algorithm::SlidingWindow);
    type Form = fn(Limit) -> SetDeclaration;
    for (asked, declared, entries) in [
        (keyed as Form, Some(1024), 1024),
        (keyed, None, 64),
        (plain, None, 1024),
    ] {
        let live = Live::new(asked(declared.into_iter().fold(sliding(500), Limit::entries)));
        let path = live.scene.segment.path();
        let open = |set| Segment::open_or_create(path, &declare(set));
        let opened = open(asked(sliding(500))).expect("the same");
        assert_eq!(opened.mismatches().len(), 0);
        assert_eq!(live.apply(asked(sliding(500))), [""; 0]);
        assert_eq!(live.apply(asked(sliding(600))).len(), 1);
        let in_force = live.scene.segment.declaration_in_force().expect("read");
        let in_force = in_force.to_toml().expect("valid");
        assert!(in_force.contains(&format!("entries = {entries}\n")), "{in_force}");
        open(asked(sliding(600).entries(entries))).expect("the same, written out");
        let refused = open(asked(sliding(600).entries(100))).expect_err("another size");
        let expected = format!("entries: declared 100, in the segment {entries}");
        assert!(refused.to_string().contains(&expected), "{refused}");
    }
}

#[test]
fn a_change_that_leaves_a_short_log_says_so_and_what_to_do() {
    let sliding = |capacity| Limit::calls("units", capacity, MINUTE).algorithm(Algorithm::SlidingWindow);
    let gold = |capacity| keyed(sliding(2)).add_tier(Tier::new("gold").capacity("units", capacity));
    let note = "its log keeps 2 entries: beyond as many requests in a window, units come back late by up to 1/2 of it; only \
                a new segment can have more, by `entries = 60`";
    for (stored, asked) in [
        (keyed(sliding(2)), keyed(sliding(60))),
        (plain(sliding(2).entries(2)), plain(sliding(60).entries(2))),
        (gold(2), gold(60)),
    ] {
        let live = Live::new(stored);
        let preview = SegmentReader::open(live.scene.segment.path()).expect("opens");
        let preview = preview.preview(&declare(asked.clone())).expect("can change");
        let [change] = &live.apply(asked)[..] else {
            panic!("one change")
        };
        assert!(
            change.ends_with(&format!("capacity: declared 60, in the segment 2 ({note})")),
            "{change}"
        );
        assert_eq!(preview[0].to_string(), *change);
    }
    let live = Live::new(keyed(sliding(2)));
    assert!(live.apply(keyed(sliding(5000)))[0].ends_with("by `entries = 64`)"));
    // There is nothing to warn about if a new segment would not have more either.
    let live = Live::new(keyed(sliding(5000)));
    assert!(!live.apply(keyed(sliding(9000)))[0].contains("entries"));
    let live = Live::new(keyed(sliding(60).entries(60)));
    assert!(!live.apply(keyed(sliding(30).entries(60)))[0].contains("entries"));
}
