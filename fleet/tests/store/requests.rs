//! Requests of hosts to a store, and its scripts on the clock of a test.

use std::time::Duration;

use redis::Connection;
use shmlimit::declare::Kind;
use shmlimit::fleet::{LeaseRequest, LeasedKey, LeasedLimit, LeasedRule};

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

/// The same for a key, with nothing unanswered before.
pub fn keyed(request: LeaseRequest, hash: u128) -> LeaseRequest {
    let began = request.sequence;
    let of_key = Some(LeasedKey { hash, began });
    LeaseRequest { of_key, ..request }
}

/// Loads a script whose clock is its last argument, in microseconds, so that leases expire, windows turn and the clock
/// goes back without waiting. The server, which has another clock, keeps everything for hours. Returns the hash.
pub fn load_with_clock(connection: &mut Connection, script: &str) -> String {
    let clock = "{ string.sub(ARGV[#ARGV], 1, -7), string.sub(ARGV[#ARGV], -6) }";
    let text = script.replace("redis.call('TIME')", clock);
    assert_ne!(text, script, "the script asks for the time");
    let text = text.replace("'PX', ", "'PX', '1000' .. ");
    let sha = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(connection);
    sha.expect("a script that loads")
}
