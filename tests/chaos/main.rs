//! 24 processes do everything at once, and each may be killed or stopped at any instant: workers that acquire, wait,
//! settle, cancel, renew, attach and detach, with plain, keyed and leased sets, a set that hosts share, one that they
//! share by key, and one from which each process draws batches; processes that ask the store; and an operator that
//! applies, resets and recovers.
//!
//! The test keeps its own account of what is held and how much was admitted. Now and then the killing pauses. Then
//! every process must make progress, and once all have given everything back, nothing may be left.
//!
//! Runs for 5 seconds; `SHMLIMIT_CHAOS_SECONDS` makes it longer, `SHMLIMIT_CHAOS_SEED` repeats a run.

mod audit;
mod operator;
#[path = "../scene/mod.rs"]
mod scene;
#[path = "../fleet_leases/service.rs"]
mod service;
mod sets;
#[path = "../fleet_leases/store.rs"]
mod store;
mod supervisor;
mod truth;
mod worker;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scene::process::{Child, TIMEOUT, in_own_process};
use shmlimit::Segment;
use shmlimit::fleet::{LeaseRequest, LeasedLimit, LeasedRule};
use supervisor::Supervisor;
use truth::Truth;

const WORKERS: usize = 21;
const REFRESHERS: usize = 2;
/// The workers, those that ask the store, and the operator.
const PROCESSES: usize = WORKERS + REFRESHERS + 1;

/// What all processes share.
struct World {
    truth: Truth,
    segment: PathBuf,
    store: PathBuf,
}

fn seconds() -> u64 {
    std::env::var("SHMLIMIT_CHAOS_SECONDS").map_or(5, |text| text.parse().expect("a number of seconds"))
}

fn seed() -> u64 {
    std::env::var("SHMLIMIT_CHAOS_SEED").map_or_else(
        |_| std::process::id().into(),
        |text| text.parse().expect("a number"),
    )
}

/// A process that answers those that ask for leases, and is not killed.
fn start_store(segment: &Segment, path: &Path) -> Child {
    let shared = {
        let duty = segment.fleet().try_take_duty().expect("works").expect("free");
        duty.ask().expect("works").remove(0).request().clone()
    };
    // Nobody asks about a key that is not used yet.
    let of_keys = LeaseRequest {
        key: sets::OF_TENANTS.to_owned(),
        declared: LeasedLimit {
            rule: LeasedRule::Backlog {
                capacity: sets::SHARED_CALLS,
                window: sets::SECOND,
                burst: sets::SHARED_BURST,
            },
            ..shared.declared.clone()
        },
        ..shared.clone()
    };
    let listener = UnixListener::bind(path).expect("a socket");
    Child::fork(|| service::serve(&listener, &[shared, of_keys]))
}

#[test]
fn chaos_breaks_no_limit_hangs_no_process_and_leaks_nothing() {
    let test = "chaos_breaks_no_limit_hangs_no_process_and_leaks_nothing";
    let time = Duration::from_secs(seconds());
    in_own_process(test, 4 * time + 3 * TIMEOUT, |directory| {
        let seed = seed();
        println!("seed {seed}, {} locks", scene::lock_kind());
        let world = World {
            truth: Truth::new(),
            segment: directory.join("limits"),
            store: directory.join("store"),
        };
        let segment = Segment::create(&world.segment, &sets::declaration(0)).expect("a segment");
        let _store = start_store(&segment, &world.store);
        let onlooker = Child::fork(|| audit::look_on(&world));
        let mut supervisor = Supervisor::new(&world, &segment, seed);
        supervisor.rage_for(time);
        onlooker.succeed();
        supervisor.report();
    });
}
