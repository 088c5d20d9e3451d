//! Which copy of the library this is, in which image of which process.
//!
//! A process may contain several copies, such as a Python extension beside another shared library, or two versions of
//! the crate. Each has statics of its own and is a participant of its own.
#![allow(unsafe_code)]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher24;

use super::host::{own_start_time, pid_namespace};

/// Bytes at `AT_RANDOM`: see getauxval(3).
const RANDOM_BYTES: usize = 16;

/// The owner of a participant's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyIdentity {
    pub(crate) pid: u64,
    /// The PID namespace of `pid`; zero if `/proc` does not say.
    pub(crate) pid_namespace: u64,
    /// In clock ticks since boot; zero if `/proc` does not say.
    pub(crate) start_time: u64,
    /// Identifies the running program image: the same for all copies of the library in it and for its forked
    /// children, and a new one after an exec. Zero if the kernel does not say.
    pub(crate) image: u64,
    /// Drawn at random by each copy of the library on first use. Never zero.
    pub(crate) copy: u64,
}

impl CopyIdentity {
    /// The identity of the calling copy.
    pub(crate) fn own() -> Self {
        Self {
            pid: u64::from(std::process::id()),
            pid_namespace: pid_namespace().unwrap_or(0),
            start_time: own_start_time(),
            image: own_image(),
            copy: own_copy(),
        }
    }

    /// Whether `recorded` is the same process, though perhaps another image or copy.
    pub(crate) fn is_same_process(self, recorded: Self) -> bool {
        self.process() == recorded.process()
    }

    /// What all copies of the library in a process have in common, and no two processes have.
    pub(super) fn process(self) -> (u64, u64, u64) {
        (self.pid_namespace, self.pid, self.start_time)
    }

    /// Whether the process's numbers mean the same here as to the process that wrote them down.
    pub(super) fn is_of_namespace(self, pid_namespace: u64) -> bool {
        self.pid_namespace != 0 && self.pid_namespace == pid_namespace
    }
}

/// The kernel gives every program it executes 16 random bytes. The C library derives secrets from them, so they are
/// not hashed themselves but used as the key of a hash, which does not reveal them.
fn own_image() -> u64 {
    // SAFETY: getauxval only looks up a number.
    let address = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u8; RANDOM_BYTES];
    // SAFETY: the kernel put 16 bytes at this address before the program started, on the initial stack, which stays
    // mapped and which nothing writes to at that place; a null pointer reads as none.
    let Some(key) = (unsafe { address.as_ref() }) else {
        return 0;
    };
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(b"shmlimit: image");
    hasher.finish()
}

fn own_copy() -> u64 {
    static COPY: AtomicU64 = AtomicU64::new(0);
    let known = COPY.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // The standard library seeds its hashers from the system's random source.
    let fresh = RandomState::new().hash_one(std::process::id()) | 1;
    match COPY.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(known) => known,
    }
}

#[cfg(test)]
mod tests {
    use super::super::process_identity::*;

    #[test]
    fn identity_stays_the_same_and_shows_no_secret() {
        let own = CopyIdentity::own();
        assert_eq!(own, CopyIdentity::own());
        assert_ne!(own.copy, 0);
        // SAFETY: as in `own_image`.
        let bytes = unsafe { *(libc::getauxval(libc::AT_RANDOM) as *const [u8; RANDOM_BYTES]) };
        for half in bytes.as_chunks::<8>().0 {
            assert_ne!(own.image, u64::from_ne_bytes(*half));
        }
    }
}
