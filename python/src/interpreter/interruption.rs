//! Waiting with the GIL released, while still handling signals.
#![allow(unsafe_code)]

use pyo3::prelude::*;
use pyo3::{ffi, intern};

/// Decides between the sleeps of a wait whether to go on.
///
/// A signal handled in the sleeping thread ends its sleep, so Ctrl-C need not be polled for. A signal that arrives
/// between the decision and the sleep, or in another thread, is noticed at the next decision: within a second.
///
/// The GIL is released at the first decision, when there is something to wait for, and taken again when this is
/// dropped.
pub struct Interruption {
    released: Option<Released>,
    raised: Option<PyErr>,
    /// Whether there has been something to wait for.
    waits: bool,
}

/// The state of a thread that has released the GIL.
struct Released(*mut ffi::PyThreadState);

impl Released {
    fn new() -> Self {
        // SAFETY: only called by `Interruption`, which is made while the thread is attached to the interpreter, and
        // which uses no Python object from here on until this is dropped.
        Self(unsafe { ffi::PyEval_SaveThread() })
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        // SAFETY: this same thread saved the state: the raw pointer keeps this type from being sent.
        unsafe { ffi::PyEval_RestoreThread(self.0) }
    }
}

impl Interruption {
    /// For a wait of this thread.
    pub fn new(_py: Python<'_>) -> Self {
        Self {
            released: None,
            raised: None,
            waits: false,
        }
    }

    /// Releases the GIL right away, for a wait that does not call `keep_waiting` before it begins.
    pub fn let_others_run(&mut self) {
        if self.released.is_none() {
            self.released = Some(Released::new());
        }
    }

    /// Whether to keep waiting: false once a signal handler has raised an exception.
    pub fn keep_waiting(&mut self) -> bool {
        if self.raised.is_some() {
            return false;
        }
        if self.released.is_some() && self.waits && !is_main_thread() {
            return true;
        }
        self.released = None;
        // SAFETY: the thread was attached to the interpreter when this was made, and is attached whenever `released` is
        // `None`.
        let py = unsafe { Python::assume_attached() };
        self.raised = py.check_signals().err();
        if !std::mem::replace(&mut self.waits, true) && self.raised.is_none() {
            self.raised = warn_in_event_loop(py).err();
        }
        self.released = Some(Released::new());
        self.raised.is_none()
    }

    /// Takes the GIL again, and raises the exception that ended the wait, if one did.
    pub fn end(mut self) -> PyResult<()> {
        self.released = None;
        self.raised.take().map_or(Ok(()), Err)
    }
}

/// Warns if this thread runs an asyncio event loop, whose tasks all stop while it waits.
fn warn_in_event_loop(py: Python<'_>) -> PyResult<()> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    // Without the import there is no running loop.
    let Ok(asyncio) = modules.get_item(intern!(py, "asyncio")) else {
        return Ok(());
    };
    if asyncio.call_method0(intern!(py, "_get_running_loop"))?.is_none() {
        return Ok(());
    }
    let category = py.import("shmlimit._errors")?.getattr("BlockingAcquireWarning")?;
    let message = "acquire waits and stops the event loop of this thread: await acquire_async instead";
    // The caller of `acquire`, which is Python.
    let arguments = (message, category, 1);
    py.import("warnings")?.call_method1("warn", arguments).map(drop)
}

/// Whether Python runs signal handlers in this thread. Other threads need not take the GIL between their sleeps.
fn is_main_thread() -> bool {
    nix::unistd::gettid() == nix::unistd::getpid()
}
