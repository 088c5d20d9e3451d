//! Throttling: an upstream says that it accepts nothing for a while, as a provider does with 429 and `Retry-After`.

use std::time::Duration;

use super::limit_set::LimitSet;
use super::subject::Subject;
use crate::api::key::Key;
use crate::api::permit::Permit;
use crate::error::Error;
use crate::units::nanos_from_duration;

impl Permit<'_> {
    /// Reports that the upstream refused the request and accepts nothing before `retry_after` has passed. Until then no
    /// process admits anything from the set or, if the set is keyed, for the permit's key; in a keyed set with limits
    /// of [all keys](crate::Limit::scope), nothing is admitted for any key, because all keys share the upstream.
    /// Requests are refused with [`RefusalReason::Throttled`](crate::RefusalReason::Throttled), and waiters keep
    /// waiting. The permit is released as failed, as by [`release_failed`](Self::release_failed), which shrinks an
    /// adaptive limit; [settle](Self::settle) what was not used before the call.
    ///
    /// Throttling comes on top of the limits and changes none of them. A throttle that already lasts longer stays;
    /// the maximum is 31 days. A [reset](LimitSet::reset) ends it. [Debits](LimitSet::debit) continue, because they
    /// count what was already used, and so do limits in shadow mode. The throttle of a key is lost if the key is
    /// evicted as the oldest, along with its limits.
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
    /// let mut permit = provider.request().try_permit()?;
    /// // The provider answers 429 with `Retry-After: 30`.
    /// permit.throttled(Duration::from_secs(30))?;
    ///
    /// let refusal = provider.request().try_acquire()?.into_result().expect_err("in any process");
    /// assert_eq!(refusal.reason(), RefusalReason::Throttled);
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(30)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PermitError::AlreadyReleased`](crate::PermitError::AlreadyReleased),
    /// [`PermitError::Inherited`](crate::PermitError::Inherited) in a forked child, and the errors of
    /// [`Request::try_acquire`](crate::Request::try_acquire). After any of these nothing has changed.
    pub fn throttled(&mut self, retry_after: Duration) -> Result<(), Error> {
        self.require_unreleased()?;
        let set = self.set();
        set.shared()
            .engine
            .throttle_by(set.engine_set(), self.decision(), nanos(retry_after))?;
        self.release_failed()
    }
}

impl LimitSet {
    /// Like [`Permit::throttled`], without a permit: for callers that check and hold none. A keyed set is throttled as a
    /// whole only if it has limits of [all keys](crate::Limit::scope).
    ///
    /// # Errors
    ///
    /// [`RequestError::KeyRequired`](crate::RequestError::KeyRequired), and the errors of
    /// [`try_acquire`](crate::Request::try_acquire).
    pub fn throttle(&self, retry_after: Duration) -> Result<(), Error> {
        if self.engine_set().has_overall() {
            // All keys together have something to throttle.
            return Subject { set: self, key: None }.throttle(retry_after);
        }
        self.subject()?.throttle(retry_after)
    }
}

impl Key<'_> {
    /// Like [`LimitSet::throttle`], for this key. A key without a row in the table gets one; if there is no room for one,
    /// the key is not throttled.
    ///
    /// # Errors
    ///
    /// See [`Request::try_acquire`](crate::Request::try_acquire).
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
