//! The thread of this process that asks the fleet's store for leases while its segment is in use.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use pyo3::prelude::*;
use serde::Serialize;
use shmlimit_fleet::{Refresher, StoreEvent};

use crate::interpreter::log;

/// The threads of this process, which a forked child starts again. Only locked while the GIL is held throughout; a fork
/// holds the GIL, too, so the child finds this unlocked.
static THREADS: Mutex<Vec<Weak<FleetThread>>> = Mutex::new(Vec::new());

/// Asks the store while its process is on duty. It takes the GIL only to log that an outage begins or ends. It runs as
/// long as something keeps it: the segment's object or the handles of its sets.
#[derive(Debug)]
pub struct FleetThread {
    segment: shmlimit::Segment,
    /// The thread, or why there is none.
    started: Mutex<Result<Refresher, String>>,
}

/// The state of the thread, as the package reports it.
#[derive(Serialize)]
struct State {
    running: bool,
    problem: Option<String>,
    cause: Option<&'static str>,
    round_trips: u64,
    failures: u64,
    duties: u64,
}

impl FleetThread {
    /// Starts the thread if the segment has a store. A failure to start is logged and kept as its problem, but is not
    /// an error: requests are still decided by what is leased.
    pub fn start(py: Python<'_>, segment: &shmlimit::Segment) -> PyResult<Option<Arc<Self>>> {
        if segment
            .declaration_in_force()
            .is_ok_and(|it| it.fleet_options().is_none())
        {
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

    /// Takes the thread out, to end it.
    fn take(&mut self) -> Option<Refresher> {
        let started = self.started.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(started, Err(String::new())).ok()
    }

    /// What the thread has done, and its problem if it has one.
    pub fn state(&self) -> impl Serialize + use<> {
        match &*self.started.lock().unwrap_or_else(PoisonError::into_inner) {
            Ok(refresher) => {
                let counts = refresher.counts();
                let problem = refresher.problem();
                State {
                    running: refresher.is_running(),
                    cause: problem.as_ref().map(|problem| problem.problem().as_str()),
                    problem: problem.map(|problem| problem.to_string()),
                    round_trips: counts.round_trips,
                    failures: counts.failures,
                    duties: counts.duties,
                }
            }
            Err(problem) => State {
                running: false,
                problem: Some(problem.clone()),
                cause: None,
                round_trips: 0,
                failures: 0,
                duties: 0,
            },
        }
    }
}

/// Ends the thread if nothing else keeps it, and waits until it has left the segment's store. Releases the GIL
/// meanwhile.
pub fn end(py: Python<'_>, thread: Arc<FleetThread>) {
    if let Some(mut last) = Arc::into_inner(thread) {
        let refresher = last.take();
        // Together with the segment that it was started for.
        py.detach(|| drop((refresher, last)));
    }
}

impl Drop for FleetThread {
    fn drop(&mut self) {
        if let Some(refresher) = self.take().filter(Refresher::is_running) {
            // The thread ends once the store has answered or the timeout has passed. A garbage collection must not wait
            // for that, so another thread does; if none can be started, the wait happens here, without the GIL, which
            // the thread may want.
            let waited_for = Arc::new(Mutex::new(Some(refresher)));
            let end = |waited_for: &Mutex<Option<Refresher>>| {
                drop(waited_for.lock().unwrap_or_else(PoisonError::into_inner).take());
            };
            let of_other = Arc::clone(&waited_for);
            if thread::Builder::new().spawn(move || end(&of_other)).is_err() {
                Python::try_attach(|py| py.detach(|| end(&waited_for)));
            }
        }
    }
}

fn start(segment: &shmlimit::Segment) -> Result<Refresher, String> {
    let path = segment.path().display().to_string();
    let observer = move |event: &StoreEvent<'_>| log::warning_of_thread(&format!("{path}: {event}"));
    Refresher::start_observed(segment, observer).map_err(|error| error.to_string())
}

/// Starts the threads that a forked child has not inherited. Logs nothing: a problem either was the parent's, too, or
/// appears in the thread's state.
#[pyfunction]
pub fn start_fleet_threads_after_fork() {
    let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for thread in threads.iter().filter_map(Weak::upgrade) {
        *thread.started.lock().unwrap_or_else(PoisonError::into_inner) = start(&thread.segment);
    }
}
