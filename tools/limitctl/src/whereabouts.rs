//! Whether a segment is used where this process is, elsewhere, or nowhere.

use shmlimit::snapshot::SegmentSnapshot;

/// Where a segment comes from, and whether it is used there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// From this boot and these namespaces.
    Here,
    /// From others, such as a container's, and processes there use it: here it can only be looked at.
    Elsewhere,
    /// From others, and no process uses it: the next one that opens it starts it cold.
    Nowhere,
}

impl Whereabouts {
    pub fn of(snapshot: &SegmentSnapshot) -> Self {
        if snapshot.same_place {
            Self::Here
        } else if snapshot.participants.iter().any(|it| it.alive) {
            Self::Elsewhere
        } else {
            Self::Nowhere
        }
    }
}
