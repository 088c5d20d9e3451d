//! What the kernel says about this boot, its namespaces and its processes.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::fork_identity::IdentityPage;

/// The boot and the namespaces that give this process's process ids, thread ids and boot-time clock their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIdentity {
    /// The two halves of the kernel's random boot id; zeros if the kernel does not say, as in a systemd unit with
    /// `ProcSubset=pid`.
    pub(crate) boot_id: [u64; 2],
    /// Inode of the PID namespace; zero if the kernel does not say.
    pub(crate) pid_namespace: u64,
    /// Inode of the time namespace; zero if the kernel has none or does not say.
    pub(crate) time_namespace: u64,
}

impl HostIdentity {
    /// Where this process runs. What this kernel does not have is zero. If something just cannot be read now, for
    /// want of a descriptor or memory, that is an error: otherwise the segment would be taken for one of another
    /// boot.
    pub(crate) fn current() -> io::Result<Self> {
        let time_namespace = namespace("/proc/self/ns/time")?;
        note_time_namespace(time_namespace);
        Ok(Self {
            boot_id: boot_id()?,
            pid_namespace: pid_namespace()?,
            time_namespace,
        })
    }
}

/// The PID namespace of this process, which never changes; zero if the kernel does not say.
pub(super) fn pid_namespace() -> io::Result<u64> {
    namespace("/proc/self/ns/pid")
}

/// Begins another era of the clocks if this process was in another time namespace before. Only a single-threaded
/// process can change its time namespace, so no other thread reads the clock meanwhile.
fn note_time_namespace(inode: u64) {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    if LATEST.swap(inode, Ordering::Relaxed) != inode
        && let Ok(page) = IdentityPage::get()
    {
        page.begin_clock_era();
    }
}

fn boot_id() -> io::Result<[u64; 2]> {
    let text = if_there(fs::read_to_string("/proc/sys/kernel/random/boot_id"))?.unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |digits| u64::from_str_radix(digits, 16).unwrap_or(0);
    Ok(digits
        .split_at_checked(16)
        .map_or([0; 2], |(high, low)| [half(high), half(low)]))
}

fn namespace(path: &str) -> io::Result<u64> {
    Ok(if_there(fs::metadata(path))?.map_or(0, |metadata| metadata.ino()))
}

/// `None` if there is no such file.
fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a process is running, as far as the process table can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessOpinion {
    /// The process with this id started when it should have.
    Alive,
    /// There is no such process, or another one has taken its id.
    Dead,
    /// The process table does not say: `/proc` is hidden, not mounted, or another namespace's.
    Unknown,
}

/// Looks up a process by id and start time, both as seen from this process's namespace.
pub(crate) fn process_opinion(pid: u64, start_time: u64) -> ProcessOpinion {
    let Ok(id) = i32::try_from(pid) else {
        return ProcessOpinion::Dead;
    };
    if id <= 0 {
        return ProcessOpinion::Dead;
    }
    let status = if shows_own_namespace() {
        task_status(&id.to_string())
    } else {
        None
    };
    match status {
        // A process that could not tell when it started may be this one.
        Some(status) if start_time != 0 && status.start_time != start_time => ProcessOpinion::Dead,
        // The first thread of a process may end before the others, and then shows as a zombie.
        Some(status) if status.is_zombie && status.threads <= 1 => ProcessOpinion::Dead,
        Some(_) if start_time != 0 => ProcessOpinion::Alive,
        _ => match kill(Pid::from_raw(id), None) {
            Err(Errno::ESRCH) => ProcessOpinion::Dead,
            _ => ProcessOpinion::Unknown,
        },
    }
}

/// When this process started, in clock ticks since boot; zero if `/proc` does not say.
pub(crate) fn own_start_time() -> u64 {
    task_status("self").map_or(0, |status| status.start_time)
}

/// Whether the numbers in `/proc` are those of this process's namespace.
pub(super) fn shows_own_namespace() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
}

/// Whether a process maps the file with that inode; `None` if the kernel does not let this process see.
///
/// Devices are not compared, because some file systems show a different one here than to `fstat`.
pub(crate) fn maps_file(pid: u64, inode: u64) -> Option<bool> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    if maps.is_empty() {
        return None;
    }
    // proc_pid_maps(5): address, permissions, offset, device, inode, path.
    let inode = inode.to_string();
    Some(maps.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        fields.nth(4) == Some(inode.as_bytes())
    }))
}

/// This process's name in the kernel.
pub(crate) fn own_name() -> String {
    fs::read_to_string("/proc/self/comm").map_or_else(|_| String::new(), |name| name.trim_end().to_owned())
}

/// The process that a thread belongs to.
pub(crate) fn process_of_thread(thread: u32) -> Option<u32> {
    if !shows_own_namespace() {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// What the kernel says about a process or a thread.
pub(super) struct TaskStatus {
    is_zombie: bool,
    is_exiting: bool,
    has_memory: bool,
    /// Threads of the whole process.
    pub(super) threads: u64,
    pub(super) start_time: u64,
}

impl TaskStatus {
    /// Whether the thread will never run code of its program again. Both the kernel's own flag and the loss of its
    /// memory must say so, so that neither is believed alone if a kernel or a sandbox shows something else in its
    /// place.
    pub(super) fn has_ended(&self) -> bool {
        self.is_exiting && !self.has_memory
    }
}

/// `task` is a process id, `self`, or a thread's path below `/proc`.
pub(super) fn task_status(task: &str) -> Option<TaskStatus> {
    /// The kernel's `PF_EXITING`.
    const EXITING: u64 = 4;
    let bytes = fs::read(format!("/proc/{task}/stat")).ok()?;
    // The second field is the name in parentheses, which may itself contain spaces and parentheses.
    let after_name = bytes.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(bytes.get(after_name + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    // proc_pid_stat(5): state is field 3, flags field 9, num_threads field 20, starttime field 22, vsize field 23.
    Some(TaskStatus {
        is_zombie: matches!(*fields.first()?, "Z" | "X" | "x"),
        is_exiting: number(9)? & EXITING != 0,
        has_memory: number(23)? != 0,
        threads: number(20)?,
        start_time: number(22)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::host::*;

    #[test]
    fn this_process_is_alive_and_its_neighbour_in_time_is_not() {
        let pid = u64::from(std::process::id());
        let started = own_start_time();
        assert_ne!(started, 0);
        assert_eq!(process_opinion(pid, started), ProcessOpinion::Alive);
        assert_eq!(process_opinion(pid, started + 1), ProcessOpinion::Dead);
        assert_eq!(process_opinion(u64::MAX, 0), ProcessOpinion::Dead);
        assert_eq!(process_opinion(0, 0), ProcessOpinion::Dead);
    }

    #[test]
    fn nothing_is_said_of_a_process_that_did_not_know_when_it_started() {
        let pid = u64::from(std::process::id());
        assert_eq!(process_opinion(pid, 0), ProcessOpinion::Unknown);
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let started = loop {
            match task_status(&child.id().to_string()) {
                Some(status) if status.is_zombie => break status.start_time,
                _ => assert!(std::time::Instant::now() < deadline, "the child never ended"),
            }
            std::thread::yield_now();
        };
        assert_eq!(
            process_opinion(u64::from(child.id()), started),
            ProcessOpinion::Dead
        );
        child.wait().expect("reaped");
    }

    #[test]
    fn the_boot_has_an_id() {
        let place = || HostIdentity::current().expect("a readable /proc");
        assert_ne!(place().boot_id, [0; 2]);
        assert_eq!(place(), place());
    }
}
