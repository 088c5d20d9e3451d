//! Forked children whose parent's segment can no longer be found by its path: renamed, mounted over, or outside of
//! another root directory.
#![allow(unsafe_code, reason = "mounts, and changes the root directory")]

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::chroot;
use std::path::Path;

use crate::scene;
use crate::scene::process::{Child, TIMEOUT, in_own_process};
use nix::errno::Errno;
use shmlimit::{Error, Limit, LimitSet, OpenError, Segment, SetDeclaration};

const SLOTS: u64 = 2;

fn create(directory: &Path) -> (Segment, LimitSet) {
    fs::create_dir(directory).expect("a directory");
    let set = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", SLOTS));
    scene::create_in(directory, set)
}

fn can_take(api: &LimitSet, slots: u64) -> bool {
    let request = api.request().with("slots", slots).expect("declared");
    request.try_acquire().expect("works").is_admitted()
}

/// A child of this process and a child of that child use what they have inherited, at the same time.
fn children_join(api: &LimitSet) {
    let held = scene::expect_permit(api.request().try_acquire());
    Child::fork(|| {
        assert!(can_take(api, 1) && !can_take(api, 2));
        Child::fork(|| assert!(can_take(api, 1) && !can_take(api, 2))).succeed();
    })
    .succeed();
    drop(held);
    assert!(can_take(api, SLOTS));
}

fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong) -> Result<(), Errno> {
    let text = |bytes: &[u8]| CString::new(bytes).expect("no NUL");
    let (source, kind) = (text(source.as_bytes()), text(kind.as_bytes()));
    let target = text(target.as_os_str().as_bytes());
    // SAFETY: the pointers are to live strings that end with NUL; no memory of this process is changed.
    let answer = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            std::ptr::null(),
        )
    };
    Errno::result(answer).map(drop)
}

/// Gives this process mounts of its own, if that is permitted.
fn has_own_mounts() -> bool {
    // SAFETY: no memory is involved.
    let unshared = Errno::result(unsafe { libc::unshare(libc::CLONE_NEWNS) });
    let private =
        unshared.and_then(|_| mount("none", Path::new("/"), "none", libc::MS_REC | libc::MS_PRIVATE));
    if let Err(error) = private {
        println!("skipped: no mounts of its own: {error}");
    }
    private.is_ok()
}

#[test]
fn a_child_joins_after_the_file_or_its_directory_was_renamed() {
    let test = "moved_file::a_child_joins_after_the_file_or_its_directory_was_renamed";
    in_own_process(test, TIMEOUT, |directory| {
        let [first, second] = ["first", "second"].map(|name| directory.join(name));
        let (segment, api) = create(&first);
        fs::rename(first.join("limits"), first.join("elsewhere")).expect("renames");
        children_join(&api);
        fs::rename(&first, &second).expect("renames");
        children_join(&api);
        // Its checkpoints are made with the mode of the file, wherever that is.
        assert!(segment.checkpoint(directory.join("kept")).expect("a checkpoint"));
    });
}

#[test]
fn a_child_joins_after_something_was_mounted_over_the_directory() {
    let test = "moved_file::a_child_joins_after_something_was_mounted_over_the_directory";
    in_own_process(test, TIMEOUT, |directory| {
        let below = directory.join("below");
        let (_segment, api) = create(&below);
        if !has_own_mounts() {
            return;
        }
        mount("none", &below, "tmpfs", 0).expect("mounts");
        children_join(&api);
    });
}

#[test]
fn a_child_joins_in_another_root_directory_with_proc_and_is_told_what_is_missing_without() {
    let test =
        "moved_file::a_child_joins_in_another_root_directory_with_proc_and_is_told_what_is_missing_without";
    in_own_process(test, TIMEOUT, |directory| {
        let (_segment, api) = create(&directory.join("below"));
        if !has_own_mounts() {
            return;
        }
        let root = directory.join("root");
        fs::create_dir_all(root.join("proc")).expect("a directory");
        Child::fork(|| {
            chroot(&root).expect("permitted to who may mount");
            match api.request().try_acquire() {
                Err(Error::Open(error @ OpenError::Moved { .. })) => {
                    assert!(error.to_string().contains("Mount /proc"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        })
        .succeed();
        mount("/proc", &root.join("proc"), "none", libc::MS_BIND).expect("mounts");
        Child::fork(|| {
            chroot(&root).expect("permitted to who may mount");
            children_join(&api);
        })
        .succeed();
    });
}

#[test]
fn a_child_does_not_join_a_file_that_has_no_name_any_more() {
    let test = "moved_file::a_child_does_not_join_a_file_that_has_no_name_any_more";
    in_own_process(test, TIMEOUT, |directory| {
        let below = directory.join("below");
        let (_segment, api) = create(&below);
        fs::remove_file(below.join("limits")).expect("removes");
        Child::fork(|| {
            let refused = api.request().try_acquire().map(drop);
            assert!(
                matches!(
                    refused,
                    Err(Error::Segment(shmlimit::SegmentError::Removed { .. }))
                ),
                "{refused:?}"
            );
        })
        .succeed();
    });
}
