//! From a path to a segment that may be used: every check between opening a file and trusting a byte of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statfs::fstatfs;

use super::definition::{Definition, read_definition_in_force};
use super::descriptor::{FileIdentity, above_standard_streams};
use super::file_lock::{ByteRange, is_locked_by_others, try_lock, unlock};
use super::geometry::{Geometry, SetShape};
use super::host::{Place, unsupported_file_system};
use super::layout::{
    BYTE_ORDER, C_LIBRARY, CHECKED_HEADER_WORDS, CHECKSUM_SEED, CLOCK_BOOT_TIME, DirectoryEntry, FORMAT,
    HEADER_SPACE, Header, INCOMPATIBLE_FEATURES, LOCK_KIND_ROBUST_MUTEX, MAGIC, MOST_PARTICIPANTS, MOST_SETS,
    SET_UNCHECKED, SetControl, WORD_SIZE, checksum_step, fingerprint,
};
use super::participant::{Membership, ParticipantTable};
use super::region::{OutOfRegion, Region, load_acquire};
use crate::error::Error;
use crate::shm::clock::{boot_nanos, utc_nanos};
use crate::units::LATEST_INSTANT;

/// How long to wait for another process that is attaching.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);

/// A segment whose header, tables and definitions have been checked.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) region: Arc<Region>,
    pub(crate) geometry: Geometry,
    /// The definition of each set, in the order of the directory.
    pub(crate) definitions: Vec<Definition>,
}

/// A segment that this process is a participant of.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) verified: Verified,
    pub(crate) membership: Membership,
    /// Added to the boot-time clock: the segment clock.
    pub(crate) clock_offset: u64,
}

/// The attach lock of a segment, held.
#[derive(Debug)]
pub(crate) struct AttachLock<'a> {
    file: &'a File,
}

impl<'a> AttachLock<'a> {
    /// Waits, up to a bound, until no other process attaches.
    pub(crate) fn take(file: &'a File, path: &Path) -> Result<Self, Error> {
        let deadline = Instant::now() + ATTACH_PATIENCE;
        loop {
            match try_lock(file.as_fd(), ByteRange::ATTACH) {
                Ok(true) => return Ok(Self { file }),
                Ok(false) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(200)),
                Ok(false) => {
                    return Err(Error::AttachStuck {
                        path: path.to_owned(),
                    });
                }
                Err(errno) => return Err(io_error("lock", path, errno.into())),
            }
        }
    }
}

impl Drop for AttachLock<'_> {
    fn drop(&mut self) {
        // Cannot fail for a lock that is held; and closing the file would let go of it as well.
        let _ = unlock(self.file.as_fd(), ByteRange::ATTACH);
    }
}

/// Opens a segment file for reading and writing. Never creates, never follows a link, never waits for a pipe.
pub(crate) fn open_for_writing(path: &Path) -> Result<File, Error> {
    open(path, OpenOptions::new().read(true).write(true))
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File, Error> {
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT) => Error::NotFound {
                path: path.to_owned(),
            },
            Some(Errno::ELOOP) => Error::Untrusted {
                path: path.to_owned(),
                why: "it is a symbolic link; name the file itself".into(),
            },
            Some(Errno::EISDIR | Errno::ENXIO) => not_regular(path),
            _ => io_error("open", path, source),
        })?;
    above_standard_streams(file).map_err(|errno| io_error("open", path, errno.into()))
}

/// Opens a segment file once more, as an open file of its own; `None` where the path leads elsewhere by now.
pub(crate) fn open_again(path: &Path, expected: FileIdentity) -> Result<Option<File>, Error> {
    let file = open_for_writing(path)?;
    Ok((identity(&file, path)? == expected).then_some(file))
}

fn identity(file: &File, path: &Path) -> Result<FileIdentity, Error> {
    FileIdentity::of(file).map_err(|errno| io_error("examine", path, errno.into()))
}

fn not_regular(path: &Path) -> Error {
    Error::Untrusted {
        path: path.to_owned(),
        why: "it is not a regular file".into(),
    }
}

/// Attaches to a segment: checks the file, starts it cold if it comes from another boot or is a copy, and joins its
/// participants. Nothing is changed before `understand` has made sense of what the file defines.
pub(crate) fn attach<T>(
    path: &Path,
    trust_any_owner: bool,
    understand: impl FnOnce(&Verified) -> Result<T, Error>,
) -> Result<(Attached, T), Error> {
    let file = open_for_writing(path)?;
    let size = check_file(&file, path, trust_any_owner)?;
    // The header is read through a mapping of its own, so that nothing of a foreign file is touched before it is
    // known to be a segment.
    let header_region =
        Region::read_only(&file, HEADER_SPACE as usize).map_err(|source| io_error("map", path, source))?;
    check_header(&header_region, size, path)?;
    // A copy may be sparse: on a full file system the first store into a hole would be a bus error.
    nix::fcntl::posix_fallocate(&file, 0, size as i64)
        .map_err(|errno| allocation_error(path, size, errno))?;
    let region = Region::writable(&file, size as usize).map_err(|source| io_error("map", path, source))?;
    let verified = verify(Arc::new(region), path)?;
    let understood = understand(&verified)?;
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    let table = verified.participants();
    let lock = AttachLock::take(&file, path)?;
    // Looked at under the lock: whoever removes the segment retires it under the same lock.
    if load_acquire(&header.retired) != 0 {
        return Err(Error::Retired {
            path: path.to_owned(),
        });
    }
    ensure_same_place(&verified, header, &table, &file, path)?;
    let clock_offset = header.clock_offset.load(Ordering::Relaxed);
    // Not a duplicate: a mapping keeps its open file, and with it the file's locks, also in children of this process
    // that outlive it.
    let own_file = open_again(path, identity(&file, path)?)?.ok_or_else(|| Error::NotFound {
        path: path.to_owned(),
    })?;
    let membership = Membership::join(own_file, path.to_owned(), table)?;
    drop(lock);
    let attached = Attached {
        verified,
        membership,
        clock_offset,
    };
    Ok((attached, understood))
}

/// A segment opened for looking only: mapped without write permission, nothing joined, nothing locked.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) verified: Verified,
    pub(crate) file: File,
    pub(crate) same_place: bool,
}

/// Opens a segment for looking only.
pub(crate) fn observe(path: &Path, trust_any_owner: bool) -> Result<Observed, Error> {
    let file = open(path, OpenOptions::new().read(true))?;
    let size = check_file(&file, path, trust_any_owner)?;
    let region = Region::read_only(&file, size as usize).map_err(|source| io_error("map", path, source))?;
    check_header(&region, size, path)?;
    let verified = verify(Arc::new(region), path)?;
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    let same_place = is_same_place(header, identity(&file, path)?);
    Ok(Observed {
        verified,
        file,
        same_place,
    })
}

impl Verified {
    /// The participants' table.
    pub(crate) fn participants(&self) -> ParticipantTable {
        ParticipantTable {
            region: Arc::clone(&self.region),
            offset: self.geometry.participants_offset,
            count: self.geometry.participants,
        }
    }
}

/// Whether the file may be trusted, by what the system says of it; answers its size.
pub(crate) fn check_file(file: &File, path: &Path, trust_any_owner: bool) -> Result<u64, Error> {
    let metadata = file
        .metadata()
        .map_err(|source| io_error("examine", path, source))?;
    if !metadata.is_file() {
        return Err(not_regular(path));
    }
    let untrusted = |why: String| Error::Untrusted {
        path: path.to_owned(),
        why,
    };
    if metadata.nlink() > 1 {
        return Err(untrusted(format!(
            "it has {} names; a segment has one",
            metadata.nlink()
        )));
    }
    if !trust_any_owner {
        let own = nix::unistd::geteuid().as_raw();
        if metadata.mode() & 0o002 != 0 {
            return Err(untrusted(
                "anybody may write it; change its mode, or say that you trust it".into(),
            ));
        }
        if metadata.uid() != own && metadata.uid() != 0 && folder_is_writable_by_others(path) {
            let owner = metadata.uid();
            return Err(untrusted(format!(
                "it belongs to user {owner} in a folder that others may write; move it, or say that you trust it"
            )));
        }
    }
    let statistics = fstatfs(file).map_err(|errno| io_error("examine", path, errno.into()))?;
    if let Some(file_system) = unsupported_file_system(&statistics) {
        return Err(Error::UnsupportedFileSystem {
            path: path.to_owned(),
            file_system,
        });
    }
    if metadata.len() < HEADER_SPACE {
        let found = start_of(file, path)?;
        if found != MAGIC {
            return Err(Error::NotASegment {
                path: path.to_owned(),
                found,
                expected: MAGIC,
            });
        }
        return Err(Error::WrongSize {
            path: path.to_owned(),
            expected: HEADER_SPACE,
            found: metadata.len(),
        });
    }
    Ok(metadata.len())
}

/// The first eight bytes of a file, as the header's magic number is read; zeros beyond its end.
pub(crate) fn start_of(file: &File, path: &Path) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    file.read_at(&mut bytes, 0)
        .map_err(|source| io_error("read", path, source))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn folder_is_writable_by_others(path: &Path) -> bool {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // A folder that cannot be examined is given no credit.
    std::fs::metadata(folder).map_or(true, |metadata| metadata.mode() & 0o022 != 0)
}

/// Whether the header is one that this build can work with.
pub(crate) fn check_header(region: &Region, size: u64, path: &Path) -> Result<(), Error> {
    let header: &Header = region.record(0).map_err(|place| damaged(path, place))?;
    // Synchronises with the release store that ends a creation.
    let magic = load_acquire(&header.magic);
    if magic != MAGIC {
        return Err(Error::NotASegment {
            path: path.to_owned(),
            found: magic,
            expected: MAGIC,
        });
    }
    for (what, word, expected) in [
        ("byte order", &header.byte_order, BYTE_ORDER),
        ("format number", &header.format, FORMAT),
        ("word size", &header.word_size, WORD_SIZE),
        ("C library", &header.c_library, C_LIBRARY),
        ("layout", &header.fingerprint, fingerprint()),
        ("lock kind", &header.lock_kind, LOCK_KIND_ROBUST_MUTEX),
        ("clock", &header.clock_id, CLOCK_BOOT_TIME),
        ("header size", &header.header_size, size_of::<Header>() as u64),
    ] {
        let found = word.load(Ordering::Relaxed);
        if found != expected {
            return Err(Error::Incompatible {
                path: path.to_owned(),
                what,
                found,
                expected,
            });
        }
    }
    let features = header.incompatible_features.load(Ordering::Relaxed);
    if features & !INCOMPATIBLE_FEATURES != 0 {
        let what = "set of features that must be known";
        return Err(Error::Incompatible {
            path: path.to_owned(),
            what,
            found: features,
            expected: INCOMPATIBLE_FEATURES,
        });
    }
    let expected = header.total_size.load(Ordering::Relaxed);
    if size != expected {
        return Err(Error::WrongSize {
            path: path.to_owned(),
            expected,
            found: size,
        });
    }
    let checksum = header_checksum(region).map_err(|place| damaged(path, place))?;
    if header.checksum.load(Ordering::Relaxed) != checksum {
        return Err(Error::Damaged {
            path: path.to_owned(),
            what: "the header's checksum does not match".into(),
        });
    }
    Ok(())
}

/// The checksum over the words of the header that never change.
pub(crate) fn header_checksum(region: &Region) -> Result<u64, OutOfRegion> {
    let words = region.words(0, size_of::<Header>() as u64 / 8)?;
    Ok(words[CHECKED_HEADER_WORDS]
        .iter()
        .fold(CHECKSUM_SEED, |hash, word| {
            checksum_step(hash, word.load(Ordering::Relaxed))
        }))
}

/// Checks the tables and definitions of a segment whose header was checked.
pub(crate) fn verify(region: Arc<Region>, path: &Path) -> Result<Verified, Error> {
    let inconsistent = |what: &str| Error::Damaged {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    let header: &Header = region.record(0).map_err(|place| damaged(path, place))?;
    let participants = header.participants.load(Ordering::Relaxed);
    let set_count = header.sets.load(Ordering::Relaxed);
    if participants > MOST_PARTICIPANTS || set_count > MOST_SETS {
        return Err(inconsistent(
            "the header counts more participants or sets than a segment can have",
        ));
    }
    let directory_offset = header.directory_offset.load(Ordering::Relaxed);
    let entries: &[DirectoryEntry] = region
        .records(directory_offset, set_count)
        .map_err(|place| damaged(path, place))?;
    let shapes: Vec<SetShape> = entries.iter().map(read_shape).collect();
    let geometry = Geometry::new(participants, shapes)
        .map_err(|_| inconsistent("the directory describes sets that no segment can hold"))?;
    if geometry.participants_offset != header.participants_offset.load(Ordering::Relaxed)
        || geometry.directory_offset != directory_offset
        || geometry.total_size != region.size()
    {
        return Err(inconsistent("the header's offsets do not follow from its counts"));
    }
    let mut definitions = Vec::with_capacity(entries.len());
    for (entry, set) in entries.iter().zip(&geometry.sets) {
        if entry.extent_offset.load(Ordering::Relaxed) != set.extent_offset
            || entry.extent_size.load(Ordering::Relaxed) != set.extent_size
        {
            return Err(inconsistent(
                "a directory entry's extent does not follow from its counts",
            ));
        }
        let definition =
            read_definition_in_force(&region, set, entry).map_err(|place| damaged(path, place))?;
        definitions.push(definition.map_err(|invalid| inconsistent(invalid.what()))?);
    }
    Ok(Verified {
        region,
        geometry,
        definitions,
    })
}

fn read_shape(entry: &DirectoryEntry) -> SetShape {
    SetShape {
        definition_room: entry.definition_room.load(Ordering::Relaxed),
        limits: entry.limits.load(Ordering::Relaxed),
        state_words: entry.state_words.load(Ordering::Relaxed),
        holds: entry.holds.load(Ordering::Relaxed),
        held_amounts: entry.held_amounts.load(Ordering::Relaxed),
        tickets: entry.tickets.load(Ordering::Relaxed),
        parts: entry.parts.load(Ordering::Relaxed),
        buckets: entry.buckets.load(Ordering::Relaxed),
        name_words: entry.name_words.load(Ordering::Relaxed),
    }
}

pub(crate) fn is_same_place(header: &Header, file: FileIdentity) -> bool {
    let place = Place::current();
    load_pair(&header.boot_id) == place.boot_id
        && header.pid_namespace.load(Ordering::Relaxed) == place.pid_namespace
        && header.time_namespace.load(Ordering::Relaxed) == place.time_namespace
        && header.device.load(Ordering::Relaxed) == file.device
        && header.inode.load(Ordering::Relaxed) == file.inode
}

fn load_pair(words: &[AtomicU64; 2]) -> [u64; 2] {
    [load_acquire(&words[0]), load_acquire(&words[1])]
}

/// Makes a segment of another boot, another namespace or another file this one's, provided that nobody is alive.
fn ensure_same_place(
    verified: &Verified,
    header: &Header,
    table: &ParticipantTable,
    file: &File,
    path: &Path,
) -> Result<(), Error> {
    let identity = identity(file, path)?;
    if is_same_place(header, identity) {
        return Ok(());
    }
    let somebody_is_alive = is_locked_by_others(file.as_fd(), ByteRange::participants(table.count))
        .map_err(|errno| io_error("lock", path, errno.into()))?;
    if !somebody_is_alive {
        return cold_start(verified, header, table, identity).map_err(|failure| match failure {
            ColdStartFailure::OutOfRegion(place) => damaged(path, place),
            ColdStartFailure::System(source) => io_error("initialise the locks of", path, source),
        });
    }
    let place = Place::current();
    for (what, word, expected) in [
        ("PID", &header.pid_namespace, place.pid_namespace),
        ("time", &header.time_namespace, place.time_namespace),
    ] {
        let found = word.load(Ordering::Relaxed);
        if found != expected {
            return Err(Error::ForeignNamespace {
                path: path.to_owned(),
                what,
                found,
                expected,
            });
        }
    }
    Err(Error::ForeignBoot {
        path: path.to_owned(),
    })
}

enum ColdStartFailure {
    OutOfRegion(OutOfRegion),
    System(io::Error),
}

/// Voids the locks and owners of another life of the file and sets its clock on by the wall-clock time that passed.
///
/// What was held is left for the ordinary reclaim, which finds its owners dead; what was being changed is undone by
/// whoever takes the set's lock first. Each step can be repeated, and the boot id is stored last: a process that
/// dies on the way leaves a segment that the next one starts cold again.
fn cold_start(
    verified: &Verified,
    header: &Header,
    table: &ParticipantTable,
    identity: FileIdentity,
) -> Result<(), ColdStartFailure> {
    let place = Place::current();
    header.boot_id[0].store(0, Ordering::Release);
    let mut latest = 0;
    let parts = verified.geometry.sets.iter().flat_map(|set| &set.parts);
    for part in parts {
        let control: &SetControl = verified
            .region
            .record(part.control_offset)
            .map_err(ColdStartFailure::OutOfRegion)?;
        // With the lock goes the word that its owner died. A set that is poisoned already stays so.
        let _ = control
            .poisoned
            .compare_exchange(0, SET_UNCHECKED, Ordering::Relaxed, Ordering::Relaxed);
        control.lock.initialise().map_err(ColdStartFailure::System)?;
        let seen = control.last_seen.load(Ordering::Relaxed);
        if seen < LATEST_INSTANT {
            latest = latest.max(seen);
        }
    }
    table.clear().map_err(ColdStartFailure::OutOfRegion)?;
    let elapsed = utc_nanos().saturating_sub(header.created_utc.load(Ordering::Relaxed));
    let by_wall_clock = header.created_at.load(Ordering::Relaxed).saturating_add(elapsed);
    let segment_time = by_wall_clock.max(latest);
    header
        .clock_offset
        .store(segment_time.wrapping_sub(boot_nanos()), Ordering::Relaxed);
    header.pid_namespace.store(place.pid_namespace, Ordering::Relaxed);
    header
        .time_namespace
        .store(place.time_namespace, Ordering::Relaxed);
    header.device.store(identity.device, Ordering::Relaxed);
    header.inode.store(identity.inode, Ordering::Relaxed);
    header.cold_starts.fetch_add(1, Ordering::Relaxed);
    header.boot_id[1].store(place.boot_id[1], Ordering::Release);
    header.boot_id[0].store(place.boot_id[0], Ordering::Release);
    Ok(())
}

pub(crate) fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

pub(crate) fn allocation_error(path: &Path, bytes: u64, errno: Errno) -> Error {
    match errno {
        Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => Error::NoSpace {
            path: path.to_owned(),
            bytes,
        },
        other => io_error("allocate", path, other.into()),
    }
}

pub(crate) fn damaged(path: &Path, place: OutOfRegion) -> Error {
    Error::Damaged {
        path: PathBuf::from(path),
        what: format!("{} bytes at {} lie outside the file", place.size, place.offset),
    }
}
