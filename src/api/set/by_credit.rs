//! Asking a set whose limit has credit: most requests are admitted from the batch of this process. Apart, so that other sets
//! are asked as if there were no credit.

use super::checked::Checked;
use super::limit_set::LimitSet;
use crate::api::permit::{Outcome, Permit};
use crate::api::request::Request;
use crate::engine::{Decision, Spent};
use crate::error::Error;

impl LimitSet {
    /// As [`check`](Self::check).
    #[inline(never)]
    pub(super) fn check_by_credit(&self, request: &Request) -> Result<Checked<'_>, Error> {
        match self.spend_current(request)? {
            Some(spent) => Ok(Checked::new(self, Decision::of_spent(&spent), true)),
            None => self.subject()?.check(request),
        }
    }

    /// As [`try_acquire`](Self::try_acquire).
    #[inline(never)]
    pub(super) fn try_acquire_by_credit(&self, request: &Request) -> Result<Outcome<'_>, Error> {
        match self.spend_current(request)? {
            Some(spent) => Ok(Outcome::Admitted(Permit::new(self, Decision::of_spent(&spent)))),
            None => self.subject()?.try_acquire(request),
        }
    }

    /// Admits from the batch of this process, where that takes neither the lock nor a clock.
    #[inline(always)]
    fn spend_current(&self, request: &Request) -> Result<Option<Spent>, Box<Error>> {
        let costs = request.costs_for(self)?;
        Ok(self.shared().engine.spend_current(self.engine_set(), costs))
    }
}
