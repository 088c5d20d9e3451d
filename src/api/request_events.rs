//! Events about requests that were refused or had to wait, for programs that want to know about each.
//!
//! Off by default, and rate-limited per set, so that refusals in bulk stay cheap.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::RefusalReason;
use crate::shm::time::clock::boot_nanos;
use crate::units::NANOS_PER_SECOND;

/// How many events of one kind are reported per set and second.
const MAX_PER_SECOND: u64 = 10;

/// What became of a request. See [`OpenOptions::on_request_event`](crate::OpenOptions::on_request_event).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RequestEvent<'a> {
    /// The set's name.
    pub set: &'a str,
    /// The request's [label](crate::Request::label).
    pub label: Option<&'a str>,
    /// What happened.
    pub what: RequestEventKind<'a>,
    /// How many events of this kind the set has suppressed since the last one reported: at most 10 of a kind are
    /// reported per second.
    pub left_out: u64,
}

/// The kinds of [`RequestEvent`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RequestEventKind<'a> {
    /// The request was refused, at once or after waiting.
    Denied {
        /// The binding limit: see [`Refusal::binding`](crate::Refusal::binding).
        limit: Option<&'a str>,
        /// Why it was refused.
        reason: RefusalReason,
        /// See [`Refusal::retry_after`](crate::Refusal::retry_after).
        retry_after: Option<Duration>,
    },
    /// The request waited in the queue. If it was refused because its time ran out, a `Denied` event is reported too.
    Waited {
        /// How long it waited.
        waited: Duration,
        /// Whether it was admitted in the end.
        admitted: bool,
    },
}

/// The program's callback for events.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&RequestEvent<'_>) + Send + Sync>);

// The library keeps no state that a panic of the observer could leave half changed.
impl UnwindSafe for Observer {}
impl RefUnwindSafe for Observer {}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// The events of one attached segment.
#[derive(Debug)]
pub(crate) struct RequestEvents {
    observer: Observer,
    /// For each set: denied, waited.
    paces: Box<[[Pace; 2]]>,
}

/// Counts the events of one second.
#[derive(Debug, Default)]
struct Pace {
    second: AtomicU64,
    reported: AtomicU64,
    left_out: AtomicU64,
}

impl Pace {
    /// How many events were suppressed before this one; `None` if this one is suppressed too. Threads that count at
    /// the same time may let one event too many or too few through.
    fn admit(&self, second: u64) -> Option<u64> {
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.reported.store(0, Ordering::Relaxed);
        }
        if self.reported.fetch_add(1, Ordering::Relaxed) < MAX_PER_SECOND {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl RequestEvents {
    pub(crate) fn new(observer: Observer, sets: usize) -> Self {
        Self {
            observer,
            paces: (0..sets).map(|_| Default::default()).collect(),
        }
    }

    #[cold]
    pub(crate) fn waited(&self, set: usize, name: &str, label: Option<&str>, nanos: u64, admitted: bool) {
        self.tell(set, 1, name, label, || RequestEventKind::Waited {
            waited: Duration::from_nanos(nanos),
            admitted,
        });
    }

    pub(super) fn tell<'a>(
        &self,
        set: usize,
        kind: usize,
        name: &'a str,
        label: Option<&'a str>,
        what: impl FnOnce() -> RequestEventKind<'a>,
    ) {
        let second = boot_nanos() / NANOS_PER_SECOND;
        let pace = self.paces.get(set).and_then(|paces| paces.get(kind));
        if let Some(left_out) = pace.and_then(|pace| pace.admit(second)) {
            (self.observer.0)(&RequestEvent {
                set: name,
                label,
                what: what(),
                left_out,
            });
        }
    }
}

/// Reports the event to the program's `tracing` subscriber.
#[cfg(feature = "tracing")]
pub(crate) fn trace(event: &RequestEvent<'_>) {
    let RequestEvent {
        set,
        label,
        what,
        left_out,
    } = *event;
    match what {
        RequestEventKind::Denied {
            limit,
            reason,
            retry_after,
        } => {
            let retry_after_ms = retry_after.map(|wait| wait.as_secs_f64() * 1e3);
            tracing::info!(
                set,
                label,
                limit,
                ?reason,
                retry_after_ms,
                left_out,
                "request_denied"
            );
        }
        RequestEventKind::Waited { waited, admitted } => {
            let waited_ms = waited.as_secs_f64() * 1e3;
            tracing::info!(set, label, waited_ms, admitted, left_out, "backpressure_wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request_events::*;

    #[test]
    fn ten_events_of_a_second_are_reported_and_the_next_says_how_many_were_not() {
        let pace = Pace::default();
        let reported: Vec<Option<u64>> = (0..12).map(|_| pace.admit(7)).collect();
        assert_eq!(reported, [vec![Some(0); 10], vec![None; 2]].concat());
        assert_eq!(pace.admit(8), Some(2));
        assert_eq!(pace.admit(8), Some(0));
    }
}
