//! Hosts that share one limit, their store, and the clock of them all.

use std::time::Duration;

use shmlimit::fleet::{Duty, LeaseSnapshot, StoreProblem};
use shmlimit::{Declaration, Keyed, Limit, LimitSet, OpenOptions, Segment, SetDeclaration, VirtualClock};
use shmlimit_fleet::model::{KeyedStoreModel, StoreModel};
use shmlimit_fleet::{Exchange, StoreError};

/// The wall clock when a test begins: 2026-11-24.
const START: Duration = Duration::from_secs(1_795_478_400);

/// Time passes in steps of this length, and everybody acts in each.
pub const STEP: Duration = Duration::from_millis(10);

pub struct Host {
    _directory: tempfile::TempDir,
    segment: Segment,
    duty: Duty,
    exchange: Exchange,
    pub set: LimitSet,
}

/// The segment of a host, in a temporary directory, and the duty to ask the store for it.
pub fn segment_on_duty(
    declaration: &Declaration,
    clock: &VirtualClock,
) -> (tempfile::TempDir, Segment, Duty) {
    let directory = tempfile::tempdir().expect("a directory");
    let segment = OpenOptions::new()
        .virtual_clock(clock)
        .create(directory.path().join("limits"), declaration)
        .expect("a segment");
    let duty = segment.fleet().try_take_duty().expect("works");
    (directory, segment, duty.expect("no process has duty"))
}

impl Host {
    fn new(declaration: &Declaration, clock: &VirtualClock, seed: u64) -> Self {
        let (directory, segment, duty) = segment_on_duty(declaration, clock);
        Self {
            _directory: directory,
            duty,
            exchange: Exchange::new(seed),
            set: segment.set("api").expect("declared"),
            segment,
        }
    }

    /// Whether a unit can be taken. What is held is given back at once.
    pub fn is_admitted(&self) -> bool {
        let request = self.set.request().with("limit", 1).expect("declared");
        request.try_acquire().expect("a decision").is_admitted()
    }

    /// Takes units until one is refused, at most `most`. Returns how many were admitted.
    pub fn take_up_to(&self, most: u64) -> u64 {
        (0..most).take_while(|_| self.is_admitted()).count() as u64
    }

    pub fn lease(&self) -> LeaseSnapshot {
        let mut snapshot = self.segment.snapshot().expect("a copy");
        let limit = snapshot.sets.remove(0).limits.remove(0);
        limit.lease.expect("shared")
    }
}

pub struct Fleet {
    pub hosts: Vec<Host>,
    pub store: StoreModel,
    keys: KeyedStoreModel,
    pub run: String,
    /// Whether the store does not answer.
    pub is_out: bool,
    clock: VirtualClock,
    now: Duration,
}

impl Fleet {
    pub fn new(count: u64, limit: Limit) -> Self {
        Self::of_set(count, SetDeclaration::new("api").waiters(4).add_limit(limit))
    }

    /// Hosts that share the limit of each key.
    pub fn by_key(count: u64, limit: Limit) -> Self {
        let set = SetDeclaration::new("api").keyed(Keyed::new(20));
        Self::of_set(count, set.waiters(4).add_limit(limit))
    }

    fn of_set(count: u64, set: SetDeclaration) -> Self {
        let declaration = Declaration::new()
            .participants(1)
            .fleet_url("redis://127.0.0.1")
            .add_set(set);
        let clock = VirtualClock::new(START);
        Self {
            hosts: (0..count)
                .map(|seed| Host::new(&declaration, &clock, seed))
                .collect(),
            store: StoreModel::new(),
            keys: KeyedStoreModel::new(),
            run: "1".to_owned(),
            is_out: false,
            clock,
            now: START,
        }
    }

    /// How long ago the test began.
    pub fn elapsed(&self) -> Duration {
        self.now - START
    }

    /// Lets a step pass, and each host exchange what is due with the store.
    pub fn step(&mut self) {
        self.now += STEP;
        self.clock.advance_to(self.now);
        let utc = u64::try_from(self.now.as_micros()).expect("in range");
        for host in &mut self.hosts {
            // What an answer makes due is asked for at once.
            for _ in 0..4 {
                let asked = host.duty.ask().expect("works");
                if asked.is_empty() {
                    break;
                }
                let (pipeline, problems) = host.exchange.pipeline(&host.duty, asked);
                assert_eq!(problems, []);
                let answers = if self.is_out {
                    Err(StoreError::Unavailable {
                        at: "the simulated store".to_owned(),
                        server: None,
                        problem: StoreProblem::TimedOut,
                        name: String::new(),
                        reason: "it is out".to_owned(),
                    })
                } else {
                    let requests = pipeline.requests().iter();
                    let answers = requests.map(|(request, terms)| {
                        Ok(match request.of_key {
                            None => self.store.answer(&self.run, utc, terms, request),
                            Some(key) => self.keys.answer(&self.run, utc, terms, key, request),
                        })
                    });
                    Ok(answers.collect())
                };
                host.exchange.settle(&host.duty, &pipeline, answers);
            }
        }
    }

    /// Lets time pass while the callers of each host want `demand` units in each step. Returns how many units were
    /// admitted on all hosts in each step.
    pub fn run_for(&mut self, length: Duration, demand: u64) -> Vec<u64> {
        let steps = length.as_nanos() / STEP.as_nanos();
        let step = |_| {
            self.step();
            self.hosts.iter().map(|host| host.take_up_to(demand)).sum()
        };
        (0..steps).map(step).collect()
    }
}
