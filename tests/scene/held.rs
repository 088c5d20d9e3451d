//! What processes certainly hold, known independently of the library.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::clock::boot_time;
use super::process::SharedWords;

/// What each of several processes holds of each of several pools: a lower bound at any moment, if a permit is noted
/// after it was admitted, and removed before it is given back.
#[derive(Debug)]
pub struct Held {
    words: SharedWords,
    pools: usize,
    processes: usize,
}

impl Held {
    /// The process is about to be killed: what it holds may be given back at any moment from now on.
    const REVOKED: u64 = 1 << 63;
    /// Every change of a word adds this, so that a word that was changed and changed back differs.
    const VERSION: u64 = 1 << 16;
    const UNITS: u64 = Self::VERSION - 1;

    pub fn new(pools: usize, processes: usize) -> Self {
        Self {
            words: SharedWords::new(2 * pools * processes),
            pools,
            processes,
        }
    }

    fn units(&self, pool: usize, process: usize) -> &AtomicU64 {
        &self.words[pool * self.processes + process]
    }

    /// The instant at which a lease may end; zero without one.
    fn end(&self, pool: usize, process: usize) -> &AtomicU64 {
        &self.words[(self.pools + pool) * self.processes + process]
    }

    pub fn take(&self, pool: usize, process: usize, units: u64) {
        self.units(pool, process)
            .fetch_add(Self::VERSION + units, Ordering::SeqCst);
    }

    pub fn give_back(&self, pool: usize, process: usize, units: u64) {
        self.units(pool, process)
            .fetch_add(Self::VERSION - units, Ordering::SeqCst);
    }

    /// What the process holds of the pool, now or later, is its own until this instant of the [boot-time
    /// clock](boot_time), and not for certain from then on.
    pub fn lease_until(&self, pool: usize, process: usize, end: Duration) {
        let end = u64::try_from(end.as_nanos()).expect("in range");
        self.end(pool, process).store(end, Ordering::SeqCst);
    }

    pub fn revoke(&self, process: usize) {
        for pool in 0..self.pools {
            self.units(pool, process)
                .fetch_or(Self::REVOKED, Ordering::SeqCst);
        }
    }

    /// The dead process's successor starts with nothing. The version only ever rises.
    pub fn restart(&self, process: usize) {
        for pool in 0..self.pools {
            self.end(pool, process).store(0, Ordering::SeqCst);
            let word = self.units(pool, process);
            let version = word.load(Ordering::SeqCst) & !Self::REVOKED & !Self::UNITS;
            word.store(version + Self::VERSION, Ordering::SeqCst);
        }
    }

    fn collect(&self) -> Vec<u64> {
        self.words
            .iter()
            .map(|word| word.load(Ordering::SeqCst))
            .collect()
    }

    /// What is held of each pool at one moment, if nothing changed while it was collected: two equal collections tell
    /// what was held between the two.
    pub fn at_one_moment(&self) -> Option<Vec<u64>> {
        let collected = self.collect();
        if collected != self.collect() {
            return None;
        }
        let now = u64::try_from(boot_time().as_nanos()).expect("in range");
        let (units, ends) = collected.split_at(self.pools * self.processes);
        let of_pool = |(units, ends): (&[u64], &[u64])| {
            let certain = units
                .iter()
                .zip(ends)
                .filter(|(units, end)| **units & Self::REVOKED == 0 && (**end == 0 || **end > now));
            certain.map(|(units, _)| units & Self::UNITS).sum()
        };
        let pools = units.chunks(self.processes).zip(ends.chunks(self.processes));
        Some(pools.map(of_pool).collect())
    }
}
