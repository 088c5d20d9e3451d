//! What Python code hands over, as the library takes it.

pub(crate) mod amount;
pub(crate) mod declaration;
pub(crate) mod key;
pub(crate) mod request;
pub(crate) mod response;
