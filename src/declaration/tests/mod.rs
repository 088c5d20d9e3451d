//! Tests of declarations as a whole.

mod apply_tests;
mod errors_tests;

mod fleet_tests;
mod keyed_tests;
mod limit_fields_tests;
mod meaning_tests;
mod plans_tests;
mod random_tests;
mod stored_tests;
mod tiers_tests;

use std::time::Duration;

use crate::declaration::*;
use crate::engine::terms::plan::{KeyedPlan, LimitPlan, PrefixLengths};
use crate::error::Difference;
use crate::limit::{
    Backlog, Budget, Calendar, CalendarUnit, Concurrency, FixedWindow, LocalTime, Rule, RuleOperations,
    SlidingWindow, SlidingWindowCounter, Unlimited,
};
use crate::units::NANOS_PER_SECOND;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_NANOS: u64 = 60 * NANOS_PER_SECOND;

/// The rule of GCRA, the token bucket and the leaky bucket.
fn backlog(capacity: u64, window: u64, burst: u64) -> Rule {
    Backlog::new(capacity, window, burst).expect("valid").into()
}

/// The rule of a sliding window in a set of its own, so that its refunds have all available words.
fn sliding_window(capacity: u64, window: u64, entries: u32) -> Rule {
    let rule = SlidingWindow::new(capacity, window, entries).expect("valid");
    rule.refunding_within(128).into()
}

/// The example of the specification, as far as this version supports it.
const GATEWAY: &str = r#"
[segment]                       # all optional
path = "/dev/shm/gateway.limits"
mode = "0660"
participants = 256

[[set]]
name = "openai"
metadata = { region = "us-east-1" }

  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 10_000
  window = "60s"
  algorithm = "gcra"

  [[set.limit]]
  name = "tokens"
  kind = "rate"
  capacity = 2_000_000
  window = "60s"
  algorithm = "token_bucket"

  [[set.limit]]
  name = "in_flight"
  kind = "concurrency"
  capacity = 64
"#;

fn gateway() -> Declaration {
    Declaration::new()
        .path("/dev/shm/gateway.limits")
        .mode(0o660)
        .participants(256)
        .add_set(
            SetDeclaration::new("openai")
                .add_metadata("region", "us-east-1")
                .add_limit(Limit::calls("requests", 10_000, MINUTE))
                .add_limit(Limit::rate("tokens", 2_000_000, MINUTE).algorithm(Algorithm::TokenBucket))
                .add_limit(Limit::concurrency("in_flight", 64)),
        )
}

fn declaring(limit: Limit) -> Declaration {
    Declaration::new().add_set(SetDeclaration::new("s").add_limit(limit))
}

/// A set "s" with one limit "l" with these lines.
fn limit_toml(lines: &str) -> String {
    let lines = lines.replace(", ", "\n");
    format!("[[set]]\nname = \"s\"\n[[set.limit]]\nname = \"l\"\n{lines}\n")
}

fn plan(declaration: &Declaration) -> LimitPlan {
    declaration
        .compile()
        .expect("a valid declaration")
        .remove(0)
        .limits
        .remove(0)
}

fn rule_of(lines: &str) -> Rule {
    plan(&Declaration::from_toml(&limit_toml(lines)).expect("a valid declaration")).rule
}

fn error_of(text: &str) -> String {
    Declaration::from_toml(text)
        .expect_err("not a valid declaration")
        .to_string()
}

fn invalid(declaration: &Declaration) -> String {
    declaration
        .validate()
        .expect_err("not a valid declaration")
        .to_string()
}

fn texts(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(Difference::to_string).collect()
}
