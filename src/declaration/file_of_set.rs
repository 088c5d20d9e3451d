//! Declarations of a directory that holds a file for each set.

use std::path::Path;

use super::Declaration;
use crate::error::{DeclarationError, Error, OpenError};
use crate::shm::file::set_directory::{file_name, named_directory};

impl Declaration {
    /// Checks that this can be the declaration of a directory, which may say less than that of a single file.
    pub(crate) fn check_for_directory(&self) -> Result<(), DeclarationError> {
        let Some(checkpoint) = self.segment.checkpoint() else {
            return Ok(());
        };
        match named_directory(checkpoint.path()) {
            Ok(Some(_)) => Ok(()),
            Ok(None) | Err(_) => Err(DeclarationError::Value {
                place: "segment / checkpoint / path".to_owned(),
                given: format!("{:?}", checkpoint.path()),
                problem: "is not a directory, but the segment is one, with a file for each set: write the path of a \
                          directory, ending in `/`"
                    .to_owned(),
            }),
        }
    }

    /// The declaration of the file that one set has in a directory. Only files of sets that hosts share have room for
    /// leases: otherwise the first such set would change the declaration of every other file.
    pub(crate) fn in_directory(&self, set: &str) -> Self {
        let mut alone = self.only(set);
        let mut limits = alone.sets.iter().flat_map(|set| &set.limits);
        if limits.all(|limit| limit.fleet.is_none()) {
            alone.fleet = None;
        }
        alone.segment.checkpoint = alone.segment.checkpoint.map(|it| it.in_directory(set));
        alone
    }

    /// Checks that the file with this declaration, in a directory, has the set that it is named after, and no other.
    pub(crate) fn ensure_of_file(&self, path: &Path) -> Result<(), Error> {
        let names: Vec<&str> = self.sets.iter().map(|set| set.name.as_str()).collect();
        let why = match names[..] {
            [name] if path.file_name() == Some(file_name(name).as_ref()) => return Ok(()),
            [name] => format!(
                "it has the set `{name}`, whose file in this directory is called {}: rename it, or move it out",
                file_name(name)
            ),
            _ => format!(
                "it has {} sets, and each file in this directory has one: move it out",
                names.len()
            ),
        };
        Err(Error::Open(OpenError::Misplaced {
            path: path.to_owned(),
            why,
        }))
    }

    /// The declarations of all files of a directory in one, without the options on which they differ.
    pub(crate) fn joined<'a>(files: impl Iterator<Item = &'a Self>) -> Self {
        let mut joined: Option<Self> = None;
        for file in files {
            match &mut joined {
                None => joined = Some(file.clone()),
                Some(joined) => {
                    joined.sets.extend(file.sets.iter().cloned());
                    // Files may name different stores while another is being declared. A declaration has one.
                    joined.fleet = joined.fleet.take().or_else(|| file.fleet.clone());
                    let (ours, theirs) = (&mut joined.segment, &file.segment);
                    ours.mode = shared(ours.mode, theirs.mode);
                    ours.participants = shared(ours.participants, theirs.participants);
                    ours.clock = shared(ours.clock, theirs.clock);
                    ours.lock = shared(ours.lock, theirs.lock);
                    ours.version = shared(ours.version, theirs.version);
                }
            }
        }
        joined.unwrap_or_default()
    }
}

fn shared<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<T> {
    if one == other { one } else { None }
}
