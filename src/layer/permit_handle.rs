//! The permit of a request, for use by the service that handles it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::{Extensions, StatusCode};

use super::held::Held;
use crate::api::permit::Permit;
use crate::api::set::limit_set::{LimitName, LimitSet};
use crate::error::{Error, PermitError};

/// The permit of a request, found in the request's extensions: to settle what the request has used, to debit a budget
/// while it is answered, and to keep what is held beyond the response.
///
/// In axum, extract it with `Extension<PermitHandle>`. It is present whenever a [`LimitLayer`](super::LimitLayer) has
/// admitted the request under a permit. It is absent if the request is not limited, if it was admitted although the
/// limits [could not be asked](super::OnError::Admit), or if networks are counted
/// ([`Demand::address`](super::Demand::address)), which hold nothing.
///
/// A handle does not keep the permit alive: it is given back when the response has ended, even if handles remain.
///
/// ```
/// # use std::convert::Infallible;
/// # use std::time::Duration;
/// # use http_body_util::Full;
/// # use hyper::body::Bytes;
/// use http::{Request, Response};
/// use shmlimit::layer::{Demand, LimitLayer, PermitHandle};
/// # use shmlimit::{Declaration, Error, Limit, Segment, SetDeclaration};
/// # use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("openai")
/// #     .add_limit(Limit::rate("tokens", 10_000, Duration::from_secs(3600))));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let request = segment.set("openai")?.request().with("tokens", 1_500)?; // an estimate
/// let service = ServiceBuilder::new()
///     .layer(LimitLayer::new(Demand::new(request)?))
///     .service(service_fn(async |request: Request<()>| {
///         let permit = request.extensions().get::<PermitHandle>().cloned();
///         let used = 900; // the actual cost, taken from the answer
///         if let Some(permit) = permit {
///             permit.settle([("tokens", used)])?;
///         }
///         Ok::<_, Error>(Response::new(Full::<Bytes>::from("done")))
///     }));
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(service.oneshot(Request::new(())))?;
/// assert_eq!(segment.snapshot()?.sets[0].limits[0].counts.refunded, 600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PermitHandle {
    shared: Weak<Mutex<Held>>,
    set: LimitSet,
    outer: Option<Arc<PermitHandle>>,
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

    /// Debits a budget in full, and returns whether anything had been left of it: see [`Permit::debit`].
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
    /// stays settled. Those of outer layers are cancelled by their own [handles](Self::outer).
    ///
    /// ```
    /// # use std::iter;
    /// # use shmlimit::Error;
    /// # use shmlimit::layer::PermitHandle;
    /// # fn turn_away(innermost: &PermitHandle) -> Result<(), Error> {
    /// for permit in iter::successors(Some(innermost), |permit| permit.outer()) {
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
    pub fn limit_set(&self) -> &LimitSet {
        &self.set
    }

    /// The permit of the next outer layer, if there are several.
    pub fn outer(&self) -> Option<&Self> {
        self.outer.as_deref()
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

    /// Puts a handle where the service finds it.
    pub(super) fn announce(&self, extensions: &mut Extensions) {
        let outer = extensions.remove::<PermitHandle>().map(Arc::new);
        let set = lock(&self.0).permit().limit_set().clone();
        extensions.insert(PermitHandle {
            shared: Arc::downgrade(&self.0),
            set,
            outer,
        });
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
        lock(&self.0).note_status(status);
    }

    /// Records that the service returned no response, or broke off in the middle of one.
    pub(super) fn note_failure(&self) {
        lock(&self.0).note_failure();
    }
}

/// A panic under the lock leaves the permit intact: each of its operations happens completely or not at all.
fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
