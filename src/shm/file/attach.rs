//! From a path to a segment that may be used: every check between opening a file and trusting a byte of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::descriptor::{FileIdentity, above_standard_streams};
use super::file_system::{ensure_local, ensure_stores_need_no_space};
use super::region::{OutOfRegion, Region, load_acquire};
use super::removal::{marked_removal, retire};
use super::remove::unlink;
use super::{access, attachments};
use crate::error::{Error, RemovalCause};
use crate::shm::layout::definition_text::{Definition, read_definition_in_force};
use crate::shm::layout::geometry::{Geometry, SetShape};
use crate::shm::layout::records::{
    BYTE_ORDER, C_LIBRARY, CHECKED_HEADER_WORDS, CHECKSUM_SEED, CLOCK_BOOT_TIME, DirectoryEntry, FORMAT,
    HEADER_SPACE, Header, INCOMPATIBLE_FEATURES, LOCK_KIND_ROBUST_MUTEX, MAGIC, MAX_PARTICIPANTS, MAX_SETS,
    WORD_SIZE, checksum_step, fingerprint,
};
use crate::shm::lock::file_lock::{ByteRange, try_lock, unlock};
use crate::shm::process::cold_start::{current_place, is_same_place, start_cold_if_needed};
use crate::shm::process::participant::{Membership, ParticipantTable};
use crate::shm::process::process_identity::CopyIdentity;

/// How long to wait for another process that is attaching.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// Shared by everything in this process that has the segment open.
    pub(crate) membership: Arc<Membership>,
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
        let deadline = Instant::now() + ATTACH_TIMEOUT;
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
        // Cannot fail for a lock that is held; and closing the file would release it as well.
        let _ = unlock(self.file.as_fd(), ByteRange::ATTACH);
    }
}

/// Opens a segment file for reading and writing. Never creates, never follows a link, never waits for a pipe.
pub(crate) fn open_for_writing(path: &Path) -> Result<File, Error> {
    open(path, OpenOptions::new().read(true).write(true))
}

/// As [`open_for_writing`], for reading.
pub(crate) fn open_for_reading(path: &Path) -> Result<File, Error> {
    open(path, OpenOptions::new().read(true))
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

pub(crate) fn identity(file: &File, path: &Path) -> Result<FileIdentity, Error> {
    FileIdentity::of(file).map_err(|errno| io_error("examine", path, errno.into()))
}

fn not_regular(path: &Path) -> Error {
    Error::Untrusted {
        path: path.to_owned(),
        why: "it is not a regular file".into(),
    }
}

/// What is to become of an attempt to attach, once it is known what the segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The process joins.
    Join,
    /// The segment is retired and its file removed, so that another can be made in its place. Only while no other
    /// process is attached.
    Replace,
}

/// What an attempt to attach is decided by: under the attach lock, so that no other process joins meanwhile.
pub(crate) struct Candidate<'a> {
    verified: &'a Verified,
    file: &'a File,
    path: &'a Path,
}

impl Candidate<'_> {
    /// The definitions that are in force by now.
    pub(crate) fn definitions(&self) -> Result<Vec<Definition>, Error> {
        let Verified { region, geometry, .. } = self.verified;
        read_definitions(region, geometry, self.path)
    }

    /// How many participants there may be.
    pub(crate) fn participants(&self) -> u64 {
        self.verified.geometry.participants
    }

    /// The permissions of the file.
    pub(crate) fn mode(&self) -> Result<u32, Error> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|source| io_error("examine", self.path, source))?;
        Ok(metadata.mode() & 0o777)
    }

    /// The other processes that are attached.
    pub(crate) fn other_processes(&self) -> Vec<u64> {
        let own = CopyIdentity::own();
        let mut pids = self.verified.live_processes(self.file);
        pids.retain(|process| !own.is_same_process(*process));
        pids.into_iter().map(|process| process.pid).collect()
    }
}

/// Attaches to a segment: checks the file, starts it cold if it comes from another boot or is a copy, and joins its
/// participants, unless this process is one already. Nothing is changed before `understand` has made sense of what the
/// file defines and `admit` has agreed.
///
/// # Errors
///
/// [`Error::Removed`], also where the segment was to be replaced; and what is wrong with the file.
pub(crate) fn attach<T>(
    path: &Path,
    trust_any_owner: bool,
    understand: impl FnOnce(&Verified) -> Result<T, Error>,
    admit: impl FnOnce(&Candidate<'_>) -> Result<Admission, Error>,
) -> Result<(Attached, T), Error> {
    let file = open_for_writing(path)?;
    let size = check_file(&file, path, trust_any_owner)?;
    // The header is read through a mapping of its own, so that nothing of a foreign file is touched before it is
    // known to be a segment.
    let header_region =
        Region::read_only(&file, HEADER_SPACE as usize).map_err(|source| io_error("map", path, source))?;
    check_header(&header_region, size, path)?;
    let own_identity = identity(&file, path)?;
    let mut shared = attachments::find(own_identity);
    let region = match &shared {
        Some(membership) => Arc::clone(membership.region()),
        None => {
            // A copy may be sparse: on a full file system the first store into a hole would be a bus error.
            ensure_stores_need_no_space(&file, size, path)?;
            let region =
                Region::writable(&file, size as usize).map_err(|source| io_error("map", path, source))?;
            Arc::new(region)
        }
    };
    let mut verified = verify(region, path)?;
    let understood = understand(&verified)?;
    let lock = AttachLock::take(&file, path)?;
    // Another thread may have joined since.
    shared = shared.or_else(|| attachments::find(own_identity));
    if let Some(membership) = &shared {
        verified.region = Arc::clone(membership.region());
    }
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    let removed = |cause| Error::Removed {
        path: path.to_owned(),
        cause,
    };
    // Looked at under the lock: the process that removes the segment retires it under the same lock.
    if let Some(cause) = marked_removal(header) {
        return Err(removed(cause));
    }
    let candidate = Candidate {
        verified: &verified,
        file: &file,
        path,
    };
    if admit(&candidate)? == Admission::Replace {
        retire(header);
        unlink(path, &file).inspect_err(|_| {
            // No process has joined meanwhile, which takes the lock: it is as it was.
            header.retired.store(0, Ordering::Release);
        })?;
        return Err(removed(RemovalCause::Retired));
    }
    start_cold_if_needed(&verified, header, &file, path)?;
    let membership = match shared {
        Some(membership) => membership,
        None => {
            let probe = file
                .try_clone()
                .map_err(|source| io_error("open", path, source))?;
            // Not a duplicate: a mapping keeps its open file, and with it the file's locks, also in children of this
            // process that outlive it.
            let own_file = open_again(path, own_identity)?.ok_or_else(|| Error::NotFound {
                path: path.to_owned(),
            })?;
            let membership = Membership::join(own_file, probe, path.to_owned(), verified.participants())?;
            let membership = Arc::new(membership);
            attachments::add(&membership);
            membership
        }
    };
    drop(lock);
    // In a forked child that has inherited it, it is renewed here, which needs the attach lock.
    membership.owner()?;
    let clock_offset = header.clock_offset.load(Ordering::Relaxed);
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
    let file = open_for_reading(path)?;
    let size = check_file(&file, path, trust_any_owner)?;
    let region = Region::read_only(&file, size as usize).map_err(|source| io_error("map", path, source))?;
    check_header(&region, size, path)?;
    let verified = verify(Arc::new(region), path)?;
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    let same_place = is_same_place(header, current_place(path)?, identity(&file, path)?);
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

    /// The processes that are attached and alive; `file` is any open file of the segment.
    pub(crate) fn live_processes(&self, file: &File) -> Vec<CopyIdentity> {
        let table = self.participants();
        table
            .taken()
            .into_iter()
            .filter(|record| table.is_alive_by(file.as_fd(), record.id))
            .map(|record| record.identity)
            .collect()
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
    if metadata.nlink() == 0 {
        // Deleted since it was opened, or reached by a mount that keeps a deleted file.
        return Err(Error::Removed {
            path: path.to_owned(),
            cause: RemovalCause::Deleted,
        });
    }
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
                "everyone may write it; change its mode, or open it with trust_any_owner (--trust-any-owner)"
                    .into(),
            ));
        }
        let directory = directory_of(path);
        let access = access_to_directory(directory);
        if metadata.uid() != own && metadata.uid() != 0 && access != DirectoryAccess::Own {
            let owner = metadata.uid();
            let remedy = match access {
                // Its mode is what its users need.
                DirectoryAccess::Public => {
                    "is for all users, so leave its mode as it is: put the segment into a directory of its own in it, which \
                     only its owner may write (mode 2750)"
                }
                _ => "others may write: take group and others the right to write there (chmod 2750)",
            };
            return Err(untrusted(format!(
                "it belongs to user {owner}, and its directory {} {remedy}, or open it with trust_any_owner \
                 (--trust-any-owner)",
                directory.display()
            )));
        }
    }
    ensure_local(file, path)?;
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

/// Who may put files into a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryAccess {
    /// Its owner alone.
    Own,
    /// Others, too.
    Shared,
    /// Everyone, who may remove only what is their own: `/dev/shm`, `/tmp`.
    Public,
}

fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn access_to_directory(directory: &Path) -> DirectoryAccess {
    // A directory that cannot be examined is given no credit.
    let mode = std::fs::metadata(directory).map_or(0o022, |metadata| metadata.mode());
    if mode & 0o022 == 0 {
        DirectoryAccess::Own
    } else if mode & 0o1002 == 0o1002 {
        DirectoryAccess::Public
    } else {
        DirectoryAccess::Shared
    }
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
    if participants > MAX_PARTICIPANTS || set_count > MAX_SETS {
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
    for (entry, set) in entries.iter().zip(&geometry.sets) {
        if entry.extent_offset.load(Ordering::Relaxed) != set.extent_offset
            || entry.extent_size.load(Ordering::Relaxed) != set.extent_size
        {
            return Err(inconsistent(
                "a directory entry's extent does not follow from its counts",
            ));
        }
    }
    let definitions = read_definitions(&region, &geometry, path)?;
    Ok(Verified {
        region,
        geometry,
        definitions,
    })
}

/// The definitions in force of the sets of a region that `geometry` describes.
fn read_definitions(region: &Region, geometry: &Geometry, path: &Path) -> Result<Vec<Definition>, Error> {
    let entries: &[DirectoryEntry] = region
        .records(geometry.directory_offset, geometry.sets.len() as u64)
        .map_err(|place| damaged(path, place))?;
    let mut definitions = Vec::with_capacity(entries.len());
    for (entry, set) in entries.iter().zip(&geometry.sets) {
        let definition =
            read_definition_in_force(region, set, entry).map_err(|place| damaged(path, place))?;
        definitions.push(definition.map_err(|invalid| Error::Damaged {
            path: path.to_owned(),
            what: invalid.what().to_owned(),
        })?);
    }
    Ok(definitions)
}

fn read_shape(entry: &DirectoryEntry) -> SetShape {
    SetShape {
        definition_room: entry.definition_room.load(Ordering::Relaxed),
        limits: entry.limits.load(Ordering::Relaxed),
        state_words: entry.state_words.load(Ordering::Relaxed),
        holds: entry.holds.load(Ordering::Relaxed),
        held_amounts: entry.held_amounts.load(Ordering::Relaxed),
        labels: entry.labels.load(Ordering::Relaxed),
        tickets: entry.tickets.load(Ordering::Relaxed),
        shards: entry.shards.load(Ordering::Relaxed),
        buckets: entry.buckets.load(Ordering::Relaxed),
        name_words: entry.name_words.load(Ordering::Relaxed),
    }
}

pub(crate) fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    match access::explain(&path, &source) {
        Some(why) => Error::Denied {
            action,
            path,
            why,
            source,
        },
        None => Error::Io { action, path, source },
    }
}

pub(crate) fn damaged(path: &Path, place: OutOfRegion) -> Error {
    Error::Damaged {
        path: PathBuf::from(path),
        what: format!("{} bytes at {} lie outside the file", place.size, place.offset),
    }
}
