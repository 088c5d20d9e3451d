//! Many processes that create, open and remove the sets of one directory at the same time.

use std::fs;
use std::sync::atomic::Ordering;

use shmlimit::{Error, OpenError, Segment, SegmentError};

use super::{declaring, names_in, use_up};
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};

const PROCESSES: u64 = 16;
const ROUNDS: usize = 6;
const SETS: [&str; 4] = ["a", "b", "c", "d-e"];

#[test]
fn processes_with_longer_and_longer_lists_share_each_set() {
    let test = "directories::processes::processes_with_longer_and_longer_lists_share_each_set";
    in_own_process(test, 5 * TIMEOUT, |root| {
        for round in 0..ROUNDS {
            let path = root.join(format!("round-{round}.d"));
            let words = SharedWords::new(1 + SETS.len());
            let (go, admitted) = words.split_first().expect("words");
            let children: Vec<Child> = (0..PROCESSES)
                .map(|number| {
                    Child::fork(|| {
                        let length = 1 + number as usize % SETS.len();
                        let list: Vec<(&str, u64)> = SETS[..length].iter().map(|set| (*set, 40)).collect();
                        while go.load(Ordering::SeqCst) == 0 {
                            std::thread::yield_now();
                        }
                        let segment =
                            Segment::open_or_create(&path, &declaring(&list)).expect("opens or creates");
                        for (set, admitted) in segment.sets().zip(admitted) {
                            admitted.fetch_add(use_up(&set), Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            go.store(1, Ordering::SeqCst);
            for child in children {
                child.succeed();
            }
            let admitted: Vec<u64> = admitted.iter().map(|it| it.load(Ordering::SeqCst)).collect();
            assert_eq!(admitted, [40; SETS.len()], "round {round}");
            assert_eq!(names_in(&path), SETS, "nothing else is left");
        }
    });
}

#[test]
fn whatever_a_killed_creator_leaves_the_next_one_completes() {
    let test = "directories::processes::whatever_a_killed_creator_leaves_the_next_one_completes";
    in_own_process(test, 5 * TIMEOUT, |root| {
        let path = root.join("limits.d");
        let list = declaring(&SETS.map(|set| (set, 3)));
        let words = SharedWords::new(1);
        let mut dice = fastrand::Rng::with_seed(7);
        for _ in 0..60 {
            let before = words[0].load(Ordering::SeqCst);
            let child = Child::fork(|| {
                loop {
                    words[0].fetch_add(1, Ordering::SeqCst);
                    drop(Segment::open_or_create(&path, &list).expect("opens or creates"));
                    fs::remove_dir_all(&path).expect("removed");
                }
            });
            eventually("the child creates", || words[0].load(Ordering::SeqCst) > before);
            // Not for synchronisation: the creator is to die at any moment of a creation.
            std::thread::sleep(std::time::Duration::from_micros(dice.u64(..1000)));
            child.kill();
            let segment = Segment::open_or_create(&path, &list).expect("completes it");
            assert_eq!(
                segment.sets().map(|set| use_up(&set)).collect::<Vec<_>>(),
                [3; SETS.len()]
            );
            assert!(path.join("a").exists());
            fs::remove_dir_all(&path).expect("removed");
        }
    });
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_created_again() {
    let test = "directories::processes::a_directory_that_is_removed_meanwhile_is_created_again";
    in_own_process(test, 2 * TIMEOUT, |root| {
        let path = root.join("limits.d");
        let _remover = Child::fork(|| {
            loop {
                let _ = fs::remove_dir_all(&path);
            }
        });
        let list = declaring(&[("a", 3), ("b", 3)]);
        let mut opened = 0;
        eventually("it was opened often", || {
            match Segment::open_or_create(&path, &list) {
                Ok(segment) => {
                    assert_eq!(segment.sets().count(), 2);
                    opened += 1;
                }
                // The segment is being created and removed, over and over.
                Err(
                    Error::Open(
                        OpenError::NotFound { .. } | OpenError::NoPlace { .. } | OpenError::Io { .. },
                    )
                    | Error::Segment(SegmentError::Removed { .. }),
                ) => {}
                Err(error) => panic!("{error:?}"),
            }
            // A low bound: the remover nearly always wins.
            opened > 5
        });
    });
}
