//! The cost of giving a place back and granting it to the next of many waiters.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use shmlimit::declare::Scope;
use shmlimit::request::AcquireFuture;
use shmlimit::{Declaration, Keyed, Limit, LimitSet, Permit, Segment, SetDeclaration};

/// Requests that wait, by number. In a keyed set, each has its own key.
struct Queue {
    set: LimitSet,
    is_keyed: bool,
    waiting: HashMap<u64, Pin<Box<AcquireFuture<'static>>>>,
    woken: Receiver<u64>,
    sender: Sender<u64>,
}

/// Reports which request is woken. Polling all of them instead would evict from the caches what is measured.
struct SaysWho {
    number: u64,
    sender: Sender<u64>,
}

impl Wake for SaysWho {
    fn wake(self: Arc<Self>) {
        // At the end, there is no receiver any more.
        let _ = self.sender.send(self.number);
    }
}

/// The median time of a release that grants the place to the next of `waiters` waiters, and wakes it.
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
    let (sender, woken) = channel();
    let mut queue = Queue {
        set: segment.set("set").expect("declared"),
        is_keyed,
        waiting: HashMap::new(),
        woken,
        sender,
    };
    let mut permit = queue.enqueue(0).expect("the place is free");
    for number in 1..=waiters {
        assert!(queue.enqueue(number).is_none(), "the place is taken");
    }
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let begun = Instant::now();
            permit.release().expect("given back");
            let time = begun.elapsed();
            let number;
            (number, permit) = queue.granted();
            assert!(queue.enqueue(number).is_none(), "the place is taken");
            time
        })
        .collect();
    times.sort();
    times[rounds / 2]
}

impl Queue {
    /// Asks for the place, which may be free.
    fn enqueue(&mut self, number: u64) -> Option<Permit<'static>> {
        let mut request = self.set.request();
        if self.is_keyed {
            request.set_key(number.to_le_bytes()).expect("keyed");
        }
        let wait = Box::pin(request.acquire_async(None).into_owned());
        self.waiting.insert(number, wait);
        self.poll(number)
    }

    fn poll(&mut self, number: u64) -> Option<Permit<'static>> {
        let sender = self.sender.clone();
        let waker = Waker::from(Arc::new(SaysWho { number, sender }));
        let wait = self.waiting.get_mut(&number)?;
        let Poll::Ready(outcome) = wait.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return None;
        };
        self.waiting.remove(&number);
        Some(outcome.expect("works").into_result().expect("admitted"))
    }

    /// The request that the place was granted to, and its permit.
    fn granted(&mut self) -> (u64, Permit<'static>) {
        loop {
            let number = self.woken.recv().expect("somebody is woken");
            if let Some(permit) = self.poll(number) {
                return (number, permit);
            }
        }
    }
}
