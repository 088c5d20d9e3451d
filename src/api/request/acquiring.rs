//! Acquiring permits.

use std::time::Duration;

use super::{AcquireError, Request};
use crate::api::permit::{Outcome, Permit};
use crate::api::refusal::Refusal;
use crate::api::request_events::RequestEvents;
use crate::api::set::set_reference::SetReference;
use crate::api::wait::acquire_future::AcquireFuture;
use crate::engine::{Acquired, Decision, KeepWaiting};
use crate::error::Error;

impl<'a> Request<'a> {
    /// Takes everything that the request names or nothing, and answers at once. It waits only if nothing is leased yet
    /// of a limit that hosts share: then it waits for the store, at most 50 ms unless [declared
    /// otherwise](crate::declare::FleetLease::cold_wait).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("openai").add_limit(Limit::rate("tokens", 10_000, Duration::from_secs(60))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let openai = segment.set("openai")?;
    /// let request = openai.request().with("tokens", 1_500)?;
    /// match request.try_acquire()? {
    ///     shmlimit::Outcome::Admitted(mut permit) => {
    ///         let settlement = permit.settle([("tokens", 900)])?;
    ///         assert_eq!(settlement.refunded("tokens"), 600);
    ///     }
    ///     shmlimit::Outcome::Refused(refusal) => println!("{refusal}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::CostRequired`](crate::RequestError::CostRequired) and
    /// [`RequestError::NeverAdmissible`](crate::RequestError::NeverAdmissible) for requests that no waiting could
    /// help, [`RequestError::KeyRequired`](crate::RequestError::KeyRequired) if the set is keyed and no key was named,
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned). A refusal is not an error.
    #[inline]
    pub fn try_acquire(&self) -> Result<Outcome<'a>, Error> {
        if self.is_by_credit() {
            return self.try_acquire_by_credit();
        }
        self.try_acquire_rows()
    }

    #[inline(always)]
    pub(super) fn try_acquire_rows(&self) -> Result<Outcome<'a>, Error> {
        let (set, target, costs) = (self.set, self.target()?, self.costs()?);
        let mut decision = Decision::pending(costs, set.engine_set().notes_beside);
        let is_admitted = set.shared().engine.try_acquire(target, costs, &mut decision)?;
        set.see_to_batches();
        if is_admitted {
            Ok(Outcome::Admitted(Permit::new(set, decision)))
        } else {
            Ok(Outcome::Refused(Refusal::of(set, decision, self.label_text())))
        }
    }

    /// How long [`try_acquire`](Self::try_acquire) and [`check`](Self::check) would wait for the store of a fleet now:
    /// zero, unless a limit that [hosts share](crate::Limit::fleet) has nothing leased yet. Code that must not block
    /// awaits [`acquire_async`](Self::acquire_async) with this timeout instead.
    ///
    /// # Errors
    ///
    /// See [`try_acquire`](Self::try_acquire).
    pub fn cold_wait(&self) -> Result<Duration, Error> {
        // Hosts share no limits of networks.
        let Some(target) = self.rows() else {
            return Ok(Duration::ZERO);
        };
        let nanos = self.set.shared().engine.cold_wait(target, self.costs()?)?;
        Ok(Duration::from_nanos(nanos))
    }

    /// Like [`try_acquire`](Self::try_acquire), with the refusal as an error, so that `?` returns it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("openai").add_limit(Limit::rate("tokens", 10_000, Duration::from_secs(60))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let openai = segment.set("openai")?;
    /// let mut permit = openai.request().with("tokens", 1_500)?.try_permit()?;
    /// permit.settle([("tokens", 900)])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AcquireError::Refused`], and the errors of [`try_acquire`](Self::try_acquire) as [`AcquireError::Failed`].
    #[inline]
    pub fn try_permit(&self) -> Result<Permit<'a>, AcquireError> {
        Ok(self.try_acquire()?.into_result()?)
    }

    /// Takes everything that the request names, waiting for it in the queue: first come, first served, across all
    /// threads and processes. Without a timeout it waits as long as needed; with a timeout of zero it is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// A set has one queue, and a keyed set one for each key; keys that wait for limits of [all
    /// keys](crate::Limit::scope) are served in proportion to their weights. Only the first waiter of a queue is
    /// served, so large requests are not starved by small ones, and no process overtakes. A waiter sleeps until its
    /// request is granted, or until the instant at which time alone makes it admissible. When a process in the queue
    /// dies, those behind it move up.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 1)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let pool = segment.set("pool")?;
    /// let first = pool.request().acquire(None)?.into_result().expect("without a timeout, it is admitted");
    /// let second = pool.request().acquire(Duration::from_millis(1))?;
    /// assert!(!second.is_admitted()); // the only connection was not given back in time
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The queue has [5,120 places unless declared otherwise](crate::SetDeclaration::waiters). If it is full, the
    /// request is refused at once, with or without a timeout.
    ///
    /// A thread that waits for a permit that only it can release waits forever, as with any lock.
    ///
    /// # Errors
    ///
    /// See [`try_acquire`](Self::try_acquire). After an error the request is no longer in the queue. A timeout and a
    /// [full queue](crate::RefusalReason::QueueFull) are refusals, not errors.
    #[inline]
    pub fn acquire(&self, timeout: impl Into<Option<Duration>>) -> Result<Outcome<'a>, Error> {
        self.acquire_rows(timeout.into(), None)
    }

    #[inline]
    pub(crate) fn acquire_rows(
        &self,
        timeout: Option<Duration>,
        keep_waiting: Option<KeepWaiting<'_>>,
    ) -> Result<Outcome<'a>, Error> {
        if timeout == Some(Duration::ZERO) {
            return self.try_acquire_rows();
        }
        let (set, target, costs) = (self.set, self.target()?, self.costs()?);
        let mut decision = Decision::pending(costs, set.engine_set().notes_beside);
        let engine = &set.shared().engine;
        let acquired = engine.acquire(target, costs, &mut decision, timeout, keep_waiting)?;
        if acquired.is_admitted {
            set.see_to_batches();
        }
        Ok(SetReference::Borrowed(set).outcome_of(acquired, decision, self.label_text()))
    }

    /// Like [`acquire`](Self::acquire), but waits only while `keep_waiting` returns true: for callers that may be
    /// interrupted, by a signal for instance. It is called before and after each sleep, so at least about once a
    /// second, and whenever a signal handler has run in the waiting thread; never if there is nothing to wait for. No
    /// lock is held during the call.
    ///
    /// When it returns false, the answer is the same as for a timeout at that instant: a refusal, or a permit that
    /// was granted just then.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 1)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let pool = segment.set("pool")?;
    /// let first = pool.request().acquire(None)?.into_result().expect("without a timeout, it is admitted");
    /// let mut looks = 0;
    /// let second = pool.request().acquire_while(None, || {
    ///     looks += 1;
    ///     looks < 3 // a program would check whether it has been asked to stop
    /// })?;
    /// assert!(!second.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire).
    pub fn acquire_while(
        &self,
        timeout: impl Into<Option<Duration>>,
        mut keep_waiting: impl FnMut() -> bool,
    ) -> Result<Outcome<'a>, Error> {
        let outcome = self.acquire_rows(timeout.into(), Some(&mut keep_waiting));
        // Dropped here and not by the compiler after the return, where a panic would leave the outcome without an
        // owner.
        drop(keep_waiting);
        outcome
    }

    /// Like [`acquire`](Self::acquire), as a future for any runtime. It waits in the same queue as threads and other
    /// processes, and leaves the queue if it is dropped before it completes. The timeout counts from this call. If
    /// the queue, which has [5,120 places unless declared otherwise](crate::SetDeclaration::waiters), is full, the
    /// request is refused at once.
    ///
    /// While in the queue, the future must be polled when it is woken. A grant that it does not collect within a
    /// second is taken back if others wait; the future keeps its place and waits on when it is polled again. Nothing
    /// is granted after the timeout, polled or not.
    ///
    /// The future borrows the set's handle, as the permit does; for spawned tasks there is
    /// [`into_owned`](AcquireFuture::into_owned).
    ///
    /// All futures of a process share one thread that sleeps for them, started when the first of them has to wait. A
    /// future that is carried across a fork starts over in the child, with a place of its own in the queue.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 1)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let pool = segment.set("pool")?;
    /// if let Ok(permit) = pool.request().acquire_async(Duration::from_secs(30)).await?.into_result() {
    ///     // talk to the database
    ///     drop(permit);
    /// }
    /// # Ok::<(), shmlimit::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Self::acquire), and [`OpenError::Io`](crate::OpenError::Io) if the thread cannot be
    /// started.
    pub fn acquire_async(&self, timeout: impl Into<Option<Duration>>) -> AcquireFuture<'a> {
        AcquireFuture::new(self, timeout.into())
    }
}

impl<'a> SetReference<'a> {
    /// The outcome of a request that could wait. The wait is reported only after the permit exists, because the
    /// observer may panic.
    #[inline]
    pub(crate) fn outcome_of(
        &self,
        acquired: Acquired,
        decision: Decision,
        label: Option<&str>,
    ) -> Outcome<'a> {
        let report = |events: &RequestEvents| {
            if let Some(nanos) = acquired.waited {
                events.waited(self.position(), self.name(), label, nanos, acquired.is_admitted);
            }
        };
        let events = self.shared().request_events.as_ref();
        if acquired.is_admitted {
            let permit = Permit::of(self.clone(), decision);
            events.map(report);
            Outcome::Admitted(permit)
        } else {
            events.map(report);
            Outcome::Refused(Refusal::of(self, decision, label))
        }
    }
}
