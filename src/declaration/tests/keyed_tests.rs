//! Keyed sets, and limits that count networks.

use crate::choices::WhenFull;
use crate::declaration::tests::*;

fn keyed(limit: Limit) -> SetDeclaration {
    SetDeclaration::new("s").keyed(Keyed::new(5)).add_limit(limit)
}

fn invalid_set(set: SetDeclaration) -> String {
    invalid(&Declaration::new().add_set(set))
}

#[test]
fn a_table_refuses_and_stores_keys_unless_declared() {
    let plan = |keyed: Keyed| {
        let set = SetDeclaration::new("s")
            .keyed(keyed)
            .add_limit(Limit::calls("l", 1, MINUTE));
        set.compile(None).expect("valid").keyed
    };
    let by_default = KeyedPlan {
        max_keys: 100_000,
        when_full: WhenFull::Refuse,
        store_keys: true,
        overrides: false,
    };
    assert_eq!(plan(Keyed::new(100_000)), Some(by_default));
    let other = Keyed::new(1)
        .when_full(WhenFull::EvictOldest)
        .store_keys(false)
        .overrides(true);
    let expected = KeyedPlan {
        max_keys: 1,
        when_full: WhenFull::EvictOldest,
        store_keys: false,
        overrides: true,
    };
    assert_eq!(plan(other), Some(expected));
    let min = plan(Keyed::new(1).when_full(WhenFull::EvictLeastUsed)).expect("keyed");
    assert_eq!(min.when_full, WhenFull::EvictLeastUsed);
    let unkeyed = SetDeclaration::new("s").add_limit(Limit::calls("l", 1, MINUTE));
    assert_eq!(unkeyed.compile(None).expect("valid").keyed, None);
}

#[test]
fn every_policy_is_written_as_it_is_read() {
    for (name, when_full) in [
        ("refuse", WhenFull::Refuse),
        ("evict_least_used", WhenFull::EvictLeastUsed),
        ("evict_oldest", WhenFull::EvictOldest),
    ] {
        let set = SetDeclaration::new("s")
            .keyed(Keyed::new(5).when_full(when_full))
            .add_limit(Limit::calls("l", 1, MINUTE));
        let text = Declaration::new().add_set(set).to_toml().expect("valid");
        assert!(text.contains(&format!("when_full = \"{name}\"")), "{text}");
        let read = Declaration::from_toml(&text).expect("valid");
        assert_eq!(read.to_toml().expect("valid"), text);
    }
}

#[test]
fn toml_and_code_declare_the_same_table_and_networks() {
    let text = r#"
        [[set]]
        name = "s"
        keyed = { max_keys = 100_000, when_full = "evict_oldest" }
        shadow = true

        [[set.limit]]
        name = "address"
        kind = "calls"
        capacity = 60
        window = "60s"
        prefix = { ipv4 = 32, ipv6 = 64 }

        [[set.limit]]
        name = "network"
        kind = "calls"
        capacity = 600
        window = "60s"
        near_limit = 90
        prefix = { ipv4 = 24, ipv6 = 48 }
    "#;
    let read = Declaration::from_toml(text).expect("valid");
    let built = Declaration::new().add_set(
        SetDeclaration::new("s")
            .keyed(Keyed::new(100_000).when_full(WhenFull::EvictOldest))
            .add_limit(Limit::calls("address", 60, MINUTE).prefix(32, 64).shadow(true))
            .add_limit(
                Limit::calls("network", 600, MINUTE)
                    .prefix(24, 48)
                    .shadow(true)
                    .near_limit(90),
            ),
    );
    assert_eq!(texts(&read.differences(&built)), [""; 0]);
    assert_eq!(read.to_toml().expect("valid"), built.to_toml().expect("valid"));
    let limits = read.compile().expect("valid").remove(0).limits;
    let prefixes: Vec<_> = limits.iter().filter_map(|limit| limit.prefix).collect();
    let lengths = |ipv4, ipv6| PrefixLengths { ipv4, ipv6 };
    assert_eq!(prefixes, [lengths(32, 64), lengths(24, 48)]);
}

#[test]
fn a_number_of_keys_is_a_table_of_that_size() {
    let read = |keyed: &str| {
        let text = format!(
            "[[set]]\nname = \"s\"\nkeyed = {keyed}\n[[set.limit]]\nname = \"a\"\nkind = \"concurrency\"\ncapacity = 1\n"
        );
        Declaration::from_toml(&text)
    };
    let (number, table) = (read("1_000"), read("{ max_keys = 1_000 }"));
    assert_eq!(number.expect("valid"), table.expect("valid"));
    for (keyed, said) in [
        ("0", "keyed / max_keys"),
        ("-5", "keyed / max_keys"),
        ("1.5", "how many keys there is room for, or a table"),
        ("true", "how many keys there is room for, or a table"),
        ("\"1000\"", "how many keys there is room for, or a table"),
        ("{ max_keys = 5, rows = 1 }", "unknown field `rows`"),
        ("{}", "missing field `max_keys`"),
    ] {
        let error = read(keyed).expect_err(keyed).to_string();
        assert!(error.contains(said), "{keyed}: {error}");
    }
}

#[test]
fn a_shard_has_holds_and_waiters_of_its_own() {
    let shard = |set: SetDeclaration| {
        let plan = set.compile(None).expect("valid");
        (plan.hold_capacity, plan.waiters)
    };
    assert_eq!(shard(keyed(Limit::calls("a", 5, MINUTE))), (0, 512));
    assert_eq!(shard(keyed(Limit::concurrency("a", 3))), (64, 512));
    let sum = keyed(Limit::concurrency("a", 20)).add_limit(Limit::concurrency("b", 30));
    assert_eq!(shard(sum), (200, 512));
    assert_eq!(shard(keyed(Limit::concurrency("a", u64::MAX))), (4096, 512));
    assert_eq!(shard(keyed(Limit::concurrency("a", "unlimited"))), (4096, 512));
    let drawn = Limit::calls("a", 5, MINUTE).credit(Credit::batch(2));
    assert_eq!(shard(keyed(drawn)), (64, 512));
    assert_eq!(
        shard(keyed(Limit::concurrency("a", 3)).holds(9).waiters(0)),
        (9, 0)
    );
}

#[test]
fn each_key_may_hold_one_as_far_as_65536_go() {
    let holds = |keys, capacity| {
        let set = SetDeclaration::new("s").keyed(Keyed::new(keys));
        let plan = set.add_limit(Limit::concurrency("l", capacity)).compile(None);
        plan.expect("valid").hold_capacity
    };
    // 16 shards, of which the fullest may have more than a sixteenth of the keys.
    assert!((625..=1_000).contains(&holds(10_000, 1)));
    assert_eq!(holds(1_000_000, 1), 65_536 / 256);
    assert_eq!(holds(1_000_000, 100), 400); // 4 times the capacity of one key
    assert_eq!(holds(1, 1), 64);
}

#[test]
fn a_table_is_for_one_key_to_a_billion() {
    let of = |keys| {
        SetDeclaration::new("s")
            .keyed(Keyed::new(keys))
            .add_limit(Limit::calls("l", 1, MINUTE))
    };
    for keys in [0, 1_000_000_001, u64::MAX] {
        assert_eq!(
            invalid_set(of(keys)),
            format!(r#"set "s" / keyed / max_keys: {keys} is out of range: choose from 1 to 1000000000"#)
        );
    }
    of(1_000_000_000).compile(None).expect("a billion keys");
}

#[test]
fn a_limit_cannot_bite_in_a_set_in_shadow() {
    let set = keyed(Limit::calls("l", 1, MINUTE).shadow(false)).shadow(true);
    let message = invalid_set(set);
    let start = r#"set "s" / limit "l" / shadow: false has no meaning here: the whole set is declared with"#;
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn only_a_keyed_set_counts_networks() {
    let set = SetDeclaration::new("s").add_limit(Limit::calls("l", 1, MINUTE).prefix(24, 48));
    let message = invalid_set(set);
    let start =
        r#"set "s" / limit "l" / prefix: { ipv4 = 24, ipv6 = 48 } has no meaning here: only the keys"#;
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn a_prefix_is_no_longer_than_an_address() {
    let of = |ipv4, ipv6| keyed(Limit::calls("l", 1, MINUTE).prefix(ipv4, ipv6));
    assert_eq!(
        invalid_set(of(33, 128)),
        r#"set "s" / limit "l" / prefix / ipv4: 33 is out of range: choose from 0 to 32"#
    );
    assert_eq!(
        invalid_set(of(32, 129)),
        r#"set "s" / limit "l" / prefix / ipv6: 129 is out of range: choose from 0 to 128"#
    );
    of(0, 0).compile(None).expect("everyone");
    of(32, 128).compile(None).expect("single addresses");
}

#[test]
fn what_comes_back_is_not_counted_for_networks() {
    let message = invalid_set(keyed(Limit::concurrency("l", 1).prefix(24, 48)));
    let start = r#"set "s" / limit "l" / prefix: { ipv4 = 24, ipv6 = 48 } has no meaning here: "#;
    assert!(
        message.starts_with(start) && message.contains("declare kind = \"calls\""),
        "{message}"
    );
}

#[test]
fn prefixes_nest_in_both_families() {
    let of = |first: (u8, u8), second: (u8, u8)| {
        keyed(Limit::calls("a", 1, MINUTE).prefix(first.0, first.1))
            .add_limit(Limit::calls("b", 1, MINUTE).prefix(second.0, second.1))
    };
    for (first, second) in [((24, 64), (32, 48)), ((32, 48), (24, 64))] {
        let message = invalid_set(of(first, second));
        assert!(
            message.starts_with(r#"set "s" / limit "b" / prefix: "#)
                && message.contains(&format!("limit \"a\", /{} and /{}", first.0, first.1))
                && message.contains("make it longer for both"),
            "{message}"
        );
    }
    for (first, second) in [
        ((24, 48), (32, 64)),
        ((32, 64), (24, 48)),
        ((24, 48), (24, 64)),
        ((24, 48), (24, 48)),
    ] {
        of(first, second)
            .compile(None)
            .expect("one lies within the other");
    }
}

#[test]
fn all_limits_of_a_set_count_networks_or_none() {
    let message = invalid_set(
        keyed(Limit::calls("a", 1, MINUTE)).add_limit(Limit::calls("b", 1, MINUTE).prefix(24, 48)),
    );
    let start = r#"set "s" / limit "a" / prefix is missing: limit "b" has one, so declare one here too"#;
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn a_set_counts_at_most_four_sizes_of_networks() {
    let of = |sizes: u8| {
        let set = SetDeclaration::new("s").keyed(Keyed::new(5));
        (0..sizes.max(5)).fold(set, |set, index| {
            let prefix = index.min(sizes - 1);
            set.add_limit(Limit::calls(index.to_string(), 1, MINUTE).prefix(prefix, prefix))
        })
    };
    of(4).compile(None).expect("four sizes for five limits");
    assert_eq!(
        invalid_set(of(5)),
        r#"set "s" / different prefixes: 5 is out of range: choose from 0 to 4"#
    );
}

#[test]
fn a_table_that_only_one_of_them_has_is_one_difference() {
    let limit = || Limit::calls("l", 1, MINUTE);
    let with = Declaration::new().add_set(keyed(limit()).waiters(1));
    let without = Declaration::new().add_set(SetDeclaration::new("s").add_limit(limit()).waiters(1));
    assert_eq!(
        texts(&with.differences(&without)),
        [
            r#"set "s" / keyed: declared { max_keys = 5, store_keys = true, when_full = "refuse" }, in the segment absent"#
        ]
    );
}

/// The rule that the engine derives while deciding equals the one compiled from a declaration of that capacity.
#[test]
fn a_limit_with_a_capacity_of_a_key_s_own_is_the_rule_that_is_declared_so() {
    let rate = |algorithm| Limit::rate("l", 10, MINUTE).algorithm(algorithm);
    for limit in [
        rate(Algorithm::Gcra),
        rate(Algorithm::Gcra).burst(3),
        rate(Algorithm::TokenBucket).burst(10),
        rate(Algorithm::LeakyBucket).unit("0.01"),
        rate(Algorithm::FixedWindow),
        rate(Algorithm::SlidingWindow).entries(7),
        rate(Algorithm::SlidingWindowCounter).buckets(3),
        Limit::calls("l", 10, Window::Month).algorithm(Algorithm::FixedWindow),
        Limit::leaky_bucket("l", 4, "0.5", Duration::from_secs(1)),
        Limit::budget("l", 10, MINUTE),
        Limit::concurrency("l", 10),
    ] {
        let compiled = |limit: &Limit| plan(&declaring(limit.clone()));
        // Its stored form, with everything written out, means the same.
        for limit in [limit.clone(), limit.canonical()] {
            let LimitPlan { rule, terms, .. } = compiled(&limit);
            let terms = terms.expect("a capacity that can be another");
            for own in [1, 7, 10, 1_000_000] {
                let expected = compiled(&limit.with_override(own)).rule;
                assert_eq!(
                    rule.with_capacity(own, terms),
                    Ok(expected),
                    "{limit:?} with {own}"
                );
            }
        }
    }
    let ceiling = Limit::concurrency("l", 10).adaptive(Adaptive::Aimd).ceiling(20);
    for limit in [Limit::calls("l", "unlimited", MINUTE), ceiling] {
        assert_eq!(plan(&declaring(limit)).terms, None);
    }
}
