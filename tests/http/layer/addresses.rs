//! Limits on clients by their address.

use std::net::IpAddr;
use std::time::Duration;

use hyper::Request;
use shmlimit::layer::{ByAddress, ClientAddress, LimitLayer};
use shmlimit::{Error, Keyed, Limit, RequestError, SetDeclaration};

use crate::server::{Limits, MINUTE, answer, answer_to, problem};

fn keyed(limits: impl IntoIterator<Item = Limit>) -> Limits {
    let set = SetDeclaration::new("api").keyed(Keyed::new(100));
    Limits::declared(limits.into_iter().fold(set, SetDeclaration::add_limit))
}

/// One request for each address, two for each network.
fn networks() -> Limits {
    keyed([
        Limit::calls("address", 1, 60 * MINUTE).prefix(32, 64),
        Limit::calls("network", 2, 60 * MINUTE).prefix(24, 48),
    ])
}

fn behind_a_proxy(limits: &Limits) -> ByAddress {
    let source = ClientAddress::x_forwarded_for(1);
    limits.demand().by_address(source).expect("keyed")
}

fn from(address: &str) -> Request<()> {
    let request = Request::get("/").header("x-forwarded-for", address);
    request.body(()).expect("a request")
}

#[tokio::test]
async fn each_address_and_each_network_is_limited_by_itself() {
    let limits = networks();
    let layer = LimitLayer::new(behind_a_proxy(&limits));
    for (address, refused_by) in [
        ("203.0.113.7", None),
        ("203.0.113.7", Some("address")),
        ("::ffff:203.0.113.7", Some("address")),
        ("1.1.1.1, 203.0.113.7", Some("address")), // made up by the client, but for the last
        ("203.0.113.8", None),
        ("203.0.113.9", Some("network")),
        ("203.0.114.9", None),
        ("2001:db8::1", None),
        ("2001:db8::2", Some("address")),
    ] {
        let answered = answer_to(&layer, from(address)).await;
        match refused_by {
            None => {
                assert_eq!(answered.status(), 200, "{address}");
                assert!(answered.headers().contains_key("ratelimit"));
            }
            Some(limit) => {
                assert_eq!(answered.status(), 429, "{address}");
                assert!(answered.headers().contains_key("retry-after"));
                assert_eq!(
                    problem(answered).await["violated-policies"][0],
                    limit,
                    "{address}"
                );
            }
        }
    }
}

#[tokio::test]
async fn the_other_end_of_the_connection_is_what_the_server_says() {
    let limits = networks();
    let source = ClientAddress::peer(|head| head.extensions.get::<IpAddr>().copied());
    let layer = LimitLayer::new(limits.demand().by_address(source).expect("keyed"));
    for (address, status) in [([10, 0, 0, 1], 200), ([10, 0, 0, 1], 429), ([10, 0, 0, 2], 200)] {
        let mut request = from("192.0.2.1");
        request.extensions_mut().insert(IpAddr::from(address));
        assert_eq!(answer_to(&layer, request).await.status(), status);
    }
}

#[tokio::test]
async fn a_request_without_an_address_is_answered_400_unless_it_is_given_one() {
    let limits = networks();
    let demand = behind_a_proxy(&limits);
    assert_eq!(answer(&LimitLayer::new(demand.clone()), "/").await.status(), 400);
    let together = demand.or_address([0, 0, 0, 0]).expect("keyed");
    let layer = LimitLayer::new(together);
    assert_eq!(answer(&layer, "/").await.status(), 200);
    assert_eq!(answer(&layer, "/").await.status(), 429);
}

#[tokio::test]
async fn without_networks_the_address_is_the_key_and_may_hold() {
    let limits = keyed([Limit::concurrency("in_flight", 1)]);
    let layer = LimitLayer::new(behind_a_proxy(&limits));
    let first = answer_to(&layer, from("2001:db8::1")).await;
    assert_eq!(first.status(), 200);
    assert_eq!(limits.held(), 1);
    assert_eq!(answer_to(&layer, from("2001:DB8:0::1")).await.status(), 429);
    assert_eq!(answer_to(&layer, from("2001:db8::2")).await.status(), 200);
    let set = limits.segment.set("api").expect("declared");
    let request = set.request().for_key("2001:db8::1").expect("keyed");
    assert!(!request.try_acquire().expect("works").is_admitted());
    drop(first);
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn networks_have_no_queues_and_are_answered_at_once() {
    let limits = networks();
    let layer = LimitLayer::new(behind_a_proxy(&limits)).wait(Duration::MAX);
    for status in [200, 429] {
        assert_eq!(answer_to(&layer, from("203.0.113.7")).await.status(), status);
    }
}

#[test]
fn a_set_without_keys_has_no_limits_of_addresses() {
    let limits = Limits::new([Limit::calls("requests", 1, MINUTE)]);
    let source = ClientAddress::forwarded(1);
    let refused = limits.demand().by_address(source);
    assert!(matches!(
        refused,
        Err(Error::Request(RequestError::NotKeyed { .. }))
    ));
}
