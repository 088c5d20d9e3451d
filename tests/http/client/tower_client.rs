//! The layer in front of a hyper client.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use shmlimit::declare::Adaptive;
use shmlimit::layer::{ClientError, ClientLimitLayer, Demand, Extractor, LimitBody, OnError, Permits};
use shmlimit::{Error, Limit, RefusalReason, SegmentError, SetDeclaration};
use tokio::net::TcpStream;
use tower::{Layer, ServiceExt, service_fn};

use super::upstream::{Answer, Limits, MINUTE, TIMEOUT, Upstream};

type Answered = Result<Response<LimitBody<Incoming>>, ClientError<hyper::Error>>;

/// Sends one request on a separate connection.
async fn send<E>(layer: &ClientLimitLayer<E>, upstream: &Upstream) -> Answered
where
    E: Extractor + Send + Sync + 'static,
{
    let address = upstream.address;
    let client = layer.layer(service_fn(move |request: Request<Empty<Bytes>>| async move {
        let stream = TcpStream::connect(address).await.expect("it listens");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    }));
    let request = Request::get("/").header("host", "test").body(Empty::new());
    client.oneshot(request.expect("a request")).await
}

fn requests(capacity: u64) -> SetDeclaration {
    SetDeclaration::new("provider").add_limit(Limit::calls("requests", capacity, MINUTE))
}

#[tokio::test]
async fn a_refusal_of_this_host_is_an_error_and_one_of_the_upstream_a_response() {
    let limits = Limits::new(requests(1));
    let answer: Answer = (
        400,
        &[
            ("ratelimit", "\"theirs\";r=0"),
            ("ratelimit-policy", "\"theirs\";q=9"),
        ],
    );
    let upstream = Upstream::answering([answer]).await;
    let answered = send(&limits.layer(), &upstream).await.expect("sent");
    assert_eq!(answered.status(), 400);
    for (name, value) in answer.1 {
        let values: Vec<_> = answered.headers().get_all(*name).iter().collect();
        assert_eq!(values, [value], "the upstream's alone");
    }
    let refused = send(&limits.layer(), &upstream)
        .await
        .expect_err("the second of a minute");
    let refusal = refused.refusal().expect("of the limits");
    assert_eq!(
        (refusal.binding(), refusal.reason()),
        (Some("requests"), RefusalReason::Rate)
    );
    assert_eq!(upstream.asked(), 1, "it was not sent");
}

#[tokio::test]
async fn requests_go_on_under_the_segment_that_took_the_place_of_a_removed_one() {
    let mut limits = Limits::new(requests(1));
    let upstream = Upstream::answering([(200, &[])]).await;
    let (at_once, waiting) = (limits.layer(), limits.layer().wait(TIMEOUT));
    drop(send(&at_once, &upstream).await.expect("sent"));
    limits.replace(requests(2));
    drop(send(&at_once, &upstream).await.expect("room in the successor"));
    drop(send(&waiting, &upstream).await.expect("room in the successor"));
    let refused = send(&at_once, &upstream)
        .await
        .expect_err("the third of a minute");
    assert_eq!(refused.refusal().and_then(|it| it.binding()), Some("requests"));
    assert_eq!(upstream.asked(), 3);
}

#[tokio::test]
async fn an_upstream_that_says_to_wait_is_left_alone_by_all() {
    let cases: [(Answer, f64); 5] = [
        ((429, &[("retry-after", "30")]), 30.0),
        ((429, &[("retry-after-ms", "2500"), ("retry-after", "30")]), 2.5),
        ((429, &[]), 1.0),
        ((503, &[("retry-after", "7")]), 7.0),
        (
            (200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "900")]),
            0.9,
        ),
    ];
    for (answer, wait) in cases {
        let limits = Limits::new(requests(100));
        let upstream = Upstream::answering([answer]).await;
        let answered = send(&limits.layer(), &upstream).await.expect("sent");
        assert_eq!(answered.status(), answer.0);
        let set = limits.set();
        let refused = set.request().check().expect("works");
        assert_eq!(refused.reason(), Some(RefusalReason::Throttled), "{answer:?}");
        let left = refused.retry_after().expect("by time").as_secs_f64();
        // It may be longer by as much as two readings of the clock may differ.
        assert!(left <= wait + 1e-4 && left > wait / 10.0, "{left} of {wait}");
    }
}

#[tokio::test]
async fn what_says_nothing_of_waiting_throttles_nothing() {
    let cases: [Answer; 3] = [
        (503, &[]),
        (500, &[("retry-after", "9")]),
        (200, &[("retry-after", "9"), ("grpc-status", "14")]),
    ];
    for answer in cases {
        let limits = Limits::new(requests(100));
        let upstream = Upstream::answering([answer]).await;
        drop(send(&limits.layer(), &upstream).await.expect("sent"));
        assert!(!limits.is_throttled(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_client_that_may_wait_sends_when_the_upstream_said() {
    let limits = Limits::new(requests(100));
    let upstream = Upstream::answering([(429, &[("retry-after-ms", "200")]), (200, &[])]).await;
    let layer = limits.layer().wait(TIMEOUT);
    let begun = std::time::Instant::now();
    assert_eq!(send(&layer, &upstream).await.expect("sent").status(), 429);
    assert_eq!(send(&layer, &upstream).await.expect("in time").status(), 200);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(upstream.asked(), 2);

    let impatient = limits.layer().wait(Duration::from_millis(1));
    limits.set().throttle(MINUTE).expect("works");
    let refused = send(&impatient, &upstream).await.expect_err("not in time");
    assert_eq!(
        refused.refusal().expect("refused").reason(),
        RefusalReason::Throttled
    );
}

#[tokio::test]
async fn the_permit_is_held_until_the_body_has_ended_and_settled_by_its_handle() {
    let set = SetDeclaration::new("provider")
        .add_limit(Limit::concurrency("in_flight", 1))
        .add_limit(Limit::calls("tokens", 100, MINUTE));
    let limits = Limits::new(set);
    let upstream = Upstream::answering([(200, &[])]).await;
    let demand = shmlimit::layer::Demand::new(limits.set().request().with("tokens", 50).expect("declared"));
    let layer = ClientLimitLayer::new(demand.expect("a cost"));
    let answered = send(&layer, &upstream).await.expect("sent");
    assert_eq!(limits.held(), 1);
    let permit = answered
        .extensions()
        .get::<Permits>()
        .and_then(|permits| permits.of("provider"))
        .expect("admitted")
        .clone();
    permit.settle([("tokens", 20)]).expect("held");
    let refused = send(&layer, &upstream).await.expect_err("one at a time");
    assert_eq!(refused.refusal().expect("refused").binding(), Some("in_flight"));
    answered.into_body().collect().await.expect("a body");
    assert_eq!(limits.held(), 0);
    let counts = &limits.segment.snapshot().expect("readable").sets[0].limits[1].counts;
    assert_eq!(counts.refunded, 30);
}

#[tokio::test]
async fn an_adaptive_limit_learns_that_the_upstream_failed() {
    let limit = Limit::concurrency("in_flight", 20)
        .adaptive(Adaptive::Aimd)
        .ceiling(100);
    let limits = Limits::new(SetDeclaration::new("provider").add_limit(limit));
    let upstream = Upstream::answering([(500, &[]), (429, &[("retry-after-ms", "1")])]).await;
    let layer = limits.layer().wait(TIMEOUT);
    for failures in 1..=2 {
        drop(send(&layer, &upstream).await.expect("sent"));
        let counts = &limits.segment.snapshot().expect("readable").sets[0].limits[0].counts;
        assert_eq!(counts.failed, failures);
    }
}

#[tokio::test]
async fn nothing_is_sent_where_the_limits_cannot_be_asked_unless_they_admit_then() {
    let limits = Limits::new(requests(1));
    let upstream = Upstream::answering([(200, &[])]).await;
    limits.segment.retire();
    let failed = send(&limits.layer(), &upstream).await.expect_err("retired");
    assert!(
        matches!(
            failed,
            ClientError::Limits(Error::Segment(SegmentError::Removed { .. }))
        ),
        "{failed}"
    );
    assert_eq!(upstream.asked(), 0);
    let answered = send(&limits.layer().on_error(OnError::Admit), &upstream).await;
    assert_eq!(answered.expect("sent").status(), 200);
}

#[tokio::test]
async fn what_the_client_fails_with_is_passed_on_and_gives_the_place_back() {
    let limits = Limits::new(SetDeclaration::new("provider").add_limit(Limit::concurrency("in_flight", 1)));
    let client = limits.layer().layer(service_fn(async |_: Request<()>| {
        Err::<Response<Empty<Bytes>>, _>(std::io::Error::other("unreachable"))
    }));
    let failed = client.oneshot(Request::new(())).await.expect_err("it fails");
    assert!(matches!(failed, ClientError::Client(_)), "{failed}");
    assert_eq!(failed.to_string(), "unreachable");
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn what_a_client_further_in_refuses_costs_nothing_outside() {
    let set = SetDeclaration::new("provider")
        .add_limit(Limit::calls("requests", 100, 60 * MINUTE))
        .add_limit(Limit::concurrency("in_flight", 8));
    let outer = Limits::new(set);
    let inner = Limits::new(requests(1));
    let demand = Demand::new(inner.set().request().with("requests", 2).expect("declared"));
    let never = ClientLimitLayer::new(demand.expect("a cost"));
    inner.set().throttle(MINUTE).expect("works");
    let unreached = service_fn(
        async |_: Request<()>| -> Result<Response<Empty<Bytes>>, std::io::Error> { panic!("refused before") },
    );
    let service = outer.layer().layer(inner.layer().layer(unreached));
    let grpc = Request::post("/").header("content-type", "application/grpc+proto");
    let answered = service.clone().oneshot(grpc.body(()).expect("a request")).await;
    assert_eq!(
        answered.expect("told in terms of gRPC").headers()["grpc-status"],
        "8"
    );
    let refused = service
        .oneshot(Request::new(()))
        .await
        .expect_err("told as an error");
    assert!(
        matches!(&refused, ClientError::Client(inner) if inner.refusal().is_some()),
        "{refused}"
    );
    let never = outer
        .layer()
        .layer(never.layer(unreached))
        .oneshot(Request::new(()))
        .await;
    assert!(matches!(never, Err(ClientError::Client(ClientError::Limits(_)))));

    let set = &outer.segment.snapshot().expect("readable").sets[0];
    assert!(set.holds.is_empty() && set.throttled_for.is_zero());
    assert_eq!(set.limits[0].remaining, 100);
    assert!(set.limits.iter().all(|limit| limit.counts.failed == 0));
}

#[tokio::test]
async fn an_extractor_answers_in_place_of_the_upstream() {
    let set = SetDeclaration::new("provider").add_limit(Limit::calls("requests", 100, MINUTE));
    let limits = Limits::new(set);
    let upstream = Upstream::answering([(200, &[])]).await;
    for on_error in [OnError::Refuse, OnError::Admit] {
        let layer = ClientLimitLayer::new(|_: &Parts| {
            let response = Response::builder().status(403).body("not to them".to_owned());
            Err(response.expect("a response").into())
        })
        .on_error(on_error);
        let answered = send(&layer, &upstream).await.expect("answered");
        assert_eq!(answered.status(), 403);
        let body = answered.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), "not to them");
    }
    assert_eq!((limits.held(), upstream.asked()), (0, 0));
}
