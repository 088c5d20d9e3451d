//! The layer as a middleware of reqwest.

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error as ClientError, reqwest};
use shmlimit::{Limit, Refusal, RefusalReason, SetDeclaration};

use super::upstream::{Limits, MINUTE, Upstream};

fn client(limits: &Limits) -> ClientWithMiddleware {
    // Whatever proxies the environment names: it is this upstream that is meant.
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    ClientBuilder::new(client).with(limits.layer()).build()
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
    let answered = client.get(upstream.url()).send().await.expect("sent");
    assert_eq!(answered.url().as_str(), upstream.url());
    assert_eq!(answered.headers().get_all("ratelimit").iter().count(), 1);
    assert_eq!(limits.held(), 1);
    let refused = client
        .get(upstream.url())
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
    let answered = client.get(upstream.url()).send().await.expect("sent");
    assert_eq!(answered.status(), 429);
    let refused = client.get(upstream.url()).send().await.expect_err("it said so");
    assert_eq!(refusal(refused).reason(), RefusalReason::Throttled);
    assert_eq!(upstream.asked(), 1);
}

#[tokio::test]
async fn what_a_middleware_further_in_refuses_costs_nothing_outside() {
    let set = || SetDeclaration::new("provider").add_limit(Limit::calls("requests", 100, 60 * MINUTE));
    let (outer, inner) = (Limits::new(set()), Limits::new(set()));
    inner.set().throttle(MINUTE).expect("works");
    let upstream = Upstream::answering([(200, &[])]).await;
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let client = ClientBuilder::new(client)
        .with(outer.layer())
        .with(inner.layer())
        .build();
    let refused = client.get(upstream.url()).send().await.expect_err("throttled");
    assert_eq!(refusal(refused).reason(), RefusalReason::Throttled);
    let limit = &outer.segment.snapshot().expect("readable").sets[0].limits[0];
    assert_eq!((limit.remaining, upstream.asked()), (100, 0));
}
