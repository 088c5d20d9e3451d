//! Learning at once that another process has died: its pidfd (Linux 5.3) becomes readable.
//!
//! One thread of this process polls for all waiters that watch a process. It starts with the first of them and ends
//! after there has been none for a while. A descriptor is opened once for everybody who watches the same process, and
//! kept for those who watch it again soon. On older kernels there is no notification, and waiters find out by
//! checking now and then.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::futex;
use crate::mutex::lock;
use crate::shm::file::region::Mapped;
use crate::shm::process::background_thread;
use crate::shm::process::fork_identity::PerProcess;

/// How many processes one watch covers; the deaths of others are not reported to it.
pub(crate) const MAX_PROCESSES: usize = 64;

/// Beyond this many descriptors, those that nobody watches are closed at once.
const MAX_DESCRIPTORS: usize = 128;

/// How long the thread stays when there is nothing to watch, in milliseconds.
const LINGER: u16 = 10_000;

/// Until it is dropped, advances a waiter futex when one of several processes dies.
#[derive(Debug)]
pub(crate) struct DeathWatch {
    number: u64,
    has_fired: Arc<AtomicBool>,
}

/// The result of a request to watch processes.
#[derive(Debug)]
pub(crate) enum Watched {
    /// The waiter futex will be advanced.
    Watching(DeathWatch),
    /// One of them is dead already.
    DeadAlready,
    /// The kernel does not support it, or has no descriptor or thread left.
    Unable,
}

#[derive(Debug)]
struct Watch {
    pids: Vec<u64>,
    futex: Mapped<AtomicU64>,
    has_fired: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Watcher {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    descriptors: HashMap<u64, Arc<OwnedFd>>,
    watches: HashMap<u64, Watch>,
    latest: u64,
    /// Becomes readable when the descriptors change; `Some` while the thread runs.
    changed: Option<Arc<EventFd>>,
}

static WATCHER: PerProcess<Watcher> = PerProcess::new();

/// Advances the word in `futex` as soon as one of the processes dies.
pub(crate) fn wake_on_death(pids: &[u64], futex: Mapped<AtomicU64>) -> Watched {
    let Ok(watcher) = WATCHER.get() else {
        return Watched::Unable;
    };
    let pids = &pids[..pids.len().min(MAX_PROCESSES)];
    let mut state = watcher.lock();
    let mut has_opened = false;
    for pid in pids {
        if state.descriptors.contains_key(pid) {
            continue;
        }
        match open(*pid) {
            Ok(descriptor) => {
                state.descriptors.insert(*pid, Arc::new(descriptor));
                has_opened = true;
            }
            Err(error) => {
                // Nobody polls the descriptors opened here, and nobody would close them.
                state.close_unwatched();
                return if error == Errno::SRCH {
                    Watched::DeadAlready
                } else {
                    Watched::Unable
                };
            }
        }
    }
    state.latest = state.latest.wrapping_add(1);
    let number = state.latest;
    let has_fired = Arc::default();
    let watch = Watch {
        pids: pids.to_vec(),
        futex,
        has_fired: Arc::clone(&has_fired),
    };
    state.watches.insert(number, watch);
    if has_opened && state.descriptors.len() > MAX_DESCRIPTORS {
        state.close_unwatched();
    }
    let Ok(changed) = state.running_thread(watcher) else {
        state.watches.remove(&number);
        return Watched::Unable;
    };
    if has_opened {
        // This only fails if the event is full, and then the thread is about to look anyway.
        let _ = changed.write(1);
    }
    Watched::Watching(DeathWatch { number, has_fired })
}

impl DeathWatch {
    /// Whether the waiter futex was advanced.
    pub(crate) fn has_fired(&self) -> bool {
        self.has_fired.load(Ordering::Acquire)
    }
}

impl Drop for DeathWatch {
    fn drop(&mut self) {
        // A forked child has none of its parent's watches.
        if let Ok(watcher) = WATCHER.get() {
            watcher.lock().watches.remove(&self.number);
        }
    }
}

impl State {
    /// The event that wakes the thread. Starts the thread if there is none.
    fn running_thread(&mut self, watcher: &'static Watcher) -> io::Result<Arc<EventFd>> {
        if let Some(changed) = &self.changed {
            return Ok(Arc::clone(changed));
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let changed = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let event = Arc::clone(&changed);
        background_thread::start("shmlimit-deaths", move || watcher.run(&event))?;
        self.changed = Some(Arc::clone(&changed));
        Ok(changed)
    }

    fn close_unwatched(&mut self) {
        let watches = &self.watches;
        self.descriptors
            .retain(|pid, _| watches.values().any(|watch| watch.pids.contains(pid)));
    }

    /// Notifies all watches on `pid`.
    fn wake_for(&mut self, pid: u64) {
        for watch in self
            .watches
            .values_mut()
            .filter(|watch| watch.pids.contains(&pid))
        {
            watch.pids.retain(|watched| *watched != pid);
            watch.has_fired.store(true, Ordering::Release);
            if let Some(futex) = watch.futex.first() {
                futex::bump(futex);
                futex::wake_all(futex);
            }
        }
    }
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn run(&self, changed: &EventFd) {
        loop {
            let descriptors: Vec<(u64, Arc<OwnedFd>)> = self
                .lock()
                .descriptors
                .iter()
                .map(|(pid, descriptor)| (*pid, Arc::clone(descriptor)))
                .collect();
            let mut polled = vec![PollFd::new(changed.as_fd(), PollFlags::POLLIN)];
            polled.extend(
                descriptors
                    .iter()
                    .map(|(_, descriptor)| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)),
            );
            let answer = poll(&mut polled, PollTimeout::from(LINGER));
            let is_ready = |polled: &PollFd<'_>| polled.any().unwrap_or(true);
            if is_ready(&polled[0]) {
                let _ = changed.read();
            }
            let mut state = self.lock();
            for ((pid, descriptor), _) in descriptors
                .iter()
                .zip(&polled[1..])
                .filter(|(_, polled)| is_ready(polled))
            {
                let is_the_same = |open: &Arc<OwnedFd>| Arc::ptr_eq(open, descriptor);
                if state.descriptors.get(pid).is_some_and(is_the_same) {
                    state.descriptors.remove(pid);
                    state.wake_for(*pid);
                }
            }
            if answer == Ok(0) {
                state.close_unwatched();
                if state.watches.is_empty() {
                    state.changed = None;
                    return;
                }
            }
        }
    }
}

/// A descriptor of the process; the kernel makes it close-on-exec.
fn open(pid: u64) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(Errno::INVAL)?;
    pidfd_open(pid, PidfdFlags::empty())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::super::death_watch::*;
    use crate::shm::file::region::Region;

    #[test]
    fn a_waiter_wakes_when_one_of_the_processes_dies() {
        let region = Arc::new(Region::private(4096).expect("memory"));
        let futex = || region.mapped_words(8, 1).expect("within");
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a child");
        let pids = [u64::from(child.id()), u64::from(std::process::id())];
        let Watched::Watching(_watch) = wake_on_death(&pids, futex()) else {
            // A kernel before 5.3.
            child.kill().expect("alive");
            child.wait().expect("reaped");
            return;
        };
        let word = futex();
        let seen = futex::value(&word[0]);
        child.kill().expect("alive");
        let deadline = Instant::now() + Duration::from_secs(60);
        while futex::value(&word[0]) == seen {
            assert!(Instant::now() < deadline, "nothing rings");
            futex::wait(&word[0], seen, Duration::from_secs(1));
        }
        child.wait().expect("reaped");
        assert!(matches!(wake_on_death(&pids[..1], futex()), Watched::DeadAlready));
    }
}
