//! What the time is read from. Whatever that is, a caller that waits for as long as a refusal says is admitted.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use crate::scene::process::{Child, TIMEOUT, in_own_process};
use shmlimit::declare::ClockSource;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Error, Limit, LimitSet, OpenError, Segment, SetDeclaration};

fn declared(clock: ClockSource) -> Declaration {
    let calls = Limit::calls("calls", 4, Duration::from_millis(1)).burst(1);
    Declaration::new()
        .clock(clock)
        .add_set(SetDeclaration::new("set").add_limit(calls))
}

/// Asks until `refusals` requests were refused. After each of these it waits for its `retry_after`, and must be admitted.
fn wait_after_refusals(set: &LimitSet, clock: ClockSource, refusals: usize) {
    let (mut refused, request) = (0, set.request());
    while refused < refusals {
        let checked = request.check().expect("works");
        if checked.is_admitted() {
            continue;
        }
        refused += 1;
        let wait = checked.retry_after().expect("time helps");
        // Spins, because a sleep would last longer.
        let begin = Instant::now();
        while begin.elapsed() < wait {
            spin_loop();
        }
        let again = request.check().expect("works");
        assert!(
            again.is_admitted(),
            "{clock:?}: told to wait for another {:?}",
            again.retry_after()
        );
    }
}

#[test]
fn a_caller_that_waits_for_as_long_as_it_was_told_is_admitted() {
    for clock in [ClockSource::Counter, ClockSource::System] {
        let directory = tempfile::tempdir().expect("a directory");
        let segment = Segment::create(directory.path().join("limits"), &declared(clock)).expect("created");
        wait_after_refusals(&segment.set("set").expect("declared"), clock, 200);
    }
}

#[test]
fn a_forked_child_goes_on_by_the_counter_of_its_parent() {
    in_own_process(
        "clock_sources::a_forked_child_goes_on_by_the_counter_of_its_parent",
        TIMEOUT,
        |directory| {
            let clock = ClockSource::Counter;
            let segment = Segment::create(directory.join("limits"), &declared(clock)).expect("created");
            let set = segment.set("set").expect("declared");
            // Repeated until the processor's counter is used.
            wait_after_refusals(&set, clock, 200);
            Child::fork(|| wait_after_refusals(&set, clock, 200)).succeed();
            wait_after_refusals(&set, clock, 20);
        },
    );
}

#[test]
fn a_segment_keeps_the_clock_that_it_was_created_with() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let segment = Segment::create(&path, &declared(ClockSource::System)).expect("created");
    assert_eq!(segment.declaration().segment().clock(), ClockSource::System);
    let reader = SegmentReader::open(&path).expect("opened");
    assert_eq!(reader.declaration().segment().clock(), ClockSource::System);
    let text = reader.declaration().to_toml().expect("valid");
    assert!(text.contains("clock = \"system\""), "{text}");

    let Err(Error::Open(OpenError::ConfigMismatch { differences, .. })) =
        Segment::open_or_create(&path, &declared(ClockSource::Counter))
    else {
        panic!("no file changes its clock");
    };
    let paths: Vec<_> = differences
        .iter()
        .map(|difference| difference.path().to_owned())
        .collect();
    assert_eq!(paths, ["segment / clock"]);
    // If none is declared, the file's is right.
    let unsaid = Declaration::new().add_set(declared(ClockSource::System).sets()[0].clone());
    Segment::open_or_create(&path, &unsaid).expect("the clock is not declared, so that it does not differ");
}
