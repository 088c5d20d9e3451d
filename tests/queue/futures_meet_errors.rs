//! Futures that wait learn what has gone wrong with their segment, and do not wait for ever.

use std::thread;
use std::time::Duration;

use crate::scene;
use crate::scene::process::{TIMEOUT, eventually, in_own_process};
use shmlimit::{Error, Limit, Segment, SegmentError, SetDeclaration};

#[test]
fn a_future_that_waits_in_a_segment_that_is_retired_ends_with_that() {
    let test = "futures_meet_errors::a_future_that_waits_in_a_segment_that_is_retired_ends_with_that";
    in_own_process(test, TIMEOUT, |directory| {
        let set = SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1));
        let declaration = scene::declaration().add_set(set);
        let segment = Segment::create(directory.join("limits"), &declaration).expect("a segment");
        let set = segment.set("set").expect("declared");
        let _held = set.request().try_acquire().expect("works");
        thread::scope(|scope| {
            let waiting = |timeout: Option<Duration>| {
                let set = &set;
                scope.spawn(move || smol::block_on(set.request().acquire_async(timeout)).map(drop))
            };
            // The second is behind the first, and for neither is there an instant at which to check on it.
            let futures = [waiting(None), waiting(Some(10 * TIMEOUT))];
            eventually("they wait", || {
                let snapshot = segment.snapshot().expect("a snapshot");
                snapshot.sets[0].tickets.len() == 2
            });
            segment.retire();
            for future in futures {
                let outcome = future.join().expect("no panic");
                assert!(
                    matches!(outcome, Err(Error::Segment(SegmentError::Removed { .. }))),
                    "{outcome:?}"
                );
            }
        });
    });
}
