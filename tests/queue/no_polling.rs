//! A waiter sleeps: it does not watch the clock, and is woken only when it is its turn.

use std::fs;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};

const WAITERS: usize = 32;

/// How long the waiters are watched while nothing happens.
const QUIET: Duration = Duration::from_secs(if cfg!(debug_assertions) { 2 } else { 5 });

/// Wakes per waiter and second. A waiter behind others checks on them once a second; one that polls every few
/// milliseconds wakes hundreds of times.
const MAX_WAKES: f64 = 5.0;

const RELEASES: u64 = 16;

/// What the kernel has counted of a process.
#[derive(Clone, Copy, Debug)]
struct Activity {
    /// How often its threads went to sleep.
    sleeps: u64,
    /// Its processor time, in seconds.
    processor: f64,
}

impl Activity {
    fn of(child: &Child) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", child.id())).expect("alive");
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).expect("alive");
        let sleeps = tasks
            .map(|task| {
                fs::read_to_string(task.expect("listed").path().join("status")).expect("no thread ends")
            })
            .map(|status| {
                let sleeps = status
                    .lines()
                    .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                    .expect("counted by every kernel");
                sleeps.trim().parse::<u64>().expect("a number")
            })
            .sum();
        let stat = read("stat");
        // The name, which may hold anything, ends at the last parenthesis; user and system time are the 14th and 15th
        // fields, of which 2 are before that.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u64>().expect("a number"))
            .sum();
        let ticks_per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
        let ticks_per_second = ticks_per_second.expect("known").expect("limited");
        Self {
            sleeps,
            processor: ticks as f64 / ticks_per_second as f64,
        }
    }
}

fn activities(children: &[Child]) -> Vec<Activity> {
    children.iter().map(Activity::of).collect()
}

#[test]
fn who_waits_sleeps_and_each_release_wakes_exactly_one() {
    let test = "no_polling::who_waits_sleeps_and_each_release_wakes_exactly_one";
    in_own_process(test, 3 * TIMEOUT, |directory| {
        let places = Limit::concurrency("places", 1);
        let declaration = scene::declaration().add_set(SetDeclaration::new("set").add_limit(places));
        let path = directory.join("limits");
        let segment = Segment::create(&path, &declaration).expect("a segment");
        let raw = RawSegment::open(&path);
        let set = segment.set("set").expect("declared");
        let counts = || segment.snapshot().expect("a snapshot").sets[0].counts;
        let queued = || {
            let snapshot = segment.snapshot().expect("a snapshot");
            let waits = |ticket: &&shmlimit::snapshot::TicketSnapshot| !ticket.granted;
            snapshot.sets[0].tickets.iter().filter(waits).count()
        };
        // How many have been admitted, and how many of them may go on.
        let words = SharedWords::new(2);
        let [admitted, dismissed] = [&words[0], &words[1]];
        let held = expect_permit(set.request().try_acquire());
        let mut children = Vec::new();
        for number in 1..=WAITERS {
            children.push(Child::fork(|| {
                let mut permit = expect_permit(set.request().acquire(None));
                let turn = admitted.fetch_add(1, Ordering::Relaxed) + 1;
                eventually("it may go on", || dismissed.load(Ordering::Relaxed) >= turn);
                permit.release().expect("its own");
                // It stays, so that it can be watched.
                loop {
                    std::thread::park();
                }
            }));
            eventually("it waits", || queued() == number);
        }

        // Nothing happens for a while.
        let futex_value = raw.futex_value();
        let started = Instant::now();
        let before = activities(&children);
        sleep(QUIET);
        let after = activities(&children);
        let elapsed = started.elapsed().as_secs_f64();
        for (before, after) in before.iter().zip(&after) {
            let wakes = (after.sleeps - before.sleeps) as f64;
            assert!(
                wakes <= MAX_WAKES * elapsed,
                "a waiter woke {wakes} times in {elapsed} s"
            );
        }
        let processor: f64 = before
            .iter()
            .zip(&after)
            .map(|(before, after)| after.processor - before.processor)
            .sum();
        let wakes: u64 = before
            .iter()
            .zip(&after)
            .map(|(before, after)| after.sleeps - before.sleeps)
            .sum();
        let per_second = wakes as f64 / WAITERS as f64 / elapsed;
        println!(
            "a waiter woke {per_second:.1} times a second; all {WAITERS} took {processor} s in {elapsed:.1} s"
        );
        assert!(
            processor <= elapsed / 2.0,
            "the waiters were busy for {processor} s"
        );
        assert_eq!(raw.futex_value(), futex_value, "a waiter was woken for nothing");
        assert_eq!(queued(), WAITERS);

        // Waiters are served one after the other, and each time one waiter futex is advanced. The last ones are never
        // served and notice none of it.
        let started = Instant::now();
        let before = activities(&children[RELEASES as usize..]);
        drop(held);
        for turn in 1..=RELEASES {
            eventually("the first of the queue is admitted", || {
                admitted.load(Ordering::Relaxed) == turn
            });
            assert_eq!(raw.futex_value(), futex_value + turn, "one ring for each release");
            assert_eq!(counts().waited, turn);
            assert_eq!(queued(), WAITERS - turn as usize);
            if turn < RELEASES {
                dismissed.store(turn, Ordering::Relaxed);
            }
        }
        let after = activities(&children[RELEASES as usize..]);
        let elapsed = started.elapsed().as_secs_f64();
        for (before, after) in before.iter().zip(&after) {
            let wakes = (after.sleeps - before.sleeps) as f64;
            // Fewer than there were releases, if these did not take long.
            assert!(
                wakes <= MAX_WAKES * elapsed + 4.0,
                "a waiter woke {wakes} times in {elapsed} s"
            );
        }
        children.into_iter().for_each(Child::kill);
    });
}

#[test]
fn a_process_of_waiting_futures_sleeps_as_long_as_nothing_happens() {
    const FUTURES: usize = 500;
    let test = "no_polling::a_process_of_waiting_futures_sleeps_as_long_as_nothing_happens";
    in_own_process(test, 3 * TIMEOUT, |directory| {
        let sets =
            ["one", "other"].map(|name| SetDeclaration::new(name).add_limit(Limit::concurrency("places", 1)));
        let declaration = sets.into_iter().fold(scene::declaration(), Declaration::add_set);
        let segment = Segment::create(directory.join("limits"), &declaration).expect("a segment");
        let held: Vec<_> = segment
            .sets()
            .map(|set| std::mem::forget(set.request().try_acquire().expect("works")))
            .collect();
        assert_eq!(held.len(), 2);
        let words = SharedWords::new(1);
        let child = Child::fork(|| {
            let sets: Vec<_> = segment.sets().collect();
            let requests: Vec<_> = sets.iter().map(|set| set.request()).collect();
            let mut futures: Vec<_> = (0..FUTURES)
                .map(|number| Box::pin(requests[number % 2].acquire_async(None)))
                .collect();
            for future in &mut futures {
                let mut context = Context::from_waker(Waker::noop());
                assert!(future.as_mut().poll(&mut context).is_pending());
            }
            words[0].store(1, Ordering::Release);
            loop {
                std::thread::park();
            }
        });
        eventually("all wait", || words[0].load(Ordering::Acquire) == 1);
        // It has found out by then whose deaths it is to be notified of.
        eventually("both of its threads are there", || {
            fs::read_dir(format!("/proc/{}/task", child.id()))
                .expect("alive")
                .count()
                == 3
        });
        let before = Activity::of(&child);
        let started = Instant::now();
        sleep(QUIET);
        let after = Activity::of(&child);
        let wakes = (after.sleeps - before.sleeps) as f64;
        let elapsed = started.elapsed().as_secs_f64();
        println!(
            "a process with {FUTURES} waiting futures woke {:.1} times a second",
            wakes / elapsed
        );
        assert!(
            wakes <= MAX_WAKES * elapsed + 4.0,
            "woke {wakes} times in {elapsed} s"
        );
        child.kill();
    });
}

/// Through another futex, it would wake only when it looks by itself, a second later.
#[test]
fn a_thread_is_woken_by_its_waiter_futex_and_a_future_by_the_process_futex() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let places = SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1));
    let segment = Segment::create(&path, &scene::declaration().add_set(places)).expect("a segment");
    let raw = RawSegment::open(&path);
    let set = segment.set("set").expect("declared");
    let take = || expect_permit(set.request().try_acquire());
    let queued = || segment.snapshot().expect("a snapshot").sets[0].tickets.len();

    let held = take();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| expect_permit(set.request().acquire(TIMEOUT)));
        eventually("it waits", || queued() == 1);
        drop(held);
        drop(waiter.join().expect("admitted"));
    });
    assert_eq!((raw.futex_value(), raw.process_futex_value()), (1, 0));

    let held = take();
    let request = set.request();
    let mut future = Box::pin(request.acquire_async(TIMEOUT));
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    assert_eq!(queued(), 1);
    drop(held);
    eventually("the process futex is advanced", || raw.process_futex_value() > 0);
    assert_eq!(raw.futex_value(), 2);
    eventually("it is admitted", || future.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_process_watches_for_the_deaths_of_others_only() {
    let test = "no_polling::a_process_watches_for_the_deaths_of_others_only";
    in_own_process(test, 3 * TIMEOUT, |directory| {
        let places = Limit::concurrency("places", 1);
        let declaration = scene::declaration().add_set(SetDeclaration::new("set").add_limit(places));
        let segment = Segment::create(directory.join("limits"), &declaration).expect("a segment");
        let set = segment.set("set").expect("declared");
        let waiting = || {
            let snapshot = segment.snapshot().expect("a snapshot");
            snapshot.sets[0].tickets.len()
        };
        let wait_for_ever = || {
            let _ = set.request().acquire(None);
            unreachable!("killed before");
        };
        let threads = |child: &Child| {
            let tasks = fs::read_dir(format!("/proc/{}/task", child.id()));
            tasks.expect("alive").count()
        };
        let own = Child::fork(|| {
            let _held = set.request().try_acquire().expect("works");
            std::thread::scope(|scope| {
                scope.spawn(wait_for_ever);
            });
        });
        eventually("a thread waits for its own process", || waiting() == 1);
        let other = Child::fork(wait_for_ever);
        eventually("another process waits", || waiting() == 2);
        eventually("which has a thread to watch for deaths", || threads(&other) == 2);
        sleep(QUIET);
        assert_eq!(threads(&own), 2, "one that holds and one that waits");
        // The holder is killed last: otherwise the other would be admitted, which it does not expect.
        other.kill();
        own.kill();
    });
}
