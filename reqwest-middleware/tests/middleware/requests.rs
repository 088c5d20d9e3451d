//! What a client is answered, and what its requests hold.

use http::request::Parts;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error as ClientError, reqwest};
use shmlimit::layer::{ClientLimitLayer, Demand, Extractor, Permits};
use shmlimit::{Limit, Refusal, RefusalReason, SetDeclaration};
use shmlimit_reqwest_middleware::LimitMiddleware;

use crate::upstream::{Limits, MINUTE, Upstream};
use crate::url;

fn client(limits: &Limits) -> ClientWithMiddleware {
    behind([LimitMiddleware::new(limits.layer())])
}

/// A client behind middlewares, of which the first is the outermost.
fn behind<E>(middlewares: impl IntoIterator<Item = LimitMiddleware<E>>) -> ClientWithMiddleware
where
    E: Extractor + Send + Sync + 'static,
{
    // Whatever proxies the environment names: it is this upstream that is meant.
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let client = ClientBuilder::new(client);
    middlewares.into_iter().fold(client, ClientBuilder::with).build()
}

fn refusal(error: ClientError) -> Refusal {
    match error {
        ClientError::Middleware(error) => error.downcast().expect("a refusal"),
        ClientError::Reqwest(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_refusal_of_this_host_is_an_error_and_the_place_is_held_until_the_body_is_read() {
    let set = SetDeclaration::new("provider").add_limit(Limit::concurrency("in_flight", 1));
    let limits = Limits::new(set);
    let upstream = Upstream::answering([(200, &[("ratelimit", "\"theirs\";r=7")])]).await;
    let client = client(&limits);
    let answered = client.get(url(&upstream)).send().await.expect("sent");
    assert_eq!(answered.url().as_str(), url(&upstream));
    assert_eq!(answered.headers().get_all("ratelimit").iter().count(), 1);
    assert_eq!(limits.held(), 1);
    let refused = client
        .get(url(&upstream))
        .send()
        .await
        .expect_err("one at a time");
    assert_eq!(refusal(refused).binding(), Some("in_flight"));
    assert_eq!(answered.text().await.expect("a body"), "answered");
    assert_eq!((limits.held(), upstream.asked()), (0, 1));
}

#[tokio::test]
async fn an_upstream_that_says_to_wait_is_left_alone() {
    let set = SetDeclaration::new("provider").add_limit(Limit::calls("requests", 100, MINUTE));
    let limits = Limits::new(set);
    let upstream = Upstream::answering([(429, &[("retry-after", "30")])]).await;
    let client = client(&limits);
    let answered = client.get(url(&upstream)).send().await.expect("sent");
    assert_eq!(answered.status(), 429);
    let refused = client.get(url(&upstream)).send().await.expect_err("it said so");
    assert_eq!(refusal(refused).reason(), RefusalReason::Throttled);
    assert_eq!(upstream.asked(), 1);
}

#[tokio::test]
async fn what_a_middleware_further_in_refuses_costs_nothing_outside() {
    let set = || SetDeclaration::new("provider").add_limit(Limit::calls("requests", 100, 60 * MINUTE));
    let (outer, inner) = (Limits::new(set()), Limits::new(set()));
    inner.set().throttle(MINUTE).expect("works");
    let upstream = Upstream::answering([(200, &[])]).await;
    let client = behind([&outer, &inner].map(|limits| LimitMiddleware::new(limits.layer())));
    let refused = client.get(url(&upstream)).send().await.expect_err("throttled");
    assert_eq!(refusal(refused).reason(), RefusalReason::Throttled);
    let limit = &outer.segment.snapshot().expect("readable").sets[0].limits[0];
    assert_eq!((limit.remaining, upstream.asked()), (100, 0));
}

#[tokio::test]
async fn a_request_is_settled_by_the_permit_of_its_set() {
    let set = SetDeclaration::new("provider").add_limit(Limit::rate("tokens", 100, 60 * MINUTE));
    let limits = Limits::new(set);
    let upstream = Upstream::answering([(200, &[])]).await;
    let provider = limits.set();
    let request = provider.request().with("tokens", 80).expect("declared");
    let layer = ClientLimitLayer::new(Demand::new(request).expect("a cost"));
    let client = behind([LimitMiddleware::new(layer)]);
    let answered = client.get(url(&upstream)).send().await.expect("sent");
    let permits = answered.extensions().get::<Permits>().expect("it is limited");
    let permit = permits.of("provider").expect("admitted");
    permit.settle([("tokens", 30)]).expect("held");
    assert!(permits.of("other").is_none());
    let counts = &limits.segment.snapshot().expect("readable").sets[0].limits[0].counts;
    assert_eq!(counts.refunded, 50);
}

#[tokio::test]
async fn an_extractor_answers_in_place_of_the_upstream() {
    let set = SetDeclaration::new("provider").add_limit(Limit::calls("requests", 100, MINUTE));
    let limits = Limits::new(set);
    let upstream = Upstream::answering([(200, &[])]).await;
    let layer = ClientLimitLayer::new(|_: &Parts| {
        let response = http::Response::builder()
            .status(403)
            .body("not to them".to_owned());
        Err(response.expect("a response").into())
    });
    let client = behind([LimitMiddleware::new(layer)]);
    let answered = client.get(url(&upstream)).send().await.expect("answered");
    assert_eq!(
        (answered.status().as_u16(), answered.url().as_str()),
        (403, &*url(&upstream))
    );
    assert_eq!(answered.text().await.expect("a body"), "not to them");
    assert_eq!((limits.held(), upstream.asked()), (0, 0));
}
