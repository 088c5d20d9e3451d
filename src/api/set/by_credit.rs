//! Requests to a set whose limit has credit. Most are admitted from this process's batch; the background worker
//! returns batches that go unused. Kept apart so that other sets pay nothing for it.

use super::checked::Checked;
use super::limit_set::LimitSet;
use crate::api::permit::{Outcome, Permit};
use crate::api::request::Request;
use crate::api::wait::background_worker;
use crate::api::wait::unused_batches::UnusedBatches;
use crate::engine::{Decision, Spent};
use crate::error::Error;

impl LimitSet {
    /// [`check`](Self::check) for sets with credit.
    #[inline(never)]
    pub(super) fn check_by_credit(&self, request: &Request) -> Result<Checked<'_>, Error> {
        match self.spend_current(request)? {
            Some(spent) => Ok(Checked::new(self, Decision::of_spent(&spent), true)),
            None => self.subject()?.check(request),
        }
    }

    /// [`try_acquire`](Self::try_acquire) for sets with credit.
    #[inline(never)]
    pub(super) fn try_acquire_by_credit(&self, request: &Request) -> Result<Outcome<'_>, Error> {
        match self.spend_current(request)? {
            Some(spent) => Ok(Outcome::Admitted(Permit::new(self, Decision::of_spent(&spent)))),
            None => self.subject()?.try_acquire(request),
        }
    }

    /// Admits from this process's batch if that takes neither the lock nor the clock.
    #[inline(always)]
    fn spend_current(&self, request: &Request) -> Result<Option<Spent>, Box<Error>> {
        let costs = request.costs_for(self)?;
        Ok(self.shared().engine.spend_current(self.engine_set(), costs))
    }

    /// Makes the background worker look after batches that were just drawn.
    #[inline]
    pub(crate) fn see_to_batches(&self) {
        if self.engine_set().claim_unattended_batches() {
            self.return_unused_batches();
        }
    }

    #[cold]
    fn return_unused_batches(&self) {
        // Without the worker, a batch stays with the process until it draws again, detaches or dies.
        if background_worker::return_unused(UnusedBatches::of(self), self.shared()).is_err() {
            self.engine_set().leave_batches_unattended();
        }
    }
}
