//! Processes that live, and do not run until another process lets them: stopped, traced, or frozen with their cgroup.

use std::collections::BTreeSet;

use serde::Serialize;
use shmlimit::Error;
use shmlimit::snapshot::{ProcessId, SegmentReader, SegmentSnapshot};

use super::host::process::activity;
use crate::text::users::User;

/// Those that are attached to a segment, as far as this process can tell.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Stopped(BTreeSet<u64>);

impl Stopped {
    /// Looks at the processes of a snapshot. Those of other PID namespaces are left out.
    ///
    /// # Errors
    ///
    /// Those of [`SegmentReader::place`].
    pub fn among(reader: &SegmentReader, snapshot: &SegmentSnapshot) -> Result<Self, Error> {
        // A copy, or a file from another boot or namespace, names other processes.
        if !reader.place()?.same_pids() {
            return Ok(Self::default());
        }
        let alive = snapshot.participants.iter().filter(|it| it.alive);
        let of_here = alive.filter(|it| it.pid_namespace.is_none()).map(|it| it.pid);
        let stands_still =
            |pid: &u64| activity(*pid).is_some_and(|activity| activity.standstill(*pid).is_some());
        Ok(Self(of_here.filter(stands_still).collect()))
    }

    /// The same user of a set, known as stopped if its process is.
    pub fn mark<'a>(&self, user: User<'a>) -> User<'a> {
        match user.process {
            Some(process) if self.has(process) => user.stopped(),
            _ => user,
        }
    }

    pub fn has(&self, process: ProcessId) -> bool {
        process.namespace.is_none() && self.0.contains(&process.pid)
    }
}
