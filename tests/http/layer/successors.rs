//! The layer continues with the segment that takes the place of a removed one.

use std::path::PathBuf;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::http::HeaderName;
use hyper::{Request, Response};
use shmlimit::layer::{ClientAddress, Demand, LimitBody, LimitLayer, OnError};
use shmlimit::{
    Declaration, Error, Keyed, Limit, OpenOptions, Removal, RemovalCause, RequestError, Segment,
    SegmentError, SetDeclaration, Tier,
};

use crate::scene::process::eventually;
use crate::server::{MINUTE, answer, answer_to, wait_until};

struct Place {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self {
            path: directory.path().join("limits"),
            _directory: directory,
        }
    }

    fn create(&self, sets: impl IntoIterator<Item = SetDeclaration>) -> Segment {
        let declaration = sets.into_iter().fold(Declaration::new(), Declaration::add_set);
        Segment::create(&self.path, &declaration).expect("a segment")
    }

    fn remove(&self) {
        OpenOptions::new()
            .remove(&self.path, Removal::Forced)
            .expect("removed");
    }
}

fn set_of(limits: impl IntoIterator<Item = Limit>) -> SetDeclaration {
    limits
        .into_iter()
        .fold(SetDeclaration::new("api"), SetDeclaration::add_limit)
}

fn requests(capacity: u64) -> Limit {
    Limit::calls("requests", capacity, 60 * MINUTE)
}

fn demand(segment: &Segment) -> Demand {
    Demand::new(segment.set("api").expect("declared").request()).expect("no rates")
}

fn told(response: &Response<LimitBody<Full<Bytes>>>) -> (u16, String) {
    let told = response.headers().get("ratelimit");
    let told = told.map_or(String::new(), |told| told.to_str().expect("ASCII").to_owned());
    (response.status().as_u16(), told)
}

/// Asks until the segment is found removed and its successor answers.
async fn first_of_successor(layer: &LimitLayer<Demand>, is_it: impl Fn(&str) -> bool) {
    let mut last = (0, String::new());
    for _ in 0..10_000 {
        last = told(&answer(layer, "/").await);
        if is_it(&last.1) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("the successor never answered: {last:?}");
}

#[tokio::test]
async fn goes_on_with_the_segment_that_took_the_place_of_a_removed_one() {
    let place = Place::new();
    let segment = place.create([set_of([requests(20)])]);
    let layer = LimitLayer::new(demand(&segment));
    let other = LimitLayer::new(demand(&segment));
    assert_eq!(answer(&layer, "/").await.status(), 200);
    place.remove();
    let next = place.create([set_of([requests(30), Limit::concurrency("in_flight", 2)])]);
    let answered = told(&answer(&layer, "/").await);
    assert_eq!(
        answered,
        (200, r#""requests";r=29;t=120, "in_flight";r=1"#.to_owned())
    );
    // All layers of the process count in the successor, with one attachment.
    let answered = told(&answer(&other, "/").await);
    assert!(answered.1.starts_with(r#""requests";r=28;"#), "{answered:?}");
    assert_eq!(next.snapshot().expect("a copy").participants.len(), 1);
    // The same is true of the next successor.
    place.remove();
    drop(place.create([set_of([requests(40)])]));
    for (layer, left) in [(&layer, 39), (&other, 38)] {
        let answered = told(&answer(layer, "/").await);
        let begins = format!(r#""requests";r={left};t="#);
        assert!(
            answered.0 == 200 && answered.1.starts_with(&begins),
            "{answered:?}"
        );
    }
}

#[tokio::test]
async fn a_limit_that_the_successor_does_not_have_is_taken_no_more_unless_it_was_named() {
    let place = Place::new();
    let both = [requests(20), Limit::calls("calls", 5, MINUTE)];
    let segment = place.create([set_of(both)]);
    let api = segment.set("api").expect("declared");
    let by_default = LimitLayer::new(demand(&segment));
    let named = api.request().with("calls", 2).expect("declared");
    let named = LimitLayer::new(Demand::new(named).expect("no rates"));
    place.remove();
    drop(place.create([set_of([requests(20)])]));
    assert_eq!(answer(&by_default, "/").await.status(), 200);
    let refused = answer(&named, "/").await;
    assert_eq!(refused.status(), 500);
    let error = refused.extensions().get::<Arc<Error>>().expect("an error");
    assert!(
        matches!(**error, Error::Request(RequestError::UnknownLimit { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn does_as_errors_are_to_be_dealt_with_until_there_is_a_successor() {
    let place = Place::new();
    let segment = place.create([set_of([requests(20)])]);
    let layer = LimitLayer::new(demand(&segment));
    let admitting = layer.clone().on_error(OnError::Admit);
    place.remove();
    for _ in 0..3 {
        let refused = answer(&layer, "/").await;
        assert_eq!(refused.status(), 500);
        let error = refused.extensions().get::<Arc<Error>>().expect("an error");
        assert!(
            matches!(
                **error,
                Error::Segment(SegmentError::Removed {
                    cause: RemovalCause::Retired,
                    ..
                })
            ),
            "{error}"
        );
        assert_eq!(answer(&admitting, "/").await.status(), 200);
    }
    drop(place.create([set_of([requests(9)])]));
    first_of_successor(&layer, |told| told.starts_with(r#""requests";r=8;"#)).await;
}

#[tokio::test]
async fn goes_on_with_the_segment_that_took_the_place_of_a_deleted_file() {
    let place = Place::new();
    let segment = place.create([set_of([requests(20)])]);
    let layer = LimitLayer::new(demand(&segment));
    assert_eq!(answer(&layer, "/").await.status(), 200);
    std::fs::remove_file(&place.path).expect("deleted");
    drop(place.create([set_of([requests(1_000_000)])]));
    first_of_successor(&layer, |told| told.starts_with(r#""requests";r=9999"#)).await;
}

#[tokio::test]
async fn keys_and_addresses_are_the_same_clients_in_the_successor() {
    let place = Place::new();
    let keyed = |limit: Limit| set_of([limit]).keyed(Keyed::new(100));
    let create = || {
        place.create([
            keyed(requests(2)),
            SetDeclaration::new("visitors")
                .keyed(Keyed::new(100))
                .add_limit(requests(2).prefix(24, 48)),
        ])
    };
    let segment = create();
    let by_key = demand(&segment)
        .by_header(HeaderName::from_static("x-api-key"))
        .expect("keyed");
    let by_key = by_key
        .or_key("without a key that is longer than what is kept in place")
        .expect("a key");
    let by_key = LimitLayer::new(by_key);
    let visitors = Demand::new(segment.set("visitors").expect("declared").request()).expect("no rates");
    let source = ClientAddress::x_forwarded_for(1);
    let by_address = LimitLayer::new(visitors.by_address(source).expect("keyed"));
    place.remove();
    let next = create();
    let request = |header: &str, value: &str| {
        Request::get("/")
            .header(header, value)
            .body(())
            .expect("a request")
    };
    for status in [200, 200, 429] {
        assert_eq!(
            answer_to(&by_key, request("x-api-key", "ann")).await.status(),
            status
        );
        assert_eq!(answer(&by_key, "/").await.status(), status);
        let from = request("x-forwarded-for", "192.0.2.7");
        assert_eq!(answer_to(&by_address, from).await.status(), status);
    }
    let ann = next.key_snapshot("api", "ann").expect("keyed").expect("used");
    assert_eq!((ann.admitted, ann.refused), (2, 1));
}

#[tokio::test]
async fn a_request_that_waits_goes_on_waiting_in_the_successor() {
    let place = Place::new();
    let segment = place.create([set_of([Limit::concurrency("in_flight", 1)])]);
    let layer = LimitLayer::new(demand(&segment)).wait(60 * MINUTE);
    let held = answer(&layer, "/").await;
    let waiting = tokio::spawn({
        let layer = layer.clone();
        async move { told(&answer(&layer, "/").await) }
    });
    wait_until("it waits", || {
        segment.snapshot().expect("a copy").sets[0].tickets.len() == 1
    })
    .await;
    // The successor is there before the other segment is gone, so that one exists at every moment.
    let next = place.path.with_extension("next");
    let limits = set_of([Limit::concurrency("in_flight", 3)]);
    drop(Segment::create(&next, &Declaration::new().add_set(limits)).expect("a segment"));
    std::fs::rename(&next, &place.path).expect("moved");
    assert_eq!(
        waiting.await.expect("no panic"),
        (200, r#""in_flight";r=2"#.to_owned())
    );
    drop(held);
    eventually("what was held in the removed segment is given back", || {
        segment.snapshot().expect("a copy").sets[0].active == 0
    });
}

#[tokio::test]
async fn the_tier_and_the_capacity_that_a_demand_names_go_on_with_the_successor() {
    let place = Place::new();
    let tiers = || {
        let set = SetDeclaration::new("api").keyed(Keyed::new(10));
        set.add_limit(requests(1))
            .add_tier(Tier::new("gold").capacity("requests", 50))
    };
    let overrides = || {
        let set = SetDeclaration::new("own").keyed(Keyed::new(10).overrides(true));
        set.add_limit(requests(1))
    };
    let segment = place.create([tiers(), overrides()]);
    let of_set = |name: &str| {
        let set = segment.set(name).expect("declared");
        Demand::new(set.request())
            .and_then(|demand| demand.key("ann"))
            .expect("keyed")
    };
    let layers = [
        of_set("api").with_tier("gold").expect("declared"),
        of_set("own").with_override("requests", 50).expect("declared"),
    ]
    .map(LimitLayer::new);
    for layer in &layers {
        let (status, told) = told(&answer(layer, "/").await);
        assert!(status == 200 && told.starts_with("\"requests\";r=49;"), "{told}");
    }
    place.remove();
    let _successor = place.create([overrides(), tiers()]);
    for layer in &layers {
        first_of_successor(layer, |told| told.starts_with("\"requests\";r=49;")).await;
    }
}
