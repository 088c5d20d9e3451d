//! Repeated looks at a segment.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use shmlimit::snapshot::{KeyFingerprint, KeySnapshot, SegmentReader, SegmentSnapshot, SetSnapshot};
use shmlimit::{Declaration, Error};

use super::activity::{Rates, SetActivity, SetTotals};
use super::hottest::KeyCounters;
use crate::bounds::snapshot_with_bounds;
use crate::diagnosis::{ProcessesElsewhere, Stopped};
use crate::reveal::Reveal;
use crate::set_files::{FileIdentities, identity};
use crate::state::State;
use crate::text::human::as_text;

/// Looks at a segment repeatedly, and at its successor if it is replaced.
#[derive(Debug)]
pub struct Sampler {
    path: PathBuf,
    /// How many of the hottest keys of each set to find.
    hottest: usize,
    reveal: Reveal,
    reader: SegmentReader,
    file: Option<FileIdentities>,
    before: Option<Before>,
    histories: BTreeMap<String, VecDeque<Rates>>,
    keys: BTreeMap<String, KeyCounters>,
}

/// A segment at an instant, and what happened since the previous look.
#[derive(Debug)]
pub struct Look {
    /// The time of the look, since the Unix epoch.
    pub utc: Duration,
    /// The time since the previous look; none at the first look, and at the first look at a successor.
    pub elapsed: Option<Duration>,
    pub state: State,
    pub snapshot: SegmentSnapshot,
    pub declaration: Declaration,
    /// Empty, unless [processes were looked at](Sampler::look_at_processes_too).
    pub stopped: Stopped,
    /// The activity of each set of the snapshot.
    activity: Vec<SetActivity>,
}

#[derive(Debug)]
struct Before {
    at: Instant,
    sets: BTreeMap<String, SetTotals>,
}

impl Sampler {
    /// Opens the segment read-only. Looks will find the `hottest` hottest keys of each keyed set, and as many of the
    /// most refused keys; with zero, they look at no keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`SegmentReader::open`].
    pub fn open(path: &Path, hottest: usize, reveal: Reveal) -> Result<Self, Error> {
        // This is taken before opening, so that the first look notices a file that replaces this one meanwhile.
        let file = identity(path);
        Ok(Self {
            path: path.to_owned(),
            hottest,
            reveal,
            reader: SegmentReader::open(path)?,
            file,
            before: None,
            histories: BTreeMap::new(),
            keys: BTreeMap::new(),
        })
    }

    /// A key of a set, if it has a row. Searches all keys, because the stored key may be truncated.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`SegmentReader::key_snapshots`].
    pub fn key(&self, set: &str, fingerprint: KeyFingerprint) -> Result<Option<KeySnapshot>, Error> {
        let mut found = None;
        self.reader.key_snapshots(set, |key| {
            if key.key.fingerprint == fingerprint {
                found = Some(key.clone());
            }
        })?;
        Ok(found.map(|key| self.reveal.row(key)))
    }

    /// Looks at the segment.
    ///
    /// # Errors
    ///
    /// Returns the errors of opening the segment's successor, and of copying.
    pub fn look(&mut self) -> Result<Look, Error> {
        let is_there = self.follow()?;
        let at = Instant::now();
        let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut snapshot = self.reader.snapshot()?;
        snapshot.path = as_text(&self.path);
        self.reveal.users(&mut snapshot);
        let elapsed = self
            .before
            .as_ref()
            .map(|before| at.saturating_duration_since(before.at))
            .filter(|elapsed| !elapsed.is_zero());
        let totals: Vec<SetTotals> = snapshot.sets.iter().map(SetTotals::of).collect();
        let mut activity = Vec::with_capacity(totals.len());
        for (set, totals) in snapshot.sets.iter().zip(&totals) {
            let before = self.before.as_ref().and_then(|before| before.sets.get(&set.name));
            let history = self.histories.entry(set.name.clone()).or_default();
            let mut happened = totals.activity(set, before.zip(elapsed), history);
            if self.hottest > 0 && set.keys.is_some() {
                let counters = self.keys.entry(set.name.clone()).or_default();
                let found = counters.outstanding(&self.reader, &set.name, self.hottest, elapsed)?;
                happened.hottest = found.hottest;
                happened.most_refused = found.most_refused;
                happened.fullest = found.fullest;
                let hottest = happened.hottest.iter_mut().map(|it| &mut it.key);
                let most_refused = happened.most_refused.iter_mut().map(|it| &mut it.key);
                let fullest = happened.fullest.iter_mut().map(|it| &mut it.key);
                for key in hottest.chain(most_refused).chain(fullest) {
                    self.reveal.label(key);
                }
            }
            activity.push(happened);
        }
        let names = snapshot.sets.iter().map(|set| set.name.clone());
        self.before = Some(Before {
            at,
            sets: names.zip(totals).collect(),
        });
        let state = if is_there {
            State::of(&snapshot)
        } else {
            State::Removed
        };
        Ok(Look {
            utc,
            elapsed,
            state,
            stopped: Stopped::default(),
            snapshot,
            declaration: self.reader.declaration().clone(),
            activity,
        })
    }

    /// Looks at the segment like [`look`](Self::look), and at each process to find out which are stopped. `elsewhere` may
    /// be shared by looks at several segments at an instant.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`look`](Self::look).
    pub fn look_at_processes_too(&mut self, elsewhere: &Rc<ProcessesElsewhere>) -> Result<Look, Error> {
        let mut look = self.look()?;
        look.stopped = Stopped::among(&self.reader, &look.snapshot, elsewhere)?;
        Ok(look)
    }

    /// Opens the segment again if its file was replaced, or if sets were added or removed. Returns whether there is a
    /// file.
    fn follow(&mut self) -> Result<bool, Error> {
        let file = identity(&self.path);
        let is_there = file.is_some();
        if is_there && file != self.file {
            self.reader = SegmentReader::open(&self.path)?;
            self.file = file;
            self.before = None;
            self.keys.clear();
        }
        Ok(is_there)
    }
}

impl Look {
    /// Each set, with its activity.
    pub fn sets(&self) -> impl Iterator<Item = (&SetSnapshot, &SetActivity)> {
        self.snapshot.sets.iter().zip(&self.activity)
    }

    /// The snapshot as JSON, in which each set has its `activity`.
    pub fn json(&self) -> Result<Value, serde_json::Error> {
        let mut described = snapshot_with_bounds(&self.snapshot, &self.declaration)?;
        described["time"] = self.utc.as_secs_f64().into();
        described["elapsed"] = self.elapsed.map(|elapsed| elapsed.as_secs_f64()).into();
        described["state"] = serde_json::to_value(self.state)?;
        described["stopped"] = serde_json::to_value(&self.stopped)?;
        let sets = described.get_mut("sets").and_then(Value::as_array_mut);
        for (set, activity) in sets.into_iter().flatten().zip(&self.activity) {
            set["activity"] = serde_json::to_value(activity)?;
        }
        Ok(described)
    }
}
