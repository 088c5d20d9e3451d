//! The wait that a refusal reports because of others in the queue: never later than the request could be served, and
//! never earlier than those before it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::scene::clock::{NEW_YEAR, Scene};
use crate::scene::{ALGORITHMS, expect_permit, expect_refusal};
use proptest::prelude::*;
use shmlimit::declare::Align;
use shmlimit::request::AcquireFuture;
use shmlimit::{Algorithm, Keyed, Limit, LimitSet, Refusal, RefusalReason, Request, SetDeclaration};

/// A set on a clock of its own, whose limits are named `0`, `1` and so on.
struct Served {
    scene: Scene,
    set: LimitSet,
}

impl Served {
    fn new(set: SetDeclaration) -> Self {
        let scene = Scene::new(set);
        let set = scene.set();
        Self { scene, set }
    }

    fn request(&self, costs: &[u64]) -> Request<'_> {
        let mut request = self.set.request();
        for (limit, cost) in costs.iter().enumerate() {
            request.set_cost(limit.to_string(), *cost).expect("declared");
        }
        request
    }

    fn ask(&self, costs: &[u64]) -> Result<(), Refusal> {
        let outcome = self.request(costs).try_acquire().expect("works");
        outcome.into_result().map(drop)
    }

    /// Takes one after the other, each as early as it is admitted while no request waits. Returns when the last one
    /// was.
    fn serve_in_order(&self, all: &[Vec<u64>]) -> Duration {
        for costs in all {
            while let Err(refusal) = self.ask(costs) {
                let wait = refusal.retry_after().expect("time helps");
                self.scene.pass(wait);
            }
        }
        self.scene.clock.now() - NEW_YEAR
    }

    /// A request that waits, if it has to.
    fn enqueue(&self, costs: &[u64]) -> Option<Pin<Box<AcquireFuture<'_>>>> {
        let mut waiting = Box::pin(self.request(costs).acquire_async(None));
        let mut context = Context::from_waker(Waker::noop());
        waiting
            .as_mut()
            .poll(&mut context)
            .is_pending()
            .then_some(waiting)
    }
}

#[derive(Clone, Debug)]
struct AnyLimit {
    limit: Limit,
    capacity: u64,
    /// Whether what is taken is worked off at a constant rate.
    is_steady: bool,
}

fn any_limit(index: usize) -> impl Strategy<Value = AnyLimit> {
    let algorithms = prop::sample::select(ALGORITHMS.to_vec());
    (
        algorithms,
        1..8_u64,
        1_000_000..100_000_000_000_u64,
        any::<bool>(),
    )
        .prop_map(move |(algorithm, capacity, window, by_first_use)| {
            let limit =
                Limit::rate(index.to_string(), capacity, Duration::from_nanos(window)).algorithm(algorithm);
            AnyLimit {
                limit: if algorithm == Algorithm::FixedWindow && by_first_use {
                    limit.align(Align::FirstUse)
                } else {
                    limit
                },
                capacity,
                is_steady: matches!(
                    algorithm,
                    Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
                ),
            }
        })
}

fn set_of(limits: &[AnyLimit]) -> SetDeclaration {
    limits.iter().fold(SetDeclaration::new("api"), |set, limit| {
        set.add_limit(limit.limit.clone())
    })
}

proptest! {
    #[test]
    fn it_is_not_later_than_the_request_is_served_and_not_earlier_than_the_first(
        limits in (any_limit(0), proptest::option::of(any_limit(1)))
            .prop_map(|(first, second)| [Some(first), second].into_iter().flatten().collect::<Vec<_>>()),
        asked in prop::collection::vec([0..8_u64, 0..8_u64], 2..24),
    ) {
        // None asks for more than there can ever be.
        let asked: Vec<Vec<u64>> = asked
            .iter()
            .map(|costs| limits.iter().zip(costs).map(|(limit, cost)| cost % (limit.capacity + 1)).collect())
            .collect();
        let served = Served::new(set_of(&limits));
        let (own, before) = asked.split_last().expect("at least two");
        let waiting: Vec<_> = before.iter().map(|costs| served.enqueue(costs)).collect();
        let Some(first) = waiting.iter().position(Option::is_some) else {
            return Ok(());
        };
        let refusal = served.ask(own).expect_err("others wait");
        let said = refusal.retry_after().expect("time helps");

        let to_the_first = Served::new(set_of(&limits)).serve_in_order(&before[..=first]);
        let to_the_last = Served::new(set_of(&limits)).serve_in_order(&asked);
        prop_assert!(said <= to_the_last, "{said:?} is later than {to_the_last:?}");
        prop_assert!(said >= to_the_first, "{said:?} is earlier than {to_the_first:?}");
        if limits.iter().all(|limit| limit.is_steady) && limits.len() == 1 && before.len() - first <= 16 {
            // Each of them may wait for a fraction of a nanosecond, which is rounded up to a whole one.
            let rounded = Duration::from_nanos(asked.len() as u64);
            prop_assert!(said + rounded >= to_the_last, "{said:?} is much earlier than {to_the_last:?}");
        }
    }
}

fn ten_a_second() -> Limit {
    Limit::calls("0", 10, Duration::from_secs(1)).burst(1)
}

#[test]
fn each_of_those_before_counts_up_to_sixteen() {
    let served = Served::new(set_of(&[]).add_limit(ten_a_second()));
    served.ask(&[1]).expect("the first");
    let mut waiting = Vec::new();
    for place in 1..=20 {
        waiting.push(served.enqueue(&[1]).expect("has to wait"));
        let said = served.ask(&[1]).expect_err("others wait").retry_after();
        let counted = 1 + place.min(16);
        assert_eq!(said, Some(Duration::from_millis(100) * counted), "behind {place}");
    }
    drop(waiting);
    let said = served.ask(&[1]).expect_err("too early").retry_after();
    assert_eq!(said, Some(Duration::from_millis(100)), "all have left");
}

#[test]
fn a_full_queue_and_a_timeout_say_how_long_those_before_take() {
    let served = Served::new(set_of(&[]).waiters(3).add_limit(ten_a_second()));
    served.ask(&[1]).expect("the first");
    let waiting: Vec<_> = (0..2)
        .map(|_| served.enqueue(&[1]).expect("has to wait"))
        .collect();
    // The third in the queue gives up, and does not count itself among those before it.
    let late = served.set.request().acquire_while(None, || false);
    let late = late.expect("works").into_result().expect_err("a timeout");
    assert_eq!(late.retry_after(), Some(Duration::from_millis(300)));

    let _third = served.enqueue(&[1]).expect("has to wait");
    let full = served.set.request().acquire(None).expect("works");
    let full = full.into_result().expect_err("no place is left");
    assert_eq!(full.reason(), RefusalReason::QueueFull);
    assert_eq!(full.retry_after(), Some(Duration::from_millis(400)));
    drop(waiting);
}

#[test]
fn what_a_fixed_window_counted_above_its_capacity_ends_with_it() {
    let ten = Limit::rate("0", 10, Duration::from_secs(10))
        .algorithm(Algorithm::FixedWindow)
        .align(Align::FirstUse);
    let served = Served::new(set_of(&[]).add_limit(ten));
    let request = served.set.request().with("0", 1).expect("declared");
    expect_permit(request.try_acquire())
        .settle([("0", 30)])
        .expect("charged above the capacity");
    let waiting = served.enqueue(&[5]).expect("has to wait");
    let said = served.ask(&[5]).expect_err("one waits").retry_after();
    assert_eq!(
        said,
        Some(Duration::from_secs(10)),
        "both find room in the next window"
    );
    drop(waiting);
}

#[test]
fn the_queue_of_another_key_counts_for_nothing() {
    let served = Served::new(
        SetDeclaration::new("api")
            .keyed(Keyed::new(100))
            .add_limit(ten_a_second()),
    );
    let mut context = Context::from_waker(Waker::noop());
    let [crowded, other] = ["a", "b"].map(|key| served.set.request().for_key(key).expect("keyed"));
    for request in [&crowded, &other] {
        assert!(request.try_acquire().expect("works").is_admitted());
    }
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(crowded.acquire_async(None))).collect();
    for future in &mut waiting {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
    for (request, millis) in [(&crowded, 400), (&other, 100)] {
        let said = expect_refusal(request.try_acquire()).retry_after();
        assert_eq!(said, Some(Duration::from_millis(millis)));
    }
}
