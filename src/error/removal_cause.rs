//! What happens to a segment that is removed while in use.

use crate::words::words;

/// What happened to a removed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemovalCause {
    /// It was [retired](crate::Segment::retire), for example by `limitctl remove` or
    /// [`RecreateIfUnused`](crate::declare::OnMismatch::RecreateIfUnused).
    Retired,
    /// Its file was deleted (`rm`) or another was moved over it (`mv`), and no path leads to it any more.
    Deleted,
    /// The path that this process opened it by leads to another segment: this one was moved elsewhere.
    Replaced,
}

words!(RemovalCause, "a cause of a removal", {
    Retired = "retired",
    Deleted = "deleted",
    Replaced = "replaced",
});

impl RemovalCause {
    /// The end of a message about a removed segment.
    pub(super) fn in_a_sentence(self) -> &'static str {
        match self {
            Self::Retired => "it was retired, by `limitctl remove` for instance",
            Self::Deleted => "its file was deleted",
            Self::Replaced => "another segment is at its path",
        }
    }
}
