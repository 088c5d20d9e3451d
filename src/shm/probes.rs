//! Static probes (USDT): points at which a tracer on the host, such as bpftrace, sees what happens in processes that
//! were started without it. Their names and arguments are defined here; `docs/observability.md` says what they mean.
//!
//! Without the feature `usdt` there are none. With it, each probe is a counter that the kernel raises while a tracer
//! is attached, a test of that counter, and a nop out of the way. Arguments are computed only while the counter is
//! not zero. A probe runs no code of the program, so it may also fire under a lock.
#![allow(unsafe_code)]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A probe's argument: a number, or text that a tracer reads while the probe fires.
trait Argument {
    type Kept;

    fn keep(self) -> Self::Kept;

    /// The number, or the address of the text.
    fn word(kept: &Self::Kept) -> isize;
}

/// NUL-terminated text, as tracers read it. It is on the stack, because probes that fire under a lock must not
/// allocate.
struct Text([u8; Self::SIZE]);

impl Text {
    const SIZE: usize = 256;

    fn of_bytes(bytes: &[u8]) -> Self {
        let mut text = [0; Self::SIZE];
        text[..bytes.len()].copy_from_slice(bytes);
        Self(text)
    }

    fn address(&self) -> isize {
        self.0.as_ptr() as isize
    }
}

impl Argument for &str {
    type Kept = Text;

    /// Keeps the beginning of a text that is too long.
    fn keep(self) -> Text {
        Text::of_bytes(&self.as_bytes()[..self.len().min(Text::SIZE - 1)])
    }

    fn word(kept: &Text) -> isize {
        kept.address()
    }
}

impl Argument for &Path {
    type Kept = Text;

    /// Keeps the end of a path that is too long: paths in the same directory differ there.
    fn keep(self) -> Text {
        let bytes = self.as_os_str().as_bytes();
        Text::of_bytes(&bytes[bytes.len().saturating_sub(Text::SIZE - 1)..])
    }

    fn word(kept: &Text) -> isize {
        kept.address()
    }
}

macro_rules! implement_argument {
    ($($number:ty),+) => {$(
        impl Argument for $number {
            type Kept = Self;

            fn keep(self) -> Self {
                self
            }

            fn word(kept: &Self) -> isize {
                *kept as isize
            }
        }
    )+};
}

implement_argument!(bool, i64, u64, usize);

/// Declares probes: a module for each, whose `fire` takes a closure that computes the arguments.
///
/// The macros of the crate `probe` expand to unsafe code, which is sound for any words passed to it:
///
/// - the counter is a static that the program never writes and has no reference to. It is read volatile, because the
///   kernel writes it;
/// - the instruction reads nothing and preserves the stack and the flags. It is declared to read memory, as a tracer
///   may, so the texts are there before it and stay until it is over.
macro_rules! probes {
    ($(
        $(#[$about:meta])*
        $name:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)* $(,)?);
    )+) => {$(
        $(#[$about])*
        pub(crate) mod $name {
            use super::*;

            const COUNT: usize = [stringify!($first) $(, stringify!($argument))*].len();

            /// Whether a tracer is attached.
            #[inline(always)]
            pub(crate) fn is_attached() -> bool {
                reach(None)
            }

            /// Fires the probe if a tracer is attached; only then are the arguments computed.
            #[inline(always)]
            pub(crate) fn fire<'a>(arguments: impl FnOnce() -> ($first_type, $($type),*)) {
                if is_attached() {
                    fire_attached(arguments);
                }
            }

            #[cold]
            #[inline(never)]
            fn fire_attached<'a>(arguments: impl FnOnce() -> ($first_type, $($type),*)) {
                let ($first, $($argument),*) = arguments();
                let $first = Argument::keep($first);
                $(let $argument = Argument::keep($argument);)*
                reach(Some([
                    <$first_type as Argument>::word(&$first)
                    $(, <$type as Argument>::word(&$argument))*
                ]));
            }

            /// Returns whether a tracer is attached. The counter belongs to the probe's code, so it has to be tested
            /// there; called without words, this only tests it and does not fire.
            #[cfg(feature = "usdt")]
            #[inline(always)]
            fn reach(words: Option<[isize; COUNT]>) -> bool {
                let is_asked = words.is_none();
                let [$first, $($argument),*] = words.unwrap_or_default();
                // Evaluated only while a tracer is attached.
                probe::probe_lazy!(
                    shmlimit,
                    $name,
                    if is_asked { return true } else { $first }
                    $(, $argument)*
                )
            }

            #[cfg(not(feature = "usdt"))]
            #[inline(always)]
            fn reach(_: Option<[isize; COUNT]>) -> bool {
                false
            }
        }
    )+};
}

probes! {
    /// A thread that had to wait for a lock now has it.
    lock_wait(segment: &'a Path, set: &'a str, nanos: u64);

    /// A lock was taken over from an owner that had died.
    owner_dead(segment: &'a Path, set: &'a str);

    /// What the lock's previous holder left unfinished was repaired.
    recovered(
        segment: &'a Path,
        set: &'a str,
        owner_died: bool,
        undone_words: usize,
        rebuilt: bool,
        poisoned: bool,
    );

    /// A request was refused. It would be admitted after `retry_after` nanoseconds; -1 if waiting alone does not
    /// help.
    refused(segment: &'a Path, set: &'a str, limit: &'a str, reason: &'a str, retry_after: i64);

    /// A request waits in the queue.
    queued(segment: &'a Path, set: &'a str);

    /// A request that had waited in the queue was admitted.
    granted(segment: &'a Path, set: &'a str, nanos: u64);

    /// What a dead process held or waited for was given back.
    reclaimed(segment: &'a Path, set: &'a str, pid: u64, holds: u64, waiters: u64);

    /// Units that a process had held for longer than their lease were given back.
    lease_expired(segment: &'a Path, set: &'a str, limit: &'a str, pid: u64, units: u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &Text) -> &[u8] {
        text.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    #[test]
    fn texts_end_where_there_is_no_more_room_and_paths_begin_later() {
        assert_eq!(shown(&"api".keep()), b"api");
        let long = format!("begin{}end", "-".repeat(Text::SIZE));
        assert_eq!(shown(&long.as_str().keep()), &long.as_bytes()[..Text::SIZE - 1]);
        let end = &long.as_bytes()[long.len() + 1 - Text::SIZE..];
        assert_eq!(shown(&Path::new(&long).keep()), end);
    }

    #[test]
    fn while_no_tracer_is_attached_no_argument_is_computed() {
        let mut is_computed = false;
        queued::fire(|| {
            is_computed = true;
            (Path::new("/dev/shm/limits"), "api")
        });
        assert!(!is_computed && !queued::is_attached());
    }
}
