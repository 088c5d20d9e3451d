//! Limits on networks: an address counts against all networks that contain it, or against none.

use std::net::IpAddr;
use std::time::Duration;

use crate::scene::clock::Scene;
use shmlimit::snapshot::KeySnapshot;
use shmlimit::{
    Checked, Declaration, Error, Keyed, Limit, LimitSet, RefusalReason, RequestError, Segment, SetDeclaration,
};

const HOUR: Duration = Duration::from_secs(3600);

struct Logins {
    scene: Scene,
    set: LimitSet,
}

impl Logins {
    fn new() -> Self {
        let declared = SetDeclaration::new("logins")
            .keyed(Keyed::new(1))
            .add_limit(Limit::calls("address", 2, HOUR).prefix(32, 64))
            .add_limit(Limit::calls("network", 3, HOUR).prefix(24, 48));
        let scene = Scene::new(declared);
        let set = scene.set();
        Self { scene, set }
    }

    fn check(&self, address: &str) -> Checked<'_> {
        let request = self.set.request().for_address(ip(address));
        request.expect("counts networks").check().expect("no error")
    }

    /// What is left for an address, and for its network.
    fn left(&self, address: &str) -> Vec<u64> {
        let request = self.set.request().for_address(ip(address));
        let verdicts = request.expect("counts networks").peek().expect("no error");
        verdicts.iter().map(|verdict| verdict.remaining).collect()
    }
}

fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address")
}

#[test]
fn what_one_network_refuses_takes_nothing_of_the_others() {
    let logins = Logins::new();
    for address in ["203.0.113.1", "203.0.113.1", "203.0.113.2"] {
        assert!(logins.check(address).is_admitted());
    }
    assert_eq!(logins.left("203.0.113.2"), [1, 0]);
    let refused = logins.check("203.0.113.2");
    assert_eq!(refused.binding(), Some("network"));
    assert_eq!(logins.left("203.0.113.2"), [1, 0]);
    assert!(!logins.check("203.0.113.1").is_admitted(), "both refuse");
    assert_eq!(logins.left("203.0.114.1"), [2, 3]);
}

#[test]
fn both_families_are_counted_by_prefixes_of_their_own() {
    let logins = Logins::new();
    for address in ["2001:db8:1::1", "2001:db8:1::2"] {
        assert!(logins.check(address).is_admitted(), "of one /64");
    }
    assert_eq!(logins.check("2001:db8:1::3").binding(), Some("address"));
    assert!(logins.check("2001:db8:1:1::1").is_admitted(), "of another /64");
    assert_eq!(logins.check("2001:db8:1:2::1").binding(), Some("network"));
    assert!(logins.check("::ffff:198.51.100.1").is_admitted());
    assert_eq!(logins.left("198.51.100.1"), [1, 2], "the same address");
}

#[test]
fn an_address_never_gets_one_row_for_two_networks() {
    let logins = Logins::new();
    // There are 32 rows: fifteen networks with an address each take thirty, and one more address takes another.
    for network in 0..15 {
        assert!(logins.check(&format!("10.0.{network}.1")).is_admitted());
    }
    assert!(logins.check("10.0.0.2").is_admitted());
    let full = logins.check("10.0.99.1");
    assert_eq!(
        (full.reason(), full.binding()),
        (Some(RefusalReason::TableFull), None)
    );
    logins.scene.pass(2 * HOUR);
    assert!(
        logins.check("10.0.99.1").is_admitted(),
        "all the others are replenished"
    );
    assert_eq!(logins.left("10.0.99.1"), [1, 2]);
}

#[test]
fn a_reset_replenishes_all_networks_of_an_address() {
    let logins = Logins::new();
    for _ in 0..2 {
        assert!(logins.check("203.0.113.1").is_admitted());
    }
    let address = logins.set.address(ip("203.0.113.1")).expect("counts networks");
    assert!(address.reset().limits(["address"]).run().expect("no error"));
    assert_eq!(logins.left("203.0.113.1"), [2, 1]);
    assert!(address.reset().run().expect("no error"));
    assert_eq!(logins.left("203.0.113.1"), [2, 3]);
    let unknown = logins.set.address(ip("203.0.115.1")).expect("counts networks");
    assert!(!unknown.reset().run().expect("no error"));
}

#[test]
fn addresses_and_keys_are_not_mixed_up() {
    let logins = Logins::new();
    assert!(matches!(
        logins.set.key("203.0.113.1"),
        Err(Error::Request(RequestError::AddressRequired { .. }))
    ));
    assert!(matches!(
        logins.set.request().check(),
        Err(Error::Request(RequestError::KeyRequired { .. }))
    ));
    let directory = tempfile::tempdir().expect("a directory");
    let plain = Declaration::new().add_set(
        SetDeclaration::new("plain")
            .keyed(Keyed::new(10))
            .add_limit(Limit::calls("calls", 2, HOUR)),
    );
    let segment = Segment::create(directory.path().join("limits"), &plain).expect("a segment");
    let plain = segment.set("plain").expect("declared");
    assert!(matches!(
        plain.address(ip("::1")),
        Err(Error::Request(RequestError::NoPrefixes { .. }))
    ));
}

#[test]
fn a_network_is_shown_with_the_limits_that_count_it() {
    let logins = Logins::new();
    for address in ["203.0.113.1", "2001:db8::1"] {
        assert!(logins.check(address).is_admitted());
    }
    let limits_of = |key: &KeySnapshot| {
        let limits = key
            .limits
            .iter()
            .map(|limit| (limit.name.clone(), limit.remaining));
        limits.collect::<Vec<_>>()
    };
    let [address, network] = [("address".to_owned(), 1), ("network".to_owned(), 2)];
    for of_family in ["203.0.113.1", "2001:db8::1"] {
        let rows = logins
            .scene
            .segment
            .address_snapshots("logins", ip(of_family))
            .expect("works");
        let mut limits: Vec<_> = rows.iter().map(limits_of).collect();
        limits.sort();
        assert_eq!(limits, [[address.clone()], [network.clone()]]);
    }
    // By the part of their names that is kept.
    let mut limits = Vec::new();
    let keep = |key: &KeySnapshot| limits.push(limits_of(key));
    logins.scene.segment.key_snapshots("logins", keep).expect("works");
    limits.sort();
    assert_eq!(
        limits,
        [[address.clone()], [address], [network.clone()], [network]]
    );
}
