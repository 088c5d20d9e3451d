//! How processes are named to people.

use std::fmt;

/// A process, by its id and, if that is of another PID namespace than the caller's, by the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The process id.
    pub pid: u64,
    /// The inode of the PID namespace, as in `/proc/PID/ns/pid`; zero if the process could not tell. `None` if
    /// it is the caller's own, or if all processes of the segment are in one namespace.
    pub namespace: Option<u64>,
}

impl ProcessId {
    /// A process in this process's namespace.
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
