//! The futures of this process that wait in queues, indexed by ticket and by the time of the next look, so that a
//! wake costs the same however many there are.

#[cfg(test)]
mod waiters_tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::api::segment::shared_segment::SharedSegment;
use crate::api::set::limit_set::LimitSet;
use crate::callers_code::contained;
use crate::engine::{LockWait, SHORT_WAIT, SetEngine, Waiting};
use crate::mutex::{lock, try_lock};
use crate::shm::wake::futex::FutexValue;
use crate::shm::wake::wake_list::TicketPosition;

/// How soon to retry a future that is looking for itself right now, in nanoseconds.
const NEXT_TRY: u64 = 1_000_000;

/// How many times the background thread has looked.
#[cfg(test)]
pub(crate) static LOOKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// A waiting future: its ticket and its waker.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) shared: Arc<SharedSegment>,
    set: usize,
    shard: u32,
    row: u64,
    ticket: u64,
    /// Grows with every ticket of the shard.
    pub(crate) serial: u64,
    owner: u64,
    /// On the boot-time clock.
    deadline: u64,
    /// Whether it waits only until the store answers.
    awaits_answer: bool,
    wait: Mutex<Option<Wait>>,
}

#[derive(Debug)]
struct Wait {
    waiting: Waiting,
    waker: Option<Waker>,
    /// Whether it was woken and has not looked since.
    is_woken: bool,
    /// The latest answer of the store since which it has looked, if it waits for one.
    answer: Option<FutexValue>,
}

/// What to do next with a future that was looked after.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// Wake it.
    Wake(Waker),
    /// Look again at this time, on the boot-time clock.
    LookAt(u64),
    /// It was woken already, or no longer waits.
    Nothing,
}

/// A segment's number in this process, the position of a set, and the shard.
pub(crate) type ShardKey = (u64, usize, u32);

/// A shard, and the row that the queue belongs to.
pub(crate) type Queue = (ShardKey, u64);

/// A shard, and the index of a ticket in it.
type TicketKey = (ShardKey, u64);

impl Waiter {
    /// A waiter without a waker yet; the future looks once in any case. With an `answer`, it is also woken once the
    /// store has given a later one.
    pub(crate) fn new(set: &LimitSet, waiting: Waiting, answer: Option<FutexValue>) -> Arc<Self> {
        let (shard, row) = waiting.queue();
        Arc::new(Self {
            shared: Arc::clone(set.shared()),
            set: set.position(),
            shard,
            row,
            ticket: waiting.ticket().index,
            serial: waiting.ticket().serial,
            owner: waiting.owner(),
            deadline: waiting.deadline().on_boot_clock(),
            awaits_answer: answer.is_some(),
            wait: Mutex::new(Some(Wait {
                waiting,
                waker: None,
                is_woken: false,
                answer,
            })),
        })
    }

    /// Lets the future look at its ticket, and tells it whether it was woken to do so. `waker` replaces the
    /// registered one. `None` if the wait has ended.
    pub(crate) fn with<T>(&self, waker: &Waker, look: impl FnOnce(&mut Waiting, bool) -> T) -> Option<T> {
        let mut wait = lock(&self.wait);
        let wait = wait.as_mut()?;
        if !wait.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            discard(wait.waker.replace(waker.clone()));
        }
        let was_woken = std::mem::replace(&mut wait.is_woken, false);
        Some(look(&mut wait.waiting, was_woken))
    }

    /// Ends the wait and returns the ticket.
    pub(crate) fn end(&self) -> Option<Waiting> {
        let Wait { waiting, waker, .. } = lock(&self.wait).take()?;
        discard(waker);
        Some(waiting)
    }

    /// Whether the ticket belongs to this process rather than to the parent that forked it. If not, nothing else here
    /// may be touched: another thread may have held the lock at the fork.
    pub(crate) fn is_own(&self) -> bool {
        self.shared.engine.membership.is_current(self.owner)
    }

    /// The queue that it is in, and the segment of the queue.
    pub(crate) fn queue(&self) -> Queue {
        (self.shard_key(), self.row)
    }

    fn shard_key(&self) -> ShardKey {
        (self.shared.number, self.set, self.shard)
    }

    fn key(&self) -> TicketKey {
        (self.shard_key(), self.ticket)
    }

    pub(crate) fn set(&self) -> Option<&SetEngine> {
        self.shared.engine.sets().get(self.set).map(|set| &**set)
    }

    /// Whether the future should be woken before its queue is served. Takes no lock and costs next to nothing.
    pub(crate) fn needs_look(&self, now: u64) -> bool {
        let (Some(wait), Some(set)) = (try_lock(&self.wait), self.set()) else {
            return true;
        };
        let shard = set.shard(self.shard);
        now >= self.deadline
            || wait
                .as_ref()
                .is_some_and(|wait| self.shared.engine.needs_look(shard, &wait.waiting, now))
    }

    /// Looks after the ticket without collecting anything, which is left to the future. With `queue_is_broken`, the
    /// future is woken in any case, so that it meets the error itself.
    pub(crate) fn look(&self, now: u64, queue_is_broken: bool) -> NextStep {
        #[cfg(test)]
        LOOKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let Some(mut wait) = try_lock(&self.wait) else {
            // The future is looking for itself, and may have to wait for its segment's lock.
            return NextStep::LookAt(now.saturating_add(NEXT_TRY));
        };
        let (Some(wait), Some(set)) = (wait.as_mut().filter(|wait| !wait.is_woken), self.set()) else {
            return NextStep::Nothing;
        };
        let engine = &self.shared.engine;
        let shard = set.shard(self.shard);
        let answer = wait.answer.and_then(|_| engine.latest_answer());
        let is_answered = std::mem::replace(&mut wait.answer, answer) != answer;
        let is_due = now >= self.deadline
            || queue_is_broken
            || is_answered
            || engine.is_decided(shard, &wait.waiting)
            || (engine.needs_look(shard, &wait.waiting, now)
                // If the lock is taken right now, the future waits for it instead.
                && engine.look_after(shard, &mut wait.waiting, LockWait::NOT).unwrap_or(true));
        if is_due {
            wait.is_woken = true;
            wait.waker.clone().map_or(NextStep::Nothing, NextStep::Wake)
        } else {
            NextStep::LookAt(wait.waiting.next_look().min(self.deadline))
        }
    }

    fn waker(&self) -> Option<Waker> {
        try_lock(&self.wait)?.as_ref()?.waker.clone()
    }
}

/// All waiting futures of this process.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    by_ticket: HashMap<TicketKey, Attended>,
    by_instant: BTreeSet<(u64, TicketKey)>,
    segments: HashMap<u64, Attached>,
}

#[derive(Debug)]
struct Attended {
    waiter: Arc<Waiter>,
    look_at: u64,
}

/// A segment in which futures wait.
#[derive(Debug)]
struct Attached {
    shared: Arc<SharedSegment>,
    /// How many wait in each shard.
    shards: HashMap<ShardKey, usize>,
    /// How many of them wait for an answer of the store.
    awaiting_answer: usize,
    /// When to ask for notice of deaths, because a future has started to wait since that was last done.
    watch_at: Option<u64>,
    /// Not before this time.
    next_watch: u64,
}

/// The result of taking on a future.
#[derive(Debug)]
pub(crate) struct TakenOn {
    /// Whether the thread has to sleep on another futex as well.
    pub(crate) needs_another_futex: bool,
    /// When the future next needs attention.
    pub(crate) look_at: u64,
    /// The waker of a future that held the same ticket before: that future has lost the ticket and must start over.
    pub(crate) replaced: Option<Waker>,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }

    /// When something here next needs attention, on the boot-time clock.
    pub(crate) fn next_look(&self) -> u64 {
        let waiters = self.by_instant.first().map(|(instant, _)| *instant);
        let watches = self.segments.values().filter_map(|attached| attached.watch_at);
        watches.chain(waiters).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn insert(&mut self, waiter: &Arc<Waiter>, next_look: u64, now: u64) -> TakenOn {
        let key = waiter.key();
        let look_at = next_look.min(waiter.deadline);
        let replaced = self.by_ticket.get(&key).map(|other| Arc::clone(&other.waiter));
        if let Some(replaced) = &replaced {
            self.remove(replaced);
        }
        let is_new_segment = !self.segments.contains_key(&waiter.shared.number);
        let attached = self
            .segments
            .entry(waiter.shared.number)
            .or_insert_with(|| Attached {
                shared: Arc::clone(&waiter.shared),
                shards: HashMap::new(),
                awaiting_answer: 0,
                watch_at: None,
                next_watch: 0,
            });
        *attached.shards.entry(waiter.shard_key()).or_default() += 1;
        attached.awaiting_answer += usize::from(waiter.awaits_answer);
        let needs_another_futex = is_new_segment || (waiter.awaits_answer && attached.awaiting_answer == 1);
        let watch_at = *attached
            .watch_at
            .get_or_insert(now.saturating_add(SHORT_WAIT).max(attached.next_watch));
        self.by_ticket.insert(
            key,
            Attended {
                waiter: Arc::clone(waiter),
                look_at: u64::MAX,
            },
        );
        self.set_instant(key, look_at);
        TakenOn {
            needs_another_futex,
            look_at: look_at.min(watch_at),
            replaced: replaced.and_then(|replaced| replaced.waker()),
        }
    }

    /// Returns whether it was the last of its segment.
    pub(crate) fn remove(&mut self, waiter: &Arc<Waiter>) -> bool {
        let key = waiter.key();
        if self.attended(waiter).is_none() {
            return false;
        }
        self.set_instant(key, u64::MAX);
        self.by_ticket.remove(&key);
        let number = waiter.shared.number;
        let Some(attached) = self.segments.get_mut(&number) else {
            return false;
        };
        attached.awaiting_answer -= usize::from(waiter.awaits_answer);
        if let Some(count) = attached.shards.get_mut(&waiter.shard_key()) {
            *count -= 1;
            if *count == 0 {
                attached.shards.remove(&waiter.shard_key());
            }
        }
        let was_last = attached.shards.is_empty();
        if was_last {
            self.segments.remove(&number);
        }
        was_last
    }

    /// Schedules a look at a future for `instant` or its deadline, unless something is planned for sooner. The earlier
    /// look may be the retry of one that found the future looking for itself, and so may be all that is left of a wake.
    pub(crate) fn look_by(&mut self, waiter: &Arc<Waiter>, instant: u64) {
        if let Some(planned) = self.attended(waiter).map(|attended| attended.look_at)
            && instant.min(waiter.deadline) < planned
        {
            self.set_instant(waiter.key(), instant.min(waiter.deadline));
        }
    }

    /// The futures whose time has come. Nothing is planned for them any more.
    pub(crate) fn due(&mut self, now: u64) -> Vec<Arc<Waiter>> {
        let mut due = Vec::new();
        while let Some((instant, key)) = self.by_instant.first().copied()
            && instant <= now
        {
            self.set_instant(key, u64::MAX);
            due.extend(
                self.by_ticket
                    .get(&key)
                    .map(|attended| Arc::clone(&attended.waiter)),
            );
        }
        due
    }

    /// The future with a given ticket of a segment, if there is one.
    pub(crate) fn at(&self, segment: u64, position: TicketPosition) -> Option<Arc<Waiter>> {
        // The fields are a few bits each.
        let TicketPosition { set, shard, ticket } = position;
        let key = ((segment, set as usize, shard as u32), ticket);
        self.by_ticket
            .get(&key)
            .map(|attended| Arc::clone(&attended.waiter))
    }

    /// All futures of one segment, or of all of them.
    pub(crate) fn all(&self, segment: Option<u64>) -> Vec<Arc<Waiter>> {
        let is_wanted = |key: &TicketKey| segment.is_none_or(|segment| key.0.0 == segment);
        self.by_ticket
            .iter()
            .filter(|(key, _)| is_wanted(key))
            .map(|(_, attended)| Arc::clone(&attended.waiter))
            .collect()
    }

    /// The futures of one segment that wait for an answer of its store.
    pub(crate) fn awaiting_answer(&self, segment: u64) -> Vec<Arc<Waiter>> {
        if self
            .segments
            .get(&segment)
            .is_none_or(|attached| attached.awaiting_answer == 0)
        {
            return Vec::new();
        }
        let mut awaiting = self.all(Some(segment));
        awaiting.retain(|waiter| waiter.awaits_answer);
        awaiting
    }

    pub(crate) fn segments(&self) -> Vec<Arc<SharedSegment>> {
        self.segments
            .values()
            .map(|attached| Arc::clone(&attached.shared))
            .collect()
    }

    /// The shards of a segment in which futures wait.
    pub(crate) fn shards(&self, segment: u64) -> Vec<ShardKey> {
        self.segments
            .get(&segment)
            .map_or_else(Vec::new, |attached| attached.shards.keys().copied().collect())
    }

    /// Whether it is time to ask for notice of deaths in a segment. Once it says so, it is not time again until another
    /// future is taken on.
    pub(crate) fn take_watch_due(&mut self, segment: u64, now: u64) -> bool {
        self.segments.get_mut(&segment).is_some_and(|attached| {
            let is_due = attached.watch_at.is_some_and(|instant| instant <= now);
            if is_due {
                attached.watch_at = None;
            }
            is_due
        })
    }

    /// Keeps the next request for notice from being made before `instant`.
    pub(crate) fn watch_not_before(&mut self, segment: u64, instant: u64) {
        if let Some(attached) = self.segments.get_mut(&segment) {
            attached.next_watch = instant;
        }
    }

    /// Schedules the next request for notice at `instant`.
    pub(crate) fn watch_again_at(&mut self, segment: u64, instant: u64) {
        if let Some(attached) = self.segments.get_mut(&segment) {
            attached.next_watch = instant;
            attached.watch_at = Some(instant);
        }
    }

    fn attended(&self, waiter: &Arc<Waiter>) -> Option<&Attended> {
        let attended = self.by_ticket.get(&waiter.key())?;
        Arc::ptr_eq(&attended.waiter, waiter).then_some(attended)
    }

    fn set_instant(&mut self, key: TicketKey, instant: u64) {
        let Some(attended) = self.by_ticket.get_mut(&key) else {
            return;
        };
        let planned = std::mem::replace(&mut attended.look_at, instant);
        if planned != u64::MAX {
            self.by_instant.remove(&(planned, key));
        }
        if instant != u64::MAX {
            self.by_instant.insert((instant, key));
        }
    }
}

/// Drops a waker, which runs the caller's code: a panic in it must not interrupt what is being done for a future.
fn discard(waker: Option<Waker>) {
    contained(|| drop(waker));
}
