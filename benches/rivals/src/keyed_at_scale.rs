//! Limits by key with many keys: how long a check takes among a million and among ten million keys, and what several
//! processes achieve together on one table.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use shmlimit::{Declaration, Keyed, Limit, LimitSet, Segment, SetDeclaration};

use crate::common::operations::Operation;
use crate::stopwatch::Measurements;

const MILLION: &str = "check among 10^6 keys";
const TEN_MILLION: &str = "check among 10^7 keys";
const TURN: Duration = Duration::from_millis(20);

const SHARED_KEYS: u64 = 100_000;
const PROCESSES: [usize; 3] = [1, 2, 8];
const ROLE: &str = "--keyed-worker";

/// Measures and prints both. Returns the time of a check among ten million keys as a multiple of that among a million.
/// The tables lie in the named directory or, by default, in that of all benches.
pub fn compare(rounds: usize, directory: Option<PathBuf>) -> f64 {
    let directory = match directory {
        Some(named) => tempfile::tempdir_in(named).expect("a directory"),
        None => crate::common::directory(),
    };
    let directory = directory.path();
    let ratio = large_tables(rounds, directory);
    println!();
    several_processes(rounds.min(11), directory);
    ratio
}

fn large_tables(rounds: usize, directory: &Path) -> f64 {
    let all = vec![
        checks_among(directory, MILLION, 1_000_000),
        checks_among(directory, TEN_MILLION, 10_000_000),
    ];
    let huge = huge_kibibytes();
    let measurements = Measurements::take(all, rounds, TURN);
    println!(
        "Large tables, keys in random order, {rounds} interleaved rounds, medians. In huge pages: {huge} KiB.\n"
    );
    println!("| what | ns | ratio |\n|---|---:|---:|");
    let base = measurements.median(MILLION);
    for name in [MILLION, TEN_MILLION] {
        let median = measurements.median(name);
        println!("| {name} | {median:.1} | {:.2} |", median / base);
    }
    measurements.median(TEN_MILLION) / base
}

/// How many KiB of this process's shared mappings are in huge pages.
fn huge_kibibytes() -> u64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

fn checks_among(directory: &Path, name: &'static str, keys: u64) -> Operation {
    let set: &'static LimitSet = Box::leak(Box::new(table(&directory.join(format!("keyed-{keys}")), keys)));
    let mut request = set.request();
    for number in 0..keys {
        let checked = request
            .set_key(number.to_le_bytes())
            .and_then(|()| request.check());
        assert!(checked.expect("no error").is_admitted());
    }
    let mut random = Rng::with_seed(1);
    Operation::new("shmlimit", name, move || {
        let key = random.u64(..keys).to_le_bytes();
        let checked = request.set_key(key).and_then(|()| request.check());
        assert!(checked.expect("no error").is_admitted());
    })
}

fn table(path: &Path, keys: u64) -> LimitSet {
    let declaration = Declaration::new().add_set(
        SetDeclaration::new("keyed")
            .keyed(Keyed::new(keys).store_keys(false))
            .add_limit(Limit::calls("calls", u64::from(u32::MAX), Duration::from_secs(1))),
    );
    let segment = Segment::create(path, &declaration).expect("a segment");
    segment.set("keyed").expect("declared")
}

fn several_processes(rounds: usize, directory: &Path) {
    println!(
        "Several processes that check 10^5 keys of one table in random order, {rounds} interleaved rounds, medians.\n"
    );
    println!("| processes | million checks a second, together | waits for a lock in a million checks |");
    println!("|---:|---:|---:|");
    let path = directory.join("keyed-shared");
    let set = table(&path, SHARED_KEYS);
    let mut results = vec![Vec::new(); PROCESSES.len()];
    for _ in 0..rounds {
        for (count, results) in PROCESSES.into_iter().zip(&mut results) {
            let waits_before = lock_waits(&path);
            let (checks, seconds) = work(&path, count);
            let waits = lock_waits(&path) - waits_before;
            results.push((checks as f64 / seconds / 1e6, waits as f64 / checks as f64 * 1e6));
        }
    }
    drop(set);
    for (count, results) in PROCESSES.into_iter().zip(&mut results) {
        results.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (rate, waits) = results[results.len() / 2];
        println!("| {count} | {rate:.2} | {waits:.1} |");
    }
}

fn lock_waits(path: &Path) -> u64 {
    let snapshot = Segment::open(path).and_then(|segment| segment.snapshot());
    snapshot.expect("readable").sets[0].counts.lock_waits
}

/// Lets `count` processes check for a while. Returns how many checks they made, and in how many seconds.
fn work(path: &Path, count: usize) -> (u64, f64) {
    let program = std::env::current_exe().expect("this program");
    let mut workers: Vec<(Child, BufReader<_>)> = (0..count)
        .map(|number| {
            let mut child = Command::new(&program)
                .args([ROLE.as_ref(), path.as_os_str(), number.to_string().as_ref()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program runs");
            let lines = BufReader::new(child.stdout.take().expect("piped"));
            (child, lines)
        })
        .collect();
    let line = |lines: &mut BufReader<_>| {
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    };
    for (_, lines) in &mut workers {
        assert_eq!(line(lines), "ready");
    }
    let begin = Instant::now();
    for (child, _) in &mut workers {
        // Closing it is the signal to begin.
        drop(child.stdin.take());
    }
    let checks = workers
        .iter_mut()
        .map(|(_, lines)| line(lines).parse::<u64>().expect("a number"))
        .sum();
    let seconds = begin.elapsed().as_secs_f64();
    for (mut child, _) in workers {
        assert!(child.wait().expect("it ends").success());
    }
    (checks, seconds)
}

/// If this process is a worker, does its work. Returns whether it is one.
pub fn work_if_told_to() -> bool {
    const CHECKS: u64 = 500_000;
    let mut arguments = std::env::args().skip_while(|argument| argument != ROLE).skip(1);
    let (Some(path), Some(number)) = (arguments.next(), arguments.next()) else {
        return false;
    };
    let segment = Segment::open(path).expect("a segment");
    let set = segment.set("keyed").expect("declared");
    let mut request = set.request();
    let mut random = Rng::with_seed(number.parse().expect("a number"));
    println!("ready");
    std::io::stdout().flush().expect("a reader");
    let mut begin = String::new();
    std::io::stdin().read_line(&mut begin).expect("the end of input");
    for _ in 0..CHECKS {
        let key = random.u64(..SHARED_KEYS).to_le_bytes();
        let checked = request.set_key(key).and_then(|()| request.check());
        assert!(checked.expect("no error").is_admitted());
    }
    println!("{CHECKS}");
    true
}
