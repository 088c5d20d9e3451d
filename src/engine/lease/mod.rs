//! Limits that hosts share: asking for leases, applying the answers, and which process does so.

pub(super) mod duty;
pub(super) mod duty_words;
pub(super) mod exchange;
pub(super) mod reclaim_places;
pub(super) mod shortage;
