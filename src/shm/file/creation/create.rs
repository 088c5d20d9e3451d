//! The birth of a segment: it is built under another name and then moved into place, so that nobody ever sees a
//! partial one.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::checkpoint_file::{SavedImages, TakenAt};
use super::construction::{Construction, place_of, remove_abandoned, start_construction};
use super::unnamed::{memory_file, seal};
use crate::choices::LockKind;
use crate::error::{Error, OpenError};
use crate::shm::file::descriptor::FileIdentity;
use crate::shm::file::file_system::{allocate, ensure_local};
use crate::shm::file::lasting_locks::ensure_participants_can_be;
use crate::shm::file::region::{OutOfRegion, Region};
use crate::shm::file::segment_file::{GET_RANDOM_BYTES, damaged, io_error};
use crate::shm::file::set_directory::directory_number;
use crate::shm::file::verified::{Verified, check_header, header_checksum, verify};
use crate::shm::layout::definition_text::write_definition;
use crate::shm::layout::geometry::Geometry;
use crate::shm::layout::records::{
    BYTE_ORDER, C_LIBRARY, CLOCK_BOOT_TIME, COMPATIBLE_FEATURES, DirectoryEntry, FORMAT, HEADER_SPACE,
    Header, INCOMPATIBLE_FEATURES, MAGIC, SetControl, WORD_SIZE, fingerprint,
};
use crate::shm::process::cold_start::next_life_serial;
use crate::shm::process::same_place::{UNKNOWN_BOOT, current_place};
use crate::shm::time::clock::{boot_nanos, utc_nanos};
use crate::units::LATEST_INSTANT;

/// What to make a new segment from.
#[derive(Debug)]
pub(crate) struct Blueprint<'a> {
    pub(crate) geometry: &'a Geometry,
    /// The definition text of each set; the set's shape has room for it.
    pub(crate) definitions: &'a [String],
    /// Permission bits.
    pub(crate) mode: u32,
    /// Out of [`COMPATIBLE_FEATURES`].
    pub(crate) features: u64,
    pub(crate) lock_kind: LockKind,
    /// Features that a reader must know.
    pub(crate) incompatible_features: u64,
    /// Whether it is one file of a directory that is the segment.
    pub(crate) is_of_directory: bool,
}

/// Creates the segment at `path`. Of any number of processes that try at once, exactly one succeeds.
///
/// # Errors
///
/// [`OpenError::AlreadyExists`] if there is something at the path, [`OpenError::NoSpace`] if there is no room.
pub(crate) fn create(path: &Path, blueprint: &Blueprint<'_>) -> Result<(), Error> {
    let (construction, file, region) = construct(path, blueprint.geometry.total_size, blueprint.mode)?;
    let identity = FileIdentity::of(&file).map_err(|errno| io_error("examine", path, errno.into()))?;
    fill(&region, blueprint, identity, path)?;
    construction.publish(path)
}

/// Creates a segment that has no name. Returns its file, and the path by which other processes reach it.
///
/// # Errors
///
/// [`OpenError::Anonymous`] where there is no `/proc`, [`OpenError::NoSpace`] if there is no room.
pub(crate) fn create_anonymous(blueprint: &Blueprint<'_>) -> Result<(File, PathBuf), Error> {
    let size = blueprint.geometry.total_size;
    let (file, path) = memory_file(blueprint.mode)?;
    ensure_participants_can_be(&file, &path, &path)?;
    allocate(&file, size, &path)?;
    seal(&file, &path)?;
    let region = Region::writable(&file, size as usize).map_err(|source| io_error("map", &path, source))?;
    let identity = FileIdentity::of(&file).map_err(|errno| io_error("examine", &path, errno.into()))?;
    fill(&region, blueprint, identity, &path)?;
    Ok((file, path))
}

/// A segment restored from a checkpoint, not yet at its path. If it is dropped, it is gone.
pub(crate) struct Restored {
    construction: Construction,
    /// Has the lock that shows others that its creator is alive.
    _file: File,
}

impl Restored {
    /// Moves it to its path.
    ///
    /// # Errors
    ///
    /// [`OpenError::AlreadyExists`] if there is something at the path.
    pub(crate) fn publish(self, path: &Path) -> Result<(), Error> {
        self.construction.publish(path)
    }
}

/// Makes the segment for `path` from one of the images of a checkpoint; the process that opens it then starts it
/// cold. `None` if the image is not complete, if it is not a segment that this build can use, or if `accept` rejects
/// it.
///
/// # Errors
///
/// [`OpenError::NoSpace`] if there is no room.
pub(crate) fn restore(
    path: &Path,
    mode: u32,
    checkpoint: &SavedImages,
    nth: usize,
    accept: impl FnOnce(&Verified) -> bool,
) -> Result<Option<Restored>, Error> {
    let Some((size, taken)) = checkpoint.size(nth).zip(checkpoint.taken_at(nth)) else {
        return Ok(None);
    };
    if size < HEADER_SPACE {
        return Ok(None);
    }
    let (construction, file, region) = construct(path, size, mode)?;
    let region = Arc::new(region);
    let is_sound = checkpoint.store(nth, &region)?
        && check_header(&region, size, path).is_ok()
        && verify(Arc::clone(&region), path).is_ok_and(|verified| accept(&verified));
    if !is_sound {
        return Ok(None);
    }
    date(&region, taken).map_err(|place| damaged(path, place))?;
    Ok(Some(Restored {
        construction,
        _file: file,
    }))
}

/// Dates a segment that was created from a checkpoint by the present time instead of its original creation, because
/// the wall clock may have been corrected since. It must be started cold, even if its boot was unknown.
fn date(region: &Region, taken: TakenAt) -> Result<(), OutOfRegion> {
    let header: &Header = region.record(0)?;
    let _ = header.boot_id[1].compare_exchange(0, UNKNOWN_BOOT, Ordering::Relaxed, Ordering::Relaxed);
    let now = utc_nanos();
    let created_at = taken.segment.saturating_add(now.saturating_sub(taken.utc));
    header.created_utc.store(now, Ordering::Relaxed);
    // Later than the creation of any segment can be, so that the elapsed time counts even for the latest possible
    // one.
    let latest = LATEST_INSTANT / 4 * 3;
    header.created_at.store(created_at.min(latest), Ordering::Relaxed);
    header.checksum.store(header_checksum(region)?, Ordering::Relaxed);
    Ok(())
}

/// A check before making anything that would only have to be removed again.
///
/// # Errors
///
/// [`OpenError::AlreadyExists`] if there is something at the path.
pub(crate) fn ensure_free(path: &Path) -> Result<(), Error> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::Open(OpenError::AlreadyExists {
            path: path.to_owned(),
        }));
    }
    Ok(())
}

/// An empty file of `size` bytes beside `path`, mapped.
fn construct(path: &Path, size: u64, mode: u32) -> Result<(Construction, File, Region), Error> {
    let (directory, name) = place_of(path)?;
    remove_abandoned(directory, name);
    let (file, construction) = start_construction(directory, name, path)?;
    file.set_permissions(Permissions::from_mode(mode))
        .map_err(|source| io_error("set the mode of", path, source))?;
    ensure_local(&file, path)?;
    ensure_participants_can_be(&file, construction.path(), path)?;
    allocate(&file, size, path)?;
    let region = Region::writable(&file, size as usize).map_err(|source| io_error("map", path, source))?;
    Ok((construction, file, region))
}

/// Writes everything that is not zero, the magic number last.
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
            (&entry.lease_lists, set.shape.lease_lists),
            (&entry.overall_words, set.shape.overall_words),
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
            control.hold_serial.store(next_life_serial(0), Ordering::Relaxed);
        }
    }
    let header: &Header = region.record(0).map_err(outside)?;
    let place = current_place(path)?;
    let directory_number = if blueprint.is_of_directory {
        directory_number(path, place.boot_id)?
    } else {
        0
    };
    let mut hash_key = [0; 16];
    random_bytes(&mut hash_key).map_err(|errno| io_error(GET_RANDOM_BYTES, path, errno.into()))?;
    // The segment clock starts at the wall-clock time of the creation, so that windows aligned to it begin at
    // multiples of their length since the Unix epoch. From then on it follows the boot-time clock, which nobody can
    // set.
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
        (&header.directory_number, directory_number),
    ] {
        word.store(value, Ordering::Relaxed);
    }
    header
        .checksum
        .store(header_checksum(region).map_err(outside)?, Ordering::Relaxed);
    // Whoever sees the magic number sees everything stored before it.
    header.magic.store(MAGIC, Ordering::Release);
    Ok(())
}

fn random_bytes(buffer: &mut [u8]) -> Result<(), Errno> {
    match getrandom(&mut *buffer, GetRandomFlags::empty())? {
        filled if filled == buffer.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}
