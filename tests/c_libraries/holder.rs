//! `holder SEGMENT SCRIPT`: waits for a place, and holds it while the shell runs the script.

use std::error::Error;
use std::process::{Command, ExitCode};

use shmlimit::Segment;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match hold(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holder: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hold(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [segment, script] = arguments else {
        return Err("usage: holder SEGMENT SCRIPT".into());
    };
    let jobs = Segment::open(segment)?.set("jobs")?;
    let _place = jobs.request().acquire(None)?.into_result()?;
    let status = Command::new("sh").args(["-c", script]).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(status.to_string().into())
    }
}
