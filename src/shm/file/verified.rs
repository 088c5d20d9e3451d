//! Every check between opening a file and trusting a byte of it.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::file_lock::{ByteRange, is_locked_by_others};
use super::file_system::ensure_local;
use super::memory_file::is_anonymous;
use super::region::{OutOfRegion, Region, load_acquire};
use super::segment_file::{damaged, io_error, not_regular, start_of, untrusted};
use crate::choices::LockKind;
use crate::error::{Error, OpenError, RemovalCause, SegmentError};
use crate::shm::layout::definition_text::{Definition, read_definition_in_force};
use crate::shm::layout::geometry::{Geometry, SetShape};
use crate::shm::layout::records::{
    BYTE_ORDER, C_LIBRARY, CHECKED_HEADER_WORDS, CHECKSUM_SEED, CLOCK_BOOT_TIME, DirectoryEntry, FORMAT,
    HEADER_SPACE, Header, INCOMPATIBLE_FEATURES, MAGIC, MAX_PARTICIPANTS, MAX_SETS, SYSTEM_CLOCK, WORD_SIZE,
    checksum_step, fingerprint,
};
use crate::shm::process::participant::ParticipantTable;
use crate::shm::process::process_identity::CopyIdentity;

/// A segment whose header, tables and definitions have been checked.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) region: Arc<Region>,
    pub(crate) geometry: Geometry,
    /// The definition of each set, in the order of the directory.
    pub(crate) definitions: Vec<Definition>,
    pub(crate) creation_options: CreationOptions,
}

/// What was fixed when the segment was created, besides its sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreationOptions {
    pub(crate) participants: u32,
    /// No process may use the processor's counter to tell the time.
    pub(crate) uses_system_clock: bool,
    pub(crate) lock_kind: LockKind,
}

impl Verified {
    pub(crate) fn participants(&self) -> ParticipantTable {
        ParticipantTable {
            region: Arc::clone(&self.region),
            lock_kind: self.creation_options.lock_kind,
            offset: self.geometry.participants_offset,
            count: self.geometry.participants,
        }
    }

    /// The live processes that are attached. `file` is any open file of the segment; locks must last on it.
    pub(super) fn live_processes(&self, file: &File) -> Vec<CopyIdentity> {
        self.live_processes_by(|byte| is_locked_by_others(file.as_fd(), byte).ok())
    }

    /// The same, with a closure that says whether a byte is locked: see [`ParticipantTable::is_alive`].
    pub(super) fn live_processes_by(
        &self,
        is_locked: impl Fn(ByteRange) -> Option<bool>,
    ) -> Vec<CopyIdentity> {
        let table = self.participants();
        table
            .taken()
            .into_iter()
            .filter(|record| table.is_alive(record.id, &is_locked))
            .map(|record| record.identity)
            .collect()
    }
}

/// Checks that the file may be trusted and is at least as large as a segment. Returns its size.
pub(crate) fn check_file(file: &File, path: &Path, trust_any_owner: bool) -> Result<u64, Error> {
    let size = check_trust(file, path, trust_any_owner)?;
    ensure_local(file, path)?;
    if size < HEADER_SPACE {
        let found = start_of(file, path)?;
        if found != MAGIC {
            return Err(Error::Open(OpenError::NotASegment {
                path: path.to_owned(),
                found,
                expected: MAGIC,
            }));
        }
        return Err(Error::Open(OpenError::WrongSize {
            path: path.to_owned(),
            expected: HEADER_SPACE,
            found: size,
        }));
    }
    Ok(size)
}

/// Checks that the file may be trusted, by what the system says about it. Returns its size.
pub(super) fn check_trust(file: &File, path: &Path, trust_any_owner: bool) -> Result<u64, Error> {
    let metadata = file
        .metadata()
        .map_err(|source| io_error("examine", path, source))?;
    if !metadata.is_file() {
        return Err(not_regular(path));
    }
    if metadata.nlink() == 0 && !is_anonymous(file) {
        // Deleted since it was opened, or reached through a mount that keeps a deleted file.
        return Err(Error::Segment(SegmentError::Removed {
            path: path.to_owned(),
            cause: RemovalCause::Deleted,
        }));
    }
    if metadata.nlink() > 1 {
        return Err(untrusted(
            path,
            format!("it has {} names; a segment has one", metadata.nlink()),
        ));
    }
    if !trust_any_owner {
        let own = nix::unistd::geteuid().as_raw();
        if metadata.mode() & 0o002 != 0 {
            return Err(untrusted(
                path,
                "everyone may write to it; change its mode, or open it with trust_any_owner (--trust-any-owner)",
            ));
        }
        let directory = directory_of(path);
        let access = access_to_directory(directory);
        if metadata.uid() != own && metadata.uid() != 0 && access != DirectoryAccess::Own {
            let (owner, directory) = (metadata.uid(), directory.display());
            let (who, remedy) = match access {
                // Its mode is what its users need.
                DirectoryAccess::Public => (
                    "any user",
                    "leave the mode of that directory as it is, and put the segment into a subdirectory that only its \
                     owner may write to (mode 2750)",
                ),
                _ => (
                    "others",
                    "do not let its group or others write there (chmod 2750)",
                ),
            };
            let why = format!(
                "it belongs to user {owner}, and {who} may put files into {directory}: {remedy}, or open it with \
                 trust_any_owner (--trust-any-owner)"
            );
            return Err(untrusted(path, why));
        }
    }
    Ok(metadata.len())
}

/// Who may put files into a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryAccess {
    /// Only its owner.
    Own,
    /// Others, too.
    Shared,
    /// Everyone, but each may only remove their own files: `/dev/shm`, `/tmp`.
    Public,
}

fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Whether anyone but its directory's owner may put something beside what is at a path.
pub(super) fn is_shared(path: &Path) -> bool {
    access_to_directory(directory_of(path)) != DirectoryAccess::Own
}

fn access_to_directory(directory: &Path) -> DirectoryAccess {
    // A directory that cannot be examined is not trusted.
    let mode = std::fs::metadata(directory).map_or(0o022, |metadata| metadata.mode());
    if mode & 0o022 == 0 {
        DirectoryAccess::Own
    } else if mode & 0o1002 == 0o1002 {
        DirectoryAccess::Public
    } else {
        DirectoryAccess::Shared
    }
}

/// Checks that this build can work with the header.
pub(crate) fn check_header(region: &Region, size: u64, path: &Path) -> Result<(), Error> {
    let header: &Header = region.record(0).map_err(|place| damaged(path, place))?;
    // Synchronises with the release store that ends a creation.
    let magic = load_acquire(&header.magic);
    if magic != MAGIC {
        return Err(Error::Open(OpenError::NotASegment {
            path: path.to_owned(),
            found: magic,
            expected: MAGIC,
        }));
    }
    let ensure = |what, word: &AtomicU64, expected| {
        let found = word.load(Ordering::Relaxed);
        if found == expected {
            return Ok(());
        }
        Err(Error::Open(OpenError::Incompatible {
            path: path.to_owned(),
            what,
            found,
            expected,
        }))
    };
    ensure("byte order", &header.byte_order, BYTE_ORDER)?;
    ensure("format number", &header.format, FORMAT)?;
    ensure("word size", &header.word_size, WORD_SIZE)?;
    let Some(lock_kind) = LockKind::from_word(header.lock_kind.load(Ordering::Relaxed)) else {
        return ensure("lock kind", &header.lock_kind, LockKind::default().to_word());
    };
    let has_mutexes = lock_kind.is_of_one_namespace();
    if has_mutexes {
        ensure("C library", &header.c_library, C_LIBRARY)?;
    }
    ensure("layout", &header.fingerprint, fingerprint(has_mutexes))?;
    ensure("clock", &header.clock_id, CLOCK_BOOT_TIME)?;
    ensure("header size", &header.header_size, size_of::<Header>() as u64)?;
    let features = header.incompatible_features.load(Ordering::Relaxed);
    if features & !INCOMPATIBLE_FEATURES != 0 {
        let what = "set of features that must be known";
        return Err(Error::Open(OpenError::Incompatible {
            path: path.to_owned(),
            what,
            found: features,
            expected: INCOMPATIBLE_FEATURES,
        }));
    }
    let expected = header.total_size.load(Ordering::Relaxed);
    if size != expected {
        return Err(Error::Open(OpenError::WrongSize {
            path: path.to_owned(),
            expected,
            found: size,
        }));
    }
    let checksum = header_checksum(region).map_err(|place| damaged(path, place))?;
    if header.checksum.load(Ordering::Relaxed) != checksum {
        return Err(Error::Segment(SegmentError::Damaged {
            path: path.to_owned(),
            what: "the header's checksum does not match".into(),
        }));
    }
    Ok(())
}

/// The checksum of the header's words that never change.
pub(crate) fn header_checksum(region: &Region) -> Result<u64, OutOfRegion> {
    let words = region.words(0, size_of::<Header>() as u64 / 8)?;
    Ok(words[CHECKED_HEADER_WORDS]
        .iter()
        .fold(CHECKSUM_SEED, |hash, word| {
            checksum_step(hash, word.load(Ordering::Relaxed))
        }))
}

/// Checks the tables and definitions of a segment whose header has been checked.
pub(crate) fn verify(region: Arc<Region>, path: &Path) -> Result<Verified, Error> {
    let inconsistent = |what: &str| {
        Error::Segment(SegmentError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        })
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
    let creation_options = CreationOptions {
        participants: participants as u32,
        uses_system_clock: header.compatible_features.load(Ordering::Relaxed) & SYSTEM_CLOCK != 0,
        // A known kind: the header was checked.
        lock_kind: LockKind::from_word(header.lock_kind.load(Ordering::Relaxed)).unwrap_or_default(),
    };
    Ok(Verified {
        region,
        geometry,
        definitions,
        creation_options,
    })
}

/// The definitions in force of the sets in a region described by `geometry`.
pub(super) fn read_definitions(
    region: &Region,
    geometry: &Geometry,
    path: &Path,
) -> Result<Vec<Definition>, Error> {
    let entries: &[DirectoryEntry] = region
        .records(geometry.directory_offset, geometry.sets.len() as u64)
        .map_err(|place| damaged(path, place))?;
    let mut definitions = Vec::with_capacity(entries.len());
    for (entry, set) in entries.iter().zip(&geometry.sets) {
        let definition =
            read_definition_in_force(region, set, entry).map_err(|place| damaged(path, place))?;
        definitions.push(definition.map_err(|invalid| {
            Error::Segment(SegmentError::Damaged {
                path: path.to_owned(),
                what: invalid.what().to_owned(),
            })
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
        lease_lists: entry.lease_lists.load(Ordering::Relaxed),
        overall_words: entry.overall_words.load(Ordering::Relaxed),
    }
}
