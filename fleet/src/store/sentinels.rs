//! Which server is the primary, according to the sentinels.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError};

use super::address::Node;

/// How long the primary counts as such without the sentinels being asked again.
const CONFIRMED_FOR: Duration = Duration::from_secs(1);

/// What is known of the sentinels of a store.
#[derive(Debug, Default)]
pub(super) struct Sentinels {
    /// The one that answered last.
    last: usize,
    /// The greatest epoch whose primary one of them has named. A sentinel that was cut off may name a former primary.
    epoch: u64,
    /// When one of them was last asked.
    asked_at: Option<Instant>,
}

/// A primary, and the epoch in which it became the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Primary {
    pub(super) node: Node,
    pub(super) epoch: u64,
}

/// A sentinel's answer.
pub(super) type Named = Result<Primary, RedisError>;

impl Sentinels {
    /// Whether it is time to ask again whether the primary has changed.
    pub(super) fn are_due(&self) -> bool {
        self.asked_at
            .is_none_or(|asked_at| asked_at.elapsed() >= CONFIRMED_FOR)
    }

    /// The primary, as one of `number` sentinels names it. They are asked one after the other, for `total` together and
    /// for at most `each` each, beginning with the one that answered last, or with the one after it if
    /// `begins_with_next`. An answer that is older than what one of them said before counts only if none has a newer
    /// one.
    pub(super) fn primary(
        &mut self,
        number: usize,
        begins_with_next: bool,
        (total, each): (Duration, Duration),
        ask: impl Fn(usize, Duration) -> Named,
    ) -> Result<Node, RedisError> {
        let begun = Instant::now();
        self.asked_at = Some(begun);
        let mut failure = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        let mut former: Option<(usize, Primary)> = None;
        let first = self.last + usize::from(begins_with_next);
        for index in (0..number).map(|turn| (first + turn) % number) {
            let left = total.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(failure);
            }
            match ask(index, left.min(each)) {
                Ok(primary) if primary.epoch >= self.epoch => return Ok(self.found(index, primary)),
                Ok(primary) => {
                    if former
                        .as_ref()
                        .is_none_or(|(_, other)| other.epoch < primary.epoch)
                    {
                        former = Some((index, primary));
                    }
                }
                Err(error) => failure = error,
            }
        }
        match former {
            Some((index, primary)) => Ok(self.found(index, primary)),
            None => Err(failure),
        }
    }

    fn found(&mut self, index: usize, primary: Primary) -> Node {
        self.last = index;
        self.epoch = primary.epoch;
        primary.node
    }
}

/// The question to a sentinel.
pub(super) fn question(name: &str) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    for question in ["get-master-addr-by-name", "master"] {
        pipeline.cmd("SENTINEL").arg(question).arg(name);
    }
    pipeline.ignore_errors();
    pipeline
}

/// Reads the answer to the question. If the sentinel does not tell the epoch, it counts as 0.
pub(super) fn answer(answers: Vec<Result<redis::Value, RedisError>>) -> Named {
    let mut answers = answers.into_iter();
    let unknown = || {
        RedisError::from((
            ErrorKind::MasterNameNotFoundBySentinel,
            "a sentinel knows no primary of that name",
        ))
    };
    let address = answers.next().ok_or_else(unknown)??;
    let found: Option<(String, u16)> = redis::from_redis_value(address)?;
    let (host, port) = found.ok_or_else(unknown)?;
    let details: HashMap<String, String> = answers
        .next()
        .and_then(Result::ok)
        .and_then(|details| redis::from_redis_value(details).ok())
        .unwrap_or_default();
    let epoch = details.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    Ok(Primary {
        node: Node { host, port },
        epoch: epoch.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: (Duration, Duration) = (Duration::from_secs(3600), Duration::from_secs(3600));

    fn named(port: u16, epoch: u64) -> Named {
        let host = "h".to_owned();
        Ok(Primary {
            node: Node { host, port },
            epoch,
        })
    }

    fn ports(sentinels: &mut Sentinels, begins_with_next: bool, answers: &[Named]) -> Option<u16> {
        let found = sentinels.primary(answers.len(), begins_with_next, LONG, |index, _| {
            answers[index].clone()
        });
        found.ok().map(|node| node.port)
    }

    #[test]
    fn a_sentinel_that_was_cut_off_does_not_bring_a_former_primary_back() {
        let mut sentinels = Sentinels::default();
        let silent = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        assert_eq!(ports(&mut sentinels, false, &[named(1, 0), named(1, 0)]), Some(1));
        // Another names the new primary when its turn comes.
        assert_eq!(ports(&mut sentinels, true, &[named(1, 0), named(2, 1)]), Some(2));
        for begins_with_next in [true, false, true] {
            assert_eq!(
                ports(&mut sentinels, begins_with_next, &[named(1, 0), named(2, 1)]),
                Some(2)
            );
        }
        assert_eq!(ports(&mut sentinels, true, &[silent(), named(2, 1)]), Some(2));
        assert_eq!(ports(&mut sentinels, true, &[silent(), silent()]), None);
        // All of them were set up anew.
        assert_eq!(ports(&mut sentinels, true, &[named(3, 0), named(3, 0)]), Some(3));
    }
}
