//! Those who wait are served by the limits of the tier that their key is in now.

use std::thread;

use shmlimit::OpenOptions;

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn one_a_day() -> SetDeclaration {
    let day = Duration::from_secs(86_400);
    keyed(10)
        .limit(Limit::calls("requests", 2, day).algorithm(Algorithm::FixedWindow))
        .tier(Tier::new("gold").capacity("requests", 10))
        .tier(Tier::new("free").capacity("requests", 1))
}

struct Real {
    _folder: tempfile::TempDir,
    segment: Segment,
}

impl Real {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("limits");
        let segment = OpenOptions::new().create(path, &Declaration::new().set(one_a_day()));
        Self {
            _folder: folder,
            segment: segment.expect("a segment"),
        }
    }

    /// Waits until a request of the key waits.
    fn wait_for_waiter(&self) {
        let began = std::time::Instant::now();
        while self.segment.snapshot().expect("no error").sets[0]
            .tickets
            .is_empty()
        {
            assert!(began.elapsed() < LONG, "nothing waits");
            thread::yield_now();
        }
    }
}

#[test]
fn a_waiter_is_served_when_its_key_comes_into_a_larger_tier() {
    let real = Real::new();
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            key.acquire(&two, LONG).expect("no error").is_admitted()
        });
        real.wait_for_waiter();
        set.assign("a", "gold").expect("a tier");
        assert!(waiter.join().expect("no panic"));
    });
}

#[test]
fn a_waiter_is_served_when_a_request_brings_its_key_into_a_larger_tier() {
    let real = Real::new();
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            key.acquire(&two, LONG).expect("no error").is_admitted()
        });
        real.wait_for_waiter();
        let gold = two.clone().with_tier("gold").expect("a tier");
        assert!(
            key.try_acquire(&gold).expect("no error").is_admitted(),
            "behind it, and served after it"
        );
        assert!(waiter.join().expect("no panic"));
    });
    let verdicts = key.peek(&two).expect("no error");
    assert_eq!(verdicts[0].remaining, 10 - 6);
}

#[test]
fn a_waiter_that_its_new_tier_never_admits_gets_the_error() {
    let real = Real::new();
    let set = real.segment.set("api").expect("declared");
    let two = set.request().with("requests", 2).expect("declared");
    let key = set.key("a").expect("keyed");
    drop(
        key.try_acquire(&two)
            .expect("no error")
            .into_result()
            .expect("room"),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let key = set.key("a").expect("keyed");
            key.acquire(&two, LONG).map(|outcome| outcome.is_admitted())
        });
        real.wait_for_waiter();
        set.assign("a", "free").expect("a tier");
        match waiter.join().expect("no panic") {
            Err(Error::NeverAdmissible { most, .. }) => assert_eq!(most, 1),
            other => panic!("{other:?}"),
        }
    });
}
