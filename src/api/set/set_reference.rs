//! A set, borrowed or owned.

use std::ops::Deref;

use super::limit_set::LimitSet;

/// A set borrowed from the caller's handle, or a handle of its own.
#[derive(Clone, Debug)]
pub(crate) enum SetReference<'a> {
    Borrowed(&'a LimitSet),
    Owned(LimitSet),
}

// Two words, so that the borrowed form, which the hot path moves about, stays small.
const _: () = assert!(size_of::<SetReference<'_>>() == 2 * size_of::<usize>());

impl SetReference<'_> {
    pub(crate) fn to_owned(&self) -> SetReference<'static> {
        SetReference::Owned((**self).clone())
    }
}

impl Deref for SetReference<'_> {
    type Target = LimitSet;

    #[inline]
    fn deref(&self) -> &LimitSet {
        match self {
            Self::Borrowed(set) => set,
            Self::Owned(set) => set,
        }
    }
}
