//! Requests of hosts to a store.

use std::time::Duration;

use shmlimit::declare::Kind;
use shmlimit::fleet::{LeaseRequest, LeasedLimit, LeasedRule};

/// A limit that is replenished continuously.
pub fn backlog(capacity: u64, window: Duration, burst: u64, lease: Duration) -> LeasedLimit {
    LeasedLimit {
        kind: Kind::Rate,
        unit: "1".to_owned(),
        rule: LeasedRule::Backlog {
            capacity,
            window,
            burst,
        },
        lease,
    }
}

/// A request for the fleet's first limit, with nothing spent.
pub fn request(declared: &LeasedLimit, host: u64, sequence: u64, wanted: u64) -> LeaseRequest {
    LeaseRequest {
        of_key: None,
        key: "org/tokens".to_owned(),
        declared: declared.clone(),
        version: 0,
        host,
        sequence,
        spent: 0,
        refunded: 0,
        ungranted: 0,
        held: 0,
        wanted,
        grant_number: 0,
    }
}
