//! From nothing to a permit, a refusal and a wait.
//!
//! ```sh
//! cargo run --example quick_start
//! ```

use std::process::ExitCode;
use std::time::Duration;

use shmlimit::{Algorithm, Declaration, Limit, Segment, SetDeclaration};

fn main() -> ExitCode {
    if let Err(error) = run() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?; // for an application, a path such as /dev/shm/api.limits
    let declaration = Declaration::new().add_set(
        SetDeclaration::new("api")
            .add_limit(
                Limit::calls("requests", 3, Duration::from_secs(1)).algorithm(Algorithm::SlidingWindow),
            )
            .add_limit(Limit::rate("tokens", 1_000, Duration::from_secs(1)).algorithm(Algorithm::TokenBucket))
            .add_limit(Limit::concurrency("in_flight", 2)),
    );
    // Any number of processes may do this at once: one of them creates the file, and the others open it.
    let segment = Segment::open_or_create(directory.path().join("api.limits"), &declaration)?;
    let api = segment.set("api")?;
    let request = api.request().with("tokens", 200)?; // and one request, and one place in flight

    // All or nothing, in one step. What is reserved but not used comes back.
    let mut permit = request.try_permit()?;
    permit.settle([("tokens", 50)])?;
    println!("admitted, and 150 tokens came back");

    // A refusal is a value that says which limit refused, why, and when to retry at the earliest.
    let _second = request.try_permit()?;
    match request.try_acquire()?.into_result() {
        Ok(_) => println!("admitted a third one"),
        Err(refusal) => println!("refused by {}", refusal.binding().unwrap_or("none")),
    }

    // Or wait in the queue, which all processes share: here, until the first permit's place is free.
    drop(permit);
    let permit = request.acquire(Duration::from_secs(30))?.into_result()?;
    println!("admitted after the first had ended");
    drop(permit);
    Ok(())
}
