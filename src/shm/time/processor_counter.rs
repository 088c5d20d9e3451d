//! The processor's counter, and whether it may stand in for the system clock.
#![allow(unsafe_code)]

use std::fs;

use once_cell::race::OnceBool;

use super::anchored_clock::{AnchoredClock, ClockSources};
use super::clock::boot_nanos;
use crate::shm::process::fork_identity::IdentityPage;

/// The counter's name in Linux's list of clock sources.
#[cfg(target_arch = "x86_64")]
const CLOCK_SOURCE: &str = "tsc";
#[cfg(target_arch = "aarch64")]
const CLOCK_SOURCE: &str = "arch_sys_counter";

/// [`boot_nanos`] at a third of the cost: never ahead of it, and behind by at most
/// [`MAX_LAG`](super::anchored_clock::MAX_LAG). Requires [`is_sound`]; `page` tells a forked child from its parent.
#[inline]
pub(crate) fn counted_boot_nanos(page: IdentityPage) -> u64 {
    thread_local! {
        static CLOCK: AnchoredClock = const { AnchoredClock::new() };
    }
    // If the thread is ending and its clock is gone, read the system clock.
    CLOCK
        .try_with(|clock| clock.boot_nanos(&Processor { page }))
        .unwrap_or_else(|_| boot_nanos())
}

/// Whether the counter runs at one rate on all processors, as the kernel found when it chose the counter for its own
/// clocks, and whether this process may read it.
pub(crate) fn is_sound() -> bool {
    static IS_SOUND: OnceBool = OnceBool::new();
    IS_SOUND.get_or_init(|| {
        const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        fs::read_to_string(CURRENT).is_ok_and(|source| source.trim() == CLOCK_SOURCE)
            && is_invariant_and_readable()
    })
}

struct Processor {
    page: IdentityPage,
}

impl ClockSources for Processor {
    #[inline]
    fn counter(&self) -> u64 {
        if cfg!(shmlimit_faulty_counter) {
            disturbed(counter())
        } else {
            counter()
        }
    }

    #[inline]
    fn system(&self) -> u64 {
        boot_nanos()
    }

    #[inline]
    fn era_so_far(&self) -> u64 {
        self.page.clock_era_so_far()
    }

    fn era(&self) -> u64 {
        self.page.clock_era()
    }
}

/// A counter that is wrong in every way: it is right for some milliseconds, and then stands still, is ahead or
/// behind, or runs at another rate.
fn disturbed(ticks: u64) -> u64 {
    const PHASE: u64 = 1 << 24;
    const JUMP: u64 = 1 << 26;
    let (begin, since) = (ticks - ticks % PHASE, ticks % PHASE);
    match ticks / PHASE % 16 {
        8 | 9 => begin,
        10 => ticks + JUMP,
        11 => ticks.saturating_sub(JUMP),
        12 => begin + 2 * since,
        13 => begin + since / 2,
        _ => ticks,
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86_64 processor has the instruction; `is_sound` has made sure that it does not fault in this
    // process.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let counter: u64;
    // SAFETY: reads a register that Linux lets every program read, and touches nothing else.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) counter, options(nomem, nostack, preserves_flags))
    };
    counter
}

#[cfg(target_arch = "x86_64")]
fn is_invariant_and_readable() -> bool {
    use core::arch::x86_64::__cpuid;

    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    // Reading the counter can be made to fault in a process, as when its run is being recorded.
    let mut access: libc::c_int = 0;
    // SAFETY: the kernel writes one int through the pointer, which is live and writable.
    let is_readable =
        unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut access) } == 0 && access == libc::PR_TSC_ENABLE;
    // SAFETY: every x86_64 processor has the instruction.
    #[allow(unused_unsafe, reason = "safe from Rust 1.94 on")]
    let is_invariant = unsafe {
        __cpuid(0x8000_0000).eax >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & INVARIANT != 0
    };
    is_readable && is_invariant
}

#[cfg(target_arch = "aarch64")]
fn is_invariant_and_readable() -> bool {
    // Guaranteed by the architecture, and Linux lets every program read it.
    true
}

#[cfg(test)]
mod tests {
    use super::super::anchored_clock::MAX_LAG;
    use super::{IdentityPage, boot_nanos, counted_boot_nanos, is_sound};

    #[test]
    fn the_counter_is_never_ahead_of_the_system_clock_nor_far_behind() {
        if !is_sound() {
            println!("skipped: no counter that the kernel keeps time by");
            return;
        }
        let page = IdentityPage::get().expect("Linux 4.14 or later");
        let end = boot_nanos() + 100_000_000;
        loop {
            let before = boot_nanos();
            let counted = counted_boot_nanos(page);
            let after = boot_nanos();
            assert!(counted <= after, "ahead by {} ns", counted - after);
            assert!(counted + MAX_LAG >= before, "behind by {} ns", before - counted);
            if after > end {
                break;
            }
        }
    }
}
