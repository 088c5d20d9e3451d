//! What is in a directory.

use std::fs;
use std::path::Path;

/// The names of all that is in a directory, in order.
pub fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort_unstable();
    names
}
