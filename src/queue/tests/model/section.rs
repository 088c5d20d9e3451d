//! What happens under the lock, store by store: recovery first, then the operation. The steps are those of `engine`,
//! in the same order, and call the same queue functions.

use super::memory::{
    ACTIVE, FREE_HOLD, HOLD_SERIAL, HoldWord, IN_USE, JOURNAL, Memory, NEVER, REBUILD_MARKER, RequestWord,
    UNTOUCHED_HOLD, small,
};
use super::{Bounds, LimitKind, Mistake};
use crate::queue::{self, Phase, Queue, QueueEnd, QueueMut, TableWord, TicketReference, TicketWord};

/// One effect that others can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    /// Reads the word when the effect happens, not when the section is worked out.
    Copy {
        place: u8,
        from: u8,
    },
    Store {
        place: u8,
        value: u8,
    },
    /// Wakes everybody who sleeps on a ticket's waiter futex.
    Wake {
        ticket: u8,
    },
}

/// A waiter futex that was advanced, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingWake {
    pub(super) ticket: u8,
    pub(super) owner: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) index: u8,
    pub(super) serial: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) index: u8,
    pub(super) serial: u8,
    pub(super) deadline: u8,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Admitted(Option<Hold>),
    /// Refused for units in use, which dead processes may hold.
    RetryAfterReclaim,
    MustWait,
    Waiting {
        ticket: Ticket,
        seen: u8,
        wake_at: u8,
    },
    QueueFull,
    TimedOut,
    Lost,
    Released,
    Reclaimed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    NoWaiters,
    Granted,
    Blocked { wait: u8 },
}

/// One critical section.
pub(super) struct Section<'a> {
    pub(super) memory: Memory,
    pub(super) effects: Vec<Effect>,
    /// The waiters to wake after the lock has been released.
    pub(super) pending_wake: Option<PendingWake>,
    /// Something that must never happen, if it did.
    pub(super) violation: Option<&'static str>,
    pub(super) rebuilt: bool,
    bounds: &'a Bounds,
    /// One bit per owner word.
    alive: u8,
    now: u8,
    journalled: u8,
}

impl<'a> Section<'a> {
    pub(super) fn new(memory: Memory, bounds: &'a Bounds, alive: u8, now: u8) -> Self {
        Self {
            memory,
            effects: Vec::new(),
            pending_wake: None,
            violation: None,
            rebuilt: false,
            bounds,
            alive,
            now,
            journalled: 0,
        }
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.bounds.mistake == Some(mistake)
    }

    fn forbid(&mut self, what: &'static str) {
        self.violation.get_or_insert(what);
    }

    fn store(&mut self, place: u8, value: u8) {
        if self.memory.load(place) != value {
            self.memory.store(place, value);
            self.effects.push(Effect::Store { place, value });
        }
    }

    fn store_journalled(&mut self, place: u8, value: u8) {
        let old = self.memory.load(place);
        if old == value {
            return;
        }
        if !self.has(Mistake::NoJournal) {
            let (noted_place, noted_value) = Memory::entry_places(self.journalled);
            let count = self.journalled + 1;
            if self.has(Mistake::CountBeforeEntry) {
                self.store(JOURNAL, count);
            }
            self.store(noted_place, place);
            self.store(noted_value, old);
            if self.has(Mistake::ChangeBeforeCount) {
                self.store(place, value);
            }
            self.store(JOURNAL, count);
            self.journalled = count;
        }
        self.store(place, value);
    }

    fn commit(&mut self) {
        self.journalled = 0;
        self.store(JOURNAL, 0);
    }

    /// What is done if the last owner of the lock died with it, or an operation was left unfinished.
    pub(super) fn recover(&mut self) {
        match self.memory.load(JOURNAL) {
            0 => {}
            REBUILD_MARKER => self.rebuild(),
            count => {
                for number in (0..count).rev() {
                    let (place, old) = Memory::entry_places(number);
                    self.store(self.memory.load(place), self.memory.load(old));
                }
            }
        }
        self.store(JOURNAL, 0);
        if !self.is_consistent() {
            self.rebuilt = true;
            self.rebuild();
        } else if self.bounds.rebuilds {
            self.rebuild();
        }
    }

    pub(super) fn is_consistent(&self) -> bool {
        let counts_use = self.bounds.limit == LimitKind::Concurrency;
        queue::is_consistent(&self.memory) && self.memory.holds_are_consistent(counts_use)
    }

    fn rebuild(&mut self) {
        self.store(JOURNAL, REBUILD_MARKER);
        let taken: Vec<u8> = self.memory.taken_holds().collect();
        let touched = taken.last().map_or(0, |last| last + 1);
        self.store(UNTOUCHED_HOLD, touched);
        let mut first_free = 0;
        for index in (0..touched).rev().filter(|index| !taken.contains(index)) {
            self.store(self.memory.hold_place(index, HoldWord::Amount), 0);
            self.store(self.memory.hold_place(index, HoldWord::NextFree), first_free);
            first_free = index + 1;
        }
        self.store(FREE_HOLD, first_free);
        queue::rebuild(&mut Repeatable(self));
        self.store(ACTIVE, taken.len() as u8);
        if self.bounds.limit == LimitKind::Concurrency {
            let held = taken
                .iter()
                .map(|index| self.memory.hold(*index, HoldWord::Amount));
            self.store(IN_USE, held.sum());
        }
        self.store(JOURNAL, 0);
    }

    fn has_no_waiters(&self) -> bool {
        self.memory.load_end(0, QueueEnd::Head) == 0
    }

    fn head(&mut self) -> Option<u64> {
        loop {
            let Ok(head) = queue::head(&self.memory, 0) else {
                self.forbid("the queue is damaged");
                return None;
            };
            let index = head?;
            if self.owner(index) != 0 {
                return Some(index);
            }
            // Its owner gave it up.
            self.take_back_ticket(index);
        }
    }

    /// How long until the cost would fit, in ticks instead of nanoseconds; `None` if it fits now.
    fn blocked(&self, cost: u8) -> Option<u8> {
        let after = self.memory.load(IN_USE) + cost;
        match self.bounds.limit {
            LimitKind::Concurrency => (after > self.bounds.capacity).then_some(0),
            LimitKind::Rate => match after.saturating_sub(self.bounds.capacity + self.now) {
                0 => None,
                wait => Some(wait),
            },
        }
    }

    /// Takes the cost, which must fit.
    fn take(&mut self, owner: u8, cost: u8) -> Option<Hold> {
        self.store_journalled(IN_USE, self.memory.load(IN_USE) + cost);
        if self.bounds.limit == LimitKind::Rate {
            return None;
        }
        let index = match self.memory.load(FREE_HOLD).checked_sub(1) {
            Some(index) => {
                let next = self.memory.hold(index, HoldWord::NextFree);
                self.store_journalled(FREE_HOLD, next);
                index
            }
            None => {
                let index = self.memory.load(UNTOUCHED_HOLD);
                self.store_journalled(UNTOUCHED_HOLD, index + 1);
                index
            }
        };
        if index >= self.bounds.capacity {
            self.forbid("the list of free holds is damaged");
            return None;
        }
        let serial = self.memory.load(HOLD_SERIAL) + 1;
        self.store_journalled(HOLD_SERIAL, serial);
        self.store_journalled(self.memory.hold_place(index, HoldWord::Owner), owner);
        self.store_journalled(self.memory.hold_place(index, HoldWord::Serial), serial);
        self.store_journalled(self.memory.hold_place(index, HoldWord::Amount), cost);
        self.store_journalled(ACTIVE, self.memory.load(ACTIVE) + 1);
        Some(Hold { index, serial })
    }

    fn free_hold(&mut self, index: u8) {
        let amount = self.memory.hold(index, HoldWord::Amount);
        self.store_journalled(IN_USE, self.memory.load(IN_USE) - amount);
        self.store_journalled(self.memory.hold_place(index, HoldWord::Amount), 0);
        self.store_journalled(self.memory.hold_place(index, HoldWord::Owner), 0);
        let first_free = self.memory.load(FREE_HOLD);
        self.store_journalled(self.memory.hold_place(index, HoldWord::NextFree), first_free);
        self.store_journalled(FREE_HOLD, index + 1);
        self.store_journalled(ACTIVE, self.memory.load(ACTIVE) - 1);
    }

    /// Whether the first in the queue could have what it asks for.
    pub(super) fn could_serve(&self) -> bool {
        queue::head(&self.memory, 0).is_ok_and(|head| {
            head.is_some_and(|index| {
                let cost = self.memory.request(index, RequestWord::Cost);
                self.blocked(cost).is_none() && !self.is_expired(index)
            })
        })
    }

    fn serve_head(&mut self) -> Served {
        if !self.has_no_waiters() {
            self.lapse_what_is_due();
        }
        loop {
            let Some(index) = self.head() else {
                return Served::NoWaiters;
            };
            if self.is_expired(index) && !self.has(Mistake::GrantsWhoseTimeIsUp) {
                self.take_back_ticket(index);
                continue;
            }
            return self.try_grant(index);
        }
    }

    /// Undoes what was granted and not collected in time.
    fn lapse_what_is_due(&mut self) {
        if self.has(Mistake::NothingLapses) {
            return;
        }
        for index in self.memory.tickets() {
            let is_due = queue::state(&self.memory, index).phase == Phase::Granted
                && self.memory.request(index, RequestWord::Overdue) != 0
                && self.owner(index) != 0;
            if !is_due {
                continue;
            }
            let is_over = self.is_expired(index);
            if !self.has(Mistake::LapseKeepsWhatWasTaken) {
                self.undo_grant(index);
            }
            let lapsed = if is_over {
                queue::free_unlinked(&mut Journalled(self), index)
            } else {
                queue::lapse(&mut Journalled(self), index)
            };
            if lapsed.is_err() {
                self.forbid("the queue is damaged");
            }
            self.commit();
            if !is_over {
                self.notify(index);
            }
        }
    }

    /// Puts a ticket that was passed over back into its place, for its owner.
    fn resume(&mut self, index: u64) {
        if queue::resume(&mut Journalled(self), index).is_err() {
            self.forbid("the queue is damaged");
        }
        self.commit();
    }

    fn is_expired(&self, index: u64) -> bool {
        self.now >= self.memory.request(index, RequestWord::Deadline)
    }

    pub(super) fn serve_next(&mut self) {
        if let Served::Blocked { wait: 1.. } = self.serve_head()
            && !self.has(Mistake::NewHeadIsNotWoken)
            && let Some(index) = self.head()
        {
            self.notify(index);
        }
    }

    fn try_grant(&mut self, index: u64) -> Served {
        let cost = self.memory.request(index, RequestWord::Cost);
        if let Some(wait) = self.blocked(cost) {
            return Served::Blocked { wait };
        }
        if self.is_expired(index) {
            self.forbid("a request is granted after its time was up");
        }
        self.forbid_overtaking(queue::state(&self.memory, index).serial);
        let owner = self.owner(index);
        let hold = self.take(owner, cost);
        if self.has(Mistake::GrantReadsItsOwnerTwice)
            && let Some(hold) = hold
        {
            let place = self.memory.hold_place(hold.index, HoldWord::Owner);
            let from = Memory::ticket_place(index, TicketWord::Owner);
            self.effects.push(Effect::Copy { place, from });
        }
        let (granted, serial) = hold.map_or((0, 0), |hold| (hold.index + 1, hold.serial));
        self.store(Memory::request_place(index, RequestWord::Hold), granted);
        self.store(Memory::request_place(index, RequestWord::HoldSerial), serial);
        self.store(Memory::request_place(index, RequestWord::Overdue), 0);
        if self.has(Mistake::GrantWithoutUnlink) {
            // The owner is notified, but stays first in the queue.
        } else if queue::grant(&mut Journalled(self), index).is_err() {
            self.forbid("the queue is damaged");
        }
        self.commit();
        self.notify(index);
        Served::Granted
    }

    fn owner(&self, index: u64) -> u8 {
        small(self.memory.load_ticket(index, TicketWord::Owner))
    }

    fn notify(&mut self, index: u64) {
        let ticket = small(index);
        if !self.has(Mistake::WakeWithoutAdvance) {
            let futex_value = self.memory.request(index, RequestWord::WaiterFutex);
            self.store(
                Memory::request_place(index, RequestWord::WaiterFutex),
                futex_value + 1,
            );
        }
        let pending_wake = PendingWake {
            ticket,
            owner: self.owner(index),
        };
        if let Some(earlier) = self.pending_wake.replace(pending_wake)
            && earlier.ticket != ticket
        {
            self.effects.push(Effect::Wake {
                ticket: earlier.ticket,
            });
        }
    }

    /// Nobody may be served before a live process that came earlier and still waits.
    fn forbid_overtaking(&mut self, serial: u64) {
        let is_overtaken = self.memory.tickets().any(|index| {
            let state = queue::state(&self.memory, index);
            let lives = self.alive & 1 << self.owner(index) != 0;
            state.phase == Phase::Waiting && state.serial < serial && lives
        });
        if is_overtaken {
            self.forbid("a request is served before one that came earlier");
        }
    }

    /// Takes everything, when nobody waits. `None` if it does not fit.
    fn take_at_once(&mut self, owner: u8, cost: u8) -> Option<Outcome> {
        if self.blocked(cost).is_some() {
            return None;
        }
        self.forbid_overtaking(u64::MAX);
        let hold = self.take(owner, cost);
        self.commit();
        Some(Outcome::Admitted(hold))
    }

    /// The first attempt of a request that may wait.
    pub(super) fn decide(&mut self, owner: u8, cost: u8) -> Outcome {
        if !self.has_no_waiters() && !self.has(Mistake::Overtaking) {
            return Outcome::MustWait;
        }
        self.take_at_once(owner, cost)
            .unwrap_or(Outcome::RetryAfterReclaim)
    }

    pub(super) fn take_ticket(&mut self, owner: u8, cost: u8, timeout: Option<u8>) -> Outcome {
        self.lapse_what_is_due();
        let served = self.serve_head();
        if self.has_no_waiters()
            && let Some(admitted) = self.take_at_once(owner, cost)
        {
            return admitted;
        }
        let Ok(Some(free)) = queue::find_free(&self.memory) else {
            return Outcome::QueueFull;
        };
        let place = free.index;
        let deadline = timeout.map_or(NEVER, |timeout| self.now + timeout);
        self.store(Memory::request_place(place, RequestWord::Cost), cost);
        self.store(Memory::request_place(place, RequestWord::Deadline), deadline);
        let Ok(TicketReference { index, serial }) =
            queue::enqueue(&mut Journalled(self), free, u64::from(owner))
        else {
            self.forbid("the queue is damaged");
            return Outcome::Lost;
        };
        self.commit();
        let is_first = !matches!(served, Served::Blocked { .. });
        let wait = self.blocked(cost).filter(|wait| *wait > 0 && is_first);
        Outcome::Waiting {
            ticket: Ticket {
                index: small(index),
                serial: small(serial),
                deadline,
            },
            seen: self.memory.request(place, RequestWord::WaiterFutex),
            wake_at: wait.map_or(NEVER, |wait| self.now + wait),
        }
    }

    /// Looks at a ticket; with `time_is_up`, for the last time.
    pub(super) fn look(&mut self, owner: u8, ticket: Ticket, time_is_up: bool) -> Outcome {
        let index = u64::from(ticket.index);
        let seen = self.memory.request(index, RequestWord::WaiterFutex);
        let time_is_up = time_is_up || self.now >= ticket.deadline;
        let is_own = |memory: &Memory| {
            queue::state(memory, index).serial == u64::from(ticket.serial)
                && memory.load_ticket(index, TicketWord::Owner) == u64::from(owner)
        };
        if !is_own(&self.memory) || queue::state(&self.memory, index).phase == Phase::Free {
            return self.lost(time_is_up);
        }
        if queue::state(&self.memory, index).phase == Phase::PassedOver {
            if self.has(Mistake::CollectsWhatLapsed) {
                return self.collect(ticket);
            }
            if time_is_up {
                self.take_back_ticket(index);
                return Outcome::TimedOut;
            }
            self.resume(index);
        }
        let mut served = Served::Granted;
        let waits = |memory: &Memory| queue::state(memory, index).phase == Phase::Waiting;
        if waits(&self.memory) && !self.has(Mistake::LookServesNone) {
            served = self.serve_head();
        }
        match queue::state(&self.memory, index).phase {
            Phase::Granted => return self.collect(ticket),
            // It was passed over while another had its turn; it is back in its place now.
            Phase::PassedOver => self.resume(index),
            // Its time was up, by the queue's clock.
            Phase::Free => return self.lost(time_is_up),
            Phase::Waiting => {}
        }
        let is_first = self.head() == Some(index);
        if time_is_up {
            if queue::leave(&mut Journalled(self), index).is_err() {
                self.forbid("the queue is damaged");
            }
            self.commit();
            if !self.has(Mistake::LeaverServesNone) {
                self.serve_next();
            }
            return Outcome::TimedOut;
        }
        let wake_at = match served {
            Served::Blocked { wait: wait @ 1.. } if is_first => self.now + wait,
            _ => NEVER,
        };
        Outcome::Waiting {
            ticket,
            seen,
            wake_at,
        }
    }

    /// The outcome for an owner whose ticket is gone.
    fn lost(&self, time_is_up: bool) -> Outcome {
        if time_is_up {
            Outcome::TimedOut
        } else {
            Outcome::Lost
        }
    }

    fn collect(&mut self, ticket: Ticket) -> Outcome {
        let index = u64::from(ticket.index);
        let hold = self.granted_hold(index);
        if queue::free_unlinked(&mut Journalled(self), index).is_err() {
            self.forbid("the queue is damaged");
        }
        self.commit();
        let is_own = self
            .pending_wake
            .is_some_and(|pending_wake| pending_wake.ticket == ticket.index);
        if is_own || self.has(Mistake::CollectingLosesTheWakeOfAnother) {
            self.pending_wake = None;
        }
        if !self.has(Mistake::CollectingServesNone) {
            self.serve_next();
        }
        Outcome::Admitted(hold)
    }

    fn granted_hold(&self, index: u64) -> Option<Hold> {
        Some(Hold {
            index: self.memory.request(index, RequestWord::Hold).checked_sub(1)?,
            serial: self.memory.request(index, RequestWord::HoldSerial),
        })
    }

    pub(super) fn release(&mut self, owner: u8, hold: Hold) -> Outcome {
        if !self.owns(owner, hold) {
            self.forbid("what a living process held was given back by others");
            return Outcome::Released;
        }
        self.free_hold(hold.index);
        self.commit();
        if !self.has(Mistake::ReleaseServesNone) {
            self.serve_head();
        }
        Outcome::Released
    }

    fn owns(&self, owner: u8, hold: Hold) -> bool {
        self.memory.hold(hold.index, HoldWord::Owner) == owner
            && self.memory.hold(hold.index, HoldWord::Serial) == hold.serial
    }

    /// Takes back those tickets of a dead process that were found without the lock and still belong to it.
    pub(super) fn take_back_tickets(&mut self, owner: u8, found: u8) -> Outcome {
        for index in self.memory.tickets().filter(|index| found & 1 << index != 0) {
            if self.is_ticket_of(index, owner) {
                self.take_back_ticket(index);
            }
        }
        self.serve_next();
        Outcome::Reclaimed
    }

    fn is_ticket_of(&self, index: u64, owner: u8) -> bool {
        queue::state(&self.memory, index).phase != Phase::Free && self.owner(index) == owner
    }

    fn take_back_ticket(&mut self, index: u64) {
        let outcome = match queue::state(&self.memory, index).phase {
            Phase::Free => Ok(()),
            Phase::Waiting => queue::leave(&mut Journalled(self), index),
            Phase::PassedOver => queue::free_unlinked(&mut Journalled(self), index),
            Phase::Granted => {
                self.undo_grant(index);
                queue::free_unlinked(&mut Journalled(self), index)
            }
        };
        if outcome.is_err() {
            self.forbid("the queue is damaged");
        }
        self.commit();
    }

    fn undo_grant(&mut self, index: u64) {
        match self.bounds.limit {
            LimitKind::Concurrency => {
                let hold = self.granted_hold(index).filter(|hold| {
                    self.memory.hold(hold.index, HoldWord::Owner) != 0
                        && self.memory.hold(hold.index, HoldWord::Serial) == hold.serial
                });
                if let Some(hold) = hold {
                    self.free_hold(hold.index);
                }
            }
            LimitKind::Rate => {
                let cost = self.memory.request(index, RequestWord::Cost);
                self.store_journalled(IN_USE, self.memory.load(IN_USE) - cost);
            }
        }
    }

    /// Frees those holds of a dead process that were found without the lock and still belong to it.
    pub(super) fn take_back_holds(&mut self, owner: u8, found: u8) -> Outcome {
        for index in self.memory.holds().filter(|index| found & 1 << index != 0) {
            if self.memory.hold(index, HoldWord::Owner) == owner {
                self.free_hold(index);
                self.commit();
            }
        }
        self.serve_next();
        Outcome::Reclaimed
    }
}

/// The queue, changed through the journal.
struct Journalled<'s, 'a>(&'s mut Section<'a>);

/// The queue, changed directly, without the journal.
struct Repeatable<'s, 'a>(&'s mut Section<'a>);

macro_rules! queue_of_a_section {
    ($queue:ident, $store:ident) => {
        impl Queue for $queue<'_, '_> {
            fn capacity(&self) -> u64 {
                self.0.memory.capacity()
            }

            fn queues(&self) -> u64 {
                self.0.memory.queues()
            }

            fn queue_of(&self, index: u64) -> u64 {
                self.0.memory.queue_of(index)
            }

            fn load_end(&self, queue: u64, end: QueueEnd) -> u64 {
                self.0.memory.load_end(queue, end)
            }

            fn load(&self, word: TableWord) -> u64 {
                Queue::load(&self.0.memory, word)
            }

            fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
                self.0.memory.load_ticket(index, word)
            }
        }

        impl QueueMut for $queue<'_, '_> {
            fn store_end(&mut self, _: u64, end: QueueEnd, value: u64) {
                self.0.$store(Memory::end_place(end), small(value));
            }

            fn store(&mut self, word: TableWord, value: u64) {
                self.0.$store(Memory::queue_place(word), small(value));
            }

            fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
                self.0
                    .$store(Memory::ticket_place(index, word), small(value));
            }
        }
    };
}

queue_of_a_section!(Journalled, store_journalled);
queue_of_a_section!(Repeatable, store);
