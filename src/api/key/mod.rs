//! One key of a keyed set, as programs use it.

pub(crate) mod address;
pub(crate) mod assignment;
pub(crate) mod identify;
pub(crate) mod key_override;

use super::set::limit_set::LimitSet;
use super::set::subject::Subject;
use crate::engine::KeyIdentity;
use crate::error::Error;
use identify::identify;

/// One key of a [keyed](crate::SetDeclaration::keyed) set: its tier, its capacities, what it has left.
///
/// [Requests](crate::Request::for_key) take from a key; this handle manages it. Making a handle hashes the key, so keep
/// the handle of a key that is used often.
///
/// ```
/// # use std::time::Duration;
/// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
///
/// # let directory = tempfile::tempdir()?;
/// let declaration = Declaration::new().add_set(
///     SetDeclaration::new("api")
///         .keyed(Keyed::new(100_000))
///         .add_limit(Limit::calls("requests", 2, Duration::from_secs(60))),
/// );
/// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let api = segment.set("api")?;
/// assert!(api.request().for_key("tenant-7")?.check()?.is_admitted());
/// assert_eq!(api.key("tenant-7")?.forecast()?[0].spendable, 1);
/// assert_eq!(api.key("tenant-8")?.forecast()?[0].spendable, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub(crate) subject: Subject<'a>,
}

impl LimitSet {
    /// One key of the set.
    ///
    /// # Errors
    ///
    /// See [`Request::set_key`](crate::Request::set_key).
    #[inline]
    pub fn key(&self, key: impl AsRef<[u8]>) -> Result<Key<'_>, Error> {
        let identity = self.identify(key.as_ref())?;
        Ok(Key {
            subject: Subject {
                set: self,
                key: Some(identity),
            },
        })
    }

    #[inline]
    pub(crate) fn identify(&self, key: &[u8]) -> Result<KeyIdentity, Error> {
        identify(self.engine_set(), key)
    }
}

impl<'a> Key<'a> {
    /// The set that the key belongs to.
    pub fn set(&self) -> &'a LimitSet {
        self.subject.set
    }
}
