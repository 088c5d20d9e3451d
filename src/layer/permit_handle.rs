//! The permit of a request in one layer, for use by the service that handles it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http::StatusCode;

use super::held::Held;
use crate::api::permit::Permit;
use crate::api::set::limit_set::{LimitName, LimitSet};
use crate::error::{Error, PermitError};
use crate::mutex::lock;

/// The permit of a request in one layer, found among its [`Permits`](super::Permits): to settle what the request has
/// used, to debit a budget while it is answered, and to keep what is held beyond the response.
///
/// A handle does not keep the permit alive: it is given back when the response has ended, even if handles remain.
#[derive(Clone, Debug)]
pub struct PermitHandle {
    shared: Weak<Mutex<Held>>,
    set: LimitSet,
}

/// Keeps what a request holds beyond its response, until dropped. See [`PermitHandle::carry`].
#[derive(Debug)]
#[must_use = "what is carried is given back as soon as this is dropped"]
pub struct CarriedPermit {
    _held: SharedPermit,
}

/// What an admitted request holds, shared by its response and all carried permits. It is given back when the last of
/// them is dropped.
#[derive(Clone, Debug)]
pub(super) struct SharedPermit(Arc<Mutex<Held>>);

impl PermitHandle {
    /// Replaces reserved costs by actual ones: see [`Permit::settle`].
    ///
    /// # Errors
    ///
    /// See [`Permit::settle`]; also [`PermitError::AlreadyReleased`] if the response has ended.
    pub fn settle<N: LimitName>(&self, actual: impl IntoIterator<Item = (N, u64)>) -> Result<(), Error> {
        // Evaluated before the lock is taken: the caller's iterator may use the permit as well.
        let actual: Vec<(N, u64)> = actual.into_iter().collect();
        self.reach(|permit| permit.settle(actual).map(|_| ()))
    }

    /// Debits a budget in full, and returns whether anything was left of it before: see [`Permit::debit`].
    ///
    /// # Errors
    ///
    /// See [`Permit::debit`]; also [`PermitError::AlreadyReleased`] if the response has ended.
    pub fn debit(&self, limit: impl LimitName, used: u64) -> Result<bool, Error> {
        self.reach(|permit| Ok(permit.debit(limit, used)?.is_admitted()))
    }

    /// Gives back what is held before the response has ended: see [`Permit::release`].
    ///
    /// # Errors
    ///
    /// See [`Permit::release`].
    pub fn release(&self) -> Result<(), Error> {
        match self.shared.upgrade() {
            Some(held) => lock(&held).permit().release(),
            None => Ok(()),
        }
    }

    /// Gives back all that the request took, because it never happened: see [`Permit::cancel`]. What was settled before
    /// stays settled. What other layers took is cancelled by their own handles:
    ///
    /// ```
    /// # use shmlimit::layer::Permits;
    /// # use shmlimit::Error;
    /// # fn turn_away(permits: &Permits) -> Result<(), Error> {
    /// for permit in permits.iter() {
    ///     permit.cancel()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Permit::cancel`]; also [`PermitError::AlreadyReleased`] if the response has ended.
    pub fn cancel(&self) -> Result<(), Error> {
        self.reach(Permit::cancel)
    }

    /// Reports that the upstream refused the request: see [`Permit::throttled`].
    ///
    /// # Errors
    ///
    /// See [`Permit::throttled`]; also [`PermitError::AlreadyReleased`] if the response has ended.
    pub fn throttled(&self, retry_after: Duration) -> Result<(), Error> {
        self.reach(|permit| permit.throttled(retry_after))
    }

    /// Keeps what the request holds until the response has ended and the returned value is dropped: for a task that
    /// continues after the response, or an upgraded connection, whose response ends with its head. `None` if the
    /// response has already ended.
    ///
    /// ```
    /// # use shmlimit::layer::PermitHandle;
    /// # async fn speak() {}
    /// # fn answer(permit: PermitHandle) {
    /// let place = permit.carry();
    /// tokio::spawn(async move {
    ///     speak().await; // over the upgraded connection
    ///     drop(place);
    /// });
    /// # }
    /// ```
    pub fn carry(&self) -> Option<CarriedPermit> {
        let held = self.shared.upgrade()?;
        Some(CarriedPermit {
            _held: SharedPermit(held),
        })
    }

    /// The set that the permit belongs to.
    pub fn set(&self) -> &LimitSet {
        &self.set
    }

    fn reach<T>(&self, act: impl FnOnce(&mut Permit<'static>) -> Result<T, Error>) -> Result<T, Error> {
        match self.shared.upgrade() {
            Some(held) => act(lock(&held).permit()),
            None => Err(Error::Permit(PermitError::AlreadyReleased {
                set: self.set.name().to_owned(),
            })),
        }
    }
}

impl SharedPermit {
    pub(super) fn new(held: Held) -> Self {
        Self(Arc::new(Mutex::new(held)))
    }

    /// A handle of the permit, for the service.
    pub(super) fn handle(&self) -> PermitHandle {
        PermitHandle {
            shared: Arc::downgrade(&self.0),
            set: lock(&self.0).permit().set().clone(),
        }
    }

    /// Reports that an upstream refused the request, and gives back what is held.
    pub(super) fn throttled(&self, retry_after: Duration) -> Result<(), Error> {
        lock(&self.0).permit().throttled(retry_after)
    }

    /// Gives back all that was taken, for a request that never happened.
    pub(super) fn abandon(&self) {
        lock(&self.0).permit().abandon();
    }

    /// Records the service's response. An earlier failure stays recorded.
    pub(super) fn note_status(&self, status: StatusCode) {
        // Called without the lock: a closure of the program may use the permit as well.
        let is_failure = lock(&self.0).is_failure();
        if is_failure(status) {
            self.note_failure();
        }
    }

    /// Records that the service returned no response, or broke off in the middle of one.
    pub(super) fn note_failure(&self) {
        lock(&self.0).note_failure();
    }
}
