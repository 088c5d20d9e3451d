//! Four processes use thousands of keys of one table: whatever they do, no key ever gets more than its limits allow,
//! and no flood of other keys gives it anything back.
//!
//! The processes note what they were given in memory of the test, outside of the segment.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use nix::time::{ClockId, clock_gettime};
use shmlimit::declare::WhenFull;
use shmlimit::snapshot::KeysSnapshot;
use shmlimit::{
    Algorithm, Keyed, Limit, LimitSet, OpenOptions, Outcome, RefusalReason, Segment, SetDeclaration,
};

const PROCESSES: usize = 4;
const HOUR: Duration = Duration::from_secs(3600);
const SEED: u64 = 20_260_101;

fn create(directory: &Path, set: SetDeclaration) -> (Segment, LimitSet) {
    let segment = OpenOptions::new()
        // On a busy machine, the holder of a lock may be without a processor for long, but it is never stopped.
        .lock_timeout(TIMEOUT)
        .create(directory.join("limits"), &scene::declaration().add_set(set))
        .expect("a segment");
    let set = segment.set("api").expect("declared");
    (segment, set)
}

fn keyed(max_keys: u64, when_full: WhenFull) -> SetDeclaration {
    SetDeclaration::new("api").keyed(Keyed::new(max_keys).when_full(when_full))
}

fn in_processes(body: impl Fn(usize)) {
    let children: Vec<Child> = (0..PROCESSES)
        .map(|process| Child::fork(|| body(process)))
        .collect();
    children.into_iter().for_each(Child::succeed);
}

/// Requests refused because their key found no row.
fn refused(segment: &Segment) -> u64 {
    let snapshot = segment.snapshot().expect("a snapshot");
    snapshot.sets[0].counts.refused_table_full
}

fn keys(segment: &Segment) -> KeysSnapshot {
    let keys = segment.snapshot().expect("a snapshot").sets[0]
        .keys
        .expect("keyed");
    assert!(keys.in_use <= keys.rows && keys.fullest_bucket <= 32, "{keys:?}");
    keys
}

fn size_of(segment: &Segment) -> u64 {
    std::fs::metadata(segment.path()).expect("the file").len()
}

fn boot_nanos() -> u64 {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock"));
    u64::try_from(time.as_nanos()).expect("a time in range")
}

/// What one process was given: a count, and then the key of each admission and the instants before and after it.
struct Log<'a>(&'a [AtomicU64]);

impl<'a> Log<'a> {
    fn of(words: &'a SharedWords, process: usize, max: usize) -> Self {
        let length = 1 + 3 * max;
        Self(&words[process * length..(process + 1) * length])
    }

    fn note(&self, grant: [u64; 3]) {
        let count = self.0[0].load(Ordering::Relaxed) as usize;
        for (word, value) in self.0[1 + 3 * count..].iter().zip(grant) {
            word.store(value, Ordering::Relaxed);
        }
        self.0[0].store(count as u64 + 1, Ordering::Release);
    }

    fn grants(&self) -> impl Iterator<Item = [u64; 3]> + use<'a> {
        let count = self.0[0].load(Ordering::Acquire) as usize;
        let words = self.0[1..=3 * count].chunks_exact(3);
        words.map(|grant| [0, 1, 2].map(|index| grant[index].load(Ordering::Relaxed)))
    }
}

#[test]
fn no_key_of_ten_thousand_ever_gets_more_than_its_limits_in_any_window() {
    const KEYS: u64 = 10_000;
    const HOT: u64 = 40;
    const OPERATIONS: usize = 40_000;
    const CAPACITY: u64 = 8;
    const BURST: u64 = 4;
    const WINDOW: u64 = 200_000_000;
    const AT_ONCE: u64 = 2;
    let test = "processes::no_key_of_ten_thousand_ever_gets_more_than_its_limits_in_any_window";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let requests = Limit::calls("requests", CAPACITY, Duration::from_nanos(WINDOW)).burst(BURST);
        let set = keyed(KEYS, WhenFull::Refuse)
            .add_limit(requests)
            .add_limit(Limit::concurrency("in_flight", AT_ONCE))
            .holds(256);
        let (segment, set) = create(directory, set);
        let size = size_of(&segment);
        let logs = SharedWords::new(PROCESSES * (1 + 3 * OPERATIONS));
        let held = SharedWords::new(KEYS as usize);
        in_processes(|process| {
            let log = Log::of(&logs, process, OPERATIONS);
            let mut dice = Rng::with_seed(SEED + process as u64);
            let request = set.request();
            let mut permits = VecDeque::new();
            for _ in 0..OPERATIONS {
                let number = if dice.u64(..2) == 0 {
                    dice.u64(..HOT)
                } else {
                    dice.u64(..KEYS)
                };
                let before = boot_nanos();
                let outcome = request
                    .for_key(number.to_le_bytes())
                    .expect("a key")
                    .try_acquire();
                match outcome.expect("works") {
                    Outcome::Admitted(permit) => {
                        log.note([number, before, boot_nanos()]);
                        let others = held[number as usize].fetch_add(1, Ordering::SeqCst);
                        assert!(others < AT_ONCE, "{others} others hold of key {number}");
                        permits.push_back((number, permit));
                    }
                    Outcome::Refused(refusal) => {
                        assert!(refusal.binding().is_some(), "there is a row for every key");
                    }
                }
                if permits.len() > 16 {
                    let (number, permit) = permits.pop_front().expect("many");
                    held[number as usize].fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            }
            for (number, permit) in permits {
                held[number as usize].fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            }
        });
        let mut by_key: HashMap<u64, Vec<[u64; 2]>> = HashMap::new();
        let mut admitted = 0;
        for process in 0..PROCESSES {
            for [key, before, after] in Log::of(&logs, process, OPERATIONS).grants() {
                by_key.entry(key).or_default().push([before, after]);
                admitted += 1;
            }
        }
        let mut fullest = 0;
        for (key, grants) in &mut by_key {
            grants.sort_unstable();
            for (first, [start, _]) in grants.iter().enumerate() {
                let mut latest = 0;
                for (number, [_, end]) in (1..).zip(&grants[first..]) {
                    // All of them certainly lie between these two instants.
                    latest = latest.max(*end);
                    let length = latest - start;
                    let allowed = BURST
                        + u64::try_from(u128::from(CAPACITY) * u128::from(length) / u128::from(WINDOW))
                            .expect("few");
                    assert!(number <= allowed, "{number} of key {key} in {length} ns");
                    if length < WINDOW {
                        fullest = fullest.max(number);
                    }
                }
            }
        }
        assert!(
            fullest > BURST,
            "the limits were not put to the test: at most {fullest} in a window"
        );
        let snapshot = segment.snapshot().expect("a snapshot").sets.remove(0);
        assert_eq!((snapshot.counts.admitted, snapshot.active), (admitted, 0));
        assert_eq!(refused(&segment), 0);
        assert_eq!(size_of(&segment), size, "memory never grows");
    });
}

/// Counts what four processes are given in this many operations each, half of them for victims and half for others.
fn flood(set: &LimitSet, given: &SharedWords, victims: u64, others: u64, operations: usize) {
    in_processes(|process| {
        let mut dice = Rng::with_seed(SEED + process as u64);
        let request = set.request();
        for operation in 0..operations as u64 {
            let number = if operation % 2 == 0 {
                dice.u64(..victims)
            } else {
                victims + dice.u64(..others)
            };
            if ask(number, &request) {
                given[number as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
}

fn ask(number: u64, request: &shmlimit::Request) -> bool {
    let key = format!("tenant-{number}");
    request
        .for_key(key)
        .expect("keyed")
        .try_acquire()
        .expect("works")
        .is_admitted()
}

#[test]
fn no_limited_key_regains_anything_under_a_flood_of_twenty_times_as_many() {
    const VICTIMS: u64 = 500;
    const OTHERS: u64 = 20 * VICTIMS;
    const CAPACITY: u64 = 5;
    let test = "processes::no_limited_key_regains_anything_under_a_flood_of_twenty_times_as_many";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let set = keyed(VICTIMS, WhenFull::Refuse)
            .add_limit(Limit::calls("requests", CAPACITY, HOUR).algorithm(Algorithm::SlidingWindow));
        let (segment, set) = create(directory, set);
        let size = size_of(&segment);
        let request = set.request();
        let given = SharedWords::new((VICTIMS + OTHERS) as usize);
        for victim in 0..VICTIMS {
            assert!(ask(victim, &request), "there is a row for each of them");
            given[victim as usize].fetch_add(1, Ordering::Relaxed);
        }
        flood(&set, &given, VICTIMS, OTHERS, 20_000);
        for victim in 0..VICTIMS {
            while ask(victim, &request) {
                given[victim as usize].fetch_add(1, Ordering::Relaxed);
            }
            let given = given[victim as usize].load(Ordering::Relaxed);
            assert_eq!(given, CAPACITY, "of victim {victim} within the hour");
        }
        let served = given[VICTIMS as usize..]
            .iter()
            .map(|given| given.load(Ordering::Relaxed));
        assert!(served.max().expect("others") <= CAPACITY);
        let keys = keys(&segment);
        assert_eq!(
            (keys.in_use, keys.evicted_unused, keys.evicted_in_use),
            (keys.rows, 0, 0)
        );
        assert!(refused(&segment) > OTHERS, "{keys:?}");
        assert_eq!(size_of(&segment), size, "memory never grows");
    });
}

#[test]
fn a_key_gets_more_only_as_often_as_one_was_evicted() {
    const VICTIMS: u64 = 100;
    const OTHERS: u64 = 20 * VICTIMS;
    const CAPACITY: u64 = 5;
    let test = "processes::a_key_gets_more_only_as_often_as_one_was_evicted";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let set = keyed(VICTIMS, WhenFull::EvictOldest).add_limit(Limit::calls("requests", CAPACITY, HOUR));
        let (segment, set) = create(directory, set);
        let given = SharedWords::new((VICTIMS + OTHERS) as usize);
        flood(&set, &given, VICTIMS, OTHERS, 20_000);
        let given: Vec<u64> = given.iter().map(|given| given.load(Ordering::Relaxed)).collect();
        let keys = keys(&segment);
        let least_evicted: u64 = given
            .iter()
            .map(|given| given.div_ceil(CAPACITY).saturating_sub(1))
            .sum();
        assert!(
            least_evicted <= keys.evicted_in_use,
            "{least_evicted} of {keys:?}"
        );
        let used = given.iter().filter(|given| **given > 0).count() as u64;
        assert!(given.iter().sum::<u64>() <= CAPACITY * (used + keys.evicted_in_use));
        assert!(
            keys.evicted_in_use > OTHERS && keys.evicted_unused == 0,
            "{keys:?}"
        );
        assert_eq!((keys.in_use, refused(&segment)), (keys.rows, 0));
    });
}

/// Processes are killed at random while they flood a table with new keys, which evict one another. Keys that were
/// limited before stay limited, and a kill in the middle of an eviction gives nothing back to them.
#[test]
fn no_limited_key_regains_anything_under_a_flood_that_evicts_and_is_killed() {
    const LIMITED: u64 = 200;
    const CAPACITY: u64 = 5;
    const KILLS: u64 = 150;
    let test = "processes::no_limited_key_regains_anything_under_a_flood_that_evicts_and_is_killed";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let set = keyed(5 * LIMITED, WhenFull::EvictLeastUsed)
            .add_limit(Limit::calls("requests", CAPACITY, HOUR).algorithm(Algorithm::SlidingWindow))
            .add_limit(Limit::concurrency("in_flight", CAPACITY));
        let (segment, set) = create(directory, set);
        let size = size_of(&segment);
        let request = set.request();
        for limited in 0..LIMITED {
            assert!((0..CAPACITY).all(|_| ask(limited, &request)), "there is room");
        }
        // How often each process has asked, and how much limited keys were given again.
        let words = SharedWords::new(PROCESSES + 1);
        let regained = &words[PROCESSES];
        let start = |process: usize, seed: u64| {
            Child::fork(|| {
                let mut dice = Rng::with_seed(seed);
                loop {
                    let limited = dice.u64(..LIMITED);
                    if dice.u64(..4) == 0 && ask(limited, &request) {
                        regained.fetch_add(1, Ordering::Relaxed);
                    }
                    ask(LIMITED + dice.u64(..) % 1_000_000, &request);
                    words[process].fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let mut children: Vec<Child> = (0..PROCESSES)
            .map(|process| start(process, SEED + process as u64))
            .collect();
        let mut dice = Rng::with_seed(SEED);
        for kill in 0..KILLS {
            let process = dice.u64(..PROCESSES as u64) as usize;
            let goal = words[process].load(Ordering::Relaxed) + 1 + dice.u64(..40);
            eventually("it asks", || words[process].load(Ordering::Relaxed) >= goal);
            let replacement = start(process, dice.u64(..).wrapping_add(kill));
            std::mem::replace(&mut children[process], replacement).kill();
        }
        children.into_iter().for_each(Child::kill);
        for limited in 0..LIMITED {
            assert!(!ask(limited, &request), "key {limited}");
        }
        assert_eq!(regained.load(Ordering::Relaxed), 0);
        let keys = keys(&segment);
        assert!(
            keys.in_use == keys.rows && keys.evicted_in_use > KILLS,
            "{keys:?}"
        );
        assert_eq!(size_of(&segment), size, "memory never grows");
    });
}

/// Adds keys to a new table, far more than fit. `next` chooses each key, and learns which key was refused last. Returns
/// how many keys had a row when the first was refused.
fn fill(max_keys: u64, mut next: impl FnMut(u64, Option<&[u8]>) -> Vec<u8>) -> u64 {
    let set = keyed(max_keys, WhenFull::Refuse).add_limit(Limit::calls("requests", 1, HOUR));
    let directory = tempfile::tempdir().expect("a directory");
    let (segment, set) = create(directory.path(), set);
    let size = size_of(&segment);
    let request = set.request();
    let mut first_refused = None;
    let mut latest_refused: Option<Vec<u8>> = None;
    for number in 0..20 * max_keys {
        let key = next(number, latest_refused.as_deref());
        if let Outcome::Refused(refusal) = request
            .for_key(&key)
            .expect("a key")
            .try_acquire()
            .expect("works")
            && refusal.reason() == RefusalReason::TableFull
        {
            first_refused.get_or_insert_with(|| keys(&segment).in_use);
            latest_refused = Some(key);
        }
    }
    let keys = keys(&segment);
    assert_eq!(
        keys.in_use, keys.rows,
        "whatever the keys are, every row is found in the end"
    );
    assert_eq!(keys.fullest_bucket, 32);
    assert_eq!(size_of(&segment), size, "memory never grows");
    first_refused.expect("a full table")
}

/// Someone who knows the algorithm but not the seed, and sees which keys are refused, fills the table no better than
/// chance would: no key is refused before as many keys as were declared have a row.
#[test]
fn chosen_keys_fill_the_table_no_differently_from_random_ones() {
    const MAX: u64 = 1_000;
    let mut dice = Rng::with_seed(SEED);
    let random = fill(MAX, |_, _| dice.u64(..).to_le_bytes().to_vec());
    let sequential = fill(MAX, |number, _| number.to_string().into_bytes());
    let with_a_prefix = fill(MAX, |number, _| format!("{:0>200}", number).into_bytes());
    // All of these have the same bits where a hash without a seed would find the buckets.
    let aligned = fill(MAX, |number, _| (number << 32).to_le_bytes().to_vec());
    // Asks for neighbours of the last refused key, hoping that they fall into the same buckets.
    let by_refusals = fill(MAX, |number, refused| {
        let mut key = refused.map_or_else(|| b"seed".to_vec(), |key| key[..key.len().min(8)].to_vec());
        key.extend(number.to_le_bytes());
        key
    });
    for (keys, in_use) in [
        ("random", random),
        ("sequential", sequential),
        ("with a common prefix", with_a_prefix),
        ("aligned", aligned),
        ("by refusals", by_refusals),
    ] {
        assert!(
            in_use >= MAX,
            "of keys {keys}, one was refused when {in_use} had a row"
        );
    }
}
