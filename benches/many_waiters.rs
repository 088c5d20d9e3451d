//! What many waiting futures cost: 20,000 tasks of one process wait in the queue for a limit of 1,000 per second. The
//! table shows how many are served per second once all of them wait, and what share of one processor the whole process
//! uses meanwhile.

#[allow(dead_code)]
mod common;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use shmlimit::{Declaration, Keyed, Limit, LimitSet, Segment, SetDeclaration};

/// How many are served per second.
const RATE: u64 = 1_000;

/// Enough that a task that is late does not lose its turn.
const BURST: u64 = 10;

/// Tasks, each of which waits once.
type Tasks = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Measures, with a new segment in the directory.
type Case<'a> = &'a dyn Fn(&Path) -> Measured;

/// What was measured.
struct Measured {
    served_per_second: f64,
    /// The share of one processor that was used.
    share: f64,
    /// How often a task was served just before one that had come earlier, if each is served once.
    overtakings: Option<usize>,
}

fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("counted");
    let microseconds = (usage.user_time() + usage.system_time()).num_microseconds();
    Duration::from_micros(microseconds as u64)
}

fn segment(directory: &Path, name: &str, sets: impl IntoIterator<Item = SetDeclaration>) -> Segment {
    let declaration = sets
        .into_iter()
        .fold(Declaration::new(), |declaration, set| declaration.add_set(set));
    Segment::create(directory.join(name), &declaration).expect("a segment")
}

fn calls(name: &str) -> SetDeclaration {
    SetDeclaration::new(name).add_limit(Limit::calls("calls", RATE, Duration::from_secs(1)).burst(BURST))
}

/// Waits in the queue, and records that it was served.
async fn wait_once(set: LimitSet, number: u64, served: Arc<Mutex<Vec<u64>>>) {
    let outcome = set.request().acquire_async(None).await.expect("works");
    assert!(outcome.is_admitted(), "{outcome:?}");
    served.lock().expect("not poisoned").push(number);
}

/// How fast the tasks that record themselves in `served` are served. If `cancelled`, every second task is cancelled
/// first.
fn measure(tasks: Tasks, served: &Mutex<Vec<u64>>, cancelled: bool, span: Duration) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let started = AtomicU64::new(0);
        let tasks: Vec<_> = tasks.into_iter().map(|task| tokio::spawn(task)).collect();
        // Each of them has been polled once the runtime has come back to this task.
        while started.fetch_add(1, Ordering::Relaxed) < 10 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        if cancelled {
            for task in tasks.iter().step_by(2) {
                task.abort();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let before = served.lock().expect("not poisoned").len();
        let (begun, processor) = (Instant::now(), processor_time());
        tokio::time::sleep(span).await;
        let (elapsed, processor) = (begun.elapsed(), processor_time() - processor);
        let served = served.lock().expect("not poisoned").clone();
        for task in &tasks {
            task.abort();
        }
        Measured {
            served_per_second: (served.len() - before) as f64 / elapsed.as_secs_f64(),
            share: processor.as_secs_f64() / elapsed.as_secs_f64(),
            overtakings: Some(served.windows(2).filter(|pair| pair[0] > pair[1]).count()),
        }
    })
}

/// All tasks wait for one limit.
fn one_line(directory: &Path, waiters: u64, cancelled: bool, span: Duration) -> Measured {
    let segment = segment(directory, "one", [calls("set").waiters(waiters as u32)]);
    let set = segment.set("set").expect("declared");
    let served = Arc::default();
    let tasks = (0..waiters)
        .map(|number| Box::pin(wait_once(set.clone(), number, Arc::clone(&served))) as _)
        .collect();
    measure(tasks, &served, cancelled, span)
}

/// A few tasks are served while many others wait in the queue of another set.
fn another_set(directory: &Path, waiters: u64, span: Duration) -> Measured {
    let held = SetDeclaration::new("held").add_limit(Limit::concurrency("places", 1));
    let segment = segment(directory, "sets", [held.waiters(waiters as u32), calls("set")]);
    let held = segment.set("held").expect("declared");
    let _permit = held.request().try_acquire().expect("works");
    let set = segment.set("set").expect("declared");
    let mut tasks: Tasks = Vec::new();
    for _ in 0..waiters {
        tasks.push(Box::pin(wait_once(held.clone(), 0, Arc::default())));
    }
    measure_beside(tasks, &set, span)
}

/// A few tasks are served while each of many keys has its own waiter.
fn other_keys(directory: &Path, waiters: u64, span: Duration) -> Measured {
    let keyed = SetDeclaration::new("keyed")
        .add_limit(Limit::calls("calls", 1, Duration::from_secs(24 * 3600)))
        .keyed(Keyed::new(2 * waiters))
        .waiters(8_192);
    let segment = segment(directory, "keys", [keyed, calls("set")]);
    let keyed = segment.set("keyed").expect("declared");
    let set = segment.set("set").expect("declared");
    let mut tasks: Tasks = Vec::new();
    for number in 0..waiters {
        let keyed = keyed.clone();
        tasks.push(Box::pin(async move {
            let request = keyed.request().for_key(number.to_le_bytes()).expect("keyed");
            while request.acquire_async(None).await.expect("works").is_admitted() {}
        }));
    }
    measure_beside(tasks, &set, span)
}

/// A set serves ten tasks over and over, next to tasks that wait for something else.
fn measure_beside(mut tasks: Tasks, set: &LimitSet, span: Duration) -> Measured {
    let served = Arc::default();
    for number in 0..10 {
        tasks.push(Box::pin(wait_over_and_over(
            set.clone(),
            number,
            Arc::clone(&served),
        )));
    }
    Measured {
        overtakings: None,
        ..measure(tasks, &served, false, span)
    }
}

async fn wait_over_and_over(set: LimitSet, number: u64, served: Arc<Mutex<Vec<u64>>>) {
    loop {
        wait_once(set.clone(), number, Arc::clone(&served)).await;
    }
}

fn main() {
    // `cargo test --benches` checks that this works; `cargo bench` measures how fast.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let (rounds, waiters, span) = if measure {
        (3, 20_000, Duration::from_secs(5))
    } else {
        (1, 100, Duration::from_millis(50))
    };
    let cases: [(&str, Case<'_>); 4] = [
        ("in one line", &|directory| {
            one_line(directory, waiters, false, span)
        }),
        ("in one line, every second cancelled", &|directory| {
            one_line(directory, waiters, true, span)
        }),
        ("in another set's line, 10 served in turn", &|directory| {
            another_set(directory, waiters, span)
        }),
        ("of other keys, 10 served in turn", &|directory| {
            other_keys(directory, waiters, span)
        }),
    ];
    println!(
        "{waiters} waiting futures, {RATE} a second allowed; the medians of {rounds} rounds of {span:?}"
    );
    for (name, case) in cases {
        let directory = common::directory();
        let mut measured: Vec<Measured> = (0..rounds)
            .map(|round| {
                let directory = directory.path().join(round.to_string());
                std::fs::create_dir(&directory).expect("a directory");
                case(&directory)
            })
            .collect();
        let overtakings = measured
            .iter()
            .map(|measured| measured.overtakings)
            .sum::<Option<usize>>();
        measured.sort_by(|a, b| a.served_per_second.total_cmp(&b.served_per_second));
        let rate = measured[rounds / 2].served_per_second;
        measured.sort_by(|a, b| a.share.total_cmp(&b.share));
        let share = 100.0 * measured[rounds / 2].share;
        let order = match overtakings {
            None => "",
            Some(0) => "in order",
            Some(_) => "not in order",
        };
        println!("{name:<42} {rate:>7.0}/s  {share:>5.1} % of a processor  {order}");
    }
}
