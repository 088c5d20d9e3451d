//! Which member of a pool is asked first.

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
    /// One after the other. Each process sets out from a member of its own, so that the workers of a prefork server do
    /// not all begin with the first.
    #[default]
    RoundRobin,
    /// Each with the same probability, by numbers that differ from process to process.
    Random,
    /// The one of which the smallest share is in use: what is held of concurrency, what is not replenished of rate,
    /// calls and budget, whichever is more; of equals, the one with the fewest requests in the queue; of equals again,
    /// one after the other. Looks at every set, without a lock, so what it goes by may have changed.
    LeastLoaded,
}

words!(PoolStrategy, "a strategy of pools", {
    RoundRobin = "round_robin",
    Random = "random",
    LeastLoaded = "least_loaded",
});

/// The members to ask, in this order.
pub(super) type Order = SmallVec<[usize; 8]>;

/// Where the choosing stands. Every process has one of its own: a forked child, which finds its parent's, begins anew.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The participant whose position it is; zero is no process.
    owner: AtomicU64,
    next: AtomicU64,
}

/// What a sequence of SplitMix64 advances by: 2^64 divided by the golden ratio, made odd.
const GOLDEN_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Position {
    /// The first `max` members in the order of the strategy, each once. There is at least one.
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
        // The sort is stable: of equals the next in turn stays first.
        by_load.sort_by_key(|(load, _)| *load);
        Ok(by_load.into_iter().map(|(_, index)| index).take(max).collect())
    }

    /// The one of `count` members that is next by turn or at random.
    fn choose(&self, strategy: PoolStrategy, owner: u64, count: usize, start: Option<usize>) -> usize {
        let count = count as u64;
        let index = match strategy {
            PoolStrategy::RoundRobin | PoolStrategy::LeastLoaded => {
                // Live processes have different slots, and those that start together have them in a row.
                let slot = || ParticipantId::from_word(owner).map_or(0, |id| id.slot);
                let start = || start.map_or_else(slot, |start| start as u64);
                self.advance(owner, start, 1) % count
            }
            PoolStrategy::Random => {
                let seed = || mixed(owner ^ u64::from(std::process::id()).rotate_left(32)) ^ boot_nanos();
                let number = mixed(self.advance(owner, seed, GOLDEN_STEP));
                // The high half of the product is below the count, and as good as evenly spread.
                ((u128::from(number) * u128::from(count)) >> 64) as u64
            }
        };
        index as usize
    }

    /// Steps on, from `start` where this process is new here.
    fn advance(&self, owner: u64, start: impl FnOnce() -> u64, step: u64) -> u64 {
        if self.owner.load(Ordering::Acquire) != owner {
            // Threads that come here together may choose the same member once, which does no harm.
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
