//! More tasks than places: they go in waves, by the clock.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, in_own_process};
use nix::time::{ClockId, clock_gettime};
use shmlimit::{Limit, Segment, SetDeclaration};

/// How long a task holds its place.
const TASK: Duration = Duration::from_millis(300);

/// A stretch of time in which a task held its place, in nanoseconds on a clock that all processes read.
#[derive(Clone, Copy, Debug)]
struct Stay {
    start: u64,
    end: u64,
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    Duration::from(now).as_nanos() as u64
}

/// Runs that many tasks at once, each in a process of its own. Returns when each held its place, in the order in which
/// they began.
fn run(directory: &std::path::Path, capacity: u64, tasks: usize) -> Vec<Stay> {
    let places = SetDeclaration::new("set").add_limit(Limit::concurrency("places", capacity));
    let segment = Segment::create(directory.join("limits"), &scene::declaration().add_set(places));
    let segment = segment.expect("a segment");
    let set = segment.set("set").expect("declared");
    let log = SharedWords::new(2 * tasks);
    let children: Vec<Child> = (0..tasks)
        .map(|number| {
            let log = &log;
            let set = &set;
            Child::fork(move || {
                let permit = expect_permit(set.request().acquire(TIMEOUT));
                log[2 * number].store(now(), Ordering::Relaxed);
                sleep(TASK);
                log[2 * number + 1].store(now(), Ordering::Relaxed);
                drop(permit);
            })
        })
        .collect();
    children.into_iter().for_each(Child::succeed);
    let stay = |number: usize| Stay {
        start: log[2 * number].load(Ordering::Relaxed),
        end: log[2 * number + 1].load(Ordering::Relaxed),
    };
    let mut stays: Vec<Stay> = (0..tasks).map(stay).collect();
    stays.sort_by_key(|stay| stay.start);
    let counts = segment.snapshot().expect("a snapshot").sets[0].counts;
    assert_eq!(counts.admitted, tasks as u64);
    assert!(counts.active_high_water <= capacity);
    stays
}

/// Every task begins when as many have ended as there were tasks before it beyond the places.
fn assert_in_waves(stays: &[Stay], capacity: usize) {
    let mut ends: Vec<u64> = stays.iter().map(|stay| stay.end).collect();
    ends.sort_unstable();
    for (stay, end) in stays.iter().skip(capacity).zip(&ends) {
        assert!(
            stay.start >= *end,
            "{stay:?} began before a place was free: {stays:?}"
        );
    }
    for stay in stays {
        let at_once = stays
            .iter()
            .filter(|other| other.start <= stay.start && stay.start < other.end)
            .count();
        assert!(at_once <= capacity, "{at_once} at once: {stays:?}");
    }
    let waves = stays.len().div_ceil(capacity) as u32;
    let first = stays.iter().map(|stay| stay.start).min().expect("some");
    let last = ends.last().expect("some");
    let total = Duration::from_nanos(last - first);
    assert!(total >= TASK * waves, "{waves} waves in {total:?}");
}

#[test]
fn of_four_tasks_over_two_places_the_second_two_begin_when_the_first_end() {
    let test = "waves::of_four_tasks_over_two_places_the_second_two_begin_when_the_first_end";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        assert_in_waves(&run(directory, 2, 4), 2);
    });
}

#[test]
fn of_six_tasks_over_three_places_never_more_than_three_run_at_once() {
    let test = "waves::of_six_tasks_over_three_places_never_more_than_three_run_at_once";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        assert_in_waves(&run(directory, 3, 6), 3);
    });
}
