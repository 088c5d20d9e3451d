//! Pools in Python.

use std::collections::BTreeSet;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use shmlimit::pool::{Chosen, PoolRequest, PoolStrategy};
use shmlimit::{Error, LimitPool, Outcome, RequestError};

use crate::answers::permit;
use crate::arguments::amount::Amount;
use crate::arguments::request::Costs;
use crate::handle::{Handle, PoolHandle, WithHandle};
use crate::interpreter::error::{OrRaise, chosen, raised};
use crate::interpreter::interruption::Interruption;
use crate::interpreter::seconds;
use crate::segments::set::{Object, SetHandle};
use crate::segments::waiting::{PoolFuture, Waiting};

/// Chooses among several sets, separately in each process.
#[pyclass(subclass, frozen, module = "shmlimit._native")]
pub struct Pool {
    handle: Arc<PoolHandle>,
}

impl Pool {
    /// Reads what to take, as text: each set counts in its own units.
    fn read(&self, costs: Costs<'_, '_>) -> PyResult<Vec<(String, String)>> {
        let known = || {
            let members = self.handle.members.iter();
            let named: BTreeSet<&str> = members.flat_map(|member| member.get().set.limits()).collect();
            named.into_iter().collect()
        };
        let pool = || "the pool".to_owned();
        let mut read = Vec::new();
        costs.for_each(pool, known, |name, amount| {
            read.push((name.to_owned(), Amount::from_object(amount)?.into_text()));
            Ok(())
        })?;
        Ok(read)
    }

    /// Makes the request, with the label of each member.
    fn request<'a>(&self, pool: &'a LimitPool, costs: &[(String, String)]) -> Result<PoolRequest<'a>, Error> {
        let mut request = pool.request();
        for (index, member) in self.handle.members.iter().enumerate() {
            if let Some(label) = &member.get().label {
                request = request.label(index, label);
            }
        }
        costs.iter().try_fold(request, |request, (name, amount)| {
            request.with_decimal(name, amount)
        })
    }

    /// Logs the request's events, and returns the pool's answer as the outcome of the chosen member. If logging raises,
    /// nothing is taken.
    fn answered(
        &self,
        py: Python<'_>,
        answer: WithHandle<Result<Chosen<'static>, Error>>,
    ) -> PyResult<WithHandle<Outcome<'static>>> {
        let logged = self.handle.log_requests(py);
        let outcome = match answer.separate(|answer| answer) {
            Ok(chosen) => Ok(chosen.map_to_member(py, |Chosen { index, outcome, .. }| (index, outcome))),
            Err(error) => Err(error),
        };
        match (logged, outcome) {
            (Ok(()), Ok(outcome)) => Ok(outcome),
            (Ok(()), Err(error)) => Err(raised(py, error.get())),
            (Err(raised), outcome) => {
                let _ = outcome.map(permit::undo);
                Err(raised)
            }
        }
    }

    fn first(&self, py: Python<'_>) -> PyResult<&Py<Handle>> {
        let first = self.handle.members.first();
        first.ok_or_else(|| raised(py, &Error::Request(RequestError::EmptyPool)))
    }
}

/// Whether one of the sets would wait for the store of a fleet now, as hardly any does.
fn waits_for_a_store(request: &PoolRequest<'_>) -> Result<bool, Error> {
    for member in (0..).map_while(|index| request.get(index)) {
        if !member.cold_wait()?.is_zero() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (members, strategy="round_robin", *, failover=false, worker_index=None))]
    fn new(
        py: Python<'_>,
        members: Vec<PyRef<'_, SetHandle>>,
        strategy: &str,
        failover: bool,
        worker_index: Option<usize>,
    ) -> PyResult<Self> {
        let strategy: PoolStrategy = chosen("strategy", strategy)?;
        let members: Vec<_> = members
            .iter()
            .map(|member| member.handle().clone_ref(py))
            .collect();
        let sets = members.iter().map(|member| member.get().set.clone());
        let mut pool = LimitPool::new(sets, strategy).or_raise(py)?.failover(failover);
        if let Some(index) = worker_index {
            pool = pool.start_at(index);
        }
        Ok(Self {
            handle: Arc::new(PoolHandle { pool, members }),
        })
    }

    fn __len__(&self) -> usize {
        self.handle.members.len()
    }

    /// Chooses a set and takes everything that the request names from it, or nothing. With failover, asks one set after
    /// another until one admits.
    ///
    /// Args:
    ///     costs: What to take of each limit, by name. Each set counts in its own units.
    ///     heartbeat: Whether a thread of this process renews the leases until the permit is released.
    ///     named: Costs as keywords, as for `SetHandle.try_acquire`.
    ///
    /// Returns:
    ///     A permit, which is truthy, or the refusal with the shortest wait, which is falsy.
    ///
    /// Raises:
    ///     RequestError: No set could ever admit it.
    #[pyo3(signature = (costs=None, *, heartbeat=false, **named))]
    fn try_acquire<'py>(
        &self,
        py: Python<'py>,
        costs: Object<'_, '_>,
        heartbeat: bool,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let costs = self.read(Costs::new(costs, named))?;
        let chosen = WithHandle::of_pool(py, &self.handle, self.first(py)?, |pool| {
            let request = self.request(pool, &costs)?;
            match waits_for_a_store(&request)? {
                true => py.detach(|| request.try_acquire()),
                false => request.try_acquire(),
            }
        });
        permit::answer(py, self.answered(py, chosen)?, heartbeat, permit::as_answer)
    }

    /// Chooses a set and waits in its queue. With failover, every set is first asked without waiting.
    ///
    /// Args:
    ///     costs: What to take of each limit.
    ///     timeout: Seconds to wait at most, 0 for not at all; by default as long as it takes.
    ///     heartbeat: Whether the leases are renewed until the permit is released.
    ///     named: Costs as keywords, as for `SetHandle.try_acquire`.
    ///
    /// Returns:
    ///     The permit.
    ///
    /// Raises:
    ///     AcquireTimeout: The time was up.
    ///     Refused: The queue is full.
    ///     RequestError: Waiting could not help.
    ///     ValueError: The timeout is negative.
    #[pyo3(signature = (costs=None, *, timeout=None, heartbeat=false, **named))]
    fn acquire<'py>(
        &self,
        py: Python<'py>,
        costs: Object<'_, '_>,
        timeout: Object<'_, '_>,
        heartbeat: bool,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let costs = self.read(Costs::new(costs, named))?;
        let timeout = seconds::timeout(timeout)?;
        let mut interrupted = Ok(());
        let chosen = WithHandle::of_pool(py, &self.handle, self.first(py)?, |pool| {
            let mut interruption = Interruption::new(py);
            let chosen = self.request(pool, &costs).and_then(|request| {
                // The request waits for the store before it waits in a queue, if it waits in one at all.
                if waits_for_a_store(&request)? {
                    interruption.let_others_run();
                }
                request.acquire_while(timeout, || interruption.keep_waiting())
            });
            interrupted = interruption.end();
            chosen
        });
        let answered = self.answered(py, chosen);
        if let Err(raised) = interrupted {
            let _ = answered.map(permit::undo);
            return Err(raised);
        }
        permit::answer(py, answered?, heartbeat, permit::as_error)
    }

    /// Begins a request of a task, which then polls it.
    #[pyo3(signature = (costs, named, timeout, heartbeat))]
    fn _begin(
        &self,
        py: Python<'_>,
        costs: Object<'_, '_>,
        named: Option<&Bound<'_, PyDict>>,
        timeout: Object<'_, '_>,
        heartbeat: bool,
    ) -> PyResult<Waiting> {
        let costs = self.read(Costs::new(costs, named))?;
        let timeout = seconds::timeout(timeout)?;
        let future = WithHandle::of_pool(py, &self.handle, self.first(py)?, |pool| {
            let request = self.request(pool, &costs)?;
            Ok(Box::pin(request.acquire_async(timeout)) as PoolFuture)
        });
        let future = future
            .separate(|future: Result<PoolFuture, Error>| future)
            .map_err(|error| raised(py, error.get()))?;
        Ok(Waiting::of_pool(&self.handle, future, heartbeat))
    }
}
