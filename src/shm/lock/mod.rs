//! Locks, and the journal that makes changes under them whole.

pub(crate) mod file_lock;
pub(crate) mod image_lock;
pub(crate) mod journal;
pub(crate) mod robust_mutex;
pub(crate) mod store;
