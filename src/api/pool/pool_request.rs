//! What to take from whichever set of a pool is chosen.

use crate::api::request::Request;
use crate::api::set::limit_set::LimitSet;
use crate::error::{Error, RequestError};

/// What to take from a pool: a [`Request`] for each of its sets, so that names are resolved once. Made by
/// [`LimitPool::request`](crate::LimitPool::request), or collected from requests for its sets, in order, if those
/// differ (in their labels, for instance).
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

    /// Names a limit and how many units to take of it, as [`Request::with`] does for a set.
    ///
    /// # Errors
    ///
    /// See [`set_cost`](Self::set_cost).
    pub fn with(mut self, limit: &str, cost: u64) -> Result<Self, Error> {
        self.set_cost(limit, cost)?;
        Ok(self)
    }

    /// Names a limit and how much to take of it, as a decimal in natural units, as [`Request::with_decimal`] does for
    /// a set. Each set counts in its own units.
    ///
    /// # Errors
    ///
    /// [`RequestError::InvalidAmount`] if it is not a whole number of units in one of the sets, and the errors of
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

    /// Names a limit, or changes how many units to take of it, in every set that has it.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`] if a set does not have it, unless its handle [skips](crate::LimitSet::strict)
    /// unknown names.
    pub fn set_cost(&mut self, limit: &str, cost: u64) -> Result<(), Error> {
        self.requests
            .iter_mut()
            .try_for_each(|request| request.set_cost(limit, cost))
    }

    /// The request for the set at `index`, or `None` if out of range.
    pub fn get(&self, index: usize) -> Option<&Request> {
        self.requests.get(index)
    }

    /// The request for the set at `index` of the pool it is used on, or an error if it has none.
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
