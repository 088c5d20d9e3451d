//! What it takes to give a place back and grant it to the next of many that wait.

use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use shmlimit::declare::Scope;
use shmlimit::request::AcquireFuture;
use shmlimit::{Declaration, Keyed, Limit, LimitSet, Outcome, Permit, Segment, SetDeclaration};

/// Waits in the queue, one for each key or all without.
type Queue = VecDeque<(u64, Pin<Box<AcquireFuture<'static>>>)>;

/// The median time of a release that grants the place to the next of so many.
pub fn median_release(directory: &Path, waiters: u64, is_keyed: bool, rounds: usize) -> Duration {
    let limit = Limit::concurrency("places", 1);
    let set = SetDeclaration::new("set").waiters(2 * waiters as u32);
    let set = match is_keyed {
        true => set
            .keyed(Keyed::new(2 * waiters))
            .add_limit(limit.scope(Scope::AllKeys)),
        false => set.add_limit(limit),
    };
    let path = directory.join(format!("grants-{waiters}-{is_keyed}"));
    let segment = Segment::create(path, &Declaration::new().add_set(set)).expect("a segment");
    let set = segment.set("set").expect("declared");
    let mut permit = match ask(&set, is_keyed, 0).as_mut().poll(&mut context()) {
        Poll::Ready(outcome) => admitted(outcome),
        Poll::Pending => panic!("the place is free"),
    };
    let mut queue = Queue::new();
    for key in 1..=waiters {
        enqueue(&mut queue, &set, is_keyed, key);
    }
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let begun = Instant::now();
            permit.release().expect("given back");
            let time = begun.elapsed();
            let key = take_granted(&mut queue, &mut permit);
            enqueue(&mut queue, &set, is_keyed, key);
            time
        })
        .collect();
    times.sort();
    times[rounds / 2]
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn ask(set: &LimitSet, is_keyed: bool, key: u64) -> Pin<Box<AcquireFuture<'static>>> {
    let mut request = set.request();
    if is_keyed {
        request.set_key(key.to_le_bytes()).expect("keyed");
    }
    Box::pin(request.acquire_async(None).into_owned())
}

fn admitted(outcome: Result<Outcome<'static>, shmlimit::Error>) -> Permit<'static> {
    outcome.expect("works").into_result().expect("admitted")
}

fn enqueue(queue: &mut Queue, set: &LimitSet, is_keyed: bool, key: u64) {
    let mut wait = ask(set, is_keyed, key);
    assert!(
        wait.as_mut().poll(&mut context()).is_pending(),
        "the place is taken"
    );
    queue.push_back((key, wait));
}

/// Takes the place from the one that it was granted to, most likely the first, and returns its key.
fn take_granted(queue: &mut Queue, permit: &mut Permit<'static>) -> u64 {
    loop {
        for index in 0..queue.len() {
            if let Poll::Ready(outcome) = queue[index].1.as_mut().poll(&mut context()) {
                *permit = admitted(outcome);
                return queue.remove(index).expect("there").0;
            }
        }
    }
}
