//! The permit of a request in the hands of the service.

use std::convert::Infallible;
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use std::{iter, thread};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use shmlimit::layer::{Demand, LimitLayer, PermitHandle};
use shmlimit::{Error, Limit, PermitError, RequestError};
use tower::{Layer, ServiceExt, service_fn};

use crate::server::{Limits, MINUTE};

const DEADLINE: Duration = Duration::from_secs(60);

type Answer = Response<Full<Bytes>>;

fn done() -> Answer {
    Response::new(Full::from("done"))
}

fn handle(request: &Request<()>) -> PermitHandle {
    let handle = request.extensions().get::<PermitHandle>();
    handle.expect("it holds a permit").clone()
}

/// What of a rate limit's capacity is left.
fn remaining(limits: &Limits, limit: &str) -> u64 {
    let set = limits.segment.set("api").expect("declared");
    let verdicts = set.peek(&set.request().with(limit, 0).expect("declared"));
    let verdicts = verdicts.expect("readable");
    let verdict = verdicts.iter().find(|verdict| verdict.limit == limit);
    verdict.expect("asked for").remaining
}

#[tokio::test]
async fn a_handler_settles_what_was_used() {
    let limits = Limits::new([Limit::rate("tokens", 1_000, 60 * MINUTE)]);
    let demand = limits.demand().with("tokens", 800).expect("declared");
    let service = LimitLayer::new(demand).layer(service_fn(async |request: Request<()>| {
        let permit = handle(&request);
        permit.settle([("tokens", 300)])?;
        let again = permit.settle([("tokens", 1)]);
        assert!(matches!(
            again,
            Err(Error::Permit(PermitError::AlreadySettled { .. }))
        ));
        Ok::<_, Error>(done())
    }));
    service.oneshot(Request::new(())).await.expect("settled");
    // Whatever time has replenished meanwhile is more, not less.
    assert!(remaining(&limits, "tokens") >= 700);
}

#[tokio::test]
async fn what_is_settled_may_be_counted_with_the_permit_at_hand() {
    let limits = Limits::new([
        Limit::rate("tokens", 1_000, 60 * MINUTE),
        Limit::budget("spent", 100, 60 * MINUTE),
    ]);
    let demand = limits.demand().with("tokens", 800).expect("declared");
    let service = LimitLayer::new(demand).layer(service_fn(async |request: Request<()>| {
        let permit = handle(&request);
        let (sender, settled) = mpsc::channel();
        // A thread that would never end, if the permit were reached for within itself.
        thread::spawn(move || {
            let counted = iter::from_fn(|| permit.debit("spent", 1).ok().map(|_| ("tokens", 300))).take(1);
            sender.send(permit.settle(counted).is_ok())
        });
        assert_eq!(settled.recv_timeout(DEADLINE), Ok(true));
        Ok::<_, Infallible>(done())
    }));
    let Ok(_) = service.oneshot(Request::new(())).await;
}

#[tokio::test]
async fn a_handler_debits_a_budget_until_nothing_is_left() {
    let limits = Limits::new([Limit::budget("tokens", 100, 60 * MINUTE)]);
    let service = limits.layer().layer(service_fn(async |request: Request<()>| {
        let permit = handle(&request);
        let debits = [60, 60, 60].map(|used| permit.debit("tokens", used).expect("works"));
        assert_eq!(debits, [true, true, false]);
        Ok::<_, Infallible>(done())
    }));
    let Ok(_) = service.oneshot(Request::new(())).await;
}

#[tokio::test]
async fn a_handle_keeps_nothing_beyond_the_response_and_says_so() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let kept = Mutex::new(None);
    let service = limits.layer().layer(service_fn(async |request: Request<()>| {
        *kept.lock().expect("not poisoned") = Some(handle(&request));
        Ok::<_, Infallible>(done())
    }));
    let Ok(response) = service.oneshot(Request::new(())).await;
    assert_eq!(limits.held(), 1);
    drop(response);
    assert_eq!(limits.held(), 0);
    let kept = kept.into_inner().expect("not poisoned").expect("kept");
    let late = kept.settle([("in_flight", 1)]);
    assert!(matches!(
        late,
        Err(Error::Permit(PermitError::AlreadyReleased { .. }))
    ));
    assert!(kept.carry().is_none());
    kept.release().expect("it is released already");
}

#[tokio::test]
async fn what_is_carried_is_held_until_it_is_dropped() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let carried = Mutex::new(None);
    let service = limits.layer().layer(service_fn(async |request: Request<()>| {
        *carried.lock().expect("not poisoned") = handle(&request).carry();
        Ok::<_, Infallible>(done())
    }));
    let Ok(response) = service.oneshot(Request::new(())).await;
    drop(response);
    assert_eq!(limits.held(), 1);
    drop(carried.into_inner());
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn a_handler_gives_back_before_its_response_has_ended() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let service = limits.layer().layer(service_fn(async |request: Request<()>| {
        handle(&request).release().expect("works");
        Ok::<_, Infallible>(done())
    }));
    let Ok(_response) = service.oneshot(Request::new(())).await;
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn each_layer_has_a_permit_and_the_innermost_is_had_first() {
    let limits = [2, 3].map(|max| Limits::new([Limit::concurrency("in_flight", max)]));
    let path = |limits: &Limits| limits.segment.path().to_owned();
    let expected = [path(&limits[1]), path(&limits[0])];
    let service = service_fn(async |request: Request<()>| {
        let inner = handle(&request);
        let outer = inner.outer().expect("there are two").clone();
        assert!(outer.outer().is_none());
        for permit in [&inner, &outer] {
            permit.release().expect("works");
        }
        assert_eq!((limits[0].held(), limits[1].held()), (0, 0));
        Ok::<_, Infallible>(done())
    });
    let service = limits[0].layer().layer(limits[1].layer().layer(service));
    let Ok(_) = service.oneshot(Request::new(())).await;
    assert_ne!(expected[0], expected[1]);
}

#[test]
fn a_demand_without_a_cost_that_is_needed_is_found_when_it_is_made() {
    let limits = Limits::new([Limit::rate("tokens", 1_000, MINUTE)]);
    let request = limits.segment.set("api").expect("declared").request();
    let refused = Demand::new(request.clone());
    assert!(matches!(
        refused,
        Err(Error::Request(RequestError::CostRequired { .. }))
    ));
    let misspelt = request.with("tokns", 5);
    assert!(matches!(
        misspelt,
        Err(Error::Request(RequestError::UnknownLimit { .. }))
    ));
}
