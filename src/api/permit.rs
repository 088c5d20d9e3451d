//! What an admitted request holds.

use std::sync::Arc;

use smallvec::SmallVec;

use super::refusal::{Refusal, Verdict};
use super::segment::shared_segment::SharedSegment;
use super::set::limit_set::{LimitName, LimitSet};
use super::set::set_reference::SetReference;
use super::wait::background_worker;
use super::wait::background_worker::{DelayedReturn, LeaseRenewal};
#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::choices::Kind;
use crate::engine::{
    Costs, Debited, Decision, Ending, LockWait, Phase, Released, Renewed, SettledLimit, SettledLimits, Shard,
};
use crate::error::{Error, PermitError, SegmentError};

/// The answer to a request. A refusal is not an error.
// `Admitted` is what the hot path returns, and boxing it would cost an allocation.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
#[must_use]
pub enum Outcome<'a> {
    /// Everything was taken.
    Admitted(Permit<'a>),
    /// Nothing was taken.
    Refused(Refusal),
}

impl<'a> Outcome<'a> {
    /// The permit, or the refusal as the error of a `Result`, so that `?` returns it. `into_result().ok()` is the
    /// permit, if there is one.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub fn into_result(self) -> Result<Permit<'a>, Refusal> {
        match self {
            Self::Admitted(permit) => Ok(permit),
            Self::Refused(refusal) => Err(refusal),
        }
    }

    /// Whether everything was taken.
    pub fn is_admitted(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }
}

/// What an admitted request holds. Dropping the permit gives concurrency back and keeps what was charged.
///
/// A permit may be moved to another thread, but it never crosses a fork: in a forked child it does nothing, and what
/// it holds stays the parent's.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once holds nothing"]
pub struct Permit<'a> {
    set: SetReference<'a>,
    decision: Decision,
}

// Two cache lines: see the inline storage of `Decision`.
const _: () = assert!(size_of::<Permit<'_>>() <= 128);

impl<'a> Permit<'a> {
    #[inline]
    pub(crate) fn new(set: &'a LimitSet, decision: Decision) -> Self {
        Self::of(SetReference::Borrowed(set), decision)
    }

    #[inline]
    pub(crate) fn of(set: SetReference<'a>, decision: Decision) -> Self {
        Self { set, decision }
    }

    /// A permit that keeps the segment attached on its own, for tasks and threads that outlive the set's handle.
    pub fn into_owned(mut self) -> Permit<'static> {
        self.take_owned()
    }

    fn take_owned(&mut self) -> Permit<'static> {
        let owned = Permit {
            set: self.set.to_owned(),
            decision: self.decision.clone(),
        };
        // The other permit owns the hold now, so dropping this one must do nothing.
        self.decision.set_phase(Phase::Released);
        owned
    }

    /// The set that it was taken from.
    pub fn set(&self) -> &LimitSet {
        &self.set
    }

    /// Replaces reserved costs by actual ones, for all named limits at once. Concurrency stays held until the permit
    /// is dropped or released.
    ///
    /// Unused units come back while they still [count](crate::Algorithm#what-comes-back), unless the limit says
    /// [`refund(false)`](crate::Limit::refund). What was reserved before the set was [changed](crate::Segment::apply),
    /// its key got another tier or capacity, or the limit was reset does not come back. Usage above the reserved cost is
    /// charged even if it exceeds the limit. Budgets are debited. Limits that the permit did not take are skipped; limits that are
    /// not named, calls included, keep their reserved cost.
    ///
    /// # Errors
    ///
    /// [`PermitError::AlreadySettled`], [`PermitError::AlreadyReleased`], [`PermitError::Inherited`] in a forked
    /// child, [`RequestError::UnknownLimit`](crate::RequestError::UnknownLimit), [`SegmentError::LockStuck`],
    /// [`SegmentError::Poisoned`]. After an error nothing has been settled, and the call can be retried.
    pub fn settle<N: LimitName>(
        &mut self,
        actual: impl IntoIterator<Item = (N, u64)>,
    ) -> Result<Settlement<'_>, Error> {
        self.require_unsettled()?;
        let mut usage: SmallVec<[(usize, u64); 4]> = SmallVec::new();
        for (name, used) in actual {
            let Some(index) = self.set.resolve(&name)? else {
                continue;
            };
            if !self.settles(index) {
                continue;
            }
            match usage.iter_mut().find(|(named, _)| *named == index) {
                Some((_, earlier)) => *earlier = used,
                None => usage.push((index, used)),
            }
        }
        let limits = self.set.shared().engine.settle(
            self.set.engine_set(),
            &self.decision,
            &usage,
            LockWait::Timeout,
        )?;
        self.decision.set_phase(Phase::Settled);
        Ok(Settlement {
            set: &self.set,
            limits,
        })
    }

    /// Settles everything as unused: every reserved cost and call that its algorithm still refunds comes back. What is
    /// held stays held, for work that goes on without using any of what was reserved.
    ///
    /// [`cancel`](Self::cancel) also gives back what is held.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("chat")
    /// #     .add_limit(Limit::rate("tokens", 1_000, Duration::from_secs(60)))
    /// #     .add_limit(Limit::concurrency("in_flight", 8)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let chat = segment.set("chat")?;
    /// let mut permit = chat.request().with("tokens", 900)?.try_permit()?;
    /// // The answer was in a cache: no tokens were used, but it still has to be sent.
    /// let settled = permit.settle_all_unused()?;
    /// assert!(settled.refunded("tokens") > 800); // all that time has not replenished by itself
    /// assert_eq!(segment.snapshot()?.sets[0].active, 1); // its place in flight stays its own
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`settle`](Self::settle).
    pub fn settle_all_unused(&mut self) -> Result<Settlement<'_>, Error> {
        self.require_unsettled()?;
        let limits = self.settle_to_nothing(LockWait::Timeout)?;
        Ok(Settlement {
            set: &self.set,
            limits,
        })
    }

    /// Requires that the permit is this process's and not yet settled.
    #[inline]
    pub(crate) fn require_unsettled(&self) -> Result<(), Error> {
        let set = || self.set.name().to_owned();
        match self.decision.phase() {
            Phase::Reserved if self.is_own() => Ok(()),
            Phase::Reserved => Err(Error::Permit(PermitError::Inherited { set: set() })),
            Phase::Settled => Err(Error::Permit(PermitError::AlreadySettled { set: set() })),
            Phase::Released | Phase::Lost => Err(Error::Permit(PermitError::AlreadyReleased { set: set() })),
        }
    }

    /// Requires that the permit is this process's and not yet released.
    pub(crate) fn require_unreleased(&self) -> Result<(), Error> {
        let set = || self.set.name().to_owned();
        match self.decision.phase() {
            Phase::Reserved | Phase::Settled if self.is_own() => Ok(()),
            Phase::Reserved | Phase::Settled => Err(Error::Permit(PermitError::Inherited { set: set() })),
            Phase::Released | Phase::Lost => Err(Error::Permit(PermitError::AlreadyReleased { set: set() })),
        }
    }

    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Debits a budget, and records the usage on the permit.
    pub(crate) fn debit_index(
        &mut self,
        index: usize,
        used: u64,
        costs: &Costs,
    ) -> Result<(bool, Decision), Error> {
        let mut decision = Decision::pending(costs, self.set.engine_set().notes_beside);
        let engine = &self.set.shared().engine;
        let set = self.set.engine_set();
        let debited = engine.debit(set, &self.decision, costs, &mut decision)?;
        if debited != Debited::Not {
            self.decision.add_to_cost(index, used);
        }
        Ok((debited == Debited::WithSomeLeft, decision))
    }

    /// Gives back everything that was taken, calls included, if its algorithm still refunds it, and everything that is
    /// held: for admitted requests that did not use anything. What was settled before stays settled. An
    /// [adaptive](crate::Limit::adaptive) limit learns nothing from it.
    ///
    /// # Errors
    ///
    /// See [`settle`](Self::settle) and [`release`](Self::release).
    pub fn cancel(&mut self) -> Result<(), Error> {
        self.cancel_within(LockWait::Timeout)
    }

    pub(crate) fn cancel_within(&mut self, wait: LockWait) -> Result<(), Error> {
        self.settle_everything_to_nothing(wait)?;
        self.release_as(Ending::Undone)
    }

    /// [Cancels](Self::cancel) the permit when its caller is gone and nobody is left to handle an error.
    ///
    /// Settling and releasing each wait at most 10 ms for the lock. If another process holds it for longer, the
    /// background thread of this process keeps trying, for up to 1,024 permits at a time. What is left when the
    /// process ends stays charged.
    pub fn abandon(&mut self) {
        if let Err(Error::Segment(SegmentError::LockStuck { .. })) = self.cancel_within(LockWait::Briefly) {
            background_worker::give_back_later(self.take_owned());
        }
    }

    fn settle_everything_to_nothing(&mut self, wait: LockWait) -> Result<(), Error> {
        if !self.is_own() {
            let set = self.set.name().to_owned();
            return Err(Error::Permit(PermitError::Inherited { set }));
        }
        if self.decision.phase() != Phase::Reserved {
            return Ok(());
        }
        self.settle_to_nothing(wait).map(drop)
    }

    fn settle_to_nothing(&mut self, wait: LockWait) -> Result<SettledLimits, Error> {
        let unused: SmallVec<[(usize, u64); 4]> = self.decision.iter().map(|(index, _)| (index, 0)).collect();
        let engine = &self.set.shared().engine;
        let limits = engine.settle(self.set.engine_set(), &self.decision, &unused, wait)?;
        self.decision.set_phase(Phase::Settled);
        Ok(limits)
    }

    /// Gives back what the permit holds. Further calls do nothing.
    ///
    /// It takes at most 10 ms. If another process holds the lock for longer, this one leaves a mark, and whichever
    /// process locks next finishes the release; until then the hold counts as taken. Such a release is not a sample
    /// for an [adaptive](crate::Limit::adaptive) limit, unless the work failed.
    ///
    /// If a lease had run out, or this process was taken for dead, the call gives back what is left and succeeds: the
    /// work is done, and an error would not undo it. [`reclaimed`](Self::reclaimed) returns true from then on, and a
    /// warning is emitted with the feature `tracing`.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Poisoned`]. The permit then still holds what it held, and releasing or dropping it tries
    /// again.
    pub fn release(&mut self) -> Result<(), Error> {
        self.release_as(Ending::Released { failed: false })
    }

    /// [Releases](Self::release) the permit and reports that the work failed, was refused by the upstream, or took
    /// too long. An [adaptive](crate::Limit::adaptive) concurrency limit lowers its capacity in response. A panic
    /// that unwinds through the permit has the same effect.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::declare::Adaptive;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("backend")
    /// #     .add_limit(Limit::concurrency("in_flight", 20).adaptive(Adaptive::Aimd).ceiling(100)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// # fn call_the_backend() -> Result<(), ()> { Err(()) }
    /// let backend = segment.set("backend")?;
    /// let mut permit = backend.request().try_acquire()?.into_result().expect("no other process holds any");
    /// match call_the_backend() {
    ///     Ok(()) => permit.release()?,
    ///     Err(()) => permit.release_failed()?,
    /// }
    /// let counts = segment.snapshot()?.sets[0].limits[0].counts;
    /// assert_eq!(counts.failed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release).
    pub fn release_failed(&mut self) -> Result<(), Error> {
        self.release_as(Ending::Released { failed: true })
    }

    /// [Releases](Self::release) the permit because its program has lost it: for bindings to languages whose garbage
    /// collector finds it sooner or later. Counts as [unsettled](crate::snapshot::LimitCounts::unsettled) each
    /// concurrency limit that was held.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release).
    pub fn release_lost(&mut self) -> Result<(), Error> {
        let was_held = self.decision.hold().is_some();
        self.release()?;
        if was_held && self.decision.hold().is_none() {
            self.count_unsettled_of(Kind::Concurrency);
        }
        Ok(())
    }

    #[inline]
    fn release_as(&mut self, ending: Ending) -> Result<(), Error> {
        if self.is_released() || !self.is_own() {
            return Ok(());
        }
        let shard = self.set.engine_set().shard(self.decision.shard());
        let mut is_lost = false;
        if let Some(hold) = self.decision.hold() {
            let released = self
                .set
                .shared()
                .engine
                .release(shard, hold, self.decision.owner, ending)?;
            self.decision.set_hold(None);
            is_lost = released == Released::WasReclaimed;
        }
        if self.decision.phase() == Phase::Reserved {
            self.count_unsettled();
        }
        if is_lost {
            self.decision.set_phase(Phase::Lost);
            #[cfg(feature = "tracing")]
            contained(|| {
                tracing::warn!(
                    set = self.set.name(),
                    "what a permit held was reclaimed before its release"
                );
            });
        } else if self.decision.phase() != Phase::Lost {
            self.decision.set_phase(Phase::Released);
        }
        Ok(())
    }

    /// Counts each rate limit whose reserved cost was never replaced by an actual one.
    #[inline]
    fn count_unsettled(&self) {
        if self.set.engine_set().first_rate.is_some() {
            self.count_unsettled_of(Kind::Rate);
        }
    }

    fn count_unsettled_of(&self, kind: Kind) {
        let set = self.set.engine_set();
        for (index, decided) in self.decision.iter() {
            let is_of_kind = set.limits.get(index).is_some_and(|limit| limit.kind == kind);
            if is_of_kind && decided.cost() > 0 {
                self.shard().count_unsettled(index);
            }
        }
    }

    /// Renews the leases of what the permit holds. They start over now.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("jobs")
    /// #     .add_limit(Limit::concurrency("running", 2).lease(Duration::from_secs(30))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let jobs = segment.set("jobs")?;
    /// let permit = jobs.request().try_acquire()?.into_result().expect("no other process holds any");
    /// for _ in 0..3 {
    ///     permit.heartbeat()?; // an error if it came too late and others hold the place now
    /// }
    /// assert!(!permit.reclaimed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PermitError::Reclaimed`] if a lease has run out and what it covered was taken back,
    /// [`PermitError::AlreadyReleased`], [`PermitError::Inherited`] in a forked child, [`SegmentError::LockStuck`],
    /// [`SegmentError::Poisoned`].
    pub fn heartbeat(&self) -> Result<(), Error> {
        let shard = self.shard();
        let name = || shard.set.name.to_string();
        if self.is_released() {
            return Err(Error::Permit(PermitError::AlreadyReleased { set: name() }));
        }
        if !self.is_own() {
            return Err(Error::Permit(PermitError::Inherited { set: name() }));
        }
        let Some(hold) = self.decision.hold() else {
            return Ok(());
        };
        let engine = &self.set.shared().engine;
        match engine.heartbeat(shard, hold, self.decision.owner, LockWait::Timeout)? {
            Renewed::Renewed => Ok(()),
            Renewed::WasReclaimed => Err(Error::Permit(PermitError::Reclaimed { set: name() })),
        }
    }

    /// Has a background thread renew the leases of what the permit holds, until the permit is released. One thread does
    /// this for all permits of the process. It follows the lease in force, which [may change](crate::Segment::apply)
    /// while the permit is held. If nothing held has a lease, nothing is renewed until it gets one.
    ///
    /// Leases then no longer protect against holders that hang: only the death of the process gives the hold back.
    ///
    /// # Errors
    ///
    /// The errors of [`heartbeat`](Self::heartbeat), which is called at once, and
    /// [`OpenError::Io`](crate::OpenError::Io) if the thread cannot be started.
    pub fn heartbeat_in_background(&self) -> Result<(), Error> {
        self.heartbeat()?;
        if let Some(hold) = self.decision.hold() {
            let renewal = LeaseRenewal::new(
                self.set.shared(),
                self.set.position(),
                self.decision.shard(),
                hold,
                self.decision.owner,
            );
            background_worker::keep_alive(renewal, self.set.shared())?;
        }
        Ok(())
    }

    /// Whether the permit has lost something that it held: a lease ran out, this process was taken for dead, or places
    /// of a concurrency limit that [hosts share](crate::Limit::fleet) are no longer leased to this host (the youngest
    /// permits lose theirs first). After the release: whether it had lost something by then.
    ///
    /// An expired lease counts from the instant at which it ends, even if no other request has taken the place yet.
    /// Until one has, a [heartbeat](Self::heartbeat) still renews the lease, except for places no longer leased to
    /// the host. The check takes no lock, so the answer may change at once.
    pub fn reclaimed(&self) -> bool {
        if self.decision.phase() == Phase::Lost {
            return true;
        }
        let engine = &self.set.shared().engine;
        self.decision
            .hold()
            .is_some_and(|hold| engine.is_lost(self.shard(), hold, self.decision.owner))
    }

    /// A [`fencing_number`](Self::fencing_number) that is valid across hosts, for the first concurrency limit of the
    /// set that [hosts share](crate::Limit::fleet) and that the permit holds: the number of the grant in the store x
    /// 2^32 + a number within that grant. `None` if no such limit is held, or nothing was leased when it was taken.
    pub fn fleet_fencing_number(&self) -> Option<u64> {
        self.set.engine_set().fleet_fencing_number(&self.decision)
    }

    fn is_released(&self) -> bool {
        matches!(self.decision.phase(), Phase::Released | Phase::Lost)
    }

    /// A number that grows with every permit of the set that holds something; in a keyed set, with every permit of
    /// the key. `None` if this permit holds nothing. A segment that is recreated, restored from a checkpoint, or
    /// started after a reboot continues with larger numbers: it starts from the microseconds since the Unix epoch if
    /// that is larger. All numbers are below 2^53, so JSON represents them exactly.
    ///
    /// It serves as a *fencing token* (Martin Kleppmann, "How to do distributed locking", 2016): a late holder, whose
    /// lease ran out unnoticed, has a smaller number. Pass it along with each write, and let the receiver reject
    /// numbers below the greatest it has seen.
    pub fn fencing_number(&self) -> Option<u64> {
        self.decision.hold().map(|hold| hold.serial.get())
    }

    /// The units taken from each limit, by name.
    pub fn taken(&self) -> impl Iterator<Item = (&str, u64)> {
        self.decision
            .iter()
            .filter_map(|(index, decided)| Some((self.set.limits().nth(index)?, decided.cost())))
    }

    /// The state of each limit just after it was taken.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict<'_>> {
        self.decision
            .iter()
            .map(|(index, decided)| Verdict::admitted(&self.set, &self.decision, index, decided))
    }

    /// The shard that the permit was taken from.
    #[inline]
    fn shard(&self) -> Shard<'_> {
        self.set.engine_set().shard(self.decision.shard())
    }

    /// Whether this process took the permit, rather than a parent that forked it.
    fn is_own(&self) -> bool {
        self.set
            .shared()
            .engine
            .membership
            .is_current(self.decision.owner)
    }

    /// Whether the permit took the limit and settling it makes sense.
    #[inline]
    fn settles(&self, index: usize) -> bool {
        if self.decision.get(index).is_none() {
            return false;
        }
        match self.set.engine_set().limits.get(index).map(|limit| limit.kind) {
            Some(Kind::Rate | Kind::Calls | Kind::Budget) => true,
            Some(Kind::Concurrency) | None => false,
        }
    }
}

/// A permit that was admitted and never used.
impl DelayedReturn for Permit<'static> {
    fn is_left(&mut self) -> bool {
        matches!(
            self.cancel_within(LockWait::NOT),
            Err(Error::Segment(SegmentError::LockStuck { .. }))
        )
    }

    fn shared(&self) -> &Arc<SharedSegment> {
        self.set.shared()
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.leaves_something() {
            self.release_dropped();
        }
    }
}

impl Permit<'_> {
    /// Whether dropping it changes or counts anything: it holds something, or was charged a cost that was never
    /// settled.
    #[inline]
    fn leaves_something(&self) -> bool {
        self.decision.holds_something()
            || (self.decision.phase() == Phase::Reserved && self.set.engine_set().first_rate.is_some())
    }

    #[inline(never)]
    #[cfg_attr(
        not(feature = "tracing"),
        allow(clippy::collapsible_if, reason = "a warning follows with the feature")
    )]
    fn release_dropped(&mut self) {
        if self.is_released() {
            return;
        }
        let has_failed = std::thread::panicking();
        // No caller can handle an error here. If the set is broken, a mark on the hold has it given back once the set
        // is repaired.
        if let Err(_error) = self.release_as(Ending::Released { failed: has_failed }) {
            if let Some(hold) = self.decision.hold() {
                let engine = &self.set.shared().engine;
                engine.release_by_mark(self.shard(), hold, self.decision.owner, has_failed);
                self.count_unsettled();
            }
            #[cfg(feature = "tracing")]
            contained(|| {
                tracing::warn!(set = self.set.name(), error = %_error, "a dropped permit could not be released");
            });
        }
    }
}

/// What settling a permit changed.
#[derive(Clone, Debug)]
pub struct Settlement<'a> {
    set: &'a LimitSet,
    limits: SettledLimits,
}

impl Settlement<'_> {
    /// Units of the limit that were given back.
    pub fn refunded(&self, limit: impl LimitName) -> u64 {
        self.find(&limit).map_or(0, |settled| settled.refunded)
    }

    /// Units of the limit that were used and charged beyond what was reserved.
    pub fn overdraft(&self, limit: impl LimitName) -> u64 {
        self.find(&limit).map_or(0, |settled| settled.overdraft)
    }

    fn find(&self, limit: &impl LimitName) -> Option<&SettledLimit> {
        let index = limit.find(self.set)?;
        self.limits.iter().find(|settled| settled.index == index.0)
    }
}
