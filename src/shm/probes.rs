//! Static probes (USDT): places at which a tracer of the host, such as bpftrace, sees what happens, in processes that
//! were started without it. Here are their names and arguments; `docs/observability.md` says what they mean.
//!
//! Without the feature `usdt` there are none. With it each is a counter that the kernel raises while a tracer is
//! attached, a look at that counter, and out of the way an instruction that does nothing. Arguments are computed only
//! while the counter is not zero. No code of the program runs, so probes may also fire under a lock.
#![allow(unsafe_code)]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a probe takes: a number, or a text that a tracer reads while the probe fires.
trait Argument {
    type Kept;

    fn keep(self) -> Self::Kept;

    /// The number, or the address of the text.
    fn word(kept: &Self::Kept) -> isize;
}

/// Text as tracers read it, ended by a NUL. On the stack, because what fires under a lock must not allocate.
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

    /// The beginning of a text that is too long.
    fn keep(self) -> Text {
        Text::of_bytes(&self.as_bytes()[..self.len().min(Text::SIZE - 1)])
    }

    fn word(kept: &Text) -> isize {
        kept.address()
    }
}

impl Argument for &Path {
    type Kept = Text;

    /// The end of a path that is too long: paths of one directory differ there.
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

/// Declares probes: a module for each, of which `fire` takes what computes the arguments.
///
/// The macro of the crate `probe` expands to unsafe code, which is sound for whatever words it is given:
///
/// - the counter is a static that the program never writes, and to which there is no reference: it is read volatile,
///   because the kernel writes it;
/// - the instruction reads nothing, and keeps the stack and the flags. That a tracer may read memory at that time is
///   declared, so that texts are there before it and stay until it is over.
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

            /// Lets a tracer see this, if one is attached: only then the arguments are computed.
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

            /// Answers whether a tracer is attached. The counter belongs to the place of the probe, so that it is asked
            /// there as well, without words: where one is attached, that is all, and it does not fire.
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
    /// A thread that had to wait for a lock has it.
    lock_wait(segment: &'a Path, set: &'a str, nanos: u64);

    /// A lock was taken over from an owner that had died.
    owner_dead(segment: &'a Path, set: &'a str);

    /// What the process that had the lock before left unfinished has been repaired.
    recovered(
        segment: &'a Path,
        set: &'a str,
        owner_died: bool,
        undone_words: usize,
        rebuilt: bool,
        poisoned: bool,
    );

    /// A request was refused. After so many nanoseconds it would not be; -1 where time alone does not help.
    refused(segment: &'a Path, set: &'a str, limit: &'a str, reason: &'a str, retry_after: i64);

    /// A request waits in the queue.
    queued(segment: &'a Path, set: &'a str);

    /// A request that waited in the queue was admitted.
    granted(segment: &'a Path, set: &'a str, nanos: u64);

    /// What a dead process held or waited for was given back.
    reclaimed(segment: &'a Path, set: &'a str, pid: u64, holds: u64, waiters: u64);

    /// What a process held of a limit for longer than its lease was given back.
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
