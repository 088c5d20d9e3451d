//! What the process table says of a process that a segment names, by its id in the namespace of this process.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::stat::{major, minor};

use super::freezer::{FrozenCgroup, frozen_cgroup};
use crate::diagnosis::remedy::go_on;

/// What a process or a thread is doing, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Stopped by a signal, or by a shell.
    Stopped,
    /// Stopped by a process that traces it, such as a debugger.
    Traced { by: u64 },
    /// Frozen with this cgroup, which `docker pause` and the like do. The kernel calls it sleeping.
    Frozen { cgroup: FrozenCgroup },
    /// Anything else, by the letter that ps(1) prints.
    Other(char),
}

/// What a process does; none where the process table does not say.
pub fn activity(pid: u64) -> Option<Activity> {
    activity_in(pid, &format!("/proc/{pid}"))
}

/// What a thread of a process does.
pub fn thread_activity(pid: u64, thread: u32) -> Option<Activity> {
    activity_in(pid, &format!("/proc/{pid}/task/{thread}"))
}

fn activity_in(pid: u64, directory: &str) -> Option<Activity> {
    let status = status(directory)?;
    let state = field(&status, "State:")?.chars().next()?;
    // First, because what is stopped as well goes on only once its cgroup does.
    if let Some(cgroup) = frozen_cgroup(pid) {
        return Some(Activity::Frozen { cgroup });
    }
    Some(match state {
        'T' => Activity::Stopped,
        't' => Activity::Traced {
            by: process_of(field(&status, "TracerPid:")?)?,
        },
        other => Activity::Other(other),
    })
}

/// The process of a thread.
fn process_of(thread: &str) -> Option<u64> {
    field(&status(&format!("/proc/{thread}"))?, "Tgid:")?.parse().ok()
}

fn status(directory: &str) -> Option<String> {
    fs::read_to_string(format!("{directory}/status")).ok()
}

/// The first word of a line of that name.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let lines = &mut status.lines();
    lines.find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
}

/// Whether the numbers in `/proc` are this process's namespace's, and other users' processes are shown.
pub fn table_is_whole() -> bool {
    let own = fs::read_link("/proc/self");
    own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
        && fs::metadata("/proc/1/status").is_ok()
}

/// The id that a process of another PID namespace, which is named by its inode, has in this one; none where it cannot be seen.
pub fn id_here(pid: u64, namespace: u64) -> Option<u64> {
    let is_it = |candidate: &u64| {
        let directory = format!("/proc/{candidate}");
        let is_of_namespace =
            fs::metadata(format!("{directory}/ns/pid")).is_ok_and(|found| found.ino() == namespace);
        is_of_namespace
            && status(&directory).is_some_and(|status| {
                let innermost = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
                let innermost = innermost.and_then(|ids| ids.split_whitespace().last());
                innermost.and_then(|id| id.parse().ok()) == Some(pid)
            })
    };
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut ids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(is_it)
}

/// The other processes that have a file mapped for writing, as those have it that are attached to a segment. By what the
/// kernel says of them: what a copied file says of its participants is of other processes.
pub fn users_of(metadata: &Metadata) -> Vec<u32> {
    mapped_for_writing(metadata)
        .into_iter()
        .map(|(pid, _)| pid)
        .collect()
}

/// One of them in another PID namespace than this process, and the name that the file has for it.
pub fn user_elsewhere(metadata: &Metadata) -> Option<(u32, PathBuf)> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let own = namespace("self")?;
    mapped_for_writing(metadata)
        .into_iter()
        .find(|(pid, _)| namespace(&pid.to_string()).is_some_and(|theirs| theirs != own))
}

/// With the name that the file has for each.
fn mapped_for_writing(metadata: &Metadata) -> Vec<(u32, PathBuf)> {
    let device = metadata.dev();
    let device = format!("{:02x}:{:02x}", major(device), minor(device));
    let inode = metadata.ino().to_string();
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = pids.filter(|pid| *pid != std::process::id());
    let mut users: Vec<(u32, PathBuf)> = others
        .filter_map(|pid| {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            let mapped = maps
                .lines()
                .find_map(|line| name_where_mapped_for_writing(line, &device, &inode));
            mapped.map(|name| (pid, name.into()))
        })
        .collect();
    users.sort_unstable();
    users
}

/// The file's name in a line of proc_pid_maps(5), where it is of that file: address, permissions, offset, device, inode, path.
fn name_where_mapped_for_writing<'a>(line: &'a str, device: &str, inode: &str) -> Option<&'a str> {
    let mut fields = line.splitn(6, ' ').skip(1);
    let permissions = fields.next()?;
    let is_it = permissions.starts_with("rw")
        && permissions.ends_with('s')
        && fields.nth(1) == Some(device)
        && fields.next() == Some(inode);
    fields.next().filter(|_| is_it).map(str::trim_start)
}

impl Activity {
    /// Where it does not run until a process lets it go on: what it is, and the command that has it go on.
    pub fn standstill(self, pid: u64) -> Option<(&'static str, String)> {
        match self {
            Self::Stopped => Some(("stopped", go_on(pid))),
            Self::Traced { by } => Some(("stopped by a process that traces it", format!("kill {by}"))),
            Self::Frozen { cgroup } => Some((
                "frozen with its cgroup (docker pause, systemctl freeze)",
                cgroup.thaw(),
            )),
            Self::Other(_) => None,
        }
    }
}
