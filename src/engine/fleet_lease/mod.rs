//! Limits that hosts share: asking for leases, applying the answers, and which process does so.

pub(super) mod duty;
pub(super) mod exchange;
pub(super) mod files;
mod key_requests;
pub(super) mod shortage;
