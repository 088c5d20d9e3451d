//! What the benches share: the floor, the operations, and processes that work side by side.

pub mod floor;
pub mod operations;
pub mod processes;

use std::path::Path;

/// Where the files lie: in memory, as users of speed will have them.
pub fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .expect("a folder")
}

/// The middle of what was measured.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        values[middle - 1].midpoint(values[middle])
    }
}
