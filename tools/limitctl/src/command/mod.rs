//! The verbs, one per file. Verbs of one kind share a directory, whose `mod.rs` lists them.

/// Declares `Verb`, an enum of the verbs in these files.
macro_rules! verbs {
    [$($file:ident::$verb:ident),+ $(,)?] => {
        #[derive(Debug, clap::Subcommand)]
        pub enum Verb {
            $($verb($file::$verb)),+
        }

        impl Verb {
            pub fn run(self) -> Result<crate::exit::ExitCode, crate::exit::Failure> {
                match self {
                    $(Self::$verb(verb) => verb.run()),+
                }
            }
        }
    };
}

mod change;
mod completions;
mod exec;
mod fleet;
mod man;
mod segment;
mod selftest;
mod simulate;
mod view;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::exit::{ExitCode, Failure};

/// Creates, inspects, repairs and removes shmlimit segments
///
/// A segment is a file, usually in /dev/shm, that holds sets of limits shared by every process that has it open.
#[derive(Debug, Parser)]
#[command(name = "limitctl", version, after_long_help = ExitCode::EXPLANATION)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    #[command(flatten)]
    Segment(segment::Verb),
    Exec(exec::Exec),
    #[command(flatten)]
    View(view::Verb),
    Fleet(fleet::Fleet),
    #[command(flatten)]
    Change(change::Verb),
    Simulate(simulate::Simulate),
    Selftest(selftest::Selftest),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.verb {
            Verb::Segment(verb) => verb.run(),
            Verb::Exec(exec) => exec.run(),
            Verb::View(verb) => verb.run(),
            Verb::Fleet(fleet) => fleet.run(),
            Verb::Change(verb) => verb.run(),
            Verb::Simulate(simulate) => simulate.run(),
            Verb::Selftest(selftest) => selftest.run(),
            Verb::Completions(completions) => completions.run(&mut Self::command()),
            Verb::Man(man) => man.run(Self::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_verb_and_every_argument_has_short_and_long_help() {
        for verb in Arguments::command().get_subcommands() {
            let name = verb.get_name();
            assert!(
                verb.get_about().is_some() && verb.get_long_about().is_some(),
                "{name}"
            );
            for argument in verb.get_arguments() {
                let id = argument.get_id();
                assert!(argument.get_help().is_some(), "{name} {id}");
                assert!(argument.get_long_help().is_some(), "{name} {id}");
            }
        }
    }
}
