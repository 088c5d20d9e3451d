//! After deaths and removals: repairing, reclaiming, and leaving out what the dead hold.

pub(super) mod dead_holds;
pub(super) mod reclaim;
pub(super) mod reclaim_places;
pub(super) mod removed_segment;
pub(super) mod repairs;
pub(super) mod restored_order;
