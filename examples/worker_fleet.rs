//! Four worker processes share a limit, and a fifth is killed while it holds the only place of another.
//! `cargo run --example worker_fleet` starts them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

use shmlimit::{Declaration, Segment};

const DECLARATION: &str = r#"
    set = [
        { name = "mail", limit = [{ name = "sent", kind = "calls", capacity = 100, window = "1h", algorithm = "fixed_window" }] },
        { name = "reports", limit = [{ name = "in_flight", kind = "concurrency", capacity = 1 }] },
    ]
"#;

fn main() -> ExitCode {
    let done = match &std::env::args().collect::<Vec<_>>()[..] {
        [_, set, path] => work(set, path),
        _ => supervise(),
    };
    done.err().map_or(ExitCode::SUCCESS, |error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn supervise() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("fleet.limits");
    let segment = Segment::create(&path, &Declaration::from_toml(DECLARATION)?)?;
    let start = |set: &str| {
        let mut worker = Command::new(std::env::current_exe()?);
        worker.arg(set).arg(&path).stdout(Stdio::piped()).spawn()
    };
    let workers = (0..4).map(|_| start("mail")).collect::<Result<Vec<Child>, _>>()?;
    let mut sent = 0;
    for worker in workers {
        sent += worker.wait_with_output()?.stdout.lines().count();
    }
    println!("four workers sent {sent} messages");
    let mut worker = start("reports")?;
    BufReader::new(worker.stdout.take().ok_or("no output")?).read_line(&mut String::new())?; // it has the place
    worker.kill()?; // SIGKILL: it cleans nothing up
    let reports = segment.set("reports")?;
    let _permit = reports.request().acquire(None)?.into_result()?;
    println!("the place of the killed worker came back");
    Ok(worker.wait().map(drop)?)
}

fn work(set: &str, path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let segment = Segment::open(path)?;
    let set = segment.set(set)?;
    while let Ok(_permit) = set.request().try_acquire()?.into_result() {
        println!("admitted");
        if set.name() == "reports" {
            std::thread::park(); // until it is killed
        }
    }
    Ok(())
}
