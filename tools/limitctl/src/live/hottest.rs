//! The keys of a set that are asked for most often now.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use shmlimit::Error;
use shmlimit::snapshot::{KeyFingerprint, KeySnapshot, SegmentReader};

use super::activity::{KeyActivity, Totals};
use crate::best::Best;

/// For how many keys the counters are remembered from one look to the next: some 64 MB. In a set with more keys, there
/// are no rates, and the keys that were asked for most often since they got their row come first.
const MAX_REMEMBERED: usize = 1 << 20;

/// The counters of each key at the previous look.
#[derive(Debug, Default)]
pub struct KeyCounters {
    before: HashMap<KeyFingerprint, Totals>,
    /// Whether there was a previous look, and `before` has all of its keys.
    are_known: bool,
}

impl KeyCounters {
    /// The keys asked for most often since the previous look; if there was none, since they got their row. Ties go to
    /// the key with more waiters, then to the one asked for more often since it got its row.
    pub fn hottest(
        &mut self,
        reader: &SegmentReader,
        set: &str,
        max: usize,
        elapsed: Option<Duration>,
    ) -> Result<Vec<KeyActivity>, Error> {
        let elapsed = elapsed.filter(|_| self.are_known);
        let mut now = HashMap::with_capacity(self.before.len());
        let mut are_all = true;
        let mut best = Best::new(max);
        reader.key_snapshots(set, |key| {
            let totals = totals_of(key);
            let before = self.before.get(&key.key.fingerprint).copied();
            let grown = match elapsed {
                // In a new row, a key counts from zero.
                Some(_) => totals.since(before.unwrap_or_default()),
                None => totals,
            };
            let asked = |totals: Totals| totals.admitted.saturating_add(totals.refused);
            let fingerprint = Reverse(key.key.fingerprint);
            best.offer((asked(grown), key.waiting, asked(totals), fingerprint), || {
                KeyActivity {
                    key: key.key.clone(),
                    rates: elapsed.map(|elapsed| grown.rates(elapsed)),
                    waiting: key.waiting,
                }
            });
            if now.len() < MAX_REMEMBERED {
                now.insert(key.key.fingerprint, totals);
            } else {
                are_all = false;
            }
        })?;
        self.are_known = are_all;
        self.before = if are_all { now } else { HashMap::new() };
        Ok(best.into_vec())
    }
}

fn totals_of(key: &KeySnapshot) -> Totals {
    Totals {
        admitted: key.admitted.into(),
        refused: key.refused.into(),
        timed_out: 0,
    }
}
