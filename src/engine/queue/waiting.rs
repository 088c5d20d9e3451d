//! Waiting in the queue: taking a ticket, sleeping, looking, collecting what was granted, leaving.
//!
//! A sleeper looks when it is woken, when time alone would serve it, after a death that may let it be served, and
//! once a second in any case: the process that should have woken it may have died before it could.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::queue::deadline::Deadline;
use crate::engine::queue::deaths::Deaths;
use crate::engine::queue::grant::{Blocked, Served};
use crate::engine::queue::lapse::LookAfter;
use crate::engine::queue::own_ticket::Waiting;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::engine::shard::target::Target;
use crate::engine::terms::decided::Decided;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::engine::terms::resolution::Cause;
use crate::error::Error;
use crate::queue::{self, Phase, TicketReference, TicketState};
use crate::shm::file::region::load_acquire;
use crate::shm::probes;
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::futex;

/// Which futex the owner of a ticket sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitBy {
    /// The ticket's own: a thread sleeps for this ticket alone.
    WaiterFutex,
    /// The process's: one thread sleeps for all its tickets.
    ProcessFutex,
}

/// Who looks at a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookedAtBy {
    Owner,
    /// The thread that sleeps on behalf of its owner, and collects nothing.
    Another,
}

/// How a request waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitAs {
    pub(crate) wait_by: WaitBy,
    pub(crate) deadline: Deadline,
}

/// Where a ticket stands after its queue was served.
enum Turn {
    /// It no longer belongs to its owner.
    Lost,
    Granted,
    /// Out of the queue until its owner looks.
    PassedOver,
    First(Blocked),
    Behind(Option<LookAfter>),
}

/// The outcome of a request that could wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquired {
    pub(crate) is_admitted: bool,
    /// How long it had a ticket, in nanoseconds; `None` if it was decided at once.
    pub(crate) waited: Option<u64>,
}

impl Acquired {
    fn at_once(is_admitted: bool) -> Self {
        Self {
            is_admitted,
            waited: None,
        }
    }

    /// Decided at `now`, after a wait that began at `began`, if there was one. Both are readings of
    /// [`SegmentEngine::wait_nanos`].
    pub(crate) fn after(began: Option<u64>, now: u64, is_admitted: bool) -> Self {
        Self {
            is_admitted,
            waited: began.map(|began| now.saturating_sub(began)),
        }
    }
}

/// The outcome of beginning to wait.
#[derive(Debug)]
pub(crate) enum WaitStart {
    /// Decided without waiting: whether it was admitted.
    Decided(bool),
    Waiting(Waiting),
}

/// The outcome of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollResult {
    Admitted,
    /// Time was up, and the ticket has left the queue.
    Refused,
    Waiting,
    /// The ticket is gone before its time was up: this process was taken for dead, or the costs can no longer be met at
    /// all. The caller has to begin again.
    Lost,
}

/// Says whether to go on waiting.
pub(crate) type KeepWaiting<'a> = &'a mut dyn FnMut() -> bool;

/// How long a thread waits.
struct Wait<'a> {
    deadline: Deadline,
    keep_waiting: Option<KeepWaiting<'a>>,
}

impl Wait<'_> {
    fn goes_on(&mut self) -> bool {
        boot_nanos() < self.deadline.on_boot_clock()
            && self
                .keep_waiting
                .as_mut()
                .is_none_or(|keep_waiting| keep_waiting())
    }
}

/// A ticket with which a thread waits. If the caller's code panics meanwhile, the ticket leaves the queue.
struct OwnTicket<'a> {
    engine: &'a SegmentEngine,
    shard: Shard<'a>,
    waiting: Waiting,
    is_over: bool,
}

impl<'a> OwnTicket<'a> {
    fn new(engine: &'a SegmentEngine, shard: Shard<'a>, waiting: Waiting) -> Self {
        Self {
            engine,
            shard,
            waiting,
            is_over: false,
        }
    }

    /// Calls [`SegmentEngine::look`], and notes whether the wait is over.
    fn look(
        &mut self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        is_expired: bool,
    ) -> Result<PollResult, Box<Error>> {
        let polled = self
            .engine
            .look(target, costs, decision, &mut self.waiting, is_expired);
        self.is_over = !matches!(polled, Ok(PollResult::Waiting));
        polled
    }
}

impl Drop for OwnTicket<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.engine.cancel(self.shard, &self.waiting);
        }
    }
}

impl SegmentEngine {
    /// Takes everything that `costs` names, waiting in the queue for it if need be. The request is refused if the
    /// timeout passes first, or if `keep_waiting`, which is called before and after each sleep, returns `false`.
    #[inline]
    pub(crate) fn acquire(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        timeout: Option<Duration>,
        keep_waiting: Option<KeepWaiting<'_>>,
    ) -> Result<Acquired, Box<Error>> {
        if self.spend(target, costs, decision)? {
            return Ok(Acquired::at_once(true));
        }
        decision.owner = self.membership.owner()?;
        match self.decide(target, costs, decision, Attempt::BeforeWaiting)? {
            Answer::Admitted => Ok(Acquired::at_once(true)),
            Answer::Impossible => Err(target.shard().never_admissible(decision.impossible())),
            answer => {
                let wait = Wait {
                    deadline: self.deadline_after(timeout),
                    keep_waiting,
                };
                self.wait_and_acquire(target, costs, decision, wait, answer)
            }
        }
    }

    #[cold]
    fn wait_and_acquire(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        mut wait: Wait<'_>,
        answer: Answer,
    ) -> Result<Acquired, Box<Error>> {
        let shard = target.shard();
        // When the first ticket was taken: a lost one is followed by another.
        let mut began = None;
        let how = WaitAs {
            wait_by: WaitBy::WaiterFutex,
            deadline: wait.deadline,
        };
        let mut start = self.begin_waiting_after(answer, target, costs, decision, how)?;
        loop {
            let waiting = match start {
                WaitStart::Decided(is_admitted) => {
                    return Ok(Acquired::after(began, self.wait_nanos(), is_admitted));
                }
                WaitStart::Waiting(waiting) => waiting,
            };
            began.get_or_insert(waiting.began);
            let mut ticket = OwnTicket::new(self, shard, waiting);
            let mut deaths = Deaths::default();
            loop {
                if wait.goes_on() {
                    self.sleep(shard, &ticket.waiting);
                }
                // A grant is collected at once; nothing else matters then.
                let is_decided = self.is_decided(shard, &ticket.waiting);
                if !is_decided {
                    self.watch_for_deaths(shard, &mut ticket.waiting, &mut deaths);
                }
                let is_expired = !is_decided && !wait.goes_on();
                let polled = ticket.look(target, costs, decision, is_expired)?;
                match polled {
                    PollResult::Admitted => return Ok(Acquired::after(began, self.wait_nanos(), true)),
                    PollResult::Refused => return Ok(Acquired::after(began, self.wait_nanos(), false)),
                    PollResult::Waiting => {}
                    PollResult::Lost => break,
                }
            }
            start = self.begin_waiting(target, costs, decision, how)?;
        }
    }

    /// Serves the head of a queue, for the thread that sleeps on behalf of others and checks the queue now and then.
    pub(crate) fn advance(&self, shard: Shard<'_>, row: u64, wait: LockWait) -> Result<(), Box<Error>> {
        self.lock(shard, LockFor::Decide, wait)?.serve_head(row).map(drop)
    }

    /// Whether the ticket is no longer waiting, so that its owner should look. Takes no lock.
    pub(crate) fn is_decided(&self, shard: Shard<'_>, waiting: &Waiting) -> bool {
        shard.memory.ticket(waiting.ticket.index).is_none_or(|place| {
            let state = TicketState::from_word(load_acquire(place.state()));
            state.phase != Phase::Waiting || state.serial != waiting.ticket.serial
        })
    }

    /// Whether it is time to look at this ticket: it was decided, its futex was advanced, or its next look is due.
    /// Takes no lock.
    pub(crate) fn needs_look(&self, shard: Shard<'_>, waiting: &Waiting, now: u64) -> bool {
        now >= waiting.next_look()
            || self.is_due_by_virtual_clock(shard, waiting)
            || self.is_decided(shard, waiting)
            || shard
                .memory
                .ticket(waiting.ticket.index)
                .is_none_or(|place| futex::value(place.waiter_futex()) != waiting.seen)
    }

    /// Looks at a ticket on behalf of its owner, without collecting what it was granted. Returns whether the owner
    /// should look.
    pub(crate) fn look_after(
        &self,
        shard: Shard<'_>,
        waiting: &mut Waiting,
        wait: LockWait,
    ) -> Result<bool, Box<Error>> {
        self.check_liveness_if_due(shard, waiting, wait)?;
        let mut locked = self.lock(shard, LockFor::Decide, wait)?;
        let turn = locked.turn(waiting, LookedAtBy::Another)?;
        let (shard, instant) = (locked.shard, locked.now.monotonic);
        drop(locked);
        match turn {
            Turn::Lost | Turn::Granted | Turn::PassedOver => return Ok(true),
            // Its time is up, and only its owner can give up.
            _ if waiting.deadline.on_segment_clock() <= instant => return Ok(true),
            Turn::First(blocked) => self.set_wake_at(shard, waiting, blocked, instant),
            Turn::Behind(looks_after) => self.set_wake_behind(shard, waiting, looks_after, instant),
        }
        Ok(false)
    }

    /// Looks at a ticket: collects what it was granted, or serves the head of its queue, and says whether to go on
    /// waiting. After an error the ticket is given up.
    pub(crate) fn look(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        waiting: &mut Waiting,
        is_expired: bool,
    ) -> Result<PollResult, Box<Error>> {
        let shard = target.set.shard(waiting.shard);
        let outcome = self.try_look(target, costs, decision, waiting, is_expired);
        if !matches!(outcome, Ok(PollResult::Waiting)) {
            self.end_sleep(shard, waiting);
        }
        if outcome.is_err() {
            self.give_up(shard, waiting);
        }
        outcome
    }

    fn try_look(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        waiting: &mut Waiting,
        is_expired: bool,
    ) -> Result<PollResult, Box<Error>> {
        let shard = target.set.shard(waiting.shard);
        if !self.is_decided(shard, waiting) {
            self.check_liveness_if_due(shard, waiting, LockWait::Timeout)?;
        }
        let mut locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
        let shard = locked.shard;
        let turn = locked.turn(waiting, LookedAtBy::Owner)?;
        let is_expired = is_expired || waiting.deadline.on_segment_clock() <= locked.now.monotonic;
        match turn {
            Turn::Lost if is_expired => return locked.refuse_late(target.key, costs, decision),
            Turn::Lost => return Ok(PollResult::Lost),
            Turn::Granted => {
                locked.collect(costs, decision, waiting)?;
                drop(locked);
                probes::granted::fire(|| {
                    let waited = self.wait_nanos().saturating_sub(waiting.began);
                    (self.path(), &shard.set.name, waited)
                });
                return Ok(PollResult::Admitted);
            }
            Turn::First(_) | Turn::Behind(_) if is_expired => {
                let is_first = matches!(turn, Turn::First(_));
                return locked.leave_late(waiting.row, costs, decision, waiting.ticket.index, is_first);
            }
            Turn::First(_) | Turn::Behind(_) | Turn::PassedOver => {}
        }
        let instant = locked.now.monotonic;
        drop(locked);
        match turn {
            Turn::First(blocked) => self.set_wake_at(shard, waiting, blocked, instant),
            Turn::Behind(looks_after) => self.set_wake_behind(shard, waiting, looks_after, instant),
            // Look again at once.
            _ => waiting.wake_at = 0,
        }
        Ok(PollResult::Waiting)
    }

    /// Leaves the queue before time is up, or gives back what was granted and not collected. If this process cannot get
    /// the lock soon, the next one to take it does this.
    pub(crate) fn cancel(&self, shard: Shard<'_>, waiting: &Waiting) {
        self.end_sleep(shard, waiting);
        if self.membership.is_current(waiting.owner) && self.try_cancel(shard, waiting).is_err() {
            self.give_up(shard, waiting);
        }
    }

    fn try_cancel(&self, shard: Shard<'_>, waiting: &Waiting) -> Result<(), Box<Error>> {
        let mut locked = self.lock(shard, LockFor::GiveBack, LockWait::Briefly)?;
        let shard = locked.shard;
        if !self.owns_ticket(shard.unruled(), waiting) {
            return Ok(());
        }
        let had_no_hold = shard.memory.has_no_free_hold();
        let index = waiting.ticket.index;
        let costs = shard.memory.ticket(index).map(|ticket| shard.costs_of(ticket));
        let counter = &shard.memory.control().cancelled;
        locked.leave_in_order(waiting.row, &costs.unwrap_or_default(), index, Some(counter))?;
        locked.serve_next(waiting.row)?;
        // It may have been granted the last free hold, which others wait for in other queues.
        locked.serve_after_release(waiting.row, None, had_no_hold)
    }

    fn owns_ticket(&self, shard: Shard<'_>, waiting: &Waiting) -> bool {
        let TicketReference { index, serial } = waiting.ticket;
        shard.memory.ticket(index).is_some_and(|place| {
            let state = TicketState::from_word(place.state().load(Ordering::Relaxed));
            state.phase != Phase::Free
                && state.serial == serial
                && place.owner().load(Ordering::Relaxed) == waiting.owner
        })
    }

    /// Gives a ticket up without the lock, because the lock could not be had. The next process to take the lock takes
    /// back tickets that have no owner.
    fn give_up(&self, shard: Shard<'_>, waiting: &Waiting) {
        if self.owns_ticket(shard, waiting)
            && let Some(place) = shard.memory.ticket(waiting.ticket.index)
        {
            // Fails if the ticket is another's by now; then there is nothing to give up.
            let given_up =
                place
                    .owner()
                    .compare_exchange(waiting.owner, 0, Ordering::SeqCst, Ordering::Relaxed);
            if given_up.is_ok() {
                self.finish_or_leave_marks(shard);
            }
        }
    }
}

impl LockedShard<'_> {
    /// Serves the queue of a ticket, and says where the ticket stands then.
    fn turn(&mut self, waiting: &mut Waiting, by: LookedAtBy) -> Result<Turn, Box<Error>> {
        let shard = self.shard;
        let row = waiting.row;
        let TicketReference { index, serial } = waiting.ticket;
        let Some(place) = shard.memory.ticket(index) else {
            return Err(shard.poisoned());
        };
        // Read before looking, so that no later advance is missed.
        waiting.seen = futex::value(place.waiter_futex());
        let state = || {
            let state = queue::state(&QueueWords::reading(shard.memory), index);
            let is_own = state.serial == serial && place.owner().load(Ordering::Relaxed) == waiting.owner;
            is_own.then_some(state.phase)
        };
        if by == LookedAtBy::Owner && state().is_some() {
            self.read_clock();
            if state() == Some(Phase::PassedOver) {
                if place.is_expired(self.now.monotonic) {
                    self.take_back_ticket(index, &shard.memory.control().timed_out)?;
                } else {
                    self.resume(index, place)?;
                }
            }
            place.looked_at().store(self.now.monotonic, Ordering::Relaxed);
        }
        let mut served = Served::Granted;
        if state() == Some(Phase::Waiting) {
            served = self.serve_head(row)?;
            if served == Served::Granted && self.head(row)? == Some(index) {
                // Another was ahead of it, and its turn has only come now.
                served = self.serve_head(row)?;
            }
        }
        Ok(match state() {
            None | Some(Phase::Free) => Turn::Lost,
            Some(Phase::Granted) => Turn::Granted,
            Some(Phase::PassedOver) => Turn::PassedOver,
            Some(Phase::Waiting) if self.head(row)? == Some(index) => {
                match (self.behind_in_order(index), served) {
                    (Some(looks_after), _) => Turn::Behind(looks_after),
                    (None, Served::Blocked(blocked)) => Turn::First(blocked),
                    (None, Served::Granted | Served::NoWaiters) => Turn::First(Blocked::default()),
                }
            }
            Some(Phase::Waiting) => Turn::Behind(match served {
                Served::Blocked(blocked) => self.looks_after(index, blocked),
                Served::Granted | Served::NoWaiters => self.looks_after(index, Blocked::default()),
            }),
        })
    }

    /// Collects what a ticket was granted, frees the ticket, and serves the next.
    fn collect(
        &mut self,
        costs: &Costs,
        decision: &mut Decision,
        waiting: &Waiting,
    ) -> Result<(), Box<Error>> {
        let shard = self.shard;
        let index = waiting.ticket.index;
        let Some(place) = shard.memory.ticket(index) else {
            return Err(shard.poisoned());
        };
        let row = shard.row(waiting.row);
        decision.begin(
            shard.index(),
            shard.definition(),
            place.granted_at().load(Ordering::Relaxed),
            waiting.owner,
            false,
        );
        let by_row = shard.of(row);
        let grant = by_row.recorded_grant(row, place, self.now);
        decision.definition = grant.definition;
        decision.set_hold(place.granted_hold());
        let mut notes = decision.notes();
        for (index, cost) in costs.iter() {
            notes.note(Decided::charged(grant.mark(index), cost));
        }
        // The row as it was at the grant: it may have been reset since.
        notes.note_key(row, grant.row);
        by_row.note_own_capacities(row, costs, decision);
        self.change_queue(None, |queue| {
            row.unpin(queue.store);
            queue::free_unlinked(queue, index)
        })?;
        self.keep_label(decision, costs);
        self.cancel_wake(place);
        // What was collected stays so, whatever is wrong with the queue; the next operation reports that.
        let _ = self.serve_next(row.index);
        Ok(())
    }

    /// Leaves the queue because time is up, and notes in `decision` why the request was still waiting. If its costs can
    /// no longer be met at all, the ticket is lost, just as if it had been the head: the caller begins again, and finds
    /// that out.
    fn leave_late(
        &mut self,
        row: u64,
        costs: &Costs,
        decision: &mut Decision,
        index: u64,
        is_first: bool,
    ) -> Result<PollResult, Box<Error>> {
        let shard = self.shard;
        let cause = if !is_first {
            Cause::Behind(None)
        } else if shard.wants_for_a_hold(costs) {
            Cause::HoldsFull
        } else {
            Cause::Limits
        };
        let rows = shard.row(row).into();
        let (result, counter) = match self.refuse(rows, costs, cause, decision, Attempt::Late(index))? {
            Answer::Impossible => (PollResult::Lost, None),
            _ => (PollResult::Refused, Some(&shard.memory.control().timed_out)),
        };
        self.leave_in_order(row, costs, index, counter)?;
        self.serve_next(row)?;
        Ok(result)
    }

    /// Refuses a request whose ticket was taken out of the queue before its owner looked, because its time was up,
    /// and notes in `decision` why. The key's row may be another key's by now.
    fn refuse_late(
        &mut self,
        key: Option<&KeyIdentity>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<PollResult, Box<Error>> {
        let answer = match self.row_for(key, costs)? {
            Ok(row) => {
                let has_no_room = self.shard.has_no_waiters(row) && self.shard.wants_for_a_hold(costs);
                let cause = if has_no_room {
                    Cause::HoldsFull
                } else {
                    Cause::Behind(None)
                };
                self.refuse(row.into(), costs, cause, decision, Attempt::Last)?
            }
            Err(no_row) => self.without_a_row(no_row, costs, decision, Attempt::Last)?,
        };
        Ok(match answer {
            Answer::Admitted => PollResult::Admitted,
            // The caller begins again, and finds that out.
            Answer::Impossible => PollResult::Lost,
            _ => PollResult::Refused,
        })
    }
}
