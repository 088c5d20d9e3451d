//! Many waiters in one process: how many are served per second, and what that costs.
//!
//! Tasks on one thread of tokio wait for a limit of 1,000 per second, each for one unit. [`CONTENDERS`] lists what is
//! compared. Tokio's `Semaphore` is not a limiter, so a task adds a permit each millisecond, as anyone who builds a
//! limiter from it would do. It shows the least that waking tasks in turn costs.
#![allow(unsafe_code, reason = "asks for the processor time of the process")]

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::{Quota, RateLimiter};
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

/// How many are served per second.
const RATE: u32 = 1_000;
/// Enough that a task that is late does not lose its turn.
const BURST: u32 = 10;

/// Waits for one unit.
type Wait = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A name, and what makes a limiter in a directory, within a runtime.
type Contender = (&'static str, fn(&std::path::Path, u32) -> Wait);

const CONTENDERS: [Contender; 4] = [
    ("shmlimit: acquire_async", ours),
    ("governor: until_ready", of_governor),
    ("leaky-bucket: acquire_one", of_leaky_bucket),
    ("tokio: Semaphore, a permit each millisecond", of_semaphore),
];

fn ours(directory: &std::path::Path, waiters: u32) -> Wait {
    let limit = Limit::calls("calls", u64::from(RATE), Duration::from_secs(1)).burst(u64::from(BURST));
    let set = SetDeclaration::new("set").waiters(waiters).add_limit(limit);
    let segment =
        Segment::create(directory.join("limits"), &Declaration::new().add_set(set)).expect("a segment");
    let set = segment.set("set").expect("declared");
    Arc::new(move || {
        let set = set.clone();
        Box::pin(async move {
            let outcome = set.request().acquire_async(None).await.expect("works");
            assert!(outcome.is_admitted(), "{outcome:?}");
        })
    })
}

fn of_governor(_: &std::path::Path, _: u32) -> Wait {
    let [rate, burst] = [RATE, BURST].map(|number| NonZeroU32::new(number).expect("positive"));
    let limiter = Arc::new(RateLimiter::direct(Quota::per_second(rate).allow_burst(burst)));
    Arc::new(move || {
        let limiter = Arc::clone(&limiter);
        Box::pin(async move { limiter.until_ready().await })
    })
}

fn of_leaky_bucket(_: &std::path::Path, _: u32) -> Wait {
    let limiter = leaky_bucket::RateLimiter::builder()
        .max(BURST as usize)
        .initial(BURST as usize)
        .refill(1)
        .interval(Duration::from_secs(1) / RATE)
        .build();
    let limiter = Arc::new(limiter);
    Arc::new(move || {
        let limiter = Arc::clone(&limiter);
        Box::pin(async move { limiter.acquire_one().await })
    })
}

fn of_semaphore(_: &std::path::Path, _: u32) -> Wait {
    let semaphore = Arc::new(Semaphore::new(BURST as usize));
    let refilled = Arc::downgrade(&semaphore);
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            ticks.tick().await;
            let Some(semaphore) = refilled.upgrade() else {
                return;
            };
            semaphore.add_permits(1);
        }
    });
    Arc::new(move || {
        let semaphore = Arc::clone(&semaphore);
        Box::pin(async move { semaphore.acquire().await.expect("never closed").forget() })
    })
}

/// What was measured.
struct Measured {
    served_per_second: f64,
    /// The share of one processor that was used.
    share: f64,
}

fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live `timespec`, which the call fills.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(answer, 0, "every process has that clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn measure(make: fn(&std::path::Path, u32) -> Wait, waiters: u32, span: Duration) -> Measured {
    let directory = crate::common::directory();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let wait = make(directory.path(), waiters);
        let served = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..waiters)
            .map(|_| {
                let (wait, served) = (wait(), Arc::clone(&served));
                tokio::spawn(async move {
                    wait.await;
                    served.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        // Sleep until each of them waits.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = served.load(Ordering::Relaxed);
        let (begun, processor) = (Instant::now(), processor_time());
        tokio::time::sleep(span).await;
        let (elapsed, processor) = (begun.elapsed(), processor_time() - processor);
        let served = served.load(Ordering::Relaxed) - before;
        for task in &tasks {
            task.abort();
        }
        Measured {
            served_per_second: served as f64 / elapsed.as_secs_f64(),
            share: processor.as_secs_f64() / elapsed.as_secs_f64(),
        }
    })
}

/// Prints the medians of interleaved rounds.
pub fn compare(rounds: usize, waiters: u32, span: Duration) {
    let mut all: [Vec<Measured>; CONTENDERS.len()] = Default::default();
    for _ in 0..rounds {
        for ((_, make), measured) in CONTENDERS.into_iter().zip(&mut all) {
            measured.push(measure(make, waiters, span));
        }
    }
    println!(
        "{waiters} tasks wait for {RATE} a second: the medians of {rounds} interleaved rounds of {span:?}.\n"
    );
    println!("| what waits | served a second | processor |");
    println!("|---|---:|---:|");
    for ((name, _), measured) in CONTENDERS.iter().zip(&all) {
        let median = |figure: fn(&Measured) -> f64| {
            let mut figures: Vec<f64> = measured.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        println!(
            "| {name} | {:.0} | {:.1} % |",
            median(|measured| measured.served_per_second),
            100.0 * median(|measured| measured.share)
        );
    }
}
