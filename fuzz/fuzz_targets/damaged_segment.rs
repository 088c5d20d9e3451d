//! Damages a segment as the bytes say, then attaches to it, inspects it and operates on it. None of that may raise a
//! signal, panic, hang, or store where it must not.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/mutation/mod.rs"]
mod mutation;

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use mutation::Damage;
use mutation::specimen::Specimen;
use tempfile::TempDir;

struct Specimens {
    attached: Specimen,
    abandoned: Specimen,
    // Last, because fields are dropped in this order and the segments are inside.
    _directory: TempDir,
}

thread_local! {
    static SPECIMENS: OnceCell<Specimens> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    let damage = Damage::from_bytes(rest);
    SPECIMENS.with(|specimens| {
        let specimens = specimens.get_or_init(|| {
            let directory = tempfile::tempdir().expect("a directory");
            Specimens {
                attached: Specimen::attached(directory.path()),
                abandoned: Specimen::abandoned(directory.path()),
                _directory: directory,
            }
        });
        match choice % 4 {
            0 => specimens.abandoned.endure(&damage, true),
            1 => specimens.attached.endure(&damage, true),
            _ => specimens.attached.endure(&damage, false),
        }
    });
});
