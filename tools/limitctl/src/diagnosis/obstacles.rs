//! Findings about what keeps processes from using a segment: its file, its owner, its origin.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{AccessFlags, eaccess, geteuid};
use shmlimit::snapshot::SegmentSnapshot;
use shmlimit::{Error, OpenError, SegmentError};

use super::condition::{Condition, Severity};
use super::file::FileFacts;
use super::finding::Finding;
use super::host::mounts::mount_of;
use super::host::process::{user_elsewhere, users_of};
use super::look::Look;
use super::remedy::{Remedies, end, quoted};
use crate::exit::Failure;

/// The finding for an error that keeps processes from using the segment. `metadata` is that of the file, and `snapshot`
/// has whatever could be read.
pub fn obstacle(
    error: Error,
    path: &Path,
    metadata: &Metadata,
    snapshot: Option<&SegmentSnapshot>,
) -> Finding {
    let remedies = Remedies::of(path);
    if let Some(note) = not_this_ones(&error, path, metadata, snapshot) {
        return note;
    }
    let (name, meaning, heal) = match &error {
        Error::Open(OpenError::NotASegment { .. }) => (
            Condition::NotASegment,
            "programs that open it get an error; limitctl removes only segments",
            Some(format!("mv {} {}", quoted(path), quoted(&aside(path)))),
        ),
        Error::Open(OpenError::Incompatible {
            what: "C library", ..
        }) => (
            Condition::OtherFormat,
            "processes with the other C library use it, and for them nothing is wrong with it: examine it with a limitctl that has \
             theirs",
            None,
        ),
        Error::Open(OpenError::Incompatible { .. }) => (
            Condition::OtherFormat,
            "only processes of the build that created it can use it",
            Some(remedies.remove_by_force()),
        ),
        Error::Open(OpenError::WrongSize { .. }) => (
            Condition::WrongSize,
            "no process can open it, and those that have it open may be killed by SIGBUS; create it again after the removal",
            Some(remedies.remove_by_force()),
        ),
        Error::Segment(SegmentError::Damaged { .. }) => (
            Condition::Damaged,
            "no process can open it; create it again after the removal",
            Some(remedies.remove_by_force()),
        ),
        Error::Segment(SegmentError::Removed { .. }) => (
            Condition::Retired,
            "processes that have it open admit nothing any more, and use what is created at the path next",
            Some(remedies.remove()),
        ),
        Error::Open(OpenError::Untrusted { .. }) => (
            Condition::Untrusted,
            "processes refuse to open it: anyone who can write to it can make them write to any memory",
            trusted(path, metadata),
        ),
        Error::Open(OpenError::Misplaced { path: of, .. }) => (
            Condition::Misplaced,
            "programs that open all sets of the directory get an error; those that declare theirs ignore this file",
            Some(format!("mv {} {}", quoted(of), quoted(&aside(path)))),
        ),
        Error::Open(OpenError::Sparse { .. }) => (
            Condition::Sparse,
            "processes refuse to open it: a change could need space, and its lack would be a bus error",
            Some(format!(
                "cp --sparse=never --reflink=never {0} {1} && mv {1} {0}",
                quoted(path),
                quoted(&aside(path))
            )),
        ),
        Error::Open(OpenError::UnsupportedFileSystem { .. }) => (
            Condition::UnsupportedFileSystem,
            "processes refuse to open it there; what was counted goes with the file, and the programs need its new path",
            Some(format!("mv --no-clobber {} /dev/shm/", quoted(path))),
        ),
        Error::Open(OpenError::LocksNotKept { .. }) => (
            Condition::LocksNotKept,
            "processes refuse to open it there; what was counted goes with the file, and the programs need its new path. End processes \
             of an earlier version first that use it nevertheless: each of them counts as dead",
            Some(format!("mv --no-clobber {} /dev/shm/", quoted(path))),
        ),
        Error::Open(OpenError::LockedByReader { processes, .. }) => (
            Condition::LockedByReader,
            "processes that are attached go on; each that opens it now waits for 10 seconds and gets an error. Programs that copy or watch \
             files take such locks: exclude the file from what they read, or deny them access to it",
            end(&processes.iter().map(|process| process.pid).collect::<Vec<_>>()),
        ),
        Error::Open(OpenError::ForeignNamespace { .. }) => (
            Condition::ForeignNamespace,
            "processes of this namespace are refused as long as those of the other use it, and what those do is examined there. Once \
             they have ended, the next process that opens it makes it this namespace's",
            in_its_namespace(metadata),
        ),
        Error::Open(OpenError::ForeignBoot { .. }) => (
            Condition::ForeignBoot,
            "processes are attached to a file that is from another boot, or a copy: further ones are refused until they end, and the \
             next one that opens it then starts it cold",
            end(&users_of(metadata)),
        ),
        Error::Open(OpenError::Denied { .. }) => (
            Condition::Denied,
            "this user cannot find out more",
            as_owner(path, metadata),
        ),
        Error::Open(OpenError::Io { source, .. } | OpenError::NoPlace { source, .. })
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
        {
            (
                Condition::ReadOnly,
                "processes can look at the segment here, but not use it",
                mount_of(path).map(|mount| format!("mount -o remount,rw {}", quoted(&mount.point))),
            )
        }
        _ => (Condition::Unusable, "no process like this one can open it", None),
    };
    let severity = if matches!(name, Condition::Retired) {
        Severity::Warning
    } else {
        Severity::Error
    };
    Finding::new(severity, name, Failure::from(error).message, meaning).healed_by(heal)
}

/// The finding for an error that keeps only this process from using the segment, and not those that it is meant for,
/// because this process belongs to another user or sees the file through another mount.
fn not_this_ones(
    error: &Error,
    path: &Path,
    metadata: &Metadata,
    snapshot: Option<&SegmentSnapshot>,
) -> Option<Finding> {
    // Without a snapshot, nothing is known about who uses it.
    let snapshot = snapshot?;
    let owner = metadata.uid();
    let (name, what, meaning) = match error {
        Error::Open(OpenError::Untrusted { .. }) if is_for_others(path, metadata) => (
            Condition::Untrusted,
            format!("it belongs to user {owner}; this process runs as another"),
            "processes of other users refuse to open it, even root's: its owner could make them write to any memory. For its owner \
             nothing is wrong with it",
        ),
        Error::Open(OpenError::Denied { .. }) if owner != geteuid().as_raw() => (
            Condition::Denied,
            format!("it belongs to user {owner}; this process may look at it, but not use it"),
            "for its owner, and anyone whom its mode lets write to it, nothing is wrong with it",
        ),
        Error::Open(OpenError::Io { source, .. } | OpenError::NoPlace { source, .. })
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem
                && snapshot.participants.iter().any(|it| it.alive) =>
        {
            (
                Condition::ReadOnly,
                "it is mounted read-only here, and used by processes for which it is not".to_owned(),
                "a read-only mount is only for looking; for those who use the segment nothing is wrong with it",
            )
        }
        _ => return None,
    };
    let command = (owner != geteuid().as_raw()).then(|| as_owner(path, metadata));
    Some(Finding::note(name, what, meaning).healed_by(command.flatten()))
}

/// The finding for a segment that comes from elsewhere and is not in use there.
pub fn origin(look: &Look, remedies: &Remedies) -> Option<Finding> {
    if !look.is_void() {
        return None;
    }
    let place = &look.diagnosis.place;
    let what = if !place.same_boot {
        "it was last used before this boot".to_owned()
    } else if !place.same_file {
        "it is a copy of another file".to_owned()
    } else if !place.any_pid_namespace && place.pid_namespace != place.own_pid_namespace {
        format!(
            "it belongs to PID namespace {}, but no process there uses it any more; this process is in {}",
            place.pid_namespace, place.own_pid_namespace
        )
    } else {
        format!(
            "it belongs to time namespace {}, but no process there uses it any more; this process is in {}",
            place.time_namespace, place.own_time_namespace
        )
    };
    let finding = Finding::warning(
        Condition::Cold,
        what,
        "its locks, holds and waiters are void; the next process that opens it starts it cold, and what was counted stays",
    );
    Some(finding.healed_by(remedies.recover()))
}

/// An unused name next to the file.
fn aside(path: &Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".aside");
    name.into()
}

/// The command that makes a file trusted.
fn trusted(path: &Path, metadata: &Metadata) -> Option<String> {
    let remedies = Remedies::of(path);
    if metadata.file_type().is_symlink() {
        let target = path.canonicalize().ok()?;
        return Some(format!("limitctl doctor {}", quoted(&target)));
    }
    if metadata.is_dir() && metadata.mode() & 0o002 != 0 {
        return Some(remedies.with_path("chmod o-w"));
    }
    if !metadata.is_file() {
        return None;
    }
    if metadata.nlink() > 1 {
        let point = mount_of(path)?.point;
        return Some(remedies.with_path(format!("find {} -xdev -samefile", quoted(&point))));
    }
    if metadata.mode() & 0o002 != 0 {
        return Some(remedies.with_path("chmod o-w"));
    }
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let is_public = directory.metadata().is_ok_and(|it| it.mode() & 0o1002 == 0o1002);
    if is_public {
        let own = quoted(&directory.join("segments"));
        let group = metadata.gid();
        return Some(format!(
            "mkdir {own} && chgrp {group} {own} && chmod 2750 {own} && mv {} {own}/",
            quoted(path)
        ));
    }
    Some(format!("chmod go-w {}", quoted(directory)))
}

/// Whether the file belongs to another user and is not meant for this one, because its mode does not let this user
/// write to it. Root may write to any file.
fn is_for_others(path: &Path, metadata: &Metadata) -> bool {
    metadata.is_file()
        && metadata.nlink() == 1
        && metadata.mode() & 0o002 == 0
        && metadata.uid() != geteuid().as_raw()
        && (geteuid().is_root() || eaccess(path, AccessFlags::W_OK).is_err())
}

/// The command that runs the doctor as the file's owner. Root's command needs no tool that a container may lack.
fn as_owner(path: &Path, metadata: &Metadata) -> Option<String> {
    let remedies = Remedies::of(path);
    if geteuid().is_root() {
        let (user, group) = (metadata.uid(), metadata.gid());
        return Some(remedies.with_path(format!(
            "setpriv --reuid={user} --regid={group} --clear-groups limitctl doctor"
        )));
    }
    let facts = FileFacts::of(path, metadata);
    let owner = facts.owner_name.unwrap_or_else(|| format!("'#{}'", facts.owner));
    Some(remedies.with_path(format!("sudo -u {owner} limitctl doctor")))
}

/// The command that runs the doctor as the file's owner in the namespace of the processes that use it, with the file's
/// path there. Returns `None` if no such process can be seen from here.
fn in_its_namespace(metadata: &Metadata) -> Option<String> {
    let (pid, path) = user_elsewhere(metadata)?;
    let (user, group) = (metadata.uid(), metadata.gid());
    Some(Remedies::of(&path).with_path(format!(
        "nsenter --target {pid} --all --setuid {user} --setgid {group} limitctl doctor"
    )))
}
