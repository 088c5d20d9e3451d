//! The permit of a request in the hands of the service.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{iter, thread};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use shmlimit::layer::{Demand, LimitLayer, PermitHandle, Permits};
use shmlimit::{Error, Limit, PermitError, RequestError, SetDeclaration};
use tokio::runtime;
use tower::{Layer, ServiceExt, service_fn};

use crate::server::{Limits, MINUTE};

const DEADLINE: Duration = Duration::from_secs(60);

type Answer = Response<Full<Bytes>>;

fn done() -> Answer {
    Response::new(Full::from("done"))
}

fn handle(request: &Request<()>) -> PermitHandle {
    permits(request).of("api").expect("it holds a permit").clone()
}

fn permits(request: &Request<()>) -> &Permits {
    request.extensions().get().expect("it is limited")
}

/// What is left of a rate limit's capacity.
fn remaining(limits: &Limits, limit: &str) -> u64 {
    let set = limits.segment.set("api").expect("declared");
    let verdicts = set.request().with(limit, 0).expect("declared").peek();
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
    // Time can only have added to it since.
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
        // This thread would never end if the permit were accessed from within its own access.
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
async fn whether_a_response_failed_may_be_asked_with_the_permit_at_hand() {
    let limits = Limits::new([Limit::budget("spent", 100, 60 * MINUTE)]);
    let kept: Arc<Mutex<Option<PermitHandle>>> = Arc::default();
    let permit = Arc::clone(&kept);
    let layer = limits.layer().fails_with(move |_| {
        let permit = permit.lock().expect("not poisoned").take();
        permit.expect("kept").debit("spent", 1).is_err()
    });
    let (sender, answered) = mpsc::channel();
    // This thread would never end if the function were called while the permit is being accessed.
    thread::spawn(move || {
        let service = layer.layer(service_fn(async |request: Request<()>| {
            *kept.lock().expect("not poisoned") = Some(handle(&request));
            Ok::<_, Infallible>(done())
        }));
        let runtime = runtime::Builder::new_current_thread().build().expect("a runtime");
        let Ok(_) = runtime.block_on(service.oneshot(Request::new(())));
        sender.send(())
    });
    assert_eq!(answered.recv_timeout(DEADLINE), Ok(()));
    assert_eq!(remaining(&limits, "spent"), 99);
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
async fn each_permit_is_found_by_the_name_of_its_set_whatever_the_order_of_layers() {
    let limits = ["tenants", "api", "gpus"].map(|name| {
        Limits::declared(SetDeclaration::new(name).add_limit(Limit::concurrency("in_flight", 1)))
    });
    let layers = limits.each_ref().map(|limits| {
        let set = limits.segment.sets().next().expect("declared");
        LimitLayer::new(Demand::new(set.request()).expect("no cost is needed"))
    });
    for [outer, middle, inner] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let service = service_fn(async |request: Request<()>| {
            let permits = permits(&request);
            assert!(permits.of("others").is_none());
            for (index, name) in ["tenants", "api", "gpus"].into_iter().enumerate() {
                let permit = permits.of(name).expect("it holds a permit");
                assert_eq!(permit.set().name(), name);
                permit.release().expect("works");
                assert_eq!(limits[index].held(), 0, "{name}");
            }
            let from_inside = permits.iter().map(|permit| permit.set().name().to_owned());
            let expected = [inner, middle, outer].map(|index| ["tenants", "api", "gpus"][index]);
            assert_eq!(from_inside.collect::<Vec<_>>(), expected);
            Ok::<_, Infallible>(done())
        });
        let service = layers[outer].layer(layers[middle].layer(layers[inner].layer(service)));
        let Ok(_) = service.oneshot(Request::new(())).await;
    }
}

#[tokio::test]
async fn the_innermost_of_two_permits_of_one_name_is_had_first() {
    let limits = [1, 1].map(|max| Limits::new([Limit::concurrency("in_flight", max)]));
    let service = service_fn(async |request: Request<()>| {
        handle(&request).release().expect("works");
        assert_eq!((limits[0].held(), limits[1].held()), (1, 0));
        assert_eq!(permits(&request).iter().count(), 2);
        Ok::<_, Infallible>(done())
    });
    let service = limits[0].layer().layer(limits[1].layer().layer(service));
    let Ok(_) = service.oneshot(Request::new(())).await;
}

#[tokio::test]
async fn a_request_that_holds_nothing_has_permits_of_no_set() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let exempt = LimitLayer::new(|_: &Parts| Ok(None));
    let service = || {
        service_fn(async |request: Request<()>| {
            let is_held = permits(&request).of("api").is_some();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(is_held.to_string())))
        })
    };
    let Ok(exempted) = exempt.layer(service()).oneshot(Request::new(())).await;
    let Ok(limited) = limits.layer().layer(service()).oneshot(Request::new(())).await;
    for (answer, expected) in [(exempted, "false"), (limited, "true")] {
        let body = answer.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), expected);
    }
}

#[test]
fn a_demand_without_a_cost_that_is_needed_is_found_when_it_is_made() {
    let limits = Limits::new([Limit::rate("tokens", 1_000, MINUTE)]);
    let set = limits.segment.set("api").expect("declared");
    let request = set.request();
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
