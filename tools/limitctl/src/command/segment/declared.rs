//! The segments of a host, from a directory that holds a declaration for each of them.

use std::io;
use std::path::{Path, PathBuf};

use shmlimit::Declaration;

use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::human;

/// Calls `each` with every declaration in a directory, even if some fail. Reports the failures, and returns the exit
/// code of the first.
pub fn for_all(directory: &Path, each: impl Fn(&Path) -> Result<(), Failure>) -> Result<ExitCode, Failure> {
    let files = declarations_in(directory)?;
    if files.is_empty() {
        output::print(&format!("no declarations in {}\n", human::path(directory)))?;
    }
    let mut code = ExitCode::DONE;
    for file in files {
        if let Err(failure) = each(&file) {
            output::complain(&format!("{}: {}", human::path(&file), failure.message));
            if code == ExitCode::DONE {
                code = failure.code;
            }
        }
    }
    Ok(code)
}

/// The path of a declaration's segment: the declared one, or one in a directory, named after the declaration's file.
pub fn segment_of(
    file: &Path,
    declaration: &Declaration,
    directory: Option<&Path>,
) -> Result<PathBuf, Failure> {
    match (declaration.segment().path(), directory, file.file_stem()) {
        (Some(declared), _, _) => Ok(declared.to_owned()),
        (None, Some(directory), Some(name)) => {
            let mut name = name.to_owned();
            name.push(".limits");
            Ok(directory.join(name))
        }
        (None, ..) => Err(Failure::usage(
            "it does not say where its segment is: add a path to it, or to the arguments the directory for those that \
             have none",
        )),
    }
}

/// The declarations in a directory, sorted by name.
fn declarations_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed =
        |error: io::Error| Failure::of_system(&error, format_args!("cannot list {}", human::path(directory)));
    let mut files = Vec::new();
    for entry in directory.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // This follows links, because a container's mounted configuration consists of links.
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}
