//! Taking without holding: checks of one key and of many, debits, and forecasts.

use std::time::Duration;

use crate::scene;
use crate::scene::clock::{NANOSECOND, NEW_YEAR, Scene};
use crate::scene::{ALGORITHMS, create, expect_permit};
use proptest::prelude::*;
use shmlimit::declare::Align;
use shmlimit::snapshot::{Forecast, SetSnapshot};
use shmlimit::{
    Algorithm, Checked, Declaration, Error, Keyed, Limit, LimitSet, PermitError, RefusalReason, Request,
    RequestError, SetDeclaration, Tier, Window,
};

const MINUTE: Duration = Duration::from_secs(60);

fn with_sets(sets: impl IntoIterator<Item = SetDeclaration>) -> Scene {
    let declaration = sets.into_iter().fold(scene::declaration(), Declaration::add_set);
    Scene::declared(NEW_YEAR, &declaration)
}

fn snapshot_of(scene: &Scene, index: usize) -> SetSnapshot {
    scene.segment.snapshot().expect("a copy").sets.swap_remove(index)
}

fn plain(limit: Limit) -> SetDeclaration {
    SetDeclaration::new("api").add_limit(limit)
}

fn keyed(name: &str, max_keys: u64) -> SetDeclaration {
    SetDeclaration::new(name).keyed(Keyed::new(max_keys))
}

fn admitted(answers: &[Checked<'_>]) -> Vec<bool> {
    answers.iter().map(Checked::is_admitted).collect()
}

fn request(set: &LimitSet, cost: u64) -> Request<'_> {
    set.request().with("units", cost).expect("declared")
}

#[test]
fn a_check_takes_for_good_and_says_what_binds() {
    let scene = Scene::new(plain(Limit::calls("units", 2, MINUTE)));
    let set = scene.set();
    let first = set.request().check().expect("works");
    assert!(first.is_admitted() && first.refusal().is_none() && first.binding().is_none());
    assert_eq!(
        (first.reason(), first.retry_after()),
        (None, Some(Duration::ZERO))
    );
    assert_eq!(first.verdicts().map(|it| it.remaining).collect::<Vec<_>>(), [1]);
    assert!(set.request().check().expect("works").is_admitted());
    let refused = set.request().check().expect("works");
    assert_eq!((refused.is_admitted(), refused.binding()), (false, Some("units")));
    assert_eq!(
        (refused.reason(), refused.retry_after()),
        (Some(RefusalReason::Rate), Some(MINUTE / 2))
    );
    scene.pass(MINUTE / 2);
    assert!(set.request().check().expect("works").is_admitted());
    let counts = scene.snapshot().counts;
    assert_eq!((counts.admitted, counts.refused_rate), (3, 1));
}

#[test]
fn what_must_be_held_cannot_be_checked_but_can_be_asked() {
    let set = plain(Limit::concurrency("units", 2)).add_limit(Limit::calls("calls", 2, MINUTE));
    let scene = Scene::new(set);
    let set = scene.set();
    let error = set.request().check().expect_err("one would be held");
    assert!(matches!(error, Error::Request(RequestError::MustBeHeld { limit, .. }) if limit == "units"));
    assert!(request(&set, 0).check().expect("works").is_admitted());
    let error = request(&set, 0).with("calls", 3).expect("declared").check();
    assert!(matches!(
        error.expect_err("3 of 2"),
        Error::Request(RequestError::NeverAdmissible { cost: 3, max: 2, .. })
    ));
    let snapshot = scene.snapshot();
    assert_eq!((snapshot.counts.admitted, snapshot.active), (1, 0));
}

#[test]
fn checks_of_many_keys_are_answered_in_the_order_of_the_keys() {
    let scene = Scene::new(keyed("api", 10_000).add_limit(Limit::calls("units", 3, MINUTE)));
    let set = scene.set();
    let spent: Vec<String> = (0..500)
        .step_by(3)
        .map(|number| format!("key-{number}"))
        .collect();
    for _ in 0..3 {
        assert!(
            admitted(&set.request().check_many(&spent).expect("works"))
                .iter()
                .all(|it| *it)
        );
    }
    let all: Vec<String> = (0..500).rev().map(|number| format!("key-{number}")).collect();
    let answers = set.request().check_many(&all).expect("works");
    for (number, answer) in (0..500).rev().zip(&answers) {
        assert_eq!(answer.is_admitted(), number % 3 != 0, "key {number}");
        assert_eq!(
            answer.retry_after(),
            Some(if number % 3 == 0 {
                MINUTE / 3
            } else {
                Duration::ZERO
            })
        );
    }
    assert_eq!(answers.len(), 500);
    assert!(set.request().check_many::<&str>(&[]).expect("works").is_empty());
}

#[test]
fn a_key_that_is_named_twice_is_decided_twice_at_the_same_instant() {
    // On the real clock, on which a unit comes back between two readings.
    let limit = Limit::calls("units", 20_000, Duration::from_millis(1)).burst(1);
    let (_directory, _segment, set) = create(keyed("api", 10).add_limit(limit));
    for _ in 0..200 {
        let answers = set.request().check_many(&["a", "b", "a", "a"]).expect("works");
        assert_eq!(admitted(&answers), [true, true, false, false]);
    }
}

#[test]
fn a_check_of_a_key_without_a_row_is_refused_and_keeps_no_request_waiting() {
    let scene = Scene::new(keyed("api", 32).add_limit(Limit::calls("units", 1, MINUTE)));
    let set = scene.set();
    for number in 0..40 {
        let key = format!("key-{number}");
        let answer = set.request().for_key(key).expect("keyed").check().expect("works");
        assert_eq!(answer.is_admitted(), number < 32);
        let refused = (number >= 32).then_some(RefusalReason::TableFull);
        assert_eq!(answer.reason(), refused);
    }
}

#[test]
fn a_check_of_many_keys_refuses_the_ones_without_a_row() {
    let scene = Scene::new(keyed("api", 32).add_limit(Limit::calls("units", 1, MINUTE)));
    let set = scene.set();
    let names: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    let answers = set.request().check_many(&names).expect("works");
    let expected: Vec<bool> = (0..40).map(|number| number < 32).collect();
    assert_eq!(admitted(&answers), expected);
    assert!(
        answers[32..]
            .iter()
            .all(|answer| answer.reason() == Some(RefusalReason::TableFull))
    );
    assert_eq!(scene.snapshot().counts.refused_table_full, 8);
}

#[test]
fn a_check_of_many_keys_with_an_error_among_them_takes_nothing() {
    let scene = with_sets([
        keyed("api", 100).add_limit(Limit::calls("units", 2, MINUTE)),
        SetDeclaration::new("plain").add_limit(Limit::calls("units", 2, MINUTE)),
    ]);
    let set = scene.set();
    let error = set
        .request()
        .check_many(&["a", "", "b"])
        .expect_err("an empty key");
    assert!(matches!(error, Error::Request(RequestError::InvalidKey { .. })));
    let error = request(&set, 3).check_many(&["a", "b"]).expect_err("3 of 2");
    assert!(
        matches!(
            error,
            Error::Request(RequestError::NeverAdmissible { cost: 3, max: 2, .. })
        ),
        "{error}"
    );
    let plain = scene.segment.set("plain").expect("declared");
    let error = plain.request().check_many(&["a"]).expect_err("no keys there");
    assert!(matches!(error, Error::Request(RequestError::NotKeyed { .. })));
    assert_eq!(scene.snapshot().counts.admitted, 0);
}

#[test]
fn the_debit_that_crosses_the_line_counts_in_full_and_later_ones_wait_for_the_window_to_turn() {
    let limit = || Limit::budget("units", 100, MINUTE).align(Align::FirstUse);
    let scene = with_sets([plain(limit()), keyed("keyed", 10).add_limit(limit())]);
    let set = scene.set();
    let of_keys = scene.segment.set("keyed").expect("declared");
    let debit = |used| {
        let of_key = of_keys
            .key("a")
            .expect("a key")
            .debit("units", used)
            .expect("works")
            .is_admitted();
        let of_set = set.debit("units", used).expect("works");
        assert_eq!(of_set.is_admitted(), of_key);
        of_set
    };
    assert!(debit(99).is_admitted());
    assert!(debit(500).is_admitted(), "one unit was left");
    for used in [1, 0] {
        let refused = debit(used);
        assert_eq!(
            (refused.reason(), refused.binding()),
            (Some(RefusalReason::Budget), Some("units"))
        );
        assert_eq!(refused.retry_after(), Some(MINUTE));
    }
    assert_eq!(scene.snapshot().limits[0].counts.taken, 599);
    let other = of_keys.key("b").expect("a key").debit("units", 7).expect("works");
    assert_eq!(other.verdicts().next().expect("one").remaining, 93);
    scene.pass(MINUTE - NANOSECOND);
    assert!(!debit(1).is_admitted());
    scene.pass(NANOSECOND);
    assert!(
        debit(1).is_admitted(),
        "599 of 100 are forgotten when the window turns"
    );
}

#[test]
fn only_budgets_are_debited() {
    let set = plain(Limit::calls("units", 1, MINUTE)).add_limit(Limit::budget("tokens", 1, MINUTE));
    let scene = Scene::new(set);
    let set = scene.set();
    assert!(
        matches!(set.debit("units", 1), Err(Error::Request(RequestError::NotABudget { limit, .. })) if limit == "units")
    );
    assert!(matches!(
        set.debit("absent", 1),
        Err(Error::Request(RequestError::UnknownLimit { .. }))
    ));
    let mut permit = expect_permit(set.request().try_acquire());
    assert!(matches!(
        permit.debit("units", 1),
        Err(Error::Request(RequestError::NotABudget { .. }))
    ));
    assert!(permit.debit("tokens", 5).expect("works").is_admitted());
    permit.release().expect("works");
    assert!(matches!(
        permit.debit("tokens", 1),
        Err(Error::Permit(PermitError::AlreadyReleased { .. }))
    ));
}

#[test]
fn what_was_spent_is_debited_before_and_after_the_permit_is_settled() {
    let scene =
        Scene::new(plain(Limit::budget("tokens", 100, MINUTE)).add_limit(Limit::rate("units", 10, MINUTE)));
    let set = scene.set();
    let spent = || scene.snapshot().limits[0].counts.taken;
    let mut permit = expect_permit(set.request().with("units", 10).expect("declared").try_acquire());
    assert!(permit.debit("tokens", 30).expect("works").is_admitted());
    permit.settle([("units", 4), ("tokens", 50)]).expect("works");
    assert_eq!(spent(), 50, "30 of 50 were debited before");
    assert!(permit.debit("tokens", 60).expect("works").is_admitted());
    assert!(!permit.debit("tokens", 7).expect("works").is_admitted());
    assert_eq!(spent(), 117);
    permit.release().expect("works");
    assert_eq!(spent(), 117);
    permit.cancel().expect("works");
    assert_eq!(spent(), 117, "what was spent stays spent");
}

#[test]
fn a_stream_is_debited_chunk_by_chunk_and_settled_to_what_it_used() {
    let limit = Limit::budget("units", 100, MINUTE).align(Align::FirstUse);
    let scene = Scene::new(keyed("api", 10).add_limit(limit));
    let set = scene.set();
    let request = set.request().for_key("a").expect("keyed");
    let remaining = || request.peek().expect("works")[0].remaining;
    let mut permit = expect_permit(request.try_acquire());
    for left in [70, 40, 10, 0] {
        assert!(permit.debit("units", 30).expect("works").is_admitted());
        assert_eq!(remaining(), left);
    }
    let refused = permit.debit("units", 30).expect("works");
    assert_eq!(refused.reason(), Some(RefusalReason::Budget));
    assert_eq!(
        scene.snapshot().limits[0].counts.taken,
        150,
        "what was used counts, whatever was left"
    );
    scene.pass(MINUTE);
    assert!(permit.debit("units", 30).expect("works").is_admitted());
    // 180 were debited; of the 185 used, five are new.
    permit.settle([("units", 185)]).expect("works");
    assert_eq!(remaining(), 65);
    assert_eq!(scene.snapshot().limits[0].counts.taken, 185);
}

#[test]
fn every_debit_under_a_permit_counts_and_those_without_one_end_with_the_budget() {
    let budget = || Limit::budget("units", 100, MINUTE).align(Align::FirstUse);
    let tiered = keyed("tiered", 10)
        .add_limit(budget())
        .add_tier(Tier::new("small").capacity("units", 50));
    let overridden = SetDeclaration::new("overridden")
        .keyed(Keyed::new(10).overrides(true))
        .add_limit(budget());
    let scene = with_sets([
        plain(budget()),
        keyed("keyed", 10).add_limit(budget()),
        tiered,
        overridden,
        SetDeclaration::new("shadow").add_limit(budget().shadow(true)),
        SetDeclaration::new("calendar").add_limit(Limit::budget("units", 100, Window::Month)),
    ]);
    scene
        .segment
        .set("tiered")
        .expect("declared")
        .key("a")
        .expect("a key")
        .assign("small")
        .expect("declared");
    let of_override = scene.segment.set("overridden").expect("declared");
    of_override
        .key("a")
        .expect("a key")
        .override_capacity("units", 70)
        .expect("allowed");
    for (index, set) in scene.segment.snapshot().expect("a copy").sets.iter().enumerate() {
        let handle = scene.segment.set(&set.name).expect("declared");
        let subject = handle.is_keyed().then(|| handle.key("a").expect("a key"));
        let mut request = handle.request();
        if handle.is_keyed() {
            request.set_key("a").expect("keyed");
        }
        let mut permit = expect_permit(request.try_acquire());
        let answers = [30, 300, 40, 5].map(|used| permit.debit("units", used).expect("works").is_admitted());
        let in_shadow = set.name == "shadow";
        assert_eq!(answers, [true, true, in_shadow, in_shadow], "{}", set.name);
        let taken = || snapshot_of(&scene, index).limits[0].counts.taken;
        assert_eq!(taken(), 375, "{}", set.name);
        assert_eq!(permit.taken().next(), Some(("units", 375)), "{}", set.name);
        permit.settle([("units", 375)]).expect("works");
        let bare = match &subject {
            Some(key) => key.debit("units", 9),
            None => handle.debit("units", 9),
        };
        assert_eq!(bare.expect("works").is_admitted(), in_shadow, "{}", set.name);
        if !in_shadow {
            assert_eq!(taken(), 375, "{}", set.name);
        }
    }
}

#[test]
fn a_stream_of_a_key_for_which_there_is_no_row_any_more_is_refused() {
    let limit = Limit::budget("units", 100, MINUTE).align(Align::FirstUse);
    let scene = Scene::new(keyed("api", 32).add_limit(limit));
    let set = scene.set();
    let request = set.request().for_key("a").expect("keyed");
    let mut permit = expect_permit(request.try_acquire());
    for number in 0..32 {
        let other = set.key(format!("key-{number}")).expect("a key");
        assert!(other.debit("units", 1).expect("works").is_admitted());
    }
    for _ in 0..2 {
        let refused = permit.debit("units", 50).expect("works");
        assert_eq!(refused.reason(), Some(RefusalReason::TableFull));
    }
    scene.pass(MINUTE);
    assert!(permit.debit("units", 50).expect("works").is_admitted());
    assert_eq!(request.peek().expect("works")[0].remaining, 50);
}

#[test]
fn a_limit_in_shadow_decides_and_counts_and_refuses_no_request() {
    let shadow = || Limit::calls("units", 2, MINUTE).shadow(true);
    let scene = with_sets([
        plain(shadow()).add_limit(Limit::calls("calls", 4, MINUTE)),
        keyed("keyed", 32).add_limit(shadow()),
        SetDeclaration::new("whole")
            .shadow(true)
            .add_limit(Limit::concurrency("units", 1)),
    ]);
    let set = scene.set();
    let outcomes: Vec<bool> = (0..5)
        .map(|_| set.request().check().expect("works").is_admitted())
        .collect();
    assert_eq!(
        outcomes,
        [true, true, true, true, false],
        "the other limit refuses the fifth"
    );
    let snapshot = scene.snapshot();
    let [units, calls] = [0, 1].map(|limit| snapshot.limits[limit].counts);
    assert_eq!(
        (units.admitted, units.taken, units.refused, units.would_refuse),
        (2, 2, 0, 2)
    );
    assert_eq!((calls.admitted, calls.refused), (4, 1));
    let of_keys = scene.segment.set("keyed").expect("declared");
    for round in 0..3 {
        for number in 0..40 {
            let key = format!("key-{number}");
            let outcome = of_keys
                .request()
                .for_key(key)
                .expect("keyed")
                .try_acquire()
                .expect("works");
            assert!(
                outcome.is_admitted(),
                "round {round} of key {number}, with a row or without"
            );
        }
    }
    // Eight keys have no row, and the others are refused the third time.
    assert_eq!(snapshot_of(&scene, 1).limits[0].counts.would_refuse, 3 * 8 + 32);
    let whole = scene.segment.set("whole").expect("declared");
    let permits: Vec<_> = (0..3)
        .map(|_| expect_permit(whole.request().try_acquire()))
        .collect();
    assert_eq!(snapshot_of(&scene, 2).limits[0].counts.would_refuse, 2);
    drop(permits);
    let after = snapshot_of(&scene, 2);
    assert_eq!((after.active, after.limits[0].remaining), (0, 1));
}

#[test]
fn admissions_that_leave_a_limit_near_its_capacity_are_counted() {
    let of = |percent: Option<u8>| {
        let limit = Limit::calls("units", 10, MINUTE);
        plain(percent.map_or(limit.clone(), |percent| limit.near_limit(percent)))
    };
    for (percent, near) in [(None, 3), (Some(50), 6), (Some(100), 1)] {
        let scene = Scene::new(of(percent));
        let set = scene.set();
        for _ in 0..12 {
            let _ = set.request().check().expect("works");
        }
        assert_eq!(
            scene.snapshot().limits[0].counts.near,
            near,
            "from {percent:?} % on"
        );
    }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let algorithms = prop::sample::select(ALGORITHMS.to_vec());
    (algorithms, 1..20_u64, 1_000_000..100_000_000_000_u64).prop_map(|(algorithm, capacity, window)| {
        Limit::rate("units", capacity, Duration::from_nanos(window)).algorithm(algorithm)
    })
}

fn forecast(set: &LimitSet) -> Forecast<'_> {
    set.key("a").expect("keyed").forecast().expect("works").remove(0)
}

#[test]
fn no_time_is_forecast_for_what_comes_back_when_its_holders_give_it_back() {
    let scene = Scene::new(plain(Limit::concurrency("units", 2)));
    let set = scene.set();
    let take = || expect_permit(set.request().try_acquire());
    let forecast = || {
        let forecast = set.forecast().expect("works").remove(0);
        (forecast.spendable, forecast.next_unit_after, forecast.full_after)
    };
    let full = (2, None, Some(Duration::ZERO));
    assert_eq!(forecast(), full);
    let first = take();
    assert_eq!(forecast(), (1, None, None));
    let second = take();
    assert_eq!(forecast(), (0, None, None));
    drop((first, second));
    assert_eq!(forecast(), full);
}

/// On the machine's clocks: sub-windows are those of the wall clock, and the count of one is forgotten when the next
/// but one begins.
#[test]
fn sub_windows_begin_at_multiples_of_their_length_since_the_unix_epoch() {
    const HOUR: u64 = 3600;
    let limit = Limit::rate("units", 5, Duration::from_secs(HOUR))
        .algorithm(Algorithm::SlidingWindowCounter)
        .buckets(1);
    let (_directory, _segment, set) = create(SetDeclaration::new("api").add_limit(limit));
    assert!(request(&set, 1).check().expect("works").is_admitted());
    let utc = || {
        let now = std::time::SystemTime::now();
        now.duration_since(std::time::UNIX_EPOCH)
            .expect("after the epoch")
    };
    // A segment's clock begins at this instant at the latest: one that began later would end too soon.
    const LATEST_BEGIN: u64 = 1 << 62;
    if utc() > Duration::from_nanos(LATEST_BEGIN) {
        println!("skipped: the segment clock shows no wall-clock time from the year 2116 on");
        return;
    }
    let before = utc();
    let reset_after = request(&set, 0).peek().expect("works")[0].reset_after;
    let after = utc();
    // The wall clock may have been adjusted in between.
    let second = Duration::from_secs(1);
    let (earliest, latest) = (before + reset_after - second, after + reset_after + second);
    let boundary = Duration::from_secs(latest.as_secs() / HOUR * HOUR);
    assert!(
        earliest <= boundary,
        "{earliest:?} to {latest:?}, from {before:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_next_unit_and_the_whole_come_when_they_were_forecast(
        limit in any_limit(), uses in prop::collection::vec((1..20_u64, 0..10_000_000_000_u64), 1..20),
    ) {
        let capacity = limit.capacity().clone();
        let shmlimit::declare::Amount::Whole(capacity) = capacity else { unreachable!("declared so") };
        let scene = Scene::new(keyed("api", 100).add_limit(limit));
        let set = scene.set();
        let ask = |cost| request(&set, cost).for_key("a").expect("keyed");
        let can_have = |cost| {
            let verdicts = ask(cost).peek().expect("works");
            verdicts[0].admitted
        };
        prop_assert_eq!(forecast(&set).spendable, capacity);
        for (cost, pause) in uses {
            let _ = ask(cost.min(capacity)).check().expect("works");
            let ahead = forecast(&set);
            prop_assert!(can_have(ahead.spendable));
            prop_assert!(ahead.spendable == capacity || !can_have(ahead.spendable + 1));
            if let Some(wait) = ahead.next_unit_after {
                prop_assert!(wait > Duration::ZERO);
                scene.pass(wait - NANOSECOND);
                prop_assert!(!can_have(ahead.spendable + 1));
                scene.pass(NANOSECOND);
                prop_assert!(can_have(ahead.spendable + 1));
                prop_assert!(forecast(&set).spendable > ahead.spendable);
            } else {
                prop_assert_eq!(ahead.spendable, capacity);
            }
            let ahead = forecast(&set);
            let wait = ahead.full_after.expect("a known time");
            prop_assert_eq!(wait == Duration::ZERO, forecast(&set).full_after == Some(Duration::ZERO));
            if wait > Duration::ZERO && pause % 3 == 0 {
                scene.pass(wait - NANOSECOND);
                prop_assert_eq!(forecast(&set).full_after, Some(NANOSECOND));
                scene.pass(NANOSECOND);
                let full = forecast(&set);
                prop_assert_eq!((full.spendable, full.next_unit_after, full.full_after), (capacity, None, Some(Duration::ZERO)));
            }
            scene.pass(Duration::from_nanos(pause));
        }
    }

    #[test]
    fn a_check_of_many_keys_comes_to_what_one_check_after_the_other_does(
        limit in any_limit(),
        rounds in prop::collection::vec((prop::collection::vec(0..40_u64, 0..30), 0..4_u64, 0..5_000_000_000_u64), 1..20),
    ) {
        let scene = with_sets([keyed("many", 2_000).add_limit(limit.clone()), keyed("single", 2_000).add_limit(limit)]);
        let [many, single] = ["many", "single"].map(|name| scene.segment.set(name).expect("declared"));
        for (keys, cost, pause) in rounds {
            let keys: Vec<[u8; 8]> = keys.into_iter().map(u64::to_le_bytes).collect();
            let Ok(answers) = request(&many, cost).check_many(&keys) else {
                continue; // above the capacity
            };
            for (key, answer) in keys.iter().zip(answers) {
                let expected = request(&single, cost).for_key(key).expect("a key").check().expect("works");
                prop_assert_eq!(answer.is_admitted(), expected.is_admitted());
                prop_assert_eq!(answer.retry_after(), expected.retry_after());
                let verdicts: Vec<_> = answer.verdicts().collect();
                prop_assert_eq!(verdicts, expected.verdicts().collect::<Vec<_>>());
            }
            scene.pass(Duration::from_nanos(pause));
        }
        let [many, single] = [0, 1].map(|index| snapshot_of(&scene, index));
        prop_assert_eq!(many.counts.admitted, single.counts.admitted);
        prop_assert_eq!(many.counts.refused_rate, single.counts.refused_rate);
        prop_assert_eq!(many.limits[0].counts, single.limits[0].counts);
        prop_assert_eq!(many.keys.expect("keyed").in_use, single.keys.expect("keyed").in_use);
    }
}
