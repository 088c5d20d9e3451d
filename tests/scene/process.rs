//! Real processes for tests: a process of a test's own, forked children that cannot outlive it, and words that all of
//! them share.
#![allow(unsafe_code, reason = "forks, and shares words with its children")]
// Each test file uses a part of it.
#![allow(dead_code)]

use std::fs::File;
use std::io::{Read, Seek};
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

/// How long anything may take before a test gives up: not a claim about speed.
pub const TIMEOUT: Duration = Duration::from_secs(300);

const TEST: &str = "SHMLIMIT_TEST_PROCESS";
const DIRECTORY: &str = "SHMLIMIT_TEST_DIRECTORY";

/// Runs `body` in a process of its own: this test binary, started again for this one test. It may fork there, close
/// descriptors and change namespaces; no other test runs next to it. `body` is given a directory that is removed when
/// the process has ended, however it ended. A process that takes longer than `timeout` is killed, together with
/// whatever it forked.
pub fn in_own_process(test: &str, timeout: Duration, body: impl FnOnce(&Path)) {
    if std::env::var(TEST).is_ok_and(|name| name == test) {
        nix::unistd::alarm::set(u32::try_from(timeout.as_secs()).expect("a timeout in range"));
        let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("set by the starting process"));
        body(&directory);
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut output = tempfile::tempfile().expect("a file for the output");
    let copy = |file: &File| Stdio::from(file.try_clone().expect("a second handle"));
    let mut command = Command::new(std::env::current_exe().expect("a path of the test binary"));
    command
        .args(["--exact", test, "--nocapture"])
        .env(TEST, test)
        .env(DIRECTORY, directory.path())
        .stdin(Stdio::null())
        .stdout(copy(&output))
        .stderr(copy(&output));
    // SAFETY: both calls may be made between fork and exec, and no handler is installed.
    unsafe {
        command.pre_exec(|| {
            set_pdeathsig(Signal::SIGKILL)?;
            // The alarm must end it even if the tests were started with the signal ignored.
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            sigaction(Signal::SIGALRM, &default)?;
            Ok(())
        });
    }
    let status = command.status().expect("the test binary starts again");
    let mut said = String::new();
    output.rewind().expect("a rewound file");
    output.read_to_string(&mut said).expect("text");
    print!("{said}");
    assert!(
        status.success(),
        "the process of `{test}` ended with {status}; it said:\n{said}"
    );
    assert!(
        said.contains("1 passed"),
        "there is no test `{test}` in this binary"
    );
}

/// A forked child, which is killed when this is dropped.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    ended: bool,
}

impl Child {
    /// Forks a child that runs `body` and exits: with 0, or with 101 if `body` panicked. Only for processes whose
    /// other threads hold no locks: see [`in_own_process`].
    pub fn fork(body: impl FnOnce()) -> Self {
        let parent = getpid();
        // SAFETY: the only other thread of the process waits for the test to end and holds no lock.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Parent { child } => Self {
                pid: child,
                ended: false,
            },
            ForkResult::Child => {
                set_pdeathsig(Signal::SIGKILL).expect("a death signal");
                // A parent outside of this process's namespace has no number here.
                let code = if ![parent, Pid::from_raw(0)].contains(&getppid()) {
                    1
                } else if catch_unwind(AssertUnwindSafe(body)).is_ok() {
                    0
                } else {
                    101
                };
                // SAFETY: ends the process at once; what the parent will drop must not be dropped here too.
                unsafe { libc::_exit(code) }
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    pub fn send(&self, signal: Signal) {
        kill(self.pid, signal).expect("the child is not waited for yet");
    }

    /// Waits until the child has ended.
    pub fn wait(&mut self) -> WaitStatus {
        assert!(!self.ended, "waited for twice");
        let status = waitpid(self.pid, None).expect("a child of this process");
        self.ended = true;
        status
    }

    /// Waits until the child has ended, which it must do without a panic.
    pub fn succeed(mut self) {
        let status = self.wait();
        assert_eq!(status, WaitStatus::Exited(self.pid, 0), "the child failed");
    }

    /// Whether the child has ended by now. It still has to be waited for.
    pub fn has_ended(&self) -> bool {
        let looking = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.pid), looking).expect("a child of this process");
        status != WaitStatus::StillAlive
    }

    /// Waits until the child has stopped.
    pub fn wait_until_stopped(&self) {
        let status = waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)).expect("a child of this process");
        assert!(
            matches!(status, WaitStatus::Stopped(..)),
            "the child should have stopped: {status:?}"
        );
    }

    /// Kills the child and waits until it is gone.
    pub fn kill(mut self) {
        self.send(Signal::SIGKILL);
        let status = self.wait();
        assert_eq!(
            status,
            WaitStatus::Signaled(self.pid, Signal::SIGKILL, false),
            "the child had ended before"
        );
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            // Neither can fail for a child that was not waited for.
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

/// Ends the calling process here and now, as a crash would.
pub fn die() -> ! {
    kill(getpid(), Signal::SIGKILL).expect("a process may kill itself");
    unreachable!("killed")
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came to be that {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Words of zero that a process shares with the children it forks from then on.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    count: usize,
}

impl SharedWords {
    pub fn new(count: usize) -> Self {
        let size = NonZeroUsize::new(count * 8).expect("some words");
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            mmap_anonymous(
                None,
                size,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
            )
        };
        Self {
            start: start.expect("a mapping").cast(),
            count,
        }
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `count` zeroed words are mapped at `start`, aligned to a page, until `self` is dropped, and every
        // process uses them as atomics only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start.cast(), self.count * 8) };
    }
}

// SAFETY: the words are atomics, and the mapping belongs to the value, not to a thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}
