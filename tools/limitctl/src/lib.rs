//! Creates, inspects, repairs and removes shmlimit segments, and tries out limits on traces.
//!
//! Only these files contain unsafe code:
//!
//! - `job/front.rs` (forks the keeper; ends by a signal)
//! - `job/inherited.rs` (signals before the runtime starts, and between fork and exec)
//! - `job/keeper.rs` (what a command does between fork and exec)
//! - `job/processes.rs` (signals by number, including real-time ones)
//! - `main.rs` (runs a function before the runtime starts)
//! - `selftest/child.rs` (forks)

mod arguments;
mod best;
mod bounds;
mod change;
mod command;
mod diagnosis;
mod exit;
mod job;
mod live;
mod output;
mod reveal;
mod screen;
mod selftest;
mod set_files;
mod simulation;
mod state;
mod store;
mod text;
mod uninterrupted;
mod web;

use std::ffi::OsString;

use clap::Parser;

pub use bounds::snapshot_with_bounds;
use command::Arguments;
use exit::{ExitCode, Failure};
pub use job::note_signals;
pub use live::exposition::{Format, exposition};

/// Runs the program with these arguments, the first of which is its name, and returns the exit code.
///
/// Prints to standard output and standard error; `exec` replaces the process or ends as its command did. The program
/// calls this, and so do the console scripts of packages that include it.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let outcome = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments.run(),
        Err(answer) => answer_of_parser(&answer),
    };
    let code = outcome.unwrap_or_else(|failure| {
        output::complain(&failure.message);
        failure.code
    });
    code.number()
}

/// Help and version are results; everything else that the parser returns is a mistake in the arguments.
fn answer_of_parser(answer: &clap::Error) -> Result<ExitCode, Failure> {
    if answer.use_stderr() {
        let text = answer.render().to_string();
        let message = match text.strip_prefix("error: ") {
            Some(message) => message.trim_end().to_owned(),
            // This is the help text, which the parser returns for a call without arguments.
            None => format!("there is no verb\n\n{}", text.trim_end()),
        };
        return Err(Failure::usage(message));
    }
    output::print(&answer.render().ansi().to_string())?;
    Ok(ExitCode::DONE)
}
