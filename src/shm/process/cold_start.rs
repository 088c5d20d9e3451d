//! What happens to a segment of another boot, other namespaces or another file.
//!
//! A lock may only be recreated while nobody can hold it: under the attach byte, when no participant's byte is locked
//! and none of the recorded processes that the process table knows is alive with the file mapped. Every operation
//! that takes a lock belongs to a participant, so then nobody holds any.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::host::{HostIdentity, ProcessOpinion, maps_file, process_opinion};
use super::participant::{ParticipantRecord, Phase};
use super::process_identity::CopyIdentity;
use super::same_place::{Likeness, SegmentOrigin, UNKNOWN_BOOT, current_place, ensure_same_namespaces};
use crate::error::{Error, OpenError};
use crate::shm::file::descriptor::FileIdentity;
use crate::shm::file::file_lock::{ByteRange, is_locked_by_others};
use crate::shm::file::region::{OutOfRegion, load_acquire};
use crate::shm::file::segment_file::{damaged, identity, io_error};
use crate::shm::file::set_directory::directory_number;
use crate::shm::file::verified::Verified;
use crate::shm::layout::records::{Header, SET_UNCHECKED, SET_UNRECOVERED, SetControl};
use crate::shm::time::clock::{boot_nanos, utc_nanos};
use crate::units::{LATEST_INSTANT, NANOS_PER_SECOND};

/// How far a plausible clock may be off, for a segment that may be of this boot. The wall clock is usually adjusted
/// by less.
const CLOCK_TOLERANCE: u64 = NANOS_PER_SECOND;

/// The latest wall-clock time at which hold numbers may start, in microseconds: in the year 2112. That leaves as many
/// numbers again below 2^53, up to which JSON represents them exactly.
const LATEST_FIRST_SERIAL: u64 = 1 << 52;

/// Starts a segment cold if it has to be: if it is of another boot, another namespace or another file, or has a lock
/// that nobody is left to release. The caller must hold the attach lock.
///
/// # Errors
///
/// [`OpenError::ForeignNamespace`] and [`OpenError::ForeignBoot`] if it would have to be started cold, but processes
/// are using it.
pub(crate) fn start_cold_if_needed(
    verified: &Verified,
    header: &Header,
    file: &File,
    path: &Path,
) -> Result<(), Error> {
    let table = verified.participants();
    let identity = identity(file, path)?;
    let place = current_place(path)?;
    let lock_kind = table.lock_kind;
    let origin = SegmentOrigin::of(header, identity);
    let has_participants = is_locked_by_others(file.as_fd(), ByteRange::participants(table.count))
        .map_err(|errno| io_error("lock", path, errno.into()))?;
    let is_same_place = match origin.likeness(lock_kind, place) {
        Likeness::Same => true,
        Likeness::Another => false,
        // If its participants have locks, the kernel that has them is the one that is running.
        Likeness::Unknown => {
            has_participants || has_plausible_clock(verified, header).map_err(|place| damaged(path, place))?
        }
    };
    if is_same_place {
        note_boot(header, place);
    }
    if is_same_place
        && (has_participants || !has_lost_lock(verified).map_err(|place| damaged(path, place))?)
    {
        return Ok(());
    }
    let is_in_use = has_participants
        || table
            .taken()
            .into_iter()
            .any(|record| is_alive_with_file_mapped(&record, origin, place, identity));
    match (is_in_use, is_same_place) {
        (false, _) => cold_start(verified, header, path, place, identity).map_err(|failure| match failure {
            ColdStartFailure::OutOfRegion(place) => damaged(path, place),
            ColdStartFailure::System(source) => io_error("initialise the locks of", path, source),
        }),
        // Perhaps the lock's owner is about to end; until then, operations report that the lock is stuck.
        (true, true) => Ok(()),
        (true, false) => {
            ensure_same_namespaces(header, lock_kind, place, path)?;
            Err(Error::Open(OpenError::ForeignBoot {
                path: path.to_owned(),
            }))
        }
    }
}

/// Whether some lock can never be taken, because neither the kernel nor another process will find its owner dead.
fn has_lost_lock(verified: &Verified) -> Result<bool, OutOfRegion> {
    let kind = verified.creation_options.lock_kind;
    for control in controls(verified) {
        if kind.is_beyond_the_dead(&control?.lock) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn controls(verified: &Verified) -> impl Iterator<Item = Result<&SetControl, OutOfRegion>> {
    let shards = verified.geometry.sets.iter().flat_map(|set| &set.shards);
    shards.map(|shard| verified.region.record(shard.control_offset))
}

/// A second opinion on a participant whose byte is not locked. The process table only knows processes of this boot
/// and this namespace; for a copied file, its records are about the original.
fn is_alive_with_file_mapped(
    record: &ParticipantRecord,
    origin: SegmentOrigin,
    place: HostIdentity,
    file: FileIdentity,
) -> bool {
    let has_pid_of_this_namespace =
        origin.boot(place) != Likeness::Another && record.identity.is_of_namespace(place.pid_namespace);
    if record.phase != Phase::Live || !has_pid_of_this_namespace || !origin.is_original_file {
        return false;
    }
    let (recorded, own) = (record.identity, CopyIdentity::own());
    if own.is_same_process(recorded) {
        // This process has the file mapped right now, but a program that it executed earlier does not, and this copy
        // of the library knows that it is joining without a lock.
        return recorded.image == own.image && recorded.copy != own.copy;
    }
    process_opinion(recorded.pid, recorded.start_time) == ProcessOpinion::Alive
        && maps_file(recorded.pid, file.inode).unwrap_or(true)
}

/// If the segment is of this boot but its processes did not know the boot, records it, so that the next boot is
/// recognised as another. The first half goes first: while the second is zero, the boot is unknown.
fn note_boot(header: &Header, place: HostIdentity) {
    if load_acquire(&header.boot_id[1]) == 0 && place.boot_id[1] != 0 {
        header.boot_id[0].store(place.boot_id[0], Ordering::Release);
        header.boot_id[1].store(place.boot_id[1], Ordering::Release);
    }
}

/// The latest instant that any shard has seen.
fn latest_seen(verified: &Verified) -> Result<u64, OutOfRegion> {
    let mut latest = 0;
    for control in controls(verified) {
        let seen = control?.last_seen.load(Ordering::Relaxed);
        if seen < LATEST_INSTANT {
            latest = latest.max(seen);
        }
    }
    Ok(latest)
}

/// The segment clock according to the boot-time clock.
fn time_by_boot(header: &Header) -> u64 {
    boot_nanos().wrapping_add(header.clock_offset.load(Ordering::Relaxed))
}

/// The segment clock according to the wall clock.
fn time_by_wall_clock(header: &Header) -> u64 {
    let elapsed = utc_nanos().saturating_sub(header.created_utc.load(Ordering::Relaxed));
    header.created_at.load(Ordering::Relaxed).saturating_add(elapsed)
}

/// Whether a segment may be of this boot, judged by what its clock would show here: nothing it has seen lies in the
/// future, and it is not ahead of the wall clock.
fn has_plausible_clock(verified: &Verified, header: &Header) -> Result<bool, OutOfRegion> {
    let shown = time_by_boot(header).saturating_add(CLOCK_TOLERANCE);
    let latest = time_by_wall_clock(header).saturating_add(2 * CLOCK_TOLERANCE);
    Ok(latest_seen(verified)? <= shown && shown <= latest)
}

/// The number that a shard's holds continue from when a segment starts another life: that of the latest hold, or the
/// wall clock in microseconds if that is larger. So they exceed the numbers of any former life whose file is gone,
/// provided that a shard hands out fewer than a million a second.
pub(crate) fn next_life_serial(latest: u64) -> u64 {
    latest.max((utc_nanos() / 1_000).min(LATEST_FIRST_SERIAL))
}

enum ColdStartFailure {
    OutOfRegion(OutOfRegion),
    System(io::Error),
}

/// Voids the locks and owners of a former life of the file. In another boot, or under another clock, the segment
/// clock advances by the wall-clock time that has passed. If it is unknown whether the boot is another, the segment
/// clock continues from whichever of the two clocks is behind, so that no limit is replenished early.
///
/// What was held is left to the ordinary reclaim, which finds its owners dead; what was being changed is undone by
/// whoever next takes the set's lock. Every step can be repeated, and the boot id is stored last, its first half at
/// the very end: a process that dies on the way leaves a segment that the next one starts cold again.
fn cold_start(
    verified: &Verified,
    header: &Header,
    path: &Path,
    place: HostIdentity,
    identity: FileIdentity,
) -> Result<(), ColdStartFailure> {
    // Only the second half of the boot id is meaningful after an interrupted cold start.
    let clock = match load_acquire(&header.boot_id[1]) {
        _ if header.time_namespace.load(Ordering::Relaxed) != place.time_namespace => Likeness::Another,
        0 | UNKNOWN_BOOT => Likeness::Unknown,
        _ if place.boot_id[1] == 0 => Likeness::Unknown,
        boot if boot == place.boot_id[1] => Likeness::Same,
        _ => Likeness::Another,
    };
    header.boot_id[0].store(0, Ordering::Release);
    // Marks an interrupted cold start from here on, even if the boot was unknown.
    let _ = header.boot_id[1].compare_exchange(0, UNKNOWN_BOOT, Ordering::Release, Ordering::Relaxed);
    let latest = latest_seen(verified).map_err(ColdStartFailure::OutOfRegion)?;
    for control in controls(verified) {
        let control = control.map_err(ColdStartFailure::OutOfRegion)?;
        // The lock takes with it the information that its owner died. A set that is already poisoned stays so.
        for sound in [0, SET_UNRECOVERED] {
            let _ =
                control
                    .poisoned
                    .compare_exchange(sound, SET_UNCHECKED, Ordering::Relaxed, Ordering::Relaxed);
        }
        let kind = verified.creation_options.lock_kind;
        kind.initialise(&control.lock).map_err(ColdStartFailure::System)?;
        let serial = next_life_serial(control.hold_serial.load(Ordering::Relaxed));
        control.hold_serial.store(serial, Ordering::Relaxed);
    }
    verified
        .participants()
        .clear()
        .map_err(ColdStartFailure::OutOfRegion)?;
    let segment_time = match clock {
        Likeness::Same => None,
        Likeness::Another => Some(time_by_wall_clock(header)),
        Likeness::Unknown => Some(time_by_wall_clock(header).min(time_by_boot(header))),
    };
    if let Some(segment_time) = segment_time {
        let segment_time = segment_time.max(latest);
        header
            .clock_offset
            .store(segment_time.wrapping_sub(boot_nanos()), Ordering::Relaxed);
    }
    header.pid_namespace.store(place.pid_namespace, Ordering::Relaxed);
    header
        .time_namespace
        .store(place.time_namespace, Ordering::Relaxed);
    header.device.store(identity.device, Ordering::Relaxed);
    header.inode.store(identity.inode, Ordering::Relaxed);
    if header.directory_number.load(Ordering::Relaxed) != 0 {
        // It may have been copied into another directory.
        let number = directory_number(path, place.boot_id).unwrap_or(0);
        header.directory_number.store(number, Ordering::Relaxed);
    }
    header.cold_starts.fetch_add(1, Ordering::Relaxed);
    header.boot_id[1].store(place.boot_id[1], Ordering::Release);
    header.boot_id[0].store(place.boot_id[0], Ordering::Release);
    Ok(())
}
