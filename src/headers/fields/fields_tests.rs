//! Checks the fields of real sets byte by byte.

use std::ops::Deref;
use std::time::Duration;

use super::super::policy_headers::{Advertise, PolicyHeaders};
use super::{Fields, quoted, retry_after, whole_seconds};
use crate::api::permit::{Outcome, Permit};
use crate::api::refusal::{Refusal, Verdict};
use crate::api::segment::Segment;
use crate::api::set::limit_set::LimitSet;
use crate::choices::Scope;
use crate::declaration::{
    Adaptive, Amount, Declaration, FleetLease, Keyed, Limit, SetDeclaration, Tier, Window,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A set, with the directory of its file kept alive.
struct SetInFile {
    set: LimitSet,
    _directory: tempfile::TempDir,
}

impl Deref for SetInFile {
    type Target = LimitSet;

    fn deref(&self) -> &LimitSet {
        &self.set
    }
}

/// A set with these limits.
fn set_of(limits: impl IntoIterator<Item = Limit>) -> SetInFile {
    let set = limits
        .into_iter()
        .fold(SetDeclaration::new("api"), SetDeclaration::add_limit);
    let directory = tempfile::tempdir().expect("a directory");
    let segment = Segment::create(directory.path().join("limits"), &Declaration::new().add_set(set));
    SetInFile {
        set: segment.expect("a segment").set("api").expect("declared"),
        _directory: directory,
    }
}

/// What is promised before anything has been decided.
fn promised(headers: &PolicyHeaders) -> Option<String> {
    let fields = admission(headers, std::iter::empty());
    assert_eq!(fields.standing, None);
    fields.policy.as_deref().map(str::to_owned)
}

fn policy(set: &LimitSet) -> Option<String> {
    promised(&PolicyHeaders::new(set))
}

fn admission<'a>(headers: &PolicyHeaders, verdicts: impl Iterator<Item = Verdict<'a>>) -> Fields {
    headers.admission(verdicts, Advertise::Always)
}

fn standing<'a>(headers: &PolicyHeaders, verdicts: impl Iterator<Item = Verdict<'a>>) -> Option<String> {
    admission(headers, verdicts).standing
}

fn admitted(set: &LimitSet) -> Permit<'_> {
    let outcome = set.request().try_acquire().expect("works");
    outcome.into_result().expect("room")
}

fn refused(request: &crate::Request<'_>) -> Refusal {
    match request.try_acquire().expect("works") {
        Outcome::Refused(refusal) => refusal,
        Outcome::Admitted(_) => panic!("there is no room"),
    }
}

#[test]
fn names_are_strings_of_structured_fields_and_of_json_alike() {
    for (name, expected) in [
        ("requests", r#""requests""#),
        ("per user; daily, all", r#""per user; daily, all""#),
        (r#"the "big" one"#, r#""the \"big\" one""#),
        (r"dom\user", r#""dom\\user""#),
        ("100%", r#""100%25""#),
        ("größe", r#""gr%C3%B6%C3%9Fe""#),
        ("日", r#""%E6%97%A5""#),
        ("a\u{1}\n\u{7f}b", r#""a%01%0A%7Fb""#),
    ] {
        let field = quoted(name);
        assert_eq!(field, expected);
        assert!(field.bytes().all(|byte| (b' '..0x7f).contains(&byte)), "{field}");
        let parsed: String = serde_json::from_str(&field).expect("a string of JSON");
        let unescaped = field[1..field.len() - 1]
            .replace("\\\"", "\"")
            .replace("\\\\", "\\");
        assert_eq!(parsed, unescaped);
    }
}

#[test]
fn a_policy_has_quota_unit_window_and_burst() {
    let set = set_of([
        Limit::calls("requests", 200, Duration::from_secs(1)).burst(20),
        Limit::concurrency("in_flight", 8),
        Limit::calls("daily", 5_000, Window::Day).algorithm(crate::Algorithm::FixedWindow),
        Limit::calls("weekly", 9_000, Window::Week).algorithm(crate::Algorithm::FixedWindow),
    ]);
    let expected = concat!(
        r#""requests";q=200;w=1;shmlimit-burst=20, "in_flight";q=8;qu="concurrent-requests", "#,
        r#""daily";q=5000;w=86400, "weekly";q=9000;w=604800"#
    );
    assert_eq!(policy(&set).as_deref(), Some(expected));
}

#[test]
fn windows_that_seconds_cannot_say_are_left_out() {
    let set = set_of([
        Limit::calls("half", 5, Duration::from_millis(1_500)).algorithm(crate::Algorithm::FixedWindow),
        Limit::calls("monthly", 7, Window::Month).algorithm(crate::Algorithm::FixedWindow),
    ]);
    assert_eq!(policy(&set).as_deref(), Some(r#""half";q=5, "monthly";q=7"#));
}

#[test]
fn a_cost_is_not_described_as_a_number_of_requests() {
    let set = set_of([
        Limit::rate("tokens", 10_000, MINUTE),
        Limit::budget("dollars", 10, MINUTE),
        Limit::calls("requests", 10, MINUTE),
    ]);
    assert_eq!(policy(&set).as_deref(), Some(r#""requests";q=10;w=60"#));
    let request = set.request().with("tokens", 400).expect("declared");
    let outcome = request.try_acquire().expect("works");
    let permit = outcome.into_result().expect("room");
    let headers = PolicyHeaders::new(&set);
    let first = standing(&headers, permit.verdicts());
    assert_eq!(first.expect("requests"), r#""requests";r=9;t=6"#);

    let headers = headers.quota_unit("tokens", "content-bytes");
    let field = promised(&headers).expect("two limits");
    let expected = concat!(
        r#""tokens";q=10000;qu="content-bytes";w=60, "#,
        r#""requests";q=10;w=60"#
    );
    assert_eq!(field, expected);
    let both = standing(&headers, permit.verdicts());
    assert_eq!(both.expect("both"), r#""tokens";r=9600;t=3, "requests";r=9;t=6"#);
}

#[test]
fn what_is_unlimited_is_not_described_and_an_empty_field_is_absent() {
    let set = set_of([Limit::calls("anything", Amount::Unlimited, MINUTE)]);
    assert_eq!(policy(&set), None);
    let permit = admitted(&set);
    assert_eq!(
        admission(&PolicyHeaders::new(&set), permit.verdicts()),
        Fields::default()
    );
}

#[test]
fn numbers_end_where_the_integers_of_structured_fields_end() {
    let set = set_of([Limit::concurrency("in_flight", u64::MAX >> 1)]);
    let max = 999_999_999_999_999_u64;
    let expected = format!(r#""in_flight";q={max};qu="concurrent-requests""#);
    assert_eq!(policy(&set), Some(expected));
    let permit = admitted(&set);
    let standing = standing(&PolicyHeaders::new(&set), permit.verdicts());
    assert_eq!(standing.expect("one limit"), format!(r#""in_flight";r={max}"#));
}

#[test]
fn a_prefix_stands_before_every_name() {
    let set = set_of([
        Limit::calls("requests", 1, MINUTE),
        Limit::rate("tokens", 9, MINUTE),
    ]);
    let headers = PolicyHeaders::new(&set).policy_prefix("search.");
    let field = promised(&headers).expect("one limit");
    assert_eq!(field, r#""search.requests";q=1;w=60"#);
    let violated = |limit| headers.never_admissible(limit, Advertise::Never).body;
    let named = r#""violated-policies":["search.tokens"]"#;
    assert!(violated("tokens").contains(named), "{}", violated("tokens"));
    let unnamed = r#""violated-policies":[]"#;
    assert!(violated("none").contains(unnamed), "{}", violated("none"));
}

#[test]
fn a_refusal_has_the_windows_of_what_refused_and_no_longer_ones_than_retry_after() {
    let set = set_of([
        Limit::calls("hourly", 1, 60 * MINUTE),
        Limit::calls("daily", 2, Duration::from_secs(86_400)),
        Limit::concurrency("in_flight", 1),
    ]);
    let permit = admitted(&set);
    let headers = PolicyHeaders::new(&set);
    let admitted = standing(&headers, permit.verdicts());
    assert_eq!(
        admitted.expect("three limits"),
        r#""hourly";r=0;t=3600, "daily";r=1;t=43200, "in_flight";r=0"#
    );
    let refusal = refused(&set.request());
    let problem = headers.refusal(&refusal, Advertise::Always);
    // A place may become free much later, but no request is admitted before the hour is over.
    let seconds = problem.fields.retry_after.expect("a refusal has it");
    assert!((1..=3600).contains(&seconds), "{seconds}");
    let expected = format!(r#""hourly";r=0;t={seconds}, "daily";r=1, "in_flight";r=0"#);
    assert_eq!(problem.fields.standing, Some(expected));
    let by_name: Vec<&str> = problem.fields.iter().map(|(name, _)| name).collect();
    assert_eq!(by_name, ["Retry-After", "RateLimit-Policy", "RateLimit"]);
    let unadvertised = headers.refusal(&refusal, Advertise::Never).fields;
    let by_name: Vec<&str> = unadvertised.iter().map(|(name, _)| name).collect();
    assert_eq!(by_name, ["Retry-After"]);
}

#[test]
fn retry_after_is_a_second_where_only_a_permit_can_free_it() {
    let set = set_of([
        Limit::calls("requests", 100, MINUTE),
        Limit::concurrency("in_flight", 1),
    ]);
    let _permit = admitted(&set);
    assert_eq!(retry_after(&refused(&set.request())), 1);
}

#[test]
fn seconds_are_rounded_up() {
    for (wait, seconds) in [
        (Duration::ZERO, 0),
        (Duration::from_nanos(1), 1),
        (Duration::from_secs(1), 1),
        (Duration::new(1, 1), 2),
        (Duration::MAX, 999_999_999_999_999),
    ] {
        assert_eq!(whole_seconds(wait), seconds, "{wait:?}");
    }
}

#[test]
fn limits_that_change_are_described_as_they_are_and_those_in_shadow_are_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let of = |capacity, is_in_shadow| {
        let requests = Limit::calls("requests", capacity, MINUTE).shadow(is_in_shadow);
        let in_flight = Limit::concurrency("in_flight", 2)
            .adaptive(Adaptive::Vegas)
            .ceiling(capacity);
        Declaration::new().add_set(
            SetDeclaration::new("api")
                .add_limit(requests)
                .add_limit(in_flight),
        )
    };
    let segment = Segment::create(directory.path().join("limits"), &of(10, false)).expect("a segment");
    let other = Segment::open(directory.path().join("limits")).expect("a segment");
    let set = segment.set("api").expect("declared");
    let headers = PolicyHeaders::new(&set);
    let in_flight = r#""in_flight";q=2;qu="concurrent-requests""#;
    for (capacity, is_in_shadow) in [(10, false), (20, false), (30, true), (40, false)] {
        other.apply(&of(capacity, is_in_shadow)).expect("changes");
        let permit = admitted(&set);
        let fields = admission(&headers, permit.verdicts());
        let mut expected = in_flight.to_owned();
        if !is_in_shadow {
            expected = format!(r#""requests";q={capacity};w=60, {expected}"#);
        }
        assert_eq!(
            fields.policy.as_deref(),
            Some(expected.as_str()),
            "the capacity that is in force"
        );
        let standing = fields.standing.expect("limits");
        assert_eq!(standing.contains("requests"), !is_in_shadow);
    }
}

#[test]
fn clients_read_the_quota_of_their_tier() {
    let directory = tempfile::tempdir().expect("a directory");
    let api = SetDeclaration::new("api")
        .keyed(Keyed::new(10))
        .add_limit(Limit::calls("requests", 10, MINUTE))
        .add_tier(Tier::new("gold").capacity("requests", 100).burst("requests", 20));
    let segment = Segment::create(directory.path().join("limits"), &Declaration::new().add_set(api));
    let set = segment.expect("a segment").set("api").expect("declared");
    set.key("rich").expect("keyed").assign("gold").expect("a tier");
    let headers = PolicyHeaders::new(&set);
    for (key, expected) in [
        ("rich", r#""requests";q=100;w=60;shmlimit-burst=20"#),
        ("other", r#""requests";q=10;w=60"#),
    ] {
        let outcome = set.request().for_key(key).expect("keyed").try_acquire();
        let permit = outcome.expect("works").into_result().expect("room");
        let fields = admission(&headers, permit.verdicts());
        assert_eq!(fields.policy.as_deref(), Some(expected));
        assert!(fields.standing.is_some());
    }
}

/// A host of a fleet that has leased nothing yet does not say that nothing is left. Anything more would tell one client
/// about the others; only when to come back concerns this one.
#[test]
fn nothing_is_said_of_limits_of_all_keys_but_when_to_come_back() {
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(10))
        .add_limit(Limit::calls("own", 5, MINUTE))
        .add_limit(Limit::calls("overall", 1, MINUTE).scope(Scope::AllKeys));
    let directory = tempfile::tempdir().expect("a directory");
    let segment = Segment::create(directory.path().join("limits"), &Declaration::new().add_set(set));
    let set = segment.expect("a segment").set("api").expect("declared");
    let headers = PolicyHeaders::new(&set);
    assert_eq!(promised(&headers).as_deref(), Some(r#""own";q=5;w=60"#));
    let request = set.request();
    let outcome = request
        .for_key("one")
        .expect("a key")
        .try_acquire()
        .expect("works");
    let permit = outcome.into_result().expect("room");
    assert_eq!(
        standing(&headers, permit.verdicts()).as_deref(),
        Some(r#""own";r=4;t=12"#)
    );
    let refusal = refused(&request.for_key("other").expect("a key"));
    let fields = headers.refusal(&refusal, Advertise::Always).fields;
    assert_eq!(fields.standing.as_deref(), Some(r#""own";r=5"#));
    assert!(
        fields.retry_after.is_some_and(|seconds| seconds >= 59),
        "{fields:?}"
    );
}

#[test]
fn nothing_is_said_of_what_is_left_of_limits_that_hosts_share() {
    let shared = Limit::calls("shared", 100, MINUTE).fleet(FleetLease::new("org/shared"));
    let set = SetDeclaration::new("api")
        .add_limit(shared)
        .add_limit(Limit::calls("own", 9, MINUTE));
    let declaration = Declaration::new().fleet_url("redis://127.0.0.1:1").add_set(set);
    let directory = tempfile::tempdir().expect("a directory");
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let set = segment.set("api").expect("declared");
    let headers = PolicyHeaders::new(&set);
    let refusal = set.request().check().expect("decides");
    let refusal = refusal.into_result().expect_err("nothing is leased");
    let problem = headers.refusal(&refusal, Advertise::Always);
    assert_eq!(problem.status, 503);
    assert_eq!(
        problem.fields.policy.as_deref(),
        Some("\"shared\";q=100;w=60, \"own\";q=9;w=60")
    );
    assert_eq!(problem.fields.standing.as_deref(), Some("\"own\";r=9"));
    assert_eq!(problem.fields.retry_after, Some(1));
}
