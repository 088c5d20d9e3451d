//! What is answered in the service's place, as the application shapes it and as outer layers see it.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::http::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use shmlimit::layer::{LimitLayer, Permits, Rejection};
use shmlimit::{Error, Keyed, Limit, Refusal, SetDeclaration};
use tower::{Layer, ServiceExt, service_fn};

use crate::server::{Limits, MINUTE, answer, answer_to, retry_after};

/// What an application may want: another status, a field and a body of its own, depending on the request.
fn shape(head: &Parts, why: Rejection<'_>, mut response: Response<String>) -> Response<String> {
    let text = match why {
        Rejection::Refused(refusal) => format!("{} refused by {:?}", head.uri.path(), refusal.binding()),
        Rejection::Failed(error) => format!("{} failed: {error}", head.uri.path()),
        _ => "answered for another reason".to_owned(),
    };
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
    }
    let marked = HeaderValue::from_static("yes");
    response.headers_mut().insert("x-shaped", marked);
    response.map(|_| text)
}

#[tokio::test]
async fn the_application_shapes_a_refusal_at_once_and_after_waiting() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let layer = limits.layer().on_rejection(shape);
    let admitted = answer(&layer, "/first").await;
    assert_eq!(admitted.status(), 200);
    assert!(!admitted.headers().contains_key("x-shaped"));
    for layer in [layer.clone(), layer.wait(Duration::from_millis(1))] {
        let refused = answer(&layer, "/second").await;
        assert_eq!(refused.status(), StatusCode::IM_A_TEAPOT);
        assert_eq!(refused.headers()["x-shaped"], "yes");
        assert_eq!(refused.headers()["retry-after"], "1");
        let body = refused.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body, "/second refused by Some(\"in_flight\")");
    }
}

#[tokio::test]
async fn the_application_shapes_what_is_answered_to_requests_that_could_not_be_asked_for() {
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(100))
        .add_limit(Limit::calls("requests", 1, MINUTE));
    let limits = Limits::declared(set);
    let layer = LimitLayer::new(limits.demand()).on_rejection(shape);
    let without_a_key = answer(&layer, "/").await;
    assert_eq!(without_a_key.status(), 400);
    assert_eq!(without_a_key.headers()["x-shaped"], "yes");
    let error = without_a_key
        .extensions()
        .get::<Arc<Error>>()
        .expect("why")
        .to_string();
    let body = without_a_key
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert_eq!(body, format!("/ failed: {error}"));
}

#[tokio::test]
async fn clients_of_grpc_get_their_form_before_it_is_shaped() {
    let limits = Limits::new([Limit::concurrency("in_flight", 1)]);
    let layer = limits.layer().on_rejection(|_, _, mut response| {
        assert_eq!(response.headers()["grpc-status"], "8");
        let message = HeaderValue::from_static("later");
        response.headers_mut().insert("grpc-message", message);
        response
    });
    let call = || {
        let request = Request::post("/chat.Chat/Say").header("content-type", "application/grpc");
        request.body(()).expect("a request")
    };
    let _admitted = answer_to(&layer, call()).await;
    let refused = answer_to(&layer, call()).await;
    assert_eq!(
        (refused.status(), &refused.headers()["grpc-message"]),
        (StatusCode::OK, &HeaderValue::from_static("later"))
    );
}

#[tokio::test]
async fn the_refusal_is_in_the_extensions_of_the_response_whatever_it_is_shaped_to() {
    let limits = Limits::new([Limit::calls("requests", 1, MINUTE)]);
    let admitted = answer(&limits.layer(), "/").await;
    assert!(admitted.extensions().get::<Refusal>().is_none());
    let replaced = limits
        .layer()
        .on_rejection(|_, _, _| Response::new(String::new()));
    for layer in [limits.layer(), replaced] {
        let refused = answer(&layer, "/").await;
        let refusal = refused.extensions().get::<Refusal>().expect("a refusal");
        assert_eq!(
            (refusal.set().name(), refusal.binding()),
            ("api", Some("requests"))
        );
    }
}

#[tokio::test]
async fn a_handler_passes_on_that_what_is_behind_it_is_throttled_and_clients_are_told_when_to_come_back() {
    let limits = Limits::new([Limit::calls("requests", 100, MINUTE)]);
    let service = limits.layer().layer(service_fn(async |request: Request<()>| {
        let permits = request.extensions().get::<Permits>().expect("it is limited");
        let permit = permits.of("api").expect("admitted");
        permit.throttled(MINUTE)?; // the upstream has answered 429
        Ok::<_, Error>(Response::new(Full::<Bytes>::from("later")))
    }));
    let answered = service.oneshot(Request::new(())).await.expect("works");
    assert_eq!(answered.status(), 200);
    let refused = answer(&limits.layer(), "/").await;
    assert_eq!(refused.status(), 503);
    let seconds = retry_after(&refused);
    // At least until a minute has passed by every process's clock, and in whole seconds: both round up.
    assert!((1..=61).contains(&seconds));
}
