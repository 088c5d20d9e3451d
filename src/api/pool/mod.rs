//! Pools of sets, one of which is chosen for each request.

mod pool_request;
mod pool_strategy;
mod taking;

use std::sync::Arc;

use super::permit::Outcome;
use super::set::limit_set::LimitSet;
use crate::error::{Error, RequestError};

pub use pool_request::PoolRequest;
pub use pool_strategy::PoolStrategy;
use pool_strategy::{Order, Position};

/// Chooses among several sets, of one segment or several: the regions of a service, the accounts of a customer.
///
/// The choice is made within this process and not coordinated with others; the sets are shared as usual. A clone has
/// the same sets and strategy but starts choosing afresh, and so does a forked child.
///
/// ```
/// # use std::time::Duration;
/// # use shmlimit::pool::PoolStrategy;
/// # use shmlimit::{Declaration, Limit, LimitPool, Segment, SetDeclaration};
/// # let directory = tempfile::tempdir()?;
/// # fn call(_endpoint: &str) {}
/// let region = |name: &str, endpoint: &str| {
///     SetDeclaration::new(name)
///         .add_metadata("endpoint", endpoint)
///         .add_limit(Limit::rate("tokens", 10_000, Duration::from_secs(60)))
/// };
/// let declaration = Declaration::new()
///     .add_set(region("east", "https://east.example"))
///     .add_set(region("west", "https://west.example"));
/// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let sets = [segment.set("east")?, segment.set("west")?];
/// let pool = LimitPool::new(sets, PoolStrategy::RoundRobin)?.failover(true);
///
/// let request = pool.request().with("tokens", 1_500)?; // names are resolved once, for every set
/// let chosen = request.try_acquire()?;
/// assert!(chosen.index < pool.len());
/// match chosen.outcome.into_result() {
///     Ok(permit) => call(&permit.set().metadata()["endpoint"]),
///     Err(refusal) => println!("neither region has room: {refusal}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LimitPool {
    members: Arc<[LimitSet]>,
    strategy: PoolStrategy,
    failover: bool,
    start: Option<usize>,
    position: Position,
}

/// The answer of a pool.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub struct Chosen<'a> {
    /// The set that answered, by its position in the pool.
    pub index: usize,
    /// Its answer. A permit carries the [metadata](crate::LimitSet::metadata) of its set.
    pub outcome: Outcome<'a>,
}

impl Clone for LimitPool {
    /// A pool of the same sets and strategy that starts choosing afresh.
    fn clone(&self) -> Self {
        Self {
            members: Arc::clone(&self.members),
            strategy: self.strategy,
            failover: self.failover,
            start: self.start,
            position: Position::default(),
        }
    }
}

// A pool is never empty, so `is_empty` would be pointless.
#[allow(clippy::len_without_is_empty)]
impl LimitPool {
    /// A pool of `sets`, in the given order.
    ///
    /// # Errors
    ///
    /// [`RequestError::EmptyPool`] if there are none.
    pub fn new(sets: impl IntoIterator<Item = LimitSet>, strategy: PoolStrategy) -> Result<Self, Error> {
        let members: Arc<[LimitSet]> = sets.into_iter().collect();
        if members.is_empty() {
            return Err(Error::Request(RequestError::EmptyPool));
        }
        Ok(Self {
            members,
            strategy,
            failover: false,
            start: None,
            position: Position::default(),
        })
    }

    /// Whether to ask the next set if one refuses, each at most once. Off by default.
    #[must_use]
    pub fn failover(mut self, failover: bool) -> Self {
        self.failover = failover;
        self
    }

    /// The set that the first turn goes to, counted from 0 and modulo the number of sets: a worker's number, for
    /// instance, so that workers with pools of the same sets do not all start with the first. By default each process
    /// starts at a position of its own.
    #[must_use]
    pub fn start_at(mut self, index: usize) -> Self {
        self.start = Some(index);
        self
    }

    /// How the pool chooses.
    pub fn strategy(&self) -> PoolStrategy {
        self.strategy
    }

    /// The number of sets, at least one.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// The set at `index`, or `None` if out of range.
    pub fn get(&self, index: usize) -> Option<&LimitSet> {
        self.members.get(index)
    }

    /// The sets, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &LimitSet> {
        self.members.iter()
    }

    /// The first `max` sets to ask, in order.
    fn order(&self, max: usize) -> Result<Order, Error> {
        self.position.order(self.strategy, &self.members, self.start, max)
    }
}
