//! The handle of a set of limits.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::api::segment::shared_segment::SharedSegment;
use crate::declaration::{InvalidAmount, Limit, Scale, SetDeclaration};
use crate::engine::{SetEngine, TableUsage};
use crate::error::{Error, RequestError};

/// A set of limits that are taken together.
///
/// A handle is cheap to clone, can be used by any number of threads, and stays valid in forked children.
#[derive(Clone)]
pub struct LimitSet {
    shared: Arc<SharedSet>,
    strict: bool,
}

/// What a handle shares with its clones, so that cloning bumps a single reference count.
struct SharedSet {
    segment: Arc<SharedSegment>,
    engine: Arc<SetEngine>,
}

// Printing the whole segment would fill pages in every message that includes a refusal.
impl fmt::Debug for LimitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitSet")
            .field("segment", &self.segment_path())
            .field("name", &self.name())
            .field("strict", &self.strict)
            .finish()
    }
}

/// The position of a limit in its set. Use it instead of the name where every nanosecond counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitIndex(pub(crate) usize);

/// Identifies a limit: its name, as any kind of string, or its [`LimitIndex`].
pub trait LimitName: sealed::Sealed {
    /// The position of the limit in its set.
    #[doc(hidden)]
    fn find(&self, set: &LimitSet) -> Option<LimitIndex>;
    /// The name, for messages.
    #[doc(hidden)]
    fn display(&self) -> String;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::LimitIndex {}
}

/// Implements [`LimitName`] for strings of all kinds.
macro_rules! text_names_limits {
    ($($text:ty),+) => {$(
        impl sealed::Sealed for $text {}

        impl LimitName for $text {
            fn find(&self, set: &LimitSet) -> Option<LimitIndex> {
                set.limit_index(self)
            }

            fn display(&self) -> String {
                str::to_owned(self)
            }
        }
    )+};
}

text_names_limits!(&str, String, &String, Cow<'_, str>, Arc<str>);

impl LimitName for LimitIndex {
    fn find(&self, set: &LimitSet) -> Option<LimitIndex> {
        (self.0 < set.engine_set().limits.len()).then_some(*self)
    }

    fn display(&self) -> String {
        format!("number {}", self.0)
    }
}

impl LimitSet {
    /// The set at a position of a segment, or `None` if out of range.
    pub(crate) fn new(segment: Arc<SharedSegment>, position: usize) -> Option<Self> {
        let engine = Arc::clone(segment.engine.sets().get(position)?);
        Some(Self {
            shared: Arc::new(SharedSet { segment, engine }),
            strict: true,
        })
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Whether naming a limit that the set does not have, in a request or a settlement, is an error,
    /// [`RequestError::UnknownLimit`]. It is by default, because a misspelt name would mean no limit at all.
    /// Otherwise the name is skipped and counted, and with the feature `tracing` each name is reported once per
    /// process.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// The set's name.
    pub fn name(&self) -> &str {
        &self.engine_set().name
    }

    /// The set's declared metadata, such as region, endpoint or account.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.engine_set().shown().plan.metadata
    }

    /// The names of the limits, in the order of the declaration.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        self.engine_set().limits.iter().map(|limit| limit.name.as_str())
    }

    /// The position of the limit called `name`.
    pub fn limit_index(&self, name: &str) -> Option<LimitIndex> {
        self.engine_set()
            .limits
            .iter()
            .position(|limit| limit.name == name)
            .map(LimitIndex)
    }

    /// How full the table of keys is; `None` if the set is not keyed. Scans every row without a lock, which takes
    /// about a millisecond per 100,000 rows.
    pub fn table_usage(&self) -> Option<TableUsage> {
        let set = self.engine_set();
        set.is_keyed().then(|| self.shared().engine.table_usage(set))
    }

    #[inline]
    pub(crate) fn engine_set(&self) -> &SetEngine {
        &self.shared.engine
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<SharedSegment> {
        &self.shared.segment
    }

    /// The position of the set in its segment.
    pub(crate) fn position(&self) -> usize {
        // A segment has at most 1,024 sets.
        self.engine_set().position as usize
    }

    /// Whether both handles refer to the same set of the same attachment.
    #[inline]
    pub(crate) fn is_same_set(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) || Arc::ptr_eq(&self.shared.engine, &other.shared.engine)
    }

    /// The path that the segment was opened by.
    pub(crate) fn segment_path(&self) -> &Path {
        self.shared().engine.path()
    }

    /// The error for a request that names no cost although a rate limit needs one.
    #[cold]
    pub(crate) fn cost_required(&self) -> Box<Error> {
        let set = self.engine_set();
        let rate = set.first_rate.map(|rate| set.limit_name(rate));
        Box::new(Error::Request(RequestError::CostRequired {
            set: self.name().to_owned(),
            limit: rate.unwrap_or_default(),
        }))
    }

    /// The limits in order, as declared when this process opened the segment.
    pub fn declared_limits(&self) -> &[Limit] {
        let declaration = &self.shared().declaration;
        let set = declaration.sets().get(self.position());
        set.map_or(&[], SetDeclaration::limits)
    }

    /// The whole number of units that a decimal amount of a limit stands for, exactly: see
    /// [`Request::with_decimal`](crate::Request::with_decimal).
    ///
    /// # Errors
    ///
    /// [`RequestError::InvalidAmount`] if it is not a whole number of units, and [`RequestError::UnknownLimit`].
    pub fn units(&self, limit: impl LimitName, natural: &str) -> Result<u64, Error> {
        self.units_by(&limit, natural, Scale::units)
    }

    /// The fewest units that cover a decimal amount of a limit: for actual usage, which a
    /// [settlement](crate::Permit::settle) or a [debit](crate::Permit::debit) must not lose because it is not a whole
    /// number of units.
    ///
    /// # Errors
    ///
    /// [`RequestError::InvalidAmount`] if it is not a decimal number or too large, and [`RequestError::UnknownLimit`].
    pub fn units_to_cover(&self, limit: impl LimitName, natural: &str) -> Result<u64, Error> {
        self.units_by(&limit, natural, Scale::units_to_cover)
    }

    fn units_by(
        &self,
        limit: &impl LimitName,
        natural: &str,
        convert: impl FnOnce(&Scale, &str) -> Result<u64, InvalidAmount>,
    ) -> Result<u64, Error> {
        let index = self.require(limit)?;
        let declared = self.declared_limits().get(index);
        let units = declared.map(|limit| limit.scale().and_then(|scale| convert(&scale, natural)));
        match units {
            Some(Ok(units)) => Ok(units),
            Some(Err(error)) => Err(Error::Request(RequestError::InvalidAmount {
                set: self.name().to_owned(),
                limit: self.engine_set().limit_name(index),
                given: natural.to_owned(),
                why: error.to_string(),
            })),
            None => Err(self.unknown_limit(format!("number {index}"))),
        }
    }

    pub(crate) fn require_index(&self, name: &str) -> Result<usize, Error> {
        self.require(&name)
    }

    /// The position of a limit, or the error that it is unknown.
    pub(crate) fn require(&self, limit: &impl LimitName) -> Result<usize, Error> {
        limit
            .find(self)
            .map(|LimitIndex(index)| index)
            .ok_or_else(|| self.unknown_limit(limit.display()))
    }

    /// The position of a named limit. An unknown name is counted. On a strict handle it is an error; otherwise it is
    /// warned about once and skipped.
    #[inline]
    pub(crate) fn resolve(&self, name: &impl LimitName) -> Result<Option<usize>, Error> {
        if let Some(LimitIndex(index)) = name.find(self) {
            return Ok(Some(index));
        }
        let name = name.display();
        self.engine_set().shard(0).count_unknown_name();
        if self.strict {
            return Err(self.unknown_limit(name));
        }
        if self.shared().is_first_warning(self.position(), &name) {
            #[cfg(feature = "tracing")]
            tracing::warn!(
                set = self.name(),
                limit = name,
                "skipped a limit that the set does not have"
            );
        }
        Ok(None)
    }

    fn unknown_limit(&self, limit: String) -> Error {
        Error::Request(RequestError::UnknownLimit {
            set: self.name().to_owned(),
            limit,
            known: self.limits().map(str::to_owned).collect(),
        })
    }
}
