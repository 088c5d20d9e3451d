//! The mounts that this process sees. See proc_pid_mountinfo(5).

use std::fs;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mounted directory of the file system.
    pub root: PathBuf,
    pub point: PathBuf,
    pub kind: String,
    /// Options of the file system itself.
    pub options: String,
}

/// All mounts, in the order of mounting. Empty if `/proc` does not say.
pub fn mounts() -> Vec<Mount> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(read).collect()
}

/// The mount that a path is on.
pub fn mount_of(path: &Path) -> Option<Mount> {
    let path = path.canonicalize().ok()?;
    let above = mounts()
        .into_iter()
        .filter(|mount| path.starts_with(&mount.point));
    // Of two mounts at the same place, only the later one is visible.
    above.max_by_key(|mount| mount.point.components().count())
}

fn read(line: &str) -> Option<Mount> {
    let (place, rest) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let mut rest = rest.split(' ');
    Some(Mount {
        root: unescaped(place.next()?).into(),
        point: unescaped(place.next()?).into(),
        kind: rest.next()?.to_owned(),
        options: rest.nth(1)?.to_owned(),
    })
}

/// Undoes the escaping of spaces, tabs, line breaks and backslashes as three octal digits.
fn unescaped(text: &str) -> String {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, sign)| text.replace(escape, sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_mounted_where() {
        let line = r"36 35 0:31 /a\040b /mnt/my\040shm rw,noatime shared:7 - tmpfs none rw,size=64k";
        let mount = Mount {
            root: "/a b".into(),
            point: "/mnt/my shm".into(),
            kind: "tmpfs".into(),
            options: "rw,size=64k".into(),
        };
        assert_eq!(read(line), Some(mount));
        assert_eq!(read("no such line"), None);
    }

    #[test]
    fn a_path_lies_on_the_innermost_mount() {
        let mount = mount_of(Path::new("/proc/self")).expect("/proc is mounted");
        assert_eq!(mount.kind, "proc");
    }
}
