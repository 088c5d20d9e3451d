//! Describes the machine on which a figure was measured, without revealing whose it is.
#![allow(unsafe_code, reason = "asks the C library for its version")]

use std::fs::read_to_string;
use std::thread::available_parallelism;

/// The kind and number of processors, kernel, C library and load, in a sentence.
pub fn describe() -> String {
    let processors = available_parallelism().map_or(1, usize::from);
    let kernel = first_number(&read("/proc/sys/kernel/osrelease"));
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or("unknown").to_owned();
    format!(
        "Machine: {} ({}), {processors} processors, Linux {kernel}, {}; load when the run began: {load}.",
        processor(),
        std::env::consts::ARCH,
        c_library(),
    )
}

fn processor() -> String {
    let text = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    match (field("model name"), field("cpu family"), field("model\t")) {
        (Some(name), Some(family), Some(model)) => format!("{name}, family {family} model {model}"),
        (Some(name), ..) => name,
        _ => "unknown processor".to_owned(),
    }
}

#[cfg(target_env = "gnu")]
fn c_library() -> String {
    // SAFETY: the call returns a constant string of the C library.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

#[cfg(not(target_env = "gnu"))]
fn c_library() -> String {
    "musl".to_owned()
}

/// `6.18.44` of `6.18.44-anything`: the rest may reveal who built the kernel.
fn first_number(release: &str) -> String {
    release
        .chars()
        .take_while(|character| character.is_ascii_digit() || *character == '.')
        .collect()
}

fn read(path: &str) -> String {
    read_to_string(path).unwrap_or_default()
}
