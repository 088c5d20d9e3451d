//! What the workers hold for certain, known without the library.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::scene::process::SharedWords;
use crate::{SEATS, SLOTS, WORKERS, plans};

/// What may be held at once up to a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    Slots,
    Seats,
    /// Of the key of that number.
    Places(usize),
}

impl Pool {
    const ALL: [Self; 4] = [Self::Slots, Self::Seats, Self::Places(0), Self::Places(1)];

    fn index(self) -> usize {
        match self {
            Self::Slots => 0,
            Self::Seats => 1,
            Self::Places(key) => 2 + key,
        }
    }

    /// The largest that it may have at any time.
    fn capacity(self) -> u64 {
        match self {
            Self::Slots => SLOTS,
            Self::Seats => SEATS,
            Self::Places(_) => plans::MAX_PLACES,
        }
    }
}

const POOLS: usize = Pool::ALL.len();

/// What the processes tell one another, none of it through the library.
pub struct Truth {
    words: SharedWords,
}

/// One collection of what the workers hold for certain.
type Collected = [u64; POOLS * WORKERS];

impl Truth {
    /// The worker is about to be killed: what it holds may be given back at any moment from now on.
    const REVOKED: u64 = 1 << 63;
    /// Every change of a word adds this, so that a word which was changed and changed back differs.
    const VERSION: u64 = 1 << 16;
    const HELD_MASK: u64 = Self::VERSION - 1;

    pub fn new() -> Self {
        Self {
            words: SharedWords::new((2 * POOLS + 1) * WORKERS + 2),
        }
    }

    /// What a worker holds: a lower bound at any moment.
    fn held(&self, pool: Pool, worker: usize) -> &AtomicU64 {
        &self.words[pool.index() * WORKERS + worker]
    }

    fn admitted_to(&self, pool: Pool, worker: usize) -> &AtomicU64 {
        &self.words[(POOLS + pool.index()) * WORKERS + worker]
    }

    /// What the workers' incarnations have been admitted to, in requests: a lower bound.
    pub fn admitted(&self, pool: Pool) -> u64 {
        (0..WORKERS)
            .map(|worker| self.admitted_to(pool, worker).load(Ordering::Relaxed))
            .sum()
    }

    pub fn progress(&self, worker: usize) -> &AtomicU64 {
        &self.words[2 * POOLS * WORKERS + worker]
    }

    pub fn is_over(&self) -> &AtomicU64 {
        &self.words[(2 * POOLS + 1) * WORKERS]
    }

    /// Collections during which nothing changed, so that each shows one moment.
    pub fn moments(&self) -> &AtomicU64 {
        &self.words[(2 * POOLS + 1) * WORKERS + 1]
    }

    pub fn take(&self, pool: Pool, worker: usize, units: u64) {
        self.held(pool, worker)
            .fetch_add(Self::VERSION + units, Ordering::SeqCst);
        self.admitted_to(pool, worker).fetch_add(1, Ordering::Relaxed);
    }

    pub fn give_back(&self, pool: Pool, worker: usize, units: u64) {
        self.held(pool, worker)
            .fetch_add(Self::VERSION - units, Ordering::SeqCst);
    }

    pub fn revoke(&self, worker: usize) {
        for pool in Pool::ALL {
            self.held(pool, worker).fetch_or(Self::REVOKED, Ordering::SeqCst);
        }
    }

    /// The dead worker's successor starts with nothing. The version only ever goes up.
    pub fn restart(&self, worker: usize) {
        for pool in Pool::ALL {
            let word = self.held(pool, worker);
            let version = word.load(Ordering::SeqCst) & !Self::REVOKED & !Self::HELD_MASK;
            word.store(version + Self::VERSION, Ordering::SeqCst);
        }
    }

    fn collect(&self) -> Collected {
        std::array::from_fn(|index| self.words[index].load(Ordering::SeqCst))
    }

    /// Panics if more is held than there is. Two equal collections say what was held between the two.
    pub fn check(&self) {
        let collected = self.collect();
        if collected != self.collect() {
            return;
        }
        self.moments().fetch_add(1, Ordering::Relaxed);
        for (pool, words) in Pool::ALL.iter().zip(collected.chunks(WORKERS)) {
            let capacity = pool.capacity();
            let held = words
                .iter()
                .filter(|word| **word & Self::REVOKED == 0)
                .map(|word| word & Self::HELD_MASK);
            let held: u64 = held.sum();
            assert!(
                held <= capacity,
                "{held} held of {capacity} {pool:?} at one moment: {words:x?}"
            );
        }
    }
}
