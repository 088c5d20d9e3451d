//! What the benches share: the floor, the operations, and processes that work side by side.

pub mod contention;
pub mod floor;
pub mod operations;
pub mod processes;

use std::path::Path;

/// Where the files lie: in memory, as users of speed will have them.
pub fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .expect("a directory")
}

/// The value below which a tenth of what was measured lies: of times, what is met when no other process wants the
/// machine.
pub fn tenth_percentile(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}
