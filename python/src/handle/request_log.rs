//! Passes request events from the library to the logger.
//!
//! A wait runs without the GIL and must not take it, so events reported there are kept until the answer is returned,
//! which happens with the GIL.

use std::cell::Cell;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use shmlimit::OpenOptions;
use shmlimit::request::{RequestEvent, RequestEventKind};

use crate::interpreter::log;
use crate::interpreter::seconds::seconds;

/// How many events of a thread are kept at most; newer ones push out older ones. A thread logs its events before it
/// returns, and the library reports at most twenty a second for a set, so events only pile up for logs that are no
/// longer in use.
const MAX_EVENTS: usize = 1024;

thread_local! {
    /// Events that this thread has not logged yet, each with the number of its log.
    ///
    /// No lock guards them, so a fork while another thread keeps an event does no harm.
    static NOT_LOGGED: Cell<Vec<(u64, Event)>> = const { Cell::new(Vec::new()) };
}

/// Keeps events of requests until they are logged.
///
/// The thread that made a request logs its events, so that records have its name and the context of its task.
#[derive(Debug)]
pub struct RequestLog {
    /// Distinguishes this log's events from those of other logs of the process.
    number: u64,
}

/// An event, as it is logged.
#[derive(Debug)]
struct Event {
    /// The process that made the request: a forked child inherits a copy of the forking thread's unlogged events.
    process: u32,
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
    /// Makes segments opened with `options` report their events to a new log.
    pub fn observe(options: OpenOptions) -> (OpenOptions, Arc<Self>) {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let log = Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        });
        let observer = Arc::clone(&log);
        let options = options.on_request_event(move |event| observer.keep(event));
        (options, log)
    }

    fn keep(&self, event: &RequestEvent<'_>) {
        let Some(event) = Event::of(event) else {
            return;
        };
        // A thread that is ending logs nothing any more.
        let _ = NOT_LOGGED.try_with(|events| {
            let mut kept = events.take();
            if kept.len() >= MAX_EVENTS {
                kept.remove(0);
            }
            kept.push((self.number, event));
            events.set(kept);
        });
    }

    /// Logs this thread's events.
    ///
    /// # Errors
    ///
    /// The first exception of a filter or handler of the logger that [`log`] lets through.
    pub fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let mut logged = Ok(());
        // Taken first, because a handler may make requests of its own. All are logged, even if one raises.
        for event in self.take() {
            // Checked for each event, because a handler may fork, too.
            if event.process == process::id() {
                logged = logged.and(event.log(py));
            }
        }
        logged
    }

    fn take(&self) -> Vec<Event> {
        let taken = NOT_LOGGED.try_with(|events| {
            let mut kept = events.take();
            let own = kept.extract_if(.., |(log, _)| *log == self.number);
            let own = own.map(|(_, event)| event).collect();
            events.set(kept);
            own
        });
        taken.unwrap_or_default()
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
                reason: why.as_str(),
                retry_after: retry_after.map(seconds),
            },
            RequestEventKind::Waited { waited, admitted } => What::Waited {
                seconds: seconds(waited),
                admitted,
            },
            _ => return None,
        };
        Some(Self {
            process: process::id(),
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
        // Quoted, because it may contain outside input, which must not look like another log line.
        let of_label = self.label.iter().map(|label| format!(" ({label:?})"));
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

    /// Every kind has the same fields, so that a formatter may name any of them.
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
