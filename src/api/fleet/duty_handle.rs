//! The duty of asking the store, which one process of a host has at a time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip128::SipHasher13;

use super::lease_request::{LeaseReply, LeaseRequest, LeasedKey, LeasedLimit};
use super::store_problem::{NamedProblem, StoreProblem};
use crate::api::segment::Segment;
use crate::api::segment::shared_segment::SharedSegment;
use crate::declaration::FleetOptions;
use crate::declaration::stored::StoredSet;
use crate::engine::{AskedLease, EXCHANGE, Served, TakenDuty, take_duties, wait_for_duty, wait_for_shortage};
use crate::error::Error;
use crate::limit::{Answer, Problem, Quarantine};
use crate::shm::process::fork_identity::ProcessMutex;
use crate::units::nanos_from_duration;

/// The role of a segment in a fleet: see [`Segment::fleet`]. Without limits that hosts share there is nothing to do.
#[derive(Clone, Debug)]
pub struct Fleet {
    segment: Segment,
}

/// Makes this process the one on its host that asks the store. Dropping it gives duty up. A process that dies with it,
/// or does not show signs of life [in time](Self::keep), loses it to the next process that wants it.
#[derive(Debug)]
#[must_use = "dropped, it is given up"]
pub struct Duty {
    fleet: Fleet,
    /// The file, or the files of a directory; duty is taken for those for which no other process has it.
    served: ProcessMutex<Vec<ServedFile>>,
}

/// A file that this process may ask the store for.
#[derive(Clone, Debug)]
struct ServedFile {
    file: Arc<SharedSegment>,
    taken: Option<TakenDuty>,
    /// By the position of the set.
    declared: HashMap<usize, Declared>,
}

/// How the limits of a set are shared under one definition of it.
#[derive(Clone, Debug)]
struct Declared {
    generation: u64,
    version: u64,
    store: Arc<str>,
    /// For each limit, its key and how it is counted; `None` if it is not shared.
    limits: Vec<Option<(String, LeasedLimit)>>,
}

/// A request that was recorded in the segment for sending, and when it was handed out, just before the attempt to
/// send it.
#[derive(Clone, Debug)]
pub struct Asked {
    request: LeaseRequest,
    lease: AskedLease,
    file: Arc<SharedSegment>,
    taken: TakenDuty,
    store: Arc<str>,
}

impl Asked {
    /// The request to send.
    pub fn request(&self) -> &LeaseRequest {
        &self.request
    }

    /// The URL of the store to send it to. Files of a [directory](Segment#a-file-for-each-set) may name different
    /// stores while another one is being declared.
    pub fn store(&self) -> &str {
        &self.store
    }
}

impl Segment {
    /// The role of the segment in a fleet. A [directory](Self#a-file-for-each-set) is one host: a process that has duty
    /// asks for all files that this handle has open, and for those at the paths of removed ones. If it was opened
    /// without a declaration, it also asks for files that come later. If processes have different files open, another
    /// process asks for those that the one on duty does not have.
    pub fn fleet(&self) -> Fleet {
        Fleet {
            segment: self.clone(),
        }
    }
}

impl Fleet {
    /// The files to ask for, in the order of their paths.
    fn files(&self) -> Vec<ServedFile> {
        let files = self.segment.current_files().into_iter();
        files
            .map(|file| ServedFile {
                file,
                taken: None,
                declared: HashMap::new(),
            })
            .collect()
    }

    /// The duty that was taken; `None` if there is none.
    fn duty(&self, served: Vec<ServedFile>) -> Option<Duty> {
        let is_taken = served.iter().any(|served| served.taken.is_some());
        is_taken.then(|| {
            let duty = Duty {
                fleet: self.clone(),
                served: ProcessMutex::default(),
            };
            duty.with_served(|it| *it = served);
            duty
        })
    }

    /// The URL of each store that is declared: more than one only if files of a directory differ.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Damaged`](crate::SegmentError::Damaged) if a definition cannot be read.
    pub fn stores(&self) -> Result<Vec<String>, Error> {
        let mut stores = Vec::new();
        for served in self.files() {
            let declaration = served.file.declaration_in_force()?;
            let url = declaration.fleet_options().map(FleetOptions::url);
            if let Some(url) = url.filter(|url| !stores.iter().any(|known| known == url)) {
                stores.push(url.to_owned());
            }
        }
        Ok(stores)
    }

    /// The number that the store knows this host by: random, per segment, and new after each cold start. A limit
    /// whose account was found to belong to another host ([`StoreProblem::Stale`]) gets a number of its own, which
    /// its requests carry.
    ///
    /// For a directory, the lower 32 bits are zero: in its requests they identify the file, and tell a removed file
    /// from the one that took its place. The upper 32 bits are the same for all files of the directory, and no other
    /// directory has them.
    pub fn host(&self) -> u64 {
        let engine = &self.segment.shared().engine;
        match (self.segment.is_directory(), engine.directory_number()) {
            (true, number) if number != 0 => number,
            _ => engine.host_number(),
        }
    }

    /// Whether any limit is currently shared with other hosts.
    pub fn has_leases(&self) -> bool {
        self.segment.files().iter().any(|file| file.engine.has_leases())
    }

    /// Takes duty if no live process has it, or if the one that has it did not show signs of life in time. `None` if
    /// some process has it, this one included. For a directory, takes it for each file of which that is true.
    ///
    /// # Errors
    ///
    /// See [`OpenError`](crate::OpenError): this process, after a fork, may fail to become a participant.
    pub fn try_take_duty(&self) -> Result<Option<Duty>, Error> {
        let mut served = self.files();
        with_engines(&mut served, take_duties)?;
        Ok(self.duty(served))
    }

    /// Like [`try_take_duty`](Self::try_take_duty), but waits up to `timeout` until the process that has duty gives
    /// it up, dies, or shows no signs of life in time. The death of a process is noticed at once if the kernel has
    /// process descriptors, and within 20 ms otherwise.
    ///
    /// # Errors
    ///
    /// See [`try_take_duty`](Self::try_take_duty).
    pub fn wait_for_duty(&self, timeout: Duration) -> Result<Option<Duty>, Error> {
        let mut served = self.files();
        with_engines(&mut served, |files| wait_for_duty(files, timeout))?;
        Ok(self.duty(served))
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
        for served in self.files() {
            served.file.engine.set_draining(draining)?;
        }
        Ok(())
    }
}

/// Lets `change` change which files this process has duty for.
fn with_engines<T>(served: &mut [ServedFile], change: impl FnOnce(&mut [Served<'_>]) -> T) -> T {
    let mut engines: Vec<Served<'_>> = served
        .iter()
        .map(|served| (&served.file.engine, served.taken))
        .collect();
    let outcome = change(&mut engines);
    let taken: Vec<_> = engines.into_iter().map(|(_, taken)| taken).collect();
    for (served, taken) in served.iter_mut().zip(taken) {
        served.taken = taken;
    }
    outcome
}

impl ServedFile {
    /// The duty that this process still has for the file.
    fn held(&self) -> Option<TakenDuty> {
        self.taken.filter(|taken| self.file.engine.has_duty(*taken))
    }

    /// Every request that is due for the file.
    fn ask(&mut self, asked: &mut Vec<Asked>) -> Result<(), Error> {
        let Some(taken) = self.taken else { return Ok(()) };
        if !self.file.engine.keep_duty(taken, EXCHANGE) {
            return Ok(());
        }
        let host = self.file.engine.host_number();
        for lease in self.file.engine.ask_leases()? {
            let Some((declared, key, limit)) = self.declared(&lease) else {
                continue;
            };
            let ask = lease.ask;
            let of_key = lease.of_key.map(|hash| LeasedKey {
                hash: hash_for(&key, hash),
                began: ask.began,
            });
            let (version, store) = (declared.version, Arc::clone(&declared.store));
            let request = LeaseRequest {
                key,
                of_key,
                declared: limit,
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
            asked.push(Asked {
                request,
                lease,
                file: Arc::clone(&self.file),
                taken,
                store,
            });
        }
        Ok(())
    }

    /// How a limit is shared under the definition that its request was recorded with; `None` if another definition has
    /// come into force since. The limit is then asked for again under the new one.
    fn declared(&mut self, lease: &AskedLease) -> Option<(&Declared, String, LeasedLimit)> {
        let place = lease.place;
        let is_known = self
            .declared
            .get(&place.set)
            .is_some_and(|declared| declared.generation == lease.generation);
        if !is_known {
            let engine = &self.file.engine;
            let definition = engine.definition(engine.sets().get(place.set)?).ok()?;
            if definition.generation != lease.generation {
                return None;
            }
            let stored = StoredSet::from_text(&definition.text).ok()?;
            let limits = stored.set().limits().iter().map(LeasedLimit::of).collect();
            let declared = Declared {
                generation: lease.generation,
                version: stored.version().unwrap_or(0),
                store: stored.fleet()?.url().into(),
                limits,
            };
            self.declared.insert(place.set, declared);
        }
        let declared = self.declared.get(&place.set)?;
        let (key, limit) = declared.limits.get(place.limit)?.clone()?;
        Some((declared, key, limit))
    }
}

impl Duty {
    /// A forked child has none.
    fn with_served<T: Default>(&self, look: impl FnOnce(&mut Vec<ServedFile>) -> T) -> T {
        self.served
            .lock()
            .map(|mut served| look(&mut served))
            .unwrap_or_default()
    }

    /// Whether this process still has duty: not after a fork, nor after another process has taken it over. For a
    /// directory, whether it has it for any file.
    pub fn is_held(&self) -> bool {
        self.with_served(|served| served.iter().any(|served| served.held().is_some()))
    }

    /// Keeps duty for `duration` from now, at most a minute, without a further call. Returns false if it was lost.
    /// [`ask`](Self::ask) keeps it for three seconds and [`wait`](Self::wait) for one second longer than it sleeps;
    /// after that this process counts as stopped or hung, and another may take over, so call this before exchanges that
    /// may take longer.
    pub fn keep(&self, duration: Duration) -> bool {
        let nanos = nanos_from_duration(duration).unwrap_or(u64::MAX);
        self.with_served(|served| {
            let kept = served.iter().filter(|served| {
                served
                    .taken
                    .is_some_and(|taken| served.file.engine.keep_duty(taken, nanos))
            });
            kept.count() > 0
        })
    }

    /// Every request that is due now, and every earlier one that was not answered, again with the same content. Each
    /// is recorded in the segment before it is handed out. Call this once per attempt, right before it, because the
    /// lease of what is granted counts from this call. Empty if this process has lost duty.
    ///
    /// For a directory, this first takes duty for files for which nobody has it any longer.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Removed`](crate::SegmentError::Removed),
    /// [`SegmentError::Poisoned`](crate::SegmentError::Poisoned), each only if nothing else is due.
    pub fn ask(&self) -> Result<Vec<Asked>, Error> {
        let (asked, failure) = self.with_served(|served| {
            if self.fleet.segment.is_directory() {
                self.look_for_files(served);
            }
            let (mut asked, mut failure) = (Vec::new(), None);
            for served in served {
                if let Err(error) = served.ask(&mut asked) {
                    failure.get_or_insert(error);
                }
            }
            (asked, failure)
        });
        match failure {
            Some(error) if asked.is_empty() => Err(error),
            _ => Ok(asked),
        }
    }

    /// Goes on with the files that exist now, and takes duty for those for which nobody has it. Once duty is lost for
    /// all of them, that is left to [`Fleet::wait_for_duty`].
    fn look_for_files(&self, served: &mut Vec<ServedFile>) {
        let current = self.fleet.files();
        let known = std::mem::replace(served, current);
        for known in known {
            let is_same = |it: &&mut ServedFile| Arc::ptr_eq(&it.file, &known.file);
            match (served.iter_mut().find(is_same), known.taken) {
                (Some(same), _) => *same = known,
                (None, Some(taken)) => known.file.engine.give_up_duty(taken),
                (None, None) => {}
            }
        }
        if served.iter().any(|served| served.held().is_some()) {
            // A process that cannot take part in another file continues with those that it has.
            let _ = with_engines(served, take_duties);
        }
    }

    /// How long until the next request is due, if nothing is spent in the meantime; `None` if none will be.
    pub fn due_in(&self) -> Option<Duration> {
        let due = self.with_served(|served| {
            let held = served.iter().filter(|served| served.held().is_some());
            held.filter_map(|served| served.file.engine.lease_due_in()).min()
        });
        due.map(Duration::from_nanos)
    }

    /// Puts an answer into force and serves the waiters. It has no effect if it answers a request other than the
    /// latest, or if another process has taken over duty: that process asks for itself.
    ///
    /// # Errors
    ///
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck),
    /// [`SegmentError::Removed`](crate::SegmentError::Removed). The request then stays unanswered and is repeated.
    pub fn install(&self, asked: &Asked, reply: &LeaseReply) -> Result<(), Error> {
        let engine = &asked.file.engine;
        if !engine.has_duty(asked.taken) {
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
        Ok(engine.install_lease(&asked.lease, answer)?)
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
        let engine = &asked.file.engine;
        if !engine.has_duty(asked.taken) {
            return Ok(());
        }
        let named = problem.into();
        let problem = Problem {
            code: named.code(),
            is_outage: named.problem.is_outage(),
            new_identity: (named.problem == StoreProblem::Stale).then(new_identity),
        };
        let retry_in = nanos_from_duration(retry_in).unwrap_or(u64::MAX);
        Ok(engine.fail_lease(&asked.lease, problem, retry_in)?)
    }

    /// Records, in the segments that asked, whether their store evicts keys when its memory is used up, so that limits
    /// may start over: see [`FleetSnapshot::evicts`](super::FleetSnapshot::evicts). Has no effect where another process
    /// has taken over duty.
    pub fn note_eviction(&self, asked: &[Asked], evicts: bool) {
        // A file asks for all of its requests in a row.
        for of_file in asked.chunk_by(|one, next| Arc::ptr_eq(&one.file, &next.file)) {
            let Asked { file, taken, .. } = &of_file[0];
            file.engine.note_eviction(*taken, evicts);
        }
    }

    /// Sleeps until a request may be due, because too little is leased or because time has passed. Sleeps for at most
    /// `timeout` and at most a second, and may return early.
    pub fn wait(&self, timeout: Duration) {
        let served = self.with_served(|served| {
            let files = served
                .iter()
                .map(|served| (Arc::clone(&served.file), served.taken));
            files.collect::<Vec<_>>()
        });
        let engines: Vec<Served<'_>> = served
            .iter()
            .map(|(file, taken)| (&file.engine, *taken))
            .collect();
        wait_for_shortage(&engines, timeout);
    }
}

/// The name of a key in the store, derived from the `hash` of the key, which all hosts compute alike. A key has a
/// different name under each limit, so that the names do not tell which keys are the same.
fn hash_for(limit: &str, hash: u128) -> u128 {
    let seed = SipHasher13::new().hash(limit.as_bytes());
    let hasher = SipHasher13::new_with_keys(seed.h1, seed.h2);
    hasher.hash(&hash.to_le_bytes()).as_u128()
}

/// A number that no host has had before: random and not zero.
fn new_identity() -> u64 {
    // The standard library seeds its hashers from the system's random source.
    RandomState::new().hash_one(std::process::id()) | 1
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.with_served(|served| {
            for served in served {
                if let Some(taken) = served.taken {
                    served.file.engine.give_up_duty(taken);
                }
            }
        });
    }
}
