//! Telling the processor what will be read soon.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

/// Asks for a word's cache line without waiting for it. Does nothing on architectures for which this is not
/// implemented.
#[inline]
pub(crate) fn prefetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint. It reads nothing into the program, and would not fault even if the address
        // were not that of a live word, as this one is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: as above; the instruction changes neither memory nor registers nor flags.
        unsafe {
            std::arch::asm!(
                "prfm pldl1keep, [{address}]",
                address = in(reg) std::ptr::from_ref(word),
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = word;
}
