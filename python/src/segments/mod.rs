//! Segments, sets and pools in Python.

pub(crate) mod acquiring;
pub(crate) mod clock;
pub(crate) mod policy_headers;
pub(crate) mod pool;
pub(crate) mod segment;
pub(crate) mod set;
pub(crate) mod waiting;
pub(crate) mod wake_event;
