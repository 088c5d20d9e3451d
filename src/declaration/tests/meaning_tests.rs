//! The same meaning in other words: TOML and code, canonical text, differences.

use crate::choices::Kind;
use crate::declaration::tests::*;

#[test]
fn toml_and_code_declare_the_same() {
    let read = Declaration::from_toml(GATEWAY).expect("the specification's example");
    assert_eq!(
        read.to_toml().expect("valid"),
        gateway().to_toml().expect("valid")
    );
    assert_eq!(
        read.segment().path(),
        Some(std::path::Path::new("/dev/shm/gateway.limits"))
    );
    assert_eq!(read.segment().mode(), 0o660);
    assert_eq!(read.sets()[0].name(), "openai");
    assert_eq!(read.sets()[0].limits()[1].name(), "tokens");
    assert_eq!(read.sets()[0].limits()[1].kind(), Kind::Rate);
}

#[test]
fn a_rate_may_be_a_fraction_and_is_exact() {
    let rule = |fields: &str| {
        rule_of(&format!(
            "kind = \"calls\", algorithm = \"leaky_bucket\", {fields}"
        ))
    };
    let bucket = |capacity, seconds, burst| {
        let window = seconds * NANOS_PER_SECOND;
        backlog(capacity, window, burst)
    };
    assert_eq!(
        rule("capacity = 9, rate = \"0.5\", interval = \"1s\""),
        bucket(1, 2, 9)
    );
    assert_eq!(
        rule("capacity = 9, rate = \"2.50\", interval = \"3s\""),
        bucket(5, 6, 9)
    );
    assert_eq!(
        rule("capacity = 9, rate = \"0.001\", interval = \"1s\""),
        bucket(1, 1000, 9)
    );
    let in_units = "kind = \"rate\", algorithm = \"leaky_bucket\", unit = \"0.2\", capacity = 1, rate = \"0.3\", interval = \"1s\"";
    assert_eq!(rule_of(in_units), bucket(3, 2, 5));
    let built = declaring(Limit::leaky_bucket("l", 9, "0.5", Duration::from_secs(1)));
    assert_eq!(plan(&built).rule, bucket(1, 2, 9));
    let text = built.to_toml().expect("valid");
    assert!(text.contains("rate = \"0.5\"\n"), "it keeps its words: {text}");
    assert_eq!(
        plan(&Declaration::from_toml(&text).expect("what was written")).rule,
        bucket(1, 2, 9)
    );
}

#[test]
fn what_is_not_said_of_a_leaky_bucket_by_rate_is_as_of_the_actor_on_ray() {
    let by = |fields: &str| {
        rule_of(&format!(
            "kind = \"calls\", algorithm = \"leaky_bucket\", {fields}"
        ))
    };
    let whole = by("capacity = 60, rate = 1, interval = \"1s\"");
    assert_eq!(by("rate = 1"), whole);
    assert_eq!(by("interval = \"1s\""), whole);
    assert_eq!(
        by("interval = \"2s\", capacity = 60"),
        by("capacity = 60, rate = 1, interval = \"2s\"")
    );
    let nothing_said = "kind = \"calls\", algorithm = \"leaky_bucket\"";
    let error = Declaration::from_toml(&limit_toml(nothing_said)).expect_err("no capacity");
    assert!(error.to_string().contains("missing field `capacity`"), "{error}");
}

#[test]
fn a_rate_per_interval_is_a_leaky_bucket_in_other_words() {
    let ray = "kind = \"rate\", algorithm = \"leaky_bucket\", capacity = 100, rate = 10, interval = \"1s\"";
    assert_eq!(rule_of(ray), backlog(10, NANOS_PER_SECOND, 100));
    let ours = declaring(
        Limit::rate("l", 10, Duration::from_secs(1))
            .algorithm(Algorithm::LeakyBucket)
            .burst(100),
    );
    let ray = Declaration::from_toml(&limit_toml(ray)).expect("valid");
    assert_eq!(texts(&ours.differences(&ray)), [""; 0]);
    let text = ray.to_toml().expect("valid");
    for field in ["capacity = 100\n", "rate = 10\n", "interval = \"1s\"\n"] {
        assert!(text.contains(field), "it keeps its words: {text}");
    }
    let read = Declaration::from_toml(&text).expect("what was written");
    assert_eq!(plan(&read).rule, plan(&ours).rule);
    assert_eq!(read.to_toml().expect("valid"), text);
}

#[test]
fn capacities_beyond_tomls_integers_are_written_as_strings() {
    let declaration = declaring(Limit::concurrency("l", u64::MAX));
    let text = declaration.to_toml().expect("valid");
    assert!(text.contains("capacity = \"18446744073709551615\""), "{text}");
    let read = Declaration::from_toml(&text).expect("what was written");
    assert_eq!(
        plan(&read).rule,
        Rule::Concurrency(Concurrency::new(u64::MAX).expect("valid"))
    );
}

#[test]
fn the_canonical_text_writes_every_default_out() {
    let text = declaring(Limit::rate("l", "5.0", MINUTE))
        .to_toml()
        .expect("valid");
    assert_eq!(
        text,
        r#"[segment]
mode = "0600"
participants = 256
clock = "counter"
lock = "slot"

[[set]]
name = "s"
holds = 0
waiters = 5120

[[set.limit]]
name = "l"
kind = "rate"
capacity = 5
unit = "1"
window = "1m"
algorithm = "gcra"
burst = 5
refund = true
near_limit = 80
shadow = false
"#
    );
}

#[test]
fn what_means_the_same_does_not_differ() {
    let read = |lines| Declaration::from_toml(&limit_toml(lines)).expect("valid");
    let short = read("kind = \"rate\", capacity = 5, window = \"60s\"");
    let long = read(
        "kind = \"rate\", capacity = \"5.00\", window = \"1m\", burst = 5, algorithm = \"gcra\", unit = \"1.0\"",
    );
    assert_eq!(texts(&short.differences(&long)), [""; 0]);
    let elsewhere = short.clone().path("/elsewhere").mode(0o666).participants(256);
    assert_eq!(texts(&short.differences(&elsewhere)), [""; 0]);
}

#[test]
fn every_difference_is_named() {
    let other = Declaration::new()
        .participants(8)
        .add_set(
            SetDeclaration::new("openai")
                .add_metadata("account", "a")
                .add_limit(Limit::calls("requests", 10, Duration::from_millis(1500)))
                .add_limit(Limit::concurrency("in_flight", 64)),
        )
        .add_set(SetDeclaration::new("other").add_limit(Limit::concurrency("in_flight", 64)));
    assert_eq!(
        texts(&gateway().differences(&other)),
        [
            r#"segment / participants: declared 256, in the segment 8"#,
            r#"set "openai" / limit "requests" / burst: declared 10000, in the segment 10"#,
            r#"set "openai" / limit "requests" / capacity: declared 10000, in the segment 10"#,
            r#"set "openai" / limit "requests" / window: declared "1m", in the segment "1s500ms""#,
            r#"set "openai" / limit "tokens": declared present, in the segment absent"#,
            r#"set "openai" / metadata / region: declared "us-east-1", in the segment absent"#,
            r#"set "openai" / metadata / account: declared absent, in the segment "a""#,
            r#"set "other": declared absent, in the segment present"#,
        ]
    );
}

#[test]
fn another_kind_and_another_order_are_differences() {
    let set = |limits: [Limit; 2]| {
        let [first, second] = limits;
        Declaration::new().add_set(
            SetDeclaration::new("s")
                .holds(4)
                .add_limit(first)
                .add_limit(second),
        )
    };
    let (a, b) = (Limit::concurrency("a", 4), Limit::concurrency("b", 4));
    assert_eq!(
        texts(&set([a.clone(), b.clone()]).differences(&set([b.clone(), a.clone()]))),
        [r#"set "s" / order of limits: declared ["a", "b"], in the segment ["b", "a"]"#]
    );
    let difference = &set([a.clone(), Limit::calls("b", 4, MINUTE)]).differences(&set([a, b]))[4];
    assert_eq!(difference.path(), r#"set "s" / limit "b" / window"#);
    assert_eq!(
        (difference.declared(), difference.in_segment()),
        (Some(r#""1m""#), None)
    );
}
