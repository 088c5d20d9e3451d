//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use shmlimit::OpenOptions;

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
use crate::exit::ExitCode;

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

/// A time such as `500ms`; a bare number counts seconds, as in flock and timeout.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text
        .chars()
        .all(|character| character.is_ascii_digit() || character == '.')
        && let Ok(seconds) = text.parse()
    {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

/// Which files a verb that writes accepts.
#[derive(Args, Clone, Copy, Debug)]
pub struct Trust {
    /// Accept a file that someone else may have planted
    ///
    /// That is one that anyone may write, or that belongs to another user in a directory that others may write.
    /// Anyone who can write the file can bring this program down.
    #[arg(long)]
    trust_any_owner: bool,
}

/// How a verb attaches to a segment.
#[derive(Args, Clone, Copy, Debug)]
pub struct Access {
    #[command(flatten)]
    trust: Trust,

    /// How long to wait for the lock of a set, such as 500ms or 5s
    ///
    /// Locks are held for well under a microsecond, so
    /// only a process that is stopped or writes a core dump is ever waited for.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    lock_timeout: Duration,
}

impl Trust {
    pub fn options(self) -> OpenOptions {
        OpenOptions::new().trust_any_owner(self.trust_any_owner)
    }
}

impl Access {
    pub fn options(self) -> OpenOptions {
        self.trust.options().lock_timeout(self.lock_timeout)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_bare_number_counts_seconds() {
        for (text, millis) in [
            ("0", 0),
            ("2", 2000),
            ("0.25", 250),
            ("250ms", 250),
            ("1m 1s", 61_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", ".", "-1", "1e3", "inf", "soon", "99999999999999999999999"] {
            assert!(duration(text).is_err(), "{text}");
        }
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
