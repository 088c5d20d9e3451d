//! A test's own PID namespaces, if a test may make any. Each test runs in a process of its own.

use std::os::unix::fs::MetadataExt;

use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::WaitStatus;

use super::process::Child;

/// The PID namespace of this process, by its inode.
pub fn namespace() -> u64 {
    let metadata = std::fs::metadata("/proc/self/ns/pid");
    metadata.expect("a namespace").ino()
}

/// Whether this process may make a PID namespace. Prints a message if it may not.
pub fn has_namespaces() -> bool {
    let mut child = Child::fork(|| assert_eq!(unshare(CloneFlags::CLONE_NEWPID), Ok(())));
    let is_permitted = matches!(child.wait(), WaitStatus::Exited(_, 0));
    if !is_permitted {
        println!("skipped: no PID namespace of its own");
    }
    is_permitted
}

/// Runs `body` in the first process of a new PID namespace, where its process id is always 1. The child that is
/// returned is that process's parent, in this process's namespace, and they die together.
pub fn in_new_namespace(body: impl FnOnce()) -> Child {
    Child::fork(|| {
        // Only processes forked from now on are in the new namespace.
        assert_eq!(unshare(CloneFlags::CLONE_NEWPID), Ok(()));
        Child::fork(body).succeed();
    })
}
