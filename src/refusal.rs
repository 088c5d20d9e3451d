//! What the limits say when they say no, and how they stand.

use std::fmt;
use std::time::Duration;

use crate::engine::{Decided, Decision, DefinitionBits, NEVER, RefusalReason};
use crate::limit_set::LimitSet;

/// A request was refused: nothing was taken.
#[derive(Clone, Debug)]
pub struct Refusal<'a> {
    set: &'a LimitSet,
    decision: Decision,
}

impl<'a> Refusal<'a> {
    pub(crate) fn new(set: &'a LimitSet, decision: Decision) -> Self {
        Self { set, decision }
    }

    /// The limit that bound; none where every [hold](crate::SetDeclaration::holds) of the set was taken, or the table of
    /// keys had no row for a new one.
    ///
    /// Of several, one that time alone cannot heal, else the one that takes longest.
    pub fn binding(&self) -> Option<&'a str> {
        let (index, _) = self.decision.binding()?;
        name(self.set, index)
    }

    /// Why.
    pub fn reason(&self) -> RefusalReason {
        self.set.engine_set().refusal_reason(&self.decision)
    }

    /// After how long the request would be admitted if nobody else took anything: never before, always at exactly
    /// that instant. None where time alone does not help. Behind others in the queue it is when the first of them could
    /// be admitted, if that is later.
    ///
    /// Of a new key for which the table had no row: when the first of the limited keys in its places is limited no
    /// longer, where the set was declared to evict the least used.
    pub fn retry_after(&self) -> Option<Duration> {
        let wait = match self.decision.binding() {
            Some((_, NEVER)) => None,
            Some((_, wait)) => Some(wait),
            None => self.decision.room_in(),
        };
        wait.map(Duration::from_nanos)
    }

    /// What each requested limit said.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict<'a>> {
        self.decision
            .iter()
            .map(|(index, decided)| Verdict::refused(self.set, self.decision.definition, index, decided))
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.set.name();
        match (self.reason(), self.binding()) {
            (RefusalReason::QueueFull, _) => write!(f, "the queue of set `{set}` is full")?,
            (_, Some(limit)) => write!(f, "set `{set}` refused by limit `{limit}`")?,
            (RefusalReason::HoldsFull, _) => write!(
                f,
                "set `{set}` refused: as many permits are out as it has holds for"
            )?,
            (_, None) => write!(f, "set `{set}` refused: its table of keys is full")?,
        }
        match self.retry_after() {
            Some(wait) => write!(f, ", retry after {wait:?}"),
            None => Ok(()),
        }
    }
}

/// What one limit says, and how it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// Whether the limit admits the cost.
    pub admitted: bool,
    /// Units that could be taken at once. What was just taken is not among them.
    pub remaining: u64,
    /// Of a [look](LimitSet::peek): units that dead processes hold, or that are held for longer than their lease. They
    /// count as free already, because a request that needs them is given them. Zero in the answer to a request itself.
    pub of_dead: u64,
    /// Zero if admitted; otherwise after how long the cost would be, if nobody else took anything, or none where time
    /// alone does not help.
    pub retry_after: Option<Duration>,
    /// Until the limit is completely replenished, if nobody takes anything.
    pub reset_after: Duration,
    /// Units that could be taken at once if nobody had taken anything: what `remaining` is a part of.
    pub most_at_once: u64,
}

impl<'a> Verdict<'a> {
    /// What a limit of a refused request, or of one that was only asked about, says.
    pub(crate) fn refused(
        set: &'a LimitSet,
        definition: DefinitionBits,
        index: usize,
        decided: &Decided,
    ) -> Self {
        let verdict = Self::admitted(set, definition, index, decided);
        match decided.figure {
            0 => verdict,
            NEVER => Self {
                admitted: false,
                retry_after: None,
                ..verdict
            },
            wait => Self {
                admitted: false,
                retry_after: Some(Duration::from_nanos(wait)),
                ..verdict
            },
        }
    }

    /// What a limit of an admitted request says.
    pub(crate) fn admitted(
        set: &'a LimitSet,
        definition: DefinitionBits,
        index: usize,
        decided: &Decided,
    ) -> Self {
        let stood = set.engine_set().standing(definition, index, decided.mark);
        let (standing, most_at_once) = stood.unzip();
        Self {
            limit: name(set, index).unwrap_or_default(),
            admitted: true,
            remaining: standing.map_or(0, |standing| standing.remaining),
            retry_after: Some(Duration::ZERO),
            reset_after: Duration::from_nanos(standing.map_or(0, |standing| standing.reset_after)),
            of_dead: 0,
            most_at_once: most_at_once.unwrap_or(0),
        }
    }
}

fn name(set: &LimitSet, index: usize) -> Option<&str> {
    set.engine_set()
        .limits
        .get(index)
        .map(|limit| limit.name.as_str())
}
