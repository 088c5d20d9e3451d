//! Requests that hold nothing, for one key or many, and peeking.

use super::Request;
use super::client::Client;
use crate::api::refusal::Verdict;
use crate::api::set::checked::Checked;
use crate::engine::{Decision, KeyIdentity};
use crate::error::Error;

impl<'a> Request<'a> {
    /// Takes everything that the request names, for good, or takes nothing. For requests that hold nothing: there is no
    /// permit to keep and nothing to settle.
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
    /// assert!(request.check()?.is_admitted());
    /// assert_eq!(request.check()?.binding(), Some("sent"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::MustBeHeld`](crate::RequestError::MustBeHeld) if the request takes from a concurrency limit, and
    /// the errors of [`try_acquire`](Self::try_acquire).
    #[inline]
    pub fn check(&self) -> Result<Checked<'a>, Error> {
        if self.is_by_credit() {
            return self.check_by_credit();
        }
        self.check_without_credit()
    }

    /// Not inlined, so that it is compiled once and not at every call.
    #[inline(never)]
    fn check_without_credit(&self) -> Result<Checked<'a>, Error> {
        match self.rows() {
            Some(target) => Checked::decide(self.set, target, self.costs()?),
            None => self.check_networks(),
        }
    }

    #[cold]
    fn check_networks(&self) -> Result<Checked<'a>, Error> {
        let Client::Address(address) = self.wanted.client else {
            return Err(self.without_target());
        };
        let (set, costs) = (self.set, self.costs()?);
        let mut decision = Decision::pending(costs, set.engine_set().notes_beside);
        let networks = set.engine_set().networks_of(address);
        let engine = &set.shared().engine;
        let is_admitted = engine.check_networks(set.engine_set(), &networks, costs, &mut decision)?;
        let checked = Checked::new(set, decision, is_admitted);
        checked.report(self.label_text());
        Ok(checked)
    }

    /// [Checks](Self::check) each of many keys, all at one instant, and returns the answers in the order of the keys.
    /// The request's own key, if it has one, is ignored. This takes less time than checking each key by itself, and the
    /// larger the table, the more it saves.
    ///
    /// Each key is decided on its own: one that is refused takes nothing and changes nothing for the others. A key that
    /// is named twice is decided twice. A cost that only some keys can never admit at once, because of their
    /// [tier](crate::Tier) or a [capacity of their own](crate::Key::override_capacity), is not an error: that limit
    /// refuses those keys, with no [`retry_after`](Checked::retry_after).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail")
    /// #     .keyed(Keyed::new(1000)).add_limit(Limit::calls("sent", 1, Duration::from_secs(60))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let mail = segment.set("mail")?;
    /// let answers = mail.request().check_many(&["ann", "bob", "ann"])?;
    /// let admitted: Vec<bool> = answers.iter().map(|answer| answer.is_admitted()).collect();
    /// assert_eq!(admitted, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`set_key`](Self::set_key) and [`check`](Self::check). After an error some keys may have been charged,
    /// except after [`RequestError::NeverAdmissible`](crate::RequestError::NeverAdmissible), which means that no tier
    /// admits the cost at once and no key can have a capacity of its own for the limit.
    pub fn check_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Checked<'a>>, Error> {
        let (set, costs) = (self.set, self.costs()?);
        let keys = keys
            .iter()
            .map(|key| set.identify(key.as_ref()))
            .collect::<Result<Vec<KeyIdentity>, Error>>()?;
        let mut answers: Vec<(Decision, bool)> = keys
            .iter()
            .map(|_| (Decision::pending(costs, set.engine_set().notes_beside), false))
            .collect();
        let engine = &set.shared().engine;
        engine.check_many(set.engine_set(), &keys, costs, &mut answers)?;
        let answers: Vec<Checked<'a>> = answers
            .into_iter()
            .map(|(decision, is_admitted)| Checked::new(set, decision, is_admitted))
            .collect();
        for answer in &answers {
            answer.report(self.label_text());
        }
        Ok(answers)
    }

    /// What each limit would answer to the request now. Takes and counts nothing. A key without a row answers like an
    /// unused key. A rate limit needs a named cost here too; [`forecast`](crate::LimitSet::forecast) does not.
    ///
    /// Units of concurrency limits that are held by dead processes, or for longer than their lease, count as free and
    /// are reported in [`of_dead`](Verdict::of_dead), because a request that needs them gets them. Units of a rate that
    /// a dead process had drawn in advance count as used until then. This checks for each hold whether its process is
    /// alive, so with many holds it takes longer than a decision.
    ///
    /// # Errors
    ///
    /// See [`try_acquire`](Self::try_acquire), except that a cost that can never be admitted is a verdict, not an
    /// error.
    pub fn peek(&self) -> Result<Vec<Verdict<'a>>, Error> {
        let set = self.set;
        let engine = &set.shared().engine;
        if let Client::Address(address) = self.wanted.client {
            let networks = set.engine_set().networks_of(address);
            let decision = engine.peek_networks(set.engine_set(), &networks, self.costs()?)?;
            return Ok(decision
                .iter()
                .map(|(index, decided)| Verdict::refused(set, &decision, index, decided))
                .collect());
        }
        let (decision, of_dead) = engine.peek(self.target()?, self.costs()?)?;
        Ok(decision
            .iter()
            .map(|(index, decided)| Verdict {
                of_dead: of_dead.get(index).copied().unwrap_or(0),
                ..Verdict::refused(set, &decision, index, decided)
            })
            .collect())
    }
}
