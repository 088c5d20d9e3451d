//! What the processes tell one another, bypassing the library.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::scene::clock::boot_time;
use crate::scene::held::Held;
use crate::scene::process::SharedWords;
use crate::sets::{DRAWN_CALLS, KEYS, LARGEST, PLACES_OF_ALL, SHARED_BURST, SHARED_CALLS, UNLEASED};
use crate::{PROCESSES, WORKERS};

/// Something that can be held, up to a capacity at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    Slots,
    Leases,
    /// Those of the key with this number.
    Places(usize),
}

impl Pool {
    const ALL: [Self; 2 + KEYS.len()] = [
        Self::Slots,
        Self::Leases,
        Self::Places(0),
        Self::Places(1),
        Self::Places(2),
    ];

    fn index(self) -> usize {
        match self {
            Self::Slots => 0,
            Self::Leases => 1,
            Self::Places(key) => 2 + key,
        }
    }

    /// The largest capacity that it ever has.
    fn capacity(self) -> u64 {
        match self {
            Self::Slots => LARGEST.slots,
            Self::Leases => LARGEST.leases,
            Self::Places(_) => LARGEST.places,
        }
    }
}

/// A number that all of the processes count together.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Requests of each set that were admitted, counted by processes that lived to do so.
    AdmittedToPlain,
    AdmittedToKeyed,
    AdmittedToLeased,
    AdmittedToShared,
    AdmittedToTenants,
    AdmittedToDrawn,
    /// Requests that may have been admitted although nobody counted them: cancelled, or given up because of a stuck
    /// lock.
    Unsure,
    TimedOut,
    Cancelled,
    /// Leases that ran out before they were given back.
    LostLeases,
    LocksFoundStuck,
    Applied,
    ResetsBegun,
    Recovered,
    /// The longest time that a call took that does not wait, in nanoseconds, among processes that were not stopped
    /// meanwhile.
    LongestStall,
    /// The longest time that a call took that waits in the queue of each set.
    LongestWaitForPlain,
    LongestWaitForKeyed,
    LongestWaitForLeased,
    LongestWaitForShared,
    LongestWaitForTenants,
    LongestWaitForDrawn,
    /// Moments at which everything that was held was known.
    Moments,
    /// If this is not zero, all are to give back what they have, and to begin nothing.
    Rest,
    IsOver,
}

impl Count {
    const COUNT: usize = Self::IsOver as usize + 1;
}

pub struct Truth {
    held: Held,
    /// How often each process has got on; how often it was stopped; whether it rests.
    of_processes: SharedWords,
    counts: SharedWords,
    began: Duration,
}

impl Truth {
    pub fn new() -> Self {
        Self {
            held: Held::new(Pool::ALL.len(), WORKERS),
            of_processes: SharedWords::new(3 * PROCESSES),
            counts: SharedWords::new(Count::COUNT),
            began: boot_time(),
        }
    }

    pub fn word(&self, count: Count) -> &AtomicU64 {
        &self.counts[count as usize]
    }

    pub fn get(&self, count: Count) -> u64 {
        self.word(count).load(Ordering::SeqCst)
    }

    pub fn add(&self, count: Count) {
        self.word(count).fetch_add(1, Ordering::SeqCst);
    }

    pub fn progress(&self, process: usize) -> &AtomicU64 {
        &self.of_processes[process]
    }

    pub fn stops(&self, process: usize) -> &AtomicU64 {
        &self.of_processes[PROCESSES + process]
    }

    pub fn rests(&self, process: usize) -> &AtomicU64 {
        &self.of_processes[2 * PROCESSES + process]
    }

    pub fn got_on(&self, process: usize) {
        self.progress(process).fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a call of a process. If it takes the longest so far, remembers how long, unless the process was stopped
    /// meanwhile.
    pub fn timed<T>(&self, process: usize, longest: Count, call: impl FnOnce() -> T) -> T {
        let stops = self.stops(process).load(Ordering::SeqCst);
        let began = Instant::now();
        let answer = call();
        let took = u64::try_from(began.elapsed().as_nanos()).expect("in range");
        if self.stops(process).load(Ordering::SeqCst) == stops {
            self.word(longest).fetch_max(took, Ordering::SeqCst);
        }
        answer
    }

    pub fn take(&self, pool: Pool, worker: usize, units: u64) {
        self.held.take(pool.index(), worker, units);
    }

    pub fn give_back(&self, pool: Pool, worker: usize, units: u64) {
        self.held.give_back(pool.index(), worker, units);
    }

    pub fn lease_until(&self, worker: usize, end: Duration) {
        self.held.lease_until(Pool::Leases.index(), worker, end);
    }

    /// Prepares for the process to be killed.
    pub fn revoke(&self, process: usize) {
        if process < WORKERS {
            self.held.revoke(process);
        }
    }

    /// Prepares for the successor of the process, which starts with nothing.
    pub fn restart(&self, process: usize) {
        self.rests(process).store(0, Ordering::SeqCst);
        if process < WORKERS {
            self.held.restart(process);
        }
    }

    /// Panics if more is held than there is, or more was admitted than time and resets allow.
    pub fn check(&self) {
        // Read before the time and the resets, which allow for all of them.
        let calls = self.get(Count::AdmittedToPlain);
        let shared = self.get(Count::AdmittedToShared);
        let tenants = self.get(Count::AdmittedToTenants);
        let drawn = self.get(Count::AdmittedToDrawn);
        let seconds = (boot_time() - self.began).as_secs_f64();
        let bursts = LARGEST.burst * (1 + self.get(Count::ResetsBegun));
        let most = bursts + 1 + (LARGEST.calls as f64 * seconds) as u64;
        assert!(calls <= most, "{calls} calls in {seconds} s: at most {most}");
        let most = SHARED_BURST + 1 + (SHARED_CALLS as f64 * seconds) as u64;
        assert!(
            shared <= most,
            "{shared} calls that hosts share in {seconds} s: at most {most}"
        );
        let most = KEYS.len() as u64 * (most + UNLEASED);
        assert!(
            tenants <= most,
            "{tenants} calls of keys that hosts share in {seconds} s: at most {most}"
        );
        // What is drawn was charged before it is spent, so no more than this is spent, even at the beginning.
        let most = LARGEST.drawn_burst + 1 + (DRAWN_CALLS as f64 * seconds) as u64;
        assert!(
            drawn <= most,
            "{drawn} calls of batches in {seconds} s: at most {most}"
        );

        let Some(held) = self.held.at_one_moment() else {
            return;
        };
        self.add(Count::Moments);
        let of_keys = Pool::ALL.iter().zip(&held);
        let of_keys = of_keys.filter_map(|(pool, held)| matches!(pool, Pool::Places(_)).then_some(*held));
        let of_all: u64 = of_keys.sum();
        assert!(
            of_all <= PLACES_OF_ALL,
            "{of_all} held of {PLACES_OF_ALL} of all keys at one moment"
        );
        for (pool, held) in Pool::ALL.iter().zip(held) {
            let capacity = pool.capacity();
            assert!(
                held <= capacity,
                "{held} held of {capacity} {pool:?} at one moment"
            );
        }
    }
}
