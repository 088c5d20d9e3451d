//! The slot lock itself, in this process: the tests say which participants are alive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::shm::layout::records::LockArea;
use crate::shm::lock::guard::Guard;
use crate::shm::lock::slot_word::SlotWord;

const LONG: Duration = Duration::from_secs(60);

fn area() -> LockArea {
    LockArea {
        words: [const { AtomicU64::new(0) }; 8],
    }
}

/// The owner word of the participant in a slot, in that life of the slot.
fn owner(slot: u64, generation: u64) -> u64 {
    generation << 16 | (slot + 1)
}

fn lock(area: &LockArea, slot: u64, timeout: Duration, is_alive: bool) -> Option<Guard<'_>> {
    area.lock_slot(owner(slot, 1), timeout, |_| is_alive)
}

#[test]
fn a_held_lock_is_not_taken_from_the_living_whatever_is_waited() {
    let area = area();
    let held = area.try_lock_slot(owner(0, 1)).expect("free");
    assert!(area.try_lock_slot(owner(1, 1)).is_none());
    assert!(area.try_lock_slot(owner(0, 1)).is_none(), "by another thread");
    for timeout in [Duration::ZERO, Duration::from_millis(12)] {
        assert!(lock(&area, 1, timeout, true).is_none());
        // Another thread of the same process is alive, whatever `is_alive` says.
        assert!(lock(&area, 0, timeout, false).is_none());
    }
    assert!(area.slot_word().names(owner(0, 1)));
    drop(held);
    assert_eq!(area.slot_word(), SlotWord::FREE);
    assert!(!lock(&area, 1, LONG, true).expect("free").owner_died());
}

#[test]
fn from_the_dead_it_is_taken_at_once_also_by_one_that_has_no_time() {
    for timeout in [Duration::ZERO, LONG] {
        let area = area();
        std::mem::forget(area.try_lock_slot(owner(0, 1)));
        let taken = lock(&area, 1, timeout, false).expect("taken over");
        assert!(taken.owner_died());
        assert!(area.slot_word().names(owner(1, 1)));
        drop(taken);
        assert!(!lock(&area, 0, timeout, false).expect("free").owner_died());
    }
}

#[test]
fn an_owner_that_unlocks_while_it_is_probed_is_not_taken_from() {
    let area = area();
    let held = std::cell::Cell::new(area.try_lock_slot(owner(0, 1)));
    // The owner is found dead, but has unlocked by then: the swap against the old word fails, and the lock is free.
    let taken = area.lock_slot(owner(1, 1), LONG, |_| {
        drop(held.take());
        false
    });
    assert!(!taken.expect("free").owner_died());
}

#[test]
fn a_waiter_that_does_not_run_until_its_time_is_up_finds_a_lock_that_is_free_by_then() {
    const TIMEOUT: Duration = Duration::from_millis(20);
    let area = area();
    let held = std::cell::Cell::new(area.try_lock_slot(owner(0, 1)));
    let began = Instant::now();
    let taken = area.lock_slot(owner(1, 1), TIMEOUT, |_| {
        while began.elapsed() <= TIMEOUT {
            thread::yield_now();
        }
        drop(held.take());
        true
    });
    assert!(!taken.expect("free").owner_died());
}

#[test]
fn of_two_takers_one_wins_and_the_one_that_stopped_loses() {
    let area = area();
    std::mem::forget(area.try_lock_slot(owner(0, 1)));
    let faster = std::cell::Cell::new(None);
    // The slower one found the owner dead, and stopped before it swapped.
    let slower = area.lock_slot(owner(1, 1), Duration::ZERO, |_| {
        faster.set(lock(&area, 2, Duration::ZERO, false));
        false
    });
    assert!(slower.is_none());
    assert!(faster.take().expect("taken over").owner_died());
}

#[test]
fn what_no_participant_can_have_stored_is_taken_over() {
    let area = area();
    for damage in [1 << 31, 5 << 32, u64::MAX] {
        area.words[0].store(damage, Ordering::Relaxed);
        assert!(lock(&area, 1, LONG, false).expect("taken over").owner_died());
        assert_eq!(area.slot_word(), SlotWord::FREE);
    }
}

#[test]
fn threads_exclude_each_other_and_none_sleeps_for_ever() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 20_000 };
    let area = area();
    let inside = AtomicBool::new(false);
    let count = AtomicU64::new(0);
    thread::scope(|scope| {
        for slot in 0..THREADS {
            let (area, inside, count) = (&area, &inside, &count);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = lock(area, slot, LONG, true).expect("in a minute");
                    assert!(!guard.owner_died());
                    assert!(!inside.swap(true, Ordering::Relaxed), "two have the lock");
                    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    inside.store(false, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(count.into_inner(), THREADS * ROUNDS);
    assert_eq!(area.slot_word(), SlotWord::FREE);
}
