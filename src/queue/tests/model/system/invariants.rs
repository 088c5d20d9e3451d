//! What must hold in every state, and when everything has ended well.

use super::super::memory::{HoldWord, IN_USE, Memory, RequestWord, small};
use super::super::section::{Hold, Outcome, Section};
use super::super::{Bounds, LimitKind};
use super::{Frame, Life, Lock, Process, System};
use crate::queue::{self, Phase, TicketWord};

impl System {
    fn is_stopped(&self, owner: u8) -> bool {
        let process = owner
            .checked_sub(1)
            .and_then(|number| self.processes.get(usize::from(number)));
        process.is_some_and(|process| process.life == Life::Stopped)
    }

    pub(super) fn violation_of_wakes(&self) -> Option<&'static str> {
        (0..self.processes.len()).find_map(|number| {
            let waiting = self.overdue(number)?;
            let is_to_be_woken = self.processes[number].is_excused
                || (0..self.processes.len()).any(|waker| self.is_about_to_wake(waker, waiting.ticket.index));
            (!is_to_be_woken)
                .then_some("a waiter futex was advanced, and no process is going to wake its sleeper")
        })
    }

    /// If no process has left anything behind and none is at work, the first in the queue may only wait for what is
    /// not available.
    pub(super) fn violation_of_service(&self, bounds: &Bounds) -> Option<&'static str> {
        let is_at_rest = |process: &Process| match process.frames.last() {
            // What it does next is up to its caller.
            None | Some(Frame::Decide | Frame::Release) => process.frames.len() <= 1,
            Some(Frame::Asleep(waiting)) => waiting.wake_at.min(waiting.ticket.deadline) > self.now,
            Some(_) => false,
        };
        if self.something_was_left() || self.lock != Lock::Free || !self.processes.iter().all(is_at_rest) {
            return None;
        }
        let section = Section::new(self.memory.clone(), bounds, self.living(), self.now);
        section
            .could_serve()
            .then_some("a request waits for what is free")
    }

    /// The memory as the next holder of the lock would find it if the present one died now.
    fn settled(&self, bounds: &Bounds) -> Memory {
        let mut section = Section::new(self.memory.clone(), bounds, self.living(), self.now);
        if self.lock != Lock::Free {
            section.recover();
        }
        section.memory
    }

    pub(super) fn violation_of_holds(&self, bounds: &Bounds) -> Option<&'static str> {
        let memory = self.settled(bounds);
        let section = Section::new(memory.clone(), bounds, self.living(), self.now);
        if !section.is_consistent() {
            return Some("what is counted or linked contradicts itself");
        }
        if bounds.limit == LimitKind::Rate {
            let taken = memory.load(IN_USE);
            return (taken > bounds.capacity + self.now).then_some("more was taken than the limit allows");
        }
        let mut in_use = 0;
        // Zero if it was given up.
        let ticket_owner = |ticket| small(queue::Queue::load_ticket(&memory, ticket, TicketWord::Owner));
        for index in memory.taken_holds() {
            let owner = memory.hold(index, HoldWord::Owner);
            in_use += memory.hold(index, HoldWord::Amount);
            if !self.lives(owner) {
                continue;
            }
            let hold = Hold {
                index,
                serial: memory.hold(index, HoldWord::Serial),
            };
            let process = &self.processes[usize::from(owner) - 1];
            let in_hand = process.holds.iter().filter(|held| **held == hold).count();
            let granted = memory
                .tickets()
                .filter(|ticket| {
                    queue::state(&memory, *ticket).phase == Phase::Granted
                        && [owner, 0].contains(&ticket_owner(*ticket))
                        && memory.request(*ticket, RequestWord::Hold) == index + 1
                        && memory.request(*ticket, RequestWord::HoldSerial) == hold.serial
                })
                .count();
            let on_its_way = match process.frames.last() {
                Some(Frame::Locked { section, .. }) => {
                    section.outcome == Outcome::Admitted(Some(hold)) && granted == 0
                }
                _ => false,
            };
            match in_hand + granted + usize::from(on_its_way) {
                0 => return Some("something is held that no permit and no ticket stands for"),
                1 => {}
                _ => return Some("one hold was given twice"),
            }
        }
        if in_use > bounds.capacity {
            return Some("more is held than the limit allows");
        }
        let is_held = |owner: u8, hold: &Hold| {
            memory.hold(hold.index, HoldWord::Owner) == owner
                && memory.hold(hold.index, HoldWord::Serial) == hold.serial
        };
        let is_lost = self.processes.iter().enumerate().any(|(number, process)| {
            let is_released = matches!(
                process.frames.last(),
                Some(Frame::Locked { section, .. }) if section.outcome == Outcome::Released
            );
            let kept = process.holds.len() - usize::from(is_released);
            let mut kept = process.holds.iter().take(kept);
            !kept.all(|hold| is_held(Self::owner_of(number), hold))
        });
        is_lost.then_some("what a living process holds was given back")
    }

    /// Whether every live process is done, and nothing is left once what the dead left behind has been taken back.
    pub(super) fn has_ended_well(&self, bounds: &Bounds) -> bool {
        let is_done = |(number, process): (usize, &Process)| {
            matches!(process.life, Life::Dead | Life::Stopped)
                || (process.life == Life::Lives
                    && usize::from(process.position) == bounds.scripts[number].actions.len())
        };
        if !self.processes.iter().enumerate().all(is_done) {
            return false;
        }
        let mut section = Section::new(self.memory.clone(), bounds, self.living(), self.now);
        if self.lock == Lock::OwnerDied {
            section.recover();
        }
        for owner in 0..=self.processes.len() as u8 {
            if self.lives(owner) {
                continue;
            }
            section.take_back_tickets(owner, u8::MAX);
            section.take_back_holds(owner, if owner == 0 { 0 } else { u8::MAX });
        }
        let nothing_waits = section.memory.tickets().all(|index| {
            queue::state(&section.memory, index).phase == Phase::Free
                || self.is_stopped(small(queue::Queue::load_ticket(
                    &section.memory,
                    index,
                    TicketWord::Owner,
                )))
        });
        let nothing_held = section
            .memory
            .taken_holds()
            .all(|index| self.is_stopped(section.memory.hold(index, HoldWord::Owner)));
        section.is_consistent() && nothing_waits && nothing_held
    }
}
