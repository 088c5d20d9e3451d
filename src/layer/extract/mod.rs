//! The key and the costs of a request.

pub(super) mod by_address;
pub(super) mod by_header;
pub(super) mod client_address;
pub(super) mod demand;
pub(super) mod extract_error;
