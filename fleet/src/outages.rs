//! When outages begin and end, and what may lead to one, for programs that log it.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::store::error::StoreError;

/// The longest that a store which failed is not asked again, unless a lease is longer.
const ASKED_AGAIN: Duration = Duration::from_secs(5);

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
    /// What failed and has not been answered since, and when it is no longer missed: it may have been removed meanwhile.
    failing: HashMap<Limit, Instant>,
    evicts_by: Option<String>,
}

/// What fails and is answered as a whole: a limit of a store, or a partition of its keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limit {
    pub(crate) store: String,
    pub(crate) key: String,
    pub(crate) partition: Option<u8>,
}

/// How an attempt for a limit went.
pub(crate) struct Attempt {
    pub(crate) limit: Limit,
    pub(crate) lease: Duration,
    pub(crate) is_granted: bool,
}

impl Outages {
    pub(crate) fn new(observer: Observer) -> Self {
        Self {
            observer,
            since: None,
            failing: HashMap::new(),
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

    /// Notes how the latest attempts went, and what was wrong with them, if anything. Some limits may be answered while
    /// others are not: those of other servers of a cluster, for example.
    pub(crate) fn note(&mut self, now: Instant, attempts: Vec<Attempt>, problem: Option<&StoreError>) {
        for Attempt {
            limit,
            lease,
            is_granted,
        } in attempts
        {
            if is_granted {
                self.failing.remove(&limit);
            } else {
                self.failing.insert(limit, now + ASKED_AGAIN.max(2 * lease));
            }
        }
        self.failing.retain(|_, until| *until > now);
        match (problem, self.since) {
            (Some(problem), None) => {
                self.since = Some(now);
                (self.observer)(&StoreEvent::Out { problem });
            }
            (None, Some(since)) if self.failing.is_empty() => {
                self.since = None;
                let after = now.saturating_duration_since(since);
                (self.observer)(&StoreEvent::Back { after });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// As with a cluster, one server of which is silent.
    #[test]
    fn an_outage_of_some_limits_is_told_once_and_ends_with_the_last_of_them() {
        let (tell, told) = mpsc::channel();
        let mut outages = Outages::new(Box::new(move |event| {
            tell.send(matches!(event, StoreEvent::Out { .. })).expect("heard");
        }));
        let begun = Instant::now();
        let mut attempts = |millis: u64, keys: &[(&str, bool)]| {
            let attempt = |&(key, is_granted): &(&str, bool)| Attempt {
                limit: Limit {
                    store: "redis+cluster://host".to_owned(),
                    key: key.to_owned(),
                    partition: None,
                },
                lease: Duration::from_secs(2),
                is_granted,
            };
            let problem = StoreError::Stale { key: String::new() };
            let is_wrong = keys.iter().any(|(_, is_granted)| !is_granted);
            outages.note(
                begun + Duration::from_millis(millis),
                keys.iter().map(attempt).collect(),
                is_wrong.then_some(&problem),
            );
            told.try_iter().collect::<Vec<_>>()
        };
        assert_eq!(attempts(0, &[("a", true), ("b", true)]), []);
        assert_eq!(attempts(100, &[("a", true), ("b", false)]), [true]);
        assert_eq!(attempts(200, &[("a", true)]), []);
        assert_eq!(attempts(300, &[("b", false), ("c", false)]), []);
        assert_eq!(attempts(400, &[("b", true)]), []);
        assert_eq!(attempts(500, &[("c", true)]), [false]);
        // Nobody asks for a limit any more that has been removed.
        assert_eq!(attempts(600, &[("b", false)]), [true]);
        assert_eq!(attempts(700, &[("a", true)]), []);
        assert_eq!(attempts(6_000, &[("a", true)]), [false]);
    }
}
