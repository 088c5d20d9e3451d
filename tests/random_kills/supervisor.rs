//! The supervisor, which kills, stops and restarts workers.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use shmlimit::Segment;

use crate::scene::process::{Child, TIMEOUT, eventually};
use crate::truth::Truth;
use crate::work;

const KILLS_PER_PHASE: u64 = 500;
const ROUNDS_PER_STOP: u64 = 16;

/// How many ids there are for the processes of a namespace that reuses them.
const IDS: u64 = 24;

/// Some workers, and what restarts them.
pub struct Supervisor<'a> {
    truth: &'a Truth,
    path: &'a Path,
    /// The segment that some of the workers inherit; the others open it.
    inherited: &'a Segment,
    /// The number of the first worker.
    first: usize,
    workers: Vec<Child>,
    dice: Rng,
    /// Whether processes are given the same few ids again and again, in a namespace of their own.
    reuses_ids: bool,
    pub kills: u64,
    pub stops: u64,
}

impl<'a> Supervisor<'a> {
    pub fn new(truth: &'a Truth, path: &'a Path, inherited: &'a Segment, seed: u64) -> Self {
        Self {
            truth,
            path,
            inherited,
            first: 0,
            workers: Vec::new(),
            dice: Rng::with_seed(seed),
            reuses_ids: false,
            kills: 0,
            stops: 0,
        }
    }

    /// Makes this the supervisor of workers in a PID namespace of their own, whose numbers begin with `first`.
    pub fn in_namespace(self, first: usize) -> Self {
        Self {
            first,
            reuses_ids: true,
            ..self
        }
    }

    pub fn start_all(&mut self, count: usize) {
        for worker in 0..count {
            let child = self.start(worker);
            self.workers.push(child);
        }
    }

    fn start(&mut self, worker: usize) -> Child {
        let number = self.first + worker;
        self.truth.restart(number);
        let seed = self.dice.u64(..);
        let inherited = (self.dice.u64(..2) == 0).then(|| self.inherited.clone());
        if self.reuses_ids {
            // The next process gets the first id above this that no process has. Where that cannot be chosen, ids are small
            // in each namespace all the same.
            let last = (2 + self.dice.u64(..IDS)).to_string();
            let _ = fs::write("/proc/sys/kernel/ns_last_pid", last);
        }
        Child::fork(|| work(self.truth, number, inherited, self.path, seed))
    }

    fn some(&mut self, max: u64) -> Vec<usize> {
        let count = 1 + self.dice.u64(..max) as usize;
        let first = self.dice.u64(..self.workers.len() as u64) as usize;
        (first..first + count)
            .map(|worker| worker % self.workers.len())
            .collect()
    }

    fn replace(&mut self, worker: usize) {
        assert!(
            matches!(
                self.workers[worker].wait(),
                WaitStatus::Signaled(_, Signal::SIGKILL, _)
            ),
            "worker {} had failed before it was killed",
            self.first + worker
        );
        self.kills += 1;
        self.workers[worker] = self.start(worker);
    }

    /// Kills a few at the same moment, so that processes that recover for the dead die as well, and replaces them.
    fn kill_some(&mut self) {
        let condemned = self.some(4);
        for worker in &condemned {
            self.truth.revoke(self.first + worker);
        }
        for worker in &condemned {
            self.workers[*worker].send(Signal::SIGKILL);
        }
        for worker in condemned {
            self.replace(worker);
        }
    }

    /// Stops a few wherever they are, perhaps with the lock, while the others give back: often for longer than a call
    /// without a result waits for a lock. Some of them are killed while they are stopped, and the others go on.
    fn stop_some(&mut self) {
        let stopped = self.some(2);
        for worker in &stopped {
            self.workers[*worker].send(Signal::SIGSTOP);
            self.workers[*worker].wait_until_stopped();
        }
        // Not to synchronise: the others need time to run into what the stopped ones have.
        std::thread::sleep(Duration::from_millis(self.dice.u64(..30)));
        for worker in stopped {
            self.stops += 1;
            if self.dice.u64(..4) == 0 {
                self.truth.revoke(self.first + worker);
                self.workers[worker].send(Signal::SIGKILL);
                self.replace(worker);
            } else {
                self.workers[worker].send(Signal::SIGCONT);
            }
        }
    }

    /// Checks that no process hangs: every live worker gets on.
    fn wait_for_progress_of_all(&self) {
        for worker in self.first..self.first + self.workers.len() {
            let progress = self.truth.progress(worker);
            let before = progress.load(Ordering::Relaxed);
            eventually(&format!("worker {worker} got on"), || {
                progress.load(Ordering::Relaxed) > before
            });
        }
    }

    /// Goes on for this long, and until there were enough kills and each lock has lost an owner. Kills all workers in
    /// the end.
    pub fn kill_for(&mut self, time: Duration, min_kills: u64) {
        let started = Instant::now();
        let mut next_phase = KILLS_PER_PHASE;
        // Few of the killed hold a lock, so a slow machine may need longer until each lock has lost an owner.
        let is_short = |kills| {
            started.elapsed() < time
                || kills < min_kills
                || started.elapsed() < TIMEOUT && !each_lock_lost_an_owner(self.inherited)
        };
        while is_short(self.kills) {
            self.kill_some();
            if self.dice.u64(..ROUNDS_PER_STOP) == 0 {
                self.stop_some();
            }
            if self.kills >= next_phase {
                self.wait_for_progress_of_all();
                next_phase = self.kills + KILLS_PER_PHASE;
            }
            // Not to synchronise: the survivors need time to work between the kills.
            std::thread::sleep(Duration::from_micros(self.dice.u64(..1000)));
        }
        self.wait_for_progress_of_all();
        for (worker, child) in self.workers.drain(..).enumerate() {
            self.truth.revoke(self.first + worker);
            child.kill();
            self.kills += 1;
        }
    }
}

fn each_lock_lost_an_owner(segment: &Segment) -> bool {
    let snapshot = segment.snapshot().expect("a copy");
    snapshot.sets.iter().all(|set| set.counts.recoveries > 0)
}
