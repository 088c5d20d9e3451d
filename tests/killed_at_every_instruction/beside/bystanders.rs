//! The processes beside the victim: those that wait in the queue with it, and one that serves them. They run freely, or
//! are stopped while the victim is stepped.
#![allow(unsafe_code, reason = "forks")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork};
use shmlimit::LimitSet;

use crate::beside::clock;
use crate::operations::subject::Subject;
use crate::operations::{PLACES, SET, admitted, everything};
use crate::state::image::RawFile;
use crate::stepping::tracee::state_of;

/// How long a waiter waits for its turn, and every process for a waiter. It says nothing about speed.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// After this long in the queue, the victim has slept, even if no process saw it.
const LONGER_THAN_A_SLEEP: Duration = Duration::from_millis(300);

/// The most processes that wait in the queue beside a victim.
pub const MAX_WAITERS: usize = 6;

/// Words that the waiters share with the harness: when each of them was served, and whether the victim has finished.
const IS_OVER: usize = MAX_WAITERS;
pub const SHARED_WORDS: usize = MAX_WAITERS + 1;

/// A forked child that is not traced. It is killed when this is dropped.
#[derive(Debug)]
pub struct Bystander {
    pid: Pid,
    has_ended: bool,
}

impl Bystander {
    pub fn start(body: impl FnOnce()) -> Self {
        // SAFETY: this process is single-threaded (the test target has no harness), so the child inherits no lock
        // that another thread held.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                let lived = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).is_ok()
                    && catch_unwind(AssertUnwindSafe(body)).is_ok();
                // SAFETY: ends the process at once, without running the destructors that belong to the parent.
                unsafe { libc::_exit(i32::from(!lived)) }
            }
            ForkResult::Parent { child } => Self {
                pid: child,
                has_ended: false,
            },
        }
    }

    pub fn id(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    fn stop(&self) {
        kill(self.pid, Signal::SIGSTOP).expect("a child of this process");
        let status = waitpid(self.pid, Some(WaitPidFlag::WUNTRACED));
        assert_eq!(status, Ok(WaitStatus::Stopped(self.pid, Signal::SIGSTOP)));
    }

    fn go_on(&self) {
        kill(self.pid, Signal::SIGCONT).expect("a child of this process");
    }

    /// Whether the child ends on its own before the deadline, after it got what it waited for.
    fn succeeds(&mut self, deadline: Instant) -> bool {
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)).expect("a child of this process") {
                WaitStatus::StillAlive if Instant::now() < deadline => pause_for_a_moment(),
                WaitStatus::StillAlive => return false,
                status => {
                    self.has_ended = true;
                    return status == WaitStatus::Exited(self.pid, 0);
                }
            }
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        if !self.has_ended {
            // Neither of these can fail for a child that was not waited for.
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

/// The processes that wait in the queue, in the order in which they came.
pub struct Line<'a> {
    waiters: Vec<Bystander>,
    server: Option<Bystander>,
    /// When each of them got what it waited for.
    admitted_at: &'a RawFile,
}

/// What became of the waiters after a death.
#[derive(Clone, Copy, Debug)]
pub enum HandedOver {
    /// All of them were served, one after the other. The first was served this long after the death, unless that was
    /// earlier.
    ToAll(Option<Duration>),
    /// This many were not served in time.
    NotTo(usize),
}

impl<'a> Line<'a> {
    /// An empty line, whose members will note in `admitted_at` when they were served.
    pub fn new(admitted_at: &'a RawFile) -> Self {
        for word in admitted_at.words() {
            word.store(0, Ordering::Relaxed);
        }
        Self {
            waiters: Vec::new(),
            server: None,
            admitted_at,
        }
    }

    /// Has another process take a ticket for one of everything, and give back what it gets.
    pub fn join(&mut self, path: &Path, subject: impl FnOnce(&LimitSet) -> Subject) {
        let admitted_at = &self.admitted_at.words()[self.waiters.len()];
        self.waiters.push(Bystander::start(|| {
            // The victim may be stepped through everything it does under the lock.
            let options = clock::options().0.lock_timeout(TIMEOUT);
            let segment = options.open(path).expect("the segment");
            let set = segment.set(SET).expect("declared");
            let outcome = subject(&set)
                .acquire(&everything(&set, 1), clock::patience())
                .expect("works");
            let permit = outcome.into_result().expect("served in time");
            admitted_at.store(monotonic_nanos(), Ordering::Release);
            drop(permit);
        }));
    }

    pub fn stop(&self, which: std::ops::Range<usize>) {
        self.waiters[which].iter().for_each(Bystander::stop);
    }

    pub fn go_on(&self, which: std::ops::Range<usize>) {
        self.waiters[which].iter().for_each(Bystander::go_on);
    }

    /// Notes that the victim has been served, perhaps by others: the server need not wait for it any longer.
    pub fn is_over(&self) {
        self.admitted_at.words()[IS_OVER].store(1, Ordering::Release);
    }

    pub fn all_go_on(&self) {
        self.go_on(0..self.waiters.len());
    }

    /// Lets the first `count` of them die, wherever they are.
    pub fn lose(&mut self, count: usize) {
        drop(self.waiters.drain(..count));
    }

    /// Starts a process that takes all places and gives them back as soon as `tickets` are in the queue, the victim's
    /// last, and the victim sleeps or is dead: one place to each of the others, and the rest to the victim. After that,
    /// it does nothing.
    pub fn start_server(&mut self, path: &Path, victim: Pid, tickets: usize) {
        self.server = Some(Bystander::start(|| {
            let segment = clock::options().0.open(path).expect("the segment");
            let set = segment.set(SET).expect("declared");
            let places = |count: u64| everything(&set, 0).with("in_flight", count).expect("declared");
            let others = u64::try_from(tickets).expect("few") - 1;
            let mut permits = vec![admitted(&set, &places(PLACES - others))];
            permits.extend((0..others).map(|_| admitted(&set, &places(1))));
            let count = || {
                segment.snapshot().expect("memory for a copy").sets[0]
                    .tickets
                    .len()
            };
            let mut in_line_since = None;
            let is_over = &self.admitted_at.words()[IS_OVER];
            while !is_gone(victim) && is_over.load(Ordering::Acquire) == 0 {
                if count() == tickets {
                    let since = in_line_since.get_or_insert_with(Instant::now);
                    // The victim sleeps only for a moment at a time, which is easily missed.
                    if is_asleep(victim) || since.elapsed() > LONGER_THAN_A_SLEEP {
                        break;
                    }
                }
                pause_for_a_moment();
            }
            for permit in permits.iter_mut().rev() {
                permit.release().expect("works");
            }
            drop(permits);
            // The process ends while it is still attached.
            std::mem::forget((set, segment));
        }));
    }

    /// Waits until all of them have been served, after a process was killed at `killed_at`.
    pub fn is_served(&mut self, killed_at: u64) -> HandedOver {
        let deadline = Instant::now() + TIMEOUT;
        if let Some(server) = &mut self.server {
            assert!(server.succeeds(deadline), "the server gives everything back");
        }
        let mut left_out = 0;
        for waiter in &mut self.waiters {
            left_out += usize::from(!waiter.succeeds(deadline));
        }
        if left_out > 0 {
            return HandedOver::NotTo(left_out);
        }
        let times = self.admitted_at.words()[..MAX_WAITERS]
            .iter()
            .map(|word| word.load(Ordering::Acquire));
        let first = times.filter(|time| *time > 0).min();
        HandedOver::ToAll(
            first
                .and_then(|first| first.checked_sub(killed_at))
                .map(Duration::from_nanos),
        )
    }
}

fn is_asleep(pid: Pid) -> bool {
    state_of(pid, pid) == Some('S')
}

fn is_gone(pid: Pid) -> bool {
    matches!(state_of(pid, pid), None | Some('Z' | 'X'))
}

pub fn pause_for_a_moment() {
    std::thread::sleep(Duration::from_micros(50));
}

/// The time of a clock that all processes share.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    u64::try_from(Duration::from(now).as_nanos()).expect("not for centuries")
}
