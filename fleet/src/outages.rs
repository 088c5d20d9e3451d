//! When outages begin and end, and what may lead to one, for programs that log it.

use std::fmt;
use std::time::{Duration, Instant};

use crate::store::error::StoreError;

/// The beginning or the end of an outage, as the process sees it that asks the store, or what is wrong with how the store
/// runs. `Display` writes one line for a log, without a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// The store has answered everything so far, and does not any more.
    Out {
        /// Why not.
        problem: &'a StoreError,
    },
    /// The store answers everything again.
    Back {
        /// How long after [`Out`](Self::Out).
        after: Duration,
    },
    /// The store evicts keys when its memory is used up. A limit that is evicted starts over.
    MayEvict {
        /// Its `maxmemory-policy`.
        policy: &'a str,
    },
}

impl fmt::Display for StoreEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Out { problem } => write!(f, "no leases come from the store: {problem}"),
            Self::Back { after } => write!(f, "the store answers again, after {:.1} s", after.as_secs_f64()),
            Self::MayEvict { policy } => write!(
                f,
                "the store may evict limits, which then start over: set its maxmemory-policy to noeviction instead of {policy}"
            ),
        }
    }
}

/// The program's callback for events.
pub(crate) type Observer = Box<dyn Fn(&StoreEvent<'_>) + Send>;

/// Tells an observer of each outage once when it begins and once when it ends, and of each policy of eviction once.
pub(crate) struct Outages {
    observer: Observer,
    since: Option<Instant>,
    evicts_by: Option<String>,
}

impl Outages {
    pub(crate) fn new(observer: Observer) -> Self {
        Self {
            observer,
            since: None,
            evicts_by: None,
        }
    }

    /// Notes by which policy a store evicts keys.
    pub(crate) fn note_eviction(&mut self, policy: String) {
        if self.evicts_by.as_ref() != Some(&policy) {
            (self.observer)(&StoreEvent::MayEvict { policy: &policy });
            self.evicts_by = Some(policy);
        }
    }

    /// Notes what was wrong at the latest attempt, if anything.
    pub(crate) fn note(&mut self, problem: Option<&StoreError>) {
        match (problem, self.since) {
            (Some(problem), None) => {
                self.since = Some(Instant::now());
                (self.observer)(&StoreEvent::Out { problem });
            }
            (None, Some(since)) => {
                self.since = None;
                let after = since.elapsed();
                (self.observer)(&StoreEvent::Back { after });
            }
            _ => {}
        }
    }
}
