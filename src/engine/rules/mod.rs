//! The definition of a set: its rules, and the versions of them that a process knows.

pub(super) mod backlog_limit;
pub(super) mod limit_rules;
pub(super) mod limit_state;
pub(super) mod set_outline;
pub(super) mod set_rules;
pub(super) mod versions;
