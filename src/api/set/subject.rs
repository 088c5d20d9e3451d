//! Whose limits an operation applies to: a set or one of its keys. Operations that both support are implemented here
//! once.

use std::time::Duration;

use super::limit_set::LimitSet;
use super::set_reference::SetReference;
use crate::api::permit::{Outcome, Permit};
use crate::api::refusal::{Refusal, Verdict};
use crate::api::request::Request;
use crate::engine::{Decision, KeepWaiting, KeyIdentity, Target};
use crate::error::Error;

/// A set that is not keyed, or one key of a keyed set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) set: &'a LimitSet,
    pub(crate) key: Option<KeyIdentity>,
}

impl<'a> Subject<'a> {
    #[inline]
    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            set: self.set.engine_set(),
            key: self.key.as_ref(),
        }
    }

    #[inline(always)]
    pub(crate) fn try_acquire(&self, request: &Request) -> Result<Outcome<'a>, Error> {
        let costs = request.costs_for(self.set)?;
        let mut decision = Decision::pending(costs, self.set.engine_set().notes_beside);
        let engine = &self.set.shared().engine;
        let is_admitted = engine.try_acquire(self.target(), costs, &mut decision)?;
        self.set.see_to_batches();
        if is_admitted {
            Ok(Outcome::Admitted(Permit::new(self.set, decision)))
        } else {
            Ok(Outcome::Refused(Refusal::of(
                self.set,
                decision,
                request.label_text(),
            )))
        }
    }

    #[inline]
    pub(crate) fn acquire(
        &self,
        request: &Request,
        timeout: Option<Duration>,
        keep_waiting: Option<KeepWaiting<'_>>,
    ) -> Result<Outcome<'a>, Error> {
        if timeout == Some(Duration::ZERO) {
            return self.try_acquire(request);
        }
        let costs = request.costs_for(self.set)?;
        let mut decision = Decision::pending(costs, self.set.engine_set().notes_beside);
        let engine = &self.set.shared().engine;
        let acquired = engine.acquire(self.target(), costs, &mut decision, timeout, keep_waiting)?;
        if acquired.is_admitted {
            self.set.see_to_batches();
        }
        let set = SetReference::Borrowed(self.set);
        Ok(set.outcome_of(acquired, decision, request.label_text()))
    }

    pub(crate) fn acquire_while(
        &self,
        request: &Request,
        timeout: Option<Duration>,
        mut keep_waiting: impl FnMut() -> bool,
    ) -> Result<Outcome<'a>, Error> {
        let outcome = self.acquire(request, timeout, Some(&mut keep_waiting));
        // Here, and not by the compiler after the return: a panic would then leave what is returned without an owner.
        drop(keep_waiting);
        outcome
    }

    pub(crate) fn peek(&self, request: &Request) -> Result<Vec<Verdict<'a>>, Error> {
        let costs = request.costs_for(self.set)?;
        let (decision, of_dead) = self.set.shared().engine.peek(self.target(), costs)?;
        Ok(decision
            .iter()
            .map(|(index, decided)| Verdict {
                of_dead: of_dead.get(index).copied().unwrap_or(0),
                ..Verdict::refused(self.set, &decision, index, decided)
            })
            .collect())
    }
}
