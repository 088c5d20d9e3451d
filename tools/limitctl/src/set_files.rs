//! The files of segments: single files, and those of directories with a file for each set.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use shmlimit::snapshot::SegmentReader;
use shmlimit::{Error, OpenError};

/// The files of a directory with a file for each set. Returns `None` if it is not such a directory.
pub fn sets_in(directory: &Path) -> Option<Vec<PathBuf>> {
    let files = SegmentReader::files_of_sets(directory).ok()??;
    let is_named = directory.extension().is_some_and(|extension| extension == "d");
    let holds_sets = || {
        !matches!(
            SegmentReader::open(directory),
            Err(Error::Open(OpenError::Misplaced { .. }))
        )
    };
    (!files.is_empty() && (is_named || holds_sets())).then_some(files)
}

/// The files that no process is attached to, if processes are attached to any of the others.
pub fn undeclared(files: &[PathBuf]) -> Vec<PathBuf> {
    let is_in_use = |file: &PathBuf| {
        let snapshot = SegmentReader::open(file).and_then(|reader| reader.snapshot());
        // In case of doubt, the file counts as in use.
        snapshot.map_or(true, |snapshot| snapshot.participants.iter().any(|it| it.alive))
    };
    let (in_use, unused): (Vec<_>, Vec<_>) = files.iter().cloned().partition(is_in_use);
    if in_use.is_empty() { Vec::new() } else { unused }
}

/// Identifies the file at a path, or the files of a directory with a file for each set.
pub type FileIdentities = Vec<(u64, u64)>;

/// Identifies what is at a path. Returns `None` if there is no file.
pub fn identity(path: &Path) -> Option<FileIdentities> {
    let files = match SegmentReader::files_of_sets(path) {
        Ok(Some(files)) => files,
        Ok(None) => vec![path.to_owned()],
        Err(_) => return None,
    };
    let files = files.iter().filter_map(|file| fs::symlink_metadata(file).ok());
    let identity: FileIdentities = files.map(|metadata| (metadata.dev(), metadata.ino())).collect();
    (!identity.is_empty()).then_some(identity)
}
