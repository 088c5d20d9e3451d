//! After deaths and removals: repairing, reclaiming, and leaving out what the dead hold.

pub(super) mod dead_holds;
pub(super) mod marks;
pub(super) mod reclaim;
pub(super) mod recovery_report;
pub(super) mod removal_watch;
pub(super) mod removed_segment;
pub(super) mod repairs;
