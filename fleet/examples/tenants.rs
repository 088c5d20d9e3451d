//! Two hosts share each tenant's quota: what one of them admits, the other does not.
//!
//! ```sh
//! redis-server --port 6379 &
//! cargo run --package shmlimit-fleet --example tenants -- redis://127.0.0.1:6379
//! ```
//!
//! The password, if the store wants one, comes from `SHMLIMIT_FLEET_PASSWORD`. Each "host" is a segment of its own, as it
//! would be in the shared memory of another machine.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use shmlimit::declare::FleetLease;
use shmlimit::{Algorithm, Declaration, Keyed, Limit, Segment, SetDeclaration};
use shmlimit_fleet::Refresher;

fn main() -> ExitCode {
    let url = std::env::args().nth(1);
    match run(url.as_deref().unwrap_or("redis://127.0.0.1:6379")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens the segment of a host, with the thread that asks the store.
fn host(path: &Path, declaration: &Declaration) -> Result<(Segment, Refresher), Box<dyn std::error::Error>> {
    let segment = Segment::open_or_create(path, declaration)?;
    let refresher = Refresher::start(&segment)?;
    Ok((segment, refresher))
}

fn run(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    // A hundred requests a day of each tenant, on all hosts together. Nothing is admitted before the store has
    // answered, so that no tenant ever gets more; whoever wants more waits for the answer, at most for a second.
    let shared = FleetLease::new("example/tenants/requests")
        .unleased(0)
        .cold_wait(Duration::from_secs(1));
    let day = Duration::from_secs(24 * 3600);
    let limit = Limit::calls("requests", 100, day)
        .algorithm(Algorithm::FixedWindow)
        .fleet(shared);
    let tenants = SetDeclaration::new("tenants")
        .keyed(Keyed::new(1_000))
        .add_limit(limit);
    let declaration = Declaration::new().version(1).fleet_url(url).add_set(tenants);

    let directory = tempfile::tempdir()?;
    let hosts = ["first", "second"].map(|name| host(&directory.path().join(name), &declaration));
    for tenant in ["acme", "globex"] {
        let mut admitted = 0;
        for host in &hosts {
            let (segment, _) = host.as_ref().map_err(ToString::to_string)?;
            let set = segment.set("tenants")?;
            let request = set.request().for_key(tenant)?;
            admitted += (0..100)
                .filter(|_| request.check().is_ok_and(|it| it.is_admitted()))
                .count();
        }
        println!("{tenant}: {admitted} of 200 requests were admitted by two hosts, of a quota of 100");
    }
    Ok(())
}
