//! What decisions answer, as Python code meets it.

pub(crate) mod check;
pub(crate) mod permit;
pub(crate) mod refusal;
pub(crate) mod reservation;
pub(crate) mod settlement;
pub(crate) mod verdict;
