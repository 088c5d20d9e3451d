//! Eight processes work a segment while a ninth kills, restarts and stops them at random, and a tenth looks on.
//!
//! Runs for ten seconds and at least 200 kills a second; `SHMLIMIT_KILL_SECONDS` makes it longer or shorter.

mod plans;
#[path = "../scene/mod.rs"]
mod scene;
mod supervisor;
mod tenants;
mod truth;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use plans::Plans;
use scene::namespaces::{has_namespaces, in_new_namespace};
use scene::onlooker;
use scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use shmlimit::declare::LockKind;
use shmlimit::snapshot::{SegmentReader, SegmentSnapshot, SetSnapshot};
use shmlimit::{
    Declaration, Limit, LimitSet, OpenOptions, Outcome, Permit, Request, Segment, SetDeclaration,
};
use supervisor::Supervisor;
use truth::{Pool, Truth};

const WORKERS: usize = 8;
const MIN_KILLS_PER_SECOND: u64 = 200;
const SLOTS: u64 = 5;
const SEATS: u64 = 7;
const SECOND: Duration = Duration::from_secs(1);

/// How long the killing goes on.
fn seconds() -> u64 {
    std::env::var("SHMLIMIT_KILL_SECONDS").map_or(10, |text| text.parse().expect("a number of seconds"))
}

/// Has more participants than there ever are processes, but too few to hide slots that the dead do not give up.
fn declaration(lock: LockKind) -> Declaration {
    let declared = Declaration::new()
        .lock(lock)
        .participants(WORKERS as u32 + 4)
        .add_set(SetDeclaration::new("plain").add_limit(Limit::concurrency("slots", SLOTS)))
        .add_set(
            SetDeclaration::new("mixed")
                .add_limit(Limit::concurrency("seats", SEATS))
                .add_limit(Limit::calls("calls", 200_000, SECOND))
                .add_limit(Limit::rate("tokens", 5_000_000, SECOND)),
        );
    plans::declarations()
        .into_iter()
        .chain([tenants::declaration()])
        .fold(declared, Declaration::add_set)
}

/// The sets and requests of one worker.
struct Handles {
    segment: Segment,
    plain: LimitSet,
    mixed: LimitSet,
    plans: [LimitSet; 2],
    tenants: LimitSet,
}

/// The options of every process, whether it opens the segment or inherits it.
fn options() -> OpenOptions {
    // A lock's holder may be off its processor for long on a busy machine, or stopped for a moment.
    OpenOptions::new().lock_timeout(TIMEOUT)
}

fn create(path: &Path, lock: LockKind) -> Segment {
    options().create(path, &declaration(lock)).expect("a segment")
}

fn open(path: &Path) -> Segment {
    options().open(path).expect("opens at any time")
}

impl Handles {
    fn of(segment: Segment) -> Self {
        Self {
            plain: segment.set("plain").expect("declared"),
            mixed: segment.set("mixed").expect("declared"),
            plans: plans::SETS.map(|set| segment.set(set).expect("declared")),
            tenants: segment.set(tenants::SET).expect("declared"),
            segment,
        }
    }
}

/// A permit, and what the truth says that it holds.
struct Holding<'a> {
    permit: Permit<'a>,
    pool: Pool,
    units: u64,
}

/// Acquires and gives back until it is killed.
fn work(truth: &Truth, worker: usize, inherited: Option<Segment>, path: &Path, seed: u64) -> ! {
    let mut dice = Rng::with_seed(seed);
    let mut segment = inherited;
    loop {
        // The process that inherited a segment uses it to the end; the others attach again from time to time.
        let is_inherited = segment.is_some();
        let handles = Handles::of(segment.take().unwrap_or_else(|| open(path)));
        let rounds = if is_inherited {
            u64::MAX
        } else {
            50 + dice.u64(..2000)
        };
        use_handles(truth, worker, &handles, &mut dice, rounds);
        assert_eq!(handles.segment.path(), path);
    }
}

fn use_handles(truth: &Truth, worker: usize, handles: &Handles, dice: &mut Rng, rounds: u64) {
    let mut plain = handles.plain.request();
    let mut mixed = handles.mixed.request().with("tokens", 1).expect("declared");
    let mut plans = Plans::of(&handles.plans);
    let mut holdings: VecDeque<Holding<'_>> = VecDeque::new();
    // Were all of them to spin, the condemned would wait for a processor to die on.
    let is_calm = dice.u64(..4) > 0;
    for _ in 0..rounds {
        if is_calm && dice.u64(..8) == 0 {
            std::thread::sleep(Duration::from_micros(dice.u64(..500)));
        }
        match dice.u64(..15) {
            0..=2 => {
                let units = 1 + dice.u64(..3);
                plain.set_cost("slots", units).expect("declared");
                holdings.extend(acquire(truth, worker, &handles.plain, &plain, units));
            }
            3..=5 => {
                let tokens = 1 + dice.u64(..1000);
                mixed.set_cost("tokens", tokens).expect("declared");
                holdings.extend(acquire(truth, worker, &handles.mixed, &mixed, 1));
                if let Some(last) = holdings.back_mut().filter(|last| last.pool == Pool::Seats) {
                    // If the last permit is not a new one, this settles it a second time: that is an error and changes
                    // nothing.
                    let _ = last.permit.settle([("tokens", dice.u64(..1500))]);
                }
            }
            6..=8 => {
                let taken = plans.acquire(dice);
                holdings.extend(taken.map(|(permit, pool, units)| hold(truth, worker, permit, pool, units)));
            }
            9 => plans.change(dice),
            10..=12 => {
                let taken = tenants::acquire(&handles.tenants, dice);
                holdings
                    .extend(taken.map(|(permit, units)| hold(truth, worker, permit, Pool::InFlight, units)));
            }
            _ => {}
        }
        truth.check();
        let max = dice.u64(..4) as usize;
        while holdings.len() > max {
            let mut oldest = holdings.pop_front().expect("not empty");
            truth.give_back(oldest.pool, worker, oldest.units);
            if dice.u64(..2) == 0 {
                oldest.permit.release().expect("not taken");
            }
        }
        truth.progress(worker).fetch_add(1, Ordering::Relaxed);
    }
    for holding in holdings {
        truth.give_back(holding.pool, worker, holding.units);
    }
}

fn acquire<'a>(
    truth: &Truth,
    worker: usize,
    set: &'a LimitSet,
    request: &Request<'a>,
    units: u64,
) -> Option<Holding<'a>> {
    let pool = if set.name() == "plain" {
        Pool::Slots
    } else {
        Pool::Seats
    };
    match request.try_acquire().expect("works") {
        Outcome::Admitted(permit) => Some(hold(truth, worker, permit, pool, units)),
        Outcome::Refused(_) => None,
    }
}

fn hold<'a>(truth: &Truth, worker: usize, permit: Permit<'a>, pool: Pool, units: u64) -> Holding<'a> {
    truth.take(pool, worker, units);
    Holding { permit, pool, units }
}

/// Looks at the segment without locks, and at the truth, until the test is over.
fn look_on(truth: &Truth, path: &Path) {
    let goes_on = |reader: &SegmentReader| {
        truth.check();
        plans::check_keys(reader);
        truth.is_over().load(Ordering::Relaxed) == 0
    };
    onlooker::look_on(path, Duration::from_micros(100), goes_on, |set| {
        match &*set.name {
            "plain" => check_held(set, SLOTS),
            "mixed" => check_held(set, SEATS),
            tenants::SET => tenants::check(set),
            _ => plans::check_held(set),
        }
        assert_eq!(set.active + set.of_dead, set.holds.len() as u64, "{set:?}");
    });
}

fn check_held(set: &SetSnapshot, capacity: u64) {
    let limit = &set.limits[0];
    let held: u64 = set
        .holds
        .iter()
        .filter_map(|hold| hold.amounts.get(&limit.name))
        .sum();
    assert!(held <= capacity, "{held} held of {capacity}: {set:?}");
    assert_eq!(
        held + limit.remaining,
        capacity + limit.of_dead,
        "holds and count disagree: {set:?}"
    );
}

#[test]
fn random_kills_leak_nothing_and_hang_no_process() {
    let test = "random_kills_leak_nothing_and_hang_no_process";
    let timeout = Duration::from_secs(4 * seconds()) + 3 * TIMEOUT;
    in_own_process(test, timeout, |directory| {
        let path = directory.join("limits");
        let segment = create(&path, scene::lock_kind());
        check_killing(&path, &segment, |truth, seed| {
            let mut supervisor = Supervisor::new(truth, &path, &segment, seed);
            supervisor.start_all(WORKERS);
            supervisor.kill_for(Duration::from_secs(seconds()), MIN_KILLS_PER_SECOND * seconds());
            (supervisor.kills, supervisor.stops)
        });
    });
}

/// Half of the processes are in one PID namespace and half in another, and in both the same few ids are used again and
/// again.
#[test]
fn random_kills_in_two_namespaces_whose_ids_are_the_same_leak_nothing_either() {
    let test = "random_kills_in_two_namespaces_whose_ids_are_the_same_leak_nothing_either";
    let timeout = Duration::from_secs(4 * seconds()) + 3 * TIMEOUT;
    in_own_process(test, timeout, |directory| {
        if !has_namespaces() {
            return;
        }
        let path = directory.join("limits");
        let segment = create(&path, LockKind::Slot);
        check_killing(&path, &segment, |truth, seed| {
            let counts = SharedWords::new(2);
            let half = WORKERS / 2;
            let namespaces = [0, half].map(|first| {
                in_new_namespace(|| {
                    let seed = seed + first as u64;
                    let mut supervisor = Supervisor::new(truth, &path, &segment, seed).in_namespace(first);
                    supervisor.start_all(half);
                    let min_kills = MIN_KILLS_PER_SECOND * seconds() / 2;
                    supervisor.kill_for(Duration::from_secs(seconds()), min_kills);
                    counts[0].fetch_add(supervisor.kills, Ordering::Relaxed);
                    counts[1].fetch_add(supervisor.stops, Ordering::Relaxed);
                })
            });
            for namespace in namespaces {
                namespace.succeed();
            }
            let count = |index: usize| counts[index].load(Ordering::Relaxed);
            (count(0), count(1))
        });
    });
}

/// Checks what is known while processes are killed, and what is left afterwards. `kill` returns how many kills and
/// stops there were.
fn check_killing(path: &Path, segment: &Segment, kill: impl FnOnce(&Truth, u64) -> (u64, u64)) {
    let truth = Truth::new();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let onlooker = Child::fork(|| look_on(&truth, path));
    let started = Instant::now();
    let (kills, stops) = kill(&truth, seed);
    let elapsed = started.elapsed();
    truth.is_over().store(1, Ordering::Relaxed);
    onlooker.succeed();
    println!(
        "{kills} kills and {stops} stops in {:.1} s: {:.0} kills/s, {} moments at which all that was held was known",
        elapsed.as_secs_f64(),
        kills as f64 / elapsed.as_secs_f64(),
        truth.moments().load(Ordering::Relaxed),
    );
    assert!(truth.moments().load(Ordering::Relaxed) > kills);
    check_that_nothing_is_left(segment, &truth, kills);
}

fn check_that_nothing_is_left(segment: &Segment, truth: &Truth, kills: u64) {
    for (name, limit, capacity) in [("plain", "slots", SLOTS), ("mixed", "seats", SEATS)] {
        let set = segment.set(name).expect("declared");
        let all = set.request().with(limit, capacity).expect("declared");
        // A refused process looks for dead ones itself, so nothing else needs to happen.
        eventually("all of it can be held at once", || {
            all.try_acquire().expect("works").is_admitted()
        });
    }
    for set in plans::SETS {
        plans::check_that_nothing_is_left(&segment.set(set).expect("declared"));
    }
    tenants::check_that_nothing_is_left(&segment.set(tenants::SET).expect("declared"));
    let report = segment.recover().expect("works");
    for set in &report.sets {
        assert_eq!(set.problem, None);
    }
    let snapshot: SegmentSnapshot = segment.snapshot().expect("a copy");
    assert_eq!(snapshot.participants.len(), 1, "{:?}", snapshot.participants);
    assert_eq!(snapshot.cold_starts, 0);
    for set in &snapshot.sets {
        assert!(!set.torn && !set.poisoned, "{set:?}");
        assert_eq!((set.active, set.holds.len()), (0, 0), "{set:?}");
        assert_eq!(set.words_in_flight, Some(0), "{set:?}");
        let counts = set.counts;
        assert!(counts.recoveries > 0, "no lock was ever found with a dead owner");
        assert!(counts.recoveries <= kills, "{counts:?}");
        assert!(counts.reclaimed > 0, "nothing was ever given back for the dead");
        assert!(counts.waited > 0 || &*set.name != tenants::SET, "nobody waited");
        let (pools, last) = match &*set.name {
            "plain" => (&[Pool::Slots][..], 1),
            "mixed" => (&[Pool::Seats][..], 1),
            "tiered" => (&[Pool::Places(0)][..], 1),
            tenants::SET => (&[Pool::InFlight][..], 1),
            _ => (&[Pool::Places(1)][..], 1),
        };
        let admitted: u64 = pools.iter().map(|pool| truth.admitted(*pool)).sum();
        // The requests for everything above came last. A killed worker may leave an admission that it did not count
        // itself, or that was counted although it is undone.
        let bounds = admitted + last..=admitted + last + kills;
        assert!(bounds.contains(&counts.admitted), "{counts:?}, not in {bounds:?}");
        let of_limit = set.limits[0].counts.admitted;
        assert!(bounds.contains(&of_limit), "{of_limit}, not in {bounds:?}");
        assert!(counts.active_high_water <= set.hold_capacity);
        println!(
            "set {}: {} admitted, {} reclaimed, {} recoveries, {} rebuilds",
            set.name, counts.admitted, counts.reclaimed, counts.recoveries, counts.rebuilds
        );
    }
}
