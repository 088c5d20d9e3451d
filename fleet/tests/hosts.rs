//! Segments, their refreshers and a real store: what a fleet admits is what was declared, whatever dies.

mod scene;

use std::time::{Duration, Instant};

use scene::{DEADLINE, PASSWORD, Server, patient, server_program, wait_for};
use shmlimit::{Declaration, FleetLease, Limit, LimitSet, Outcome, RefusalReason, Segment, SetDeclaration};
use shmlimit_fleet::{Credentials, Refresher};

const LONG: Duration = Duration::from_secs(360_000);

/// A "host": a segment of its own with a thread that asks the store.
struct Host {
    _directory: tempfile::TempDir,
    segment: Segment,
    refresher: Option<Refresher>,
}

fn declaration(url: &str, limit: Limit) -> Declaration {
    Declaration::new()
        .fleet_url(url)
        .add_set(SetDeclaration::new("api").add_limit(limit))
}

impl Host {
    fn start(declaration: &Declaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        let segment = Segment::create(path, declaration).expect("a segment");
        let mut host = Self {
            _directory: directory,
            segment,
            refresher: None,
        };
        host.start_refresher();
        host
    }

    fn start_refresher(&mut self) {
        let credentials = Credentials::none().with_password(PASSWORD);
        let refresher = Refresher::start_with(&self.segment, credentials, patient());
        self.refresher = Some(refresher.expect("a thread"));
    }

    fn set(&self) -> LimitSet {
        self.segment.set("api").expect("declared")
    }
}

/// Takes one unit, or says why not.
fn take(set: &LimitSet) -> Result<(), RefusalReason> {
    let request = set.request().with("units", 1).expect("declared");
    match set.try_acquire(&request).expect("a decision") {
        Outcome::Admitted(_) => Ok(()),
        Outcome::Refused(refusal) => Err(refusal.reason()),
    }
}

fn units(capacity: u64, window: Duration, burst: u64, lease: Duration) -> Limit {
    Limit::rate("units", capacity, window)
        .burst(burst)
        .fleet(FleetLease::new("org/units").lease(lease))
}

#[test]
fn two_hosts_spend_one_burst_between_them() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let limit = units(5_000, LONG, 5_000, Duration::from_secs(30));
    let declaration = declaration(&server.url(), limit);
    let hosts = [Host::start(&declaration), Host::start(&declaration)];
    let sets = hosts.each_ref().map(Host::set);
    let mut admitted = [0_u64; 2];
    // What is left in the end is leased to one or the other, and asked back until all is spent.
    wait_for("all to be spent", || {
        for (set, admitted) in sets.iter().zip(&mut admitted) {
            for _ in 0..100 {
                match take(set) {
                    Ok(()) => *admitted += 1,
                    Err(reason) => {
                        assert_eq!(reason, RefusalReason::Lease);
                        break;
                    }
                }
            }
        }
        admitted.iter().sum::<u64>() >= 5_000
    });
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        for (set, admitted) in sets.iter().zip(&mut admitted) {
            *admitted += u64::from(take(set).is_ok());
        }
    }
    assert_eq!(admitted.iter().sum::<u64>(), 5_000, "{admitted:?}");
    assert!(admitted.iter().all(|&units| units > 500), "{admitted:?}");
    let trips: u64 = hosts
        .iter()
        .filter_map(|host| host.refresher.as_ref())
        .map(|refresher| refresher.counts().round_trips)
        .sum();
    println!("{admitted:?} in {trips} round trips");
    assert!(Instant::now() - begun < DEADLINE);
}
