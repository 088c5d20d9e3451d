//! Tiers: what they can and cannot change in the limits.

use crate::choices::Scope;
use crate::declaration::tests::*;

fn keyed(limit: Limit) -> SetDeclaration {
    SetDeclaration::new("s").keyed(Keyed::new(5)).add_limit(limit)
}

fn calls() -> Limit {
    Limit::calls("l", 10, MINUTE)
}

fn declared(set: SetDeclaration) -> Declaration {
    Declaration::new().add_set(set)
}

fn rules(set: &SetDeclaration) -> Vec<Rule> {
    let plan = set.compile(None).expect("valid");
    plan.tiers.iter().map(|tier| tier.limits[0].rule).collect()
}

/// A keyed set `s` with a limit `l` of calls with these fields, and these tiers.
fn read(limit: &str, tiers: &str) -> Declaration {
    let text = format!(
        r#"
        [[set]]
        name = "s"
        keyed = {{ max_keys = 5 }}

          [[set.limit]]
          name = "l"
          kind = "calls"
          {limit}
        {tiers}
        "#
    );
    Declaration::from_toml(&text).expect("valid")
}

#[test]
fn toml_and_code_declare_the_same_tiers() {
    let tiers = r#"
        [[set.tier]]
        name = "gold"
        limits = { l = { capacity = 1000, burst = 200 } }

        [[set.tier]]
        name = "slow"
        limits = { l = { window = "1h" } }
    "#;
    let read = read("capacity = 10\nwindow = '60s'", tiers);
    let ours = keyed(calls())
        .add_tier(Tier::new("gold").capacity("l", 1000).burst("l", 200))
        .add_tier(Tier::new("slow").window("l", 60 * MINUTE));
    assert_eq!(texts(&declared(ours.clone()).differences(&read)), [""; 0]);
    let text = declared(ours.clone()).to_toml().expect("valid");
    assert_eq!(read.to_toml().expect("valid"), text);
    let again = Declaration::from_toml(&text).expect("what was written");
    assert_eq!(again.to_toml().expect("valid"), text);
    let nanos = |duration: Duration| duration.as_nanos() as u64;
    let expected = [
        backlog(1000, nanos(MINUTE), 200),
        backlog(10, nanos(60 * MINUTE), 10),
    ];
    assert_eq!(rules(&ours), expected);
    assert_eq!(rules(&again.sets()[0]), expected);
    let names: Vec<&str> = read.sets()[0].tiers().iter().map(Tier::name).collect();
    assert_eq!(names, ["gold", "slow"]);
}

/// A set whose limit all keys have together, with a tier of that weight.
fn weighted(weight: u32) -> SetDeclaration {
    keyed(calls().scope(Scope::AllKeys)).add_tier(Tier::new("gold").weight(weight))
}

#[test]
fn a_weight_is_declared_compared_and_changed_and_one_is_the_default() {
    let stored = declared(weighted(10)).to_toml().expect("valid");
    assert!(stored.contains("weight = 10"), "{stored}");
    let read = Declaration::from_toml(&stored).expect("what was written");
    assert_eq!(texts(&declared(weighted(10)).differences(&read)), [""; 0]);
    let changed = declared(weighted(20));
    let differences = texts(&changed.differences(&read));
    assert_eq!(differences.len(), 1, "{differences:?}");
    assert!(
        differences[0].contains("tier \"gold\" / weight"),
        "{differences:?}"
    );
    let applied = changed.applied_to(&read).expect("weights can change");
    assert_eq!(texts(&applied.differences(&changed)), [""; 0]);
    let without = keyed(calls().scope(Scope::AllKeys)).add_tier(Tier::new("gold"));
    assert_eq!(
        texts(&declared(without).differences(&declared(weighted(1)))),
        [""; 0]
    );
}

#[test]
fn a_weight_is_at_most_a_thousand_and_has_an_effect() {
    for weight in [0, 1_001] {
        let error = declared(weighted(weight)).validate().expect_err("out of range");
        assert!(error.to_string().contains("tier \"gold\" / weight"), "{error}");
    }
    declared(weighted(1_000)).validate().expect("the largest");
    let of_each_key = keyed(calls()).add_tier(Tier::new("gold").weight(2));
    let error = declared(of_each_key).validate().expect_err("nothing to share");
    assert!(error.to_string().contains("scope = \"all_keys\""), "{error}");
}

#[test]
fn a_burst_that_is_not_declared_is_the_capacity_of_the_tier_and_one_that_is_stays() {
    let gcra = |capacity, burst| backlog(capacity, MINUTE_NANOS, burst);
    let gold = || Tier::new("gold").capacity("l", 100);
    assert_eq!(rules(&keyed(calls()).add_tier(gold())), [gcra(100, 100)]);
    assert_eq!(rules(&keyed(calls().burst(5)).add_tier(gold())), [gcra(100, 5)]);
}

#[test]
fn a_leaky_bucket_by_rate_and_interval_has_tiers_in_its_words() {
    let limit = r#"
        algorithm = "leaky_bucket"
        capacity = 4
        rate = 2
        interval = "1s"
    "#;
    let read = read(
        limit,
        "[[set.tier]]\nname = 'gold'\nlimits = { l = { rate = 20 } }",
    );
    assert_eq!(rules(&read.sets()[0]), [backlog(20, NANOS_PER_SECOND, 4)]);
    let limit = Limit::calls("l", 2, Duration::from_secs(1))
        .algorithm(Algorithm::LeakyBucket)
        .burst(4);
    let ours = declared(keyed(limit).add_tier(Tier::new("gold").capacity("l", 20)));
    assert_eq!(texts(&ours.differences(&read)), [""; 0]);
    assert_eq!(texts(&read.differences(&ours)), [""; 0]);
}

#[test]
fn there_is_room_for_the_largest_tier() {
    let sliding = || calls().algorithm(Algorithm::SlidingWindow);
    let gold = |capacity| Tier::new("gold").capacity("l", capacity);
    let words = |set: &SetDeclaration| set.compile(None).expect("valid").limits[0].rule.state_words();
    assert_eq!(words(&keyed(sliding())), 2 + 4 * 10);
    let set = keyed(sliding())
        .add_tier(gold(30))
        .add_tier(Tier::new("free").capacity("l", 3));
    assert_eq!(words(&set), 2 + 4 * 30);
    assert!(rules(&set).iter().all(|rule| rule.state_words() == 2 + 4 * 30));
    assert_eq!(words(&keyed(sliding()).add_tier(gold(5_000))), 2 + 4 * 64);
    assert_eq!(
        words(&keyed(sliding().entries(5_000)).add_tier(gold(9))),
        2 + 4 * 5_000
    );
    assert_eq!(words(&keyed(sliding().entries(7)).add_tier(gold(30))), 2 + 4 * 7);
    let held = keyed(Limit::concurrency("l", 20)).add_tier(gold(100));
    let holds = |set: &SetDeclaration| set.compile(None).expect("valid").hold_capacity;
    assert_eq!(holds(&held), holds(&keyed(Limit::concurrency("l", 100))));
    assert_eq!(held.compile(None).expect("valid").max_held(), 100);
}

#[test]
fn tiers_that_cannot_be_are_named_with_what_to_do() {
    let gold = || Tier::new("gold").capacity("l", 20);
    let counter = || calls().algorithm(Algorithm::SlidingWindowCounter);
    let daily = || Limit::calls("l", 10, Window::Day).algorithm(Algorithm::FixedWindow);
    let adaptive = || Limit::concurrency("l", 10).adaptive(Adaptive::Aimd).ceiling(20);
    let hour = || Tier::new("gold").window("l", 60 * MINUTE);
    for (set, expected) in [
        (
            SetDeclaration::new("s").add_limit(calls()).add_tier(gold()),
            "only keys belong to tiers",
        ),
        (
            keyed(calls().prefix(24, 48)).add_tier(gold()),
            "networks do not belong to tiers",
        ),
        (
            keyed(calls()).add_tier(gold()).add_tier(gold()),
            r#"set "s" / tier "gold""#,
        ),
        (
            keyed(calls()).add_tier(Tier::new("default")),
            r#"set "s" / tier "default""#,
        ),
        (keyed(calls()).add_tier(Tier::new("")), r#"set "s" / tier 1"#),
        (
            keyed(calls()).add_tier(Tier::new("gold").capacity("m", 1)),
            r#"set "s" / tier "gold" / limits: "m" has no meaning here: the set has no such limit; it has l"#,
        ),
        (
            keyed(calls()).add_tier(Tier::new("gold").capacity("l", 0)),
            r#"set "s" / tier "gold" / limit "l" / capacity"#,
        ),
        (
            keyed(calls()).add_tier(Tier::new("gold").capacity("l", "unlimited")),
            "what is unlimited counts nothing",
        ),
        (
            keyed(Limit::calls("l", Amount::Unlimited, MINUTE)).add_tier(gold()),
            "what is unlimited counts nothing",
        ),
        (
            keyed(adaptive()).add_tier(gold()),
            "an adaptive capacity is found",
        ),
        (
            keyed(counter()).add_tier(hour()),
            "cannot be carried over to this one",
        ),
        (
            keyed(daily()).add_tier(hour()),
            "a window of the calendar is the same",
        ),
        (
            keyed(Limit::concurrency("l", 1)).add_tier(hour()),
            r#"set "s" / tier "gold" / limit "l" / window"#,
        ),
        (
            keyed(counter()).add_tier(Tier::new("gold").burst("l", 5)),
            r#"set "s" / tier "gold" / limit "l" / burst"#,
        ),
        (
            (0..256).fold(keyed(calls()), |set, number| {
                set.add_tier(Tier::new(number.to_string()))
            }),
            "255",
        ),
    ] {
        let error = invalid(&declared(set));
        assert!(error.contains(expected), "{error}");
    }
    let windows = |count: usize| {
        let sliding =
            |name: usize| Limit::calls(name.to_string(), 10, MINUTE).algorithm(Algorithm::SlidingWindow);
        let set = (0..count).fold(SetDeclaration::new("s").keyed(Keyed::new(5)), |set, name| {
            set.add_limit(sliding(name))
        });
        let tier = (0..count).fold(Tier::new("gold"), |tier, name| {
            tier.window(name.to_string(), 2 * MINUTE)
        });
        set.add_tier(tier)
    };
    declared(windows(2)).validate().expect("as many as fit");
    assert!(invalid(&declared(windows(3))).contains("3 sliding windows"));
}

#[test]
fn tiers_change_and_come_but_do_not_go() {
    let gold = |capacity| Tier::new("gold").capacity("l", capacity);
    let silver = || Tier::new("silver").capacity("l", 15);
    let stored = declared(keyed(calls()).add_tier(gold(20)));
    let changes = |set: SetDeclaration| {
        let applied = declared(set).applied_to(&stored).expect("applicable");
        applied.validate().expect("valid where both are");
        texts(&applied.differences(&stored))
    };
    assert_eq!(
        changes(keyed(calls()).add_tier(gold(30))),
        [
            r#"set "s" / tier "gold" / limits / l / burst: declared 30, in the segment 20"#,
            r#"set "s" / tier "gold" / limits / l / capacity: declared 30, in the segment 20"#,
        ]
    );
    assert_eq!(
        changes(keyed(calls()).add_tier(gold(20)).add_tier(silver())),
        [r#"set "s" / tier "silver": declared present, in the segment absent"#]
    );
    assert_eq!(
        changes(keyed(calls()).add_tier(Tier::new("gold"))).len(),
        1,
        "as the limit is again"
    );
    let refused =
        |set: SetDeclaration| texts(&declared(set).applied_to(&stored).expect_err("not applicable"));
    assert_eq!(refused(keyed(calls())).len(), 1);
    assert_eq!(
        refused(keyed(calls()).add_tier(silver()).add_tier(gold(20))),
        [r#"set "s" / order of tiers: declared ["silver", "gold"], in the segment ["gold", "silver"]"#]
    );
    let without = declared(keyed(calls()));
    let first = declared(keyed(calls()).add_tier(gold(20)));
    assert_eq!(texts(&first.applied_to(&without).expect_err("no room")).len(), 1);
}
