//! Asking the sets of a pool, at once or in a queue.

use std::future::Future;
use std::time::Duration;

use super::{Chosen, PoolRequest};
use crate::api::permit::Outcome;
use crate::engine::KeepWaiting;
use crate::error::{Error, RequestError};

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

impl<'a> PoolRequest<'a> {
    /// Chooses a set, takes everything that the request names from it or nothing, and answers at once.
    ///
    /// With [`failover`](crate::LimitPool::failover), the sets are asked one after the other until one admits the
    /// request. If all refuse, the answer is the refusal with the shortest wait. Each set that refused has counted a
    /// refusal. A set that could never admit the request is skipped if others could.
    ///
    /// # Errors
    ///
    /// The errors of [`Request::try_acquire`](crate::Request::try_acquire), from the last set asked.
    pub fn try_acquire(&self) -> Result<Chosen<'a>, Error> {
        let max = if self.pool.failover { self.pool.len() } else { 1 };
        let order = self.pool.order(max)?;
        match self.ask(&order)? {
            Round::Admitted(chosen)
            | Round::Refused {
                shortest: Some(chosen),
                ..
            } => Ok(chosen),
            Round::Refused { shortest: None, .. } => Err(Error::Request(RequestError::EmptyPool)),
        }
    }

    /// Chooses a set and waits in its queue: see [`Request::acquire`](crate::Request::acquire).
    ///
    /// With [`failover`](crate::LimitPool::failover), every set is first asked without waiting. If all refuse, the
    /// request waits in the queue of the first set asked, and only there.
    ///
    /// # Errors
    ///
    /// See [`Request::acquire`](crate::Request::acquire).
    pub fn acquire(&self, timeout: impl Into<Option<Duration>>) -> Result<Chosen<'a>, Error> {
        self.wait(timeout.into(), None)
    }

    /// Like [`acquire`](Self::acquire), but stops waiting when `keep_waiting` returns false: see
    /// [`Request::acquire_while`](crate::Request::acquire_while).
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire).
    pub fn acquire_while(
        &self,
        timeout: impl Into<Option<Duration>>,
        mut keep_waiting: impl FnMut() -> bool,
    ) -> Result<Chosen<'a>, Error> {
        let chosen = self.wait(timeout.into(), Some(&mut keep_waiting));
        // Here, and not by the compiler after the return: a panic would then leave what is returned without an owner.
        drop(keep_waiting);
        chosen
    }

    fn wait(
        &self,
        timeout: Option<Duration>,
        keep_waiting: Option<KeepWaiting<'_>>,
    ) -> Result<Chosen<'a>, Error> {
        if timeout == Some(Duration::ZERO) {
            return self.try_acquire();
        }
        let begun = self.now();
        let index = match self.ask_before_waiting()? {
            Round::Admitted(chosen) => return Ok(chosen),
            Round::Refused { waits_at, .. } => waits_at,
        };
        let left = self.what_is_left(timeout, begun);
        let outcome = self.member(index)?.acquire_rows(left, keep_waiting)?;
        Ok(Chosen { index, outcome })
    }

    /// Like [`acquire`](Self::acquire), as a future for any runtime: see
    /// [`Request::acquire_async`](crate::Request::acquire_async). The timeout counts from this call; the set is chosen
    /// when the future is first polled.
    ///
    /// # Errors
    ///
    /// See [`Request::acquire_async`](crate::Request::acquire_async).
    pub fn acquire_async<T: Into<Option<Duration>>>(
        &self,
        timeout: T,
    ) -> impl Future<Output = Result<Chosen<'a>, Error>> + Send + use<'a, T> {
        self.clone().wait_for_one(timeout.into(), self.now())
    }

    async fn wait_for_one(self, timeout: Option<Duration>, begun: u64) -> Result<Chosen<'a>, Error> {
        if timeout == Some(Duration::ZERO) {
            return self.try_acquire();
        }
        let index = match self.ask_before_waiting()? {
            Round::Admitted(chosen) => return Ok(chosen),
            Round::Refused { waits_at, .. } => waits_at,
        };
        let left = self.what_is_left(timeout, begun);
        let outcome = self.member(index)?.acquire_async(left).await?;
        Ok(Chosen { index, outcome })
    }

    /// Chooses where to wait. With failover, all sets are asked first.
    fn ask_before_waiting(&self) -> Result<Round<'a>, Error> {
        if self.pool.failover {
            let order = self.pool.order(self.pool.len())?;
            return self.ask(&order);
        }
        let order = self.pool.order(1)?;
        Ok(Round::Refused {
            waits_at: order.first().copied().unwrap_or_default(),
            shortest: None,
        })
    }

    /// The time by which its waits are measured.
    fn now(&self) -> u64 {
        let first = self.pool.get(0);
        first.map_or(0, |set| set.shared().engine.wait_nanos())
    }

    /// What is left of a timeout that started at `begun`.
    fn what_is_left(&self, timeout: Option<Duration>, begun: u64) -> Option<Duration> {
        let passed = Duration::from_nanos(self.now().saturating_sub(begun));
        timeout.map(|timeout| timeout.saturating_sub(passed))
    }

    /// Asks one set after the other until one admits the request.
    fn ask(&self, order: &[usize]) -> Result<Round<'a>, Error> {
        let mut waits_at = None;
        let mut shortest: Option<(Duration, Chosen<'a>)> = None;
        let mut impossible = None;
        for index in order.iter().copied() {
            let outcome = match self.member(index)?.try_acquire() {
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
}
