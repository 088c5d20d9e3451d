//! The system's database of time zones.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::tzif::NotRead;

/// Where systems keep it, unless the environment variable `TZDIR` names another place.
const PLACES: [&str; 4] = [
    "/usr/share/zoneinfo",
    "/usr/lib/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/etc/zoneinfo",
];

const MAX_VERSION_BYTES: usize = 16;

/// No file of the database is nearly as large.
const MAX_BYTES: u64 = 1 << 20;

/// A zone's file, and the version of its database, such as `2025b`, if known.
pub(super) struct ZoneFile {
    pub(super) content: Vec<u8>,
    pub(super) version: Option<String>,
}

/// Why a zone is not known, and what to do. Reads like the end of a sentence that begins with the zone's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::declaration) enum UnknownZone {
    #[error("is not the name of a time zone: write one such as \"America/Los_Angeles\"")]
    NotAName,
    #[error("is not in the database of time zones at {}: write a name such as \"America/Los_Angeles\"", .0.display())]
    NotThere(PathBuf),
    #[error(
        "is not known, because there is no database of time zones: install tzdata, or name its directory in TZDIR"
    )]
    NoDatabase,
    #[error("cannot be read: {0}")]
    NotRead(String),
    #[error("is not a time zone file (TZif): reinstall tzdata, or name another directory in TZDIR")]
    NotTzif,
    #[error("counts leap seconds, which the clock of a segment does not: write its name without \"right/\"")]
    LeapSeconds,
    #[error("changes its offset too often: {0} times, and there is room for 400")]
    TooMany(usize),
    #[error(
        "has offsets that are not a list of instants in order, each with an offset of less than a day: leave them out"
    )]
    NoList,
}

impl From<NotRead> for UnknownZone {
    fn from(why: NotRead) -> Self {
        match why {
            NotRead::NotTzif => Self::NotTzif,
            NotRead::LeapSeconds => Self::LeapSeconds,
        }
    }
}

/// Whether a name leads to a file below the database, and nowhere else.
pub(super) fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-_.".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_plain)
    };
    name.len() <= 64 && name.split('/').all(is_part)
}

/// Whether it reads like the version of a database, such as `2025b`.
pub(super) fn is_version(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    (1..=MAX_VERSION_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Reads the file of a zone, whose name [has been checked](is_name).
pub(super) fn find(name: &str) -> Result<ZoneFile, UnknownZone> {
    let places = match env::var_os("TZDIR") {
        Some(place) if !place.is_empty() => vec![PathBuf::from(place)],
        _ => PLACES.map(PathBuf::from).to_vec(),
    };
    let mut without = UnknownZone::NoDatabase;
    for place in places.into_iter().filter(|place| place.is_dir()) {
        match read(&place.join(name)) {
            Ok(content) => {
                return Ok(ZoneFile {
                    content,
                    version: version_of(&place),
                });
            }
            Err(error) if is_absent(&error) => without = UnknownZone::NotThere(place),
            Err(error) => return Err(UnknownZone::NotRead(error.to_string())),
        }
    }
    Err(without)
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

/// The version of the database, which is at the beginning of one of two files: distributions install either.
fn version_of(place: &Path) -> Option<String> {
    let first_line = |file: &str| {
        let mut start = Vec::new();
        File::open(place.join(file))
            .ok()?
            .take(64)
            .read_to_end(&mut start)
            .ok()?;
        let line = start.split(|byte| *byte == b'\n').next()?;
        String::from_utf8(line.to_vec()).ok()
    };
    let of_source = || Some(first_line("tzdata.zi")?.strip_prefix("# version ")?.to_owned());
    let version = of_source().or_else(|| first_line("+VERSION"))?;
    is_version(&version).then_some(version)
}
