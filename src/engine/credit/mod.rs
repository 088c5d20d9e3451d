//! Credit: batches that a process draws and spends without the lock.

pub(super) mod draw;
