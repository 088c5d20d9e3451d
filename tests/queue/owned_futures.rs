//! Futures and permits that borrow nothing: for tasks that outlive what spawned them.

use std::time::Duration;

use crate::scene::{create, expect_permit};
use shmlimit::request::AcquireFuture;
use shmlimit::{Keyed, Limit, Outcome, Permit, SetDeclaration};
use tokio::sync::oneshot;

const TIMEOUT: Duration = Duration::from_secs(60);

async fn admitted(future: AcquireFuture<'static>) -> Permit<'static> {
    expect_permit(future.await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spawned_tasks_wait_in_order_after_every_handle_of_the_set_is_gone() {
    let (_directory, segment, pool) =
        create(SetDeclaration::new("pool").add_limit(Limit::concurrency("places", 1)));
    let request = pool.request();
    let first = admitted(request.acquire_async(None).into_owned()).await;
    let mut tasks = Vec::new();
    for number in 0..3 {
        let waiting = request.acquire_async(TIMEOUT).into_owned();
        let (enqueued, is_enqueued) = oneshot::channel();
        tasks.push(tokio::spawn(async move {
            let mut waiting = std::pin::pin!(waiting);
            let polled = std::future::poll_fn(|context| {
                use std::future::Future;
                std::task::Poll::Ready(waiting.as_mut().poll(context).is_ready())
            });
            let _ = enqueued.send(polled.await);
            let permit = expect_permit(waiting.await);
            (number, permit.fencing_number(), permit)
        }));
        assert_eq!(is_enqueued.await, Ok(false), "it waits");
    }
    drop((first, pool, segment));
    let mut numbers = Vec::new();
    for task in tasks {
        let (number, serial, permit) = task.await.expect("no panic");
        numbers.push((number, serial));
        // The next is served when this one is dropped.
        drop(permit);
    }
    assert!(numbers.is_sorted_by(|one, other| one.1 < other.1), "{numbers:?}");
}

#[tokio::test]
async fn a_task_that_is_aborted_leaves_the_queue() {
    let (_directory, segment, pool) =
        create(SetDeclaration::new("pool").add_limit(Limit::concurrency("places", 1)));
    let held = admitted(pool.request().acquire_async(None).into_owned()).await;
    let mut waiting = Box::pin(pool.request().acquire_async(None).into_owned());
    tokio::select! {
        biased;
        outcome = &mut waiting => panic!("the only place is taken: {outcome:?}"),
        () = std::future::ready(()) => {}
    }
    let queued = || segment.snapshot().expect("readable").sets[0].tickets.len();
    assert_eq!(queued(), 1);
    let task = tokio::spawn(waiting);
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled());
    assert_eq!(queued(), 0);
    drop(held);
    let again = pool.request().try_acquire().expect("works");
    assert!(matches!(again, Outcome::Admitted(_)));
}

#[tokio::test]
async fn a_key_gives_owned_futures_too_and_refusals_come_with_them() {
    let set = SetDeclaration::new("tenants")
        .keyed(Keyed::new(10))
        .add_limit(Limit::concurrency("places", 1));
    let (_directory, _segment, tenants) = create(set);
    let future = {
        let request = tenants.request().for_key("acme").expect("keyed");
        request.acquire_async(None).into_owned()
    };
    let permit = tokio::spawn(admitted(future)).await.expect("no panic");
    let outcome = tenants
        .request()
        .for_key("acme")
        .expect("keyed")
        .acquire_async(Duration::from_millis(1))
        .into_owned();
    let refused = tokio::spawn(outcome).await.expect("no panic").expect("works");
    assert_eq!(
        refused.into_result().expect_err("it is held").binding(),
        Some("places")
    );
    drop(permit);
}
