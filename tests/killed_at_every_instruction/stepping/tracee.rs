//! A forked child that is stepped one instruction at a time, and killed wherever it stands.
#![allow(unsafe_code, reason = "forks and traces")]

use std::cell::OnceCell;
use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::beside::bystanders::pause_for_a_moment;
use crate::stepping::breakpoint;
use crate::stepping::memory_call::is_at_memory_call;

/// The exit code by which the child says that tracing was refused.
const REFUSED: i32 = 77;

/// How many locks that a thread holds at once a walk over its robust list finds. The library holds one.
const LONGEST_ROBUST_LIST: usize = 16;

/// What became of a child that was allowed to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has stopped after the next instruction, or before or after a system call.
    Moved,
    /// It called [`mark`].
    Mark,
}

/// A place in a run: how many instructions from its beginning and, so that it can be reached at full speed, the address
/// of the next instruction and how many times the run has arrived there.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub instructions: u64,
    pub address: u64,
    pub arrivals: u64,
}

/// A traced child. It is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Tracee {
    pid: Pid,
    /// Where the head of the child's robust list is: in its first thread's control block, for good.
    robust_list_head: OnceCell<Option<u64>>,
    /// The child's other threads, if they were stopped.
    frozen: Vec<Pid>,
}

/// Called in the child: stops it until the tracer lets it go on.
pub fn mark() {
    // A bare system call, so that hardly any instructions outside of the operation are counted as its own.
    // The signal goes to the first thread, which this is. Any other is not traced and would stop the whole process.
    // SAFETY: sends a signal to this very thread; no memory is involved.
    unsafe { libc::syscall(libc::SYS_tkill, libc::getpid(), libc::SIGSTOP) };
}

impl Tracee {
    /// Forks a child that runs `body`, and stops before that. The calling process has only one thread, so the child may
    /// do whatever the parent may.
    pub fn start(body: impl FnOnce()) -> Self {
        // SAFETY: this process is single-threaded (the test target has no harness), so the child inherits no lock
        // that another thread held.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => run_traced(body),
            ForkResult::Parent { child } => {
                let tracee = Self {
                    pid: child,
                    robust_list_head: OnceCell::new(),
                    frozen: Vec::new(),
                };
                match waitpid(child, Some(WaitPidFlag::__WALL)) {
                    Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => {}
                    Ok(WaitStatus::Exited(_, REFUSED)) => panic!(
                        "ptrace is not permitted here, so nothing can be proven: look at kernel.yama.ptrace_scope \
                         and at the seccomp profile of the container (--cap-add=SYS_PTRACE)"
                    ),
                    other => panic!("the child did not stop at its beginning: {other:?}"),
                }
                let options = ptrace::Options::PTRACE_O_EXITKILL | ptrace::Options::PTRACE_O_TRACESYSGOOD;
                ptrace::setoptions(child, options).expect("trace options");
                tracee
            }
        }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Executes one instruction. A system call counts as one.
    pub fn step(&mut self) -> Stop {
        ptrace::step(self.pid, None).expect("a stopped child");
        self.wait()
    }

    /// The address of the next instruction.
    pub fn next_instruction(&self) -> u64 {
        breakpoint::next_instruction(self.pid)
    }

    /// Runs to a place of an earlier run at full speed, from where that run began.
    pub fn run_to_place(&mut self, place: Place) -> Stop {
        if place.instructions == 0 {
            return Stop::Moved;
        }
        if !breakpoint::set(self.pid, place.address) {
            return match (0..place.instructions).all(|_| self.step() == Stop::Moved) {
                true => Stop::Moved,
                false => Stop::Mark,
            };
        }
        // The child may already stand at this address, which is not an arrival.
        let mut stop = self.step();
        let mut arrivals = u64::from(stop == Stop::Moved && self.next_instruction() == place.address);
        while stop == Stop::Moved && arrivals < place.arrivals {
            ptrace::cont(self.pid, None).expect("a stopped child");
            stop = self.wait();
            arrivals += 1;
        }
        breakpoint::clear(self.pid);
        stop
    }

    /// Runs at full speed to where the child takes the lock, a mutex. If the processor has no breakpoints, the child
    /// stays where it is.
    pub fn run_to_lock(&mut self) {
        // The child was forked by this process, so it has everything at the same addresses.
        let lock = libc::pthread_mutex_trylock as *const () as u64;
        if breakpoint::set(self.pid, lock) {
            ptrace::cont(self.pid, None).expect("a stopped child");
            let stop = self.wait();
            assert_eq!(stop, Stop::Moved, "the operation takes no lock");
            assert_eq!(self.next_instruction(), lock, "it stopped elsewhere");
            breakpoint::clear(self.pid);
        }
    }

    /// As [`run_to_lock`](Self::run_to_lock), for a slot lock: `lock` is its offset in the file at `path`, and `free`
    /// makes it free. The lock is taken by an ordinary instruction, so the child stops after it, and what it did is
    /// undone.
    pub fn run_to_slot_lock(&mut self, path: &std::path::Path, lock: usize, free: impl FnOnce()) {
        /// The longest such instruction: prefix, extension, two bytes of opcode, the operand, and a displacement of
        /// four bytes.
        const LONGEST: usize = 10;
        let mut addresses = self.addresses_of_mappings(path);
        addresses.iter_mut().for_each(|address| *address += lock as u64);
        if !breakpoint::watch(self.pid, &addresses) {
            return;
        }
        ptrace::cont(self.pid, None).expect("a stopped child");
        let stop = self.wait();
        assert_eq!(stop, Stop::Moved, "the operation takes no lock");
        breakpoint::clear(self.pid);
        let end = self.next_instruction();
        let mut bytes = [0; LONGEST];
        let start = usize::try_from(end).expect("64 bits") - LONGEST;
        let there = RemoteIoVec {
            base: start,
            len: LONGEST,
        };
        process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &[there]).expect("its code");
        let is_compare_and_exchange =
            |code: &[u8]| matches!(code, [0xf0, 0x0f, 0xb1, ..] | [0xf0, 0x40..0x50, 0x0f, 0xb1, ..]);
        let before = (0..LONGEST)
            .rev()
            .find(|index| is_compare_and_exchange(&bytes[*index..]))
            .expect("the lock is taken by compare and exchange");
        free();
        breakpoint::go_on_at(self.pid, (start + before) as u64);
    }

    /// Runs to the beginning or the end of the next system call, except for those of an allocator.
    pub fn run_to_system_call(&mut self) -> Stop {
        loop {
            ptrace::syscall(self.pid, None).expect("a stopped child");
            let stop = self.wait();
            if stop == Stop::Mark || !is_at_memory_call(self.pid) {
                return stop;
            }
        }
    }

    /// Runs to the next mark at full speed.
    pub fn run_to_mark(&mut self) {
        ptrace::cont(self.pid, None).expect("a stopped child");
        assert_eq!(
            self.wait(),
            Stop::Mark,
            "the child stopped elsewhere than at a mark"
        );
    }

    /// As [`run_to_mark`](Self::run_to_mark), for a child that others may have stopped for good: if they have, says
    /// what became of it.
    pub fn try_to_run_to_mark(&mut self, deadline: Instant) -> Result<(), String> {
        ptrace::cont(self.pid, None).map_err(|error| error.to_string())?;
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => return Ok(()),
                Ok(WaitStatus::StillAlive) if Instant::now() < deadline => pause_for_a_moment(),
                Ok(WaitStatus::StillAlive) => return Err("it does not come to its end".to_owned()),
                other => return Err(format!("it came to an end by itself: {other:?}")),
            }
        }
    }

    /// Lets the threads that were stopped go on.
    pub fn thaw_other_threads(&mut self) {
        for thread in self.frozen.drain(..) {
            ptrace::detach(thread, None).expect("a stopped thread");
        }
    }

    /// Stops all threads of the child but the first, where they sleep, so that whatever happens is done by the first.
    pub fn freeze_other_threads(&mut self) {
        for thread in self.other_threads() {
            while state_of(self.pid, thread) != Some('S') {
                pause_for_a_moment();
            }
            ptrace::attach(thread).expect("a thread of a child");
            let status = waitpid(thread, Some(WaitPidFlag::__WALL));
            assert_eq!(status, Ok(WaitStatus::Stopped(thread, Signal::SIGSTOP)));
            self.frozen.push(thread);
        }
    }

    fn other_threads(&self) -> Vec<Pid> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).expect("the child's threads");
        let names = threads.map(|thread| thread.expect("an entry").file_name());
        names
            .map(|name| Pid::from_raw(name.to_str().and_then(|it| it.parse().ok()).expect("a number")))
            .filter(|thread| *thread != self.pid)
            .collect()
    }

    /// Kills the child where it stands, and returns when it is gone.
    pub fn kill(self) {
        drop(self);
    }

    fn wait(&mut self) -> Stop {
        match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceSyscall(_)) => Stop::Moved,
            Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => Stop::Mark,
            other => panic!("the traced child came to an end by itself: {other:?}"),
        }
    }

    /// Whether the kernel would find the lock word at `address` if the child were killed now: whether it is on the
    /// robust list, or is the operation pending on it. The kernel looks nowhere else, so a lock word with the thread's
    /// id that is not there would stay locked for ever.
    pub fn would_hand_on(&self, address: u64) -> bool {
        let Some(head) = *self.robust_list_head.get_or_init(|| self.find_robust_list()) else {
            return false;
        };
        // struct robust_list_head: the list, the distance from an entry to its lock word, the pending entry.
        let Some([first, distance, pending]) = self.read::<3>(head) else {
            return false;
        };
        let lock_word = |entry: u64| (entry & !1).wrapping_add(distance);
        if pending != 0 && lock_word(pending) == address {
            return true;
        }
        let mut entry = first;
        for _ in 0..LONGEST_ROBUST_LIST {
            if entry & !1 == head {
                return false;
            }
            if lock_word(entry) == address {
                return true;
            }
            let Some([next]) = self.read::<1>(entry & !1) else {
                return false;
            };
            entry = next;
        }
        false
    }

    fn find_robust_list(&self) -> Option<u64> {
        let (mut head, mut length) = (0_u64, 0_usize);
        // SAFETY: the kernel writes one pointer and one size, for which the two variables are large enough.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_get_robust_list,
                self.pid.as_raw(),
                &raw mut head,
                &raw mut length,
            )
        };
        (answer == 0 && head != 0).then_some(head)
    }

    fn read<const WORDS: usize>(&self, address: u64) -> Option<[u64; WORDS]> {
        let mut bytes = [[0_u8; 8]; WORDS];
        let local = bytes.as_flattened_mut();
        let remote = RemoteIoVec {
            base: usize::try_from(address).ok()?,
            len: local.len(),
        };
        let expected = local.len();
        let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(local)], &[remote]).ok()?;
        (read == expected).then(|| bytes.map(u64::from_ne_bytes))
    }

    /// Where the child has mapped the whole file for writing: the mappings that it has inherited from this process, one
    /// of which the library works with, and those that it has made itself.
    pub fn addresses_of_mappings(&self, path: &std::path::Path) -> Vec<u64> {
        addresses_in(&self.pid.to_string(), path)
    }
}

/// The first place at which a process, named as in `/proc`, has mapped the whole file for writing.
pub fn address_in(process: &str, path: &std::path::Path) -> u64 {
    let addresses = addresses_in(process, path);
    *addresses.first().expect("it has mapped the segment")
}

fn addresses_in(process: &str, path: &std::path::Path) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("its mappings");
    maps.lines()
        .filter(|line| {
            line.ends_with(path.to_str().expect("a plain path")) && line.contains(" rw-s 00000000 ")
        })
        .filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok())
        .collect()
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // The child may have ended on its own. Then there is nothing to kill or to wait for.
        let _ = kill(self.pid, Signal::SIGKILL);
        // The first thread is gone only when the others are, and threads that are traced have to be waited for.
        for thread in self.frozen.drain(..).chain([self.pid]) {
            while let Ok(status) = waitpid(thread, Some(WaitPidFlag::__WALL)) {
                if matches!(status, WaitStatus::Signaled(..) | WaitStatus::Exited(..)) {
                    break;
                }
            }
        }
    }
}

/// What a thread is doing according to the process table: `S` for sleeping.
pub fn state_of(process: Pid, thread: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn run_traced(body: impl FnOnce()) -> ! {
    // The child must end when the tracer does, even before the tracer has set its options.
    let bound = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let code = match bound
        .and_then(|()| ptrace::traceme())
        .and_then(|()| raise(Signal::SIGSTOP))
    {
        Err(Errno::EPERM | Errno::EACCES | Errno::ENOSYS) => REFUSED,
        Err(_) => 1,
        Ok(()) => match catch_unwind(AssertUnwindSafe(body)) {
            Ok(()) => 0,
            // The message has been printed.
            Err(_) => 101,
        },
    };
    // SAFETY: ends the process at once, without running the destructors that belong to the parent.
    unsafe { libc::_exit(code) }
}

/// Forks a child that runs `body` untraced, and waits for its end.
pub fn live_and_die(body: impl FnOnce()) {
    // SAFETY: as in `Tracee::start`.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let code = i32::from(catch_unwind(AssertUnwindSafe(body)).is_err());
            // SAFETY: as in `run_traced`.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(
                waitpid(child, None),
                Ok(WaitStatus::Exited(child, 0)),
                "the child failed"
            );
        }
    }
}
