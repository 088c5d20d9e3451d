//! The supervisor, which kills, stops and restarts processes, and lets them rest.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use shmlimit::Segment;

use crate::audit::check_that_nothing_is_left;
use crate::operator::{OPERATOR, operate};
use crate::scene::process::{Child, TIMEOUT};
use crate::truth::Count;
use crate::worker::{ask_the_store, work};
use crate::{PROCESSES, WORKERS, World};

/// How long it rages between two rests.
const RAGE: Duration = Duration::from_secs(2);
/// The longest pauses between two rounds of killing. One is chosen after each rest, so that lives are short or long.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(80),
];
const LONGEST_STOP: Duration = Duration::from_millis(120);

/// A process that is stopped until an instant.
struct Stopped {
    process: usize,
    until: Instant,
}

pub struct Supervisor<'a> {
    world: &'a World,
    /// The segment that some of the workers inherit; the others open it.
    segment: &'a Segment,
    processes: Vec<Child>,
    stopped: Vec<Stopped>,
    dice: Rng,
    /// How many were killed of the workers, of those that ask the store, and of the operators.
    kills: [u64; 3],
    stops: u64,
    rests: u64,
    /// The longest time that it took every process to get on after the killing and stopping had paused.
    longest_calm: Duration,
    raged: Duration,
}

impl<'a> Supervisor<'a> {
    pub fn new(world: &'a World, segment: &'a Segment, seed: u64) -> Self {
        let mut supervisor = Self {
            world,
            segment,
            processes: Vec::new(),
            stopped: Vec::new(),
            dice: Rng::with_seed(seed),
            kills: [0; 3],
            stops: 0,
            rests: 0,
            longest_calm: Duration::ZERO,
            raged: Duration::ZERO,
        };
        for process in 0..PROCESSES {
            let child = supervisor.start(process);
            supervisor.processes.push(child);
        }
        supervisor
    }

    fn start(&mut self, process: usize) -> Child {
        let world = self.world;
        world.truth.restart(process);
        let seed = self.dice.u64(..);
        let inherited = (self.dice.u64(..2) == 0).then(|| self.segment.clone());
        Child::fork(|| match process {
            OPERATOR => operate(world, seed),
            WORKERS.. => ask_the_store(world, process),
            _ => work(world, process, inherited, seed),
        })
    }

    fn role(process: usize) -> usize {
        match process {
            OPERATOR => 2,
            WORKERS.. => 1,
            _ => 0,
        }
    }

    fn kills(&self) -> u64 {
        self.kills.iter().sum()
    }

    /// Picks the operator more often than its number alone would.
    fn some_process(&mut self) -> usize {
        match self.dice.u64(..8) {
            0 => OPERATOR,
            _ => self.dice.u64(..PROCESSES as u64) as usize,
        }
    }

    fn kill(&mut self, process: usize) {
        self.world.truth.revoke(process);
        self.processes[process].send(Signal::SIGKILL);
    }

    fn replace(&mut self, process: usize) {
        let status = self.processes[process].wait();
        assert!(
            matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
            "process {process} had failed before it was killed: {status:?}"
        );
        self.stopped.retain(|stopped| stopped.process != process);
        self.kills[Self::role(process)] += 1;
        self.processes[process] = self.start(process);
    }

    /// Kills a few at the same moment, so that those that recover for the dead die as well, and replaces them.
    fn kill_some(&mut self) {
        let mut condemned: Vec<usize> = (0..=self.dice.u64(..4)).map(|_| self.some_process()).collect();
        condemned.sort_unstable();
        condemned.dedup();
        for process in &condemned {
            self.kill(*process);
        }
        for process in condemned {
            self.replace(process);
        }
    }

    /// Stops one wherever it is, perhaps with a lock. It stays stopped for some time, during which it may also be
    /// killed.
    fn stop_one(&mut self) {
        let process = self.some_process();
        if self.stopped.iter().any(|stopped| stopped.process == process) {
            return;
        }
        self.processes[process].send(Signal::SIGSTOP);
        self.processes[process].wait_until_stopped();
        self.stops += 1;
        let longest = u64::try_from(LONGEST_STOP.as_micros()).expect("in range");
        let time = Duration::from_micros(self.dice.u64(..longest));
        self.stopped.push(Stopped {
            process,
            until: Instant::now() + time,
        });
    }

    fn continue_those_until(&mut self, instant: Instant) {
        let world = self.world;
        for stopped in self.stopped.extract_if(.., |stopped| stopped.until <= instant) {
            // Counted before it goes on, because the stop has made its call take longer.
            world.truth.stops(stopped.process).fetch_add(1, Ordering::SeqCst);
            self.processes[stopped.process].send(Signal::SIGCONT);
        }
    }

    /// Kills and stops for this long, and ends with a rest.
    pub fn rage_for(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            let phase = Instant::now();
            let pause = PAUSES[self.dice.u64(..PAUSES.len() as u64) as usize];
            let pause = u64::try_from(pause.as_micros()).expect("in range");
            while phase.elapsed() < RAGE.min(time) {
                match self.dice.u64(..3) {
                    0 => self.stop_one(),
                    _ => self.kill_some(),
                }
                self.continue_those_until(Instant::now());
                // Not to synchronise: the survivors need time to work between the kills.
                std::thread::sleep(Duration::from_micros(self.dice.u64(..pause)));
            }
            self.continue_those_until(phase + TIMEOUT);
            self.wait_until_all_get_on();
            self.let_rest();
        }
        self.raged = began.elapsed();
        self.world.truth.word(Count::IsOver).store(1, Ordering::SeqCst);
        for process in 0..PROCESSES {
            self.kill(process);
            let status = self.processes[process].wait();
            assert!(
                matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
                "{status:?}"
            );
            self.kills[Self::role(process)] += 1;
        }
        check_that_nothing_is_left(self.world, self.segment, self.kills());
    }

    /// Checks that no process hangs: each that is alive gets on. Those that ask the store may have nothing to ask; if
    /// they hang, those that wait for what is leased do, too.
    fn wait_until_all_get_on(&mut self) {
        let truth = &self.world.truth;
        let began = Instant::now();
        let watched = (0..WORKERS).chain([OPERATOR]);
        let before: Vec<(usize, u64)> = watched
            .map(|process| (process, truth.progress(process).load(Ordering::SeqCst)))
            .collect();
        self.wait_for("to get on", |process| {
            let before = before.iter().find(|(watched, _)| *watched == process);
            before.is_none_or(|(_, before)| truth.progress(process).load(Ordering::SeqCst) > *before)
        });
        self.longest_calm = self.longest_calm.max(began.elapsed());
    }

    /// Has all give back what they have. Then nothing may be left.
    fn let_rest(&mut self) {
        let truth = &self.world.truth;
        truth.word(Count::Rest).store(1, Ordering::SeqCst);
        self.wait_for("to give back", |process| {
            let has_nothing = (WORKERS..OPERATOR).contains(&process);
            has_nothing || truth.rests(process).load(Ordering::SeqCst) != 0
        });
        check_that_nothing_is_left(self.world, self.segment, self.kills());
        self.rests += 1;
        truth.word(Count::Rest).store(0, Ordering::SeqCst);
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(usize) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while let Some(process) = (0..PROCESSES).find(|process| !is_so(*process)) {
            assert!(
                !self.processes[process].has_ended(),
                "process {process} had failed, and so never came {what}"
            );
            assert!(
                Instant::now() < deadline,
                "process {process} ({}) hangs: it never came {what}; {:#?}",
                self.processes[process].id(),
                self.segment.snapshot()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn report(&self) {
        let truth = &self.world.truth;
        let get = |count| truth.get(count);
        let time = |count| Duration::from_nanos(get(count));
        let [workers, refreshers, operators] = self.kills;
        println!(
            "{:.1} s: {} kills ({workers} workers, {refreshers} that ask the store, {operators} operators), {} stops, {} rests",
            self.raged.as_secs_f64(),
            self.kills(),
            self.stops,
            self.rests
        );
        println!(
            "admitted: {} plain, {} keyed, {} leased, {} shared, {} of tenants, {} drawn; {} timed out, {} cancelled, {} leases ran out, \
             {} locks found stuck",
            get(Count::AdmittedToPlain),
            get(Count::AdmittedToKeyed),
            get(Count::AdmittedToLeased),
            get(Count::AdmittedToShared),
            get(Count::AdmittedToTenants),
            get(Count::AdmittedToDrawn),
            get(Count::TimedOut),
            get(Count::Cancelled),
            get(Count::LostLeases),
            get(Count::LocksFoundStuck)
        );
        println!(
            "{} applied, {} resets of calls, {} recovered; {} moments at which all that was held was known",
            get(Count::Applied),
            get(Count::ResetsBegun),
            get(Count::Recovered),
            get(Count::Moments)
        );
        println!(
            "worst stall {:?}; worst wait {:?} plain, {:?} keyed, {:?} leased, {:?} shared, {:?} of tenants, {:?} drawn; all got on within {:?}",
            time(Count::LongestStall),
            time(Count::LongestWaitForPlain),
            time(Count::LongestWaitForKeyed),
            time(Count::LongestWaitForLeased),
            time(Count::LongestWaitForShared),
            time(Count::LongestWaitForTenants),
            time(Count::LongestWaitForDrawn),
            self.longest_calm
        );
        println!("0 violations, 0 hung, 0 leaked");
    }
}
