//! From a path to a usable segment: opens the file, checks it, and joins the processes that use it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file_lock::{ByteRange, is_locked_by_others};
use super::file_system::ensure_stores_need_no_space;
use super::lasting_locks::{ensure_locks_last, locks_last, locks_not_kept};
use super::lock_owners::locked_by_reader;
use super::memory_file::{is_anonymous, needs_a_path};
use super::region::Region;
use super::removal::{marked_removal, retire};
use super::remove::unlink;
use super::segment_file::{
    AttachLock, damaged, identity, io_error, open_again, open_for_reading, open_for_writing,
};
use super::verified::{CreationOptions, Verified, check_file, check_header, read_definitions, verify};
use crate::error::{Error, OpenError, ProcessId, RemovalCause, SegmentError};
use crate::shm::layout::definition_text::Definition;
use crate::shm::layout::records::{HEADER_SPACE, Header};
use crate::shm::process::attachments;
use crate::shm::process::cold_start::start_cold_if_needed;
use crate::shm::process::participant::{Membership, ParticipantId, ParticipantTable};
use crate::shm::process::process_identity::CopyIdentity;
use crate::shm::process::same_place::{Likeness, SegmentOrigin, current_place, ensure_same_namespaces};

/// A segment that this process participates in.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) verified: Verified,
    /// Shared by everything in this process that has the segment open.
    pub(crate) membership: Arc<Membership>,
    /// Added to the boot-time clock, this gives the segment clock.
    pub(crate) clock_offset: u64,
}

/// What to do once it is known what the segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Join it.
    Join,
    /// Retire the segment and remove its file, so that another can be made in its place. Only if no other process is
    /// attached.
    Replace,
}

/// What the decision on an [`Admission`] is based on. Seen under the attach lock, so that no other process joins in
/// the meantime.
pub(crate) struct Candidate<'a> {
    verified: &'a Verified,
    file: &'a File,
    path: &'a Path,
}

impl Candidate<'_> {
    /// The definitions in force now.
    pub(crate) fn definitions(&self) -> Result<Vec<Definition>, Error> {
        let Verified { region, geometry, .. } = self.verified;
        read_definitions(region, geometry, self.path)
    }

    /// What the segment was created with.
    pub(crate) fn creation_options(&self) -> CreationOptions {
        self.verified.creation_options
    }

    /// The file's permissions.
    pub(crate) fn mode(&self) -> Result<u32, Error> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|source| io_error("examine", self.path, source))?;
        Ok(metadata.mode() & 0o777)
    }

    /// The other attached processes.
    pub(crate) fn other_processes(&self) -> Vec<ProcessId> {
        let own = CopyIdentity::own();
        let mut others = self.verified.live_processes(self.file);
        others.retain(|process| !own.is_same_process(*process));
        let table = self.verified.participants();
        others.into_iter().map(|process| table.shown(process)).collect()
    }
}

/// Attaches to the segment in `file`, which was opened by `path`: checks it, starts it cold if it comes from another
/// boot or is a copy, and joins its participants, unless this process has joined already. If it has to wait for long,
/// it calls `tell` with what it is waiting for. Changes nothing until `understand` has made sense of the file's
/// definitions and `admit` has agreed.
///
/// # Errors
///
/// [`SegmentError::Removed`], also if the segment was to be replaced; otherwise what is wrong with the file.
pub(crate) fn attach<T>(
    file: File,
    path: &Path,
    trust_any_owner: bool,
    tell: &dyn Fn(&str),
    understand: impl FnOnce(&Verified) -> Result<T, Error>,
    admit: impl FnOnce(&Candidate<'_>) -> Result<Admission, Error>,
) -> Result<(Attached, T), Error> {
    let size = check_file(&file, path, trust_any_owner)?;
    // The header is read through a mapping of its own, so that nothing else of a foreign file is touched before it is
    // known to be a segment.
    let header_region =
        Region::read_only(&file, HEADER_SPACE as usize).map_err(|source| io_error("map", path, source))?;
    check_header(&header_region, size, path)?;
    let own_identity = identity(&file, path)?;
    let mut shared = attachments::find(own_identity);
    let region = match &shared {
        Some(membership) => Arc::clone(membership.region()),
        None => {
            // Must precede every conclusion about who is alive.
            ensure_locks_last(&file, path)?;
            // A copy may be sparse: on a full file system, the first store into a hole would be a bus error.
            ensure_stores_need_no_space(&file, size, path)?;
            let region =
                Region::writable(&file, size as usize).map_err(|source| io_error("map", path, source))?;
            Arc::new(region)
        }
    };
    let mut verified = verify(region, path)?;
    let understood = understand(&verified)?;
    // A duplicate, since joining keeps `file` itself: the path of an anonymous segment is that of its descriptor.
    let locked = file
        .try_clone()
        .map_err(|source| io_error("open", path, source))?;
    let lock = AttachLock::take_telling(&locked, path, tell)?;
    // Another thread may have joined in the meantime.
    shared = shared.or_else(|| attachments::find(own_identity));
    if let Some(membership) = &shared {
        verified.region = Arc::clone(membership.region());
    }
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    let removed = |cause| {
        Error::Segment(SegmentError::Removed {
            path: path.to_owned(),
            cause,
        })
    };
    // Checked under the lock, because segments are retired under it.
    if let Some(cause) = marked_removal(header) {
        return Err(removed(cause));
    }
    let candidate = Candidate {
        verified: &verified,
        file: &locked,
        path,
    };
    if admit(&candidate)? == Admission::Replace {
        if is_anonymous(&locked) {
            let why = "it has another declaration, and no other segment can take its place: make one";
            return Err(needs_a_path(path, why));
        }
        retire(header);
        unlink(path, &locked).inspect_err(|_| {
            // Joining takes the lock, so nobody has joined: undo the mark.
            header.retired.store(0, Ordering::Release);
        })?;
        return Err(removed(RemovalCause::Retired));
    }
    start_cold_if_needed(&verified, header, &locked, path)?;
    let membership = match shared {
        Some(membership) => membership,
        None => {
            // Not a duplicate: a mapping keeps its open file, and with it the file's locks, even in children that
            // outlive this process.
            let own_file = open_again(file.as_raw_fd(), path, own_identity)?;
            let membership = Membership::join(own_file, file, path.to_owned(), verified.participants())?;
            let membership = Arc::new(membership);
            attachments::add(&membership);
            membership
        }
    };
    drop(lock);
    // In a forked child this renews an inherited membership, which needs the attach lock.
    membership.owner()?;
    let clock_offset = header.clock_offset.load(Ordering::Relaxed);
    let attached = Attached {
        verified,
        membership,
        clock_offset,
    };
    Ok((attached, understood))
}

/// A segment opened only to be looked at: mapped read-only, without joining it or taking any lock that others use.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) verified: Verified,
    file: File,
    pub(crate) same_place: bool,
    /// Whether the locks of attached processes show that they are alive.
    locks_last: bool,
}

impl Observed {
    pub(crate) fn header(&self, path: &Path) -> Result<&Header, Error> {
        self.verified
            .region
            .record(0)
            .map_err(|place| damaged(path, place))
    }

    /// Where the segment comes from.
    pub(crate) fn origin(&self, path: &Path) -> Result<SegmentOrigin, Error> {
        Ok(SegmentOrigin::of(self.header(path)?, identity(&self.file, path)?))
    }

    /// Whether an owner is alive.
    pub(crate) fn is_alive(&self, table: &ParticipantTable, id: ParticipantId) -> bool {
        table.is_alive(id, |byte| self.is_locked(byte))
    }

    /// Whether an open file has an exclusive lock in the range; `None` if locks say nothing about it.
    fn is_locked(&self, range: ByteRange) -> Option<bool> {
        let is_locked = || is_locked_by_others(self.file.as_fd(), range).ok();
        self.locks_last.then(is_locked)?
    }

    /// Why this process could not attach: every error that it would get. Joins nothing and changes nothing.
    pub(crate) fn obstacles(&self, path: &Path) -> Vec<Error> {
        let checks: [&dyn Fn() -> Result<(), Error>; 7] = [
            &|| open_for_writing(path).map(drop),
            &|| check_file(&self.file, path, false).map(drop),
            &|| self.ensure_locks_last(path),
            &|| self.ensure_no_reader_in_the_way(path),
            &|| ensure_stores_need_no_space(&self.file, self.verified.region.size(), path),
            &|| self.ensure_not_retired(path),
            &|| self.ensure_free_or_same_place(path),
        ];
        checks.iter().filter_map(|check| check().err()).collect()
    }

    fn ensure_locks_last(&self, path: &Path) -> Result<(), Error> {
        self.locks_last
            .then_some(())
            .ok_or_else(|| locks_not_kept(&self.file, path))
    }

    fn ensure_no_reader_in_the_way(&self, path: &Path) -> Result<(), Error> {
        let in_the_way = locked_by_reader(&self.file, ByteRange::ATTACH, path)
            .or_else(|| self.verified.participants().locked_by_reader(&self.file, path));
        in_the_way.map_or(Ok(()), Err)
    }

    fn ensure_not_retired(&self, path: &Path) -> Result<(), Error> {
        match marked_removal(self.header(path)?) {
            Some(cause) => Err(Error::Segment(SegmentError::Removed {
                path: path.to_owned(),
                cause,
            })),
            None => Ok(()),
        }
    }

    fn ensure_free_or_same_place(&self, path: &Path) -> Result<(), Error> {
        if self.same_place
            || self
                .verified
                .live_processes_by(|byte| self.is_locked(byte))
                .is_empty()
        {
            return Ok(());
        }
        let lock_kind = self.verified.creation_options.lock_kind;
        ensure_same_namespaces(self.header(path)?, lock_kind, current_place(path)?, path)?;
        Err(Error::Open(OpenError::ForeignBoot {
            path: path.to_owned(),
        }))
    }
}

/// Opens a segment only to look at it.
pub(crate) fn observe(path: &Path, trust_any_owner: bool) -> Result<Observed, Error> {
    let file = open_for_reading(path)?;
    let size = check_file(&file, path, trust_any_owner)?;
    let region = Region::read_only(&file, size as usize).map_err(|source| io_error("map", path, source))?;
    check_header(&region, size, path)?;
    let verified = verify(Arc::new(region), path)?;
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    let origin = SegmentOrigin::of(header, identity(&file, path)?);
    let lock_kind = verified.creation_options.lock_kind;
    let same_place = origin.likeness(lock_kind, current_place(path)?) != Likeness::Another;
    // If locks cannot be taken at all, they say nothing either.
    let locks_last = locks_last(&file, path).unwrap_or(false);
    Ok(Observed {
        verified,
        file,
        same_place,
        locks_last,
    })
}
