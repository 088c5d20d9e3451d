//! Writes output to a file: never over a segment, and with a rename only if that replaces nothing but the file's text.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};

use crate::exit::{ExitCode, Failure};
use crate::text::human;
use crate::uninterrupted::Uninterrupted;

/// How segments and checkpoint files begin. A checkpoint has a second head in its next block.
const OURS: [(&[u8; 8], u64, &str); 3] = [
    (b"SHMLIMIT", 0, "a segment"),
    (b"SHMLCKPT", 0, "a checkpoint"),
    (b"SHMLCKPT", 4096, "a checkpoint"),
];

/// The suffix of a segment under construction, whose header is written last.
const UNDER_CONSTRUCTION: &str = ".shmlimit-new";

/// Writes a text to a file. A reader of a regular file finds either the whole former text or the whole new one. Any
/// other kind of file, and the target of a link, is written directly.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: &io::Error| Failure::of_system(error, format!("cannot write {}", human::path(path)));
    let found = match fs::symlink_metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(&error)),
    };
    // This follows a link, and is `None` if the link leads nowhere.
    let target = fs::metadata(path).ok();
    let is_regular = target.as_ref().is_none_or(fs::Metadata::is_file);
    if target.is_some()
        && is_regular
        && let Some(what) = ours(path).map_err(|error| failed(&error))?
    {
        return Err(Failure::new(
            ExitCode::CANNOT_CREATE,
            format!(
                "{} is {what}, which is not written over: name another file",
                human::path(path)
            ),
        ));
    }
    if is_regular {
        ensure_size(text).map_err(|error| failed(&error))?;
    }
    let written = match found {
        Some(found) if !found.is_file() => write_into(path, text, target.is_none()),
        found => {
            let _uninterrupted = Uninterrupted::begin()?;
            replace(path, text, found.is_some())
        }
    };
    written.map_err(|error| failed(&error))
}

/// Which kind of this library's files it is, if any.
fn ours(path: &Path) -> io::Result<Option<&'static str>> {
    let name = fs::canonicalize(path)?;
    if name.to_string_lossy().ends_with(UNDER_CONSTRUCTION) {
        return Ok(Some("a segment under construction"));
    }
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    for (start, place, what) in OURS {
        let mut bytes = [0; 8];
        file.seek(SeekFrom::Start(place))?;
        if file.read(&mut bytes)? == bytes.len() && bytes == *start {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Checks the size limit before anything is written: exceeding it would kill this process by a signal, and leave part
/// of the text in the file.
fn ensure_size(text: &str) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if text.len() as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(())
}

/// Writes directly. A pipe that no process reads is an error, so that a timer's next run need not wait.
fn write_into(path: &Path, text: &str, is_new: bool) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create(is_new)
        .truncate(true)
        .mode(0o644)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    // From here on, writing may block, because the reader of a pipe may be slow.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    file.write_all(text.as_bytes())
}

fn replace(path: &Path, text: &str, is_there: bool) -> io::Result<()> {
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    // The file must be readable by a collector, which runs as another user, and its name must be one that the collector
    // ignores.
    let mut written = tempfile::Builder::new()
        .prefix(".limitctl-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)?;
    written.write_all(text.as_bytes())?;
    let persisted = if is_there {
        written.persist(path)
    } else {
        // Does not replace a file that another process has created meanwhile.
        written.persist_noclobber(path)
    };
    persisted.map(drop).map_err(|failed| failed.error)
}
