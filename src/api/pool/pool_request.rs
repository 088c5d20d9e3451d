//! What to take from whichever member of a pool is chosen.

use crate::api::request::Request;
use crate::api::set::limit_set::LimitSet;
use crate::error::{Error, RequestError};

/// What to take from a pool: a [`Request`] for each of its sets, so that names are resolved once. Made by
/// [`LimitPool::request`](crate::LimitPool::request), or collected from requests for its sets, in their order, where those
/// differ: by their labels, for instance.
#[derive(Clone, Debug)]
pub struct PoolRequest {
    requests: Vec<Request>,
}

impl FromIterator<Request> for PoolRequest {
    fn from_iter<T: IntoIterator<Item = Request>>(requests: T) -> Self {
        Self {
            requests: requests.into_iter().collect(),
        }
    }
}

impl PoolRequest {
    pub(super) fn new(members: &[LimitSet]) -> Self {
        Self {
            requests: members.iter().map(LimitSet::request).collect(),
        }
    }

    /// Names a limit and what to take of it, in units, as [`Request::with`] does for a set.
    ///
    /// # Errors
    ///
    /// As [`set_cost`](Self::set_cost).
    pub fn with(mut self, limit: &str, cost: u64) -> Result<Self, Error> {
        self.set_cost(limit, cost)?;
        Ok(self)
    }

    /// Names a limit and what to take of it as a decimal in natural units, as [`Request::with_decimal`] does for a set.
    /// Each set counts in units of its own.
    ///
    /// # Errors
    ///
    /// [`RequestError::InvalidAmount`] where it is no whole number of units in one of the sets, and as
    /// [`set_cost`](Self::set_cost).
    pub fn with_decimal(self, limit: &str, cost: &str) -> Result<Self, Error> {
        let requests = self
            .requests
            .into_iter()
            .map(|request| request.with_decimal(limit, cost));
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
        })
    }

    /// Names a limit, or changes what to take of it, in units, in every set that has it.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`] where a set does not have it, unless its handle
    /// [skips](crate::LimitSet::strict) such names.
    pub fn set_cost(&mut self, limit: &str, cost: u64) -> Result<(), Error> {
        self.requests
            .iter_mut()
            .try_for_each(|request| request.set_cost(limit, cost))
    }

    /// The request for the set at `index`; none beyond the pool.
    pub fn get(&self, index: usize) -> Option<&Request> {
        self.requests.get(index)
    }

    /// As [`get`](Self::get), for the set at `index` of the pool that it is used on.
    pub(super) fn request_for(&self, set: &LimitSet, index: usize) -> Result<&Request, Error> {
        self.requests.get(index).ok_or_else(|| {
            Error::Request(RequestError::ForeignRequest {
                set: set.name().to_owned(),
                path: set.segment_path().to_owned(),
                prepared_for: format!("a pool without a member number {index}"),
            })
        })
    }
}
