//! The one thread of a process that sleeps for all its futures, and renews leases in the background.
//!
//! It starts when there is first something to sleep for, and ends when there has been nothing for a while. In a forked
//! child there is no such thread: the child's first future starts one of its own.

use std::collections::{HashMap, HashSet};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::engine::{HoldReference, Renewed, SetEngine, Waiting};
use crate::error::Error;
use crate::limit_set::LimitSet;
use crate::segment::SharedSegment;
use crate::shm::background_thread;
use crate::shm::clock::boot_nanos;
use crate::shm::fork_identity::PerProcess;
use crate::shm::futex::{self, Rings};

/// How long the thread stays although there is nothing to do.
const LINGER: Duration = Duration::from_secs(10);

/// The longest sleep with futures to look after.
const SLICE: u64 = 50_000_000;

/// A lease is renewed this many times before it runs out.
const BEATS_PER_LEASE: u64 = 3;

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
        let (part, row) = lock(&self.wait).as_ref()?.waiting.line();
        Some((Arc::as_ptr(&self.shared).addr(), self.set, part, row))
    }

    fn set(&self) -> Option<&SetEngine> {
        self.shared.engine.sets().get(self.set)
    }

    /// Looks after the ticket without claiming anything: that is the future's to do. With `line_is_broken`, the future
    /// is told in any case, to meet the error itself.
    fn look(&self, now: u64, line_is_broken: bool) -> Told {
        let mut wait = lock(&self.wait);
        let (Some(wait), Some(set)) = (wait.as_mut(), self.set()) else {
            return Told::default();
        };
        let engine = &self.shared.engine;
        let part = set.part(wait.waiting.line().0);
        let is_due = now >= self.deadline
            || wait.waiting.is_alarmed(now)
            || line_is_broken
            || engine.is_worth_a_look(part, &wait.waiting)
            || engine.insure_if_due(part, &mut wait.waiting).is_err();
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
    interval: u64,
    /// On the boot-time clock.
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
        let interval = (lease / BEATS_PER_LEASE).max(1);
        Self {
            shared: Arc::downgrade(shared),
            set,
            part,
            hold,
            owner,
            interval,
            next: boot_nanos().saturating_add(interval),
        }
    }

    /// Renews the lease if it is time; answers whether to go on.
    fn beat(&mut self, now: u64) -> bool {
        if now < self.next {
            return true;
        }
        self.next = now.saturating_add(self.interval);
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let Some(set) = shared.engine.sets().get(self.set) else {
            return false;
        };
        match shared
            .engine
            .heartbeat(set.part(self.part), self.hold, self.owner)
            .map_err(Error::from)
        {
            Ok(Renewed::WasReclaimed) | Err(Error::Retired { .. }) => false,
            // A lock that is stuck now may not be the next time.
            Ok(Renewed::Renewed) | Err(_) => true,
        }
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
        loop {
            let (posts, taken_on) = self.posts_after_beats();
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
                next_insurance = now.saturating_add(SLICE);
                advance_lines(&posts)
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

    /// Renews what is due; answers the futures to look after and how much had been taken on by then.
    fn posts_after_beats(&self) -> (Vec<Arc<Post>>, u64) {
        let mut beats = std::mem::take(&mut lock(&self.duties).beats);
        let now = boot_nanos();
        beats.retain_mut(|beat| beat.beat(now));
        let mut duties = lock(&self.duties);
        duties.beats.append(&mut beats);
        (duties.posts.values().cloned().collect(), duties.taken_on)
    }

    /// Waits for something to do besides renewing leases; answers false when it has waited for long enough in vain.
    fn rest(&self) -> bool {
        let duties = lock(&self.duties);
        if !duties.posts.is_empty() {
            return true;
        }
        let pause = match duties.next_beat() {
            Some(next) => Duration::from_nanos(next.saturating_sub(boot_nanos())),
            None => LINGER,
        };
        let (mut duties, _) = self
            .changed
            .wait_timeout(duties, pause)
            .unwrap_or_else(PoisonError::into_inner);
        let has_duties = !duties.posts.is_empty() || !duties.beats.is_empty();
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
        let until = [look_by, duties.next_beat()]
            .into_iter()
            .flatten()
            .fold(until, u64::min);
        duties.asleep_by = segments.to_vec();
        duties.asleep_until = until;
        Some(until)
    }
}

impl Duties {
    fn next_beat(&self) -> Option<u64> {
        self.beats.iter().map(|beat| beat.next).min()
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

/// Serves whoever is first in each line that is waited in; answers the lines in which that fails.
fn advance_lines(posts: &[Arc<Post>]) -> HashSet<Line> {
    let mut seen = HashSet::new();
    let mut broken = HashSet::new();
    for post in posts {
        if let (Some(set), Some(line)) = (post.set(), post.line())
            && seen.insert(line)
            && post.shared.engine.advance(set.part(line.2), line.3).is_err()
        {
            broken.insert(line);
        }
    }
    broken
}

/// A thread that panicked in the middle of one of these changed nothing by halves.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
