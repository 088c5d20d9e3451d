//! What the process table says of a process that a segment names. Only where its ids are this namespace's.

use std::fs;

/// What a process or a thread is doing, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Stopped by a signal, or by a shell.
    Stopped,
    /// Stopped by a process that traces it, such as a debugger.
    Traced { by: u64 },
    /// Anything else, by the letter that ps(1) prints.
    Other(char),
}

/// What a process does; none where the process table does not say.
pub fn activity(pid: u64) -> Option<Activity> {
    activity_in(&format!("/proc/{pid}"))
}

/// What a thread of a process does.
pub fn thread_activity(pid: u64, thread: u32) -> Option<Activity> {
    activity_in(&format!("/proc/{pid}/task/{thread}"))
}

fn activity_in(directory: &str) -> Option<Activity> {
    let status = fs::read_to_string(format!("{directory}/status")).ok()?;
    let value = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
    };
    Some(match value("State:")?.chars().next()? {
        'T' => Activity::Stopped,
        't' => Activity::Traced {
            by: value("TracerPid:")?.parse().ok()?,
        },
        other => Activity::Other(other),
    })
}

/// Whether the numbers in `/proc` are this process's namespace's, and other users' processes are shown.
pub fn table_is_whole() -> bool {
    let own = fs::read_link("/proc/self");
    own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
        && fs::metadata("/proc/1/status").is_ok()
}
