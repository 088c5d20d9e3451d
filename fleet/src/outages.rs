//! When outages begin and end, and what may lead to one, for programs that log this.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use shmlimit::fleet::StoreProblem;

use crate::store::error::StoreError;

/// The longest time after which a store that failed is asked again, unless a lease is longer.
const ASKED_AGAIN: Duration = Duration::from_secs(5);

/// The beginning or the end of an outage, as seen by the process that asks the store, or something wrong with how the
/// store runs. `Display` writes one line for a log, without secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// The store has stopped granting anything, or grants nothing of a limit, whose key the problem then names.
    Out {
        /// Why not.
        problem: &'a StoreError,
    },
    /// The problem is over.
    Back {
        /// How it began.
        problem: &'a StoreError,
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
            Self::Back { problem, after } => {
                match problem {
                    // Another server may have taken its place.
                    StoreError::Unavailable {
                        at,
                        server: Some(server),
                        ..
                    } => write!(f, "what failed at {server} of {at} is answered again")?,
                    StoreError::Unavailable { at, .. } => write!(f, "the store at {at} answers again")?,
                    _ => match problem.key() {
                        Some(key) => write!(f, "limit {key} is no longer refused by the store")?,
                        None => write!(f, "the store answers again")?,
                    },
                }
                write!(f, ", after {:.1} s", after.as_secs_f64())
            }
            Self::MayEvict { policy } => write!(
                f,
                "the store may evict limits, which then start over: set its maxmemory-policy to noeviction instead of {policy}"
            ),
        }
    }
}

/// The program's callback for events.
pub(crate) type Observer = Box<dyn Fn(&StoreEvent<'_>) + Send>;

/// Tells an observer of each problem once when it begins and once when it ends, and of each eviction policy once.
pub(crate) struct Outages {
    observer: Observer,
    lasting: Vec<Lasting>,
    /// The policy by which each store evicts keys, if it does.
    evicts_by: HashMap<String, String>,
}

/// What is reported separately, so that a problem that lasts hides no other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    /// A store, or a server of a cluster, by where it is, whatever it says in the course of an outage: it may first
    /// refuse connections, then load, then be a replica.
    Store { store: String, server: Option<String> },
    /// A problem that only a person can end, or that may concern only some limits of a store, by the key that it names, and
    /// by the server, if it names one.
    Limit {
        store: String,
        server: Option<String>,
        key: Option<String>,
        problem: StoreProblem,
    },
}

impl Subject {
    fn of(problem: &StoreError, store: &str) -> Self {
        let (store, key) = (store.to_owned(), problem.key().map(str::to_owned));
        let server = match problem {
            StoreError::Unavailable { server, .. } => server.clone(),
            _ => None,
        };
        match problem.problem() {
            // It passes with the next request.
            StoreProblem::Stale => Self::Store { store, server },
            problem if key.is_some() || problem == StoreProblem::NotPermitted => Self::Limit {
                store,
                server,
                key,
                problem,
            },
            _ => Self::Store { store, server },
        }
    }

    fn is_store(&self) -> bool {
        matches!(self, Self::Store { .. })
    }
}

/// A problem that has begun and not ended.
struct Lasting {
    subject: Subject,
    problem: StoreError,
    since: Instant,
    /// What has failed and was not answered since, each with the instant from which it is no longer missed: it may have
    /// been removed meanwhile.
    failing: HashMap<Limit, Instant>,
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
    /// What was wrong, if anything.
    pub(crate) problem: Option<StoreError>,
}

impl Outages {
    pub(crate) fn new(observer: Observer) -> Self {
        Self {
            observer,
            lasting: Vec::new(),
            evicts_by: HashMap::new(),
        }
    }

    /// Notes by which policy a store evicts keys, if it does.
    pub(crate) fn note_eviction(&mut self, store: &str, policy: Option<String>) {
        let Some(policy) = policy else {
            self.evicts_by.remove(store);
            return;
        };
        if self.evicts_by.get(store) != Some(&policy) {
            (self.observer)(&StoreEvent::MayEvict { policy: &policy });
            self.evicts_by.insert(store.to_owned(), policy);
        }
    }

    /// Notes how the latest attempts went. Some limits may be answered while others are not: those of other servers of a
    /// cluster, for example.
    pub(crate) fn note(&mut self, now: Instant, attempts: Vec<Attempt>) {
        let mut begun = Vec::<Lasting>::new();
        for Attempt {
            limit,
            lease,
            problem,
        } in attempts
        {
            let mut since_before = None;
            for (index, lasting) in self.lasting.iter_mut().enumerate() {
                if lasting.failing.remove(&limit).is_some() && lasting.subject.is_store() {
                    since_before = Some(index);
                }
            }
            let Some(problem) = problem else { continue };
            let subject = Subject::of(&problem, &limit.store);
            let missed_until = now + ASKED_AGAIN.max(2 * lease);
            let known = match since_before {
                // While a limit of a cluster is not answered, one server after the other may be asked for it.
                Some(index) if subject.is_store() => self.lasting.get_mut(index),
                _ => {
                    let mut known = self.lasting.iter_mut().chain(&mut begun);
                    known.find(|lasting| lasting.subject == subject)
                }
            };
            if let Some(known) = known {
                known.failing.insert(limit, missed_until);
            } else {
                begun.push(Lasting {
                    subject,
                    problem,
                    since: now,
                    failing: HashMap::from([(limit, missed_until)]),
                });
            }
        }
        let observer = &self.observer;
        self.lasting.retain_mut(|lasting| {
            lasting.failing.retain(|_, until| *until > now);
            let lasts = !lasting.failing.is_empty();
            if !lasts {
                observer(&StoreEvent::Back {
                    problem: &lasting.problem,
                    after: now.saturating_duration_since(lasting.since),
                });
            }
            lasts
        });
        for Lasting { problem, .. } in &begun {
            observer(&StoreEvent::Out { problem });
        }
        self.lasting.append(&mut begun);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::store::address::AddressError;
    use crate::terms::TermsError;

    struct Scene {
        outages: Outages,
        told: Receiver<String>,
        begun: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let (tell, told) = mpsc::channel();
            let observer = move |event: &StoreEvent<'_>| {
                let (what, problem) = match event {
                    StoreEvent::Out { problem } => ("out", problem),
                    StoreEvent::Back { problem, .. } => ("back", problem),
                    StoreEvent::MayEvict { .. } => panic!("{event}"),
                };
                tell.send(format!("{what} {}", problem.problem())).expect("heard");
            };
            Self {
                outages: Outages::new(Box::new(observer)),
                told,
                begun: Instant::now(),
            }
        }

        /// What is told after attempts for limits, by the first letter of their names.
        fn told(&mut self, millis: u64, attempts: &[(&str, Option<&StoreError>)]) -> Vec<String> {
            self.told_of("redis+cluster://host", millis, attempts)
        }

        /// The same for limits of that store.
        fn told_of(
            &mut self,
            store: &str,
            millis: u64,
            attempts: &[(&str, Option<&StoreError>)],
        ) -> Vec<String> {
            let attempt = |&(key, problem): &(&str, Option<&StoreError>)| Attempt {
                limit: Limit {
                    store: store.to_owned(),
                    key: key.to_owned(),
                    partition: None,
                },
                lease: Duration::from_secs(2),
                problem: problem.cloned(),
            };
            let now = self.begun + Duration::from_millis(millis);
            self.outages.note(now, attempts.iter().map(attempt).collect());
            self.told.try_iter().collect()
        }
    }

    fn unavailable(problem: StoreProblem) -> StoreError {
        StoreError::Unavailable {
            at: String::new(),
            server: None,
            problem,
            name: String::new(),
            reason: String::new(),
        }
    }

    /// The same of a server of a cluster.
    fn at_server(server: &str, problem: StoreProblem) -> StoreError {
        StoreError::Unavailable {
            at: "redis+cluster://host".to_owned(),
            server: Some(server.to_owned()),
            problem,
            name: String::new(),
            reason: String::new(),
        }
    }

    /// As with a cluster, one server of which is silent.
    #[test]
    fn an_outage_of_some_limits_is_told_once_and_ends_with_the_last_of_them() {
        let mut scene = Scene::new();
        let out = unavailable(StoreProblem::TimedOut);
        let out = Some(&out);
        assert!(scene.told(0, &[("a", None), ("b", None)]).is_empty());
        assert_eq!(scene.told(100, &[("a", None), ("b", out)]), ["out timed_out"]);
        assert!(scene.told(200, &[("a", None)]).is_empty());
        assert!(scene.told(300, &[("b", out), ("c", out)]).is_empty());
        assert!(scene.told(400, &[("b", None)]).is_empty());
        assert_eq!(scene.told(500, &[("c", None)]), ["back timed_out"]);
        // Nobody asks any more for a limit that has been removed.
        assert_eq!(scene.told(600, &[("b", out)]), ["out timed_out"]);
        assert!(scene.told(700, &[("a", None)]).is_empty());
        assert_eq!(scene.told(6_000, &[("a", None)]), ["back timed_out"]);
    }

    #[test]
    fn servers_of_a_cluster_that_go_out_one_after_the_other_are_told_of_one_by_one() {
        let mut scene = Scene::new();
        let one = at_server("one", StoreProblem::Refused);
        let loading = at_server("one", StoreProblem::Loading);
        let other = at_server("other", StoreProblem::TimedOut);
        assert_eq!(scene.told(0, &[("a", Some(&one)), ("b", None)]), ["out refused"]);
        assert_eq!(
            scene.told(
                100,
                &[("a", Some(&one)), ("b", Some(&other)), ("c", Some(&other))]
            ),
            ["out timed_out"]
        );
        // What a server says may change, and so may the server that is asked for a limit, or there is none to ask.
        let nowhere = unavailable(StoreProblem::ClusterDown);
        for problem in [&loading, &other, &nowhere, &one] {
            assert!(scene.told(200, &[("a", Some(problem))]).is_empty());
        }
        assert_eq!(scene.told(300, &[("a", None)]), ["back refused"]);
        assert!(scene.told(400, &[("b", None)]).is_empty());
        assert_eq!(scene.told(500, &[("c", None)]), ["back timed_out"]);
    }

    #[test]
    fn a_server_that_has_not_answered_is_not_said_to_answer_because_its_limit_fails_elsewhere() {
        let (one, other) = (
            at_server("one", StoreProblem::Refused),
            at_server("other", StoreProblem::TimedOut),
        );
        for (first, second) in [(&one, &other), (&other, &one)] {
            let mut scene = Scene::new();
            let both = [("a", Some(&one)), ("b", Some(&other))];
            assert_eq!(scene.told(0, &both), ["out refused", "out timed_out"]);
            // Each may be asked for at either server.
            for (of_a, of_b) in [(first, second), (second, first), (first, first)] {
                assert!(
                    scene
                        .told(100, &[("a", Some(of_a)), ("b", Some(of_b))])
                        .is_empty()
                );
            }
            assert_eq!(scene.told(200, &[("b", None)]), ["back timed_out"]);
            assert_eq!(scene.told(300, &[("a", None)]), ["back refused"]);
        }
    }

    /// What it was asked for may be answered by another, which has taken its place.
    #[test]
    fn a_server_of_a_cluster_that_went_out_is_not_said_to_answer_itself() {
        let back = |problem: &StoreError| {
            let after = Duration::from_secs(2);
            StoreEvent::Back { problem, after }.to_string()
        };
        let of_server = back(&at_server("one:7001", StoreProblem::Refused));
        assert_eq!(
            of_server,
            "what failed at one:7001 of redis+cluster://host is answered again, after 2.0 s"
        );
        let of_store = back(&unavailable(StoreProblem::ClusterDown));
        assert!(of_store.contains("answers again"), "{of_store}");
    }

    #[test]
    fn that_a_server_of_a_cluster_permits_nothing_hides_no_other_that_does_not() {
        let mut scene = Scene::new();
        let (one, other) = (
            at_server("one", StoreProblem::NotPermitted),
            at_server("other", StoreProblem::NotPermitted),
        );
        assert_eq!(scene.told(0, &[("a", Some(&one))]), ["out not_permitted"]);
        assert_eq!(scene.told(100, &[("b", Some(&other))]), ["out not_permitted"]);
        assert_eq!(scene.told(200, &[("a", None)]), ["back not_permitted"]);
        assert_eq!(scene.told(300, &[("b", None)]), ["back not_permitted"]);
    }

    #[test]
    fn a_problem_of_one_limit_hides_no_outage_and_no_problem_of_another_limit() {
        for (problem, name) in [
            (
                StoreError::Mismatch {
                    key: "a".to_owned(),
                    difference: String::new(),
                },
                "mismatch",
            ),
            (
                StoreError::WrongKey {
                    key: "a".to_owned(),
                    found: String::new(),
                },
                "wrong_key",
            ),
            (
                StoreError::Terms {
                    key: "a".to_owned(),
                    source: TermsError::Zero("units"),
                },
                "unsupported",
            ),
            (unavailable(StoreProblem::NotPermitted), "not_permitted"),
        ] {
            let mut scene = Scene::new();
            let wrong = Some(&problem);
            let refused = unavailable(StoreProblem::Refused);
            let loading = unavailable(StoreProblem::Loading);
            assert_eq!(
                scene.told(0, &[("a", wrong), ("b", None)]),
                [format!("out {name}")]
            );
            // It neither ends nor begins again while others are answered.
            assert!(scene.told(100, &[("b", None)]).is_empty());
            assert!(scene.told(200, &[("a", wrong)]).is_empty());
            for round in 0..2 {
                let at = 300 + round * 400;
                assert_eq!(scene.told(at, &[("b", Some(&refused))]), ["out refused"]);
                assert!(scene.told(at + 100, &[("b", Some(&loading))]).is_empty());
                assert!(scene.told(at + 200, &[("a", wrong)]).is_empty());
                assert_eq!(scene.told(at + 300, &[("b", None)]), ["back refused"]);
            }
            let other = StoreError::Mismatch {
                key: "c".to_owned(),
                difference: String::new(),
            };
            assert_eq!(scene.told(1_200, &[("c", Some(&other))]), ["out mismatch"]);
            assert_eq!(scene.told(1_300, &[("a", None)]), [format!("back {name}")]);
        }
    }

    #[test]
    fn a_problem_of_one_store_hides_none_of_another() {
        let unsupported = StoreError::Terms {
            key: "a".to_owned(),
            source: TermsError::Zero("units"),
        };
        for problem in [
            unavailable(StoreProblem::NotPermitted),
            unavailable(StoreProblem::Refused),
            unsupported,
        ] {
            let mut scene = Scene::new();
            let (wrong, name) = (Some(&problem), problem.problem());
            for (store, millis) in [("one", 0), ("other", 100)] {
                assert_eq!(
                    scene.told_of(store, millis, &[("a", wrong)]),
                    [format!("out {name}")]
                );
            }
            for (store, millis) in [("one", 200), ("other", 300)] {
                assert_eq!(
                    scene.told_of(store, millis, &[("a", None)]),
                    [format!("back {name}")]
                );
            }
        }
    }

    /// Such a limit may even be the only one that is due.
    #[test]
    fn an_address_that_cannot_be_used_is_told_once() {
        let mut scene = Scene::new();
        let wrong = StoreError::Address(AddressError::Scheme);
        assert_eq!(scene.told(0, &[("a", Some(&wrong))]), ["out unsupported"]);
        assert!(scene.told(100, &[("a", Some(&wrong))]).is_empty());
        assert_eq!(scene.told(200, &[("a", None)]), ["back unsupported"]);
    }
}
