//! A test's own file systems, which no other process sees. Each test runs in a process of its own.
#![allow(unsafe_code, reason = "mounts")]

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::process::{TIMEOUT, in_own_process};

/// Runs `body` with a file system of its own mounted, if that is permitted.
pub fn on_file_system(test: &str, kind: &CStr, options: &CStr, body: impl FnOnce(&Path)) {
    in_own_process(test, TIMEOUT, |directory| {
        let target = directory.join("small");
        if unshare_mounts() && is_mounted(mount(None, &target, Some(kind), 0, Some(options))) {
            body(&target);
        }
    });
}

/// An overlay, as for the files of a container, and the directories of which it is made.
#[derive(Debug)]
pub struct Overlay {
    /// What is mounted.
    pub merged: PathBuf,
    /// What it contained before anything was written to it.
    pub lower: PathBuf,
    /// Where everything written to it lies.
    pub upper: PathBuf,
    /// A directory of the overlay, mounted elsewhere.
    pub bound: PathBuf,
}

/// Runs `body` with an overlay of its own, if that is permitted.
pub fn on_overlay(test: &str, body: impl FnOnce(&Overlay)) {
    on_file_system(test, c"tmpfs", c"size=64m", |directory| {
        let below = |name: &str| {
            let path = directory.join(name);
            fs::create_dir(&path).expect("a directory");
            path
        };
        let overlay = Overlay {
            lower: below("lower"),
            upper: below("upper"),
            merged: below("merged"),
            bound: below("bound"),
        };
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            overlay.lower.display(),
            overlay.upper.display(),
            below("work").display()
        );
        let options = CString::new(options).expect("no zero in it");
        if is_mounted(mount(None, &overlay.merged, Some(c"overlay"), 0, Some(&options))) {
            let inner = overlay.merged.join("inner");
            fs::create_dir(&inner).expect("a directory");
            mount(Some(&inner), &overlay.bound, None, libc::MS_BIND, None).expect("a bind mount");
            body(&overlay);
        }
    });
}

/// From now on, only this process and its children see what is mounted. Returns false if that is not permitted.
fn unshare_mounts() -> bool {
    // SAFETY: no memory is involved; the process's other thread waits.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        println!("skipped: no mount namespace of its own: {}", Errno::last());
        return false;
    }
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    mount(None, Path::new("/"), None, flags, None).expect("private mounts");
    true
}

fn is_mounted(outcome: Result<(), Errno>) -> bool {
    outcome
        .inspect_err(|error| println!("skipped: no file system of its own: {error}"))
        .is_ok()
}

/// mount(2). The directory is created if it does not exist.
pub fn mount(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> Result<(), Errno> {
    if !target.exists() {
        fs::create_dir(target).expect("a directory");
    }
    let named = |path: &Path| CString::new(path.as_os_str().as_bytes()).expect("no zero in it");
    let source = named(source.unwrap_or(Path::new("none")));
    let target = named(target);
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every string is terminated and outlives the call.
    let answer = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(options).cast(),
        )
    };
    Errno::result(answer).map(drop)
}
