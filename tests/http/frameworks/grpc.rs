//! Refusals as clients of gRPC understand them: with tonic's client.

use std::convert::Infallible;

use hyper::{Request, Response};
use shmlimit::Limit;
use shmlimit::tower::LimitLayer;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};
use tower::{Layer, service_fn};

use crate::server::{Limits, MINUTE, answer, answer_to};

/// Messages without content.
#[derive(Default)]
struct Nothing;

impl Codec for Nothing {
    type Encode = ();
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Nothing {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for Nothing {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        Ok(Some(()))
    }
}

/// What a client of gRPC makes of the layer's answer to a call that the service would not answer.
async fn status_of_a_call(limits: &Limits) -> Status {
    let service = limits.layer().layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let mut client = Grpc::new(service);
    client.ready().await.expect("it is always ready");
    let path = http::uri::PathAndQuery::from_static("/api.Api/Call");
    let answer = client.unary(tonic::Request::new(()), path, Nothing).await;
    answer.expect_err("there is no message")
}

#[tokio::test]
async fn a_refusal_is_an_exhausted_resource_and_says_when_to_try_again() {
    let limits = Limits::new([Limit::calls("requests", 1, 60 * MINUTE)]);
    status_of_a_call(&limits).await;
    let refused = status_of_a_call(&limits).await;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let pushback = refused.metadata().get("grpc-retry-pushback-ms");
    let pushback: u64 = pushback
        .expect("told")
        .to_str()
        .expect("ASCII")
        .parse()
        .expect("a number");
    assert!((1..=3_600_000).contains(&pushback));
}

#[tokio::test]
async fn a_failure_of_the_limits_is_internal() {
    let limits = Limits::new([Limit::calls("requests", 1, MINUTE)]);
    limits.segment.retire();
    assert_eq!(status_of_a_call(&limits).await.code(), Code::Internal);
}

#[tokio::test]
async fn only_grpc_itself_is_answered_so() {
    let limits = Limits::new([Limit::calls("requests", 1, 60 * MINUTE)]);
    let layer = LimitLayer::new(limits.demand());
    assert_eq!(answer(&layer, "/").await.status(), 200);
    for (content_type, status) in [
        ("application/grpc", 200),
        ("application/grpc+proto", 200),
        ("application/grpc;charset=utf-8", 200),
        ("application/grpc-web", 429),
        ("application/json", 429),
    ] {
        let request = Request::post("/").header("content-type", content_type);
        let answered = answer_to(&layer, request.body(()).expect("a request")).await;
        assert_eq!(answered.status(), status, "{content_type}");
        assert_eq!(answered.headers().contains_key("grpc-status"), status == 200);
    }
}
