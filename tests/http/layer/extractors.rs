//! Extractors that answer requests themselves, and those that name tiers and capacities of keys.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use shmlimit::layer::{Demand, ExtractError, Extractor, LimitLayer, OnError};
use shmlimit::{Error, Keyed, Limit, RequestError, SetDeclaration, Tier};
use tower::{Layer, ServiceExt, service_fn};

use crate::server::{Limits, MINUTE, answer_to};

/// What the application knows about a client.
#[derive(Clone, Copy)]
struct Client {
    id: u8,
    tier: &'static str,
    capacity: Option<u64>,
}

fn of(client: Client) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(client);
    request
}

fn unauthorized() -> Response<String> {
    Response::builder()
        .status(StatusCode::UNAUTHORIZED)
        .header("www-authenticate", "Bearer")
        .body("who are you?".to_owned())
        .expect("a response")
}

/// Limits clients that the application knows, and answers the others itself.
fn of_known(demand: Demand) -> impl Fn(&Parts) -> Result<Option<Demand>, ExtractError> {
    move |head| {
        let client: &Client = head.extensions.get().ok_or_else(unauthorized)?;
        Ok(Some(demand.clone().key([client.id])?))
    }
}

fn keyed() -> SetDeclaration {
    SetDeclaration::new("api")
        .keyed(Keyed::new(10))
        .add_limit(Limit::calls("requests", 1, 60 * MINUTE))
}

const KNOWN: Client = Client {
    id: 7,
    tier: "default",
    capacity: None,
};

#[tokio::test]
async fn what_an_extractor_answers_is_sent_as_it_is_and_costs_nothing() {
    let limits = Limits::declared(keyed());
    for on_error in [OnError::Refuse, OnError::Admit] {
        for content_type in ["text/plain", "application/grpc"] {
            for wait in [None, Some(MINUTE)] {
                let mut layer = LimitLayer::new(of_known(limits.demand()))
                    .on_error(on_error)
                    .on_rejection(|_, _, _| panic!("it is no answer of the layer"));
                if let Some(longest) = wait {
                    layer = layer.wait(longest);
                }
                let request = Request::get("/").header("content-type", content_type);
                let answer = answer_to(&layer, request.body(()).expect("a request")).await;
                let expected = unauthorized();
                assert_eq!(answer.status(), expected.status());
                assert_eq!(answer.headers(), expected.headers());
                assert!(answer.extensions().get::<Arc<Error>>().is_none());
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                assert_eq!(body, expected.body().as_str());
            }
        }
    }
    let admitted = answer_to(&LimitLayer::new(of_known(limits.demand())), of(KNOWN)).await;
    assert_eq!(admitted.status(), 200);
    assert_eq!(
        limits.segment.snapshot().expect("readable").sets[0]
            .counts
            .refused(),
        0
    );
}

#[tokio::test]
async fn a_request_that_an_inner_extractor_answers_stays_charged_outside_unless_that_is_to_come_back() {
    let inner = Limits::declared(keyed());
    for (refunds, left) in [(false, 9), (true, 10)] {
        let outer = Limits::new([Limit::calls("requests", 10, 60 * MINUTE)]);
        let mut layer = outer.layer();
        if refunds {
            layer = layer.refund_when(|head| head.status == StatusCode::UNAUTHORIZED);
        }
        let inside = LimitLayer::new(of_known(inner.demand()));
        let service =
            service_fn(async |request: Request<()>| Ok::<_, Infallible>(answer_to(&inside, request).await));
        let answer = layer.layer(service).oneshot(Request::new(())).await;
        assert_eq!(answer.expect("answered").status(), 401);
        let snapshot = outer.segment.snapshot().expect("readable");
        assert_eq!(snapshot.sets[0].limits[0].remaining, left);
    }
}

#[tokio::test]
async fn an_error_of_an_extractor_is_answered_as_one_of_the_limits() {
    let limits = Limits::declared(keyed());
    let demand = limits.demand();
    let invalid = LimitLayer::new(move |_: &Parts| Ok(Some(demand.clone().key("")?)));
    assert_eq!(answer_to(&invalid, Request::new(())).await.status(), 400);
    let demand = limits.demand();
    let unknown = LimitLayer::new(move |_: &Parts| Ok(Some(demand.clone().with("tokns", 1)?)));
    assert_eq!(answer_to(&unknown, Request::new(())).await.status(), 500);
}

/// How many of ten such requests are admitted.
async fn admitted<E: Extractor>(layer: &LimitLayer<E>, request: impl Fn() -> Request<()>) -> usize {
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += usize::from(answer_to(layer, request()).await.status() == 200);
    }
    admitted
}

#[tokio::test]
async fn a_demand_names_the_tier_of_its_key() {
    let set = keyed()
        .add_tier(Tier::new("silver").capacity("requests", 3))
        .add_tier(Tier::new("gold").capacity("requests", 5));
    let limits = Limits::declared(set);
    let demand = limits.demand();
    let layer = LimitLayer::new(move |head: &Parts| {
        let client: &Client = head.extensions.get().ok_or_else(unauthorized)?;
        Ok(Some(demand.clone().key([client.id])?.with_tier(client.tier)?))
    });
    for (id, tier, expected) in [
        (1, "default", 1),
        (2, "silver", 3),
        (3, "gold", 5),
        (4, "gold", 5),
    ] {
        let client = Client {
            id,
            tier,
            capacity: None,
        };
        assert_eq!(admitted(&layer, || of(client)).await, expected, "{tier}");
    }
    // This works with the key of another extractor, too.
    let by_header = limits.demand().by_header(HeaderName::from_static("x-api-key"));
    let by_header = by_header.expect("keyed");
    let layer = LimitLayer::new(move |head: &Parts| {
        let demand = by_header.extract(head)?;
        Ok(demand.map(|demand| demand.with_tier("gold")).transpose()?)
    });
    let request = || {
        let request = Request::get("/").header("x-api-key", "ann");
        request.body(()).expect("a request")
    };
    assert_eq!(admitted(&layer, request).await, 5);
    let unknown = limits.demand().with_tier("gld");
    assert!(matches!(
        unknown,
        Err(Error::Request(RequestError::UnknownTier { .. }))
    ));
}

#[tokio::test]
async fn a_demand_gives_its_key_a_capacity_of_its_own() {
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(10).overrides(true))
        .add_limit(Limit::calls("requests", 1, 60 * MINUTE));
    let limits = Limits::declared(set);
    let demand = limits.demand();
    let layer = LimitLayer::new(move |head: &Parts| {
        let client: &Client = head.extensions.get().ok_or_else(unauthorized)?;
        let demand = demand.clone().key([client.id])?;
        Ok(Some(demand.with_override("requests", client.capacity)?))
    });
    for (id, capacity, expected) in [(1, None, 1), (2, Some(4), 4), (3, Some(6), 6)] {
        let client = Client {
            id,
            tier: "default",
            capacity,
        };
        assert_eq!(admitted(&layer, || of(client)).await, expected, "{capacity:?}");
    }
}
