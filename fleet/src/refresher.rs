//! The thread that asks the store for leases while its process has duty.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, process};

use nix::sys::signal::{SigSet, SigmaskHow};
use shmlimit::Segment;
use shmlimit::fleet::{Asked, Duty, Fleet, LeaseRequest};
use thiserror::Error;

use crate::exchange::Exchange;
use crate::outages::{Attempt, Limit, Outages, StoreEvent};
use crate::protocol::partition_of;
use crate::store::client::StoreClient;
use crate::store::credentials::Credentials;
use crate::store::error::StoreError;
use crate::store::timeouts::Timeouts;
use shmlimit::debug_is_message;

/// The longest that the thread sleeps before it checks whether to stop.
const SLICE: Duration = Duration::from_millis(100);

/// How long it waits after failing to read the segment.
const AFTER_DAMAGE: Duration = Duration::from_secs(1);

/// How long a process leaves duty to others after the store has denied it access.
const AFTER_DENIAL: Duration = Duration::from_secs(1);

/// Why no thread asks for leases.
#[derive(Error)]
#[non_exhaustive]
pub enum RefresherError {
    /// The segment was declared without a store.
    #[error("the segment was declared without a store: add [fleet] with a url to its declaration")]
    NoStore,
    /// The store's address or the credentials are wrong.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The segment cannot be read.
    #[error(transparent)]
    Segment(#[from] shmlimit::Error),
    /// The system could not start a thread.
    #[error("no thread could be started: {0}")]
    Thread(#[source] io::Error),
}

debug_is_message!(RefresherError);

/// What the thread has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefresherCounts {
    /// Pipelines that were answered.
    pub round_trips: u64,
    /// Pipelines that were not.
    pub failures: u64,
    /// How often this process took duty.
    pub duties: u64,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopping: AtomicBool,
    round_trips: AtomicU64,
    failures: AtomicU64,
    duties: AtomicU64,
    problem: Mutex<Option<StoreError>>,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    fn note(&self, problem: Option<StoreError>) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

/// A thread that asks the store for leases for a segment. Any number of processes may have one. One process of the
/// host has duty at a time; when it ends or dies, another takes over. For a segment that is a directory, one thread
/// asks over one connection, however many files there are: see [`Segment::fleet`].
///
/// The thread stops when this is dropped, or with its process. A forked child has no such thread and must start its
/// own; dropping what it inherited does nothing.
///
/// ```no_run
/// use shmlimit::Segment;
/// use shmlimit_fleet::Refresher;
///
/// let segment = Segment::open("/dev/shm/gateway.limits")?;
/// let refresher = Refresher::start(&segment)?;
/// // Serve requests: none of them waits for the store.
/// drop(refresher);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, it stops"]
pub struct Refresher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Refresher {
    /// Starts the thread, with the user and password from the environment.
    ///
    /// It does not wait for the store, which may be unreachable.
    ///
    /// # Errors
    ///
    /// [`RefresherError`] if the segment has no store, its URL or the environment is wrong, or the thread cannot be
    /// started.
    pub fn start(segment: &Segment) -> Result<Self, RefresherError> {
        Self::start_observed(segment, |_| {})
    }

    /// Like [`start`](Self::start), but also calls `observer` when an outage of the store begins or ends, and when the
    /// store turns out to evict keys, as far as this process is the one that asks the store. The thread calls it, so it
    /// should return soon: leases are not renewed meanwhile.
    ///
    /// ```no_run
    /// # use shmlimit::Segment;
    /// # use shmlimit_fleet::Refresher;
    /// # let segment = Segment::open("/dev/shm/gateway.limits")?;
    /// let refresher = Refresher::start_observed(&segment, |event| eprintln!("{event}"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`start`](Self::start).
    pub fn start_observed(
        segment: &Segment,
        observer: impl Fn(&StoreEvent<'_>) + Send + 'static,
    ) -> Result<Self, RefresherError> {
        let credentials = Credentials::from_environment().map_err(StoreError::from)?;
        Self::start_with(segment, credentials, Timeouts::default(), observer)
    }

    /// Like [`start_observed`](Self::start_observed), with the given credentials and timeouts.
    ///
    /// # Errors
    ///
    /// See [`start`](Self::start).
    pub fn start_with(
        segment: &Segment,
        credentials: Credentials,
        timeouts: Timeouts,
        observer: impl Fn(&StoreEvent<'_>) + Send + 'static,
    ) -> Result<Self, RefresherError> {
        let shared = Arc::<Shared>::default();
        let declaration = segment.declaration_in_force()?;
        let options = declaration.fleet_options().ok_or(RefresherError::NoStore)?;
        let mut work = Work {
            fleet: segment.fleet(),
            credentials,
            timeouts,
            stores: Vec::new(),
            outages: Outages::new(Box::new(observer)),
            shared: Arc::clone(&shared),
        };
        work.store(options.url())?;
        // Taken here, so that the caller's first request finds a process on duty, and waits for the store's answer.
        let duty = work.fleet.try_take_duty()?;
        // Signals are for the program's own threads. Blocking them before the thread starts keeps them away from it.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let thread = thread::Builder::new()
            .name("shmlimit-fleet".to_owned())
            .spawn(move || work.run(duty));
        if let Ok(mask) = mask {
            let _ = mask.thread_set_mask();
        }
        let thread = thread.map_err(RefresherError::Thread)?;
        Ok(Self {
            shared,
            thread: Some(thread),
            process: process::id(),
        })
    }

    /// Whether the thread is running in this process.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process == process::id() && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> RefresherCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RefresherCounts {
            round_trips: count(&self.shared.round_trips),
            failures: count(&self.shared.failures),
            duties: count(&self.shared.duties),
        }
    }

    /// What was wrong with the store at the last attempt. `None` if it answered everything, and in a forked child,
    /// which has no such thread.
    #[must_use]
    pub fn problem(&self) -> Option<StoreError> {
        // A child may have inherited the lock while the thread of its parent held it.
        if self.process != process::id() {
            return None;
        }
        let problem = self.shared.problem.lock();
        problem.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the thread and waits for its end, which may take as long as the answer it is waiting for. Threads that are
    /// connecting to servers of a cluster are not waited for: they end once they are connected or their time is up, do
    /// nothing afterwards, and keep no process from ending.
    pub fn stop(mut self) {
        self.end();
    }

    /// Lets the thread run as long as the process. For programs that end soon: they then do not wait for an answer,
    /// and the next process that has duty repeats what was asked and not answered.
    pub fn detach(mut self) {
        self.thread = None;
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != process::id() {
            // The thread is the parent's, and runs on there.
            std::mem::forget(thread);
            return;
        }
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        // An error means that it panicked; another process does its work then.
        let _ = thread.join();
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.end();
    }
}

struct Work {
    fleet: Fleet,
    credentials: Credentials,
    timeouts: Timeouts,
    /// The stores that are asked: one, unless the files of a directory name several.
    stores: Vec<Store>,
    outages: Outages,
    shared: Arc<Shared>,
}

/// A store, and the connection to it.
struct Store {
    url: String,
    client: StoreClient,
    exchange: Exchange,
}

impl Work {
    /// The store with this URL. A new one takes the place of those that are no longer declared.
    fn store(&mut self, url: &str) -> Result<&mut Store, RefresherError> {
        let known = self.stores.iter().position(|store| store.url == url);
        let index = match known {
            Some(index) => index,
            None => {
                let address = url.parse().map_err(StoreError::from)?;
                let declared = self.fleet.stores()?;
                self.stores.retain(|store| declared.contains(&store.url));
                self.stores.push(Store {
                    url: url.to_owned(),
                    client: StoreClient::new(address, self.credentials.clone(), self.timeouts),
                    exchange: Exchange::new(self.fleet.host() ^ u64::from(process::id())),
                });
                self.stores.len() - 1
            }
        };
        Ok(&mut self.stores[index])
    }

    fn run(&mut self, mut duty: Option<Duty>) {
        while !self.shared.is_stopping() {
            let taken = match duty.take() {
                Some(duty) => Ok(Some(duty)),
                None => self.fleet.wait_for_duty(SLICE),
            };
            match taken {
                Ok(Some(duty)) => {
                    self.shared.duties.fetch_add(1, Ordering::Relaxed);
                    let is_denied = self.serve(&duty);
                    drop(duty);
                    if is_denied {
                        self.leave_duty_to_others();
                    }
                }
                Ok(None) => {}
                // The segment is gone, or this process can no longer use it.
                Err(_) => thread::sleep(SLICE),
            }
        }
    }

    /// Waits, so that another process can take duty: it may have the user and password that this one lacks.
    fn leave_duty_to_others(&self) {
        let begun = Instant::now();
        while !self.shared.is_stopping() && begun.elapsed() < AFTER_DENIAL {
            thread::sleep(SLICE);
        }
    }

    /// Asks as long as this process has duty. Returns true if duty should be left to others, because the store denies
    /// this process access.
    fn serve(&mut self, duty: &Duty) -> bool {
        while !self.shared.is_stopping() && duty.is_held() {
            let asked = match duty.ask() {
                Ok(asked) => asked,
                Err(_) => {
                    duty.wait(AFTER_DAMAGE.min(SLICE));
                    continue;
                }
            };
            if asked.is_empty() {
                duty.wait(SLICE);
            } else if self.exchange(duty, asked) {
                return true;
            }
        }
        false
    }

    /// Sends requests and puts the answers into force. Returns whether a store has denied all requests that it was
    /// sent.
    fn exchange(&mut self, duty: &Duty, mut asked: Vec<Asked>) -> bool {
        let (mut attempts, mut is_denied) = (Vec::new(), false);
        while let Some(first) = asked.first() {
            let url = first.store().to_owned();
            let of_store;
            (of_store, asked) = asked.into_iter().partition(|asked| asked.store() == url);
            is_denied |= self.exchange_with(&url, duty, of_store, &mut attempts);
        }
        let problem = attempts.iter().rev().find_map(|attempt| attempt.problem.clone());
        self.outages.note(Instant::now(), attempts);
        self.shared.note(problem);
        is_denied
    }

    /// The same with one store. Adds how each attempt went.
    fn exchange_with(
        &mut self,
        url: &str,
        duty: &Duty,
        asked: Vec<Asked>,
        attempts: &mut Vec<Attempt>,
    ) -> bool {
        let shared = Arc::clone(&self.shared);
        let Store { client, exchange, .. } = match self.store(url) {
            Ok(store) => store,
            // The segment is going away, cannot be read now, or has an address that this client does not understand:
            // the requests stay, and are repeated.
            Err(error) => {
                thread::sleep(SLICE);
                if let RefresherError::Store(error) = error {
                    let asked = asked.iter().map(Asked::request);
                    attempts.extend(asked.map(|request| attempt(url, request, Some(error.clone()))));
                }
                return false;
            }
        };
        let (pipeline, problems) = exchange.pipeline(duty, asked);
        let unsent = problems.into_iter();
        attempts.extend(unsent.map(|(request, problem)| attempt(url, &request, Some(problem))));
        if pipeline.requests().is_empty() {
            return false;
        }
        duty.keep(client.longest_exchange() + SLICE);
        let answers = client.ask(pipeline.requests());
        let counter = if answers.is_ok() {
            &shared.round_trips
        } else {
            &shared.failures
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let problems = exchange.settle(duty, &pipeline, answers);
        // If the store denies only some limits, the others still get their leases.
        let is_denied = problems
            .iter()
            .all(|problem| problem.as_ref().is_some_and(StoreError::is_denial));
        let asked = pipeline.requests().iter().zip(problems);
        attempts.extend(asked.map(|((request, _), problem)| attempt(url, request, problem)));
        let policy = client.evicts_by().map(str::to_owned);
        if client.is_connected() {
            pipeline.note_eviction(duty, policy.is_some());
            self.outages.note_eviction(url, policy);
        }
        is_denied
    }
}

fn attempt(url: &str, request: &LeaseRequest, problem: Option<StoreError>) -> Attempt {
    Attempt {
        limit: Limit {
            store: url.to_owned(),
            key: request.key.clone(),
            partition: request.of_key.map(|of_key| partition_of(of_key.hash)),
        },
        lease: request.declared.lease,
        problem,
    }
}
