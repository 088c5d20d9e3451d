//! The segments of a host, which a directory has a declaration for each of.

use std::io;
use std::path::{Path, PathBuf};

use shmlimit::Declaration;

use crate::command::shown;
use crate::exit::{ExitCode, Failure};
use crate::output;

/// Does something with each declaration in a directory, as far as that goes. What fails is reported; the exit code is that of
/// the first.
pub fn for_all(directory: &Path, each: impl Fn(&Path) -> Result<(), Failure>) -> Result<ExitCode, Failure> {
    let files = declarations_in(directory)?;
    if files.is_empty() {
        output::print(&format!("no declarations in {}\n", shown(directory)))?;
    }
    let mut code = ExitCode::Done;
    for file in files {
        if let Err(failure) = each(&file) {
            output::complain(&format!("{}: {}", shown(&file), failure.message));
            if code == ExitCode::Done {
                code = failure.code;
            }
        }
    }
    Ok(code)
}

/// Where the segment of a declaration is: as it says, or by the name of its file in a directory for those that do not.
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
        (None, ..) => Err(Failure::new(
            ExitCode::Usage,
            "it does not say where its segment is: add a path to it, or to the arguments the directory for those that \
             have none",
        )),
    }
}

/// The declarations of a directory, in the order of their names.
fn declarations_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed =
        |error: io::Error| Failure::of_system(&error, format_args!("cannot list {}", shown(directory)));
    let mut files = Vec::new();
    for entry in directory.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // Links lead to files where a container's configuration is mounted.
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}
