//! The answers of decisions, as Python objects.

pub(crate) mod answer;
pub(crate) mod check;
pub(crate) mod permit;
pub(crate) mod refusal;
pub(crate) mod reservation;
pub(crate) mod settlement;
pub(crate) mod verdict;
