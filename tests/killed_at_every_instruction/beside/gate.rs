//! Steps that several processes take together: one announces a step, the others wait for it and say when they have
//! taken it. None of this uses the library.
#![allow(unsafe_code, reason = "waits on futexes of its own")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::libc;

use crate::process::SharedWords;

/// What the crew does, one step after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Take what will be given back.
    Prepare = 1,
    /// The victim is about to begin: take what can only be had now.
    Join,
    /// The victim is stopped: give back.
    Act,
    /// The victim goes on: repeat what could not be had.
    Repeat,
    /// Everything is over.
    End,
}

/// Words that the harness shares with the crew.
pub struct Gate {
    words: SharedWords,
}

const STEP: usize = 0;
const ARRIVED: usize = 1;
const REPEATED: usize = 2;
const ADMITTED: usize = 3;
const FIRST_FREE: usize = 4;

/// How many words each of the crew has for itself.
const OWN_WORDS: usize = 1;

impl Gate {
    pub fn new(members: usize) -> Self {
        let words = SharedWords::new(FIRST_FREE + OWN_WORDS * members);
        Self { words }
    }

    /// Goes back to the beginning. No process may be waiting.
    pub fn reset(&self) {
        for word in self.words.iter() {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Lets the processes that wait for `step` take it.
    pub fn announce(&self, step: Step) {
        self.words[ARRIVED].store(0, Ordering::SeqCst);
        self.words[STEP].store(step as u64, Ordering::SeqCst);
        wake(&self.words[STEP]);
    }

    /// Says that the previous step has been taken, and waits for `step`.
    pub fn arrive_and_wait_for(&self, step: Step) {
        self.arrive();
        self.wait_for(step);
    }

    pub fn arrive(&self) {
        self.words[ARRIVED].fetch_add(1, Ordering::SeqCst);
        wake(&self.words[ARRIVED]);
    }

    pub fn wait_for(&self, step: Step) {
        loop {
            let now = self.words[STEP].load(Ordering::SeqCst);
            if now >= step as u64 {
                return;
            }
            sleep_while(&self.words[STEP], now, Duration::from_secs(1));
        }
    }

    /// Whether this many have taken the step before the deadline.
    pub fn all_arrive(&self, count: usize, deadline: Instant) -> bool {
        loop {
            let now = self.words[ARRIVED].load(Ordering::SeqCst);
            if now >= count as u64 {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            sleep_while(&self.words[ARRIVED], now, left);
        }
    }

    /// Notes that a call that had found the lock stuck was repeated and had its result.
    pub fn note_repeated(&self) {
        self.words[REPEATED].fetch_add(1, Ordering::SeqCst);
    }

    pub fn repeated(&self) -> u64 {
        self.words[REPEATED].load(Ordering::SeqCst)
    }

    /// Notes that a call was admitted for one unit of each rate, although another order of events might have refused
    /// it.
    pub fn note_admitted(&self) {
        self.words[ADMITTED].fetch_add(1, Ordering::SeqCst);
    }

    pub fn admitted(&self) -> u64 {
        self.words[ADMITTED].load(Ordering::SeqCst)
    }

    /// What a member has to complain about, as bits of its own choice.
    pub fn complaints(&self, member: usize) -> &AtomicU64 {
        &self.words[FIRST_FREE + OWN_WORDS * member]
    }
}

/// Sleeps while the low half of a word is unchanged, for at most `max`.
fn sleep_while(word: &AtomicU64, value: u64, max: Duration) {
    let timeout = libc::timespec {
        tv_sec: i64::try_from(max.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: libc::c_long::from(max.subsec_nanos().cast_signed()),
    };
    let low = value as u32;
    // SAFETY: the word is mapped and aligned, its low half comes first on all supported platforms, the timeout outlives
    // the call, and the kernel only reads both.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            low,
            &raw const timeout,
        )
    };
}

fn wake(word: &AtomicU64) {
    // SAFETY: as in `sleep_while`, but nothing is read or written.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
