//! A set of limits as its users hold it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::set_reference::SetReference;
use crate::api::declaration::{Limit, SetDeclaration};
use crate::api::permit::{Outcome, Permit};
use crate::api::refusal::{Refusal, Verdict};
use crate::api::request::Request;
use crate::api::request_events::RequestEvents;
use crate::api::segment::SharedSegment;
use crate::api::wait::acquire_future::AcquireFuture;
use crate::engine::{Acquired, Decision, SetEngine, TableUsage};
use crate::error::Error;

/// A set of limits that are taken together.
///
/// A handle is cheap to clone, may be used by any number of threads, and stays valid in forked children.
#[derive(Clone)]
pub struct LimitSet {
    shared: Arc<SharedSegment>,
    index: usize,
    strict: bool,
}

// What it refers to is the whole segment, which would fill pages in every message that a refusal is part of.
impl fmt::Debug for LimitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitSet")
            .field("segment", &self.shared.engine.path())
            .field("name", &self.name())
            .field("strict", &self.strict)
            .finish()
    }
}

/// A limit of a set by position: what to use instead of a name where every nanosecond counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitIndex(pub(crate) usize);

/// What names a limit: its name, in whatever holds text, or its [`LimitIndex`].
pub trait LimitName: sealed::Sealed {
    /// The position of the limit in its set.
    #[doc(hidden)]
    fn find(&self, set: &LimitSet) -> Option<LimitIndex>;
    /// The name, for messages.
    #[doc(hidden)]
    fn display(&self) -> String;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::LimitIndex {}
}

/// Names that are text, whatever holds it.
macro_rules! text_names_limits {
    ($($text:ty),+) => {$(
        impl sealed::Sealed for $text {}

        impl LimitName for $text {
            fn find(&self, set: &LimitSet) -> Option<LimitIndex> {
                set.limit_index(self)
            }

            fn display(&self) -> String {
                str::to_owned(self)
            }
        }
    )+};
}

text_names_limits!(&str, String, &String, Cow<'_, str>, Arc<str>);

impl LimitName for LimitIndex {
    fn find(&self, set: &LimitSet) -> Option<LimitIndex> {
        (self.0 < set.engine_set().limits.len()).then_some(*self)
    }

    fn display(&self) -> String {
        format!("number {}", self.0)
    }
}

impl LimitSet {
    pub(crate) fn new(shared: Arc<SharedSegment>, index: usize) -> Self {
        Self {
            shared,
            index,
            strict: true,
        }
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Whether a limit that a request or a settlement names and the set does not have is an error,
    /// [`Error::UnknownLimit`], as it is unless set: a misspelt name would be no limit at all. Where it is none, the name
    /// is skipped and counted, and with the feature `tracing` each name is an event once in a process.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// The set's name.
    pub fn name(&self) -> &str {
        &self.engine_set().name
    }

    /// What the set was declared with: region, endpoint, account.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.engine_set().shown().plan.metadata
    }

    /// The names of the limits, in the order of the declaration.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        self.engine_set().limits.iter().map(|limit| limit.name.as_str())
    }

    /// The position of the limit of that name.
    pub fn limit_index(&self, name: &str) -> Option<LimitIndex> {
        self.engine_set()
            .limits
            .iter()
            .position(|limit| limit.name == name)
            .map(LimitIndex)
    }

    /// A request that takes every limit with its default: one of each calls and concurrency limit, nothing of a
    /// budget. A rate limit has no default and must be named: see [`Request::with`].
    pub fn request(&self) -> Request {
        Request::new(self)
    }

    /// Takes everything that the request names, or nothing, and answers at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().set(
    /// #     SetDeclaration::new("openai").limit(Limit::rate("tokens", 10_000, Duration::from_secs(60))));
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
    /// [`Error::CostRequired`] and [`Error::NeverAdmissible`] for requests that no waiting could help,
    /// [`Error::ForeignRequest`], [`Error::Removed`], [`Error::LockStuck`], [`Error::Poisoned`]. A refusal is no
    /// error.
    #[inline]
    pub fn try_acquire(&self, request: &Request) -> Result<Outcome<'_>, Error> {
        self.subject()?.try_acquire(request)
    }

    /// Takes everything that the request names, waiting in the queue for it: first come, first served, over all threads
    /// and processes. With no timeout it waits as long as it takes, with a timeout of zero it is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// The line is of the set: only its first is served, so that a large request is not starved by small ones, and
    /// no process overtakes. Who waits is asleep until it has what it asked for, or until the instant at which time
    /// alone gives it that. Where a process in the line dies, the others move up.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().set(
    /// #     SetDeclaration::new("pool").limit(Limit::concurrency("connections", 1)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let pool = segment.set("pool")?;
    /// let first = pool.acquire(&pool.request(), None)?.into_result().expect("without a timeout, it is admitted");
    /// let second = pool.acquire(&pool.request(), Duration::from_millis(1))?;
    /// assert!(!second.is_admitted()); // the only connection was not given back in time
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Without a timeout it waits as long as it takes, but only where there is room in the queue, which has
    /// [5,120 places unless declared](crate::SetDeclaration::waiters): where that is full, it is refused at once.
    ///
    /// A thread that waits for what only it can give back waits for ever, as with any lock.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire). After an error the request is in the queue no longer. That time was up,
    /// and that the line is [full](crate::RefusalReason::QueueFull), are refusals.
    #[inline]
    pub fn acquire(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Outcome<'_>, Error> {
        self.subject()?.acquire(request, timeout.into(), None)
    }

    /// As [`acquire`](Self::acquire), for as long as `keep_waiting` says yes: for callers that may be interrupted, by a
    /// signal for instance. It is asked before each sleep and after it, and so at least once a second or so, and whenever a
    /// signal handler has run in the thread that waits; not where there is nothing to wait for. No lock is held meanwhile.
    ///
    /// Where it says no, the answer is that of a timeout at that instant: a refusal, or a permit that was granted just
    /// then.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().set(
    /// #     SetDeclaration::new("pool").limit(Limit::concurrency("connections", 1)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let pool = segment.set("pool")?;
    /// let first = pool.acquire(&pool.request(), None)?.into_result().expect("without a timeout, it is admitted");
    /// let mut looks = 0;
    /// let second = pool.acquire_while(&pool.request(), None, || {
    ///     looks += 1;
    ///     looks < 3 // a program would look whether it has been asked to stop
    /// })?;
    /// assert!(!second.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_while(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
        mut keep_waiting: impl FnMut() -> bool,
    ) -> Result<Outcome<'_>, Error> {
        self.subject()?
            .acquire(request, timeout.into(), Some(&mut keep_waiting))
    }

    /// As [`acquire`](Self::acquire), as a future for whatever runtime there is: it waits in the same line as every
    /// process else, and its place there is given up where it is dropped before it completed. The timeout counts from
    /// this call; without one it waits as long as it takes, but only where there is room in the queue, which has
    /// [5,120 places unless declared](crate::SetDeclaration::waiters): where that is full, it is refused at once.
    ///
    /// As long as it has a place in the queue it must be polled when it is woken: one that is kept aside and not
    /// polled, also after its time is up, holds up those behind it.
    ///
    /// All futures of a process together have one thread that sleeps for them, which starts when the first of them has
    /// to wait. A future that is carried over a fork begins anew in the child, with a place in the queue of the child's
    /// own.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().set(
    /// #     SetDeclaration::new("pool").limit(Limit::concurrency("connections", 1)));
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
    /// As [`acquire`](Self::acquire), and [`Error::Io`] where the thread cannot be started.
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

    /// As [`acquire_async`](Self::acquire_async), as a future that borrows nothing, and neither does its permit: for tasks
    /// that are spawned. Each keeps the segment attached by itself.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().set(
    /// #     SetDeclaration::new("pool").limit(Limit::concurrency("connections", 2)));
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
    /// As [`acquire_async`](Self::acquire_async).
    pub fn acquire_owned(
        &self,
        request: &Request,
        timeout: impl Into<Option<Duration>>,
    ) -> AcquireFuture<'static> {
        self.acquire_async(request, timeout).into_owned()
    }

    /// What each limit would say to the request now. Takes and counts nothing. A rate has no default cost here either:
    /// [`forecast`](Self::forecast) says without one what is left.
    ///
    /// What dead processes hold, or is held for longer than its lease, is left out and reported as
    /// [`of_dead`](Verdict::of_dead): a request that needs it is given it. Each holder's process is asked for, so where
    /// much is held this takes longer than a decision.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), but a cost that can never be admitted is answered, not an error.
    pub fn peek(&self, request: &Request) -> Result<Vec<Verdict<'_>>, Error> {
        self.subject()?.peek(request)
    }

    /// How full the table of keys is; none where the set is not keyed. Looks at every row, which takes about a
    /// millisecond for 100,000 of them, without a lock.
    pub fn table_usage(&self) -> Option<TableUsage> {
        let set = self.engine_set();
        set.is_keyed().then(|| self.shared.engine.table_usage(set))
    }

    #[inline]
    pub(crate) fn engine_set(&self) -> &SetEngine {
        &self.shared.engine.sets()[self.index]
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<SharedSegment> {
        &self.shared
    }

    /// The position of the set in its segment.
    pub(crate) fn position(&self) -> usize {
        self.index
    }

    /// Whether both handles are of the same set of the same attachment.
    #[inline]
    pub(crate) fn is_same_set(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.index == other.index
    }

    /// Whether both handles are of the same segment, opened together or not.
    pub(crate) fn is_in_file_of(&self, other: &Self) -> bool {
        let file = other.shared.engine.membership.file();
        self.shared.engine.membership.is_of(file)
    }

    /// The path that the segment was opened by.
    pub(crate) fn segment_path(&self) -> &Path {
        self.shared.engine.path()
    }

    /// A request that names nothing cannot be used where a rate limit needs a cost.
    #[inline]
    pub(crate) fn require_no_cost(&self) -> Result<(), Error> {
        match self.engine_set().first_rate {
            None => Ok(()),
            Some(index) => Err(Error::CostRequired {
                set: self.name().to_owned(),
                limit: self.engine_set().limit_name(index),
            }),
        }
    }

    /// The limits as they were declared when this process opened the segment, in their order.
    pub fn declared_limits(&self) -> &[Limit] {
        let declaration = &self.shared.declaration;
        let set = declaration.sets().get(self.index);
        // What is no declared set is a copy of one.
        let set = set.or_else(|| declaration.template().map(|(template, _)| template));
        set.map_or(&[], SetDeclaration::limits)
    }

    /// The whole number of units that a decimal amount of a limit is worth, exactly: see
    /// [`Request::with_decimal`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidAmount`] where it is no whole number of units, and [`Error::UnknownLimit`].
    pub fn units(&self, limit: impl LimitName, natural: &str) -> Result<u64, Error> {
        let index = self.require(&limit)?;
        let declared = self.declared_limits().get(index);
        let units = declared.map(|limit| limit.scale().and_then(|scale| scale.units(natural)));
        match units {
            Some(Ok(units)) => Ok(units),
            Some(Err(error)) => Err(Error::InvalidAmount {
                set: self.name().to_owned(),
                limit: self.engine_set().limit_name(index),
                given: natural.to_owned(),
                why: error.to_string(),
            }),
            None => Err(self.unknown_limit(format!("number {index}"))),
        }
    }

    pub(crate) fn require_index(&self, name: &str) -> Result<usize, Error> {
        self.require(&name)
    }

    /// The position of a limit.
    pub(crate) fn require(&self, limit: &impl LimitName) -> Result<usize, Error> {
        limit
            .find(self)
            .map(|LimitIndex(index)| index)
            .ok_or_else(|| self.unknown_limit(limit.display()))
    }

    /// The bit mask of the named limits; of all of them where none is.
    pub(crate) fn mask_of(&self, limits: &[&str]) -> Result<u32, Error> {
        if limits.is_empty() {
            return Ok(self.engine_set().all_limits());
        }
        limits
            .iter()
            .try_fold(0, |mask, name| Ok(mask | 1 << self.require_index(name)?))
    }

    /// The position of a named limit. An unknown name is counted; on a strict handle it is an error, otherwise it is
    /// warned about once and skipped.
    #[inline]
    pub(crate) fn resolve(&self, name: &impl LimitName) -> Result<Option<usize>, Error> {
        if let Some(LimitIndex(index)) = name.find(self) {
            return Ok(Some(index));
        }
        let name = name.display();
        self.engine_set().shard(0).count_unknown_name();
        if self.strict {
            return Err(self.unknown_limit(name));
        }
        if self.shared.is_first_warning(self.index, &name) {
            #[cfg(feature = "tracing")]
            tracing::warn!(
                set = self.name(),
                limit = name,
                "skipped a limit that the set does not have"
            );
        }
        Ok(None)
    }

    fn unknown_limit(&self, limit: String) -> Error {
        Error::UnknownLimit {
            set: self.name().to_owned(),
            limit,
            known: self.limits().map(str::to_owned).collect(),
        }
    }
}

impl<'a> SetReference<'a> {
    /// What became of a request that could wait. The wait is reported when there is a permit to hold what it got: the
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
                events.waited(self.index, self.name(), label, nanos, acquired.is_admitted);
            }
        };
        let events = self.shared.request_events.as_ref();
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
