//! An example of the package under test, as `cargo test` builds it.

use std::path::PathBuf;
use std::process::Command;

/// The program of an example of a package.
pub fn example(package: &str, name: &str) -> Command {
    let test = std::env::current_exe().expect("this test");
    let profile: PathBuf = test
        .ancestors()
        .nth(2)
        .expect("the directory of the profile")
        .into();
    let example = profile.join("examples").join(name);
    assert!(
        example.exists(),
        "`cargo test` builds the example, a single `--test` does not: cargo build --package {package} --example {name}"
    );
    Command::new(example)
}
