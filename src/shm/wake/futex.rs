//! Sleeping on a word of a segment, and waking the sleeper: `futex(2)`, shared between processes.
//!
//! A waiter futex is a 64-bit word that only ever counts up; the futex is its low half. The sleeper passes the count
//! it has seen, so it never misses an advance between reading the count and falling asleep. These futexes are not
//! private: the kernel finds a sleeper by file and offset, whatever the address of the mapping in each process.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::shm::file::region::load_acquire;

/// The kernel's limit. The call has existed since Linux 5.16; the libc crate has its number but no wrapper.
const MAX_FUTEXES_AT_ONCE: usize = 128;

/// How long to sleep on one of several waiter futexes if the kernel cannot wait for several.
const TURN: Duration = Duration::from_millis(2);

/// The count of a waiter futex, as a sleeper remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FutexValue(u32);

impl FutexValue {
    /// The count in a word that was read.
    pub(crate) fn of(word: u64) -> Self {
        Self(word as u32)
    }
}

/// How often the waiter futex has been advanced. Everything stored before an advance counted here is visible.
#[inline]
pub(crate) fn value(futex: &AtomicU64) -> FutexValue {
    FutexValue::of(load_acquire(futex))
}

/// Advances the waiter futex. This alone wakes nobody: see [`wake`].
#[inline]
pub(crate) fn bump(futex: &AtomicU64) {
    futex.fetch_add(1, Ordering::Release);
}

/// Wakes one thread that sleeps on the futex. Returns whether there was one.
pub(crate) fn wake(futex: &AtomicU64) -> bool {
    wake_up_to(1, futex)
}

/// Wakes all threads that sleep on a ticket's waiter futex. Returns whether there were any.
///
/// There may be two: the owner of the ticket, and the owner of an earlier ticket in the same slot that left the queue
/// because its time was up, and that has not found out yet or is stopped. Waking just one might wake the wrong one.
pub(crate) fn wake_all(futex: &AtomicU64) -> bool {
    wake_up_to(i32::MAX, futex)
}

fn wake_up_to(count: i32, futex: &AtomicU64) -> bool {
    // SAFETY: FUTEX_WAKE takes an address and a count; the address is that of an aligned four-byte word that the
    // reference keeps mapped, and the kernel does not write to it.
    let woken = unsafe { libc::syscall(libc::SYS_futex, low_half(futex), libc::FUTEX_WAKE, count) };
    woken > 0
}

/// Sleeps until the waiter futex is advanced beyond `seen`, or until `timeout` has passed. May also return for
/// neither reason: the sleeper has to check its condition again.
pub(crate) fn wait(futex: &AtomicU64, seen: FutexValue, timeout: Duration) {
    if cfg!(miri) {
        // Miri does not support accessing half of a word that other threads change: a sleeper there just checks
        // again.
        return std::thread::yield_now();
    }
    let timeout = timespec(timeout);
    // SAFETY: FUTEX_WAIT takes an address, a value and a timeout; the address is that of an aligned four-byte word
    // that the reference keeps mapped, the timeout outlives the call, and the kernel writes to neither.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            low_half(futex),
            libc::FUTEX_WAIT,
            seen.0,
            &raw const timeout,
        )
    };
}

/// [`wait`] on several waiter futexes at once. Before Linux 5.16 it sleeps on one of them and returns early, so that
/// the others are checked as well.
pub(crate) fn wait_for_any(futexes: &[(&AtomicU64, FutexValue)], timeout: Duration) {
    match futexes {
        [] => std::thread::sleep(timeout),
        [(futex, seen)] => wait(futex, *seen, timeout),
        [(futex, seen), ..] => {
            let all_at_once =
                futexes.len() <= MAX_FUTEXES_AT_ONCE && wait_for_several(futexes, timeout).is_ok();
            if !all_at_once && futexes.iter().all(|(futex, seen)| value(futex) == *seen) {
                wait(futex, *seen, timeout.min(TURN));
            }
        }
    }
}

/// An element of the kernel's `struct futex_waitv`.
#[repr(C)]
struct WaitElement {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

fn wait_for_several(futexes: &[(&AtomicU64, FutexValue)], timeout: Duration) -> io::Result<()> {
    const SIZE_OF_32_BITS: u32 = 2;
    let elements: Vec<WaitElement> = futexes
        .iter()
        .map(|(futex, seen)| WaitElement {
            value: u64::from(seen.0),
            address: low_half(futex) as u64,
            flags: SIZE_OF_32_BITS,
            reserved: 0,
        })
        .collect();
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    let deadline = timespec(Duration::from(now).saturating_add(timeout));
    // SAFETY: the elements and the deadline outlive the call and are as many and as large as stated; each address is
    // that of an aligned four-byte word that its reference keeps mapped, and the kernel writes to none of them.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            elements.as_ptr(),
            elements.len() as libc::c_uint,
            0,
            &raw const deadline,
            libc::CLOCK_MONOTONIC,
        )
    };
    let error = io::Error::last_os_error();
    if answer >= 0 || is_a_wake(&error) {
        Ok(())
    } else {
        // An old kernel does not know the call, and a system call filter may forbid it.
        Err(error)
    }
}

/// Whether a wait ended in one of the usual ways: timed out, interrupted, or because a waiter futex had already been
/// advanced. In each case there may be something to look at.
fn is_a_wake(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ETIMEDOUT | libc::EINTR | libc::EAGAIN)
    )
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos() as i32),
    }
}

/// The half of the word that changes with every advance.
fn low_half(futex: &AtomicU64) -> *const AtomicU32 {
    let halves = std::ptr::from_ref(futex).cast::<AtomicU32>();
    if cfg!(target_endian = "little") {
        halves
    } else {
        halves.wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::futex::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn a_bump_between_the_look_and_the_sleep_is_not_missed() {
        let futex = AtomicU64::new(u64::from(u32::MAX));
        let other = AtomicU64::new(5);
        let seen = value(&futex);
        bump(&futex);
        assert_ne!(value(&futex), seen);
        // If the advance were missed, these would take longer than any test.
        wait(&futex, seen, TIMEOUT * 60);
        wait_for_any(&[(&other, value(&other)), (&futex, seen)], TIMEOUT * 60);
    }

    #[test]
    fn a_forbidden_wait_is_not_taken_for_a_wake() {
        for forbidden in [libc::ENOSYS, libc::EPERM, libc::EACCES] {
            assert!(!is_a_wake(&io::Error::from_raw_os_error(forbidden)));
        }
        for ended in [libc::ETIMEDOUT, libc::EINTR, libc::EAGAIN] {
            assert!(is_a_wake(&io::Error::from_raw_os_error(ended)));
        }
    }

    #[test]
    fn a_sleeper_is_woken() {
        let futex = Arc::new(AtomicU64::new(0));
        let other = AtomicU64::new(0);
        let seen = value(&futex);
        let waker = Arc::clone(&futex);
        let thread = std::thread::spawn(move || {
            bump(&waker);
            wake(&waker)
        });
        while value(&futex) == seen {
            wait_for_any(&[(&other, value(&other)), (&futex, seen)], TIMEOUT);
        }
        thread.join().expect("rings");
        assert!(!wake(&futex), "no thread sleeps any more");
    }
}
