//! What the workers hold for certain, known without the library.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::scene::held::Held;
use crate::scene::process::SharedWords;
use crate::{SEATS, SLOTS, WORKERS, plans, tenants};

/// Something of which at most a capacity may be held at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    Slots,
    Seats,
    /// The places of the key with this number.
    Places(usize),
    /// The places of all tenants together.
    InFlight,
}

impl Pool {
    const ALL: [Self; 5] = [
        Self::Slots,
        Self::Seats,
        Self::Places(0),
        Self::Places(1),
        Self::InFlight,
    ];

    fn index(self) -> usize {
        match self {
            Self::Slots => 0,
            Self::Seats => 1,
            Self::Places(key) => 2 + key,
            Self::InFlight => 4,
        }
    }

    /// The largest capacity that the pool may have at any time.
    fn capacity(self) -> u64 {
        match self {
            Self::Slots => SLOTS,
            Self::Seats => SEATS,
            Self::Places(_) => plans::MAX_PLACES,
            Self::InFlight => tenants::PLACES,
        }
    }
}

const POOLS: usize = Pool::ALL.len();

/// What the processes tell one another, none of it through the library.
pub struct Truth {
    held: Held,
    words: SharedWords,
}

impl Truth {
    pub fn new() -> Self {
        Self {
            held: Held::new(POOLS, WORKERS),
            words: SharedWords::new((POOLS + 1) * WORKERS + 2),
        }
    }

    fn admitted_to(&self, pool: Pool, worker: usize) -> &AtomicU64 {
        &self.words[pool.index() * WORKERS + worker]
    }

    /// How many requests of all workers, dead and alive, were admitted: a lower bound.
    pub fn admitted(&self, pool: Pool) -> u64 {
        (0..WORKERS)
            .map(|worker| self.admitted_to(pool, worker).load(Ordering::Relaxed))
            .sum()
    }

    pub fn progress(&self, worker: usize) -> &AtomicU64 {
        &self.words[POOLS * WORKERS + worker]
    }

    pub fn is_over(&self) -> &AtomicU64 {
        &self.words[(POOLS + 1) * WORKERS]
    }

    /// How many collections there were during which nothing changed, so that each shows one moment.
    pub fn moments(&self) -> &AtomicU64 {
        &self.words[(POOLS + 1) * WORKERS + 1]
    }

    pub fn take(&self, pool: Pool, worker: usize, units: u64) {
        self.held.take(pool.index(), worker, units);
        self.admitted_to(pool, worker).fetch_add(1, Ordering::Relaxed);
    }

    pub fn give_back(&self, pool: Pool, worker: usize, units: u64) {
        self.held.give_back(pool.index(), worker, units);
    }

    pub fn revoke(&self, worker: usize) {
        self.held.revoke(worker);
    }

    /// The dead worker's successor starts with nothing.
    pub fn restart(&self, worker: usize) {
        self.held.restart(worker);
    }

    /// Panics if more is held than there is.
    pub fn check(&self) {
        let Some(held) = self.held.at_one_moment() else {
            return;
        };
        self.moments().fetch_add(1, Ordering::Relaxed);
        for (pool, held) in Pool::ALL.iter().zip(held) {
            let capacity = pool.capacity();
            assert!(
                held <= capacity,
                "{held} held of {capacity} {pool:?} at one moment"
            );
        }
    }
}
