//! The single thread of a process that sleeps for all its futures, renews leases in the background, and gives back
//! what a drop could not.
//!
//! It never blocks on a lock, because another segment may need it: it tries, and comes back later. Leases go first.
//!
//! It starts when there is something to sleep for, and ends when there has been nothing for a while. A forked child
//! has no such thread until its first future starts one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::Duration;
use std::{fmt, io};

use super::unused_batches::UnusedBatches;
use super::waiters::{NextStep, Queue, Waiter, Waiters};
use crate::api::segment::shared_segment::SharedSegment;
use crate::callers_code::contained;
use crate::engine::{
    DeathNotice, Deaths, HoldReference, LockWait, Renewed, ShortestLease, UNWATCHED_SLICE, WATCHED_SLICE,
};
use crate::error::{Error, OpenError, SegmentError};
use crate::mutex::{lock, unpoisoned};
use crate::shm::file::region::Mapped;
use crate::shm::process::background_thread;
use crate::shm::process::fork_identity::PerProcess;
use crate::shm::process::participant::ParticipantId;
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::futex;
use crate::shm::wake::futex::FutexValue;
use crate::shm::wake::wake_list::Seen;
use crate::sorting::sort_by;

/// How long the thread stays when there is nothing to do.
const LINGER: Duration = Duration::from_secs(10);

/// The longest pause between two attempts to take a lock.
const SLICE: u64 = 50_000_000;

/// The thread spends at most one part in this many of its time finding out whose deaths matter.
const SHARE_OF_TIME: u64 = 20;

/// The first pause before a contended lock is tried again. It doubles each time, up to [`SLICE`].
const FIRST_RETRY: u64 = 1_000_000;

/// A lease is renewed this many times before it runs out.
const RENEWALS_PER_LEASE: u64 = 3;

/// How many returns may wait for their locks. Anything beyond that stays charged.
const MAX_RETURNS: usize = 1024;

/// A hold whose leases are renewed in the background, under the definition in force: a change may shorten or lengthen
/// its lease, give it a first one, or remove it.
#[derive(Debug)]
pub(crate) struct LeaseRenewal {
    shared: Weak<SharedSegment>,
    set: usize,
    shard: u32,
    hold: HoldReference,
    owner: u64,
    /// The lease at the last look.
    lease: ShortestLease,
    /// When the lease runs out and when to renew it, on the boot-time clock; `u64::MAX` if there is no lease.
    expiry: u64,
    next: u64,
}

impl LeaseRenewal {
    pub(crate) fn new(
        shared: &Arc<SharedSegment>,
        set: usize,
        shard: u32,
        hold: HoldReference,
        owner: u64,
    ) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            set,
            shard,
            hold,
            owner,
            lease: ShortestLease::Endless,
            expiry: u64::MAX,
            next: u64::MAX,
        }
    }

    /// Renews the lease if that is due. Returns whether to keep the renewal.
    fn look(&mut self) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let Some(set) = shared.engine.sets().get(self.set) else {
            return false;
        };
        let (engine, shard) = (&shared.engine, set.shard(self.shard));
        let now = boot_nanos();
        let former = std::mem::replace(
            &mut self.lease,
            engine.shortest_lease(shard, self.hold, self.owner),
        );
        let lease = match self.lease {
            ShortestLease::Released => return false,
            ShortestLease::Endless => {
                (self.expiry, self.next) = (u64::MAX, u64::MAX);
                return true;
            }
            ShortestLease::Of(lease) => lease,
        };
        if now < self.next && former == self.lease {
            return true;
        }
        match engine
            .heartbeat(shard, self.hold, self.owner, LockWait::NOT)
            .map_err(Error::from)
        {
            Ok(Renewed::WasReclaimed) | Err(Error::Segment(SegmentError::Removed { .. })) => return false,
            Ok(Renewed::Renewed) => {
                self.expiry = now.saturating_add(lease);
                self.next = now.saturating_add((lease / RENEWALS_PER_LEASE).max(1));
            }
            // The lock is needed only in the middle of a change, which does not last long.
            Err(_) => self.next = now.saturating_add((lease / RENEWALS_PER_LEASE).clamp(1, SLICE)),
        }
        true
    }
}

/// Something admitted that went unused and could not be given back at once.
pub(crate) trait DelayedReturn: fmt::Debug + Send {
    /// Gives it back unless the lock is taken. Returns whether to try again.
    fn is_left(&mut self) -> bool;

    /// The segment that it is given back to.
    fn shared(&self) -> &Arc<SharedSegment>;
}

/// The pauses between attempts to take a contended lock.
#[derive(Clone, Copy, Debug)]
struct Retry {
    pause: u64,
}

impl Retry {
    const FIRST: Self = Self { pause: FIRST_RETRY };

    /// How long to pause after finding the lock taken or free.
    fn pause_after(&mut self, was_taken: bool) -> u64 {
        let pause = if was_taken { self.pause } else { SLICE };
        self.pause = if was_taken {
            (2 * self.pause).min(SLICE)
        } else {
            FIRST_RETRY
        };
        pause
    }
}

/// The background worker of one process.
#[derive(Debug, Default)]
struct BackgroundWorker {
    work: Mutex<WorkQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WorkQueue {
    waiters: Waiters,
    renewals: Vec<LeaseRenewal>,
    /// When to look at the renewals in any case, on the boot-time clock: a process that puts a new definition into
    /// force may die before it says so.
    next_renewals: u64,
    batches: Vec<UnusedBatches>,
    returns: VecDeque<Box<dyn DelayedReturn>>,
    /// When to try the returns again, on the boot-time clock.
    next_return: u64,
    is_running: bool,
    /// Counts the tasks taken on.
    taken_on: u64,
    /// One of the process futexes that the thread is sleeping on, and until when.
    asleep_by: Option<Mapped<AtomicU64>>,
    asleep_until: u64,
}

/// What the thread knows about one segment.
#[derive(Debug, Default)]
struct Round {
    /// This process as a participant, whose list of tickets is read, and the position reached in it.
    owner: u64,
    next: u64,
    deaths: Deaths,
    /// When to give back what a dead process held, on the boot-time clock, if a process has died.
    reclaim_at: Option<u64>,
    /// Whether deaths in it cannot be watched for.
    is_unwatched: bool,
}

/// When to look after a future.
enum Due {
    Now(Waker),
    Later(Arc<Waiter>, u64),
}

/// When to look after everything, woken or not.
#[derive(Debug)]
struct LivenessCheck {
    next: u64,
    retry: Retry,
    /// Since when the locks of queues have been taken.
    taken_since: HashMap<Queue, u64>,
}

static BACKGROUND_WORKER: PerProcess<BackgroundWorker> = PerProcess::new();

/// Starts sleeping for a future, which must be looked after at `next_look` at the latest.
pub(crate) fn attend(waiter: &Arc<Waiter>, next_look: u64) -> Result<(), Error> {
    let (worker, mut work) = running(&waiter.shared)?;
    let taken_on = work.waiters.insert(waiter, next_look, boot_nanos());
    if taken_on.needs_another_futex {
        worker.notify(&mut work);
    } else {
        work.wake_before(taken_on.look_at);
    }
    drop(work);
    if let Some(waker) = taken_on.replaced {
        contained(|| waker.wake());
    }
    Ok(())
}

/// Stops sleeping for a future. Does nothing in a forked child, whose thread knows only the child's own futures.
pub(crate) fn withdraw(waiter: &Arc<Waiter>) {
    if let Ok(worker) = BACKGROUND_WORKER.get() {
        let mut work = lock(&worker.work);
        if work.waiters.remove(waiter) {
            // The thread may be about to sleep on the segment's process futex, or be asleep on it, and would keep it
            // mapped.
            worker.notify(&mut work);
        }
    }
}

/// Schedules the next look at a future that has just looked for itself. This may be sooner than the thread planned: a
/// waiter that becomes first in the queue learns only then how long it has to wait.
pub(crate) fn look_by(waiter: &Arc<Waiter>, instant: u64) {
    let Ok(worker) = BACKGROUND_WORKER.get() else {
        return;
    };
    let mut work = lock(&worker.work);
    work.waiters.look_by(waiter, instant);
    work.wake_before(instant);
}

/// Starts renewing a lease.
pub(crate) fn keep_alive(renewal: LeaseRenewal, shared: &SharedSegment) -> Result<(), Error> {
    take_on(shared, |work| {
        work.renewals.push(renewal);
        work.next_renewals = 0;
    })
}

/// Starts returning batches of a set that this process no longer uses.
pub(crate) fn return_unused(batches: UnusedBatches, shared: &SharedSegment) -> Result<(), Error> {
    take_on(shared, |work| work.batches.push(batches))
}

/// Gives something back as soon as its lock can be had. If the thread cannot be started, or too many returns are
/// waiting, it stays charged.
pub(crate) fn give_back_later(what: impl DelayedReturn + 'static) {
    let shared = Arc::clone(what.shared());
    let mut waiting: Option<Box<dyn DelayedReturn>> = Some(Box::new(what));
    let _ = take_on(&shared, |work| {
        if work.returns.len() < MAX_RETURNS {
            work.returns.extend(waiting.take());
        }
    });
}

fn take_on(shared: &SharedSegment, task: impl FnOnce(&mut WorkQueue)) -> Result<(), Error> {
    let (worker, mut work) = running(shared)?;
    task(&mut work);
    worker.notify(&mut work);
    Ok(())
}

/// The background worker of this process. Its thread is running, and does not end before it has seen what the caller
/// adds under the guard.
fn running(
    shared: &SharedSegment,
) -> Result<(&'static BackgroundWorker, MutexGuard<'static, WorkQueue>), Error> {
    let failed = |source: io::Error| {
        Error::Open(OpenError::Io {
            action: "start the thread that sleeps for futures and leases on",
            path: shared.engine.path().to_owned(),
            source,
        })
    };
    let worker = BACKGROUND_WORKER.get().map_err(|errno| failed(errno.into()))?;
    let mut work = lock(&worker.work);
    if !work.is_running {
        background_thread::start("shmlimit", || worker.run_whatever_panics()).map_err(failed)?;
        work.is_running = true;
    }
    Ok((worker, work))
}

impl BackgroundWorker {
    /// Has the thread look at its work, which has changed.
    fn notify(&self, work: &mut WorkQueue) {
        work.taken_on = work.taken_on.wrapping_add(1);
        self.changed.notify_one();
        work.wake();
    }

    /// This thread may drop the last reference to a future's waker, which runs the caller's code.
    fn run_whatever_panics(&self) {
        while contained(|| self.run()).is_none() {
            lock(&self.work).asleep_by = None;
        }
    }

    fn run(&self) {
        let mut liveness_check = LivenessCheck::new(boot_nanos());
        let mut retry_returns = Retry::FIRST;
        let mut rounds: HashMap<u64, Round> = HashMap::new();
        loop {
            self.renew_leases();
            self.return_unused();
            self.give_back(&mut retry_returns);
            let (segments, taken_on) = self.segments();
            rounds.retain(|known, _| segments.iter().any(|shared| shared.number == *known));
            if segments.is_empty() {
                if self.rest() {
                    continue;
                }
                return;
            }
            // Read before looking, so that the thread does not sleep through an advance that comes later.
            let mut futexes: Vec<(Mapped<AtomicU64>, FutexValue)> =
                segments.iter().filter_map(process_futex).collect();
            let now = boot_nanos();
            let mut until = u64::MAX;
            let mut due = lock(&self.work).waiters.due(now);
            for shared in &segments {
                let awaiting = lock(&self.work).waiters.awaiting_answer(shared.number);
                if !awaiting.is_empty() {
                    futexes.extend(answers(shared));
                    due.extend(awaiting);
                }
                let round = rounds.entry(shared.number).or_default();
                self.read_wake_list(shared, round, &mut due);
                until = until.min(self.attend_to_deaths(shared, round, now));
            }
            let mut broken = HashSet::new();
            if now >= liveness_check.next {
                let waiters = lock(&self.work).waiters.all(None);
                broken = liveness_check.serve_queues(&waiters, now);
                let worth = |waiter: &Arc<Waiter>| broken.contains(&waiter.queue()) || waiter.needs_look(now);
                due.extend(waiters.into_iter().filter(worth));
                for shared in &segments {
                    let round = rounds.entry(shared.number).or_default();
                    until = until.min(self.reclaim(shared, round, now));
                }
                let slice = if rounds.values().any(|round| round.is_unwatched) {
                    UNWATCHED_SLICE
                } else {
                    WATCHED_SLICE
                };
                liveness_check.plan(now, slice);
            }
            self.look_after(due, now, &broken);
            let own = segments.first().and_then(process_futex).map(|(futex, _)| futex);
            // The mapping keeps only the memory alive, so a segment whose last handle goes in the meantime is
            // detached at once.
            drop(segments);
            if let Some(until) = self.may_sleep(until.min(liveness_check.next), taken_on, own) {
                let futexes: Vec<(&AtomicU64, FutexValue)> = futexes
                    .iter()
                    .filter_map(|(futex, value)| Some((futex.first()?, *value)))
                    .collect();
                futex::wait_for_any(&futexes, Duration::from_nanos(until.saturating_sub(boot_nanos())));
            }
            lock(&self.work).asleep_by = None;
        }
    }

    /// The segments in which futures wait or leases are renewed, and the number of tasks taken on so far.
    fn segments(&self) -> (Vec<Arc<SharedSegment>>, u64) {
        let work = lock(&self.work);
        let mut segments = work.waiters.segments();
        let renewing = work
            .renewals
            .iter()
            .filter_map(|renewal| renewal.shared.upgrade());
        let mut known: HashSet<u64> = segments.iter().map(|shared| shared.number).collect();
        segments.extend(renewing.filter(|shared| known.insert(shared.number)));
        (segments, work.taken_on)
    }

    /// Adds the futures that the process futex was advanced for, or all futures of the segment if it is not known which
    /// those are.
    fn read_wake_list(&self, shared: &Arc<SharedSegment>, round: &mut Round, due: &mut Vec<Arc<Waiter>>) {
        let owner = shared.engine.membership.owner_so_far();
        let mut pending_wake = Vec::new();
        let seen = match shared.engine.process_futex(owner) {
            None => Seen::NotAll,
            Some((_, list)) if round.owner != owner => {
                (round.owner, round.next) = (owner, list.end());
                Seen::NotAll
            }
            Some((_, list)) => list.read(&mut round.next, |position| pending_wake.push(position)),
        };
        let work = lock(&self.work);
        match seen {
            Seen::All => due.extend(
                pending_wake
                    .into_iter()
                    .filter_map(|position| work.waiters.at(shared.number, position)),
            ),
            Seen::NotAll => due.extend(work.waiters.all(Some(shared.number))),
        }
    }

    /// Looks after the given futures, and wakes those that should look themselves.
    fn look_after(&self, due: Vec<Arc<Waiter>>, now: u64, broken: &HashSet<Queue>) {
        let mut wakers = Vec::new();
        let mut later = Vec::new();
        for waiter in due {
            let (serial, is_broken) = (waiter.serial, broken.contains(&waiter.queue()));
            // This clones a waker and may drop the last reference to another: the caller's code, which must not end
            // this thread.
            let step = contained(move || match waiter.look(now, is_broken) {
                NextStep::Wake(waker) => Some(Due::Now(waker)),
                NextStep::LookAt(instant) => Some(Due::Later(waiter, instant)),
                NextStep::Nothing => None,
            });
            match step.flatten() {
                Some(Due::Now(waker)) => wakers.push((serial, waker)),
                Some(Due::Later(waiter, instant)) => later.push((waiter, instant)),
                None => {}
            }
        }
        let mut work = lock(&self.work);
        for (waiter, instant) in &later {
            work.waiters.look_by(waiter, *instant);
        }
        drop(work);
        for (waiter, _) in later {
            contained(|| drop(waiter));
        }
        // Outside every lock: a waker may do anything, and if it panics, the other futures still need the thread.
        // They are woken in order of arrival, whatever made them due.
        sort_by(&mut wakers, |(one, _), (other, _)| one < other);
        for (_, waker) in wakers {
            contained(|| waker.wake());
        }
    }

    /// Asks to be notified of deaths that could help the futures of a segment, and gives back what was held by the
    /// processes whose deaths have been reported. Returns when to come back.
    fn attend_to_deaths(&self, shared: &Arc<SharedSegment>, round: &mut Round, now: u64) -> u64 {
        let segment = shared.number;
        if round.deaths.take_fired() {
            round.reclaim_at = Some(now);
            lock(&self.work)
                .waiters
                .watch_again_at(segment, now.saturating_add(UNWATCHED_SLICE));
        }
        let until = match round.reclaim_at {
            Some(instant) if instant <= now => self.reclaim(shared, round, now),
            Some(instant) => instant,
            None => u64::MAX,
        };
        if lock(&self.work).waiters.take_watch_due(segment, now) {
            let shards = lock(&self.work).waiters.shards(segment);
            let sets = shared.engine.sets();
            let shards = shards
                .iter()
                .filter_map(|(_, set, shard)| Some(sets.get(*set)?.shard(*shard)));
            let notice = shared.engine.watch_for_deaths_in(shards, &mut round.deaths);
            round.is_unwatched = notice == DeathNotice::Unwatched;
            let ended = boot_nanos();
            let pause = ended.saturating_sub(now).saturating_mul(SHARE_OF_TIME);
            let next = ended.saturating_add(pause.max(UNWATCHED_SLICE));
            let mut work = lock(&self.work);
            if notice == DeathNotice::DeadAlready {
                round.reclaim_at = Some(now);
                work.waiters.watch_again_at(segment, next);
                return now;
            }
            work.waiters.watch_not_before(segment, next);
        }
        until
    }

    /// Gives back what dead processes hold in the shards of a segment in which futures wait. Returns when to come
    /// back.
    fn reclaim(&self, shared: &Arc<SharedSegment>, round: &mut Round, now: u64) -> u64 {
        let shards = lock(&self.work).waiters.shards(shared.number);
        let engine = &shared.engine;
        let mut again = None;
        for (_, set, shard) in shards {
            let Some(set) = engine.sets().get(set) else {
                continue;
            };
            let shard = set.shard(shard);
            let is_done = shard.reclaim_is_due()
                && match engine.reclaim_if_due(shard, LockWait::NOT).map_err(Error::from) {
                    Err(Error::Segment(SegmentError::LockStuck { .. })) => false,
                    // Other errors are for the futures to report.
                    Ok(_) | Err(_) => true,
                };
            if !is_done {
                let instant = shard.next_reclaim().max(now.saturating_add(FIRST_RETRY));
                again = Some(again.map_or(instant, |other: u64| other.min(instant)));
            }
        }
        round.reclaim_at = again;
        again.unwrap_or(u64::MAX)
    }

    /// Renews the leases that are due.
    fn renew_leases(&self) {
        let mut work = lock(&self.work);
        let mut renewals = std::mem::take(&mut work.renewals);
        work.next_renewals = boot_nanos().saturating_add(WATCHED_SLICE);
        drop(work);
        sort_by(&mut renewals, |one, other| one.expiry < other.expiry);
        renewals.retain_mut(LeaseRenewal::look);
        lock(&self.work).renewals.append(&mut renewals);
    }

    /// Returns batches of credit that are no longer used.
    fn return_unused(&self) {
        let mut batches = std::mem::take(&mut lock(&self.work).batches);
        batches.retain_mut(UnusedBatches::look);
        lock(&self.work).batches.append(&mut batches);
    }

    /// Gives back whatever can be given back now.
    fn give_back(&self, retry: &mut Retry) {
        let mut work = lock(&self.work);
        if work.returns.is_empty() || boot_nanos() < work.next_return {
            return;
        }
        let mut returns = std::mem::take(&mut work.returns);
        drop(work);
        returns.retain_mut(|what| what.is_left());
        let pause = retry.pause_after(!returns.is_empty());
        let mut work = lock(&self.work);
        work.next_return = boot_nanos().saturating_add(pause);
        // More may have been added in the meantime.
        returns.append(&mut work.returns);
        let too_many = returns.split_off(returns.len().min(MAX_RETURNS));
        work.returns = returns;
        drop(work);
        // Outside the lock: dropping a permit may call back into this worker.
        drop(too_many);
    }

    /// Waits for something to do while no future waits and no lease is renewed. Returns false if it has waited long
    /// enough in vain.
    fn rest(&self) -> bool {
        let work = lock(&self.work);
        if !work.waiters.is_empty() || !work.renewals.is_empty() {
            return true;
        }
        let pause = match work.next_task() {
            Some(next) => Duration::from_nanos(next.saturating_sub(boot_nanos())),
            None => LINGER,
        };
        let (mut work, _) = unpoisoned(self.changed.wait_timeout(work, pause));
        let has_work = !work.waiters.is_empty() || work.next_task().is_some();
        if !has_work {
            // Set under the same lock, so whoever adds a task after this starts another thread.
            work.is_running = false;
        }
        has_work
    }

    /// Until when to sleep; `None` if a task was taken on since.
    fn may_sleep(&self, until: u64, taken_on: u64, own: Option<Mapped<AtomicU64>>) -> Option<u64> {
        let mut work = lock(&self.work);
        if work.taken_on != taken_on {
            return None;
        }
        let until = until
            .min(work.waiters.next_look())
            .min(work.next_task().unwrap_or(u64::MAX));
        work.asleep_by = own;
        work.asleep_until = until;
        Some(until)
    }
}

/// This process's futex in a segment, and its current value.
fn process_futex(shared: &Arc<SharedSegment>) -> Option<(Mapped<AtomicU64>, FutexValue)> {
    let membership = &shared.engine.membership;
    let own = ParticipantId::from_word(membership.owner_so_far())?;
    let futex = membership.table().mapped_process_futex(own).ok()?;
    let value = futex::value(futex.first()?);
    Some((futex, value))
}

/// The futex that each answer of a segment's store advances, and its current value.
fn answers(shared: &Arc<SharedSegment>) -> Option<(Mapped<AtomicU64>, FutexValue)> {
    let futex = shared.engine.answers()?;
    let value = futex::value(futex.first()?);
    Some((futex, value))
}

impl WorkQueue {
    /// Wakes the thread if it sleeps on process futexes.
    fn wake(&self) {
        if let Some(process_futex) = self.asleep_by.as_ref().and_then(|words| words.first()) {
            futex::bump(process_futex);
            futex::wake(process_futex);
        }
    }

    /// Wakes the thread if it would sleep beyond `instant`.
    fn wake_before(&mut self, instant: u64) {
        if instant < self.asleep_until {
            self.wake();
            // One wake is enough.
            self.asleep_until = instant;
        }
    }

    /// When the next task other than looking after futures is due.
    fn next_task(&self) -> Option<u64> {
        let next_return = (!self.returns.is_empty()).then_some(self.next_return);
        let next_renewals = (!self.renewals.is_empty()).then_some(self.next_renewals);
        let renewals = self
            .renewals
            .iter()
            .map(|renewal| renewal.next)
            .chain(next_renewals);
        let next_batches = self.batches.iter().map(UnusedBatches::next);
        renewals.chain(next_return).chain(next_batches).min()
    }
}

impl LivenessCheck {
    fn new(now: u64) -> Self {
        Self {
            next: now.saturating_add(WATCHED_SLICE),
            retry: Retry::FIRST,
            taken_since: HashMap::new(),
        }
    }

    /// Plans when to look next: soon if a lock was taken.
    fn plan(&mut self, now: u64, slice: u64) {
        let was_taken = !self.taken_since.is_empty();
        let retry = self.retry.pause_after(was_taken);
        self.next = now.saturating_add(if was_taken { retry } else { slice });
    }

    /// Serves the first waiter of each queue in which a future waits. Returns the queues where that fails, or whose
    /// lock has been taken for as long as a thread would wait for it.
    fn serve_queues(&mut self, waiters: &[Arc<Waiter>], now: u64) -> HashSet<Queue> {
        let mut seen = HashSet::new();
        let mut broken = HashSet::new();
        for waiter in waiters {
            let (Some(set), queue) = (waiter.set(), waiter.queue()) else {
                continue;
            };
            if !seen.insert(queue) {
                continue;
            }
            let engine = &waiter.shared.engine;
            let ((_, _, shard), row) = queue;
            let is_broken = match engine
                .advance(set.shard(shard), row, LockWait::NOT)
                .map_err(Error::from)
            {
                Ok(()) => {
                    self.taken_since.remove(&queue);
                    false
                }
                Err(Error::Segment(SegmentError::LockStuck { .. })) => {
                    let since = *self.taken_since.entry(queue).or_insert(now);
                    Duration::from_nanos(now.saturating_sub(since)) >= engine.lock_timeout()
                }
                Err(_) => true,
            };
            if is_broken {
                broken.insert(queue);
            }
        }
        self.taken_since
            .retain(|queue, _| seen.contains(queue) && !broken.contains(queue));
        broken
    }
}
