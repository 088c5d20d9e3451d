//! What a set is defined as: its rules, and the versions of them that a process knows.

pub(super) mod backlog_limit;
pub(super) mod limit_rules;
pub(super) mod limit_state;
pub(super) mod set_outline;
pub(super) mod set_rules;
pub(super) mod versions;
