//! Permits and participants across fork, and processes whose descriptors are closed or kept by others.
#![allow(unsafe_code, reason = "forks, and closes descriptors that are not its own")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::layout_mirror::words::header;
use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, die, eventually, in_own_process};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, alarm, fork, getpid, pause};
use shmlimit::declare::LockKind;
use shmlimit::{
    Declaration, Error, Limit, LimitSet, OpenError, Permit, PermitError, Segment, SetDeclaration,
};

const HOUR: Duration = Duration::from_secs(3600);

fn segment(directory: &Path, slots: u64) -> Segment {
    segment_with(directory, slots, scene::lock_kind())
}

fn segment_with(directory: &Path, slots: u64, lock: LockKind) -> Segment {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::concurrency("slots", slots))
        .add_limit(Limit::rate("tokens", 1000, HOUR));
    Segment::create(
        directory.join("limits"),
        &Declaration::new().lock(lock).participants(8).add_set(set),
    )
    .expect("a segment")
}

fn try_take(api: &LimitSet, slots: u64) -> Option<Permit<'_>> {
    let request = api.request().with("slots", slots).expect("declared");
    request.try_acquire().expect("works").into_result().ok()
}

fn take(api: &LimitSet, slots: u64) -> Permit<'_> {
    try_take(api, slots).expect("there is room")
}

fn active(segment: &Segment) -> u64 {
    segment.snapshot().expect("a copy").sets[0].active
}

/// The ids of the processes attached, dead or alive.
fn attached(segment: &Segment) -> Vec<u64> {
    let participants = segment.snapshot().expect("a copy").participants;
    participants.iter().map(|it| it.pid).collect()
}

fn own_id() -> u64 {
    u64::from(std::process::id())
}

/// Checks that an inherited permit does nothing, whatever is done with it.
fn check_inert(segment: &Segment, inherited: &mut Option<Permit<'_>>) {
    let before = active(segment);
    let permit = inherited.as_mut().expect("inherited");
    assert!(matches!(
        permit.settle([("tokens", 1)]),
        Err(Error::Permit(PermitError::Inherited { .. }))
    ));
    permit.release().expect("releases nothing");
    assert!(matches!(
        permit.settle([("tokens", 1)]),
        Err(Error::Permit(PermitError::Inherited { .. }))
    ));
    *inherited = None;
    assert_eq!(active(segment), before, "something was given back");
}

#[test]
fn a_childs_copy_of_a_permit_is_inert_and_the_child_takes_its_own() {
    let test = "fork::a_childs_copy_of_a_permit_is_inert_and_the_child_takes_its_own";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let segment = segment(directory, 3);
        let api = segment.set("api").expect("declared");
        let request = api.request().with("tokens", 100).expect("declared");
        let mut permit = request.try_acquire().expect("works").into_result().ok();
        let parent = own_id();
        let child = Child::fork(|| {
            check_inert(&segment, &mut permit);
            assert_eq!(attached(&segment), [parent], "attached without need");
            let mut own = Some(take(&api, 1));
            assert_eq!(attached(&segment), [parent, own_id()]);
            Child::fork(|| {
                check_inert(&segment, &mut own);
                let grandchilds = take(&api, 1);
                assert_eq!(attached(&segment)[2], own_id());
                assert!(try_take(&api, 1).is_none(), "a fourth of three");
                drop(grandchilds);
            })
            .succeed();
            let mut own = own.expect("still there");
            own.release().expect("still its own");
        });
        child.succeed();
        assert_eq!(active(&segment), 1, "the parent's own");
        let mut permit = permit.expect("still there");
        assert_eq!(
            permit
                .settle([("tokens", 40)])
                .expect("its own")
                .refunded("tokens"),
            60
        );
        permit.release().expect("its own");
        assert_eq!(active(&segment), 0);
    });
}

#[test]
fn a_permit_dropped_in_a_child_stays_the_parents() {
    let test = "fork::a_permit_dropped_in_a_child_stays_the_parents";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let segment = segment(directory, 1);
        let api = segment.set("api").expect("declared");
        let mut permit = Some(take(&api, 1).into_owned());
        Child::fork(|| permit = None).succeed();
        assert_eq!(active(&segment), 1);
        assert!(try_take(&api, 1).is_none());
        permit.take().expect("held").release().expect("its own");
        assert!(try_take(&api, 1).is_some());
    });
}

#[test]
fn a_segment_dropped_in_a_child_stays_the_parents() {
    let test = "fork::a_segment_dropped_in_a_child_stays_the_parents";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let mut segment = Some(segment(directory, 1));
        let slot_byte_is_locked = || is_locked(&directory.join("limits"), 0);
        assert!(slot_byte_is_locked());
        Child::fork(|| segment = None).succeed();
        let segment = segment.expect("held");
        assert!(slot_byte_is_locked(), "the child gave up its parent's place");
        assert_eq!(attached(&segment), [own_id()]);
    });
}

#[test]
fn what_children_and_grandchildren_held_is_given_back_when_they_are_killed() {
    let test = "fork::what_children_and_grandchildren_held_is_given_back_when_they_are_killed";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let segment = segment(directory, 4);
        let api = segment.set("api").expect("declared");
        let own = take(&api, 1);
        let words = SharedWords::new(1);
        let holding = &words[0];
        let child = Child::fork(|| {
            let _held = take(&api, 1);
            let _grandchild = Child::fork(|| {
                let _held = take(&api, 2);
                holding.store(1, Ordering::SeqCst);
                loop {
                    pause();
                }
            });
            eventually("the grandchild holds", || holding.load(Ordering::SeqCst) == 1);
            holding.store(2, Ordering::SeqCst);
            loop {
                pause();
            }
        });
        eventually("both hold", || holding.load(Ordering::SeqCst) == 2);
        for _ in 0..1000 {
            assert!(try_take(&api, 1).is_none(), "taken from the living");
        }
        // The grandchild is killed because its parent dies.
        child.kill();
        eventually("all is given back", || try_take(&api, 3).is_some());
        assert!(try_take(&api, 4).is_none());
        drop(own);
        assert!(try_take(&api, 4).is_some());
        let counts = segment.snapshot().expect("a copy").sets[0].counts;
        assert_eq!(counts.reclaimed, 2, "{counts:?}");
    });
}

#[test]
fn a_process_that_dies_between_two_calls_leaves_nothing_for_long() {
    let test = "fork::a_process_that_dies_between_two_calls_leaves_nothing_for_long";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let segment = segment(directory, 1);
        let api = segment.set("api").expect("declared");
        for round in 0..50 {
            let mut child = Child::fork(|| {
                eventually("it is the child's turn", || {
                    let Some(held) = try_take(&api, 1) else {
                        return false;
                    };
                    std::mem::forget(held);
                    true
                });
                die();
            });
            child.wait();
            eventually(&format!("round {round} is given back"), || {
                try_take(&api, 1).is_some()
            });
        }
        let snapshot = segment.snapshot().expect("a copy");
        assert_eq!(snapshot.sets[0].counts.reclaimed, 50);
        assert!(snapshot.participants.len() <= 2, "dead participants pile up");
    });
}

/// Whether an open file of the segment, other than a new one, has a lock on the byte of a participant.
fn is_locked(path: &Path, slot: i64) -> bool {
    let file = File::options().write(true).open(path).expect("a segment file");
    let mut request = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (1 << 40) + slot,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and the request is a live flock structure.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut request) };
    assert_eq!(answer, 0);
    request.l_type != libc::F_UNLCK as libc::c_short
}

fn close_every_descriptor_above_2() {
    // SAFETY: closes descriptors that belong to other code, as daemonising libraries do: the library has to survive
    // that.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
}

#[test]
fn a_process_that_closes_every_descriptor_keeps_its_place_and_goes_on_telling_who_is_dead() {
    let test = "fork::a_process_that_closes_every_descriptor_keeps_its_place_and_goes_on_telling_who_is_dead";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = segment(directory, 2);
        let api = segment.set("api").expect("declared");
        let words = SharedWords::new(1);
        let step = &words[0];
        let child = Child::fork(|| {
            let mut held = take(&api, 1);
            close_every_descriptor_above_2();
            assert!(is_locked(&path, 1), "its byte is lost");
            step.store(1, Ordering::SeqCst);
            eventually("the neighbour holds", || step.load(Ordering::SeqCst) == 2);
            // Takes what was held by a process whose death the child has to discover by itself.
            eventually("the neighbour's is free", || {
                try_take(&api, 1).is_some_and(|taken| {
                    std::mem::forget(taken);
                    true
                })
            });
            step.store(3, Ordering::SeqCst);
            eventually("the child is told to end", || step.load(Ordering::SeqCst) == 4);
            held.release().expect("not taken");
        });
        eventually("the child has closed all", || step.load(Ordering::SeqCst) == 1);
        let neighbour = Child::fork(|| {
            std::mem::forget(take(&api, 1));
            step.store(2, Ordering::SeqCst);
            loop {
                pause();
            }
        });
        eventually("the neighbour holds", || step.load(Ordering::SeqCst) == 2);
        neighbour.kill();
        eventually("the child has taken what was held", || {
            step.load(Ordering::SeqCst) == 3
        });
        for _ in 0..100 {
            assert!(try_take(&api, 1).is_none(), "taken from the living");
        }
        assert_eq!(segment.recover().expect("works").sets[0].reclaimed, 0);
        let newcomer = Segment::open(&path).expect("room for another");
        assert_eq!(
            attached(&newcomer)[1],
            u64::from(child.id()),
            "its slot was taken"
        );
        step.store(4, Ordering::SeqCst);
        child.succeed();
        eventually("all is given back", || try_take(&api, 2).is_some());
    });
}

/// Checks that a segment is not started cold, whatever `disguised` makes it look like, while it is used by a process
/// that has lost something of it by `lose`.
fn is_not_started_cold(
    test: &str,
    lock: LockKind,
    lose: impl Fn(&Path),
    disguised: impl Fn(&Path),
    refuses: fn(&OpenError) -> bool,
) {
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        drop(segment_with(directory, 1, lock));
        let words = SharedWords::new(1);
        let user = Child::fork(|| {
            let _segment = Segment::open(&path).expect("opens");
            lose(&path);
            words[0].store(1, Ordering::SeqCst);
            loop {
                pause();
            }
        });
        eventually("it has lost it", || words[0].load(Ordering::SeqCst) == 1);
        disguised(&path);
        let Err(Error::Open(refusal)) = Segment::open(&path) else {
            panic!("it was opened");
        };
        assert!(refuses(&refusal), "{refusal}");
        user.kill();
        drop(Segment::open(&path).expect("starts cold"));
    });
}

/// A process keeps its segment from being started cold even if it has lost its descriptors.
#[test]
fn a_segment_is_not_started_cold_under_a_process_that_closed_every_descriptor() {
    is_not_started_cold(
        "fork::a_segment_is_not_started_cold_under_a_process_that_closed_every_descriptor",
        scene::lock_kind(),
        |_| close_every_descriptor_above_2(),
        // As the segment looks to a process that comes from elsewhere.
        |path| RawSegment::open(path).set_another_boot(),
        |refusal| matches!(refusal, OpenError::ForeignBoot { .. }),
    );
}

/// Unmaps the page by which this process keeps its byte, as code might that unmaps everything it does not know.
fn unmap_what_keeps_the_byte(path: &Path) {
    let path = path.to_str().expect("text");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the maps of this process");
    let line = maps
        .lines()
        .find(|line| line.ends_with(path) && line.contains(" ---s "))
        .expect("a page without permissions");
    let (start, end) = line
        .split_once(' ')
        .and_then(|(range, _)| range.split_once('-'))
        .expect("a range");
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).expect("an address"));
    // SAFETY: nothing refers to a page without permissions, and this process ends without unmapping it again.
    let answer = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(start), end - start) };
    assert_eq!(answer, 0);
}

/// The same holds if the byte says that there is no process, because the process table is asked as well.
#[test]
fn a_segment_is_not_started_cold_under_a_process_that_lost_its_byte() {
    is_not_started_cold(
        "fork::a_segment_is_not_started_cold_under_a_process_that_lost_its_byte",
        LockKind::RobustMutex,
        unmap_what_keeps_the_byte,
        |path| {
            assert!(!is_locked(path, 0));
            // As the segment looks to a process that comes from another namespace.
            let raw = RawSegment::open(path);
            raw.set_word(header::PID_NAMESPACE, raw.word(header::PID_NAMESPACE) + 1);
        },
        |refusal| matches!(refusal, OpenError::ForeignNamespace { .. }),
    );
}

#[test]
fn a_reused_descriptor_number_is_neither_trusted_nor_closed() {
    let test = "fork::a_reused_descriptor_number_is_neither_trusted_nor_closed";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = segment(directory, 1);
        let api = segment.set("api").expect("declared");
        Child::fork(|| {
            let own = Segment::open(&path).expect("opens");
            let own_api = own.set("api").expect("declared");
            close_every_descriptor_above_2();
            // Every number that could have been the library's now belongs to another file.
            let others: Vec<File> = (0..32)
                .map(|_| File::open("/dev/null").expect("a file"))
                .collect();
            let held = take(&own_api, 1);
            assert!(try_take(&own_api, 1).is_none());
            assert!(try_take(&api, 1).is_none());
            drop(held);
            drop((api, own_api, own));
            for file in &others {
                file.metadata().expect("still open");
            }
        })
        .succeed();
    });
}

#[test]
fn a_stray_child_does_not_keep_what_its_dead_parent_held() {
    let test = "fork::a_stray_child_does_not_keep_what_its_dead_parent_held";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        // The stray child becomes a child of this process when its parent dies.
        set_child_subreaper(true).expect("a subreaper");
        let path = directory.join("limits");
        let segment = segment(directory, 2);
        let api = segment.set("api").expect("declared");
        let words = SharedWords::new(1);
        let stray_id = &words[0];
        let parent = Child::fork(|| {
            let _held = take(&api, 2);
            // SAFETY: no other thread lives in this process.
            if let ForkResult::Child = unsafe { fork() }.expect("a child") {
                // It outlives its parent, but not the test by long.
                alarm::set(2 * TIMEOUT.as_secs() as u32);
                stray_id.store(getpid().as_raw() as u64, Ordering::SeqCst);
            }
            loop {
                pause();
            }
        });
        eventually("the stray child runs", || stray_id.load(Ordering::SeqCst) != 0);
        assert!(try_take(&api, 1).is_none());
        let stray = Pid::from_raw(stray_id.load(Ordering::SeqCst) as i32);
        parent.kill();
        assert!(!is_locked(&path, 1), "the stray child keeps the byte");
        eventually("what the parent held is given back", || {
            try_take(&api, 2).is_some()
        });
        let first = own_id();
        Child::fork(|| {
            let newcomer = Segment::open(&path).expect("room");
            assert_eq!(attached(&newcomer), [first, own_id()]);
        })
        .succeed();
        kill(stray, Signal::SIGKILL).expect("it lives");
        waitpid(stray, None).expect("a child of this process by now");
    });
}

#[test]
fn a_dead_masters_place_can_be_taken_although_its_workers_live_on() {
    let test = "fork::a_dead_masters_place_can_be_taken_although_its_workers_live_on";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        set_child_subreaper(true).expect("a subreaper");
        let path = directory.join("limits");
        let words = SharedWords::new(1);
        let worker_id = &words[0];
        let master = Child::fork(|| {
            let segment = segment(directory, 2);
            let api = segment.set("api").expect("declared");
            // SAFETY: no other thread lives in this process.
            if let ForkResult::Child = unsafe { fork() }.expect("a child") {
                alarm::set(2 * TIMEOUT.as_secs() as u32);
                let _held = take(&api, 1);
                worker_id.store(own_id(), Ordering::SeqCst);
                loop {
                    pause();
                }
            }
            loop {
                pause();
            }
        });
        eventually("the worker is attached", || worker_id.load(Ordering::SeqCst) != 0);
        let worker = worker_id.load(Ordering::SeqCst);
        master.kill();
        assert!(!is_locked(&path, 0), "the worker keeps its dead master's byte");
        let successor = Segment::open(&path).expect("room");
        assert_eq!(attached(&successor), [own_id(), worker]);
        let worker = Pid::from_raw(worker as i32);
        kill(worker, Signal::SIGKILL).expect("it lives");
        waitpid(worker, None).expect("a child of this process by now");
    });
}

#[test]
fn too_many_participants_are_refused_until_one_of_them_is_dead() {
    let test = "fork::too_many_participants_are_refused_until_one_of_them_is_dead";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let set = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", 9));
        let segment =
            Segment::create(&path, &scene::declaration().participants(2).add_set(set)).expect("a segment");
        let words = SharedWords::new(1);
        let second = Child::fork(|| {
            let _second = Segment::open(&path).expect("room for two");
            words[0].store(1, Ordering::SeqCst);
            loop {
                pause();
            }
        });
        eventually("the second is attached", || words[0].load(Ordering::SeqCst) == 1);
        let is_too_many = |result: Result<(), Error>| {
            matches!(
                result,
                Err(Error::Open(OpenError::TooManyParticipants { capacity: 2, path: named, .. })) if named == path
            )
        };
        Child::fork(|| assert!(is_too_many(Segment::open(&path).map(drop)))).succeed();
        let api = segment.set("api").expect("declared");
        let attempt = || api.request().try_acquire().map(drop);
        // A forked child needs a place of its own, too. Without one, it can do nothing.
        Child::fork(|| assert!(is_too_many(attempt()))).succeed();
        attempt().expect("the first keeps its place");
        second.kill();
        Child::fork(|| attempt().expect("room again")).succeed();
        Child::fork(|| drop(Segment::open(&path).expect("room again"))).succeed();
    });
}
