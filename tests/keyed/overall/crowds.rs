//! Many processes use many keys at once, and some of them die, give up or stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{keyed, overall_places};
use crate::limits::{is_served, take};
use crate::scene::held::Held;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use crate::scene::{create, create_in, first_set, queued};
use shmlimit::{Limit, LimitSet, Outcome};

const PLACES: u64 = 3;
const OWN: u64 = 2;

/// Asks for places again and again, for various keys and in various numbers, and gives up now and then.
fn work(set: &LimitSet, held: &Held, number: usize, rounds: u64) {
    let mut dice = fastrand::Rng::with_seed(number as u64);
    for round in 0..rounds {
        let places = dice.u64(1..=PLACES.min(OWN));
        let request = set
            .request()
            .with("own", places)
            .and_then(|it| it.with("places", places));
        let request = request.expect("declared");
        let request = request.for_key(format!("key-{}", dice.u8(..5))).expect("a key");
        let is_patient = round % 4 != 0;
        let timeout = if is_patient {
            TIMEOUT
        } else {
            Duration::from_micros(dice.u64(..3_000))
        };
        match request.acquire(timeout).expect("works") {
            Outcome::Admitted(permit) => {
                held.take(0, number, places);
                std::thread::yield_now();
                held.give_back(0, number, places);
                drop(permit);
            }
            Outcome::Refused(_) => assert!(!is_patient, "served as soon as there is room"),
        }
    }
}

#[test]
fn processes_of_many_keys_share_the_places_though_some_of_them_are_killed() {
    const PROCESSES: usize = 6;
    in_own_process(
        "overall::crowds::processes_of_many_keys_share_the_places_though_some_of_them_are_killed",
        TIMEOUT,
        |directory| {
            let set = keyed()
                .add_limit(Limit::concurrency("own", OWN))
                .add_limit(overall_places(PLACES))
                .holds(32);
            let (segment, set) = create_in(directory, set);
            let held = Held::new(1, PROCESSES);
            let begun = SharedWords::new(1);
            let mut workers: Vec<Child> = (0..PROCESSES)
                .map(|number| {
                    Child::fork(|| {
                        begun[0].fetch_add(1, Ordering::SeqCst);
                        work(&set, &held, number, if number < 2 { u64::MAX } else { 400 });
                    })
                })
                .collect();
            eventually("all of them are at it", || {
                begun[0].load(Ordering::SeqCst) == PROCESSES as u64
            });
            let admitted = || first_set(&segment).counts.admitted;
            for number in 0..2 {
                let before = admitted();
                eventually("work goes on", || {
                    if let Some(now) = held.at_one_moment() {
                        assert!(now[0] <= PLACES, "{} of {PLACES} places are held", now[0]);
                    }
                    admitted() > before + 100
                });
                held.revoke(number);
                workers.remove(0).kill();
            }
            for worker in workers {
                worker.succeed();
            }
            segment.recover().expect("works");
            let seen = first_set(&segment);
            assert_eq!((seen.active, seen.tickets.len()), (0, 0));
            assert_eq!(seen.limits[1].remaining, PLACES);
            assert_eq!(
                seen.limits[1].counts.high_water, PLACES,
                "no fewer than there are"
            );
        },
    );
}

#[test]
fn a_process_that_stops_with_tickets_of_many_keys_delays_the_others_by_one_grace_period() {
    stops_with_tickets(
        "overall::crowds::a_process_that_stops_with_tickets_of_many_keys_delays_the_others_by_one_grace_period",
        20,
        |thread| format!("silent-{thread}"),
    );
}

#[test]
fn a_process_that_stops_with_forty_tickets_of_a_key_delays_the_others_by_one_grace_period() {
    stops_with_tickets(
        "overall::crowds::a_process_that_stops_with_forty_tickets_of_a_key_delays_the_others_by_one_grace_period",
        40,
        |_| "silent".to_owned(),
    );
}

/// Stops a process that waits for the only place with this many tickets, and lets others wait behind it. `name` is the
/// name of the test.
fn stops_with_tickets(name: &str, tickets: usize, key: fn(usize) -> String) {
    in_own_process(name, TIMEOUT, move |directory| {
        let set = keyed()
            .add_limit(overall_places(1))
            .collect_within(Duration::from_millis(100));
        let (segment, set) = create_in(directory, set);
        let request = set.request();
        let held = take("holder", &request);
        let silent = Child::fork(|| {
            std::thread::scope(|scope| {
                for thread in 0..tickets {
                    let request = &request;
                    scope.spawn(move || is_served(&key(thread), request));
                }
            });
        });
        eventually("all of them wait", || queued(&segment) == tickets);
        // It must not be stopped while it has the lock.
        loop {
            silent.send(Signal::SIGSTOP);
            silent.wait_until_stopped();
            if !first_set(&segment).lock.is_held() {
                break;
            }
            silent.send(Signal::SIGCONT);
        }
        let others: Vec<Child> = (0..3)
            .map(|number| {
                let waiting = queued(&segment);
                let other = Child::fork(|| assert!(is_served(&format!("other-{number}"), &request)));
                eventually("it waits behind them", || queued(&segment) == waiting + 1);
                other
            })
            .collect();
        drop(held);
        for other in others {
            other.succeed();
        }
        let lapsed = first_set(&segment).counts.lapsed;
        assert_eq!(lapsed, 1, "its other tickets are passed over");
        silent.send(Signal::SIGCONT);
        silent.succeed();
        let seen = first_set(&segment);
        assert_eq!(
            (seen.active, seen.tickets.len(), seen.limits[0].remaining),
            (0, 0, 1)
        );
    });
}

#[test]
fn what_comes_back_while_keys_come_and_go_is_never_left_lying() {
    let set = keyed()
        .add_limit(Limit::concurrency("own", 1))
        .add_limit(overall_places(2));
    let (_directory, segment, set) = create(set);
    let request = set.request();
    let (served, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Changes what keeps keys waiting, without ever taking anything.
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let key = set.key(format!("key-{}", fastrand::u8(..4))).expect("a key");
                key.throttle(Duration::from_micros(300)).expect("works");
                key.reset().run().expect("works");
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..8)
            .map(|thread| {
                let (request, served) = (&request, &served);
                scope.spawn(move || {
                    for _ in 0..60 {
                        assert!(is_served(&format!("key-{}", thread % 4), request));
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("no panic");
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(served.into_inner(), 480);
    let seen = first_set(&segment);
    assert_eq!((seen.active, seen.tickets.len()), (0, 0));
}
