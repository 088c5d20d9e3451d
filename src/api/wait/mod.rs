//! Waiting without a thread per waiter: the futures, and the worker that looks after them.

pub(crate) mod acquire_future;
pub(crate) mod background_worker;
pub(crate) mod unused_batches;
pub(crate) mod waiters;
