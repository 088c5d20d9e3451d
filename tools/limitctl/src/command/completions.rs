//! `limitctl completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::exit::{ExitCode, Failure};
use crate::output;

/// Print completions for a shell
///
/// Prints a script that teaches a shell to complete limitctl's arguments, for example:
/// limitctl completions bash > ~/.local/share/bash-completion/completions/limitctl
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    ///
    /// The shell that is to run the script.
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "limitctl", &mut script);
        output::print_bytes(&script)?;
        Ok(ExitCode::Done)
    }
}
