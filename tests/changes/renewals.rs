//! Leases that change while a process renews them in the background.

use std::time::{Duration, Instant};

use crate::scene;
use crate::scene::process::{Child, TIMEOUT, eventually, in_own_process};
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};

/// Long enough for the thread that renews the lease to get its turn in time, whatever else runs.
const LEASE: Duration = Duration::from_secs(3);

fn declaration(lease: Option<Duration>) -> Declaration {
    let limit = Limit::concurrency("slots", 1);
    let limit = match lease {
        Some(lease) => limit.lease(lease),
        None => limit,
    };
    scene::declaration()
        .participants(8)
        .add_set(SetDeclaration::new("api").add_limit(limit))
}

fn can_take(segment: &Segment) -> bool {
    let api = segment.set("api").expect("declared");
    api.request().try_acquire().expect("works").is_admitted()
}

#[test]
fn a_hold_that_is_renewed_in_the_background_is_kept_whatever_lease_it_gets() {
    let test = "renewals::a_hold_that_is_renewed_in_the_background_is_kept_whatever_lease_it_gets";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        // The lease when the renewal begins, and what it is changed to afterwards, one after the other.
        let courses: [(Option<Duration>, &[Option<Duration>]); 5] = [
            (Some(LEASE), &[]),
            (Some(60 * LEASE), &[Some(LEASE)]),
            (None, &[Some(LEASE)]),
            (Some(60 * LEASE), &[None, Some(LEASE)]),
            (Some(LEASE), &[Some(60 * LEASE), Some(LEASE)]),
        ];
        let path = |nth: usize| directory.join(format!("limits-{nth}"));
        let segments: Vec<Segment> = courses
            .iter()
            .enumerate()
            .map(|(nth, (lease, _))| Segment::create(path(nth), &declaration(*lease)).expect("a segment"))
            .collect();
        let mut permits: Vec<_> = segments
            .iter()
            .map(|segment| {
                let api = segment.set("api").expect("declared");
                let permit = scene::expect_permit(api.request().try_acquire()).into_owned();
                permit.heartbeat_in_background().expect("renews");
                permit
            })
            .collect();
        // Threads of this process renew, while another process changes the leases and wants the place.
        Child::fork(|| {
            let others: Vec<Segment> = (0..courses.len())
                .map(|nth| Segment::open(path(nth)).expect("opens"))
                .collect();
            for (other, (_, course)) in others.iter().zip(&courses) {
                for lease in *course {
                    other.apply(&declaration(*lease)).expect("applies");
                }
            }
            let end = Instant::now() + 3 * LEASE;
            while Instant::now() < end {
                for (nth, other) in others.iter().enumerate() {
                    assert!(!can_take(other), "course {nth}: the place was given to another");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        })
        .succeed();
        for (segment, permit) in segments.iter().zip(&mut permits) {
            assert!(!permit.reclaimed());
            permit.release().expect("works");
            assert!(can_take(segment));
        }
    });
}

/// The thread that renews does not keep a segment open in which it has nothing left to renew.
#[test]
fn a_segment_whose_holds_are_renewed_is_left_with_its_last_handle() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let segment = Segment::create(&path, &declaration(Some(20 * LEASE))).expect("a segment");
    let api = segment.set("api").expect("declared");
    let permit = scene::expect_permit(api.request().try_acquire());
    permit.heartbeat_in_background().expect("renews");
    drop(permit);
    drop((segment, api));
    let remove = || shmlimit::OpenOptions::new().remove(&path, shmlimit::Removal::Unused);
    eventually("it is left", || remove().is_ok());
}
