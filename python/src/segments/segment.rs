//! Segments in Python.

use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use pyo3::intern;
use pyo3::prelude::*;
use serde::Serialize;
use shmlimit::{Error, OpenError, OpenOptions, Removal, RemovalCause};

use crate::arguments::declaration::Declaration;
use crate::arguments::key;
use crate::handle::fleet_thread::{self, FleetThread};
use crate::handle::request_log::RequestLog;
use crate::interpreter::error::{OrRaise, chosen, exception, raised, raised_saying};
use crate::interpreter::json::json;
use crate::interpreter::log;
use crate::interpreter::seconds;
use crate::segments::clock::VirtualClock;

/// A segment that this process is attached to.
#[pyclass(subclass, frozen, module = "shmlimit._native")]
pub struct Segment {
    path: PathBuf,
    /// `None` once closed.
    segment: RwLock<Option<shmlimit::Segment>>,
    /// Keeps the events of requests, if they are logged.
    request_log: Option<Arc<RequestLog>>,
    /// The thread that asks the store, if there is a store and this process takes part in asking it; `None` once
    /// closed.
    fleet_thread: RwLock<Option<Arc<FleetThread>>>,
}

impl Segment {
    /// The library's segment.
    ///
    /// # Errors
    ///
    /// `SegmentClosed` if this object was closed.
    pub fn get(&self, py: Python<'_>) -> PyResult<shmlimit::Segment> {
        // Never poisoned: nothing panics while it is locked.
        let segment = self.segment.read().ok().and_then(|segment| segment.clone());
        segment.ok_or_else(|| {
            let message = format!("this object is closed: open {} again", self.path.display());
            exception(py, "SegmentClosed", message)
        })
    }

    pub fn request_log(&self) -> Option<Arc<RequestLog>> {
        self.request_log.clone()
    }

    pub fn fleet_thread(&self) -> Option<Arc<FleetThread>> {
        self.fleet_thread.read().ok().and_then(|thread| thread.clone())
    }
}

/// A difference between a segment and a declaration, and what was done about it, as the package reports it.
#[derive(Serialize)]
struct Mismatch<'a> {
    set: Option<&'a str>,
    outcome: &'static str,
    differences: Vec<String>,
    declared_version: Option<u64>,
    segment_version: Option<u64>,
    message: String,
}

impl<'a> Mismatch<'a> {
    fn of(mismatch: &'a shmlimit::declare::Mismatch) -> Self {
        Self {
            set: mismatch.set(),
            outcome: mismatch.outcome().as_str(),
            differences: mismatch.differences().iter().map(ToString::to_string).collect(),
            declared_version: mismatch.declared_version(),
            segment_version: mismatch.segment_version(),
            message: mismatch.to_string(),
        }
    }
}

/// Reads a path as `os.fsdecode` does: a str, bytes or a path object.
fn file_path(path: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let py = path.py();
    let os = py.import(intern!(py, "os"))?;
    os.call_method1(intern!(py, "fsdecode"), (path,))?.extract()
}

#[pymethods]
impl Segment {
    #[new]
    #[pyo3(signature = (path, declaration=None, *, lock_timeout=None, trust_any_owner=false, clock=None, on_mismatch="apply", log_requests=false, ask_store=true))]
    #[expect(clippy::too_many_arguments, reason = "they are named")]
    fn new(
        py: Python<'_>,
        path: Option<&Bound<'_, PyAny>>,
        declaration: Option<&Declaration>,
        lock_timeout: Option<&Bound<'_, PyAny>>,
        trust_any_owner: bool,
        clock: Option<&Bound<'_, VirtualClock>>,
        on_mismatch: &str,
        log_requests: bool,
        ask_store: bool,
    ) -> PyResult<Self> {
        let path = path.map(file_path).transpose()?;
        let mut options = OpenOptions::new()
            .trust_any_owner(trust_any_owner)
            .on_mismatch(chosen("on_mismatch", on_mismatch)?)
            .on_wait(|what| Python::attach(|py| log::warning_while_waiting(py, what)));
        if let Some(timeout) = lock_timeout {
            options = options.lock_timeout(seconds::duration(timeout)?);
        }
        if let Some(clock) = clock {
            options = options.virtual_clock(&clock.get().clock);
        }
        let mut request_log = None;
        if log_requests {
            let (observed, log) = RequestLog::observe(options);
            (options, request_log) = (observed, Some(log));
        }
        let declaration = declaration.map(|declaration| &declaration.declaration);
        // Another process may be creating it, which takes longer the larger its file is.
        let segment = py.detach(|| match (&path, declaration) {
            (Some(path), None) => options.open(path),
            (Some(path), Some(declaration)) => options.open_or_create(path, declaration),
            (None, Some(declaration)) => options.anonymous(declaration),
            (None, None) => options.anonymous(&shmlimit::Declaration::new()),
        });
        let segment = segment.or_raise(py)?;
        log::forget_removal(segment.path());
        // Leases follow real time, so there is no thread with a virtual clock.
        let fleet_thread = if ask_store && clock.is_none() {
            FleetThread::start(py, &segment)?
        } else {
            None
        };
        Ok(Self {
            path: segment.path().to_owned(),
            segment: RwLock::new(Some(segment)),
            request_log,
            fleet_thread: RwLock::new(fleet_thread),
        })
    }

    /// Closes this object, which then cannot be used any more. Handles, permits and other objects of the same segment
    /// still work, and the process stays attached until the last of them is gone. Closing again does nothing. If this
    /// is the last object and a thread asks a store, this waits for the thread to end: a tenth of a second, or as long
    /// as an answer may take.
    fn close(&self, py: Python<'_>) {
        if let Ok(mut segment) = self.segment.write() {
            *segment = None;
        }
        let thread = self
            .fleet_thread
            .write()
            .ok()
            .and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            fleet_thread::end(py, thread);
        }
    }

    /// Whether this object was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.segment.read().is_ok_and(|segment| segment.is_none())
    }

    /// The file or directory, as an absolute path.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let path = self.path.as_os_str();
        path.into_pyobject(py).map(Bound::into_any).map_err(Into::into)
    }

    /// How the segment was removed, as far as this process knows: `"retired"`, `"deleted"` or `"replaced"`; None while
    /// it is in use.
    #[getter]
    fn removed(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(self.get(py)?.removal().map(RemovalCause::as_str))
    }

    /// Whether the segment was removed and another is at its path, which this process now has open.
    fn _has_successor(&self, py: Python<'_>) -> PyResult<bool> {
        let segment = self.get(py)?;
        Ok(py.detach(|| segment.successor()).is_some())
    }

    /// The names of the sets, in the order of the declaration.
    #[getter]
    fn set_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.get(py)?.sets().map(|set| set.name().to_owned()).collect())
    }

    /// A copy of the whole state as JSON.
    fn _snapshot(&self, py: Python<'_>) -> PyResult<String> {
        let segment = self.get(py)?;
        let snapshot = segment.snapshot().or_raise(py)?;
        let declaration = segment.declaration_in_force().or_raise(py)?;
        let described = limitctl::snapshot_with_bounds(&snapshot, &declaration);
        json(
            py,
            &described.map_err(|error| exception(py, "SegmentError", error.to_string()))?,
        )
    }

    /// Its metrics, in the text format of Prometheus.
    fn _exposition(&self, py: Python<'_>) -> PyResult<String> {
        let snapshot = self.get(py)?.snapshot().or_raise(py)?;
        Ok(limitctl::exposition(
            limitctl::Format::Prometheus,
            std::iter::once(&snapshot),
        ))
    }

    /// The keys of a set that have a row, as JSON.
    fn _keys(&self, py: Python<'_>, set_name: &str) -> PyResult<String> {
        let mut keys = Vec::new();
        self.get(py)?
            .key_snapshots(set_name, |key| keys.push(key.clone()))
            .or_raise(py)?;
        json(py, &keys)
    }

    /// A key of a set, as JSON; for an address, its networks if the set counts those.
    fn _key(&self, py: Python<'_>, set_name: &str, key: &Bound<'_, PyAny>) -> PyResult<String> {
        let segment = self.get(py)?;
        if segment.set(set_name).or_raise(py)?.is_by_address() {
            let address = key::address(key)?;
            return json(py, &segment.address_snapshots(set_name, address).or_raise(py)?);
        }
        let key = key::bytes(key)?;
        json(py, &segment.key_snapshot(set_name, key).or_raise(py)?)
    }

    /// Applies a declaration; returns the changes that were made, in words.
    fn _apply(&self, py: Python<'_>, declaration: &Declaration) -> PyResult<Vec<String>> {
        let changes = self.get(py)?.apply(&declaration.declaration).or_raise(py)?;
        Ok(changes.iter().map(ToString::to_string).collect())
    }

    /// How the segment differed from the declaration that this object was opened with, and what was done about it, as
    /// JSON.
    fn _mismatches(&self, py: Python<'_>) -> PyResult<String> {
        let segment = self.get(py)?;
        let mismatches: Vec<Mismatch<'_>> = segment.mismatches().iter().map(Mismatch::of).collect();
        json(py, &mismatches)
    }

    /// The declaration that is in force now.
    fn _declaration(&self, py: Python<'_>) -> PyResult<Declaration> {
        let declaration = self.get(py)?.declaration_in_force().or_raise(py)?;
        Ok(Declaration { declaration })
    }

    /// The state of the thread in which this process asks the store, as JSON; `null` if there is none.
    fn _store_thread(&self, py: Python<'_>) -> PyResult<String> {
        self.get(py)?;
        json(py, &self.fleet_thread().map(|thread| thread.state()))
    }

    fn _recover(&self, py: Python<'_>) -> PyResult<String> {
        json(py, &self.get(py)?.recover().or_raise(py)?)
    }

    /// Writes the state of the segment into a checkpoint file now.
    ///
    /// After a reboot, when the segment is gone, it is created again from the file if its declaration has, in
    /// `[segment]`, `checkpoint = { path = "...", every = "30s" }`. A thread of the library then also takes checkpoints
    /// by itself.
    ///
    /// Args:
    ///     path: The file; created if it does not exist, twice as large as the segment.
    ///
    /// Returns:
    ///     Whether it was written; false if another process is writing to it.
    ///
    /// Raises:
    ///     SegmentError: The file cannot be written, or the segment cannot be read.
    fn checkpoint(&self, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = path.py();
        let (segment, path) = (self.get(py)?, file_path(path)?);
        py.detach(|| segment.checkpoint(path)).or_raise(py)
    }

    /// Retires the segment: nobody may use it any more, including this process. Its file stays.
    fn retire(&self, py: Python<'_>) -> PyResult<()> {
        self.get(py)?.retire();
        Ok(())
    }
}

/// Retires a segment and removes its file.
///
/// Args:
///     path: The file.
///     force: Whether to do so even if processes are attached to it.
///
/// Raises:
///     InUse: Live processes are attached to it.
///     NotFound: There is no segment.
#[pyfunction]
#[pyo3(signature = (path, *, force=false))]
pub fn remove(path: &Bound<'_, PyAny>, force: bool) -> PyResult<()> {
    let py = path.py();
    let path = file_path(path)?;
    let removal = if force { Removal::Forced } else { Removal::Unused };
    let removed: Result<(), Error> = py.detach(|| OpenOptions::new().remove(path, removal));
    removed.map_err(|error| match &error {
        // The usual message suggests creating it, which makes no sense here.
        Error::Open(OpenError::NotFound { path }) => {
            let message = format!("there is no segment at {}: nothing was removed", path.display());
            raised_saying(py, &error, message)
        }
        _ => raised(py, &error),
    })
}
