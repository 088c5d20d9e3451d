//! Units that this process has taken in advance, as Python meets them.

use pyo3::prelude::*;
use shmlimit::{Batch, Error, SegmentError};

use crate::error::OrRaise;
use crate::log;

/// Units of one limit, taken a batch at a time and spent by this process alone.
#[pyclass(module = "shmlimit._native")]
pub struct LocalCredit {
    credit: shmlimit::LocalCredit,
}

impl LocalCredit {
    pub fn new(
        py: Python<'_>,
        set: &shmlimit::LimitSet,
        limit: &str,
        min_units: u64,
        max_units: u64,
    ) -> PyResult<Self> {
        let credit = set
            .local_credit(limit, Batch::between(min_units, max_units))
            .or_raise(py)?;
        Ok(Self { credit })
    }
}

impl Drop for LocalCredit {
    fn drop(&mut self) {
        match self.credit.abandon() {
            // What was taken from a removed segment has no owner any more.
            Ok(()) | Err(Error::Segment(SegmentError::Removed { .. })) => {}
            Err(error) => log::warning_of_collected(&format!(
                "local credit that was garbage-collected could not be given back, and stays charged: {error}"
            )),
        }
    }
}

#[pymethods]
impl LocalCredit {
    /// Spends units.
    ///
    /// Args:
    ///     units: How many.
    ///
    /// Returns:
    ///     Whether there were as many, here and in the limit together; otherwise nothing was spent.
    #[pyo3(signature = (units=1))]
    fn try_take(&mut self, py: Python<'_>, units: u64) -> PyResult<bool> {
        Ok(self.credit.try_take(units).or_raise(py)?.is_taken())
    }

    /// Units that are left of the batch.
    #[getter]
    fn left(&self) -> u64 {
        self.credit.left()
    }

    /// Gives back what is left, as far as the algorithm refunds.
    ///
    /// Returns:
    ///     How many units came back.
    fn give_back(&mut self, py: Python<'_>) -> PyResult<u64> {
        self.credit.give_back().or_raise(py)
    }
}
