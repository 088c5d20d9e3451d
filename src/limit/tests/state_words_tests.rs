//! Keeps the table of state words in `shm-layout.md` and the rules in step.

use crate::limit::{
    Backlog, Concurrency, FixedWindow, Rule, RuleOperations, SlidingWindow, SlidingWindowCounter, Unlimited,
};

/// How many words the document gives an algorithm.
fn documented(algorithm: &str) -> &'static str {
    include_str!("../../../shm-layout.md")
        .lines()
        .find_map(|line| line.strip_prefix(&format!("| {algorithm} | ")))
        .and_then(|rest| rest.split(" |").next())
        .unwrap_or_else(|| panic!("{algorithm} is not documented"))
}

#[test]
fn every_algorithm_has_as_many_state_words_as_documented() {
    let (capacity, window) = (100, 1_000_000);
    let backlog = Rule::Backlog(Backlog::new(capacity, window, capacity).expect("valid"));
    let first_use = Rule::FixedWindow(FixedWindow::first_use(capacity, window).expect("valid"));
    let utc = Rule::FixedWindow(FixedWindow::utc(capacity, window).expect("valid"));
    let concurrency = Rule::Concurrency(Concurrency::new(capacity).expect("valid"));
    for (algorithm, rule) in [
        ("`gcra`, `token_bucket`, `leaky_bucket`", backlog),
        ("`fixed_window`, `align = \"first_use\"`", first_use),
        ("`fixed_window`, UTC or calendar", utc),
        ("concurrency", concurrency),
        (
            "capacity `\"unlimited\"` of calls, rate, concurrency or budget",
            Unlimited.into(),
        ),
    ] {
        assert_eq!(
            documented(algorithm),
            rule.state_words().to_string(),
            "{algorithm}"
        );
    }
    assert_eq!(documented("`sliding_window`"), "2 + 4 × `entries`");
    assert_eq!(documented("`sliding_window_counter`"), "2 × (`buckets` + 1)");
    for count in [1, 2, 10, 60] {
        let words = count as usize;
        let log = Rule::SlidingWindow(SlidingWindow::new(capacity, window, count).expect("valid"));
        assert_eq!(log.state_words(), 2 + 4 * words);
        let counter =
            Rule::SlidingWindowCounter(SlidingWindowCounter::new(capacity, window, count).expect("valid"));
        assert_eq!(counter.state_words(), 2 * (words + 1));
    }
}
