//! A zone's offsets from UTC, and how a definition writes them.

use std::fmt;

use crate::limit::Transition;

/// The first offset, and each change of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    pub(super) first: i32,
    pub(super) transitions: Vec<Transition>,
}

impl Offsets {
    pub(super) fn is_possible(offset: i32) -> bool {
        offset.unsigned_abs() < 86_400
    }

    pub(super) fn at(&self, seconds: i64) -> i32 {
        let passed = self.transitions.iter().rfind(|it| it.at <= seconds);
        passed.map_or(self.first, |it| it.offset)
    }
}

/// In seconds: the first offset, then for each change its instant since 1970 and the offset from then on.
impl fmt::Display for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        for Transition { at, offset } in &self.transitions {
            write!(f, " {at}:{offset}")?;
        }
        Ok(())
    }
}

impl Offsets {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let first = parts.next()?.parse().ok()?;
        let transition = |part: &str| {
            let (at, offset) = part.split_once(':')?;
            Some(Transition {
                at: at.parse().ok()?,
                offset: offset.parse().ok()?,
            })
        };
        Some(Self {
            first,
            transitions: parts.map(transition).collect::<Option<_>>()?,
        })
    }
}
