//! Events of requests, from where the library tells of them to the logger.
//!
//! Whoever waits does so without the interpreter's lock, and must not ask for it: what is told there is kept until the answer
//! is given out, which is done with the lock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use shmlimit::{OpenOptions, RequestEvent, RequestEventKind};

use crate::log;
use crate::refusal::reason;
use crate::seconds::seconds;

/// Events that are kept at most. Each thread takes its own before it returns, and the library tells of no more than twenty a
/// second of a set: what is dropped is what a forked child has of its parent's other threads.
const MAX_EVENTS: usize = 1024;

/// How often the lock of the queue is tried: whoever has it moves a few words, and calls nothing.
const TRIES: usize = 1000;

/// Events that were told of and are not logged yet.
///
/// They are logged by the thread whose request they are about, so that records have its name and the context of its task.
#[derive(Debug, Default)]
pub struct RequestLog {
    queue: Mutex<VecDeque<(ThreadId, Event)>>,
}

/// An event, as it is logged.
#[derive(Debug)]
struct Event {
    set: String,
    label: Option<String>,
    what: What,
    left_out: u64,
}

#[derive(Debug)]
enum What {
    Denied {
        limit: Option<String>,
        reason: &'static str,
        retry_after: Option<f64>,
    },
    Waited {
        seconds: f64,
        admitted: bool,
    },
}

impl RequestLog {
    /// Has the events of what is opened kept in a queue.
    pub fn observe(options: OpenOptions) -> (OpenOptions, Arc<Self>) {
        let log = Arc::new(Self::default());
        let observer = Arc::clone(&log);
        let options = options.on_request_event(move |event| observer.keep(event));
        (options, log)
    }

    fn keep(&self, event: &RequestEvent<'_>) {
        let Some(event) = Event::of(event) else {
            return;
        };
        if let Some(mut queue) = self.lock() {
            if queue.len() >= MAX_EVENTS {
                queue.pop_front();
            }
            queue.push_back((thread::current().id(), event));
        }
    }

    /// Logs what was told of requests of this thread.
    ///
    /// # Errors
    ///
    /// What a filter or a handler of the logger raises first.
    pub fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let mut logged = Ok(());
        // Not logged under the lock: a handler may make requests of its own. All of them, whichever raises.
        for event in self.take() {
            logged = logged.and(event.log(py));
        }
        logged
    }

    fn take(&self) -> Vec<Event> {
        let Some(mut queue) = self.lock() else {
            return Vec::new();
        };
        let this = thread::current().id();
        let (own, others) = queue
            .drain(..)
            .partition::<VecDeque<_>, _>(|(thread, _)| *thread == this);
        *queue = others;
        own.into_iter().map(|(_, event)| event).collect()
    }

    /// The queue; none where a child was forked while another thread of its parent had it, which leaves it locked for ever.
    fn lock(&self) -> Option<MutexGuard<'_, VecDeque<(ThreadId, Event)>>> {
        for _ in 0..TRIES {
            match self.queue.try_lock() {
                Ok(queue) => return Some(queue),
                Err(TryLockError::Poisoned(queue)) => return Some(queue.into_inner()),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        }
        None
    }
}

impl Event {
    fn of(event: &RequestEvent<'_>) -> Option<Self> {
        let what = match event.what {
            RequestEventKind::Denied {
                limit,
                reason: why,
                retry_after,
            } => What::Denied {
                limit: limit.map(str::to_owned),
                reason: reason(why),
                retry_after: retry_after.map(seconds),
            },
            RequestEventKind::Waited { waited, admitted } => What::Waited {
                seconds: seconds(waited),
                admitted,
            },
            _ => return None,
        };
        Some(Self {
            set: event.set.to_owned(),
            label: event.label.map(str::to_owned),
            what,
            left_out: event.left_out,
        })
    }

    fn name(&self) -> &'static str {
        match self.what {
            What::Denied { .. } => "request_denied",
            What::Waited { .. } => "backpressure_wait",
        }
    }

    fn message(&self) -> String {
        let of_label = self.label.iter().map(|label| format!(" ({label})"));
        let what = match &self.what {
            What::Denied {
                limit,
                reason,
                retry_after,
            } => {
                let by_limit = limit.iter().map(|limit| format!(" by limit {limit}"));
                let until = retry_after
                    .iter()
                    .map(|wait| format!(", retry after {wait:.3} s"));
                let parts = by_limit.chain([format!(", {reason}")]).chain(until);
                format!("denied{}", parts.collect::<String>())
            }
            What::Waited { seconds, admitted } => {
                let outcome = if *admitted { "admitted" } else { "refused" };
                format!("{outcome} after a wait of {seconds:.3} s")
            }
        };
        let name = self.name();
        format!("{name}: set {}{}: {what}", self.set, of_label.collect::<String>())
    }

    fn log(&self, py: Python<'_>) -> PyResult<()> {
        log::information(py, &self.message(), &self.fields(py)?)
    }

    /// The same fields of each kind, so that a formatter may name any.
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        fields.set_item("event", self.name())?;
        fields.set_item("set_name", &self.set)?;
        fields.set_item("label", self.label.as_deref())?;
        let (limit, reason, retry_after, waited, admitted) = match &self.what {
            What::Denied {
                limit,
                reason,
                retry_after,
            } => (limit.as_deref(), Some(*reason), *retry_after, None, false),
            What::Waited { seconds, admitted } => (None, None, None, Some(*seconds), *admitted),
        };
        fields.set_item("limit", limit)?;
        fields.set_item("reason", reason)?;
        fields.set_item("retry_after", retry_after)?;
        fields.set_item("waited", waited)?;
        fields.set_item("admitted", admitted)?;
        fields.set_item("left_out", self.left_out)?;
        Ok(fields)
    }
}
