//! Waiting with the interpreter's lock released, and signals looked after.
#![allow(unsafe_code)]

use pyo3::prelude::*;
use pyo3::{ffi, intern};

/// What to ask between the sleeps of a wait whether to go on.
///
/// A sleep ends when a handler of a signal has run in the thread that sleeps, so Ctrl-C need not be polled for. A signal that
/// comes in the moment between the question and the sleep, or that another thread took, is noticed at the next look: within a
/// second.
///
/// The lock of the interpreter is released when it is asked for the first time, which is when there is something to
/// wait for, and taken again when this is dropped.
pub struct Interruption {
    released: Option<Released>,
    raised: Option<PyErr>,
    /// Whether there was something to wait for yet.
    waits: bool,
}

/// The state of a thread that has released the interpreter's lock.
struct Released(*mut ffi::PyThreadState);

impl Released {
    fn new() -> Self {
        // SAFETY: called by `Interruption` alone, which is made where the thread is attached to the interpreter; it
        // uses no Python object from here on until this is dropped.
        Self(unsafe { ffi::PyEval_SaveThread() })
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        // SAFETY: the state is what this same thread saved: the raw pointer keeps this type from being sent.
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

    /// Whether to go on waiting: not where a handler of a signal has raised an exception.
    pub fn keep_waiting(&mut self) -> bool {
        if self.raised.is_some() {
            return false;
        }
        if self.released.is_some() && !is_main_thread() {
            return true;
        }
        self.released = None;
        // SAFETY: the thread was attached to the interpreter when this was made, and is so whenever nothing is released.
        let py = unsafe { Python::assume_attached() };
        self.raised = py.check_signals().err();
        if !std::mem::replace(&mut self.waits, true) && self.raised.is_none() {
            self.raised = warn_in_event_loop(py).err();
        }
        self.released = Some(Released::new());
        self.raised.is_none()
    }

    /// The exception that ended the wait, with the lock held again.
    pub fn end(mut self) -> PyResult<()> {
        self.released = None;
        self.raised.take().map_or(Ok(()), Err)
    }
}

/// Warns where this thread runs an event loop of asyncio, none of whose tasks goes on while it waits.
fn warn_in_event_loop(py: Python<'_>) -> PyResult<()> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    // Who has not imported it runs no loop.
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

/// Whether this is the thread that Python runs handlers of signals in. Others need not take the interpreter's lock
/// from those that work, between their sleeps.
fn is_main_thread() -> bool {
    nix::unistd::gettid() == nix::unistd::getpid()
}
