//! The duty of asking the store, which one process of a host has at a time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use siphasher::sip128::SipHasher13;

use super::lease_request::{LeaseReply, LeaseRequest, LeasedKey, LeasedLimit};
use super::store_problem::{NamedProblem, StoreProblem};
use crate::api::segment::Segment;
use crate::declaration::FleetOptions;
use crate::declaration::stored::StoredSet;
use crate::engine::{AskedLease, EXCHANGE, SegmentEngine, TakenDuty};
use crate::error::Error;
use crate::limit::{Answer, Problem, Quarantine};
use crate::units::nanos_from_duration;

/// The role of a segment in a fleet: see [`Segment::fleet`]. Without limits that hosts share there is nothing to do.
#[derive(Clone, Debug)]
pub struct Fleet {
    segment: Segment,
}

/// Makes this process the one of its host that asks the store. Dropping it gives duty up. A process that dies with
/// it, or does not show signs of life [in time](Self::keep), loses it to the next process that wants it.
#[derive(Debug)]
#[must_use = "dropped, it is given up"]
pub struct Duty {
    fleet: Fleet,
    taken: TakenDuty,
    /// By the position of the set.
    declared: Mutex<HashMap<usize, Declared>>,
}

/// How the limits of a set are shared under one definition of it.
#[derive(Debug)]
struct Declared {
    generation: u64,
    version: u64,
    /// For each limit, its key and how it is counted; `None` if it is not shared.
    limits: Vec<Option<(String, LeasedLimit)>>,
}

/// A request that was recorded in the segment for sending, and when it was handed out, just before the attempt to
/// send it.
#[derive(Clone, Debug)]
pub struct Asked {
    request: LeaseRequest,
    lease: AskedLease,
}

impl Asked {
    /// The request to send.
    pub fn request(&self) -> &LeaseRequest {
        &self.request
    }
}

impl Segment {
    /// The role of the segment in a fleet. Of a [directory](Self#a-file-for-each-set) no limit is shared.
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

    /// Where the store is and what this host is called, as currently in force; `None` if the segment was declared
    /// without a fleet.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Damaged`](crate::SegmentError::Damaged) if a definition cannot be read.
    pub fn options(&self) -> Result<Option<FleetOptions>, Error> {
        Ok(self.segment.declaration_in_force()?.fleet_options().cloned())
    }

    /// The number by which the store knows this host: random, per segment, and new after each cold start. A limit
    /// whose account was found to belong to another host ([`StoreProblem::Stale`]) gets a number of its own, which
    /// its requests carry.
    pub fn host(&self) -> u64 {
        self.engine().host_number()
    }

    /// Whether any limit is currently shared with other hosts.
    pub fn has_leases(&self) -> bool {
        self.engine().has_leases()
    }

    /// Takes duty if no live process has it, or if the one that has it did not show signs of life in time. `None` if
    /// some process has it, this one included.
    ///
    /// # Errors
    ///
    /// See [`OpenError`](crate::OpenError): this process, after a fork, may fail to become a participant.
    pub fn try_take_duty(&self) -> Result<Option<Duty>, Error> {
        let taken = self.engine().try_take_duty()?;
        Ok(taken.map(|taken| self.duty(taken)))
    }

    /// Like [`try_take_duty`](Self::try_take_duty), but waits up to `timeout` until the process that has duty gives
    /// it up, dies, or shows no signs of life in time. The death of a process is noticed at once if the kernel has
    /// process descriptors, and within 20 ms otherwise.
    ///
    /// # Errors
    ///
    /// See [`try_take_duty`](Self::try_take_duty).
    pub fn wait_for_duty(&self, timeout: Duration) -> Result<Option<Duty>, Error> {
        let taken = self.engine().wait_for_duty(timeout)?;
        Ok(taken.map(|taken| self.duty(taken)))
    }

    /// Starts or stops draining. A draining host gives everything back with its next requests and asks for nothing
    /// more, in order to leave; meanwhile, requests for shared limits are refused with
    /// [`RefusalReason::Lease`](crate::RefusalReason::Lease). Places of a concurrency limit are given back as they
    /// are released.
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

    /// Whether this process still has duty: not after a fork, nor after another process has taken it over.
    pub fn is_held(&self) -> bool {
        self.engine().has_duty(self.taken)
    }

    /// Keeps duty for `duration` from now, at most a minute, without a further call. Returns false if it was lost.
    /// [`ask`](Self::ask) keeps it for three seconds and [`wait`](Self::wait) for one second longer than it sleeps;
    /// after that this process counts as stopped or hung, and another may take over. So call this before exchanges
    /// that may take longer.
    pub fn keep(&self, duration: Duration) -> bool {
        let nanos = nanos_from_duration(duration).unwrap_or(u64::MAX);
        self.engine().keep_duty(self.taken, nanos)
    }

    /// Every request that is due now, and every earlier one that was not answered, again with the same content. Each
    /// is recorded in the segment before it is handed out. Call this once per attempt, right before it, because the
    /// lease of what is granted counts from this call. Empty if this process has lost duty.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned), each only if nothing else is due.
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
                let of_key = lease.of_key.map(|hash| LeasedKey {
                    hash: hash_for(&key, hash),
                    began: ask.began,
                });
                let request = LeaseRequest {
                    key,
                    of_key,
                    declared,
                    version,
                    host: if ask.identity == 0 { host } else { ask.identity },
                    sequence: ask.sequence,
                    spent: ask.spent,
                    refunded: ask.refunded,
                    ungranted: ask.ungranted,
                    held: ask.held,
                    wanted: ask.wanted,
                    grant_number: ask.grant_number,
                };
                Some(Asked { request, lease })
            })
            .collect())
    }

    /// How a limit is shared under the definition that its request was recorded with, and the version of that; `None`
    /// if another definition has come into force since. The limit is then asked for again under the new one.
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

    /// How long until the next request is due, if nothing is spent in the meantime; `None` if none will be.
    pub fn due_in(&self) -> Option<Duration> {
        self.engine().lease_due_in().map(Duration::from_nanos)
    }

    /// Puts an answer into force and serves the waiters. It has no effect if it answers a request other than the
    /// latest, or if another process has taken over duty: that process asks for itself.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Removed`](crate::SegmentError::Removed). The request then stays unanswered and is repeated.
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
            ceiling: reply.ceiling,
            hosts: reply.hosts,
            quarantine: (!reply.quarantine.is_zero()).then(|| Quarantine {
                code: NamedProblem::from(StoreProblem::Quarantine).code(),
                remaining: nanos_from_duration(reply.quarantine).unwrap_or(u64::MAX),
            }),
            available: reply.available,
            free_in: nanos_from_duration(reply.free_in).unwrap_or(u64::MAX),
        };
        Ok(self.engine().install_lease(&asked.lease, answer)?)
    }

    /// Records that an attempt failed, and why: a [`StoreProblem`], or one that [names](StoreProblem::naming) something.
    /// The first [`ask`](Self::ask) after `retry_in` repeats the request. Problems
    /// other than [`Stale`](StoreProblem::Stale) put the limit's outage
    /// policy into force until a request is answered. Has no effect if another process has taken over duty.
    ///
    /// # Errors
    ///
    /// See [`install`](Self::install).
    pub fn report(
        &self,
        asked: &Asked,
        problem: impl Into<NamedProblem>,
        retry_in: Duration,
    ) -> Result<(), Error> {
        if !self.is_held() {
            return Ok(());
        }
        let named = problem.into();
        let problem = Problem {
            code: named.code(),
            is_outage: named.problem.is_outage(),
            new_identity: (named.problem == StoreProblem::Stale).then(new_identity),
        };
        let retry_in = nanos_from_duration(retry_in).unwrap_or(u64::MAX);
        Ok(self.engine().fail_lease(&asked.lease, problem, retry_in)?)
    }

    /// Sleeps until a request may be due, because too little is leased or because time has passed. Sleeps for at most
    /// `timeout` and at most a second, and may return early.
    pub fn wait(&self, timeout: Duration) {
        self.engine().wait_for_shortage(self.taken, timeout);
    }
}

/// The name of a key in the store, from the `hash` of the key that all hosts compute alike. A key has another name under
/// each limit, so that the names do not tell which keys are the same.
fn hash_for(limit: &str, hash: u128) -> u128 {
    let seed = SipHasher13::new().hash(limit.as_bytes());
    let hasher = SipHasher13::new_with_keys(seed.h1, seed.h2);
    hasher.hash(&hash.to_le_bytes()).as_u128()
}

/// A number that no host had before: random and not zero.
fn new_identity() -> u64 {
    // The standard library seeds its hashers from the system's random source.
    RandomState::new().hash_one(std::process::id()) | 1
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.engine().give_up_duty(self.taken);
    }
}
