//! Refusals as gRPC clients understand them, with tonic's client.

use std::convert::Infallible;
use std::time::Duration;

use hyper::{Request, Response};
use shmlimit::layer::{ClientLimitLayer, Demand, LimitLayer};
use shmlimit::{Keyed, Limit, SetDeclaration};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};
use tower::{Layer, Service, service_fn};

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

/// A service that answers no call.
async fn silent(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

/// What a gRPC client makes of the layer's answer, if the service would not answer the call.
async fn status_of_a_call(limits: &Limits) -> Status {
    status_by(limits.layer().layer(service_fn(silent))).await
}

/// What a gRPC client with these limits of its own makes of a call.
async fn status_of_a_limited_call(limits: &Limits, demand: Demand) -> Status {
    let layer = ClientLimitLayer::new(demand);
    let status = status_by(layer.layer(service_fn(silent))).await;
    assert_eq!(limits.held(), 0);
    status
}

async fn status_by<S, B>(service: S) -> Status
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let mut client = Grpc::new(service);
    assert!(client.ready().await.is_ok(), "it is always ready");
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
    let delay = retry_delay(&refused).expect("told");
    assert_eq!(delay.as_millis(), u128::from(pushback));
}

#[tokio::test]
async fn a_refusal_by_the_limits_of_the_client_is_an_exhausted_resource_as_well() {
    let limits = Limits::new([
        Limit::calls("requests", 1, 60 * MINUTE),
        Limit::concurrency("in_flight", 1),
    ]);
    let unanswered = status_of_a_limited_call(&limits, limits.demand()).await;
    assert!(!unanswered.message().contains("not sent"), "{unanswered}");
    let refused = status_of_a_limited_call(&limits, limits.demand()).await;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let message = refused.message();
    assert!(
        message.starts_with("the request was not sent: set `api` refused by limit `requests`"),
        "{message}"
    );
    let delay = retry_delay(&refused).expect("told");
    assert!(!delay.is_zero() && delay <= 60 * MINUTE + MINUTE, "{delay:?}");

    limits
        .segment
        .set("api")
        .expect("declared")
        .throttle(MINUTE)
        .expect("works");
    let throttled = status_of_a_limited_call(&limits, limits.demand()).await;
    assert_eq!(throttled.code(), Code::ResourceExhausted, "{throttled}");
    assert!(!retry_delay(&throttled).expect("told").is_zero());
}

#[tokio::test]
async fn a_call_that_the_limits_of_the_client_can_never_admit_or_decide_is_not_unknown_either() {
    let limits = Limits::new([Limit::calls("requests", 1, MINUTE)]);
    let never = limits.demand().with("requests", 2).expect("declared");
    let never = status_of_a_limited_call(&limits, never).await;
    assert_eq!(
        (never.code(), retry_delay(&never)),
        (Code::ResourceExhausted, None)
    );
    let keyed = Limits::declared(
        SetDeclaration::new("api")
            .keyed(Keyed::new(10))
            .add_limit(Limit::calls("requests", 1, MINUTE)),
    );
    let nobody = status_of_a_limited_call(&keyed, keyed.demand()).await;
    assert_eq!(nobody.code(), Code::InvalidArgument, "{nobody}");
    limits.segment.retire();
    let failed = status_of_a_limited_call(&limits, limits.demand()).await;
    assert_eq!(failed.code(), Code::Internal, "{failed}");
}

/// When to try again, according to the details of a status.
fn retry_delay(status: &Status) -> Option<Duration> {
    let details = Message::of(status.details());
    let any = Message::of(details.field(3)?);
    assert_eq!(details.numbers, [(1, status.code() as u64)]);
    assert_eq!(details.field(2), Some(status.message().as_bytes()));
    assert_eq!(any.field(1)?, b"type.googleapis.com/google.rpc.RetryInfo");
    let delay = Message::of(Message::of(any.field(2)?).field(1)?);
    let number = |field| {
        delay
            .numbers
            .iter()
            .find(|(number, _)| *number == field)
            .map_or(0, |found| found.1)
    };
    Some(Duration::new(
        number(1),
        number(2).try_into().expect("less than a second"),
    ))
}

/// A message of protocol buffers, read without a schema.
#[derive(Default)]
struct Message<'a> {
    numbers: Vec<(u64, u64)>,
    contents: Vec<(u64, &'a [u8])>,
}

impl<'a> Message<'a> {
    fn of(mut bytes: &'a [u8]) -> Self {
        let mut message = Self::default();
        while !bytes.is_empty() {
            let (tag, value) = (number(&mut bytes), number(&mut bytes));
            match tag & 7 {
                0 => message.numbers.push((tag >> 3, value)),
                2 => {
                    let (content, rest) = bytes.split_at(value.try_into().expect("a length"));
                    message.contents.push((tag >> 3, content));
                    bytes = rest;
                }
                other => panic!("wire type {other}"),
            }
        }
        message
    }

    fn field(&self, field: u64) -> Option<&'a [u8]> {
        self.contents
            .iter()
            .find(|(number, _)| *number == field)
            .map(|found| found.1)
    }
}

fn number(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("more");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
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
