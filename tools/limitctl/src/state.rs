//! Whether a segment can be used, in the words that all views share.

use anstyle::Style;
use serde::Serialize;
use shmlimit::snapshot::SegmentSnapshot;

use crate::text::style;

/// Whether a segment can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    /// Attached processes get an error, and open its successor.
    Retired,
    /// In use by processes of another boot or namespace, such as a container's: here it can only be looked at.
    Elsewhere,
    /// From another boot or namespace, or a copy, and in use nowhere: the next process that opens it starts it cold.
    Cold,
    /// The file no longer exists.
    Removed,
    /// Of another format, build or machine.
    ForeignFormat,
    Damaged,
}

impl State {
    pub fn of(snapshot: &SegmentSnapshot) -> Self {
        if snapshot.retired {
            Self::Retired
        } else if snapshot.same_place {
            Self::Ok
        } else if is_void(snapshot) {
            Self::Cold
        } else {
            Self::Elsewhere
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Retired => "retired",
            Self::Elsewhere => "elsewhere",
            Self::Cold => "cold",
            Self::Removed => "removed",
            Self::ForeignFormat => "foreign format",
            Self::Damaged => "damaged",
        }
    }

    /// The state and, if it is unusual, what it means.
    pub fn words(self) -> &'static str {
        match self {
            Self::Retired => "retired: attached processes must open its successor",
            Self::Elsewhere => "in use elsewhere: here it can only be looked at",
            Self::Cold => "cold: the next process to open it voids its locks and owners",
            Self::Removed => "removed: there is no file of this name any more",
            Self::Ok | Self::ForeignFormat | Self::Damaged => self.word(),
        }
    }

    pub fn style(self) -> Style {
        match self {
            Self::Ok => style::GOOD,
            Self::Retired | Self::Elsewhere | Self::Cold | Self::Removed => style::WARNING,
            Self::ForeignFormat | Self::Damaged => style::BAD,
        }
    }
}

/// Whether a segment's locks and owners are void, because the next process that opens it starts it cold.
pub fn is_void(snapshot: &SegmentSnapshot) -> bool {
    !snapshot.same_place && !snapshot.participants.iter().any(|it| it.alive)
}
