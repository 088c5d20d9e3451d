//! The worker processes: forked, watched, replaced and ended by a parent that never starts a thread.
#![allow(unsafe_code, reason = "forks, and waits for signals")]

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::{process, ptr};

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

use crate::Failure;

/// How long a worker may take to finish its requests.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A worker that lives no longer than this is not replaced: the next one would fare no better.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);

/// A worker process and its place, which it passes on to its replacement.
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    pub pid: Pid,
    pub place: usize,
    born: Instant,
}

/// A worker that has ended, how it ended, and its replacement.
#[derive(Clone, Copy, Debug)]
pub struct Replaced {
    pub old: Worker,
    pub new: Worker,
    pub status: WaitStatus,
}

/// All worker processes. None of them outlives this value.
pub struct Crew<'a> {
    work: Box<dyn Fn() -> Result<(), Failure> + 'a>,
    workers: Vec<Worker>,
}

impl<'a> Crew<'a> {
    /// Forks `count` workers that each do `work`.
    pub fn start(count: usize, work: impl Fn() -> Result<(), Failure> + 'a) -> Result<Self, Failure> {
        let mut crew = Self {
            work: Box::new(work),
            workers: Vec::new(),
        };
        for place in 0..count {
            crew.hire(place)?;
        }
        Ok(crew)
    }

    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    fn hire(&mut self, place: usize) -> Result<Worker, Failure> {
        let worker = Worker {
            pid: fork_child(&self.work)?,
            place,
            born: Instant::now(),
        };
        self.workers.push(worker);
        Ok(worker)
    }

    /// If `old` has ended, replaces it with a new worker.
    pub fn replace_if_ended(&mut self, old: Worker) -> Result<Option<Replaced>, Failure> {
        let status = waitpid(old.pid, Some(WaitPidFlag::WNOHANG))?;
        if !matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
            return Ok(None);
        }
        self.workers.retain(|worker| worker.pid != old.pid);
        if old.born.elapsed() < SHORTEST_LIFE
            && !matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _))
        {
            return Err(format!("worker {} ended right after its start: {status:?}", old.pid).into());
        }
        let new = self.hire(old.place)?;
        Ok(Some(Replaced { old, new, status }))
    }

    /// Replaces all workers that have ended.
    pub fn replace_ended(&mut self) -> Result<Vec<Replaced>, Failure> {
        let mut replaced = Vec::new();
        for worker in self.workers.clone() {
            replaced.extend(self.replace_if_ended(worker)?);
        }
        Ok(replaced)
    }

    /// Tells all workers to finish, and waits for them. Those that take too long are killed when the crew is dropped.
    pub fn end(&mut self) -> Result<(), Failure> {
        for worker in &self.workers {
            kill(worker.pid, Signal::SIGTERM)?;
        }
        let deadline = Instant::now() + TIMEOUT;
        while !self.workers.is_empty() && Instant::now() < deadline {
            let mut left = Vec::new();
            for worker in &self.workers {
                if waitpid(worker.pid, Some(WaitPidFlag::WNOHANG))? == WaitStatus::StillAlive {
                    left.push(*worker);
                }
            }
            self.workers = left;
            if !self.workers.is_empty() {
                wait_for_signal(&SigSet::from(Signal::SIGCHLD), Duration::from_millis(100))?;
            }
        }
        Ok(())
    }
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        for worker in &self.workers {
            // Whether or not it has ended, this process has not waited for it yet, so no other process can have its id.
            let _ = kill(worker.pid, Signal::SIGKILL);
            let _ = waitpid(worker.pid, None);
        }
    }
}

/// Blocks the signals that [`wait_for_signal`] takes, so that none is missed between two calls.
pub fn block_signals() -> Result<SigSet, Failure> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(signals)
}

/// Waits for the next of these signals. Returns `None` if none arrives in time.
pub fn wait_for_signal(signals: &SigSet, timeout: Duration) -> Result<Option<Signal>, Failure> {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().try_into()?,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the set and the timeout are initialised and outlive the call, and a null siginfo is allowed.
    let number = unsafe { libc::sigtimedwait(signals.as_ref(), ptr::null_mut(), &timeout) };
    match Errno::result(number) {
        Ok(number) => Ok(Some(Signal::try_from(number)?)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Runs `work` in a child process that dies with this one.
pub fn fork_child(work: impl FnOnce() -> Result<(), Failure>) -> Result<Pid, Failure> {
    // Otherwise both processes would print what is still in the buffer.
    io::stdout().flush()?;
    let parent = getpid();
    // SAFETY: this process has never started a thread (only children make runtimes), so no lock in the child's copy of
    // memory is held by a thread that the child does not have. The child may therefore do whatever the parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                set_pdeathsig(Signal::SIGKILL)?;
                if getppid() != parent {
                    return Ok(());
                }
                // SIGINT stays blocked: Ctrl-C reaches every process of the terminal, but it is the parent that ends
                // the others.
                SigSet::from(Signal::SIGTERM).thread_unblock()?;
                work()
            }));
            // The child exits here and never returns, because it must not clean up what the parent's callers would
            // drop.
            process::exit(match outcome {
                Ok(Ok(())) => 0,
                Ok(Err(error)) => {
                    eprintln!("process {}: {error}", process::id());
                    1
                }
                Err(_) => 101,
            })
        }
    }
}
