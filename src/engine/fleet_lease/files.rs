//! Duty for several files at once: those of a segment that is a directory. A segment that is a file has only that one.
//!
//! Each file has its own words of duty, because processes may have different files open. A process takes duty for the
//! files in the order of their paths, and one that finds the first taken leaves the others to the process that has it.
//! So where all processes have all files, one of them asks for everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::engine::fleet_lease::duty::{DYING, TakenDuty};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::error::Error;
use crate::limit::LeaseWord;
use crate::shm::file::region::load_acquire;
use crate::shm::process::participant::{ParticipantId, Phase};
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::futex::{self, FutexValue};
use crate::units::NANOS_PER_SECOND;

/// How much longer than its sleep the process stays on duty, in nanoseconds.
const GRACE: u64 = NANOS_PER_SECOND;

/// The longest sleep of the process on duty, in nanoseconds. If it is stopped in its sleep, it is replaced soon.
const LONGEST_SLEEP: u64 = NANOS_PER_SECOND;

/// For how long a file is left to the process that has duty for the first one, in nanoseconds. If that process has not
/// taken duty for the file by then, it does not ask the store on behalf of it.
const LEFT_TO_OTHERS: u64 = 100_000_000;

/// How long to wait before checking again whether a file that was left to another process has been taken.
const PAUSE: Duration = Duration::from_millis(1);

/// A file, and the duty that this process has taken for it.
pub(crate) type Served<'a> = (&'a SegmentEngine, Option<TakenDuty>);

/// Takes duty for each of the files for which nobody has it, and forgets duties that were lost. The files are in the
/// order of their paths.
pub(crate) fn take_duties(files: &mut [Served<'_>]) -> Result<(), Box<Error>> {
    let Some((first, _)) = files.first().copied() else {
        return Ok(());
    };
    let give_way_until = boot_nanos().saturating_add(LEFT_TO_OTHERS);
    let mut failure = None;
    for (engine, taken) in &mut *files {
        *taken = taken.filter(|taken| engine.has_duty(*taken));
        if taken.is_some() {
            continue;
        }
        while engine.is_duty_free() && engine.is_left_to_owner_of(first) && boot_nanos() < give_way_until {
            thread::sleep(PAUSE);
        }
        match engine.try_take_duty() {
            Ok(duty) => *taken = duty,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        Some(error) if files.iter().all(|(_, taken)| taken.is_none()) => Err(error),
        _ => Ok(()),
    }
}

/// Waits for up to `timeout` until duty can be taken for one of the files, and takes it.
pub(crate) fn wait_for_duty(files: &mut [Served<'_>], timeout: Duration) -> Result<(), Box<Error>> {
    let deadline = boot_nanos().saturating_add(nanos(timeout));
    loop {
        let mut sleep = Sleep::default();
        sleep.until_duty_is_free(files);
        take_duties(files)?;
        let left = deadline.saturating_sub(boot_nanos());
        if left == 0 || files.iter().any(|(_, taken)| taken.is_some()) {
            return Ok(());
        }
        sleep.for_at_most(left);
    }
}

/// Sleeps until a request to the store may be due for a file that this process has duty for, or duty may be taken for
/// another one, but no longer than `timeout` or a second. Stays on duty meanwhile.
pub(crate) fn wait_for_shortage(files: &[Served<'_>], timeout: Duration) {
    let mut longest = nanos(timeout).min(LONGEST_SLEEP);
    let mut sleep = Sleep::default();
    sleep.until_duty_is_free(files);
    let mut served = Vec::new();
    for (engine, taken) in files.iter().copied() {
        if let Some((taken, words)) = taken.zip(engine.duty_words()) {
            sleep.futexes.push((
                words.word(LeaseWord::DutyFutex),
                futex::value(words.word(LeaseWord::DutyFutex)),
            ));
            longest = longest.min(engine.lease_due_in().unwrap_or(u64::MAX));
            served.push((engine, taken));
        }
    }
    let until = longest.saturating_add(GRACE);
    let is_on_duty = served
        .iter()
        .filter(|(engine, taken)| engine.keep_duty(*taken, until))
        .count();
    // The caller notices any duty that was lost.
    if is_on_duty == served.len() && longest > 0 {
        sleep.for_at_most(longest);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A sleep on words of several files.
#[derive(Default)]
struct Sleep<'a> {
    futexes: Vec<(&'a AtomicU64, FutexValue)>,
    /// How many of the [`futexes`](Self::futexes) are about duty: those at the beginning.
    of_duty: usize,
    engines: Vec<&'a SegmentEngine>,
}

impl<'a> Sleep<'a> {
    /// Makes the sleep end when duty may be free for one of the files for which this process does not have it.
    fn until_duty_is_free(&mut self, files: &[Served<'a>]) {
        for (engine, taken) in files.iter().copied() {
            if let Some(words) = engine.duty_words().filter(|_| taken.is_none()) {
                self.futexes.push((
                    words.word(LeaseWord::DutyFree),
                    futex::value(words.word(LeaseWord::DutyFree)),
                ));
                self.engines.push(engine);
            }
        }
        self.of_duty = self.futexes.len();
    }

    fn for_at_most(self, nanos: u64) {
        let mut longest = nanos;
        let mut watches = Vec::new();
        for engine in &self.engines {
            if let Some(words) = engine.duty_words() {
                let (watch, slice) = engine.watch_duty(words);
                let until = words.word(LeaseWord::DutyUntil).load(Ordering::Relaxed);
                longest = longest.min(slice.max(DYING).min(engine.duty_left(until).max(DYING)));
                watches.extend(watch);
            }
        }
        futex::wait_for_any(&self.futexes, Duration::from_nanos(longest));
        drop(watches);
        for (futex, seen) in &self.futexes[..self.of_duty] {
            if futex::value(futex) != *seen {
                // A wake reaches one sleeper, and the watch of each process wakes one, which may be another process's.
                // Pass it on.
                futex::wake(futex);
            }
        }
    }
}

impl SegmentEngine {
    /// Whether the process that has duty for `first` is another one that is alive and has this file open, so that it
    /// takes duty for this one, too.
    fn is_left_to_owner_of(&self, first: &Self) -> bool {
        let Some(words) = first.duty_words() else {
            return false;
        };
        let owner = load_acquire(words.word(LeaseWord::Duty));
        if first.membership.is_current(owner) || !first.is_owner_alive(owner) {
            return false;
        }
        let process = ParticipantId::from_word(owner).and_then(|id| first.membership.table().identity_of(id));
        process.is_some_and(|process| {
            let attached = self.membership.table().taken();
            let mut live = attached.iter().filter(|record| record.phase == Phase::Live);
            live.any(|record| record.identity == process)
        })
    }
}
