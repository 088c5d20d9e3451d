//! What a test can do on this host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Run, create_with_mutexes, directory, run_command};

/// The user `nobody` and its group, which have no rights of their own.
pub const NOBODY: u32 = 65_534;

/// Whether this process is root, which some tests need.
pub fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// Whether this system lets the test create such namespaces.
pub fn can_unshare(options: &[&str]) -> bool {
    has("unshare", &[options, &["true"]].concat())
}

/// A copy of limitctl that every user may run, in a directory that every user may then read.
pub fn copy_for_everyone(directory: &Path) -> PathBuf {
    // The program's own directory may be closed to others. Another process makes the copy: if this one had it open for
    // writing, a child forked by another test would have it open, too, and until that child executes, nothing could
    // execute the copy.
    let program = directory.join("limitctl");
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_limitctl"))
        .arg(&program)
        .status();
    assert!(copied.expect("started").success());
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("changed");
    program
}

/// A segment that is examined from another PID namespace.
pub struct FromElsewhere {
    pub directory: TempDir,
    pub path: PathBuf,
}

impl FromElsewhere {
    const UNSHARED: [&str; 3] = ["--pid", "--fork", "--mount-proc"];

    /// `None` if the test cannot have such a namespace.
    pub fn new() -> Option<Self> {
        if !is_root() || !can_unshare(&Self::UNSHARED) {
            return None;
        }
        let directory = directory();
        let path = create_with_mutexes(directory.path());
        Some(Self { directory, path })
    }

    /// Runs limitctl with a process table of its own.
    pub fn run(&self, arguments: &[&str], path: &Path) -> Run {
        let mut unshare = Command::new("unshare");
        let limitctl = unshare.args(Self::UNSHARED).arg(env!("CARGO_BIN_EXE_limitctl"));
        run_command(limitctl.args(arguments).arg(path))
    }
}

/// Whether a tool exists, and succeeds with these arguments.
pub fn has(tool: &str, arguments: &[&str]) -> bool {
    let has = Command::new(tool)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success());
    if !has {
        println!("skipped: {tool} {} is not possible here", arguments.join(" "));
    }
    has
}

/// Puts the limitctl under test first on a command's path.
pub fn with_limitctl_on_path(command: &mut Command) {
    let own = Path::new(env!("CARGO_BIN_EXE_limitctl"))
        .parent()
        .expect("a directory");
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(own.to_owned()).chain(std::env::split_paths(&others));
    command.env("PATH", std::env::join_paths(path).expect("paths"));
}
