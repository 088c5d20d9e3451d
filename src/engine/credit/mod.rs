//! Credit: batches that a process draws, and then spends without the lock.

pub(super) mod draw;
