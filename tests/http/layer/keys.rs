//! Limits on each client by itself, told apart by a header.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use serde_json::json;
use shmlimit::layer::{ByHeader, Demand, LimitLayer, OnError};
use shmlimit::{Error, Keyed, Limit, RequestError, SetDeclaration};

use crate::server::{Limits, MINUTE, Server, answer, answer_to, problem, retry_after, wait_until};

const HEADER: HeaderName = HeaderName::from_static("x-api-key");

fn limits(keyed: Keyed, limits: impl IntoIterator<Item = Limit>) -> Limits {
    let set = SetDeclaration::new("api").keyed(keyed);
    Limits::declared(limits.into_iter().fold(set, SetDeclaration::add_limit))
}

fn by_header(limits: &Limits) -> ByHeader {
    limits.demand().by_header(HEADER).expect("keyed")
}

fn request(keys: &[&str]) -> Request<()> {
    keys.iter()
        .fold(Request::get("/"), |request, key| request.header(HEADER, *key))
        .body(())
        .expect("a request")
}

fn error<B>(response: &Response<B>) -> Arc<Error> {
    let error = response.extensions().get::<Arc<Error>>();
    Arc::clone(error.expect("the error is there to be reported"))
}

#[tokio::test]
async fn each_key_is_limited_by_itself_and_told_how_its_own_limits_stand() {
    let limits = limits(Keyed::new(100), [Limit::calls("requests", 2, 60 * MINUTE)]);
    let server = Server::start(LimitLayer::new(by_header(&limits))).await;
    let mut client = server.client().await;
    for (key, remaining) in [("ann", 1), ("ann", 0), ("bob", 1)] {
        let admitted = client.get_with("/", &[("x-api-key", key)]).await;
        assert_eq!(admitted.status(), 200);
        let standing = admitted.headers()["ratelimit"].to_str().expect("ASCII");
        assert!(
            standing.starts_with(&format!("\"requests\";r={remaining};t=")),
            "{standing}"
        );
        assert!(!standing.contains(key), "keys are not told");
        drop(server.body().await);
        admitted.into_body().collect().await.expect("an empty body");
    }

    let refused = client.get_with("/", &[("x-api-key", "ann")]).await;
    assert_eq!(refused.status(), 429);
    let seconds = retry_after(&refused);
    assert!((1..=1800).contains(&seconds));
    assert_eq!(
        refused.headers()["ratelimit"],
        format!("\"requests\";r=0;t={seconds}")
    );
    assert_eq!(problem(refused).await["violated-policies"], json!(["requests"]));
    assert_eq!(server.unwritten(), 0, "the service was not called");
    let other = client.get_with("/", &[("x-api-key", "bob")]).await;
    assert_eq!(other.status(), 200);
}

#[tokio::test]
async fn a_key_holds_its_place_until_its_body_has_ended_and_takes_none_from_others() {
    let limits = limits(Keyed::new(100), [Limit::concurrency("in_flight", 1)]);
    let server = Server::start(LimitLayer::new(by_header(&limits))).await;
    let mut first = server.client().await;
    let mut second = server.client().await;
    let admitted = first.get_with("/", &[("x-api-key", "ann")]).await;
    let body = server.body().await;
    assert_eq!(limits.held(), 1);

    let refused = second.get_with("/", &[("x-api-key", "ann")]).await;
    assert_eq!(refused.status(), 429);
    refused.into_body().collect().await.expect("a body");
    let other = second.get_with("/", &[("x-api-key", "bob")]).await;
    assert_eq!(other.status(), 200);
    assert_eq!(limits.held(), 2);
    drop(server.body().await);
    other.into_body().collect().await.expect("an empty body");

    drop(body);
    admitted.into_body().collect().await.expect("an empty body");
    limits.wait_until_held(0).await;
    let again = second.get_with("/", &[("x-api-key", "ann")]).await;
    assert_eq!(again.status(), 200);

    // A client that goes away gives its key's place back.
    drop(second);
    drop(again);
    limits.wait_until_held(0).await;
}

#[tokio::test]
async fn a_key_waits_in_a_line_of_its_own() {
    let limits = limits(Keyed::new(100), [Limit::concurrency("in_flight", 1)]);
    let server = Server::start(LimitLayer::new(by_header(&limits)).wait(MINUTE)).await;
    let mut first = server.client().await;
    let admitted = first.get_with("/", &[("x-api-key", "ann")]).await;
    let body = server.body().await;
    let mut second = server.client().await;
    let waiting = tokio::spawn(async move { second.get_with("/", &[("x-api-key", "ann")]).await.status() });
    wait_until("the second is in the queue", || {
        let snapshot = limits.segment.snapshot().expect("readable");
        snapshot.sets[0].tickets.len() == 1
    })
    .await;

    let mut third = server.client().await;
    let other = third.get_with("/", &[("x-api-key", "bob")]).await;
    assert_eq!(other.status(), 200);
    assert!(!waiting.is_finished());

    drop(body);
    drop(admitted);
    assert_eq!(waiting.await.expect("not poisoned"), 200);
}

#[tokio::test]
async fn a_request_that_names_no_key_or_no_proper_one_gets_past_no_limit() {
    let limits = limits(Keyed::new(100), [Limit::calls("requests", 100, MINUTE)]);
    let layer = LimitLayer::new(by_header(&limits));
    let long = "k".repeat(65_537);
    for layer in [
        layer.clone(),
        layer.clone().on_error(OnError::Admit),
        layer.wait(MINUTE).on_error(OnError::Admit),
    ] {
        for (keys, is_missing) in [
            (&[][..], true),
            (&["ann", "bob"], true),
            (&[""], false),
            (&[&long], false),
        ] {
            let refused = answer_to(&layer, request(keys)).await;
            assert_eq!(refused.status(), 400);
            match &*error(&refused) {
                Error::Request(RequestError::KeyRequired { .. }) => assert!(is_missing),
                Error::Request(RequestError::InvalidKey { bytes, .. }) => {
                    assert!(!is_missing && *bytes == keys[0].len())
                }
                other => panic!("{other}"),
            }
            assert_eq!(problem(refused).await["status"], 400);
        }
        let admitted = answer_to(&layer, request(&["ann"])).await;
        assert_eq!(admitted.status(), 200);
    }
}

#[tokio::test]
async fn requests_without_the_header_are_one_client_where_they_are_given_a_key() {
    let limits = limits(Keyed::new(100), [Limit::calls("requests", 1, 60 * MINUTE)]);
    let anonymous = by_header(&limits).or_key("anonymous").expect("a key");
    let layer = LimitLayer::new(anonymous);
    assert_eq!(answer_to(&layer, request(&["ann"])).await.status(), 200);
    assert_eq!(answer(&layer, "/").await.status(), 200);
    assert_eq!(answer(&layer, "/").await.status(), 429);
    assert_eq!(answer_to(&layer, request(&["anonymous"])).await.status(), 429);
    // Of several values, none is known to be the right one.
    assert_eq!(answer_to(&layer, request(&["bob", "eve"])).await.status(), 400);
}

#[tokio::test]
async fn a_new_key_is_turned_away_with_503_while_the_table_is_full_of_limited_ones() {
    let limits = limits(Keyed::new(1), [Limit::calls("requests", 1, 60 * MINUTE)]);
    let layer = LimitLayer::new(by_header(&limits));
    let mut admitted = 0;
    let refused = loop {
        let response = answer_to(&layer, request(&[&format!("client-{admitted}")])).await;
        if response.status() != 200 {
            break response;
        }
        admitted += 1;
        assert!(admitted < 10_000, "a table of one key holds ten thousand");
    };
    assert!(admitted >= 1);
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(problem(refused).await["type"], "about:blank");
    for known in 0..admitted {
        let refused = answer_to(&layer, request(&[&format!("client-{known}")])).await;
        assert_eq!(refused.status(), 429, "no key regains what it used");
    }
}

#[tokio::test]
async fn an_extractor_names_keys_of_some_requests_and_leaves_others_to_another_set() {
    let everyone = Limits::new([Limit::calls("all", 1, 60 * MINUTE)]);
    let clients = limits(Keyed::new(100), [Limit::calls("requests", 1, 60 * MINUTE)]);
    let (all, each) = (everyone.demand(), clients.demand());
    let layer = LimitLayer::new(move |head: &Parts| {
        Ok(Some(match head.headers.get(HEADER) {
            Some(key) => each.clone().key(key)?,
            None => all.clone(),
        }))
    });
    for keys in [&[][..], &["ann"], &["bob"]] {
        assert_eq!(answer_to(&layer, request(keys)).await.status(), 200);
        assert_eq!(answer_to(&layer, request(keys)).await.status(), 429);
    }
}

#[test]
fn a_header_names_no_key_where_the_set_has_none() {
    let limits = Limits::new([Limit::calls("requests", 1, MINUTE)]);
    let refused = limits.demand().by_header(HEADER);
    assert!(matches!(
        refused,
        Err(Error::Request(RequestError::NotKeyed { .. }))
    ));
    let refused = limits.demand().key("ann");
    assert!(matches!(
        refused,
        Err(Error::Request(RequestError::NotKeyed { .. }))
    ));
}

#[test]
fn a_demand_is_not_made_of_a_request_that_names_whose_limits_it_takes() {
    let by_key = limits(Keyed::new(100), [Limit::calls("requests", 1, MINUTE)]);
    let set = by_key.segment.set("api").expect("declared");
    let request = set.request().for_key("ann").expect("keyed");
    assert!(matches!(
        Demand::new(request),
        Err(Error::Request(RequestError::AlreadyKeyed { .. }))
    ));
    let by_address = limits(
        Keyed::new(100),
        [Limit::calls("requests", 1, MINUTE).prefix(24, 48)],
    );
    let set = by_address.segment.set("api").expect("declared");
    let request = set.request().for_address(IpAddr::V4(Ipv4Addr::LOCALHOST));
    assert!(matches!(
        Demand::new(request.expect("by address")),
        Err(Error::Request(RequestError::AlreadyKeyed { .. }))
    ));
}
