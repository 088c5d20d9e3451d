//! Requests to a set whose limit has credit. Most are admitted from this process's batch; the background worker
//! returns batches that go unused. Kept apart so that other sets pay nothing for it.

use super::Request;
use crate::api::permit::{Outcome, Permit};
use crate::api::set::checked::Checked;
use crate::api::set::limit_set::LimitSet;
use crate::api::wait::background_worker;
use crate::api::wait::unused_batches::UnusedBatches;
use crate::engine::{Decision, Spent};
use crate::error::Error;

impl<'a> Request<'a> {
    /// [`check`](Self::check) for sets with credit.
    #[inline(never)]
    pub(super) fn check_by_credit(&self) -> Result<Checked<'a>, Error> {
        match self.spend_current()? {
            Some(spent) => Ok(Checked::new(self.set, Decision::of_spent(&spent), true)),
            None => Checked::decide(self.set, self.target()?, self.costs()?),
        }
    }

    /// [`try_acquire`](Self::try_acquire) for sets with credit.
    #[inline(never)]
    pub(super) fn try_acquire_by_credit(&self) -> Result<Outcome<'a>, Error> {
        match self.spend_current()? {
            Some(spent) => Ok(Outcome::Admitted(Permit::new(
                self.set,
                Decision::of_spent(&spent),
            ))),
            None => self.try_acquire_rows(),
        }
    }

    /// Admits from this process's batch if that takes neither the lock nor the clock.
    #[inline(always)]
    fn spend_current(&self) -> Result<Option<Spent>, Box<Error>> {
        let (set, costs) = (self.set, self.costs()?);
        Ok(set.shared().engine.spend_current(set.engine_set(), costs))
    }
}

impl LimitSet {
    /// Hands batches that were just drawn to the background worker, which returns those that go unused.
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
