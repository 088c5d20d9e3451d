//! What the benches have in common: the floor, the operations, and processes that work side by side.

pub mod contention;
pub mod floor;
pub mod operations;
pub mod processes;

use std::path::Path;

/// Where the files lie: in memory, as anyone who cares about speed will have them.
pub fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .expect("a directory")
}

/// The tenth percentile. For times, that is roughly what is measured when no other process wants the machine.
pub fn tenth_percentile(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}
