//! The one thread of a process that sleeps for all its futures, renews leases in the background, and gives back what a
//! drop could not.
//!
//! It never waits for a lock, since another segment may need it: it tries, and comes back. Leases go first.
//!
//! It starts when there is first something to sleep for, and ends when there has been nothing for a while. In a forked
//! child there is no such thread: the child's first future starts one of its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::engine::{HoldReference, LockWait, Renewed, SetEngine, TakenBatch, Waiting};
use crate::error::Error;
use crate::limit_set::LimitSet;
use crate::permit::Permit;
use crate::segment::SharedSegment;
use crate::shm::background_thread;
use crate::shm::clock::boot_nanos;
use crate::shm::fork_identity::PerProcess;
use crate::shm::futex::{self, Rings};

/// How long the thread stays although there is nothing to do.
const LINGER: Duration = Duration::from_secs(10);

/// The longest sleep with futures to look after.
const SLICE: u64 = 50_000_000;

/// How soon a lock is tried again that was taken; twice as late each time, up to [`SLICE`].
const FIRST_RETRY: u64 = 1_000_000;

/// A lease is renewed this many times before it runs out.
const BEATS_PER_LEASE: u64 = 3;

/// How many returns wait for their locks; what is behind the others stays charged.
const MOST_RETURNS: usize = 1024;

/// A future that waits: its ticket, and whom to tell.
#[derive(Debug)]
pub(crate) struct Post {
    shared: Arc<SharedSegment>,
    set: usize,
    owner: u64,
    /// On the boot-time clock.
    deadline: u64,
    wait: Mutex<Option<Wait>>,
}

#[derive(Debug)]
struct Wait {
    waiting: Waiting,
    waker: Waker,
}

/// What a future has to be told after a look at its post.
#[derive(Debug, Default)]
struct Told {
    waker: Option<Waker>,
    next_look: Option<u64>,
}

impl Post {
    pub(crate) fn new(set: &LimitSet, waiting: Waiting, deadline: u64, waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(set.shared()),
            set: set.position(),
            owner: waiting.owner(),
            deadline,
            wait: Mutex::new(Some(Wait { waiting, waker })),
        })
    }

    /// Lets the future look at its ticket; `waker` is told from now on. `None` where the wait has ended.
    pub(crate) fn with<T>(&self, waker: &Waker, look: impl FnOnce(&mut Waiting) -> T) -> Option<T> {
        let mut wait = lock(&self.wait);
        let wait = wait.as_mut()?;
        if !wait.waker.will_wake(waker) {
            wait.waker = waker.clone();
        }
        Some(look(&mut wait.waiting))
    }

    /// Ends the wait; answers the ticket.
    pub(crate) fn end(&self) -> Option<Waiting> {
        lock(&self.wait).take().map(|wait| wait.waiting)
    }

    /// Whether the ticket is this process's: not that of one that forked it. Then nothing here may be touched, because
    /// another thread may have had it in its hands when the fork happened.
    pub(crate) fn is_own(&self) -> bool {
        self.shared.engine.membership.is_current(self.owner)
    }

    fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Which line of which segment it is in.
    fn line(&self) -> Option<Line> {
        let (part, row) = try_lock(&self.wait)?.as_ref()?.waiting.line();
        Some((Arc::as_ptr(&self.shared).addr(), self.set, part, row))
    }

    fn set(&self) -> Option<&SetEngine> {
        self.shared.engine.sets().get(self.set)
    }

    /// Looks after the ticket without claiming anything: that is the future's to do. With `line_is_broken`, the future
    /// is told in any case, to meet the error itself.
    fn look(&self, now: u64, line_is_broken: bool) -> Told {
        let Some(mut wait) = try_lock(&self.wait) else {
            // The future looks for itself, and may have to wait for its segment's lock.
            return Told {
                waker: None,
                next_look: Some(now.saturating_add(FIRST_RETRY)),
            };
        };
        let (Some(wait), Some(set)) = (wait.as_mut(), self.set()) else {
            return Told::default();
        };
        let engine = &self.shared.engine;
        let part = set.part(wait.waiting.line().0);
        let is_due = now >= self.deadline
            || wait.waiting.is_alarmed(now)
            || line_is_broken
            || engine.is_worth_a_look(part, &wait.waiting)
            || engine
                .insure_if_due(part, &mut wait.waiting, LockWait::NOT)
                .is_err_and(|error| !matches!(*error, Error::LockStuck { .. }));
        Told {
            waker: is_due.then(|| wait.waker.clone()),
            next_look: (!is_due).then(|| wait.waiting.next_look().min(self.deadline)),
        }
    }
}

/// A hold whose leases are renewed in the background.
#[derive(Debug)]
pub(crate) struct Beat {
    shared: Weak<SharedSegment>,
    set: usize,
    part: u32,
    hold: HoldReference,
    owner: u64,
    lease: u64,
    /// When the lease runs out, and when to renew it, on the boot-time clock.
    expiry: u64,
    next: u64,
}

impl Beat {
    /// For a lease of so many nanoseconds that was renewed just now.
    pub(crate) fn new(
        shared: &Arc<SharedSegment>,
        set: usize,
        part: u32,
        hold: HoldReference,
        owner: u64,
        lease: u64,
    ) -> Self {
        let mut beat = Self {
            shared: Arc::downgrade(shared),
            set,
            part,
            hold,
            owner,
            lease,
            expiry: 0,
            next: 0,
        };
        beat.count_from(boot_nanos());
        beat
    }

    fn count_from(&mut self, now: u64) {
        self.expiry = now.saturating_add(self.lease);
        self.next = now.saturating_add((self.lease / BEATS_PER_LEASE).max(1));
    }

    /// Renews the lease if it is time; answers whether to go on.
    fn beat(&mut self) -> bool {
        let now = boot_nanos();
        if now < self.next {
            return true;
        }
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let Some(set) = shared.engine.sets().get(self.set) else {
            return false;
        };
        match shared
            .engine
            .heartbeat(set.part(self.part), self.hold, self.owner, LockWait::NOT)
            .map_err(Error::from)
        {
            Ok(Renewed::WasReclaimed) | Err(Error::Retired { .. }) => return false,
            Ok(Renewed::Renewed) => self.count_from(now),
            // The lock is needed in the middle of a change only, and that comes to an end.
            Err(_) => self.next = now.saturating_add((self.lease / BEATS_PER_LEASE).clamp(1, SLICE)),
        }
        true
    }
}

/// What a dropped handle of local credit had left.
#[derive(Debug)]
pub(crate) struct UnspentBatch {
    shared: Arc<SharedSegment>,
    set: usize,
    limit: usize,
    batch: TakenBatch,
    units: u64,
}

impl UnspentBatch {
    pub(crate) fn new(set: &LimitSet, limit: usize, batch: TakenBatch, units: u64) -> Self {
        Self {
            shared: Arc::clone(set.shared()),
            set: set.position(),
            limit,
            batch,
            units,
        }
    }

    /// Gives it back unless the lock is taken; answers whether to try again.
    fn is_left(&self) -> bool {
        let engine = &self.shared.engine;
        engine.sets().get(self.set).is_some_and(|set| {
            engine
                .return_batch(set.part(0), self.limit, &self.batch, self.units, LockWait::NOT)
                .is_err_and(|error| matches!(*error, Error::LockStuck { .. }))
        })
    }
}

/// What has no hold and could not be given back at once.
#[derive(Debug)]
pub(crate) enum Return {
    Unspent(UnspentBatch),
    /// What was admitted and not made use of.
    Unused(Permit<'static>),
}

impl Return {
    /// Gives it back unless the lock is taken; answers whether to try again.
    fn is_left(&mut self) -> bool {
        match self {
            Self::Unspent(batch) => batch.is_left(),
            Self::Unused(permit) => {
                matches!(permit.cancel_within(LockWait::NOT), Err(Error::LockStuck { .. }))
            }
        }
    }

    fn shared(&self) -> &Arc<SharedSegment> {
        match self {
            Self::Unspent(batch) => &batch.shared,
            Self::Unused(permit) => permit.limit_set().shared(),
        }
    }
}

/// When to try a lock again that was taken.
#[derive(Clone, Copy, Debug)]
struct Retry {
    pause: u64,
}

impl Retry {
    const FIRST: Self = Self { pause: FIRST_RETRY };

    /// How long to wait, where a lock was taken or was not.
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

/// The attendant of one process.
#[derive(Debug, Default)]
struct Attendant {
    duties: Mutex<Duties>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Duties {
    /// By their addresses.
    posts: HashMap<usize, Arc<Post>>,
    beats: Vec<Beat>,
    returns: VecDeque<Return>,
    /// When to try again to give them back, on the boot-time clock.
    next_return: u64,
    is_running: bool,
    /// Counts what was taken on.
    taken_on: u64,
    /// By whose doorbells the thread sleeps now, and until when.
    asleep_by: Vec<Arc<SharedSegment>>,
    asleep_until: u64,
    /// When to look at the latest, where a future has found out that itself since the thread looked after it.
    look_by: Option<u64>,
}

/// The address of a segment, the number of a set, the part of it, and the row whose line it is.
type Line = (usize, usize, u32, u64);

static ATTENDANT: PerProcess<Attendant> = PerProcess::new();

/// Sleeps for a future from now on.
pub(crate) fn attend(post: &Arc<Post>) -> Result<(), Error> {
    take_on(&post.shared, |duties| {
        duties.posts.insert(post.address(), Arc::clone(post));
    })
}

/// Sleeps for a future no longer. Does nothing in a forked child, whose thread knows only of the child's own.
pub(crate) fn withdraw(post: &Arc<Post>) {
    if let Ok(attendant) = ATTENDANT.get() {
        lock(&attendant.duties).posts.remove(&post.address());
    }
}

/// Has a future that has just looked for itself looked after again at `instant`, which may be sooner than the thread
/// knew: whoever comes to be first learns only then for how long it has to wait.
pub(crate) fn look_by(instant: u64) {
    let Ok(attendant) = ATTENDANT.get() else { return };
    let mut duties = lock(&attendant.duties);
    duties.look_by = Some(duties.look_by.map_or(instant, |other| other.min(instant)));
    if instant < duties.asleep_until
        && let Some(asleep_by) = duties.asleep_by.first()
    {
        asleep_by.engine.ring_own_doorbell();
    }
}

/// Renews a lease from now on.
pub(crate) fn keep_alive(beat: Beat, shared: &SharedSegment) -> Result<(), Error> {
    take_on(shared, |duties| duties.beats.push(beat))
}

/// Gives something back as soon as its lock can be had. Where there is no thread for that, or too much waits for it
/// already, it stays charged.
pub(crate) fn give_back_later(what: Return) {
    let shared = Arc::clone(what.shared());
    let mut waiting = Some(what);
    let _ = take_on(&shared, |duties| {
        if duties.returns.len() < MOST_RETURNS {
            duties.returns.extend(waiting.take());
        }
    });
}

fn take_on(shared: &SharedSegment, duty: impl FnOnce(&mut Duties)) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Io {
        action: "start the thread that sleeps for futures and leases on",
        path: shared.engine.path().to_owned(),
        source,
    };
    let attendant = ATTENDANT.get().map_err(|errno| failed(errno.into()))?;
    let mut duties = lock(&attendant.duties);
    if !duties.is_running {
        background_thread::start("shmlimit", || attendant.run()).map_err(failed)?;
        duties.is_running = true;
    }
    duty(&mut duties);
    duties.taken_on = duties.taken_on.wrapping_add(1);
    attendant.changed.notify_one();
    if let Some(asleep_by) = duties.asleep_by.first() {
        asleep_by.engine.ring_own_doorbell();
    }
    Ok(())
}

impl Attendant {
    fn run(&self) {
        let mut next_insurance = 0;
        let mut retry_returns = Retry::FIRST;
        let mut retry_lines = Retry::FIRST;
        let mut taken_since = HashMap::new();
        loop {
            self.beat();
            self.give_back(&mut retry_returns);
            let (posts, taken_on) = self.posts();
            if posts.is_empty() {
                if self.rest() {
                    continue;
                }
                return;
            }
            let segments = segments_of(&posts);
            // Counted before the looks, so that a ring after them is not slept through.
            let bells: Vec<(&AtomicU64, Rings)> = segments
                .iter()
                .filter_map(|shared| shared.engine.own_doorbell())
                .map(|bell| (bell, futex::rings(bell)))
                .collect();
            let now = boot_nanos();
            let broken = if now >= next_insurance {
                let broken = advance_lines(&posts, &mut taken_since);
                next_insurance = now.saturating_add(retry_lines.pause_after(!taken_since.is_empty()));
                broken
            } else {
                HashSet::new()
            };
            let mut until = next_insurance;
            let mut wakers = Vec::new();
            for post in &posts {
                let told = post.look(now, post.line().is_some_and(|line| broken.contains(&line)));
                wakers.extend(told.waker);
                until = until.min(told.next_look.unwrap_or(u64::MAX));
            }
            drop(posts);
            // Outside of every lock: a waker may do anything, and where it panics, the other futures need the thread still.
            for waker in wakers {
                let _ = panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
            if let Some(until) = self.may_sleep(until, taken_on, &segments) {
                futex::wait_for_any(&bells, Duration::from_nanos(until.saturating_sub(boot_nanos())));
            }
            lock(&self.duties).asleep_by.clear();
        }
    }

    /// Renews what is due.
    fn beat(&self) {
        let mut beats = std::mem::take(&mut lock(&self.duties).beats);
        beats.sort_unstable_by_key(|beat| beat.expiry);
        beats.retain_mut(Beat::beat);
        lock(&self.duties).beats.append(&mut beats);
    }

    /// Gives back what can be.
    fn give_back(&self, retry: &mut Retry) {
        let mut duties = lock(&self.duties);
        if duties.returns.is_empty() || boot_nanos() < duties.next_return {
            return;
        }
        let mut returns = std::mem::take(&mut duties.returns);
        drop(duties);
        returns.retain_mut(Return::is_left);
        let pause = retry.pause_after(!returns.is_empty());
        let mut duties = lock(&self.duties);
        duties.next_return = boot_nanos().saturating_add(pause);
        // There may be others by now.
        returns.append(&mut duties.returns);
        let too_many = returns.split_off(returns.len().min(MOST_RETURNS));
        duties.returns = returns;
        drop(duties);
        // Outside of the lock: dropping a permit may have to do with the thread itself.
        drop(too_many);
    }

    /// The futures to look after, and how much had been taken on by now.
    fn posts(&self) -> (Vec<Arc<Post>>, u64) {
        let duties = lock(&self.duties);
        (duties.posts.values().cloned().collect(), duties.taken_on)
    }

    /// Waits for something to do besides renewing leases; answers false when it has waited for long enough in vain.
    fn rest(&self) -> bool {
        let duties = lock(&self.duties);
        if !duties.posts.is_empty() {
            return true;
        }
        let pause = match duties.next_duty() {
            Some(next) => Duration::from_nanos(next.saturating_sub(boot_nanos())),
            None => LINGER,
        };
        let (mut duties, _) = self
            .changed
            .wait_timeout(duties, pause)
            .unwrap_or_else(PoisonError::into_inner);
        let has_duties = !duties.posts.is_empty() || duties.next_duty().is_some();
        if !has_duties {
            // Said under the same lock: whoever takes something on from here starts another thread.
            duties.is_running = false;
        }
        has_duties
    }

    /// Until when to sleep; `None` where something was taken on since.
    fn may_sleep(&self, until: u64, taken_on: u64, segments: &[Arc<SharedSegment>]) -> Option<u64> {
        let mut duties = lock(&self.duties);
        if duties.taken_on != taken_on {
            return None;
        }
        let look_by = duties.look_by.take();
        let until = [look_by, duties.next_duty()]
            .into_iter()
            .flatten()
            .fold(until, u64::min);
        duties.asleep_by = segments.to_vec();
        duties.asleep_until = until;
        Some(until)
    }
}

impl Duties {
    /// When there is something to do besides looking after futures.
    fn next_duty(&self) -> Option<u64> {
        let next_return = (!self.returns.is_empty()).then_some(self.next_return);
        let beats = self.beats.iter().map(|beat| beat.next);
        beats.chain(next_return).min()
    }
}

fn segments_of(posts: &[Arc<Post>]) -> Vec<Arc<SharedSegment>> {
    let mut segments: Vec<Arc<SharedSegment>> = Vec::new();
    for post in posts {
        if !segments.iter().any(|shared| Arc::ptr_eq(shared, &post.shared)) {
            segments.push(Arc::clone(&post.shared));
        }
    }
    segments
}

/// Serves whoever is first in each line that is waited in; answers the lines in which that fails, or whose lock has been
/// taken for as long as a thread would wait for it. `taken_since` says since when.
fn advance_lines(posts: &[Arc<Post>], taken_since: &mut HashMap<Line, u64>) -> HashSet<Line> {
    let mut seen = HashSet::new();
    let mut broken = HashSet::new();
    let now = boot_nanos();
    for post in posts {
        let (Some(set), Some(line)) = (post.set(), post.line()) else {
            continue;
        };
        if !seen.insert(line) {
            continue;
        }
        let engine = &post.shared.engine;
        let is_broken = match engine
            .advance(set.part(line.2), line.3, LockWait::NOT)
            .map_err(Error::from)
        {
            Ok(()) => {
                taken_since.remove(&line);
                false
            }
            Err(Error::LockStuck { .. }) => {
                let since = *taken_since.entry(line).or_insert(now);
                Duration::from_nanos(now.saturating_sub(since)) >= engine.lock_patience()
            }
            Err(_) => true,
        };
        if is_broken {
            broken.insert(line);
        }
    }
    taken_since.retain(|line, _| seen.contains(line) && !broken.contains(line));
    broken
}

/// A thread that panicked in the middle of one of these changed nothing by halves.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], where no other thread has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
