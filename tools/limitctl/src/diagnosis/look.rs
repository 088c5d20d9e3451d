//! One look at a segment, from which findings are made.

use std::rc::Rc;

use serde::Serialize;
use shmlimit::Error;
use shmlimit::snapshot::{Diagnosis, ProcessId, SegmentReader, SegmentSnapshot};

use super::processes::Processes;
use crate::state;
use crate::text::process;

/// How many processes use a segment, and which.
#[derive(Debug, Serialize)]
pub struct Usage {
    pub sets: usize,
    pub alive: usize,
    pub dead: usize,
    pub participant_capacity: u64,
    /// The PID namespace, by its inode; zero if the kernel does not say.
    pub pid_namespace: u64,
    pub time_namespace: u64,
    /// Whether processes that open it here read the processor's counter instead of the system's clock.
    pub reads_counter: bool,
    /// The live processes visible from here, by their ids in this namespace.
    pub pids: Vec<u64>,
}

/// A segment at one instant, or nearly so.
#[derive(Debug)]
pub struct Look {
    pub diagnosis: Diagnosis,
    pub processes: Processes,
}

impl Look {
    pub fn at(reader: &SegmentReader) -> Result<Self, Error> {
        let diagnosis = reader.diagnose()?;
        Ok(Self {
            processes: Processes::of(diagnosis.place, Rc::default()),
            diagnosis,
        })
    }

    pub fn snapshot(&self) -> &SegmentSnapshot {
        &self.diagnosis.snapshot
    }

    /// A process's id and, if the segment knows it, its name.
    pub fn process(&self, process: ProcessId) -> String {
        let mut participants = self.snapshot().participants.iter();
        let known = participants.find(|it| process::attached(it) == process);
        known.map_or_else(
            || format!("process {process}"),
            |it| format!("process {process} ({})", it.name),
        )
    }

    /// Whether the segment's locks and owners are void, because the next process that opens it starts it cold.
    pub fn is_void(&self) -> bool {
        state::is_void(self.snapshot())
    }

    pub fn usage(&self) -> Usage {
        let participants = &self.snapshot().participants;
        let alive = participants.iter().filter(|it| it.alive);
        Usage {
            sets: self.snapshot().sets.len(),
            alive: alive.clone().count(),
            dead: participants.len() - alive.clone().count(),
            participant_capacity: self.snapshot().participant_capacity,
            pid_namespace: self.diagnosis.place.pid_namespace,
            time_namespace: self.diagnosis.place.time_namespace,
            reads_counter: self.diagnosis.reads_counter,
            pids: alive
                .filter_map(|it| self.processes.id_here(process::attached(it)))
                .collect(),
        }
    }
}
