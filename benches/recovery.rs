//! What taking a lock costs the next process if the last owner died with it, by the size of what the lock guards. In a
//! table of keys, the next process checks only the rows of the interrupted operation, but it checks all holds. For
//! comparison: a check of everything, as by `recover`. Also how long a killed process counts as alive, by the memory
//! that it had, and how long it takes until another process gets the lock that it died with. Criterion repeats one
//! operation in one process, but each death needs a new process, so this bench has its own harness, which takes medians
//! of rounds.

#[allow(dead_code)]
mod common;
#[path = "../tests/layout_mirror/mod.rs"]
mod layout_mirror;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use layout_mirror::RawSegment;
use layout_mirror::words::control;
use memmap2::{Advice, MmapOptions};
use shmlimit::declare::LockKind;
use shmlimit::{Declaration, Keyed, Limit, LimitSet, OpenOptions, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

fn create(path: &Path, set: SetDeclaration) -> (Segment, LimitSet) {
    // A thread can die with a robust mutex; a slot lock belongs to a whole process.
    let declaration = Declaration::new().lock(LockKind::RobustMutex).add_set(set);
    let segment = Segment::create(path, &declaration).expect("a segment");
    let set = segment.set("api").expect("declared");
    (segment, set)
}

fn micros(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64() * 1e6
}

/// In microseconds: a request, a request that meets a lock whose holder died, and a check of everything.
#[derive(Default)]
struct Times([Vec<f64>; 3]);

impl Times {
    fn add(&mut self, path: &Path, segment: &Segment, mut request: impl FnMut()) {
        let raw = RawSegment::open(path);
        let recoveries = || raw.word(raw.control() + control::RECOVERIES);
        self.0[0].push(micros(&mut request));
        let before = recoveries();
        raw.lock().take_in_a_thread_that_ends();
        // Repeats until a request is for a key of the shard whose lock it was.
        self.0[1].push(loop {
            let took = micros(&mut request);
            if recoveries() > before {
                break took;
            }
        });
        self.0[2].push(micros(|| drop(segment.recover().expect("works"))));
    }

    fn print(&mut self, what: &str) {
        let [request, after_a_death, everything] = self.0.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!("{what:<26} {request:>16.1} {after_a_death:>16.1} {everything:>16.1}");
    }
}

fn of_keys(directory: &Path, keys: u64, rounds: usize) -> Times {
    let path = directory.join(format!("{keys}-keys"));
    let calls = Limit::calls("calls", 1 << 40, HOUR);
    let (segment, set) = create(
        &path,
        SetDeclaration::new("api")
            .keyed(Keyed::new(keys))
            .add_limit(calls),
    );
    let request = set.request();
    let check = |number: u64| {
        let request = request.for_key(number.to_ne_bytes()).expect("keyed");
        assert!(request.check().expect("works").is_admitted());
    };
    (0..keys).for_each(check);
    let mut keys = (0..keys).cycle();
    let mut next = || keys.next().expect("some");
    let mut times = Times::default();
    for _ in 0..rounds {
        times.add(&path, &segment, || check(next()));
    }
    times
}

fn of_holds(directory: &Path, holds: u64, rounds: usize) -> Times {
    let path = directory.join(format!("{holds}-holds"));
    let places = Limit::concurrency("places", holds);
    let declaration = SetDeclaration::new("api").holds(holds as u32).add_limit(places);
    let (segment, set) = create(&path, declaration);
    let take = || set.request().try_acquire().expect("works").into_result();
    let _held: Vec<_> = (1..holds).map(|_| take().expect("a place")).collect();
    let mut times = Times::default();
    for _ in 0..rounds {
        times.add(&path, &segment, || drop(take().expect("a place")));
    }
    times
}

/// These tell a process that is to die with a lock how much memory to have, whether to write to it, and in which
/// segment the lock is.
const MIBS: &str = "SHMLIMIT_BENCH_MIBS";
const IS_WRITTEN: &str = "SHMLIMIT_BENCH_IS_WRITTEN";
const PATH: &str = "SHMLIMIT_BENCH_PATH";

/// If this process was started to die with the lock, touches each page of its memory, takes the lock, and waits to be
/// killed.
fn hold_the_lock_if_told_to() {
    let Ok(mibs) = std::env::var(MIBS) else { return };
    let mut memory = MmapOptions::new()
        .len(mibs.parse::<usize>().expect("a number") << 20)
        .no_reserve_swap()
        .map_anon()
        .expect("a mapping");
    memory.advise(Advice::NoHugePage).expect("small pages");
    if std::env::var_os(IS_WRITTEN).is_some() {
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    } else {
        let sum: u64 = memory.iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
        std::hint::black_box(sum);
    }
    let path = std::env::var_os(PATH).expect("a path");
    RawSegment::open(Path::new(&path)).lock().take_for_good();
    println!("ready");
    loop {
        std::thread::park();
        std::hint::black_box(&memory);
    }
}

/// Milliseconds from the kill of a process with this much memory until another process has its lock, and until the
/// killed one no longer counts as alive.
fn of_memory(directory: &Path, mibs: u64, is_written: bool) -> [f64; 2] {
    let path = directory.join(format!("{mibs}-mib-{is_written}"));
    let places = SetDeclaration::new("api").add_limit(Limit::concurrency("places", 1));
    let declaration = Declaration::new().lock(LockKind::Slot).add_set(places);
    drop(Segment::create(&path, &declaration).expect("a segment"));
    let segment = OpenOptions::new().lock_timeout(HOUR).open(&path).expect("opens");
    let api = segment.set("api").expect("declared");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(MIBS, mibs.to_string()).env(PATH, &path);
    if is_written {
        command.env(IS_WRITTEN, "");
    }
    let mut holder = command.stdout(Stdio::piped()).spawn().expect("a process");
    let mut said = String::new();
    let answers = holder.stdout.take().expect("piped");
    BufReader::new(answers).read_line(&mut said).expect("a line");
    assert_eq!(said, "ready\n");
    let pid = u64::from(holder.id());
    let killed = Instant::now();
    holder.kill().expect("killed");
    assert!(api.request().try_acquire().expect("works").is_admitted());
    let taken = killed.elapsed();
    loop {
        let participants = segment.snapshot().expect("a copy").participants;
        if participants.iter().all(|it| it.pid != pid || !it.alive) {
            break;
        }
    }
    let gone = killed.elapsed();
    holder.wait().expect("reaped");
    [taken, gone].map(|time| time.as_secs_f64() * 1e3)
}

fn main() {
    hold_the_lock_if_told_to();
    // `cargo test --benches` checks that this works; `cargo bench` measures how fast.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let (rounds, sizes) = if measure { (51, 4..=6) } else { (1, 3..=3) };
    let directory = common::directory();
    println!("microseconds, medians of {rounds} rounds");
    println!(
        "{:<26} {:>16} {:>16} {:>16}",
        "", "request", "after a death", "recover"
    );
    for size in sizes.clone() {
        of_keys(directory.path(), 10_u64.pow(size), rounds).print(&format!("10^{size} keys"));
    }
    for size in sizes {
        // A set has at most 65,536 holds.
        let size = size - 2;
        of_holds(directory.path(), 10_u64.pow(size), rounds).print(&format!("10^{size} holds"));
    }
    println!("milliseconds after a kill");
    println!("{:<26} {:>16} {:>16}", "", "lock taken over", "counts as dead");
    // Memory that is only read is one page of zeros, mapped many times.
    let sizes: [(bool, &[u64]); 2] = if measure {
        [
            (true, &[1024, 2048, 4096, 8192]),
            (false, &[16_384, 32_768, 65_536]),
        ]
    } else {
        [(true, &[16]), (false, &[16])]
    };
    for (is_written, sizes) in sizes {
        let what = if is_written { "written" } else { "read" };
        for &mibs in sizes {
            let [taken, gone] = of_memory(directory.path(), mibs, is_written);
            println!("{:<26} {taken:>16.1} {gone:>16.1}", format!("{mibs} MiB {what}"));
        }
    }
}
