//! The verbs, one a file.

pub mod completions;
pub mod create;
pub mod exec;
pub mod inspect;
pub mod list;
pub mod man;
pub mod recover;
pub mod remove;
pub mod reset;
pub mod simulate;

use std::path::{Path, PathBuf};

use crate::arguments::Verb;
use crate::exit::{ExitCode, Failure};
use crate::text::sanitise;

/// Does what was asked for.
pub fn run(verb: Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Create(create) => create.run(),
        Verb::Exec(exec) => exec.run(),
        Verb::List(list) => list.run(),
        Verb::Inspect(inspect) => inspect.run(),
        Verb::Recover(recover) => recover.run(),
        Verb::Reset(reset) => reset.run(),
        Verb::Remove(remove) => remove.run(),
        Verb::Simulate(simulate) => simulate.run(),
        Verb::Completions(completions) => completions.run(),
        Verb::Man(man) => man.run(),
    }
}

/// A path as it may be printed.
fn shown(path: &Path) -> String {
    sanitise::line(&path.to_string_lossy())
}

/// A path as JSON can say it: text.
fn as_text(path: &Path) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}
