//! Processes that are stopped, or too slow to collect what they were granted.

use super::super::Bounds;
use super::super::memory::{Memory, RequestWord, small};
use super::step::{Label, Step};
use super::{Life, System};
use crate::queue::{self, Phase};

impl System {
    /// The steps by which the time for which a grant is kept for its owner ends.
    pub(super) fn grace_steps(&self, bounds: &Bounds, steps: &mut Vec<Step>) {
        if bounds.stops == 0 {
            return;
        }
        for index in self.memory.tickets() {
            let is_kept = queue::state(&self.memory, index).phase == Phase::Granted
                && self.memory.request(index, RequestWord::Overdue) == 0;
            let owner = self.ticket_owner(index);
            let Some(process) = owner
                .checked_sub(1)
                .and_then(|number| self.processes.get(usize::from(number)))
                .filter(|_| is_kept)
            else {
                continue;
            };
            let is_stopped = process.life == Life::Stopped;
            if !is_stopped && self.graces >= bounds.graces {
                continue;
            }
            let mut next = self.clone();
            next.graces += u8::from(!is_stopped);
            let place = Memory::request_place(index, RequestWord::Overdue);
            next.memory.store(place, 1);
            steps.push(Step {
                label: Label::GraceEnds {
                    ticket: small(index),
                    is_stopped,
                },
                system: next,
            });
        }
    }

    pub(super) fn stop(&mut self, number: usize) {
        self.excuse_who_waits_for(number);
        self.processes[number].life = Life::Stopped;
        self.stops += 1;
    }

    /// Sleepers that process `number` was to wake find out without it.
    pub(super) fn excuse_who_waits_for(&mut self, number: usize) {
        for sleeper in 0..self.processes.len() {
            if let Some(waiting) = self.overdue(sleeper)
                && self.is_about_to_wake(number, waiting.ticket.index)
            {
                self.processes[sleeper].is_excused = true;
            }
        }
    }
}
