//! What the process table says about a process that a segment names, by the id that it has in the namespace of this
//! process.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::stat::{major, minor};

use super::freezer::{FrozenCgroup, frozen_cgroup};
use crate::diagnosis::remedy::go_on;

/// What a process or a thread is doing, according to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Stopped by a signal, or by a shell.
    Stopped,
    /// Stopped by a process that traces it, such as a debugger.
    Traced { by: u64 },
    /// Frozen with this cgroup, as by `docker pause`. The kernel calls it sleeping.
    Frozen { cgroup: FrozenCgroup },
    /// Anything else, as the letter that ps(1) prints.
    Other(char),
}

/// What a process is doing. Returns `None` if the process table does not say.
pub fn activity(pid: u64) -> Option<Activity> {
    activity_in(pid, &format!("/proc/{pid}"))
}

/// What a thread of a process is doing.
pub fn thread_activity(pid: u64, thread: u32) -> Option<Activity> {
    activity_in(pid, &format!("/proc/{pid}/task/{thread}"))
}

fn activity_in(pid: u64, directory: &str) -> Option<Activity> {
    let status = status(directory)?;
    let state = field(&status, "State:")?.chars().next()?;
    // This is checked first, because a process that is also stopped only continues once its cgroup does.
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

/// The process that a thread belongs to.
fn process_of(thread: &str) -> Option<u64> {
    field(&status(&format!("/proc/{thread}"))?, "Tgid:")?.parse().ok()
}

pub(super) fn status(directory: &str) -> Option<String> {
    fs::read_to_string(format!("{directory}/status")).ok()
}

/// The first word of the line with this name.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let lines = &mut status.lines();
    lines.find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
}

/// Whether the ids in `/proc` are those of this process's namespace, and `/proc` shows other users' processes, too.
pub fn table_is_whole() -> bool {
    let own = fs::read_link("/proc/self");
    own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
        && fs::metadata("/proc/1/status").is_ok()
}

/// The other processes that have a file mapped for writing, as processes attached to a segment do. This asks the kernel
/// rather than the file, because a copied file names the participants of the original.
pub fn users_of(metadata: &Metadata) -> Vec<u32> {
    mapped_for_writing(metadata)
        .into_iter()
        .map(|(pid, _)| pid)
        .collect()
}

/// Such a process in another PID namespace, and the path by which it knows the file.
pub fn user_elsewhere(metadata: &Metadata) -> Option<(u32, PathBuf)> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let own = namespace("self")?;
    mapped_for_writing(metadata)
        .into_iter()
        .find(|(pid, _)| namespace(&pid.to_string()).is_some_and(|theirs| theirs != own))
}

/// The other processes that have a file mapped for writing, each with the path by which it knows the file.
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

/// The path in a line of proc_pid_maps(5), if the line is about this file: address, permissions, offset, device, inode,
/// path.
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
    /// For a process that does not run until another process lets it, a description of that and the command that makes
    /// it continue.
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
