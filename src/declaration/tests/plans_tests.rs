//! What declarations compile to.

use crate::choices::Kind;
use crate::declaration::known_fields::fields;
use crate::declaration::limit::amount::Scale;
use crate::declaration::tests::*;
use crate::limit::{self, AdaptiveAlgorithm};

#[test]
fn the_example_compiles_to_the_plan_of_its_words() {
    let plans = gateway().compile().expect("valid");
    let [set] = &plans[..] else {
        panic!("one set is declared, {} compiled", plans.len())
    };
    assert_eq!((set.name.as_str(), set.hold_capacity), ("openai", 256));
    assert_eq!(set.metadata.get("region").map(String::as_str), Some("us-east-1"));
    let rules: Vec<_> = set
        .limits
        .iter()
        .map(|limit| (limit.name.as_str(), limit.kind, limit.rule))
        .collect();
    let gcra = backlog(10_000, MINUTE_NANOS, 10_000);
    let bucket = backlog(2_000_000, MINUTE_NANOS, 2_000_000);
    let concurrency = Concurrency::new(64).expect("valid");
    assert_eq!(
        rules,
        [
            ("requests", Kind::Calls, gcra),
            ("tokens", Kind::Rate, bucket),
            ("in_flight", Kind::Concurrency, Rule::Concurrency(concurrency)),
        ]
    );
}

#[test]
fn every_algorithm_compiles_to_its_rule() {
    const CALLS: &str = "kind = \"calls\", capacity = 9, window = \"1m\"";
    for algorithm in ["gcra", "token_bucket"] {
        assert_eq!(
            rule_of(&format!("{CALLS}, burst = 3, algorithm = \"{algorithm}\"")),
            backlog(9, MINUTE_NANOS, 3),
        );
    }
    assert_eq!(rule_of(CALLS), backlog(9, MINUTE_NANOS, 9));
    assert_eq!(
        rule_of(&format!("{CALLS}, algorithm = \"leaky_bucket\"")),
        backlog(9, MINUTE_NANOS, 9),
    );
    assert_eq!(
        rule_of(&format!("{CALLS}, algorithm = \"fixed_window\"")),
        Rule::FixedWindow(FixedWindow::utc(9, MINUTE_NANOS).expect("valid")),
    );
    assert_eq!(
        rule_of(&format!(
            "{CALLS}, algorithm = \"fixed_window\", align = \"first_use\""
        )),
        Rule::FixedWindow(FixedWindow::first_use(9, MINUTE_NANOS).expect("valid")),
    );
    assert_eq!(
        rule_of(&format!("{CALLS}, algorithm = \"sliding_window\"")),
        sliding_window(9, MINUTE_NANOS, 1024),
    );
    assert_eq!(
        rule_of("kind = \"calls\", capacity = 5000, window = \"1m\", algorithm = \"sliding_window\""),
        sliding_window(5000, MINUTE_NANOS, 1024),
    );
    assert_eq!(
        rule_of(&format!(
            "{CALLS}, algorithm = \"sliding_window\", entries = 65536"
        )),
        sliding_window(9, MINUTE_NANOS, 65_536),
    );
    assert_eq!(
        rule_of(&format!("{CALLS}, algorithm = \"sliding_window_counter\"")),
        Rule::SlidingWindowCounter(SlidingWindowCounter::new(9, MINUTE_NANOS, 10).expect("valid")),
    );
    assert_eq!(
        rule_of(&format!(
            "{CALLS}, algorithm = \"sliding_window_counter\", buckets = 60"
        )),
        Rule::SlidingWindowCounter(SlidingWindowCounter::new(9, MINUTE_NANOS, 60).expect("valid")),
    );
}

#[test]
fn a_budget_counts_in_a_fixed_window() {
    let week = [
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ];
    for (week_start, day) in (0..).zip(week) {
        let calendar = Calendar {
            unit: CalendarUnit::Week,
            local: LocalTime::at_offset(-(3 * 3600 + 30 * 60)),
            week_start,
        };
        let window = FixedWindow::calendar(7, calendar).expect("valid");
        assert_eq!(
            rule_of(&format!(
                "kind = \"budget\", capacity = 7, window = \"calendar:week\", utc_offset = \"-03:30\", \
                 week_start = \"{day}\""
            )),
            Rule::Budget(Budget::new(window).expect("valid")),
        );
    }
}

#[test]
fn unlimited_needs_no_window_and_takes_one() {
    assert_eq!(
        rule_of("kind = \"calls\", capacity = \"unlimited\""),
        Rule::from(Unlimited)
    );
    assert_eq!(
        rule_of("kind = \"rate\", capacity = \"unlimited\", window = \"1m\", burst = 5"),
        Rule::from(Unlimited)
    );
    assert_eq!(
        rule_of("kind = \"concurrency\", capacity = \"unlimited\""),
        Rule::from(Unlimited)
    );
    assert_eq!(
        plan(&declaring(Limit::budget("l", "unlimited", MINUTE))).rule,
        Rule::from(Unlimited)
    );
}

#[test]
fn decimal_amounts_become_whole_units() {
    let limit = Limit::rate("l", "1.5", MINUTE).burst("0.75").unit("0.001");
    let scale = limit.scale().expect("a unit");
    assert_eq!(scale.units("0.25"), Ok(250));
    assert_eq!(plan(&declaring(limit)).rule, backlog(1500, MINUTE_NANOS, 750));
    let whole = Limit::rate("l", 2, MINUTE).unit("0.001");
    assert_eq!(plan(&declaring(whole)).rule, backlog(2000, MINUTE_NANOS, 2000));
    assert_eq!(Limit::calls("l", 2, MINUTE).scale(), Ok(Scale::ONE));
}

#[test]
fn holds_follow_what_gives_back() {
    let holds = |set: SetDeclaration| set.compile(None).expect("valid").hold_capacity;
    let set = || SetDeclaration::new("s");
    let drawn = || Limit::calls("drawn", 5, MINUTE).credit(Credit::batch(2));

    assert_eq!(holds(set().add_limit(Limit::calls("a", 5, MINUTE))), 0);
    assert_eq!(holds(set().add_limit(Limit::calls("a", 5, MINUTE)).holds(0)), 0);
    assert_eq!(holds(set().add_limit(Limit::rate("a", 5, MINUTE))), 0);
    assert_eq!(holds(set().add_limit(drawn())), 1024);
    assert_eq!(holds(set().add_limit(Limit::concurrency("a", 3))), 64);
    assert_eq!(
        holds(
            set()
                .add_limit(Limit::concurrency("a", 30))
                .add_limit(Limit::concurrency("b", 40))
        ),
        280
    );
    assert_eq!(holds(set().add_limit(Limit::concurrency("a", "unlimited"))), 4096);
    let huge = Limit::concurrency("b", u64::MAX);
    assert_eq!(
        holds(set().add_limit(Limit::concurrency("a", 3)).add_limit(huge)),
        65_536
    );
    assert_eq!(holds(set().add_limit(Limit::concurrency("a", 3)).holds(9)), 9);
}

#[test]
fn an_adaptive_capacity_starts_between_its_bounds() {
    let limit = plan(&declaring(
        Limit::concurrency("l", 20)
            .adaptive(Adaptive::Aimd)
            .floor(5)
            .ceiling(200)
            .latency_limit(Duration::from_secs(2)),
    ));
    let algorithm = AdaptiveAlgorithm::Aimd {
        timeout: 2 * NANOS_PER_SECOND,
    };
    let adapting = limit::Adaptive::new(algorithm, 20, 5, 200).expect("valid");
    assert_eq!(limit.rule, Rule::Adaptive(adapting));

    let vegas = "kind = \"concurrency\", capacity = 1, adaptive = \"vegas\", ceiling = \"1.0\"";
    let vegas = plan(&Declaration::from_toml(&limit_toml(vegas)).expect("valid")).rule;
    let adapting = limit::Adaptive::new(AdaptiveAlgorithm::Vegas, 1, 1, 1).expect("valid");
    assert_eq!(vegas, Rule::Adaptive(adapting));
}

#[test]
fn holds_follow_the_ceiling_of_an_adaptive_capacity() {
    let limit = Limit::concurrency("l", 20)
        .adaptive(Adaptive::Gradient)
        .ceiling(200);
    let set = SetDeclaration::new("s").add_limit(limit);
    assert_eq!(set.compile(None).expect("valid").hold_capacity, 800);
}

#[test]
fn a_limit_is_near_at_four_fifths_unless_declared() {
    assert_eq!(plan(&declaring(Limit::concurrency("l", 9))).near_percent, 80);
    assert_eq!(
        plan(&declaring(Limit::concurrency("l", 9).near_limit(100))).near_percent,
        100
    );
}

#[test]
fn a_set_in_shadow_puts_all_of_its_limits_there() {
    let shadows = |set: SetDeclaration| {
        let limits = set.compile(None).expect("valid").limits.into_iter();
        limits.map(|limit| limit.shadow).collect::<Vec<_>>()
    };
    let (a, b) = (|| Limit::concurrency("a", 1), || Limit::concurrency("b", 1));
    assert_eq!(
        shadows(SetDeclaration::new("s").add_limit(a()).add_limit(b())),
        [false, false]
    );
    let one = SetDeclaration::new("s")
        .add_limit(a())
        .add_limit(b().shadow(true));
    assert_eq!(shadows(one), [false, true]);
    let both = SetDeclaration::new("s")
        .shadow(true)
        .add_limit(a())
        .add_limit(b().shadow(true));
    assert_eq!(shadows(both), [true, true]);
}

/// The most that a limit with these lines admits, in words.
fn bound_of(lines: &str) -> Option<String> {
    let declaration = Declaration::from_toml(&limit_toml(lines)).expect("a valid declaration");
    declaration.sets()[0].limits()[0]
        .bound()
        .map(|bound| bound.to_string())
}

#[test]
fn each_algorithm_says_what_it_admits_at_most() {
    for (algorithm, bound) in [
        ("gcra", "at most 19 in any 2s"),
        ("token_bucket", "at most 19 in any 2s"),
        ("leaky_bucket", "at most 19 in any 2s"),
        ("fixed_window", "at most 20 in any 2s"),
        ("sliding_window", "at most 10 in any 2s"),
        ("sliding_window_counter", "at most 19 in any 2s"),
    ] {
        let lines = format!("kind = \"calls\", capacity = 10, window = \"2s\", algorithm = \"{algorithm}\"");
        assert_eq!(bound_of(&lines).as_deref(), Some(bound), "{algorithm}");
    }
}

#[test]
fn what_is_admitted_at_most_follows_each_field_it_depends_on() {
    const CALLS: &str = "kind = \"calls\", capacity = 10, window = \"2s\"";
    for (lines, bound) in [
        (format!("{CALLS}, burst = 1"), "at most 10 in any 2s"),
        (format!("{CALLS}, burst = 5"), "at most 14 in any 2s"),
        (
            format!("{CALLS}, algorithm = \"fixed_window\", align = \"first_use\""),
            "at most 19 in any 2s",
        ),
        (
            "kind = \"calls\", capacity = 7, rate = 10, interval = \"2s\", algorithm = \"leaky_bucket\""
                .into(),
            "at most 16 in any 2s",
        ),
        (
            "kind = \"rate\", capacity = \"1.5\", window = \"1m\", unit = \"0.001\"".into(),
            "at most 2.999 in any 1m",
        ),
        (
            "kind = \"calls\", capacity = 9, window = \"calendar:day\", algorithm = \"fixed_window\"".into(),
            "at most 18 in any 1d",
        ),
        (
            "kind = \"calls\", capacity = 9, window = \"calendar:month\", algorithm = \"fixed_window\""
                .into(),
            "at most 18 in any 28d",
        ),
    ] {
        assert_eq!(bound_of(&lines).as_deref(), Some(bound), "{lines}");
    }
}

#[test]
fn what_has_no_bound_in_time_states_none() {
    for lines in [
        "kind = \"calls\", capacity = \"unlimited\", window = \"1m\"",
        "kind = \"budget\", capacity = 9, window = \"1m\"",
        "kind = \"concurrency\", capacity = 9",
    ] {
        assert_eq!(bound_of(lines), None, "{lines}");
    }
    assert_eq!(Limit::calls("l", 0, Duration::ZERO).bound(), None);
    let max = u64::MAX;
    assert_eq!(Limit::rate("l", max, MINUTE).bound(), None);
    assert_eq!(Limit::calls("l", "many", MINUTE).bound(), None);
}

#[test]
fn a_limit_is_shown_with_what_is_declared_and_its_bound() {
    let limit = Limit::calls("requests", 10, Duration::from_secs(2)).burst(5);
    assert_eq!(
        format!("{limit:?}"),
        "Limit { name: \"requests\", kind: Calls, capacity: Whole(10), window: Span(2s), burst: Whole(5), \
         bound: \"at most 14 in any 2s\" }"
    );
}

#[test]
fn no_field_of_a_limit_is_left_out_when_it_is_shown() {
    // No valid limit has all of them, but nothing is validated here.
    let limit: Limit = toml::from_str(
        r#"
        name = "all"
        kind = "rate"
        capacity = 10
        rate = 1
        interval = "1s"
        unit = "0.1"
        window = "calendar:week"
        algorithm = "gcra"
        burst = 5
        align = "utc"
        utc_offset = "+05:30"
        week_start = "monday"
        buckets = 3
        entries = 4
        refund = true
        lease = "1s"
        adaptive = "aimd"
        floor = 1
        ceiling = 20
        latency_limit = "1s"
        near_limit = 90
        shadow = true
        prefix = { ipv4 = 24, ipv6 = 48 }
        credit = { batch = 10 }
        fleet = { key = "shared" }
        time_zone = "Europe/Berlin"
        scope = "all_keys"
        "#,
    )
    .expect("every field has the type that it should have");
    let shown = format!("{limit:?}");
    for field in fields::<Limit>() {
        assert!(shown.contains(&format!("{field}: ")), "{field} is not in {shown}");
    }
}
