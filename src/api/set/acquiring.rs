//! Acquiring the limits of a set.

use std::time::Duration;

use super::limit_set::LimitSet;
use super::set_reference::SetReference;
use crate::api::permit::{Outcome, Permit};
use crate::api::refusal::{Refusal, Verdict};
use crate::api::request::Request;
use crate::api::request_events::RequestEvents;
use crate::api::wait::acquire_future::AcquireFuture;
use crate::engine::{Acquired, Decision};
use crate::error::Error;

impl LimitSet {
    /// A request that takes the default of every limit: one of each calls and concurrency limit, and nothing of a
    /// budget. A rate limit has no default and must be named: see [`Request::with`].
    pub fn request(&self) -> Request {
        Request::new(self)
    }

    /// Takes everything that the request names or nothing, and answers at once.
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
    /// match openai.try_acquire(&request)? {
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
    /// help, [`RequestError::ForeignRequest`](crate::RequestError::ForeignRequest),
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned). A refusal is not an error.
    #[inline]
    pub fn try_acquire(&self, request: &Request) -> Result<Outcome<'_>, Error> {
        if self.engine_set().has_credit() {
            return self.try_acquire_by_credit(request);
        }
        self.subject()?.try_acquire(request)
    }

    /// Takes everything that the request names, waiting for it in the queue: first come, first served, across all
    /// threads and processes. Without a timeout it waits as long as needed; with a timeout of zero it is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// Each set has one queue. Only its first waiter is served, so large requests are not starved by small ones, and
    /// no process overtakes. A waiter sleeps until its request is granted, or until the instant at which time alone
    /// makes it admissible. When a process in the queue dies, those behind it move up.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 1)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let pool = segment.set("pool")?;
    /// let first = pool.acquire(&pool.request(), None)?.into_result().expect("without a timeout, it is admitted");
    /// let second = pool.acquire(&pool.request(), Duration::from_millis(1))?;
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
    pub fn acquire(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Outcome<'_>, Error> {
        self.subject()?.acquire(request, timeout.into(), None)
    }

    /// Like [`acquire`](Self::acquire), but waits only while `keep_waiting` returns true: for callers that may be
    /// interrupted, by a signal for instance. It is called before and after each sleep, so about once a second at
    /// least, and whenever a signal handler has run in the waiting thread; never if there is nothing to wait for. No
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
    /// let first = pool.acquire(&pool.request(), None)?.into_result().expect("without a timeout, it is admitted");
    /// let mut looks = 0;
    /// let second = pool.acquire_while(&pool.request(), None, || {
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
        request: &Request,
        timeout: impl Into<Option<Duration>>,
        keep_waiting: impl FnMut() -> bool,
    ) -> Result<Outcome<'_>, Error> {
        self.subject()?
            .acquire_while(request, timeout.into(), keep_waiting)
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
    /// if let Ok(permit) = pool.acquire_async(&pool.request(), Duration::from_secs(30)).await?.into_result() {
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
    pub fn acquire_async(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> AcquireFuture<'_> {
        match self.subject() {
            Ok(subject) => subject.acquire_async(request, timeout.into()),
            Err(error) => AcquireFuture::failed(self, error),
        }
    }

    /// Like [`acquire_async`](Self::acquire_async), but neither the future nor its permit borrows anything: for
    /// spawned tasks. Each keeps the segment attached by itself.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 2)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let pool = segment.set("pool")?;
    /// let waiting = pool.acquire_owned(&pool.request(), Duration::from_secs(30));
    /// let task = tokio::spawn(async move {
    ///     let permit = waiting.await?.into_result()?;
    ///     // talk to the database
    ///     drop(permit);
    ///     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// });
    /// # task.await.expect("no panic").expect("a connection");
    /// # Ok::<(), shmlimit::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`acquire_async`](Self::acquire_async).
    pub fn acquire_owned(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> AcquireFuture<'static> {
        self.acquire_async(request, timeout).into_owned()
    }

    /// What each limit would answer to the request now. Takes and counts nothing. A rate limit needs a named cost
    /// here too; [`forecast`](Self::forecast) does not.
    ///
    /// Units of concurrency limits that are held by dead processes, or for longer than their lease, count as free and are
    /// reported in [`of_dead`](Verdict::of_dead), because a request that needs them gets them. What a dead process had
    /// drawn in advance of a rate counts as used until then. This checks for each hold whether its process is alive, so
    /// with many holds it takes longer than a decision.
    ///
    /// # Errors
    ///
    /// See [`try_acquire`](Self::try_acquire), except that a cost that can never be admitted is a verdict, not an
    /// error.
    pub fn peek(&self, request: &Request) -> Result<Vec<Verdict<'_>>, Error> {
        self.subject()?.peek(request)
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
