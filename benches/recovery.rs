//! What the death of a process with the lock costs the process that has it next, by the size of what the lock guards: of a
//! table of keys it looks at the rows of the interrupted operation only, of holds at all of them. Beside it, looking at
//! everything, which `recover` does. Criterion repeats one thing, and a death is another each time, so this has a harness
//! of its own: medians of rounds.

#[allow(dead_code)]
mod common;
#[path = "../tests/layout_mirror/mod.rs"]
mod layout_mirror;

use std::path::Path;
use std::time::{Duration, Instant};

use layout_mirror::RawSegment;
use layout_mirror::words::control;
use shmlimit::{Declaration, Keyed, Limit, LimitSet, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

fn create(path: &Path, set: SetDeclaration) -> (Segment, LimitSet) {
    let segment = Segment::create(path, &Declaration::new().add_set(set)).expect("a segment");
    let set = segment.set("api").expect("declared");
    (segment, set)
}

fn micros(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64() * 1e6
}

/// Microseconds: of a request, of one that meets a lock whose holder died, and of looking at everything.
#[derive(Default)]
struct Times([Vec<f64>; 3]);

impl Times {
    fn add(&mut self, path: &Path, segment: &Segment, mut request: impl FnMut()) {
        let raw = RawSegment::open(path);
        let recoveries = || raw.word(raw.control() + control::RECOVERIES);
        self.0[0].push(micros(&mut request));
        let before = recoveries();
        raw.lock().take_in_a_thread_that_ends();
        // Until one of a key of that shard comes.
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
        let key = set.key(number.to_ne_bytes()).expect("a key");
        assert!(key.check(&request).expect("works").is_admitted());
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
    let take = || set.try_acquire(&set.request()).expect("works").into_result();
    let _held: Vec<_> = (1..holds).map(|_| take().expect("a place")).collect();
    let mut times = Times::default();
    for _ in 0..rounds {
        times.add(&path, &segment, || drop(take().expect("a place")));
    }
    times
}

fn main() {
    // `cargo test --benches` asks whether it works, `cargo bench` how fast.
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
        // Of holds there are 65,536 at most.
        let size = size - 2;
        of_holds(directory.path(), 10_u64.pow(size), rounds).print(&format!("10^{size} holds"));
    }
}
