//! Finds out whose locks are in the way, for error messages. The kernel names the process that owns a record lock,
//! and `/proc` the processes that have a file open.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::descriptor::FileIdentity;
use super::file_lock::{ByteRange, FoundLock, lock_of_others};
use crate::error::{Error, OpenError, ProcessId};
use crate::sorting::set_of;

/// The error if a shared lock is in the way of an exclusive one: its owner need not have permission to write. `None`
/// if it is another process's exclusive lock, or there is none.
pub(in crate::shm) fn locked_by_reader(file: &File, range: ByteRange, path: &Path) -> Option<Error> {
    let FoundLock { is_exclusive, pid } = lock_of_others(file.as_fd(), range).ok()??;
    if is_exclusive {
        return None;
    }
    let mut processes = set_of(pid);
    if let Ok(identity) = FileIdentity::of(file) {
        processes.extend(processes_that_lock(identity, is_read_lock));
    }
    let named = processes.into_iter().map(ProcessId::of_own_namespace);
    Some(Error::Open(OpenError::LockedByReader {
        path: path.to_owned(),
        processes: named.collect(),
    }))
}

/// The processes that have an exclusive lock on a byte of a file, as far as this process may inspect them.
pub(in crate::shm) fn owners(file: &File, byte: ByteRange) -> Vec<ProcessId> {
    let Ok(identity) = FileIdentity::of(file) else {
        return Vec::new();
    };
    let found = processes_that_lock(identity, move |line| is_write_lock(line, byte.start()));
    found.map(ProcessId::of_own_namespace).collect()
}

/// The processes that have a lock on a file, as far as this process may inspect them: those for which `is_sought`
/// accepts a line of proc_pid_fdinfo(5).
fn processes_that_lock(file: FileIdentity, is_sought: impl Fn(&str) -> bool) -> impl Iterator<Item = u32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(move |pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        descriptors.into_iter().flatten().flatten().any(|descriptor| {
            let is_of_file = fs::metadata(descriptor.path())
                .is_ok_and(|found| (found.dev(), found.ino()) == (file.device, file.inode));
            is_of_file && {
                let number = descriptor.file_name();
                let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display()));
                about.is_ok_and(|about| about.lines().any(&is_sought))
            }
        })
    })
}

/// Whether a line of proc_pid_fdinfo(5) describes a read lock that keeps others from write-locking:
/// `lock: 1: OFDLCK ADVISORY READ 42 00:1b:7 0 EOF`.
fn is_read_lock(line: &str) -> bool {
    let mut fields = line.split_whitespace();
    fields.next() == Some("lock:")
        && fields
            .nth(1)
            .is_some_and(|kind| ["OFDLCK", "POSIX"].contains(&kind))
        && fields.nth(1) == Some("READ")
}

/// Whether a line of proc_pid_fdinfo(5) describes an exclusive lock that starts at a byte.
fn is_write_lock(line: &str, start: i64) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    matches!(fields[..], ["lock:", _, "OFDLCK" | "POSIX", _, "WRITE", _, _, first, _] if first.parse() == Ok(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::file::file_lock::try_read_lock;

    #[test]
    fn who_has_a_lock_for_reading_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, "content").expect("a file");
        let file = File::open(&path).expect("opens");
        let byte = ByteRange::ATTACH;
        assert!(locked_by_reader(&file, byte, &path).is_none());
        let reader = File::open(&path).expect("opens");
        assert_eq!(try_read_lock(reader.as_fd(), byte), Ok(true));
        let Some(Error::Open(OpenError::LockedByReader { processes, .. })) =
            locked_by_reader(&file, byte, &path)
        else {
            panic!("nobody is named");
        };
        assert_eq!(processes, [ProcessId::of_own_namespace(std::process::id())]);
    }

    #[test]
    fn who_has_a_lock_for_writing_on_a_byte_is_named() {
        use crate::shm::file::file_lock::try_lock;

        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, "content").expect("a file");
        let open = || File::options().read(true).write(true).open(&path).expect("opens");
        let (file, other) = (open(), open());
        assert_eq!(try_lock(other.as_fd(), ByteRange::participant(0)), Ok(true));
        assert_eq!(owners(&file, ByteRange::ATTACH), []);
        assert_eq!(try_lock(other.as_fd(), ByteRange::ATTACH), Ok(true));
        assert_eq!(
            owners(&file, ByteRange::ATTACH),
            [ProcessId::of_own_namespace(std::process::id())]
        );
    }

    #[test]
    fn only_locks_for_reading_count() {
        for (line, expected) in [
            (
                "lock:\t1: OFDLCK ADVISORY  READ -1 00:1b:7 1099511627776 1099511627776",
                true,
            ),
            ("lock:\t1: POSIX  ADVISORY  READ 42 00:1b:7 0 EOF", true),
            ("lock:\t1: OFDLCK ADVISORY  WRITE -1 00:1b:7 1 1", false),
            ("lock:\t1: FLOCK  ADVISORY  READ 42 00:1b:7 0 EOF", false),
            ("flags:\t02100002", false),
            ("", false),
        ] {
            assert_eq!(is_read_lock(line), expected, "{line}");
        }
    }
}
