//! A process that looks at a segment without locks, over and over, while others use it.

use std::path::Path;
use std::time::Duration;

use shmlimit::snapshot::{SegmentReader, SetSnapshot};

/// Looks again and again, with pauses, for as long as `goes_on` says so, and has each consistent copy of a set checked.
pub fn look_on(
    path: &Path,
    pause: Duration,
    mut goes_on: impl FnMut(&SegmentReader) -> bool,
    mut check: impl FnMut(&SetSnapshot),
) {
    let reader = SegmentReader::open(path).expect("readable");
    let mut whole = 0_u64;
    while goes_on(&reader) {
        let snapshot = reader.snapshot().expect("a copy");
        for set in &snapshot.sets {
            assert!(!set.poisoned, "poisoned: {set:?}");
            if !set.torn {
                whole += 1;
                check(set);
            }
        }
        std::thread::sleep(pause);
    }
    assert!(whole > 0, "every copy was torn");
    println!("{whole} whole copies of a set were looked at");
}
