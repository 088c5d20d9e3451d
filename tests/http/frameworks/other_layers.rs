//! The layer next to those of tower-http, on either side of each.

use std::convert::Infallible;
use std::io::Read;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode};
use shmlimit::Limit;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::server::Limits;

/// One request at a time.
fn one_at_a_time() -> Limits {
    Limits::new([Limit::concurrency("in_flight", 1)])
}

fn done() -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("done ".repeat(100))))
}

fn request() -> Request<Empty<Bytes>> {
    Request::new(Empty::new())
}

/// Asks twice while the first answer has not been read, so that the second is refused; then reads the first, and asks
/// again.
async fn refuses_one_of_two<S, B>(limits: &Limits, service: S)
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body,
    B::Error: std::fmt::Debug,
{
    let Ok(first) = service.clone().oneshot(request()).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(limits.held(), 1);
    let Ok(second) = service.clone().oneshot(request()).await;
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    let body = first.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "done ".repeat(100));
    assert_eq!(limits.held(), 0);
    let Ok(third) = service.oneshot(request()).await;
    assert_eq!(third.status(), StatusCode::OK);
}

/// Tests the layer around another one and inside of it.
macro_rules! on_either_side {
    ($($name:ident: $other:expr;)+) => {$(
        #[tokio::test]
        async fn $name() {
            let limits = one_at_a_time();
            let other = $other;
            refuses_one_of_two(&limits, limits.layer().layer(other.layer(service_fn(async |_: Request<Empty<Bytes>>| done())))).await;
            let limits = one_at_a_time();
            refuses_one_of_two(&limits, other.layer(limits.layer().layer(service_fn(async |_: Request<Empty<Bytes>>| done())))).await;
        }
    )+};
}

on_either_side! {
    cors: CorsLayer::permissive();
    timeout: TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(3600));
    trace: TraceLayer::new_for_http();
    compression: CompressionLayer::new();
    catch_panic: CatchPanicLayer::new();
}

#[tokio::test]
async fn a_preflight_request_is_answered_outside_of_the_limits() {
    let limits = one_at_a_time();
    let service = CorsLayer::permissive().layer(
        limits
            .layer()
            .layer(service_fn(async |_: Request<Empty<Bytes>>| done())),
    );
    for _ in 0..3 {
        let preflight = Request::options("/")
            .header("origin", "https://example.com")
            .header("access-control-request-method", "GET");
        let Ok(answer) = service
            .clone()
            .oneshot(preflight.body(Empty::new()).expect("a request"))
            .await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(answer.headers().contains_key("access-control-allow-origin"));
        assert!(!answer.headers().contains_key("ratelimit"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_the_layer_gives_the_place_back() {
    let limits = one_at_a_time();
    let never = service_fn(async |_: Request<Empty<Bytes>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, _>>().await
    });
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(5));
    let service = timeout.layer(limits.layer().layer(never));
    let answer: Result<_, Infallible> = service.oneshot(request()).await;
    let Ok(answer) = answer;
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn a_panic_of_the_service_gives_the_place_back() {
    let limits = one_at_a_time();
    let broken = service_fn(async |request: Request<Empty<Bytes>>| {
        assert_ne!(request.uri(), "/", "a mistake");
        done()
    });
    let service = CatchPanicLayer::new().layer(limits.layer().layer(broken));
    let Ok(answer) = service.oneshot(request()).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn a_compressed_body_holds_the_place_until_its_end() {
    let limits = one_at_a_time();
    let service = CompressionLayer::new().layer(
        limits
            .layer()
            .layer(service_fn(async |_: Request<Empty<Bytes>>| done())),
    );
    let asked = Request::get("/").header("accept-encoding", "gzip");
    let Ok(answer) = service
        .oneshot(asked.body(Empty::new()).expect("a request"))
        .await;
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert_eq!(limits.held(), 1);
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(limits.held(), 0);
    assert_eq!(body.first_chunk(), Some(&[0x1f, 0x8b]), "the mark of gzip");
    let mut rest = Vec::new();
    body.as_ref().read_to_end(&mut rest).expect("memory is read");
    assert!(rest.len() < 500);
}
