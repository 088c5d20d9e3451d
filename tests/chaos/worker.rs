//! Processes that use the sets until they are killed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use shmlimit::request::AcquireFuture;
use shmlimit::{Error, OpenError, OpenOptions, Outcome, Permit, PermitError, Request, Segment, SegmentError};

use crate::World;
use crate::scene::clock::boot_time;
use crate::scene::process::TIMEOUT;
use crate::service::refresh;
use crate::sets::{Handles, KEYS, LEASE};
use crate::truth::{Count, Pool};

/// A lock's holder may be stopped for longer than this: then the lock is reported as stuck.
const SHORT_LOCK_TIMEOUT: Duration = Duration::from_millis(20);
/// How much two clocks may differ.
const CLOCK_ERROR: Duration = Duration::from_millis(1);
/// Keys that come once and go.
const STRANGERS: u64 = 200;

/// Opens the segment, as soon as no stopped process is in the way.
pub fn open(world: &World, process: usize, lock_timeout: Duration) -> Segment {
    let options = OpenOptions::new().lock_timeout(lock_timeout);
    loop {
        let opened = world
            .truth
            .timed(process, Count::LongestStall, || options.open(&world.segment));
        match opened {
            Ok(segment) => return segment,
            Err(Error::Open(OpenError::AttachStuck { .. })) => world.truth.add(Count::LocksFoundStuck),
            Err(error) => panic!("opens at any time: {error}"),
        }
    }
}

/// Counts that a stopped process has a lock, which is the only permitted error.
pub fn expect_stuck(world: &World, error: &Error) {
    assert!(
        matches!(error, Error::Segment(SegmentError::LockStuck { .. })),
        "{error}"
    );
    world.truth.add(Count::LocksFoundStuck);
}

/// Has the duty, or waits for it, until it is killed.
pub fn ask_the_store(world: &World, process: usize) -> ! {
    let segment = open(world, process, TIMEOUT);
    loop {
        refresh(&segment.fleet(), &world.store);
    }
}

/// What a process does until it is killed.
pub fn work(world: &World, number: usize, inherited: Option<Segment>, seed: u64) -> ! {
    let mut dice = Rng::with_seed(seed);
    let mut segment = inherited;
    loop {
        // A process that inherited a segment uses it to the end; the others attach again from time to time.
        let rounds = match segment {
            Some(_) => u64::MAX,
            None => 20 + dice.u64(..500),
        };
        let opened = segment.take().unwrap_or_else(|| {
            let is_patient = dice.u64(..2) == 0;
            open(
                world,
                number,
                if is_patient { TIMEOUT } else { SHORT_LOCK_TIMEOUT },
            )
        });
        let handles = Handles::of(opened);
        Worker::new(world, number, &handles, dice.u64(..)).work(rounds);
    }
}

/// A permit, and what the truth says it holds.
struct Holding<'a> {
    permit: Permit<'a>,
    pool: Option<(Pool, u64)>,
}

struct Worker<'a> {
    world: &'a World,
    number: usize,
    handles: &'a Handles,
    dice: Rng,
    plain: Request<'a>,
    keyed: Request<'a>,
    leased: Request<'a>,
    shared: Request<'a>,
    tenants: Request<'a>,
    drawn: Request<'a>,
    holdings: VecDeque<Holding<'a>>,
    /// At most one, because the truth knows only one end for everything that the worker has leased.
    lease: Option<Permit<'a>>,
}

impl<'a> Worker<'a> {
    fn new(world: &'a World, number: usize, handles: &'a Handles, seed: u64) -> Self {
        Self {
            world,
            number,
            handles,
            dice: Rng::with_seed(seed),
            plain: handles.plain.request().with("tokens", 1).expect("declared"),
            keyed: handles.keyed.request(),
            leased: handles.leased.request(),
            shared: handles.shared.request(),
            tenants: handles.tenants.request(),
            drawn: handles.drawn.request(),
            holdings: VecDeque::new(),
            lease: None,
        }
    }

    fn work(&mut self, rounds: u64) {
        let truth = &self.world.truth;
        // If all of them spun, the condemned would have to wait for a processor to die on.
        let is_calm = self.dice.u64(..4) > 0;
        for _ in 0..rounds {
            if truth.get(Count::Rest) != 0 {
                self.rest();
            }
            if is_calm && self.dice.u64(..4) == 0 {
                std::thread::sleep(Duration::from_micros(self.dice.u64(..2_000)));
            }
            match self.dice.u64(..20) {
                0..=4 => self.use_plain(),
                5..=8 => self.use_keyed(),
                9 => self.come_once(),
                10..=12 => self.use_leased(),
                13..=14 => self.use_shared(),
                15..=16 => self.use_drawn(),
                17..=18 => self.use_tenants(),
                _ => self.look(),
            }
            truth.check();
            self.give_back_until(self.dice.clone().u64(..3) as usize);
            truth.got_on(self.number);
        }
        self.give_back_all();
    }

    fn rest(&mut self) {
        let truth = &self.world.truth;
        self.give_back_all();
        truth.rests(self.number).store(1, Ordering::SeqCst);
        while truth.get(Count::Rest) != 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        truth.rests(self.number).store(0, Ordering::SeqCst);
    }

    /// Acquires in one of several ways, without a time limit only if nothing is held: a worker that held one thing
    /// while it waited for another could wait for one that does the opposite.
    fn acquire(
        &mut self,
        longest: Count,
        try_now: impl FnOnce() -> Result<Outcome<'a>, Error>,
        wait: impl FnOnce(Option<Duration>) -> Result<Outcome<'a>, Error>,
        begin: impl FnOnce(Duration) -> AcquireFuture<'a>,
    ) -> Option<Permit<'a>> {
        let truth = &self.world.truth;
        let holds_nothing = self.holdings.is_empty() && self.lease.is_none();
        let outcome = match self.dice.u64(..8) {
            0..=3 => truth.timed(self.number, Count::LongestStall, try_now),
            4 if holds_nothing => truth.timed(self.number, longest, || wait(None)),
            4..=6 => {
                let timeout = Duration::from_micros(self.dice.u64(..50_000));
                let outcome = truth.timed(self.number, longest, || wait(Some(timeout)));
                if matches!(&outcome, Ok(Outcome::Refused(_))) {
                    truth.add(Count::TimedOut);
                }
                outcome
            }
            _ => self.begin_and_cancel(begin(Duration::from_millis(50)))?,
        };
        match outcome {
            Ok(Outcome::Admitted(permit)) => Some(permit),
            Ok(Outcome::Refused(_)) => None,
            Err(error) => {
                // The request may have been granted by the time it was given up.
                truth.add(Count::Unsure);
                expect_stuck(self.world, &error);
                None
            }
        }
    }

    fn acquire_of(&mut self, longest: Count, request: &Request<'a>) -> Option<Permit<'a>> {
        self.acquire(
            longest,
            || request.try_acquire(),
            |timeout| request.acquire(timeout),
            |timeout| request.acquire_async(timeout),
        )
    }

    /// Polls a future a few times, and drops it if it is not ready by then.
    fn begin_and_cancel(&mut self, mut future: AcquireFuture<'a>) -> Option<Result<Outcome<'a>, Error>> {
        let truth = &self.world.truth;
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..=self.dice.u64(..3) {
            let polled = truth.timed(self.number, Count::LongestStall, || {
                Pin::new(&mut future).poll(&mut context)
            });
            if let Poll::Ready(outcome) = polled {
                return Some(outcome);
            }
            std::thread::sleep(Duration::from_micros(self.dice.u64(..2_000)));
        }
        truth.add(Count::Unsure);
        truth.add(Count::Cancelled);
        truth.timed(self.number, Count::LongestStall, || drop(future));
        None
    }

    fn use_plain(&mut self) {
        let truth = &self.world.truth;
        // With zero units, only the rates are taken.
        let units = self.dice.u64(..4);
        let tokens = 1 + self.dice.u64(..1000);
        self.plain.set_cost("slots", units).expect("declared");
        self.plain.set_cost("tokens", tokens).expect("declared");
        let request = self.plain.clone();
        let admitted = self.acquire_of(Count::LongestWaitForPlain, &request);
        let Some(mut permit) = admitted else { return };
        truth.take(Pool::Slots, self.number, units);
        truth.add(Count::AdmittedToPlain);
        if self.dice.u64(..2) == 0 {
            let used = self.dice.u64(..1500);
            let settled = truth.timed(self.number, Count::LongestStall, || {
                permit.settle([("tokens", used)])
            });
            if let Err(error) = settled {
                expect_stuck(self.world, &error);
            }
        }
        self.holdings.push_back(Holding {
            permit,
            pool: Some((Pool::Slots, units)),
        });
    }

    fn use_keyed(&mut self) {
        let truth = &self.world.truth;
        let number = self.dice.u64(..KEYS.len() as u64) as usize;
        let request = self.keyed.for_key(KEYS[number]).expect("keyed");
        let admitted = self.acquire(
            Count::LongestWaitForKeyed,
            || request.try_acquire(),
            |timeout| request.acquire(timeout),
            |timeout| request.acquire_async(timeout),
        );
        let Some(permit) = admitted else { return };
        truth.take(Pool::Places(number), self.number, 1);
        truth.add(Count::AdmittedToKeyed);
        self.holdings.push_back(Holding {
            permit,
            pool: Some((Pool::Places(number), 1)),
        });
    }

    /// Takes as one of many keys, more than there are rows.
    fn come_once(&mut self) {
        let truth = &self.world.truth;
        let name = format!("stranger {}", self.dice.u64(..STRANGERS));
        let key = &name;
        let request = &self.keyed;
        match truth.timed(self.number, Count::LongestStall, || {
            request.for_key(key).expect("keyed").try_acquire()
        }) {
            Ok(Outcome::Admitted(permit)) => {
                truth.add(Count::AdmittedToKeyed);
                drop(permit);
            }
            Ok(Outcome::Refused(_)) => {}
            Err(error) => {
                expect_stuck(self.world, &error);
            }
        }
    }

    /// Holds a lease, and renews it or lets it run out.
    fn use_leased(&mut self) {
        let truth = &self.world.truth;
        if let Some(permit) = self.lease.take() {
            // Leases exist for processes that hang while they hold something.
            if self.dice.u64(..8) == 0 {
                std::thread::sleep(LEASE);
            }
            let began = boot_time();
            match truth.timed(self.number, Count::LongestStall, || permit.heartbeat()) {
                Ok(()) => {
                    truth.lease_until(self.number, began + LEASE - CLOCK_ERROR);
                    if self.dice.u64(..2) == 0 {
                        self.lease = Some(permit);
                        return;
                    }
                }
                Err(Error::Permit(PermitError::Reclaimed { .. })) => truth.add(Count::LostLeases),
                Err(error) => {
                    expect_stuck(self.world, &error);
                }
            }
            self.give_back_lease(permit);
            return;
        }
        let request = self.leased.clone();
        // The lease of a granted waiter begins before the call returns.
        let began = boot_time();
        let admitted = self.acquire_of(Count::LongestWaitForLeased, &request);
        let Some(permit) = admitted else { return };
        truth.lease_until(self.number, began + LEASE - CLOCK_ERROR);
        truth.take(Pool::Leases, self.number, 1);
        truth.add(Count::AdmittedToLeased);
        self.lease = Some(permit);
    }

    fn use_shared(&mut self) {
        let request = self.shared.clone();
        self.use_rate(&request, Count::LongestWaitForShared, Count::AdmittedToShared);
    }

    fn use_tenants(&mut self) {
        let key = KEYS[self.dice.usize(..KEYS.len())];
        let request = self.tenants.for_key(key).expect("keyed");
        self.use_rate(&request, Count::LongestWaitForTenants, Count::AdmittedToTenants);
    }

    fn use_drawn(&mut self) {
        let cost = 1 + self.dice.u64(..3);
        self.drawn.set_cost("calls", cost).expect("declared");
        let request = self.drawn.clone();
        self.use_rate(&request, Count::LongestWaitForDrawn, Count::AdmittedToDrawn);
    }

    /// Takes from a set of which nothing is held.
    fn use_rate(&mut self, request: &Request<'a>, longest: Count, admitted: Count) {
        if let Some(permit) = self.acquire_of(longest, request) {
            self.world.truth.add(admitted);
            self.holdings.push_back(Holding { permit, pool: None });
        }
    }

    /// Only looks, with the lock and without.
    fn look(&mut self) {
        let truth = &self.world.truth;
        match self.dice.u64(..3) {
            0 => {
                let looked = truth.timed(self.number, Count::LongestStall, || self.plain.peek());
                if let Err(error) = looked {
                    expect_stuck(self.world, &error);
                }
            }
            1 => {
                let table = self.handles.keyed.table_usage().expect("keyed");
                assert!(table.used <= table.rows, "{table:?}");
            }
            _ => {
                self.handles.segment.snapshot().expect("a copy");
            }
        }
    }

    fn give_back_until(&mut self, left: usize) {
        while self.holdings.len() > left {
            let Some(holding) = self.holdings.pop_front() else {
                return;
            };
            self.give_back(holding);
        }
    }

    fn give_back(&mut self, holding: Holding<'a>) {
        let truth = &self.world.truth;
        let Holding { mut permit, pool } = holding;
        if let Some((pool, units)) = pool {
            truth.give_back(pool, self.number, units);
        }
        let is_dropped = self.dice.u64(..2) == 0;
        truth.timed(self.number, Count::LongestStall, || {
            if is_dropped {
                drop(permit);
            } else {
                permit.release().expect("giving back does not fail");
            }
        });
    }

    fn give_back_lease(&mut self, permit: Permit<'a>) {
        self.give_back(Holding {
            permit,
            pool: Some((Pool::Leases, 1)),
        });
    }

    fn give_back_all(&mut self) {
        self.give_back_until(0);
        if let Some(permit) = self.lease.take() {
            self.give_back_lease(permit);
        }
    }
}
