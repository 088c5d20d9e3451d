//! The file system under a segment: whether it is suitable, and whether it has space allocated for every byte of the
//! file.
//!
//! A store into a mapping cannot return an error, so it must never need space: running out would be a bus error. The
//! creator of a segment allocates every byte. A process that attaches changes nothing, and refuses a file with holes.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statfs::fstatfs;
use nix::unistd::{Whence, lseek};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::room::limit_in_the_way;
use super::segment_file::{ALLOCATE, EXAMINE_FILE_SYSTEM, io_error};
use crate::error::{Error, OpenError};

/// How many zeros to write at a time, in bytes.
const CHUNK: u64 = 1 << 20;

/// The unit of `st_blocks` in stat(2).
const BLOCK: u64 = 512;

/// Advice for when a file system is full.
pub(crate) const FULL: &str = "make room (/dev/shm of a container has 64 MB unless it is started with --shm-size), or declare \
                               fewer keys, holds, entries or participants";

/// Extents to ask for at a time.
const EXTENTS: usize = 64;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Stores go to where the byte already is.
    InPlace,
    /// Mappings may not be shared by everyone who can open the file, or locks may not hold.
    Remote(&'static str),
    /// Changed pages are written to new places, which may run out, unless the file is exempt.
    CopyOnWrite { name: &'static str, has_exemption: bool },
}

/// By its magic number: statfs(2) and linux/magic.h.
fn kind_of(magic: i128) -> Kind {
    let copy_on_write = |name, has_exemption| Kind::CopyOnWrite { name, has_exemption };
    match magic & 0xffff_ffff {
        0x6969 => Kind::Remote("NFS"),
        0xff53_4d42 => Kind::Remote("CIFS"),
        0xfe53_4d42 | 0x517b => Kind::Remote("SMB"),
        0x0102_1997 => Kind::Remote("9P"),
        0x6573_5546 => Kind::Remote("FUSE"),
        0x00c3_6400 => Kind::Remote("Ceph"),
        0x5346_414f => Kind::Remote("AFS"),
        0x7461_636f => Kind::Remote("OCFS2"),
        0x0116_1970 => Kind::Remote("GFS2"),
        0x0bd0_0bd0 => Kind::Remote("Lustre"),
        0x9123_683e => copy_on_write("btrfs", true),
        0x2fc1_2fc1 => copy_on_write("ZFS", false),
        0xca45_1a4e => copy_on_write("bcachefs", false),
        0x3434 => copy_on_write("NILFS", false),
        _ => Kind::InPlace,
    }
}

/// The common name of the file system under a file, for messages.
pub(super) fn name_under(file: &File) -> String {
    let Ok(statistics) = fstatfs(file) else {
        return "an unidentified file system".to_owned();
    };
    let magic = i128::from(statistics.filesystem_type().0) & 0xffff_ffff;
    match (kind_of(magic), magic) {
        (Kind::Remote(name) | Kind::CopyOnWrite { name, .. }, _) => name.to_owned(),
        (_, 0x794c_7630) => "an overlay".to_owned(),
        (_, 0x0102_1994) => "tmpfs".to_owned(),
        (_, 0xef53) => "ext4".to_owned(),
        (_, 0x5846_5342) => "XFS".to_owned(),
        _ => format!("a file system of type {magic:#x}"),
    }
}

fn kind_under(file: &File, path: &Path) -> Result<Kind, Error> {
    let statistics = fstatfs(file).map_err(|errno| io_error(EXAMINE_FILE_SYSTEM, path, errno.into()))?;
    Ok(kind_of(i128::from(statistics.filesystem_type().0)))
}

fn unsupported(path: &Path, file_system: &'static str, why: &'static str) -> Error {
    Error::Open(OpenError::UnsupportedFileSystem {
        path: path.to_owned(),
        file_system,
        why,
    })
}

/// Whether processes can share the file at all.
pub(crate) fn ensure_local(file: &File, path: &Path) -> Result<(), Error> {
    match kind_under(file, path)? {
        Kind::Remote(name) => Err(unsupported(
            path,
            name,
            "where processes of other hosts or caches could share the file",
        )),
        Kind::InPlace | Kind::CopyOnWrite { .. } => Ok(()),
    }
}

/// Whether stores into the file need no new space. Changes nothing.
pub(crate) fn ensure_stores_need_no_space(file: &File, size: u64, path: &Path) -> Result<(), Error> {
    if let Kind::CopyOnWrite { name, has_exemption } = kind_under(file, path)?
        && !(has_exemption && is_exempt_from_copy_on_write(file))
    {
        return Err(copies_on_write(path, name));
    }
    match has_holes(file, size) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::Open(OpenError::Sparse {
            path: path.to_owned(),
        })),
        Err(source) => Err(io_error("examine", path, source)),
    }
}

fn copies_on_write(path: &Path, name: &'static str) -> Error {
    unsupported(
        path,
        name,
        "on which a change to the file may need space, and fail",
    )
}

/// Allocates `size` bytes for a new, empty file of the caller's own and fills them with zeros.
pub(crate) fn allocate(file: &File, size: u64, path: &Path) -> Result<(), Error> {
    if let Kind::CopyOnWrite { name, has_exemption } = kind_under(file, path)?
        && !(has_exemption && exempt_from_copy_on_write(file))
    {
        return Err(copies_on_write(path, name));
    }
    if let Some(why) = limit_in_the_way(file, size) {
        return Err(Error::Open(OpenError::NoSpace {
            path: path.to_owned(),
            bytes: size,
            why,
        }));
    }
    // All in one call, so that a lack of space is noticed immediately. Not posix_fallocate, which emulates what the
    // file system cannot do: the zeros that follow do that too.
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, size as i64) {
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(allocation_error(path, size, errno.into())),
        }
    }
    // Some file systems report space that was never written as a hole.
    let zeros = vec![0; CHUNK.min(size) as usize];
    for offset in (0..size).step_by(CHUNK as usize) {
        let length = CHUNK.min(size - offset) as usize;
        file.write_all_at(&zeros[..length], offset)
            .map_err(|source| allocation_error(path, size, source))?;
    }
    Ok(())
}

fn allocation_error(path: &Path, bytes: u64, source: io::Error) -> Error {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => Error::Open(OpenError::NoSpace {
            path: path.to_owned(),
            bytes,
            why: FULL.to_owned(),
        }),
        _ => io_error(ALLOCATE, path, source),
    }
}

/// Whether some byte of the file has no space on the file system.
fn has_holes(file: &File, size: u64) -> io::Result<bool> {
    if file.metadata()?.blocks().saturating_mul(BLOCK) < size {
        return Ok(true);
    }
    // The blocks include the file's own metadata, so enough blocks are no proof.
    if let Some(covered) = bytes_with_a_place(file, size) {
        return Ok(covered < size);
    }
    // The file system keeps no list of extents. One that does not know about holes reports none.
    Ok(lseek(file, 0, Whence::SeekHole).is_ok_and(|end| u64::try_from(end).is_ok_and(|end| end < size)))
}

/// linux/fiemap.h: `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// linux/fiemap.h: `struct fiemap`, with room for some extents.
#[repr(C)]
struct ExtentMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// linux/fs.h: `FS_IOC_FIEMAP`, the same number on x86_64 and aarch64.
const MAP_EXTENTS: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;

/// How many bytes from the start have space allocated without a gap; `None` if the file system keeps no list of
/// extents.
fn bytes_with_a_place(file: &File, size: u64) -> Option<u64> {
    let mut covered = 0;
    while covered < size {
        let mut map = ExtentMap {
            start: covered,
            length: size - covered,
            flags: 0,
            mapped: 0,
            room: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: the descriptor is open, and the structure is laid out as in the kernel's headers, with room for as
        // many extents as it states. The request reads it and fills it in.
        if unsafe { libc::ioctl(file.as_raw_fd(), MAP_EXTENTS, &mut map) } != 0 {
            return None;
        }
        let before = covered;
        for extent in map.extents.iter().take(map.mapped as usize) {
            if extent.logical > covered {
                return Some(covered);
            }
            covered = covered.max(extent.logical.saturating_add(extent.length));
        }
        if covered == before {
            break;
        }
    }
    Some(covered)
}

fn is_exempt_from_copy_on_write(file: &File) -> bool {
    ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
}

/// Exempts the file, which must be empty, from copy-on-write. Returns whether that worked.
fn exempt_from_copy_on_write(file: &File) -> bool {
    let changed = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::NOCOW));
    // Some file systems report success without having done it.
    changed.is_ok() && is_exempt_from_copy_on_write(file)
}

#[cfg(test)]
mod tests {
    use super::super::file_system::*;

    #[test]
    fn a_hole_is_found_wherever_it_is_and_space_never_written_to_is_none() {
        for directory in [std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()] {
            let Ok(file) = tempfile::tempfile_in(&directory) else {
                continue;
            };
            let path = directory.as_path();
            let size = 40 * 4096 + 100;
            allocate(&file, size, path).expect("room");
            assert!(!has_holes(&file, size).expect("an answer"), "{}", path.display());
            for page in [0, 7, 40] {
                let sparse = tempfile::tempfile_in(&directory).expect("another file");
                sparse.set_len(size).expect("a length");
                for other in (0..=40).filter(|other| *other != page) {
                    let bytes = (size - other * 4096).min(4096) as usize;
                    sparse.write_all_at(&vec![1; bytes], other * 4096).expect("room");
                }
                assert!(
                    has_holes(&sparse, size).expect("an answer"),
                    "page {page} on {}",
                    path.display()
                );
            }
        }
    }

    /// Only file systems known to copy on write are refused as such.
    #[test]
    fn file_systems_that_copy_on_write_are_distinguished_from_others() {
        let is_refused = |magic| {
            matches!(
                kind_of(magic),
                Kind::CopyOnWrite {
                    has_exemption: false,
                    ..
                }
            )
        };
        for magic in [0x2fc1_2fc1, 0xca45_1a4e, 0x3434] {
            assert!(is_refused(magic), "{magic:#x}");
        }
        assert_eq!(
            kind_of(0x9123_683e),
            Kind::CopyOnWrite {
                name: "btrfs",
                has_exemption: true
            }
        );
        // Also if sign-extended from 32 bits.
        assert_eq!(kind_of(i128::from(0x9123_683e_u32 as i32)), kind_of(0x9123_683e));
        // tmpfs, ext4, XFS, ramfs.
        for magic in [0x0102_1994, 0xef53, 0x5846_5342, 0x8584_58f6] {
            assert_eq!(kind_of(magic), Kind::InPlace, "{magic:#x}");
        }
    }
}
