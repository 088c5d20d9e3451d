//! Repairing segments: recovery on request rather than on demand.

use serde::Serialize;

use super::Segment;
use super::shared_segment::SharedSegment;
use crate::engine::Repairs;
use crate::error::{Error, SegmentError};

impl Segment {
    /// Repairs now what dead processes left behind (locks, half-done operations, holds, participant slots) and
    /// reports what it did. Processes also do all of this on their own, whenever they come across it.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Removed`]. A set whose lock cannot be taken is reported in its entry and does not stop the
    /// others.
    pub fn recover(&self) -> Result<RecoveryReport, Error> {
        self.set_right(false)
    }

    /// Like [`recover`](Self::recover), but also recomputes, in every set, everything that can be derived from its holds,
    /// tickets and keys: what is in use, what is free, and the order of the queues. `recover` does this only in sets
    /// where the two disagree.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let api = SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 8));
    /// let segment = Segment::create(&path, &Declaration::new().add_set(api))?;
    /// assert!(segment.recover()?.sets[0].repairs.is_none()); // nothing was wrong
    /// assert!(segment.rebuild()?.sets[0].repairs.expect("asked for").rebuilt);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`recover`](Self::recover).
    pub fn rebuild(&self) -> Result<RecoveryReport, Error> {
        self.set_right(true)
    }

    fn set_right(&self, rebuilds: bool) -> Result<RecoveryReport, Error> {
        let mut report = RecoveryReport {
            sets: Vec::new(),
            freed_participants: 0,
        };
        for file in self.files() {
            file.set_right(rebuilds, &mut report)?;
        }
        Ok(report)
    }
}

impl SharedSegment {
    fn set_right(&self, rebuilds: bool, report: &mut RecoveryReport) -> Result<(), Error> {
        let engine = &self.engine;
        for set in engine.sets() {
            let mut recovery = SetRecovery {
                set: set.name.to_string(),
                repairs: None,
                reclaimed: 0,
                locked: false,
                problem: None,
            };
            for shard in set.shards() {
                match engine.repair(shard, rebuilds).map_err(Error::from) {
                    Ok((repairs, reclaimed)) => {
                        recovery.reclaimed += reclaimed;
                        if let Some(repairs) = repairs {
                            recovery.repairs.get_or_insert_default().add(repairs);
                        }
                    }
                    Err(error @ Error::Segment(SegmentError::Removed { .. })) => return Err(error),
                    Err(error) => {
                        recovery.locked |= matches!(error, Error::Segment(SegmentError::LockStuck { .. }));
                        recovery.problem = Some(error.to_string());
                    }
                }
            }
            report.sets.push(recovery);
        }
        report.freed_participants += engine.membership.free_dead_participants();
        Ok(())
    }
}

/// What [`Segment::recover`] did.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The sets, in the order of the declaration.
    pub sets: Vec<SetRecovery>,
    /// Participant slots of dead processes that were freed.
    pub freed_participants: usize,
}

/// What [`Segment::recover`] did with one set.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SetRecovery {
    /// The set's name.
    pub set: String,
    /// What was repaired under the lock; `None` if there was nothing to repair.
    pub repairs: Option<Repairs>,
    /// Holds given back for dead processes.
    pub reclaimed: u64,
    /// Whether a live process holds the set's lock and does not release it.
    pub locked: bool,
    /// Why the set could not be recovered.
    pub problem: Option<String>,
}
