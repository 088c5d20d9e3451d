//! What is behind the limits says that it takes nothing for a while, as a provider does with 429 and `Retry-After`.

use std::time::Duration;

use super::limit_set::LimitSet;
use super::subject::Subject;
use crate::api::key::Key;
use crate::api::permit::Permit;
use crate::error::Error;
use crate::units::nanos_from_duration;

impl Permit<'_> {
    /// Says that what the permit was for was refused by what is behind the limits, which takes nothing before
    /// `retry_after`: until then no process is admitted anything of the set, or of the permit's key where the set is
    /// keyed. Requests are refused for [`RefusalReason::Throttled`](crate::RefusalReason::Throttled), and
    /// those that wait go on waiting. The permit is released with the word that the work failed, as by
    /// [`release_failed`](Self::release_failed), which shrinks an adaptive limit; what was not used is
    /// [settled](Self::settle) before.
    ///
    /// It adds to what the limits say and changes none of them. What is throttled already for longer stays so; at most it
    /// is for 31 days. A [reset](LimitSet::reset) ends it. [Debits](LimitSet::debit) go on, because they count what was
    /// used, and so does what is in shadow. Of a key, it is forgotten where the oldest key is evicted, as its limits are.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, OpenOptions, RefusalReason, SetDeclaration, VirtualClock};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let clock = VirtualClock::new(Duration::ZERO);
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("provider")
    /// #     .add_limit(Limit::concurrency("in_flight", 20)));
    /// # let segment = OpenOptions::new().virtual_clock(&clock).create(&path, &declaration)?;
    /// let provider = segment.set("provider")?;
    /// let mut permit = provider.try_acquire(&provider.request())?.into_result()?;
    /// // It answers 429, and `Retry-After: 30`.
    /// permit.throttled(Duration::from_secs(30))?;
    ///
    /// let refusal = provider.try_acquire(&provider.request())?.into_result().expect_err("in any process");
    /// assert_eq!(refusal.reason(), RefusalReason::Throttled);
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(30)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PermitError::AlreadyReleased`](crate::PermitError::AlreadyReleased),
    /// [`PermitError::Inherited`](crate::PermitError::Inherited) in a forked child, and as [`LimitSet::try_acquire`];
    /// nothing has changed then.
    pub fn throttled(&mut self, retry_after: Duration) -> Result<(), Error> {
        self.require_unreleased()?;
        let set = self.limit_set();
        set.shared()
            .engine
            .throttle_by(set.engine_set(), self.decision(), nanos(retry_after))?;
        self.release_failed()
    }
}

impl LimitSet {
    /// As [`Permit::throttled`], without a permit: for callers that check and hold none.
    ///
    /// # Errors
    ///
    /// [`RequestError::KeyRequired`](crate::RequestError::KeyRequired), and as [`try_acquire`](Self::try_acquire).
    pub fn throttle(&self, retry_after: Duration) -> Result<(), Error> {
        self.subject()?.throttle(retry_after)
    }
}

impl Key<'_> {
    /// As [`LimitSet::throttle`], for this key. A key for which the table has no row stays without one.
    ///
    /// # Errors
    ///
    /// As [`LimitSet::try_acquire`].
    pub fn throttle(&self, retry_after: Duration) -> Result<(), Error> {
        self.subject.throttle(retry_after)
    }
}

impl Subject<'_> {
    fn throttle(&self, retry_after: Duration) -> Result<(), Error> {
        let engine = &self.set.shared().engine;
        Ok(engine.throttle(self.target(), nanos(retry_after))?)
    }
}

fn nanos(wait: Duration) -> u64 {
    nanos_from_duration(wait).unwrap_or(u64::MAX)
}
