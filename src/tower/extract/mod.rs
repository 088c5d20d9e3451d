//! Which key and which costs a request has.

pub(super) mod by_address;
pub(super) mod by_header;
pub(super) mod client_address;
pub(super) mod demand;
