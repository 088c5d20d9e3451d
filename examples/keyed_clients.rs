//! Each client has its own limit, and one of them has a different capacity from the rest.
//!
//! ```sh
//! cargo run --example keyed_clients
//! ```

use std::process::ExitCode;
use std::time::Duration;

use shmlimit::{Algorithm, Declaration, Keyed, Limit, Segment, SetDeclaration};

fn main() -> ExitCode {
    if let Err(error) = run() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let hour = Duration::from_secs(3600);
    let declaration = Declaration::new().add_set(
        SetDeclaration::new("clients")
            .keyed(Keyed::new(1_000).overrides(true)) // at most this many clients at a time
            .add_limit(Limit::calls("requests", 2, hour).algorithm(Algorithm::FixedWindow)),
    );
    let segment = Segment::open_or_create(directory.path().join("clients.limits"), &declaration)?;
    let clients = segment.set("clients")?;
    let request = clients.request();

    clients.key("partner")?.override_capacity("requests", 4)?; // until it is cleared, in all processes
    for client in ["acme", "globex", "partner"] {
        let mut admitted = 0;
        while request.for_key(client)?.check()?.is_admitted() {
            admitted += 1;
        }
        println!("{client}: {admitted} admitted");
    }

    // The client that uses the most, found without a lock, as `limitctl keys` does it.
    let mut busiest = (0, String::new());
    segment.key_snapshots("clients", |client| {
        let name = client.key.text().unwrap_or_default().to_owned();
        busiest = busiest.clone().max((client.admitted, name));
    })?;
    println!("most was admitted of {}", busiest.1);
    Ok(())
}
