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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::credit::UnusedBatches;
use crate::engine::{
    Deaths, HoldReference, LockWait, Renewed, TakenBatch, Telling, UNWATCHED_SLICE, WATCHED_SLICE,
};
use crate::error::Error;
use crate::limit_set::LimitSet;
use crate::permit::Permit;
use crate::segment::SharedSegment;
use crate::shm::background_thread;
use crate::shm::clock::boot_nanos;
use crate::shm::fork_identity::PerProcess;
use crate::shm::futex::{self, Rings};
use crate::shm::wake_list::Seen;
use crate::waiters::{Line, Post, Posts, Told, address, lock};

/// How long the thread stays although there is nothing to do.
const LINGER: Duration = Duration::from_secs(10);

/// The longest pause between two tries to take a lock.
const SLICE: u64 = 50_000_000;

/// The thread spends at most one part in this many of its time on finding out whose deaths matter.
const SHARE_OF_TIME: u64 = 20;

/// How soon a lock is tried again that was taken; twice as late each time, up to [`SLICE`].
const FIRST_RETRY: u64 = 1_000_000;

/// A lease is renewed this many times before it runs out.
const BEATS_PER_LEASE: u64 = 3;

/// How many returns wait for their locks; what is behind the others stays charged.
const MOST_RETURNS: usize = 1024;

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
            Ok(Renewed::WasReclaimed) | Err(Error::Removed { .. }) => return false,
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
    posts: Posts,
    beats: Vec<Beat>,
    batches: Vec<UnusedBatches>,
    returns: VecDeque<Return>,
    /// When to try again to give them back, on the boot-time clock.
    next_return: u64,
    is_running: bool,
    /// Counts what was taken on.
    taken_on: u64,
    /// By whose doorbells the thread sleeps now, and until when.
    asleep_by: Vec<Arc<SharedSegment>>,
    asleep_until: u64,
}

/// What the thread knows of one segment.
#[derive(Debug, Default)]
struct Round {
    /// The participant that this process is, whose list of tickets is read, and how far.
    owner: u64,
    next: u64,
    deaths: Deaths,
    /// Somebody died, and what it had is to be given back: when to look for that, on the boot-time clock.
    reclaim_at: Option<u64>,
    /// Deaths are not told.
    is_unwatched: bool,
}

/// When to look after everything, told or not.
#[derive(Debug)]
struct Insurance {
    next: u64,
    retry: Retry,
    /// Since when the locks of lines have been taken.
    taken_since: HashMap<Line, u64>,
}

static ATTENDANT: PerProcess<Attendant> = PerProcess::new();

/// Sleeps for a future from now on, which is to be looked after at `next_look` at the latest.
pub(crate) fn attend(post: &Arc<Post>, next_look: u64) -> Result<(), Error> {
    let (attendant, mut duties) = running(&post.shared)?;
    let taken_on = duties.posts.insert(post, next_look, boot_nanos());
    if taken_on.is_new_segment {
        attendant.tell(&mut duties);
    } else {
        duties.wake_before(taken_on.look_at);
    }
    drop(duties);
    if let Some(waker) = taken_on.replaced {
        waker.wake();
    }
    Ok(())
}

/// Sleeps for a future no longer. Does nothing in a forked child, whose thread knows only of the child's own.
pub(crate) fn withdraw(post: &Arc<Post>) {
    if let Ok(attendant) = ATTENDANT.get() {
        let mut duties = lock(&attendant.duties);
        if duties.posts.remove(post) {
            // Asleep by the segment's doorbell, or about to be, the thread would keep it open.
            attendant.tell(&mut duties);
        }
    }
}

/// Has a future that has just looked for itself looked after again at `instant`, which may be sooner than the thread
/// knew: whoever comes to be first learns only then for how long it has to wait.
pub(crate) fn look_by(post: &Arc<Post>, instant: u64) {
    let Ok(attendant) = ATTENDANT.get() else { return };
    let mut duties = lock(&attendant.duties);
    duties.posts.look_by(post, instant);
    duties.wake_before(instant);
}

/// Renews a lease from now on.
pub(crate) fn keep_alive(beat: Beat, shared: &SharedSegment) -> Result<(), Error> {
    take_on(shared, |duties| duties.beats.push(beat))
}

/// Returns the batches of a set that this process does not use any more, from now on.
pub(crate) fn return_unused(batches: UnusedBatches, shared: &SharedSegment) -> Result<(), Error> {
    take_on(shared, |duties| duties.batches.push(batches))
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
    let (attendant, mut duties) = running(shared)?;
    duty(&mut duties);
    attendant.tell(&mut duties);
    Ok(())
}

/// The attendant of this process, whose thread runs and does not end before it has seen what is added to its duties.
fn running(shared: &SharedSegment) -> Result<(&'static Attendant, MutexGuard<'static, Duties>), Error> {
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
    Ok((attendant, duties))
}

impl Attendant {
    /// Has the thread look at its duties, which are others now.
    fn tell(&self, duties: &mut Duties) {
        duties.taken_on = duties.taken_on.wrapping_add(1);
        self.changed.notify_one();
        duties.wake();
    }

    fn run(&self) {
        let mut insurance = Insurance::new(boot_nanos());
        let mut retry_returns = Retry::FIRST;
        let mut rounds: HashMap<usize, Round> = HashMap::new();
        loop {
            self.beat();
            self.return_unused();
            self.give_back(&mut retry_returns);
            let (segments, taken_on) = self.segments();
            rounds.retain(|known, _| segments.iter().any(|shared| address(shared) == *known));
            if segments.is_empty() {
                if self.rest() {
                    continue;
                }
                return;
            }
            // Counted before the looks, so that a ring after them is not slept through.
            let bells: Vec<(&AtomicU64, Rings)> = segments
                .iter()
                .filter_map(|shared| shared.engine.doorbell(shared.engine.membership.owner_so_far()))
                .map(|(bell, _)| (bell, futex::rings(bell)))
                .collect();
            let now = boot_nanos();
            let mut until = u64::MAX;
            let mut due = lock(&self.duties).posts.due(now);
            for shared in &segments {
                let round = rounds.entry(address(shared)).or_default();
                self.read_wake_list(shared, round, &mut due);
                until = until.min(self.attend_to_deaths(shared, round, now));
            }
            let mut broken = HashSet::new();
            if now >= insurance.next {
                let posts = lock(&self.duties).posts.all(None);
                broken = insurance.serve_lines(&posts, now);
                let worth = |post: &Arc<Post>| broken.contains(&post.line()) || post.is_worth_a_look(now);
                due.extend(posts.into_iter().filter(worth));
                for shared in &segments {
                    let round = rounds.entry(address(shared)).or_default();
                    until = until.min(self.reclaim(shared, round, now));
                }
                let slice = if rounds.values().any(|round| round.is_unwatched) {
                    UNWATCHED_SLICE
                } else {
                    WATCHED_SLICE
                };
                insurance.plan(now, slice);
            }
            self.look_after(due, now, &broken);
            if let Some(until) = self.may_sleep(until.min(insurance.next), taken_on, &segments) {
                futex::wait_for_any(&bells, Duration::from_nanos(until.saturating_sub(boot_nanos())));
            }
            lock(&self.duties).asleep_by.clear();
        }
    }

    /// The segments in which futures wait, and how much had been taken on by now.
    fn segments(&self) -> (Vec<Arc<SharedSegment>>, u64) {
        let duties = lock(&self.duties);
        (duties.posts.segments(), duties.taken_on)
    }

    /// Adds those that the doorbell was rung for; all of the segment, where it is not known which these are.
    fn read_wake_list(&self, shared: &Arc<SharedSegment>, round: &mut Round, due: &mut Vec<Arc<Post>>) {
        let owner = shared.engine.membership.owner_so_far();
        let mut rung = Vec::new();
        let seen = match shared.engine.doorbell(owner) {
            None => Seen::NotAll,
            Some((_, list)) if round.owner != owner => {
                (round.owner, round.next) = (owner, list.end());
                Seen::NotAll
            }
            Some((_, list)) => list.read(&mut round.next, |position| rung.push(position)),
        };
        let duties = lock(&self.duties);
        match seen {
            Seen::All => due.extend(
                rung.into_iter()
                    .filter_map(|position| duties.posts.at(address(shared), position)),
            ),
            Seen::NotAll => due.extend(duties.posts.all(Some(address(shared)))),
        }
    }

    /// Looks after some futures, and wakes those that are to look themselves.
    fn look_after(&self, due: Vec<Arc<Post>>, now: u64, broken: &HashSet<Line>) {
        let mut wakers = Vec::new();
        let mut later = Vec::new();
        for post in due {
            match post.look(now, broken.contains(&post.line())) {
                Told::Wake(waker) => wakers.push((post.serial, waker)),
                Told::LookAt(instant) => later.push((post, instant)),
                Told::Nothing => {}
            }
        }
        let mut duties = lock(&self.duties);
        for (post, instant) in &later {
            duties.posts.look_by(post, *instant);
        }
        drop(duties);
        // Outside of every lock: a waker may do anything, and where it panics, the other futures need the thread still.
        // In the order in which they came, whatever told of them.
        wakers.sort_unstable_by_key(|(serial, _)| *serial);
        for (_, waker) in wakers {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// Asks to be told of deaths that may serve the futures of a segment, and gives back what the dead had of whom that
    /// was told; answers when to come back to that.
    fn attend_to_deaths(&self, shared: &Arc<SharedSegment>, round: &mut Round, now: u64) -> u64 {
        let segment = address(shared);
        if round.deaths.take_fired() {
            round.reclaim_at = Some(now);
            lock(&self.duties)
                .posts
                .watch_again_at(segment, now.saturating_add(UNWATCHED_SLICE));
        }
        let until = match round.reclaim_at {
            Some(instant) if instant <= now => self.reclaim(shared, round, now),
            Some(instant) => instant,
            None => u64::MAX,
        };
        if lock(&self.duties).posts.take_watch_due(segment, now) {
            let parts = lock(&self.duties).posts.parts(segment);
            let sets = shared.engine.sets();
            let parts = parts
                .iter()
                .filter_map(|(_, set, part)| Some(sets.get(*set)?.part(*part)));
            let telling = shared.engine.watch_for_deaths_in(parts, &mut round.deaths);
            round.is_unwatched = telling == Telling::WillNotBeTold;
            let ended = boot_nanos();
            let pause = ended.saturating_sub(now).saturating_mul(SHARE_OF_TIME);
            let next = ended.saturating_add(pause.max(UNWATCHED_SLICE));
            let mut duties = lock(&self.duties);
            if telling == Telling::DeadAlready {
                round.reclaim_at = Some(now);
                duties.posts.watch_again_at(segment, next);
                return now;
            }
            duties.posts.watch_not_before(segment, next);
        }
        until
    }

    /// Gives back what the dead have in the parts of a segment in which futures wait; answers when to come back to that.
    fn reclaim(&self, shared: &Arc<SharedSegment>, round: &mut Round, now: u64) -> u64 {
        let parts = lock(&self.duties).posts.parts(address(shared));
        let engine = &shared.engine;
        let mut again = None;
        for (_, set, part) in parts {
            let Some(set) = engine.sets().get(set) else {
                continue;
            };
            let part = set.part(part);
            let is_done = part.reclaim_is_due()
                && match engine.reclaim_if_due(part, LockWait::NOT).map_err(Error::from) {
                    Err(Error::LockStuck { .. }) => false,
                    // Another error is for the futures to meet.
                    Ok(_) | Err(_) => true,
                };
            if !is_done {
                let instant = part.next_reclaim().max(now.saturating_add(FIRST_RETRY));
                again = Some(again.map_or(instant, |other: u64| other.min(instant)));
            }
        }
        round.reclaim_at = again;
        again.unwrap_or(u64::MAX)
    }

    /// Renews what is due.
    fn beat(&self) {
        let mut beats = std::mem::take(&mut lock(&self.duties).beats);
        beats.sort_unstable_by_key(|beat| beat.expiry);
        beats.retain_mut(Beat::beat);
        lock(&self.duties).beats.append(&mut beats);
    }

    /// Returns the batches of credit that are not used any more.
    fn return_unused(&self) {
        let mut batches = std::mem::take(&mut lock(&self.duties).batches);
        batches.retain_mut(UnusedBatches::look);
        lock(&self.duties).batches.append(&mut batches);
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
        let until = until
            .min(duties.posts.next_look())
            .min(duties.next_duty().unwrap_or(u64::MAX));
        duties.asleep_by = segments.to_vec();
        duties.asleep_until = until;
        Some(until)
    }
}

impl Duties {
    /// Wakes the thread, where it sleeps by doorbells.
    fn wake(&self) {
        if let Some(asleep_by) = self.asleep_by.first() {
            asleep_by.engine.ring_own_doorbell();
        }
    }

    /// Wakes the thread where it would sleep beyond an instant.
    fn wake_before(&mut self, instant: u64) {
        if instant < self.asleep_until {
            self.wake();
            // Once is enough.
            self.asleep_until = instant;
        }
    }

    /// When there is something to do besides looking after futures.
    fn next_duty(&self) -> Option<u64> {
        let next_return = (!self.returns.is_empty()).then_some(self.next_return);
        let beats = self.beats.iter().map(|beat| beat.next);
        let next_batches = self.batches.iter().map(UnusedBatches::next);
        beats.chain(next_return).chain(next_batches).min()
    }
}

impl Insurance {
    fn new(now: u64) -> Self {
        Self {
            next: now.saturating_add(WATCHED_SLICE),
            retry: Retry::FIRST,
            taken_since: HashMap::new(),
        }
    }

    /// When to look again: soon where a lock was taken.
    fn plan(&mut self, now: u64, slice: u64) {
        let was_taken = !self.taken_since.is_empty();
        let retry = self.retry.pause_after(was_taken);
        self.next = now.saturating_add(if was_taken { retry } else { slice });
    }

    /// Serves whoever is first in each line that is waited in; answers the lines in which that fails, or whose lock has
    /// been taken for as long as a thread would wait for it.
    fn serve_lines(&mut self, posts: &[Arc<Post>], now: u64) -> HashSet<Line> {
        let mut seen = HashSet::new();
        let mut broken = HashSet::new();
        for post in posts {
            let (Some(set), line) = (post.set(), post.line()) else {
                continue;
            };
            if !seen.insert(line) {
                continue;
            }
            let engine = &post.shared.engine;
            let ((_, _, part), row) = line;
            let is_broken = match engine
                .advance(set.part(part), row, LockWait::NOT)
                .map_err(Error::from)
            {
                Ok(()) => {
                    self.taken_since.remove(&line);
                    false
                }
                Err(Error::LockStuck { .. }) => {
                    let since = *self.taken_since.entry(line).or_insert(now);
                    Duration::from_nanos(now.saturating_sub(since)) >= engine.lock_patience()
                }
                Err(_) => true,
            };
            if is_broken {
                broken.insert(line);
            }
        }
        self.taken_since
            .retain(|line, _| seen.contains(line) && !broken.contains(line));
        broken
    }
}
