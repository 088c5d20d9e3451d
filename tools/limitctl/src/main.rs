//! The program.
#![allow(unsafe_code)]

/// Runs before Rust's runtime, which ignores SIGPIPE, because only here is the inherited disposition still known.
#[used]
// SAFETY: the section lists functions that the C library calls once, before `main`; this one makes one system call and
// stores a word.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_signals;

extern "C" fn note_signals() {
    limitctl::note_signals();
}

fn main() -> std::process::ExitCode {
    limitctl::run(std::env::args_os()).into()
}
