//! How much of another declaration a segment can take over.

use crate::choices::{Kind, WhenFull};
use proptest::prelude::*;

use super::random_tests::{declarations, limits};
use crate::declaration::tests::*;

fn changes(new: &Declaration, stored: &Declaration) -> Vec<String> {
    let applied = new.applied_to(stored).expect("applicable");
    applied.validate().expect("valid where both are");
    texts(&applied.differences(stored))
}

fn refused(new: &Declaration, stored: &Declaration) -> Vec<String> {
    texts(&new.applied_to(stored).expect_err("not applicable"))
}

/// The changes to a set "s" with one limit "l", without their place.
fn limit_changes(new: Limit, stored: Limit) -> Vec<String> {
    bare(changes(&declaring(new), &declaring(stored)))
}

fn limit_refused(new: Limit, stored: Limit) -> Vec<String> {
    bare(refused(&declaring(new), &declaring(stored)))
}

fn bare(texts: Vec<String>) -> Vec<String> {
    let place = r#"set "s" / limit "l" / "#;
    texts.into_iter().map(|text| text.replace(place, "")).collect()
}

fn sets(sets: impl IntoIterator<Item = SetDeclaration>) -> Declaration {
    sets.into_iter().fold(Declaration::new(), Declaration::add_set)
}

#[test]
fn a_capacity_changes_and_its_burst_with_it() {
    assert_eq!(
        limit_changes(Limit::calls("l", 20, MINUTE), Limit::calls("l", 10, MINUTE)),
        [
            "burst: declared 20, in the segment 10",
            "capacity: declared 20, in the segment 10"
        ]
    );
    assert_eq!(
        limit_changes(
            Limit::calls("l", 20, MINUTE).burst(5),
            Limit::calls("l", 20, MINUTE)
        ),
        ["burst: declared 5, in the segment 20"]
    );
    let drained = |text: &str| Declaration::from_toml(&limit_toml(text)).expect("valid");
    let leaky = "kind = \"calls\", algorithm = \"leaky_bucket\", capacity = 100";
    assert_eq!(
        bare(changes(
            &drained(&format!("{leaky}, rate = 10, interval = \"2s\"")),
            &drained(&format!("{leaky}, rate = 5, interval = \"1s\"")),
        )),
        [
            "interval: declared \"2s\", in the segment \"1s\"",
            "rate: declared 10, in the segment 5",
        ]
    );
    assert_eq!(
        bare(changes(
            &drained(
                "kind = \"calls\", algorithm = \"leaky_bucket\", capacity = 50, rate = 5, interval = \"1s\""
            ),
            &drained(&format!("{leaky}, rate = 5, interval = \"1s\"")),
        )),
        ["capacity: declared 50, in the segment 100"],
        "the size of the bucket, and not the rate"
    );
}

#[test]
fn a_leaky_bucket_changes_the_words_that_it_is_declared_in() {
    let drained = |text: &str| Declaration::from_toml(&limit_toml(text)).expect("valid");
    let leaky = "kind = \"calls\", algorithm = \"leaky_bucket\"";
    let by_rate = drained(&format!("{leaky}, capacity = 4, rate = 2, interval = \"1s\""));
    let by_window = drained(&format!("{leaky}, capacity = 2, window = \"1s\", burst = 4"));
    for (new, stored) in [(&by_rate, &by_window), (&by_window, &by_rate)] {
        assert_eq!(changes(new, stored), [""; 0], "they mean the same");
    }
    let faster = drained(&format!("{leaky}, capacity = 4, rate = 3, interval = \"1s\""));
    assert_eq!(
        bare(changes(&faster, &by_window)),
        ["capacity: declared 3, in the segment 2"]
    );
    let applied = faster.applied_to(&by_window).expect("applicable");
    assert!(applied.to_toml().expect("valid").contains("rate = 3"));
}

#[test]
fn a_window_changes_its_length_but_not_what_it_is_aligned_to() {
    let fixed = |window: Window| Limit::calls("l", 5, window).algorithm(Algorithm::FixedWindow);
    let length = fixed(MINUTE.into());
    assert_eq!(
        limit_changes(fixed((2 * MINUTE).into()), length.clone()),
        ["window: declared \"2m\", in the segment \"1m\""]
    );
    assert_eq!(
        limit_refused(length.clone().align(Align::FirstUse), length.clone()),
        ["align: declared \"first_use\", in the segment \"utc\""]
    );
    for (new, stored) in [
        (fixed(Window::Day), length.clone()),
        (length, fixed(Window::Day)),
        (fixed(Window::Month), fixed(Window::Day)),
    ] {
        let refused = limit_refused(new, stored);
        assert!(
            refused.iter().any(|text| text.starts_with("window: ")),
            "{refused:?}"
        );
    }
    assert_eq!(
        limit_changes(fixed(Window::Day).utc_offset_minutes(60), fixed(Window::Day)),
        ["utc_offset: declared \"+01:00\", in the segment \"+00:00\""]
    );
    assert_eq!(
        limit_refused(
            fixed(Window::Week).week_start(Weekday::Sunday),
            fixed(Window::Week)
        ),
        ["week_start: declared \"sunday\", in the segment \"monday\""]
    );
    assert_eq!(limit_changes(fixed(Window::Day), fixed(Window::Day)), [""; 0]);
}

#[test]
fn a_lease_comes_and_goes() {
    let endless = || Limit::concurrency("l", 5);
    let lent = |seconds| endless().lease(Duration::from_secs(seconds));
    for (new, stored, change) in [
        (
            lent(20),
            lent(10),
            "lease: declared \"20s\", in the segment \"10s\"",
        ),
        (
            lent(20),
            endless(),
            "lease: declared \"20s\", in the segment absent",
        ),
        (
            endless(),
            lent(10),
            "lease: declared absent, in the segment \"10s\"",
        ),
    ] {
        assert_eq!(limit_changes(new, stored), [change]);
    }
}

#[test]
fn metadata_changes_entry_by_entry() {
    let set = || SetDeclaration::new("s").add_limit(Limit::concurrency("l", 5));
    let stored = sets([set().add_metadata("capacity", "a").add_metadata("region", "b")]);
    assert_eq!(
        changes(
            &sets([set().add_metadata("region", "c").add_metadata("tier", "d")]),
            &stored
        ),
        [
            r#"set "s" / metadata / region: declared "c", in the segment "b""#,
            r#"set "s" / metadata / tier: declared "d", in the segment absent"#,
            r#"set "s" / metadata / capacity: declared absent, in the segment "a""#,
        ]
    );
    assert_eq!(changes(&sets([set()]), &stored).len(), 2);
}

#[test]
fn how_long_a_grant_is_kept_changes() {
    let set = || SetDeclaration::new("s").add_limit(Limit::calls("l", 5, MINUTE));
    let kept = |millis| sets([set().collect_within(Duration::from_millis(millis))]);
    assert_eq!(
        changes(&kept(250), &sets([set()])),
        [r#"set "s" / collect_within: declared "250ms", in the segment absent"#]
    );
    assert_eq!(
        changes(&sets([set()]), &kept(250)),
        [r#"set "s" / collect_within: declared absent, in the segment "250ms""#]
    );
    assert_eq!(changes(&kept(1000), &sets([set()])), [""; 0]);
    for refused in [99, 3_600_001] {
        let error = kept(refused).validate().expect_err("out of range").to_string();
        assert!(error.contains("choose from \"100ms\" to \"1h\""), "{error}");
    }
}

#[test]
fn shadow_refunds_and_what_is_near_change() {
    let limit = |name: &str| Limit::calls(name, 5, MINUTE);
    let stored = sets([SetDeclaration::new("s")
        .add_limit(limit("a"))
        .add_limit(limit("b").shadow(true))]);
    let shadow = sets([SetDeclaration::new("s")
        .shadow(true)
        .add_limit(limit("a"))
        .add_limit(limit("b"))]);
    assert_eq!(
        changes(&shadow, &stored),
        [r#"set "s" / limit "a" / shadow: declared true, in the segment false"#]
    );
    let near = limit("l").near_limit(95);
    assert_eq!(
        limit_changes(near, limit("l")),
        ["near_limit: declared 95, in the segment 80"]
    );
    assert_eq!(
        limit_changes(limit("l").refund(false), limit("l")),
        ["refund: declared false, in the segment true"]
    );
}

#[test]
fn an_adaptive_capacity_changes_its_bounds_but_not_how_it_moves() {
    let limit = || Limit::concurrency("l", 20).adaptive(Adaptive::Aimd).ceiling(200);
    let moved = Limit::concurrency("l", 30)
        .adaptive(Adaptive::Aimd)
        .floor(5)
        .ceiling(300)
        .latency_limit(Duration::from_secs(2));
    assert_eq!(
        limit_changes(moved, limit()),
        [
            "capacity: declared 30, in the segment 20",
            "ceiling: declared 300, in the segment 200",
            "floor: declared 5, in the segment 1",
            "latency_limit: declared \"2s\", in the segment absent",
        ]
    );
    assert_eq!(
        limit_refused(limit().adaptive(Adaptive::Vegas), limit()),
        ["adaptive: declared \"vegas\", in the segment \"aimd\""]
    );
    assert_eq!(
        limit_refused(Limit::concurrency("l", 20), limit()),
        ["adaptive: declared absent, in the segment \"aimd\""]
    );
    assert_eq!(
        limit_refused(limit(), Limit::concurrency("l", 20)),
        ["adaptive: declared \"aimd\", in the segment absent"]
    );
}

#[test]
fn a_table_changes_what_it_does_when_full_and_nothing_else() {
    let of = |keyed: Keyed| {
        let set = SetDeclaration::new("s").keyed(keyed);
        sets([set.add_limit(Limit::calls("l", 5, MINUTE))])
    };
    let stored = of(Keyed::new(5));
    assert_eq!(
        changes(&of(Keyed::new(5).when_full(WhenFull::EvictOldest)), &stored),
        [r#"set "s" / keyed / when_full: declared "evict_oldest", in the segment "refuse""#]
    );
    let other = Keyed::new(6).store_keys(false).when_full(WhenFull::EvictOldest);
    assert_eq!(
        refused(&of(other), &stored),
        [
            r#"set "s" / keyed / max_keys: declared 6, in the segment 5"#,
            r#"set "s" / keyed / store_keys: declared false, in the segment true"#,
        ]
    );
    let unkeyed = declaring(Limit::calls("l", 5, MINUTE));
    for (new, old) in [(&unkeyed, &stored), (&stored, &unkeyed)] {
        let refused = refused(new, old);
        assert!(
            refused
                .iter()
                .any(|text| text.starts_with(r#"set "s" / keyed: "#)),
            "{refused:?}"
        );
    }
}

#[test]
fn what_a_limit_is_does_not_change() {
    let calls = || Limit::calls("l", 5, MINUTE);
    let rate = || Limit::rate("l", 5, MINUTE);
    let counter = || calls().algorithm(Algorithm::SlidingWindowCounter);
    let sliding = || calls().algorithm(Algorithm::SlidingWindow);
    for (new, stored, difference) in [
        (
            rate().unit("1"),
            rate().unit("0.1"),
            "unit: declared \"1\", in the segment \"0.1\"",
        ),
        (
            counter().buckets(5),
            counter(),
            "buckets: declared 5, in the segment 10",
        ),
        (
            sliding().entries(9),
            sliding(),
            "entries: declared 9, in the segment 1024",
        ),
        (
            Limit::calls("l", "unlimited", MINUTE),
            calls(),
            "capacity: declared \"unlimited\", in the segment 5",
        ),
        (
            calls(),
            Limit::calls("l", "unlimited", MINUTE),
            "capacity: declared 5, in the segment \"unlimited\"",
        ),
    ] {
        assert_eq!(limit_refused(new, stored), [difference]);
    }
    let kind = limit_refused(rate(), calls());
    assert_eq!(kind[0], "kind: declared \"rate\", in the segment \"calls\"");
}

#[test]
fn a_prefix_does_not_change() {
    let of = |limit: Limit| sets([SetDeclaration::new("s").keyed(Keyed::new(5)).add_limit(limit)]);
    let limit = || Limit::calls("l", 5, MINUTE);
    assert_eq!(
        refused(&of(limit().prefix(24, 56)), &of(limit().prefix(24, 48))),
        [r#"set "s" / limit "l" / prefix / ipv6: declared 56, in the segment 48"#]
    );
    assert_eq!(
        refused(&of(limit()), &of(limit().prefix(24, 48))),
        [r#"set "s" / limit "l" / prefix: declared absent, in the segment { ipv4 = 24, ipv6 = 48 }"#]
    );
}

#[test]
fn sets_and_limits_are_not_added_removed_renamed_or_reordered() {
    let limit = |name: &str| Limit::concurrency(name, 5);
    let set = |name: &str| {
        SetDeclaration::new(name)
            .add_limit(limit("a"))
            .add_limit(limit("b"))
    };
    let stored = sets([set("s"), set("t")]);
    for (new, differences) in [
        (
            sets([set("s"), set("t"), set("u")]),
            vec![r#"set "u": declared present, in the segment absent"#],
        ),
        (
            sets([set("s")]),
            vec![r#"set "t": declared absent, in the segment present"#],
        ),
        (
            sets([set("s"), set("u")]),
            vec![
                r#"set "u": declared present, in the segment absent"#,
                r#"set "t": declared absent, in the segment present"#,
            ],
        ),
        (
            sets([set("t"), set("s")]),
            vec![r#"order of sets: declared ["t", "s"], in the segment ["s", "t"]"#],
        ),
        (
            sets([set("s"), set("t").add_limit(limit("c"))]),
            vec![r#"set "t" / limit "c": declared present, in the segment absent"#],
        ),
        (
            sets([set("s"), SetDeclaration::new("t").add_limit(limit("a"))]),
            vec![r#"set "t" / limit "b": declared absent, in the segment present"#],
        ),
        (
            sets([
                set("s"),
                SetDeclaration::new("t")
                    .add_limit(limit("b"))
                    .add_limit(limit("a")),
            ]),
            vec![r#"set "t" / order of limits: declared ["b", "a"], in the segment ["a", "b"]"#],
        ),
    ] {
        assert_eq!(refused(&new, &stored), differences);
    }
}

#[test]
fn the_sizes_of_a_segment_do_not_change() {
    let set = || SetDeclaration::new("s").add_limit(Limit::concurrency("l", 5));
    let stored = sets([set()]);
    assert_eq!(
        refused(&sets([set().holds(9).waiters(9)]).participants(9), &stored),
        [
            "segment / participants: declared 9, in the segment 256",
            r#"set "s" / holds: declared 9, in the segment 64"#,
            r#"set "s" / waiters: declared 9, in the segment 5120"#,
        ]
    );
    assert_eq!(
        changes(&stored.clone().path("/elsewhere").mode(0o666), &stored),
        [""; 0]
    );
}

#[test]
fn whether_holds_are_labelled_does_not_change() {
    let set = || SetDeclaration::new("s").add_limit(Limit::concurrency("l", 5));
    let (without, with) = (sets([set().labels(false)]), sets([set().labels(true)]));
    assert_eq!(
        refused(&with, &sets([set()])),
        [r#"set "s" / labels: declared true, in the segment absent"#]
    );
    assert_eq!(
        refused(&without, &with),
        [r#"set "s" / labels: declared absent, in the segment true"#]
    );
    assert_eq!(changes(&without, &sets([set()])), [""; 0]);
}

#[test]
fn sizes_that_follow_capacities_stay_when_those_change() {
    assert_eq!(
        limit_changes(Limit::concurrency("l", 50), Limit::concurrency("l", 5)),
        ["capacity: declared 50, in the segment 5"]
    );
    let sliding = |capacity: u64| Limit::calls("l", capacity, MINUTE).algorithm(Algorithm::SlidingWindow);
    assert_eq!(
        limit_changes(sliding(50), sliding(5)),
        ["capacity: declared 50, in the segment 5"]
    );
    let explicit = declaring(Limit::concurrency("l", 5));
    let stored = sets([SetDeclaration::new("s")
        .holds(7)
        .add_limit(Limit::concurrency("l", 5))]);
    let applied = explicit.applied_to(&stored).expect("applicable");
    assert_eq!(texts(&applied.differences(&stored)), [""; 0]);
    assert_eq!(applied.sets[0].holds, Some(7));
}

#[test]
fn what_cannot_change_is_named_without_what_could() {
    let new = Limit::rate("l", 9, 2 * MINUTE).algorithm(Algorithm::SlidingWindow);
    assert_eq!(
        limit_refused(new, Limit::rate("l", 5, MINUTE)),
        [
            "algorithm: declared \"sliding_window\", in the segment \"gcra\"",
            "entries: declared 1024, in the segment absent",
        ]
    );
}

#[test]
fn one_of_the_names_of_one_rule_becomes_another() {
    let by = |algorithm| declaring(Limit::calls("l", 9, MINUTE).burst(5).algorithm(algorithm));
    let by_rate = declaring(Limit::leaky_bucket("l", 5, 2, Duration::from_secs(7)));
    let declarations = [
        by(Algorithm::Gcra),
        by(Algorithm::TokenBucket),
        by(Algorithm::LeakyBucket),
        by_rate,
    ];
    for stored in &declarations {
        for asked in &declarations {
            let applied = asked.applied_to(stored).expect("applicable");
            assert_eq!(texts(&asked.differences(&applied)), [""; 0]);
            let rule = |declaration: &Declaration| declaration.compile().expect("valid")[0].limits[0].rule;
            assert_eq!(rule(&applied), rule(asked));
            assert!(rule(&applied).can_migrate(&rule(stored)));
        }
    }
    assert_eq!(
        texts(&by(Algorithm::LeakyBucket).differences_to_apply(&by(Algorithm::Gcra))),
        ["set \"s\" / limit \"l\" / algorithm: declared \"leaky_bucket\", in the segment \"gcra\""]
    );
}

/// The memory that a set and its limits live in.
#[derive(Debug, PartialEq)]
struct Memory {
    holds: u32,
    waiters: u32,
    keys: Option<u64>,
    state_words: Vec<usize>,
    held_limits: Vec<usize>,
}

fn memory(declaration: &Declaration) -> Vec<Memory> {
    let plans = declaration.compile().expect("valid").into_iter();
    plans
        .map(|set| Memory {
            holds: set.hold_capacity,
            waiters: set.waiters,
            keys: set.keyed.map(|keyed| keyed.max_keys),
            state_words: set.limits.iter().map(|limit| limit.rule.state_words()).collect(),
            held_limits: set.held_limits(),
        })
        .collect()
}

/// Changes every field that can change and for which `pick` is true.
fn changed(stored: &Declaration, pick: &[bool; 7], number: u32) -> Declaration {
    let mut new = stored.clone();
    let amount = u64::from(number);
    for set in &mut new.sets {
        if pick[0] {
            set.metadata.insert("changed".to_owned(), number.to_string());
        }
        for limit in &mut set.limits {
            let limited = !limit.capacity.is_unlimited();
            if pick[1] && limited && limit.adaptive.is_none() {
                limit.capacity = Amount::Whole(amount + 1);
            }
            if pick[2] && limited && limit.window.is_some_and(|window| !window.is_calendar()) {
                limit.window = Some(Window::Span(Duration::from_nanos(amount + 1)));
            }
            if pick[3] && limit.kind == Kind::Concurrency {
                limit.lease = Some(Window::Span(Duration::from_nanos(amount + 1)));
            }
            if pick[4] && set.shadow != Some(true) {
                limit.shadow = Some(number.is_multiple_of(2));
            }
            if pick[5] {
                limit.near_limit = Some(number % 100 + 1);
            }
            if pick[6] && matches!(limit.kind, Kind::Calls | Kind::Rate) {
                limit.refund = Some(number.is_multiple_of(3));
            }
        }
    }
    new
}

proptest! {
    #[test]
    fn what_is_applied_is_then_declared_and_needs_no_other_memory(
        stored in declarations(),
        pick: [bool; 7],
        number: u32,
    ) {
        let new = changed(&stored, &pick, number);
        prop_assume!(new.validate().is_ok());
        let applied = match new.applied_to(&stored) {
            Ok(applied) => applied,
            Err(refused) => return Err(TestCaseError::fail(format!("{:?}", texts(&refused)))),
        };
        prop_assert_eq!(memory(&applied), memory(&stored));
        let again = new.applied_to(&applied).expect("applicable once more");
        prop_assert_eq!(texts(&again.differences(&applied)), [""; 0]);
        // Only sizes that are not declared may differ from those of a new segment.
        for difference in new.differences(&applied) {
            let path = difference.path();
            prop_assert!(path.ends_with(" / holds") || path.ends_with(" / entries"), "{}", difference);
        }
    }

    #[test]
    fn another_limit_needs_another_segment_or_no_other_memory(stored in declarations(), other in limits()) {
        let mut new = stored.clone();
        if let Some(limit) = new.sets[0].limits.last_mut() {
            *limit = Limit { name: limit.name.clone(), prefix: limit.prefix, ..other };
        }
        prop_assume!(new.validate().is_ok());
        match new.applied_to(&stored) {
            Ok(applied) => prop_assert_eq!(memory(&applied), memory(&stored)),
            Err(refused) => {
                let differences = texts(&new.differences(&stored));
                for refused in texts(&refused) {
                    prop_assert!(differences.contains(&refused), "{}", refused);
                }
            }
        }
    }
}
