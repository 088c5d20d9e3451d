//! What refusals and the answers to checks have in common: each comes from the library or from a pickle.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shmlimit::RefusalReason;

use crate::answers::verdict;
use crate::handle::WithHandle;
use crate::interpreter::seconds::seconds;

/// An answer: the library's own `G`, or the fields of one, including `Own`, those that only its class has.
pub enum Answer<G, Own> {
    /// The library's own answer: Python objects are only made for attributes that are read.
    Given(WithHandle<G>),
    /// Restored from a pickle.
    Restored(Restored<Own>),
}

/// The fields of an answer.
pub struct Restored<Own> {
    pub set_name: String,
    pub binding: Option<String>,
    pub reason: Option<String>,
    pub retry_after: Option<f64>,
    pub remaining: Option<Py<PyAny>>,
    pub verdicts: Py<PyDict>,
    pub own: Own,
}

/// An answer of the library.
pub trait Decided {
    fn binding(&self) -> Option<&str>;
    fn reason(&self) -> Option<RefusalReason>;
    fn retry_after(&self) -> Option<Duration>;
    fn verdicts(&self) -> impl Iterator<Item = shmlimit::Verdict<'_>>;
}

impl<G: Decided, Own> Answer<G, Own> {
    /// The library's own answer. `name` is what the error calls it.
    ///
    /// # Errors
    ///
    /// `ValueError` if it was unpickled: a pickle keeps only the attributes.
    pub fn given(&self, name: &str) -> PyResult<&G> {
        match self {
            Self::Given(given) => Ok(given.get()),
            Self::Restored(_) => Err(PyValueError::new_err(format!(
                "the {name} comes out of a pickle: use it where it was given"
            ))),
        }
    }

    pub fn set_name(&self) -> &str {
        match self {
            Self::Given(given) => given.handle().set.name(),
            Self::Restored(restored) => &restored.set_name,
        }
    }

    pub fn binding(&self) -> Option<&str> {
        match self {
            Self::Given(given) => given.get().binding(),
            Self::Restored(restored) => restored.binding.as_deref(),
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Given(given) => given.get().reason().map(RefusalReason::as_str),
            Self::Restored(restored) => restored.reason.as_deref(),
        }
    }

    pub fn retry_after(&self) -> Option<f64> {
        match self {
            Self::Given(given) => given.get().retry_after().map(seconds),
            Self::Restored(restored) => restored.retry_after,
        }
    }

    pub fn remaining<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self {
            Self::Given(given) => {
                let decided = given.get();
                verdict::remaining(py, given.handle(), decided.binding(), decided.verdicts())
            }
            Self::Restored(restored) => Ok(restored.remaining.as_ref().map(|it| it.bind(py).clone())),
        }
    }

    pub fn verdicts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self {
            Self::Given(given) => verdict::by_limit(py, given.handle(), given.get().verdicts()),
            Self::Restored(restored) => Ok(restored.verdicts.bind(py).clone()),
        }
    }

    /// Drops the answer with its object; `end_own` drops the fields that only its class has.
    #[inline]
    pub fn end(self, py: Python<'_>, end_own: impl FnOnce(Own)) {
        match self {
            Self::Given(given) => given.end(py),
            Self::Restored(restored) => {
                restored.verdicts.drop_ref(py);
                restored
                    .remaining
                    .into_iter()
                    .for_each(|object| object.drop_ref(py));
                end_own(restored.own);
            }
        }
    }
}
