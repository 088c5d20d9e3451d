//! The limits, and how an operator changes them.

use std::time::Duration;

use shmlimit::declare::{Credit, FleetLease, Scope, WhenFull};
use shmlimit::{Declaration, Keyed, Limit, LimitSet, Segment, SetDeclaration};

use crate::{PROCESSES, scene};

pub const SECOND: Duration = Duration::from_secs(1);
pub const LEASE: Duration = Duration::from_millis(20);
/// Keys whose holds are tracked. Other keys come once and go.
pub const KEYS: [&str; 3] = ["tenant 0", "tenant 1", "tenant 2"];

/// The capacities of one declaration.
pub struct Capacities {
    pub slots: u64,
    pub places: u64,
    pub leases: u64,
    /// Calls per second.
    pub calls: u64,
    pub burst: u64,
    /// The burst of the limit from which processes draw batches: the first batch is a sixteenth of it.
    pub drawn_burst: u64,
}

/// The operator alternates between these. The first is the largest, for which there is room.
pub const VARIANTS: [Capacities; 3] = [
    Capacities {
        slots: 5,
        places: 3,
        leases: 4,
        calls: 300,
        burst: 60,
        drawn_burst: 640,
    },
    Capacities {
        slots: 3,
        places: 3,
        leases: 2,
        calls: 300,
        burst: 20,
        drawn_burst: 320,
    },
    Capacities {
        slots: 4,
        places: 1,
        leases: 4,
        calls: 100,
        burst: 40,
        drawn_burst: 160,
    },
];
pub const LARGEST: &Capacities = &VARIANTS[0];

/// Places that all keys of a set share: fewer than all `KEYS` have together, so that keys wait for one another.
pub const PLACES_OF_ALL: u64 = 4;

/// The store's name for the limit that hosts share by key.
pub const OF_TENANTS: &str = "chaos/tenants/calls";

/// The capacity per second and the burst of the limits that hosts share.
pub const SHARED_CALLS: u64 = 500;
pub const SHARED_BURST: u64 = 100;
/// For the limit by key: units of a key that are admitted before the store was asked.
pub const UNLEASED: u64 = 1;

/// The capacity per second of the limit from which processes draw batches.
pub const DRAWN_CALLS: u64 = 400;

/// Has fewer places for waiters than there are workers, so that queues fill up, and fewer rows than keys.
pub fn declaration(variant: usize) -> Declaration {
    let capacities = &VARIANTS[variant];
    scene::declaration()
        // More than there ever are processes, but too few to hide places that the dead do not give up.
        .participants(PROCESSES as u32 + 4)
        .fleet_url("redis://127.0.0.1:1")
        .add_set(
            SetDeclaration::new("plain")
                .waiters(16)
                .holds(64)
                .add_limit(Limit::concurrency("slots", capacities.slots))
                .add_limit(Limit::calls("calls", capacities.calls, SECOND).burst(capacities.burst))
                .add_limit(Limit::rate("tokens", 10_000_000, SECOND)),
        )
        .add_set(
            SetDeclaration::new("keyed")
                .keyed(Keyed::new(32).when_full(WhenFull::EvictLeastUsed))
                .waiters(16)
                .holds(64)
                .add_limit(Limit::concurrency("places", capacities.places))
                .add_limit(Limit::concurrency("of_all", PLACES_OF_ALL).scope(Scope::AllKeys))
                .add_limit(Limit::calls("calls", 10_000, SECOND)),
        )
        .add_set(
            SetDeclaration::new("leased")
                .waiters(16)
                .holds(64)
                .add_limit(Limit::concurrency("leases", capacities.leases).lease(LEASE)),
        )
        .add_set(
            SetDeclaration::new("shared").waiters(16).add_limit(
                Limit::calls("calls", SHARED_CALLS, SECOND)
                    .burst(SHARED_BURST)
                    .fleet(FleetLease::new("chaos/shared/calls")),
            ),
        )
        .add_set(
            SetDeclaration::new("tenants")
                .keyed(Keyed::new(16))
                .waiters(16)
                .add_limit(
                    Limit::calls("calls", SHARED_CALLS, SECOND)
                        .burst(SHARED_BURST)
                        .fleet(FleetLease::new(OF_TENANTS).unleased(UNLEASED)),
                ),
        )
        .add_set(
            SetDeclaration::new("drawn").waiters(16).holds(64).add_limit(
                Limit::calls("calls", DRAWN_CALLS, SECOND)
                    .burst(capacities.drawn_burst)
                    .credit(Credit::auto()),
            ),
        )
}

/// The sets of one attachment.
pub struct Handles {
    pub segment: Segment,
    pub plain: LimitSet,
    pub keyed: LimitSet,
    pub leased: LimitSet,
    pub shared: LimitSet,
    pub tenants: LimitSet,
    pub drawn: LimitSet,
}

impl Handles {
    pub fn of(segment: Segment) -> Self {
        let set = |name: &str| segment.set(name).expect("declared");
        Self {
            plain: set("plain"),
            keyed: set("keyed"),
            leased: set("leased"),
            shared: set("shared"),
            tenants: set("tenants"),
            drawn: set("drawn"),
            segment,
        }
    }
}
