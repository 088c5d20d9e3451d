//! Time zones whose offsets will soon be unknown.

use std::time::{SystemTime, UNIX_EPOCH};

use shmlimit::Declaration;

use super::condition::Condition;
use super::finding::Finding;

/// The mean length of a year, in seconds.
const YEAR: u64 = 31_556_952;

/// A warning for each limit that knows its time zone for less than a year ahead.
pub fn findings(declaration: &Declaration) -> Vec<Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The year is far below the largest number of 64 bits.
    let this_year = 1970 + (now.as_secs() / YEAR) as i64;
    let sets = declaration.sets().iter();
    let limits = sets.flat_map(|set| set.limits().iter().map(move |limit| (set, limit)));
    limits
        .filter_map(|(set, limit)| {
            let zone = limit.options().time_zone()?;
            let until = zone.known_until().filter(|until| *until <= this_year)?;
            let finding = Finding::warning(Condition::TimeZoneEnds,
                format!(
                    "the offsets of {zone}, the time zone of limit `{}`, are known until the end of {until}",
                    limit.name()
                ),
                "afterwards the last offset stays, and days begin at the wrong hour for half of each year; a program with \
                 a newer database of time zones renews the offsets when it starts and declares the limit, and so does \
                 `limitctl apply`",
            );
            Some(finding.of_set(set.name()))
        })
        .collect()
}
