//! How a process is named to people.

use std::fmt;

/// A process, by its id and, where the processes of a segment may be of several PID namespaces, the namespace that the
/// id is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The process id.
    pub pid: u64,
    /// The PID namespace by its inode, as `/proc/PID/ns/pid` shows it, and zero where the process could not tell. None where
    /// all processes of the segment are of the caller's namespace.
    pub namespace: Option<u64>,
}

impl ProcessId {
    /// Of the namespace of this process.
    pub(crate) fn of_own_namespace(pid: u32) -> Self {
        Self {
            pid: pid.into(),
            namespace: None,
        }
    }
}

/// `4711`, or `4711 in namespace 4026531836`.
impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            None => write!(f, "{}", self.pid),
            Some(namespace) => write!(f, "{} in namespace {namespace}", self.pid),
        }
    }
}
