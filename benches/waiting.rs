//! What waiting in the queue costs: a hand-over between two processes, compared with a bare futex, and the time from
//! the death of a holder to the admission of the next. Criterion measures one process, so this bench has its own
//! harness: it runs rounds of every case in turn, and shows the medians.
#![allow(unsafe_code, reason = "a bare futex is what is measured beside")]

#[allow(dead_code)]
mod common;
#[path = "../tests/scene/process.rs"]
mod process;

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use process::{Child, SharedWords, eventually};
use shmlimit::{Declaration, Limit, LimitSet, Segment, SetDeclaration};
use tempfile::TempDir;

/// How long the process that is woken has been asleep.
const NAP: Duration = Duration::from_micros(300);

/// How long a waiter sleeps before it checks by itself, unless it is woken.
const SLICE: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// Sleeps until the word is `turn`; if there is a `slice`, at most that long at a time.
fn wait_for(word: &AtomicU64, turn: u64, slice: Option<&libc::timespec>) {
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen == turn {
            return;
        }
        let address = std::ptr::from_ref(word);
        let slice = slice.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the kernel compares four bytes of a mapped word, and writes nothing.
        unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT, seen as u32, slice) };
    }
}

fn give_turn(word: &AtomicU64, turn: u64) {
    word.store(turn, Ordering::Release);
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, std::ptr::from_ref(word), libc::FUTEX_WAKE, 1) };
}

fn now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// The nanoseconds that each step took, one entry for each repetition.
#[derive(Default)]
struct WakeUps {
    /// From just before a sleeper of another process is woken until it is awake.
    all: Vec<f64>,
    /// The part of that until the call that wakes returns: the work of the process that wakes.
    waking: Vec<f64>,
}

impl WakeUps {
    fn extend(&mut self, other: Self) {
        self.all.extend(other.all);
        self.waking.extend(other.waking);
    }
}

/// Wakes a sleeper of another process over and over.
///
/// The sleeper goes to sleep in `sleep`, after it has announced so in a word; `wake` is called when it has slept for a
/// while.
fn wake_ups(
    times: u64,
    sleep: impl Fn(u64),
    mut prepare: impl FnMut(u64),
    mut wake: impl FnMut(u64),
) -> WakeUps {
    // The turn that the sleeper is to take, the turn in which it is about to sleep, and when it woke up.
    let words = SharedWords::new(3);
    let other = Child::fork(|| {
        for turn in 1..=times {
            while words[0].load(Ordering::Acquire) != turn {
                std::thread::yield_now();
            }
            words[1].store(turn, Ordering::Release);
            sleep(turn);
            words[2].store(now(), Ordering::Release);
        }
    });
    let mut taken = WakeUps::default();
    for turn in 1..=times {
        prepare(turn);
        words[2].store(0, Ordering::Release);
        words[0].store(turn, Ordering::Release);
        while words[1].load(Ordering::Acquire) != turn {
            std::thread::yield_now();
        }
        nap();
        let begun = now();
        wake(turn);
        taken.waking.push(now().saturating_sub(begun) as f64);
        while words[2].load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
        let awake = words[2].load(Ordering::Acquire);
        taken.all.push(awake.saturating_sub(begun) as f64);
    }
    other.succeed();
    taken
}

fn futex_wake_ups(times: u64, slice: Option<&libc::timespec>) -> WakeUps {
    let word = SharedWords::new(1);
    wake_ups(
        times,
        |turn| wait_for(&word[0], turn, slice),
        |_| (),
        |turn| give_turn(&word[0], turn),
    )
}

fn line_wake_ups(directory: &Path, times: u64) -> WakeUps {
    let (_directory, _segment, set) = places(directory);
    let request = set.request();
    let take = || {
        request
            .acquire(None)
            .expect("works")
            .into_result()
            .expect("admitted")
    };
    let permit = RefCell::new(None);
    wake_ups(
        times,
        |_| drop(take()),
        |_| *permit.borrow_mut() = Some(take()),
        |_| *permit.borrow_mut() = None,
    )
}

/// Nanoseconds of releases for which no request waits, each after as long a nap as a sleeper has: the part of a waking
/// release that is not due to the sleeper.
fn releases_after_a_nap(set: &LimitSet, times: u64) -> Vec<f64> {
    let request = set.request();
    let once = |_| {
        let permit = request.try_acquire().expect("works");
        nap();
        let begun = now();
        drop(permit);
        now().saturating_sub(begun) as f64
    };
    (0..times).map(once).collect()
}

fn nap() {
    let begun = Instant::now();
    while begun.elapsed() < NAP {
        std::hint::spin_loop();
    }
}

/// A set with one place, in a file that lasts as long as the directory.
fn places(directory: &Path) -> (TempDir, Segment, LimitSet) {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let declaration =
        Declaration::new().add_set(SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1)));
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let set = segment.set("set").expect("declared");
    (directory, segment, set)
}

/// Nanoseconds from the SIGKILL of a holder to the admission of a waiter, a thread or a future.
fn death_hand_over(directory: &Path, as_future: bool) -> f64 {
    let (_directory, segment, set) = places(directory);
    let words = SharedWords::new(2);
    let holder = Child::fork(|| {
        std::mem::forget(set.request().try_acquire().expect("works"));
        loop {
            std::thread::park();
        }
    });
    let look = || segment.snapshot().expect("a snapshot").sets.remove(0);
    eventually("it is held", || look().active == 1);
    let waiter = Child::fork(|| {
        let permit = if as_future {
            smol::block_on(set.request().acquire_async(None)).expect("works")
        } else {
            set.request().acquire(None).expect("works")
        };
        words[1].store(now(), Ordering::Relaxed);
        drop(permit);
    });
    eventually("the other waits", || !look().tickets.is_empty());
    // Long enough for the waiting process to do everything that it does before it goes to sleep for good.
    std::thread::sleep(Duration::from_millis(20));
    words[0].store(now(), Ordering::Relaxed);
    holder.kill();
    waiter.succeed();
    words[1]
        .load(Ordering::Relaxed)
        .saturating_sub(words[0].load(Ordering::Relaxed)) as f64
}

/// Nanoseconds of taking and dropping a permit while no request waits, by `try_acquire` and by `acquire`.
fn without_a_line(set: &LimitSet, times: u64) -> (f64, f64) {
    let request = set.request();
    let started = Instant::now();
    for _ in 0..times {
        let _ = std::hint::black_box(request.try_acquire().expect("works"));
    }
    let trying = started.elapsed();
    let started = Instant::now();
    for _ in 0..times {
        let _ = std::hint::black_box(request.acquire(Duration::from_secs(1)).expect("works"));
    }
    let waiting = started.elapsed();
    (
        trying.as_nanos() as f64 / times as f64,
        waiting.as_nanos() as f64 / times as f64,
    )
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn main() {
    // `cargo test --benches` checks that this works; `cargo bench` measures how fast.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let (rounds, times) = if measure { (31, 100) } else { (1, 10) };
    let directory = common::directory();
    let (_directory, _segment, set) = places(directory.path());
    let [mut futex, mut sliced, mut line] = [(); 3].map(|()| WakeUps::default());
    let (mut death, mut death_for_future) = (Vec::new(), Vec::new());
    let (mut trying, mut waiting) = (Vec::new(), Vec::new());
    let mut after_a_nap = Vec::new();
    for _ in 0..rounds {
        futex.extend(futex_wake_ups(times, None));
        sliced.extend(futex_wake_ups(times, Some(&SLICE)));
        line.extend(line_wake_ups(directory.path(), times));
        after_a_nap.extend(releases_after_a_nap(&set, times));
        death.push(death_hand_over(directory.path(), false));
        death_for_future.push(death_hand_over(directory.path(), true));
        let (one, other) = without_a_line(&set, 1_000 * times);
        trying.push(one);
        waiting.push(other);
    }
    let [woken, waking] = [
        [&mut futex.all, &mut sliced.all, &mut line.all],
        [&mut futex.waking, &mut sliced.waking, &mut line.waking],
    ]
    .map(|step| step.map(|taken| quantile(taken, 0.5)));
    // No process sleeps in these, so the tenth percentile is shown: roughly what is measured when no other process
    // wants the machine.
    let (trying, waiting) = (quantile(&mut trying, 0.1), quantile(&mut waiting, 0.1));
    println!("{rounds} rounds; medians, but for what no one sleeps in: tenth percentiles");
    for (what, [futex, sliced, line]) in [
        ("wake-up of a sleeper elsewhere", woken),
        ("  of that, in the call that wakes", waking),
    ] {
        println!("{what:<34} bare futex  {:>9.2} us", futex / 1e3);
        println!(
            "{what:<34} for 2 ms    {:>9.2} us  {:.2}x",
            sliced / 1e3,
            sliced / futex
        );
        println!(
            "{what:<34} release     {:>9.2} us  {:.2}x, {:.2} us more",
            line / 1e3,
            line / futex,
            (line - futex) / 1e3
        );
    }
    println!(
        "release after as long a nap, no one waits     {:>9.2} us",
        quantile(&mut after_a_nap, 0.5) / 1e3
    );
    println!("try_acquire and drop, no one waits           {trying:>9.1} ns");
    println!(
        "acquire and drop, no one waits               {waiting:>9.1} ns  {:.2}x",
        waiting / trying
    );
    for (next, taken) in [("thread", &mut death), ("future", &mut death_for_future)] {
        println!(
            "from SIGKILL of a holder to the next {next}  {:>9.2} us, at most {:.2} us",
            quantile(taken, 0.5) / 1e3,
            quantile(taken, 1.0) / 1e3
        );
    }
}
