//! A directory that holds a segment file for each set: which paths name one, what its files are called, and whether
//! it may be trusted.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;

use super::segment_file::{io_error, is_segment, untrusted};
use super::verified::is_shared;
use crate::error::{Error, OpenError};
use crate::sorting::sort_by;

/// The directory that a path names, without the slashes at its end; `None` if the path is that of a file.
///
/// A path names a directory if it ends in `/` or `.d`, or if a directory is there.
///
/// # Errors
///
/// [`OpenError::NotADirectory`] if a path with one of these endings leads to something else, and
/// [`OpenError::Untrusted`] if it leads to a symbolic link.
pub(crate) fn named_directory(path: &Path) -> Result<Option<PathBuf>, Error> {
    let bytes = path.as_os_str().as_bytes();
    let is_named = bytes.ends_with(b"/") || bytes.ends_with(b".d");
    let directory: PathBuf = path.components().collect();
    match directory.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(Some(directory)),
        Ok(metadata) if metadata.is_symlink() && (is_named || directory.is_dir()) => Err(untrusted(
            &directory,
            "it is a symbolic link; name the directory itself",
        )),
        Ok(_) if is_named => Err(Error::Open(OpenError::NotADirectory { path: directory })),
        Ok(_) => Ok(None),
        Err(_) => Ok(is_named.then_some(directory)),
    }
}

/// The file of a set in a directory.
pub(crate) fn file_of(directory: &Path, set: &str) -> PathBuf {
    directory.join(file_name(set))
}

/// A number for the directory of a file, the same for all its files until the next boot: the upper half of the
/// numbers by which a store knows them. It is derived from the boot and the directory's device and inode, so
/// processes that create its first files at the same time agree on it. Zero if the boot is not known, because
/// directories of two hosts could then have the same number.
pub(crate) fn directory_number(file: &Path, boot_id: [u64; 2]) -> Result<u64, Error> {
    if boot_id[1] == 0 {
        return Ok(0);
    }
    let directory = file.parent().unwrap_or(file);
    let metadata = directory
        .metadata()
        .map_err(|source| io_error("examine", directory, source))?;
    let words = [boot_id[0], boot_id[1], metadata.dev(), metadata.ino()];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(SipHasher13::new().hash(&bytes) & !u64::from(u32::MAX))
}

/// The file name for a set: its name, percent-encoded as in URLs. It does not begin with a dot, because no set's name
/// does, and does not end in `.d`, which would name a directory.
pub(crate) fn file_name(set: &str) -> String {
    let last_dot = set.strip_suffix(".d").map(str::len);
    let mut name = String::with_capacity(set.len());
    for (position, byte) in set.bytes().enumerate() {
        let stays = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if stays && last_dot != Some(position) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

/// The set whose file has this name; `None` if there cannot be one.
pub(crate) fn set_of(name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        if *first == b'%' {
            let (digits, others) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = others;
        } else {
            bytes.push(*first);
        }
    }
    let set = String::from_utf8(bytes).ok()?;
    (!set.is_empty() && !set.starts_with('.') && file_name(&set) == name).then_some(set)
}

/// The segments in a directory that have the file names of sets, sorted.
///
/// # Errors
///
/// [`OpenError::NotFound`] if there is no directory.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::NotFound => Error::Open(OpenError::NotFound {
            path: directory.to_owned(),
        }),
        _ => io_error("list", directory, source),
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Opening a device or a pipe could have side effects.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || set_of(&entry.file_name()).is_none() {
            continue;
        }
        let path = entry.path();
        match is_segment(&path) {
            Ok(true) => files.push(path),
            Ok(false) | Err(Error::Open(OpenError::NotFound { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    sort_by(&mut files, |one, other| one < other);
    Ok(files)
}

/// Creates the directory if there is none, for files of mode `file_mode`, and checks that it may be trusted. Its
/// parent must exist.
pub(crate) fn ensure_directory(directory: &Path, file_mode: u32, trust_any_owner: bool) -> Result<(), Error> {
    let mode = directory_mode(file_mode);
    match DirBuilder::new().mode(mode).create(directory) {
        Ok(()) => widen(directory, mode).map_err(|source| io_error("set the mode of", directory, source))?,
        Err(source) if source.kind() == ErrorKind::AlreadyExists => {}
        Err(source) => return Err(io_error("create", directory, source)),
    }
    ensure_trusted(directory, trust_any_owner)
}

/// Whoever may use the files may enter the directory. Only its owner may write to it: otherwise no user could trust the
/// files of another.
fn directory_mode(file_mode: u32) -> u32 {
    let enter = |used: u32, entered: u32| if file_mode & used == 0 { 0 } else { entered };
    0o700 | enter(0o060, 0o050) | enter(0o006, 0o005)
}

/// Restores the permissions that the umask took away. Keeps the bit that gives files the directory's group.
fn widen(directory: &Path, mode: u32) -> io::Result<()> {
    let found = directory.symlink_metadata()?.mode();
    if found & 0o777 == mode {
        return Ok(());
    }
    fs::set_permissions(directory, Permissions::from_mode(found & 0o2000 | mode))
}

/// Checks that nobody but those who are trusted with its files could have put others in their place.
pub(crate) fn ensure_trusted(directory: &Path, trust_any_owner: bool) -> Result<(), Error> {
    let metadata = directory
        .symlink_metadata()
        .map_err(|source| match source.kind() {
            ErrorKind::NotFound => Error::Open(OpenError::NotFound {
                path: directory.to_owned(),
            }),
            _ => io_error("examine", directory, source),
        })?;
    if !metadata.is_dir() {
        return Err(Error::Open(OpenError::NotADirectory {
            path: directory.to_owned(),
        }));
    }
    if trust_any_owner {
        return Ok(());
    }
    if metadata.mode() & 0o1002 == 0o002 {
        return Err(untrusted(
            directory,
            "everyone may put files into it and remove those of others: do not let others write to it (chmod o-w), or \
             open it with trust_any_owner (--trust-any-owner)",
        ));
    }
    ensure_owner(directory, &metadata)
}

fn ensure_owner(directory: &Path, metadata: &Metadata) -> Result<(), Error> {
    let owner = metadata.uid();
    if owner == 0 || owner == nix::unistd::geteuid().as_raw() || !is_shared(directory) {
        return Ok(());
    }
    Err(untrusted(
        directory,
        format!(
            "it belongs to user {owner}, and others may write to the directory that it is in: have root create it, or \
             open it with trust_any_owner (--trust-any-owner)"
        ),
    ))
}

/// Removes the directory if nothing is left in it.
pub(crate) fn remove_if_empty(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir(directory) {
        Ok(()) => Ok(()),
        Err(source) if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => Ok(()),
        Err(source) => Err(io_error("remove", directory, source)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::set_directory::*;

    #[test]
    fn every_name_of_a_set_is_one_of_a_file_and_back() {
        let names = [
            ("chat", "chat"),
            ("openai/gpt-4o", "openai%2Fgpt-4o"),
            ("a%2Fb", "a%252Fb"),
            ("app.d", "app%2Ed"),
            ("d", "d"),
            ("x.limits", "x.limits"),
            ("Preis \u{20ac}", "Preis%20%E2%82%AC"),
        ];
        for (set, file) in names {
            assert_eq!(file_name(set), file);
            assert_eq!(set_of(OsStr::new(file)).as_deref(), Some(set));
        }
        let longest = "\u{20ac}".repeat(21);
        assert_eq!(set_of(OsStr::new(&file_name(&longest))), Some(longest));
    }

    #[test]
    fn no_other_name_is_taken_for_that_of_a_set() {
        for name in [
            "",
            ".chat.1.2.3.shmlimit-new",
            "a b",
            "a%2fb",
            "%61",
            "a%2",
            "a%",
            "%FF",
            "app.d",
            "a~b c",
        ] {
            assert_eq!(set_of(OsStr::new(name)), None, "{name}");
        }
        assert_eq!(set_of(OsStr::from_bytes(b"\xff")), None);
    }

    #[test]
    fn a_path_names_a_directory_by_its_end_or_because_there_is_one() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        for (name, is_directory) in [
            ("a", false),
            ("a/", true),
            ("a.d", true),
            ("a.d/", true),
            ("ad", false),
        ] {
            let found = named_directory(&at(name)).expect("decided");
            assert_eq!(found.is_some(), is_directory, "{name}");
        }
        fs::create_dir(at("plain")).expect("created");
        assert_eq!(named_directory(&at("plain")).expect("decided"), Some(at("plain")));
        assert_eq!(
            named_directory(&at("plain///")).expect("decided"),
            Some(at("plain"))
        );
        fs::write(at("file.d"), "").expect("written");
        for name in ["file.d", "file.d/"] {
            let error = named_directory(&at(name)).expect_err("a file");
            assert!(
                matches!(error, Error::Open(OpenError::NotADirectory { .. })),
                "{error}"
            );
        }
        symlink(at("plain"), at("link")).expect("linked");
        for name in ["link", "link/"] {
            let error = named_directory(&at(name)).expect_err("a link");
            assert!(
                matches!(error, Error::Open(OpenError::Untrusted { .. })),
                "{error}"
            );
        }
    }

    #[test]
    fn who_may_use_the_files_may_enter_and_only_the_owner_may_write() {
        for (file, directory) in [
            (0o600, 0o700),
            (0o660, 0o750),
            (0o640, 0o750),
            (0o666, 0o755),
            (0o604, 0o705),
        ] {
            assert_eq!(directory_mode(file), directory, "{file:o}");
        }
    }
}
