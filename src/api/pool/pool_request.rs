//! What to take from whichever set of a pool is chosen.

use super::LimitPool;
use crate::api::request::Request;
use crate::error::{Error, RequestError};

/// What to take from a pool: a [`Request`] for each of its sets, so that names are resolved once. Made by
/// [`LimitPool::request`](crate::LimitPool::request).
#[derive(Clone, Debug)]
pub struct PoolRequest<'a> {
    pub(super) pool: &'a LimitPool,
    requests: Vec<Request<'a>>,
}

impl LimitPool {
    /// A request that takes the default of every limit of the chosen set: see
    /// [`LimitSet::request`](crate::LimitSet::request).
    pub fn request(&self) -> PoolRequest<'_> {
        PoolRequest {
            pool: self,
            requests: self.iter().map(|set| set.request()).collect(),
        }
    }
}

impl<'a> PoolRequest<'a> {
    /// Names a limit and how many units of it to take, as [`Request::with`] does for a set.
    ///
    /// # Errors
    ///
    /// See [`set_cost`](Self::set_cost).
    pub fn with(mut self, limit: &str, cost: u64) -> Result<Self, Error> {
        self.set_cost(limit, cost)?;
        Ok(self)
    }

    /// Names a limit and how much of it to take, as a decimal in natural units, as [`Request::with_decimal`] does for a
    /// set. Each set counts in its own units.
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
            pool: self.pool,
            requests: requests.collect::<Result<_, _>>()?,
        })
    }

    /// Names a limit, or changes how many units of it to take, in every set that has it.
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

    /// Labels what is taken from the set at `index`: see [`Request::label`]. Does nothing if out of range.
    #[must_use]
    pub fn label(mut self, index: usize, label: impl AsRef<str>) -> Self {
        if let Some(request) = self.requests.get_mut(index) {
            *request = request.clone().label(label);
        }
        self
    }

    /// The request for the set at `index`, or `None` if out of range.
    pub fn get(&self, index: usize) -> Option<&Request<'a>> {
        self.requests.get(index)
    }

    /// The request for a set of the pool, which always exists.
    pub(super) fn member(&self, index: usize) -> Result<&Request<'a>, Error> {
        self.get(index).ok_or(Error::Request(RequestError::EmptyPool))
    }
}
