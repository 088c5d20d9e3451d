//! The operations to be measured, each as a closure that performs it a number of times.

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shmlimit::declare::{Align, ClockSource, Credit, FleetLease, Scope};
use shmlimit::fleet::LeaseReply;
use shmlimit::{Algorithm, Declaration, Keyed, Limit, LimitSet, Outcome, Request, Segment, SetDeclaration};

use super::floor::Floor;

/// More than any machine takes in a second, so that nothing is refused, and not a divisor of a second's nanoseconds, so
/// that no fraction is trivial.
pub const PLENTY: u64 = 1_000_000_007;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Where segments are created for the measurements.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The directory.
    pub directory: &'a Path,
    /// The clock that they read.
    pub clock: ClockSource,
}

impl<'a> Place<'a> {
    /// With the clock that segments have by default.
    pub fn new(directory: &'a Path) -> Self {
        Self {
            directory,
            clock: ClockSource::default(),
        }
    }
}

/// An operation to measure.
pub struct Operation {
    /// Which floor or library it belongs to.
    pub group: &'static str,
    /// What it does.
    pub name: &'static str,
    /// Performs it that many times.
    pub run: Box<dyn FnMut(u64)>,
}

impl Operation {
    /// An operation that calls `once` each time.
    pub fn new(group: &'static str, name: &'static str, mut once: impl FnMut() + 'static) -> Self {
        Self {
            group,
            name,
            run: Box::new(move |times| {
                for _ in 0..times {
                    once();
                }
            }),
        }
    }
}

/// The group of the operations that everything is compared with.
pub const FLOOR: &str = "floor";
/// The group of this library.
pub const SHMLIMIT: &str = "shmlimit";
/// The name of the floor itself.
pub const LOCK_AND_CLOCK: &str = "robust lock, clock, unlock";
/// The name of the operation that is compared with the floor.
pub const ONE_LIMIT: &str = "1 limit (GCRA calls): try_acquire, drop";
/// The name of the operation that is compared with three checks.
pub const THREE_LIMITS: &str = "3 limits (GCRA calls): try_acquire, drop";

/// The name of the operation with one limit that reads the system's clock.
pub const ONE_LIMIT_BY_THE_SYSTEM: &str = "1 limit, the system's clock: try_acquire, drop";
/// The name of the operation that takes a hold.
pub const CONCURRENCY: &str = "1 concurrency limit: try_acquire, drop";
/// The name of the operation that is admitted from a batch.
pub const AUTOMATIC_CREDIT: &str = "1 limit (GCRA calls) with automatic credit: check";

/// The floor, its parts, and what is compared with it.
pub fn floors(directory: &Path) -> Vec<Operation> {
    let floor = |name: &str| Floor::create(&directory.join(name));
    let (locked, tried, both, plain) = (floor("a"), floor("b"), floor("c"), floor("d"));
    let word = AtomicU64::new(0);
    vec![
        Operation::new(FLOOR, LOCK_AND_CLOCK, move || {
            both.with_lock(|| black_box(Floor::now()));
        }),
        Operation::new(FLOOR, "clock_gettime(CLOCK_BOOTTIME)", || {
            black_box(Floor::now());
        }),
        Operation::new(FLOOR, "compare and exchange of a word", move || {
            let seen = word.load(Ordering::Relaxed);
            let swapped = word.compare_exchange_weak(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed);
            black_box(swapped.is_ok());
        }),
        Operation::new(FLOOR, "robust lock, unlock", move || locked.with_lock(|| ())),
        Operation::new(FLOOR, "robust trylock, unlock", move || {
            tried.try_lock_and_unlock();
        }),
        Operation::new(FLOOR, "raw_sync's plain mutex: lock, unlock", move || {
            plain.lock_and_unlock_plain();
        }),
    ]
}

/// The operations of the library.
pub fn operations(place: Place<'_>) -> Vec<Operation> {
    let mut operations = vec![
        acquire(place, ONE_LIMIT, [calls(Algorithm::Gcra)]),
        acquire(place, THREE_LIMITS, (0..3).map(|_| calls(Algorithm::Gcra))),
        acquire(
            place,
            "16 limits (GCRA calls): try_acquire, drop",
            (0..16).map(|_| calls(Algorithm::Gcra)),
        ),
        acquire(place, "1 token bucket", [calls(Algorithm::TokenBucket)]),
        acquire(place, "1 leaky bucket", [calls(Algorithm::LeakyBucket)]),
        acquire(place, "1 fixed window (UTC)", [calls(Algorithm::FixedWindow)]),
        acquire(
            place,
            "1 fixed window (first use)",
            [calls(Algorithm::FixedWindow).align(Align::FirstUse)],
        ),
        acquire(
            place,
            "1 sliding window (full log)",
            [calls(Algorithm::SlidingWindow)],
        ),
        acquire(
            place,
            "1 sliding window counter",
            [calls(Algorithm::SlidingWindowCounter)],
        ),
        acquire(place, CONCURRENCY, [Limit::concurrency("in flight", 64)]),
        acquire(
            place,
            "calls and concurrency: try_acquire, drop",
            [calls(Algorithm::Gcra), Limit::concurrency("in flight", 64)],
        ),
        refused(place, "refused by rate", Limit::calls("a", 1, HOUR)),
        refused(place, "refused by concurrency", Limit::concurrency("a", 1)),
    ];
    operations.push(check(place));
    operations.push(check_key(place));
    operations.push(acquire_for_key(
        place,
        "1 key (calls and concurrency): try_acquire, drop",
        Scope::Key,
    ));
    operations.push(acquire_for_key(
        place,
        "1 key (calls, and concurrency of all keys): try_acquire, drop",
        Scope::AllKeys,
    ));
    operations.push(check_shared_key(place));
    operations.push(check_keys(place));
    operations.push(settle(place));
    operations.push(peek(place));
    operations.push(automatic_credit(place));
    operations
}

/// The same as [`ONE_LIMIT`], with the system's clock.
pub fn by_the_systems_clock(directory: &Path) -> Operation {
    let place = Place {
        directory,
        clock: ClockSource::System,
    };
    acquire(place, ONE_LIMIT_BY_THE_SYSTEM, [calls(Algorithm::Gcra)])
}

/// A set in its own segment, which stays attached until the process ends.
pub fn set(place: Place<'_>, name: &str, limits: impl IntoIterator<Item = Limit>) -> &'static LimitSet {
    let declaration = Declaration::new().clock(place.clock).add_set(
        limits
            .into_iter()
            .fold(SetDeclaration::new("bench"), SetDeclaration::add_limit),
    );
    let segment = Segment::open_or_create(place.directory.join(name), &declaration).expect("a segment");
    Box::leak(Box::new(segment.set("bench").expect("declared")))
}

/// A calls limit that never refuses, with a name that no other has.
pub fn calls(algorithm: Algorithm) -> Limit {
    use std::sync::atomic::AtomicUsize;
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("calls {}", NUMBER.fetch_add(1, Ordering::Relaxed));
    Limit::calls(name, PLENTY, SECOND).algorithm(algorithm)
}

/// An acquire that is admitted, and the drop of its permit.
#[inline]
pub fn acquire_once(request: &Request<'_>) {
    match black_box(request).try_acquire() {
        Ok(Outcome::Admitted(permit)) => drop(black_box(permit)),
        other => unreachable!("not admitted: {other:?}"),
    }
}

fn acquire(place: Place<'_>, name: &'static str, limits: impl IntoIterator<Item = Limit>) -> Operation {
    let set = set(place, &name.replace('/', " "), limits);
    let request = set.request();
    Operation::new(SHMLIMIT, name, move || acquire_once(&request))
}

fn check(place: Place<'_>) -> Operation {
    let set = set(place, "check", [calls(Algorithm::Gcra)]);
    let request = set.request();
    Operation::new(SHMLIMIT, "1 limit (GCRA calls): check", move || {
        assert!(black_box(&request).check().expect("works").is_admitted());
    })
}

/// A set in which each key has one limit.
fn keyed(place: Place<'_>, name: &str) -> &'static LimitSet {
    let declaration = Declaration::new().clock(place.clock).add_set(
        SetDeclaration::new("bench")
            .keyed(Keyed::new(10_000))
            .add_limit(calls(Algorithm::Gcra)),
    );
    let segment = Segment::open_or_create(place.directory.join(name), &declaration).expect("a segment");
    Box::leak(Box::new(segment.set("bench").expect("declared")))
}

fn check_key(place: Place<'_>) -> Operation {
    let set = keyed(place, "check a key");
    let mut request = set.request();
    Operation::new(SHMLIMIT, "1 key (GCRA calls): check", move || {
        black_box(&mut request)
            .set_key(black_box("client"))
            .expect("a keyed set");
        assert!(black_box(&request).check().expect("works").is_admitted());
    })
}

/// Calls for each key, and concurrency either for each key or for all keys.
fn acquire_for_key(place: Place<'_>, name: &'static str, scope: Scope) -> Operation {
    let declaration = Declaration::new().clock(place.clock).add_set(
        SetDeclaration::new("bench")
            .keyed(Keyed::new(10_000))
            .add_limit(calls(Algorithm::Gcra))
            .add_limit(Limit::concurrency("in flight", 64).scope(scope)),
    );
    let segment = Segment::open_or_create(place.directory.join(name), &declaration).expect("a segment");
    let set = Box::leak(Box::new(segment.set("bench").expect("declared")));
    let mut request = set.request();
    Operation::new(SHMLIMIT, name, move || {
        request.set_key(black_box("client")).expect("a keyed set");
        acquire_once(&request);
    })
}

/// A key's limit that hosts share, with so large a lease that the store is not asked for more.
fn check_shared_key(place: Place<'_>) -> Operation {
    let limit = Limit::calls("a", 1 << 40, HOUR).fleet(FleetLease::new("bench").lease(HOUR));
    let declaration = Declaration::new()
        .clock(place.clock)
        .fleet_url("redis://127.0.0.1:1")
        .add_set(
            SetDeclaration::new("bench")
                .keyed(Keyed::new(10_000))
                .add_limit(limit),
        );
    let path = place.directory.join("check a shared key");
    let segment = Segment::open_or_create(path, &declaration).expect("a segment");
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let set = Box::leak(Box::new(segment.set("bench").expect("declared")));
    let mut request = set.request();
    request.set_key("client").expect("a keyed set");
    // The first unit is not leased, and the second is asked for.
    for _ in 0..2 {
        let _ = request.check().expect("works");
    }
    for asked in duty.ask().expect("works") {
        let granted = asked.request().wanted;
        let reply = LeaseReply {
            share: granted,
            grant_number: 1,
            available: granted,
            ..LeaseReply::granting(asked.request(), granted, HOUR)
        };
        duty.install(&asked, &reply).expect("works");
    }
    Operation::new(
        SHMLIMIT,
        "1 key that hosts share (GCRA calls): check",
        move || {
            black_box(&mut request)
                .set_key(black_box("client"))
                .expect("a keyed set");
            assert!(black_box(&request).check().expect("works").is_admitted());
        },
    )
}

fn check_keys(place: Place<'_>) -> Operation {
    let set = keyed(place, "check keys");
    let request = set.request();
    let keys: Vec<String> = (0..64).map(|number| format!("client {number}")).collect();
    Operation::new(SHMLIMIT, "64 keys (GCRA calls): check_many", move || {
        let checked = black_box(&request).check_many(black_box(&keys));
        assert_eq!(checked.expect("works").len(), keys.len());
    })
}

fn refused(place: Place<'_>, name: &'static str, limit: Limit) -> Operation {
    let set = set(place, name, [limit]);
    let request = set.request();
    // The permit outlives the measurement, because what it holds must stay held.
    let owned = request
        .try_acquire()
        .expect("works")
        .into_result()
        .expect("the first is admitted")
        .into_owned();
    Operation::new(SHMLIMIT, name, move || {
        let _held = &owned;
        match black_box(&request).try_acquire() {
            Ok(Outcome::Refused(refusal)) => {
                black_box(&refusal);
            }
            other => unreachable!("not refused: {other:?}"),
        }
    })
}

fn settle(place: Place<'_>) -> Operation {
    let set = set(place, "settle", [Limit::rate("tokens", PLENTY * 1000, SECOND)]);
    let tokens = set.limit_index("tokens").expect("declared");
    let request = set.request().with(tokens, 100).expect("declared");
    Operation::new(
        SHMLIMIT,
        "1 rate limit: try_acquire, settle with a refund, drop",
        move || match black_box(&request).try_acquire() {
            Ok(Outcome::Admitted(mut permit)) => {
                black_box(permit.settle([(tokens, 60)]).expect("the first"));
            }
            other => unreachable!("not admitted: {other:?}"),
        },
    )
}

fn automatic_credit(place: Place<'_>) -> Operation {
    let limit = calls(Algorithm::Gcra).credit(Credit::auto());
    let set = set(place, "automatic credit", [limit]);
    let request = set.request();
    Operation::new(SHMLIMIT, AUTOMATIC_CREDIT, move || {
        assert!(black_box(&request).check().expect("works").is_admitted());
    })
}

fn peek(place: Place<'_>) -> Operation {
    let set = set(place, "peek", [calls(Algorithm::Gcra)]);
    let request = set.request();
    Operation::new(SHMLIMIT, "1 limit (GCRA calls): peek", move || {
        black_box(black_box(&request).peek().expect("works"));
    })
}
