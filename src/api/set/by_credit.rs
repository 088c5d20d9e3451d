//! Asking a set whose limit has credit: most requests are admitted from the batch of this process, which is looked after
//! from when it is drawn. Apart, so that other sets are asked as if there were no credit.

use super::checked::Checked;
use super::limit_set::LimitSet;
use crate::api::permit::{Outcome, Permit};
use crate::api::request::Request;
use crate::api::wait::background_worker;
use crate::api::wait::unused_batches::UnusedBatches;
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

    /// Has the background worker look after batches that were just drawn.
    #[inline]
    pub(crate) fn see_to_batches(&self) {
        if self.engine_set().claim_unattended_batches() {
            self.return_unused_batches();
        }
    }

    #[cold]
    fn return_unused_batches(&self) {
        // Without a worker, batches stay with the process until it draws again, detaches or dies.
        if background_worker::return_unused(UnusedBatches::of(self), self.shared()).is_err() {
            self.engine_set().leave_batches_unattended();
        }
    }
}
