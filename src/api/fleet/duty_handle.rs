//! The one process of a host that asks the store.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::lease_request::{LeaseReply, LeaseRequest, LeasedLimit};
use super::store_problem::StoreProblem;
use crate::api::declaration::FleetOptions;
use crate::api::declaration::stored::StoredSet;
use crate::api::segment::Segment;
use crate::engine::{AskedLease, EXCHANGE, SegmentEngine, TakenDuty};
use crate::error::Error;
use crate::limit::{Answer, Problem};
use crate::units::nanos_from_duration;

/// The part that a segment has in a fleet: [`Segment::fleet`]. Without limits that hosts share there is nothing to do.
#[derive(Clone, Debug)]
pub struct Fleet {
    segment: Segment,
}

/// What makes this process the one of its host that asks the store. Given up when it is dropped; a process that dies with it,
/// or is not heard of [in time](Self::keep), loses it to the next that wants it.
#[derive(Debug)]
#[must_use = "dropped, it is given up"]
pub struct Duty {
    fleet: Fleet,
    taken: TakenDuty,
    /// By the position of the set.
    declared: Mutex<HashMap<usize, Declared>>,
}

/// How the limits of a set are shared by one definition of it.
#[derive(Debug)]
struct Declared {
    generation: u64,
    version: u64,
    /// Of each limit: the key, and how it is counted; none of one that is not shared.
    limits: Vec<Option<(String, LeasedLimit)>>,
}

/// A request that was kept in the segment to be sent, and when it was handed out: just before the attempt to send it.
#[derive(Clone, Debug)]
pub struct Asked {
    request: LeaseRequest,
    lease: AskedLease,
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
    fn engine(&self) -> &SegmentEngine {
        &self.segment.shared().engine
    }

    fn duty(&self, taken: TakenDuty) -> Duty {
        Duty {
            fleet: self.clone(),
            taken,
            declared: Mutex::default(),
        }
    }

    /// Where the store is, and what this host is called, as it is in force now; none where the segment was declared without
    /// a fleet.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Damaged`](crate::SegmentError::Damaged) where a definition cannot be read.
    pub fn options(&self) -> Result<Option<FleetOptions>, Error> {
        Ok(self.segment.declaration_in_force()?.fleet_options().cloned())
    }

    /// What the store knows this host by: random, of this segment, another one after each cold start. Of a limit whose account
    /// was found to be another's ([`StoreProblem::Stale`]) it is another one, which its requests say.
    pub fn host(&self) -> u64 {
        self.engine().host_number()
    }

    /// Whether any limit is shared with other hosts now.
    pub fn has_leases(&self) -> bool {
        self.engine().has_leases()
    }

    /// Takes duty, where no live process has it, or one that was not heard of in time; none where one has, this one
    /// included.
    ///
    /// # Errors
    ///
    /// Where this process, after a fork, cannot become a participant: see [`OpenError`](crate::OpenError).
    pub fn try_take_duty(&self) -> Result<Option<Duty>, Error> {
        let taken = self.engine().try_take_duty()?;
        Ok(taken.map(|taken| self.duty(taken)))
    }

    /// As [`try_take_duty`](Self::try_take_duty), waiting until the process that has duty gives it up, dies, or is not heard
    /// of in time, at most for `timeout`. The death of a process is noticed at once where the kernel has process descriptors, and within 20 ms
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// As [`try_take_duty`](Self::try_take_duty).
    pub fn wait_for_duty(&self, timeout: Duration) -> Result<Option<Duty>, Error> {
        let taken = self.engine().wait_for_duty(timeout)?;
        Ok(taken.map(|taken| self.duty(taken)))
    }

    /// Has the host give everything back with its next requests, and ask for nothing from then on, before it goes; or ends
    /// that. While it drains, requests of limits that hosts share are refused for
    /// [`RefusalReason::Lease`](crate::RefusalReason::Lease). Places of a concurrency limit are given back as they are
    /// released.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Removed`](crate::SegmentError::Removed).
    pub fn set_draining(&self, draining: bool) -> Result<(), Error> {
        Ok(self.engine().set_draining(draining)?)
    }
}

impl Duty {
    fn engine(&self) -> &SegmentEngine {
        self.fleet.engine()
    }

    /// Whether this process has duty still: not after a fork, and not where another has taken it over.
    pub fn is_held(&self) -> bool {
        self.engine().has_duty(self.taken)
    }

    /// Keeps duty for so long from now on, at most a minute, without a further call; answers whether it was not lost.
    /// [`ask`](Self::ask) keeps it for three seconds and [`wait`](Self::wait) for one longer than it sleeps: after that,
    /// another process may take it over, because this one is stopped or hangs. So this is for exchanges that may take longer.
    pub fn keep(&self, duration: Duration) -> bool {
        let nanos = nanos_from_duration(duration).unwrap_or(u64::MAX);
        self.engine().keep_duty(self.taken, nanos)
    }

    /// Every request that is due now, or was asked before and not answered: that again, with the same content. Each is kept in
    /// the segment before it is handed out. To be called once for each attempt, just before it, because what is granted
    /// counts from this call. None where this process has lost duty.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned), each only where nothing else is due.
    pub fn ask(&self) -> Result<Vec<Asked>, Error> {
        if !self.engine().keep_duty(self.taken, EXCHANGE) {
            return Ok(Vec::new());
        }
        let host = self.fleet.host();
        let leases = self.engine().ask_leases()?;
        Ok(leases
            .into_iter()
            .filter_map(|lease| {
                let (version, key, declared) = self.declared(&lease)?;
                let ask = lease.ask;
                let request = LeaseRequest {
                    key,
                    declared,
                    version,
                    host: if ask.identity == 0 { host } else { ask.identity },
                    sequence: ask.sequence,
                    spent: ask.spent,
                    refunded: ask.refunded,
                    held: ask.held,
                    wanted: ask.wanted,
                    grant_number: ask.grant_number,
                };
                Some(Asked { request, lease })
            })
            .collect())
    }

    /// How a limit is shared by the definition that its request was kept under, and of which version that is; none where
    /// another has come into force since, under which it is asked again.
    fn declared(&self, lease: &AskedLease) -> Option<(u64, String, LeasedLimit)> {
        let place = lease.place;
        let mut known = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = known
            .get(&place.set)
            .is_some_and(|declared| declared.generation == lease.generation);
        if !is_known {
            let set = self.engine().sets().get(place.set)?;
            let definition = self.engine().definition(set).ok()?;
            if definition.generation != lease.generation {
                return None;
            }
            let stored = StoredSet::from_text(&definition.text).ok()?;
            let limits = stored.set().limits().iter().map(LeasedLimit::of).collect();
            let declared = Declared {
                generation: lease.generation,
                version: stored.version().unwrap_or(0),
                limits,
            };
            known.insert(place.set, declared);
        }
        let declared = known.get(&place.set)?;
        let (key, limit) = declared.limits.get(place.limit)?.clone()?;
        Some((declared.version, key, limit))
    }

    /// How long it is until the next request is due, if nothing is spent meanwhile; none where none will be.
    pub fn due_in(&self) -> Option<Duration> {
        self.engine().lease_due_in().map(Duration::from_nanos)
    }

    /// Brings an answer into force and serves those who wait for it. An answer to another request than the latest changes
    /// nothing, and neither does one that comes after another process has taken duty over: that asks itself.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck), [`SegmentError::Removed`](crate::SegmentError::Removed).
    /// The request stays unanswered then, and is repeated.
    pub fn install(&self, asked: &Asked, reply: &LeaseReply) -> Result<(), Error> {
        if !self.is_held() {
            return Ok(());
        }
        let answer = Answer {
            sequence: reply.sequence,
            granted: reply.granted,
            remaining: nanos_from_duration(reply.remaining).unwrap_or(u64::MAX),
            share: reply.share,
            grant_number: reply.grant_number,
            drained_in: nanos_from_duration(reply.drained_in).unwrap_or(u64::MAX),
        };
        Ok(self.engine().install_lease(&asked.lease, answer)?)
    }

    /// Notes that an attempt came to nothing. The request is repeated by the first [`ask`](Self::ask) after `retry_in`.
    /// Problems other than [`Quarantine`](StoreProblem::Quarantine) and [`Stale`](StoreProblem::Stale) bring the
    /// limit's outage policy into force, until a request is answered. Changes nothing after another process has taken duty
    /// over.
    ///
    /// # Errors
    ///
    /// As [`install`](Self::install).
    pub fn report(&self, asked: &Asked, problem: StoreProblem, retry_in: Duration) -> Result<(), Error> {
        if !self.is_held() {
            return Ok(());
        }
        let problem = Problem {
            code: problem.code(),
            is_outage: problem.is_outage(),
            new_identity: (problem == StoreProblem::Stale).then(new_identity),
        };
        let retry_in = nanos_from_duration(retry_in).unwrap_or(u64::MAX);
        Ok(self.engine().fail_lease(&asked.lease, problem, retry_in)?)
    }

    /// Sleeps until a request may be due: until a process finds that too little is leased, or by time. At most for `timeout`
    /// and for a second; it may return early.
    pub fn wait(&self, timeout: Duration) {
        self.engine().wait_for_shortage(self.taken, timeout);
    }
}

/// What no host was known by so far: random, and not zero.
fn new_identity() -> u64 {
    // The standard library seeds its hashers from the system's random source.
    RandomState::new().hash_one(std::process::id()) | 1
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.engine().give_up_duty(self.taken);
    }
}
