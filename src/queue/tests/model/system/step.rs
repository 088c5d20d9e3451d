//! A step, and its description.

use std::fmt;

use super::super::section::Effect;
use super::{Frame, System};
use crate::explorer;

/// A step, and the state it leads to.
pub(in super::super) struct Step {
    pub(super) label: Label,
    pub(super) system: System,
}

pub(super) enum Label {
    Process {
        number: usize,
        frame: Frame,
    },
    DiesWithTheLock {
        number: usize,
        frame: Frame,
        done: usize,
    },
    Dies {
        number: usize,
    },
    IsSeenToBeDead {
        number: usize,
    },
    Stops {
        number: usize,
    },
    GoesOn {
        number: usize,
    },
    GraceEnds {
        ticket: u8,
        is_stopped: bool,
    },
    GivesUp {
        number: usize,
    },
    TimePasses,
}

impl explorer::Step for Step {
    type System = System;

    fn is_death(&self) -> bool {
        matches!(
            self.label,
            Label::Dies { .. }
                | Label::DiesWithTheLock { .. }
                | Label::Stops { .. }
                | Label::GoesOn { .. }
                | Label::GraceEnds {
                    is_stopped: false,
                    ..
                }
        )
    }

    fn system(&self) -> &System {
        &self.system
    }

    fn into_system(self) -> System {
        self.system
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = &self.system.memory;
        match &self.label {
            Label::Process { number, frame } => match frame {
                Frame::Locked { section, done } => match section.effects.get(usize::from(*done)) {
                    Some(Effect::Store { place, value }) => {
                        write!(
                            formatter,
                            "process {number}: {} := {value}",
                            memory.describe(*place)
                        )
                    }
                    Some(effect) => write!(formatter, "process {number}: {effect:?}"),
                    None => write!(formatter, "process {number}: unlocks, {:?}", section.outcome),
                },
                frame => write!(formatter, "process {number}: {frame:?}"),
            },
            Label::DiesWithTheLock { number, frame, done } => {
                write!(
                    formatter,
                    "process {number}: {frame:?}, and dies after {done} effects"
                )
            }
            Label::Dies { number } => write!(formatter, "process {number} dies"),
            Label::IsSeenToBeDead { number } => write!(formatter, "process {number} is seen to be dead"),
            Label::Stops { number } => write!(formatter, "process {number} is stopped"),
            Label::GoesOn { number } => write!(formatter, "process {number} goes on"),
            Label::GraceEnds { ticket, .. } => {
                write!(formatter, "what ticket {ticket} was granted is kept no longer")
            }
            Label::GivesUp { number } => {
                write!(formatter, "process {number} gives its ticket up without the lock")
            }
            Label::TimePasses => write!(formatter, "time passes"),
        }
    }
}
