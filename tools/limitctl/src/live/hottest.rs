//! The keys of a set that stand out: those that are asked for most often now, were refused most often, or are fullest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use shmlimit::Error;
use shmlimit::snapshot::{KeyFingerprint, KeySnapshot, SegmentReader};

use super::activity::{FullestKey, KeyActivity, RefusedKey, Totals};
use crate::best::Best;

/// The most keys whose counters are remembered from one look to the next, which takes some 64 MB. In a set with more
/// keys, there are no rates, and the keys that were asked for most often since they got their row come first.
const MAX_REMEMBERED: usize = 1 << 20;

/// The counters of each key at the previous look.
#[derive(Debug, Default)]
pub struct KeyCounters {
    before: HashMap<KeyFingerprint, Totals>,
    /// Whether there was a previous look, and `before` has all of its keys.
    are_known: bool,
}

/// The keys of a set that stand out.
#[derive(Debug)]
pub struct Outstanding {
    pub hottest: Vec<KeyActivity>,
    pub most_refused: Vec<RefusedKey>,
    pub fullest: Vec<FullestKey>,
}

impl KeyCounters {
    /// Looks at all keys of a set.
    ///
    /// The hottest keys are those asked for most often since the previous look or, if there was none, since they got
    /// their row. Ties go to the key with more waiters, then to the one asked for more often since it got its row. The
    /// keys refused most often are counted since they got their row, because a key that is refused once a minute hardly
    /// ever shows in a rate per second.
    pub fn outstanding(
        &mut self,
        reader: &SegmentReader,
        set: &str,
        max: usize,
        elapsed: Option<Duration>,
    ) -> Result<Outstanding, Error> {
        let elapsed = elapsed.filter(|_| self.are_known);
        let mut now = HashMap::with_capacity(self.before.len());
        let mut are_all = true;
        let mut best = Best::new(max);
        let mut most_refused = Best::new(max);
        let mut fullest: BTreeMap<String, (u128, FullestKey)> = BTreeMap::new();
        reader.key_snapshots(set, |key| {
            let totals = totals_of(key);
            let before = self.before.get(&key.key.fingerprint).copied();
            let grown = match elapsed {
                // A key that has got a new row counts from zero.
                Some(_) => totals.since(before.unwrap_or_default()),
                None => totals,
            };
            let asked = |totals: Totals| totals.admitted.saturating_add(totals.refused);
            let fingerprint = Reverse(key.key.fingerprint);
            best.offer((asked(grown), key.queued, asked(totals), fingerprint), || {
                KeyActivity {
                    key: key.key.clone(),
                    rates: elapsed.map(|elapsed| grown.rates(elapsed)),
                    queued: key.queued,
                }
            });
            if key.refused > 0 {
                most_refused.offer((key.refused, key.admitted, fingerprint), || RefusedKey {
                    key: key.key.clone(),
                    admitted: key.admitted.into(),
                    refused: key.refused.into(),
                });
            }
            for limit in &key.limits {
                // What this host may spend of a limit that hosts share says nothing about how much is used.
                let capacity = limit.found_capacity.or(limit.capacity);
                let Some(capacity) = capacity.filter(|_| limit.lease.is_none()) else {
                    continue;
                };
                let used = capacity.saturating_sub(limit.remaining);
                // Most keys of a large set are unused.
                if used == 0 {
                    continue;
                }
                let share = (u128::from(used) << u64::BITS) / u128::from(capacity.max(1));
                let is_fuller = |(most, _): &(u128, FullestKey)| share > *most;
                if fullest.get(&limit.name).is_none_or(is_fuller) {
                    let found = FullestKey {
                        limit: limit.name.clone(),
                        key: key.key.clone(),
                        used,
                        capacity,
                    };
                    fullest.insert(limit.name.clone(), (share, found));
                }
            }
            if now.len() < MAX_REMEMBERED {
                now.insert(key.key.fingerprint, totals);
            } else {
                are_all = false;
            }
        })?;
        self.are_known = are_all;
        self.before = if are_all { now } else { HashMap::new() };
        Ok(Outstanding {
            hottest: best.into_vec(),
            most_refused: most_refused.into_vec(),
            fullest: fullest.into_values().map(|(_, found)| found).collect(),
        })
    }
}

fn totals_of(key: &KeySnapshot) -> Totals {
    Totals {
        admitted: key.admitted.into(),
        refused: key.refused.into(),
        timed_out: 0,
    }
}
