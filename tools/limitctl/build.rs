//! Leaves symbols out of what is installed: they are a fifth of the program, and a panic names its file and line without.
//!
//! Not `strip` of the profile, which is that of benchmarks too, and which Cargo does not apply to a package whose
//! optimisation the profile overrides.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = env::var("TARGET").unwrap_or_default();
    let target = target.to_uppercase().replace('-', "_");
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_{target}_LINKER");
    let has_debug_information = env::var("DEBUG").is_ok_and(|debug| debug == "true");
    if !has_debug_information {
        // A compiler takes `-s`, too, but passes it on before what rustc has the linker do, which then overrides it.
        let without_symbols = if links_by_itself() {
            "-s"
        } else {
            "-Wl,--strip-all"
        };
        println!("cargo::rustc-link-arg-bins={without_symbols}");
    }
}

/// Whether what links is a linker itself, such as `rust-lld`, rather than a compiler that calls one.
fn links_by_itself() -> bool {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut in_flags = flags.split('\u{1f}').rev();
    let in_flags = in_flags.find_map(|flag| flag.trim_start_matches("-C").strip_prefix("linker="));
    let linker = in_flags
        .map(str::to_owned)
        .or_else(|| env::var("RUSTC_LINKER").ok());
    let linker = linker.unwrap_or_default();
    let name = Path::new(&linker).file_name().and_then(|name| name.to_str());
    let mut words = name.unwrap_or_default().split(['-', '.']);
    words.any(|word| matches!(word, "ld" | "lld" | "mold" | "gold"))
}
