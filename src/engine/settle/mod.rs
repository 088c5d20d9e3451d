//! After the admission: settling, releasing, refunding, renewing and resetting.

pub(super) mod correction;
pub(super) mod lease;
pub(super) mod marks;
pub(super) mod refund;
pub(super) mod reset;
pub(super) mod settlement;
