//! Locks, and the journal that makes changes under them all-or-nothing.

pub(crate) mod dispatch;
pub(crate) mod guard;
pub(crate) mod journal;
pub(crate) mod lock_holder;
pub(crate) mod robust_mutex;
pub(crate) mod slot_lock;
pub(crate) mod slot_word;
mod spin;
pub(crate) mod store;
#[cfg(test)]
mod tests;
