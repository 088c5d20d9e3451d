//! Files of the time zone database: TZif, as RFC 9636 defines it.

use std::collections::BTreeMap;

use super::offsets::Offsets;
use super::posix_rule::{PosixRule, start_of_year, year_of};
use crate::limit::Transition;

/// The header, in bytes.
const HEADER: usize = 44;
const MAGIC: &[u8] = b"TZif";

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotRead {
    NotTzif,
    /// It counts leap seconds, which no clock of a segment does.
    LeapSeconds,
}

/// The instants at which the offset of a zone changes, and how it goes on after the last of them.
struct Listed {
    first: i32,
    changes: BTreeMap<i64, i32>,
    rule: Option<PosixRule>,
}

impl Offsets {
    /// The offsets of a zone from the beginning of year `from` to the end of year `until`.
    pub(super) fn read(file: &[u8], from: i64, until: i64) -> Result<Self, NotRead> {
        let Listed {
            first,
            mut changes,
            rule,
        } = Listed::read(file)?;
        let last = changes.last_key_value().map(|(at, _)| *at);
        let mut first = match (&rule, last) {
            (Some(rule), None) => rule.standard,
            _ => first,
        };
        if let Some(rule) = rule {
            // The rule is in force after the last listed change.
            let since = last.map_or(from - 1, year_of).max(from - 1);
            let further = (since..=until).flat_map(|year| rule.changes_of(year));
            changes.extend(further.filter(|(at, _)| last.is_none_or(|last| *at > last)));
        }
        let (begin, end) = (start_of_year(from), start_of_year(until + 1));
        let mut transitions = Vec::new();
        let mut in_force = first;
        for (at, offset) in changes {
            if at >= end {
                break;
            }
            if at <= begin {
                first = offset;
            } else if offset != in_force {
                transitions.push(Transition { at, offset });
            }
            in_force = offset;
        }
        Ok(Self { first, transitions })
    }
}

impl Listed {
    fn read(file: &[u8]) -> Result<Self, NotRead> {
        let mut rest = Bytes(file);
        let old = Counts::read(&mut rest).ok_or(NotRead::NotTzif)?;
        if old.version == 0 {
            // Without a rule, the last offset stays in force.
            return old.block(&mut rest, 4);
        }
        // A reader that knows the second block skips the first.
        old.skip(&mut rest, 4).ok_or(NotRead::NotTzif)?;
        let counts = Counts::read(&mut rest).ok_or(NotRead::NotTzif)?;
        let listed = counts.block(&mut rest, 8)?;
        let footer = rest.0.strip_prefix(b"\n").and_then(|rest| {
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            std::str::from_utf8(&rest[..end]).ok()
        });
        let rule = match footer.ok_or(NotRead::NotTzif)? {
            "" => None,
            text => Some(PosixRule::parse(text).ok_or(NotRead::NotTzif)?),
        };
        Ok(Self { rule, ..listed })
    }
}

/// How many items of each kind a block has.
struct Counts {
    version: u8,
    utc_flags: usize,
    standard_flags: usize,
    leap_seconds: usize,
    times: usize,
    types: usize,
    letters: usize,
}

impl Counts {
    fn read(rest: &mut Bytes<'_>) -> Option<Self> {
        let mut header = Bytes(rest.take(HEADER)?);
        if header.take(MAGIC.len())? != MAGIC {
            return None;
        }
        let version = *header.take(1)?.first()?;
        header.take(15)?;
        let mut count = || usize::try_from(header.number(4)?).ok();
        Some(Self {
            version,
            utc_flags: count()?,
            standard_flags: count()?,
            leap_seconds: count()?,
            times: count()?,
            types: count()?,
            letters: count()?,
        })
    }

    fn skip(&self, rest: &mut Bytes<'_>, time_size: usize) -> Option<()> {
        for (count, size) in [
            (self.times, time_size + 1),
            (self.types, 6),
            (self.letters, 1),
            (self.leap_seconds, time_size + 4),
            (self.standard_flags, 1),
            (self.utc_flags, 1),
        ] {
            rest.take(count.checked_mul(size)?)?;
        }
        Some(())
    }

    fn block(&self, rest: &mut Bytes<'_>, time_size: usize) -> Result<Listed, NotRead> {
        if self.leap_seconds > 0 {
            return Err(NotRead::LeapSeconds);
        }
        let block = Bytes(rest.0);
        self.skip(rest, time_size).ok_or(NotRead::NotTzif)?;
        self.listed(block, time_size).ok_or(NotRead::NotTzif)
    }

    fn listed(&self, mut block: Bytes<'_>, time_size: usize) -> Option<Listed> {
        let mut times = Bytes(block.take(self.times * time_size)?);
        let indices = block.take(self.times)?;
        let types = block.take(self.types * 6)?;
        let offset = |index: usize| {
            let offset = i32::try_from(Bytes(types.get(6 * index..)?).number(4)?).ok()?;
            Offsets::is_possible(offset).then_some(offset)
        };
        let mut changes = BTreeMap::new();
        for index in indices {
            changes.insert(times.number(time_size)?, offset(usize::from(*index))?);
        }
        Some(Listed {
            first: offset(0)?,
            changes,
            rule: None,
        })
    }
}

/// Bytes that are still to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of `size` bytes, 4 or 8, the most significant first.
    fn number(&mut self, size: usize) -> Option<i64> {
        let bytes = self.take(size)?;
        match size {
            4 => Some(i32::from_be_bytes(bytes.try_into().ok()?).into()),
            _ => Some(i64::from_be_bytes(bytes.try_into().ok()?)),
        }
    }
}
