//! `limitctl man`.

use clap::{Args, Command};

use crate::exit::{ExitCode, Failure};
use crate::output;

/// Print the manual page
///
/// As roff, for example: limitctl man inspect | man -l -
#[derive(Args, Debug)]
pub struct Man {
    /// The verb to print the page of
    ///
    /// By default, the page of limitctl itself, which lists the verbs. For a verb that is part of another, name both:
    /// `limitctl man fleet drain`.
    verb: Vec<String>,
}

impl Man {
    pub fn run(self, mut command: Command) -> Result<ExitCode, Failure> {
        command.build();
        for verb in self.verb {
            let Some(page) = command.find_subcommand(&verb) else {
                return Err(Failure::usage(format!("there is no verb `{verb}`")));
            };
            command = page.clone();
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(|error| Failure::problem(format!("cannot write the page: {error}")))?;
        output::print_bytes(&page)?;
        Ok(ExitCode::DONE)
    }
}
