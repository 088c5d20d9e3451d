//! Everything that a process may do with a segment. It does not matter what the answers are, only that there is one.

use std::fmt::Write;
use std::time::Duration;

use shmlimit::fleet::{LeaseReply, LeaseRequest, StoreProblem};
use shmlimit::snapshot::SegmentSnapshot;
use shmlimit::{Error, LimitSet, Outcome, Permit, Segment, SegmentError};

use super::specimen::{
    KEY, NAMED_KEY, change_limits, key_of, take_as_declared, take_by_key, try_set, wait_for_set,
};

/// A permit, or nothing.
pub fn acquire(set: &LimitSet) -> Result<Permit<'_>, Option<Error>> {
    match try_set(set) {
        Ok(Outcome::Admitted(permit)) => Ok(permit),
        Ok(Outcome::Refused(_)) => Err(None),
        Err(error) => Err(Some(error)),
    }
}

/// Reads every part of a snapshot.
pub fn inspect(snapshot: Result<SegmentSnapshot, Error>) {
    match snapshot {
        Ok(snapshot) => {
            for set in &snapshot.sets {
                assert!(set.holds.len() as u64 <= set.hold_capacity);
                assert!(set.holds.iter().all(|hold| hold.index < set.hold_capacity));
                let mut labels = set.holds.iter().filter_map(|hold| hold.label.as_ref());
                assert!(labels.all(|label| label.len() <= 64));
            }
            let waiting = snapshot.sets.iter().map(|set| set.tickets.len() as u64);
            let capacities = snapshot.sets.iter().map(|set| set.waiter_capacity);
            assert!(
                waiting
                    .zip(capacities)
                    .all(|(waiting, capacity)| waiting <= capacity)
            );
            assert!(snapshot.participants.len() as u64 <= snapshot.participant_capacity);
            read(&snapshot);
        }
        Err(error) => check(Some(error)),
    }
}

/// Operates on every set, with permits that were taken before. `is_described` says that the descriptions of the sets
/// were not damaged, so that a reset repairs everything.
pub fn use_everything(segment: &Segment, permits: Vec<Permit<'_>>, is_described: bool) {
    for mut permit in permits {
        check(
            permit
                .settle([("tokens", 99_999_999), ("decimal", 3), ("budget", 10)])
                .err(),
        );
        permit.verdicts().for_each(|verdict| assert!(verdict.admitted));
        check(permit.release().err());
    }
    for set in segment.sets() {
        ask(&set);
        take_and_give_back(&set);
        use_keys(&set);
    }
    ask_store(segment);
    check(segment.recover().err());
    for set in segment.sets() {
        take_and_give_back(&set);
        let some: Vec<&str> = set.limits().take(2).collect();
        check(set.reset().limits(some).run().err());
        take_and_give_back(&set);
        match set.reset().counters().run() {
            Ok(()) => assert_healed(acquire(&set)),
            // If the description of the limits is lost, a reset has nothing to start from.
            Err(Error::Segment(SegmentError::Damaged { .. })) if !is_described => {}
            Err(error) => assert!(
                matches!(error, Error::Segment(SegmentError::Removed { .. })),
                "{error}"
            ),
        }
    }
    check(segment.recover().err());
    ask_store(segment);
    inspect(segment.snapshot());
}

/// Asks a store for whatever is due. It grants everything, except for the first request.
pub fn ask_store(segment: &Segment) {
    let duty = match segment.fleet().try_take_duty() {
        Ok(Some(duty)) => duty,
        other => return check(other.err()),
    };
    read(&duty.due_in());
    for is_out in [true, false] {
        let asked = match duty.ask() {
            Ok(asked) => asked,
            Err(error) => return check(Some(error)),
        };
        for asked in asked {
            let request = asked.request();
            read(request);
            let outcome = if is_out {
                duty.report(&asked, StoreProblem::Unreachable, Duration::ZERO)
            } else {
                duty.install(&asked, &granting(request))
            };
            check(outcome.err());
        }
    }
}

fn granting(request: &LeaseRequest) -> LeaseReply {
    LeaseReply {
        share: 1,
        grant_number: request.sequence,
        ..LeaseReply::granting(request, request.wanted, Duration::from_secs(1))
    }
}

/// After a reset of everything, a set may refuse, but it is no longer damaged.
fn assert_healed(outcome: Result<Permit<'_>, Option<Error>>) {
    if let Err(Some(error)) = outcome {
        panic!("a reset does not heal: {error}");
    }
}

fn ask(set: &LimitSet) {
    let request = match set.request().with("tokens", 1) {
        Ok(request) => request,
        Err(error) => return check(Some(error)),
    };
    let verdicts = match key_of(set) {
        Ok(Some(_)) => request.for_key(KEY).and_then(|request| request.peek()),
        Ok(None) => request.peek(),
        Err(error) => Err(error),
    };
    match verdicts {
        Ok(verdicts) => verdicts.iter().for_each(read),
        Err(error) => check(Some(error)),
    }
}

/// Keys that have a row, keys that get one as long as any is available, and one that begins again.
fn use_keys(set: &LimitSet) {
    if let Ok(Some(key)) = key_of(set) {
        check(take_by_key(set, "other 7").err());
        for number in 0..5 {
            check(take_by_key(set, &format!("new {number}")).err());
        }
        read(&key.overrides());
        read(&key.tier());
        check(key.clear_override("calls").err());
        check(take_as_declared(set, NAMED_KEY).err());
        check(change_limits(set).err());
        check(key.reset().run().err());
    }
}

fn take_and_give_back(set: &LimitSet) {
    match try_set(set) {
        Ok(Outcome::Admitted(mut permit)) => {
            permit.verdicts().for_each(|verdict| read(&verdict));
            // These permits are dropped while the first is still in use.
            drop(acquire(set));
            match wait_for_set(set) {
                Ok(outcome) => drop(outcome),
                Err(error) => check(Some(error)),
            }
            check(permit.heartbeat().err());
            read(&(permit.reclaimed(), permit.fencing_number()));
            check(
                permit
                    .settle([("tokens", 1), ("decimal", 500), ("budget", u64::MAX)])
                    .err(),
            );
            check(permit.release().err());
        }
        Ok(Outcome::Refused(refusal)) => {
            refusal.verdicts().for_each(|verdict| read(&verdict));
            read(&refusal.to_string());
        }
        Err(error) => check(Some(error)),
    }
}

/// An error is an answer, unless it says that the damage affects the lock or the library itself.
pub fn check(error: Option<Error>) {
    if let Some(
        error @ Error::Segment(
            SegmentError::LockStuck { .. } | SegmentError::LockLost { .. } | SegmentError::Internal { .. },
        ),
    ) = error
    {
        panic!("{error}");
    }
    read(&error);
}

/// Formats everything, like a process that prints it.
fn read(anything: &impl std::fmt::Debug) {
    struct Nowhere;
    impl Write for Nowhere {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            std::hint::black_box(text);
            Ok(())
        }
    }
    write!(Nowhere, "{anything:?}").expect("nowhere takes everything");
}
