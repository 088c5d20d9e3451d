//! Counts how often the background thread looks.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::LOOKS;
use crate::request::AcquireFuture;
use crate::{Declaration, Limit, LimitSet, Permit, Segment, SetDeclaration};

/// No test here takes that long, however busy the machine is.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Reports which of the futures is to be polled.
struct Numbered {
    number: usize,
    woken: Sender<usize>,
}

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        // The test may be over.
        let _ = self.woken.send(self.number);
    }
}

/// Futures in the order of their tickets.
struct Queue<'a> {
    futures: BTreeMap<usize, Pin<Box<AcquireFuture<'a>>>>,
    woken: Receiver<usize>,
    waker: Sender<usize>,
    deadline: Instant,
}

impl<'a> Queue<'a> {
    fn of(set: &'a LimitSet, waiters: usize) -> Self {
        let (waker, woken) = mpsc::channel();
        let mut queue = Self {
            futures: BTreeMap::new(),
            woken,
            waker,
            deadline: Instant::now() + TIMEOUT,
        };
        for number in 0..waiters {
            queue
                .futures
                .insert(number, Box::pin(set.request().acquire_async(None)));
            assert!(queue.poll(number).is_none(), "the place is taken");
        }
        queue
    }

    fn poll(&mut self, number: usize) -> Option<Permit<'a>> {
        let woken = self.waker.clone();
        let waker = Waker::from(Arc::new(Numbered { number, woken }));
        let future = self.futures.get_mut(&number)?;
        let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return None;
        };
        self.futures.remove(&number);
        Some(
            outcome
                .expect("works")
                .into_result()
                .expect("without a timeout, it is admitted"),
        )
    }

    /// The next future that is admitted after it was woken.
    fn next(&mut self) -> (usize, Permit<'a>) {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "tasks are woken, and none is admitted");
            let number = self.woken.recv_timeout(left).expect("a task is woken");
            if let Some(permit) = self.poll(number) {
                return (number, permit);
            }
        }
    }
}

fn places(name: &str) -> SetDeclaration {
    SetDeclaration::new(name)
        .add_limit(Limit::concurrency("places", 1))
        .waiters(8_192)
}

#[test]
fn a_grant_costs_the_same_number_of_looks_however_many_wait_and_the_order_is_that_of_the_tickets() {
    const WAITERS: usize = 4_000;
    const OTHERS: usize = 1_000;
    const GRANTS: u64 = 1_000;
    let directory = tempfile::tempdir().expect("a directory");
    let declaration = Declaration::new().add_set(places("set")).add_set(places("other"));
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let set = segment.set("set").expect("declared");
    let other = segment.set("other").expect("declared");
    let take = |set: &LimitSet| {
        let permit = set.request().try_acquire().expect("works").into_result();
        std::mem::forget(permit.expect("free"));
    };
    take(&other);
    let _others = Queue::of(&other, OTHERS);
    let first = set.request().try_acquire().expect("works").into_result();
    let mut queue = Queue::of(&set, WAITERS);
    // Every second one leaves again.
    for number in (0..WAITERS).step_by(2) {
        queue.futures.remove(&number);
    }
    let before = LOOKS.load(Ordering::Relaxed);
    let mut permit = first.ok();
    for turn in 0..GRANTS {
        drop(permit.take());
        let (number, next) = queue.next();
        assert_eq!(number as u64, 2 * turn + 1, "not the one that came first");
        permit = Some(next);
    }
    let looks = LOOKS.load(Ordering::Relaxed) - before;
    // All are looked at when the thread starts with a segment, and whenever it cannot tell for which future the
    // waiter futex was woken, which hardly ever happens. If that happened for each grant, there would be millions.
    let max = 4 * GRANTS + 4 * (WAITERS + OTHERS) as u64;
    assert!(looks <= max, "{looks} looks for {GRANTS} grants");
}
