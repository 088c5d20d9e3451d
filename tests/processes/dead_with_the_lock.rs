//! Every way in which a process can end while it has a slot lock: the next one that wants the lock takes it over. As in
//! the library, the lock is held in the name of the process's place among the participants, not of a thread.
#![allow(unsafe_code, reason = "forks a child that outlives its parent")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::scene::namespaces::{has_namespaces, in_new_namespace, namespace};
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, alarm, fork, getpid};
use shmlimit::declare::LockKind;
use shmlimit::snapshot::ProcessId;
use shmlimit::{Declaration, Error, Limit, LimitSet, OpenOptions, Segment, SegmentError, SetDeclaration};

const SLOTS: u64 = 3;
/// The values of the word by which a process is known to have the lock, and by which it is told to go on to its end.
const HAS_IT: u64 = 1;
const GO_ON: u64 = 2;

struct Scene {
    path: PathBuf,
    /// Attached before all others.
    segment: Segment,
    words: SharedWords,
}

impl Scene {
    fn new(directory: &Path) -> Self {
        let path = directory.join("limits");
        let set = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", SLOTS));
        let declaration = Declaration::new()
            .lock(LockKind::Slot)
            .participants(8)
            .add_set(set);
        Self {
            segment: Segment::create(&path, &declaration).expect("a segment"),
            path,
            words: SharedWords::new(3),
        }
    }

    /// Attaches this process and makes it take the lock, which it never releases.
    fn have_the_lock(&self) {
        let segment = Segment::open(&self.path).expect("opens");
        self.have_the_lock_of(&segment);
        std::mem::forget(segment);
    }

    fn have_the_lock_of(&self, segment: &Segment) {
        let participants = segment.snapshot().expect("a copy").participants;
        let is_own = |pid| pid == u64::from(std::process::id());
        let own = participants
            .iter()
            .find(|it| it.alive && is_own(it.pid) && it.pid_namespace.is_none())
            .expect("attached");
        RawSegment::open(&self.path).give_lock_to(own.slot, own.generation);
        self.words[1].store(own.pid, Ordering::SeqCst);
        self.words[2].store(namespace(), Ordering::SeqCst);
        self.words[0].store(HAS_IT, Ordering::SeqCst);
    }

    fn go_on(&self) {
        self.words[0].store(GO_ON, Ordering::SeqCst);
    }

    fn wait_until_told(&self) {
        eventually("it is told to go on", || {
            self.words[0].load(Ordering::SeqCst) == GO_ON
        });
    }

    fn open_for(&self, lock_timeout: Duration) -> LimitSet {
        let segment = OpenOptions::new().lock_timeout(lock_timeout).open(&self.path);
        segment.expect("opens").set("api").expect("declared")
    }

    /// Checks that a live owner keeps the lock, and is named to those that want it.
    fn is_kept(&self) {
        eventually("the lock is taken", || {
            self.words[0].load(Ordering::SeqCst) == HAS_IT
        });
        let its_namespace = self.words[2].load(Ordering::SeqCst);
        let expected = ProcessId {
            pid: self.words[1].load(Ordering::SeqCst),
            namespace: (its_namespace != namespace()).then_some(its_namespace),
        };
        let api = self.open_for(Duration::from_millis(30));
        match api.request().try_acquire() {
            Err(Error::Segment(SegmentError::LockStuck { process, .. })) => {
                assert_eq!(process, Some(expected));
            }
            other => panic!("taken from the living: {other:?}"),
        }
    }

    /// Checks that the lock of a dead owner is taken over, once, and that everything is available afterwards.
    fn is_taken_over(&self) {
        let api = self.open_for(TIMEOUT);
        let request = api.request().with("slots", SLOTS).expect("declared");
        assert!(request.try_acquire().expect("taken over").is_admitted());
        let snapshot = self.segment.snapshot().expect("a copy");
        assert_eq!((snapshot.sets[0].counts.recoveries, snapshot.cold_starts), (1, 0));
    }
}

fn pause() -> ! {
    loop {
        std::thread::park();
    }
}

fn with_the_lock(test: &str, body: impl FnOnce(&Scene)) {
    let test = format!("dead_with_the_lock::{test}");
    in_own_process(&test, 3 * TIMEOUT, |directory| body(&Scene::new(directory)));
}

#[test]
fn a_killed_process_leaves_its_lock() {
    with_the_lock("a_killed_process_leaves_its_lock", |scene| {
        let holder = Child::fork(|| {
            scene.have_the_lock();
            pause();
        });
        scene.is_kept();
        holder.kill();
        scene.is_taken_over();
    });
}

#[test]
fn a_stopped_process_keeps_its_lock_until_it_is_killed() {
    with_the_lock("a_stopped_process_keeps_its_lock_until_it_is_killed", |scene| {
        let holder = Child::fork(|| {
            scene.have_the_lock();
            raise(Signal::SIGSTOP).expect("stops");
        });
        holder.wait_until_stopped();
        scene.is_kept();
        // It never runs again.
        holder.kill();
        scene.is_taken_over();
    });
}

#[test]
fn a_process_that_exits_leaves_its_lock() {
    with_the_lock("a_process_that_exits_leaves_its_lock", |scene| {
        let holder = Child::fork(|| {
            scene.have_the_lock();
            scene.wait_until_told();
        });
        scene.is_kept();
        scene.go_on();
        holder.succeed();
        scene.is_taken_over();
    });
}

#[test]
fn a_process_that_executes_another_program_leaves_its_lock_although_it_lives() {
    let test = "a_process_that_executes_another_program_leaves_its_lock_although_it_lives";
    with_the_lock(test, |scene| {
        let holder = Child::fork(|| {
            scene.have_the_lock();
            scene.wait_until_told();
            panic!("{}", Command::new("sleep").arg("infinity").exec());
        });
        scene.is_kept();
        scene.go_on();
        scene.is_taken_over();
        assert!(!holder.has_ended(), "it was to live on under the same id");
    });
}

#[test]
fn a_child_that_outlives_a_process_does_not_keep_its_lock() {
    let test = "a_child_that_outlives_a_process_does_not_keep_its_lock";
    with_the_lock(test, |scene| {
        // The stray child becomes a child of this process when its parent dies.
        set_child_subreaper(true).expect("a subreaper");
        let stray = SharedWords::new(1);
        let holder = Child::fork(|| {
            let segment = Segment::open(&scene.path).expect("opens");
            // SAFETY: no other thread lives in this process.
            if let ForkResult::Child = unsafe { fork() }.expect("a child") {
                // It outlives its parent, but not the test by long.
                alarm::set(3 * TIMEOUT.as_secs() as u32);
                stray[0].store(getpid().as_raw() as u64, Ordering::SeqCst);
            } else {
                eventually("the stray child runs", || stray[0].load(Ordering::SeqCst) != 0);
                scene.have_the_lock_of(&segment);
            }
            pause();
        });
        scene.is_kept();
        holder.kill();
        scene.is_taken_over();
        let stray = Pid::from_raw(stray[0].load(Ordering::SeqCst) as i32);
        kill(stray, Signal::SIGKILL).expect("it lives");
        waitpid(stray, None).expect("a child of this process by now");
    });
}

#[test]
fn a_forked_child_that_is_killed_leaves_its_lock_to_its_parent() {
    let test = "a_forked_child_that_is_killed_leaves_its_lock_to_its_parent";
    with_the_lock(test, |scene| {
        let api = scene.segment.set("api").expect("declared");
        let child = Child::fork(|| {
            // With the inherited handle: its first use makes the child a participant of its own.
            drop(api.request().try_acquire().expect("works"));
            scene.have_the_lock_of(&scene.segment);
            pause();
        });
        scene.is_kept();
        child.kill();
        scene.is_taken_over();
    });
}

fn killed_in_another_namespace(scene: &Scene, is_stopped: bool) {
    if !has_namespaces() {
        return;
    }
    // The first process of a namespace cannot stop itself.
    let first = in_new_namespace(|| {
        let holder = Child::fork(|| {
            scene.have_the_lock();
            if is_stopped {
                raise(Signal::SIGSTOP).expect("stops");
            }
            pause();
        });
        if is_stopped {
            holder.wait_until_stopped();
        }
        scene.wait_until_told();
        holder.kill();
    });
    scene.is_kept();
    scene.go_on();
    scene.is_taken_over();
    first.succeed();
}

#[test]
fn a_process_killed_in_another_pid_namespace_leaves_its_lock() {
    let test = "a_process_killed_in_another_pid_namespace_leaves_its_lock";
    with_the_lock(test, |scene| killed_in_another_namespace(scene, false));
}

#[test]
fn a_process_stopped_in_another_pid_namespace_keeps_its_lock_until_it_is_killed() {
    let test = "a_process_stopped_in_another_pid_namespace_keeps_its_lock_until_it_is_killed";
    with_the_lock(test, |scene| killed_in_another_namespace(scene, true));
}

#[test]
fn the_first_process_of_a_pid_namespace_leaves_its_lock_when_all_of_it_is_killed() {
    let test = "the_first_process_of_a_pid_namespace_leaves_its_lock_when_all_of_it_is_killed";
    with_the_lock(test, |scene| {
        if !has_namespaces() {
            return;
        }
        let first = in_new_namespace(|| {
            scene.have_the_lock();
            pause();
        });
        scene.is_kept();
        // Its parent dies and, by its death signal, so does the first process of the namespace.
        first.kill();
        scene.is_taken_over();
    });
}
