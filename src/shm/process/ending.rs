//! Whether a process has executed its last instruction, long before the kernel has dismantled its memory.
//!
//! A killed process keeps its file locks until its memory is freed, which takes a tenth of a second or more for each
//! gigabyte that was written. But the kernel detaches each thread from the memory well before that, and a thread
//! without memory never runs code of its program again. So if every thread is found in that state, the process need
//! not keep a lock.

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::host::{TaskStatus, shows_own_namespace, task_status};
use crate::sorting::sort_by;

/// Whether no thread of the process will run code of its program again. False if that is unknown: if `/proc` is
/// hidden, is another namespace's, or says nothing about memory.
///
/// `pid` is as seen from this process's PID namespace. A process that did not know when it started is not looked up.
pub(crate) fn is_past_its_end(pid: u64, start_time: u64) -> bool {
    let Some(id) = i32::try_from(pid).ok().filter(|id| *id > 0) else {
        return false;
    };
    if kill(Pid::from_raw(id), None) == Err(Errno::ESRCH) {
        return true;
    }
    let is_that_process = |status: &TaskStatus| start_time != 0 && status.start_time == start_time;
    let process = || task_status(&id.to_string()).filter(is_that_process);
    // The first look nearly always suffices: a process that is only slow or stopped has its memory.
    process().is_some_and(|first| first.has_ended())
        && shows_own_namespace()
        && task_status("self").is_some_and(|own| !own.has_ended())
        && have_all_ended(id, || process().map(|status| status.threads))
}

/// Whether every thread of a process has ended. Lists them, finds each ended, then counts them and finds each ended
/// again. All of them were still there when they were counted, so if the count matches, the process had no others at
/// that instant; and if no thread runs, none can be started.
fn have_all_ended(process: i32, count: impl Fn() -> Option<u64>) -> bool {
    let directory = format!("/proc/{process}/task");
    let Ok(entries) = fs::read_dir(&directory) else {
        return false;
    };
    let threads: Option<Vec<String>> = entries
        .map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let Some(mut threads) = threads else {
        return false;
    };
    sort_by(&mut threads, |one, other| one < other);
    threads.dedup();
    let have_ended = || {
        threads.iter().all(|thread| {
            let status = task_status(&format!("{process}/task/{thread}"));
            status.is_some_and(|status| status.has_ended())
        })
    };
    have_ended() && count() == Some(threads.len() as u64) && have_ended()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::super::ending::*;
    use super::super::host::own_start_time;

    #[test]
    fn a_process_that_runs_or_is_another_is_not_past_its_end() {
        let own = u64::from(std::process::id());
        assert!(!is_past_its_end(own, own_start_time()));
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a child");
        let id = u64::from(child.id());
        let started = task_status(&id.to_string()).expect("a readable /proc").start_time;
        assert!(!is_past_its_end(id, started));
        child.kill().expect("killed");
        // A zombie: not reaped yet.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_past_its_end(id, started) {
            assert!(std::time::Instant::now() < deadline, "it never ended");
            std::thread::yield_now();
        }
        assert!(!is_past_its_end(id, started + 1), "another with that id");
        assert!(!is_past_its_end(id, 0), "it may be any");
        child.wait().expect("reaped");
        assert!(is_past_its_end(id, started), "there is none with that id");
        for nonsense in [0, u64::MAX, 1 << 31] {
            assert!(!is_past_its_end(nonsense, started));
        }
    }
}
