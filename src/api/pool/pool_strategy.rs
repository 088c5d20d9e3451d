//! Which set of a pool is asked first.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::api::set::limit_set::LimitSet;
use crate::engine::Load;
use crate::error::{Error, RequestError};
use crate::shm::process::participant::ParticipantId;
use crate::shm::time::clock::boot_nanos;
use crate::words::words;

/// How a [`LimitPool`](crate::LimitPool) chooses among its sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoolStrategy {
    /// One after the other. Each process starts with a set of its own, so that the workers of a prefork server do not
    /// all start with the first.
    #[default]
    RoundRobin,
    /// Each with the same probability, from random numbers that differ from process to process.
    Random,
    /// The set with the smallest share in use: the larger of the share of concurrency that is held and the share of
    /// rate, calls and budget that is not replenished. Ties go to the set with the fewest waiters, then to the next in
    /// turn. Looks at every set without a lock, so the numbers may be out of date.
    LeastLoaded,
}

words!(PoolStrategy, "a strategy of pools", {
    RoundRobin = "round_robin",
    Random = "random",
    LeastLoaded = "least_loaded",
});

/// The sets to ask, in order.
pub(super) type Order = SmallVec<[usize; 8]>;

/// Whose turn it is. Each process has its own: a forked child that finds its parent's position starts afresh.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The participant that the position belongs to; zero for none.
    owner: AtomicU64,
    next: AtomicU64,
}

/// The increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
const GOLDEN_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Position {
    /// The first `max` members in the order of the strategy, each once; at least one.
    pub(super) fn order(
        &self,
        strategy: PoolStrategy,
        members: &[LimitSet],
        start: Option<usize>,
        max: usize,
    ) -> Result<Order, Error> {
        let Some(first) = members.first() else {
            return Err(Error::Request(RequestError::EmptyPool));
        };
        let owner = first.shared().engine.membership.owner()?;
        let start = self.choose(strategy, owner, members.len(), start);
        let in_turn = (start..members.len()).chain(0..start);
        if strategy != PoolStrategy::LeastLoaded {
            return Ok(in_turn.take(max).collect());
        }
        let mut by_load: SmallVec<[(Load, usize); 8]> = in_turn
            .filter_map(|index| Some((members.get(index)?, index)))
            .map(|(set, index)| {
                let shard = set.engine_set().shard(0);
                (set.shared().engine.load(shard, shard.only_row()), index)
            })
            .collect();
        // The sort is stable, so among equals the next in turn stays first.
        by_load.sort_by_key(|(load, _)| *load);
        Ok(by_load.into_iter().map(|(_, index)| index).take(max).collect())
    }

    /// Picks one of `count` members, by turn or at random.
    fn choose(&self, strategy: PoolStrategy, owner: u64, count: usize, start: Option<usize>) -> usize {
        let count = count as u64;
        let index = match strategy {
            PoolStrategy::RoundRobin | PoolStrategy::LeastLoaded => {
                // Live processes have different slots, consecutive if they started together.
                let slot = || ParticipantId::from_word(owner).map_or(0, |id| id.slot);
                let start = || start.map_or_else(slot, |start| start as u64);
                self.advance(owner, start, 1) % count
            }
            PoolStrategy::Random => {
                let seed = || mixed(owner ^ u64::from(std::process::id()).rotate_left(32)) ^ boot_nanos();
                let number = mixed(self.advance(owner, seed, GOLDEN_STEP));
                // The high half of the product is below `count`, and near enough uniform.
                ((u128::from(number) * u128::from(count)) >> 64) as u64
            }
        };
        index as usize
    }

    /// Advances the position, from `start` if this process is new here.
    fn advance(&self, owner: u64, start: impl FnOnce() -> u64, step: u64) -> u64 {
        if self.owner.load(Ordering::Acquire) != owner {
            // Threads that race here may choose the same member, which does no harm.
            self.next.store(start(), Ordering::Relaxed);
            self.owner.store(owner, Ordering::Release);
        }
        self.next.fetch_add(step, Ordering::Relaxed)
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mixed(state: u64) -> u64 {
    let once = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ (twice >> 31)
}
