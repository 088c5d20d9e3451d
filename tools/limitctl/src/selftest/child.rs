//! Child processes for the checks: forked, controlled through pipes, and killed.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

use crate::diagnosis::{Activity, activity};
use crate::exit::Failure;

/// Longer than anything here takes when it works.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A child process, which is killed when this is dropped, if not before.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    orders: PipeWriter,
    reports: PipeReader,
    is_gone: bool,
}

/// The child's side of the pipes.
#[derive(Debug)]
pub struct Part {
    orders: PipeReader,
    reports: PipeWriter,
}

impl Child {
    /// Forks a child that runs `play` and then ends. The child is killed when this process ends.
    ///
    /// The process must have only one thread. This program does, as long as it does not wait for a limit itself.
    pub fn start(play: impl FnOnce(&mut Part) -> Result<(), Failure>) -> Result<Self, Failure> {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // A process that ignores SIGCHLD cannot wait for its children, and this one may have been started in that
        // state.
        // SAFETY: this installs no handler, so no code runs in a signal context.
        unsafe { sigaction(Signal::SIGCHLD, &default) }.map_err(|errno| failed("sigaction", errno))?;
        let pipe = || io::pipe().map_err(|error| Failure::of_system(&error, "cannot make a pipe"));
        let (orders_read, orders) = pipe()?;
        let (reports, reports_write) = pipe()?;
        let parent = getpid();
        // SAFETY: this process has one thread, so no lock in the child's copy of its memory is held by a thread that
        // does not exist there. The child leaves through `_exit`, so the parent's exit handlers do not run twice.
        match unsafe { fork() }.map_err(|errno| failed("fork", errno))? {
            ForkResult::Parent { child } => Ok(Self {
                pid: child,
                orders,
                reports,
                is_gone: false,
            }),
            ForkResult::Child => {
                drop((orders, reports));
                let mut part = Part {
                    orders: orders_read,
                    reports: reports_write,
                };
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    let is_bound = prctl::set_pdeathsig(Signal::SIGKILL).is_ok() && getppid() == parent;
                    is_bound && play(&mut part).is_ok()
                }));
                // SAFETY: the call ends the process at once, without running inherited exit handlers.
                unsafe { libc::_exit(i32::from(!matches!(outcome, Ok(true)))) }
            }
        }
    }

    pub fn pid(&self) -> u64 {
        u64::try_from(self.pid.as_raw()).unwrap_or_default()
    }

    /// Tells the child to go on.
    pub fn order(&mut self) -> Result<(), Failure> {
        let written = self.orders.write_all(&[0]);
        written.map_err(|error| Failure::of_system(&error, "a child does not listen"))
    }

    /// Waits for the child's next report.
    pub fn report(&mut self) -> Result<u64, Failure> {
        let mut fds = [PollFd::new(self.reports.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(DEADLINE).unwrap_or(PollTimeout::MAX);
        if poll(&mut fds, timeout).map_err(|errno| failed("poll", errno))? == 0 {
            return Err(wrong("a child did not finish its part: nothing woke it"));
        }
        let mut bytes = [0; 8];
        let read = self.reports.read_exact(&mut bytes);
        read.map_err(|error| Failure::of_system(&error, "a child ended in the middle of its part"))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Stops the child, and waits until it has stopped.
    pub fn stop(&self) -> Result<(), Failure> {
        self.signal(Signal::SIGSTOP)?;
        match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(..)) => Ok(()),
            other => Err(wrong(format!("a child that was stopped did not stop: {other:?}"))),
        }
    }

    pub fn go_on(&self) -> Result<(), Failure> {
        self.signal(Signal::SIGCONT)
    }

    /// Kills the child without waiting for it. Returns the time of the kill.
    pub fn kill(&self) -> Result<u64, Failure> {
        let at = now();
        self.signal(Signal::SIGKILL)?;
        Ok(at)
    }

    /// Waits until the child sleeps in the kernel.
    pub fn wait_until_it_sleeps(&self) -> Result<(), Failure> {
        eventually("a child sleeps", || {
            let pid = self.pid.as_raw().unsigned_abs().into();
            Ok(activity(pid) == Some(Activity::Other('S')))
        })
    }

    /// Whether the child is alive and executes a program of this name.
    pub fn executes(&self, name: &str) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        status.contains(&format!("({name}) ")) && !status.contains(") Z ")
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        kill(self.pid, signal).map_err(|errno| failed("kill", errno))
    }

    /// Kills the child if it still exists, and waits until it is gone.
    pub fn end(mut self) {
        self.bury();
    }

    fn bury(&mut self) {
        if !self.is_gone {
            self.is_gone = true;
            // The child may have ended by itself, but this process must still wait for it.
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.bury();
    }
}

impl Part {
    /// The pipe with the parent's orders, for a program that this process executes.
    pub fn orders(&self) -> Result<PipeReader, Failure> {
        let orders = self.orders.try_clone();
        orders.map_err(|error| Failure::of_system(&error, "cannot hand on a pipe"))
    }

    /// Waits until the parent says to go on.
    pub fn wait_for_order(&mut self) -> Result<(), Failure> {
        let read = self.orders.read_exact(&mut [0]);
        read.map_err(|error| Failure::of_system(&error, "the parent is gone"))
    }

    /// Forks a child that outlives this process, and ends when this process's parent gives an order or closes the pipe.
    /// Returns the child's process id.
    pub fn start_orphan(&mut self) -> Result<u64, Failure> {
        // SAFETY: as in `Child::start`.
        match unsafe { fork() }.map_err(|errno| failed("fork", errno))? {
            ForkResult::Parent { child } => Ok(u64::try_from(child.as_raw()).unwrap_or_default()),
            ForkResult::Child => {
                // The end of the pipe counts as an order, too.
                let _ = self.wait_for_order();
                // SAFETY: as in `Child::start`.
                unsafe { libc::_exit(0) }
            }
        }
    }

    pub fn report(&mut self, value: u64) -> Result<(), Failure> {
        let written = self.reports.write_all(&value.to_ne_bytes());
        written.map_err(|error| Failure::of_system(&error, "the parent is gone"))
    }
}

/// The monotonic clock, in nanoseconds: the same in all processes.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits for a condition that must come true.
pub fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let deadline = Instant::now() + DEADLINE;
    while !holds()? {
        if Instant::now() > deadline {
            return Err(wrong(format!("it never happened that {what}")));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// A failed expectation.
pub fn wrong(what: impl Into<String>) -> Failure {
    Failure::problem(what)
}

fn failed(call: &str, errno: Errno) -> Failure {
    Failure::of_system(&errno.into(), format_args!("the system refuses {call}"))
}
