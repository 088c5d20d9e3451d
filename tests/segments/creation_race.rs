//! Any number of processes that open or create one segment at the same time.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::scene::names::names_in;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use fastrand::Rng;
use nix::fcntl::{FcntlArg, fcntl};
use shmlimit::{Declaration, Error, Limit, OpenError, Segment, SegmentError, SetDeclaration};

const PROCESSES: usize = 32;
const ROUNDS: usize = 8;
const CAPACITY: u64 = 40;

/// How many creators are killed.
const ATTEMPTS: usize = 200;

const HOUR: Duration = Duration::from_secs(3600);

fn declaration() -> Declaration {
    Declaration::new().add_set(SetDeclaration::new("api").add_limit(Limit::calls("calls", CAPACITY, HOUR)))
}

fn use_up(segment: &Segment) -> u64 {
    let api = segment.set("api").expect("declared");
    let request = api.request();
    let is_admitted = || request.try_acquire().expect("works").is_admitted();
    (0..).take_while(|_| is_admitted()).count() as u64
}

/// Forks many processes that do the same thing at once, and waits for them.
fn all_at_once(body: impl Fn(usize)) {
    let words = SharedWords::new(2);
    let (ready, go) = (&words[0], &words[1]);
    let children: Vec<Child> = (0..PROCESSES)
        .map(|process| {
            Child::fork(|| {
                ready.fetch_add(1, Ordering::SeqCst);
                while go.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                body(process);
            })
        })
        .collect();
    eventually("all are ready", || {
        ready.load(Ordering::SeqCst) == PROCESSES as u64
    });
    go.store(1, Ordering::SeqCst);
    for child in children {
        child.succeed();
    }
}

#[test]
fn all_of_32_processes_open_the_one_segment_that_one_of_them_creates() {
    let test = "creation_race::all_of_32_processes_open_the_one_segment_that_one_of_them_creates";
    in_own_process(test, 5 * TIMEOUT, |directory| {
        for round in 0..ROUNDS {
            let path = directory.join(format!("limits-{round}"));
            let words = SharedWords::new(1 + PROCESSES);
            let (admitted, inodes) = words.split_first().expect("words");
            all_at_once(|process| {
                let segment = Segment::open_or_create(&path, &declaration()).expect("opens or creates");
                let inode = fs::metadata(&path).expect("a file").ino();
                inodes[process].store(inode, Ordering::SeqCst);
                admitted.fetch_add(use_up(&segment), Ordering::SeqCst);
            });
            assert_eq!(
                admitted.load(Ordering::SeqCst),
                CAPACITY,
                "round {round}: they do not share one limit"
            );
            let first = inodes[0].load(Ordering::SeqCst);
            let is_same = |inode: &AtomicU64| inode.load(Ordering::SeqCst) == first;
            assert!(inodes.iter().all(is_same), "round {round}: several files");
        }
        assert_eq!(
            names_in(directory).len(),
            ROUNDS,
            "something was left: {:?}",
            names_in(directory)
        );
    });
}

#[test]
fn exactly_one_of_32_processes_creates_and_the_others_are_told() {
    let test = "creation_race::exactly_one_of_32_processes_creates_and_the_others_are_told";
    in_own_process(test, 5 * TIMEOUT, |directory| {
        for round in 0..ROUNDS {
            let path = directory.join(format!("limits-{round}"));
            let words = SharedWords::new(1);
            all_at_once(|_| match Segment::create(&path, &declaration()) {
                Ok(_) => {
                    words[0].fetch_add(1, Ordering::SeqCst);
                }
                Err(Error::Open(OpenError::AlreadyExists { path: named })) => assert_eq!(named, path),
                Err(error) => panic!("{error}"),
            });
            assert_eq!(words[0].load(Ordering::SeqCst), 1, "round {round}");
        }
        assert_eq!(names_in(directory).len(), ROUNDS);
    });
}

#[test]
fn processes_that_declare_something_else_are_told_each_difference() {
    let test = "creation_race::processes_that_declare_something_else_are_told_each_difference";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let other = Declaration::new().add_set(
            SetDeclaration::new("api")
                .add_limit(Limit::calls("calls", CAPACITY + 1, 2 * HOUR))
                .add_limit(Limit::concurrency("slots", 3)),
        );
        let words = SharedWords::new(2);
        all_at_once(|process| {
            let declaration = if process % 2 == 0 {
                declaration()
            } else {
                other.clone()
            };
            match Segment::open_or_create(&path, &declaration) {
                Ok(segment) => {
                    assert!(declaration.differences(segment.declaration()).is_empty());
                    words[process % 2].fetch_add(1, Ordering::SeqCst);
                }
                Err(Error::Open(OpenError::ConfigMismatch {
                    path: named,
                    differences,
                    ..
                })) => {
                    assert_eq!(named, path);
                    let text = differences
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("\n");
                    for part in ["capacity", "window", "slots"] {
                        assert!(text.contains(part), "{part} is not in {text}");
                    }
                }
                Err(error) => panic!("{error}"),
            }
        });
        let mut opened = [0, 1].map(|kind| words[kind].load(Ordering::SeqCst));
        opened.sort_unstable();
        assert_eq!(
            opened,
            [0, PROCESSES as u64 / 2],
            "one declaration won, and all of its own opened"
        );
    });
}

#[test]
fn what_killed_creators_leave_is_gone_after_the_next_creation() {
    let test = "creation_race::what_killed_creators_leave_is_gone_after_the_next_creation";
    in_own_process(test, 5 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        // The name of another segment must not lead to this segment's constructions.
        let neighbour = directory.join("limits.2");
        drop(Segment::create(&neighbour, &declaration()).expect("a segment"));
        let words = SharedWords::new(1);
        let mut dice = Rng::with_seed(u64::from(std::process::id()));
        let mut abandoned = 0;
        for _ in 0..ATTEMPTS {
            let before = words[0].load(Ordering::SeqCst);
            let child = Child::fork(|| {
                loop {
                    words[0].fetch_add(1, Ordering::SeqCst);
                    drop(Segment::create(&path, &declaration()).expect("a segment"));
                    fs::remove_file(&path).expect("removed");
                }
            });
            eventually("the child creates", || words[0].load(Ordering::SeqCst) > before);
            // Not for synchronisation: the creator is to die at any moment of a creation.
            std::thread::sleep(Duration::from_micros(dice.u64(..300)));
            child.kill();
            let unfinished = names_in(directory).iter().any(|name| name.starts_with('.'));
            abandoned += u64::from(unfinished);
            let segment = Segment::open_or_create(&path, &declaration()).expect("a segment");
            assert_eq!(use_up(&segment), CAPACITY);
            drop(segment);
            fs::remove_file(&path).expect("removed");
            // If the creation was finished, so that its segment was opened above, nothing has been cleared away yet.
            drop(Segment::create(&path, &declaration()).expect("a segment"));
            fs::remove_file(&path).expect("removed");
            assert_eq!(names_in(directory), ["limits.2"], "something was left behind");
        }
        println!("{abandoned} of {ATTEMPTS} creators left a file under construction");
        assert!(abandoned > 0, "none was killed while it created");
    });
}

/// Opening must never see half a creation, nor a file that is being removed as anything but gone.
#[test]
fn a_process_that_opens_while_others_create_and_remove_sees_a_whole_segment_or_none() {
    let test =
        "creation_race::a_process_that_opens_while_others_create_and_remove_sees_a_whole_segment_or_none";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let _creators: Vec<Child> = (0..3)
            .map(|_| {
                Child::fork(|| {
                    loop {
                        let _ = Segment::create(&path, &declaration());
                        let _ = fs::remove_file(&path);
                    }
                })
            })
            .collect();
        let (mut whole, mut none) = (0, 0);
        eventually("both were seen often", || {
            match Segment::open(&path) {
                Ok(segment) => {
                    let api = segment.set("api").expect("declared");
                    let asked = (0..=CAPACITY).map(|_| api.request().check());
                    let admitted: Result<Vec<bool>, Error> = asked.map(|it| Ok(it?.is_admitted())).collect();
                    match admitted {
                        Ok(admitted) => assert!(admitted.contains(&false), "more than there is"),
                        // Deleted since, which must be noticed.
                        Err(Error::Segment(SegmentError::Removed { .. })) => {}
                        Err(error) => panic!("{error}"),
                    }
                    whole += 1;
                }
                Err(Error::Open(OpenError::NotFound { .. })) => none += 1,
                Err(error) => panic!("{error}"),
            }
            whole > 100 && none > 100
        });
    });
}

/// A process id says nothing about a creator in another PID namespace.
#[test]
fn a_file_under_construction_is_judged_by_its_lock_and_not_by_a_process_id() {
    let test = "creation_race::a_file_under_construction_is_judged_by_its_lock_and_not_by_a_process_id";
    // Run in a process in which no other test forks: a child has all descriptors, and the lock with them, until it
    // execs.
    in_own_process(test, TIMEOUT, check_construction_files);
}

fn check_construction_files(directory: &Path) {
    let path = directory.join("limits");
    let no_process = u32::MAX;
    let in_use = directory.join(format!(".limits.{no_process}.1.0.shmlimit-new"));
    let abandoned = directory.join(format!(".limits.{}.0.1.shmlimit-new", std::process::id()));
    let creator = File::create_new(&in_use).expect("a file");
    File::create_new(&abandoned).expect("a file");
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (1 << 40) - 2,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&creator, FcntlArg::F_OFD_SETLK(&lock)).expect("no other lock");
    drop(Segment::create(&path, &declaration()).expect("a segment"));
    assert!(in_use.exists(), "its creator would fail");
    assert!(!abandoned.exists(), "nothing removes it");
    drop(creator);
    fs::remove_file(&path).expect("removed");
    drop(Segment::create(&path, &declaration()).expect("a segment"));
    assert_eq!(names_in(directory), ["limits"]);
}
