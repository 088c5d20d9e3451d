//! One host of a fleet: a segment on a clock that a test moves, and the process that has duty.

use std::time::Duration;

use shmlimit::declare::FleetLease;
use shmlimit::fleet::{Duty, LeaseSnapshot, StoreProblem};
use shmlimit::{Declaration, Limit, SetDeclaration};

use super::scene::clock::{NEW_YEAR, Scene};
use super::store::Store;

pub const MINUTE: Duration = Duration::from_secs(60);
pub const LEASE: Duration = Duration::from_secs(2);
pub const KEY: &str = "org/api/calls";

pub fn declaring(set: SetDeclaration) -> Declaration {
    Declaration::new().fleet_url("redis://127.0.0.1:1").add_set(set)
}

/// A lease of a known length, for which no request waits.
pub fn fleet() -> FleetLease {
    FleetLease::new(KEY).lease(LEASE).cold_wait(Duration::ZERO)
}

pub fn calls(capacity: u64) -> Limit {
    Limit::calls("calls", capacity, MINUTE).fleet(fleet())
}

pub struct Host {
    pub scene: Scene,
    pub duty: Duty,
    pub store: Store,
}

impl Host {
    pub fn new(limit: Limit, store: &Store) -> Self {
        Self::of_set(SetDeclaration::new("api").add_limit(limit), store)
    }

    pub fn of_set(set: SetDeclaration, store: &Store) -> Self {
        Self::declared(&declaring(set), store)
    }

    pub fn declared(declaration: &Declaration, store: &Store) -> Self {
        let scene = Scene::declared(NEW_YEAR, declaration);
        let duty = scene.segment.fleet().try_take_duty().expect("works");
        Self {
            duty: duty.expect("no process has duty"),
            scene,
            store: store.clone(),
        }
    }

    /// Asks the store for what is due, and puts the answers into force. Returns how many requests that took.
    pub fn ask(&self) -> usize {
        let asked = self.duty.ask().expect("works");
        for asked in &asked {
            match self.store.answer(asked.request(), self.scene.clock.now()) {
                Ok(reply) => self.duty.install(asked, &reply).expect("works"),
                Err(problem) => self.duty.report(asked, problem, Duration::ZERO).expect("works"),
            }
        }
        asked.len()
    }

    pub fn fail(&self, problem: StoreProblem) {
        for asked in self.duty.ask().expect("works") {
            self.duty.report(&asked, problem, Duration::ZERO).expect("works");
        }
    }

    pub fn is_admitted(&self) -> bool {
        let set = self.scene.set();
        let outcome = set.request().try_acquire().expect("a decision");
        outcome.into_result().is_ok()
    }

    /// How many of this many requests are admitted, while the store is asked whenever something is due.
    pub fn admitted_of(&self, requests: usize) -> usize {
        let admit = |_: &usize| {
            self.ask();
            self.is_admitted()
        };
        (0..requests).filter(admit).count()
    }

    pub fn lease(&self) -> LeaseSnapshot {
        self.scene.snapshot().limits[0].lease.clone().expect("shared")
    }

    pub fn left(&self) -> u64 {
        self.scene.snapshot().limits[0].remaining
    }
}
