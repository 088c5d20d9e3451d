//! Converts arguments from Python for the library.

pub(crate) mod amount;
pub(crate) mod declaration;
pub(crate) mod key;
pub(crate) mod request;
pub(crate) mod response;
