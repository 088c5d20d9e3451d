//! Processes that are alive, but do not run until another process lets them: stopped, traced, or frozen with their
//! cgroup.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde::ser::{Serialize, Serializer};
use shmlimit::Error;
use shmlimit::snapshot::{ProcessId, SegmentReader, SegmentSnapshot};

use super::host::elsewhere::ProcessesElsewhere;
use super::processes::Processes;
use crate::text::process;
use crate::text::users::User;

/// The stopped processes that are attached to a segment, as far as this process can tell.
#[derive(Clone, Debug, Default)]
pub struct Stopped(BTreeSet<ProcessId>);

impl Stopped {
    /// Finds the stopped processes of a snapshot. `elsewhere` may be shared by looks at several segments at an instant.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`SegmentReader::place`].
    pub fn among(
        reader: &SegmentReader,
        snapshot: &SegmentSnapshot,
        elsewhere: &Rc<ProcessesElsewhere>,
    ) -> Result<Self, Error> {
        let processes = Processes::of(reader.place()?, Rc::clone(elsewhere));
        let alive = snapshot.participants.iter().filter(|it| it.alive);
        let mut stopped = Self::default();
        stopped.0.extend(
            alive
                .map(process::attached)
                .filter(|it| processes.standstill_of(*it).is_some()),
        );
        Ok(stopped)
    }

    /// The same user, marked as stopped if its process is.
    pub fn mark<'a>(&self, user: User<'a>) -> User<'a> {
        match user.process {
            Some(process) if self.has(process) => user.stopped(),
            _ => user,
        }
    }

    pub fn has(&self, process: ProcessId) -> bool {
        self.0.contains(&process)
    }
}

/// Names processes as lists of attached ones do: by `pid` and, if that is of another namespace, `pid_namespace`.
impl Serialize for Stopped {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Named {
            pid: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            pid_namespace: Option<u64>,
        }
        serializer.collect_seq(self.0.iter().map(|process| Named {
            pid: process.pid,
            pid_namespace: process.namespace,
        }))
    }
}
