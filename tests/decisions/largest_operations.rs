//! The operations that change the most words fit into the journal: none returns an internal error.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::scene::{create, expect_permit};
use shmlimit::{Algorithm, Limit, SetDeclaration};

const MINUTE: Duration = Duration::from_secs(60);
const MAX_LIMITS: usize = 16;

/// A set with as many limits as there may be, the first `held` of which are held.
fn widest_set(algorithm: Algorithm, held: usize) -> SetDeclaration {
    (0..MAX_LIMITS).fold(SetDeclaration::new("wide"), |set, index| {
        let name = format!("limit {index}");
        set.add_limit(if index < held {
            Limit::concurrency(name, 1_000)
        } else {
            Limit::rate(name, 1_000, MINUTE).algorithm(algorithm)
        })
    })
}

#[test]
fn the_widest_sets_fit_the_journal() {
    for (algorithm, held) in [
        (Algorithm::SlidingWindow, 1),
        (Algorithm::SlidingWindow, 0),
        (Algorithm::SlidingWindowCounter, 1),
        (Algorithm::TokenBucket, MAX_LIMITS - 1),
    ] {
        let (_directory, _segment, wide) = create(widest_set(algorithm, held));
        let names: Vec<String> = wide.limits().map(str::to_owned).collect();
        let mut request = wide.request();
        for name in &names {
            request.set_cost(name, 10).expect("declared");
        }
        // Settled to less than was reserved, and to more.
        for used in [3, 2_000] {
            let mut permit = expect_permit(request.try_acquire());
            permit
                .settle(names.iter().skip(held).map(|name| (name, used)))
                .expect("room in the journal");
            permit.release().expect("room in the journal");
        }
        // Refused by all of them at once.
        let refused = !request.try_acquire().expect("room in the journal").is_admitted();
        assert!(refused);
    }
}

#[test]
fn the_widest_grants_fit_the_journal_and_can_be_taken_back() {
    for algorithm in [
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket,
    ] {
        let leased = Limit::concurrency("places", 1).lease(MINUTE);
        let set = (1..MAX_LIMITS).fold(SetDeclaration::new("wide").add_limit(leased), |set, index| {
            set.add_limit(Limit::rate(format!("limit {index}"), 1_000, MINUTE).algorithm(algorithm))
        });
        let (_directory, segment, wide) = create(set);
        let mut request = wide.request();
        for name in wide.limits().skip(1) {
            request.set_cost(name, 10).expect("declared");
        }
        let permit = expect_permit(request.try_acquire());
        let mut context = Context::from_waker(Waker::noop());
        let mut claimed = Box::pin(request.acquire_async(None));
        let mut dropped = Box::pin(request.acquire_async(None));
        assert!(claimed.as_mut().poll(&mut context).is_pending());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        drop(permit);
        let Poll::Ready(outcome) = claimed.as_mut().poll(&mut context) else {
            panic!("granted by who gave back");
        };
        drop(
            outcome
                .expect("room in the journal")
                .into_result()
                .expect("granted"),
        );
        // Granted, and given back without a claim.
        drop(dropped);
        let snapshot = segment.snapshot().expect("a snapshot");
        assert!(snapshot.sets[0].tickets.is_empty() && snapshot.sets[0].holds.is_empty());
        assert_eq!(snapshot.sets[0].counts.waited, 2);
        assert_eq!(snapshot.sets[0].counts.cancelled, 1);
    }
}

/// Settles one of many permits: it was taken after `before` others and before `behind - 1` of them. Returns what came
/// back from each sliding window; the other limits are overdrawn.
fn settle_in_the_middle(limits: usize, logs: usize, before: usize, behind: usize) -> Vec<u64> {
    let set = (0..limits).fold(SetDeclaration::new("wide"), |set, index| {
        let limit = Limit::rate(format!("limit {index}"), 1_000_000, MINUTE);
        set.add_limit(limit.algorithm(match index {
            _ if index < logs => Algorithm::SlidingWindow,
            _ if index % 2 == 0 => Algorithm::FixedWindow,
            _ => Algorithm::SlidingWindowCounter,
        }))
    });
    let (_directory, _segment, wide) = create(set);
    let names: Vec<String> = wide.limits().map(str::to_owned).collect();
    let mut request = wide.request();
    for name in &names {
        request.set_cost(name, 10).expect("declared");
    }
    let take = || expect_permit(request.try_acquire());
    for _ in 0..before {
        drop(take());
    }
    let mut permit = take();
    for _ in 1..behind {
        drop(take());
    }
    let used = |index| if index < logs { 3 } else { 20 };
    let usage = names.iter().enumerate().map(|(index, name)| (name, used(index)));
    let settled = permit.settle(usage).expect("room in the journal");
    names
        .iter()
        .take(logs)
        .map(|name| settled.refunded(name.as_str()))
        .collect()
}

#[test]
fn all_sliding_windows_of_a_set_give_back_in_one_operation_as_far_as_their_share_of_the_journal_goes() {
    for limits in [1, 2, 3, 9, MAX_LIMITS] {
        for logs in [1, limits / 2, limits - 1, limits] {
            if logs == 0 {
                continue;
            }
            let share = (128 - 5 * (limits - logs)) / logs;
            // The last record that either end of the log reaches.
            let most = share - 2;
            for (before, behind, comes_back) in [
                (most, most + 1, 7),
                (most + 1, most, 7),
                (0, 2 * most + 2, 7),
                (2 * most + 2, 1, 7),
                (most + 1, most + 1, 0),
            ] {
                let came_back = settle_in_the_middle(limits, logs, before, behind);
                assert_eq!(
                    came_back,
                    vec![comes_back; logs],
                    "{logs} of {limits}, after {before} and before {behind}"
                );
            }
        }
    }
}
