//! Credit: batches that a process draws and spends without the lock.

pub(super) mod batches;
pub(super) mod credit_word;
pub(super) mod draw;
pub(super) mod drawn;
