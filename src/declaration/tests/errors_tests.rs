//! Every mistake that a declaration can contain, each with its message.

use crate::declaration::tests::*;

#[test]
fn a_field_without_meaning_is_refused_with_what_to_do() {
    const CALLS: &str = "kind = \"calls\", capacity = 9, window = \"1m\"";
    const RATE: &str = "kind = \"rate\", capacity = 9, window = \"1m\"";
    const HELD: &str = "kind = \"concurrency\", capacity = 9";
    const LEAKY: &str =
        "kind = \"calls\", capacity = 9, algorithm = \"leaky_bucket\", rate = 1, interval = \"1s\"";
    for (lines, field, advice) in [
        (
            format!("{CALLS}, unit = \"0.1\""),
            "unit: \"0.1\"",
            "declare kind = \"rate\"",
        ),
        (
            format!("{HELD}, algorithm = \"gcra\""),
            "algorithm: \"gcra\"",
            "remove it",
        ),
        (
            format!("{RATE}, rate = 1, interval = \"1s\""),
            "rate: 1",
            "declare algorithm = \"leaky_bucket\"",
        ),
        (
            format!("{CALLS}, interval = \"1s\""),
            "interval: \"1s\"",
            "declare `window`",
        ),
        (
            format!("{HELD}, window = \"60s\""),
            "window: \"1m\"",
            "declare kind = \"calls\"",
        ),
        (
            format!("{LEAKY}, window = \"60s\""),
            "window: \"1m\"",
            "`rate` per `interval`",
        ),
        (
            CALLS.replace("1m", "calendar:day"),
            "window: \"calendar:day\"",
            "declare algorithm = \"fixed_window\"",
        ),
        (
            format!("{CALLS}, algorithm = \"sliding_window\", burst = 2"),
            "burst: 2",
            "only gcra",
        ),
        (
            format!("{LEAKY}, burst = 2"),
            "burst: 2",
            "`capacity` is the size of the bucket",
        ),
        (
            format!("{CALLS}, align = \"utc\""),
            "align: \"utc\"",
            "declare algorithm = \"fixed_window\"",
        ),
        (
            "kind = \"budget\", capacity = 1, window = \"calendar:day\", align = \"utc\"".to_owned(),
            "align: \"utc\"",
            "remove it",
        ),
        (
            format!("{CALLS}, utc_offset = \"+01:00\""),
            "utc_offset: \"+01:00\"",
            "\"calendar:day\"",
        ),
        (
            format!("{CALLS}, week_start = \"friday\""),
            "week_start: \"friday\"",
            "\"calendar:week\"",
        ),
        (
            format!("{CALLS}, buckets = 2"),
            "buckets: 2",
            "sliding_window_counter",
        ),
        (format!("{CALLS}, entries = 2"), "entries: 2", "sliding_window"),
        (
            "kind = \"concurrency\", capacity = 9, refund = false".to_owned(),
            "refund: false",
            "declare kind = \"rate\"",
        ),
        (
            "kind = \"budget\", capacity = 9, window = \"1m\", refund = true".to_owned(),
            "refund: true",
            "a budget takes nothing in advance",
        ),
        (
            format!("{CALLS}, algorithm = \"fixed_window\", credit = {{ batch = 3 }}, refund = true"),
            "refund: true",
            "stays charged",
        ),
        (
            format!("{CALLS}, lease = \"30s\""),
            "lease: \"30s\"",
            "declare kind = \"concurrency\"",
        ),
        (
            "kind = \"concurrency\", capacity = 1, lease = \"calendar:day\"".to_owned(),
            "lease: \"calendar:day\"",
            "a length of time",
        ),
        (
            format!("{CALLS}, adaptive = \"vegas\""),
            "adaptive: \"vegas\"",
            "declare kind = \"concurrency\"",
        ),
        (
            format!("{HELD}, floor = 2"),
            "floor: 2",
            "declare adaptive = \"aimd\"",
        ),
        (
            format!("{HELD}, ceiling = 20"),
            "ceiling: 20",
            "declare adaptive = \"aimd\"",
        ),
        (
            format!("{HELD}, adaptive = \"gradient\", ceiling = 20, latency_limit = \"2s\""),
            "latency_limit: \"2s\"",
            "declare adaptive = \"aimd\"",
        ),
        (
            format!("{HELD}, adaptive = \"aimd\", ceiling = 20, latency_limit = \"calendar:day\""),
            "latency_limit: \"calendar:day\"",
            "a length of time",
        ),
    ] {
        let message = error_of(&limit_toml(&lines));
        let start = format!("set \"s\" / limit \"l\" / {field} has no meaning here: ");
        assert!(
            message.starts_with(&start) && message.contains(advice),
            "{lines}\n{message}"
        );
    }
}

#[test]
fn a_value_that_cannot_be_is_refused_with_what_to_do() {
    let calls = |rest: &str| format!("kind = \"calls\", capacity = 9, window = \"1m\", {rest}");
    let adaptive = |capacity: &str, rest: &str| {
        format!("kind = \"concurrency\", capacity = {capacity}, adaptive = \"aimd\", {rest}")
    };
    for (lines, expected) in [
        ("kind = \"calls\", capacity = 0, window = \"1m\"".to_owned(), "capacity: 0 is out of range: choose from 1"),
        ("kind = \"calls\", capacity = \"lots\", window = \"1m\"".to_owned(), "capacity: \"lots\" is not a decimal"),
        ("kind = \"calls\", capacity = \"1.5\", window = \"1m\"".to_owned(), "capacity: \"1.5\" is not a whole number"),
        (
            "kind = \"rate\", capacity = 9, window = \"1m\", unit = \"0\"".to_owned(),
            "unit: \"0\" is not a unit: write a positive decimal",
        ),
        (
            "kind = \"rate\", capacity = 100000, window = \"1m\", unit = \"0.000000000000000001\"".to_owned(),
            "capacity: \"100000\" is more than 18446744073709551615 units of 0.000000000000000001",
        ),
        (calls("burst = 0"), "burst: 0 is out of range"),
        (calls("burst = \"unlimited\""), "burst: \"unlimited\" is for `capacity` only"),
        ("kind = \"calls\", capacity = 9, window = \"0s\"".to_owned(), "window: \"0s\" is zero"),
        (
            "kind = \"calls\", capacity = 9, algorithm = \"leaky_bucket\", rate = 0, interval = \"1s\"".to_owned(),
            "rate: 0 is out of range",
        ),
        (
            "kind = \"calls\", capacity = 9, algorithm = \"leaky_bucket\", rate = 1, interval = \"calendar:day\""
                .to_owned(),
            "interval: \"calendar:day\" is not a fixed length",
        ),
        (calls("algorithm = \"sliding_window\", entries = 0"), "entries: 0 is out of range: choose from 1 to 65536"),
        (
            calls("algorithm = \"sliding_window\", entries = 65537"),
            "entries: 65537 is out of range: choose from 1 to 65536",
        ),
        (
            "kind = \"budget\", capacity = 9, window = \"calendar:day\", utc_offset = \"+18:01\"".to_owned(),
            "utc_offset: \"+18:01\" is out of range: choose from -18:00 to +18:00",
        ),
        ("kind = \"calls\", capacity = 9".to_owned(), "window is missing: declare over what time"),
        (
            "kind = \"calls\", algorithm = \"leaky_bucket\", rate = \"0.3333333333333333\"".to_owned(),
            "rate: \"0.3333333333333333\" is not a whole number of units of 1: round it",
        ),
        (
            "kind = \"calls\", algorithm = \"leaky_bucket\", rate = \"0.0\"".to_owned(),
            "rate: 0 is out of range",
        ),
        (calls("near_limit = 0"), "near_limit: 0 is out of range: choose from 1 to 100"),
        (calls("near_limit = 300"), "near_limit: 300 is out of range: choose from 1 to 100"),
        (
            "kind = \"concurrency\", capacity = 9, adaptive = \"vegas\"".to_owned(),
            "ceiling is missing: declare the most",
        ),
        (adaptive("9", "ceiling = 8"), "capacity: 9 is out of range: choose from 1 to 8"),
        (adaptive("9", "ceiling = 20, floor = 10"), "capacity: 9 is out of range: choose from 10 to 20"),
        (adaptive("9", "ceiling = 20, floor = 21"), "floor: 21 is out of range: choose from 1 to 20"),
        (adaptive("9", "ceiling = 20, floor = 0"), "floor: 0 is out of range: choose from 1"),
        (adaptive("9", "ceiling = \"unlimited\""), "ceiling: \"unlimited\" is for `capacity` only"),
        (adaptive("9", "ceiling = 20, latency_limit = \"0s\""), "latency_limit: \"0s\" is zero"),
        (
            adaptive("\"unlimited\"", "ceiling = 20"),
            "capacity: \"unlimited\" is nowhere for an adaptive capacity to start: write a number",
        ),
    ] {
        let message = error_of(&limit_toml(&lines));
        let start = format!("set \"s\" / limit \"l\" / {expected}");
        assert!(message.starts_with(&start), "{lines}\n{message}");
    }
    let long = declaring(Limit::calls("l", 9, Duration::MAX));
    assert!(
        invalid(&long).ends_with("is more than 584 years: choose less"),
        "{}",
        invalid(&long)
    );
}

#[test]
fn a_window_that_no_clock_can_keep_is_refused() {
    let advice = "is too short to be kept: write at least \"1ms\", and a capacity in proportion";
    for (lines, field) in [
        (
            "kind = \"calls\", capacity = 10, window = \"1ns\"",
            "window: \"1ns\"",
        ),
        (
            "kind = \"budget\", capacity = 10, window = \"999us999ns\"",
            "window: \"999us999ns\"",
        ),
        (
            "kind = \"calls\", capacity = 9, algorithm = \"leaky_bucket\", rate = 1, interval = \"50us\"",
            "interval: \"50us\"",
        ),
    ] {
        let message = error_of(&limit_toml(lines));
        let start = format!("set \"s\" / limit \"l\" / {field} {advice}");
        assert!(message.starts_with(&start), "{lines}\n{message}");
    }
    let shortest = limit_toml("kind = \"calls\", capacity = 10, window = \"1ms\"");
    assert!(Declaration::from_toml(&shortest).is_ok());
    let tiered = SetDeclaration::new("s")
        .keyed(Keyed::new(1))
        .add_limit(Limit::calls("l", 1, MINUTE))
        .add_tier(Tier::new("gold").window("l", Duration::from_micros(1)));
    let message = invalid(&Declaration::new().add_set(tiered));
    let start = format!("set \"s\" / tier \"gold\" / limit \"l\" / window: \"1us\" {advice}");
    assert!(message.starts_with(&start), "{message}");
}

#[test]
fn a_burst_that_cannot_be_counted_exactly_is_refused_with_the_largest_that_can() {
    let over_584_years = |algorithm, burst: u64| {
        let limit = Limit::calls("l", u64::MAX, Duration::from_nanos(u64::MAX - 1));
        let set = SetDeclaration::new("s").add_limit(limit.algorithm(algorithm).burst(burst));
        Declaration::new().add_set(set).validate()
    };
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let error = over_584_years(algorithm, u64::MAX).expect_err("not exact");
        let message = error.to_string();
        let DeclarationError::InexactBurst { place, given, max } = error else {
            panic!("{error:?}");
        };
        assert_eq!((place.as_str(), given), ("set \"s\" / limit \"l\"", u64::MAX));
        assert!(
            message.contains(&format!("declare a burst of {max} units or less")),
            "{message}"
        );
        over_584_years(algorithm, max).expect("exact");
        over_584_years(algorithm, max + 1).expect_err("not exact");
    }
}

#[test]
fn what_the_algorithm_cannot_decide_by_is_refused_for_the_limit() {
    let buckets = declaring(
        Limit::calls("l", 9, MINUTE)
            .algorithm(Algorithm::SlidingWindowCounter)
            .buckets(61),
    );
    assert_eq!(
        invalid(&buckets),
        r#"set "s" / limit "l": the number of buckets is 61; the most is 60"#
    );
}

#[test]
fn text_that_is_no_declaration_is_refused_with_its_line() {
    for (text, parts) in [
        (
            limit_toml("kind = \"calls\", capacity = 9, window = \"soon\""),
            ["line 7", "\"soon\" is not a window"],
        ),
        (
            limit_toml("kind = \"calls\", capacity = 1.5, window = \"1m\""),
            ["line 6", "write \"1.5\""],
        ),
        (
            limit_toml("kind = \"calls\", capacity = -1, window = \"1m\""),
            ["line 6", "at least 0"],
        ),
        (limit_toml("kind = \"call\", capacity = 1"), ["line 5", "`calls`"]),
        (
            limit_toml("kind = \"calls\", capacity = 1, algorithm = \"gcr\""),
            ["line 7", "`gcra`"],
        ),
        (
            limit_toml("kind = \"budget\", capacity = 1, utc_offset = \"5\""),
            ["line 7", "such as \"+05:30\""],
        ),
        (
            limit_toml("kind = \"concurrency\", capacity = 1, lease = 30"),
            ["line 7", "expected a string"],
        ),
        (
            "[[set]]\nname = \"s\"\nkeys = 1\n".to_owned(),
            ["line 3", "unknown field `keys`"],
        ),
        (
            "[[set]]\nname = \"s\"\nkeyed = { max_keys = 5, when_full = \"forget\" }\n".to_owned(),
            ["line 3", "`evict_least_used`"],
        ),
        (
            "[[set]]\nname = \"s\"\nkeyed = { when_full = \"refuse\" }\n".to_owned(),
            ["line 3", "missing field `max_keys`"],
        ),
        (
            limit_toml("kind = \"concurrency\", capacity = 1, adaptive = \"tcp\""),
            ["line 7", "`vegas`"],
        ),
        (
            limit_toml("kind = \"calls\", capacity = 1, prefix = { ipv4 = 24 }"),
            ["line 7", "missing field `ipv6`"],
        ),
        (
            "[segment]\nmode = 660\n".to_owned(),
            ["line 2", "octal digits in quotes"],
        ),
        (
            "[segment]\nmode = \"0680\"\n".to_owned(),
            ["line 2", "octal digits in quotes"],
        ),
        ("[[set]\n".to_owned(), ["line 1", "the text is not a declaration"]),
    ] {
        let message = error_of(&text);
        assert!(
            parts.iter().all(|part| message.contains(part)),
            "{text}\n{message}"
        );
    }
}

#[test]
fn names_are_short_printable_and_unique() {
    let limit = || Limit::concurrency("l", 1);
    let named = |name: &str| Declaration::new().add_set(SetDeclaration::new(name).add_limit(limit()));
    let advice = "is not a name: write 1 to 64 bytes without control characters";
    let of_paths = "is not a name: no part of it between `/` may be empty or begin with `.`";
    assert_eq!(invalid(&named("")), format!(r#"set 1: "" {advice}"#));
    assert_eq!(
        invalid(&named("a\x1b[2J")),
        format!(r#"set 1: "a\u{{1b}}[2J" {advice}"#)
    );
    assert!(invalid(&named(&"é".repeat(33))).ends_with(advice));
    named(&"é".repeat(32)).validate().expect("64 bytes are a name");

    for path in ["../x", "/a", "a/", "a//b", "a/..", "/", ".hidden", "."] {
        assert_eq!(invalid(&named(path)), format!("set 1: {path:?} {of_paths}"));
        let unnamed = SetDeclaration::new("s").add_limit(Limit::concurrency(path, 1));
        assert_eq!(
            invalid(&Declaration::new().add_set(unnamed)),
            format!(r#"set "s" / limit 1: {path:?} {of_paths}"#)
        );
        let set = SetDeclaration::new("s").keyed(Keyed::new(1)).add_limit(limit());
        assert_eq!(
            invalid(&Declaration::new().add_set(set.add_tier(Tier::new(path)))),
            format!(r#"set "s" / tier 1: {path:?} {of_paths}"#)
        );
    }
    for name in ["v1.2", "openai/gpt-4o:mini", "GET users", "r\u{f6}hre", "a\\b"] {
        named(name).validate().expect("a name");
    }
    let labelled = SetDeclaration::new("s")
        .add_limit(limit())
        .add_metadata("example.org/zone", "../b");
    Declaration::new()
        .add_set(labelled)
        .validate()
        .expect("metadata are no names");

    let twice = named("s").add_set(SetDeclaration::new("s").add_limit(limit()));
    assert_eq!(
        invalid(&twice),
        r#"set "s" is declared twice: give each a name of its own"#
    );
    let twice = Declaration::new().add_set(SetDeclaration::new("s").add_limit(limit()).add_limit(limit()));
    assert_eq!(
        invalid(&twice),
        r#"set "s" / limit "l" is declared twice: give each a name of its own"#
    );
    let unnamed = Declaration::new().add_set(SetDeclaration::new("s").add_limit(Limit::concurrency("", 1)));
    assert_eq!(invalid(&unnamed), format!(r#"set "s" / limit 1: "" {advice}"#));
}

#[test]
fn holds_are_labelled_where_permits_have_some() {
    let set = |limit| Declaration::new().add_set(SetDeclaration::new("s").labels(true).add_limit(limit));
    let minute = Duration::from_secs(60);
    assert_eq!(
        invalid(&set(Limit::calls("l", 1, minute))),
        r#"set "s" / labels: true has no meaning here: no limit of the set gives anything back, so that there is nothing held to label; remove it, or add a concurrency limit"#
    );
    assert_eq!(
        invalid(&set(Limit::calls("l", 100, minute).credit(Credit::batch(10)))),
        r#"set "s" / labels: true has no meaning here: with credit processes hold batches, which many requests are admitted from; remove it"#
    );
    let text = "[[set]]\nname = \"s\"\nlabels = true\nlimit = [{ name = \"l\", kind = \"concurrency\", capacity = 2 }]";
    let declaration = Declaration::from_toml(text).expect("valid");
    assert!(declaration.compile().expect("valid")[0].labels);
    assert!(
        declaration
            .to_toml()
            .expect("valid")
            .contains("\nlabels = true\n")
    );
    assert!(
        !set(Limit::concurrency("l", 1))
            .differences(&declaration)
            .is_empty()
    );
}

#[test]
fn there_are_not_too_many_and_not_too_few() {
    let limit = |index: usize| Limit::concurrency(index.to_string(), 1);
    let set = |name: usize, limits| {
        (0..limits).fold(SetDeclaration::new(name.to_string()), |set, i| {
            set.add_limit(limit(i))
        })
    };
    let sets = |count| (0..count).fold(Declaration::new(), |all, name| all.add_set(set(name, 1)));

    assert_eq!(
        invalid(&sets(0)),
        "sets: 0 is out of range: choose from 1 to 1024"
    );
    assert_eq!(
        invalid(&sets(1025)),
        "sets: 1025 is out of range: choose from 1 to 1024"
    );
    sets(1024).validate().expect("1024 sets");
    let one = |limits| Declaration::new().add_set(set(0, limits));
    assert_eq!(
        invalid(&one(0)),
        r#"set "0" / limits: 0 is out of range: choose from 1 to 16"#
    );
    assert_eq!(
        invalid(&one(17)),
        r#"set "0" / limits: 17 is out of range: choose from 1 to 16"#
    );
    one(16).validate().expect("16 limits");
}

#[test]
fn metadata_is_bounded() {
    let with = |count: usize, key: &str, value: &str| {
        let set = SetDeclaration::new("s")
            .add_limit(Limit::concurrency("l", 1))
            .add_metadata(key, value);
        Declaration::new().add_set((1..count).fold(set, |set, index| set.add_metadata(index.to_string(), "")))
    };
    with(32, &"k".repeat(64), &"v".repeat(256))
        .validate()
        .expect("at its bounds");
    assert_eq!(
        invalid(&with(33, "k", "")),
        r#"set "s" / metadata: 33 is out of range: choose from 0 to 32"#
    );
    assert!(invalid(&with(1, &"k".repeat(65), "")).contains("is not a name"));
    assert_eq!(
        invalid(&with(1, "k", &"v".repeat(257))),
        r#"set "s" / metadata / "k" / bytes: 257 is out of range: choose from 0 to 256"#
    );
}

#[test]
fn the_segments_options_have_ranges() {
    for (declaration, message) in [
        (
            gateway().participants(0),
            "segment / participants: 0 is out of range: choose from 1 to 4096",
        ),
        (
            gateway().participants(4097),
            "segment / participants: 4097 is out of range: choose from 1 to 4096",
        ),
        (
            gateway().mode(0o1777),
            "segment / mode: 1777 is not a mode for a segment: choose at most 0777, of which",
        ),
        (
            gateway().mode(0o440),
            "segment / mode: 0440 is not a mode for a segment: choose at most 0777, of which",
        ),
    ] {
        assert!(
            invalid(&declaration).starts_with(message),
            "{}",
            invalid(&declaration)
        );
    }
}

#[test]
fn holds_are_bounded_and_for_what_gives_back() {
    let set = |limit| SetDeclaration::new("s").add_limit(limit);
    let held = |holds| Declaration::new().add_set(set(Limit::concurrency("l", 1)).holds(holds));
    assert_eq!(
        invalid(&held(0)),
        r#"set "s" / holds: 0 is out of range: choose from 1 to 65536"#
    );
    assert_eq!(
        invalid(&held(65_537)),
        r#"set "s" / holds: 65537 is out of range: choose from 1 to 65536"#
    );
    let nothing = Declaration::new().add_set(set(Limit::calls("l", 1, MINUTE)).holds(1));
    assert!(invalid(&nothing).starts_with(r#"set "s" / holds: 1 has no meaning here: no limit of the set"#));
}

#[test]
fn a_file_is_read_and_named_in_its_errors() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits.toml");
    let missing = Declaration::from_toml_file(&path).expect_err("no such file");
    assert!(matches!(missing, DeclarationError::Unreadable { .. }));
    assert!(missing.to_string().contains("limits.toml"), "{missing}");
    std::fs::write(&path, "nonsense").expect("a file");
    let nonsense = Declaration::from_toml_file(&path)
        .expect_err("not TOML")
        .to_string();
    assert!(
        nonsense.contains("limits.toml is not a declaration: TOML parse error at line 1"),
        "{nonsense}"
    );
    std::fs::write(&path, GATEWAY).expect("a file");
    assert!(
        Declaration::from_toml_file(&path)
            .expect("the example")
            .differences(&gateway())
            .is_empty()
    );
}

#[test]
fn a_path_that_is_not_unicode_cannot_be_written() {
    use std::os::unix::ffi::OsStrExt;

    let declaration = gateway().path(std::ffi::OsStr::from_bytes(b"/dev/shm/\xff"));
    declaration
        .validate()
        .expect("valid where it need not be written");
    let error = declaration.to_toml().expect_err("TOML is Unicode").to_string();
    assert!(
        error.starts_with("segment / path: ") && error.contains("is not Unicode"),
        "{error}"
    );
    assert!(declaration.differences(&gateway()).is_empty());
}
