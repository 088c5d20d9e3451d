//! What a program builds if it uses the library without any of its features.

use std::fs;
use std::path::Path;

use toml::{Table, Value};

/// Each of these is justified in CONTRIBUTING.md, or is how the library talks to the system and reads declarations.
const WITHOUT_FEATURES: [&str; 10] = [
    "libc",
    "memmap2",
    "nix",
    "once_cell",
    "rustix",
    "serde",
    "siphasher",
    "smallvec",
    "thiserror",
    "toml",
];

fn manifest(of: &str) -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(of).join("Cargo.toml");
    let text = fs::read_to_string(path).expect("a manifest");
    text.parse().expect("a manifest is TOML")
}

fn is_optional(dependency: &Value) -> bool {
    dependency.get("optional").and_then(Value::as_bool) == Some(true)
}

fn version(dependency: &Value) -> Option<&str> {
    dependency
        .as_str()
        .or_else(|| dependency.get("version")?.as_str())
}

/// A registry would refuse any other.
#[test]
fn published_crates_ask_for_one_another_in_the_version_that_they_have() {
    let workspace = &manifest("")["workspace"];
    for (name, dependency) in workspace["dependencies"].as_table().expect("dependencies") {
        let version = version(dependency);
        assert_eq!(version, workspace["package"]["version"].as_str(), "{name}");
    }
}

/// What is left for features includes raw_sync, which accepts any nix of version 0: a program that uses another one
/// would build two, and break with the next.
#[test]
fn a_program_builds_what_is_listed_here_and_the_rest_only_for_features() {
    let manifest = manifest("");
    let dependencies = manifest["dependencies"].as_table().expect("dependencies");
    let built: Vec<&String> = dependencies
        .iter()
        .filter(|(_, dependency)| !is_optional(dependency))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(built, WITHOUT_FEATURES);
    assert!(is_optional(&dependencies["raw_sync"]));
    let of_no_name = &manifest["features"]["default"];
    assert_eq!(of_no_name.as_array().map(Vec::len), Some(0));
}

#[test]
fn no_published_crate_asks_for_any_version() {
    let workspace = manifest("");
    let ours = &workspace["workspace"]["dependencies"];
    for of in ["", "fleet", "reqwest-middleware", "tools/limitctl"] {
        let manifest = manifest(of);
        for (name, dependency) in manifest["dependencies"].as_table().expect("dependencies") {
            let is_ours = dependency.get("workspace").is_some();
            let asked = version(if is_ours { &ours[name] } else { dependency }).unwrap_or_default();
            assert!(
                !asked.is_empty() && !asked.contains('*'),
                "{of}: {name} = {asked:?}"
            );
        }
    }
}
