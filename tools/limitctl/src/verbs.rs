//! The verbs of the command line.

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::command::change::apply::Apply;
use crate::command::change::assign::Assign;
use crate::command::change::edit::Edit;
use crate::command::change::reset::Reset;
use crate::command::completions::Completions;
use crate::command::exec::Exec;
use crate::command::fleet::Fleet;
use crate::command::man::Man;
use crate::command::segment::checkpoint::Checkpoint;
use crate::command::segment::create::Create;
use crate::command::segment::list::List;
use crate::command::segment::recover::Recover;
use crate::command::segment::remove::Remove;
use crate::command::selftest::Selftest;
use crate::command::simulate::Simulate;
use crate::command::view::doctor::Doctor;
use crate::command::view::export::Export;
use crate::command::view::inspect::Inspect;
use crate::command::view::keys::Keys;
use crate::command::view::serve::Serve;
use crate::command::view::show::Show;
use crate::command::view::top::Top;
use crate::command::view::watch::Watch;
use crate::exit::{ExitCode, Failure};

/// Creates, inspects, repairs and removes shmlimit segments
///
/// A segment is a file, usually in /dev/shm, that holds sets of limits shared by every process that has it open.
#[derive(Debug, Parser)]
#[command(name = "limitctl", version, after_long_help = ExitCode::EXPLANATION)]
pub struct Arguments {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    Create(Create),
    Exec(Exec),
    List(List),
    Inspect(Inspect),
    Keys(Keys),
    Show(Show),
    Doctor(Doctor),
    Selftest(Selftest),
    Top(Top),
    Watch(Watch),
    Export(Export),
    Serve(Serve),
    Fleet(Fleet),
    Recover(Recover),
    Reset(Reset),
    Checkpoint(Checkpoint),
    Apply(Apply),
    Edit(Edit),
    Assign(Assign),
    Remove(Remove),
    Simulate(Simulate),
    Completions(Completions),
    Man(Man),
}

impl Verb {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Create(create) => create.run(),
            Self::Exec(exec) => exec.run(),
            Self::List(list) => list.run(),
            Self::Inspect(inspect) => inspect.run(),
            Self::Keys(keys) => keys.run(),
            Self::Show(show) => show.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Selftest(selftest) => selftest.run(),
            Self::Top(top) => top.run(),
            Self::Watch(watch) => watch.run(),
            Self::Export(export) => export.run(),
            Self::Serve(serve) => serve.run(),
            Self::Fleet(fleet) => fleet.run(),
            Self::Recover(recover) => recover.run(),
            Self::Reset(reset) => reset.run(),
            Self::Checkpoint(checkpoint) => checkpoint.run(),
            Self::Apply(apply) => apply.run(),
            Self::Edit(edit) => edit.run(),
            Self::Assign(assign) => assign.run(),
            Self::Remove(remove) => remove.run(),
            Self::Simulate(simulate) => simulate.run(),
            Self::Completions(completions) => completions.run(&mut Arguments::command()),
            Self::Man(man) => man.run(Arguments::command()),
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
