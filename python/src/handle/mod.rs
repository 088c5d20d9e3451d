//! A set, shared by all objects that come from it.
#![allow(unsafe_code)]

pub(crate) mod fleet_thread;
pub(crate) mod request_log;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use shmlimit::{Limit, LimitPool, LimitSet, Request};

use crate::handle::fleet_thread::FleetThread;
use crate::handle::request_log::RequestLog;

/// A set, and values computed for it once. It is a Python object because the interpreter's reference counts need no
/// atomic instructions. It refers to no other object.
#[pyclass(frozen, module = "shmlimit._native")]
#[derive(Debug)]
pub struct Handle {
    pub set: LimitSet,
    pub path: PathBuf,
    pub strict: bool,
    /// The limits count networks, so keys are addresses.
    pub is_by_address: bool,
    /// The label of its requests.
    pub label: Option<String>,
    /// Keeps the events of requests, if they are logged.
    request_log: Option<Arc<RequestLog>>,
    /// Renews the fleet's leases while the handle is in use, if hosts share limits.
    fleet_thread: Option<Arc<FleetThread>>,
}

impl Handle {
    /// A handle of a set.
    pub fn new(
        py: Python<'_>,
        set: LimitSet,
        path: &Path,
        strict: bool,
        label: Option<String>,
        request_log: Option<Arc<RequestLog>>,
        fleet_thread: Option<Arc<FleetThread>>,
    ) -> PyResult<Py<Self>> {
        let set = set.strict(strict);
        let handle = Self {
            path: path.to_owned(),
            strict,
            is_by_address: set.is_by_address(),
            label,
            request_log,
            fleet_thread,
            set,
        };
        Py::new(py, handle)
    }

    /// A handle of the same set, with another label.
    pub fn labelled(&self, py: Python<'_>, label: Option<String>) -> PyResult<Py<Self>> {
        Self::new(
            py,
            self.set.clone(),
            &self.path,
            self.strict,
            label,
            self.request_log.clone(),
            self.fleet_thread.clone(),
        )
    }

    /// A request without costs. `set` is this handle's, for as long as the request lives.
    #[inline]
    pub fn request<'a>(&self, set: &'a LimitSet) -> Request<'a> {
        let request = set.request();
        match &self.label {
            None => request,
            Some(label) => request.label(label),
        }
    }

    /// Logs this thread's events of requests, if that is enabled. Called before an answer is returned.
    #[inline]
    pub fn log_requests(&self, py: Python<'_>) -> PyResult<()> {
        match &self.request_log {
            None => Ok(()),
            Some(log) => log.flush(py),
        }
    }

    /// The limit of that name.
    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.set
            .declared_limits()
            .iter()
            .find(|limit| limit.name() == name)
    }
}

/// A pool, and the handles of its members.
#[derive(Debug)]
pub struct PoolHandle {
    pub pool: LimitPool,
    pub members: Vec<Py<Handle>>,
}

impl PoolHandle {
    /// Logs this thread's events of all sets that may have been asked, even if logging one of them raises.
    pub fn log_requests(&self, py: Python<'_>) -> PyResult<()> {
        let logged = self.members.iter().map(|member| member.get().log_requests(py));
        logged.fold(Ok(()), Result::and)
    }
}

/// A borrower of a set, together with the handle that keeps the set in place.
///
/// Python has no lifetimes, so a borrower is kept beside its lender.
pub struct WithHandle<T> {
    // Dropped in this order: the borrower before its lenders.
    borrower: T,
    handle: Py<Handle>,
    /// The pool, if the borrower borrows from one; the handle is then that of its member.
    pool: Option<Arc<PoolHandle>>,
}

impl<T> WithHandle<T> {
    /// Keeps what `borrow` borrows from the set.
    #[inline(always)]
    pub fn try_new<E>(
        py: Python<'_>,
        handle: &Py<Handle>,
        borrow: impl FnOnce(&'static LimitSet) -> Result<T, E>,
    ) -> Result<Self, E> {
        // SAFETY: the set is inside the handle's object, which neither moves nor is freed while the `WithHandle` of the
        // borrower holds a reference to it; nothing has mutable access to it there. The borrower is dropped first, by
        // the order of the fields, and leaves a `WithHandle` only for another one with the same lenders. The closures
        // of this crate store what they borrow nowhere else.
        let set = unsafe { &*std::ptr::from_ref(&handle.get().set) };
        Ok(Self {
            borrower: borrow(set)?,
            handle: handle.clone_ref(py),
            pool: None,
        })
    }

    /// Keeps what `borrow` borrows from the pool. Until [`map_to_member`](Self::map_to_member), the handle is that of
    /// the first member.
    pub fn of_pool(
        py: Python<'_>,
        pool: &Arc<PoolHandle>,
        first: &Py<Handle>,
        borrow: impl FnOnce(&'static LimitPool) -> T,
    ) -> Self {
        // SAFETY: as in `try_new`, with the pool in place of the set.
        let lent = unsafe { &*std::ptr::from_ref(&pool.pool) };
        Self {
            borrower: borrow(lent),
            handle: first.clone_ref(py),
            pool: Some(Arc::clone(pool)),
        }
    }

    /// Replaces the borrower with a part or a successor of it.
    #[inline(always)]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> WithHandle<U> {
        WithHandle {
            borrower: change(self.borrower),
            handle: self.handle,
            pool: self.pool,
        }
    }

    /// Replaces the borrower, and the handle with that of the pool's member that `change` returns.
    pub fn map_to_member<U>(self, py: Python<'_>, change: impl FnOnce(T) -> (usize, U)) -> WithHandle<U> {
        let Self {
            borrower,
            handle,
            pool,
        } = self;
        let (index, borrower) = change(borrower);
        let member = pool.as_ref().and_then(|pool| pool.members.get(index));
        WithHandle {
            borrower,
            handle: member.map_or(handle, |member| member.clone_ref(py)),
            pool,
        }
    }

    /// Replaces the borrower with one of two kinds of successor.
    #[inline(always)]
    pub fn separate<A, B>(
        self,
        separate: impl FnOnce(T) -> Result<A, B>,
    ) -> Result<WithHandle<A>, WithHandle<B>> {
        let Self {
            borrower,
            handle,
            pool,
        } = self;
        match separate(borrower) {
            Ok(borrower) => Ok(WithHandle {
                borrower,
                handle,
                pool,
            }),
            Err(borrower) => Err(WithHandle {
                borrower,
                handle,
                pool,
            }),
        }
    }
}

impl<T> WithHandle<Vec<T>> {
    /// Splits a collection of borrowers.
    pub fn each(self, py: Python<'_>) -> impl Iterator<Item = WithHandle<T>> {
        let Self {
            borrower,
            handle,
            pool,
        } = self;
        borrower.into_iter().map(move |borrower| WithHandle {
            borrower,
            handle: handle.clone_ref(py),
            pool: pool.clone(),
        })
    }
}

impl<T> WithHandle<T> {
    /// The borrower.
    pub fn get(&self) -> &T {
        &self.borrower
    }

    /// The borrower, mutably.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.borrower
    }

    /// The handle of the set.
    pub fn handle(&self) -> &Handle {
        self.handle.get()
    }

    /// Drops the borrower, and then its lenders, while holding the GIL.
    #[inline]
    pub fn end(self, py: Python<'_>) {
        let Self {
            borrower,
            handle,
            pool,
        } = self;
        drop(borrower);
        handle.drop_ref(py);
        drop(pool);
    }
}
