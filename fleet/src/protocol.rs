//! Requests as arguments of the script, and its answers.

use std::time::Duration;

use redis::{Cmd, Value};
use shmlimit::fleet::{LeaseReply, LeaseRequest};

use crate::store::answer::{Grant, StoreAnswer};
use crate::terms::Terms;

/// The script that settles and grants.
pub const LEASE_SCRIPT: &str = concat!(
    include_str!("script/terms_and_time.lua"),
    include_str!("script/lease.lua")
);

/// Incremented whenever the content of the keys changes.
const PROTOCOL: u32 = 1;
const MODULUS: u64 = 1 << 52;

/// The key of a limit. In a cluster, the text between the braces determines where it is placed.
#[must_use]
pub fn store_key(key: &str) -> String {
    format!("shmlimit:{{{key}}}")
}

/// Appends the key and the arguments to EVALSHA or EVAL and the script. With an empty run id, the script queries it.
pub fn add_arguments(command: &mut Cmd, run: &str, terms: &Terms, request: &LeaseRequest) {
    command
        .arg(1)
        .arg(store_key(&request.key))
        .arg(PROTOCOL)
        .arg(run)
        .arg(terms.version)
        .arg(terms.fingerprint())
        .arg(terms.to_string())
        .arg(format!("{:016x}", request.host))
        .arg(request.sequence)
        .arg(request.spent % MODULUS)
        .arg(request.refunded % MODULUS)
        .arg(request.held)
        .arg(request.wanted)
        .arg(request.grant_number)
        .arg(request.ungranted % MODULUS);
}

/// Parses the script's answer.
///
/// # Errors
///
/// A description of an unexpected answer.
pub fn read_answer(value: &Value) -> Result<StoreAnswer, String> {
    let unexpected = || format!("{value:?}");
    let Value::Array(items) = value else {
        return Err(unexpected());
    };
    let text = |index: usize| match items.get(index) {
        Some(Value::BulkString(bytes)) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        Some(Value::SimpleString(text)) => Ok(text.clone()),
        _ => Err(unexpected()),
    };
    let number = |index: usize| match items.get(index) {
        Some(Value::Int(number)) => u64::try_from(*number).map_err(|_| unexpected()),
        _ => Err(unexpected()),
    };
    let duration = |index| number(index).map(Duration::from_micros);
    Ok(match text(0)?.as_str() {
        "granted" => StoreAnswer::Granted(Grant {
            reply: LeaseReply {
                sequence: number(1)?,
                granted: number(2)?,
                remaining: duration(4)?,
                share: number(5)?,
                grant_number: number(6)?,
                drained_in: duration(7)?,
                ceiling: number(9)?,
                hosts: number(10)?,
                quarantine: duration(11)?,
                available: number(12)?,
                free_in: Duration::ZERO,
            },
            kept: number(3)?,
            store_time: number(8)?,
        }),
        "declared" => StoreAnswer::Declared { in_force: text(1)? },
        "stale" => StoreAnswer::Stale { last: number(1)? },
        "fell" => StoreAnswer::SpentFell { before: number(1)? },
        "foreign" => StoreAnswer::Foreign { found: text(1)? },
        "protocol" => StoreAnswer::Protocol { found: text(1)? },
        _ => return Err(unexpected()),
    })
}
