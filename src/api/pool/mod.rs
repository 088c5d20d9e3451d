//! Pools of sets, from which one is chosen for each request.

mod pool_request;
mod pool_strategy;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::permit::Outcome;
use super::request::Request;
use super::set::limit_set::LimitSet;
use crate::engine::KeepWaiting;
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
/// let chosen = pool.try_acquire(&request)?;
/// assert!(chosen.index < pool.len());
/// match chosen.outcome.into_result() {
///     Ok(permit) => call(&permit.metadata()["endpoint"]),
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
pub struct Chosen<'a> {
    /// The set that answered, by its position in the pool.
    pub index: usize,
    /// Its answer. A permit carries the [metadata](crate::Permit::metadata) of its set.
    pub outcome: Outcome<'a>,
}

/// The result of asking without waiting.
enum Round<'a> {
    Admitted(Chosen<'a>),
    Refused {
        /// The first set asked that could ever admit the request: the one to wait at.
        waits_at: usize,
        /// The refusal with the shortest wait; `None` if no set was asked.
        shortest: Option<Chosen<'a>>,
    },
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

    /// The set at `index`, or `None` if out of range. Use it on its own with [`PoolRequest::get`].
    pub fn get(&self, index: usize) -> Option<&LimitSet> {
        self.members.get(index)
    }

    /// The sets, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &LimitSet> {
        self.members.iter()
    }

    /// A request that takes the default of every limit of the chosen set: see [`LimitSet::request`].
    pub fn request(&self) -> PoolRequest {
        PoolRequest::new(&self.members)
    }

    /// Chooses a set, takes everything that the request names from it or nothing, and answers at once.
    ///
    /// With [`failover`](Self::failover), the sets are asked one after the other until one admits the request. If all
    /// refuse, the answer is the refusal with the shortest wait. Each set that refused has counted a refusal. A set
    /// that could never admit the request is skipped if others could.
    ///
    /// # Errors
    ///
    /// The errors of [`LimitSet::try_acquire`], from the last set asked; [`RequestError::ForeignRequest`] if the
    /// request was made by another pool.
    pub fn try_acquire<'a>(&'a self, request: &PoolRequest) -> Result<Chosen<'a>, Error> {
        let max = if self.failover { self.members.len() } else { 1 };
        let order = self.order(max)?;
        match self.ask(&order, request)? {
            Round::Admitted(chosen)
            | Round::Refused {
                shortest: Some(chosen),
                ..
            } => Ok(chosen),
            Round::Refused { shortest: None, .. } => Err(Error::Request(RequestError::EmptyPool)),
        }
    }

    /// Chooses a set and waits in its queue: see [`LimitSet::acquire`].
    ///
    /// With [`failover`](Self::failover), every set is first asked without waiting. If all refuse, the request waits
    /// in the queue of the first set asked, and only there.
    ///
    /// # Errors
    ///
    /// See [`LimitSet::acquire`]; [`RequestError::ForeignRequest`] if the request was made by another pool.
    pub fn acquire<'a>(
        &'a self,
        request: &PoolRequest,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Chosen<'a>, Error> {
        self.wait(request, timeout.into(), None)
    }

    /// Like [`acquire`](Self::acquire), but stops waiting when `keep_waiting` returns false: see
    /// [`LimitSet::acquire_while`].
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire).
    pub fn acquire_while<'a>(
        &'a self,
        request: &PoolRequest,
        timeout: impl Into<Option<Duration>>,
        mut keep_waiting: impl FnMut() -> bool,
    ) -> Result<Chosen<'a>, Error> {
        let chosen = self.wait(request, timeout.into(), Some(&mut keep_waiting));
        // Here, and not by the compiler after the return: a panic would then leave what is returned without an owner.
        drop(keep_waiting);
        chosen
    }

    fn wait<'a>(
        &'a self,
        request: &PoolRequest,
        timeout: Option<Duration>,
        keep_waiting: Option<KeepWaiting<'_>>,
    ) -> Result<Chosen<'a>, Error> {
        if timeout == Some(Duration::ZERO) {
            return self.try_acquire(request);
        }
        let begun = Instant::now();
        let index = match self.ask_before_waiting(request)? {
            Round::Admitted(chosen) => return Ok(chosen),
            Round::Refused { waits_at, .. } => waits_at,
        };
        let (set, request) = self.member(index, request)?;
        let outcome = set
            .subject()?
            .acquire(request, what_is_left(timeout, begun), keep_waiting)?;
        Ok(Chosen { index, outcome })
    }

    /// Like [`acquire`](Self::acquire), as a future for any runtime: see [`LimitSet::acquire_async`]. The timeout
    /// counts from this call; the set is chosen when the future is first polled.
    ///
    /// # Errors
    ///
    /// See [`LimitSet::acquire_async`]; [`RequestError::ForeignRequest`] if the request was made by another pool.
    pub fn acquire_async<'a, T: Into<Option<Duration>>>(
        &'a self,
        request: &PoolRequest,
        timeout: T,
    ) -> impl Future<Output = Result<Chosen<'a>, Error>> + Send + use<'a, T> {
        self.wait_for_one(request.clone(), timeout.into(), Instant::now())
    }

    async fn wait_for_one(
        &self,
        request: PoolRequest,
        timeout: Option<Duration>,
        begun: Instant,
    ) -> Result<Chosen<'_>, Error> {
        if timeout == Some(Duration::ZERO) {
            return self.try_acquire(&request);
        }
        let index = match self.ask_before_waiting(&request)? {
            Round::Admitted(chosen) => return Ok(chosen),
            Round::Refused { waits_at, .. } => waits_at,
        };
        let (set, request) = self.member(index, &request)?;
        let outcome = set.acquire_async(request, what_is_left(timeout, begun)).await?;
        Ok(Chosen { index, outcome })
    }

    /// Chooses where to wait. With failover, all sets are asked first.
    fn ask_before_waiting<'a>(&'a self, request: &PoolRequest) -> Result<Round<'a>, Error> {
        if self.failover {
            let order = self.order(self.members.len())?;
            return self.ask(&order, request);
        }
        let order = self.order(1)?;
        Ok(Round::Refused {
            waits_at: order.first().copied().unwrap_or_default(),
            shortest: None,
        })
    }

    /// The first `max` sets to ask, in order.
    fn order(&self, max: usize) -> Result<Order, Error> {
        self.position.order(self.strategy, &self.members, self.start, max)
    }

    /// Asks one set after the other until one admits the request.
    fn ask<'a>(&'a self, order: &[usize], request: &PoolRequest) -> Result<Round<'a>, Error> {
        let mut waits_at = None;
        let mut shortest: Option<(Duration, Chosen<'a>)> = None;
        let mut impossible = None;
        for index in order.iter().copied() {
            let (set, request) = self.member(index, request)?;
            let outcome = match set.try_acquire(request) {
                Ok(outcome) => outcome,
                // Other sets may have larger limits.
                Err(error @ Error::Request(RequestError::NeverAdmissible { .. })) => {
                    impossible.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Outcome::Refused(refusal) = outcome else {
                return Ok(Round::Admitted(Chosen { index, outcome }));
            };
            waits_at.get_or_insert(index);
            // A refusal that time alone does not lift counts as the longest wait.
            let wait = refusal.retry_after().unwrap_or(Duration::MAX);
            if shortest.as_ref().is_none_or(|(min, _)| wait < *min) {
                let outcome = Outcome::Refused(refusal);
                shortest = Some((wait, Chosen { index, outcome }));
            }
        }
        match waits_at {
            Some(waits_at) => Ok(Round::Refused {
                waits_at,
                shortest: shortest.map(|(_, chosen)| chosen),
            }),
            None => Err(impossible.unwrap_or(Error::Request(RequestError::EmptyPool))),
        }
    }

    fn member<'a, 'r>(
        &'a self,
        index: usize,
        request: &'r PoolRequest,
    ) -> Result<(&'a LimitSet, &'r Request), Error> {
        let set = self.get(index).ok_or(Error::Request(RequestError::EmptyPool))?;
        Ok((set, request.request_for(set, index)?))
    }
}

/// What is left of a timeout that started at `begun`.
fn what_is_left(timeout: Option<Duration>, begun: Instant) -> Option<Duration> {
    timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()))
}
