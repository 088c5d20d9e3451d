//! What a test can do on this host.

use std::path::Path;
use std::process::Command;

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

/// The arguments of unshare for a PID namespace with a process table of its own, if the test can have one.
pub fn own_processes() -> Option<[&'static str; 3]> {
    let options = ["--pid", "--fork", "--mount-proc"];
    (is_root() && can_unshare(&options)).then_some(options)
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
