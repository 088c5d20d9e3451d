//! Whose limits an operation applies to: those of a set or of one of its keys. Operations that both support are
//! implemented once.

use super::limit_set::LimitSet;
use crate::engine::{KeyIdentity, Target};
use crate::error::Error;

/// A set that is not keyed, or one key of a keyed set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) set: &'a LimitSet,
    pub(crate) key: Option<KeyIdentity>,
}

impl<'a> Subject<'a> {
    #[inline]
    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            set: self.set.engine_set(),
            key: self.key.as_ref(),
        }
    }
}

impl LimitSet {
    /// The set as a whole; an error if it is keyed, because then only its keys have limits.
    #[inline]
    pub(crate) fn subject(&self) -> Result<Subject<'_>, Error> {
        if self.is_keyed() {
            return Err(self.key_required());
        }
        Ok(Subject { set: self, key: None })
    }
}
