//! Limits by key: how long a check takes among one key, a hundred thousand and a million, and how much memory a key
//! takes.
//!
//! What is compared implements [`Keyed`] and is listed in [`CONTENDERS`]; ratios are to the first of them. Keys are
//! short strings, checked in an order drawn beforehand, so a check reads the key from memory that is prefetched, and
//! the key's state from wherever that lies. All contenders with the same number of keys are measured in turn. Memory is
//! measured in a separate process for each, as its growth after every key was checked once.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use governor::clock::{Clock, MonotonicClock, QuantaClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use shmlimit::{Declaration, Limit, LimitSet, Segment, SetDeclaration};

use crate::common::operations::Operation;
use crate::stopwatch::Measurements;

const CONTENDERS: [Contender; 3] = [
    Contender::of::<Governor<QuantaClock>>(),
    Contender::of::<Governor<MonotonicClock>>(),
    Contender::of::<Ours>(),
];
const NUMBERS_OF_KEYS: [usize; 3] = [1, 100_000, 1_000_000];
/// The order in which keys are checked has this many entries, and then begins again.
const REQUESTS: usize = 1 << 20;
/// How many keys `check_many` checks at once.
const KEYS_AT_ONCE: usize = 64;
/// Long enough that what other operations left in the caches does not matter.
const TURN: Duration = Duration::from_millis(20);
const MEMORY_OF: &str = "--keyed-memory-of";

/// How long a key takes compared with governor's check by its counter, as ratios of medians.
#[derive(Clone, Copy, Debug)]
pub struct Ratios {
    pub check: f64,
    pub check_many: f64,
}

/// Who is limited.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key(String);

impl Key {
    fn numbered(number: usize) -> Self {
        Self(format!("user-{number:07}"))
    }
}

/// Limits each key by itself, and so generously that nothing is refused.
trait Keyed: Sized + 'static {
    const GROUP: &'static str;
    const CHECK: &'static str;
    /// The name of [`check_many`](Self::check_many), if it does more than check one key after another.
    const CHECK_MANY: Option<&'static str> = None;

    /// Makes room for `keys` keys. If there is a file, it is in `directory`.
    fn create(directory: &Path, keys: usize) -> Self;

    /// Takes a call from one key's limit.
    fn check(&self, key: &Key);

    /// Takes a call from the limit of each key.
    fn check_many(&self, keys: &[Key]) {
        keys.iter().for_each(|key| self.check(key));
    }
}

/// governor's keyed limiter, with its default store.
struct Governor<C: Clock>(RateLimiter<Key, DashMapStateStore<Key>, C, NoOpMiddleware<C::Instant>>);

impl Keyed for Governor<QuantaClock> {
    const GROUP: &'static str = "governor";
    const CHECK: &'static str = "1 check";

    fn create(_: &Path, _: usize) -> Self {
        Self(RateLimiter::dashmap_with_clock(plenty(), QuantaClock::default()))
    }

    #[inline]
    fn check(&self, key: &Key) {
        assert!(black_box(black_box(&self.0).check_key(key)).is_ok());
    }
}

impl Keyed for Governor<MonotonicClock> {
    const GROUP: &'static str = "governor";
    const CHECK: &'static str = "1 check, system clock instead of its counter";

    fn create(_: &Path, _: usize) -> Self {
        Self(RateLimiter::dashmap_with_clock(plenty(), MonotonicClock))
    }

    #[inline]
    fn check(&self, key: &Key) {
        assert!(black_box(black_box(&self.0).check_key(key)).is_ok());
    }
}

/// A keyed set of one calls limit that stores no keys.
struct Ours {
    set: LimitSet,
}

impl Keyed for Ours {
    const GROUP: &'static str = "shmlimit";
    const CHECK: &'static str = "1 key, check";
    const CHECK_MANY: Option<&'static str> = Some("check_many of 64");

    fn create(directory: &Path, keys: usize) -> Self {
        let declaration = Declaration::new().add_set(
            SetDeclaration::new("keyed")
                .keyed(shmlimit::Keyed::new(keys as u64).store_keys(false))
                .add_limit(Limit::calls("calls", u64::from(u32::MAX), Duration::from_secs(1))),
        );
        let segment = Segment::create(directory.join("limits"), &declaration).expect("a segment");
        let set = segment.set("keyed").expect("declared");
        Self { set }
    }

    #[inline]
    fn check(&self, key: &Key) {
        let mut request = black_box(&self.set).request();
        request.set_key(&key.0).expect("a keyed set");
        assert!(request.check().expect("no error").is_admitted());
    }

    fn check_many(&self, keys: &[Key]) {
        let answers = self.set.request().check_many(keys).expect("no error");
        assert!(answers.iter().all(|answer| answer.is_admitted()));
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn plenty() -> Quota {
    Quota::per_second(NonZeroU32::MAX)
}

/// A [`Keyed`] of any type.
struct Contender {
    group: &'static str,
    check: &'static str,
    check_many: Option<&'static str>,
    operations: fn(&Path, usize, &Rc<[Key]>) -> Vec<Operation>,
    memory: fn(&Path, usize) -> u64,
}

impl Contender {
    const fn of<K: Keyed>() -> Self {
        Self {
            group: K::GROUP,
            check: K::CHECK,
            check_many: K::CHECK_MANY,
            operations: operations::<K>,
            memory: memory::<K>,
        }
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.check].into_iter().chain(self.check_many)
    }
}

/// Checks every key once, so that all are known before the first one is measured.
fn filled<K: Keyed>(directory: &Path, keys: usize) -> K {
    let keyed = K::create(directory, keys);
    (0..keys).for_each(|number| keyed.check(&Key::numbered(number)));
    keyed
}

/// Each operation counts as the check of one key, whether alone or together with others.
fn operations<K: Keyed>(directory: &Path, keys: usize, requests: &Rc<[Key]>) -> Vec<Operation> {
    let keyed = Rc::new(filled::<K>(directory, keys));
    let (checked, mut order) = (Rc::clone(&keyed), Order::new(requests));
    let check = move || checked.check(&order.next(1)[0]);
    let mut operations = vec![Operation::new(K::GROUP, K::CHECK, check)];
    if let Some(name) = K::CHECK_MANY {
        let mut order = Order::new(requests);
        operations.push(Operation {
            group: K::GROUP,
            name,
            run: Box::new(move |times| {
                for _ in 0..times.div_ceil(KEYS_AT_ONCE as u64) {
                    keyed.check_many(order.next(KEYS_AT_ONCE));
                }
            }),
        });
    }
    operations
}

/// By how many bytes the process grows.
fn memory<K: Keyed>(directory: &Path, keys: usize) -> u64 {
    let before = resident_bytes();
    let keyed = filled::<K>(directory, keys);
    let after = resident_bytes();
    drop(keyed);
    after.saturating_sub(before)
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process knows of itself");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.expect("its resident size") * 1024
}

/// Goes through the requests again and again.
struct Order {
    requests: Rc<[Key]>,
    at: usize,
}

impl Order {
    fn new(requests: &Rc<[Key]>) -> Self {
        Self {
            requests: Rc::clone(requests),
            at: 0,
        }
    }

    /// The next `many` requests; `many` must divide [`REQUESTS`].
    #[inline]
    fn next(&mut self, many: usize) -> &[Key] {
        let begin = self.at;
        self.at = (begin + many) & (REQUESTS - 1);
        &self.requests[begin..begin + many]
    }
}

/// Keys in an order that is the same in every run.
fn requests(keys: usize) -> Rc<[Key]> {
    let mut random = Rng::with_seed(0);
    (0..REQUESTS)
        .map(|_| Key::numbered(random.usize(..keys)))
        .collect()
}

/// Measures and prints a table of all contenders, and what other programs report about themselves.
pub fn compare(rounds: usize) -> Vec<Ratios> {
    println!(
        "Short string keys in random order, all of them known before: {rounds} interleaved rounds, times of one key. Ratios"
    );
    println!("are of medians. Memory is what a process grows by for every key.\n");
    println!("| keys | | what | ns | ns in half of the rounds | ratio to governor | bytes a key |");
    println!("|---:|---|---|---:|---:|---:|---:|");
    let ratios = NUMBERS_OF_KEYS.map(|keys| compare_among(keys, rounds)).to_vec();
    println!(
        "\nnginx's limit_req takes 128 bytes a key on 64 bits (nginx.org, ngx_http_limit_req_module). Redis takes some 85"
    );
    println!(
        "bytes for a small key and value (redis.io, FAQ), and keeps the time that they live until besides; an empty key and"
    );
    println!("value are 56 (redis.io, MEMORY USAGE, of 7.2).");
    ratios
}

fn compare_among(keys: usize, rounds: usize) -> Ratios {
    let directory = crate::common::directory();
    let requests = requests(keys);
    let mut all = Vec::new();
    for (index, contender) in CONTENDERS.iter().enumerate() {
        let directory = directory.path().join(index.to_string());
        std::fs::create_dir(&directory).expect("a directory");
        all.extend((contender.operations)(&directory, keys, &requests));
    }
    let measurements = Measurements::take(all, rounds, TURN);
    let base = measurements.median(CONTENDERS[0].check);
    for (index, contender) in CONTENDERS.iter().enumerate() {
        let memory = memory_in_a_process(index, keys);
        for name in contender.names() {
            let median = measurements.median(name);
            println!(
                "| {keys} | {} | {name} | {:.1} | {median:.1} | {:.2} | {memory} |",
                contender.group,
                measurements.tenth_percentile(name),
                median / base,
            );
        }
    }
    Ratios {
        check: measurements.median(Ours::CHECK) / base,
        check_many: measurements.median(Ours::CHECK_MANY.unwrap_or(Ours::CHECK)) / base,
    }
}

/// Bytes per key, as text; empty if there are so few keys that only the process itself would show.
fn memory_in_a_process(contender: usize, keys: usize) -> String {
    if keys < 1000 {
        return String::new();
    }
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args([MEMORY_OF, &contender.to_string(), &keys.to_string()])
        .output()
        .expect("this program runs");
    let bytes = String::from_utf8_lossy(&output.stdout).trim().parse::<f64>();
    format!("{:.0}", bytes.expect("a number of bytes") / keys as f64)
}

/// Does the work of a process that [`compare`] started to measure its growth. Returns whether this is such a process.
pub fn fill_if_told_to() -> bool {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != MEMORY_OF)
        .skip(1);
    let mut number = || arguments.next()?.parse::<usize>().ok();
    let (Some(contender), Some(keys)) = (number(), number()) else {
        return false;
    };
    let directory = crate::common::directory();
    println!("{}", (CONTENDERS[contender].memory)(directory.path(), keys));
    true
}
