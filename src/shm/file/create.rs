//! The birth of a segment: built under another name, then moved into place, so that no process ever sees half of one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::checkpoint_file::{SavedImages, TakenAt};
use super::descriptor::FileIdentity;
use super::file_system::{allocate, ensure_local};
use super::region::{OutOfRegion, Region};
use super::segment_file::{damaged, io_error, open_for_writing};
use super::verified::{Verified, check_header, header_checksum, verify};
use crate::error::{Error, OpenError};
use crate::shm::layout::definition_text::write_definition;
use crate::shm::layout::geometry::Geometry;
use crate::shm::layout::records::{
    BYTE_ORDER, C_LIBRARY, CLOCK_BOOT_TIME, COMPATIBLE_FEATURES, DirectoryEntry, FORMAT, HEADER_SPACE,
    Header, INCOMPATIBLE_FEATURES, MAGIC, SetControl, WORD_SIZE, fingerprint,
};
use crate::shm::lock::dispatch::LockKind;
use crate::shm::lock::file_lock::{ByteRange, try_lock};
use crate::shm::process::host::own_start_time;
use crate::shm::process::same_place::current_place;
use crate::shm::time::clock::{boot_nanos, utc_nanos};
use crate::units::LATEST_INSTANT;

/// Ends the name of a segment under construction.
const CONSTRUCTION_SUFFIX: &str = "shmlimit-new";

/// What a new segment is made of.
#[derive(Debug)]
pub(crate) struct Blueprint<'a> {
    pub(crate) geometry: &'a Geometry,
    /// The definition text of each set, for which its shape has room.
    pub(crate) definitions: &'a [String],
    /// Permission bits.
    pub(crate) mode: u32,
    /// Of [`COMPATIBLE_FEATURES`].
    pub(crate) features: u64,
    pub(crate) lock_kind: LockKind,
    /// Of those that a reader must know.
    pub(crate) incompatible_features: u64,
}

/// Creates the segment at `path`. Exactly one of any number of processes that try at once succeeds.
///
/// # Errors
///
/// [`OpenError::AlreadyExists`] where there is something at the path, [`OpenError::NoSpace`] where there is no room.
pub(crate) fn create(path: &Path, blueprint: &Blueprint<'_>) -> Result<(), Error> {
    let (construction, file, region) = construct(path, blueprint.geometry.total_size, blueprint.mode)?;
    let identity = FileIdentity::of(&file).map_err(|errno| io_error("examine", path, errno.into()))?;
    fill(&region, blueprint, identity, path)?;
    construction.publish(path)
}

/// Creates the segment at `path` as one of the images of a checkpoint has it, for the process that opens it to start it cold.
/// Answers whether it did: not where the image is not whole, is no segment that this build can use, or `accept` says so.
///
/// # Errors
///
/// As [`create`].
pub(crate) fn restore(
    path: &Path,
    mode: u32,
    checkpoint: &SavedImages,
    nth: usize,
    accept: impl FnOnce(&Verified) -> bool,
) -> Result<bool, Error> {
    let Some(size) = checkpoint.size(nth) else {
        return Ok(false);
    };
    if size < HEADER_SPACE {
        return Ok(false);
    }
    let (construction, _file, region) = construct(path, size, mode)?;
    let region = Arc::new(region);
    let is_sound = checkpoint.store(nth, &region)?
        && check_header(&region, size, path).is_ok()
        && verify(Arc::clone(&region), path).is_ok_and(|verified| accept(&verified));
    if let Some(taken) = checkpoint.taken_at(nth).filter(|_| is_sound) {
        date(&region, taken).map_err(|place| damaged(path, place))?;
        construction.publish(path)?;
    }
    Ok(is_sound)
}

/// Dates a segment that was created from a checkpoint by now, and not by when the first of that state was created: by what
/// the wall clock showed then it may have been set right since.
fn date(region: &Region, taken: TakenAt) -> Result<(), OutOfRegion> {
    let header: &Header = region.record(0)?;
    let now = utc_nanos();
    let created_at = taken.segment.saturating_add(now.saturating_sub(taken.utc));
    header.created_utc.store(now, Ordering::Relaxed);
    header
        .created_at
        .store(created_at.min(LATEST_INSTANT / 2), Ordering::Relaxed);
    header.checksum.store(header_checksum(region)?, Ordering::Relaxed);
    Ok(())
}

/// An empty file of that size beside `path`, mapped.
fn construct(path: &Path, size: u64, mode: u32) -> Result<(Construction, File, Region), Error> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::Open(OpenError::AlreadyExists {
            path: path.to_owned(),
        }));
    }
    let (directory, name) = place_of(path)?;
    remove_abandoned(directory, name);
    let (file, construction) = start_construction(directory, name, path)?;
    file.set_permissions(Permissions::from_mode(mode))
        .map_err(|source| io_error("set the mode of", path, source))?;
    ensure_local(&file, path)?;
    allocate(&file, size, path)?;
    let region = Region::writable(&file, size as usize).map_err(|source| io_error("map", path, source))?;
    Ok((construction, file, region))
}

/// The directory of a file that is to be made, and the file's name in it.
pub(super) fn place_of(path: &Path) -> Result<(&Path, &OsStr), Error> {
    let directory = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| {
        io_error(
            "create",
            path,
            io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"),
        )
    })?;
    Ok((directory, name))
}

/// A file under construction; dropped, it is removed.
pub(super) struct Construction {
    path: PathBuf,
}

impl Construction {
    pub(super) fn publish(self, target: &Path) -> Result<(), Error> {
        // Unlike link and unlink, it never shows the file under two names.
        match renameat_with(CWD, &self.path, CWD, target, RenameFlags::NOREPLACE) {
            Ok(()) => {
                // The name is gone, so there is nothing left to remove.
                std::mem::forget(self);
                Ok(())
            }
            Err(Errno::EXIST) => Err(Error::Open(OpenError::AlreadyExists {
                path: target.to_owned(),
            })),
            Err(errno) => Err(io_error("publish", target, errno.into())),
        }
    }
}

impl Drop for Construction {
    fn drop(&mut self) {
        // The process that creates next removes what cannot be removed now.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens a fresh file beside the target. As long as its creator lives, it has a lock on the file, so that others can
/// tell when it was abandoned, also in another PID namespace. The process id in its name is for people.
pub(super) fn start_construction(
    directory: &Path,
    name: &OsStr,
    path: &Path,
) -> Result<(File, Construction), Error> {
    static ATTEMPT: AtomicU64 = AtomicU64::new(0);
    loop {
        let mut construction_name = OsString::from(".");
        construction_name.push(name);
        construction_name.push(format!(
            ".{}.{}.{}.{CONSTRUCTION_SUFFIX}",
            std::process::id(),
            own_start_time(),
            ATTEMPT.fetch_add(1, Ordering::Relaxed),
        ));
        let construction = directory.join(construction_name);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&construction);
        match opened {
            Ok(file) => {
                let construction = Construction { path: construction };
                if is_claimed(&file).map_err(|source| io_error("lock", path, source))? {
                    return Ok((file, construction));
                }
                // Another process has taken it for abandoned, and removes it: the name is not this process's any more.
                std::mem::forget(construction);
            }
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) if source.raw_os_error() == Some(libc::ENOSPC) => {
                return Err(Error::Open(OpenError::NoSpace {
                    path: path.to_owned(),
                    bytes: 0,
                }));
            }
            Err(source) => return Err(io_error("create", path, source)),
        }
    }
}

/// Locks a file under construction. Answers whether it has a name still and is this process's: before it was locked,
/// another process may have taken it for abandoned.
fn is_claimed(file: &File) -> io::Result<bool> {
    Ok(try_lock(file.as_fd(), ByteRange::CONSTRUCTION)? && file.metadata()?.nlink() > 0)
}

/// Removes what processes that died while creating this segment left behind.
pub(super) fn remove_abandoned(directory: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if is_construction(&entry.file_name(), name) {
            // What this process may not examine or remove, another one removes.
            let _ = remove_if_abandoned(&entry.path());
        }
    }
}

fn remove_if_abandoned(path: &Path) -> Result<(), Error> {
    let file = open_for_writing(path)?;
    // While this lock is held, no creator claims the file and no other process removes it, so its name stays its own.
    if is_claimed(&file).map_err(|source| io_error("lock", path, source))? {
        fs::remove_file(path).map_err(|source| io_error("remove", path, source))?;
    }
    Ok(())
}

fn is_construction(candidate: &OsStr, name: &OsStr) -> bool {
    let is_number = |field: &&str| field.parse::<u64>().is_ok();
    let fields = || {
        let rest = candidate
            .as_bytes()
            .strip_prefix(b".")?
            .strip_prefix(name.as_bytes())?
            .strip_prefix(b".")?;
        let fields: Vec<&str> = std::str::from_utf8(rest).ok()?.split('.').collect();
        let [pid, start_time, attempt, CONSTRUCTION_SUFFIX] = fields[..] else {
            return None;
        };
        Some([pid, start_time, attempt])
    };
    fields().is_some_and(|fields| fields.iter().all(is_number))
}

/// Writes everything that is not zero; the magic number last.
fn fill(region: &Region, blueprint: &Blueprint<'_>, file: FileIdentity, path: &Path) -> Result<(), Error> {
    let outside = |place: OutOfRegion| damaged(path, place);
    let geometry = blueprint.geometry;
    let entries: &[DirectoryEntry] = region
        .records(geometry.directory_offset, geometry.sets.len() as u64)
        .map_err(outside)?;
    for ((set, entry), text) in geometry.sets.iter().zip(entries).zip(blueprint.definitions) {
        entry.extent_offset.store(set.extent_offset, Ordering::Relaxed);
        entry.extent_size.store(set.extent_size, Ordering::Relaxed);
        for (word, value) in [
            (&entry.definition_room, set.shape.definition_room),
            (&entry.limits, set.shape.limits),
            (&entry.state_words, set.shape.state_words),
            (&entry.holds, set.shape.holds),
            (&entry.held_amounts, set.shape.held_amounts),
            (&entry.tickets, set.shape.tickets),
            (&entry.shards, set.shape.shards),
            (&entry.buckets, set.shape.buckets),
            (&entry.name_words, set.shape.name_words),
            (&entry.labels, set.shape.labels),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        write_definition(region, set, entry, 0, text).map_err(outside)?;
        for shard in &set.shards {
            let control: &SetControl = region.record(shard.control_offset).map_err(outside)?;
            blueprint
                .lock_kind
                .initialise(&control.lock)
                .map_err(|source| io_error("initialise the locks of", path, source))?;
        }
    }
    let header: &Header = region.record(0).map_err(outside)?;
    let place = current_place(path)?;
    let mut hash_key = [0; 16];
    random_bytes(&mut hash_key).map_err(|errno| io_error("get random bytes for", path, errno.into()))?;
    // The segment clock shows the wall-clock time of the creation, so that windows which are cut by it begin at multiples
    // of their length since the Unix epoch. From then on it goes by the boot-time clock, which no process sets.
    let (created_utc, booted) = (utc_nanos(), boot_nanos());
    let created_at = created_utc.min(LATEST_INSTANT / 2);
    let (low, high) = hash_key.split_at(8);
    let half = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    for (word, value) in [
        (&header.format, FORMAT),
        (
            &header.fingerprint,
            fingerprint(blueprint.lock_kind.is_of_one_namespace()),
        ),
        (
            &header.incompatible_features,
            blueprint.incompatible_features & INCOMPATIBLE_FEATURES,
        ),
        (
            &header.compatible_features,
            blueprint.features & COMPATIBLE_FEATURES,
        ),
        (&header.header_size, size_of::<Header>() as u64),
        (&header.total_size, geometry.total_size),
        (&header.byte_order, BYTE_ORDER),
        (&header.word_size, WORD_SIZE),
        (&header.c_library, C_LIBRARY),
        (&header.lock_kind, blueprint.lock_kind.to_word()),
        (&header.clock_id, CLOCK_BOOT_TIME),
        (&header.created_utc, created_utc),
        (&header.created_at, created_at),
        (&header.clock_offset, created_at.wrapping_sub(booted)),
        (&header.hash_key[0], half(low)),
        (&header.hash_key[1], half(high)),
        (&header.participants, geometry.participants),
        (&header.participants_offset, geometry.participants_offset),
        (&header.sets, geometry.sets.len() as u64),
        (&header.directory_offset, geometry.directory_offset),
        (&header.boot_id[0], place.boot_id[0]),
        (&header.boot_id[1], place.boot_id[1]),
        (&header.pid_namespace, place.pid_namespace),
        (&header.time_namespace, place.time_namespace),
        (&header.device, file.device),
        (&header.inode, file.inode),
    ] {
        word.store(value, Ordering::Relaxed);
    }
    header
        .checksum
        .store(header_checksum(region).map_err(outside)?, Ordering::Relaxed);
    // The process that sees the magic number sees everything before it.
    header.magic.store(MAGIC, Ordering::Release);
    Ok(())
}

fn random_bytes(buffer: &mut [u8]) -> Result<(), Errno> {
    match getrandom(&mut *buffer, GetRandomFlags::empty())? {
        filled if filled == buffer.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}
