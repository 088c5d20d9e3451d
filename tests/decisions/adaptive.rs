//! Concurrency that finds its own capacity: from how long the work takes and how much of it fails, for all processes
//! together.

use std::time::Duration;

use crate::scene::clock::Scene;
use crate::scene::expect_permit;
use shmlimit::declare::Adaptive;
use shmlimit::{Limit, LimitSet, Permit, SetDeclaration};

const START: u64 = 10;
const FLOOR: u64 = 2;
const CEILING: u64 = 20;
const MILLISECOND: Duration = Duration::from_millis(1);

struct Workers {
    scene: Scene,
    /// Two attachments of one segment.
    sets: [LimitSet; 2],
}

impl Workers {
    fn new(algorithm: Adaptive) -> Self {
        let limit = Limit::concurrency("workers", START)
            .adaptive(algorithm)
            .floor(FLOOR)
            .ceiling(CEILING);
        let limit = match algorithm {
            Adaptive::Aimd => limit.latency_limit(100 * MILLISECOND),
            _ => limit,
        };
        let scene = Scene::at(
            Duration::from_secs(1),
            SetDeclaration::new("pool").add_limit(limit),
        );
        let sets = [scene.set(), scene.other().set("pool").expect("declared")];
        Self { scene, sets }
    }

    /// What both attachments may take now, while nothing is held.
    fn capacity(&self) -> u64 {
        let remaining = self.sets.each_ref().map(|set| {
            let verdicts = set.request().peek().expect("no error");
            assert_eq!(verdicts[0].burst, verdicts[0].remaining, "what is in force");
            verdicts[0].remaining
        });
        assert_eq!(remaining[0], remaining[1], "one capacity for all");
        remaining[0]
    }

    /// Takes everything, alternating between both, and gives it back after this time. Returns how much there was.
    fn round(&self, latency: Duration, give_back: impl Fn(&mut Permit<'_>)) -> u64 {
        let mut permits = Vec::new();
        let mut turns = self.sets.iter().cycle();
        while let Some(set) = turns.next()
            && let Ok(permit) = set.request().try_acquire().expect("no error").into_result()
        {
            permits.push(permit);
        }
        self.scene.pass(latency);
        permits.iter_mut().for_each(give_back);
        permits.len() as u64
    }
}

fn released(permit: &mut Permit<'_>) {
    permit.release().expect("no error");
}

fn dropped(permit: &mut Permit<'_>) {
    permit.release_failed().expect("no error");
}

#[test]
fn starts_where_it_is_declared_to_and_holds_no_more_than_it_found() {
    for algorithm in [Adaptive::Aimd, Adaptive::Gradient, Adaptive::Vegas] {
        let workers = Workers::new(algorithm);
        assert_eq!(workers.capacity(), START);
        for _ in 0..200 {
            let capacity = workers.capacity();
            assert_eq!(workers.round(10 * MILLISECOND, released), capacity);
            assert!((FLOOR..=CEILING).contains(&workers.capacity()));
        }
    }
}

#[test]
fn work_that_fails_lowers_it_to_its_floor_and_work_that_succeeds_raises_it_again() {
    let workers = Workers::new(Adaptive::Aimd);
    for _ in 0..100 {
        workers.round(10 * MILLISECOND, dropped);
    }
    assert_eq!(workers.capacity(), FLOOR);
    let snapshot = workers.scene.segment.snapshot().expect("a copy");
    assert!(
        snapshot.sets[0].limits[0].counts.failed > 0,
        "failures are counted"
    );
    for _ in 0..100 {
        workers.round(10 * MILLISECOND, released);
    }
    assert_eq!(workers.capacity(), CEILING);
}

#[test]
fn work_that_takes_too_long_lowers_it() {
    let workers = Workers::new(Adaptive::Aimd);
    for _ in 0..5 {
        workers.round(101 * MILLISECOND, released);
    }
    assert!(workers.capacity() < START);
}

#[test]
fn a_panic_that_unwinds_through_a_permit_says_that_the_work_failed() {
    let workers = Workers::new(Adaptive::Aimd);
    for _ in 0..20 {
        let set = &workers.sets[0];
        let permit = expect_permit(set.request().try_acquire());
        workers.scene.pass(10 * MILLISECOND);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _permit = permit;
            std::panic::resume_unwind(Box::new("the work failed"));
        }));
        assert!(outcome.is_err());
    }
    assert!(workers.capacity() < START);
}
