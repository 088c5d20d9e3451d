//! Which server of a cluster has which keys.

use redis::{ErrorKind, Pipeline, RedisError, Value};

use super::address::Node;

const SLOTS: u16 = 16_384;

/// Ranges of slots, and the primary of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Slots(Vec<(u16, u16, Node)>);

/// The question to any server of a cluster.
pub(super) fn question() -> Pipeline {
    let mut question = redis::pipe();
    question.cmd("CLUSTER").arg("SLOTS");
    question
}

impl Slots {
    /// Reads the answer to the question. A server whose name it leaves out has the name by which the server that
    /// answered was `asked`.
    pub(super) fn read(answer: Value, asked: &Node) -> Result<Self, RedisError> {
        let ranges: Vec<Vec<Value>> = redis::from_redis_value(answer)?;
        let found = ranges.into_iter().map(|range| {
            let mut parts = range.into_iter();
            let first = redis::from_redis_value(parts.next()?).ok()?;
            let last = redis::from_redis_value(parts.next()?).ok()?;
            let primary: Vec<Value> = redis::from_redis_value(parts.next()?).ok()?;
            let mut parts = primary.into_iter();
            let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
            let port = redis::from_redis_value(parts.next()?).ok()?;
            let node = node(&host.unwrap_or_default(), port, asked)?;
            Some((first, last, node))
        });
        // A range whose primary the server does not know counts as having none.
        let found: Vec<_> = found.flatten().collect();
        if found.is_empty() {
            let reason = "no server of the cluster has a slot";
            return Err((ErrorKind::ClusterConnectionNotFound, reason).into());
        }
        Ok(Self(found))
    }

    /// The server that has a slot.
    pub(super) fn server_of(&self, slot: u16) -> Option<&Node> {
        let range = self
            .0
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, node)| node)
    }

    /// Whether a server has any slots.
    pub(super) fn include(&self, node: &Node) -> bool {
        self.0.iter().any(|(_, _, known)| known == node)
    }
}

/// The server to which another one redirects.
pub(super) fn redirected(error: &RedisError, asked: &Node) -> Option<Node> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    node(host, port.parse().ok()?, asked)
}

fn node(host: &str, port: u16, asked: &Node) -> Option<Node> {
    let host = match host {
        "?" => return None,
        "" => &asked.host,
        host => host,
    };
    Some(Node {
        host: host.to_owned(),
        port,
    })
}

/// The slot of a key: a checksum of what is in its braces, or of all of it.
pub(super) fn slot_of(key: &str) -> u16 {
    let in_braces = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    checksum(in_braces.unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, which the specification of clusters names.
fn checksum(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    let shifted = |sum: u16| {
        if sum & 0x8000 == 0 {
            sum << 1
        } else {
            (sum << 1) ^ POLYNOMIAL
        }
    };
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| shifted(sum))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn at(host: &str, port: u16) -> Node {
        Node {
            host: host.to_owned(),
            port,
        }
    }

    /// The check value of the specification, and slots that a server named.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(checksum(b"123456789"), 0x31c3);
        for (key, slot) in [
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar}{zap}", 5_061),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn servers_that_the_answer_does_not_name_are_understood() {
        let range = |first, last, host| {
            let primary = vec![host, Value::Int(7_000)];
            Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(primary)])
        };
        let answer = Value::Array(vec![
            range(0, 9, text("10.0.0.1")),
            range(10, 19, Value::Nil),
            range(20, 29, text("?")),
            range(30, 39, text("")),
        ]);
        let slots = Slots::read(answer, &at("asked", 1)).expect("an answer");
        assert_eq!(slots.server_of(9), Some(&at("10.0.0.1", 7_000)));
        assert_eq!(slots.server_of(10), Some(&at("asked", 7_000)));
        assert_eq!(slots.server_of(20), None);
        assert_eq!(slots.server_of(39), Some(&at("asked", 7_000)));
        assert!(slots.include(&at("asked", 7_000)) && !slots.include(&at("asked", 1)));
        assert!(Slots::read(Value::Array(Vec::new()), &at("asked", 1)).is_err());
    }
}
