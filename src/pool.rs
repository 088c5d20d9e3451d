//! How a [`LimitPool`](crate::LimitPool) chooses among its sets, what it is asked, and what it answers.

pub use crate::api::pool::{Chosen, PoolRequest, PoolStrategy};
