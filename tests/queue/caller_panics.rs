//! Code of the caller that panics while its request waits leaves nothing behind: no ticket, no hold.
#![allow(unsafe_code, reason = "a waker whose functions panic")]

use std::future::Future;
use std::panic::panic_any;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use crate::scene::expected_panics::{Expected, PanicsAgain, panics};
use crate::scene::process::TIMEOUT;
use crate::scene::{create, expect_permit, first_set, queued};
use shmlimit::{Limit, LimitSet, Segment, SetDeclaration};

fn places() -> SetDeclaration {
    SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1))
}

fn assert_nothing_is_left(segment: &Segment, set: &LimitSet, when: &str) {
    let seen = first_set(segment);
    assert_eq!(seen.tickets.len(), 0, "{when}");
    assert_eq!(seen.holds.len(), 0, "{when}");
    drop(expect_permit(set.request().acquire(TIMEOUT)));
}

#[test]
fn a_wait_that_a_panic_ends_leaves_the_queue() {
    let (_directory, segment, set) = create(places());
    for asked in 0..4 {
        let permit = expect_permit(set.request().try_acquire());
        let mut times = 0;
        let mut held = Some(permit);
        let has_panicked = panics(|| {
            let outcome = set.request().acquire_while(None, || {
                if times == asked {
                    // What it waits for is granted now.
                    if asked == 3 {
                        held.take();
                    }
                    panic_any(Expected);
                }
                times += 1;
                true
            });
            drop(outcome);
        });
        assert!(has_panicked);
        assert_eq!(queued(&segment), 0);
        drop(held);
        assert_nothing_is_left(&segment, &set, &format!("asked for the {asked}th time"));
    }
}

/// How many calls of a waker succeed before one panics, and whether the payload of the panic panics again.
static CALLS_LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);
static AGAIN: AtomicBool = AtomicBool::new(false);

fn call() {
    let left = CALLS_LEFT.load(Ordering::SeqCst);
    if left == 0 {
        // Once: a panic during unwinding would end the process.
        CALLS_LEFT.store(usize::MAX, Ordering::SeqCst);
        if AGAIN.load(Ordering::SeqCst) {
            panic_any(PanicsAgain);
        }
        panic_any(Expected);
    }
    CALLS_LEFT.store(
        left.saturating_sub(usize::from(left != usize::MAX)),
        Ordering::SeqCst,
    );
}

/// A waker each of whose functions counts as a call.
fn waker() -> Waker {
    fn clone(_: *const ()) -> RawWaker {
        call();
        RawWaker::new(std::ptr::null(), &VTABLE)
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| call(), |_| call(), |_| call());
    // SAFETY: no function of the table looks at the pointer.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &VTABLE)) }
}

#[test]
fn a_waker_that_panics_wherever_it_is_called_leaves_nothing_behind() {
    let (_directory, segment, set) = create(places());
    for calls in 0..24 {
        let (again, calls) = (calls % 2 == 1, calls / 2);
        AGAIN.store(again, Ordering::SeqCst);
        let permit = expect_permit(set.request().acquire(TIMEOUT));
        let (waker, mut held) = (waker(), Some(permit));
        // Wherever the panic goes: to the poll, or to the thread that wakes.
        let _ = panics(|| {
            CALLS_LEFT.store(calls, Ordering::SeqCst);
            let mut waiting = pin!(set.request().acquire_async(None));
            let _ = waiting.as_mut().poll(&mut Context::from_waker(&waker));
            let other = Waker::noop();
            let _ = waiting.as_mut().poll(&mut Context::from_waker(other));
            let _ = waiting.as_mut().poll(&mut Context::from_waker(&waker));
            held.take();
            // Granted: the waker is dropped with the wait.
            let _ = waiting.as_mut().poll(&mut Context::from_waker(&waker));
        });
        CALLS_LEFT.store(usize::MAX, Ordering::SeqCst);
        drop(waker);
        drop(held);
        assert_nothing_is_left(
            &segment,
            &set,
            &format!("a panic after {calls} calls, again: {again}"),
        );
    }
}
