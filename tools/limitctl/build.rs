//! Leaves symbols out of what is installed: they are a fifth of the program, and a panic names its file and line without.
//!
//! Not `strip` of the profile, which is that of benchmarks too, and which Cargo does not apply to a package whose
//! optimisation the profile overrides.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let has_debug_information = env::var("DEBUG").is_ok_and(|debug| debug == "true");
    if !has_debug_information {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
