//! The latest looks at the segments, for any number of readers.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::diagnosis::ProcessesElsewhere;
use crate::exit::Failure;
use crate::live::exposition::{Format, copy, exposition};
use crate::live::sampler::Sampler;
use crate::live::schedule::Schedule;
use crate::reveal::Reveal;
use crate::text::human::as_text;

/// The segments that are served.
#[derive(Debug)]
pub struct Segments {
    paths: Vec<PathBuf>,
    /// The latest look at each segment, or why there is none.
    seen: Mutex<Arc<Vec<Seen>>>,
}

/// A look as JSON, or what went wrong, in words.
type Seen = Result<Value, String>;

impl Segments {
    /// Makes the list, before any segment has been looked at.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let not_yet = || Err("it has not been read yet".to_owned());
        let seen = paths.iter().map(|_| not_yet()).collect();
        Self {
            paths,
            seen: Mutex::new(Arc::new(seen)),
        }
    }

    /// The segments and their states.
    pub fn list(&self) -> Value {
        let seen = self.seen();
        let segments = self.paths.iter().zip(seen.iter()).enumerate();
        segments
            .map(|(index, (path, seen))| {
                json!({
                    "index": index,
                    "path": as_text(path),
                    "state": seen.as_ref().ok().map(|look| &look["state"]),
                    "error": seen.as_ref().err(),
                })
            })
            .collect()
    }

    /// The latest look at a segment. Returns `None` if there is no such index.
    pub fn look(&self, index: usize) -> Option<Seen> {
        self.seen().get(index).cloned()
    }

    /// The metrics at this instant. Returns `None` if no segment can be read.
    pub fn exposition(&self, format: Format) -> Option<String> {
        let snapshots: Vec<_> = self.paths.iter().filter_map(|path| copy(path).ok()).collect();
        (!snapshots.is_empty()).then(|| exposition(format, snapshots.iter()))
    }

    fn seen(&self) -> Arc<Vec<Seen>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&seen)
    }
}

/// Looks at all segments again and again, in a separate thread, for as long as the program runs. At each look, opens
/// again a segment that could not be read.
pub fn keep_looking(segments: Arc<Segments>, every: Duration, hottest: usize, reveal: Reveal) {
    let mut samplers: Vec<Option<Sampler>> = segments.paths.iter().map(|_| None).collect();
    let mut look_at_all = move || {
        let elsewhere = Rc::default();
        let looks = segments.paths.iter().zip(&mut samplers);
        let seen = looks.map(|(path, sampler)| {
            let look = look_at(path, sampler, hottest, reveal, &elsewhere);
            if look.is_err() {
                *sampler = None;
            }
            look
        });
        let seen = Arc::new(seen.collect());
        *segments.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    };
    // Take a first look before anything is served.
    look_at_all();
    thread::spawn(move || {
        let mut schedule = Schedule::starting(Instant::now(), every);
        loop {
            thread::sleep(schedule.remaining(Instant::now()));
            schedule.advance(Instant::now());
            look_at_all();
        }
    });
}

fn look_at(
    path: &Path,
    sampler: &mut Option<Sampler>,
    hottest: usize,
    reveal: Reveal,
    elsewhere: &Rc<ProcessesElsewhere>,
) -> Seen {
    let look = || {
        let sampler = match sampler {
            Some(sampler) => sampler,
            none => none.insert(Sampler::open(path, hottest, reveal)?),
        };
        sampler.look_at_processes_too(elsewhere)
    };
    let look = || look().map_err(|error| Failure::from(error).message);
    look()?.json().map_err(|error| error.to_string())
}
