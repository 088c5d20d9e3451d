//! Requests that wait their turn.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::scene::expect_permit;
use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::json;
use shmlimit::layer::LimitLayer;
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
use tokio::runtime;

use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use crate::server::{Limits, MINUTE, Server, answer, problem, wait_until};

const HELD: usize = 0;
const MAY_RELEASE: usize = 1;

impl Limits {
    /// How many requests wait in the queue.
    fn waiting(&self) -> usize {
        waiting(&self.segment)
    }
}

fn waiting(segment: &Segment) -> usize {
    let snapshot = segment.snapshot().expect("readable");
    snapshot.sets[0].tickets.len()
}

#[test]
fn a_request_is_admitted_when_another_process_gives_its_place_back() {
    in_own_process(
        "layer::waiting::a_request_is_admitted_when_another_process_gives_its_place_back",
        TIMEOUT,
        |directory| admit_after_release(directory, false),
    );
}

#[test]
fn a_request_is_admitted_when_another_process_is_killed_with_its_place() {
    in_own_process(
        "layer::waiting::a_request_is_admitted_when_another_process_is_killed_with_its_place",
        TIMEOUT,
        |directory| admit_after_release(directory, true),
    );
}

/// A child takes the only place and, while a request waits for it, gives it back or is killed.
fn admit_after_release(directory: &Path, by_death: bool) {
    let set = SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 1));
    let declaration = Declaration::new().add_set(set);
    let segment = Segment::create(directory.join("limits"), &declaration).expect("a segment");
    let words = SharedWords::new(2);
    let child = Child::fork(|| {
        let set = segment.set("api").expect("declared");
        let permit = expect_permit(set.request().try_acquire());
        words[HELD].store(1, Ordering::Relaxed);
        eventually("it is told to release", || {
            words[MAY_RELEASE].load(Ordering::Relaxed) == 1
        });
        drop(permit);
    });
    eventually("the child holds the place", || {
        words[HELD].load(Ordering::Relaxed) == 1
    });

    // Made after the fork, as a runtime must be.
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let demand = shmlimit::layer::Demand::new(segment.set("api").expect("declared").request())
            .expect("no cost is needed");
        let server = Server::start(LimitLayer::new(demand).wait(TIMEOUT)).await;
        let mut client = server.client().await;
        let release = async {
            wait_until("the request waits", || waiting(&segment) == 1).await;
            assert_eq!(server.unwritten(), 0, "the service was not called");
            if by_death {
                child.kill();
            } else {
                words[MAY_RELEASE].store(1, Ordering::Relaxed);
                child.succeed();
            }
        };
        let (response, ()) = tokio::join!(client.get("/"), release);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["ratelimit"], r#""in_flight";r=0"#);
        drop(server.body().await);
        response.into_body().collect().await.expect("an empty body");
    });
}

#[tokio::test]
async fn a_request_waits_for_time_to_pass() {
    let limits = Limits::new([Limit::calls("requests", 1, Duration::from_millis(50))]);
    let layer = limits.layer().wait(TIMEOUT);
    for _ in 0..5 {
        assert_eq!(answer(&layer, "/").await.status(), 200);
    }
}

#[tokio::test]
async fn a_request_that_waits_in_vain_is_refused() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let layer = limits.layer().wait(Duration::from_millis(20));
    let admitted = answer(&layer, "/").await;
    let refused = answer(&layer, "/").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(problem(refused).await["violated-policies"], json!(["in_flight"]));
    assert_eq!(limits.waiting(), 0);
    drop(admitted);
    assert_eq!(answer(&layer, "/").await.status(), 200);
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_leaves_the_queue() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let server = Server::start(limits.layer().wait(TIMEOUT)).await;
    let mut first = server.client().await;
    let response = first.get("/").await;
    let body = server.body().await;

    let mut leaving = server.client().await;
    let leaving = tokio::spawn(async move { leaving.get("/").await });
    wait_until("the second waits", || limits.waiting() == 1).await;
    let mut staying = server.client().await;
    let staying = tokio::spawn(async move { staying.get("/").await });
    wait_until("the third waits", || limits.waiting() == 2).await;
    leaving.abort();
    wait_until("the second has left", || limits.waiting() == 1).await;

    drop(body);
    response.into_body().collect().await.expect("an empty body");
    assert_eq!(staying.await.expect("it stays").status(), 200);
    assert_eq!(limits.held(), 1);
    drop(server.body().await);
    limits.wait_until_held(0).await;
    assert_eq!(server.unwritten(), 0, "the service was called for two only");
}

#[tokio::test]
async fn a_request_is_refused_at_once_where_no_more_may_wait() {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::concurrency("in_flight", 1))
        .waiters(0);
    let limits = Limits::declared(set);
    // The layer's own timeout would refuse the request only after the test has failed.
    let layer = limits.layer().wait(10 * TIMEOUT);
    let _admitted = answer(&layer, "/").await;
    let refused = answer(&layer, "/").await;
    assert_eq!(refused.status(), 503);
    let counts = limits.segment.snapshot().expect("readable").sets[0].counts;
    assert_eq!(counts.refused_queue_full, 1);
}

#[tokio::test]
async fn no_request_overtakes_those_that_wait_and_what_binds_them_is_named() {
    let limits = Limits::new([
        Limit::concurrency("in_flight", 2),
        Limit::calls("requests", 100, 24 * 60 * MINUTE),
    ]);
    let layer = limits.layer();
    let admitted = answer(&layer, "/").await;
    let set = limits.segment.set("api").expect("declared");
    let waiting = thread::spawn(move || {
        let everything = set.request().with("in_flight", 2).expect("declared");
        let outcome = everything.acquire(TIMEOUT).expect("works");
        outcome.is_admitted()
    });
    wait_until("it waits", || limits.waiting() == 1).await;

    let refused = answer(&layer, "/").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(
        refused.headers()["ratelimit"],
        r#""in_flight";r=1, "requests";r=99"#
    );
    assert_eq!(problem(refused).await["violated-policies"], json!(["in_flight"]));
    drop(admitted);
    assert!(waiting.join().expect("it does not panic"));
}
