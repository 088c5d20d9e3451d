//! Wakes an event loop when its tasks have something to look at.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::prelude::*;

/// A file descriptor that becomes readable when tasks of one event loop must look again, and the numbers of those
/// tasks.
///
/// Waking them needs neither the GIL nor the loop: the waker may be the thread that sleeps for all tasks of the
/// process, whose other work must not wait for Python.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct WakeEvent {
    event: Arc<EventFd>,
    numbers: Sender<u64>,
    // Only locked while the GIL is held.
    woken: Mutex<Receiver<u64>>,
}

struct TaskWaker {
    event: Arc<EventFd>,
    numbers: Sender<u64>,
    number: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        // These only fail if the event is gone, or was written 2^64 times.
        let _ = self.numbers.send(self.number);
        let _ = self.event.write(1);
    }
}

impl WakeEvent {
    /// A waker for the task of this number.
    pub fn waker(&self, number: u64) -> Waker {
        Waker::from(Arc::new(TaskWaker {
            event: Arc::clone(&self.event),
            numbers: self.numbers.clone(),
            number,
        }))
    }
}

#[pymethods]
impl WakeEvent {
    #[new]
    fn new() -> PyResult<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_value_and_flags(0, flags).map_err(std::io::Error::from)?;
        let (numbers, woken) = mpsc::channel();
        Ok(Self {
            event: Arc::new(event),
            numbers,
            woken: Mutex::new(woken),
        })
    }

    /// The file descriptor.
    fn fileno(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// The numbers of the tasks that must look, each as often as it was woken.
    fn answer(&self) -> Vec<u64> {
        let _ = self.event.read();
        self.woken
            .lock()
            .map_or_else(|_| Vec::new(), |woken| woken.try_iter().collect())
    }
}
