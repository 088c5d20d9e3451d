//! The program contains the library's probes, so that tracers can attach to it.

use std::fs;

#[test]
fn the_program_has_every_probe() {
    let program = fs::read(env!("CARGO_BIN_EXE_limitctl")).expect("the program");
    for name in [
        "lock_wait",
        "owner_dead",
        "recovered",
        "refused",
        "queued",
        "granted",
        "reclaimed",
        "lease_expired",
    ] {
        // A note has the provider, the name and the arguments.
        let note = format!("shmlimit\0{name}\0-8@");
        let has_note = program
            .windows(note.len())
            .any(|window| window == note.as_bytes());
        assert!(has_note, "{name}");
    }
}
