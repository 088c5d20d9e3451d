//! The processes that a segment names, as the process table here shows them.

use std::rc::Rc;

use shmlimit::snapshot::{ProcessId, SegmentPlace};

use super::host::elsewhere::ProcessesElsewhere;
use super::host::process::activity;

/// The processes of a segment at one look.
#[derive(Debug)]
pub struct Processes {
    place: SegmentPlace,
    /// Read only if the segment names a process of another PID namespace.
    elsewhere: Rc<ProcessesElsewhere>,
}

impl Processes {
    pub fn of(place: SegmentPlace, elsewhere: Rc<ProcessesElsewhere>) -> Self {
        Self { place, elsewhere }
    }

    /// For a process that does not run until another lets it, a description of that and the command that makes it
    /// continue.
    pub fn standstill_of(&self, process: ProcessId) -> Option<(&'static str, String)> {
        let pid = self.id_here(process)?;
        activity(pid)?.standstill(pid)
    }

    /// A process's id in the namespace of this process. Returns `None` if the process cannot be seen from here.
    pub fn id_here(&self, process: ProcessId) -> Option<u64> {
        let place = &self.place;
        // A copy, or a file from another boot, names other processes.
        if !place.same_boot || !place.same_file {
            return None;
        }
        let namespace = match process.namespace {
            None if place.any_pid_namespace => place.own_pid_namespace,
            None => place.pid_namespace,
            Some(namespace) => namespace,
        };
        if namespace == place.own_pid_namespace {
            return Some(process.pid);
        }
        self.elsewhere.id_here(namespace, process.pid)
    }
}
