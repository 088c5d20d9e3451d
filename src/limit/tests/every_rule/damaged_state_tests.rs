//! Rules must cope with any state words at all.

use proptest::prelude::*;

use crate::limit::tests::trace_tests::{quantity, window};
use crate::limit::tests::{Counting, Limit};
use crate::limit::{
    Adaptive, AdaptiveAlgorithm, Assessment, Backlog, Budget, Calendar, CalendarUnit, Charge, Concurrency,
    FixedWindow, LocalTime, Mark, Now, Rule, RuleOperations, SlidingWindow, SlidingWindowCounter, Standing,
    Unlimited,
};
use crate::units::LATEST_INSTANT;

pub(in crate::limit::tests) fn anything() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => any::<u64>(),
        2 => 0..8_u64,
        1 => Just(u64::MAX),
        1 => Just(LATEST_INSTANT),
        // A plausible head and length, or a time not far from now.
        2 => (0..9_u64, 0..9_u64).prop_map(|(head, len)| head | (len << 32)),
        2 => 900..1_100_u64,
    ]
}

fn fixed(capacity: u64, window: u64, kind: u8, offset: i32) -> FixedWindow {
    let calendar = |unit| Calendar {
        unit,
        local: LocalTime::at_offset(offset % 86_400),
        week_start: 5,
    };
    match kind % 5 {
        0 => FixedWindow::utc(capacity, window),
        1 => FixedWindow::first_use(capacity, window),
        2 => FixedWindow::calendar(capacity, calendar(CalendarUnit::Day)),
        3 => FixedWindow::calendar(capacity, calendar(CalendarUnit::Week)),
        _ => FixedWindow::calendar(capacity, calendar(CalendarUnit::Month)),
    }
    .expect("valid")
}

/// Capacity, window and burst.
type Parameters = (u64, u64, u64);

fn parameters() -> impl Strategy<Value = Parameters> {
    let any_window = prop_oneof![window(), any::<u64>().prop_map(|w| w.max(1))];
    (quantity(), any_window, quantity())
}

fn declared((capacity, window, burst): Parameters, which: u8, kind: u8, offset: i32, small: u32) -> Rule {
    match which {
        0..=2 => match Backlog::new(capacity, window, burst) {
            Ok(rule) => Rule::Backlog(rule),
            Err(_) => Rule::Unlimited(Unlimited),
        },
        3 => Rule::FixedWindow(fixed(capacity, window, kind, offset)),
        4 => Rule::SlidingWindow(
            SlidingWindow::new(capacity, window, small)
                .expect("valid")
                .refunding_within(u32::from(kind)),
        ),
        5 => {
            let buckets = u64::from(small).min(window) as u32;
            Rule::SlidingWindowCounter(SlidingWindowCounter::new(capacity, window, buckets).expect("valid"))
        }
        6 => Rule::Budget(Budget::new(fixed(capacity, window, kind, offset)).expect("valid")),
        7 => Rule::Concurrency(Concurrency::new(capacity).expect("valid")),
        8 => {
            let algorithm = match kind % 3 {
                0 => AdaptiveAlgorithm::Aimd { timeout: window },
                1 => AdaptiveAlgorithm::Gradient,
                _ => AdaptiveAlgorithm::Vegas,
            };
            // It starts at its ceiling, so an unused limit admits the most it ever can.
            let ceiling = capacity.min(u64::from(u32::MAX));
            Rule::Adaptive(Adaptive::new(algorithm, ceiling, burst.min(ceiling), ceiling).expect("valid"))
        }
        _ => Rule::Unlimited(Unlimited),
    }
}

/// Usually just a few.
fn small() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 1..=5_u32, 1 => 1..=60_u32]
}

/// Every rule, with parameters of all sizes.
pub(super) fn rule() -> impl Strategy<Value = Rule> {
    (parameters(), 0..=9_u8, any::<u8>(), any::<i32>(), small())
        .prop_map(|(parameters, which, kind, offset, small)| declared(parameters, which, kind, offset, small))
}

/// A rule, and one it may change into without losing its state.
pub(super) fn change() -> impl Strategy<Value = (Rule, Rule)> {
    let kinds = (any::<u8>(), any::<u8>(), any::<i32>(), any::<i32>());
    (parameters(), parameters(), 0..=9_u8, kinds, small()).prop_filter_map(
        "has another kind of state",
        |(before, after, which, (kind, other_kind, offset, other_offset), small)| {
            // A calendar may change into another; other windows may not change their kind.
            let other_kind = if kind % 5 < 2 { kind } else { other_kind };
            let old = declared(before, which, kind, offset, small);
            let new = declared(after, which, other_kind, other_offset, small);
            new.can_migrate(&old).then_some((old, new))
        },
    )
}

fn damaged() -> impl Strategy<Value = Limit> {
    rule().prop_flat_map(|rule| {
        prop::collection::vec(anything(), rule.state_words()).prop_map(move |words| Limit { rule, words })
    })
}

fn charge() -> impl Strategy<Value = Charge> {
    (
        anything(),
        anything(),
        anything(),
        anything(),
        prop::option::of(anything()),
    )
        .prop_map(|(instant, cost, units_after, first, second)| Charge {
            instant,
            mark: second.map(|second| Mark { first, second }),
            cost,
            units_after,
        })
}

fn stores(limit: &mut Limit, change: impl FnOnce(Rule, &mut Counting)) -> usize {
    let rule = limit.rule;
    let mut state = Counting {
        words: &mut limit.words,
        stores: 0,
    };
    change(rule, &mut state);
    state.stores
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 2_000 }))]

    #[test]
    fn nothing_in_the_state_makes_a_rule_panic(
        mut limit in damaged(),
        acts in prop::collection::vec((anything(), anything(), 0..6_u8, anything(), charge()), 1..12),
    ) {
        for (monotonic, utc, act, amount, charge) in acts {
            let now = Now { monotonic, utc };
            let assessment = limit.assess(now, amount);
            prop_assert_ne!(assessment, Assessment::Refused { retry_after: Some(0) });
            prop_assert!(limit.remaining(now) <= limit.rule.burst());
            let before = limit.remaining(now);
            let stored = stores(&mut limit, |rule, state| match act {
                0 | 1 => rule.charge(state, now, amount),
                2 => {
                    let given = rule.refund(state, now, amount, &charge);
                    assert!(given <= amount && given <= charge.cost);
                }
                3 => rule.give_back(state, amount),
                _ => {}
            });
            let max = match limit.rule {
                Rule::SlidingWindow(_) if act == 2 => u8::MAX.into(),
                _ => 4,
            };
            prop_assert!(stored <= max);
            // If the totals of a log are out of order, anything may happen.
            if act == 2 && !matches!(limit.rule, Rule::SlidingWindow(_)) {
                prop_assert!(limit.remaining(now) >= before);
            }
            // Any mark must be accepted, too.
            let mark = Mark { first: monotonic, second: amount };
            let _ = limit.rule.standing(mark);
        }
    }

    #[test]
    fn nothing_in_the_state_makes_a_change_panic(
        (words, (old, new)) in change().prop_flat_map(|(old, new)| {
            (prop::collection::vec(anything(), old.state_words()), Just((old, new)))
        }),
        monotonic in anything(), utc in anything(), amount in anything(),
    ) {
        let now = Now { monotonic, utc };
        let mut limit = Limit { rule: new, words };
        let stored = stores(&mut limit, |new, state| new.migrate(&old, state, now));
        prop_assert!(stored <= 62, "{stored} stores");
        prop_assert_ne!(limit.assess(now, amount), Assessment::Refused { retry_after: Some(0) });
        prop_assert!(limit.remaining(now) <= new.burst());
        limit.charge(now, amount);
        let _ = limit.rule.is_replenished(limit.words.as_slice(), now);
    }

    #[test]
    fn what_has_nothing_to_say_decides_like_zeros_even_if_it_is_damaged(
        limit in damaged(), monotonic in anything(), utc in anything(),
        later in prop::collection::vec((anything(), anything(), anything()), 1..8),
    ) {
        let now = Now { monotonic, utc };
        // An adaptive limit still holds what it has learnt, which may be forgotten.
        let is_adaptive = matches!(limit.rule, Rule::Adaptive(_));
        let has_nothing_to_say = limit.is_replenished(now) && !is_adaptive;
        let unused = Limit::new(limit.rule);
        for (wait, wall_wait, cost) in later.into_iter().filter(|_| has_nothing_to_say) {
            let now = Now { monotonic: monotonic.saturating_add(wait), utc: utc.saturating_add(wall_wait) };
            prop_assert_eq!(limit.assess(now, cost), unused.assess(now, cost));
            prop_assert_eq!(limit.standing(now), unused.standing(now));
        }
    }

    #[test]
    fn a_reset_heals_whatever_it_finds(mut limit in damaged(), monotonic in anything(), utc in anything()) {
        let now = Now { monotonic, utc };
        let full = Limit::new(limit.rule).standing(now);
        let stored = stores(&mut limit, |rule, state| rule.reset(state));
        prop_assert!(stored <= 128);
        if !matches!(limit.rule, Rule::Concurrency(_) | Rule::Adaptive(_)) {
            prop_assert_eq!(limit.standing(now), full);
        }
    }

    #[test]
    fn zeros_are_full_at_any_time(rule in rule(), monotonic in any::<u64>(), utc in any::<u64>()) {
        let limit = Limit::new(rule);
        let now = Now { monotonic, utc };
        let Standing { remaining, reset_after } = limit.standing(now);
        prop_assert_eq!(reset_after, 0);
        prop_assert!(limit.admits(now, remaining));
        prop_assert!(limit.admits(now, rule.burst()));
    }

    #[test]
    fn a_charge_of_nothing_stores_nothing(mut limit in damaged(), monotonic in anything(), utc in anything()) {
        let now = Now { monotonic, utc };
        prop_assert_eq!(stores(&mut limit, |rule, state| rule.charge(state, now, 0)), 0);
    }

    #[test]
    fn only_what_refunds_changes_at_a_refund(mut limit in damaged(), monotonic in anything(), amount in anything()) {
        let now = Now { monotonic, utc: 0 };
        let before = limit.words.clone();
        let given = limit.refund_any(now, amount);
        let refunds = !matches!(
            limit.rule,
            Rule::Budget(_) | Rule::Concurrency(_) | Rule::Adaptive(_) | Rule::Unlimited(_)
        );
        prop_assert!(refunds || (given == 0 && limit.words == before));
    }

    #[test]
    fn taking_is_assessing_then_charging_then_marking(
        mut limit in damaged(), monotonic in anything(), utc in anything(), cost in anything(),
    ) {
        let now = Now { monotonic, utc };
        let mut stepwise = limit.clone();
        let taken = limit.rule.take(limit.words.as_mut_slice(), now, cost);
        let expected = match stepwise.rule.assess(stepwise.words.as_slice(), now, cost) {
            Assessment::Admissible => {
                stepwise.rule.charge(stepwise.words.as_mut_slice(), now, cost);
                Ok(stepwise.rule.mark(stepwise.words.as_slice(), now))
            }
            refused => Err(refused),
        };
        prop_assert_eq!(taken, expected);
        prop_assert_eq!(limit.words, stepwise.words);
    }
}
