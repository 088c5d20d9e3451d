//! The one process of a host that asks the store.

use std::time::Duration;

use super::lease_request::{LeaseReply, LeaseRequest};
use super::store_problem::StoreProblem;
use crate::api::declaration::FleetOptions;
use crate::api::segment::Segment;
use crate::error::Error;

/// The part that a segment has in a fleet: [`Segment::fleet`]. Without limits that hosts share there is nothing to do.
#[derive(Clone, Debug)]
pub struct Fleet {
    segment: Segment,
}

/// What makes this process the one of its host that asks the store. Given up when it is dropped; a process that dies with it
/// loses it to the next that wants it.
#[derive(Debug)]
#[must_use = "dropped, it is given up"]
pub struct Duty {
    fleet: Fleet,
}

/// A request that was kept in the segment to be sent, and when it was handed out: just before the attempt to send it.
#[derive(Clone, Debug)]
pub struct Asked {
    request: LeaseRequest,
}

impl Asked {
    /// What to send.
    pub fn request(&self) -> &LeaseRequest {
        &self.request
    }
}

impl Segment {
    /// The part that the segment has in a fleet.
    pub fn fleet(&self) -> Fleet {
        Fleet {
            segment: self.clone(),
        }
    }
}

impl Fleet {
    /// Where the store is, and what this host is called; none where the segment was declared without a fleet. It is that in
    /// force now, which a process may have changed.
    pub fn options(&self) -> Option<FleetOptions> {
        self.segment.declaration().fleet_options().cloned()
    }

    /// What the store knows this host by: random, of this segment, another one after each cold start.
    pub fn host(&self) -> u64 {
        0
    }

    /// Whether any limit is shared with other hosts now.
    pub fn has_leases(&self) -> bool {
        false
    }

    /// Takes duty, where no live process has it; none where one has.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Removed`](crate::SegmentError::Removed), and where this process cannot become a participant.
    pub fn try_take_duty(&self) -> Result<Option<Duty>, Error> {
        Ok(None)
    }

    /// As [`try_take_duty`](Self::try_take_duty), waiting until the process that has duty gives it up or dies, at most for
    /// `timeout`. The death of a process is noticed at once where the kernel has process descriptors, and within 20 ms
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// As [`try_take_duty`](Self::try_take_duty).
    pub fn wait_for_duty(&self, _timeout: Duration) -> Result<Option<Duty>, Error> {
        self.try_take_duty()
    }

    /// Whether this host gives back what it has leased and asks for nothing: see [`set_draining`](Self::set_draining).
    pub fn is_draining(&self) -> bool {
        false
    }

    /// Has the host give everything back with its next requests, and ask for nothing from then on, before it goes; or ends
    /// that. While it drains, requests of limits that hosts share are refused for
    /// [`RefusalReason::Lease`](crate::RefusalReason::Lease).
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Removed`](crate::SegmentError::Removed).
    pub fn set_draining(&self, _draining: bool) -> Result<(), Error> {
        Ok(())
    }
}

impl Duty {
    /// Whether this process has duty still: not after a fork, and not where it was taken for dead.
    pub fn is_held(&self) -> bool {
        self.fleet.has_leases()
    }

    /// Every request that is due now, or was asked before and not answered: that again, with the same content. Each is kept in
    /// the segment before it is handed out. To be called once for each attempt, just before it, because what is granted
    /// counts from this call.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Removed`](crate::SegmentError::Removed).
    pub fn ask(&self) -> Result<Vec<Asked>, Error> {
        Ok(Vec::new())
    }

    /// How long it is until the next request is due, if nothing is spent meanwhile; none where none will be.
    pub fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Brings an answer into force and serves those who wait for it. An answer to another request than the latest, or that
    /// comes when this process has lost duty, changes nothing.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Removed`](crate::SegmentError::Removed).
    /// The request stays unanswered then, and is repeated.
    pub fn install(&self, _asked: &Asked, _reply: &LeaseReply) -> Result<(), Error> {
        Ok(())
    }

    /// Notes that an attempt came to nothing. The request is repeated by the first [`ask`](Self::ask) after `retry_in`.
    /// Problems other than [`Quarantine`](StoreProblem::Quarantine) and [`Stale`](StoreProblem::Stale) bring the
    /// limit's outage policy into force, until a request is answered.
    ///
    /// # Errors
    ///
    /// As [`install`](Self::install).
    pub fn report(&self, _asked: &Asked, _problem: StoreProblem, _retry_in: Duration) -> Result<(), Error> {
        Ok(())
    }

    /// Sleeps until a request may be due: until a process finds that too little is leased, or by time. At most for `timeout`;
    /// it may return early.
    pub fn wait(&self, _timeout: Duration) {}
}
