//! The thread of this process that asks the store of a fleet for leases, for as long as anything of its segment is in use.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use pyo3::prelude::*;
use serde::Serialize;
use shmlimit_fleet::Refresher;

use crate::interpreter::log;

/// The threads of this process, which a forked child starts anew. It is only locked by who holds the interpreter's lock and
/// keeps that meanwhile; so does who forks, and the child finds it open.
static THREADS: Mutex<Vec<Weak<FleetThread>>> = Mutex::new(Vec::new());

/// Asks the store while its process has duty. It never takes the interpreter's lock. What keeps it keeps it running: the
/// segment's object and the handles of its sets.
#[derive(Debug)]
pub struct FleetThread {
    segment: shmlimit::Segment,
    /// The thread, or why there is none.
    started: Mutex<Result<Refresher, String>>,
}

/// What is known of the thread, in this package's words.
#[derive(Serialize)]
struct State {
    running: bool,
    problem: Option<String>,
    round_trips: u64,
    failures: u64,
    duties: u64,
}

impl FleetThread {
    /// Starts it for a segment with a store; none for others. Where it cannot be started, that is logged and kept as its
    /// problem: requests are decided by what is leased all the same.
    pub fn start(py: Python<'_>, segment: &shmlimit::Segment) -> PyResult<Option<Arc<Self>>> {
        if matches!(segment.fleet().options(), Ok(None)) {
            return Ok(None);
        }
        let started = py.detach(|| start(segment));
        if let Err(problem) = &started {
            let path = segment.path().display();
            log::warning(py, &format!("{path}: no leases are asked for: {problem}"))?;
        }
        let thread = Arc::new(Self {
            segment: segment.clone(),
            started: Mutex::new(started),
        });
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|known| known.strong_count() > 0);
        threads.push(Arc::downgrade(&thread));
        Ok(Some(thread))
    }

    /// The thread, which is to end.
    fn take(&mut self) -> Option<Refresher> {
        let started = self.started.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(started, Err(String::new())).ok()
    }

    /// What it does, and its problem if it has one.
    pub fn state(&self) -> impl Serialize + use<> {
        match &*self.started.lock().unwrap_or_else(PoisonError::into_inner) {
            Ok(refresher) => {
                let counts = refresher.counts();
                State {
                    running: refresher.is_running(),
                    problem: refresher.problem().map(|problem| problem.to_string()),
                    round_trips: counts.round_trips,
                    failures: counts.failures,
                    duties: counts.duties,
                }
            }
            Err(problem) => State {
                running: false,
                problem: Some(problem.clone()),
                round_trips: 0,
                failures: 0,
                duties: 0,
            },
        }
    }
}

/// Ends it where nothing else keeps it, and waits for that, so that the process has left the segment's store afterwards. Other
/// threads of Python go on meanwhile.
pub fn end(py: Python<'_>, thread: Arc<FleetThread>) {
    if let Some(mut last) = Arc::into_inner(thread) {
        let refresher = last.take();
        // With the segment that it was started for.
        py.detach(|| drop((refresher, last)));
    }
}

impl Drop for FleetThread {
    fn drop(&mut self) {
        if let Some(refresher) = self.take().filter(Refresher::is_running) {
            // It ends once the store has answered or the time for that is over, for which no collection of garbage is to wait.
            // Where there is no thread to wait, it is waited for here.
            let _ = thread::Builder::new().spawn(move || drop(refresher));
        }
    }
}

fn start(segment: &shmlimit::Segment) -> Result<Refresher, String> {
    Refresher::start(segment).map_err(|error| error.to_string())
}

/// Starts the threads that a forked child has not inherited. Logs nothing: what is wrong was wrong in its parent, too, or is
/// the state of the thread.
#[pyfunction]
pub fn start_fleet_threads_after_fork() {
    let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for thread in threads.iter().filter_map(Weak::upgrade) {
        *thread.started.lock().unwrap_or_else(PoisonError::into_inner) = start(&thread.segment);
    }
}
