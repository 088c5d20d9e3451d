//! Waiting in the queue as futures: under tokio, under smol, and under an executor of a few lines.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::scene;
use crate::scene::clock::Scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, die, eventually, in_own_process};
use crate::scene::{create, create_in, expect_permit, queued};
use fastrand::Rng;
use shmlimit::{Keyed, Limit, LimitSet, Permit, RefusalReason, Segment, SetDeclaration};

const FUTURES: u64 = 1_000;

/// How many futures may be inside at once.
const CAPACITY: u64 = 4;

/// Takes a place that must be free.
fn take(set: &LimitSet) -> Permit<'_> {
    expect_permit(set.request().try_acquire())
}

fn places(capacity: u64) -> SetDeclaration {
    SetDeclaration::new("set")
        .add_limit(Limit::concurrency("places", capacity))
        .waiters(8_192)
}

fn assert_nothing_is_left(segment: &Segment) {
    let snapshot = segment.snapshot().expect("a snapshot");
    assert!(
        snapshot.sets[0].tickets.is_empty(),
        "{:?}",
        snapshot.sets[0].tickets
    );
    assert!(snapshot.sets[0].holds.is_empty(), "{:?}", snapshot.sets[0].holds);
    assert_eq!(
        snapshot.sets[0].limits[0].remaining,
        snapshot.sets[0].limits[0].capacity.unwrap_or(0)
    );
}

/// The names of this process's threads that the library started.
fn own_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("a table of threads");
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
        .filter(|name| name.trim() == "shmlimit")
        .count()
}

/// An executor: one thread that parks.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn a_future_gets_what_another_thread_gives_back() {
    let (_directory, segment, set) = create(places(1));
    let permit = take(&set);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let outcome = block_on(set.request().acquire_async(TIMEOUT)).expect("works");
            assert!(outcome.is_admitted());
        });
        eventually("it waits", || queued(&segment) == 1);
        drop(permit);
        waiter.join().expect("admitted");
    });
    assert_nothing_is_left(&segment);
}

#[test]
fn a_waiter_that_becomes_the_first_is_woken_at_its_instant_and_not_by_the_liveness_check() {
    const WAITERS: u32 = 20;
    const LIVENESS_CHECK: Duration = Duration::from_millis(50);
    let set = SetDeclaration::new("set").add_limit(Limit::calls("calls", 1, Duration::from_millis(2)));
    let (_directory, _segment, set) = create(set);
    let round = || {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..WAITERS {
                scope.spawn(|| {
                    let outcome = block_on(set.request().acquire_async(TIMEOUT)).expect("works");
                    assert!(outcome.is_admitted());
                });
            }
        });
        started.elapsed()
    };
    // With the liveness check alone, hardly more than one or two would be served at a time, and no round could be this
    // quick. On a busy machine, not every round is.
    assert!((0..50).any(|_| round() < LIVENESS_CHECK * WAITERS / 4));
}

#[test]
fn a_waker_that_panics_leaves_the_other_futures_theirs() {
    struct Panics(AtomicBool);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
            // Panics without a report, which would occupy the thread that other tests wait for.
            std::panic::resume_unwind(Box::new("as a waker should not"));
        }
    }
    let (_directory, segment, set) = create(places(1));
    let permit = take(&set);
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&panics));
    let mut first = Box::pin(set.request().acquire_async(TIMEOUT));
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            block_on(set.request().acquire_async(TIMEOUT))
                .expect("works")
                .is_admitted()
        });
        eventually("both wait", || queued(&segment) == 2);
        drop(permit);
        eventually("the waker panics", || panics.0.load(Ordering::Relaxed));
        drop(first);
        assert!(second.join().expect("woken"));
    });
    assert_nothing_is_left(&segment);
}

#[test]
fn a_future_whose_time_is_up_is_refused() {
    let (_directory, segment, set) = create(places(1));
    let permit = take(&set);
    let timeout = Duration::from_millis(20);
    let refusal = block_on(set.request().acquire_async(timeout))
        .expect("works")
        .into_result();
    assert_eq!(refusal.expect_err("held").reason(), RefusalReason::Concurrency);
    let at_once = block_on(set.request().acquire_async(Duration::ZERO)).expect("works");
    assert!(!at_once.is_admitted());
    drop(permit);
    assert_nothing_is_left(&segment);
}

#[test]
fn a_future_whose_time_is_up_behind_one_that_could_go_is_not_told_that_a_table_is_full() {
    const WAITERS: usize = 5;
    let hour = Duration::from_secs(3600);
    let scene = Scene::at(
        hour,
        SetDeclaration::new("set").add_limit(Limit::calls("calls", 10, hour)),
    );
    let set = scene.set();
    for _ in 0..10 {
        assert!(set.request().check().expect("works").is_admitted());
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut futures: Vec<_> = (0..WAITERS)
        .map(|_| Box::pin(set.request().acquire_async(hour / 2)))
        .collect();
    for future in &mut futures {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
    scene.pass(hour);
    // The last one is polled first: those before it could proceed, but have not come for their permits.
    for future in futures.iter_mut().rev() {
        let Poll::Ready(outcome) = future.as_mut().poll(&mut context) else {
            panic!("its time is up");
        };
        if let Err(refusal) = outcome.expect("works").into_result() {
            assert_eq!(refusal.reason(), RefusalReason::Rate, "{refusal}");
            assert_eq!(refusal.binding(), Some("calls"));
            assert!(refusal.retry_after().is_some());
        }
    }
}

#[test]
fn five_thousand_can_wait_unless_declared_and_five_hundred_for_one_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let places = || Limit::concurrency("places", 1);
    let declaration = scene::declaration()
        .add_set(SetDeclaration::new("set").add_limit(places()))
        .add_set(
            SetDeclaration::new("keyed")
                .add_limit(places())
                .keyed(Keyed::new(100)),
        );
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let set = segment.set("set").expect("declared");
    let keyed = segment.set("keyed").expect("declared");
    let of_key = keyed.request().for_key("one").expect("keyed");
    let _held = set.request().try_acquire().expect("works");
    let _held_of_key = of_key.try_acquire().expect("works");
    let mut context = Context::from_waker(Waker::noop());
    let mut futures = Vec::new();
    for _ in 0..5_000 {
        futures.push(Box::pin(set.request().acquire_async(None)));
    }
    for _ in 0..500 {
        futures.push(Box::pin(of_key.acquire_async(None)));
    }
    for future in &mut futures {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
}

#[test]
fn a_future_waits_for_time_to_the_instant() {
    let window = Duration::from_millis(20);
    let set = SetDeclaration::new("set").add_limit(Limit::calls("calls", 1, window));
    let (_directory, _segment, set) = create(set);
    let started = std::time::Instant::now();
    block_on(async {
        for _ in 0..4 {
            assert!(
                set.request()
                    .acquire_async(None)
                    .await
                    .expect("works")
                    .is_admitted()
            );
        }
    });
    assert!(started.elapsed() >= 3 * window);
}

#[test]
fn a_dropped_future_gives_its_place_and_its_grant_back() {
    let set = SetDeclaration::new("set")
        .add_limit(Limit::concurrency("places", 1))
        .add_limit(Limit::rate("tokens", 100, Duration::from_secs(24 * 3600)));
    let (_directory, segment, set) = create(set);
    let request = set.request().with("tokens", 10).expect("declared");
    let permit = expect_permit(request.try_acquire());
    let mut granted = Box::pin(request.acquire_async(None));
    let mut waiting = Box::pin(request.acquire_async(None));
    let mut context = Context::from_waker(Waker::noop());
    assert!(granted.as_mut().poll(&mut context).is_pending());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    // Never polled, it has no place.
    drop(request.acquire_async(None));
    drop(permit);
    let granted_of_queue = || -> Vec<bool> {
        let snapshot = segment.snapshot().expect("a snapshot");
        let tickets = snapshot.sets[0].tickets.iter();
        tickets.map(|ticket| ticket.granted).collect()
    };
    assert_eq!(granted_of_queue(), [true, false]);
    drop(granted);
    // What was given to the first was passed on to the second.
    assert_eq!(granted_of_queue(), [true]);
    drop(waiting);
    assert_nothing_is_left(&segment);
    let tokens = &segment.snapshot().expect("a snapshot").sets[0].limits[1];
    // Only the tokens of the first permit, which was dropped unsettled, stay charged.
    assert_eq!(tokens.remaining, 90);
}

/// Counts a future that was admitted as inside, until this is dropped.
struct Inside<'a>(&'a SharedWords);

impl<'a> Inside<'a> {
    fn enter(words: &'a SharedWords) -> Self {
        let now = words[0].fetch_add(1, Ordering::SeqCst) + 1;
        assert!(now <= CAPACITY, "{now} are inside");
        words[1].fetch_add(1, Ordering::SeqCst);
        Self(words)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0[0].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a turn, and is inside for a moment. May be dropped at any point.
async fn take_a_turn(set: &LimitSet, words: &SharedWords) {
    let permit = expect_permit(set.request().acquire_async(None).await);
    let inside = Inside::enter(words);
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    drop(inside);
    drop(permit);
}

/// One of a thousand: takes a turn, and every third gives up after a random time.
async fn take_a_turn_or_time_out(
    set: LimitSet,
    words: Arc<SharedWords>,
    seed: u64,
    sleep: impl Future<Output = ()>,
) {
    if !seed.is_multiple_of(3) {
        return take_a_turn(&set, &words).await;
    }
    let mut turn = Box::pin(take_a_turn(&set, &words));
    let mut sleep = pin!(sleep);
    std::future::poll_fn(|context| {
        if turn.as_mut().poll(context).is_ready() || sleep.as_mut().poll(context).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

fn timeout(seed: u64) -> Duration {
    Duration::from_micros(Rng::with_seed(seed).u64(..20_000))
}

fn thousand_under_tokio(set: &LimitSet, words: &Arc<SharedWords>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for seed in 0..FUTURES {
            let sleep = tokio::time::sleep(timeout(seed));
            tasks.spawn(take_a_turn_or_time_out(
                set.clone(),
                Arc::clone(words),
                seed,
                sleep,
            ));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no task panics");
        }
    });
}

fn thousand_under_smol(set: &LimitSet, words: &Arc<SharedWords>) {
    let executor = smol::LocalExecutor::new();
    smol::block_on(executor.run(async {
        let tasks: Vec<_> = (0..FUTURES)
            .map(|seed| {
                let sleep = async move {
                    smol::Timer::after(timeout(seed)).await;
                };
                executor.spawn(take_a_turn_or_time_out(
                    set.clone(),
                    Arc::clone(words),
                    seed,
                    sleep,
                ))
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }));
}

fn storm(test: &str, processes: usize, thousand: impl Fn(&LimitSet, &Arc<SharedWords>) + Copy) {
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(CAPACITY));
        let words = Arc::new(SharedWords::new(2));
        let children: Vec<Child> = (0..processes)
            .map(|_| {
                Child::fork(|| {
                    thousand(&set, &words);
                    assert!(own_threads() <= 1, "one thread sleeps for all futures");
                })
            })
            .collect();
        children.into_iter().for_each(Child::succeed);
        let patient = (0..FUTURES).filter(|seed| !seed.is_multiple_of(3)).count() as u64;
        assert!(words[1].load(Ordering::SeqCst) >= patient * processes as u64);
        assert_eq!(words[0].load(Ordering::SeqCst), 0);
        segment.recover().expect("works");
        assert_nothing_is_left(&segment);
    });
}

macro_rules! storms {
    ($($name:ident: $processes:literal, $thousand:ident;)+) => {$(
        #[test]
        fn $name() {
            storm(concat!("futures::", stringify!($name)), $processes, $thousand);
        }
    )+};
}

storms! {
    a_thousand_futures_under_tokio_lose_nothing: 1, thousand_under_tokio;
    four_processes_with_a_thousand_futures_under_tokio_lose_nothing: 4, thousand_under_tokio;
    a_thousand_futures_under_smol_lose_nothing: 1, thousand_under_smol;
    four_processes_with_a_thousand_futures_under_smol_lose_nothing: 4, thousand_under_smol;
}

#[test]
fn a_future_that_is_carried_over_a_fork_begins_anew_in_the_child() {
    let test = "futures::a_future_that_is_carried_over_a_fork_begins_anew_in_the_child";
    in_own_process(test, TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(1));
        let permit = take(&set);
        let request = set.request();
        let mut future = Box::pin(request.acquire_async(None));
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        let child = Child::fork(|| {
            assert!(block_on(future.as_mut()).expect("works").is_admitted());
        });
        eventually("both wait", || queued(&segment) == 2);
        drop(permit);
        assert!(block_on(future.as_mut()).expect("works").is_admitted());
        drop(future);
        child.succeed();
        assert_nothing_is_left(&segment);
    });
}

#[test]
fn futures_of_a_process_that_is_killed_leave_the_line() {
    in_own_process(
        "futures::futures_of_a_process_that_is_killed_leave_the_line",
        TIMEOUT,
        |directory| {
            let (segment, set) = create_in(directory, places(1));
            let permit = take(&set);
            let mut child = Child::fork(|| {
                let mut futures: Vec<_> = (0..10)
                    .map(|_| Box::pin(set.request().acquire_async(None)))
                    .collect();
                for future in &mut futures {
                    assert!(
                        future
                            .as_mut()
                            .poll(&mut Context::from_waker(Waker::noop()))
                            .is_pending()
                    );
                }
                die();
            });
            child.wait();
            assert_eq!(queued(&segment), 10);
            std::thread::scope(|scope| {
                let next = scope.spawn(|| {
                    assert!(
                        block_on(set.request().acquire_async(TIMEOUT))
                            .expect("works")
                            .is_admitted()
                    );
                });
                eventually("it waits behind the dead", || queued(&segment) > 0);
                drop(permit);
                next.join().expect("admitted");
            });
            assert_nothing_is_left(&segment);
        },
    );
}

/// Futures of this process, each of which has a ticket, with the numbers of their tickets.
type Numbered<'a> = Vec<(u64, std::pin::Pin<Box<shmlimit::request::AcquireFuture<'a>>>)>;

/// Takes `count` tickets in turn with another process: this one has the turns with this remainder modulo two.
fn queue_by_turns<'a>(set: &'a LimitSet, turn: &AtomicU64, remainder: u64, count: u64) -> Numbered<'a> {
    let mut context = Context::from_waker(Waker::noop());
    (0..count)
        .map(|round| {
            let number = 2 * round + remainder;
            eventually("it is its turn", || turn.load(Ordering::Acquire) == number);
            let mut future = Box::pin(set.request().acquire_async(None));
            assert!(future.as_mut().poll(&mut context).is_pending());
            turn.store(number + 1, Ordering::Release);
            (number, future)
        })
        .collect()
}

/// Serves all futures. Each notes its number when it is admitted, and no two are admitted at once.
fn note_when_admitted(futures: Numbered<'_>, log: &SharedWords) {
    let noting = futures.into_iter().map(|(number, future)| {
        Box::pin(async move {
            let permit = future.await.expect("works").into_result().expect("admitted");
            let place = log[0].load(Ordering::Relaxed);
            log[1 + place as usize].store(number, Ordering::Relaxed);
            log[0].store(place + 1, Ordering::Relaxed);
            drop(permit);
        })
    });
    block_on(join_all(noting.collect()));
}

/// Polls only futures that were woken.
async fn join_all<F: Future<Output = ()>>(futures: Vec<std::pin::Pin<Box<F>>>) {
    struct WakesOne {
        number: usize,
        woken: std::sync::Mutex<std::sync::mpsc::Sender<usize>>,
        all: Waker,
    }
    impl Wake for WakesOne {
        fn wake(self: Arc<Self>) {
            let _ = self.woken.lock().expect("not poisoned").send(self.number);
            self.all.wake_by_ref();
        }
    }
    let (sender, woken) = std::sync::mpsc::channel();
    let mut futures: Vec<Option<_>> = futures.into_iter().map(Some).collect();
    let mut left = futures.len();
    (0..left).for_each(|number| sender.send(number).expect("received below"));
    std::future::poll_fn(move |context| {
        for number in woken.try_iter() {
            let waker = Waker::from(Arc::new(WakesOne {
                number,
                woken: std::sync::Mutex::new(sender.clone()),
                all: context.waker().clone(),
            }));
            if let Some(future) = &mut futures[number]
                && future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                futures[number] = None;
                left -= 1;
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn futures_of_two_processes_are_served_in_the_order_of_their_tickets_though_half_of_them_go_away() {
    const EACH: u64 = 1_500;
    let test = "futures::futures_of_two_processes_are_served_in_the_order_of_their_tickets_though_half_of_them_go_away";
    in_own_process(test, TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(1));
        let permit = set.request().try_acquire().expect("works").into_result();
        let turn = SharedWords::new(2);
        let log = SharedWords::new(1 + EACH as usize);
        let take_part = |remainder: u64| {
            let mut futures = queue_by_turns(&set, &turn[0], remainder, EACH);
            futures.retain(|(number, _)| number % 4 < 2);
            turn[1].fetch_add(1, Ordering::Release);
            note_when_admitted(futures, &log);
        };
        let other = Child::fork(|| take_part(1));
        std::thread::scope(|scope| {
            let own = scope.spawn(|| take_part(0));
            eventually("all wait", || turn[1].load(Ordering::Acquire) == 2);
            drop(permit);
            own.join().expect("all were admitted");
        });
        other.succeed();
        let order: Vec<u64> = (1..=EACH)
            .map(|place| log[place as usize].load(Ordering::Relaxed))
            .collect();
        let expected: Vec<u64> = (0..2 * EACH).filter(|number| number % 4 < 2).collect();
        assert_eq!(order, expected);
        assert_nothing_is_left(&segment);
    });
}

#[test]
fn a_thousand_tickets_of_a_process_that_is_killed_do_not_hold_up_those_between_them() {
    const EACH: u64 = 1_000;
    let test = "futures::a_thousand_tickets_of_a_process_that_is_killed_do_not_hold_up_those_between_them";
    in_own_process(test, TIMEOUT, |directory| {
        let (segment, set) = create_in(directory, places(1));
        let turn = SharedWords::new(1);
        let log = SharedWords::new(1 + EACH as usize);
        // It dies with the place and with every second ticket.
        let other = Child::fork(|| {
            let held = set.request().try_acquire().expect("works").into_result();
            let futures = queue_by_turns(&set, &turn[0], 0, EACH);
            // Until it is killed.
            std::thread::park();
            drop((held, futures));
        });
        let futures = queue_by_turns(&set, &turn[0], 1, EACH);
        other.kill();
        note_when_admitted(futures, &log);
        let order: Vec<u64> = (1..=EACH)
            .map(|place| log[place as usize].load(Ordering::Relaxed))
            .collect();
        assert!(order.is_sorted(), "{order:?}");
        assert_nothing_is_left(&segment);
    });
}

#[test]
fn a_lease_is_renewed_in_the_background_until_the_permit_is_released() {
    let test = "futures::a_lease_is_renewed_in_the_background_until_the_permit_is_released";
    // A segment of its own, so that the thread that renews has nothing else to do.
    in_own_process(test, TIMEOUT, |directory| {
        // Long enough for a busy machine to renew it within a third of the time.
        let lease = Duration::from_secs(3);
        let set = SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1).lease(lease));
        let (segment, set) = create_in(directory, set);
        let permit = take(&set);
        permit.heartbeat_in_background().expect("a thread");
        // For longer than the lease, no other process gets the place.
        let outcome = set.request().acquire(lease * 3 / 2).expect("works");
        assert!(!outcome.is_admitted() && !permit.reclaimed());
        drop(permit);
        assert_nothing_is_left(&segment);
    });
}
