//! Counters that only rise, made from those of segments, which may start over.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use metrics::Key;

use crate::api::snapshot::SegmentSnapshot;
use crate::shm::process::fork_identity::ProcessMutex;

/// The counters of this process's recorder, by segment.
static KNOWN: ProcessMutex<HashMap<PathBuf, Totals>> = ProcessMutex::new();

/// A counter of a set, and when the file that it is read from was created.
pub(super) struct Count {
    pub(super) key: Key,
    pub(super) created: Duration,
    pub(super) number: u64,
}

/// The counters of a path over all segments that this process has seen there.
///
/// A recorder's counter never falls. If it were given the counts as they are, it would stand still after the segment is
/// recreated, or its counters are reset, until the old count is reached again.
#[derive(Clone, Debug, Default)]
struct Totals {
    /// When the latest copy was begun.
    begun: u64,
    counts: HashMap<Key, Total>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Total {
    /// When the file whose count was last seen was created.
    created: Duration,
    /// What was counted before the count last started over.
    before: u64,
    since: u64,
}

/// Replaces the counts of a snapshot with their totals since this process first looked.
pub(super) fn accumulate(snapshot: &SegmentSnapshot, counts: &mut [Count]) {
    // An error means that a process cannot be told from the children that it forks. The counts are then passed on as
    // they are.
    if let Ok(mut known) = KNOWN.lock() {
        let totals = totals_of(&mut known, &snapshot.path);
        totals.add(snapshot.begun, counts);
    }
}

fn totals_of<'a>(known: &'a mut HashMap<PathBuf, Totals>, path: &Path) -> &'a mut Totals {
    known.entry(path.to_owned()).or_default()
}

impl Totals {
    fn add(&mut self, begun: u64, counts: &mut [Count]) {
        // If another thread has already recorded a later copy, lower counts in this one do not mean a reset.
        let is_late = begun < self.begun;
        if !is_late {
            self.begun = begun;
        }
        for count in counts {
            let total = self.counts.entry(count.key.clone()).or_default();
            if !is_late {
                if count.created != total.created || count.number < total.since {
                    total.start_over();
                }
                (total.created, total.since) = (count.created, count.number);
            }
            count.number = total.before.saturating_add(total.since);
        }
    }
}

impl Total {
    fn start_over(&mut self) {
        self.before = self.before.saturating_add(self.since);
        self.since = 0;
    }
}
