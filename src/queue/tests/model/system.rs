//! The processes, the lock and the waiter futexes: every step that can be taken from a state, and what must hold in
//! it.

mod invariants;
mod step;
mod stops;

use std::rc::Rc;

use step::{Label, Step};

use super::memory::{HoldWord, Memory, RequestWord, small};
use super::section::{Effect, Hold, Outcome, PendingWake, Section, Ticket};
use super::{Action, Bounds, Granularity, Mistake};
use crate::explorer;
use crate::queue::{self, Phase, TicketWord};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lock {
    Free,
    Held(u8),
    OwnerDied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Lives,
    /// Alive, but does nothing until it goes on, if it ever does.
    Stopped,
    /// Does nothing any more, but the kernel has not released its byte of the file yet.
    Dies,
    Dead,
}

/// A ticket of a process that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    ticket: Ticket,
    seen: u8,
    wake_at: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shard {
    Tickets,
    Holds,
}

/// What a process is about to do. It takes the last of its frames next, and the others after that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Frame {
    Decide,
    /// Looks for dead processes, unless it has just done so.
    MayReclaim,
    TakeTicket {
        is_last: bool,
    },
    Sleep(Waiting),
    Asleep(Waiting),
    Awake(Waiting),
    Insure(Waiting, TimeIsUp),
    Look(Waiting, TimeIsUp),
    Release,
    /// The owners yet to be probed without the lock, one bit each.
    Reclaim {
        owners: u8,
    },
    ReclaimFrom {
        owner: u8,
        shard: Shard,
    },
    /// What was found without the lock, one bit each.
    ReclaimBatch {
        owner: u8,
        shard: Shard,
        found: u8,
    },
    Wake(PendingWake),
    /// Nobody was woken: is the owner alive?
    Probe(PendingWake),
    /// What was granted to a dead process was granted to this one instead, which has to be woken.
    HandOn(Option<PendingWake>),
    /// Under the lock: this many effects have happened.
    Locked {
        section: Rc<Program>,
        done: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TimeIsUp {
    No,
    Yes,
}

/// One critical section, worked out when the lock was taken: nobody else changes what it reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Program {
    effects: Vec<Effect>,
    pending_wake: Option<PendingWake>,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    life: Life,
    /// Which action of its script it is carrying out.
    position: u8,
    frames: Vec<Frame>,
    holds: Vec<Hold>,
    /// The process that advanced its waiter futex died before waking it.
    is_excused: bool,
}

/// The whole system at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct System {
    memory: Memory,
    lock: Lock,
    processes: Vec<Process>,
    now: u8,
    deaths: u8,
    stops: u8,
    /// How many grants became overdue because their processes were merely slow.
    graces: u8,
    /// Whether a process could not get the lock in time and left without it.
    was_given_up: bool,
    /// Something that must never happen, if it happened on the way here.
    violation: Option<&'static str>,
}

impl explorer::System for System {
    type Bounds = Bounds;
    type Step = Step;

    fn first(bounds: &Bounds) -> Self {
        let process = Process {
            life: Life::Lives,
            position: 0,
            frames: Vec::new(),
            holds: Vec::new(),
            is_excused: false,
        };
        let mut system = Self {
            memory: Memory::new(bounds.tickets, bounds.capacity),
            lock: Lock::Free,
            processes: vec![process; bounds.scripts.len()],
            now: 0,
            deaths: 0,
            stops: 0,
            graces: 0,
            was_given_up: false,
            violation: None,
        };
        for number in 0..bounds.scripts.len() {
            system.begin_actions(number, bounds);
        }
        system
    }

    fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::with_capacity(8);
        for (number, process) in self.processes.iter().enumerate() {
            match process.life {
                Life::Lives => {
                    self.steps_of(number, bounds, &mut steps);
                    if self.deaths < bounds.deaths {
                        let mut next = self.clone();
                        next.die(number);
                        steps.push(Step {
                            label: Label::Dies { number },
                            system: next,
                        });
                    }
                    // A stopped process keeps what it holds, and others may never get it. So only one that holds
                    // nothing is stopped.
                    if self.stops < bounds.stops
                        && process.holds.is_empty()
                        && self.lock != Lock::Held(number as u8)
                    {
                        let mut next = self.clone();
                        next.stop(number);
                        steps.push(Step {
                            label: Label::Stops { number },
                            system: next,
                        });
                    }
                }
                Life::Stopped => {
                    let mut next = self.clone();
                    next.processes[number].life = Life::Lives;
                    steps.push(Step {
                        label: Label::GoesOn { number },
                        system: next,
                    });
                }
                Life::Dies => {
                    let mut next = self.clone();
                    next.processes[number].life = Life::Dead;
                    steps.push(Step {
                        label: Label::IsSeenToBeDead { number },
                        system: next,
                    });
                }
                Life::Dead => {}
            }
        }
        self.grace_steps(bounds, &mut steps);
        if self.now < bounds.ticks {
            let mut next = self.clone();
            next.now += 1;
            steps.push(Step {
                label: Label::TimePasses,
                system: next,
            });
        }
        steps
    }

    fn violation(&self, bounds: &Bounds) -> Option<&'static str> {
        self.violation
            .or_else(|| self.violation_of_wakes())
            .or_else(|| self.violation_of_service(bounds))
            .or_else(|| self.violation_of_holds(bounds))
    }

    fn is_good_end(&self, bounds: &Bounds) -> bool {
        self.has_ended_well(bounds)
    }
}

impl System {
    fn owner_of(number: usize) -> u8 {
        number as u8 + 1
    }

    fn lives(&self, owner: u8) -> bool {
        owner
            .checked_sub(1)
            .and_then(|number| self.processes.get(usize::from(number)))
            .is_some_and(|process| matches!(process.life, Life::Lives | Life::Stopped))
    }

    /// Whether a probe says that the owner is alive.
    fn seems_alive(&self, owner: u8) -> bool {
        owner
            .checked_sub(1)
            .and_then(|number| self.processes.get(usize::from(number)))
            .is_some_and(|process| process.life != Life::Dead)
    }

    fn living(&self) -> u8 {
        (1..=self.processes.len() as u8)
            .filter(|owner| self.lives(*owner))
            .fold(0, |mask, owner| mask | 1 << owner)
    }

    /// Whether anything was left behind that its owner does not look after.
    fn something_was_left(&self) -> bool {
        self.deaths > 0 || self.was_given_up || self.stops > 0 || self.graces > 0
    }

    /// Begins the next action of a process that is done with the last one.
    fn begin_actions(&mut self, number: usize, bounds: &Bounds) {
        let process = &mut self.processes[number];
        while process.frames.is_empty() {
            let Some(action) = bounds.scripts[number].actions.get(usize::from(process.position)) else {
                return;
            };
            match action {
                Action::Acquire(_) => process.frames.push(Frame::Decide),
                Action::Release if !process.holds.is_empty() => process.frames.push(Frame::Release),
                // The request was refused: there is nothing to give back.
                Action::Release => process.position += 1,
            }
        }
    }

    fn cost(&self, number: usize, bounds: &Bounds) -> u8 {
        match bounds.scripts[number].actions[usize::from(self.processes[number].position)] {
            Action::Acquire(cost) => cost,
            Action::Release => 0,
        }
    }

    fn steps_of(&self, number: usize, bounds: &Bounds, steps: &mut Vec<Step>) {
        let process = &self.processes[number];
        let Some(frame) = process.frames.last() else {
            return;
        };
        // Replaces the last frame with others.
        let mut go = |frames: Vec<Frame>| {
            let mut next = self.clone();
            next.processes[number].frames.pop();
            next.processes[number].frames.extend(frames);
            next.begin_actions(number, bounds);
            next.push_to(steps, number, frame);
        };
        let may_check_liveness = bounds.liveness_check && self.something_was_left();
        let has_deadline = bounds.scripts[number].has_deadline;
        match frame.clone() {
            Frame::Look(waiting, _) if matches!(self.lock, Lock::Held(_)) => {
                if bounds.scripts[number].gives_up {
                    steps.push(Step {
                        label: Label::GivesUp { number },
                        system: self.given_up(number, waiting.ticket, bounds),
                    });
                }
            }
            Frame::Decide
            | Frame::TakeTicket { .. }
            | Frame::Look(..)
            | Frame::Release
            | Frame::ReclaimBatch { .. } => self.lock_steps(number, bounds, steps),
            Frame::Locked { section, done } => {
                let mut next = self.clone();
                match section.effects.get(usize::from(done)) {
                    Some(effect) => {
                        next.processes[number].frames.pop();
                        next.have(*effect);
                        let done = done + 1;
                        next.processes[number]
                            .frames
                            .push(Frame::Locked { section, done });
                    }
                    None => {
                        next.lock = Lock::Free;
                        next.processes[number].frames.pop();
                        next.unlocked(number, &section, bounds);
                    }
                }
                next.push_to(steps, number, frame);
            }
            Frame::MayReclaim => {
                go(vec![]);
                if self.something_was_left() {
                    go(vec![Frame::Reclaim {
                        owners: self.owners(),
                    }]);
                }
            }
            Frame::Sleep(waiting) => {
                let futex_value = self.futex_value(waiting.ticket);
                if futex_value == waiting.seen || bounds.mistake == Some(Mistake::SleepWithoutComparing) {
                    go(vec![Frame::Asleep(waiting)]);
                } else {
                    go(vec![Frame::Awake(waiting)]);
                }
            }
            Frame::Asleep(waiting) => {
                // Being woken is the step of the process that wakes it.
                if self.now >= waiting.wake_at.min(waiting.ticket.deadline) || may_check_liveness {
                    go(vec![Frame::Awake(waiting)]);
                }
                if has_deadline {
                    go(vec![Frame::Look(waiting, TimeIsUp::Yes)]);
                    if may_check_liveness {
                        go(vec![Frame::Insure(waiting, TimeIsUp::Yes)]);
                    }
                }
            }
            Frame::Awake(waiting) => {
                go(vec![Frame::Look(waiting, TimeIsUp::No)]);
                if has_deadline {
                    go(vec![Frame::Look(waiting, TimeIsUp::Yes)]);
                }
                if may_check_liveness {
                    go(vec![Frame::Insure(waiting, TimeIsUp::No)]);
                }
            }
            Frame::Insure(waiting, time_is_up) => {
                let before = queue::predecessor(&self.memory, u64::from(waiting.ticket.index));
                let owner = before
                    .map(|before| small(queue::Queue::load_ticket(&self.memory, before, TicketWord::Owner)));
                let look = Frame::Look(waiting, time_is_up);
                match owner {
                    Some(owner) if self.seems_alive(owner) => go(vec![look]),
                    Some(owner) => {
                        let shard = Shard::Tickets;
                        go(vec![frame.clone(), Frame::ReclaimFrom { owner, shard }]);
                    }
                    None => go(vec![look, Frame::MayReclaim]),
                }
            }
            Frame::Reclaim { owners } => {
                let dead = (0..8_u8).find(|owner| owners & 1 << owner != 0 && !self.seems_alive(*owner));
                match dead {
                    Some(owner) => {
                        let owners = owners & !(1 << owner);
                        let shard = Shard::Tickets;
                        go(vec![
                            Frame::Reclaim { owners },
                            Frame::ReclaimFrom { owner, shard },
                        ]);
                    }
                    None => go(vec![]),
                }
            }
            Frame::ReclaimFrom { owner, shard } => {
                let found = match shard {
                    Shard::Tickets => self.tickets_of(owner),
                    Shard::Holds => self.holds_of(owner),
                };
                let rest = (shard == Shard::Tickets).then_some(Frame::ReclaimFrom {
                    owner,
                    shard: Shard::Holds,
                });
                let batch = (found != 0).then_some(Frame::ReclaimBatch { owner, shard, found });
                go(rest.into_iter().chain(batch).collect());
            }
            Frame::Wake(pending_wake) => {
                let mut next = self.clone();
                next.processes[number].frames.pop();
                if !next.wake(pending_wake.ticket) && pending_wake.owner != Self::owner_of(number) {
                    next.processes[number].frames.push(Frame::Probe(pending_wake));
                }
                next.begin_actions(number, bounds);
                next.push_to(steps, number, frame);
            }
            Frame::Probe(pending_wake) => {
                if self.seems_alive(pending_wake.owner) {
                    go(vec![]);
                } else {
                    let (owner, shard) = (pending_wake.owner, Shard::Tickets);
                    go(vec![Frame::HandOn(None), Frame::ReclaimFrom { owner, shard }]);
                }
            }
            Frame::HandOn(pending_wake) => go(pending_wake.map(Frame::Wake).into_iter().collect()),
        }
    }

    /// The state after a process could not get the lock in time: its ticket has no owner from here on.
    fn given_up(&self, number: usize, ticket: Ticket, bounds: &Bounds) -> Self {
        let mut next = self.clone();
        let index = u64::from(ticket.index);
        let state = queue::state(&self.memory, index);
        let is_own = state.phase != Phase::Free
            && state.serial == u64::from(ticket.serial)
            && self.ticket_owner(index) == Self::owner_of(number);
        if is_own {
            next.memory
                .store(Memory::ticket_place(index, TicketWord::Owner), 0);
        }
        next.was_given_up = true;
        let process = &mut next.processes[number];
        process.frames.pop();
        process.position += 1;
        next.begin_actions(number, bounds);
        next
    }

    fn push_to(self, steps: &mut Vec<Step>, number: usize, frame: &Frame) {
        let label = Label::Process {
            number,
            frame: frame.clone(),
        };
        steps.push(Step { label, system: self });
    }

    /// Takes the lock, if it is not held, for what the last frame says.
    fn lock_steps(&self, number: usize, bounds: &Bounds, steps: &mut Vec<Step>) {
        if matches!(self.lock, Lock::Held(_)) {
            return;
        }
        let process = &self.processes[number];
        let frame = process.frames.last().cloned().unwrap_or(Frame::Decide);
        let owner = Self::owner_of(number);
        let mut section = Section::new(self.memory.clone(), bounds, self.living(), self.now);
        if self.lock == Lock::OwnerDied {
            section.recover();
            section.serve_next();
        }
        let outcome = match frame {
            Frame::TakeTicket { .. } => {
                section.take_ticket(owner, self.cost(number, bounds), bounds.scripts[number].timeout)
            }
            Frame::Look(waiting, time_is_up) => {
                section.look(owner, waiting.ticket, time_is_up == TimeIsUp::Yes)
            }
            Frame::Release => match process.holds.last() {
                Some(hold) => section.release(owner, *hold),
                None => Outcome::Released,
            },
            Frame::ReclaimBatch { owner, shard, found } => match shard {
                Shard::Tickets => section.take_back_tickets(owner, found),
                Shard::Holds => section.take_back_holds(owner, found),
            },
            _ => section.decide(owner, self.cost(number, bounds)),
        };
        if section.rebuilt && bounds.mistake.is_none() {
            section.violation = Some("the journal did not put back what was half done");
        }
        let mut next = self.clone();
        next.violation = section.violation;
        next.lock = Lock::Held(number as u8);
        let program = Rc::new(Program {
            effects: section.effects,
            pending_wake: section.pending_wake,
            outcome,
        });
        let done = 0;
        let begun = |done| Frame::Locked {
            section: Rc::clone(&program),
            done,
        };
        next.processes[number].frames.push(begun(done));
        if bounds.granularity == Granularity::EveryStore {
            next.push_to(steps, number, &frame);
            return;
        }
        // Others see nothing of what happens under the lock, unless its holder dies.
        for done in 0..=program.effects.len() {
            if self.deaths < bounds.deaths {
                let mut dead = next.clone();
                dead.die(number);
                steps.push(Step {
                    label: Label::DiesWithTheLock {
                        number,
                        frame: frame.clone(),
                        done,
                    },
                    system: dead,
                });
            }
            if let Some(effect) = program.effects.get(done) {
                next.have(*effect);
                next.processes[number].frames.pop();
                next.processes[number].frames.push(begun(done as u8 + 1));
            }
        }
        next.lock = Lock::Free;
        next.processes[number].frames.pop();
        next.unlocked(number, &program, bounds);
        next.push_to(steps, number, &frame);
    }

    fn have(&mut self, effect: Effect) {
        match effect {
            Effect::Store { place, value } => self.memory.store(place, value),
            Effect::Copy { place, from } => {
                let value = self.memory.load(from);
                self.memory.store(place, value);
            }
            Effect::Wake { ticket } => drop(self.wake(ticket)),
        }
    }

    /// Continues after the lock was released.
    fn unlocked(&mut self, number: usize, program: &Program, bounds: &Bounds) {
        let process = &mut self.processes[number];
        let frame = process.frames.pop();
        let mut pending_wake = program.pending_wake;
        match program.outcome {
            Outcome::Admitted(hold) => {
                process.holds.extend(hold);
                process.position += 1;
            }
            Outcome::RetryAfterReclaim => {
                let take_ticket = Frame::TakeTicket { is_last: false };
                process.frames.extend([take_ticket, Frame::MayReclaim]);
            }
            Outcome::MustWait => process.frames.push(Frame::TakeTicket { is_last: false }),
            Outcome::Waiting {
                ticket,
                seen,
                wake_at,
            } => {
                process.frames.push(Frame::Sleep(Waiting {
                    ticket,
                    seen,
                    wake_at,
                }));
            }
            Outcome::QueueFull if frame == Some(Frame::TakeTicket { is_last: false }) => {
                let take_ticket = Frame::TakeTicket { is_last: true };
                process.frames.extend([take_ticket, Frame::MayReclaim]);
            }
            Outcome::QueueFull | Outcome::TimedOut => process.position += 1,
            Outcome::Lost => process.frames.push(Frame::Decide),
            Outcome::Released => {
                process.holds.pop();
                process.position += 1;
            }
            Outcome::Reclaimed => {
                let hand_on = process
                    .frames
                    .iter_mut()
                    .rev()
                    .find(|frame| !matches!(frame, Frame::ReclaimFrom { .. }));
                if let Some(Frame::HandOn(next)) = hand_on {
                    if bounds.mistake == Some(Mistake::ReclaimLosesTheEarlierWake) {
                        *next = pending_wake.take();
                    } else if let Some(pending_wake) = pending_wake.take()
                        && let Some(earlier) = next.replace(pending_wake)
                        && earlier.ticket != pending_wake.ticket
                    {
                        self.wake(earlier.ticket);
                    }
                }
            }
        }
        self.processes[number]
            .frames
            .extend(pending_wake.map(Frame::Wake));
        self.begin_actions(number, bounds);
    }

    fn futex_value(&self, ticket: Ticket) -> u8 {
        self.memory
            .request(u64::from(ticket.index), RequestWord::WaiterFutex)
    }

    /// Wakes everybody who sleeps on the ticket's waiter futex. Returns whether anybody did.
    fn wake(&mut self, index: u8) -> bool {
        let mut has_woken = false;
        for process in &mut self.processes {
            if let Some(Frame::Asleep(waiting)) = process.frames.last()
                && waiting.ticket.index == index
            {
                let awake = Frame::Awake(*waiting);
                process.frames.pop();
                process.frames.push(awake);
                process.is_excused = false;
                has_woken = true;
            }
        }
        has_woken
    }

    fn tickets_of(&self, owner: u8) -> u8 {
        self.memory
            .tickets()
            .filter(|index| queue::state(&self.memory, *index).phase != Phase::Free)
            .filter(|index| self.ticket_owner(*index) == owner)
            .fold(0, |mask, index| mask | 1 << index)
    }

    fn holds_of(&self, owner: u8) -> u8 {
        self.memory
            .taken_holds()
            .filter(|index| self.memory.hold(*index, HoldWord::Owner) == owner)
            .fold(0, |mask, index| mask | 1 << index)
    }

    fn owners(&self) -> u8 {
        (0..=self.processes.len() as u8)
            .filter(|owner| self.tickets_of(*owner) != 0 || (*owner != 0 && self.holds_of(*owner) != 0))
            .fold(0, |mask, owner| mask | 1 << owner)
    }

    fn ticket_owner(&self, index: u64) -> u8 {
        small(queue::Queue::load_ticket(&self.memory, index, TicketWord::Owner))
    }

    fn die(&mut self, number: usize) {
        self.excuse_who_waits_for(number);
        let process = &mut self.processes[number];
        process.life = Life::Dies;
        process.frames.clear();
        process.holds.clear();
        process.is_excused = false;
        if self.lock == Lock::Held(number as u8) {
            self.lock = Lock::OwnerDied;
        }
        self.deaths += 1;
    }

    /// The ticket of a process that sleeps although its waiter futex was advanced.
    fn overdue(&self, number: usize) -> Option<Waiting> {
        match self.processes[number].frames.last() {
            Some(Frame::Asleep(waiting)) if self.futex_value(waiting.ticket) != waiting.seen => {
                Some(*waiting)
            }
            _ => None,
        }
    }

    /// Whether a process has advanced a ticket's waiter futex and has yet to wake the sleeper.
    fn is_about_to_wake(&self, number: usize, ticket: u8) -> bool {
        let waiter_futex = Memory::request_place(u64::from(ticket), RequestWord::WaiterFutex);
        self.processes[number].frames.iter().any(|frame| match frame {
            Frame::Wake(pending_wake) | Frame::HandOn(Some(pending_wake)) => pending_wake.ticket == ticket,
            Frame::Locked { section, done } => {
                let (had, left) = section.effects.split_at(usize::from(*done));
                let has_woken =
                    |effect: &Effect| matches!(effect, Effect::Store { place, .. } if *place == waiter_futex);
                had.iter().any(has_woken)
                    && (left.contains(&Effect::Wake { ticket })
                        || section
                            .pending_wake
                            .is_some_and(|pending_wake| pending_wake.ticket == ticket))
            }
            _ => false,
        })
    }
}
