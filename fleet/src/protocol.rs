//! Requests as arguments of the scripts, and their answers.

use std::time::Duration;

use redis::{Cmd, Value};
use shmlimit::fleet::{LeaseReply, LeaseRequest, LeasedKey};

use crate::store::answer::{Grant, StoreAnswer};
use crate::terms::Terms;

/// The script that settles and grants for limits that all requests share.
pub const LEASE_SCRIPT: &str = concat!(
    include_str!("script/terms_and_time.lua"),
    include_str!("script/lease.lua")
);

/// The script that settles and grants for limits by key.
pub const KEYED_SCRIPT: &str = concat!(
    include_str!("script/terms_and_time.lua"),
    include_str!("script/keyed.lua")
);

/// The most keys of one partition in one call.
pub const KEYS_IN_A_CALL: usize = 64;

/// Incremented whenever the content of the keys changes.
const PROTOCOL: u32 = 1;
const MODULUS: u64 = 1 << 52;
/// The largest number that the script of limits by key can hold.
const MAX_EXACT: u64 = (1 << 53) - 1;
/// The digits of names: those of base64 for URLs.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The key of a limit. In a cluster, the text between the braces determines where it is placed.
#[must_use]
pub fn store_key(key: &str) -> String {
    format!("shmlimit:{{{key}}}")
}

/// The partition that a key belongs to, of the 64 that a limit has: the last six bits of its hash.
#[must_use]
pub fn partition_of(hash: u128) -> u8 {
    (hash & 0x3f) as u8
}

/// The key of a partition of a limit, with the text that determines where a cluster places it and all keys of the
/// partition.
#[must_use]
pub fn partition_key(key: &str, partition: u8) -> String {
    format!("shmlimit:{{{key}/{partition:02}}}")
}

/// The name of the store's key for one key of a limit: that of its partition, followed by 22 digits of the hash, the
/// most significant first. The hash itself would be six bytes shorter, but people could not read or copy such a name,
/// or delete the key by it.
#[must_use]
pub fn name_of_key(key: &str, hash: u128) -> String {
    let mut name = partition_key(key, partition_of(hash));
    for digit in (0..22).rev() {
        let index = (hash >> (6 * digit)) & 0x3f;
        name.push(char::from(DIGITS[index as usize]));
    }
    name
}

/// Appends the key and the arguments to EVALSHA or EVAL and the script. With an empty run id, the script queries it.
pub fn add_arguments(command: &mut Cmd, run: &str, terms: &Terms, request: &LeaseRequest) {
    command.arg(1).arg(store_key(&request.key));
    add_terms(command, run, terms);
    command
        .arg(format!("{:016x}", request.host))
        .arg(request.sequence)
        .arg(request.spent % MODULUS)
        .arg(request.refunded % MODULUS)
        .arg(request.held)
        .arg(request.wanted)
        .arg(request.grant_number)
        .arg(request.ungranted % MODULUS);
}

/// The same for the script of limits by key. All keys belong to one partition of a limit, and are counted by the same
/// terms.
pub fn add_keyed_arguments(
    command: &mut Cmd,
    run: &str,
    (key, terms): (&str, &Terms),
    requests: &[(LeasedKey, &LeaseRequest)],
) {
    let partition = requests
        .first()
        .map_or(0, |(of_key, _)| partition_of(of_key.hash));
    command.arg(requests.len() + 1).arg(partition_key(key, partition));
    for (of_key, _) in requests {
        command.arg(name_of_key(key, of_key.hash));
    }
    add_terms(command, run, terms);
    for (of_key, request) in requests {
        let numbers = [
            request.sequence,
            of_key.began,
            request.spent,
            request.refunded,
            request.ungranted,
            request.held,
            request.wanted,
            request.grant_number,
        ];
        let mut packed = request.host.to_be_bytes().to_vec();
        packed.extend(
            numbers
                .iter()
                .flat_map(|number| number.min(&MAX_EXACT).to_be_bytes()),
        );
        command.arg(packed);
    }
}

fn add_terms(command: &mut Cmd, run: &str, terms: &Terms) {
    command
        .arg(PROTOCOL)
        .arg(run)
        .arg(terms.version)
        .arg(terms.fingerprint())
        .arg(terms.to_string());
}

/// Parses the answer of the script of limits, or the answer to one request by the script of limits by key.
///
/// # Errors
///
/// A description of an unexpected answer.
pub fn read_answer(value: &Value) -> Result<StoreAnswer, String> {
    let items = Items::of(value)?;
    if items.text(0)? != "granted" {
        return items.refusal();
    }
    Ok(StoreAnswer::Granted(Grant {
        reply: LeaseReply {
            sequence: items.number(1)?,
            granted: items.number(2)?,
            remaining: items.duration(4)?,
            share: items.number(5)?,
            grant_number: items.number(6)?,
            drained_in: items.duration(7)?,
            ceiling: items.number(9)?,
            hosts: items.number(10)?,
            quarantine: items.duration(11)?,
            available: items.number(12)?,
            free_in: items.duration(13)?,
        },
        kept: items.number(3)?,
        store_time: items.number(8)?,
    }))
}

/// Parses the answer of the script of limits by key to this many requests into an answer to each.
///
/// # Errors
///
/// A description of an unexpected answer.
pub fn read_keyed_answers(value: &Value, requests: usize) -> Result<Vec<StoreAnswer>, String> {
    let items = Items::of(value)?;
    if items.text(0)? != "keys" {
        return Ok(vec![items.refusal()?; requests]);
    }
    let answers = items.values.get(1..).unwrap_or_default();
    if answers.len() != requests {
        return Err(format!("{} answers to {requests} requests", answers.len()));
    }
    answers.iter().map(read_answer).collect()
}

/// What a script has answered.
struct Items<'a> {
    value: &'a Value,
    values: &'a [Value],
}

impl<'a> Items<'a> {
    fn of(value: &'a Value) -> Result<Self, String> {
        match value {
            Value::Array(values) => Ok(Self { value, values }),
            _ => Err(format!("{value:?}")),
        }
    }

    fn unexpected(&self) -> String {
        format!("{:?}", self.value)
    }

    fn text(&self, index: usize) -> Result<String, String> {
        match self.values.get(index) {
            Some(Value::BulkString(bytes)) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            Some(Value::SimpleString(text)) => Ok(text.clone()),
            _ => Err(self.unexpected()),
        }
    }

    fn number(&self, index: usize) -> Result<u64, String> {
        match self.values.get(index) {
            Some(Value::Int(number)) => u64::try_from(*number).map_err(|_| self.unexpected()),
            _ => Err(self.unexpected()),
        }
    }

    fn duration(&self, index: usize) -> Result<Duration, String> {
        self.number(index).map(Duration::from_micros)
    }

    /// An answer that grants nothing and leaves everything as it is.
    fn refusal(&self) -> Result<StoreAnswer, String> {
        Ok(match self.text(0)?.as_str() {
            "declared" => StoreAnswer::Declared {
                in_force: self.text(1)?,
            },
            "stale" => StoreAnswer::Stale {
                last: self.number(1)?,
            },
            "fell" => StoreAnswer::SpentFell {
                before: self.number(1)?,
            },
            "foreign" => StoreAnswer::Foreign { found: self.text(1)? },
            "protocol" => StoreAnswer::Protocol { found: self.text(1)? },
            _ => return Err(self.unexpected()),
        })
    }
}
