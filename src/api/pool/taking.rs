//! Asking the sets of a pool, at once or in a queue.

use std::future::Future;
use std::time::Duration;

use super::{Chosen, PoolRequest};
use crate::api::permit::Outcome;
use crate::api::pool::pool_strategy::Order;
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
    /// Chooses a set, takes from it everything that the request names or nothing, and answers at once.
    ///
    /// With [`failover`](crate::LimitPool::failover), the sets are asked one after the other until one admits the
    /// request. If all refuse, the answer is the refusal with the shortest wait. Each set that refused has counted a
    /// refusal. A set that could never admit the request is skipped if others could.
    ///
    /// # Errors
    ///
    /// The errors of [`Request::try_acquire`](crate::Request::try_acquire), from the last set asked.
    pub fn try_acquire(&self) -> Result<Chosen<'a>, Error> {
        self.ask(&self.order()?)?.chosen()
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
        // Dropped here and not by the compiler after the return, where a panic would leave the outcome without an
        // owner.
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
        let order = self.order()?;
        let index = match (self.pool.failover, &*order) {
            (false, [only]) => *only,
            (_, all) => match self.ask(all)? {
                Round::Admitted(chosen) => return Ok(chosen),
                Round::Refused { waits_at, .. } => waits_at,
            },
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
        let order = self.order()?;
        if timeout == Some(Duration::ZERO) {
            return self.ask_async(&order).await?.chosen();
        }
        let index = match (self.pool.failover, &*order) {
            (false, [only]) => *only,
            (_, all) => match self.ask_async(all).await? {
                Round::Admitted(chosen) => return Ok(chosen),
                Round::Refused { waits_at, .. } => waits_at,
            },
        };
        let left = self.what_is_left(timeout, begun);
        let outcome = self.member(index)?.acquire_async(left).await?;
        Ok(Chosen { index, outcome })
    }

    /// The sets to ask, in order: all of them with failover, otherwise one.
    fn order(&self) -> Result<Order, Error> {
        let max = if self.pool.failover { self.pool.len() } else { 1 };
        self.pool.order(max)
    }

    /// The current time, by the clock that measures waits.
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
        let mut answers = Answers::default();
        for index in order.iter().copied() {
            let answer = self.member(index)?.try_acquire();
            if let Some(chosen) = answers.note(index, answer)? {
                return Ok(Round::Admitted(chosen));
            }
        }
        answers.end()
    }

    /// Like [`ask`](Self::ask), but does not block while a set waits for the store of a fleet.
    async fn ask_async(&self, order: &[usize]) -> Result<Round<'a>, Error> {
        let mut answers = Answers::default();
        for index in order.iter().copied() {
            let answer = self.member(index)?.acquire_async(Duration::ZERO).await;
            if let Some(chosen) = answers.note(index, answer)? {
                return Ok(Round::Admitted(chosen));
            }
        }
        answers.end()
    }
}

impl<'a> Round<'a> {
    /// The pool's answer if it does not wait: a permit, or the refusal with the shortest wait.
    fn chosen(self) -> Result<Chosen<'a>, Error> {
        match self {
            Round::Admitted(chosen)
            | Round::Refused {
                shortest: Some(chosen),
                ..
            } => Ok(chosen),
            Round::Refused { shortest: None, .. } => Err(Error::Request(RequestError::EmptyPool)),
        }
    }
}

/// What the sets asked so far have answered.
#[derive(Default)]
struct Answers<'a> {
    waits_at: Option<usize>,
    shortest: Option<(Duration, Chosen<'a>)>,
    impossible: Option<Error>,
}

impl<'a> Answers<'a> {
    /// Notes the answer of a set, or returns it if it is a permit.
    fn note(
        &mut self,
        index: usize,
        answer: Result<Outcome<'a>, Error>,
    ) -> Result<Option<Chosen<'a>>, Error> {
        let outcome = match answer {
            Ok(outcome) => outcome,
            // Other sets may have larger limits.
            Err(error @ Error::Request(RequestError::NeverAdmissible { .. })) => {
                self.impossible.get_or_insert(error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Outcome::Refused(refusal) = outcome else {
            return Ok(Some(Chosen { index, outcome }));
        };
        self.waits_at.get_or_insert(index);
        // A refusal that time alone does not lift counts as the longest wait.
        let wait = refusal.retry_after().unwrap_or(Duration::MAX);
        if self.shortest.as_ref().is_none_or(|(min, _)| wait < *min) {
            let outcome = Outcome::Refused(refusal);
            self.shortest = Some((wait, Chosen { index, outcome }));
        }
        Ok(None)
    }

    /// The result, if no set has admitted the request.
    fn end(self) -> Result<Round<'a>, Error> {
        match self.waits_at {
            Some(waits_at) => Ok(Round::Refused {
                waits_at,
                shortest: self.shortest.map(|(_, chosen)| chosen),
            }),
            None => Err(self.impossible.unwrap_or(Error::Request(RequestError::EmptyPool))),
        }
    }
}
