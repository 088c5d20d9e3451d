//! `limitctl completions`.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::{ExitCode, Failure};
use crate::output;

/// Print completions for a shell
///
/// For example: limitctl completions bash > ~/.local/share/bash-completion/completions/limitctl
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    ///
    /// Its manual says where the script belongs.
    shell: Shell,
}

impl Completions {
    pub fn run(self, command: &mut Command) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "limitctl", &mut script);
        output::print_bytes(&script)?;
        Ok(ExitCode::DONE)
    }
}
