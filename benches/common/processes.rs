//! Several processes at work on one file for a fixed time. The same program is run again in a role.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use shmlimit::{Algorithm, Limit};

use super::floor::Floor;
use super::operations::{PLENTY, Place, acquire_once, set};

const ROLE: &str = "SHMLIMIT_BENCH_ROLE";
const PATH: &str = "SHMLIMIT_BENCH_PATH";
const MILLIS: &str = "SHMLIMIT_BENCH_MILLIS";

/// Operations between two looks at the clock.
const BATCH: u64 = 256;

/// What each of the processes does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Takes the robust lock, reads the clock, lets go.
    Floor,
    /// Acquires of one limit and drops.
    OneLimit,
    /// The same in a set of its own for each process: what sharing costs.
    OneLimitUnshared,
    /// Acquires of a calls and a concurrency limit, and drops.
    CallsAndConcurrency,
}

impl Work {
    /// Every one.
    pub const ALL: [Self; 4] = [
        Self::Floor,
        Self::OneLimit,
        Self::CallsAndConcurrency,
        Self::OneLimitUnshared,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "robust lock, clock, unlock",
            Self::OneLimit => "1 limit (GCRA calls): try_acquire, drop",
            Self::OneLimitUnshared => "1 limit, a segment for each process",
            Self::CallsAndConcurrency => "calls and concurrency: try_acquire, drop",
        }
    }

    fn limits(self) -> Vec<Limit> {
        let calls = Limit::calls("calls", PLENTY, Duration::from_secs(1)).algorithm(Algorithm::Gcra);
        match self {
            Self::Floor => Vec::new(),
            Self::OneLimit | Self::OneLimitUnshared => vec![calls],
            Self::CallsAndConcurrency => vec![calls, Limit::concurrency("in flight", 64)],
        }
    }
}

/// Works and ends, if this process was started for that.
pub fn work_if_told_to() {
    let Ok(role) = env::var(ROLE) else { return };
    let work = Work::ALL
        .into_iter()
        .find(|work| format!("{work:?}") == role)
        .expect("a role");
    let path = PathBuf::from(env::var_os(PATH).expect("a path"));
    let time = Duration::from_millis(env::var(MILLIS).expect("a time").parse().expect("a number"));
    let (done, taken) = if work == Work::Floor {
        let floor = Floor::open(&path);
        repeat(time, || {
            floor.with_lock(Floor::now);
        })
    } else {
        // An absolute path stands for itself, whatever it is joined to.
        let place = Place::new(Path::new("/"));
        let name = path.to_str().expect("a name in UTF-8");
        let (set, request) = set(place, name, work.limits());
        repeat(time, || acquire_once(&set, &request))
    };
    println!("{done} {}", taken.as_nanos());
    std::process::exit(0);
}

/// Says that it is ready, waits for the word, and counts how often `once` fits into the time.
fn repeat(time: Duration, mut once: impl FnMut()) -> (u64, Duration) {
    // What is met for the first time is not what is measured.
    for _ in 0..BATCH {
        once();
    }
    println!("ready");
    let mut word = [0];
    std::io::stdin().read_exact(&mut word).expect("the word to begin");
    let begin = Instant::now();
    let mut done = 0;
    loop {
        for _ in 0..BATCH {
            once();
        }
        done += BATCH;
        let taken = begin.elapsed();
        if taken >= time {
            return (done, taken);
        }
    }
}

/// Lets `count` processes work at once for that time, and answers their operations a second, added up.
pub fn throughput(directory: &Path, work: Work, count: usize, time: Duration) -> f64 {
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
    children.into_iter().map(Worker::finish).sum()
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
        word.write_all(&[1]).expect("somebody who reads");
    }

    fn finish(mut self) -> f64 {
        let line = self.line();
        let (done, nanos) = line.split_once(' ').expect("two numbers");
        let done: f64 = done.parse().expect("a number");
        let nanos: f64 = nanos.parse().expect("a number");
        assert!(self.process.wait().expect("an end").success());
        done * 1e9 / nanos
    }
}
