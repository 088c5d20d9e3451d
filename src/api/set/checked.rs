//! Taking without holding, for one key or many, and looking ahead.

use std::time::Duration;

use super::limit_set::{LimitName, LimitSet};
use super::subject::Subject;
use crate::api::key::Key;
use crate::api::permit::Permit;
use crate::api::refusal;
use crate::api::refusal::{Refusal, Verdict};
use crate::api::request::Request;
use crate::engine::definition::plan::Kind;
use crate::engine::{Costs, Decision, KeyIdentity, Outlook, RefusalReason, Target};
use crate::error::{Error, RequestError};

/// The answer to a check or a debit: there is nothing to give back, so it holds nothing.
#[derive(Clone, Debug)]
#[must_use]
pub struct Checked<'a> {
    set: &'a LimitSet,
    decision: Decision,
    is_admitted: bool,
}

impl<'a> Checked<'a> {
    pub(crate) fn new(set: &'a LimitSet, decision: Decision, is_admitted: bool) -> Self {
        Self {
            set,
            decision,
            is_admitted,
        }
    }

    /// A refusal, which is reported to the observer, if there is one.
    #[inline(never)]
    fn refused_with(set: &'a LimitSet, decision: Decision, costs: &Costs) -> Self {
        let checked = Self::new(set, decision, false);
        checked.report_refusal(costs.label.as_deref());
        checked
    }

    /// Reports a refusal to the observer, if there is one.
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

    /// Whether everything was taken. Otherwise nothing was.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// The refusal, where it is one: what bound, why, and for how long.
    pub fn refusal(&self) -> Option<Refusal> {
        (!self.is_admitted).then(|| Refusal::new(self.set, self.decision.clone()))
    }

    /// Nothing, or the refusal as the error of a `Result`: for functions that give it out by `?`.
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

    /// The limit that bound: see [`Refusal::binding`]. None where it was admitted.
    pub fn binding(&self) -> Option<&'a str> {
        self.refused()
            .and_then(|decision| refusal::binding(self.set, decision))
    }

    /// Why it was refused; none where it was admitted.
    pub fn reason(&self) -> Option<RefusalReason> {
        self.refused()
            .map(|decision| self.set.engine_set().refusal_reason(decision))
    }

    /// After how long it would be admitted, zero where it was: see [`Refusal::retry_after`].
    pub fn retry_after(&self) -> Option<Duration> {
        match self.refused() {
            Some(decision) => refusal::retry_after(self.set, decision),
            None => Some(Duration::ZERO),
        }
    }

    fn refused(&self) -> Option<&Decision> {
        (!self.is_admitted).then_some(&self.decision)
    }

    /// The units taken of each limit, by name; of none where it was refused.
    pub fn taken(&self) -> impl Iterator<Item = (&'a str, u64)> {
        let set = self.set;
        let decision = self.is_admitted.then_some(&self.decision);
        let decided = decision.into_iter().flat_map(|decision| decision.iter());
        decided.filter_map(|(index, decided)| Some((set.limits().nth(index)?, decided.cost())))
    }

    /// What each limit that was asked said, and how it stands.
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

/// When a limit will have how much, if no process takes anything meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forecast<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// Units that could be taken now.
    pub spendable: u64,
    /// Units that dead processes hold, or that are held for longer than their lease. They count as free already, because
    /// a request that needs them is given them.
    pub of_dead: u64,
    /// After how long one unit more could be. None where the limit is full already, or where time alone does not help:
    /// what is held comes back when its holders give it back.
    pub next_unit_after: Option<Duration>,
    /// After how long it is completely replenished; zero where it is. None where time alone does not help.
    pub full_after: Option<Duration>,
}

impl LimitSet {
    /// Takes everything that the request names for good, or nothing: for what is not held. There is no permit to keep,
    /// and nothing to settle.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail")
    /// #     .add_limit(Limit::calls("sent", 1, Duration::from_secs(60))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let mail = segment.set("mail")?;
    /// let request = mail.request();
    /// assert!(mail.check(&request)?.is_admitted());
    /// assert_eq!(mail.check(&request)?.binding(), Some("sent"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::MustBeHeld`] where the request takes of a concurrency limit, and as
    /// [`try_acquire`](Self::try_acquire).
    #[inline]
    pub fn check(&self, request: &Request) -> Result<Checked<'_>, Error> {
        if self.engine_set().has_credit() {
            return self.check_by_credit(request);
        }
        self.check_without_credit(request)
    }

    /// Compiled here and not where it is called, which may be in many places.
    #[inline(never)]
    fn check_without_credit(&self, request: &Request) -> Result<Checked<'_>, Error> {
        self.subject()?.check(request)
    }

    /// As [`Key::check`] for each of many keys, decided at one instant: the answers in the order of the keys. Faster for
    /// each than one check after the other, the more so the larger the table is.
    ///
    /// Each key is decided by itself: one that is refused takes nothing and changes nothing for the others. A key that
    /// is named twice is decided twice. A cost that is above what only some keys ever admit at once, because of their
    /// [tier](crate::Tier) or a [capacity of their own](Key::override_capacity), is no error: each of those is refused by
    /// that limit, with no [`retry_after`](Checked::retry_after).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail")
    /// #     .keyed(Keyed::new(1000)).add_limit(Limit::calls("sent", 1, Duration::from_secs(60))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let mail = segment.set("mail")?;
    /// let answers = mail.check_many(&["ann", "bob", "ann"], &mail.request())?;
    /// let admitted: Vec<bool> = answers.iter().map(|answer| answer.is_admitted()).collect();
    /// assert_eq!(admitted, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`key`](Self::key) and [`check`](Self::check). After an error some keys may have been charged, but not after
    /// [`RequestError::NeverAdmissible`]: that is for a cost above what the limit admits at once in every tier, where no key can have
    /// a capacity of its own of the limit.
    pub fn check_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        request: &Request,
    ) -> Result<Vec<Checked<'_>>, Error> {
        let costs = request.costs_for(self)?;
        let keys = keys
            .iter()
            .map(|key| self.identify(key.as_ref()))
            .collect::<Result<Vec<KeyIdentity>, Error>>()?;
        let mut answers: Vec<(Decision, bool)> = keys
            .iter()
            .map(|_| (Decision::pending(costs, self.engine_set().notes_beside), false))
            .collect();
        let engine = &self.shared().engine;
        engine.check_many(self.engine_set(), &keys, costs, &mut answers)?;
        let answers: Vec<Checked<'_>> = answers
            .into_iter()
            .map(|(decision, is_admitted)| Checked::new(self, decision, is_admitted))
            .collect();
        for answer in &answers {
            answer.report(request.label_text());
        }
        Ok(answers)
    }

    /// Debits a budget what was used, while any of it remains: the debit that crosses the line counts in full, and later
    /// ones are refused until the window turns. Asks and takes nothing of the other limits.
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
    /// assert!(chat.debit("tokens", 900)?.is_admitted()); // 800 above, and counted
    /// assert!(!chat.debit("tokens", 1)?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotABudget`], [`RequestError::UnknownLimit`], and as [`check`](Self::check).
    pub fn debit(&self, limit: impl LimitName, used: u64) -> Result<Checked<'_>, Error> {
        self.subject()?.debit(&limit, used)
    }

    /// How each limit stands, and when it will have more. Takes and counts nothing, and leaves out what dead processes
    /// hold, as [`peek`](Self::peek) does.
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
    /// assert!(mail.check(&mail.request().with("sent", 30)?)?.is_admitted());
    /// let sent = mail.forecast()?[0];
    /// assert_eq!((sent.limit, sent.spendable), ("sent", 30));
    /// assert_eq!(sent.next_unit_after, Some(Duration::from_secs(1)));
    /// assert_eq!(sent.full_after, Some(Duration::from_secs(30)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::KeyRequired`], [`SegmentError::Removed`](crate::SegmentError::Removed), [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Poisoned`](crate::SegmentError::Poisoned).
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
    /// As [`LimitSet::check`], from the limits of this key.
    ///
    /// # Errors
    ///
    /// As [`LimitSet::check`].
    #[inline]
    pub fn check(&self, request: &Request) -> Result<Checked<'a>, Error> {
        self.subject.check(request)
    }

    /// As [`LimitSet::debit`], from a budget of this key.
    ///
    /// # Errors
    ///
    /// As [`LimitSet::debit`].
    pub fn debit(&self, limit: impl LimitName, used: u64) -> Result<Checked<'a>, Error> {
        self.subject.debit(&limit, used)
    }

    /// As [`LimitSet::forecast`], for the limits of this key.
    ///
    /// # Errors
    ///
    /// As [`LimitSet::forecast`].
    pub fn forecast(&self) -> Result<Vec<Forecast<'a>>, Error> {
        self.subject.forecast()
    }
}

impl<'a> Subject<'a> {
    #[inline(always)]
    pub(super) fn check(&self, request: &Request) -> Result<Checked<'a>, Error> {
        let costs = request.costs_for(self.set)?;
        self.check_costs(costs)
    }

    fn debit(&self, limit: &impl LimitName, used: u64) -> Result<Checked<'a>, Error> {
        let costs = Costs::of_one(self.set.budget_index(limit)?, used);
        self.check_costs(&costs)
    }

    #[inline(always)]
    fn check_costs(&self, costs: &Costs) -> Result<Checked<'a>, Error> {
        // An answer is made of it once it is decided: to move it takes as long as half of the decision.
        let mut decision = Decision::pending(costs, self.set.engine_set().notes_beside);
        let engine = &self.set.shared().engine;
        let is_admitted = engine.check(self.target(), costs, &mut decision)?;
        self.set.see_to_batches();
        if !is_admitted {
            return Ok(Checked::refused_with(self.set, decision, costs));
        }
        Ok(Checked::new(self.set, decision, true))
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
    /// Debits a budget that the permit asked, chunk by chunk: for streams whose use shows as they go. Answers whether to
    /// go on: the debit that crosses the line counts in full, and the first one after it is refused and takes nothing.
    ///
    /// What was debited so counts as used when the permit is settled.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("chat")
    /// #     .add_limit(Limit::budget("tokens", 100, Duration::from_secs(3600))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let chat = segment.set("chat")?;
    /// let mut permit = chat.try_acquire(&chat.request())?.into_result().expect("nothing was used yet");
    /// let mut sent = 0;
    /// for chunk in [40, 40, 40, 40] {
    ///     if !permit.debit("tokens", chunk)?.is_admitted() {
    ///         break;
    ///     }
    ///     sent += chunk;
    /// }
    /// assert_eq!(sent, 120); // the third crossed the line, the fourth was refused
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotABudget`], [`RequestError::UnknownLimit`], and as [`settle`](Self::settle).
    pub fn debit(&mut self, limit: impl LimitName, used: u64) -> Result<Checked<'_>, Error> {
        self.require_unsettled()?;
        let index = self.limit_set().budget_index(&limit)?;
        let (is_admitted, decision) = self.debit_index(index, used, &Costs::of_one(index, used))?;
        let checked = Checked::new(self.limit_set(), decision, is_admitted);
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
