//! Several processes that work on one file for a fixed time: this same program, started again in a role.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use shmlimit::{Algorithm, Limit};

use super::floor::Floor;
use super::operations::{PLENTY, Place, acquire_once, set};

const ROLE: &str = "SHMLIMIT_BENCH_ROLE";
const PATH: &str = "SHMLIMIT_BENCH_PATH";
const MILLIS: &str = "SHMLIMIT_BENCH_MILLIS";

/// Operations between two readings of the clock: few, because a stall shows as the time between two readings.
const BATCH: u64 = 32;

/// What each of the processes does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Only counts, and shares nothing, which shows how long a process waits for a processor.
    Alone,
    /// Takes the robust lock, reads the clock, and releases the lock.
    Floor,
    /// Acquires from one limit, and drops the permit.
    OneLimit,
    /// The same, but each process has its own set, which shows what sharing costs.
    OneLimitUnshared,
    /// Acquires from a calls and a concurrency limit, and drops the permit.
    CallsAndConcurrency,
}

impl Work {
    /// The kinds of work whose operations per second are of interest.
    pub const ALL: [Self; 4] = [
        Self::Floor,
        Self::OneLimit,
        Self::CallsAndConcurrency,
        Self::OneLimitUnshared,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "no lock",
            Self::Floor => "robust lock, clock, unlock",
            Self::OneLimit => "1 limit (GCRA calls): try_acquire, drop",
            Self::OneLimitUnshared => "1 limit, a segment for each process",
            Self::CallsAndConcurrency => "calls and concurrency: try_acquire, drop",
        }
    }

    fn limits(self) -> Vec<Limit> {
        let calls = Limit::calls("calls", PLENTY, Duration::from_secs(1)).algorithm(Algorithm::Gcra);
        match self {
            Self::Alone | Self::Floor => Vec::new(),
            Self::OneLimit | Self::OneLimitUnshared => vec![calls],
            Self::CallsAndConcurrency => vec![calls, Limit::concurrency("in flight", 64)],
        }
    }
}

/// If this process was started as a worker, works and exits.
pub fn work_if_told_to() {
    let Ok(role) = env::var(ROLE) else { return };
    let work = [Work::Alone]
        .into_iter()
        .chain(Work::ALL)
        .find(|work| format!("{work:?}") == role)
        .expect("a role");
    let path = PathBuf::from(env::var_os(PATH).expect("a path"));
    let time = Duration::from_millis(env::var(MILLIS).expect("a time").parse().expect("a number"));
    let share = match work {
        Work::Alone => repeat(time, wait_for_the_word, count_up),
        Work::Floor => {
            let floor = Floor::open(&path);
            repeat(time, wait_for_the_word, || {
                floor.with_lock(Floor::now);
            })
        }
        _ => {
            // Joining an absolute path replaces everything before it.
            let place = Place::new(Path::new("/"));
            let name = path.to_str().expect("a name in UTF-8");
            let set = set(place, name, work.limits());
            let request = set.request();
            repeat(time, wait_for_the_word, || acquire_once(&request))
        }
    };
    println!(
        "{} {} {}",
        share.done,
        share.taken.as_nanos(),
        share.longest_gap.as_nanos()
    );
    std::process::exit(0);
}

/// About as long as an operation under the lock.
fn count_up() {
    for number in 0..64 {
        std::hint::black_box(number);
    }
}

/// Reports that this process is ready, and waits for the signal to begin.
fn wait_for_the_word() {
    println!("ready");
    let mut word = [0];
    std::io::stdin().read_exact(&mut word).expect("the word to begin");
}

/// What one of several workers achieved.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The number of operations.
    pub done: u64,
    /// How long it worked.
    pub taken: Duration,
    /// The longest time between two readings of the clock.
    pub longest_gap: Duration,
}

impl Share {
    /// Operations a second.
    pub fn rate(self) -> f64 {
        self.done as f64 / self.taken.as_secs_f64()
    }
}

/// Counts how often `once` runs within `time`, starting when `begin` returns.
fn repeat(time: Duration, begin: impl FnOnce(), mut once: impl FnMut()) -> Share {
    // The first calls are not measured, because they find cold caches.
    for _ in 0..BATCH {
        once();
    }
    begin();
    let begin = Instant::now();
    let (mut done, mut last, mut longest_gap) = (0, begin, Duration::ZERO);
    loop {
        for _ in 0..BATCH {
            once();
        }
        done += BATCH;
        let now = Instant::now();
        longest_gap = longest_gap.max(now - last);
        last = now;
        let taken = now - begin;
        if taken >= time {
            return Share {
                done,
                taken,
                longest_gap,
            };
        }
    }
}

/// Lets `count` processes work at once for `time`. Returns the sum of their operations per second.
pub fn throughput(directory: &Path, work: Work, count: usize, time: Duration) -> f64 {
    let shares = side_by_side(directory, work, count, time);
    shares.into_iter().map(Share::rate).sum()
}

/// Lets `count` processes work at once for that time.
pub fn side_by_side(directory: &Path, work: Work, count: usize, time: Duration) -> Vec<Share> {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let path = |number: usize| match work {
        Work::OneLimitUnshared => directory.path().join(number.to_string()),
        _ => directory.path().join("shared"),
    };
    if work == Work::Floor {
        drop(Floor::create(&path(0)));
    }
    let mut children: Vec<Worker> = (0..count)
        .map(|number| Worker::start(work, &path(number), time))
        .collect();
    for child in &mut children {
        assert_eq!(child.line(), "ready");
    }
    for child in &mut children {
        child.begin();
    }
    children.into_iter().map(Worker::finish).collect()
}

/// Lets `count` threads of this process work at once on one limit for `time`.
pub fn threads_side_by_side(directory: &Path, count: usize, time: Duration) -> Vec<Share> {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let set = set(Place::new(directory.path()), "threads", Work::OneLimit.limits());
    let request = set.request();
    let all_are_there = Barrier::new(count);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|_| {
                scope.spawn(|| {
                    let begin = || {
                        all_are_there.wait();
                    };
                    repeat(time, begin, || acquire_once(&request))
                })
            })
            .collect();
        let shares = threads.into_iter().map(|thread| thread.join());
        shares.map(|share| share.expect("no panic")).collect()
    })
}

struct Worker {
    process: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(work: Work, path: &Path, time: Duration) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program"))
            .env(ROLE, format!("{work:?}"))
            .env(PATH, path)
            .env(MILLIS, time.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, answers }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn begin(&mut self) {
        let mut word = self.process.stdin.take().expect("piped");
        word.write_all(&[1]).expect("a reader");
    }

    fn finish(mut self) -> Share {
        let line = self.line();
        let numbers: Vec<u64> = line
            .split(' ')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let [done, taken, longest_gap] = numbers[..] else {
            panic!("not three numbers: {line}");
        };
        assert!(self.process.wait().expect("an end").success());
        Share {
            done,
            taken: Duration::from_nanos(taken),
            longest_gap: Duration::from_nanos(longest_gap),
        }
    }
}
