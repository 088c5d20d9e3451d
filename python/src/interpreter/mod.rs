//! What the native module needs from the interpreter: calls, objects, errors, times, the logger.

pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod interruption;
pub(crate) mod json;
pub(crate) mod log;
pub(crate) mod object;
pub(crate) mod once;
pub(crate) mod only;
pub(crate) mod ready;
pub(crate) mod seconds;
pub(crate) mod value;
