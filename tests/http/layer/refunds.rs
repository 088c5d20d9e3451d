//! Requests that never happened, because a layer further in refused them, or because a service says so.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use shmlimit::declare::Adaptive;
use shmlimit::layer::{Demand, LimitBody, LimitLayer, Permits, refused_inside};
use shmlimit::{Error, Limit, Permit, PermitError, RefusalReason};
use tower::{Layer, ServiceExt, service_fn};

use crate::server::{Limits, MINUTE};

const ESTIMATE: u64 = 500;
const TOKENS: u64 = 10_000;
const REQUESTS: u64 = 100;

/// So long that nothing is replenished during a test.
const MONTH: Duration = Duration::from_secs(30 * 86_400);

type Answered = Response<LimitBody<LimitBody<Full<Bytes>>>>;

/// A tenant's limits: tokens by an estimate, requests, and a place in flight.
fn tenant() -> Limits {
    Limits::new([
        Limit::rate("tokens", TOKENS, MONTH),
        Limit::calls("requests", REQUESTS, MONTH),
        Limit::concurrency("in_flight", 8),
    ])
}

fn estimated(tenant: &Limits) -> LimitLayer<Demand> {
    LimitLayer::new(tenant.demand().with("tokens", ESTIMATE).expect("declared"))
}

/// What the tenant has paid, in tokens and requests. Nothing may be held.
#[track_caller]
fn paid(tenant: &Limits) -> [u64; 2] {
    assert_eq!(tenant.held(), 0);
    let snapshot = tenant.segment.snapshot().expect("readable");
    let remaining = |index: usize| snapshot.sets[0].limits[index].remaining;
    [TOKENS - remaining(0), REQUESTS - remaining(1)]
}

/// A backend with one place, which is taken while the permit is kept.
fn busy() -> (Limits, Permit<'static>) {
    let busy = Limits::new([Limit::concurrency("gpu", 1)]);
    let set = busy.segment.set("api").expect("declared");
    let taken = set.request().try_acquire().expect("works").into_result();
    (busy, taken.expect("free").into_owned())
}

/// A backend that takes no requests for a while.
fn throttled() -> Limits {
    let throttled = Limits::new([Limit::concurrency("gpu", 1)]);
    let set = throttled.segment.set("api").expect("declared");
    set.throttle(MINUTE).expect("works");
    throttled
}

async fn done(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("done")))
}

/// One request through the layer of the tenant and then that of the backend. The service must not be reached.
async fn refused(outer: &LimitLayer<Demand>, inner: &LimitLayer<Demand>, request: Request<()>) -> Answered {
    let unreached = service_fn(
        async |_: Request<()>| -> Result<Response<Full<Bytes>>, Infallible> { panic!("refused before") },
    );
    let answered = outer
        .clone()
        .layer(inner.clone().layer(unreached))
        .oneshot(request)
        .await;
    answered.expect("answered")
}

#[tokio::test]
async fn what_an_inner_layer_refuses_costs_nothing_outside_in_whatever_form_it_is_answered() {
    let (busy, _taken) = busy();
    let throttled = throttled();
    let small = Limits::new([Limit::rate("bytes", 10, MINUTE)]);
    let too_much = LimitLayer::new(small.demand().with("bytes", 11).expect("declared"));
    let teapot = busy.layer().on_rejection(|_, _, mut response| {
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response.headers_mut().clear();
        response
    });
    let plain = || Request::new(());
    let grpc = || {
        let request = Request::post("/").header("content-type", "application/grpc");
        request.body(()).expect("a request")
    };
    for (inner, request, status) in [
        (busy.layer(), plain(), 429),
        (busy.layer().wait(Duration::from_millis(1)), plain(), 429),
        (throttled.layer(), plain(), 503),
        (too_much, plain(), 429),
        (teapot, plain(), 418),
        (busy.layer(), grpc(), 200),
        (throttled.layer(), grpc(), 200),
    ] {
        let tenant = tenant();
        for outer in [estimated(&tenant), estimated(&tenant).wait(MINUTE)] {
            assert_eq!(refused(&outer, &inner, clone_of(&request)).await.status(), status);
        }
        assert_eq!(paid(&tenant), [0, 0], "{status} for {inner:?}");
    }
}

fn clone_of(request: &Request<()>) -> Request<()> {
    let mut copy = Request::new(());
    *copy.headers_mut() = request.headers().clone();
    copy
}

#[tokio::test]
async fn every_layer_outside_gives_back_and_those_of_admitted_requests_do_not() {
    let tenants = [tenant(), tenant()];
    let busy = Limits::new([Limit::concurrency("gpu", 1)]);
    let service =
        || estimated(&tenants[0]).layer(estimated(&tenants[1]).layer(busy.layer().layer(service_fn(done))));
    let served = service().oneshot(Request::new(())).await.expect("answered");
    assert_eq!(served.status(), 200);
    let refused = service().oneshot(Request::new(())).await.expect("answered");
    assert_eq!(refused.status(), 429);
    drop((served, refused));
    for tenant in &tenants {
        assert_eq!(paid(tenant), [ESTIMATE, 1], "for the first request alone");
    }
}

#[tokio::test]
async fn what_a_peer_can_write_is_no_refusal_of_this_process() {
    let tenant = tenant();
    for status in [429, 503] {
        let service = service_fn(move |_: Request<()>| async move {
            let response = Response::builder()
                .status(status)
                .header("content-type", "application/problem+json")
                .header("retry-after", "30")
                .header("ratelimit", "\"gpu\";r=0")
                .header("ratelimit-policy", "\"gpu\";q=1");
            Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).expect("a response"))
        });
        let answered = estimated(&tenant).layer(service).oneshot(Request::new(())).await;
        assert_eq!(answered.expect("answered").status(), status);
    }
    assert_eq!(paid(&tenant), [2 * ESTIMATE, 2]);
}

#[tokio::test]
async fn a_service_that_asks_limits_itself_may_say_that_they_refused() {
    let tenant = tenant();
    let throttled = throttled();
    let set = throttled.segment.set("api").expect("declared");
    let service = service_fn(async |_: Request<()>| {
        let outcome = set.request().try_acquire()?.into_result();
        let refusal = outcome.expect_err("throttled");
        assert_eq!(refusal.reason(), RefusalReason::Throttled);
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(refusal);
        Ok::<_, Error>(response)
    });
    let answered = estimated(&tenant).layer(service).oneshot(Request::new(())).await;
    drop(answered.expect("answered"));
    assert_eq!(paid(&tenant), [0, 0]);
}

#[tokio::test]
async fn an_application_says_otherwise_when_to_give_back() {
    let (busy, _taken) = busy();
    let tenant = tenant();
    let kept = estimated(&tenant).refund_when(|_| false);
    assert_eq!(
        refused(&kept, &busy.layer(), Request::new(())).await.status(),
        429
    );
    assert_eq!(paid(&tenant), [ESTIMATE, 1]);

    let unreached = StatusCode::BAD_GATEWAY;
    let both = estimated(&tenant).refund_when(move |head| refused_inside(head) || head.status == unreached);
    refused(&both, &busy.layer(), Request::new(())).await;
    assert_eq!(paid(&tenant), [ESTIMATE, 1]);
    for (status, expected) in [(502, [ESTIMATE, 1]), (500, [2 * ESTIMATE, 2])] {
        let service = service_fn(move |_: Request<()>| async move {
            let response = Response::builder().status(status);
            Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).expect("a response"))
        });
        drop(both.layer(service).oneshot(Request::new(())).await);
        assert_eq!(paid(&tenant), expected, "{status}");
    }
}

#[tokio::test]
async fn an_adaptive_limit_learns_nothing_from_a_request_that_never_happened() {
    let (busy, _taken) = busy();
    let throttled = throttled();
    for algorithm in [Adaptive::Aimd, Adaptive::Gradient, Adaptive::Vegas] {
        // A limit of one such request at a time: a success would raise the capacity, because it is used up, and a
        // failure would lower it.
        let limit = Limit::concurrency("in_flight", 2)
            .adaptive(algorithm)
            .ceiling(100);
        let adaptive = Limits::new([limit]);
        let twice = LimitLayer::new(adaptive.demand().with("in_flight", 2).expect("declared"));
        for inner in [busy.layer(), throttled.layer()] {
            for _ in 0..100 {
                refused(&twice, &inner, Request::new(())).await;
            }
        }
        let snapshot = adaptive.segment.snapshot().expect("readable");
        let limit = &snapshot.sets[0].limits[0];
        assert_eq!(
            (limit.counts.failed, limit.found_capacity),
            (0, Some(2)),
            "{algorithm:?}"
        );
    }
}

#[tokio::test]
async fn a_handler_cancels_what_its_request_took_in_every_layer() {
    let tenants = [tenant(), tenant()];
    let service = service_fn(async |request: Request<()>| {
        let permits = request.extensions().get::<Permits>().expect("it is limited");
        for permit in permits.iter() {
            permit.cancel()?;
            let settled = permit.settle([("tokens", 1)]);
            assert!(matches!(
                settled,
                Err(Error::Permit(PermitError::AlreadyReleased { .. }))
            ));
        }
        let response = Response::builder().status(500);
        let response = response.body(Full::<Bytes>::default()).expect("a response");
        assert_eq!(
            tenants.each_ref().map(Limits::held),
            [0, 0],
            "before the response has ended"
        );
        Ok::<_, Error>(response)
    });
    let service = estimated(&tenants[0]).layer(estimated(&tenants[1]).layer(service));
    drop(service.oneshot(Request::new(())).await.expect("answered"));
    for tenant in &tenants {
        assert_eq!(paid(tenant), [0, 0]);
    }
}

#[tokio::test]
async fn what_was_settled_before_a_cancellation_stays_settled() {
    let tenant = tenant();
    let service = estimated(&tenant).layer(service_fn(async |request: Request<()>| {
        let permits = request.extensions().get::<Permits>().expect("it is limited");
        let permit = permits.of("api").expect("admitted").clone();
        permit.settle([("tokens", 200)])?;
        permit.cancel()?;
        Ok::<_, Error>(Response::new(Full::<Bytes>::default()))
    }));
    drop(service.oneshot(Request::new(())).await.expect("answered"));
    assert_eq!(paid(&tenant), [200, 1]);
}
