//! What is decided, when, and what clients are told about it.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use serde_json::json;
use shmlimit::declare::Amount;
use shmlimit::headers::Advertise;
use shmlimit::layer::{Demand, ExtractError, Extractor, LimitLayer, OnError};
use shmlimit::{Error, Limit, SegmentError, SetDeclaration};
use tower::{Layer, Service, service_fn};

use crate::server::{Limits, MINUTE, Server, answer, problem, retry_after};

#[tokio::test]
async fn asks_when_it_is_called_and_not_when_it_is_asked_whether_it_is_ready() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let service =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done"))));
    let mut services = [limits.layer().layer(service), limits.layer().layer(service)];
    for service in &mut services {
        let ready = poll_fn(|context| Service::<Request<()>>::poll_ready(service, context));
        let Ok(()) = ready.await;
        assert_eq!(limits.held(), 0);
    }
    // Both were ready for the only place. The service that is called gets it, even before the future is polled.
    let [first, second] = &mut services;
    let response = first.call(Request::new(()));
    assert_eq!(limits.held(), 1);
    let Ok(refused) = second.call(Request::new(())).await;
    assert_eq!(refused.status(), 429);
    let Ok(admitted) = response.await;
    assert_eq!(admitted.status(), 200);
}

#[tokio::test]
async fn a_refusal_says_which_limit_when_to_come_back_and_how_they_all_stand() {
    let limits = Limits::new([
        Limit::calls("requests", 1, 60 * MINUTE),
        Limit::concurrency("in_flight", 8),
    ]);
    let server = Server::start(limits.layer()).await;
    let mut client = server.client().await;

    let admitted = client.get("/").await;
    assert_eq!(admitted.status(), 200);
    let policy = r#""requests";q=1;w=3600, "in_flight";q=8;qu="concurrent-requests""#;
    assert_eq!(admitted.headers()["ratelimit-policy"], policy);
    let standing = r#""requests";r=0;t=3600, "in_flight";r=7"#;
    assert_eq!(admitted.headers()["ratelimit"], standing);
    assert!(!admitted.headers().contains_key("retry-after"));
    drop(server.body().await);
    admitted.into_body().collect().await.expect("an empty body");

    let refused = client.get("/").await;
    assert_eq!(refused.status(), 429);
    let headers = refused.headers();
    let seconds = headers["retry-after"].to_str().expect("ASCII").to_owned();
    assert!((1..=3600).contains(&seconds.parse().expect("a number of seconds")));
    assert_eq!(headers["ratelimit-policy"], policy);
    let standing = format!(r#""requests";r=0;t={seconds}, "in_flight";r=8"#);
    assert_eq!(headers["ratelimit"], standing);
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["requests"],
    });
    assert_eq!(problem(refused).await, expected);
    assert_eq!(server.unwritten(), 0, "the service was not called");
}

#[tokio::test]
async fn a_refusal_for_want_of_a_place_says_to_come_back_in_a_second() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let layer = limits.layer();
    let admitted = answer(&layer, "/").await;
    let refused = answer(&layer, "/").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(refused.headers()["ratelimit"], r#""in_flight";r=0"#);
    assert_eq!(problem(refused).await["violated-policies"], json!(["in_flight"]));
    drop(admitted);
    assert_eq!(answer(&layer, "/").await.status(), 200);
}

#[tokio::test]
async fn the_policy_that_binds_is_named_first() {
    let limits = Limits::new([
        Limit::calls("hourly", 1, 60 * MINUTE),
        Limit::calls("daily", 1, 24 * 60 * MINUTE),
        Limit::calls("plenty", 100, MINUTE),
    ]);
    let layer = limits.layer();
    answer(&layer, "/").await;
    let refused = answer(&layer, "/").await;
    let violated = &problem(refused).await["violated-policies"];
    assert_eq!(*violated, json!(["daily", "hourly"]));
}

#[tokio::test]
async fn names_that_no_field_can_hold_are_the_same_wherever_they_are_told() {
    let limits = Limits::new([Limit::concurrency(r#"größte "Last" \ 100%"#, 1)]);
    let layer = limits.layer();
    let told = r#"gr%C3%B6%C3%9Fte \"Last\" \\ 100%25"#;
    let admitted = answer(&layer, "/").await;
    assert_eq!(admitted.headers()["ratelimit"], format!(r#""{told}";r=0"#));
    let refused = answer(&layer, "/").await;
    let policy = format!(r#""{told}";q=1;qu="concurrent-requests""#);
    assert_eq!(refused.headers()["ratelimit-policy"], policy);
    let name = told.replace(r#"\""#, "\"").replace(r"\\", r"\");
    assert_eq!(problem(refused).await["violated-policies"], json!([name]));
}

#[tokio::test]
async fn no_policy_is_violated_where_there_is_no_room_for_another_permit() {
    let set = SetDeclaration::new("api")
        .add_limit(Limit::concurrency("in_flight", 8))
        .holds(1);
    let limits = Limits::declared(set);
    let layer = limits.layer();
    let _admitted = answer(&layer, "/").await;
    let refused = answer(&layer, "/").await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(problem(refused).await["type"], "about:blank");
}

#[tokio::test]
async fn a_full_queue_is_no_fault_of_the_request() {
    let set = SetDeclaration::new("api").waiters(0);
    let limits = Limits::declared(set.add_limit(Limit::calls("requests", 1, 60 * MINUTE)));
    let layer = limits.layer();
    assert_eq!(answer(&layer, "/").await.status(), 200);
    assert_eq!(answer(&layer, "/").await.status(), 429);
    let refused = answer(&layer.wait(Duration::MAX), "/").await;
    assert_eq!(refused.status(), 503);
    let seconds = retry_after(&refused);
    assert!((1..=3600).contains(&seconds));
}

#[tokio::test]
async fn an_extractor_chooses_by_route_what_is_limited_and_at_what_cost() {
    let limits = Limits::new([
        Limit::calls("requests", Amount::Unlimited, MINUTE),
        Limit::rate("bytes", 100, 60 * MINUTE),
    ]);
    let upload = limits
        .demand()
        .quota_unit("bytes", "content-bytes")
        .expect("declared");
    let layer = LimitLayer::new(move |head: &Parts| {
        Ok(match head.uri.path() {
            "/health" => None,
            "/upload" => Some(upload.clone().with("bytes", 60)?),
            _ => Some(upload.clone().with("bytes", 10)?),
        })
    });
    let first = answer(&layer, "/upload").await;
    assert_eq!(first.headers()["ratelimit"], r#""bytes";r=40;t=2160"#);
    assert_eq!(answer(&layer, "/upload").await.status(), 429);
    assert_eq!(answer(&layer, "/").await.status(), 200);
    let unlimited = answer(&layer, "/health").await;
    assert_eq!(unlimited.status(), 200);
    assert!(!unlimited.headers().contains_key("ratelimit"));
    assert!(!unlimited.headers().contains_key("ratelimit-policy"));
}

/// An extractor that is not a closure and cannot be cloned.
struct ByMethod {
    writes: Demand,
}

impl Extractor for ByMethod {
    fn extract(&self, head: &Parts) -> Result<Option<Demand>, ExtractError> {
        Ok((!head.method.is_safe()).then(|| self.writes.clone()))
    }
}

#[tokio::test]
async fn an_extractor_need_not_be_cloneable() {
    let limits = Limits::new([Limit::concurrency("writes", 1)]);
    let layer = LimitLayer::new(ByMethod {
        writes: limits.demand(),
    });
    let _first = answer(&layer.clone(), "/").await;
    assert_eq!(answer(&layer, "/").await.status(), 200);
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn what_is_told_can_be_switched_off() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    for (advertise, when_admitted, when_refused) in [
        (Advertise::Always, true, true),
        (Advertise::WhenRefused, false, true),
        (Advertise::Never, false, false),
    ] {
        let layer = limits.layer().advertise(advertise);
        let admitted = answer(&layer, "/").await;
        let refused = answer(&layer, "/").await;
        for field in ["ratelimit", "ratelimit-policy"] {
            assert_eq!(admitted.headers().contains_key(field), when_admitted);
            assert_eq!(refused.headers().contains_key(field), when_refused);
        }
        assert_eq!(refused.status(), 429);
    }
}

#[tokio::test]
async fn two_layers_tell_of_both_sets() {
    let outer = Limits::new([Limit::concurrency("all", 8)]);
    let inner = Limits::new([Limit::concurrency("in_flight", 1)]);
    let prefixed = LimitLayer::new(inner.demand().policy_prefix("search."));
    let service = outer
        .layer()
        .layer(prefixed.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
        })));
    let Ok(response) = tower::ServiceExt::oneshot(service, Request::new(())).await;
    let told: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(told, [r#""search.in_flight";r=0"#, r#""all";r=7"#]);
    assert_eq!((outer.held(), inner.held()), (1, 1));
    drop(response);
    assert_eq!((outer.held(), inner.held()), (0, 0));
}

#[tokio::test]
async fn a_request_that_can_never_be_met_is_refused_also_where_errors_admit() {
    let limits = Limits::new([Limit::rate("bytes", 100, MINUTE)]);
    let layer = LimitLayer::new(limits.demand().with("bytes", 101).expect("declared"));
    for layer in [layer.clone(), layer.on_error(OnError::Admit)] {
        let refused = answer(&layer, "/").await;
        assert_eq!(refused.status(), 429);
        assert!(!refused.headers().contains_key("retry-after"));
        assert_eq!(problem(refused).await["violated-policies"], json!(["bytes"]));
    }
}

#[tokio::test]
async fn an_error_refuses_unless_told_to_admit_and_is_there_to_be_reported() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    limits.segment.retire();
    let error = |response: &Response<_>| {
        let error = response.extensions().get::<Arc<Error>>().expect("an error");
        assert!(
            matches!(**error, Error::Segment(SegmentError::Removed { .. })),
            "{error}"
        );
    };

    let refused = answer(&limits.layer(), "/").await;
    error(&refused);
    assert_eq!(refused.status(), 500);
    let problem = problem(refused).await;
    assert_eq!(problem["status"], 500);
    assert_eq!(problem["detail"], serde_json::Value::Null);

    let admitted = answer(&limits.layer().on_error(OnError::Admit), "/").await;
    error(&admitted);
    assert_eq!(admitted.status(), 200);
    assert!(!admitted.headers().contains_key("ratelimit"));
}

/// A service that must be asked whether it is ready before each call, as must each of its clones.
#[derive(Default)]
struct AsksToBeAsked {
    is_ready: bool,
}

impl Clone for AsksToBeAsked {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<()>> for AsksToBeAsked {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(mem::take(&mut self.is_ready), "called without being asked");
        ready(Ok(Response::default()))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    for layer in [limits.layer(), limits.layer().wait(MINUTE)] {
        let mut service = layer.layer(AsksToBeAsked::default());
        for _ in 0..2 {
            let Ok(()) = poll_fn(|context| service.poll_ready(context)).await;
            let Ok(response) = service.call(Request::new(())).await;
            assert_eq!(response.status(), 200);
        }
    }
}
