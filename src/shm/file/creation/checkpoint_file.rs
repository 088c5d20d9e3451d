//! The file in which a segment's image survives a reboot. It has two slots, written in turn, each with a checksum, so
//! that one is always complete. It knows nothing of sets: an image is just bytes.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use siphasher::sip::SipHasher13;

use super::construction::{place_of, remove_abandoned, start_construction};
use crate::error::{Error, OpenError};
use crate::shm::file::file_lock::{ByteRange, try_lock_for_process};
use crate::shm::file::file_system::{allocate, ensure_local};
use crate::shm::file::lock_owners::locked_by_reader;
use crate::shm::file::region::Region;
use crate::shm::file::room::over_the_file_size;
use crate::shm::file::segment_file::{damaged, io_error, open_for_reading, open_for_writing};
use crate::shm::file::verified::check_trust;
use crate::shm::layout::geometry::MAX_BYTES;
use crate::shm::process::fork_identity::IdentityPage;
use crate::sorting::sort_by;

/// `SHMLCKPT`, as the bytes lie in the file.
const MAGIC: u64 = u64::from_ne_bytes(*b"SHMLCKPT");

/// The format of the checkpoint file. The segment's own format is in the image.
const FORMAT: u64 = 1;

/// The offsets of the two slots' heads. Each is in a block of its own, so that a disk writes them separately.
const HEADS: [u64; 2] = [0, 4096];

/// The offset of the first image.
const IMAGES: u64 = 8192;

/// How many bytes to read or write at a time.
const CHUNK: usize = 1 << 20;

/// How many files to open before leaving it to other processes to make one.
const ATTEMPTS: usize = 10;

/// How long to wait between two checks of whether another thread has finished.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// The bytes of a head: a word for each field, in their order and in the host's byte order.
type HeadBytes = [u8; 9 * size_of::<u64>()];

/// The head of a slot, which describes its image.
#[derive(Clone, Copy, Debug)]
struct Head {
    magic: u64,
    format: u64,
    /// Counts the checkpoints of this file: the higher one is later.
    sequence: u64,
    /// The size of the image in bytes.
    size: u64,
    /// The offset in the image at which writing began. After the end of the image, writing went on with what lies
    /// before this offset.
    begun_at: u64,
    /// SipHash-1-3, with a key of zeros, of the image from there to its end, and then of what lies before.
    image_checksum: u64,
    /// The segment clock and the wall clock at the beginning, in nanoseconds.
    taken_at: u64,
    taken_utc: u64,
    /// SipHash-1-3 of the words above.
    checksum: u64,
}

impl Head {
    fn to_bytes(self) -> HeadBytes {
        let words = [
            self.magic,
            self.format,
            self.sequence,
            self.size,
            self.begun_at,
            self.image_checksum,
            self.taken_at,
            self.taken_utc,
            self.checksum,
        ];
        let mut bytes = [0; size_of::<HeadBytes>()];
        for (place, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &HeadBytes) -> Self {
        let mut words = bytes.chunks_exact(size_of::<u64>()).map(|word| {
            let mut bytes = [0; size_of::<u64>()];
            bytes.copy_from_slice(word);
            u64::from_ne_bytes(bytes)
        });
        let mut next = || words.next().unwrap_or_default();
        Self {
            magic: next(),
            format: next(),
            sequence: next(),
            size: next(),
            begun_at: next(),
            image_checksum: next(),
            taken_at: next(),
            taken_utc: next(),
            checksum: next(),
        }
    }

    fn expected_checksum(&self) -> u64 {
        let bytes = self.to_bytes();
        checksum_of(&bytes[..bytes.len() - size_of::<u64>()])
    }

    fn taken(&self) -> TakenAt {
        TakenAt {
            segment: self.taken_at,
            utc: self.taken_utc,
        }
    }

    fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.format == FORMAT && self.checksum == self.expected_checksum()
    }
}

fn checksum_of(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

/// When a checkpoint was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenAt {
    /// By the segment clock.
    pub(crate) segment: u64,
    /// By the wall clock.
    pub(crate) utc: u64,
}

/// A checkpoint file that this process has locked: nobody else writes to it.
#[derive(Debug)]
pub(crate) struct CheckpointFile {
    path: PathBuf,
    file: File,
    heads: [Option<Head>; 2],
    /// Dropped after the file is closed.
    _only_writer: OnlyWriter,
}

/// The identity of this process while one of its threads has a checkpoint file open. A child may inherit its parent's
/// identity here, and recognises it as stale.
static WRITING: AtomicU64 = AtomicU64::new(0);

/// Ensures that no other thread of this process has a checkpoint file open: closing that would release the process's
/// lock.
#[derive(Debug)]
struct OnlyWriter;

impl OnlyWriter {
    fn wait() -> Result<Self, Errno> {
        let own = IdentityPage::get()?.current().as_u64();
        loop {
            let found = WRITING.load(Ordering::Relaxed);
            if found == own {
                thread::sleep(BETWEEN_LOOKS);
            } else if WRITING
                .compare_exchange(found, own, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(Self);
            }
        }
    }
}

impl Drop for OnlyWriter {
    fn drop(&mut self) {
        WRITING.store(0, Ordering::Release);
    }
}

impl CheckpointFile {
    /// Opens the file at `path` for writing an image of `size` bytes. If there is none, or one for another size,
    /// makes it with `mode`, that of the segment's file. `None` if another process is writing to it.
    ///
    /// # Errors
    ///
    /// What is wrong with the file or its directory; [`OpenError::NoSpace`].
    pub(crate) fn open(
        path: &Path,
        size: u64,
        mode: u32,
        trust_any_owner: bool,
    ) -> Result<Option<Self>, Error> {
        let only_writer = OnlyWriter::wait().map_err(|errno| io_error("lock", path, errno.into()))?;
        for _ in 0..ATTEMPTS {
            let file = match open_for_writing(path) {
                Ok(file) => file,
                Err(Error::Open(OpenError::NotFound { .. })) => {
                    make(path, size, mode)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            check_trust(&file, path, trust_any_owner)?;
            ensure_local(&file, path)?;
            if !try_lock_for_process(file.as_fd(), ByteRange::CHECKPOINT)
                .map_err(|errno| io_error("lock", path, errno.into()))?
            {
                // Another process writes to it, or a reader's lock keeps everybody from writing.
                return locked_by_reader(&file, ByteRange::CHECKPOINT, path).map_or(Ok(None), Err);
            }
            let found = file
                .metadata()
                .map_err(|source| io_error("examine", path, source))?;
            let named = fs::symlink_metadata(path);
            if !named.is_ok_and(|named| (named.dev(), named.ino()) == (found.dev(), found.ino())) {
                // Another process has replaced the file since it was opened.
                continue;
            }
            // A file of another program may happen to have the right size.
            ensure_is_checkpoint(&file, path)?;
            if let Some(why) = over_the_file_size(file_size(size)) {
                return Err(Error::Open(OpenError::NoSpace {
                    path: path.to_owned(),
                    bytes: file_size(size),
                    why,
                }));
            }
            if found.len() == file_size(size) {
                let heads = read_heads(&file, path)?;
                return Ok(Some(Self {
                    path: path.to_owned(),
                    file,
                    heads,
                    _only_writer: only_writer,
                }));
            }
            // It is for a segment of another size: make room for a new one. Nobody else does so at the same time.
            fs::remove_file(path).map_err(|source| io_error("remove", path, source))?;
        }
        // Others keep replacing it, so they are writing to it.
        Ok(None)
    }

    /// When the latest checkpoint with a valid head was begun.
    pub(crate) fn latest(&self) -> Option<TakenAt> {
        let latest = self.heads.iter().flatten().max_by_key(|head| head.sequence)?;
        Some(latest.taken())
    }

    /// Begins a checkpoint, in the slot of the older one.
    pub(crate) fn begin(&mut self, size: u64, taken: TakenAt) -> CheckpointWriter<'_> {
        let sequences = self.heads.map(|head| head.map_or(0, |head| head.sequence));
        let slot = usize::from(sequences[1] < sequences[0]);
        CheckpointWriter {
            checkpoint: self,
            slot,
            head: Head {
                magic: MAGIC,
                format: FORMAT,
                sequence: sequences[0].max(sequences[1]).saturating_add(1),
                size,
                begun_at: 0,
                image_checksum: 0,
                taken_at: taken.segment,
                taken_utc: taken.utc,
                checksum: 0,
            },
            hasher: SipHasher13::new(),
            written: 0,
        }
    }
}

/// An image being written. If it is dropped before [`finish`](Self::finish), the slot is incomplete and the other one
/// counts.
pub(crate) struct CheckpointWriter<'a> {
    checkpoint: &'a mut CheckpointFile,
    slot: usize,
    head: Head,
    /// Hashes what was passed in, not what is in the file: anything that another writer put there makes the image
    /// torn.
    hasher: SipHasher13,
    /// How many bytes were hashed.
    written: u64,
}

impl CheckpointWriter<'_> {
    /// Writes the next part of the image. Each part begins where the previous one ended, and the end of the image is
    /// followed by its start. If the first part is passed again, the image starts over.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.written == 0 || offset == self.head.begun_at {
            self.head.begun_at = offset;
            self.hasher = SipHasher13::new();
            self.written = 0;
        }
        self.hasher.write(bytes);
        self.written += bytes.len() as u64;
        let start = image_start(self.slot, self.head.size);
        self.checkpoint
            .file
            .write_all_at(bytes, start + offset)
            .map_err(|source| io_error("write", &self.checkpoint.path, source))
    }

    /// Ends the image. It counts once its head is on disk, and the head is written only after all of the image is
    /// there.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let CheckpointFile {
            path, file, heads, ..
        } = &mut *self.checkpoint;
        let failed = |source| io_error("write", path, source);
        self.head.image_checksum = self.hasher.finish();
        self.head.checksum = self.head.expected_checksum();
        file.sync_data().map_err(failed)?;
        file.write_all_at(&self.head.to_bytes(), HEADS[self.slot])
            .map_err(failed)?;
        file.sync_data().map_err(failed)?;
        heads[self.slot] = Some(self.head);
        Ok(())
    }
}

/// The images in a checkpoint file whose heads are valid. The images themselves have not been checked yet.
#[derive(Debug)]
pub(crate) struct SavedImages {
    path: PathBuf,
    file: File,
    /// The later one first.
    slots: Vec<(usize, Head)>,
    /// Dropped after the file is closed.
    _only_writer: OnlyWriter,
}

impl SavedImages {
    /// The images in the file at `path`; `None` if there is no such file.
    ///
    /// # Errors
    ///
    /// What is wrong with the file: it cannot be read, is not to be trusted, or is not a checkpoint.
    pub(crate) fn find(path: &Path, trust_any_owner: bool) -> Result<Option<Self>, Error> {
        let only_writer = OnlyWriter::wait().map_err(|errno| io_error("lock", path, errno.into()))?;
        let file = match open_for_reading(path) {
            Ok(file) => file,
            Err(Error::Open(OpenError::NotFound { .. })) => return Ok(None),
            Err(error) => return Err(error),
        };
        check_trust(&file, path, trust_any_owner)?;
        ensure_is_checkpoint(&file, path)?;
        let heads = read_heads(&file, path)?;
        let mut slots: Vec<(usize, Head)> = (0..)
            .zip(heads)
            .filter_map(|(slot, head)| Some((slot, head?)))
            .collect();
        sort_by(&mut slots, |(_, one), (_, other)| one.sequence > other.sequence);
        Ok(Some(Self {
            path: path.to_owned(),
            file,
            slots,
            _only_writer: only_writer,
        }))
    }

    /// How many images there may be.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// The size of the `nth` image, counted from the latest.
    pub(crate) fn size(&self, nth: usize) -> Option<u64> {
        self.slots.get(nth).map(|(_, head)| head.size)
    }

    /// When the `nth` image was begun.
    pub(super) fn taken_at(&self, nth: usize) -> Option<TakenAt> {
        self.slots.get(nth).map(|(_, head)| head.taken())
    }

    /// Copies the `nth` image into a region of its size. Returns whether it is complete; if not, the region must not
    /// be used.
    pub(super) fn store(&self, nth: usize, region: &Region) -> Result<bool, Error> {
        let Some((slot, head)) = self.slots.get(nth) else {
            return Ok(false);
        };
        let mut hasher = SipHasher13::new();
        let mut outside = None;
        let mut store = |offset, bytes: &[u8]| {
            hasher.write(bytes);
            outside = outside.or(region.store_bytes(offset, bytes).err());
        };
        let start = image_start(*slot, head.size);
        let begun_at = head.begun_at.min(head.size);
        let read = each_chunk(&self.file, start, begun_at..head.size, &mut store)
            .and_then(|()| each_chunk(&self.file, start, 0..begun_at, &mut store));
        match read {
            Ok(()) => {}
            // The file was truncated.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(source) => return Err(io_error("read", &self.path, source)),
        }
        match outside {
            Some(place) => Err(damaged(&self.path, place)),
            None => Ok(hasher.finish() == head.image_checksum),
        }
    }
}

fn image_start(slot: usize, size: u64) -> u64 {
    IMAGES + slot as u64 * size.next_multiple_of(HEADS[1])
}

fn file_size(size: u64) -> u64 {
    image_start(HEADS.len(), size)
}

/// Reads `part` of the image that starts at `start` in the file, and calls `each` for every piece with its offset in
/// the image.
fn each_chunk(file: &File, start: u64, part: Range<u64>, mut each: impl FnMut(u64, &[u8])) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut offset = part.start;
    while offset < part.end {
        let length = usize::try_from(part.end - offset).map_or(CHUNK, |left| left.min(CHUNK));
        let piece = &mut buffer[..length];
        file.read_exact_at(piece, start + offset)?;
        each(offset, piece);
        offset += length as u64;
    }
    Ok(())
}

/// The valid heads whose images fit into the file.
fn read_heads(file: &File, path: &Path) -> Result<[Option<Head>; 2], Error> {
    let length = file
        .metadata()
        .map_err(|source| io_error("examine", path, source))?
        .len();
    let mut heads = [None; 2];
    for (slot, place) in HEADS.into_iter().enumerate() {
        let mut bytes = [0; size_of::<HeadBytes>()];
        match file.read_exact_at(&mut bytes, place) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(source) => return Err(io_error("read", path, source)),
        }
        let head = Head::from_bytes(&bytes);
        let has_room = head.size <= MAX_BYTES && image_start(slot + 1, head.size) <= length;
        heads[slot] = (head.is_whole() && has_room).then_some(head);
    }
    Ok(heads)
}

/// Checks that one of the heads has a checkpoint's magic number, torn or not, or that the file is empty, so that
/// nothing in it can be lost. Any other file belongs to another program, or is a segment or about to become one.
fn ensure_is_checkpoint(file: &File, path: &Path) -> Result<(), Error> {
    let failed = |source| io_error("examine", path, source);
    if file.metadata().map_err(failed)?.len() == 0 {
        return Ok(());
    }
    let mut starts = [0; 2];
    for (start, place) in starts.iter_mut().zip(HEADS) {
        let mut bytes = [0; 8];
        file.read_at(&mut bytes, place)
            .map_err(|source| io_error("read", path, source))?;
        *start = u64::from_ne_bytes(bytes);
    }
    if starts.contains(&MAGIC) {
        return Ok(());
    }
    Err(Error::Open(OpenError::NotACheckpoint {
        path: path.to_owned(),
        found: starts[0],
    }))
}

/// Puts a file for images of `size` bytes at `path`, unless another process is faster. It has the magic number, but
/// no valid head yet. Its space is allocated, so that later checkpoints do not run out of it.
fn make(path: &Path, size: u64, mode: u32) -> Result<(), Error> {
    let (directory, name) = place_of(path)?;
    remove_abandoned(directory, name);
    let (file, construction) = start_construction(directory, name, path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(|source| io_error("set the mode of", path, source))?;
    ensure_local(&file, path)?;
    allocate(&file, file_size(size), path)?;
    // Before it gets its name: after a power failure, a file of zeros would be taken for another program's.
    file.write_all_at(&MAGIC.to_ne_bytes(), HEADS[0])
        .and_then(|()| file.sync_data())
        .map_err(|source| io_error("write", path, source))?;
    match construction.publish(path) {
        Ok(()) | Err(Error::Open(OpenError::AlreadyExists { .. })) => {}
        Err(error) => return Err(error),
    }
    // Its name should survive a power failure, too.
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| io_error("synchronise", directory, source))
}
