//! Real processes: the one that has duty is killed, and another takes over.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, raise};
use shmlimit::declare::FleetLease;
use shmlimit::fleet::{LeaseReply, StoreProblem};
use shmlimit::{Algorithm, Limit, Segment, SetDeclaration};

use super::host::{KEY, LEASE, declaring, fleet};
use super::scene::clock::boot_time;
use super::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use super::service::{refresh, send, serve, used_and_outstanding};
use super::store::Store;

const CAPACITY: u64 = 60_000;
const WINDOW: Duration = Duration::from_secs(60);

#[test]
fn duty_passes_on_when_its_process_is_killed_and_nothing_is_admitted_twice() {
    const WORKERS: usize = 5;
    const KILLS: usize = 4;
    let test = "processes::duty_passes_on_when_its_process_is_killed_and_nothing_is_admitted_twice";
    in_own_process(test, TIMEOUT, |directory| {
        let limit = Limit::calls("calls", CAPACITY, WINDOW).burst(1000).fleet(fleet());
        let declaration = declaring(SetDeclaration::new("api").add_limit(limit));
        let path = directory.join("limits");
        let segment = Segment::create(&path, &declaration).expect("a segment");
        let template = {
            let duty = segment.fleet().try_take_duty().expect("works").expect("free");
            duty.ask().expect("works").remove(0).request().clone()
        };
        let socket = directory.join("store");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let store = Child::fork(|| serve(&listener, std::slice::from_ref(&template)));
        let admitted = SharedWords::new(WORKERS);
        let started = Instant::now();
        let mut workers: Vec<Child> = (0..WORKERS)
            .map(|number| {
                let (segment, socket, count) = (&segment, &socket, &admitted[number]);
                Child::fork(move || work(segment, socket, count))
            })
            .collect();
        let total = || {
            admitted
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .sum::<u64>()
        };
        let duty_pid = || {
            let duty = segment.snapshot().expect("a copy").fleet.expect("declared").duty;
            duty.filter(|duty| duty.alive)?.pid
        };
        for kill in 1..=KILLS as u64 {
            let before = total();
            eventually("what is leased is spent", || total() > before + 100);
            let mut owner = None;
            eventually("a process has duty", || {
                owner = duty_pid();
                owner.is_some()
            });
            let position = workers
                .iter()
                .position(|worker| Some(u64::from(worker.id())) == owner);
            let position = position.expect("a worker has duty");
            let killed_at = Instant::now();
            workers.swap_remove(position).kill();
            eventually("another process has duty", || {
                duty_pid().is_some_and(|pid| Some(pid) != owner)
            });
            println!("duty passed on {:?} after the kill", killed_at.elapsed());
            let takeovers = segment
                .snapshot()
                .expect("a copy")
                .fleet
                .expect("declared")
                .takeovers;
            assert_eq!(takeovers, kill);
        }
        let before = total();
        eventually("it goes on", || total() > before + 100);
        drop(workers);
        let elapsed = started.elapsed();
        let back = CAPACITY as f64 * elapsed.as_secs_f64() / WINDOW.as_secs_f64();
        let most = 1000 + back.ceil() as u64;
        assert!(
            total() <= most,
            "{} were admitted in {elapsed:?}: at most {most}",
            total()
        );
        drop(store);
    });
}

#[test]
fn duty_passes_on_when_its_process_is_stopped_and_its_answer_comes_too_late() {
    let test = "processes::duty_passes_on_when_its_process_is_stopped_and_its_answer_comes_too_late";
    in_own_process(test, TIMEOUT, |directory| {
        let fleet = FleetLease::new(KEY)
            .lease(LEASE)
            .lease(Duration::from_secs(3600))
            .cold_wait(Duration::ZERO);
        let limit = Limit::calls("calls", CAPACITY, WINDOW).fleet(fleet);
        let declaration = declaring(SetDeclaration::new("api").add_limit(limit));
        let segment = Segment::create(directory.join("limits"), &declaration).expect("a segment");
        let (store, fleet) = (Store::default(), segment.fleet());
        let state = || segment.snapshot().expect("a copy").fleet.expect("declared");
        let lease = || {
            let snapshot = segment.snapshot().expect("a copy");
            snapshot.sets[0].limits[0].lease.clone().expect("shared")
        };
        let stopped = Child::fork(|| {
            let duty = segment.fleet().try_take_duty().expect("works").expect("free");
            let asked = duty.ask().expect("works").remove(0);
            raise(Signal::SIGSTOP).expect("stopped");
            assert!(!duty.is_held(), "it is another's");
            // An answer that was never given.
            let reply = LeaseReply {
                share: 1,
                grant_number: 7,
                ..LeaseReply::granting(asked.request(), asked.request().wanted, Duration::from_secs(3600))
            };
            duty.report(&asked, StoreProblem::Unreachable, TIMEOUT)
                .expect("works");
            duty.install(&asked, &reply).expect("works");
            duty.wait(TIMEOUT);
        });
        stopped.wait_until_stopped();
        assert_eq!(
            state().duty.and_then(|duty| duty.pid),
            Some(u64::from(stopped.id()))
        );
        let duty = fleet.wait_for_duty(TIMEOUT).expect("works").expect("overdue");
        assert_eq!(state().takeovers, 1);
        let asked = duty.ask().expect("works").remove(0);
        assert_eq!(asked.request().sequence, 1, "the same again");
        stopped.send(Signal::SIGCONT);
        stopped.succeed();
        assert!(
            lease().asking && lease().left == 0 && lease().problem.is_none(),
            "{:?}",
            lease()
        );
        let reply = store.answer(asked.request(), boot_time()).expect("answers");
        duty.install(&asked, &reply).expect("works");
        assert_eq!((lease().asking, lease().left), (false, reply.granted));
        assert_eq!(
            state().duty.and_then(|duty| duty.pid),
            Some(u64::from(std::process::id()))
        );
    });
}

fn work(segment: &Segment, socket: &Path, count: &AtomicU64) {
    let set = segment.set("api").expect("declared");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| refresh(&segment.fleet(), socket));
        while !is_over.load(Ordering::Relaxed) {
            if let Ok(permit) = set.request().acquire(TIMEOUT).expect("a decision").into_result() {
                count.fetch_add(1, Ordering::Relaxed);
                drop(permit);
            }
        }
    });
}

#[test]
fn wherever_the_one_with_duty_is_killed_each_unit_is_reported_once() {
    const KILLS: u64 = 200;
    const YEARS: Duration = Duration::from_secs(50 * 365 * 24 * 3600);
    let test = "processes::wherever_the_one_with_duty_is_killed_each_unit_is_reported_once";
    in_own_process(test, TIMEOUT, |directory| {
        // No window turns over and no lease runs out, so that what the store counts can be compared to the unit.
        let fleet = FleetLease::new(KEY)
            .lease(LEASE)
            .lease(Duration::from_secs(3600))
            .cold_wait(Duration::ZERO);
        let limit = Limit::calls("calls", 1_000_000, YEARS)
            .algorithm(Algorithm::FixedWindow)
            .fleet(fleet);
        let declaration = declaring(SetDeclaration::new("api").add_limit(limit));
        let segment = Segment::create(directory.join("limits"), &declaration).expect("a segment");
        let template = {
            let duty = segment.fleet().try_take_duty().expect("works").expect("free");
            duty.ask().expect("works").remove(0).request().clone()
        };
        let socket = directory.join("store");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let _store = Child::fork(|| serve(&listener, std::slice::from_ref(&template)));
        let steps = SharedWords::new(1);
        let set = segment.set("api").expect("declared");
        let take = || {
            let _ = set.request().check().expect("a decision");
        };
        let mut dice = Rng::with_seed(19);
        for _ in 0..KILLS {
            let refresher = Child::fork(|| {
                let duty = segment
                    .fleet()
                    .wait_for_duty(TIMEOUT)
                    .expect("works")
                    .expect("free");
                loop {
                    for _ in 0..8 {
                        take();
                    }
                    for asked in duty.ask().expect("works") {
                        if let Ok(reply) = send(&socket, asked.request()) {
                            duty.install(&asked, &reply).expect("works");
                        }
                    }
                    steps[0].fetch_add(1, Ordering::Relaxed);
                }
            });
            let until = steps[0].load(Ordering::Relaxed) + 1 + dice.u64(..30);
            eventually("it has come so far", || steps[0].load(Ordering::Relaxed) >= until);
            (0..dice.u64(..2_000)).for_each(|_| std::hint::spin_loop());
            refresher.kill();
            let snapshot = segment.snapshot().expect("a copy");
            assert!(!snapshot.sets[0].poisoned);
            take();
        }
        let admitted = || {
            segment.snapshot().expect("a copy").sets[0].limits[0]
                .counts
                .admitted
        };
        let fleet = segment.fleet();
        fleet.set_draining(true).expect("works");
        let duty = fleet.wait_for_duty(TIMEOUT).expect("works").expect("free");
        eventually("everything is given back", || {
            for asked in duty.ask().expect("works") {
                let reply = send(&socket, asked.request()).expect("it answers");
                duty.install(&asked, &reply).expect("works");
            }
            used_and_outstanding(&socket)[1] == 0
        });
        let [used, _] = used_and_outstanding(&socket);
        // With each death, at most one operation is counted too many, and none too few.
        assert!(
            used <= admitted() && admitted() <= used + KILLS,
            "{used} units were reported of {} requests",
            admitted()
        );
        assert!(used > KILLS, "the refreshers did something");
        assert_eq!(
            segment
                .snapshot()
                .expect("a copy")
                .fleet
                .expect("declared")
                .takeovers,
            KILLS
        );
    });
}
