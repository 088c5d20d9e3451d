//! The answers to checks, debits and forecasts.

use std::time::Duration;

use super::limit_set::{LimitName, LimitSet};
use super::subject::Subject;
use crate::api::key::Key;
use crate::api::permit::Permit;
use crate::api::refusal;
use crate::api::refusal::{Refusal, Verdict};
use crate::choices::Kind;
use crate::engine::{Costs, Decision, Outlook, RefusalReason, Target};
use crate::error::{Error, RequestError};

/// The answer to a check or a debit. It holds nothing, so there is nothing to give back.
#[derive(Clone, Debug)]
#[must_use]
pub struct Checked<'a> {
    set: &'a LimitSet,
    decision: Decision,
    is_admitted: bool,
}

impl<'a> Checked<'a> {
    /// Decides on a target, and reports a refusal.
    #[inline(always)]
    pub(crate) fn decide(set: &'a LimitSet, target: Target<'_>, costs: &Costs) -> Result<Self, Error> {
        // The answer is built from it in place: moving it takes half as long as deciding.
        let mut decision = Decision::pending(costs, target.set.notes_beside);
        let is_admitted = set.shared().engine.check(target, costs, &mut decision)?;
        set.see_to_batches();
        if !is_admitted {
            return Ok(Self::refused_with(set, decision, costs));
        }
        Ok(Self::new(set, decision, true))
    }

    pub(crate) fn new(set: &'a LimitSet, decision: Decision, is_admitted: bool) -> Self {
        Self {
            set,
            decision,
            is_admitted,
        }
    }

    /// A refusal. Reports it to the observer, if there is one.
    #[inline(never)]
    fn refused_with(set: &'a LimitSet, decision: Decision, costs: &Costs) -> Self {
        let checked = Self::new(set, decision, false);
        checked.report_refusal(costs.label.as_deref());
        checked
    }

    /// Reports a refusal to the observer, if there is one. Does nothing if admitted.
    #[inline(always)]
    pub(crate) fn report(&self, label: Option<&str>) {
        if !self.is_admitted {
            self.report_refusal(label);
        }
    }

    #[inline(never)]
    fn report_refusal(&self, label: Option<&str>) {
        refusal::fire_probe(self.set, &self.decision);
        if let (Some(events), Some(refusal)) = (&self.set.shared().request_events, self.refusal()) {
            events.denied(self.set.position(), &refusal, label);
        }
    }

    /// Whether everything was taken; otherwise nothing was.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// The refusal, if the request was refused: what bound, why, and for how long.
    pub fn refusal(&self) -> Option<Refusal> {
        (!self.is_admitted).then(|| Refusal::new(self.set, self.decision.clone()))
    }

    /// `Ok(())`, or the refusal as the error of a `Result`, so that `?` returns it.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub fn into_result(self) -> Result<(), Refusal> {
        if self.is_admitted {
            return Ok(());
        }
        Err(Refusal::new(self.set, self.decision))
    }

    /// The limit that bound: see [`Refusal::binding`]. `None` if admitted.
    pub fn binding(&self) -> Option<&'a str> {
        self.refused()
            .and_then(|decision| refusal::binding(self.set, decision))
    }

    /// Why it was refused; `None` if admitted.
    pub fn reason(&self) -> Option<RefusalReason> {
        self.refused()
            .map(|decision| self.set.engine_set().refusal_reason(decision))
    }

    /// How long until it would be admitted, zero if it was: see [`Refusal::retry_after`].
    pub fn retry_after(&self) -> Option<Duration> {
        match self.refused() {
            Some(decision) => refusal::retry_after(self.set, decision),
            None => Some(Duration::ZERO),
        }
    }

    fn refused(&self) -> Option<&Decision> {
        (!self.is_admitted).then_some(&self.decision)
    }

    /// The units taken from each limit, by name; empty if refused.
    pub fn taken(&self) -> impl Iterator<Item = (&'a str, u64)> {
        let set = self.set;
        let decision = self.is_admitted.then_some(&self.decision);
        let decided = decision.into_iter().flat_map(|decision| decision.iter());
        decided.filter_map(|(index, decided)| Some((set.limits().nth(index)?, decided.cost())))
    }

    /// The answer and the state of each limit that was asked.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict<'a>> {
        let verdict = if self.is_admitted {
            Verdict::admitted
        } else {
            Verdict::refused
        };
        self.decision
            .iter()
            .map(move |(index, decided)| verdict(self.set, &self.decision, index, decided))
    }
}

/// How much a limit has, and when it will have more if no process takes anything in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forecast<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// Units that could be taken now.
    pub spendable: u64,
    /// Units held by dead processes, or for longer than their lease. They count as free, because a request that needs
    /// them gets them.
    pub of_dead: u64,
    /// How long until one more unit could be taken. `None` if the limit is full, or if time alone does not help: held
    /// units come back only when their holders give them back.
    pub next_unit_after: Option<Duration>,
    /// How long until the limit is completely replenished; zero if it is. `None` if time alone does not help.
    pub full_after: Option<Duration>,
}

impl LimitSet {
    /// Debits usage from a budget as long as any of it remains. The debit that crosses the line counts in full; later
    /// ones are refused until the window turns. Other limits are neither consulted nor charged.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("chat")
    /// #     .add_limit(Limit::budget("tokens", 1_000, Duration::from_secs(3600))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let chat = segment.set("chat")?;
    /// assert!(chat.debit("tokens", 900)?.is_admitted());
    /// assert!(chat.debit("tokens", 900)?.is_admitted()); // 800 over, but counted
    /// assert!(!chat.debit("tokens", 1)?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotABudget`], [`RequestError::UnknownLimit`], and the errors of [`check`](crate::Request::check).
    pub fn debit(&self, limit: impl LimitName, used: u64) -> Result<Checked<'_>, Error> {
        self.subject()?.debit(&limit, used)
    }

    /// The state of each limit, and when it will have more. Takes and counts nothing. Units held by dead processes
    /// count as free, as in [`peek`](crate::Request::peek).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration, VirtualClock};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let clock = VirtualClock::new(Duration::from_secs(1_000));
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail")
    /// #     .add_limit(Limit::calls("sent", 60, Duration::from_secs(60))));
    /// # let segment = OpenOptions::new().virtual_clock(&clock).create(&path, &declaration)?;
    /// let mail = segment.set("mail")?; // 60 a minute
    /// assert!(mail.request().with("sent", 30)?.check()?.is_admitted());
    /// let sent = mail.forecast()?[0];
    /// assert_eq!((sent.limit, sent.spendable), ("sent", 30));
    /// assert_eq!(sent.next_unit_after, Some(Duration::from_secs(1)));
    /// assert_eq!(sent.full_after, Some(Duration::from_secs(30)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::KeyRequired`], [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
    pub fn forecast(&self) -> Result<Vec<Forecast<'_>>, Error> {
        self.subject()?.forecast()
    }

    /// The position of a limit that must be a budget.
    fn budget_index(&self, limit: &impl LimitName) -> Result<usize, Error> {
        let index = match limit.find(self) {
            Some(index) => index.0,
            None => self.require_index(&limit.display())?,
        };
        let kind = self.engine_set().limits.get(index).map(|limit| limit.kind);
        if kind == Some(Kind::Budget) {
            return Ok(index);
        }
        Err(Error::Request(RequestError::NotABudget {
            set: self.name().to_owned(),
            limit: self.engine_set().limit_name(index),
        }))
    }
}

impl<'a> Key<'a> {
    /// [Debits](LimitSet::debit) a budget of this key.
    ///
    /// # Errors
    ///
    /// See [`LimitSet::debit`].
    pub fn debit(&self, limit: impl LimitName, used: u64) -> Result<Checked<'a>, Error> {
        self.subject.debit(&limit, used)
    }

    /// [Forecasts](LimitSet::forecast) the limits of this key.
    ///
    /// # Errors
    ///
    /// See [`LimitSet::forecast`].
    pub fn forecast(&self) -> Result<Vec<Forecast<'a>>, Error> {
        self.subject.forecast()
    }
}

impl<'a> Subject<'a> {
    fn debit(&self, limit: &impl LimitName, used: u64) -> Result<Checked<'a>, Error> {
        let costs = Costs::of_one(self.set.budget_index(limit)?, used);
        Checked::decide(self.set, self.target(), &costs)
    }

    fn forecast(&self) -> Result<Vec<Forecast<'a>>, Error> {
        let set = self.set;
        let target: Target<'_> = self.target();
        let outlooks = set.shared().engine.forecast(target)?;
        Ok(outlooks
            .iter()
            .filter_map(|outlook| forecast(set, outlook))
            .collect())
    }
}

impl Permit<'_> {
    /// Debits a budget that the permit's request consulted, chunk by chunk: for streams whose usage shows only as they
    /// go. Every debit counts in full, because the usage has already happened; the answer says whether anything was
    /// left of the budget before it. Stop when it is refused. [`LimitSet::debit`], which needs no permit, takes nothing
    /// in that case.
    ///
    /// What was debited this way counts as used when the permit is settled. Debits are also possible after that, until
    /// the permit is released. Only if the permit's key has lost its row and the table has no room for another
    /// ([`RefusalReason::TableFull`]) is nothing debited.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("chat")
    /// #     .add_limit(Limit::budget("tokens", 100, Duration::from_secs(3600))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let chat = segment.set("chat")?;
    /// let mut permit = chat.request().try_permit()?;
    /// let mut sent = 0;
    /// for chunk in [40, 40, 40, 40, 40] {
    ///     sent += chunk;
    ///     if !permit.debit("tokens", chunk)?.is_admitted() {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(sent, 160); // the third crossed the line, the fourth was told so, and both count
    /// assert_eq!(permit.taken().next(), Some(("tokens", 160)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotABudget`], [`RequestError::UnknownLimit`], and the errors of [`settle`](Self::settle) except
    /// [`PermitError::AlreadySettled`](crate::PermitError::AlreadySettled).
    pub fn debit(&mut self, limit: impl LimitName, used: u64) -> Result<Checked<'_>, Error> {
        self.require_unreleased()?;
        let index = self.set().budget_index(&limit)?;
        let (is_admitted, decision) = self.debit_index(index, used, &Costs::of_one(index, used))?;
        let checked = Checked::new(self.set(), decision, is_admitted);
        checked.report(None);
        Ok(checked)
    }
}

fn forecast<'a>(set: &'a LimitSet, outlook: &Outlook) -> Option<Forecast<'a>> {
    let limit = set.engine_set().limits.get(outlook.limit)?;
    let standing = outlook.standing;
    let full_after = match limit.kind {
        Kind::Concurrency if !outlook.is_full => None,
        _ => Some(refusal::wait_of_callers(set, standing.reset_after)),
    };
    Some(Forecast {
        limit: set.limits().nth(outlook.limit)?,
        spendable: standing.remaining,
        of_dead: outlook.of_dead,
        next_unit_after: outlook.next_unit.map(|wait| refusal::wait_of_callers(set, wait)),
        full_after,
    })
}
