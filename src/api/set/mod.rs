//! A set of limits, as programs use it.

pub(crate) mod checked;
pub(crate) mod limit_set;
pub(crate) mod set_reference;
pub(crate) mod subject;
pub(crate) mod throttled;
