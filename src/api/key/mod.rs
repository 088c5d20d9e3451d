//! One key of a keyed set, as programs use it.

pub(crate) mod address;
pub(crate) mod assignment;
pub(crate) mod identify;
pub(crate) mod key_override;

use std::time::Duration;

use super::permit::Outcome;
use super::refusal::Verdict;
use super::request::Request;
use super::reservation::ReserveOutcome;
use super::set::limit_set::LimitSet;
use super::set::subject::Subject;
use super::wait::acquire_future::AcquireFuture;
use crate::engine::KeyIdentity;
use crate::error::{Error, RequestError};
use identify::identify;

/// One key of a [keyed](crate::SetDeclaration::keyed) set, with limits of its own.
///
/// It can do what a [`LimitSet`] that is not keyed can. Creating it hashes the key, so one that is used often is
/// worth keeping. A key that no process has used takes no space. It gets a row of the table at its first decision,
/// and keeps it until everything it has used is replenished and another key needs the row.
///
/// ```
/// # use std::time::Duration;
/// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
///
/// # let directory = tempfile::tempdir()?;
/// let declaration = Declaration::new().add_set(
///     SetDeclaration::new("api")
///         .keyed(Keyed::new(100_000))
///         .add_limit(Limit::calls("requests", 2, Duration::from_secs(60))),
/// );
/// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let api = segment.set("api")?;
/// let request = api.request();
/// for _ in 0..2 {
///     assert!(api.key("tenant-7")?.try_acquire(&request)?.is_admitted());
/// }
/// assert!(!api.key("tenant-7")?.try_acquire(&request)?.is_admitted());
/// assert!(api.key("tenant-8")?.try_acquire(&request)?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub(crate) subject: Subject<'a>,
}

impl LimitSet {
    /// The limits of one key: any string of 1 to 65,536 bytes. Keys are told apart by a 128-bit hash, seeded at
    /// random for each segment.
    ///
    /// # Errors
    ///
    /// [`RequestError::NotKeyed`]; [`RequestError::InvalidKey`] if the key is empty or too long;
    /// [`RequestError::AddressRequired`].
    #[inline]
    pub fn key(&self, key: impl AsRef<[u8]>) -> Result<Key<'_>, Error> {
        let identity = self.identify(key.as_ref())?;
        Ok(Key {
            subject: Subject {
                set: self,
                key: Some(identity),
            },
        })
    }

    /// Whether the limits count networks, so that the set is used by [`address`](Self::address) rather than by key.
    pub fn is_by_address(&self) -> bool {
        !self.engine_set().levels.is_empty()
    }

    #[inline]
    pub(crate) fn identify(&self, key: &[u8]) -> Result<KeyIdentity, Error> {
        identify(self.engine_set(), key)
    }

    /// Whether each key has limits of its own.
    pub fn is_keyed(&self) -> bool {
        self.engine_set().is_keyed()
    }

    /// The set as a whole; an error if it is keyed, because then only its keys have limits.
    #[inline]
    pub(crate) fn subject(&self) -> Result<Subject<'_>, Error> {
        if self.engine_set().is_keyed() {
            return Err(Error::Request(RequestError::KeyRequired {
                set: self.name().to_owned(),
            }));
        }
        Ok(Subject { set: self, key: None })
    }
}

impl<'a> Key<'a> {
    /// The set that the key belongs to.
    pub fn limit_set(&self) -> &'a LimitSet {
        self.subject.set
    }

    /// Acquires from the limits of this key: see [`LimitSet::try_acquire`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::try_acquire`]. If the table has no row for a new key, that is a refusal:
    /// [`RefusalReason::TableFull`](crate::RefusalReason::TableFull).
    #[inline]
    pub fn try_acquire(&self, request: &Request) -> Result<Outcome<'a>, Error> {
        self.subject.try_acquire(request)
    }

    /// Waits in this key's own queue: see [`LimitSet::acquire`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::acquire`].
    #[inline]
    pub fn acquire(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Outcome<'a>, Error> {
        self.subject.acquire(request, timeout.into(), None)
    }

    /// Waits in this key's own queue while `keep_waiting` returns true: see [`LimitSet::acquire_while`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::acquire_while`].
    pub fn acquire_while(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
        keep_waiting: impl FnMut() -> bool,
    ) -> Result<Outcome<'a>, Error> {
        self.subject.acquire_while(request, timeout.into(), keep_waiting)
    }

    /// Waits in this key's own queue, as a future: see [`LimitSet::acquire_async`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::acquire_async`].
    pub fn acquire_async(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> AcquireFuture<'a> {
        self.subject.acquire_async(request, timeout.into())
    }

    /// Waits in this key's own queue, as a future that borrows nothing: see [`LimitSet::acquire_owned`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::acquire_owned`].
    pub fn acquire_owned(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> AcquireFuture<'static> {
        self.acquire_async(request, timeout).into_owned()
    }

    /// Reserves from the limits of this key: see [`LimitSet::reserve`].
    ///
    /// # Errors
    ///
    /// See [`LimitSet::reserve`].
    pub fn reserve(&self, request: &Request, max_delay: Duration) -> Result<ReserveOutcome<'a>, Error> {
        self.subject.reserve(request, max_delay)
    }

    /// What each limit of this key would answer now: see [`LimitSet::peek`]. A key without a row answers like an
    /// unused key.
    ///
    /// # Errors
    ///
    /// See [`LimitSet::peek`].
    pub fn peek(&self, request: &Request) -> Result<Vec<Verdict<'a>>, Error> {
        self.subject.peek(request)
    }

    /// Replenishes the named limits of this key, or all of them if none is named. Returns whether the key had a row.
    /// What it holds stays held.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`], [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn reset(&self, limits: &[&str]) -> Result<bool, Error> {
        let set = self.subject.set;
        let named = set.mask_of(limits)?;
        let target = self.subject.target();
        let Some(key) = target.key else {
            return Ok(false);
        };
        Ok(set.shared().engine.reset_key(target.shard(), key, named)?)
    }
}
