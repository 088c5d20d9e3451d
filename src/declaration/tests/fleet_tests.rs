//! Limits that hosts share: what can and cannot be declared, and what is stored in a segment.

use crate::declaration::stored::StoredSet;
use crate::declaration::tests::*;
use crate::limit::LEASE_WORDS;

const CALLS: &str = "kind = \"calls\", capacity = 6000, window = \"60s\"";
const HELD: &str = "kind = \"concurrency\", capacity = 9";
const BUDGET: &str = "kind = \"budget\", capacity = 9, window = \"calendar:day\"";
const FLEET: &str = "fleet = { key = \"org/calls\" }";

fn in_fleet(lines: &str) -> String {
    let url = "[fleet]\nurl = \"redis://10.0.0.5:6379/0\"\n";
    format!(
        "{url}{}",
        limit_toml(&lines.replace(FLEET, "@")).replace('@', FLEET)
    )
}

#[test]
fn what_can_be_shared_is_stored_and_read_back() {
    for limit in [
        CALLS.to_owned(),
        format!("{CALLS}, algorithm = \"leaky_bucket\""),
        format!("{CALLS}, algorithm = \"fixed_window\""),
        "kind = \"rate\", capacity = \"9.5\", unit = \"0.5\", window = \"60s\"".to_owned(),
        HELD.to_owned(),
        BUDGET.to_owned(),
    ] {
        let shared = Declaration::from_toml(&in_fleet(&format!("{limit}, {FLEET}"))).expect("valid");
        let alone = Declaration::from_toml(&in_fleet(&limit)).expect("valid");
        let text = shared.to_toml().expect("valid");
        assert_eq!(
            Declaration::from_toml(&text)
                .expect("valid")
                .to_toml()
                .expect("valid"),
            text
        );
        assert!(
            text.contains("lease = \"auto\"") && text.contains("outage = \"spend_out\""),
            "{text}"
        );
        // There is room for a lease even while the limit is not shared.
        let words = |declaration: &Declaration| plan(declaration).state_words();
        assert_eq!(words(&shared), words(&alone));
        let without = Declaration::from_toml(&limit_toml(&limit)).expect("valid");
        assert_eq!(words(&shared), words(&without) + LEASE_WORDS);
        assert!(plan(&shared).rule.can_migrate(&plan(&alone).rule));
        assert!(plan(&alone).rule.can_migrate(&plan(&shared).rule));
        let stored = StoredSet::declared(shared.sets()[0].clone(), None).of_fleet(shared.fleet_options());
        let read = StoredSet::from_text(&stored.to_text().expect("valid")).expect("as it was written");
        assert_eq!(read.compile().expect("valid").limits[0].rule, plan(&shared).rule);
    }
}

#[test]
fn a_host_is_named_before_or_after_the_store_but_not_without_one() {
    let declaration = || declaring(Limit::calls("l", 9, MINUTE));
    let text = format!(
        "[fleet]\nurl = \"redis://h\"\nhost = \"web-1\"\n{}",
        limit_toml(CALLS)
    );
    for declared in [
        declaration().fleet_host("web-1").fleet_url("redis://h"),
        declaration().fleet_url("redis://h").fleet_host("web-1"),
        Declaration::from_toml(&text).expect("valid"),
    ] {
        declared.validate().expect("valid");
        let fleet = declared.fleet_options().expect("declared");
        assert_eq!((fleet.host(), fleet.url()), (Some("web-1"), "redis://h"));
    }
    declaration()
        .fleet_host("web-1")
        .validate()
        .expect_err("no store");
}

#[test]
fn what_a_host_goes_on_with_in_an_outage_is_an_amount_or_a_fraction() {
    let declared = |limit: &str, safe: &str| {
        let fleet = format!("fleet = {{ key = \"org/calls\", outage = \"safe\"{safe} }}");
        let text = in_fleet(&format!("{limit}, {FLEET}")).replace(FLEET, &fleet);
        let declaration = Declaration::from_toml(&text).expect("valid");
        let written = declaration.to_toml().expect("valid");
        let read = Declaration::from_toml(&written).expect("valid");
        assert_eq!(plan(&read).rule, plan(&declaration).rule, "{written}");
        plan(&declaration).rule
    };
    assert_eq!(declared(CALLS, ", safe = 1500"), declared(CALLS, ", safe = 0.25"));
    assert_eq!(declared(HELD, ", safe = 9"), declared(HELD, ", safe = 1.0"));
    // The capacity is divided by the hosts.
    assert_ne!(declared(HELD, ""), declared(HELD, ", safe = 9"));
    let tokens = "kind = \"rate\", capacity = \"9.5\", unit = \"0.5\", window = \"60s\"";
    assert_eq!(
        declared(tokens, ", safe = \"4.5\""),
        declared(tokens, ", safe = 0.5")
    );
}

#[test]
fn what_cannot_be_shared_is_refused_with_what_to_do() {
    for (lines, place, advice) in [
        (
            format!("{CALLS}, algorithm = \"sliding_window\""),
            "fleet",
            "gcra, token_bucket",
        ),
        (
            format!("{CALLS}, algorithm = \"sliding_window_counter\""),
            "fleet",
            "gcra, token_bucket",
        ),
        (
            format!("{CALLS}, algorithm = \"fixed_window\", align = \"first_use\""),
            "fleet",
            "align = \"utc\"",
        ),
        (
            format!("{HELD}, adaptive = \"vegas\", ceiling = 20"),
            "fleet",
            "remove `adaptive`",
        ),
        (
            format!("{CALLS}, credit = {{ batch = 10 }}"),
            "fleet",
            "remove `credit`",
        ),
        (
            CALLS.replace("6000", "\"unlimited\""),
            "fleet",
            "declare a capacity",
        ),
    ] {
        let error = error_of(&in_fleet(&format!("{lines}, {FLEET}")));
        assert!(
            error.starts_with(&format!("set \"s\" / limit \"l\" / {place}")) && error.contains(advice),
            "{lines}: {error}"
        );
    }
    let error = error_of(&limit_toml(&format!("{CALLS}, @")).replace('@', FLEET));
    assert!(
        error.starts_with("fleet is missing") && error.contains("declare [fleet] url"),
        "{error}"
    );
    let keyed = |lines: &str, more: &str| {
        let keyed = in_fleet(lines);
        keyed.replace(
            "name = \"s\"",
            &format!("name = \"s\"\nkeyed = {{ max_keys = 9{more} }}"),
        )
    };
    let of_keys = format!("{CALLS}, {FLEET}");
    for (text, expected) in [
        (
            keyed(&format!("kind = \"concurrency\", capacity = 3, {FLEET}"), "")
                .replace(FLEET, "fleet = { key = \"a\", unleased = 1 }"),
            "would exceed the limit for as long as it is held",
        ),
        (
            keyed(&of_keys, "").replace("window =", "prefix = { ipv4 = 24, ipv6 = 56 }\nwindow ="),
            "limits of networks",
        ),
        (keyed(&of_keys, ", overrides = true"), "the same for every key"),
        (
            format!("{}\n[[set.tier]]\nname = \"gold\"\n", keyed(&of_keys, "")),
            "the same for every key",
        ),
        (
            in_fleet(&of_keys).replace(FLEET, "fleet = { key = \"a\", unleased = 1 }"),
            "in a keyed set",
        ),
        (
            keyed(&of_keys, "").replace(FLEET, "fleet = { key = \"a\", unleased = 6001 }"),
            "unleased",
        ),
    ] {
        let error = error_of(&text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    for (fleet, expected) in [
        ("fleet = { key = \"\" }", "1 to 200 bytes"),
        ("fleet = { key = \"a{b}\" }", "braces"),
        (
            "fleet = { key = \"a\", lease = \"99ms\" }",
            "from \"100ms\" to \"1h\"",
        ),
        (
            "fleet = { key = \"a\", lease = \"long\" }",
            "write \"auto\", or a length",
        ),
        ("fleet = { key = \"a\", outage = \"panic\" }", "panic"),
        ("fleet = { key = \"a\", ttl = \"1s\" }", "ttl"),
        ("fleet = { key = \"a\", safe = 50 }", "declare outage = \"safe\""),
        (
            "fleet = { key = \"a\", outage = \"safe\", safe = 1.5 }",
            "a fraction above 0 and at most 1",
        ),
        (
            "fleet = { key = \"a\", outage = \"safe\", safe = 0.0 }",
            "a fraction above 0 and at most 1",
        ),
        ("fleet = { key = \"a\", outage = \"safe\", safe = 0 }", "6000"),
        ("fleet = { key = \"a\", outage = \"safe\", safe = 6001 }", "6000"),
        (
            "fleet = { key = \"a\", outage = \"safe\", safe = \"0.5\" }",
            "safe",
        ),
    ] {
        let error = error_of(&in_fleet(&format!("{CALLS}, {FLEET}")).replace(FLEET, fleet));
        assert!(error.contains(expected), "{fleet}: {error}");
    }
}

#[test]
fn no_key_is_shared_twice() {
    let limit = |name: &str| Limit::calls(name, 9, MINUTE).fleet(FleetLease::new("org/calls"));
    let set = SetDeclaration::new("s")
        .add_limit(limit("a"))
        .add_limit(limit("b"));
    let declaration = Declaration::new().fleet_url("redis://h").add_set(set);
    assert!(invalid(&declaration).contains("limit \"b\" / fleet / key is declared twice"));
}

#[test]
fn no_url_with_a_secret_is_declared_nor_repeated() {
    const SECRET: &str = "hunter2";
    for url in [
        format!("redis://:{SECRET}@10.0.0.5"),
        format!("redis://user:{SECRET}@10.0.0.5:6379/0"),
        format!("rediss://10.0.0.5?password={SECRET}"),
        format!("redis://10.0.0.5/0?db=1&PASS={SECRET}"),
        format!("redis://10.0.0.5?auth={SECRET}"),
        format!("redis://10.0.0.5/0#{SECRET}"),
        format!("{SECRET}@10.0.0.5"),
        format!("http://{SECRET}"),
        format!("redis:///{SECRET}"),
        format!("redis://10.0.0.5/{SECRET} x"),
    ] {
        let declaration = declaring(Limit::calls("l", 9, MINUTE)).fleet_url(&*url);
        let error = invalid(&declaration);
        assert!(
            error.starts_with("fleet / url") && !error.contains(SECRET),
            "{error}"
        );
    }
    for url in [
        "redis://h",
        "rediss://h:1/2",
        "redis+sentinel://a:1,b:2/name",
        "valkey://h",
        "redis+sentinel://a/name?sentinel_auth=yes&protocol=resp3",
    ] {
        let declaration = declaring(Limit::calls("l", 9, MINUTE)).fleet_url(url);
        declaration.validate().expect("a URL");
    }
}

#[test]
fn a_burst_that_is_too_small_for_the_rate_is_declared_with_a_warning() {
    let declared = |burst: u64, fleet: &str| {
        let text = in_fleet(&format!("{CALLS}, burst = {burst}, {FLEET}")).replace(FLEET, fleet);
        let declaration = Declaration::from_toml(&text).expect("valid");
        declaration.version(1).warnings()
    };
    assert_eq!(declared(14, FLEET), [""; 0]);
    let warnings = declared(10, FLEET);
    assert!(
        matches!(&warnings[..], [warning] if warning.contains("about 74 % of the rate") && warning.contains("at least 14")),
        "{warnings:?}"
    );
    // The same with a longer lease, because what is spent is reported just as early.
    let longer = declared(10, "fleet = { key = \"org/calls\", lease = \"4s\" }");
    assert_eq!(longer, warnings);
}

#[test]
fn how_long_leases_last_follows_from_the_limit() {
    let length = |limit: &str, fleet: &str| {
        let text = in_fleet(&format!("{limit}, {FLEET}")).replace(FLEET, fleet);
        let declaration = Declaration::from_toml(&text).expect("valid");
        let limit = &declaration.canonical().sets[0].limits[0];
        let (_, quota) = limit.shared_quota().expect("shared");
        quota.length.as_millis()
    };
    let automatic = |limit: &str| {
        let without = length(limit, FLEET);
        assert_eq!(
            length(limit, "fleet = { key = \"org/calls\", lease = \"auto\" }"),
            without
        );
        without
    };
    assert_eq!(automatic(CALLS), 10_000);
    assert_eq!(automatic(&format!("{CALLS}, burst = 100")), 500);
    assert_eq!(automatic(&format!("{CALLS}, burst = 1")), 100);
    assert_eq!(
        automatic("kind = \"calls\", capacity = 10, burst = 20, window = \"1s\""),
        1_000
    );
    assert_eq!(
        automatic("kind = \"rate\", capacity = \"9.5\", burst = \"0.5\", unit = \"0.5\", window = \"60s\""),
        1_578
    );
    assert_eq!(
        automatic(&format!("{CALLS}, algorithm = \"fixed_window\"")),
        3_750
    );
    assert_eq!(automatic(BUDGET), 10_000);
    assert_eq!(automatic(HELD), 2_000);
    assert_eq!(
        length(CALLS, "fleet = { key = \"org/calls\", lease = \"20s\" }"),
        20_000
    );
}

#[test]
fn limits_are_shared_without_a_version_with_a_warning() {
    let shared = Declaration::from_toml(&in_fleet(&format!("{CALLS}, {FLEET}"))).expect("valid");
    let warnings = shared.warnings();
    assert!(
        matches!(&warnings[..], [warning] if warning.contains("\"org/calls\"") && warning.contains("version = 1")),
        "{warnings:?}"
    );
    assert_eq!(shared.version(1).warnings(), [""; 0]);
    let alone = Declaration::from_toml(&in_fleet(CALLS)).expect("valid");
    assert_eq!(alone.warnings(), [""; 0]);
}

#[test]
fn a_backing_is_applied_where_there_is_room_for_it() {
    let of = |text: &str| Declaration::from_toml(text).expect("valid");
    let (alone, shared) = (of(&in_fleet(CALLS)), of(&in_fleet(&format!("{CALLS}, {FLEET}"))));
    let without = of(&limit_toml(CALLS));
    for (asked, stored) in [(&shared, &alone), (&alone, &shared), (&without, &shared)] {
        assert!(asked.applied_to(stored).is_ok(), "there is room");
    }
    let refused = shared.applied_to(&without).expect_err("there is no room");
    assert!(
        refused.iter().any(|it| it.path() == "fleet"),
        "{:?}",
        texts(&refused)
    );
}
