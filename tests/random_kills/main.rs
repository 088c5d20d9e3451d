//! Eight processes work a segment while a ninth kills, restarts and stops them at random, and a tenth looks on.
//!
//! Runs for 20 seconds and at least 200 kills a second; `SHMLIMIT_KILL_SECONDS` makes it longer or shorter.

mod plans;
#[path = "../scene/mod.rs"]
mod scene;
mod truth;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use plans::Plans;
use scene::process::{Child, Dice, TIMEOUT, eventually, in_own_process};
use shmlimit::{
    Declaration, Limit, LimitSet, OnDeath, OpenOptions, Outcome, Permit, Request, Segment, SegmentReader,
    SegmentSnapshot, SetDeclaration, SetSnapshot,
};
use truth::{Pool, Truth};

const WORKERS: usize = 8;
const MIN_KILLS_PER_SECOND: u64 = 200;
const KILLS_PER_PHASE: u64 = 500;
const ROUNDS_PER_STOP: u64 = 16;
const SLOTS: u64 = 5;
const SEATS: u64 = 7;
const SECOND: Duration = Duration::from_secs(1);

/// How long the killing goes on.
fn seconds() -> u64 {
    std::env::var("SHMLIMIT_KILL_SECONDS").map_or(20, |text| text.parse().expect("a number of seconds"))
}

/// More participants than processes at any time, fewer than would hide slots that the dead do not give up.
fn declaration() -> Declaration {
    Declaration::new()
        .participants(WORKERS as u32 + 4)
        .add_set(SetDeclaration::new("plain").add_limit(Limit::concurrency("slots", SLOTS)))
        .add_set(
            SetDeclaration::new("mixed")
                .add_limit(Limit::concurrency("seats", SEATS))
                .add_limit(Limit::calls("calls", 200_000, SECOND))
                .add_limit(Limit::rate("tokens", 5_000_000, SECOND).on_death(OnDeath::Refund)),
        )
        .add_set(plans::declaration())
}

/// The sets and requests of one worker.
struct Handles {
    segment: Segment,
    plain: LimitSet,
    mixed: LimitSet,
    plans: LimitSet,
}

fn open(path: &Path) -> Segment {
    // A lock's holder may be off its processor for long on a busy machine, or stopped for a moment.
    OpenOptions::new()
        .lock_timeout(TIMEOUT)
        .open(path)
        .expect("opens at any time")
}

impl Handles {
    fn of(segment: Segment) -> Self {
        Self {
            plain: segment.set("plain").expect("declared"),
            mixed: segment.set("mixed").expect("declared"),
            plans: segment.set(plans::SET).expect("declared"),
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
    let mut dice = Dice(seed);
    let mut segment = inherited;
    loop {
        // The process that inherited a segment uses it to the end; the others attach again from time to time.
        let is_inherited = segment.is_some();
        let handles = Handles::of(segment.take().unwrap_or_else(|| open(path)));
        let rounds = if is_inherited {
            u64::MAX
        } else {
            50 + dice.below(2000)
        };
        use_handles(truth, worker, &handles, &mut dice, rounds);
        assert_eq!(handles.segment.path(), path);
    }
}

fn use_handles(truth: &Truth, worker: usize, handles: &Handles, dice: &mut Dice, rounds: u64) {
    let mut plain = handles.plain.request();
    let mut mixed = handles.mixed.request().with("tokens", 1).expect("declared");
    let mut plans = Plans::of(&handles.plans);
    let mut holdings: VecDeque<Holding<'_>> = VecDeque::new();
    // Were all of them to spin, the condemned would wait for a processor to die on.
    let is_calm = dice.below(4) > 0;
    for _ in 0..rounds {
        if is_calm && dice.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(dice.below(500)));
        }
        match dice.below(12) {
            0..=2 => {
                let units = 1 + dice.below(3);
                plain.set_cost("slots", units).expect("declared");
                holdings.extend(acquire(truth, worker, &handles.plain, &plain, units));
            }
            3..=5 => {
                let tokens = 1 + dice.below(1000);
                mixed.set_cost("tokens", tokens).expect("declared");
                holdings.extend(acquire(truth, worker, &handles.mixed, &mixed, 1));
                if let Some(last) = holdings.back_mut().filter(|last| last.pool == Pool::Seats) {
                    // Settled twice where the last is not new: that is an error and changes nothing.
                    let _ = last.permit.settle([("tokens", dice.below(1500))]);
                }
            }
            6..=8 => {
                let taken = plans.acquire(dice);
                holdings.extend(taken.map(|(permit, pool, units)| hold(truth, worker, permit, pool, units)));
            }
            9 => plans.change(dice),
            _ => {}
        }
        truth.check();
        let max = dice.below(4) as usize;
        while holdings.len() > max {
            let mut oldest = holdings.pop_front().expect("not empty");
            truth.give_back(oldest.pool, worker, oldest.units);
            if dice.below(2) == 0 {
                oldest.permit.release().expect("nobody took it");
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
    request: &Request,
    units: u64,
) -> Option<Holding<'a>> {
    let pool = if set.name() == "plain" {
        Pool::Slots
    } else {
        Pool::Seats
    };
    match set.try_acquire(request).expect("works") {
        Outcome::Admitted(permit) => Some(hold(truth, worker, permit, pool, units)),
        Outcome::Refused(_) => None,
    }
}

fn hold<'a>(truth: &Truth, worker: usize, permit: Permit<'a>, pool: Pool, units: u64) -> Holding<'a> {
    truth.take(pool, worker, units);
    Holding { permit, pool, units }
}

/// Looks at the segment without locks, and at the truth, until it is over.
fn look_on(truth: &Truth, path: &Path) {
    let reader = SegmentReader::open(path).expect("readable");
    let mut whole = 0_u64;
    while truth.is_over().load(Ordering::Relaxed) == 0 {
        truth.check();
        let snapshot = reader.snapshot().expect("a copy");
        for set in &snapshot.sets {
            assert!(!set.poisoned, "poisoned: {set:?}");
            if !set.torn {
                whole += 1;
                match &*set.name {
                    "plain" => check_held(set, SLOTS),
                    "mixed" => check_held(set, SEATS),
                    _ => plans::check_held(set),
                }
                assert_eq!(set.active + set.of_dead, set.holds.len() as u64, "{set:?}");
            }
        }
        plans::check_keys(&reader);
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(whole > 0, "every copy was torn");
    println!("{whole} whole copies of a set were looked at");
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

/// The workers, and what restarts them.
struct Supervisor<'a> {
    truth: &'a Truth,
    path: PathBuf,
    inherited: Segment,
    workers: Vec<Child>,
    dice: Dice,
    kills: u64,
    stops: u64,
}

impl Supervisor<'_> {
    fn start(&mut self, worker: usize) -> Child {
        self.truth.restart(worker);
        let seed = self.dice.roll();
        let inherited = (self.dice.below(2) == 0).then(|| self.inherited.clone());
        Child::fork(|| work(self.truth, worker, inherited, &self.path, seed))
    }

    /// Kills a few at the same moment, so that those who recover for the dead die as well, and replaces them.
    fn kill_some(&mut self) {
        let count = 1 + self.dice.below(4) as usize;
        let first = self.dice.below(WORKERS as u64) as usize;
        let condemned: Vec<usize> = (first..first + count).map(|worker| worker % WORKERS).collect();
        for worker in &condemned {
            self.truth.revoke(*worker);
        }
        for worker in &condemned {
            self.workers[*worker].send(Signal::SIGKILL);
        }
        for worker in condemned {
            assert!(
                matches!(
                    self.workers[worker].wait(),
                    WaitStatus::Signaled(_, Signal::SIGKILL, _)
                ),
                "worker {worker} had failed before it was killed"
            );
            self.kills += 1;
            self.workers[worker] = self.start(worker);
        }
    }

    /// Stops a few wherever they are, with the lock perhaps, while the others give back: often for longer than a call
    /// without a result waits for a lock. Some die as they stand, and the others go on.
    fn stop_some(&mut self) {
        let count = 1 + self.dice.below(2) as usize;
        let first = self.dice.below(WORKERS as u64) as usize;
        let stopped: Vec<usize> = (first..first + count).map(|worker| worker % WORKERS).collect();
        for worker in &stopped {
            self.workers[*worker].send(Signal::SIGSTOP);
            self.workers[*worker].wait_until_stopped();
        }
        // Not to synchronise: the others need time to meet what was stopped.
        std::thread::sleep(Duration::from_millis(self.dice.below(30)));
        for worker in stopped {
            self.stops += 1;
            if self.dice.below(4) == 0 {
                self.truth.revoke(worker);
                self.workers[worker].send(Signal::SIGKILL);
                self.workers[worker].wait();
                self.kills += 1;
                self.workers[worker] = self.start(worker);
            } else {
                self.workers[worker].send(Signal::SIGCONT);
            }
        }
    }

    /// No process hangs: every worker that is alive gets on.
    fn wait_for_progress_of_all(&self) {
        for worker in 0..WORKERS {
            let progress = self.truth.progress(worker);
            let before = progress.load(Ordering::Relaxed);
            eventually(&format!("worker {worker} got on"), || {
                progress.load(Ordering::Relaxed) > before
            });
        }
    }
}

#[test]
fn random_kills_leak_nothing_and_hang_nobody() {
    let test = "random_kills_leak_nothing_and_hang_nobody";
    in_own_process(
        test,
        Duration::from_secs(4 * seconds()) + 3 * TIMEOUT,
        |directory| {
            let path = directory.join("limits");
            let truth = Truth::new();
            let seed = u64::from(std::process::id());
            println!("seed {seed}");
            let mut supervisor = Supervisor {
                truth: &truth,
                inherited: Segment::create(&path, &declaration()).expect("a segment"),
                path,
                workers: Vec::new(),
                dice: Dice(seed),
                kills: 0,
                stops: 0,
            };
            let onlooker = Child::fork(|| look_on(&truth, &supervisor.path));
            for worker in 0..WORKERS {
                let child = supervisor.start(worker);
                supervisor.workers.push(child);
            }
            let started = Instant::now();
            let max = Duration::from_secs(seconds());
            let mut next_phase = KILLS_PER_PHASE;
            while started.elapsed() < max || supervisor.kills < MIN_KILLS_PER_SECOND * seconds() {
                supervisor.kill_some();
                if supervisor.dice.below(ROUNDS_PER_STOP) == 0 {
                    supervisor.stop_some();
                }
                if supervisor.kills >= next_phase {
                    supervisor.wait_for_progress_of_all();
                    next_phase = supervisor.kills + KILLS_PER_PHASE;
                }
                // Not to synchronise: the survivors need time to work between the kills.
                std::thread::sleep(Duration::from_micros(supervisor.dice.below(1000)));
            }
            let elapsed = started.elapsed();
            supervisor.wait_for_progress_of_all();
            for (worker, child) in supervisor.workers.drain(..).enumerate() {
                truth.revoke(worker);
                child.kill();
            }
            let kills = supervisor.kills + WORKERS as u64;
            truth.is_over().store(1, Ordering::Relaxed);
            onlooker.succeed();
            println!(
                "{kills} kills and {} stops in {:.1} s: {:.0} kills/s, {} moments at which all that was held was known",
                supervisor.stops,
                elapsed.as_secs_f64(),
                kills as f64 / elapsed.as_secs_f64(),
                truth.moments().load(Ordering::Relaxed),
            );
            assert!(truth.moments().load(Ordering::Relaxed) > kills);
            check_that_nothing_is_left(&supervisor.inherited, &truth, kills);
        },
    );
}

fn check_that_nothing_is_left(segment: &Segment, truth: &Truth, kills: u64) {
    for (name, limit, capacity) in [("plain", "slots", SLOTS), ("mixed", "seats", SEATS)] {
        let set = segment.set(name).expect("declared");
        let all = set.request().with(limit, capacity).expect("declared");
        // The process that is refused looks for the dead, so that nothing else need happen.
        eventually("all of it can be held at once", || {
            set.try_acquire(&all).expect("works").is_admitted()
        });
    }
    let of_plans = plans::check_that_nothing_is_left(&segment.set(plans::SET).expect("declared"));
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
        let (pools, last) = match &*set.name {
            "plain" => (&[Pool::Slots][..], 1),
            "mixed" => (&[Pool::Seats][..], 1),
            _ => (&[Pool::Places(0), Pool::Places(1)][..], of_plans),
        };
        let admitted: u64 = pools.iter().map(|pool| truth.admitted(*pool)).sum();
        // After them came the requests for everything above; a worker that is killed can leave one that it did not count
        // itself, or that is undone and was counted.
        let bounds = admitted + last..=admitted + last + kills;
        assert!(bounds.contains(&counts.admitted), "{counts:?}, not in {bounds:?}");
        let of_limit = set.limits[0].counts.admitted;
        assert!(bounds.contains(&of_limit), "{of_limit}, not in {bounds:?}");
        assert!(counts.active_high_water <= set.hold_capacity);
        println!(
            "set {}: {} admitted, {} reclaimed, {} recoveries, {} recounts",
            set.name, counts.admitted, counts.reclaimed, counts.recoveries, counts.rebuilds
        );
    }
}
