//! Arguments of the program's own types may panic wherever a verb uses or drops them: nothing stays taken or queued.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::scene::expect_permit;
use crate::scene::process::eventually;
use crate::scene::touchy::{Observed, Touchy, items, users_code, with_each_panic, yes};
use shmlimit::pool::PoolStrategy;
use shmlimit::{Algorithm, Error, Keyed, Limit, LimitPool, Request, SetDeclaration, Tier};

fn pool_of(scene: &Observed) -> LimitPool {
    LimitPool::new([scene.set.clone()], PoolStrategy::RoundRobin).expect("a pool")
}

fn places() -> Observed {
    Observed::of(SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1)))
}

fn keyed() -> Observed {
    let tier = Tier::new("large").capacity("places", 2);
    Observed::of(
        SetDeclaration::new("set")
            .keyed(Keyed::new(8))
            .add_limit(Limit::concurrency("places", 1))
            .add_tier(tier),
    )
}

fn wait_for<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// A request for a key that is a value of the program.
fn of_key(scene: &Observed) -> Request<'_> {
    scene.set.request().for_key(Touchy).expect("keyed")
}

/// A verb with its name: it asks for one place, and drops what it gets.
type Waiting = (&'static str, fn() -> Observed, fn(&Observed));

/// A verb with its name.
type Verb = (&'static str, fn(&Observed));

const WAITING: [Waiting; 9] = [
    ("acquire", places, |scene| {
        drop(scene.set.request().acquire(Touchy).expect("works"));
    }),
    ("acquire_while", places, |scene| {
        drop(scene.set.request().acquire_while(Touchy, yes()).expect("works"));
    }),
    ("acquire_async", places, |scene| {
        drop(wait_for(scene.set.request().acquire_async(Touchy)).expect("works"));
    }),
    ("acquire_owned", places, |scene| {
        drop(wait_for(scene.set.request().acquire_async(Touchy).into_owned()).expect("works"));
    }),
    ("a key's acquire", keyed, |scene| {
        drop(of_key(scene).acquire(Touchy).expect("works"));
    }),
    ("a key's acquire_while", keyed, |scene| {
        drop(of_key(scene).acquire_while(Touchy, yes()).expect("works"));
    }),
    ("a key's acquire_async", keyed, |scene| {
        drop(wait_for(of_key(scene).acquire_async(Touchy)).expect("works"));
    }),
    ("a pool's acquire_while", places, |scene| {
        let pool = pool_of(scene);
        drop(pool.request().acquire_while(Touchy, yes()).expect("works"));
    }),
    ("a pool's acquire_async", places, |scene| {
        let pool = pool_of(scene);
        drop(wait_for(pool.request().acquire_async(Touchy)).expect("works"));
    }),
];

fn assert_nothing_is_left(scene: &Observed, when: &str) {
    assert_eq!(scene.taken(), (0, 0), "{when}");
    let request = scene.set.request();
    drop(expect_permit(match scene.set.is_keyed() {
        true => request.for_key("key").expect("keyed").try_acquire(),
        false => request.try_acquire(),
    }));
}

#[test]
fn arguments_that_panic_leave_nothing_taken_by_a_verb_that_is_admitted_at_once() {
    for (name, make, verb) in WAITING {
        let panics = with_each_panic(make, verb, |scene, calls| {
            assert_nothing_is_left(scene, &format!("{name}, call {calls}"));
        });
        assert!(panics > 0, "{name} calls nothing");
    }
}

#[test]
fn arguments_that_panic_leave_nothing_taken_by_a_verb_that_waits() {
    for (name, make, verb) in WAITING {
        let wait_and_get = |scene: &Observed| {
            let request = scene.set.request();
            let permit = match scene.set.is_keyed() {
                true => request
                    .for_key("key")
                    .expect("keyed")
                    .acquire_async(None)
                    .into_owned(),
                false => request.acquire_async(None).into_owned(),
            };
            let permit = expect_permit(wait_for(permit));
            let has_ended = AtomicBool::new(false);
            thread::scope(|threads| {
                threads.spawn(|| {
                    eventually("it waits, or has panicked before", || {
                        scene.taken().1 == 1 || has_ended.load(Ordering::SeqCst)
                    });
                    drop(permit);
                });
                let _at_the_end = AtTheEnd(&has_ended);
                verb(scene);
            });
        };
        let panics = with_each_panic(make, wait_and_get, |scene, calls| {
            assert_nothing_is_left(scene, &format!("{name}, call {calls}"));
        });
        assert!(panics > 0, "{name} calls nothing");
    }
}

/// Says that a verb has ended, however it ended.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn keys_that_panic_leave_nothing_taken() {
    let verbs: [Verb; 6] = [
        ("try_acquire", |scene| {
            drop(of_key(scene).try_acquire().expect("works"));
        }),
        ("check_many", |scene| {
            let request = scene.set.request().with("places", 0).expect("declared");
            drop(request.check_many(&[Touchy, Touchy]));
        }),
        ("assign", |scene| {
            scene
                .set
                .key(Touchy)
                .expect("keyed")
                .assign("large")
                .expect("declared");
            scene
                .set
                .key(Touchy)
                .expect("keyed")
                .assign("default")
                .expect("declared");
        }),
        ("key_snapshots", |scene| {
            let permit = expect_permit(of_key(scene).try_acquire());
            let touchy = Touchy;
            let visited = scene.segment.key_snapshots("set", move |_| {
                let _ = &touchy;
                users_code();
            });
            visited.expect("readable");
            drop(permit);
        }),
        ("key_snapshot", |scene| {
            scene.segment.key_snapshot("set", Touchy).expect("readable");
        }),
        ("a pool of", |scene| {
            let sets = items([scene.set.clone()]);
            let pool = LimitPool::new(sets, PoolStrategy::RoundRobin).expect("a pool");
            assert_eq!(pool.len(), 1);
        }),
    ];
    for (name, verb) in verbs {
        let panics = with_each_panic(keyed, verb, |scene, calls| {
            assert_nothing_is_left(scene, &format!("{name}, call {calls}"));
        });
        assert!(panics > 0, "{name} calls nothing");
    }
}

#[test]
fn iterators_that_panic_settle_nothing_and_leave_what_was_reserved_with_its_owner() {
    let hour = Duration::from_secs(3600);
    let tokens = Limit::rate("tokens", 100, hour).algorithm(Algorithm::TokenBucket);
    let declared = || Observed::of(SetDeclaration::new("set").add_limit(tokens.clone()));
    let spendable = |scene: &Observed| scene.set.forecast().expect("works")[0].spendable;
    let verbs: [Verb; 2] = [
        ("a permit", |scene| {
            let request = scene.set.request().with("tokens", 100).expect("declared");
            let mut permit = expect_permit(request.try_acquire());
            permit
                .settle(items([("tokens", 20), ("tokens", 10)]))
                .expect("held");
        }),
        ("a reservation", |scene| {
            let request = scene.set.request().with("tokens", 100).expect("declared");
            let reserved = request.reserve(Duration::ZERO).expect("works");
            let mut permit = reserved.into_result().expect("free").into_permit();
            permit.settle(items([("tokens", 10)])).expect("held");
        }),
    ];
    for (name, verb) in verbs {
        let mut left = Vec::new();
        with_each_panic(declared, verb, |scene, calls| {
            assert_eq!(scene.taken(), (0, 0), "{name}, call {calls}");
            left.push(spendable(scene));
        });
        let (settled, panicked) = left.split_last().expect("it ended once");
        assert!(*settled >= 90, "{name}: {left:?}");
        // A permit that is dropped by unwinding keeps its charge, unless everything was settled before.
        assert!(
            panicked.iter().all(|left| *left < 10 || *left >= 90),
            "{name}: {left:?}"
        );
    }
}
