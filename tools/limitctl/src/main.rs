//! Creates, inspects, repairs and removes shmlimit segments.

mod arguments;
mod command;
mod exit;
mod output;
mod text;

use clap::Parser;

use arguments::Arguments;
use exit::{ExitCode, Failure};

fn main() -> std::process::ExitCode {
    let outcome = match Arguments::try_parse() {
        Ok(arguments) => command::run(arguments.verb),
        Err(answer) => answer_of_parser(&answer),
    };
    let code = outcome.unwrap_or_else(|failure| {
        output::complain(&failure.message);
        failure.code
    });
    code.into()
}

/// Help and version are answers; everything else that the parser says is a mistake in the arguments.
fn answer_of_parser(answer: &clap::Error) -> Result<ExitCode, Failure> {
    if answer.use_stderr() {
        // There is nowhere left to complain to where standard error is gone.
        let _ = answer.print();
        return Ok(ExitCode::Usage);
    }
    output::print(&answer.render().ansi().to_string())?;
    Ok(ExitCode::Done)
}
