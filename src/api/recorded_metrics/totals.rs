//! Counters that only rise, made of those of segments, which start over.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use metrics::Key;

use crate::api::snapshot::SegmentSnapshot;
use crate::shm::process::fork_identity::ProcessMutex;

/// The counters of this process's recorder, by segment.
static KNOWN: ProcessMutex<HashMap<PathBuf, Totals>> = ProcessMutex::new();

/// The counters of a path over all segments that this process has seen there.
///
/// A counter of a recorder never falls, so one that was handed the counts as they are would stand still after the
/// segment was made anew, or its counters were reset, until the old count was reached again.
#[derive(Clone, Debug, Default)]
struct Totals {
    /// When the segment was created that was seen last.
    created: Duration,
    /// When its latest copy was begun.
    begun: u64,
    counts: HashMap<Key, Total>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Total {
    /// What was counted before the count last started over.
    before: u64,
    since: u64,
}

/// Replaces the counts of a snapshot by what they are in total since this process first looked.
pub(super) fn accumulate(snapshot: &SegmentSnapshot, counts: &mut [(Key, u64)]) {
    // An error means that no process can be told from those that it forks. Then the counts are passed on as they are.
    if let Ok(mut known) = KNOWN.lock() {
        let totals = totals_of(&mut known, &snapshot.path);
        totals.add(snapshot.created_utc, snapshot.begun, counts);
    }
}

fn totals_of<'a>(known: &'a mut HashMap<PathBuf, Totals>, path: &Path) -> &'a mut Totals {
    known.entry(path.to_owned()).or_default()
}

impl Totals {
    fn add(&mut self, created: Duration, begun: u64, counts: &mut [(Key, u64)]) {
        // Another thread has recorded a later copy meanwhile: what this one has less is no reset.
        let is_late = begun < self.begun;
        if !is_late {
            if created != self.created {
                self.counts.values_mut().for_each(Total::start_over);
            }
            (self.created, self.begun) = (created, begun);
        }
        for (key, count) in counts {
            let total = self.counts.entry(key.clone()).or_default();
            if !is_late {
                if *count < total.since {
                    total.start_over();
                }
                total.since = *count;
            }
            *count = total.before.saturating_add(total.since);
        }
    }
}

impl Total {
    fn start_over(&mut self) {
        self.before = self.before.saturating_add(self.since);
        self.since = 0;
    }
}
